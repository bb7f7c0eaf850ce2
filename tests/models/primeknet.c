/* primeknet.c: the forward pass against recorded outputs of the PyTorch twin (tests/golden/primeknet, and upstream's
 * beside this tree if there), over instruction sets, thread counts and GPU tiers; and mismatched weights. */
#include "test.h"

#include <krait/enhance.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc.h"
#include "denoiser.h"

typedef struct bounds {
  double spectrum, wav, worst; /* wav 0: the file has no waveforms */
} bounds;

static krait_ctx *open_context_on(int32_t device, const char *caps, int32_t n_threads) {
  krait_ctx_options options = {.size = sizeof options, .device = device, .n_threads = n_threads};
  krait_ctx *ctx = NULL;
  assert_int_equal(krait_caps_parse(caps, &options.caps_mask), KRAIT_OK);
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static krait_ctx *open_context(const char *caps, int32_t n_threads) {
  return open_context_on(KRAIT_DEVICE_CPU, caps, n_threads);
}

static void verify_on(krait_ctx *ctx, const char *caps, uint32_t precision, const char *folder, const char *name,
                      const bounds *most) {
  char weights[512], golden[512];
  snprintf(weights, sizeof weights, "%s/%s.weights.safetensors", folder, name);
  snprintf(golden, sizeof golden, "%s/%s.golden.safetensors", folder, name);
  krait_denoiser_options options = {.size = sizeof options, .weights_path = weights, .precision = precision};
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_verify_result rows[4];
  int32_t n_rows = 0;
  if (krait_denoiser_open(ctx, &options, &model) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(krait_denoiser_session_open(model, &session), KRAIT_OK);
  if (krait_verify(session, golden, rows, 4, &n_rows) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(n_rows, most->wav > 0 ? 3 : 2);
  for (int i = 0; i < n_rows; i++) {
    double bound = i == 2 ? most->wav : most->spectrum;
    if (!(rows[i].rel_l2 <= bound))
      fail_msg("%s, caps %s: %s is off by %.2e relative", name, caps, rows[i].name, rows[i].rel_l2);
    if (i < 2 && !(rows[i].max_abs <= most->worst))
      fail_msg("%s, caps %s: %s is off by %.2e", name, caps, rows[i].name, rows[i].max_abs);
  }
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
}

static void verify_pair(const char *caps, int32_t n_threads, const char *folder, const char *name, double wav_bound) {
  verify_on(open_context(caps, n_threads), caps, KRAIT_PRECISION_DEFAULT, folder, name,
            &(bounds){1e-5, wav_bound, 2e-4});
}

static const char *const small[] = {"tiny-mamba", "tiny-mamba-causal", "odd-mamba", "tiny-gru", "tiny-lstm"};

/* Their waveforms were recorded with another transform, which alone changes them by up to 6e-6. */
static const double small_wav = 2e-5;

static void small_pairs_on_every_isa(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    verify_pair("all", 2, GOLDEN, small[i], small_wav);
    verify_pair("-avx512,-avx512_bf16,-avx512_fp16", 1, GOLDEN, small[i], small_wav);
    verify_pair("cpu", 2, GOLDEN, small[i], small_wav);
  }
}

/* The published widths, which have code of their own. */
static void wide_pairs(void **state) {
  static const char *const wide[] = {"wide-mamba", "wide-gru", "wide-lstm"};
  (void)state;
  for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
    verify_pair("all", 2, GOLDEN "/wide", wide[i], 0);
    verify_pair("cpu", 1, GOLDEN "/wide", wide[i], 0);
  }
}

static const char *const full_width[] = {"mamba-test", "mamba-causal", "gru-test", "lstm-test"};

static void pk_full_width_pairs(void **state) {
  (void)state;
  for (size_t i = 0; access(SHARED_GOLDEN, R_OK) == 0 && i < sizeof full_width / sizeof *full_width; i++)
    verify_pair("all", 0, SHARED_GOLDEN, full_width[i], 1e-5);
}

/* TF32 rounds to 10 bits; narrow models average less of it out. */
static void this_machines_gpu(void **state) {
  static const struct { const char *caps; uint32_t precision; bounds narrow, wide; } runs[] = {
      {"cuda_base", KRAIT_PRECISION_FP32, {1e-5, 2e-5, 2e-4}, {1e-5, 1e-5, 2e-4}},
      {"cuda_base,cuda_ampere", KRAIT_PRECISION_FP32, {1e-5, 2e-5, 2e-4}, {1e-5, 1e-5, 2e-4}},
      {"cuda_base,cuda_ampere", KRAIT_PRECISION_TF32, {5e-3, 1e-2, 0.2}, {4e-3, 8e-3, 0.2}}};
  krait_ctx *probe = NULL;
  const krait_ctx_options first = {.size = sizeof first, .device = KRAIT_DEVICE_CUDA(0)};
  (void)state;
  if (krait_ctx_open(&first, &probe) < 0) {
    print_message("no GPU here: %s\n", krait_error_detail());
    skip();
  }
  const uint64_t caps = krait_ctx_caps(probe);
  krait_ctx_close(&probe);
  for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
    uint64_t wanted;
    assert_int_equal(krait_caps_parse(runs[r].caps, &wanted), KRAIT_OK);
    if (!(caps & wanted & ~(uint64_t)KRAIT_CAP_CPU)) continue;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
      verify_on(open_context_on(KRAIT_DEVICE_CUDA(0), runs[r].caps, 1), runs[r].caps, runs[r].precision, GOLDEN,
                small[i], &runs[r].narrow);
    for (size_t i = 0; access(SHARED_GOLDEN, R_OK) == 0 && i < sizeof full_width / sizeof *full_width; i++)
      verify_on(open_context_on(KRAIT_DEVICE_CUDA(0), runs[r].caps, 1), runs[r].caps, runs[r].precision, SHARED_GOLDEN,
                full_width[i], &runs[r].wide);
  }
}

