/* trainer.c: losses, gradients and five training steps of PrimeKnet in float64 (tests/golden/primeknet_train, and the
 * published solver's beside this tree if there): on the CPU, or on a GPU. Usage: trainer [cuda]. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc.h"
#include "stft.h"
#include "trainer.h"

enum { N = 8000, T = 81, F = 201, MOST_B = 3 };
static const char *home;        /* of the golden files; SHARED_GOLDEN stores what the tree's make.py has formulas for */
static int has_speech;          /* the formula's input, in which there is none otherwise */

typedef struct fixture {
  krait_ctx *ctx;
  kr_weights *speech, *weights, *golden;
  kr_config *config;
  kr_trainer *trainer;
  float com_in[MOST_B * F * T * 2], mag[MOST_B * F * T], pha[MOST_B * F * T], com[MOST_B * F * T * 2],
      dropout[3 * MOST_B * KR_DISC_WIDTH], quality[MOST_B];
  float clean[3][F * T * 2]; /* spectra */
  float wav[3 * N], batch_wav[MOST_B * N];
  float input[3 * F * T * 2]; /* spectra */
  int64_t B;
} fixture;

static int32_t device = KRAIT_DEVICE_CPU;

static void *open_file(const char *name) {
  char path[512];
  kr_weights *w = NULL;
  snprintf(path, sizeof path, "%s/%s", home, name);
  if (kr_weights_open(path, &w) < 0) fail_msg("%s", krait_error_detail());
  return w;
}

static const float *find(const kr_weights *file, const char *name) {
  const kr_weight *w = kr_weights_find(file, name);
  return w ? w->data : NULL;
}

/* A number in [-1/2, 1/2), as make.py's. */
static float hashed(uint32_t i) {
  uint32_t x = i * 2654435761u + 0x9e3779b9u;
  x = (x ^ x >> 16) * 0x45d9f3bu;
  x ^= x >> 16;
  return (float)(x >> 8) * 0x1p-24f - 0.5f;
}

/* Numbered through by name. */
static void fill_discriminator(kr_parameters *p) {
  for (int64_t i = 0; i < p->n_items; i++) {
    const kr_parameter *item = &p->items[i];
    const size_t end = strlen(item->name) - 4;
    uint32_t begin = 0;
    for (int64_t k = 0; k < p->n_items; k++)
      if (strcmp(p->items[k].name, item->name) < 0) begin += (uint32_t)p->items[k].n;
    for (uint32_t k = 0; k < (uint32_t)item->n; k++) {
      const float x = hashed(begin + k);
      p->value[item->at + k] = strcmp(item->name + end, "orig") == 0 ? x : 0.5f + 0.5f * x;
    }
  }
}

static void read_inputs(fixture *f) {
  kr_parameters *d = kr_trainer_discriminator(f->trainer);
  const int is_stored = strcmp(home, SHARED_GOLDEN) == 0;
  kr_weights *disc = is_stored ? open_file("disc.weights.safetensors") : NULL;
  if (!is_stored) fill_discriminator(d);
  else if (kr_parameters_read(d, disc, "", d->value) < 0) fail_msg("%s", krait_error_detail());
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    char key[64];
    float *const u = kr_trainer_u(f->trainer, k);
    snprintf(key, sizeof key, "layers.%d.weight_u", kr_disc_layers[k]);
    for (uint32_t i = 0; i < (uint32_t)kr_disc_outputs(k); i++)
      u[i] = disc ? find(disc, key)[i] : hashed((1u << 19) + i);
  }
  const char *salt = kr_weights_metadata(f->golden, "salt");
  const uint32_t begin = (1u << 22) + ((salt ? (uint32_t)atoi(salt) : 0) << 17);
  for (uint32_t b = 0, i = 0; b < 3; b++)
    for (uint32_t k = 0; k < F * T * 2; k++, i++)
      f->input[i] = is_stored ? find(f->speech, "golden.input_com")[i]
                              : hashed(begin + i) + (has_speech ? f->clean[b][k] : 0);
  if (disc) kr_weights_close(&disc);
}

