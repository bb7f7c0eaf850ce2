/* cmd_bench.c: krait bench: times models and operators on this machine. Median and best wall-clock times, and processor
 * time, which other load on the machine disturbs less. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "args.h"
#include "bench_data.h"
#include "bench_generate.h"
#include "bench_op.h"
#include "bench_restore.h"
#include "bench_seedvr.h"
#include "bench_tower.h"
#include "bench_train.h"
#include "cmd.h"
#include "model_time.h"
#include "output.h"

enum { MAX_RUNS = 1000, SAMPLE_RATE_HZ = 16000 };

typedef struct settings {
  int64_t batch, n_frames, n_runs;
  int as_json, with_reference, by_kernel;
  const char *state_dtype;
  const char *shape, *dtype, *impl, *sizes, *memory;
  int64_t n_prompt, n_tokens;
  double step_ms;
  cli_run run;
  const char *precision;
  krait_denoiser_options model;
} settings;

typedef struct timing {
  double open_s, median_s, best_s, cpu_s, device_s,
      audio_s; /* cpu_s: least processor time of a run, summed over threads; device_s: median */
} timing;

static double bench_wall_s(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Any finite spectrum works: the time does not depend on the values. */
static void fill(float *values, int64_t n) {
  uint32_t state = 12345;
  for (int64_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    values[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
  }
}

static int64_t read_bins(const krait_denoiser *model, int64_t *hop) {
  json_t *root = json_loads(krait_denoiser_json(model), 0, NULL);
  json_t *fft_len = json_object_get(json_object_get(root, "config"), "fft_len");
  const int64_t n_fft = fft_len ? json_integer_value(fft_len) : 400;
  json_decref(root);
  *hop = n_fft / 4;
  return n_fft / 2 + 1;
}

static int32_t time_runs(const settings *s, krait_denoiser_session *session, int64_t n_bins, timing *out) {
  const int64_t n = s->batch * n_bins * s->n_frames * 2;
  double times[MAX_RUNS], device[MAX_RUNS];
  int32_t status = KRAIT_OK;
  float *in = malloc((size_t)n * sizeof *in), *com = malloc((size_t)n * sizeof *com);
  if (!in || !com) status = KRAIT_ERR_NO_MEMORY;
  else fill(in, n);
  for (int64_t i = -3; status >= 0 && i < s->n_runs;
       i++) { /* the first three warm up: a GPU loads its kernels, then records a graph */
    const double start_s = bench_wall_s();
    const clock_t start = clock();
    status = krait_primeknet_forward(session, s->batch, s->n_frames, in, NULL, NULL, com);
    const double cpu_s = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (i < 0) continue;
    times[i] = bench_wall_s() - start_s;
    device[i] = kr_primeknet_device_s(session);
    if (i == 0 || cpu_s < out->cpu_s) out->cpu_s = cpu_s;
  }
  free(in);
  free(com);
  if (status < 0) return status;
  qsort(times, (size_t)s->n_runs, sizeof *times, compare_doubles);
  qsort(device, (size_t)s->n_runs, sizeof *device, compare_doubles);
  out->device_s = device[s->n_runs / 2];
  out->median_s = times[s->n_runs / 2];
  out->best_s = times[0];
  return status;
}

static json_t *timing_json(const settings *s, const krait_ctx *ctx, const timing *t) {
  return json_pack("{s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "batch", (json_int_t)s->batch, "frames",
                   (json_int_t)s->n_frames, "threads", krait_ctx_n_threads(ctx), "audio_s", t->audio_s, "open_s",
                   t->open_s, "median_s", t->median_s, "best_s", t->best_s, "cpu_s", t->cpu_s, "device_s", t->device_s);
}

static void print_timing(const settings *s, const krait_ctx *ctx, const timing *t) {
  printf("primeknet: batch %lld, %lld frames (%.2f s of audio), %d threads\n", (long long)s->batch,
         (long long)s->n_frames, t->audio_s, krait_ctx_n_threads(ctx));
  printf("  open             %8.1f ms\n", t->open_s * 1e3);
  printf("  forward, median  %8.1f ms   %.4f s per second of audio\n", t->median_s * 1e3, t->median_s / t->audio_s);
  printf("  forward, best    %8.1f ms   %.4f s per second of audio\n", t->best_s * 1e3, t->best_s / t->audio_s);
  if (t->device_s > 0) printf("  on the GPU       %8.3f ms\n", t->device_s * 1e3);
  printf("  processor time   %8.1f ms   %.4f s per second of audio\n", t->cpu_s * 1e3, t->cpu_s / t->audio_s);
}

static void print_kernel(void *user, const char *kernel, int64_t n_launches, double seconds, double flops,
                         double bytes) {
  (void)user;
  printf("  %-24s %5lld launches %9.3f ms", kernel, (long long)n_launches, seconds * 1e3);
  if (flops > 0) printf(" %8.1f TFLOP/s %8.0f GB/s", flops / seconds * 1e-12, bytes / seconds * 1e-9);
  printf("\n");
}

static int32_t time_kernels(const settings *s, krait_denoiser_session *session, int64_t n_bins) {
  const int64_t n = s->batch * n_bins * s->n_frames * 2;
  float *in = malloc((size_t)n * sizeof *in);
  int32_t status = KRAIT_ERR_NO_MEMORY;
  if (in) fill(in, n), status = kr_primeknet_kernels(session, s->batch, s->n_frames, in, print_kernel, NULL);
  free(in);
  return status;
}

static int bench_primeknet(const settings *given) {
  settings all = *given, *const s = &all;
  if (!s->n_frames) s->n_frames = 321;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  timing t = {0};
  int64_t hop = 0, n_bins = 0;
  int exit_status = cli_run_open_ctx("bench", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const double start_s = bench_wall_s();
  int32_t status = krait_denoiser_open(ctx, &s->model, &model);
  if (status >= 0) status = krait_denoiser_session_open(model, &session);
  t.open_s = bench_wall_s() - start_s;
  if (status >= 0) n_bins = read_bins(model, &hop);
  if (status >= 0) status = time_runs(s, session, n_bins, &t);
  t.audio_s = (double)(s->batch * (s->n_frames > 1 ? s->n_frames - 1 : 1) * hop) / SAMPLE_RATE_HZ;
  int failed = 0;
  if (status >= 0 && s->as_json) failed = cli_print_json("bench", timing_json(s, ctx, &t), JSON_INDENT(2));
  else if (status >= 0) print_timing(s, ctx, &t);
  if (status >= 0 && s->by_kernel) status = time_kernels(s, session, n_bins);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
  return status < 0 ? cli_report("bench", status) + 1 : failed;
}

static int bench_generate(const settings *s) {
  if (s->state_dtype && strcmp(s->state_dtype, "float32") != 0 && strcmp(s->state_dtype, "weights") != 0)
    return cli_usage_error("bench", "--state-dtype is '%s'; give float32 or weights", s->state_dtype);
  cli_bench_generate b = {.model = s->sizes ? s->sizes : "mamba-130m",
                          .batch = s->batch,
                          .n_prompt = s->n_prompt,
                          .n_tokens = s->n_tokens,
                          .as_json = s->as_json,
                          .by_kernel = s->by_kernel,
                          .narrow_states = s->state_dtype && strcmp(s->state_dtype, "weights") == 0};
  const int is_q8 = s->dtype && strcmp(s->dtype, "q8_0") == 0, is_q4k = s->dtype && strcmp(s->dtype, "q4_k") == 0,
            exit_status = is_q8 || is_q4k ? -1 : cli_bench_dtype(s->dtype, &b.dtype);
  if (is_q8 || is_q4k) b.dtype = is_q8 ? KRAIT_Q8_0 : KRAIT_Q4_K;
  return exit_status >= 0 ? exit_status : cli_bench_generate_run(&s->run, &b);
}

static int bench_describe(const settings *s) {
  int32_t dtype;
  const int exit_status = cli_bench_dtype(s->dtype, &dtype);
  return exit_status >= 0 ? exit_status : cli_bench_describe_run(&s->run, dtype, s->n_tokens, s->as_json);
}

static int bench_seedvr(const settings *s) {
  cli_bench_seedvr b = {.variant = s->sizes, .n_frames = s->n_frames, .as_json = s->as_json, .by_kernel = s->by_kernel};
  const int exit_status = cli_bench_dtype(s->dtype, &b.dtype);
  return exit_status >= 0 ? exit_status : cli_bench_seedvr_run(&s->run, &b);
}

static int bench_restore(const settings *s) {
  cli_bench_restore b = {.variant = s->sizes, .size = s->shape, .n_frames = s->n_frames, .n_runs = s->n_runs,
                         .as_json = s->as_json, .by_kernel = s->by_kernel};
  int exit_status = cli_bench_dtype(s->dtype, &b.dtype);
  if (exit_status < 0) exit_status = cli_parse_bytes("bench", "memory", s->memory, &b.memory_bytes);
  return exit_status >= 0 ? exit_status : cli_bench_restore_run(&s->run, &b);
}

static int bench_tower(const char *family, const settings *s) {
  cli_bench_tower b = {.family = family,
                       .sizes = s->sizes,
                       .n_frames = s->n_frames,
                       .n_runs = s->n_runs,
                       .as_json = s->as_json,
                       .by_kernel = s->by_kernel};
  const int exit_status = cli_bench_dtype(s->dtype, &b.dtype);
  return exit_status >= 0 ? exit_status : cli_bench_tower_run(&s->run, &b);
}

/* -1: it is an operator. */
static int refuse_unknown_operator(const char *name) {
  static const char *const others[] = {"primeknet", "generate", "describe", "videomamba",
                                       "clip",      "seedvr",   "restore",  "data",       "train"};
  cli_guess guess = {.written = name};
  const char *op;
  for (int32_t i = 0; (op = krait_op_name(i)) != NULL; i++) {
    if (strcmp(op, name) == 0) return -1;
    cli_guess_offer(&guess, op);
  }
  for (int i = 0; i < CLI_N(others); i++) cli_guess_offer(&guess, others[i]);
  return cli_usage_error("bench", "there is no operator '%s'; %s%s%skrait info lists them", name,
                         guess.meant ? "did you mean " : "", guess.meant ? guess.meant : "", guess.meant ? "? " : "");
}

int cmd_bench(int argc, char **argv) {
  int first;
  settings s = {.batch = 1, .n_runs = 5, .n_prompt = 1024, .n_tokens = 32, .model.size = sizeof s.model};
  const cli_option options[] = {
      CLI_TEXT("weights", 'w', "FILE", &s.model.weights_path, "weights of the model (default: the built-in denoiser)"),
      CLI_WHOLE("batch", 0, "B", &s.batch, 1, 4096, "batch size: windows, or for generate sequences (default: 1)"),
      CLI_WHOLE("frames", 0, "T", &s.n_frames, 1, 1000000,
                "primeknet: frames per window, 160 per second of audio (default: 321); seedvr: frames of the clip "
                "(default: 1, 21 and 121; on a CPU 1); videomamba: frames of the clip (default: 8); clip: images "
                "(default: 16)"),
      CLI_WHOLE("runs", 0, "N", &s.n_runs, 1, MAX_RUNS, "timed runs, after warm-up (default: 5)"),
      CLI_TEXT(
          "sizes", 0, "MODEL", &s.sizes,
          "generate: mamba-130m, -370m, -790m, -1.4b, -2.8b, mamba2-130m, -370m, -780m, -1.3b, -2.7b, qwen2-0.5b or "
          "-1.5b (default: mamba-130m), or a folder, for the sizes of its model; seedvr: 3b or 7b (default: both); "
          "videomamba: t16, s16 or m16 (default: m16); clip: base-patch32, base-patch16, large-patch14 or "
          "large-patch14-336 (default: base-patch16)"),
      CLI_WHOLE("prompt", 0, "N", &s.n_prompt, 1, 1 << 24, "generate: prompt length in tokens (default: 1024)"),
      CLI_WHOLE("tokens", 0, "N", &s.n_tokens, 1, 4096, "generate and describe: timed tokens (default: 32)"),
      CLI_TEXT(
          "state-dtype", 0, "TYPE", &s.state_dtype,
          "generate, on a GPU: float32 (default) or weights: Mamba's states in the weights' type, as in mamba-ssm"),
      CLI_SWITCH("kernels", 0, &s.by_kernel,
                 "also time the denoiser's kernels (on a GPU), the calls of a training step, of SeedVR's blocks or of "
                 "a tower, or the kinds of calls in generate's prefill and decode step"),
      CLI_TEXT("shape", 0, "SIZES", &s.shape,
               "operators: sizes such as B=1,D=1536,L=2048,N=16; \"last\" is channels-last layout, and flags go by the "
               "last part of their name: causal, tf32"),
      CLI_TEXT("dtype", 0, "TYPE", &s.dtype,
               "type of an operator's tensors, or of the weights of generate, describe, seedvr, videomamba and clip: "
               "float32, float16 or bfloat16 (default: float32); for generate also q8_0 and q4_k"),
      CLI_TEXT("impl", 0, "NAME", &s.impl,
               "operators: time this implementation (krait info lists them), or \"all\" that accept the call (default: "
               "the best)"),
      CLI_TEXT("memory", 0, "SIZE", &s.memory,
               "restore: use at most so much of the device's memory, such as 11G (default: what is free)"),
      CLI_REAL("step", 0, "MS", &s.step_ms, 0, 1e6,
               "data: the time of a training step; exit status 1 if making its data takes longer"),
      CLI_SWITCH("reference", 0, &s.with_reference, "operators, on the CPU: also run the reference once"),
      CLI_SWITCH("json", 0, &s.as_json, "print JSON"),
      CLI_PRECISION_OPTION(&s.precision, "tf32"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {
      "bench",
      "WHAT [CONFIG] [NAME=VALUE]...",
      "Times WHAT on this machine: primeknet (the denoiser's forward pass), generate (a language model with random "
      "weights), describe (Mobile-VideoGPT with random weights, starting from decoded frames), videomamba and clip "
      "(its two towers alone, also in the other published sizes), seedvr (blocks at 1280 x 720, random weights), "
      "restore (SeedVR2 whole, by stages, random weights; --shape WxH), data "
      "(making training items) or train (one training step), both configured as for krait train, or an operator by "
      "name. An operator's rates are compared with the machine's copies, exponentials and multiply-adds per second. On "
      "a GPU the time is device time, from events around a graph of calls that cycle through copies of the tensors, so "
      "that no call finds them in the L2 cache; the host time of a call is reported separately.",
      options,
      CLI_N(options),
      1,
      -1,
      "krait bench ssd --device cuda --dtype bfloat16"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = cli_precision_parse("bench", s.precision, &s.model.precision);
  if (exit_status >= 0) return exit_status;
  if (strcmp(argv[first], "data") == 0) return bench_data(argv + first + 1, argc - first - 1, s.step_ms, s.as_json);
  if (strcmp(argv[first], "train") == 0)
    return bench_train(argv + first + 1, argc - first - 1, &s.run, s.n_runs, s.by_kernel, s.as_json);
  if (argc - first > 1)
    return cli_usage_error("bench", "%s takes no arguments, but '%s' follows", argv[first], argv[first + 1]);
  if (strcmp(argv[first], "primeknet") == 0) return bench_primeknet(&s);
  if (strcmp(argv[first], "generate") == 0) return bench_generate(&s);
  if (strcmp(argv[first], "describe") == 0) return bench_describe(&s);
  if (strcmp(argv[first], "seedvr") == 0) return bench_seedvr(&s);
  if (strcmp(argv[first], "restore") == 0) return bench_restore(&s);
  if (strcmp(argv[first], "videomamba") == 0 || strcmp(argv[first], "clip") == 0) return bench_tower(argv[first], &s);
  exit_status = refuse_unknown_operator(argv[first]);
  if (exit_status >= 0) return exit_status;
  return bench_op(argv[first], s.shape, s.dtype, s.impl, s.with_reference, s.as_json, &s.run);
}
