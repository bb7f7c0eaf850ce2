/* emulated_primeknet.c: PrimeKnet's kernels on the host, under AddressSanitizer and UBSan, through the real session:
 * recorded outputs of the PyTorch twin, the published widths against the CPU, batches against single windows (of
 * spectra and of samples), a repeated shape, windows that no longer fit, insufficient memory. Usage:
 * emulated_primeknet LIBRARY TIER, base or ampere: also the latter's tensor core products. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <krait/enhance.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"
#include "denoiser.h"
#include "dlib.h"
#include "emulator/emulator.h"
#include "enhance/enhance.h"

typedef struct opened {
  krait_ctx *ctx;
  krait_denoiser *model;
  krait_denoiser_session *session;
} opened;

static opened open_pair(const char *name, int32_t device, int32_t precision) {
  opened o = {0};
  char weights[512];
  snprintf(weights, sizeof weights, GOLDEN "/%s.weights.safetensors", name);
  const krait_ctx_options options = {
      .size = sizeof options, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  const krait_denoiser_options which = {.size = sizeof which, .weights_path = weights, .precision = precision};
  assert_int_equal(krait_ctx_open(&options, &o.ctx), KRAIT_OK);
  if (krait_denoiser_open(o.ctx, &which, &o.model) < 0) fail_msg("%s: %s", name, krait_error_detail());
  assert_int_equal(krait_denoiser_session_open(o.model, &o.session), KRAIT_OK);
  return o;
}

static void close_pair(opened *o) {
  krait_denoiser_session_close(&o->session);
  krait_denoiser_close(&o->model);
  krait_ctx_close(&o->ctx);
}

/* KR_CHECK_PERCENT shortens this test like the checker's. */
static int share_of(int n) {
  const char *percent = getenv("KR_CHECK_PERCENT");
  const int share = percent ? n * atoi(percent) / 100 : n;
  return share > 1 ? share : 1;
}

/* Bounds as on the CPU (tests/models/primeknet.c), or for factors with ten mantissa bits. */
static void compare_recorded(int n_models, int32_t precision, double rel, double wav_rel, double max_abs) {
  static const char *const names[] = {"tiny-mamba-causal", "tiny-gru", "tiny-mamba", "odd-mamba", "tiny-lstm"};
  for (int i = 0; i < share_of(n_models); i++) {
    char golden[512];
    krait_verify_result rows[4];
    int32_t n_rows = 0;
    snprintf(golden, sizeof golden, GOLDEN "/%s.golden.safetensors", names[i]);
    kr_emulated_order(i % KR_N_ORDERS);
    opened o = open_pair(names[i], KRAIT_DEVICE_CUDA(0), precision);
    if (krait_verify(o.session, golden, rows, 4, &n_rows) < 0) fail_msg("%s: %s", names[i], krait_error_detail());
    assert_int_equal(n_rows, 3);
    for (int r = 0; r < n_rows; r++)
      if (!(rows[r].rel_l2 <= (r == 2 ? wav_rel : rel)) || (r < 2 && !(rows[r].max_abs <= max_abs)))
        fail_msg("%s: %s is off by %.2e relative, %.2e at most", names[i], rows[r].name, rows[r].rel_l2,
                 rows[r].max_abs);
    close_pair(&o);
  }
  kr_emulated_order(KR_ORDER_FORWARDS);
}

static void recorded_outputs(void **state) {
  (void)state;
  compare_recorded(5, KRAIT_PRECISION_FP32, 1e-5, 2e-5, 2e-4);
}

static void recorded_outputs_by_tensor_cores(void **state) {
  (void)state;
  compare_recorded(2, KRAIT_PRECISION_TF32, 2.5e-3, 6e-3, 0.03);
}

/* The small models' number of bins, from fft_len. */
static int64_t n_bins(const krait_denoiser *model) {
  const char *at = strstr(krait_denoiser_json(model), "\"fft_len\":");
  assert_non_null(at);
  return atoll(at + 10) / 2 + 1;
}

static float *random_spectrum(int64_t n) {
  float *values = malloc((size_t)n * sizeof *values);
  assert_non_null(values);
  srand(3);
  for (int64_t i = 0; i < n; i++) values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  return values;
}

static double distance(const float *got, const float *want, int64_t n) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++)
    error += (double)(got[i] - want[i]) * (double)(got[i] - want[i]), norm += (double)want[i] * (double)want[i];
  return sqrt(error / norm);
}

