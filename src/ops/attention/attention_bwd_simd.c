/* attention_bwd_simd.c: attention's gradient in blocks of keys by blocks of queries, recomputing P from lse. An item is
 * a chunk of a key head's keys: for each of its blocks it loops over the queries of all heads that share it, so that dk
 * and dv accumulate in a fixed order and stay in cache; dq is accumulated per chunk and the chunks are added at the
 * end. The split over keys depends on the sizes alone. A first pass computes, per query, delta = dout . out - dlse, and
 * the gradients of sinks and of unused rows. */
#include <math.h>

#include "attention_tiles.h"
#include "op_list.h"
#include "status.h"

/* Per block: a multiple of every MR and of 16; items wanted; keys per chunk. */
enum {
  QUERIES = 96,
  ITEMS = 8,
  LEAST_CHUNK = 4 * KEYS
};

typedef struct work {
  const kr_attention_bwd_args *a;
  kr_attention_inputs in;
  kr_attention_dropout dropout;
  int64_t D, Dv, n_blocks, n_chunks, chunk_keys; /* D, Dv: whole panels; most blocks of queries in a sequence */
  int64_t thread_floats, head_floats;            /* head_floats: dq of one head of a sequence */
  float *delta, *dq, *threads;
  double *dsinks; /* (B,H) */
} work;

/* A chunk's dq outlives its item only if there are several chunks to add. */
static int64_t n_dq(const work *w, int n_threads) {
  return w->n_chunks > 1 ? w->a->B * w->a->Hk * w->n_chunks : n_threads;
}
static int64_t attention_bwd_rows_of(const kr_attention_bwd_args *a) {
  return (kr_has(&a->cu_seqlens_q) ? 1 : a->B) * a->H * a->Lq;
}

static work plan_attention_bwd(const krait_ctx *ctx, const kr_attention_bwd_args *a) {
  work w = {.a = a, .in = kr_attention_bwd_inputs_of(a), .D = attention_padded(a->D), .Dv = attention_padded(a->Dv)};
  const int64_t heads = attention_most(a->B * a->Hk, 1), most = (a->Lk + LEAST_CHUNK - 1) / LEAST_CHUNK;
  const int packed = kr_has(&a->cu_seqlens_q) || kr_has(&a->cu_seqlens_k);
  w.n_blocks = ((kr_has(&a->cu_seqlens_q) && a->max_q > 0 ? a->max_q : a->Lq) + QUERIES - 1) / QUERIES;
  w.n_chunks = packed || heads >= ITEMS ? 1 : attention_most(attention_least((ITEMS + heads - 1) / heads, most), 1);
  w.chunk_keys = ((a->Lk + w.n_chunks - 1) / w.n_chunks + KEYS - 1) / KEYS * KEYS;
  w.head_floats = w.n_blocks * QUERIES * w.D;
  w.thread_floats = QUERIES * (w.D + w.Dv + 2 * SCORES) + KEYS * (3 * w.D + 2 * w.Dv) + NR * ROW_FLOATS;
  w.dsinks = a->call.scratch;
  w.delta = (float *)(w.dsinks + (a->B * a->H + 7) / 8 * 8);
  w.dq = w.delta + (attention_bwd_rows_of(a) + 15) / 16 * 16;
  w.threads = w.dq + n_dq(&w, krait_ctx_n_threads(ctx)) * (a->H / a->Hk) * w.head_floats;
  return w;
}

uint64_t KR_FN(kr_attention_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const work w = plan_attention_bwd(ctx, a);
  const int64_t floats = n_dq(&w, krait_ctx_n_threads(ctx)) * (a->H / a->Hk) * w.head_floats +
                         krait_ctx_n_threads(ctx) * w.thread_floats + (attention_bwd_rows_of(a) + 15) / 16 * 16;
  return (uint64_t)floats * sizeof(float) + (uint64_t)((a->B * a->H + 7) / 8 * 8) * sizeof(double);
}

/* ---- per query ---- */

static int64_t delta_at(const work *w, const kr_attention_sequence *s, int64_t h, int64_t i) {
  return (s->q_row * w->a->H + h) * w->a->Lq + s->q_first + i;
}
static float attention_bwd_simd_lse_of(const work *w, const kr_attention_sequence *s, int64_t h, int64_t i) {
  return ((const float *)w->a->lse.data)[kr_attention_lse(s, &w->a->lse, h, i)];
}

