/* gemm_simd.c: a register tile of MR rows by two vectors, accumulated over all of K and finished in registers (bias,
 * sum, product or gate), so that C is touched once. B is packed (gemm_kernel.h); A is read where it lies. */
#include "gemm/gemm_kernel.h"
#include "gemm/gemm_rows.h"
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

int64_t KR_FN(kr_panels_floats)(int64_t K, int64_t N, int gate) {
  int64_t columns = gate ? 2 * padded(N / 2) : padded(N);
  return columns * (K + 1) + 2 * NR;
}

static int64_t source_column(const kr_panels *p, int64_t column) {
  if (!p->gate) return column < p->N ? column : -1;
  int64_t half = p->N / 2, within = column % NR, n = column / NR * KR_VL + within % KR_VL;
  return n >= half ? -1 : within < KR_VL ? n : half + n;
}

static int64_t columns_of(const kr_panels *p) { return p->gate ? 2 * padded(p->N / 2) : padded(p->N); }

static kr_panels place_panels(float *storage, int64_t K, int64_t N, int gate) {
  kr_panels p = {.K = K, .N = N, .gate = gate, .data = storage};
  p.bias = storage + (columns_of(&p) * K + NR - 1) / NR * NR;
  return p;
}

/* The panel that begins with column `first`. */
static void pack_panel(const kr_panels *p, int64_t first, const float *B, int64_t stride_k, int64_t stride_n) {
  const int64_t left = columns_of(p) - first, width = left < NR ? left : NR, K = p->K;
  float *to = p->data + first * K;
  if (!p->gate && stride_n == 1 && first + width <= p->N) {
    for (int64_t k = 0; k < K; k++)
      for (int64_t j = 0; j < width; j += KR_VL)
        kr_v_store(to + k * width + j, kr_v_load(B + k * stride_k + first + j));
    return;
  }
  if (!p->gate && stride_k == 1 && K < 1 << 20) {
    for (int64_t j = 0; j < width; j += KR_VL) {
      const kr_plane plane = {(void *)(uintptr_t)B, KRAIT_F32, (first + j) * stride_n, 1, stride_n};
      kr_tile_load_as(to + j, width, &plane, (int)K, gemm_lanes(p->N - first - j), KRAIT_F32);
    }
    return;
  }
  for (int64_t j = 0; j < width; j++) {
    int64_t n = source_column(p, first + j);
    for (int64_t k = 0; k < K; k++) to[k * width + j] = n < 0 ? 0 : B[k * stride_k + n * stride_n];
  }
}

void KR_FN(kr_panels_pack)(kr_panels *p, float *storage, int64_t K, int64_t N, int gate, const float *B,
                           int64_t stride_k, int64_t stride_n, const float *bias) {
  *p = place_panels(storage, K, N, gate);
  for (int64_t first = 0; first < columns_of(p); first += NR) pack_panel(p, first, B, stride_k, stride_n);
  for (int64_t column = 0; column < columns_of(p); column++) {
    int64_t n = source_column(p, column);
    p->bias[column] = n < 0 || !bias ? 0 : bias[n];
  }
}

/* One tile's place in the call: its first column of C and how many lanes of each of its vectors are stored. */
typedef struct place {
  int64_t K, lda, ldc, lde;
  const float *panel, *bias;
  int epilogue, lanes[2];
} place;

static inline void store_lanes(float *to, kr_v v, int lanes) {
  if (lanes >= KR_VL) kr_v_store(to, v);
  else if (lanes > 0) kr_v_storen(to, v, lanes);
}
static inline kr_v load_lanes(const float *from, int lanes) {
  return lanes >= KR_VL ? kr_v_load(from) : lanes > 0 ? kr_v_loadn(from, lanes) : kr_v_zero();
}

static inline __attribute__((always_inline)) void finish_vector(const place *at, float *C, const float *E, kr_v v,
                                                                int lanes) {
  if (at->epilogue == KR_GEMM_ADD) v = kr_v_add(v, load_lanes(E, lanes));
  else if (at->epilogue == KR_GEMM_MUL) v = kr_v_mul(v, load_lanes(E, lanes));
  store_lanes(C, v, lanes);
}