static void a_batch_is_its_windows(void **state) {
  (void)state;
  opened o = open_pair("tiny-mamba", KRAIT_DEVICE_CUDA(0), KRAIT_PRECISION_FP32),
         cpu = open_pair("tiny-mamba", KRAIT_DEVICE_CPU, KRAIT_PRECISION_FP32);
  const int64_t F = n_bins(o.model), T = 7, B = 3, n = F * T * 2;
  float *in = random_spectrum(B * n), *all = malloc((size_t)(B * n) * sizeof *all),
        *one = malloc((size_t)n * sizeof *one);
  assert_true(all && one);
  assert_int_equal(krait_primeknet_forward(o.session, B, T, in, NULL, NULL, all), KRAIT_OK);
  for (int64_t b = 0; b < B; b++) {
    assert_int_equal(krait_primeknet_forward(o.session, 1, T, in + b * n, NULL, NULL, one), KRAIT_OK);
    assert_memory_equal(one, all + b * n, (size_t)n * sizeof *one);
    assert_int_equal(krait_primeknet_forward(cpu.session, 1, T, in + b * n, NULL, NULL, one), KRAIT_OK);
    assert_true(distance(one, all + b * n, n) <= 1e-5);
  }
  assert_int_equal(krait_primeknet_forward(o.session, 1, (int64_t)1 << 40, in, NULL, NULL, one), KRAIT_ERR_SHAPE);
  assert_int_equal(krait_primeknet_forward(o.session, 1, T, in, NULL, NULL, one), KRAIT_OK);
  assert_memory_equal(one, all, (size_t)n * sizeof *one);
  free(in), free(all), free(one);
  close_pair(&o);
  close_pair(&cpu);
}

/* Kernels for 64 channels, states or hidden units; consecutive recurrent layers in one launch, for 16 sequences per
 * window on 16 multiprocessors: one, two and three windows use different kernels. */
static void compare_with_cpu(const char *name, int64_t B, int64_t T, int32_t precision, double bound) {
  opened o = open_pair(name, KRAIT_DEVICE_CUDA(0), precision), cpu = open_pair(name, KRAIT_DEVICE_CPU, precision);
  const int64_t n = B * n_bins(o.model) * T * 2;
  float *in = random_spectrum(n), *got = malloc((size_t)n * sizeof *got), *want = malloc((size_t)n * sizeof *want);
  assert_true(got && want);
  assert_int_equal(krait_primeknet_forward(o.session, B, T, in, NULL, NULL, got), KRAIT_OK);
  assert_int_equal(krait_primeknet_forward(cpu.session, B, T, in, NULL, NULL, want), KRAIT_OK);
  const double off = distance(got, want, n);
  if (!(off <= bound)) fail_msg("%s, %d windows: off by %.2e", name, (int)B, off);
  free(in), free(got), free(want);
  close_pair(&o), close_pair(&cpu);
}

static void published_widths(int32_t precision, double bound) {
  static const struct {
    const char *name;
    int64_t B, T;
  } runs[] = {{"wide/wide-lstm", 1, 19}, {"wide/wide-gru", 1, 19}, {"wide/wide-mamba", 1, 19},
              {"wide/wide-lstm", 3, 6},  {"wide/wide-gru", 3, 6},  {"wide/wide-mamba", 3, 6},
              {"wide/wide-lstm", 2, 4},  {"wide/wide-gru", 2, 1}};
  kr_emulated_blocks_in_order(1);
  for (int i = 0; i < share_of(8); i++) {
    kr_emulated_order((i + i / 3) % KR_N_ORDERS);
    compare_with_cpu(runs[i].name, runs[i].B, runs[i].T, precision, bound);
  }
  kr_emulated_order(KR_ORDER_FORWARDS);
  kr_emulated_blocks_in_order(0);
}

static void widths_of_published_models(void **state) {
  (void)state;
  published_widths(KRAIT_PRECISION_FP32, 1e-5);
}

static void widths_of_published_models_by_tensor_cores(void **state) {
  (void)state;
  published_widths(KRAIT_PRECISION_TF32, 2e-3);
}

enum { WINDOWS = 3, SAMPLES = 470 };
typedef struct windows {
  float in[WINDOWS][SAMPLES], out[WINDOWS][SAMPLES];
} windows;