static void store_zeros(const kr_view *view, int64_t at, int64_t n) {
  static const float zeros[ROW_FLOATS] = {0};
  if (kr_has(view)) kr_row_store(zeros, view->data, view->dtype, at, view->stride[3], n);
}

static float dot_rows(const kr_attention_bwd_args *a, int64_t dout, int64_t out) {
  float x[ROW_FLOATS], y[ROW_FLOATS];
  kr_v sum = kr_v_zero();
  kr_row_load(x, a->dout.data, a->dout.dtype, dout, a->dout.stride[3], a->Dv);
  kr_row_load(y, a->out.data, a->out.dtype, out, a->out.stride[3], a->Dv);
  for (int64_t d = 0; d < a->Dv; d += KR_VL) sum = kr_v_fma(kr_v_load(x + d), kr_v_load(y + d), sum);
  return kr_v_sum(sum);
}

static void begin_query(const work *w, const kr_attention_sequence *s, int64_t h, int64_t i, double *dsink) {
  const kr_attention_bwd_args *a = w->a;
  const float lse = attention_bwd_simd_lse_of(w, s, h, i);
  float delta = dot_rows(a, kr_attention_query(s, &a->dout, i) + h * a->dout.stride[2],
                         kr_attention_query(s, &a->out, i) + h * a->out.stride[2]);
  if (kr_has(&a->dlse) && isfinite(lse)) delta -= ((const float *)a->dlse.data)[kr_attention_lse(s, &a->dlse, h, i)];
  w->delta[delta_at(w, s, h, i)] = delta;
  if (kr_has(&a->dsinks) && !isinf(lse))
    *dsink -= (double)(expf(kr_scalar_load(a->sinks.data, kr_at1(&a->sinks, h), a->sinks.dtype) - lse) * delta);
}

static void begin_heads(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  const kr_attention_bwd_args *a = w->a;
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    const int64_t b = k / a->H, h = k % a->H, group = a->H / a->Hk, g = h / group;
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, b);
    double dsink = 0;
    for (int64_t i = 0; i < s.nq; i++)
      if (kr_attention_end(&w->in, &s, i) > kr_attention_first(&w->in, &s, i)) begin_query(w, &s, h, i, &dsink);
    for (int64_t i = s.nq; i < s.n_rows; i++)
      store_zeros(&a->dq, kr_attention_query(&s, &a->dq, i) + h * a->dq.stride[2], a->D);
    w->dsinks[k] = dsink;
    for (int64_t j = s.nk; h % group == 0 && j < s.n_key_rows; j++) {
      store_zeros(&a->dk, kr_attention_key(&w->in, &s, &a->dk, j) + g * a->dk.stride[2], a->D);
      store_zeros(&a->dv, kr_attention_key(&w->in, &s, &a->dv, j) + g * a->dv.stride[2], a->Dv);
    }
  }
}

/* ---- blocks ---- */

typedef struct block { /* keys j0..j0+n_keys-1 by queries i0..i0+rows-1 */
  const work *w;
  const kr_attention_sequence *s;
  int64_t h, g, j0, i0, n_keys;
  int rows, odd_keys, odd_queries, odd_dout; /* odd: contains non-finite values */
  float bias;
  float *Q, *dout, *P, *dS, *K_turned, *V_turned, *K, *dK, *dV, *lines,
      *dq;                       /* dq: the item's, [head][block of queries][panel][QUERIES][NR] */
  attention_span spans[QUERIES]; /* per MR rows */
} block;

static void place_block(block *t, const work *w, int worker) {
  float *at = w->threads + worker * w->thread_floats;
  t->w = w;
  t->Q = at, at += QUERIES * w->D;
  t->dout = at, at += QUERIES * w->Dv;
  t->P = at, at += QUERIES * SCORES;
  t->dS = at, at += QUERIES * SCORES;
  t->K_turned = at, at += KEYS * w->D;
  t->K = at, at += KEYS * w->D;
  t->dK = at, at += KEYS * w->D;
  t->V_turned = at, at += KEYS * w->Dv;
  t->dV = at, at += KEYS * w->Dv;
  t->lines = at;
}

static int rows_at(const block *t, int r) { return t->rows - r < MR ? t->rows - r : MR; }

