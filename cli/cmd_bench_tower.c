/* cmd_bench_tower.c: krait bench videomamba and clip: a tower with random weights of a published model's sizes,
 * compared with one large matrix product and the machine's limits. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <krait/bench.h>

#include "bench_tower.h"
#include "model_time.h"
#include "output.h"

typedef struct result {
  char name[64];
  int64_t n; /* frames or images */
  kr_tower_timing t;
  krait_limits limits;
} result;

static double rate(const result *r) { return r->t.flops / r->t.best_s; }

static int print_bench_tower_json(const krait_ctx *ctx, const result *r, int32_t dtype) {
  const kr_tower_timing *t = &r->t;
  return cli_print_json(
      "bench",
      json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I}", "model",
                r->name, "dtype", krait_dtype_name(dtype), "frames", (json_int_t)r->n, "tokens",
                (json_int_t)t->n_tokens, "threads", krait_ctx_n_threads(ctx), "runs", t->n_runs, "open_s",
                cli_json_real(t->open_s), "median_s", cli_json_real(t->run_s), "best_s", cli_json_real(t->best_s),
                "flops", cli_json_real(t->flops), "bytes", cli_json_real(t->bytes), "product_flops_per_s",
                cli_json_real(t->product_flops_per_s), "cpu_s", cli_json_real(t->cpu_s), "product_flops_per_cpu_s",
                cli_json_real(t->product_flops_per_cpu_s), "flops_per_s", cli_json_real(r->limits.flops_per_s),
                "copy_bytes_per_s", cli_json_real(r->limits.copy_bytes_per_s), "weight_bytes",
                (json_int_t)t->weight_bytes, "work_bytes", (json_int_t)t->work_bytes),
      JSON_INDENT(2));
}

static int print_bench_tower_text(const cli_bench_tower *b, const result *r) {
  const kr_tower_timing *t = &r->t;
  const double bytes_per_s = t->bytes / t->best_s;
  printf("%s: random weights of %s, %s, %lld %s, %lld tokens\n", b->family, r->name, krait_dtype_name(b->dtype),
         (long long)r->n, strcmp(b->family, "clip") == 0 ? "pictures" : "frames of a clip", (long long)t->n_tokens);
  printf("  best, median     %9.3f ms  %9.3f ms   of %d runs\n", t->best_s * 1e3, t->run_s * 1e3, t->n_runs);
  printf("  arithmetic       %9.2f GFLOP/s    %5.1f %% of a large product's %.2f, %.1f %% of %.2f\n", rate(r) * 1e-9,
         100 * rate(r) / t->product_flops_per_s, t->product_flops_per_s * 1e-9,
         100 * rate(r) / r->limits.flops_per_s, r->limits.flops_per_s * 1e-9);
  if (t->product_flops_per_cpu_s > 0)
    printf("  processor time   %9.3f ms         %5.1f %% of that product's rate\n", t->cpu_s * 1e3,
           100 * t->flops / t->cpu_s / t->product_flops_per_cpu_s);
  printf("  memory           %9.2f GB/s       %5.1f %% of a copy's %.2f\n", bytes_per_s * 1e-9,
         100 * bytes_per_s / r->limits.copy_bytes_per_s, r->limits.copy_bytes_per_s * 1e-9);
  printf("  weights, work    %9.3f GB  %9.3f GB\n", (double)t->weight_bytes * 1e-9, (double)t->work_bytes * 1e-9);
  return 0;
}

static void print_bench_tower_line(void *user, const char *line) {
  (void)user;
  printf("  %s\n", line);
}

static int32_t measure_bench_tower(const krait_ctx *ctx, const cli_bench_tower *b, result *r) {
  const int32_t status =
      kr_tower_measure(ctx, r->name, b->dtype, r->n, (int32_t)b->n_runs,
                          b->by_kernel && !b->as_json ? print_bench_tower_line : NULL, NULL, &r->t);
  return status < 0 ? status : krait_measure_limits(ctx, &r->limits);
}

int cli_bench_tower_run(const cli_run *run, const cli_bench_tower *b) {
  const int is_clip = strcmp(b->family, "clip") == 0;
  krait_ctx *ctx = NULL;
  result r = {.t.size = sizeof r.t, .limits.size = sizeof r.limits, .n = b->n_frames ? b->n_frames : is_clip ? 16 : 8};
  snprintf(r.name, sizeof r.name, "%s-%.40s", is_clip ? "clip-vit" : b->family,
           b->sizes   ? b->sizes
           : is_clip ? "base-patch16"
                     : "m16");
  int exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status = measure_bench_tower(ctx, b, &r);
  exit_status = status < 0   ? cli_report("bench", status) + 1
                : b->as_json ? print_bench_tower_json(ctx, &r, b->dtype)
                             : print_bench_tower_text(b, &r);
  krait_ctx_close(&ctx);
  return exit_status;
}