static void open_fixture_by(fixture *f, const char *name, const char *kind, int64_t B, const kr_train_options *how) {
  char file[128];
  kr_pk_config c;
  krait_ctx_options options = {.size = sizeof options, .device = device, .fallback = KRAIT_FALLBACK_NEVER};
  *f = (fixture){.B = B};
  assert_int_equal(krait_ctx_open(&options, &f->ctx), KRAIT_OK);
  f->speech = open_file("speech.safetensors");
  const char *folder = strcmp(home, SHARED_GOLDEN) ? "../primeknet/tiny-" : "";
  snprintf(file, sizeof file, "%s%s.weights.safetensors", folder, name);
  f->weights = open_file(file);
  snprintf(file, sizeof file, "%s.%s.golden.safetensors", name, kind), f->golden = open_file(file);
  assert_int_equal(kr_config_open(f->weights, NULL, NULL, &f->config), KRAIT_OK);
  assert_int_equal(kr_pk_config_read(kr_config_model(f->config), f->config, &c), KRAIT_OK);
  if (kr_trainer_open(f->ctx, &c, how, B, T, &f->trainer) < 0) fail_msg("%s", krait_error_detail());
  kr_parameters *g = kr_trainer_generator(f->trainer);
  if (kr_parameters_read(g, f->weights, "", g->value) < 0) fail_msg("%s", krait_error_detail());
  kr_stft *stft = NULL;
  const int16_t *clean = (const int16_t *)(const void *)find(f->speech, "golden.clean_i16");
  assert_int_equal(kr_stft_open(400, 100, f->ctx->pool, &stft), KRAIT_OK);
  for (int i = 0; i < 3; i++) {
    float *const wav = f->wav + i * N;
    for (int n = 0; n < N; n++) wav[n] = (float)clean[i * N + n] / 32768;
    assert_int_equal(kr_stft_forward(stft, wav, N, 0.3, f->clean[i]), KRAIT_OK);
  }
  kr_stft_close(&stft);
  read_inputs(f);
  assert_int_equal(kr_trainer_push(f->trainer), KRAIT_OK);
}

static void open_fixture(fixture *f, const char *name, const char *kind, int64_t B, int64_t micro_batch) {
  kr_train_options how = kr_train_defaults;
  how.micro_batch = micro_batch;
  open_fixture_by(f, name, kind, B, &how);
}

static void close_fixture(fixture *f) {
  kr_trainer_close(&f->trainer), kr_config_close(&f->config), krait_ctx_close(&f->ctx);
  kr_weights_close(&f->speech), kr_weights_close(&f->weights), kr_weights_close(&f->golden);
}

/* "[[1, 2], [0, 1]]": row `step` of the list; "[0, 1]": the list. */
static kr_batch batch_of(fixture *f, int step) {
  const char *at = kr_weights_metadata(f->golden, "batch");
  int rows[MOST_B] = {0}, n = 0, skip = step * (int)f->B;
  for (; *at; at++) {
    if (*at < '0' || *at > '9') continue;
    if (skip-- > 0) continue;
    if (n < f->B) rows[n++] = *at - '0';
  }
  for (int b = 0; b < f->B; b++) {
    memcpy(f->com_in + b * F * T * 2, f->input + rows[b] * F * T * 2, sizeof f->clean[0]);
    memcpy(f->com + b * F * T * 2, f->clean[rows[b]], sizeof f->clean[0]);
    memcpy(f->batch_wav + b * N, f->wav + rows[b] * N, N * sizeof(float));
    for (int i = 0; i < F * T; i++) {
      const float re = f->clean[rows[b]][2 * i], im = f->clean[rows[b]][2 * i + 1];
      f->mag[b * F * T + i] = sqrtf(re * re + im * im), f->pha[b * F * T + i] = atan2f(im, re);
    }
  }
  const float *keep = find(f->golden, "golden.dropout_keep"), *quality = find(f->golden, "golden.pesq_target");
  for (int64_t i = 0; i < 3 * f->B * KR_DISC_WIDTH; i++)
    f->dropout[i] = keep ? keep[step * 3 * f->B * KR_DISC_WIDTH + i] / 0.7f : 1;
  memcpy(f->quality, quality + step * f->B, (size_t)f->B * sizeof(float));
  return (kr_batch){
      .com_in = f->com_in, .mag = f->mag, .pha = f->pha, .com = f->com, .wav = f->batch_wav, .dropout = f->dropout};
}

