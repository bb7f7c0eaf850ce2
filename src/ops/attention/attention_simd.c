/* attention_simd.c: attention in tiles of queries by blocks of keys. Keys are transposed and values packed once per
 * block; queries and sums are panels of floats; the register tile of attention_tiles.h computes a block's scores,
 * exponentials run along rows, and the values are added to the rescaled sums (online softmax: Milakov & Gimelshein
 * 2018). Items are (tile, sequence, head), the longest first if masks make them differ. */
#include <math.h>

#include "attention_tiles.h"
#include "op_list.h"
#include "status.h"

enum { QUERIES = 288 }; /* per tile: a multiple of every MR and of 16 */

typedef struct work {
  const kr_attention_args *a;
  kr_attention_inputs in;
  kr_attention_dropout dropout;
  int64_t n_tiles, thread_floats, D, Dv; /* D, Dv: whole panels */
} work;

typedef struct tile {
  const work *w;
  const kr_attention_sequence *s;
  int64_t h, g, i0; /* head, key head, first query */
  int rows;
  float bias;
  float *Q, *sums, *scores, *K, *V, *lines;
  float most[QUERIES], total[QUERIES];
} tile;

static int64_t count_floats(int64_t D, int64_t Dv) {
  return QUERIES * (D + Dv + SCORES) + KEYS * (D + Dv) + NR * ROW_FLOATS;
}

static void place_tile(tile *t, const work *w, int worker) {
  float *at = (float *)w->a->call.scratch + worker * w->thread_floats;
  t->w = w;
  t->Q = at, at += QUERIES * w->D;
  t->sums = at, at += QUERIES * w->Dv;
  t->scores = at, at += QUERIES * SCORES;
  t->K = at, at += KEYS * w->D;
  t->V = at, at += KEYS * w->Dv;
  t->lines = at;
}

static void begin_tile(tile *t) {
  const kr_attention_args *a = t->w->a;
  const kr_view *sinks = t->w->in.sinks;
  const float sink = kr_has(sinks) ? kr_scalar_load(sinks->data, kr_at1(sinks, t->h), sinks->dtype) * LOG2E : -INFINITY,
              scale = attention_query_scale(&t->w->in);
  t->bias = attention_bias(&t->w->in, t->s->b, t->h);
  for (int r = 0; r < t->rows; r++) {
    attention_pack_row(t->Q, QUERIES, r, &a->q, kr_attention_query(t->s, &a->q, t->i0 + r) + t->h * a->q.stride[2],
                       a->D, scale);
    t->most[r] = sink, t->total[r] = kr_has(sinks) ? 1 : 0;
  }
  memset(t->sums, 0, (size_t)(QUERIES * t->w->Dv) * sizeof(float));
}

static attention_span span_of(const tile *t, int r, int n, int64_t j0, int64_t n_keys) {
  return attention_span_of(&t->w->in, t->s, t->i0 + r, n, j0, n_keys);
}

static void make_scores(tile *t, int64_t j0, int64_t n_keys) {
  for (int column = 0; column < n_keys; column += NR)
    for (int r = 0; r < t->rows; r += MR) {
      const int n = t->rows - r < MR ? t->rows - r : MR;
      const attention_span s = span_of(t, r, n, j0, n_keys);
      if (column >= s.from && column < s.to)
        attention_scores(n, t->Q + r * NR, QUERIES, t->K + column * t->w->a->D, t->w->a->D,
                         t->scores + r * SCORES + column);
    }
}

static void rescale(tile *t, int r, float by) {
  const kr_v v = kr_v_set1(by);
  for (float *at = t->sums + r * NR; at < t->sums + QUERIES * t->w->Dv; at += QUERIES * NR)
    for (int part = 0; part < NR; part += KR_VL) kr_v_store(at + part, kr_v_mul(v, kr_v_load(at + part)));
}

/* Turns a row's scores into unnormalised probabilities and updates its sums. */
static __attribute__((noinline)) void exponentiate_tile(tile *t, int r, const attention_span *s, int64_t j0,
                                                   int64_t n_keys) {
  const kr_attention_inputs *in = &t->w->in;
  const int64_t i = t->i0 + r;
  float *score = t->scores + r * SCORES;
  kr_v most = kr_v_set1(t->most[r]), other = most, total = kr_v_zero();
  if (in->softcap > 0 || t->bias != 0)
    attention_bend(in, score, NULL, s->from, s->to, t->bias, i + t->s->nk - t->s->nq - j0);
  attention_hide(in, t->s, i, j0, n_keys, s, score, -INFINITY);
  for (int j = s->from; j < s->to; j += NR) { /* two chains; NaN propagates */
    most = kr_v_max(kr_v_load(score + j), most);
    other = kr_v_max(kr_v_load(score + j + KR_VL), other);
  }
  const float now = kr_v_largest(kr_v_max(most, other)), base = now == -INFINITY ? 0 : now;
  for (int j = s->from; j < s->to; j += KR_VL) {
    const kr_v p = attention_exp2(kr_v_sub(kr_v_load(score + j), kr_v_set1(base)));
    total = kr_v_add(total, p);
    kr_v_store(score + j, p);
  }
  if (now != t->most[r]) {
    const float by = exp2f(t->most[r] - base);
    rescale(t, r, by);
    t->total[r] *= by, t->most[r] = now;
  }
  t->total[r] += kr_v_sum(total);
  if (in->dropout > 0) attention_drop(&t->w->dropout, t->s->b * in->H + t->h, i, j0, s->from, s->to, score);
}

