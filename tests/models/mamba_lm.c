/* mamba_lm.c: language models against golden files (tests/golden/mamba_lm, and upstream's beside this tree if there):
 * logits, states, greedy continuations, pieces and steps against one pass; errors. Usage: mamba_lm [cuda]. */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lm/lm.h"

/* A set of golden files: the model's folder or file, and its results, for each; up to one without. */
typedef struct golden_set {
  const char *home, *models[16][2];
} golden_set;
#define UPSTREAM_MODELS                                                                                       \
  {"mamba1", "mamba1"}, {"mamba1-hf", "mamba1"}, {"mamba2", "mamba2"}, {"mamba2-hf", "mamba2"},               \
      {"falcon-hf", "falcon"}, {"mamba1/pytorch_model.bin", "mamba1"}, {"mamba2/pytorch_model.bin", "mamba2"}, \
      {"hybrid", "hybrid"}, {"hybrid/pytorch_model.bin", "hybrid"}
static const golden_set sets[] = {
    {"tests/golden/mamba_lm",
     {UPSTREAM_MODELS,
      {"mamba3", "mamba3"},
      {"mamba3-mimo", "mamba3-mimo"},
      {"mamba3-mimo/pytorch_model.bin", "mamba3-mimo"}}},
    {SHARED_GOLDEN "/mamba_lm", {UPSTREAM_MODELS}},
    {SHARED_GOLDEN "/mamba3",
     {{"lm_siso", "lm_siso"}, {"lm_siso/pytorch_model.bin", "lm_siso"}, {"lm_mimo", "lm_mimo"}}}};

static krait_ctx *ctx;
static const golden_set *set;
static int32_t device = KRAIT_DEVICE_CPU;
#define WORKS(call) do { if ((call) < 0) fail_msg("%s", krait_error_detail()); } while (0)

static kr_weights *open_golden(const char *name) {
  char path[1000];
  kr_weights *golden = NULL;
  snprintf(path, sizeof path, "%s/%s.golden.safetensors", set->home, name);
  if (kr_weights_open(path, &golden) < 0) fail_msg("%s", krait_error_detail());
  return golden;
}

static void open_mamba_lm_model(const char *name, int64_t n_slots, kr_model_folder **folder, kr_lm **m) {
  char path[1000];
  snprintf(path, sizeof path, "%s/%s", set->home, name);
  if (kr_model_folder_open(path, folder) < 0 || kr_lm_open(ctx, *folder, n_slots, 0, m) < 0)
    fail_msg("%s: %s", name, krait_error_detail());
}

static const float *floats(const kr_weights *golden, const char *name) {
  const kr_weight *item = kr_weights_find(golden, name);
  if (!item || item->dtype != KRAIT_F32) fail_msg("no %s", name);
  return item->data;
}

static int32_t *ids_of(const kr_weights *golden, const char *name, int64_t *n) {
  const kr_weight *item = kr_weights_find(golden, name);
  *n = item->shape[item->n_dims - 1];
  int32_t *ids = malloc((size_t)*n * sizeof *ids);
  for (int64_t i = 0; i < *n; i++)
    ids[i] = item->dtype == KRAIT_I64 ? (int32_t)((const int64_t *)item->data)[i] : ((const int32_t *)item->data)[i];
  return ids;
}

static void mamba_lm_assert_close(const char *what, const float *got, const float *want, int64_t n, double bound) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]);
    if (!(d <= error)) error = d;
    if (fabs(want[i]) > scale) scale = fabs(want[i]);
  }
  if (!(error <= bound * scale)) fail_msg("%s: %.3g of %.3g", what, error, scale);
}

static int32_t likeliest(const float *logits, int64_t n) {
  int32_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = (int32_t)i;
  return best;
}

/* Logits of every token of the prompt at once. */
static void mamba_lm_logits_of_a_prompt(void **state) {
  (void)state;
  for (int i = 0; set->models[i][0]; i++) {
    kr_weights *golden = open_golden(set->models[i][1]);
    kr_model_folder *folder;
    kr_lm *m;
    int64_t n;
    int32_t *ids = ids_of(golden, "golden.input_ids", &n);
    open_mamba_lm_model(set->models[i][0], 1, &folder, &m);
    const int64_t V = kr_lm_config_of(m)->V;
    float *got = malloc((size_t)(n * V) * sizeof *got);
    WORKS(kr_lm_prefill(m, 0, ids, NULL, n, 1, got));
    mamba_lm_assert_close(set->models[i][0], got, floats(golden, "golden.logits"), n * V, 1e-5);
    WORKS(kr_lm_reset(m, 0));
    WORKS(kr_lm_prefill(m, 0, ids, NULL, n, 0, got));
    mamba_lm_assert_close("the last token's", got, floats(golden, "golden.logits") + (n - 1) * V, V, 1e-5);
    free(got), free(ids);
    kr_lm_close(&m);
    kr_model_folder_close(&folder);
    kr_weights_close(&golden);
  }
}

