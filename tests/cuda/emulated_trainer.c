/* emulated_trainer.c: training on an emulated GPU against the CPU: losses, gradients and weights of several steps of a
 * small PrimeKnet with its discriminator, for every time stage; gradient accumulation, moving average, loss
 * scaling, saving and loading a checkpoint. Usage: emulated_trainer LIBRARY. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "emulator/emulator.h"
#include "trainer.h"

enum {
  B = 2,
  FFT = 40,
  F = FFT / 2 + 1,
  LEAST_T = 32,
  MOST_T = 53,
  MOST_PLANE = B * F * MOST_T,
  MOST_N = (MOST_T - 1) * FFT / 4
};
static int T = LEAST_T; /* frames of an item */

typedef struct side {
  krait_ctx *ctx;
  kr_trainer *t;
  kr_step step;
} side;

static const char *const models[] = {"model=primeknet_mamba,mamba_hidden_size=8,mamba_d_state=4,",
                                     "model=primeknet_gru,gru_hidden_size=8,gru_layers=1,",
                                     "model=primeknet_lstm,lstm_hidden_size=8,lstm_layers=1,"};
static const char *const streaming =
    "model=primeknet_mamba,mamba_hidden_size=8,mamba_d_state=4,causal=true,norm=batch,channel_attention=moving,";

static void open_side(side *s, int32_t device, const char *model, const kr_train_options *options) {
  char settings[512];
  kr_config *config = NULL;
  kr_pk_config c;
  snprintf(settings, sizeof settings,
           "%sfft_len=%d,dense_channel=8,dense_depth=2,num_tsblock=1,time_block_num=1,freq_block_num=1,freq_block_"
           "kernel=[3,11]",
           model, FFT);
  const krait_ctx_options o = {.size = sizeof o, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  assert_int_equal(krait_ctx_open(&o, &s->ctx), KRAIT_OK);
  if (kr_config_open(NULL, NULL, settings, &config) < 0 || kr_pk_config_read(kr_config_model(config), config, &c) < 0)
    fail_msg("%s", krait_error_detail());
  if (kr_trainer_open(s->ctx, &c, options, B, T, &s->t) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_trainer_draw_weights(s->t), KRAIT_OK);
  kr_config_close(&config);
}

static void close_side(side *s) {
  kr_trainer_close(&s->t);
  krait_ctx_close(&s->ctx);
}

static uint32_t random_state;
static float draw_emulated_trainer(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return ((float)(random_state >> 8) * 0x1p-24f - 0.5f) * 2;
}

static kr_batch draw_batch(void) {
  static float com_in[2 * MOST_PLANE], com[2 * MOST_PLANE], mag[MOST_PLANE], pha[MOST_PLANE], wav[B * MOST_N];
  for (int i = 0; i < B * F * T; i++) { /* no weak bins: their phases would be rounding errors */
    const float strong = 1 + 0.5f * draw_emulated_trainer(), angle = 3.14f * draw_emulated_trainer();
    mag[i] = 1 + 0.5f * draw_emulated_trainer(), pha[i] = 3.14f * draw_emulated_trainer();
    com_in[2 * i] = strong * cosf(angle), com_in[2 * i + 1] = strong * sinf(angle);
    com[2 * i] = mag[i] * cosf(pha[i]), com[2 * i + 1] = mag[i] * sinf(pha[i]);
  }
  for (int i = 0; i < B * (T - 1) * FFT / 4; i++) wav[i] = draw_emulated_trainer();
  return (kr_batch){.com_in = com_in, .mag = mag, .pha = pha, .com = com, .wav = wav};
}

static int32_t ask(void *user, const float *wav) {
  (void)user, (void)wav;
  return KRAIT_OK;
}
static int32_t answer(void *user, float *quality) {
  (void)user;
  quality[0] = 0.25f, quality[1] = 0.75f;
  return KRAIT_OK;
}

/* Over the whole array: a single weight whose gradient is only rounding error changes by lr in either direction. */
static double difference(const float *x, const float *y, int64_t n) {
  double d = 0, all = 0;
  for (int64_t i = 0; i < n; i++)
    d += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]), all += (double)y[i] * (double)y[i];
  return sqrt(d / (all > 0 ? all : 1));
}

