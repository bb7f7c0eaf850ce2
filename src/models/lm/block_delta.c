/* block_delta.c: the gated delta rule. Fields: delta_qkv, delta_z, delta_b, delta_a; or of Qwen3-Next delta_qkvz and
 * delta_ba, whose rows are by key head (in GGUF files delta_qkv, delta_z, delta_ba); or of OLMo delta_q, delta_k,
 * delta_v and conv_q, conv_k, conv_v; conv; A, dt_bias, delta_norm, out_proj. */
#include <math.h>

#include "alloc.h"
#include "lm_blocks.h"
#include "lm_builder.h"
#include "lm_ops.h"
#include "status.h"

typedef struct delta_weights {
  kr_weight_ref qkv[3], z, b, a; /* one matrix, or three; with z: qkv contains it */
  kr_weight_ref conv, A, dt_bias, norm, out_proj;
  int32_t is_apart, has_z, has_ba; /* of qkv: three matrices; it contains z; b contains a */
} delta_weights;

enum { CONV_STATE, DELTA_STATE };

static int64_t keys_of_delta(const kr_lm_delta_sizes *s) { return s->Hk * s->Dk; }
static int64_t values_of_delta(const kr_lm_delta_sizes *s) { return s->H * s->Dv; }
static int64_t channels_of_delta(const kr_lm_delta_sizes *s) { return 2 * keys_of_delta(s) + values_of_delta(s); }

static int32_t list_delta_states(const kr_lm_block *block, kr_lm_state *states) {
  const kr_lm_delta_sizes *s = block->sizes;
  states[CONV_STATE] = (kr_lm_state){.name = "conv", .n_dims = 2, .size = {channels_of_delta(s), s->W - 1}};
  states[DELTA_STATE] = (kr_lm_state){.name = "delta", .n_dims = 3, .size = {s->H, s->Dk, s->Dv}};
  return 2;
}

/* ---- weights ---- */

static double negative_exp(double x) { return -exp(x); }

static int has_delta_key(const kr_lm_loader *l, const char *field) {
  return kr_lm_has_key(l, field) && kr_lm_has(l, field);
}

/* Of q, k, v, z, the file has each key head's q, k, and its value heads' v, z. */
static int64_t row_of_qkvz(const void *user, int64_t i) {
  const kr_lm_delta_sizes *s = user;
  const int64_t K = keys_of_delta(s), V = values_of_delta(s), of_values = V / s->Hk, each = 2 * s->Dk + 2 * of_values;
  if (i < 2 * K) return i % K / s->Dk * each + i / K * s->Dk + i % s->Dk;
  const int64_t at = i - 2 * K, is_z = at / V, j = at % V;
  return j / of_values * each + 2 * s->Dk + is_z * of_values + j % of_values;
}

/* Of b, a, each key head's b, then its a. */
static int64_t row_of_ba(const void *user, int64_t i) {
  const kr_lm_delta_sizes *s = user;
  const int64_t of_head = s->H / s->Hk, is_a = i / s->H, h = i % s->H;
  return h / of_head * 2 * of_head + is_a * of_head + h % of_head;
}

static int32_t load_by_heads(kr_lm_loader *l, const kr_lm_delta_sizes *s, delta_weights *w) {
  w->has_z = 1;
  return kr_lm_load_reordered(l, "delta_qkvz", KR_SIZES(channels_of_delta(s) + values_of_delta(s), s->d), row_of_qkvz,
                              s, &w->qkv[0]);
}

static int32_t load_b_and_a(kr_lm_loader *l, const kr_lm_delta_sizes *s, delta_weights *w) {
  w->has_ba = has_delta_key(l, "delta_ba");
  if (w->has_ba) return kr_lm_load_reordered(l, "delta_ba", KR_SIZES(2 * s->H, s->d), row_of_ba, s, &w->b);
  KR_TRY(kr_lm_load(l, "delta_b", 1, KR_SIZES(s->H, s->d), &w->b));
  return kr_lm_load(l, "delta_a", 1, KR_SIZES(s->H, s->d), &w->a);
}

static int32_t load_projections(kr_lm_loader *l, const kr_lm_delta_sizes *s, delta_weights *w) {
  const int64_t K = keys_of_delta(s), V = values_of_delta(s);
  w->is_apart = !kr_lm_has(l, "delta_qkv");
  if (w->is_apart) {
    KR_TRY(kr_lm_load(l, "delta_q", 1, KR_SIZES(K, s->d), &w->qkv[0]));
    KR_TRY(kr_lm_load(l, "delta_k", 1, KR_SIZES(K, s->d), &w->qkv[1]));
    KR_TRY(kr_lm_load(l, "delta_v", 1, KR_SIZES(V, s->d), &w->qkv[2]));
  } else {
    KR_TRY(kr_lm_load(l, "delta_qkv", 1, KR_SIZES(channels_of_delta(s), s->d), &w->qkv[0]));
  }
  return kr_lm_load(l, "delta_z", 1, KR_SIZES(V, s->d), &w->z);
}