typedef struct states {
  const kr_weights *golden;
  int n;
} states;

/* The golden files are float32's, too: of the largest number, logits of steps on a CPU are up to 7.5e-6 from them, on
 * an H200 1.0e-5, and states 1.3e-5. */
static double step_bound(void) { return device == KRAIT_DEVICE_CPU ? 1e-5 : 2e-5; }

/* Angles are compared on the circle: 0 and a turn are the same. */
static void assert_angles(const char *what, const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]), turn = 2 * 3.14159265358979324;
    if (!(d <= 1e-5 * turn || fabs(d - turn) <= 1e-5 * turn))
      fail_msg("%s[%d]: %.9g, not %.9g", what, (int)i, got[i], want[i]);
  }
}

/* The golden files keep W inputs of a convolution, these W - 1. */
static int32_t compare_state(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  states *s = user;
  char key[64];
  const char *const dot = strchr(name, '.');
  snprintf(key, sizeof key, "golden.%.*s_state%s", (int)(dot - name), name, dot);
  const float *want = floats(s->golden, key);
  int64_t n = 1;
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  if (strncmp(name, "conv", 4) == 0)
    for (int64_t c = 0; c < shape[0]; c++)
      mamba_lm_assert_close(key, data + c * shape[1], want + c * (shape[1] + 1) + 1, shape[1], 1e-4);
  else if (strncmp(name, "angle", 5) == 0)
    assert_angles(key, data, want, n);
  else
    mamba_lm_assert_close(key, data, want, n, step_bound());
  s->n++;
  return KRAIT_OK;
}

static int32_t keep_state(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  float **at = user;
  int64_t n = 1;
  (void)name;
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  memcpy(*at, data, (size_t)n * sizeof *data);
  *at += n;
  return KRAIT_OK;
}
static int32_t give_state(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  float **at = user;
  int64_t n = 1;
  (void)name;
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  memcpy(data, *at, (size_t)n * sizeof *data);
  *at += n;
  return KRAIT_OK;
}

/* After a prompt: the recorded ones; written into another slot, the next token's logits have the same bits there. */
static void states_after_a_prompt(void **state) {
  (void)state;
  for (int i = 0; set->models[i][0]; i++) {
    if (strcmp(set->models[i][0], set->models[i][1]) != 0 || strcmp(set->models[i][0], "hybrid") == 0) continue;
    kr_weights *golden = open_golden(set->models[i][1]);
    kr_model_folder *folder;
    kr_lm *m;
    int64_t n;
    int32_t *ids = ids_of(golden, "golden.input_ids", &n);
    states s = {golden, 0};
    open_mamba_lm_model(set->models[i][0], 3, &folder, &m);
    const int64_t V = kr_lm_config_of(m)->V;
    float *kept = malloc(1 << 20), *at = kept, *logits = malloc((size_t)(2 * V) * sizeof *logits);
    WORKS(kr_lm_prefill(m, 1, ids, NULL, n, 0, NULL));
    WORKS(kr_lm_states_out(m, 1, compare_state, &s));
    assert_int_equal(s.n, kr_lm_n_states(m));
    WORKS(kr_lm_states_out(m, 1, keep_state, &at));
    assert_true(at - kept <= (1 << 18));
    at = kept;
    WORKS(kr_lm_states_in(m, 2, n, give_state, &at));
    WORKS(kr_lm_step(m, 2, (int32_t[]){1, 2}, (int32_t[]){5, 5}, logits, NULL));
    assert_memory_equal(logits, logits + V, (size_t)V * sizeof *logits);
    free(ids), free(kept), free(logits);
    kr_lm_close(&m);
    kr_model_folder_close(&folder);
    kr_weights_close(&golden);
  }
}

