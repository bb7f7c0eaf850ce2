/* toy_test.c: the family of toy.c in the library's table: prompts in pieces, steps of several slots, saved states and
 * texts, against its equations in double precision. Usage: toy_test FOLDER: the model of toy.py. */
#include "../../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/language.h>
#include <krait/enhance.h>

#include "lm/lm.h"
#include "model_time.h"
#include "view.h"

enum { D = 16, HEAD = 8, F = 32, LAYERS = 3, N = 20, MOST_V = 512 };
static const char *path;
static krait_ctx *ctx;
static kr_model_folder *folder;
static int32_t ids[N];
static int64_t V;
static double want[N][MOST_V];
#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)

/* ---- the equations ---- */

static const float *tensor(int layer, const char *name) {
  char key[64];
  if (layer < 0)
    snprintf(key, sizeof key, "toy.%s", name);
  else
    snprintf(key, sizeof key, "toy.layers.%d.%s", layer, name);
  const kr_weight *item = kr_model_folder_find(folder, key);
  if (!item || item->dtype != KRAIT_F32) fail_msg("no %s", key);
  return item->data;
}

static void multiply_row(const float *w, int n_out, int n_in, const double *x, double *y) {
  for (int i = 0; i < n_out; i++) {
    y[i] = 0;
    for (int k = 0; k < n_in; k++) y[i] += (double)w[i * n_in + k] * x[k];
  }
}

static void norm_rows(const float *w, double (*x)[D], double (*y)[D]) {
  for (int t = 0; t < N; t++) {
    double sum = 0;
    for (int i = 0; i < D; i++) sum += x[t][i] * x[t][i];
    for (int i = 0; i < D; i++) y[t][i] = x[t][i] / sqrt(sum / D + 1e-5) * (double)w[i];
  }
}

static void add_echo(int layer, double (*n)[D], double (*x)[D]) {
  const float *taps = tensor(layer, "echo.taps");
  for (int t = 0; t < N; t++) {
    double c[D] = {0}, y[D];
    for (int i = 0; i < D; i++)
      for (int k = 0; k < 3; k++)
        if (t - 2 + k >= 0) c[i] += (double)taps[3 * i + k] * n[t - 2 + k][i];
    multiply_row(tensor(layer, "echo.out.weight"), D, D, c, y);
    for (int i = 0; i < D; i++) x[t][i] += y[i];
  }
}

static void add_attention(int layer, double (*n)[D], double (*x)[D]) {
  static double q[N][D], k[N][HEAD], v[N][HEAD];
  for (int t = 0; t < N; t++) {
    double o[D] = {0}, y[D];
    multiply_row(tensor(layer, "q"), D, D, n[t], q[t]);
    multiply_row(tensor(layer, "k"), HEAD, D, n[t], k[t]);
    multiply_row(tensor(layer, "v"), HEAD, D, n[t], v[t]);
    for (int h = 0; h < 2; h++) {
      double p[N], sum = 0;
      for (int s = 0; s <= t; s++) {
        double dot = 0;
        for (int i = 0; i < HEAD; i++) dot += q[t][h * HEAD + i] * k[s][i];
        sum += p[s] = exp(dot / sqrt(HEAD));
      }
      for (int s = 0; s <= t; s++)
        for (int i = 0; i < HEAD; i++) o[h * HEAD + i] += p[s] / sum * v[s][i];
    }
    multiply_row(tensor(layer, "o"), D, D, o, y);
    for (int i = 0; i < D; i++) x[t][i] += y[i];
  }
}

