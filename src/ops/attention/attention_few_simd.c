/* attention_few_simd.c: attention of few queries (decoding). Memory-bound: every key and value is read once for the
 * heads that share it, in its storage type, and widened in registers. Keys are split into chunks of CHUNK; each yields
 * its largest score, its sum and its weighted values, which are then merged. Chunks are short, so that few keys are
 * work for several threads, and a thread takes neighbours, since the keys behind a piece are asked for. A chunk is
 * processed in pieces of PIECE keys and within them by heads, so that memory is read sequentially. Rows (queries of
 * the heads of a group) are taken 4, 2 or 1 at a time: a key's scores are adjacent, [key][row]. */
#include <math.h>

#include "attention_tiles.h"
#include "op_list.h"
#include "status.h"

enum { CHUNK = 128, PIECE = 64, MOST_ROWS = 4 };
#if KR_VL == 8
enum { WIDE = 8 }; /* accumulators of values in registers */
#else
enum { WIDE = 16 };
#endif

typedef struct work {
  const kr_attention_args *a;
  kr_attention_inputs in;
  int64_t n_chunks, most_queries, Dv, part_floats; /* Dv: whole vectors; per part: values, largest, sum */
  float *parts;                                    /* [b][h][i][chunk] */
} work;

static int64_t most_queries(const kr_attention_args *a) { return kr_has(&a->cu_seqlens_q) ? a->max_q : a->Lq; }
static int64_t attention_few_n_parts(const work *w) { return w->a->B * w->a->H * w->most_queries * w->n_chunks; }

static work plan_attention_few(const kr_attention_args *a) {
  work w = {.a = a,
            .in = kr_attention_inputs_of(a),
            .most_queries = most_queries(a),
            .Dv = (a->Dv + KR_VL - 1) / KR_VL * KR_VL,
            .parts = a->call.scratch};
  w.n_chunks = (kr_attention_most_keys(&w.in) + CHUNK - 1) / CHUNK;
  w.part_floats = w.Dv + 2;
  return w;
}

static float *attention_few_part_of(const work *w, int64_t b, int64_t h, int64_t i, int64_t chunk) {
  return w->parts + (((b * w->a->H + h) * w->most_queries + i) * w->n_chunks + chunk) * w->part_floats;
}

typedef struct piece { /* some keys of a key head, and the current rows */
  const work *w;
  const kr_attention_sequence *s;
  int64_t j0, D;
  int n_keys;
  int64_t k_at[PIECE + KR_VL], v_at[PIECE];     /* offset of each key's row; past the last, the last again */
  int64_t k_next[PIECE + KR_VL], v_next[PIECE]; /* to be prefetched: those of the next piece */
  float q[MOST_ROWS * ROW_FLOATS];
  float scores[PIECE * MOST_ROWS + 64];
  float sums[MOST_ROWS * ROW_FLOATS];
} piece;

KR_INLINE void ask(const kr_view *view, int64_t at, int64_t n, int32_t dtype) {
  const int64_t bytes = dtype == KRAIT_F32 ? 4 : 2;
  const char *from = (const char *)view->data + at * bytes;
  for (int64_t line = 0; line < n * bytes; line += 64) __builtin_prefetch(from + line, 0, 2);
}

/* rows divides KR_VL; rows and dtype are constants after inlining. */
KR_INLINE void score_keys(piece *t, const int rows, const int32_t dtype) {
  const kr_view *k = &t->w->a->k;
  enum { MOST = KR_VL };
  const int keys = MOST / rows;
  for (int j = 0; j < t->n_keys; j += keys) {
    kr_v sum[MOST];
#pragma GCC unroll 16
    for (int m = 0; m < MOST; m++) sum[m] = kr_v_zero();
    for (int n = 0; n < keys; n++) ask(k, t->k_next[j + n], t->D, dtype);
    for (int64_t d = 0; d < t->D; d += KR_VL) {
      const int lanes = t->D - d < KR_VL ? (int)(t->D - d) : KR_VL;
      kr_v q[MOST_ROWS];
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++) q[r] = kr_v_load(t->q + r * ROW_FLOATS + d);
#pragma GCC unroll 16
      for (int n = 0; n < keys; n++) {
        const kr_v key = kr_v_load_as(k->data, t->k_at[j + n] + d, lanes, dtype);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[n * rows + r] = kr_v_fma(q[r], key, sum[n * rows + r]);
      }
    }
    kr_v_store(t->scores + j * rows, kr_v_sum_each(sum));
  }
}