static void pack_queries(block *t) {
  const kr_attention_bwd_args *a = t->w->a;
  const float scale = attention_query_scale(&t->w->in);
  kr_v odd_queries = kr_v_zero(), odd_dout = kr_v_zero();
  for (int r = 0; r < t->rows; r++) {
    odd_queries =
        kr_v_add(odd_queries,
                 attention_pack_row(t->Q, QUERIES, r, &a->q,
                                    kr_attention_query(t->s, &a->q, t->i0 + r) + t->h * a->q.stride[2], a->D, scale));
    odd_dout =
        kr_v_add(odd_dout, attention_pack_row(t->dout, QUERIES, r, &a->dout,
                                              kr_attention_query(t->s, &a->dout, t->i0 + r) + t->h * a->dout.stride[2],
                                              a->Dv, 1));
  }
  t->odd_queries = isnan(kr_v_sum(odd_queries)), t->odd_dout = isnan(kr_v_sum(odd_dout));
}

static void multiply_scores(block *t) {
  const kr_attention_bwd_args *a = t->w->a;
  for (int column = 0; column < t->n_keys; column += NR)
    for (int r = 0; r < t->rows; r += MR) {
      const attention_span *s = &t->spans[r / MR];
      if (column < s->from || column >= s->to) continue;
      attention_scores(rows_at(t, r), t->Q + r * NR, QUERIES, t->K_turned + column * a->D, a->D,
                       t->P + r * SCORES + column);
      attention_scores(rows_at(t, r), t->dout + r * NR, QUERIES, t->V_turned + column * a->Dv, a->Dv,
                       t->dS + r * SCORES + column);
    }
}

/* Turns a row's scores into P (with dropout) and its dP into dS; 0 at masked keys. */
static __attribute__((noinline)) void turn_row(block *t, int r, const attention_span *s) {
  const kr_attention_inputs *in = &t->w->in;
  const int64_t i = t->i0 + r, b_head = t->s->b * in->H + t->h;
  float *P = t->P + r * SCORES, *dS = t->dS + r * SCORES, slope[SCORES];
  const kr_v lse = kr_v_set1(attention_bwd_simd_lse_of(t->w, t->s, t->h, i) * LOG2E),
             delta = kr_v_set1(t->w->delta[delta_at(t->w, t->s, t->h, i)]);
  const int bent = in->softcap > 0, columns = (int)attention_padded(t->n_keys);
  if (bent || t->bias != 0)
    attention_bend(in, P, bent ? slope : NULL, s->from, s->to, t->bias, i + t->s->nk - t->s->nq - t->j0);
  if (in->dropout > 0) attention_drop(&t->w->dropout, b_head, i, t->j0, s->from, s->to, dS);
  for (int j = s->from; j < s->to; j += KR_VL) {
    const kr_v p = attention_exp2(kr_v_sub(kr_v_load(P + j), lse));
    kr_v ds = kr_v_mul(p, kr_v_sub(kr_v_load(dS + j), delta));
    if (bent) ds = kr_v_mul(ds, kr_v_load(slope + j));
    kr_v_store(P + j, p), kr_v_store(dS + j, ds);
  }
  attention_hide(in, t->s, i, t->j0, t->n_keys, s, P, 0);
  attention_hide(in, t->s, i, t->j0, t->n_keys, s, dS, 0);
  if (in->dropout > 0) attention_drop(&t->w->dropout, b_head, i, t->j0, s->from, s->to, P);
  for (int j = 0; j < s->from; j++) P[j] = dS[j] = 0;
  for (int j = s->to; j < columns; j++) P[j] = dS[j] = 0;
}

static void add_queries(block *t, float *dq) {
  for (int64_t column = 0; column < t->w->D; column += NR)
    for (int r = 0; r < t->rows; r += MR) {
      const attention_span *s = &t->spans[r / MR];
      if (t->odd_keys)
        attention_add_exact(&t->w->in, t->s, t->i0 + r, rows_at(t, r), t->j0, t->n_keys, t->dS + r * SCORES,
                            t->K + column * KEYS, dq + column * QUERIES + r * NR);
      else if (s->to > 0)
        attention_add_values(rows_at(t, r), t->dS + r * SCORES + s->from, t->K + column * KEYS + s->from * NR,
                             s->end - s->from, dq + column * QUERIES + r * NR);
    }
}

