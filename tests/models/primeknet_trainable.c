/* primeknet_trainable.c: PrimeKnet on a caller's tensors (krait/trainable.h) against recorded outputs and gradients
 * (tests/golden/primeknet): forward alone, both parts, frozen parameters, 16 bits, misuse. On a CPU, or given the
 * emulator's library on a GPU on the host. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <krait/trainable.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc.h"
#include "config.h"
#include "weights.h"
#ifdef KR_EMULATED
#include "ctx.h"
#include "emulator/emulator.h"
enum { N_MODELS = 1, N_PASSES = 1 }; /* the emulator is slow */
#else
enum { N_MODELS = 4, N_PASSES = 3 };
#endif

static int32_t device = KRAIT_DEVICE_CPU;

typedef struct pair {
  krait_ctx *ctx;
  kr_weights *weights, *golden;
  char config[1024];
  int64_t B, F, T;
} pair;

/* The configuration as krait_trainable_options has it. */
static void write_config(const kr_weights *weights, char *text, size_t n) {
  kr_config *config = NULL;
  assert_int_equal(kr_config_open(weights, NULL, NULL, &config), KRAIT_OK);
  char *json = kr_config_json(config);
  int used = snprintf(text, n, "model=%s,", kr_config_model(config));
  for (const char *c = json; *c; c++)
    if (!strchr("{}\" ", *c)) text[used++] = *c == ':' ? '=' : *c;
  text[used] = 0;
  kr_free(json), kr_config_close(&config);
}

static pair open_golden(const char *name) {
  pair p = {0};
  char path[512];
  const krait_ctx_options options = {
      .size = sizeof options, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  assert_int_equal(krait_ctx_open(&options, &p.ctx), KRAIT_OK);
  snprintf(path, sizeof path, GOLDEN "/%s.weights.safetensors", name);
  assert_int_equal(kr_weights_open(path, &p.weights), KRAIT_OK);
  snprintf(path, sizeof path, GOLDEN "/%s.golden.safetensors", name);
  assert_int_equal(kr_weights_open(path, &p.golden), KRAIT_OK);
  const kr_weight *in = kr_weights_find(p.golden, "golden.input_com");
  p.B = in->shape[0], p.F = in->shape[1], p.T = in->shape[2];
  write_config(p.weights, p.config, sizeof p.config);
  return p;
}

static void close_golden(pair *p) {
  kr_weights_close(&p->weights), kr_weights_close(&p->golden);
  krait_ctx_close(&p->ctx);
}

static const float *golden_of(const pair *p, const char *kind, const char *name) {
  char key[256];
  snprintf(key, sizeof key, "golden.%s%s", kind, name);
  const kr_weight *w = kr_weights_find(p->golden, key);
  return w ? w->data : NULL;
}

/* ---- a model with memory for all of its tensors ---- */

typedef struct model {
  krait_trainable *trainable;
  krait_trainable_run *run;
  void *memory;
  int64_t n, *counts;
  krait_trainable_tensor *tensors;
  void **at;
} model;

static krait_trainable_options options_of(const pair *p, uint32_t flags) {
  return (krait_trainable_options){
      .size = sizeof(krait_trainable_options), .flags = flags, .config = p->config, .B = p->B, .T = p->T};
}

/* Inputs, parameters, and as gradients of the outputs the recorded loss's. */
static void fill_tensor(const pair *p, const krait_trainable_tensor *t, int64_t n, float *to) {
  const float *from = NULL;
  double scale = 1;
  for (int64_t i = 0; i < n; i++) to[i] = NAN;
  if (t->role == KRAIT_TRAINABLE_INPUT) from = golden_of(p, "input_com", "");
  if (t->role == KRAIT_TRAINABLE_PARAMETER) from = kr_weights_find(p->weights, t->name)->data;
  if (t->role == KRAIT_TRAINABLE_GRADIENT_OF_OUTPUT) {
    from = golden_of(p, "loss_w_", t->name), scale = 1 / (double)n;
    for (int64_t i = 0; i < n; i++) to[i] = 0;
  }
  for (int64_t i = 0; i < n && from; i++) to[i] = (float)(from[i] * scale);
}

static model open_trainable(const pair *p, const krait_trainable_options *options) {
  model m = {0};
  if (krait_trainable_open(p->ctx, options, &m.trainable) < 0) fail_msg("%s", krait_error_detail());
  m.n = krait_trainable_n_tensors(m.trainable);
  m.tensors = calloc((size_t)m.n, sizeof *m.tensors), m.at = calloc((size_t)m.n, sizeof *m.at),
  m.counts = calloc((size_t)m.n, sizeof *m.counts);
  assert_true(m.tensors && m.at && m.counts);
  for (int64_t i = 0; i < m.n; i++) {
    krait_trainable_tensor *t = &m.tensors[i];
    t->size = sizeof *t;
    assert_int_equal(krait_trainable_tensor_at(m.trainable, i, t), KRAIT_OK);
    m.counts[i] = 1;
    for (int k = 0; k < t->n_dims; k++) m.counts[i] *= t->shape[k];
    m.at[i] = kr_alloc((size_t)m.counts[i] * sizeof(float));
    fill_tensor(p, t, m.counts[i], m.at[i]);
  }
  m.memory = aligned_alloc(256, (krait_trainable_bytes(m.trainable) + 511) / 256 * 256);
  assert_int_equal(krait_trainable_run_open(m.trainable, m.memory, &m.run), KRAIT_OK);
  return m;
}

static void close_trainable(model *m) {
  krait_trainable_run_close(&m->run), krait_trainable_close(&m->trainable);
  for (int64_t i = 0; i < m->n; i++) kr_free(m->at[i]);
  free(m->at), free(m->tensors), free(m->counts), free(m->memory);
}

/* Relative to the size of what is recorded. */
static double distance_to(const float *got, const float *want, int64_t n) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++)
    error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]), norm += (double)want[i] * (double)want[i];
  return sqrt(error / norm);
}