static int32_t ask(void *user, const float *wav) {
  (void)user, (void)wav;
  return KRAIT_OK;
}

static int32_t answer(void *user, float *quality) {
  const fixture *f = user;
  memcpy(quality, f->quality, (size_t)f->B * sizeof(float));
  return KRAIT_OK;
}

static void check_terms(const fixture *f, const char *name, const kr_step *s, const char *prefix, int step,
                        double bound) {
  const struct { const char *name; double value;
  } terms[] = {{"magnitude", s->terms[KR_TERM_MAGNITUDE]},
               {"phase_ip", s->terms[KR_TERM_PHASE_IP]},
               {"phase_gd", s->terms[KR_TERM_PHASE_GD]},
               {"phase_iaf", s->terms[KR_TERM_PHASE_IAF]},
               {"phase", s->phase},
               {"complex", s->terms[KR_TERM_COMPLEX]},
               {"consistency", s->terms[KR_TERM_CONSISTENCY]},
               {"metric", s->terms[KR_TERM_METRIC]},
               {"total", s->total},
               {"disc_r", s->terms[KR_TERM_DISC_R]},
               {"disc_g", s->terms[KR_TERM_DISC_G]}};
  double worst = 0;
  for (size_t i = 0; i < sizeof terms / sizeof *terms; i++) {
    char key[64];
    snprintf(key, sizeof key, "%s%s", prefix, terms[i].name);
    const float *want = find(f->golden, key);
    assert_non_null(want);
    if (!isfinite(want[step])) continue;
    const double off = fabs(terms[i].value - (double)want[step]) / (want[step] == 0 ? 1 : fabs((double)want[step]));
    if (off > worst) worst = off;
    if (!(off <= bound))
      print_message("%s, step %d: %s is %.8g, not %.8g (%.1e)\n", name, step, terms[i].name, terms[i].value,
                    (double)want[step], off);
  }
  print_message("%s, step %d: losses within %.1e\n", name, step, worst);
  assert_true(worst <= bound);
}

static int is_listed(const kr_weights *golden, const char *list, const char *name) {
  const char *text = kr_weights_metadata(golden, list);
  char quoted[256];
  snprintf(quoted, sizeof quoted, "\"%s\"", name);
  return text && strstr(text, quoted) != NULL;
}

/* Float32's own error is up to 6e-4 in the generator's worst tensor and 3e-5 in all together
 * (measured in float64 with only every operator's results rounded), since a few bins have an ill-conditioned phase. */
static void check_gradients(const fixture *f, const char *name, const kr_parameters *p, const char *prefix,
                            double bound, double bound_of_all) {
  double worst = 0, sum = 0, of_sum = 0;
  const char *of = "";
  int n_checked = 0;
  for (int64_t i = 0; i < p->n_items; i++) {
    const kr_parameter *item = &p->items[i];
    char key[256];
    snprintf(key, sizeof key, "%s%s", prefix, item->name);
    const kr_weight *w = kr_weights_find(f->golden, key);
    assert_non_null(w);
    if (is_listed(f->golden, "zero_gradient_keys", item->name)) continue;
    const int64_t n = (int64_t)(w->bytes / 4), stride = n < item->n ? 25 : 1;
    double d = 0, all = 0;
    for (int64_t k = 0; k < n; k++) {
      const double want = (double)((const float *)w->data)[k], off = (double)p->gradient[item->at + k * stride] - want;
      d += off * off, all += want * want;
    }
    n_checked++, sum += d, of_sum += all;
    if (sqrt(d / all) > worst) worst = sqrt(d / all), of = item->name;
  }
  print_message("%s: %d gradients %s within %.1e (%s), all together %.1e\n", name, n_checked, prefix, worst, of,
                sqrt(sum / of_sum));
  assert_true(n_checked > 20 && sqrt(sum / of_sum) <= bound_of_all);
  if (!(worst <= bound)) fail_msg("%s: the gradient of %s is off by %.2e relative", name, of, worst);
}

