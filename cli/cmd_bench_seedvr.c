/* cmd_bench_seedvr.c: krait bench seedvr: a block of SeedVR's transformer over clips of 1280 x 720. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "bench_seedvr.h"
#include "model_time.h"
#include "output.h"

static void print_bench_seedvr_line(const kr_seedvr_shape *s, const kr_seedvr_timing *t) {
  printf("  %dB %6lld %9lld %5lld/%-5lld %6lld/%-6lld %12.3f %9.3f %10.2f %9.2f\n", s->variant, (long long)s->n_frames,
         (long long)t->n_tokens, (long long)t->n_windows[0], (long long)t->n_windows[1], (long long)t->longest[0],
         (long long)t->longest[1], t->block_s * 1e3, t->flops / t->block_s * 1e-12, (double)t->weight_bytes * 0x1p-30,
         (double)t->work_bytes * 0x1p-30);
  fflush(stdout);
}

static int add_json(json_t *list, const kr_seedvr_shape *s, const kr_seedvr_timing *t) {
  return json_array_append_new(
      list, json_pack("{s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I}", "variant", s->variant, "frames",
                      (json_int_t)s->n_frames, "tokens", (json_int_t)t->n_tokens, "longest", (json_int_t)t->longest[0],
                      "block_s", cli_json_real(t->block_s), "best_s", cli_json_real(t->best_s), "flops",
                      cli_json_real(t->flops), "weight_bytes", (json_int_t)t->weight_bytes, "work_bytes",
                      (json_int_t)t->work_bytes));
}

static void print_node(void *user, const char *line) {
  (void)user;
  printf("    %s\n", line);
}

static int32_t time_one(const krait_ctx *ctx, const cli_bench_seedvr *b, int variant, int64_t n_frames, json_t *list) {
  const kr_seedvr_shape shape = {
      .size = sizeof shape, .variant = variant, .n_frames = n_frames, .width = 1280, .height = 720};
  kr_seedvr_timing t = {.size = sizeof t};
  const int32_t status =
      kr_seedvr_measure(ctx, &shape, b->dtype, 0.5, b->by_kernel && !list ? print_node : NULL, NULL, &t);
  if (status < 0) return status;
  if (!list) print_bench_seedvr_line(&shape, &t);
  return list && add_json(list, &shape, &t) != 0 ? KRAIT_ERR_NO_MEMORY : KRAIT_OK;
}

static int32_t time_all(const krait_ctx *ctx, const cli_bench_seedvr *b, json_t *list) {
  const int64_t clips[] = {1, 21, 121};
  const int is_cpu = krait_ctx_device(ctx) == KRAIT_DEVICE_CPU;
  int32_t status = KRAIT_OK;
  if (!list)
    printf(
        "seedvr: a block at 1280 x 720, %s\n  size frames    tokens     windows       longest     block, ms   TFLOP/s "
        "weight, GiB work, GiB\n",
        krait_dtype_name(b->dtype));
  for (int variant = 3; variant <= 7 && status >= 0; variant += 4) {
    if (b->variant && b->variant[0] != '0' + variant) continue;
    for (int i = 0; i < 3 && status >= 0; i++) {
      if (i > 0 && (b->n_frames || is_cpu)) break;
      status = time_one(ctx, b, variant, b->n_frames ? b->n_frames : clips[i], list);
    }
  }
  return status;
}

int cli_bench_seedvr_run(const cli_run *run, const cli_bench_seedvr *b) {
  krait_ctx *ctx = NULL;
  if (b->variant && strcmp(b->variant, "3b") != 0 && strcmp(b->variant, "7b") != 0)
    return cli_usage_error("bench", "--sizes for seedvr is '%s', must be 3b or 7b", b->variant);
  int exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  json_t *list = b->as_json ? json_array() : NULL;
  const int32_t status = b->as_json && !list ? KRAIT_ERR_NO_MEMORY : time_all(ctx, b, list);
  if (status >= 0 && list) exit_status = cli_print_json("bench", list, JSON_INDENT(2));
  else exit_status = status < 0 ? cli_report("bench", status) + 1 : 0;
  if (status < 0) json_decref(list);
  krait_ctx_close(&ctx);
  return exit_status;
}