static void add_key_block(tile *t, int64_t j0, int64_t n_keys, int odd) {
  for (int r = 0; r < t->rows; r += MR) {
    const int n = t->rows - r < MR ? t->rows - r : MR;
    const attention_span s = span_of(t, r, n, j0, n_keys);
    for (int m = 0; m < n && s.to > 0; m++) exponentiate_tile(t, r + m, &s, j0, n_keys);
  }
  for (int64_t column = 0; column < t->w->Dv; column += NR)
    for (int r = 0; r < t->rows; r += MR) {
      const int n = t->rows - r < MR ? t->rows - r : MR;
      const attention_span s = span_of(t, r, n, j0, n_keys);
      if (odd)
        attention_add_exact(&t->w->in, t->s, t->i0 + r, n, j0, n_keys, t->scores + r * SCORES, t->V + column * KEYS,
                            t->sums + column * QUERIES + r * NR);
      else if (s.to > 0)
        attention_add_values(n, t->scores + r * SCORES + s.from, t->V + column * KEYS + s.from * NR, s.end - s.from,
                             t->sums + column * QUERIES + r * NR);
    }
}

static void finish_row(const tile *t, int r, int used) {
  const kr_attention_args *a = t->w->a;
  const int64_t i = t->i0 + r, at = kr_attention_query(t->s, &a->out, i) + t->h * a->out.stride[2];
  const int seen = used && kr_attention_end(&t->w->in, t->s, i) > kr_attention_first(&t->w->in, t->s, i);
  if (seen) {
    attention_unpack_row(t->sums, QUERIES, r, &a->out, at, a->Dv, 1 / t->total[r]);
  } else {
    static const float zeros[ROW_FLOATS] = {0};
    kr_row_store(zeros, a->out.data, a->out.dtype, at, a->out.stride[3], a->Dv);
  }
  if (kr_has(&a->lse))
    ((float *)a->lse.data)[kr_attention_lse(t->s, &a->lse, t->h, i)] =
        seen ? t->most[r] * LN2 + logf(t->total[r]) : INFINITY;
}

static void run_attention_tile(tile *t, int n_places) {
  const kr_attention_args *a = t->w->a;
  const kr_attention_inputs *in = &t->w->in;
  t->rows = (int)attention_most(attention_least(t->s->nq - t->i0, n_places), 0);
  if (t->rows > 0) {
    const int64_t end = kr_attention_end(in, t->s, t->i0 + t->rows - 1);
    begin_tile(t);
    for (int64_t j0 = kr_attention_first(in, t->s, t->i0) / KEYS * KEYS; j0 < end; j0 += KEYS) {
      const int64_t n_keys = attention_least(end - j0, KEYS);
      attention_pack_turned(t->K, in, t->s, &a->k, t->g, j0, n_keys, a->D, t->lines);
      const int odd = attention_pack_keys(t->V, in, t->s, &a->v, t->g, j0, n_keys, a->Dv);
      make_scores(t, j0, n_keys);
      add_key_block(t, j0, n_keys, odd);
    }
  }
  for (int r = 0; r < n_places; r++) finish_row(t, r, r < t->rows);
}

static void run_attention_items(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  tile t;
  place_tile(&t, w, worker);
  for (int64_t k = begin; k < end; k++) {
    const int64_t heads = w->a->B * w->a->H, tile_index = w->n_tiles - 1 - k / heads;
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, k % heads / w->a->H);
    if (tile_index * QUERIES >= s.n_rows) continue;
    t.s = &s, t.i0 = tile_index * QUERIES, t.h = k % w->a->H, t.g = t.h / (w->a->H / w->a->Hk);
    run_attention_tile(&t, (int)attention_least(s.n_rows - t.i0, QUERIES));
  }
}

uint64_t KR_FN(kr_attention_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  return (uint64_t)(count_floats(attention_padded(a->D), attention_padded(a->Dv)) * krait_ctx_n_threads(ctx)) *
         sizeof(float);
}

int32_t KR_FN(kr_attention)(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  work w = {.a = a, .in = kr_attention_inputs_of(a), .D = attention_padded(a->D), .Dv = attention_padded(a->Dv)};
  KR_TRY(kr_attention_check_indices(&w.in));
  w.dropout = kr_attention_dropout_of(&w.in);
  w.n_tiles = ((kr_has(&a->cu_seqlens_q) && a->max_q > 0 ? a->max_q : a->Lq) + QUERIES - 1) / QUERIES;
  w.thread_floats = count_floats(w.D, w.Dv);
  kr_parallel(ctx, w.n_tiles * a->B * a->H, 1, run_attention_items, &w);
  return KRAIT_OK;
}