/* Columns first.. of the values, `vectors` of them. */
KR_INLINE void add_values(piece *t, const int rows, const int vectors, const int32_t dtype, int64_t first,
                          int n_vectors) {
  const kr_view *v = &t->w->a->v;
  kr_v sum[MOST_ROWS * 8];
#pragma GCC unroll 32
  for (int m = 0; m < rows * vectors; m++) sum[m] = kr_v_zero();
  for (int j = 0; j < t->n_keys; j++) {
    ask(v, t->v_next[j] + first, (int64_t)n_vectors * KR_VL, dtype);
#pragma GCC unroll 8
    for (int c = 0; c < vectors; c++) {
      const int64_t d = first + c * KR_VL;
      if (c >= n_vectors) continue;
      const int lanes = t->w->a->Dv - d < KR_VL ? (int)(t->w->a->Dv - d) : KR_VL;
      const kr_v value = kr_v_load_as(v->data, t->v_at[j] + d, lanes, dtype);
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++)
        sum[r * vectors + c] = kr_v_fma(kr_v_set1(t->scores[j * rows + r]), value, sum[r * vectors + c]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < n_vectors; c++) kr_v_store(t->sums + r * ROW_FLOATS + first + c * KR_VL, sum[r * vectors + c]);
}

KR_INLINE void add_all_values(piece *t, const int rows, const int32_t dtype) {
  const int vectors = WIDE / rows < 8 ? WIDE / rows : 8;
  for (int64_t first = 0; first < t->w->Dv; first += vectors * KR_VL) {
    const int64_t left = (t->w->Dv - first) / KR_VL;
    add_values(t, rows, vectors, dtype, first, left < vectors ? (int)left : vectors);
  }
}

#define BY_ROWS(call, t, rows, dtype) \
  do {                                \
    if (rows == 1)                    \
      call(t, 1, dtype);              \
    else if (rows == 2)               \
      call(t, 2, dtype);              \
    else                              \
      call(t, 4, dtype);              \
  } while (0)
#define BY_TYPE(call, t, rows, type)      \
  do {                                    \
    if (type == KRAIT_F32)                \
      BY_ROWS(call, t, rows, KRAIT_F32);  \
    else if (type == KRAIT_F16)           \
      BY_ROWS(call, t, rows, KRAIT_F16);  \
    else                                  \
      BY_ROWS(call, t, rows, KRAIT_BF16); \
  } while (0)

static __attribute__((noinline)) void score_all(piece *t, int rows) { BY_TYPE(score_keys, t, rows, t->w->a->k.dtype); }
static __attribute__((noinline)) void add_all(piece *t, int rows) {
  BY_TYPE(add_all_values, t, rows, t->w->a->v.dtype);
}

/* Softcap, linear bias and masks of row r: query i and head h. */
static void bend_row(piece *t, int rows, int r, int64_t h, int64_t i) {
  const kr_attention_inputs *in = &t->w->in;
  const float bias = attention_bias(in, t->s->b, h);
  const int64_t first = kr_attention_first(in, t->s, i) - t->j0, end = kr_attention_end(in, t->s, i) - t->j0,
                distance = i + t->s->nk - t->s->nq - t->j0;
  for (int j = 0; bias != 0 && j < t->n_keys; j++)
    t->scores[j * rows + r] -= bias * (float)(distance < j ? j - distance : distance - j);
  for (int64_t j = 0; j < attention_least(first, t->n_keys); j++) t->scores[j * rows + r] = -INFINITY;
  for (int64_t j = attention_most(end, 0); j < t->n_keys; j++) t->scores[j * rows + r] = -INFINITY;
}

/* Turns scores into 2^(s - row maximum); total[r]: their sum. */
static void exponentiate_piece(piece *t, int rows, float *most, float *total) {
  const int n = t->n_keys * rows, padded = (n + KR_VL - 1) / KR_VL * KR_VL;
  float lanes[KR_VL], bases[KR_VL];
  kr_v largest = kr_v_set1(-INFINITY), sum = kr_v_zero();
  for (int j = n; j < padded; j++) t->scores[j] = -INFINITY;
  for (int j = 0; j < n; j += KR_VL) largest = kr_v_max(kr_v_load(t->scores + j), largest);
  kr_v_store(lanes, largest);
  for (int r = 0; r < rows; r++) {
    most[r] = -INFINITY, total[r] = 0;
    for (int lane = r; lane < KR_VL; lane += rows) most[r] = lanes[lane] > most[r] ? lanes[lane] : most[r];
    for (int lane = r; lane < KR_VL; lane += rows) bases[lane] = most[r] == -INFINITY ? 0 : most[r];
  }
  for (int j = 0; j < n; j += KR_VL) {
    const kr_v p = attention_exp2(kr_v_sub(kr_v_load(t->scores + j), kr_v_load(bases)));
    kr_v_store(t->scores + j, p);
    sum = kr_v_add(sum, p);
  }
  kr_v_store(lanes, sum);
  for (int lane = 0; lane < KR_VL; lane++) total[lane % rows] += lanes[lane];
}

/* If the sums are not finite: row r again, from only the keys it sees. */
static void add_exactly(piece *t, int rows, int r, int64_t i) {
  const kr_attention_args *a = t->w->a;
  const int64_t first = attention_most(kr_attention_first(&t->w->in, t->s, i) - t->j0, 0),
                end = attention_least(kr_attention_end(&t->w->in, t->s, i) - t->j0, t->n_keys);
  float *sums = t->sums + r * ROW_FLOATS;
  for (int64_t d = 0; d < a->Dv; d++) {
    sums[d] = 0;
    for (int64_t j = first; j < end; j++)
      sums[d] += t->scores[j * rows + r] * kr_scalar_load(a->v.data, t->v_at[j] + d, a->v.dtype);
  }
}

static int is_odd(const piece *t, int r) {
  kr_v odd = kr_v_zero();
  for (int64_t d = 0; d < t->w->Dv; d += KR_VL)
    odd = kr_v_fma(kr_v_load(t->sums + r * ROW_FLOATS + d), kr_v_zero(), odd);
  return isnan(kr_v_sum(odd));
}

/* Merges a piece's values, largest score and sum into the chunk's. */
static void merge_attention_few(float *part, const float *values, float most, float total, int64_t Dv) {
  const float before = part[Dv], now = before > most ? before : most, base = now == -INFINITY ? 0 : now,
              keep = exp2f(before - base), by = exp2f(most - base);
  for (int64_t d = 0; d < Dv; d += KR_VL)
    kr_v_store(part + d,
               kr_v_fma(kr_v_set1(by), kr_v_load(values + d), kr_v_mul(kr_v_set1(keep), kr_v_load(part + d))));
  part[Dv] = now, part[Dv + 1] = part[Dv + 1] * keep + total * by;
}

static void begin_parts(const work *w, const kr_attention_sequence *s, int64_t chunk) {
  for (int64_t row = 0; row < w->a->H * s->nq; row++) {
    float *part = attention_few_part_of(w, s->b, row / s->nq, row % s->nq, chunk);
    memset(part, 0, (size_t)w->part_floats * sizeof *part);
    part[w->Dv] = -INFINITY;
  }
}

/* Rows first..first+rows-1 of the group's rows: row = head of the group * nq + query. Past the last row it repeats. */
static void run_attention_few_rows(piece *t, int64_t g, int64_t chunk, int64_t first, int rows, int64_t n_rows) {
  const kr_attention_args *a = t->w->a;
  const int64_t group = a->H / a->Hk;
  float most[MOST_ROWS], total[MOST_ROWS];
  int64_t h[MOST_ROWS], i[MOST_ROWS];
  for (int r = 0; r < rows; r++) {
    const int64_t row = attention_least(first + r, n_rows - 1);
    h[r] = g * group + row / t->s->nq, i[r] = row % t->s->nq;
    attention_pack_row(t->q + r * ROW_FLOATS, 1, 0, &a->q,
                       kr_attention_query(t->s, &a->q, i[r]) + h[r] * a->q.stride[2], a->D,
                       attention_query_scale(&t->w->in));
  }
  score_all(t, rows);
  if (a->softcap > 0) {
    for (int j = t->n_keys * rows; j % KR_VL; j++) t->scores[j] = 0;
    attention_bend(&t->w->in, t->scores, NULL, 0, t->n_keys * rows, 0, 0);
  }
  for (int r = 0; r < rows; r++) bend_row(t, rows, r, h[r], i[r]);
  exponentiate_piece(t, rows, most, total);
  add_all(t, rows);
  for (int r = 0; r < rows; r++)
    if (is_odd(t, r)) add_exactly(t, rows, r, i[r]);
  for (int r = 0; r < rows && first + r < n_rows; r++)
    merge_attention_few(attention_few_part_of(t->w, t->s->b, h[r], i[r], chunk), t->sums + r * ROW_FLOATS, most[r],
                        total[r], t->w->Dv);
}

static void find_keys(piece *t, int64_t g) {
  const kr_attention_args *a = t->w->a;
  for (int j = 0; j < t->n_keys; j++) {
    t->k_at[j] = kr_attention_key(&t->w->in, t->s, &a->k, t->j0 + j) + g * a->k.stride[2];
    t->v_at[j] = kr_attention_key(&t->w->in, t->s, &a->v, t->j0 + j) + g * a->v.stride[2];
  }
  for (int j = t->n_keys; j < t->n_keys + KR_VL; j++) t->k_at[j] = t->k_at[t->n_keys - 1];
  for (int j = 0; j < t->n_keys + KR_VL; j++) {
    const int64_t key = t->j0 + PIECE + j < t->s->nk ? t->j0 + PIECE + j : t->j0;
    t->k_next[j] = kr_attention_key(&t->w->in, t->s, &a->k, key) + g * a->k.stride[2];
    if (j < t->n_keys) t->v_next[j] = kr_attention_key(&t->w->in, t->s, &a->v, key) + g * a->v.stride[2];
  }
}

static void run_piece(piece *t, int64_t g, int64_t chunk) {
  const int64_t n_rows = t->w->a->H / t->w->a->Hk * t->s->nq;
  find_keys(t, g);
  for (int64_t row = 0; row < n_rows;) {
    const int rows = n_rows - row > 2 ? 4 : (int)(n_rows - row);
    run_attention_few_rows(t, g, chunk, row, rows, n_rows);
    row += rows;
  }
}

static void run_attention_few_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  piece t = {.w = w, .D = w->a->D};
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    const int64_t chunk = k % w->n_chunks;
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, k / w->n_chunks);
    const int64_t last = attention_least((chunk + 1) * CHUNK, s.nk);
    t.s = &s;
    if (chunk * CHUNK < last) begin_parts(w, &s, chunk);
    for (t.j0 = chunk * CHUNK; t.j0 < last; t.j0 += PIECE) {
      t.n_keys = (int)attention_least(last - t.j0, PIECE);
      for (int64_t g = 0; g < w->a->Hk; g++) run_piece(&t, g, chunk);
    }
  }
}

