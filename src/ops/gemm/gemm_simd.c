/* gemm_simd.c: a register tile of MR rows by two vectors, accumulated over all of K and finished in registers, so that
 * C is touched once. B is packed (gemm_kernel.h); A is read in place. */
#include "gemm/gemm_kernel.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_vectors.h"
#include "op_list.h"

/* 2 MR accumulators, two vectors of B and one broadcast must fit the register file (16 or 32). */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { MR = 12 };
#elif defined(KR_ISA_avx2)
enum { MR = 6 };
#else
enum { MR = 4 };
#endif
enum { NR = 2 * KR_VL };

static int64_t padded(int64_t n) { return (n + KR_VL - 1) / KR_VL * KR_VL; }

int64_t KR_FN(kr_panels_floats)(int64_t K, int64_t N) { return padded(N) * (K + 1) + 2 * NR; }

static kr_panels place_panels(float *storage, int64_t K, int64_t N) {
  return (kr_panels){.K = K, .N = N, .data = storage, .bias = storage + (padded(N) * K + NR - 1) / NR * NR};
}

/* Packs the panel whose first column is `first`. */
static void pack_panel(const kr_panels *p, int64_t first, const float *B, int64_t stride_k, int64_t stride_n) {
  const int64_t left = padded(p->N) - first, width = left < NR ? left : NR, K = p->K;
  float *to = p->data + first * K;
  if (stride_n == 1 && first + width <= p->N) {
    for (int64_t k = 0; k < K; k++)
      for (int64_t j = 0; j < width; j += KR_VL)
        kr_v_store(to + k * width + j, kr_v_load(B + k * stride_k + first + j));
    return;
  }
  if (stride_k == 1 && K < 1 << 20) {
    for (int64_t j = 0; j < width; j += KR_VL) {
      const kr_plane plane = {(void *)(uintptr_t)B, KRAIT_F32, (first + j) * stride_n, 1, stride_n};
      kr_tile_load_as(to + j, width, &plane, (int)K, gemm_lanes(p->N - first - j), KRAIT_F32);
    }
    return;
  }
  for (int64_t j = 0; j < width; j++) {
    const int64_t n = first + j;
    for (int64_t k = 0; k < K; k++) to[k * width + j] = n < p->N ? B[k * stride_k + n * stride_n] : 0;
  }
}

void KR_FN(kr_panels_pack)(kr_panels *p, float *storage, int64_t K, int64_t N, const float *B, int64_t stride_k,
                           int64_t stride_n, const float *bias) {
  *p = place_panels(storage, K, N);
  for (int64_t first = 0; first < padded(p->N); first += NR) pack_panel(p, first, B, stride_k, stride_n);
  for (int64_t n = 0; n < padded(p->N); n++) p->bias[n] = n < N && bias ? bias[n] : 0;
}

/* One tile's position: its first column of C and the lanes stored of each of its vectors. */
typedef struct place {
  int64_t K, lda, ldc;
  const float *panel, *bias;
  int lanes[2];
} place;

static inline void store_lanes(float *to, kr_v v, int lanes) {
  if (lanes >= KR_VL) kr_v_store(to, v);
  else if (lanes > 0) kr_v_storen(to, v, lanes);
}

/* The micro-kernel; rows and vectors are constants after inlining: its loops unroll. */
static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const place *at,
                                                       const float *A, float *C) {
  kr_v sum[2 * MR];
  for (int v = 0; v < vectors; v++) {
    kr_v bias = kr_v_load(at->bias + v * KR_VL);
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) sum[m * 2 + v] = bias;
  }
  const float *B = at->panel;
  const int64_t K = at->K, lda = at->lda;
  for (int64_t k = 0; k < K; k++, B += vectors * KR_VL) {
    kr_v b0 = kr_v_load(B), b1 = vectors > 1 ? kr_v_load(B + KR_VL) : kr_v_zero();
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
      kr_v a = kr_v_set1(A[m * lda + k]);
      sum[m * 2] = kr_v_fma(a, b0, sum[m * 2]);
      if (vectors > 1) sum[m * 2 + 1] = kr_v_fma(a, b1, sum[m * 2 + 1]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) {
    store_lanes(C + m * at->ldc, sum[m * 2], at->lanes[0]);
    if (vectors > 1) store_lanes(C + m * at->ldc + KR_VL, sum[m * 2 + 1], at->lanes[1]);
  }
}