static double pk_relative(const float *got, const float *want, int64_t n) {
  double error = 0, all = 0;
  for (int64_t i = 0; i < n; i++) {
    const double off = (double)got[i] - want[i];
    error += off * off, all += (double)want[i] * want[i];
  }
  return sqrt(error / all);
}

/* Windows of a recording with the built-in model: three at once, one at a time, and on the CPU. */
static void windows_on_this_machines_gpu(void **state) {
  enum { N = 3, SAMPLES = 20030 };
  static float in[N][SAMPLES], out[3][N][SAMPLES];
  const float *from[N] = {in[0], in[1], in[2]};
  const krait_ctx_options options[] = {{.size = sizeof *options, .device = KRAIT_DEVICE_CPU},
                                       {.size = sizeof *options, .device = KRAIT_DEVICE_CUDA(0)}};
  const krait_denoiser_options exact = {.size = sizeof exact, .precision = KRAIT_PRECISION_FP32};
  uint32_t seed = 7;
  (void)state;
  for (int k = 0; k < N; k++)
    for (int i = 0; i < SAMPLES; i++) {
      seed = seed * 1664525u + 1013904223u;
      in[k][i] = ((float)(seed >> 8) * 0x1p-24f - 0.5f) * (i / 4000 % 2 ? 0.3f : 0.02f);
    }
  for (int device = 1; device >= 0; device--) {
    krait_ctx *ctx = NULL;
    krait_denoiser *model = NULL;
    krait_denoiser_session *session = NULL;
    kr_denoiser d;
    if (krait_ctx_open(&options[device], &ctx) < 0) {
      print_message("no GPU here: %s\n", krait_error_detail());
      skip();
    }
    if (krait_denoiser_open(ctx, &exact, &model) < 0) fail_msg("%s", krait_error_detail());
    assert_int_equal(krait_denoiser_session_open(model, &session), KRAIT_OK);
    assert_int_equal(kr_session_denoiser(session, &d), KRAIT_OK);
    for (int at_once = 1; at_once <= (device ? N : 1); at_once += N - 1)
      for (int k = 0; k < N; k += at_once) {
        float (*to)[SAMPLES] = out[at_once > 1 ? 2 : device];
        float *const want[N] = {to[k], to[(k + 1) % N], to[(k + 2) % N]};
        if (d.run(d.user, at_once, from + k, want, SAMPLES) < 0) fail_msg("%s", krait_error_detail());
        if (d.finish) assert_int_equal(d.finish(d.user), KRAIT_OK);
      }
    krait_denoiser_session_close(&session), krait_denoiser_close(&model), krait_ctx_close(&ctx);
  }
  const double grouped = pk_relative(out[2][0], out[1][0], N * SAMPLES),
               gpu = pk_relative(out[1][0], out[0][0], N * SAMPLES);
  print_message("windows on the GPU are %.1e from the CPU's, three at once %.1e from one at a time\n", gpu, grouped);
  assert_true(grouped <= 1e-5); /* products of more rows may split their sums elsewhere */
  assert_true(gpu <= 1e-4);
}

static void expect_refusal(const char *weights, const char *overrides, const char *words) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", GOLDEN, weights);
  krait_ctx *ctx = open_context("all", 1);
  krait_denoiser_options options = {.size = sizeof options, .weights_path = path, .overrides = overrides};
  krait_denoiser *model = NULL;
  assert_int_equal(krait_denoiser_open(ctx, &options, &model), KRAIT_ERR_WEIGHTS);
  assert_null(model);
  if (!strstr(krait_error_detail(), words)) fail_msg("'%s' does not say '%s'", krait_error_detail(), words);
  krait_ctx_close(&ctx);
}