/* Over five updates the differences grow: on a GPU, where sums have another order, beyond a CPU's bound. */
static double looser(void) { return device == KRAIT_DEVICE_CPU ? 1 : 5; }

static const struct {
  const char *name;
  int64_t B_loss, B_steps, micro_batch;
} cases[] = {{"mamba", 2, 2, 0}, {"mamba", 2, 2, 1}, {"gru", 1, 1, 0}, {"lstm", 2, 2, 1}};

static void losses_and_gradients(void **state) {
  static fixture f;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kr_step step;
    open_fixture(&f, cases[i].name, "loss", cases[i].B_loss, cases[i].micro_batch);
    const kr_batch batch = batch_of(&f, 0);
    const kr_judge judge = {&f, ask, answer};
    if (kr_trainer_step(f.trainer, &batch, 0, &judge, &step) < 0) fail_msg("%s", krait_error_detail());
    check_terms(&f, cases[i].name, &step, "golden.loss.", 0, 1e-5);
    assert_int_equal(kr_trainer_pull(f.trainer), KRAIT_OK);
    const float *scores = find(f.golden, "golden.D"), *sigma = find(f.golden, "golden.sigma");
    for (int k = 0; k < 3 * f.B; k++) assert_true(fabsf(step.scores[k] - scores[k]) < 1e-5f);
    for (int k = 0; k < 3 * KR_DISC_NORMS; k++) assert_true(fabsf(step.sigma[k] - sigma[k]) < 1e-5f * sigma[k]);
    check_gradients(&f, cases[i].name, kr_trainer_generator(f.trainer), "golden.grad.", 4e-4, 5e-5);
    check_gradients(&f, cases[i].name, kr_trainer_discriminator(f.trainer), "golden.grad_disc.", 1e-4, 2e-5);
    for (int k = 0; k < KR_DISC_NORMS; k++) {
      char key[64];
      snprintf(key, sizeof key, "golden.disc_after.layers.%d.weight_v", kr_disc_layers[k]);
      for (int64_t n = 0; n < kr_disc_inputs(k); n++)
        assert_true(fabsf(kr_trainer_v(f.trainer, k)[n] - find(f.golden, key)[n]) < 1e-5f);
    }
    close_fixture(&f);
  }
}

static void five_steps(void **state) {
  static fixture f;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kr_step step;
    open_fixture(&f, cases[i].name, "steps", cases[i].B_steps, cases[i].micro_batch);
    for (int k = 0; k < 5; k++) {
      const kr_batch batch = batch_of(&f, k);
      const kr_judge judge = {&f, ask, answer};
      if (kr_trainer_step(f.trainer, &batch, 5e-4, &judge, &step) < 0) fail_msg("%s", krait_error_detail());
      check_terms(&f, cases[i].name, &step, "golden.steps.", k, 2e-4 * looser());
    }
    close_fixture(&f);
  }
}

static const float *disc_value(const fixture *f, const char *name) {
  const kr_parameters *p = kr_trainer_discriminator(f->trainer);
  for (int64_t i = 0; i < p->n_items; i++)
    if (strcmp(p->items[i].name, name) == 0) return p->value + p->items[i].at;
  fail_msg("no %s", name);
  return NULL;
}

/* Power iterations until they converge. */
static void settle(const fixture *f) {
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    char key[64];
    const int64_t n = kr_disc_outputs(k), m = kr_disc_inputs(k);
    float *const u = kr_trainer_u(f->trainer, k);
    double v[KR_DISC_WIDTH * 64];
    snprintf(key, sizeof key, "layers.%d.weight_orig", kr_disc_layers[k]);
    const float *const w = disc_value(f, key);
    assert_true(m <= KR_DISC_WIDTH * 64);
    for (int turn = 0; turn < 200; turn++) {
      double all = 0, next[256] = {0};
      for (int64_t j = 0; j < m; j++) v[j] = 0;
      for (int64_t i = 0; i < n * m; i++) v[i % m] += (double)w[i] * (double)u[i / m];
      for (int64_t i = 0; i < n * m; i++) next[i / m] += (double)w[i] * v[i % m];
      for (int64_t i = 0; i < n; i++) all += next[i] * next[i];
      for (int64_t i = 0; i < n; i++) u[i] = (float)(next[i] / sqrt(all));
    }
  }
  assert_int_equal(kr_trainer_push(f->trainer), KRAIT_OK);
}