static void compare_steps(const char *model, const kr_train_options *options, int n_steps) {
  side cpu, gpu;
  uint32_t next = 0; /* the next comparison's draws do not depend on this one's number of steps */
  open_side(&cpu, KRAIT_DEVICE_CPU, model, options);
  open_side(&gpu, KRAIT_DEVICE_CUDA(0), model, options);
  for (int k = 0; k < n_steps; k++) {
    const kr_batch batch = draw_batch();
    if (k == 0) next = random_state;
    const kr_judge judge = {NULL, ask, answer};
    side *const both[] = {&cpu, &gpu};
    for (int i = 0; i < 2; i++)
      if (kr_trainer_step(both[i]->t, &batch, 5e-4, &judge, &both[i]->step) < 0)
        fail_msg("%s: %s", model, krait_error_detail());
    assert_int_equal(kr_trainer_pull(gpu.t), KRAIT_OK);
    const kr_parameters *const g[] = {kr_trainer_generator(cpu.t), kr_trainer_generator(gpu.t)},
                               *const d[] = {kr_trainer_discriminator(cpu.t), kr_trainer_discriminator(gpu.t)};
    double worst = 0;
    for (int i = 0; i < KR_TERMS; i++)
      worst = fmax(worst, fabs(cpu.step.terms[i] - gpu.step.terms[i]) / (fabs(cpu.step.terms[i]) + 1e-9));
    const double gradient = difference(g[1]->gradient, g[0]->gradient, g[0]->n),
                 of_disc = difference(d[1]->gradient, d[0]->gradient, d[0]->n),
                 value = difference(g[1]->value, g[0]->value, g[0]->n);
    const kr_parameters *const s[] = {kr_trainer_statistics(cpu.t), kr_trainer_statistics(gpu.t)};
    assert_int_equal(s[0]->n > 0, model == streaming);
    if (s[0]->n)
      assert_true(difference(s[1]->value, s[0]->value, s[0]->n) < 1e-4 &&
                  difference(s[1]->average, s[0]->average, s[0]->n) < 1e-4);
    const double average = difference(g[1]->average, g[0]->average, g[0]->n),
                 norm = fabs(gpu.step.gradient_norm / cpu.step.gradient_norm - 1);
    print_message("%s step %d: losses %.1e, gradients %.1e, %.1e, norm %.1e, weights %.1e, average %.1e\n", model, k,
                  worst, gradient, of_disc, norm, value, average);
    /* The model's output has weak bins, with rounding errors as phases and steep slopes of compressed magnitudes; and
     * AdamW normalizes gradients that are only rounding errors. Recorded steps (tests/train/trainer.c, also on a GPU)
     * have a hundred times less. */
    const double slack = k ? 5 : 1;
    assert_true(worst < 1e-3 * slack && gradient < 2e-2 * slack && of_disc < 2e-2 * slack && norm < 1e-2 * slack &&
                value < 1e-3 * slack && average < 1e-3 * slack);
    assert_int_equal(cpu.step.updated, gpu.step.updated);
  }
  const float first = kr_trainer_generator(gpu.t)->value[0];
  kr_trainer_generator(gpu.t)->value[0] = 7;
  assert_int_equal(kr_trainer_push(gpu.t), KRAIT_OK);
  kr_trainer_generator(gpu.t)->value[0] = first;
  assert_int_equal(kr_trainer_pull(gpu.t), KRAIT_OK);
  assert_true(kr_trainer_generator(gpu.t)->value[0] == 7);
  close_side(&cpu), close_side(&gpu);
  random_state = next;
}

/* KR_CHECK_PERCENT shortens this test like the checker's, down to the last stage. */
static void every_stage(void **state) {
  kr_train_options options = kr_train_defaults;
  (void)state;
  options.weights[KR_TERM_TIME] = 0.2;
  options.weights[KR_TERM_PHASE_IP] = options.weights[KR_TERM_PHASE_GD] = options.weights[KR_TERM_PHASE_IAF] =
      0; /* an angle's slope is discontinuous */
  const char *percent = getenv("KR_CHECK_PERCENT");
  const size_t n = sizeof models / sizeof *models;
  for (size_t i = percent && atoi(percent) < 100 ? n - 1 : 0; i < n; i++) {
    kr_emulated_order((int)i % KR_N_ORDERS);
    options.micro_batch = i == 2;    /* one item at a time */
    options.generator_first = i == 1; /* its second step's generator learns from the first one's discriminator */
    compare_steps(models[i], &options, i == 1 ? 2 : 1);
  }
}