static void mismatched_weights(void **state) {
  (void)state;
  const char *file = "tiny-mamba.weights.safetensors";
  expect_refusal(file, "causal=true", "dense_encoder.dense_block.dense_block.0.0.conv.weight");
  expect_refusal(file, "dense_depth=3", "dense_encoder.dense_block.dense_block.3.0.weight");
  expect_refusal(file, "mamba_d_state=4", "A_log");
  expect_refusal(file, "model=primeknet_gru,gru_hidden_size=3", "gru.weight_ih_l0");
  expect_refusal(file, "freq_block_kernel=[2]", "even");
  expect_refusal(file, "fft_len=402", "multiple of 4");
  expect_refusal(file, "dense_chanel=4", "dense_chanel");
  expect_refusal(file, "model=primeknet_tcn", "primeknet_tcn");
}

enum { B = 2, F = 201, T = 37 };

static void fill_spectrum(float *com) {
  uint32_t state = 7;
  for (int i = 0; i < B * F * T * 2; i++) {
    state = state * 1664525u + 1013904223u;
    com[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
  }
}

static void run_forward(const char *name, int32_t n_threads, const float *in, float *com) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s.weights.safetensors", GOLDEN, name);
  krait_ctx *ctx = open_context("all", n_threads);
  krait_denoiser_options options = {.size = sizeof options, .weights_path = path};
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  assert_int_equal(krait_denoiser_open(ctx, &options, &model), KRAIT_OK);
  assert_int_equal(krait_denoiser_session_open(model, &session), KRAIT_OK);
  assert_int_equal(krait_primeknet_forward(session, 1, 3, in, NULL, NULL, com), KRAIT_OK); /* another length first */
  assert_int_equal(krait_primeknet_forward(session, B, T, in, NULL, NULL, com), KRAIT_OK);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
}

static void threads_and_batches_change_no_bit(void **state) {
  (void)state;
  static float in[B * F * T * 2], one[B * F * T * 2], many[B * F * T * 2], second[F * T * 2];
  fill_spectrum(in);
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    run_forward(small[i], 1, in, one);
    run_forward(small[i], 5, in, many);
    assert_memory_equal(one, many, sizeof one);
  }
  char path[512];
  snprintf(path, sizeof path, "%s/%s.weights.safetensors", GOLDEN, small[0]);
  krait_ctx *ctx = open_context("all", 2);
  krait_denoiser_options options = {.size = sizeof options, .weights_path = path};
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  assert_int_equal(krait_denoiser_open(ctx, &options, &model), KRAIT_OK);
  assert_int_equal(krait_denoiser_session_open(model, &session), KRAIT_OK);
  assert_int_equal(krait_primeknet_forward(session, B, T, in, NULL, NULL, many), KRAIT_OK);
  assert_int_equal(krait_primeknet_forward(session, 1, T, in + F * T * 2, NULL, NULL, second), KRAIT_OK);
  assert_memory_equal(many + F * T * 2, second, sizeof second);
  assert_int_equal(krait_primeknet_forward(session, 1, 0, in, NULL, NULL, many), KRAIT_ERR_SHAPE);
  assert_int_equal(krait_primeknet_forward(session, 1, (int64_t)1 << 62, in, NULL, NULL, many), KRAIT_ERR_SHAPE);
  assert_int_equal(krait_primeknet_forward(NULL, 1, T, in, NULL, NULL, many), KRAIT_ERR_ARGUMENT);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
}

/* Opens, runs and closes with the n-th allocation failing. */
static int32_t run_with_failure(krait_ctx *ctx, const char *path, long n, const float *in, float *com) {
  krait_denoiser_options options = {.size = sizeof options, .weights_path = path};
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  kr_alloc_fail_after(n);
  int32_t status = krait_denoiser_open(ctx, &options, &model);
  if (status >= 0) status = krait_denoiser_session_open(model, &session);
  if (status >= 0) status = krait_primeknet_forward(session, 1, 5, in, NULL, NULL, com);
  kr_alloc_fail_after(0);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  return status;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  static float in[B * F * T * 2], com[B * F * T * 2];
  fill_spectrum(in);
  krait_ctx *ctx = open_context("all", 1);
  for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.weights.safetensors", GOLDEN, small[i]);
    long n = 1;
    for (int32_t status = -1; status < 0; n += 1 + n / 16) { /* all of the first, then increasingly fewer */
      status = run_with_failure(ctx, path, n, in, com);
      if (status < 0 && status != KRAIT_ERR_NO_MEMORY)
        fail_msg("%s, allocation %ld: %s: %s", small[i], n, krait_status_name(status), krait_error_detail());
    }
    assert_true(n > 50);
  }
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_pairs_on_every_isa),
      cmocka_unit_test(wide_pairs),
      cmocka_unit_test(pk_full_width_pairs),
      cmocka_unit_test(this_machines_gpu),
      cmocka_unit_test(windows_on_this_machines_gpu),
      cmocka_unit_test(mismatched_weights),
      cmocka_unit_test(threads_and_batches_change_no_bit),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests_name("primeknet", tests, NULL, NULL);
}
