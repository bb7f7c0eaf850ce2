/* cmd_bench_op.c: krait bench OP: an operator's time beside what this machine can do at most. */
#include <jansson.h>
#include <stdio.h>

#include <krait/bench.h>

#include "args.h"
#include "bench_op.h"

static void print_text(const char *op, const krait_op_timing *t, const krait_limits *l) {
  printf("%s: row %s, %d runs\n", op, t->row, t->n_runs);
  printf("  best, median     %10.1f us  %10.1f us\n", t->best_s * 1e6, t->median_s * 1e6);
  printf("  memory           %10.2f GB/s   %5.1f %% of a copy's %.2f\n", t->bytes / t->best_s * 1e-9, 100 * t->bytes / t->best_s / l->copy_bytes_per_s, l->copy_bytes_per_s * 1e-9);
  printf("  arithmetic       %10.2f GFLOP/s %4.1f %% of %.2f\n", t->flops / t->best_s * 1e-9, 100 * t->flops / t->best_s / l->flops_per_s, l->flops_per_s * 1e-9);
  if (t->exps > 0) printf("  exponentials     %10.2f G/s: the call takes %.2f x the time of its exponentials alone (%.2f G/s)\n", t->exps / t->best_s * 1e-9, t->best_s * l->exps_per_s / t->exps, l->exps_per_s * 1e-9);
  if (t->reference_s > 0) printf("  reference        %10.1f us, %.1f x\n", t->reference_s * 1e6, t->reference_s / t->best_s);
}

static void print_json(const char *op, const krait_op_timing *t, const krait_limits *l) {
  json_t *report = json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f}}", "op", op, "row", t->row, "runs", t->n_runs, "best_s", t->best_s,
                             "median_s", t->median_s, "reference_s", t->reference_s, "bytes", t->bytes, "flops", t->flops, "exps", t->exps, "limits",
                             "copy_bytes_per_s", l->copy_bytes_per_s, "flops_per_s", l->flops_per_s, "exps_per_s", l->exps_per_s);
  json_dumpf(report, stdout, JSON_INDENT(2));
  printf("\n");
  json_decref(report);
}

int bench_op(const char *op, const char *shape, int with_reference, int as_json, const kr_run *run) {
  krait_ctx *ctx = NULL;
  krait_op_timing timing = {.size = sizeof timing};
  krait_limits limits = {.size = sizeof limits};
  kr_run on_cpu = *run;
  on_cpu.device = on_cpu.device ? on_cpu.device : "cpu";
  int exit_status = kr_run_open_ctx("bench", &on_cpu, &ctx);
  if (exit_status >= 0) return exit_status;
  int32_t status = krait_measure_limits(ctx, &limits);
  if (status >= 0) status = krait_op_measure(ctx, op, shape, KRAIT_F32, 1.0, with_reference, &timing);
  if (status >= 0) (as_json ? print_json : print_text)(op, &timing, &limits);
  krait_ctx_close(&ctx);
  return status < 0 ? kr_report("bench", status) + 1 : 0;
}