/* Merges the chunks of a query. */
static void finish_query(const work *w, const kr_attention_sequence *s, int64_t h, int64_t i) {
  const kr_attention_args *a = w->a;
  const int64_t at = kr_attention_query(s, &a->out, i) + h * a->out.stride[2], n = (s->nk + CHUNK - 1) / CHUNK;
  const int seen = i < s->nq && kr_attention_end(&w->in, s, i) > kr_attention_first(&w->in, s, i),
            sinks = kr_has(w->in.sinks);
  const float sink = sinks ? kr_scalar_load(a->sinks.data, kr_at1(&a->sinks, h), a->sinks.dtype) * LOG2E : -INFINITY;
  float values[ROW_FLOATS] = {0}, most = sink, total;
  for (int64_t c = 0; seen && c < n; c++) most = fmaxf(most, attention_few_part_of(w, s->b, h, i, c)[w->Dv]);
  total = sinks ? exp2f(sink - most) : 0;
  for (int64_t c = 0; seen && c < n; c++) {
    const float *part = attention_few_part_of(w, s->b, h, i, c),
                by = part[w->Dv] == -INFINITY ? part[w->Dv + 1] : exp2f(part[w->Dv] - most); /* 0, or NaN */
    total += part[w->Dv + 1] * by;
    for (int64_t d = 0; by != 0 && d < w->Dv; d += KR_VL)
      kr_v_store(values + d, kr_v_fma(kr_v_set1(by), kr_v_load(part + d), kr_v_load(values + d)));
  }
  for (int64_t d = 0; seen && d < w->Dv; d += KR_VL)
    kr_v_store(values + d, kr_v_mul(kr_v_set1(1 / total), kr_v_load(values + d)));
  kr_row_store(values, a->out.data, a->out.dtype, at, a->out.stride[3], a->Dv);
  if (kr_has(&a->lse))
    ((float *)a->lse.data)[kr_attention_lse(s, &a->lse, h, i)] = seen ? most * LN2 + logf(total) : INFINITY;
}

