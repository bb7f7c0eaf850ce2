/* cmd_bench_op.c: krait bench OP: an operator's time, compared with the limits of this machine or its GPU. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <krait/bench.h>

#include "args.h"
#include "bench_op.h"
#include "output.h"

static void name_device(const krait_ctx *ctx, char *text, size_t text_bytes) {
  krait_device_info info = {.size = sizeof info};
  const int32_t device = krait_ctx_device(ctx);
  if (device == KRAIT_DEVICE_CPU) snprintf(text, text_bytes, "%d threads", krait_ctx_n_threads(ctx));
  else if (krait_device_read(device - KRAIT_DEVICE_CUDA(0), &info) >= 0)
    snprintf(text, text_bytes, "GPU %d (%s)", info.index, info.name);
}

static int print_bench_op_text(const char *op, const char *dtype, const char *device, const krait_op_timing *t,
                      const krait_limits *l) {
  printf("%s %s: implementation %s on %s, %d runs\n", op, dtype, t->impl, device, t->n_runs);
  printf("  best, median     %10.1f us  %10.1f us", t->best_s * 1e6, t->median_s * 1e6);
  if (t->n_copies)
    printf("  device time, %s, over %d cop%s of the tensors",
           t->from_graph ? "from a graph" : "without a graph (not supported by the driver)", t->n_copies,
           t->n_copies == 1 ? "y" : "ies");
  printf("\n");
  if (t->n_copies) printf("  host time        %10.2f us  until a call returns, median\n", t->host_s * 1e6);
  printf("  memory           %10.2f GB/s   %5.1f %% of a copy's %.2f\n", t->bytes / t->best_s * 1e-9,
         100 * t->bytes / t->best_s / l->copy_bytes_per_s, l->copy_bytes_per_s * 1e-9);
  printf("  arithmetic       %10.2f GFLOP/s %4.1f %% of %.2f\n", t->flops / t->best_s * 1e-9,
         100 * t->flops / t->best_s / l->flops_per_s, l->flops_per_s * 1e-9);
  if (t->exps > 0)
    printf("  exponentials     %10.2f G/s: the call takes %.2f x the time of only its exponentials (%.2f G/s)\n",
           t->exps / t->best_s * 1e-9, t->best_s * l->exps_per_s / t->exps, l->exps_per_s * 1e-9);
  if (t->reference_s > 0)
    printf("  reference        %10.1f us, %.1f x\n", t->reference_s * 1e6, t->reference_s / t->best_s);
  return 0;
}

static int print_bench_op_json(const char *op, const char *dtype, const char *device, const krait_op_timing *t,
                      const krait_limits *l) {
  json_t *report =
      json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "op", op,
                "dtype", dtype, "implementation", t->impl, "device", device, "runs", t->n_runs, "copies", t->n_copies,
                "from_graph", t->from_graph, "host_s", t->host_s, "best_s", t->best_s, "median_s", t->median_s,
                "reference_s", t->reference_s, "bytes", t->bytes, "flops", t->flops, "exps", t->exps, "limits",
                "copy_bytes_per_s", l->copy_bytes_per_s, "flops_per_s", l->flops_per_s, "exps_per_s", l->exps_per_s);
  return cli_print_json("bench", report, JSON_INDENT(2));
}

int cli_bench_dtype(const char *text, int32_t *dtype) {
  for (*dtype = KRAIT_F32; *dtype <= KRAIT_BF16; ++*dtype)
    if (!text || strcmp(text, krait_dtype_name(*dtype)) == 0) return -1;
  return cli_usage_error("bench", "--dtype is '%s', not float32, float16 or bfloat16 (generate: also q8_0, q4_k)",
                         text);
}

/* One line per implementation: its time, or why it refuses the call. */
static int32_t time_rows(const krait_ctx *ctx, const char *name, const char *shape, int32_t dtype, const char *device,
                         int as_json, int *failed) {
  json_t *report = json_array();
  int32_t op = 0, status = KRAIT_OK;
  while (op < krait_n_ops() && strcmp(krait_op_name(op), name) != 0) op++;
  if (op == krait_n_ops())
    status = krait_op_measure_impl(ctx, name, NULL, shape, dtype, 0,
                                  &(krait_op_timing){.size = sizeof(krait_op_timing)}); /* which says so */
  if (!as_json && status >= 0)
    printf("%s %s: implementations on %s, best and median\n", name, krait_dtype_name(dtype), device);
  for (int32_t r = 0; status >= 0 && r < krait_op_n_impls(op); r++) {
    const char *impl = krait_op_impl_name(op, r);
    krait_op_timing t = {.size = sizeof t};
    if (r > 0 && r == krait_op_n_impls(op) - 1)
      continue; /* the reference implementation: that is what --reference is for */
    status = krait_op_measure_impl(ctx, name, impl, shape, dtype, 0.5, &t);
    const char *why = status == KRAIT_ERR_UNSUPPORTED ? krait_error_detail() : NULL;
    if (!as_json && status >= 0) printf("  %-32s %10.1f us %10.1f us\n", impl, t.best_s * 1e6, t.median_s * 1e6);
    if (!as_json && why) printf("  %-32s %s\n", impl, strstr(why, "refuses: ") ? strstr(why, "refuses: ") : why);
    json_array_append_new(
        report, why ? json_pack("{s:s, s:s}", "implementation", impl, "refuses", why)
                    : json_pack("{s:s, s:f, s:f}", "implementation", impl, "best_s", t.best_s, "median_s", t.median_s));
    if (why) status = KRAIT_OK;
  }
  if (as_json && status >= 0) *failed = cli_print_json("bench", report, JSON_INDENT(2));
  else json_decref(report);
  return status;
}

static int32_t time_best(const krait_ctx *ctx, const char *op, const char *impl, const char *shape, int32_t dtype,
                         int with_reference, krait_op_timing *timing) {
  if (impl) return krait_op_measure_impl(ctx, op, impl, shape, dtype, 1.0, timing);
  return krait_op_measure(ctx, op, shape, dtype, 1.0, with_reference, timing);
}

int bench_op(const char *op, const char *shape, const char *dtype_name, const char *impls, int with_reference,
             int as_json, const cli_run *run) {
  krait_ctx *ctx = NULL;
  krait_op_timing timing = {.size = sizeof timing};
  krait_limits limits = {.size = sizeof limits};
  char device[160] = "";
  int32_t dtype;
  int exit_status = cli_bench_dtype(dtype_name, &dtype);
  if (exit_status < 0) exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  name_device(ctx, device, sizeof device);
  const int is_all = impls && strcmp(impls, "all") == 0;
  int failed = 0;
  int32_t status = is_all ? time_rows(ctx, op, shape, dtype, device, as_json, &failed)
                          : time_best(ctx, op, impls, shape, dtype, with_reference, &timing);
  if (status >= 0 && !is_all) status = krait_measure_limits(ctx, &limits);
  if (status >= 0 && !is_all)
    failed =
        (as_json ? print_bench_op_json : print_bench_op_text)(op, krait_dtype_name(dtype), device, &timing, &limits);
  krait_ctx_close(&ctx);
  return status < 0 ? cli_report("bench", status) + 1 : failed;
}