/* Greedily cuts the rows into tiles of MR, then MR/2 (and so on), then 1. */
#define TILES(rows, vectors)                  \
  for (; left >= rows; left -= rows) {        \
    tile(rows, vectors, at, A, C);            \
    A += rows * at->lda, C += rows * at->ldc; \
  }

static void panel_wide(const place *at, const float *A, float *C, int64_t left) {
  TILES(MR, 2)
#if !defined(KR_ISA_scalar)
  TILES(6, 2)
  TILES(4, 2)
  TILES(3, 2)
#endif
  TILES(2, 2)
  TILES(1, 2)
}

static void panel_narrow(const place *at, const float *A, float *C, int64_t left) {
  TILES(MR, 1)
  TILES(4, 1)
  TILES(2, 1)
  TILES(1, 1)
}

/* Columns begin..end-1 of the packed form, in whole panels. */
static void multiply_panels(const kr_gemm_rows_call *c, int64_t begin, int64_t end) {
  const kr_panels *w = c->weights;
  const int64_t columns = padded(w->N);
  place at = {.K = w->K, .lda = c->lda, .ldc = c->ldc};
  for (int64_t first = begin; first < end; first += NR) {
    at.panel = w->data + first * w->K;
    at.bias = w->bias + first;
    at.lanes[0] = gemm_lanes(c->n_store - first);
    at.lanes[1] = gemm_lanes(c->n_store - first - KR_VL);
    if (columns - first >= NR) panel_wide(&at, c->A, c->C + first, c->M);
    else panel_narrow(&at, c->A, c->C + first, c->M);
  }
}

void KR_FN(kr_gemm_rows)(const kr_gemm_rows_call *c) { multiply_panels(c, 0, padded(c->weights->N)); }

/* ---- the op: a task is a group of panels times a block of rows; its thread packs the panels for itself, widening
 * 16-bit ones, and walks the rows. For one part of K, a panel and MR rows stay in the L1 cache, ROWS rows in the L2
 * cache; the epilogue finds a tile of sums in the L1 cache. -------------------------------------------------------- */

enum { GROUP_BYTES = 2 * 1024 * 1024, MOST_PANELS = 8, ROWS = 16 * MR, K_PART = 256, LARGE = 1 << 18, LINE = 16 };
enum { PIECES = 8 }; /* tasks per thread */

typedef struct product {
  const kr_gemm_args *args;
  int64_t n_rows, n_row_blocks, n_panels,
      n_groups; /* rows per block; a panel has NR columns, or KR_VL of either factor of a gate */
  int64_t thread_floats;
  int panels, width, gated, plain, direct; /* panels per group; results per panel; plain: only a bias before the
                                              activation; direct: registers to float32 rows, by `behind` */
  int lies; /* Bmat is read in place: whole panels of float32, with a row stride of an odd number of cache lines, so
               that a panel's rows spread over the cache's sets */
  int behind, fetches; /* fetches: the result is large, so its lines are prefetched while its sums are computed */
} product;

/* Packs one vector of a panel's columns, from `first`. */
static void pack_columns(float *to, const kr_view *B, int64_t at, int64_t K, int64_t first, int lanes) {
  enum { MANY = 1 << 20 };
  for (int64_t k = 0; k < K; k += MANY) {
    const kr_plane plane = {B->data, B->dtype, at + first * B->stride[1] + k * B->stride[0], B->stride[0],
                            B->stride[1]};
    kr_tile_load(to + k * NR, NR, &plane, (int)(K - k < MANY ? K - k : MANY), lanes);
  }
}

/* A thread's scratch: each panel's initial sums; the panels, unless read in place; with several parts of K, the sums of
 * ROWS rows; K_PART of those rows of A, unless read in place. */
static float *gemm_bias_of(float *memory, int i) { return memory + i * NR; }
static float *panel_of(const product *p, float *memory, int i) {
  return gemm_bias_of(memory, p->panels) + (int64_t)i * p->args->K * NR;
}
static float *sums_of(const product *p, float *memory, int i) {
  return (p->lies ? gemm_bias_of(memory, p->panels) : panel_of(p, memory, p->panels)) + (int64_t)i * ROWS * NR;
}
static float *gemm_rows_of(const product *p, float *memory) {
  return p->args->K > K_PART ? sums_of(p, memory, p->panels) : sums_of(p, memory, 0);
}
static int is_in_place_for_gemm(const kr_gemm_args *a) { return a->A.dtype == KRAIT_F32 && a->A.stride[1] == 1; }