/* rows and vectors are constants after inlining; every loop over them unrolls into registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const place *at,
                                                       const float *A, float *C, const float *E) {
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
    if (vectors > 1 && at->epilogue == KR_GEMM_GATE) {
      store_lanes(C + m * at->ldc, kr_v_mul(sum[m * 2], sum[m * 2 + 1]), at->lanes[0]);
    } else {
      finish_vector(at, C + m * at->ldc, E + m * at->lde, sum[m * 2], at->lanes[0]);
      if (vectors > 1)
        finish_vector(at, C + m * at->ldc + KR_VL, E + m * at->lde + KR_VL, sum[m * 2 + 1], at->lanes[1]);
    }
  }
}

/* Greedy cut of the rows into tiles of MR, then MR/2 (and so on), then 1. */
#define TILES(rows, vectors)                                      \
  for (; left >= rows; left -= rows) {                            \
    tile(rows, vectors, at, A, C, E);                             \
    A += rows * at->lda, C += rows * at->ldc, E += rows * at->lde; \
  }

static void panel_wide(const place *at, const float *A, float *C, const float *E, int64_t left) {
  TILES(MR, 2)
#if !defined(KR_ISA_scalar)
  TILES(6, 2)
  TILES(4, 2)
  TILES(3, 2)
#endif
  TILES(2, 2)
  TILES(1, 2)
}

static void panel_narrow(const place *at, const float *A, float *C, const float *E, int64_t left) {
  TILES(MR, 1)
  TILES(4, 1)
  TILES(2, 1)
  TILES(1, 1)
}

/* Columns begin..end-1 of the packed form, whole panels. */
static void multiply_panels(const kr_gemm_rows_call *c, int64_t begin, int64_t end) {
  const kr_panels *w = c->weights;
  const int64_t columns = columns_of(w);
  const float *E = c->E ? c->E : c->C;
  place at = {.K = w->K,
              .lda = c->lda,
              .ldc = c->ldc,
              .lde = c->E ? c->lde : c->ldc,
              .epilogue = w->gate ? KR_GEMM_GATE : c->epilogue};
  for (int64_t first = begin; first < end; first += NR) {
    int64_t to = w->gate ? first / 2 : first;
    at.panel = w->data + first * w->K;
    at.bias = w->bias + first;
    at.lanes[0] = gemm_lanes(c->n_store - to);
    at.lanes[1] = gemm_lanes(c->n_store - to - KR_VL);
    if (columns - first >= NR) panel_wide(&at, c->A, c->C + to, E + to, c->M);
    else panel_narrow(&at, c->A, c->C + to, E + to, c->M);
  }
}

void KR_FN(kr_gemm_rows)(const kr_gemm_rows_call *c) { multiply_panels(c, 0, columns_of(c->weights)); }

/* ---- the op: a thread takes a group of panels and a block of rows; it packs the panels for itself, widened where they
 * are of 16 bits, and walks along the rows. Of a part of K, a panel and MR rows stay in the L1 cache, ROWS rows in the
 * L2 cache; what follows the sums finds a tile of them in the L1 cache. ------------- */

enum { GROUP_BYTES = 2 * 1024 * 1024, MOST_PANELS = 8, ROWS = 16 * MR, K_PART = 256 };

typedef struct product {
  const krait_gemm_args *args;
  int64_t n_rows, n_row_blocks, n_panels,
      n_groups; /* rows of a block; a panel has NR columns, or KR_VL of either factor of a gate */
  int64_t thread_floats;
  int panels, width, gated, plain, direct; /* panels of a group; results of a panel; plain: nothing but a bias before
                                              the activation; direct: nothing behind it, rows of float32 */
} product;

/* A vector's columns of a panel, from `first` on. */
static void pack_columns(float *to, const krait_view *B, int64_t at, int64_t K, int64_t first, int lanes) {
  enum { MANY = 1 << 20 };
  for (int64_t k = 0; k < K; k += MANY) {
    const kr_plane plane = {B->data, B->dtype, at + first * B->stride[1] + k * B->stride[0], B->stride[0],
                            B->stride[1]};
    kr_tile_load(to + k * NR, NR, &plane, (int)(K - k < MANY ? K - k : MANY), lanes);
  }
}