/* Running statistics on a GPU, updated by two parts of a batch. */
static void running_statistics(void **state) {
  kr_train_options options = kr_train_defaults;
  (void)state;
  options.discriminator = 0, options.weights[KR_TERM_METRIC] = 0;
  options.micro_batch = 1, options.average_decay = 0.9;
  compare_steps(streaming, &options, 1);
}

/* A loss computed by host threads between the halves of a step; its frames are 512 samples. */
static void disturbance(void **state) {
  kr_train_options options = kr_train_defaults;
  (void)state;
  T = MOST_T;
  for (int k = 0; k < KR_TERMS; k++) options.weights[k] = 0;
  options.discriminator = 0, options.micro_batch = 1, options.weights[KR_TERM_DISTURBANCE] = 1;
  compare_steps(models[1], &options, 1);
  T = LEAST_T;
}

/* The third step replays the second one's graph. */
static void several_steps(void **state) {
  kr_train_options options = kr_train_defaults;
  (void)state;
  options.accumulate = 2, options.average_decay = 0.9, options.clip = 0.5;
  compare_steps(models[0], &options, 2);
}

/* Losses with continuous slopes, so that rounded activations give close gradients. */
static kr_train_options smooth_losses(void) {
  kr_train_options options = kr_train_defaults;
  for (int k = 0; k < KR_TERMS; k++) options.weights[k] = 0;
  options.discriminator = 0, options.weights[KR_TERM_MAGNITUDE] = 1, options.weights[KR_TERM_COMPLEX] = 0.2;
  return options;
}

static void step_or_fail(side *s, const kr_batch *batch) {
  if (kr_trainer_step(s->t, batch, 2e-3, NULL, &s->step) < 0) fail_msg("%s", krait_error_detail());
}

static void compare_first(const char *what, const side *got, const side *want, double losses, double gradients) {
  const kr_parameters *const g = kr_trainer_generator(got->t), *const w = kr_trainer_generator(want->t);
  const double loss = fabs(got->step.total / want->step.total - 1),
               gradient = difference(g->gradient, w->gradient, w->n);
  print_message("%s: loss %.1e, gradients %.1e\n", what, loss, gradient);
  assert_true(loss < losses && gradient < gradients && gradient > 1e-7);
}

/* 16-bit activations against float32 on the CPU: the first step, and falling losses; and a step on the GPU. */
static void halves(void **state) {
  static const struct {
    int model;
    int32_t dtype;
    double losses, gradients;
  } cases[] = {{1, KRAIT_F16, 2e-4, 0.1}, {0, KRAIT_BF16, 2e-3, 0.6}, {0, KRAIT_F16, 2e-4, 0.1}};
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *const model = models[cases[i].model];
    kr_train_options options = smooth_losses();
    side exact, rounded, gpu;
    double first = 0;
    random_state = 5;
    const kr_batch batch = draw_batch();
    open_side(&exact, KRAIT_DEVICE_CPU, model, &options);
    options.halves = cases[i].dtype;
    open_side(&rounded, KRAIT_DEVICE_CPU, model, &options);
    for (int k = 0; k < 4; k++) {
      step_or_fail(&rounded, &batch);
      if (k) continue;
      step_or_fail(&exact, &batch);
      compare_first(krait_dtype_name(cases[i].dtype), &rounded, &exact, cases[i].losses, cases[i].gradients);
      first = rounded.step.total;
      if (i + 1 < sizeof cases / sizeof *cases) continue;
      open_side(&gpu, KRAIT_DEVICE_CUDA(0), model, &options);
      step_or_fail(&gpu, &batch);
      assert_int_equal(kr_trainer_pull(gpu.t), KRAIT_OK);
      compare_first("on a GPU", &gpu, &exact, cases[i].losses, cases[i].gradients);
      close_side(&gpu);
    }
    assert_true(rounded.step.total < 0.999 * first);
    close_side(&exact), close_side(&rounded);
  }
}

