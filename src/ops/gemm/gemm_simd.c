/* gemm_simd.c: a register tile of MR rows by two vectors, accumulated over all of K and finished in registers (bias,
 * sum, product or gate), so that C is touched once. B is packed (gemm_kernel.h); A is read where it lies. */
#include "gemm/gemm_kernel.h"
#include "gemm/gemm_rows.h"
#include "op_list.h"
#include "vec_math.h"
#include "view.h"

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
      for (int64_t j = 0; j < width; j += KR_VL) kr_v_store(to + k * width + j, kr_v_load(B + k * stride_k + first + j));
    return;
  }
  for (int64_t j = 0; j < width; j++) {
    int64_t n = source_column(p, first + j);
    for (int64_t k = 0; k < K; k++) to[k * width + j] = n < 0 ? 0 : B[k * stride_k + n * stride_n];
  }
}

void KR_FN(kr_panels_pack)(kr_panels *p, float *storage, int64_t K, int64_t N, int gate, const float *B, int64_t stride_k, int64_t stride_n,
                           const float *bias) {
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

static inline __attribute__((always_inline)) void finish_vector(const place *at, float *C, const float *E, kr_v v, int lanes) {
  if (at->epilogue == KR_GEMM_ADD) v = kr_v_add(v, load_lanes(E, lanes));
  else if (at->epilogue == KR_GEMM_MUL) v = kr_v_mul(v, load_lanes(E, lanes));
  store_lanes(C, v, lanes);
}

/* rows and vectors are constants after inlining; every loop over them unrolls into registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const place *at, const float *A, float *C, const float *E) {
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
      if (vectors > 1) finish_vector(at, C + m * at->ldc + KR_VL, E + m * at->lde + KR_VL, sum[m * 2 + 1], at->lanes[1]);
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

static int clamp_lanes(int64_t n) { return n < 0 ? 0 : n > KR_VL ? KR_VL : (int)n; }

/* Columns begin..end-1 of the packed form, whole panels. */
static void multiply_panels(const kr_gemm_rows_call *c, int64_t begin, int64_t end) {
  const kr_panels *w = c->weights;
  const int64_t columns = columns_of(w);
  const float *E = c->E ? c->E : c->C;
  place at = {.K = w->K, .lda = c->lda, .ldc = c->ldc, .lde = c->E ? c->lde : c->ldc, .epilogue = w->gate ? KR_GEMM_GATE : c->epilogue};
  for (int64_t first = begin; first < end; first += NR) {
    int64_t to = w->gate ? first / 2 : first;
    at.panel = w->data + first * w->K;
    at.bias = w->bias + first;
    at.lanes[0] = clamp_lanes(c->n_store - to);
    at.lanes[1] = clamp_lanes(c->n_store - to - KR_VL);
    if (columns - first >= NR) panel_wide(&at, c->A, c->C + to, E + to, c->M);
    else panel_narrow(&at, c->A, c->C + to, E + to, c->M);
  }
}

void KR_FN(kr_gemm_rows)(const kr_gemm_rows_call *c) { multiply_panels(c, 0, columns_of(c->weights)); }

/* ---- the op: a thread takes a group of panels and a block of rows; it packs the panels for itself, widened where they are of 16 bits, into as
 * much memory as its L2 cache holds, and then walks along the rows ------------------------------------------------------------------------ */

enum { GROUP_BYTES = 256 * 1024, MOST_PANELS = 8, ROWS = 16 * MR, K_PART = 256 }; /* a part of a panel and of MR rows stay in the L1 cache */

typedef struct product {
  const krait_gemm_args *args;
  int64_t n_rows, n_row_blocks, n_panels, n_groups; /* rows of a block; a panel has NR columns, or KR_VL of either factor of a gate */
  int64_t thread_floats;
  int panels, width, gated, plain; /* panels of a group; results of a panel; plain: nothing but a bias before the activation */
} product;

static inline kr_v load_type(const void *data, int64_t at, int32_t dtype, int lanes) {
  if (dtype == KRAIT_F32) return load_lanes((const float *)data + at, lanes);
  const uint16_t *from = (const uint16_t *)data + at;
  if (lanes <= 0) return kr_v_zero();
  if (dtype == KRAIT_F16) return lanes >= KR_VL ? kr_v_load_h(from) : kr_v_loadn_h(from, lanes);
  return lanes >= KR_VL ? kr_v_load_b(from) : kr_v_loadn_b(from, lanes);
}

static inline void store_type(void *data, int64_t at, int32_t dtype, kr_v v, int lanes) {
  uint16_t *to = (uint16_t *)data + at;
  if (dtype == KRAIT_F32) store_lanes((float *)data + at, v, lanes);
  else if (lanes <= 0) return;
  else if (dtype == KRAIT_F16) lanes >= KR_VL ? kr_v_store_h(to, v) : kr_v_storen_h(to, v, lanes);
  else lanes >= KR_VL ? kr_v_store_b(to, v) : kr_v_storen_b(to, v, lanes);
}

/* Lanes whose elements are `stride` apart. */
static inline kr_v load_view(const krait_view *view, int64_t at, int64_t stride, int lanes) {
  if (stride == 1) return load_type(view->data, at, view->dtype, lanes);
  float values[KR_VL] = {0};
  for (int i = 0; i < lanes; i++) values[i] = (float)kr_get(view, at + i * stride);
  return kr_v_load(values);
}

static inline void store_view(const krait_view *view, int64_t at, int64_t stride, kr_v v, int lanes) {
  if (stride == 1) {
    store_type(view->data, at, view->dtype, v, lanes);
    return;
  }
  float values[KR_VL];
  kr_v_store(values, v);
  for (int i = 0; i < lanes; i++) kr_put(view, at + i * stride, (double)values[i]);
}

/* A vector's columns of a panel, from `first` on. */
static void pack_columns(float *to, const krait_view *B, int64_t at, int64_t K, int64_t first, int lanes) {
  const int64_t along_k = B->stride[0], along_n = B->stride[1];
  int64_t k = 0;
  at += first * along_n;
  if (along_k == 1 && along_n != 1 && lanes == KR_VL)
    for (; k + KR_VL <= K; k += KR_VL) {
      kr_v rows[KR_VL];
      for (int j = 0; j < KR_VL; j++) rows[j] = load_type(B->data, at + j * along_n + k, B->dtype, KR_VL);
      kr_v_transpose(rows);
      for (int j = 0; j < KR_VL; j++) kr_v_store(to + (k + j) * NR, rows[j]);
    }
  for (; k < K; k++) kr_v_store(to + k * NR, load_view(B, at + k * along_k, along_n, lanes));
}

/* A thread's memory: panels; of every panel what its sums begin with, and the sums of ROWS rows; K_PART of those rows of A. */
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
      const int lanes = clamp_lanes(a->N - first);
      pack_columns(panel_of(p, memory, i) + v * KR_VL, B, at, a->K, first, lanes);
      kr_v_store(bias_of(p, memory, i) + v * KR_VL, kr_has(bias) ? load_view(bias, first * bias->stride[0], bias->stride[0], lanes) : kr_v_zero());
    }
}

