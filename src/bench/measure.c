/* measure.c: times operators and the machine's limits: copies, exponentials and multiply-adds per second on all threads
 * of a context. Wall-clock; a result is the best and the median of several runs. measure_cuda.c does the same on a
 * GPU. */
#include "public_names.h"

#include <krait/bench.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "all_ops.h"
#include "clock.h"
#include "limits.h"
#include "measured_call.h"
#include "measure_cuda.h"
#include "plan.h"
#include "status.h"

enum { FEWEST_RUNS = 3 };

static int compare_times(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void kr_sort_times(double *times, int n) { qsort(times, (size_t)n, sizeof *times, compare_times); }

/* Runs implementation until budget_s is used up, at least a few times after one warm-up. */
static int32_t time_impl(const krait_ctx *ctx, const kr_impl *impl, kr_measured_call *c, double budget_s, int most_runs,
                        double *times, int *n_runs) {
  kr_call *call = (kr_call *)c->args;
  call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, call) : 0;
  call->scratch = kr_alloc(call->scratch_bytes);
  KR_CHECK(call->scratch, KRAIT_ERR_NO_MEMORY, "no memory for scratch");
  int32_t status = most_runs > 1 ? impl->run(ctx, call) : KRAIT_OK;
  const int64_t begin = kr_clock_ns();
  *n_runs = 0;
  while (status >= 0 && *n_runs < most_runs &&
         (*n_runs < FEWEST_RUNS || (double)(kr_clock_ns() - begin) * 1e-9 < budget_s)) {
    const int64_t start = kr_clock_ns();
    status = impl->run(ctx, call);
    times[(*n_runs)++] = (double)(kr_clock_ns() - start) * 1e-9;
  }
  kr_free(call->scratch);
  kr_sort_times(times, *n_runs);
  return status;
}

static int32_t measure_on_cpu(const krait_ctx *ctx, const kr_impl *impl, const kr_impl *reference, kr_measured_call *c,
                              double budget_s, krait_op_timing *out) {
  double times[KR_MEASURE_RUNS];
  int n_reference;
  KR_TRY(time_impl(ctx, impl, c, budget_s, KR_MEASURE_RUNS, times, &out->n_runs));
  out->best_s = times[0], out->median_s = times[out->n_runs / 2];
  if (!reference) return KRAIT_OK;
  KR_TRY(time_impl(ctx, reference, c, 0, 1, times, &n_reference));
  out->reference_s = times[0];
  return KRAIT_OK;
}

typedef struct request {
  const char *op, *impl, *shape; /* implementation: NULL for the best */
  int32_t dtype, with_reference;
  double budget_s;
} request;

static int32_t measure_call(const krait_ctx *ctx, const kr_op *op, const request *r, kr_measured_call *c,
                            krait_op_timing *out) {
  kr_cost cost = {0};
  kr_plan *plan = NULL;
  KR_CHECK(!ctx->cuda || !r->with_reference, KRAIT_ERR_UNSUPPORTED,
           "the reference runs on the CPU only; time it there, with --device cpu");
  KR_TRY(kr_plan_open(op, ctx, c->args, r->impl, &plan));
  const kr_impl *impl = kr_plan_impl(plan), *reference = r->with_reference ? &op->impls[op->n_impls - 1] : NULL;
  kr_plan_close(&plan);
  KR_CHECK(impl, KRAIT_ERR_UNSUPPORTED, "%s runs on the host with this GPU: %s", op->name, krait_error_detail());
  op->cost(c->args, &cost);
  *out = (krait_op_timing){.flops = cost.flops, .bytes = cost.bytes, .exps = cost.exps, .impl = impl->name};
  return ctx->cuda ? kr_measure_on_device(ctx, op, impl, c, r->budget_s, out)
                   : measure_on_cpu(ctx, impl, reference, c, r->budget_s, out);
}

static int32_t measure_request(const krait_ctx *ctx, const request *r, krait_op_timing *timing) {
  KR_CHECK(ctx && r->op && timing, KRAIT_ERR_ARGUMENT, "ctx, name and timing must not be NULL");
  KR_CHECK(timing->size == sizeof *timing, KRAIT_ERR_STRUCT_SIZE,
           "krait_op_timing.size is %u, must be %zu", timing->size, sizeof *timing);
  const kr_op *op = kr_op_find(r->op);
  KR_CHECK(op, KRAIT_ERR_ARGUMENT, "there is no operator '%s'", r->op);
  kr_measured_call *c = kr_alloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a call");
  int32_t status = kr_measured_call_open(c, op, r->shape, r->dtype);
  krait_op_timing out;
  if (status >= 0) status = measure_call(ctx, op, r, c, &out);
  if (status >= 0) out.size = timing->size, *timing = out;
  kr_measured_call_close(c);
  kr_free(c);
  return status;
}