/* Prefill, then steps: the recorded tokens, which may be padding, and for the first of them the recorded logits. */
static void continue_greedily(int whole) {
  int n_whole = 0;
  for (int i = 0; set->models[i][0]; i++) {
    kr_weights *golden = open_golden(set->models[i][1]);
    kr_model_folder *folder;
    kr_lm *m;
    int64_t n, n_greedy;
    int32_t *ids = ids_of(golden, "golden.input_ids", &n), *greedy = ids_of(golden, "golden.greedy", &n_greedy);
    open_mamba_lm_model(set->models[i][0], 2, &folder, &m);
    kr_lm_choose_fused(m, whole);
    const int64_t V = kr_lm_config_of(m)->V;
    float *got = malloc((size_t)V * sizeof *got);
    WORKS(kr_lm_prefill(m, 1, ids, NULL, n, 0, got));
    int32_t best = -1;
    for (int64_t k = 0; k < n_greedy; k++) {
      if (k < 8) mamba_lm_assert_close("greedy_logits", got, floats(golden, "golden.greedy_logits") + k * V, V, 1e-5);
      const int32_t id = likeliest(got, V);
      if (k > 0) assert_int_equal(best, likeliest(got, kr_lm_config_of(m)->n_used));
      if (id != greedy[k])
        fail_msg("%s: token %lld is %d, recorded is %d", set->models[i][0], (long long)k, id, greedy[k]);
      WORKS(kr_lm_step(m, 1, &(int32_t){1}, &id, got, &best));
    }
    n_whole += kr_lm_was_fused(m);
    free(got), free(ids), free(greedy);
    kr_lm_close(&m);
    kr_model_folder_close(&folder);
    kr_weights_close(&golden);
  }
  /* The others' weights are not at equal strides, or have parts unsupported by the call. */
  const int least = strcmp(set->models[0][0], "mamba1") == 0 ? 4 : 1;
  assert_true(whole ? n_whole >= least : n_whole == 0);
}

static void greedy_continuations(void **state) { (void)state, continue_greedily(0); }
static void greedy_by_one_call_a_token(void **state) {
  (void)state;
  if (device != KRAIT_DEVICE_CPU) skip(); /* a GPU's single call is 16-bit: tests/cuda/language.c */
  continue_greedily(1);
}

/* Prompts in pieces of 1, 2, 3, ... tokens, by reads and steps, several sequences per step: equal to one pass. */
static void mamba_lm_pieces_and_batches(void **state) {
  enum { SLOTS = 4 };
  (void)state;
  for (int i = 0; set->models[i][0]; i++) {
    kr_weights *golden = open_golden(set->models[i][1]);
    kr_model_folder *folder;
    kr_lm *m;
    int64_t n;
    int32_t *ids = ids_of(golden, "golden.input_ids", &n);
    open_mamba_lm_model(set->models[i][0], SLOTS, &folder, &m);
    const int64_t V = kr_lm_config_of(m)->V;
    const float *want = floats(golden, "golden.logits");
    float *got = malloc((size_t)(SLOTS * V) * sizeof *got);
    for (int64_t at = 0, piece = 1; at < n; at += piece, piece++) {
      if (at + piece > n) piece = n - at;
      WORKS(kr_lm_prefill(m, 2, ids + at, NULL, piece, 0, got));
      mamba_lm_assert_close("a piece", got, want + (at + piece - 1) * V, V, 1e-5);
    }
    const int32_t slots[SLOTS - 1] = {3, 0, 1}; /* slot 0 one token ahead of the others */
    WORKS(kr_lm_step(m, 1, &slots[1], ids, got, NULL));
    for (int64_t t = 0; t + 1 < n; t++) {
      const int32_t next[SLOTS - 1] = {ids[t], ids[t + 1], ids[t]};
      WORKS(kr_lm_step(m, SLOTS - 1, slots, next, got, NULL));
      for (int k = 0; k < SLOTS - 1; k++)
        mamba_lm_assert_close("a step", got + k * V, want + (t + (k == 1)) * V, V, step_bound());
    }
    free(got), free(ids);
    kr_lm_close(&m);
    kr_model_folder_close(&folder);
    kr_weights_close(&golden);
  }
}

static void mamba_lm_refusals(void **state) {
  kr_weights *golden = open_golden(set->models[0][1]);
  kr_model_folder *folder;
  kr_lm *m;
  float logits[1000];
  (void)state;
  open_mamba_lm_model(set->models[0][0], 1, &folder, &m);
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){1000}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){-1}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 1, &(int32_t){1}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){1}, NULL, 0, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_step(m, 1, &(int32_t){1}, &(int32_t){1}, logits, NULL), KRAIT_ERR_ARGUMENT);
  kr_lm_close(&m);
  kr_model_folder_close(&folder);
  kr_weights_close(&golden);
}

static int open_ctx(void **state) {
  (void)state;
  return krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = device}, &ctx);
}

static int close_ctx(void **state) {
  (void)state;
  krait_ctx_close(&ctx);
  return 0;
}

/* "cuda": the same on the first GPU. */
int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "cuda") == 0) device = KRAIT_DEVICE_CUDA(0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(mamba_lm_logits_of_a_prompt),   cmocka_unit_test(states_after_a_prompt),
      cmocka_unit_test(greedy_continuations), cmocka_unit_test(greedy_by_one_call_a_token),
      cmocka_unit_test(mamba_lm_pieces_and_batches),   cmocka_unit_test(mamba_lm_refusals),
  };
  int failed = 0;
  for (set = sets; set < sets + sizeof sets / sizeof *sets; set++)
    if (access(set->home, R_OK) == 0) failed += cmocka_run_group_tests(tests, open_ctx, close_ctx);
  return failed;
}