/* sums [panel][KEYS][NR] += P^T times rows in panels, for keys that any of the queries sees. */
static void add_keys(const block *t, const float *P, const float *rows, int64_t D, float *sums) {
  for (int64_t column = 0; column < D; column += NR)
    for (int j = 0; j < t->n_keys; j += MR) {
      const int n = t->n_keys - j < MR ? (int)t->n_keys - j : MR;
      int first = 0, end = t->rows;
      while (first < end && (t->spans[first / MR].to <= j || t->spans[first / MR].from >= j + n)) first += MR;
      while (end > first && (t->spans[(end - 1) / MR].to <= j || t->spans[(end - 1) / MR].from >= j + n))
        end = (end - 1) / MR * MR;
      if (first < end)
        attention_add_turned(n, P + first * SCORES + j, rows + column * QUERIES + first * NR, end - first,
                             sums + column * KEYS + j * NR);
    }
}

/* The same key by key, over only the queries that see it. */
static void add_keys_exactly(const block *t, const float *P, const float *rows, int64_t D, float *sums) {
  for (int64_t j = 0; j < t->n_keys; j++) {
    int first = 0, end = t->rows;
    while (first < end && kr_attention_end(&t->w->in, t->s, t->i0 + first) <= t->j0 + j) first++;
    while (end > first && kr_attention_first(&t->w->in, t->s, t->i0 + end - 1) > t->j0 + j) end--;
    for (int64_t column = 0; first < end && column < D; column += NR)
      attention_add_turned(1, P + first * SCORES + j, rows + column * QUERIES + first * NR, end - first,
                           sums + column * KEYS + j * NR);
  }
}

static void clear_rows(block *t, int r) {
  for (int m = 0; m < rows_at(t, r); m++) {
    memset(t->P + (r + m) * SCORES, 0, (size_t)attention_padded(t->n_keys) * sizeof(float));
    memset(t->dS + (r + m) * SCORES, 0, (size_t)attention_padded(t->n_keys) * sizeof(float));
  }
}

static void run_block(block *t, float *dq) {
  int any = 0;
  for (int r = 0; r < t->rows; r += MR) {
    t->spans[r / MR] = attention_span_of(&t->w->in, t->s, t->i0 + r, rows_at(t, r), t->j0, t->n_keys);
    any |= t->spans[r / MR].to;
  }
  if (!any) return;
  pack_queries(t);
  multiply_scores(t);
  for (int r = 0; r < t->rows; r += MR) {
    if (t->spans[r / MR].to == 0)
      clear_rows(t, r);
    else
      for (int m = 0; m < rows_at(t, r); m++) turn_row(t, r + m, &t->spans[r / MR]);
  }
  if (kr_has(&t->w->a->dq)) add_queries(t, dq);
  (t->odd_dout ? add_keys_exactly : add_keys)(t, t->P, t->dout, t->w->Dv, t->dV);
  (t->odd_queries || t->odd_dout ? add_keys_exactly : add_keys)(t, t->dS, t->Q, t->w->D, t->dK);
}

static void store_keys(const block *t) {
  const kr_attention_bwd_args *a = t->w->a;
  const float scale = t->w->in.scale / attention_query_scale(&t->w->in);
  for (int64_t j = 0; j < t->n_keys; j++) {
    if (kr_has(&a->dk))
      attention_unpack_row(t->dK, KEYS, j, &a->dk,
                           kr_attention_key(&t->w->in, t->s, &a->dk, t->j0 + j) + t->g * a->dk.stride[2], a->D, scale);
    if (kr_has(&a->dv))
      attention_unpack_row(t->dV, KEYS, j, &a->dv,
                           kr_attention_key(&t->w->in, t->s, &a->dv, t->j0 + j) + t->g * a->dv.stride[2], a->Dv, 1);
  }
}