static void add_mlp(int layer, double (*n)[D], double (*x)[D]) {
  for (int t = 0; t < N; t++) {
    double gate[F], up[F], y[D];
    multiply_row(tensor(layer, "gate"), F, D, n[t], gate);
    multiply_row(tensor(layer, "up"), F, D, n[t], up);
    for (int i = 0; i < F; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    multiply_row(tensor(layer, "down"), D, F, up, y);
    for (int i = 0; i < D; i++) x[t][i] += y[i];
  }
}

static void fill_want(void) {
  static double x[N][D], n[N][D];
  const float *E = tensor(-1, "embed.weight");
  for (int t = 0; t < N; t++)
    for (int i = 0; i < D; i++) x[t][i] = (double)E[ids[t] * D + i];
  for (int layer = 0; layer < LAYERS; layer++) {
    norm_rows(tensor(layer, "norm.weight"), x, n);
    if (layer % 2)
      add_attention(layer, n, x);
    else
      add_echo(layer, n, x);
    norm_rows(tensor(layer, "norm2.weight"), x, n);
    add_mlp(layer, n, x);
  }
  norm_rows(tensor(-1, "norm.weight"), x, n);
  for (int t = 0; t < N; t++) multiply_row(E, (int)V, D, n[t], want[t]);
}

static void assert_logits(const char *what, const float *got, int t) {
  for (int64_t i = 0; i < V; i++)
    if (!(fabs((double)got[i] - want[t][i]) <= 1e-4))
      fail_msg("%s: logit %lld of token %d is %g, the equations say %g", what, (long long)i, t, (double)got[i],
               want[t][i]);
}

/* ---- tests ---- */

static void logits_are_the_equations(void **state) {
  static float got[N * MOST_V];
  kr_lm *m;
  (void)state;
  WORKS(kr_lm_open(ctx, folder, 3, 0, &m));
  assert_string_equal(kr_lm_config_of(m)->family->name, "toy");
  WORKS(kr_lm_prefill(m, 0, ids, NULL, N, 1, got));
  for (int t = 0; t < N; t++) assert_logits("a prompt", got + t * V, t);
  for (int at = 0, piece = 1; at < N; at += piece, piece++) { /* in pieces of 1, 2, 3 ... */
    if (at + piece > N) piece = N - at;
    WORKS(kr_lm_prefill(m, 1, ids + at, NULL, piece, 0, got));
    assert_logits("a piece", got, at + piece - 1);
  }
  WORKS(kr_lm_reset(m, 1));
  WORKS(kr_lm_step(m, 1, (const int32_t[]){1}, ids, got, NULL)); /* one token ahead */
  for (int t = 0; t + 1 < N; t++) {
    int32_t best[2];
    WORKS(kr_lm_step(m, 2, (const int32_t[]){2, 1}, (const int32_t[]){ids[t], ids[t + 1]}, got, best));
    assert_logits("a step", got, t);
    assert_logits("a step", got + V, t + 1);
    for (int64_t i = 0; i < V; i++) assert_true(got[i] <= got[best[0]]);
  }
  kr_lm_close(&m);
}

static krait_lm_session *open_session_of(const char *model, krait_lm **lm) {
  krait_lm_session *s;
  WORKS(krait_lm_open(ctx, &(krait_lm_options){.size = sizeof(krait_lm_options), .path = model}, lm));
  WORKS(krait_lm_session_open(*lm, NULL, &s));
  return s;
}

static void generate_text(krait_lm_session *s, int n, char *text, size_t bytes) {
  size_t used = 0;
  for (int i = 0; i < n; i++) {
    size_t piece;
    WORKS(krait_lm_step(&s, 1));
    const char *added = krait_lm_text(s, &piece);
    assert_true(used + piece < bytes);
    memcpy(text + used, added, piece), used += piece;
  }
  text[used] = 0;
}

/* A text, saved in the middle and continued elsewhere: the same as at once; and of the quantized model. */
static void texts_and_states(void **state) {
  char whole[400], first[400], second[400], file[600];
  krait_lm *lm;
  (void)state;
  krait_lm_session *s = open_session_of(path, &lm);
  WORKS(krait_lm_prefill(s, "the rain in the", 15, 0));
  generate_text(s, 24, whole, sizeof whole);
  WORKS(krait_lm_reset(s));
  WORKS(krait_lm_prefill(s, "the rain in the", 15, 0));
  generate_text(s, 12, first, sizeof first);
  snprintf(file, sizeof file, "%s/toy.state", path);
  WORKS(krait_lm_save(s, file));
  WORKS(krait_lm_reset(s));
  WORKS(krait_lm_load(s, file));
  generate_text(s, 12, second, sizeof second);
  assert_true(strlen(whole) > 0);
  if (strncmp(whole, first, strlen(first)) != 0 || strcmp(whole + strlen(first), second) != 0)
    fail_msg("\"%s\" at once, \"%s\" and \"%s\" in two parts", whole, first, second);
  krait_lm_session_close(&s);
  krait_lm_close(&lm);
  snprintf(file, sizeof file, "%s/q8/model.safetensors", path);
  WORKS(krait_lm_quantize(path, file, "q8_0"));
  snprintf(file, sizeof file, "%s/q8", path);
  s = open_session_of(file, &lm);
  WORKS(krait_lm_prefill(s, "the rain in the", 15, 0));
  generate_text(s, 4, first, sizeof first);
  krait_lm_session_close(&s);
  krait_lm_close(&lm);
}

static int n_lines;
static void count_line(void *user, const char *text) { (void)user, (void)text, n_lines++; }

static void graphs_are_shown(void **state) {
  (void)state;
  WORKS(kr_model_graphs(ctx, &(krait_denoiser_options){.size = sizeof(krait_denoiser_options), .weights_path = path}, 0,
                           count_line, NULL));
  assert_true(n_lines > 2 * LAYERS * 4);
}

static int begin_toy(void **state) {
  const char *key;
  (void)state;
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx) < 0 ||
      kr_model_folder_open(path, &folder) < 0)
    return -1;
  const kr_lm_family *family;
  if (kr_lm_family_of(folder, &family) < 0) return -1;
  V = kr_lm_find_weight(family, folder, "embedding", &key)->shape[0];
  for (int t = 0; t < N; t++) ids[t] = (t * 37 + 11) % (int)V;
  fill_want();
  return 0;
}

static int end_toy(void **state) {
  (void)state;
  kr_model_folder_close(&folder);
  krait_ctx_close(&ctx);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  path = argv[1];
  const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_the_equations), cmocka_unit_test(texts_and_states),
                                     cmocka_unit_test(graphs_are_shown)};
  return cmocka_run_group_tests(tests, begin_toy, end_toy);
}