static void widen_rows(const krait_view *A, int64_t at, int64_t K, int n, float *to) {
  for (int m = 0; m < n; m++)
    for (int64_t k = 0; k < K; k += KR_VL) {
      const int lanes = clamp_lanes(K - k);
      store_lanes(to + m * K_PART + k, load_view(A, at + m * A->stride[0] + k * A->stride[1], A->stride[1], lanes), lanes);
    }
}

/* Sums that begin with `from`, next_row apart from row to row, over K. rows and turned are constants after inlining; turned: A lies column by column, lda apart, as where a gradient
 * sums over rows: the elements of a step then share a line. */
static inline __attribute__((always_inline)) void sum_rows(const int rows, const int turned, const float *A, int64_t lda, const float *B, int64_t K, const float *from, int next_row, float *to) {
  kr_v sum[2 * MR];
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) sum[2 * m] = kr_v_load(from + m * next_row), sum[2 * m + 1] = kr_v_load(from + m * next_row + KR_VL);
  for (int64_t k = 0; k < K; k++, B += NR) {
    const kr_v b0 = kr_v_load(B), b1 = kr_v_load(B + KR_VL);
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
      const kr_v a = kr_v_set1(turned ? A[k * lda + m] : A[m * lda + k]);
      sum[2 * m] = kr_v_fma(a, b0, sum[2 * m]);
      sum[2 * m + 1] = kr_v_fma(a, b1, sum[2 * m + 1]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) kr_v_store(to + m * NR, sum[2 * m]), kr_v_store(to + m * NR + KR_VL, sum[2 * m + 1]);
}