static void pack_gemm_group(const product *p, float *memory, int64_t panel, int n, int64_t batch) {
  const kr_gemm_args *a = p->args;
  for (int i = 0; i < n; i++)
    for (int v = 0; v < 2; v++) {
      const int second = p->gated && v;
      const kr_view *B = second ? &a->B2 : &a->Bmat, *bias = second ? &a->bias2 : &a->bias;
      const int64_t first = (panel + i) * p->width + (p->gated ? 0 : v * KR_VL), at = batch ? batch * B->stride[2] : 0;
      const int lanes = gemm_lanes(a->N - first);
      if (!p->lies) pack_columns(panel_of(p, memory, i) + v * KR_VL, B, at, a->K, lanes ? first : 0, lanes);
      kr_v_store(gemm_bias_of(memory, i) + v * KR_VL,
                 kr_has(bias) ? gemm_load(bias, first * bias->stride[0], bias->stride[0], lanes) : kr_v_zero());
    }
}

/* n rows of A, K columns, as float32. */
static void widen_rows(const kr_view *A, int64_t at, int64_t K, int n, float *to) {
  if (A->stride[1] == 1) {
    for (int m = 0; m < n; m++) kr_row_load(to + m * K_PART, A->data, A->dtype, at + m * A->stride[0], 1, K);
    return;
  }
  for (int64_t k = 0; k < K; k += KR_VL) {
    const kr_plane plane = {A->data, A->dtype, at + k * A->stride[1], A->stride[0], A->stride[1]};
    kr_tile_load(to + k, K_PART, &plane, n, gemm_lanes(K - k));
  }
}

/* The epilogue in registers: none, add or multiply with other rows, or multiply the second vector by the first. */
enum { STORED, ADDED, MULTIPLIED, GATED };

/* Where sums are read from and written to, and the row strides. */
typedef struct way {
  const float *from, *other;
  float *to;
  int64_t next_from, next_other, next_to, next_B;
  int behind;
} way;

static inline kr_v pass(const way *w, int64_t at, kr_v v) {
  if (w->behind == ADDED) return kr_v_add(v, kr_v_load(w->other + at));
  return w->behind == MULTIPLIED ? kr_v_mul(v, kr_v_load(w->other + at)) : v;
}

/* Sums over K. rows and vectors are constants after inlining; with one vector, the second's sums are 0. */
static inline __attribute__((always_inline)) void sum_rows(const int rows, const int vectors, const float *A,
                                                           int64_t lda, const float *B, int64_t K, const way *w) {
  kr_v sum[2 * MR];
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) {
    sum[2 * m] = kr_v_load(w->from + m * w->next_from);
    sum[2 * m + 1] = vectors > 1 ? kr_v_load(w->from + m * w->next_from + KR_VL) : kr_v_zero();
  }
  for (int64_t k = 0; k < K; k++, B += w->next_B) {
    const kr_v b0 = kr_v_load(B), b1 = vectors > 1 ? kr_v_load(B + KR_VL) : kr_v_zero();
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
      const kr_v a = kr_v_set1(A[m * lda + k]);
      sum[2 * m] = kr_v_fma(a, b0, sum[2 * m]);
      if (vectors > 1) sum[2 * m + 1] = kr_v_fma(a, b1, sum[2 * m + 1]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) {
    if (vectors > 1 && w->behind == GATED) {
      kr_v_store(w->to + m * w->next_to, kr_v_mul(sum[2 * m], sum[2 * m + 1]));
      continue;
    }
    kr_v_store(w->to + m * w->next_to, pass(w, m * w->next_other, sum[2 * m]));
    kr_v_store(w->to + m * w->next_to + KR_VL, pass(w, m * w->next_other + KR_VL, sum[2 * m + 1]));
  }
}

/* vectors: 1 if the panel's second one has no column. */
static void sum_tile(int rows, int vectors, const float *A, int64_t lda, const float *B, int64_t K, const way *w) {
#define SUM(rows)                                      \
  case rows:                                           \
    if (vectors > 1) sum_rows(rows, 2, A, lda, B, K, w); \
    else sum_rows(rows, 1, A, lda, B, K, w);           \
    break;
  switch (rows) {
    SUM(1) SUM(2) SUM(3) SUM(4)
#if !defined(KR_ISA_scalar)
    SUM(5) SUM(6)
#endif
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
    SUM(7) SUM(8) SUM(9) SUM(10) SUM(11) SUM(12)
#endif
  }
#undef SUM
}

