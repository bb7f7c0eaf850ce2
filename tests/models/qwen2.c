/* qwen2.c: Qwen2 against transformers (tests/golden/qwen2/make.py): logits, the greedy continuation, pieces and steps
 * against one pass, rows instead of tokens; errors. */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lm/lm.h"
#include "view.h"

static krait_ctx *ctx;
static int32_t device = KRAIT_DEVICE_CPU;
static double bound = 1e-5;
static kr_weights *golden;
static kr_model_folder *folder;
enum { N = 24, V = 80, D = 32, N_GREEDY = 16 };
#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)

static const void *of(const char *name) {
  const kr_weight *item = kr_weights_find(golden, name);
  if (!item) fail_msg("no %s", name);
  return item->data;
}
#define LOGITS ((const float *)of("golden.logits"))
#define IDS ((const int32_t *)of("golden.input_ids"))

static kr_lm *open_qwen2_model(int64_t n_slots) {
  kr_lm *m;
  if (kr_lm_open(ctx, folder, n_slots, 0, &m) < 0) fail_msg("%s", krait_error_detail());
  return m;
}

static void qwen2_assert_close(const char *what, const float *got, const float *want, int64_t n) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]);
    if (!(d <= error)) error = d;
    if (fabs(want[i]) > scale) scale = fabs(want[i]);
  }
  if (!(error <= bound * scale)) fail_msg("%s: %.3g of %.3g", what, error, scale);
}

static void qwen2_logits_of_a_prompt(void **state) {
  float got[N * V];
  kr_lm *m = open_qwen2_model(1);
  (void)state;
  WORKS(kr_lm_prefill(m, 0, IDS, NULL, N, 1, got));
  qwen2_assert_close("all", got, LOGITS, N * V);
  WORKS(kr_lm_reset(m, 0));
  WORKS(kr_lm_prefill(m, 0, IDS, NULL, N, 0, got));
  qwen2_assert_close("the last token's", got, LOGITS + (N - 1) * V, V);
  kr_lm_close(&m);
}

static void a_greedy_continuation(void **state) {
  float got[V];
  const int32_t *greedy = of("golden.greedy");
  int32_t best = -1;
  kr_lm *m = open_qwen2_model(3);
  (void)state;
  WORKS(kr_lm_prefill(m, 1, IDS, NULL, N, 0, got));
  for (int k = 0; k < N_GREEDY; k++) {
    int32_t id = 0;
    for (int i = 1; i < V; i++)
      if (got[i] > got[id]) id = i;
    qwen2_assert_close("a step", got, (const float *)of("golden.greedy_logits") + k * V, V);
    if (bound < 1e-4) assert_int_equal(id, greedy[k]);
    if (k) assert_int_equal(best, id);
    id = greedy[k];
    WORKS(kr_lm_step(m, 1, &(int32_t){1}, &id, got, &best));
  }
  kr_lm_close(&m);
}

/* A prompt in pieces of 1, 2, 3, ... tokens; then steps of several sequences, one of them a token ahead. */
static void qwen2_pieces_and_batches(void **state) {
  float got[3 * V];
  kr_lm *m = open_qwen2_model(4);
  (void)state;
  for (int64_t at = 0, piece = 1; at < N; at += piece, piece++) {
    if (at + piece > N) piece = N - at;
    WORKS(kr_lm_prefill(m, 2, IDS + at, NULL, piece, 0, got));
    qwen2_assert_close("a piece", got, LOGITS + (at + piece - 1) * V, V);
  }
  const int32_t slots[] = {3, 0, 1};
  WORKS(kr_lm_step(m, 1, &slots[1], IDS, got, NULL));
  for (int64_t t = 0; t + 1 < N; t++) {
    WORKS(kr_lm_step(m, 3, slots, (const int32_t[]){IDS[t], IDS[t + 1], IDS[t]}, got, NULL));
    for (int k = 0; k < 3; k++) qwen2_assert_close("a step of three", got + k * V, LOGITS + (t + (k == 1)) * V, V);
  }
  kr_lm_close(&m);
}

/* Some tokens' embeddings given as rows: the same logits. */
static void rows_instead_of_tokens(void **state) {
  float got[V], host[N * D] = {0};
  char *rows;
  int32_t ids[N];
  const kr_weight *embedding = kr_model_folder_find(folder, "model.embed_tokens.weight");
  const kr_view table = {.data = (void *)embedding->data, .dtype = embedding->dtype};
  kr_lm *m = open_qwen2_model(1);
  const kr_view values = {.data = host, .dtype = kr_lm_dtype(m)};
  const uint64_t bytes = N * D * krait_dtype_bytes(values.dtype);
  (void)state;
  for (int t = 0; t < N; t++) {
    ids[t] = t >= 3 && t < 17 ? -1 : IDS[t];
    for (int i = 0; ids[t] < 0 && i < D; i++) kr_put(&values, t * D + i, kr_get(&table, (int64_t)IDS[t] * D + i));
  }
  WORKS(kr_mem_get(ctx, "rows", bytes, &rows));
  WORKS(kr_mem_put(ctx, rows, host, bytes));
  WORKS(kr_lm_prefill(m, 0, ids, rows, N, 0, got));
  kr_mem_free(ctx, rows);
  qwen2_assert_close("rows", got, LOGITS + (N - 1) * V, V);
  kr_lm_close(&m);
}

/* Texts until the KV cache was reallocated several times: the last logits are those of one pass. */
static void long_texts(void **state) {
  enum { LONG = 1500 };
  float whole[V], got[V];
  int32_t ids[LONG];
  kr_lm *m = open_qwen2_model(2);
  (void)state;
  for (int i = 0; i < LONG; i++) ids[i] = (7 * i + i / 13) % V;
  WORKS(kr_lm_prefill(m, 0, ids, NULL, LONG, 0, whole));
  for (int at = 0; at < LONG; at += 100) WORKS(kr_lm_prefill(m, 1, ids + at, NULL, 100, 0, got));
  qwen2_assert_close("pieces of 100", got, whole, V);
  kr_lm_close(&m);
}

static void qwen2_refusals(void **state) {
  float logits[V];
  kr_lm *m = open_qwen2_model(1);
  (void)state;
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){V}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){-1}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 1, &(int32_t){1}, NULL, 1, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_prefill(m, 0, &(int32_t){1}, NULL, 0, 0, logits), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_lm_step(m, 1, &(int32_t){1}, &(int32_t){1}, logits, NULL), KRAIT_ERR_ARGUMENT);
  kr_lm_close(&m);
}

static int begin_qwen2(void **state) {
  (void)state;
  if (kr_weights_open("tests/golden/qwen2/golden.safetensors", &golden) < 0 ||
      kr_model_folder_open("tests/golden/qwen2", &folder) < 0)
    return -1;
  return krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = device}, &ctx);
}

static int end_qwen2(void **state) {
  (void)state;
  krait_ctx_close(&ctx);
  kr_model_folder_close(&folder);
  kr_weights_close(&golden);
  return 0;
}

/* On a GPU, with bfloat16 activations like the weights: test_models_qwen2 cuda. */
int main(int argc, char **argv) {
  if (argc > 1) device = strcmp(argv[1], "cuda") == 0 ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU, bound = 0.05;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(qwen2_logits_of_a_prompt), cmocka_unit_test(a_greedy_continuation),
      cmocka_unit_test(qwen2_pieces_and_batches), cmocka_unit_test(rows_instead_of_tokens),
      cmocka_unit_test(long_texts),         cmocka_unit_test(qwen2_refusals),
  };
  return cmocka_run_group_tests(tests, begin_qwen2, end_qwen2);
}