static inline __attribute__((always_inline)) void sum_panel(const int turned, int n, const float *A, int64_t lda, const float *B, int64_t K, const float *from, int next_row, float *to) {
#define SOME(rows) \
  for (; n >= rows; n -= rows, A += rows * (turned ? 1 : lda), from += rows * next_row, to += rows * NR) sum_rows(rows, turned, A, lda, B, K, from, next_row, to);
  SOME(MR)
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
  SOME(6)
#endif
  SOME(3)
  SOME(1)
#undef SOME
}

/* erf to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
static kr_v gelu_exact(kr_v x) {
  static const float c[] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  const kr_v z = kr_v_mul(kr_v_abs(x), kr_v_set1(0.70710678f)), one = kr_v_set1(1.0f), t = kr_v_div(one, kr_v_fma(kr_v_set1(0.3275911f), z, one));
  kr_v poly = kr_v_set1(c[0]);
  for (int i = 1; i < 5; i++) poly = kr_v_fma(t, poly, kr_v_set1(c[i]));
  const kr_v tail = kr_v_mul(kr_v_mul(poly, t), kr_v_exp(kr_v_neg(kr_v_mul(z, z))));
  return kr_v_mul(kr_v_mul(kr_v_set1(0.5f), x), kr_v_select(kr_v_lt(x, kr_v_zero()), tail, kr_v_sub(kr_v_set1(2.0f), tail)));
}

/* 0.5 (1 + tanh y) is the sigmoid of 2 y. */
static kr_v gelu_tanh(kr_v x) {
  const kr_v y = kr_v_mul(kr_v_mul(kr_v_set1(1.5957691216f), x), kr_v_fma(kr_v_mul(kr_v_set1(0.044715f), x), x, kr_v_set1(1.0f)));
  return kr_v_mul(x, kr_v_sigmoid(y));
}

static inline kr_v activated(kr_v v, int32_t activation) {
  switch (activation) {
    case KRAIT_ACT_SILU: return kr_v_silu(v);
    case KRAIT_ACT_GELU: return gelu_exact(v);
    case KRAIT_ACT_GELU_TANH: return gelu_tanh(v);
    default: return v;
  }
}

/* The sums of a row, of columns from n on: finished and stored. */
static void finish_row(const product *p, const float *sums, const float *bias, int64_t batch, int64_t m, int64_t n) {
  const krait_gemm_args *a = p->args;
  float scale = a->scale != 0 ? a->scale : 1;
  if (kr_has(&a->row_scale)) scale *= (float)kr_get(&a->row_scale, m * a->row_scale.stride[0] + (batch ? batch * a->row_scale.stride[1] : 0));
  kr_v v[2];
  for (int i = 0; i < 2; i++) {
    v[i] = kr_v_load(sums + i * KR_VL);
    if (!p->plain) v[i] = kr_v_fma(v[i], kr_v_set1(scale), kr_v_load(bias + i * KR_VL));
  }
  v[0] = activated(v[0], a->activation);
  v[1] = p->gated ? kr_v_mul(v[0], v[1]) : activated(v[1], a->activation);
  for (int i = p->gated; i < 2; i++) {
    const int64_t column = p->gated ? n : n + i * KR_VL;
    const int lanes = clamp_lanes(a->N - column);
    const krait_view *r = &a->residual;
    if (kr_has(r)) v[i] = kr_v_add(v[i], load_view(r, m * r->stride[0] + column * r->stride[1] + (batch ? batch * r->stride[2] : 0), r->stride[1], lanes));
    store_view(&a->out, m * a->out.stride[0] + column * a->out.stride[1] + (batch ? batch * a->out.stride[2] : 0), a->out.stride[1], v[i], lanes);
  }
}

static int is_float_rows(const krait_view *v) { return v->dtype == KRAIT_F32 && v->stride[1] == 1; }