void KR_FN(kr_panel_add)(const kr_panel_call *c) {
  const kr_panels *w = c->weights;
  const int vectors = padded(w->N) - c->first >= NR ? 2 : 1;
  const float *B = w->data + c->first * w->K + c->k * vectors * KR_VL;
  for (int64_t m = 0; m < c->M; m += MR) {
    float *sums = c->sums + m * NR;
    const way at = {.from = sums, .to = sums, .next_from = NR, .next_to = NR, .next_B = vectors * KR_VL};
    sum_tile(c->M - m < MR ? (int)(c->M - m) : MR, vectors, c->A + m * c->lda, c->lda, B, c->n, &at);
  }
}

typedef struct part { /* one part of K, one block of rows */
  const float *A;
  int64_t lda, k, K, batch, m;
  int rows;
} part;

/* One part's tiles of one panel: sums continue from the previous part; the last part writes the result. */
static void multiply_panel(const product *p, float *memory, int64_t panel, int i, const part *t) {
  static const float zeros[NR] = {0};
  const kr_gemm_args *a = p->args;
  const int64_t next_B = p->lies ? a->Bmat.stride[0] : NR;
  const float *bias = gemm_bias_of(memory, i),
              *B = p->lies ? (const float *)a->Bmat.data + (t->batch ? t->batch * a->Bmat.stride[2] : 0) +
                                 (panel + i) * NR + t->k * next_B
                           : panel_of(p, memory, i) + t->k * NR;
  const int is_last = t->k + t->K == a->K, n_tiles = (t->rows + MR - 1) / MR;
  const kr_view *other = p->behind == ADDED ? &a->residual : &a->factor;
  const int64_t column = (panel + i) * p->width, next_out = a->out.stride[0];
  const int is_direct = is_last && p->direct && column + p->width <= a->N,
            has_other = is_direct && (p->behind == ADDED || p->behind == MULTIPLIED),
            vectors = !p->gated && column + KR_VL >= a->N ? 1 : 2;
  float *sums = sums_of(p, memory, i),
        *out = (float *)a->out.data + (t->batch ? t->batch * a->out.stride[2] : 0) + column, done[MR * NR];
  for (int tile = 0, m = 0; tile < n_tiles; tile++) {
    const int left = n_tiles - tile, rows = (t->rows - m + left - 1) / left;
    way w = {.from = t->k       ? sums + m * NR
                     : p->plain ? bias
                                : zeros,
             .next_from = t->k ? NR : 0,
             .to = is_last ? done : sums + m * NR,
             .next_to = NR,
             .next_B = next_B};
    if (is_direct) w.to = out + (t->m + m) * next_out, w.next_to = next_out, w.behind = p->behind;
    if (has_other) {
      w.other = (const float *)other->data + (t->batch ? t->batch * other->stride[2] : 0) + column +
                (t->m + m) * other->stride[0];
      w.next_other = other->stride[0];
    }
    for (int r = 0; is_direct && p->fetches && r < rows; r++)
      __builtin_prefetch(w.to + r * next_out, 1), __builtin_prefetch(w.to + r * next_out + p->width - 1, 1);
    sum_tile(rows, vectors, t->A + m * t->lda, t->lda, B, t->K, &w);
    if (is_last && !is_direct) gemm_finish_rows(a, p->plain, 2, done, bias, t->batch, t->m + m, rows, column);
    m += rows;
  }
}

/* At most ROWS rows times the packed panels. */
static void multiply_gemm_rows(const product *p, float *memory, int64_t panel, int n_panels, int64_t batch, int64_t m,
                          int n) {
  const kr_gemm_args *a = p->args;
  const int64_t at = m * a->A.stride[0] + (batch ? batch * a->A.stride[2] : 0);
  for (int64_t k = 0; k < a->K; k += K_PART) {
    part t = {.A = (const float *)a->A.data + at + k,
              .lda = a->A.stride[0],
              .k = k,
              .K = a->K - k < K_PART ? a->K - k : K_PART,
              .batch = batch,
              .m = m,
              .rows = n};
    if (!is_in_place_for_gemm(a)) {
      widen_rows(&a->A, at + k * a->A.stride[1], t.K, n, gemm_rows_of(p, memory));
      t.A = gemm_rows_of(p, memory), t.lda = K_PART;
    }
    for (int i = 0; i < n_panels; i++) multiply_panel(p, memory, panel, i, &t);
  }
}

