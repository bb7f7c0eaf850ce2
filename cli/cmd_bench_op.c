/* cmd_bench_op.c: krait bench OP: an operator's time beside what this machine, or its GPU, can do at most. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <krait/bench.h>

#include "args.h"
#include "bench_op.h"

static void name_device(const krait_ctx *ctx, char *text, size_t text_bytes) {
  krait_device_info info = {.size = sizeof info};
  const int32_t device = krait_ctx_device(ctx);
  if (device == KRAIT_DEVICE_CPU) snprintf(text, text_bytes, "%d threads", krait_ctx_n_threads(ctx));
  else if (krait_device_read(device - KRAIT_DEVICE_CUDA(0), &info) >= 0) snprintf(text, text_bytes, "GPU %d (%s)", info.index, info.name);
}

static void print_text(const char *op, const char *dtype, const char *device, const krait_op_timing *t, const krait_limits *l) {
  printf("%s %s: row %s on %s, %d runs\n", op, dtype, t->row, device, t->n_runs);
  printf("  best, median     %10.1f us  %10.1f us", t->best_s * 1e6, t->median_s * 1e6);
  if (t->n_copies) printf("  on the GPU, %s, over %d cop%s of the tensors", t->from_graph ? "from a graph" : "without a graph: the driver has none", t->n_copies, t->n_copies == 1 ? "y" : "ies");
  printf("\n");
  if (t->n_copies) printf("  host time        %10.2f us  until a call returns, median\n", t->host_s * 1e6);
  printf("  memory           %10.2f GB/s   %5.1f %% of a copy's %.2f\n", t->bytes / t->best_s * 1e-9, 100 * t->bytes / t->best_s / l->copy_bytes_per_s, l->copy_bytes_per_s * 1e-9);
  printf("  arithmetic       %10.2f GFLOP/s %4.1f %% of %.2f\n", t->flops / t->best_s * 1e-9, 100 * t->flops / t->best_s / l->flops_per_s, l->flops_per_s * 1e-9);
  if (t->exps > 0) printf("  exponentials     %10.2f G/s: the call takes %.2f x the time of its exponentials alone (%.2f G/s)\n", t->exps / t->best_s * 1e-9, t->best_s * l->exps_per_s / t->exps, l->exps_per_s * 1e-9);
  if (t->reference_s > 0) printf("  reference        %10.1f us, %.1f x\n", t->reference_s * 1e6, t->reference_s / t->best_s);
}

static void print_json(const char *op, const char *dtype, const char *device, const krait_op_timing *t, const krait_limits *l) {
  json_t *report = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "op", op, "dtype", dtype, "row", t->row, "device", device, "runs", t->n_runs, "copies", t->n_copies, "from_graph", t->from_graph, "host_s", t->host_s, "best_s", t->best_s,
                             "median_s", t->median_s, "reference_s", t->reference_s, "bytes", t->bytes, "flops", t->flops, "exps", t->exps, "limits",
                             "copy_bytes_per_s", l->copy_bytes_per_s, "flops_per_s", l->flops_per_s, "exps_per_s", l->exps_per_s);
  json_dumpf(report, stdout, JSON_INDENT(2));
  printf("\n");
  json_decref(report);
}

static int parse_dtype(const char *text, int32_t *dtype) {
  for (*dtype = KRAIT_F32; *dtype <= KRAIT_BF16; ++*dtype)
    if (!text || strcmp(text, krait_dtype_name(*dtype)) == 0) return -1;
  return kr_usage_error("bench", "--dtype is '%s', not float32, float16 or bfloat16", text);
}

int bench_op(const char *op, const char *shape, const char *dtype_name, int with_reference, int as_json, const kr_run *run) {
  krait_ctx *ctx = NULL;
  krait_op_timing timing = {.size = sizeof timing};
  krait_limits limits = {.size = sizeof limits};
  char device[160] = "";
  int32_t dtype;
  int exit_status = parse_dtype(dtype_name, &dtype);
  if (exit_status < 0) exit_status = kr_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_op_measure(ctx, op, shape, dtype, 1.0, with_reference, &timing);
  if (status >= 0) status = krait_measure_limits(ctx, &limits);
  name_device(ctx, device, sizeof device);
  if (status >= 0) (as_json ? print_json : print_text)(op, krait_dtype_name(dtype), device, &timing, &limits);
  krait_ctx_close(&ctx);
  return status < 0 ? kr_report("bench", status) + 1 : 0;
}