/* Rows of part i of a convolution: transformers saves three equal parts, whatever they are of. */
static int64_t conv_rows(const kr_lm_loader *l, const kr_lm_delta_sizes *s, const char *field, int i, int64_t left) {
  const int64_t K = keys_of_delta(s), sizes[] = {K, K, values_of_delta(s)};
  const kr_weight *part = kr_lm_peek(l, field);
  return part && part->n_dims == 3 && part->shape[0] <= left ? part->shape[0] : sizes[i];
}

/* Of three convolutions, one of all their channels. */
static int32_t load_three_convs(kr_lm_loader *l, const kr_lm_delta_sizes *s, kr_weight_ref *to) {
  static const char *const fields[] = {"conv_q", "conv_k", "conv_v"};
  const int64_t n = channels_of_delta(s) * s->W;
  int64_t left = channels_of_delta(s);
  float *taps = kr_alloc_array((size_t)n, sizeof *taps);
  int32_t status = taps ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a convolution");
  for (int i = 0; i < 3 && status >= 0; i++) {
    const int64_t rows = i < 2 ? conv_rows(l, s, fields[i], i, left) : left;
    status = kr_lm_load_values(l, fields[i], KR_SIZES(rows, 1, s->W), NULL, taps + n - left * s->W);
    left -= rows;
  }
  if (status >= 0) status = kr_lm_load_made(l, taps, n, to);
  kr_free(taps);
  return status;
}

/* The result's norm is without the model's norm_offset. */
static int32_t load_delta_norm(kr_lm_loader *l, const kr_lm_delta_sizes *s, kr_weight_ref *to) {
  const int64_t n = values_of_delta(s);
  float *values = kr_alloc_array((size_t)n, sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a norm of %lld features", (long long)n);
  int32_t status = kr_lm_load_values(l, "delta_norm", KR_SIZES(s->Dv), NULL, values);
  for (int64_t i = s->Dv; i < n && status >= 0; i++) values[i] = values[i % s->Dv];
  if (status >= 0) status = kr_lm_load_made(l, values, n, to);
  kr_free(values);
  return status;
}

static int32_t load_delta(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_delta_sizes *s = block->sizes;
  delta_weights *w = block->weights;
  KR_TRY((has_delta_key(l, "delta_qkvz") ? load_by_heads : load_projections)(l, s, w));
  KR_TRY(load_b_and_a(l, s, w));
  if (w->is_apart)
    KR_TRY(load_three_convs(l, s, &w->conv));
  else
    KR_TRY(kr_lm_load(l, "conv", 1, KR_SIZES(channels_of_delta(s), 1, s->W), &w->conv));
  KR_TRY(kr_lm_load_f32(l, "A", KR_SIZES(s->H), negative_exp, &w->A));
  KR_TRY(kr_lm_load_f32(l, "dt_bias", KR_SIZES(s->H), NULL, &w->dt_bias));
  KR_TRY(load_delta_norm(l, s, &w->norm));
  return kr_lm_load(l, "out_proj", 1, KR_SIZES(s->d, values_of_delta(s)), &w->out_proj);
}

/* ---- calls ---- */

/* Rows. */
typedef struct delta_rows {
  kr_tensor qkv, z, a, b, y;
} delta_rows;

static delta_rows project_delta(const kr_token_builder *r, const kr_lm_delta_sizes *s, const delta_weights *w,
                                kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"};
  const int64_t C = channels_of_delta(s), K = keys_of_delta(s), V = values_of_delta(s), sizes[] = {K, K, V};
  const kr_tensor all = new_rows(r, w->has_z ? C + V : C), ba = new_rows(r, 2 * s->H);
  delta_rows t = {.qkv = columns(r, all, 0, C), .b = columns(r, ba, 0, s->H), .a = columns(r, ba, s->H, s->H)};
  if (!w->is_apart)
    linear(r, "qkv", x, .w = &w->qkv[0], .N = w->has_z ? C + V : C, .K = s->d, .out = all);
  for (int64_t i = 0, from = 0; i < 3 && w->is_apart; from += sizes[i++])
    linear(r, names[i], x, .w = &w->qkv[i], .N = sizes[i], .K = s->d, .out = columns(r, all, from, sizes[i]));
  t.z = w->has_z ? columns(r, all, C, V) : linear(r, "z", x, .w = &w->z, .N = V, .K = s->d);
  linear(r, "b", x, .w = &w->b, .N = w->has_ba ? 2 * s->H : s->H, .K = s->d, .out = w->has_ba ? ba : t.b);
  if (!w->has_ba) linear(r, "a", x, .w = &w->a, .N = s->H, .K = s->d, .out = t.a);
  return t;
}

static void update_delta(const kr_lm_builder *b, const kr_lm_block *block, const delta_rows *t, kr_tensor conv) {
  const kr_lm_delta_sizes *s = block->sizes;
  const delta_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t K = keys_of_delta(s), V = values_of_delta(s);
  const kr_dims keys = KR_DIMS(r->rows, s->Hk, s->Dk), values = KR_DIMS(r->rows, s->H, s->Dv);
  kr_graph_call(r->g, "delta", &kr_op_gated_delta_update,
                &(kr_gated_delta_update_args){.eps = 1e-6f,
                                              .beta_scale = (float)s->beta_scale,
                                              .state = view(r, kr_lm_state_of(b, block, DELTA_STATE)),
                                              .q = view_as(r, columns(r, conv, 0, K), keys),
                                              .k = view_as(r, columns(r, conv, K, K), keys),
                                              .v = view_as(r, columns(r, conv, 2 * K, V), values),
                                              .a = view(r, t->a),
                                              .b = view(r, t->b),
                                              .A = view(r, weight(r, "A", &w->A, s->H)),
                                              .dt_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->H)),
                                              .state_batch_indices = view(r, b->to->slots),
                                              .out = view_as(r, t->y, values)});
}