static void check_outputs(const pair *p, const model *m, double bound) {
  int n = 0;
  for (int64_t i = 0; i < m->n; i++) {
    const char *name = m->tensors[i].name;
    if (m->tensors[i].role != KRAIT_TRAINABLE_OUTPUT || strcmp(name, "pha") == 0) continue;
    const double off = distance_to(m->at[i], golden_of(p, "", name), m->counts[i]);
    n++;
    if (!(off <= bound)) fail_msg("%s is off by %.2e", name, off);
  }
  assert_int_equal(n, 2);
}

/* All together: single ones may be rounding errors. Returns their number. */
static int check_all_gradients(const pair *p, const model *m, double bound) {
  double error = 0, norm = 0;
  int n = 0;
  for (int64_t i = 0; i < m->n; i++) {
    if (m->tensors[i].role != KRAIT_TRAINABLE_GRADIENT_OF_PARAMETER) continue;
    const float *want = golden_of(p, "grad.", m->tensors[i].name), *got = m->at[i];
    n++;
    for (int64_t k = 0; k < m->counts[i]; k++)
      error += ((double)got[k] - want[k]) * ((double)got[k] - want[k]), norm += (double)want[k] * (double)want[k];
  }
  if (!(sqrt(error / norm) <= bound)) fail_msg("gradients are off by %.2e", sqrt(error / norm));
  return n;
}

/* ---- tests ---- */

static void forward_alone(void **state) {
  static const char *const names[] = {"tiny-mamba", "tiny-mamba-causal", "tiny-gru", "tiny-lstm"};
  (void)state;
  for (size_t i = 0; i < N_MODELS; i++) {
    pair p = open_golden(names[i]);
    const krait_trainable_options options = options_of(&p, 0);
    model m = open_trainable(&p, &options);
    if (krait_trainable_forward(m.run, m.at, NULL) < 0) fail_msg("%s: %s", names[i], krait_error_detail());
    check_outputs(&p, &m, 1e-5);
    assert_int_equal(krait_trainable_backward(m.run, NULL), KRAIT_ERR_ARGUMENT);
    close_trainable(&m), close_golden(&p);
  }
}

static void both_parts(void **state) {
  static const char *const names[] = {"tiny-mamba", "odd-mamba", "tiny-gru", "tiny-lstm"};
  (void)state;
  for (size_t i = 0; i < N_MODELS; i++) {
    pair p = open_golden(names[i]);
    const krait_trainable_options options = options_of(&p, KRAIT_TRAINABLE_GRADIENT);
    model m = open_trainable(&p, &options);
    assert_int_equal(krait_trainable_backward(m.run, NULL), KRAIT_ERR_ARGUMENT);
    for (int k = 0; k < N_PASSES; k++) {
      if (krait_trainable_forward(m.run, m.at, NULL) < 0) fail_msg("%s: %s", names[i], krait_error_detail());
      check_outputs(&p, &m, 1e-5);
      if (krait_trainable_backward(m.run, NULL) < 0) fail_msg("%s: %s", names[i], krait_error_detail());
      assert_int_equal(check_all_gradients(&p, &m, 1e-3), kr_weights_count(p.weights));
    }
    assert_int_equal(krait_trainable_backward(m.run, NULL), KRAIT_ERR_ARGUMENT);
    close_trainable(&m), close_golden(&p);
  }
}

