/* rotary_simd.c: rotary embedding and appending keys to a cache, one head's features at a time in float; threads split
 * the tokens. */
#include "attention_impls.h"
#include "op_list.h"
#include "rotary_turn.h"
#include "status.h"
#include "vec_tile.h"

enum { MOST_D = 1024, TOKENS = 16 }; /* TOKENS: per piece of a thread */

static void load_rotary_row(const kr_view *view, int64_t at, int64_t stride, int64_t n, float *to) {
  kr_row_load(to, view->data, view->dtype, at, stride, n);
}

/* Rotates x into out, both of D features; cos and sin have R, sin signed by direction. */
static void turn_rotary(uint32_t flags, const float *x, const float *c, const float *s, int64_t R, int64_t D,
                        float *out) {
  if (flags & KRAIT_ROTARY_INTERLEAVED)
    for (int64_t r = 0; r < R; r++) {
      const float a = x[2 * r], b = x[2 * r + 1];
      out[2 * r] = a * c[r] - b * s[r], out[2 * r + 1] = a * s[r] + b * c[r];
    }
  else
    for (int64_t r = 0; r < R; r++) {
      const float a = x[r], b = x[r + R];
      out[r] = a * c[r] - b * s[r], out[r + R] = a * s[r] + b * c[r];
    }
  for (int64_t d = 2 * R; d < D; d++) out[d] = x[d];
}

static int has_doubles(const kr_view *a, const kr_view *b) {
  return (kr_has(a) && a->dtype == KRAIT_F64) || (kr_has(b) && b->dtype == KRAIT_F64);
}

/* ---- rotary ---- */

static void turn_token(const kr_rotary_args *a, const kr_rotary_span *span, int64_t i) {
  const int64_t position = a->call.flags & KRAIT_ROTARY_STILL ? span->position : span->position + i;
  float x[MOST_D + 16], out[MOST_D + 16], c[MOST_D + 16], s[MOST_D + 16];
  load_rotary_row(&a->cos, position * a->cos.stride[0], a->cos.stride[1], a->R, c);
  load_rotary_row(&a->sin, position * a->sin.stride[0], a->sin.stride[1], a->R, s);
  for (int64_t r = 0; a->call.flags & KRAIT_ROTARY_INVERSE && r < a->R; r++) s[r] = -s[r];
  for (int64_t h = 0; h < a->H; h++) {
    load_rotary_row(&a->x, kr_at3(&a->x, span->row, span->first + i, h), a->x.stride[3], a->D, x);
    turn_rotary(a->call.flags, x, c, s, a->R, a->D, out);
    kr_row_store(out, a->out.data, a->out.dtype, kr_at3(&a->out, span->row, span->first + i, h), a->out.stride[3],
                 a->D);
  }
}

/* Pieces of TOKENS tokens of every sequence, numbered as if each had L. */
static void turn_pieces(void *user, int64_t begin, int64_t end, int worker) {
  const kr_rotary_args *a = user;
  const int64_t pieces = (a->L + TOKENS - 1) / TOKENS;
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    const kr_rotary_span span = kr_rotary_span_at(a, k / pieces);
    for (int64_t i = k % pieces * TOKENS; i < (k % pieces + 1) * TOKENS && i < span.n; i++) turn_token(a, &span, i);
  }
}

const char *KR_FN(kr_rotary_refuse)(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args *a = args;
  (void)ctx;
  if (has_doubles(&a->cos, &a->sin)) return "no float64";
  return a->D > MOST_D ? "more than 1024 features" : NULL;
}

int32_t KR_FN(kr_rotary)(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args *a = args;
  KR_TRY(kr_rotary_check_indices(a));
  kr_parallel(ctx, a->B * ((a->L + TOKENS - 1) / TOKENS), 1, turn_pieces, (void *)args);
  return KRAIT_OK;
}

/* ---- attention_append ---- */

static void append_token(const kr_attention_append_args *a, int64_t b, int64_t i) {
  const int64_t position = kr_append_position(a, b) + i, k_to = kr_append_at(a, &a->k_cache, b, position),
                v_to = kr_append_at(a, &a->v_cache, b, position), R = kr_has(&a->cos) ? a->R : 0;
  float x[MOST_D + 16], out[MOST_D + 16], c[MOST_D + 16], s[MOST_D + 16];
  if (R) {
    load_rotary_row(&a->cos, position * a->cos.stride[0], a->cos.stride[1], R, c);
    load_rotary_row(&a->sin, position * a->sin.stride[0], a->sin.stride[1], R, s);
  }
  for (int64_t h = 0; h < a->Hk; h++) {
    load_rotary_row(&a->k, kr_at3(&a->k, b, i, h), a->k.stride[3], a->D, x);
    turn_rotary(a->call.flags, x, c, s, R, a->D, out);
    kr_row_store(out, a->k_cache.data, a->k_cache.dtype, k_to + h * a->k_cache.stride[2], a->k_cache.stride[3], a->D);
    load_rotary_row(&a->v, kr_at3(&a->v, b, i, h), a->v.stride[3], a->Dv, x);
    kr_row_store(x, a->v_cache.data, a->v_cache.dtype, v_to + h * a->v_cache.stride[2], a->v_cache.stride[3], a->Dv);
  }
}

static void append_tokens(void *user, int64_t begin, int64_t end, int worker) {
  const kr_attention_append_args *a = user;
  (void)worker;
  for (int64_t k = begin; k < end; k++)
    if (kr_append_row(a, k / a->L) >= 0) append_token(a, k / a->L, k % a->L);
}

const char *KR_FN(kr_attention_append_refuse)(const krait_ctx *ctx, const void *args) {
  const kr_attention_append_args *a = args;
  (void)ctx;
  if (has_doubles(&a->cos, &a->sin)) return "no float64";
  return a->D > MOST_D || a->Dv > MOST_D ? "more than 1024 features" : NULL;
}

int32_t KR_FN(kr_attention_append)(const krait_ctx *ctx, const void *args) {
  const kr_attention_append_args *a = args;
  KR_TRY(kr_append_check_indices(a));
  kr_parallel(ctx, a->B * a->L, TOKENS, append_tokens, (void *)args);
  for (int64_t b = 0; kr_has(&a->seqused) && b < a->B; b++)
    ((int32_t *)a->seqused.data)[kr_at1(&a->seqused, b)] = (int32_t)(kr_append_position(a, b) + a->L);
  return KRAIT_OK;
}