int32_t krait_op_measure(const krait_ctx *ctx, const char *name, const char *shape, int32_t dtype, double budget_s,
                         int32_t with_reference, krait_op_timing *timing) {
  return measure_request(
      ctx,
      &(request){.op = name, .shape = shape, .dtype = dtype, .budget_s = budget_s, .with_reference = with_reference},
      timing);
}

int32_t krait_op_measure_impl(const krait_ctx *ctx, const char *name, const char *impl, const char *shape,
                              int32_t dtype, double budget_s, krait_op_timing *timing) {
  return measure_request(
      ctx, &(request){.op = name, .impl = impl, .shape = shape, .dtype = dtype, .budget_s = budget_s}, timing);
}

/* ---- limits ---- */

enum { COPY_BYTES = 64 << 20, PIECE_BYTES = 1 << 20, LOOP_ROUNDS = 20000, TRIES = 5 };

typedef struct limit {
  kr_limit_fn *loop; /* NULL: copy */
  char *from, *to;
} limit;

static void run_measure_limit(void *user, int64_t begin, int64_t end, int worker) {
  const limit *l = user;
  (void)worker;
  if (!l->loop) {
    memcpy(l->to + begin * PIECE_BYTES, l->from + begin * PIECE_BYTES, (size_t)((end - begin) * PIECE_BYTES));
    return;
  }
  float values[1024];
  for (int i = 0; i < 1024; i++) values[i] = -(float)i * 0.01f;
  for (int64_t i = begin; i < end; i++) values[0] += 0 * l->loop(values, LOOP_ROUNDS);
}

static double measure_best_rate(const krait_ctx *ctx, limit *l, int64_t pieces, double work_per_piece) {
  double best = 0;
  for (int i = 0; i < TRIES; i++) {
    const int64_t start = kr_clock_ns();
    kr_parallel(ctx, pieces, 1, run_measure_limit, l);
    const double rate = (double)pieces * work_per_piece * 1e9 / (double)(kr_clock_ns() - start + 1);
    if (rate > best) best = rate;
  }
  return best;
}

int32_t krait_measure_limits(const krait_ctx *ctx, krait_limits *limits) {
  static const struct {
    uint64_t needs;
    kr_limit_fn *exps, *fmas;
  } loops[] = {
#define KR_ISA(isa, cap) {KRAIT_CAP_CPU | cap, kr_limit_exps_##isa, kr_limit_fmas_##isa},
#include "isa.def"
#undef KR_ISA
  };
  KR_CHECK(ctx && limits, KRAIT_ERR_ARGUMENT, "ctx and limits must not be NULL");
  KR_CHECK(limits->size >= sizeof *limits, KRAIT_ERR_STRUCT_SIZE, "krait_limits.size is %u, must be %zu", limits->size,
           sizeof *limits);
  if (ctx->cuda) return kr_measure_device_limits(ctx, limits);
  int k = 0;
  while ((loops[k].needs & ctx->caps) != loops[k].needs) k++; /* the last one needs nothing */
  const int64_t pieces = 4 * krait_ctx_n_threads(ctx);
  limit copy = {.from = kr_zalloc(COPY_BYTES), .to = kr_zalloc(COPY_BYTES)};
  int32_t status = copy.from && copy.to
                       ? KRAIT_OK
                       : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for two blocks of %d bytes", COPY_BYTES);
  if (status >= 0) {
    limits->copy_bytes_per_s = measure_best_rate(ctx, &copy, COPY_BYTES / PIECE_BYTES, 2.0 * PIECE_BYTES);
    limits->exps_per_s = measure_best_rate(ctx, &(limit){.loop = loops[k].exps}, pieces, 1024.0 * LOOP_ROUNDS);
    limits->flops_per_s = measure_best_rate(ctx, &(limit){.loop = loops[k].fmas}, pieces, 2 * 1024.0 * LOOP_ROUNDS);
  }
  kr_free(copy.from);
  kr_free(copy.to);
  return status;
}