/* The group a thread has packed: it is not packed again for the next block of rows. */
static int64_t *packed_of(const product *p, int worker) {
  return (int64_t *)((float *)p->args->call.scratch + (worker + 1) * p->thread_floats - LINE);
}

static void multiply_gemm_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const kr_gemm_args *a = p->args;
  float *memory = (float *)a->call.scratch + worker * p->thread_floats;
  int64_t *packed = packed_of(p, worker);
  for (int64_t i = begin; i < end; i++) {
    const int64_t block = i % p->n_row_blocks, group = i / p->n_row_blocks, panel = group % p->n_groups * p->panels,
                  batch = group / p->n_groups;
    const int64_t left = p->n_panels - panel, last = (block + 1) * p->n_rows < a->M ? (block + 1) * p->n_rows : a->M;
    const int n_panels = left < p->panels ? (int)left : p->panels;
    if (*packed != group) pack_gemm_group(p, memory, panel, n_panels, batch);
    *packed = group;
    for (int64_t m = block * p->n_rows; m < last; m += ROWS)
      multiply_gemm_rows(p, memory, panel, n_panels, batch, m, last - m < ROWS ? (int)(last - m) : ROWS);
  }
}

static product plan_gemm(const krait_ctx *ctx, const kr_gemm_args *a) {
  const int64_t n_threads = krait_ctx_n_threads(ctx), P = kr_gemm_products(a);
  product p = {.args = a, .gated = kr_has(&a->B2), .plain = (a->scale == 0 || a->scale == 1) && !kr_has(&a->row_scale)};
  p.behind = p.gated ? GATED : kr_has(&a->residual) ? ADDED : kr_has(&a->factor) ? MULTIPLIED : STORED;
  p.fetches = P * a->M * a->N > LARGE;
  p.direct = p.plain && a->activation == KRAIT_ACT_NONE && a->out.dtype == KRAIT_F32 && a->out.stride[1] == 1 &&
             p.gated + kr_has(&a->residual) + kr_has(&a->factor) <= 1 && gemm_lies_as_out(a, &a->residual) &&
             gemm_lies_as_out(a, &a->factor);
  p.lies = !p.gated && a->N % NR == 0 && a->Bmat.dtype == KRAIT_F32 && a->Bmat.stride[1] == 1 &&
           a->Bmat.stride[0] % (2 * LINE) == LINE;
  p.width = p.gated ? KR_VL : NR;
  p.n_panels = (a->N + p.width - 1) / p.width;
  /* Threads share the columns only if there are too few rows: otherwise each packs all columns, and A is read once. */
  const int64_t fit = GROUP_BYTES / ((int64_t)sizeof(float) * a->K * NR),
                share = (p.n_panels * P + n_threads - 1) / n_threads, pieces = PIECES * n_threads,
                most = 2 * a->M / ROWS;
  p.panels = (int)(fit < 1 ? 1 : fit > MOST_PANELS ? MOST_PANELS : fit);
  if (p.panels > share && most < pieces) p.panels = (int)(share < 1 ? 1 : share);
  p.n_groups = (p.n_panels + p.panels - 1) / p.panels;
  const int64_t wanted = (pieces + p.n_groups * P - 1) / (p.n_groups * P);
  p.n_row_blocks = n_threads == 1 || wanted < 1 ? 1 : wanted < most ? wanted : most < 1 ? 1 : most;
  p.n_rows = ((a->M + p.n_row_blocks - 1) / p.n_row_blocks + MR - 1) / MR * MR;
  const int64_t sums = a->K > K_PART ? p.panels * ROWS * NR : 0, rows = is_in_place_for_gemm(a) ? 0 : ROWS * K_PART,
                packed = p.lies ? 0 : p.panels * a->K * NR;
  p.thread_floats = packed + p.panels * NR + sums + rows + LINE;
  return p;
}

uint64_t KR_FN(kr_gemm_scratch)(const krait_ctx *ctx, const void *args) {
  const product p = plan_gemm(ctx, args);
  return (uint64_t)(p.thread_floats * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_gemm)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  product p = plan_gemm(ctx, a);
  if (a->M == 0) return KRAIT_OK;
  for (int worker = 0; worker < krait_ctx_n_threads(ctx); worker++) *packed_of(&p, worker) = -1;
  kr_parallel_long(ctx, p.n_groups * p.n_row_blocks * kr_gemm_products(a), 1, multiply_gemm_blocks, &p);
  return KRAIT_OK;
}