/* A thread's memory: panels; of every panel what its sums begin with, and the sums of ROWS rows; K_PART of those rows
 * of A. */
static float *panel_of(const product *p, float *memory, int i) { return memory + (int64_t)i * p->args->K * NR; }
static float *bias_of(const product *p, float *memory, int i) { return panel_of(p, memory, p->panels) + i * NR; }
static float *sums_of(const product *p, float *memory, int i) { return bias_of(p, memory, p->panels) + i * ROWS * NR; }
static float *rows_of(const product *p, float *memory) { return sums_of(p, memory, p->panels); }

static void pack_group(const product *p, float *memory, int64_t panel, int n, int64_t batch) {
  const krait_gemm_args *a = p->args;
  for (int i = 0; i < n; i++)
    for (int v = 0; v < 2; v++) {
      const int second = p->gated && v;
      const krait_view *B = second ? &a->B2 : &a->Bmat, *bias = second ? &a->bias2 : &a->bias;
      const int64_t first = (panel + i) * p->width + (p->gated ? 0 : v * KR_VL), at = batch ? batch * B->stride[2] : 0;
      const int lanes = gemm_lanes(a->N - first);
      pack_columns(panel_of(p, memory, i) + v * KR_VL, B, at, a->K, lanes ? first : 0, lanes);
      kr_v_store(bias_of(p, memory, i) + v * KR_VL,
                 kr_has(bias) ? gemm_load(bias, first * bias->stride[0], bias->stride[0], lanes) : kr_v_zero());
    }
}

/* n rows of A, K columns, as float32. */
static void widen_rows(const krait_view *A, int64_t at, int64_t K, int n, float *to) {
  if (A->stride[1] == 1) {
    for (int m = 0; m < n; m++) kr_row_load(to + m * K_PART, A->data, A->dtype, at + m * A->stride[0], 1, K);
    return;
  }
  for (int64_t k = 0; k < K; k += KR_VL) {
    const kr_plane plane = {A->data, A->dtype, at + k * A->stride[1], A->stride[0], A->stride[1]};
    kr_tile_load(to + k, K_PART, &plane, n, gemm_lanes(K - k));
  }
}

/* Where sums come from and go to, with the distances from row to row. */
typedef struct way {
  const float *from;
  float *to;
  int64_t next_from, next_to;
} way;

/* Sums over K. rows and vectors are constants after inlining; of one vector, the other's sums are 0. */
static inline __attribute__((always_inline)) void sum_rows(const int rows, const int vectors, const float *A,
                                                           int64_t lda, const float *B, int64_t K, const way *w) {
  kr_v sum[2 * MR];
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) {
    sum[2 * m] = kr_v_load(w->from + m * w->next_from);
    sum[2 * m + 1] = vectors > 1 ? kr_v_load(w->from + m * w->next_from + KR_VL) : kr_v_zero();
  }
  for (int64_t k = 0; k < K; k++, B += NR) {
    const kr_v b0 = kr_v_load(B), b1 = vectors > 1 ? kr_v_load(B + KR_VL) : kr_v_zero();
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
      const kr_v a = kr_v_set1(A[m * lda + k]);
      sum[2 * m] = kr_v_fma(a, b0, sum[2 * m]);
      if (vectors > 1) sum[2 * m + 1] = kr_v_fma(a, b1, sum[2 * m + 1]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++)
    kr_v_store(w->to + m * w->next_to, sum[2 * m]), kr_v_store(w->to + m * w->next_to + KR_VL, sum[2 * m + 1]);
}

/* vectors: 1 where the panel's second one has no column. */
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

/* Vector v of a row's sums, with scale and bias. */
static inline kr_v scaled(const product *p, const float *sums, const float *bias, kr_v scale, int v) {
  const kr_v sum = kr_v_load(sums + v * KR_VL);
  return p->plain ? sum : kr_v_fma(sum, scale, kr_v_load(bias + v * KR_VL));
}

