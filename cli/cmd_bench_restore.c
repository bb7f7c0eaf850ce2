/* cmd_bench_restore.c: krait bench restore: a batch of frames through SeedVR's autoencoder and transformer. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "bench_restore.h"
#include "model_time.h"
#include "output.h"

static void print_line(void *user, const char *line) {
  (void)user;
  printf("    %s\n", line);
}

/* stage: of the models; -1: another. */
static void print_restore_stage(const char *name, double seconds, double flops, const kr_restore_timing *t,
                                int stage) {
  printf("  %-12s %8.3f s", name, seconds);
  if (stage >= 0) printf("  memory planned %6.2f GiB", (double)t->planned_bytes[stage] * 0x1p-30);
  if (stage >= 0 && t->measured_bytes[stage]) printf(", measured %6.2f", (double)t->measured_bytes[stage] * 0x1p-30);
  if (flops > 0) printf(" %9.1f TFLOP %8.1f TFLOP/s", flops * 1e-12, flops / seconds * 1e-12);
  printf("\n");
}

static void print_restore_timing(const kr_seedvr_shape *s, const char *dtype, const kr_restore_timing *t) {
  const double sum = t->resize_s + t->encode_s + t->sample_s + t->decode_s + t->colour_s + t->round_s;
  printf("restore: %lld frames of %lld x %lld, SeedVR2-%dB of random weights, %s\n", (long long)s->n_frames,
         (long long)s->width, (long long)s->height, s->variant, dtype);
  print_restore_stage("resize", t->resize_s, 0, t, -1);
  print_restore_stage("encode", t->encode_s, t->encode_flops, t, 0);
  print_restore_stage("transformer", t->sample_s, 0, t, 1);
  print_restore_stage("decode", t->decode_s, t->decode_flops, t, 2);
  print_restore_stage("colour", t->colour_s, 0, t, -1);
  print_restore_stage("to bytes", t->round_s, 0, t, -1);
  printf("  %-12s %8.3f s %9.2f frames/s\n  memory: %s; %.2f GiB copied between host and device\n", "all", sum,
         (double)s->n_frames / sum, t->plan, (double)t->moved_bytes * 0x1p-30);
}

static int print_restore_timing_json(const kr_seedvr_shape *s, const char *dtype, const kr_restore_timing *t) {
  return cli_print_json(
      "bench",
      json_pack("{s:i, s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:[I, I, I], s:[I, I, I], s:I, s:I}",
                "variant",
                s->variant, "frames", (json_int_t)s->n_frames, "width", (json_int_t)s->width, "height",
                (json_int_t)s->height, "dtype", dtype,
                "resize_s", cli_json_real(t->resize_s), "round_s", cli_json_real(t->round_s),
                "encode_s", cli_json_real(t->encode_s), "sample_s", cli_json_real(t->sample_s), "decode_s",
                cli_json_real(t->decode_s), "colour_s", cli_json_real(t->colour_s), "encode_flops",
                cli_json_real(t->encode_flops), "decode_flops", cli_json_real(t->decode_flops), "planned_bytes",
                (json_int_t)t->planned_bytes[0], (json_int_t)t->planned_bytes[1], (json_int_t)t->planned_bytes[2],
                "measured_bytes", (json_int_t)t->measured_bytes[0], (json_int_t)t->measured_bytes[1],
                (json_int_t)t->measured_bytes[2], "host_bytes", (json_int_t)t->host_bytes,
                "moved_bytes", (json_int_t)t->moved_bytes),
      JSON_INDENT(2));
}

int cli_bench_restore_run(const cli_run *run, const cli_bench_restore *b) {
  krait_ctx *ctx = NULL;
  long long width = 1280, height = 720;
  char rest;
  if (b->variant && strcmp(b->variant, "3b") != 0 && strcmp(b->variant, "7b") != 0)
    return cli_usage_error("bench", "--sizes for restore is '%s', must be 3b or 7b", b->variant);
  if (b->size && (sscanf(b->size, "%lldx%lld%c", &width, &height, &rest) != 2 || width < 16 || height < 16 ||
                  width > 1 << 15 || height > 1 << 15))
    return cli_usage_error("bench", "--shape for restore is '%s', must be WIDTHxHEIGHT, 16 to 32768", b->size);
  int exit_status = cli_run_open_ctx("bench", run, &ctx);
  if (exit_status >= 0) return exit_status;
  const kr_seedvr_shape shape = {.size = sizeof shape, .variant = b->variant && b->variant[0] == '7' ? 7 : 3,
                                 .n_frames = b->n_frames ? b->n_frames : 21, .width = width, .height = height};
  kr_restore_timing t = {.size = sizeof t};
  const int32_t status = kr_restore_measure(ctx, &shape, b->dtype, b->memory_bytes, (int32_t)b->n_runs,
                                            b->by_kernel && !b->as_json ? print_line : NULL, NULL, &t);
  exit_status = status < 0 ? cli_report("bench", status) + 1 : 0;
  if (status >= 0 && b->as_json) exit_status = print_restore_timing_json(&shape, krait_dtype_name(b->dtype), &t);
  else if (status >= 0) print_restore_timing(&shape, krait_dtype_name(b->dtype), &t);
  krait_ctx_close(&ctx);
  return exit_status;
}