static void scan_delta(kr_lm_builder *b, const kr_lm_block *block, const delta_rows *t, kr_tensor conv) {
  const kr_lm_delta_sizes *s = block->sizes;
  const delta_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t K = keys_of_delta(s), V = values_of_delta(s);
  const kr_dims keys = KR_DIMS(1, r->rows, s->Hk, s->Dk), values = KR_DIMS(1, r->rows, s->H, s->Dv),
                each = KR_DIMS(1, r->rows, s->H);
  const kr_tensor after = kr_lm_state_after(b, block, DELTA_STATE);
  kr_graph_call(r->g, "delta", &kr_op_gated_delta_rule,
                &(kr_gated_delta_rule_args){.eps = 1e-6f,
                                            .beta_scale = (float)s->beta_scale,
                                            .q = view_as(r, columns(r, conv, 0, K), keys),
                                            .k = view_as(r, columns(r, conv, K, K), keys),
                                            .v = view_as(r, columns(r, conv, 2 * K, V), values),
                                            .a = view_as(r, t->a, each),
                                            .b = view_as(r, t->b, each),
                                            .A = view(r, weight(r, "A", &w->A, s->H)),
                                            .dt_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->H)),
                                            .initial_states = view(r, kr_lm_state_of(b, block, DELTA_STATE)),
                                            .out = view_as(r, t->y, values),
                                            .final_states = view(r, after)});
  kr_lm_state_keep(b, block, DELTA_STATE, after);
}

static kr_tensor record_delta(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_delta_sizes *s = block->sizes;
  const delta_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t V = values_of_delta(s);
  delta_rows t = project_delta(r, s, w, x);
  const kr_tensor conv = kr_lm_convolve(b, block, CONV_STATE, t.qkv, &w->conv, NULL, s->W, KRAIT_ACT_SILU);
  t.y = new_rows(r, V);
  if (b->run.is_step)
    update_delta(b, block, &t, conv);
  else
    scan_delta(b, block, &t, conv);
  const kr_tensor gated = new_rows(r, V);
  kr_graph_call(r->g, "delta_norm", &kr_op_gated_norm,
                &(kr_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS,
                                      .group_size = s->Dv,
                                      .eps = (float)s->eps,
                                      .x = view(r, t.y),
                                      .z = view(r, t.z),
                                      .weight = view(r, weight(r, "delta_norm", &w->norm, V)),
                                      .out = view(r, gated)});
  return result_of(b, block, "out_proj", gated, .w = &w->out_proj, .N = s->d, .K = V);
}

const kr_lm_block_kind kr_lm_delta = {.name = "delta",
                                      .sizes_bytes = sizeof(kr_lm_delta_sizes),
                                      .weights_bytes = sizeof(delta_weights),
                                      .load = load_delta,
                                      .list_states = list_delta_states,
                                      .record = record_delta};