/* One starts with silence. */
static windows *new_windows(void) {
  windows *w = calloc(1, sizeof *w);
  assert_non_null(w);
  float *values = random_spectrum(WINDOWS * SAMPLES);
  for (int k = 0; k < WINDOWS; k++)
    for (int i = k == 1 ? 250 : 0; i < SAMPLES; i++) w->in[k][i] = 0.4f * values[k * SAMPLES + i];
  return free(values), w;
}

/* Windows `from` on, n at once. */
static int32_t begin_windows(const kr_denoiser *d, windows *w, int64_t from, int64_t n) {
  const float *in[WINDOWS];
  float *out[WINDOWS];
  for (int64_t k = 0; k < n; k++) in[k] = w->in[from + k], out[k] = w->out[from + k];
  return d->run(d->user, n, in, out, SAMPLES);
}
static int32_t clean_windows(const kr_denoiser *d, windows *w, int64_t from, int64_t n) {
  const int32_t status = begin_windows(d, w, from, n);
  return status < 0 || !d->finish ? status : d->finish(d->user);
}

static void compare_samples(const char *name, int32_t precision, double bound) {
  opened o = open_pair(name, KRAIT_DEVICE_CUDA(0), precision), cpu = open_pair(name, KRAIT_DEVICE_CPU, precision);
  windows *all = new_windows(), *one = new_windows(), *want = new_windows();
  kr_denoiser there, here;
  int64_t n = 0;
  assert_int_equal(kr_session_denoiser(o.session, &there), KRAIT_OK);
  assert_int_equal(kr_session_denoiser(cpu.session, &here), KRAIT_OK);
  assert_true(there.finish && there.at_once && !here.finish && !here.at_once);
  assert_int_equal(there.at_once(there.user, WINDOWS, SAMPLES, &n), KRAIT_OK);
  assert_int_equal(n, WINDOWS);
  if (clean_windows(&there, all, 0, WINDOWS) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(clean_windows(&here, want, 0, WINDOWS), KRAIT_OK);
  for (int k = 0; k < WINDOWS; k++) { /* each alone; the next starts before this one is finished */
    assert_int_equal(begin_windows(&there, one, k, 1), KRAIT_OK);
    if (k) assert_memory_equal(one->out[k - 1], all->out[k - 1], sizeof *one->out);
    const double off = distance(all->out[k], want->out[k], SAMPLES);
    if (!(off <= bound)) fail_msg("%s: window %d is off by %.2e", name, k, off);
  }
  assert_int_equal(there.finish(there.user), KRAIT_OK);
  assert_int_equal(there.finish(there.user), KRAIT_OK);
  assert_memory_equal(one->out, all->out, sizeof one->out);
  free(all), free(one), free(want);
  close_pair(&o), close_pair(&cpu);
}

static void windows_of_samples(void **state) {
  (void)state;
  compare_samples("tiny-mamba", KRAIT_PRECISION_FP32, 1e-5);
}
static void windows_of_samples_by_tensor_cores(void **state) {
  (void)state;
  compare_samples("wide/wide-mamba", KRAIT_PRECISION_TF32, 6e-3);
}

/* A recording, its windows in groups of two and one at a time, and on the CPU. */
static void a_recording(void **state) {
  enum { N = 2300 };
  (void)state;
  opened both[] = {open_pair("tiny-mamba", KRAIT_DEVICE_CPU, KRAIT_PRECISION_FP32),
                   open_pair("tiny-mamba", KRAIT_DEVICE_CUDA(0), KRAIT_PRECISION_FP32)};
  float *in = random_spectrum(N), out[3][N];
  for (int i = 700; i < 1400; i++) in[i] = 0;
  for (int way = 0; way < 3; way++) {
    kr_denoiser d;
    assert_int_equal(kr_session_denoiser(both[way > 0].session, &d), KRAIT_OK);
    d.window_samples = 600;
    if (way == 1) d.at_once = NULL;
    if (kr_enhance_samples(&d, in, out[way], N, NULL, NULL) < 0) fail_msg("%s", krait_error_detail());
  }
  assert_memory_equal(out[1], out[2], sizeof *out);
  assert_true(distance(out[1], out[0], N) <= 1e-5);
  free(in), close_pair(&both[0]), close_pair(&both[1]);
}

/* Graphs are planned; the second driver call after that allocates their memory, and fails: smaller groups give the
 * same results, with one window there is an error; then memory is available again. */
static void memory_is_short(void **state) {
  enum { OUT_OF_MEMORY = 2 };
  void (*fail_at)(long n, int result);
  const char *why = NULL;
  kr_dlib *fake = kr_dlib_open(getenv("KRAIT_LIBCUDA"), &why);
  windows *want = new_windows(), *got = new_windows();
  (void)state;
  assert_non_null(fake);
  *(void **)&fail_at = kr_dlib_find(fake, "fake_cuda_fail_at");
  for (int n = WINDOWS; n >= 1; n -= WINDOWS - 1) {
    kr_denoiser d;
    int64_t at_once;
    opened o = open_pair("tiny-mamba", KRAIT_DEVICE_CUDA(0), KRAIT_PRECISION_FP32);
    assert_int_equal(kr_session_denoiser(o.session, &d), KRAIT_OK);
    assert_int_equal(d.at_once(d.user, n, SAMPLES, &at_once), KRAIT_OK);
    fail_at(2, OUT_OF_MEMORY);
    const int32_t status = clean_windows(&d, got, 0, n);
    fail_at(0, 0);
    if (n > 1 && status < 0) fail_msg("%s", krait_error_detail());
    if (n == 1) assert_int_equal(status, KRAIT_ERR_DEVICE_MEMORY);
    if (n == 1) assert_non_null(strstr(krait_error_detail(), "out of device memory"));
    assert_int_equal(clean_windows(&d, want, 0, n), KRAIT_OK);
    if (n > 1) assert_memory_equal(got->out, want->out, sizeof got->out);
    close_pair(&o);
  }
  free(want), free(got);
  kr_dlib_close(&fake);
}

/* A streaming model on live sound: states from chunk to chunk, and after a reset. */
static void check_live_sound(const char *pair) {
  enum { N = 800 };
  opened both[] = {open_pair(pair, KRAIT_DEVICE_CPU, KRAIT_PRECISION_FP32),
                   open_pair(pair, KRAIT_DEVICE_CUDA(0), KRAIT_PRECISION_FP32)};
  float *in = random_spectrum(N), out[2][N + 500], again[N + 500];
  for (int i = 0; i < N; i++) in[i] *= 0.2f;
  for (int k = 0; k < 2; k++) {
    krait_denoiser_stream *stream = NULL;
    int64_t n, rest;
    assert_int_equal(krait_denoiser_stream_open(both[k].session, &stream), KRAIT_OK);
    if (krait_denoiser_stream_push(stream, in, N, out[k], N + 500, &n) < 0) fail_msg("%s", krait_error_detail());
    assert_true(n >= N - 500);
    assert_int_equal(krait_denoiser_stream_finish(stream, out[k] + n, 500, &rest), KRAIT_OK);
    assert_int_equal(n + rest, N);
    assert_int_equal(krait_denoiser_stream_push(stream, in, 500, again, N + 500, &n), KRAIT_OK);
    assert_memory_equal(again, out[k], (size_t)n * sizeof *again);
    krait_denoiser_stream_close(&stream);
  }
  const double off = distance(out[1], out[0], N);
  if (!(off <= 1e-5)) fail_msg("off by %.2e", off);
  free(in), close_pair(&both[0]), close_pair(&both[1]);
}

static void live_sound(void **state) {
  (void)state;
  check_live_sound("tiny-streaming");
  check_live_sound("tiny-strided");
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const int ampere = strcmp(argv[2], "ampere") == 0;
  if (!kr_cuda_built_tiers()) return printf("skipped: this build has no device code (no clang)\n"), 77;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  setenv("KR_FAKE_CUDA",
         ampere ? "capability=80,shared=98304,multiprocessors=16" : "capability=50,shared=98304,multiprocessors=16", 1);
  const struct CMUnitTest base[] = {cmocka_unit_test(recorded_outputs), cmocka_unit_test(widths_of_published_models),
                                    cmocka_unit_test(a_batch_is_its_windows), cmocka_unit_test(windows_of_samples),
                                    cmocka_unit_test(a_recording),            cmocka_unit_test(memory_is_short),
                                    cmocka_unit_test(live_sound)};
  const struct CMUnitTest tensor_cores[] = {cmocka_unit_test(recorded_outputs_by_tensor_cores),
                                            cmocka_unit_test(widths_of_published_models_by_tensor_cores),
                                            cmocka_unit_test(windows_of_samples_by_tensor_cores),
                                            cmocka_unit_test(widths_of_published_models)};
  return ampere ? cmocka_run_group_tests_name("PrimeKnet on an emulated device with tensor cores", tensor_cores, NULL,
                                              NULL)
                : cmocka_run_group_tests_name("PrimeKnet on an emulated device", base, NULL, NULL);
}