/* Rows that are sums and at most a residual: whole vectors, float32. */
static void finish_plain(const product *p, const float *sums, int64_t at, int64_t at_residual, int n) {
  const krait_gemm_args *a = p->args;
  float *to = (float *)a->out.data + at;
  const float *added = kr_has(&a->residual) ? (const float *)a->residual.data + at_residual : NULL;
  for (int m = 0; m < n; m++, sums += NR, to += a->out.stride[0])
    for (int v = 0; v < NR; v += KR_VL) {
      const kr_v sum = kr_v_load(sums + v);
      kr_v_store(to + v, added ? kr_v_add(sum, kr_v_load(added + m * a->residual.stride[0] + v)) : sum);
    }
}

static void finish_panel(const product *p, const float *sums, const float *bias, int64_t batch, int64_t m, int n, int64_t column) {
  const krait_gemm_args *a = p->args;
  const krait_view *out = &a->out, *r = &a->residual;
  const int whole = column + NR <= a->N && is_float_rows(out) && (!kr_has(r) || is_float_rows(r));
  if (whole && p->plain && !p->gated && a->activation == KRAIT_ACT_NONE) {
    finish_plain(p, sums, m * out->stride[0] + column + (batch ? batch * out->stride[2] : 0), m * r->stride[0] + column + (batch ? batch * r->stride[2] : 0), n);
    return;
  }
  for (int k = 0; k < n; k++) finish_row(p, sums + k * NR, bias, batch, m + k, column);
}

/* At most ROWS rows times the packed panels. */
static void multiply_rows(const product *p, float *memory, int64_t panel, int n_panels, int64_t batch, int64_t m, int n) {
  const krait_gemm_args *a = p->args;
  const int64_t at = m * a->A.stride[0] + (batch ? batch * a->A.stride[2] : 0);
  const int turned = a->A.dtype == KRAIT_F32 && a->A.stride[0] == 1 && a->A.stride[1] != 1, in_place = turned || is_float_rows(&a->A);
  static const float zeros[NR] = {0};
  for (int64_t k = 0; k < a->K; k += K_PART) {
    const int64_t part = a->K - k < K_PART ? a->K - k : K_PART;
    if (!in_place) widen_rows(&a->A, at + k * a->A.stride[1], part, n, rows_of(p, memory));
    const float *A = in_place ? (const float *)a->A.data + at + k * a->A.stride[1] : rows_of(p, memory);
    for (int i = 0; i < n_panels; i++) {
      float *sums = sums_of(p, memory, i);
      const float *begin = k ? sums : p->plain ? bias_of(p, memory, i) : zeros;
      const float *panel_part = panel_of(p, memory, i) + k * NR;
      if (turned) sum_panel(1, n, A, a->A.stride[1], panel_part, part, begin, k ? NR : 0, sums);
      else sum_panel(0, n, A, in_place ? a->A.stride[0] : K_PART, panel_part, part, begin, k ? NR : 0, sums);
    }
  }
  for (int i = 0; i < n_panels; i++) finish_panel(p, sums_of(p, memory, i), bias_of(p, memory, i), batch, m, n, (panel + i) * p->width);
}

static void multiply_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const krait_gemm_args *a = p->args;
  float *memory = (float *)a->call.scratch + worker * p->thread_floats;
  for (int64_t i = begin; i < end; i++) {
    const int64_t panel = i % p->n_groups * p->panels, block = i / p->n_groups % p->n_row_blocks, batch = i / p->n_groups / p->n_row_blocks;
    const int64_t left = p->n_panels - panel, last = (block + 1) * p->n_rows < a->M ? (block + 1) * p->n_rows : a->M;
    const int n_panels = left < p->panels ? (int)left : p->panels;
    pack_group(p, memory, panel, n_panels, batch);
    for (int64_t m = block * p->n_rows; m < last; m += ROWS) multiply_rows(p, memory, panel, n_panels, batch, m, last - m < ROWS ? (int)(last - m) : ROWS);
  }
}

static product plan(const krait_ctx *ctx, const krait_gemm_args *a) {
  const int64_t n_threads = krait_ctx_n_threads(ctx), P = kr_gemm_products(a);
  product p = {.args = a, .gated = kr_has(&a->B2), .plain = (a->scale == 0 || a->scale == 1) && !kr_has(&a->row_scale)};
  p.width = p.gated ? KR_VL : NR;
  p.n_panels = (a->N + p.width - 1) / p.width;
  const int64_t fit = GROUP_BYTES / ((int64_t)sizeof(float) * a->K * NR), share = (p.n_panels * P + n_threads - 1) / n_threads;
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