static void run_keys(block *t) {
  const kr_attention_bwd_args *a = t->w->a;
  const int64_t group = a->H / a->Hk;
  attention_pack_turned(t->K_turned, &t->w->in, t->s, &a->k, t->g, t->j0, t->n_keys, a->D, t->lines);
  attention_pack_turned(t->V_turned, &t->w->in, t->s, &a->v, t->g, t->j0, t->n_keys, a->Dv, t->lines);
  t->odd_keys = attention_pack_keys(t->K, &t->w->in, t->s, &a->k, t->g, t->j0, t->n_keys, a->D);
  memset(t->dK, 0, (size_t)(KEYS * t->w->D) * sizeof(float));
  memset(t->dV, 0, (size_t)(KEYS * t->w->Dv) * sizeof(float));
  for (int64_t m = 0; m < group; m++) {
    t->h = t->g * group + m;
    t->bias = attention_bias(&t->w->in, t->s->b, t->h);
    for (t->i0 = 0; t->i0 < t->s->nq; t->i0 += QUERIES) {
      t->rows = (int)attention_least(t->s->nq - t->i0, QUERIES);
      run_block(t, t->dq + m * t->w->head_floats + t->i0 * t->w->D);
    }
  }
  store_keys(t);
}

static float *dq_of(const work *w, int64_t item) { return w->dq + item * (w->a->H / w->a->Hk) * w->head_floats; }

/* dq of head h: the sum of n partial sums of its group; the first, of the group's first head, is at `from`. */
static void store_queries(const work *w, const kr_attention_sequence *s, int64_t h, float *from, int64_t n) {
  const kr_attention_bwd_args *a = w->a;
  const int64_t group = a->H / a->Hk, floats = (s->nq + QUERIES - 1) / QUERIES * QUERIES * w->D;
  float *first = from + h % group * w->head_floats;
  for (int64_t c = 1; c < n; c++) {
    const float *other = first + c * group * w->head_floats;
    for (int64_t k = 0; k < floats; k += KR_VL)
      kr_v_store(first + k, kr_v_add(kr_v_load(first + k), kr_v_load(other + k)));
  }
  for (int64_t i = 0; i < s->nq; i++)
    attention_unpack_row(first + i / QUERIES * QUERIES * w->D, QUERIES, i % QUERIES, &a->dq,
                         kr_attention_query(s, &a->dq, i) + h * a->dq.stride[2], a->D, w->in.scale);
}

static void run_attention_bwd_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  const kr_attention_bwd_args *a = w->a;
  const int64_t group = a->H / a->Hk;
  block t;
  place_block(&t, w, worker);
  for (int64_t k = begin; k < end; k++) {
    const int64_t chunk = k % w->n_chunks, b = k / w->n_chunks / a->Hk;
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, b);
    const int64_t last = w->n_chunks > 1 ? attention_least((chunk + 1) * w->chunk_keys, s.nk) : s.nk;
    t.s = &s, t.g = k / w->n_chunks % a->Hk, t.dq = dq_of(w, w->n_chunks > 1 ? k : worker);
    for (int64_t m = 0; kr_has(&a->dq) && m < group; m++)
      memset(t.dq + m * w->head_floats, 0, (size_t)((s.nq + QUERIES - 1) / QUERIES * QUERIES * w->D) * sizeof(float));
    for (t.j0 = chunk * w->chunk_keys; t.j0 < last; t.j0 += KEYS) {
      t.n_keys = attention_least(last - t.j0, KEYS);
      run_keys(&t);
    }
    for (int64_t m = 0; kr_has(&a->dq) && w->n_chunks == 1 && m < group; m++)
      store_queries(w, &s, t.g * group + m, t.dq, 1);
  }
}

static void add_attention_bwd_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  const kr_attention_bwd_args *a = w->a;
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    const int64_t b = k / a->H, h = k % a->H;
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, b);
    store_queries(w, &s, h, dq_of(w, (b * a->Hk + h / (a->H / a->Hk)) * w->n_chunks), w->n_chunks);
  }
}

int32_t KR_FN(kr_attention_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  work w = plan_attention_bwd(ctx, a);
  KR_TRY(kr_attention_check_indices(&w.in));
  w.dropout = kr_attention_dropout_of(&w.in);
  kr_parallel(ctx, a->B * a->H, 1, begin_heads, &w);
  kr_parallel(ctx, a->B * a->Hk * w.n_chunks, 1, run_attention_bwd_chunks, &w);
  if (w.n_chunks > 1 && kr_has(&a->dq)) kr_parallel(ctx, a->B * a->H, 1, add_attention_bwd_chunks, &w);
  for (int64_t h = 0; kr_has(&a->dsinks) && h < a->H; h++) {
    double sum = 0;
    for (int64_t b = 0; b < a->B; b++) sum += w.dsinks[b * a->H + h];
    kr_put(&a->dsinks, kr_at1(&a->dsinks, h), sum);
  }
  return KRAIT_OK;
}