/* Each float16 overflow skips a batch and halves the gradient scale; a checkpoint keeps it. */
static void overflow_halves_the_scale(void **state) {
  char path[] = "emulated_trainer-XXXXXX";
  kr_train_options options = smooth_losses();
  kr_progress_state progress = {.step = 1};
  const kr_checkpoint_text text = {"primeknet_gru", "{}", "{}"};
  side s, other;
  int n_skipped = 0;
  int64_t n_finite = -1;
  (void)state;
  const int file = mkstemp(path);
  assert_true(file >= 0 && close(file) == 0);
  options.halves = KRAIT_F16, options.weights[KR_TERM_MAGNITUDE] = 3e7f;
  open_side(&s, KRAIT_DEVICE_CPU, models[1], &options);
  const kr_batch batch = draw_batch();
  const float first = kr_trainer_scale(s.t, NULL);
  for (step_or_fail(&s, &batch); !s.step.updated && n_skipped < 9; n_skipped++) step_or_fail(&s, &batch);
  print_message("%d batches skipped, scale %g of %g\n", n_skipped, (double)kr_trainer_scale(s.t, NULL), (double)first);
  assert_true(n_skipped > 0 && s.step.updated && isfinite(s.step.gradient_norm));
  assert_true(kr_trainer_scale(s.t, &n_finite) == ldexpf(first, -n_skipped) && n_finite == 1);
  kr_saver *saver = NULL;
  assert_int_equal(kr_saver_open(&saver), KRAIT_OK);
  assert_int_equal(kr_checkpoint_add(saver, path, s.t, &progress, &text), KRAIT_OK);
  assert_int_equal(kr_saver_begin(saver), KRAIT_OK);
  assert_int_equal(kr_saver_wait(saver), KRAIT_OK);
  kr_saver_close(&saver);
  open_side(&other, KRAIT_DEVICE_CPU, models[1], &options);
  assert_int_equal(kr_checkpoint_read(path, other.t, &progress), KRAIT_OK);
  assert_true(kr_trainer_scale(other.t, &n_finite) == kr_trainer_scale(s.t, NULL) && n_finite == 1);
  step_or_fail(&other, &batch), step_or_fail(&s, &batch);
  assert_true(other.step.updated && other.step.gradient_norm == s.step.gradient_norm);
  const float scale = kr_trainer_scale(s.t, NULL);
  assert_int_equal(kr_trainer_set_scale(s.t, scale / 2, 999), KRAIT_OK);
  step_or_fail(&s, &batch); /* the 1000th update without an overflow doubles it */
  assert_true(s.step.updated && kr_trainer_scale(s.t, &n_finite) == scale && n_finite == 0);
  close_side(&other), close_side(&s), remove(path);
}

/* Ten overflows in a row end the training. */
static void overflows(void **state) {
  kr_train_options options = smooth_losses();
  side s;
  (void)state;
  options.halves = KRAIT_F16, options.weights[KR_TERM_MAGNITUDE] = 1e12f;
  open_side(&s, KRAIT_DEVICE_CPU, models[1], &options);
  const kr_batch batch = draw_batch();
  const float before = kr_trainer_generator(s.t)->value[0];
  step_or_fail(&s, &batch);
  assert_int_equal(kr_trainer_pull(s.t), KRAIT_OK);
  assert_true(!s.step.updated && kr_trainer_generator(s.t)->value[0] == before && kr_trainer_updates(s.t) == 0);
  for (int k = 1; k < 9; k++) step_or_fail(&s, &batch);
  assert_true(kr_trainer_step(s.t, &batch, 2e-3, NULL, &s.step) < 0);
  assert_non_null(strstr(krait_error_detail(), "precision=tf32"));
  close_side(&s);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_stage), cmocka_unit_test(several_steps), cmocka_unit_test(running_statistics),
      cmocka_unit_test(disturbance), cmocka_unit_test(halves),        cmocka_unit_test(overflow_halves_the_scale),
      cmocka_unit_test(overflows)};
  if (argc != 2) return fprintf(stderr, "usage: emulated_trainer LIBRARY\n"), 2;
  if (!kr_cuda_built_tiers()) return printf("skipped: this build has no device code (no clang)\n"), 77;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  setenv("KR_FAKE_CUDA", "capability=80,shared=98304,multiprocessors=16", 1);
  if (getenv("KR_ONLY")) cmocka_set_test_filter(getenv("KR_ONLY"));
  return cmocka_run_group_tests(tests, NULL, NULL);
}
