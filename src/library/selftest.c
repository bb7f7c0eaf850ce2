/* selftest.c: the checker for users: every implementation of every op by itself, on the CPU and each GPU. */
#include "public_names.h"

#include "alloc.h"
#include "all_ops.h"
#include "check.h"
#include "status.h"

typedef void report_fn(void *user, const krait_selftest_line *line);

static void report_impl(const kr_op *op, const kr_impl *impl, const kr_check_result *result, report_fn *report,
                       void *user) {
  krait_selftest_line line = {.size = sizeof line,
                              .op = op->name,
                              .impl = impl->name,
                              .n_runs = result->n_runs,
                              .n_refused = result->n_refused,
                              .n_failures = result->n_failures,
                              .worst = result->worst,
                              .first_failure = result->first_failure};
  report(user, &line);
}

static int32_t test_op(const krait_ctx *ctx, const kr_op *op, int64_t n_cases, uint64_t seed, report_fn *report,
                       void *user) {
  kr_check_result *by_impl = kr_zalloc((size_t)op->n_impls * sizeof *by_impl), all;
  KR_CHECK(by_impl, KRAIT_ERR_NO_MEMORY, "no memory for the implementations of %s", op->name);
  const kr_check_options options = {.seed = seed, .n_cases = n_cases, .by_impl = by_impl};
  int32_t status = kr_check_op(ctx, op, &options, &all);
  for (int32_t r = 0; r < op->n_impls && status >= 0; r++)
    if ((op->impls[r].needs & ctx->caps) == op->impls[r].needs)
      report_impl(op, &op->impls[r], &by_impl[r], report, user);
  kr_free(by_impl);
  return status;
}

static int32_t test_ops(const krait_ctx *ctx, int64_t n_cases, uint64_t seed, report_fn *report, void *user) {
  for (int32_t i = 0; i < kr_n_ops; i++) {
    const kr_op *op = kr_ops[i];
    const int64_t n = n_cases > 0 ? n_cases : op->n_cases < 100 ? op->n_cases : 100;
    if (op->make_case) KR_TRY(test_op(ctx, op, n, seed, report, user));
  }
  return KRAIT_OK;
}

/* All device code will be needed: a few threads have the driver compile it in advance. */
enum { MOST_COMPILERS = 8 };

typedef struct compilers {
  const kr_cuda *cuda;
  int n;
} compilers;

static void compile_range(void *user, int64_t begin, int64_t end, int worker) {
  const compilers *c = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) kr_cuda_compile(c->cuda, (int)i, c->n);
}

static void compile_all(const krait_ctx *ctx) {
  compilers c = {ctx->cuda, krait_ctx_n_threads(ctx)};
  if (c.n > MOST_COMPILERS) c.n = MOST_COMPILERS;
  if (c.cuda) kr_parallel(ctx, c.n, 1, compile_range, &c);
}

static int32_t test_device(int32_t device, uint64_t mask, int64_t n_cases, uint64_t seed, report_fn *report,
                           void *user) {
  krait_ctx_options options = {.size = sizeof options, .device = device, .caps_mask = mask};
  krait_ctx *ctx;
  KR_TRY(krait_ctx_open(&options, &ctx));
  compile_all(ctx);
  int32_t status = test_ops(ctx, n_cases, seed, report, user);
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