/* Of the generator's gradient, whether it has been computed: on a CPU, where it is in the host's memory. */
static int has_gradient(const fixture *f) {
  const kr_parameters *p = kr_trainer_generator(f->trainer);
  for (int64_t i = 0; i < p->n; i++)
    if (p->gradient[i] != 0) return 1;
  return 0;
}
static int32_t ask_before(void *user, const float *wav) {
  assert_true(device != KRAIT_DEVICE_CPU || !has_gradient(user));
  return ask(user, wav);
}
static int32_t answer_after(void *user, float *quality) {
  assert_true(device != KRAIT_DEVICE_CPU || has_gradient(user));
  return answer(user, quality);
}

static void first_step(fixture *f, int generator_first, int64_t micro_batch, double lr, kr_step *step) {
  const kr_judge judges[] = {{f, ask, answer}, {f, ask_before, answer_after}};
  kr_train_options how = kr_train_defaults;
  how.generator_first = generator_first, how.micro_batch = micro_batch;
  open_fixture_by(f, "gru", "loss", micro_batch ? 2 : 1, &how);
  settle(f);
  kr_batch batch = batch_of(f, 0);
  for (int i = 0; i < 3 * MOST_B * KR_DISC_WIDTH; i++) f->dropout[i] = 1;
  if (kr_trainer_step(f->trainer, &batch, lr, &judges[generator_first && !micro_batch], step) < 0)
    fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_trainer_pull(f->trainer), KRAIT_OK);
}

/* The generator's gradient comes from the discriminator as it was before the step, in upstream's order from the updated
 * one; the discriminator learns from the same output in both. (Power iterations have converged.) The judge scores while
 * the gradient is computed. */
static void generator_first(void **state) {
  static fixture still, f;
  kr_step want, got;
  (void)state;
  for (int64_t micro_batch = 0; micro_batch < 2; micro_batch++) {
    first_step(&still, 0, micro_batch, 0, &want);
    const kr_parameters *w = kr_trainer_generator(still.trainer), *wd = kr_trainer_discriminator(still.trainer);
    for (int first = 0; first < 2; first++) {
      first_step(&f, first, micro_batch, 0.1, &got);
      const kr_parameters *p = kr_trainer_generator(f.trainer), *d = kr_trainer_discriminator(f.trainer);
      double square = 0, off = 0, of_disc = 0, square_disc = 0, moved = 0;
      for (int64_t i = 0; i < p->n; i++)
        square += pow((double)w->gradient[i], 2), off += pow((double)p->gradient[i] - (double)w->gradient[i], 2);
      for (int64_t i = 0; i < d->n; i++)
        square_disc += pow((double)wd->gradient[i], 2),
            of_disc += pow((double)d->gradient[i] - (double)wd->gradient[i], 2),
            moved += pow((double)d->value[i] - (double)wd->value[i], 2);
      print_message("%s first: gradient off by %.1e, the discriminator's by %.1e, metric %.6f, before %.6f\n",
                    first ? "generator" : "discriminator", sqrt(off / square), sqrt(of_disc / square_disc),
                    got.terms[KR_TERM_METRIC], want.terms[KR_TERM_METRIC]);
      assert_true(moved > 0 && sqrt(of_disc / square_disc) < 1e-4);
      assert_int_equal(sqrt(off / square) < 1e-4, first);
      for (int k = KR_TERM_DISC_R; k <= KR_TERM_DISC_G; k++)
        assert_true(fabs(got.terms[k] - want.terms[k]) < 1e-5 * want.terms[k]);
      assert_int_equal(fabs(got.terms[KR_TERM_METRIC] - want.terms[KR_TERM_METRIC]) < 1e-5, first);
      close_fixture(&f);
    }
    close_fixture(&still);
  }
}