/* Whole vectors, columns side by side; the types are constants after inlining. */
static inline __attribute__((always_inline)) void finish_whole(const int32_t type, const product *p, const float *sums,
                                                               const float *bias, int64_t batch, int64_t m, int rows,
                                                               int64_t column) {
  const krait_gemm_args *a = p->args;
  const krait_view *out = &a->out, *r = &a->residual, *f = &a->factor;
  const int has_residual = kr_has(r), has_factor = kr_has(f);
  int64_t to = m * out->stride[0] + column + (batch ? batch * out->stride[2] : 0),
          added = m * r->stride[0] + column + (batch ? batch * r->stride[2] : 0),
          times = m * f->stride[0] + column + (batch ? batch * f->stride[2] : 0);
  for (int k = 0; k < rows; k++, sums += NR, to += out->stride[0], added += r->stride[0], times += f->stride[0]) {
    const kr_v scale = kr_v_set1(p->plain ? 1 : gemm_scale(a, batch, m + k));
    for (int v = 0; v < 2; v++) {
      kr_v x = gemm_activated(scaled(p, sums, bias, scale, v), a->activation);
      if (has_factor) x = kr_v_mul(x, kr_v_load_as(f->data, times + v * KR_VL, KR_VL, type));
      if (has_residual) x = kr_v_add(x, kr_v_load_as(r->data, added + v * KR_VL, KR_VL, type));
      kr_v_store_as(out->data, to + v * KR_VL, KR_VL, type, x);
    }
  }
}

/* Nothing, or rows as the result's. */
static int lies_as_out(const krait_gemm_args *a, const krait_view *v) {
  return !kr_has(v) || (v->stride[1] == 1 && v->dtype == a->out.dtype);
}

static void finish_tile(const product *p, const float *sums, const float *bias, int64_t batch, int64_t m, int rows,
                        int64_t column) {
  const krait_gemm_args *a = p->args;
  if (!p->gated && column + NR <= a->N && a->out.stride[1] == 1 && lies_as_out(a, &a->residual) &&
      lies_as_out(a, &a->factor)) {
    if (a->out.dtype == KRAIT_F32) finish_whole(KRAIT_F32, p, sums, bias, batch, m, rows, column);
    else if (a->out.dtype == KRAIT_F16) finish_whole(KRAIT_F16, p, sums, bias, batch, m, rows, column);
    else finish_whole(KRAIT_BF16, p, sums, bias, batch, m, rows, column);
    return;
  }
  for (int k = 0; k < rows; k++, sums += NR) {
    const kr_v scale = kr_v_set1(gemm_scale(a, batch, m + k)), first = scaled(p, sums, bias, scale, 0),
               second = scaled(p, sums, bias, scale, 1);
    gemm_finish(a, batch, m + k, column, first, p->gated ? &second : NULL);
    if (!p->gated) gemm_finish(a, batch, m + k, column + KR_VL, second, NULL);
  }
}

typedef struct part { /* of K, of a block of rows */
  const float *A;
  int64_t lda, k, K, batch, m;
  int rows;
} part;

/* A part's tiles of one panel: sums go on where the part before left them, and on to the result behind the last one. */
static void multiply_panel(const product *p, float *memory, int64_t panel, int i, const part *t) {
  static const float zeros[NR] = {0};
  const krait_gemm_args *a = p->args;
  const float *B = panel_of(p, memory, i) + t->k * NR, *bias = bias_of(p, memory, i);
  const int is_last = t->k + t->K == a->K, n_tiles = (t->rows + MR - 1) / MR;
  const int64_t column = (panel + i) * p->width, next_out = a->out.stride[0];
  const int is_direct = is_last && p->direct && column + NR <= a->N,
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
             .next_to = NR};
    if (is_direct) w.to = out + (t->m + m) * next_out, w.next_to = next_out;
    for (int r = 0; is_direct && r < rows; r++)
      __builtin_prefetch(w.to + r * next_out, 1), __builtin_prefetch(w.to + r * next_out + NR - 1, 1);
    sum_tile(rows, vectors, t->A + m * t->lda, t->lda, B, t->K, &w);
    if (is_last && !is_direct) finish_tile(p, done, bias, t->batch, t->m + m, rows, column);
    m += rows;
  }
}