static void merge_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const work *w = user;
  (void)worker;
  for (int64_t k = begin; k < end; k++) {
    const kr_attention_sequence s = kr_attention_sequence_at(&w->in, k / w->a->H);
    for (int64_t i = 0; i < s.n_rows; i++) finish_query(w, &s, k % w->a->H, i);
  }
}

const char *KR_FN(kr_attention_few_refuse)(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  (void)ctx;
  if (kr_has(&a->cu_seqlens_q) ? a->max_q < 1 || a->max_q > 8 : a->Lq > 8)
    return "more than 8 queries per sequence (packed: by max_q)";
  if (a->k.stride[3] != 1 || a->v.stride[3] != 1) return "k or v with non-contiguous features";
  return a->dropout > 0 ? "dropout" : NULL;
}

uint64_t KR_FN(kr_attention_few_scratch)(const krait_ctx *ctx, const void *args) {
  const work w = plan_attention_few(args);
  (void)ctx;
  return (uint64_t)(attention_few_n_parts(&w) * w.part_floats) * sizeof(float);
}

int32_t KR_FN(kr_attention_few)(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  work w = plan_attention_few(a);
  KR_TRY(kr_attention_check_indices(&w.in));
  kr_parallel_long(ctx, a->B * w.n_chunks, 1, run_attention_few_chunks, &w);
  kr_parallel(ctx, a->B * a->H, 1, merge_chunks, &w);
  return KRAIT_OK;
}