/* Losses computed by host threads fall along their gradient as predicted, the whole batch at once or in parts, in
 * either order of the halves; with another loss they add to it. */
static void heard(void **state) {
  static fixture f;
  static float first[1 << 22];
  static const struct {
    double weights[4]; /* disturbance, PESQ, SI-SDR, STOI */
    int micro_batch, first, beside;
  } ways[] = {{{1}, 0, 0, 0}, {{1}, 1, 1, 0}, {{0, 10, 0.2, 0}, 0, 1, 1}, {{0, 1, 0, 5}, 1, 0, 1}};
  (void)state;
  has_speech = 1;
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    kr_train_options how = kr_train_defaults;
    kr_step step, moved;
    for (int k = 0; k < KR_TERMS; k++) how.weights[k] = 0;
    for (int k = 0; k < 4; k++) how.weights[KR_TERM_DISTURBANCE + k] = ways[i].weights[k];
    how.weights[KR_TERM_MAGNITUDE] = 30 * ways[i].beside, how.discriminator = ways[i].first;
    how.micro_batch = ways[i].micro_batch, how.generator_first = ways[i].first;
    open_fixture_by(&f, "gru", "loss", 2, &how);
    const kr_batch batch = batch_of(&f, 0);
    const kr_judge judge = {&f, ask, answer};
    if (kr_trainer_step(f.trainer, &batch, 0, &judge, &step) < 0) fail_msg("%s", krait_error_detail());
    assert_int_equal(kr_trainer_pull(f.trainer), KRAIT_OK);
    kr_parameters *p = kr_trainer_generator(f.trainer);
    assert_true(p->n <= (int64_t)(sizeof first / sizeof *first));
    double square = 0, off = 0;
    for (int64_t n = 0; n < p->n; n++) square += (double)p->gradient[n] * (double)p->gradient[n];
    if (i == 0) memcpy(first, p->gradient, (size_t)p->n * sizeof(float));
    for (int64_t n = 0; n < p->n; n++) off += pow((double)p->gradient[n] - (double)first[n], 2);
    assert_true(ways[i].beside || off < 1e-6 * square);
    const double h = 1e-3 / square;
    for (int64_t n = 0; n < p->n; n++) p->value[n] -= (float)(h * (double)p->gradient[n]);
    assert_int_equal(kr_trainer_push(f.trainer), KRAIT_OK);
    assert_int_equal(kr_trainer_validate(f.trainer, &batch, &moved, NULL), KRAIT_OK);
    print_message("disturbance %.4f, opinion %.4f, si_sdr %.4f, stoi %.4f, total %.4f, by its gradient %.4f\n",
                  step.terms[KR_TERM_DISTURBANCE], step.terms[KR_TERM_PESQ], step.terms[KR_TERM_SI_SDR],
                  step.terms[KR_TERM_STOI], step.total, (step.total - moved.total) / 1e-3);
    assert_true(step.terms[KR_TERM_PESQ] > 0.5);
    assert_int_equal(step.terms[KR_TERM_SI_SDR] > 1, ways[i].weights[2] > 0);
    assert_int_equal(step.terms[KR_TERM_STOI] > 0.01, ways[i].weights[3] > 0);
    assert_true(step.terms[KR_TERM_DISTURBANCE] > 1 && fabs((step.total - moved.total) / 1e-3 - 1) < 0.05);
    close_fixture(&f);
  }
  has_speech = 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "cuda") == 0) device = KRAIT_DEVICE_CUDA(0);
  const struct CMUnitTest tests[] = {cmocka_unit_test(losses_and_gradients), cmocka_unit_test(five_steps),
                                     cmocka_unit_test(generator_first), cmocka_unit_test(heard)};
  home = GOLDEN;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  home = SHARED_GOLDEN;
  if (access(home, R_OK) == 0) failed += cmocka_run_group_tests(tests, NULL, NULL);
  return failed;
}