/* At most ROWS rows times the packed panels. */
static void multiply_rows(const product *p, float *memory, int64_t panel, int n_panels, int64_t batch, int64_t m,
                          int n) {
  const krait_gemm_args *a = p->args;
  const int64_t at = m * a->A.stride[0] + (batch ? batch * a->A.stride[2] : 0);
  const int in_place = a->A.dtype == KRAIT_F32 && a->A.stride[1] == 1;
  for (int64_t k = 0; k < a->K; k += K_PART) {
    part t = {.A = (const float *)a->A.data + at + k,
              .lda = a->A.stride[0],
              .k = k,
              .K = a->K - k < K_PART ? a->K - k : K_PART,
              .batch = batch,
              .m = m,
              .rows = n};
    if (!in_place) {
      widen_rows(&a->A, at + k * a->A.stride[1], t.K, n, rows_of(p, memory));
      t.A = rows_of(p, memory), t.lda = K_PART;
    }
    for (int i = 0; i < n_panels; i++) multiply_panel(p, memory, panel, i, &t);
  }
}

static void multiply_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const krait_gemm_args *a = p->args;
  float *memory = (float *)a->call.scratch + worker * p->thread_floats;
  for (int64_t i = begin; i < end; i++) {
    const int64_t panel = i % p->n_groups * p->panels, block = i / p->n_groups % p->n_row_blocks,
                  batch = i / p->n_groups / p->n_row_blocks;
    const int64_t left = p->n_panels - panel, last = (block + 1) * p->n_rows < a->M ? (block + 1) * p->n_rows : a->M;
    const int n_panels = left < p->panels ? (int)left : p->panels;
    pack_group(p, memory, panel, n_panels, batch);
    for (int64_t m = block * p->n_rows; m < last; m += ROWS)
      multiply_rows(p, memory, panel, n_panels, batch, m, last - m < ROWS ? (int)(last - m) : ROWS);
  }
}

static product plan(const krait_ctx *ctx, const krait_gemm_args *a) {
  const int64_t n_threads = krait_ctx_n_threads(ctx), P = kr_gemm_products(a);
  product p = {.args = a, .gated = kr_has(&a->B2), .plain = (a->scale == 0 || a->scale == 1) && !kr_has(&a->row_scale)};
  p.direct = p.plain && !p.gated && a->activation == KRAIT_ACT_NONE && !kr_has(&a->residual) &&
             !kr_has(&a->factor) && a->out.dtype == KRAIT_F32 && a->out.stride[1] == 1;
  p.width = p.gated ? KR_VL : NR;
  p.n_panels = (a->N + p.width - 1) / p.width;
  const int64_t fit = GROUP_BYTES / ((int64_t)sizeof(float) * a->K * NR),
                share = (p.n_panels * P + n_threads - 1) / n_threads;
  p.panels = (int)(fit < 1 ? 1 : fit > MOST_PANELS ? MOST_PANELS : fit);
  if (p.panels > share) p.panels = (int)(share < 1 ? 1 : share);
  p.n_groups = (p.n_panels + p.panels - 1) / p.panels;
  const int64_t wanted = (4 * n_threads + p.n_groups * P - 1) / (p.n_groups * P), most = (a->M + ROWS - 1) / ROWS;
  p.n_row_blocks = n_threads == 1 || wanted < 1 ? 1 : wanted < most ? wanted : most < 1 ? 1 : most;
  p.n_rows = ((a->M + p.n_row_blocks - 1) / p.n_row_blocks + MR - 1) / MR * MR;
  p.thread_floats = (p.panels * (a->K + 1 + ROWS) * NR + ROWS * K_PART + 15) / 16 * 16;
  return p;
}

uint64_t KR_FN(kr_gemm_scratch)(const krait_ctx *ctx, const void *args) {
  const product p = plan(ctx, args);
  return (uint64_t)(p.thread_floats * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_gemm)(const krait_ctx *ctx, const void *args) {
  const krait_gemm_args *a = args;
  product p = plan(ctx, a);
  if (a->M > 0) kr_parallel(ctx, p.n_groups * p.n_row_blocks * kr_gemm_products(a), 1, multiply_blocks, &p);
  return KRAIT_OK;
}