#ifndef KR_EMULATED
static void some_frozen_and_less_memory(void **state) {
  (void)state;
  static const char *const frozen[] = {"dense_encoder.dense_conv_1.0.weight", "mask_decoder.lsigmoid.slope"};
  pair p = open_golden("tiny-mamba");
  krait_trainable_options options = options_of(&p, KRAIT_TRAINABLE_GRADIENT | KRAIT_TRAINABLE_INPUT_GRADIENT);
  model whole = open_trainable(&p, &options);
  options.flags = KRAIT_TRAINABLE_GRADIENT | KRAIT_TRAINABLE_RECOMPUTE, options.frozen = frozen, options.n_frozen = 2;
  model m = open_trainable(&p, &options);
  assert_int_equal(krait_trainable_forward(m.run, m.at, NULL), KRAIT_OK);
  assert_int_equal(krait_trainable_backward(m.run, NULL), KRAIT_OK);
  assert_int_equal(check_all_gradients(&p, &m, 1e-3), kr_weights_count(p.weights) - 2);
  assert_int_equal(whole.n, m.n + 3);
  assert_true(krait_trainable_bytes(m.trainable) < krait_trainable_bytes(whole.trainable));
  close_trainable(&whole), close_trainable(&m), close_golden(&p);
}
#endif

static void sixteen_bits(void **state) {
  (void)state;
  pair p = open_golden("tiny-mamba");
  krait_trainable_options options = options_of(&p, KRAIT_TRAINABLE_GRADIENT);
  options.halves = KRAIT_BF16;
  model m = open_trainable(&p, &options);
  assert_int_equal(krait_trainable_forward(m.run, m.at, NULL), KRAIT_OK);
  check_outputs(&p, &m, 0.1);
  assert_int_equal(krait_trainable_backward(m.run, NULL), KRAIT_OK);
  check_all_gradients(&p, &m, 0.3);
  close_trainable(&m), close_golden(&p);
}

static void misuse(void **state) {
  (void)state;
  pair p = open_golden("tiny-mamba");
  krait_trainable *t = NULL;
  krait_trainable_options o = options_of(&p, 64);
  assert_int_equal(krait_trainable_open(p.ctx, &o, &t), KRAIT_ERR_ARGUMENT);
  o = options_of(&p, 0), o.halves = KRAIT_I32;
  assert_int_equal(krait_trainable_open(p.ctx, &o, &t), KRAIT_ERR_ARGUMENT);
  o = options_of(&p, 0), o.T = 0;
  assert_int_equal(krait_trainable_open(p.ctx, &o, &t), KRAIT_ERR_ARGUMENT);
  o = options_of(&p, 0), o.config = "model=primeknet_mamba,norm=batch,channel_attention=moving,causal=true";
  assert_int_equal(krait_trainable_open(p.ctx, &o, &t), KRAIT_ERR_UNSUPPORTED);
  o.config = "model=primeknet_mamba,dense_channels=3";
  assert_int_equal(krait_trainable_open(p.ctx, &o, &t), KRAIT_ERR_WEIGHTS);
  assert_null(t);
  o = options_of(&p, KRAIT_TRAINABLE_GRADIENT);
  model m = open_trainable(&p, &o);
  krait_trainable_run *run = NULL;
  krait_trainable_tensor tensor = {.size = sizeof tensor};
  assert_int_equal(krait_trainable_run_open(m.trainable, (char *)m.memory + 64, &run), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_trainable_tensor_at(m.trainable, m.n, &tensor), KRAIT_ERR_ARGUMENT);
  void *const kept = m.at[1];
  m.at[1] = NULL;
  assert_int_equal(krait_trainable_forward(m.run, m.at, NULL), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "mag"));
  m.at[1] = kept;
  close_trainable(&m), close_golden(&p);
}

#ifdef KR_EMULATED
/* Kernels that run on the host. */
static int emulate(const char *library) {
  setenv("KR_FAKE_CUDA", "capability=80,shared=98304,multiprocessors=16", 1);
  setenv("KRAIT_LIBCUDA", library, 1);
  device = KRAIT_DEVICE_CUDA(0);
  if (!kr_cuda_built_tiers()) return 77;
  return 0;
}
#endif

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(forward_alone), cmocka_unit_test(both_parts),
                                     cmocka_unit_test(sixteen_bits), cmocka_unit_test(misuse),
#ifndef KR_EMULATED /* slow there, and the same launches */
                                     cmocka_unit_test(some_frozen_and_less_memory)
#endif
  };
  (void)argc, (void)argv;
#ifdef KR_EMULATED
  const int skipped = argc < 2 ? 2 : emulate(argv[1]);
  if (skipped) return skipped;
#endif
  return cmocka_run_group_tests(tests, NULL, NULL);
}
