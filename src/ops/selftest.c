/* selftest.c: the walker for users: the CPU and each GPU, each row of each op on its own. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "op_list.h"
#include "status.h"

typedef void report_fn(void *user, const krait_selftest_line *line);

typedef struct tally {
  char first[1024];
} tally;

static void keep_first(void *user, const char *line) {
  tally *t = user;
  if (!t->first[0]) snprintf(t->first, sizeof t->first, "%s", line);
}

static int32_t test_row(const krait_ctx *ctx, const kr_op *op, const kr_row *row, int64_t n_cases, uint64_t seed,
                        report_fn *report, void *user) {
  tally t = {""};
  kr_check_options options = {.seed = seed, .n_cases = n_cases, .row = row->name, .report = keep_first, .user = &t};
  kr_check_result result;
  KR_TRY(kr_check_op(ctx, op, &options, &result));
  krait_selftest_line line = {.size = sizeof line,
                              .op = op->name,
                              .row = row->name,
                              .n_runs = result.n_runs,
                              .n_refused = result.n_refused,
                              .n_failures = result.n_failures,
                              .worst = result.worst,
                              .first_failure = t.first};
  if (report) report(user, &line);
  return KRAIT_OK;
}

static int32_t test_rows(const krait_ctx *ctx, int64_t n_cases, uint64_t seed, report_fn *report, void *user) {
  for (int32_t i = 0; i < kr_n_ops; i++) {
    const kr_op *op = kr_ops[i];
    int64_t n = n_cases > 0 ? n_cases : op->n_cases < 100 ? op->n_cases : 100;
    for (int32_t r = 0; op->make_case && r < op->n_rows; r++)
      if ((op->rows[r].needs & ctx->caps) == op->rows[r].needs)
        KR_TRY(test_row(ctx, op, &op->rows[r], n, seed, report, user));
  }
  return KRAIT_OK;
}

static int32_t test_device(int32_t device, uint64_t mask, int64_t n_cases, uint64_t seed, report_fn *report,
                           void *user) {
  krait_ctx_options options = {.size = sizeof options, .device = device, .caps_mask = mask};
  krait_ctx *ctx;
  KR_TRY(krait_ctx_open(&options, &ctx));
  int32_t status = test_rows(ctx, n_cases, seed, report, user);
  krait_ctx_close(&ctx);
  return status;
}

int32_t krait_selftest_with(int32_t device, uint64_t mask, int64_t n_cases, uint64_t seed, report_fn *report,
                            void *user) {
  KR_CHECK(report, KRAIT_ERR_ARGUMENT, "report must not be NULL");
  if (device != KRAIT_DEVICE_AUTO) return test_device(device, mask, n_cases, seed, report, user);
  KR_TRY(test_device(KRAIT_DEVICE_CPU, mask, n_cases, seed, report, user));
  int32_t n = 0;
  if (krait_device_count(&n) < 0) return KRAIT_OK; /* no GPU: krait devices says why */
  for (int32_t i = 0; i < n; i++) KR_TRY(test_device(KRAIT_DEVICE_CUDA(i), mask, n_cases, seed, report, user));
  return KRAIT_OK;
}

int32_t krait_selftest(int32_t device, int64_t n_cases, uint64_t seed, report_fn *report, void *user) {
  return krait_selftest_with(device, 0, n_cases, seed, report, user);
}
