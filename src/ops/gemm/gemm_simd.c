/* gemm_simd.c: a register tile of MR rows by two vectors, accumulated over all of K and finished in registers (bias,
 * sum, product or gate), so that C is touched once. B is packed (gemm_kernel.h); A is read where it lies. */
#include "gemm/gemm_kernel.h"
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

/* ---- the op: packs B into scratch, then shares blocks of rows, and of columns where rows are few ---------------------- */

enum { ROW_BLOCK = 16 * MR };

typedef struct product {
  const krait_gemm_args *args;
  kr_panels panels;
  int64_t n_groups, group; /* groups of columns; columns of one, whole panels */
} product;

static void pack_some(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const krait_view *B = &p->args->Bmat;
  (void)worker;
  for (int64_t i = begin; i < end; i++) pack_panel(&p->panels, i * NR, B->data, B->stride[0], B->stride[1]);
}

static void apply_silu(float *row, int64_t n) {
  int64_t j = 0;
  for (; j + KR_VL <= n; j += KR_VL) kr_v_store(row + j, kr_v_silu(kr_v_load(row + j)));
  if (j < n) kr_v_storen(row + j, kr_v_silu(kr_v_loadn(row + j, (int)(n - j))), (int)(n - j));
}

static void add_row(float *row, const float *other, int64_t n) {
  for (int64_t j = 0; j < n; j++) row[j] += other[j];
}

static void multiply_block(const product *p, int64_t begin, int64_t end, int64_t first, int64_t last) {
  const krait_gemm_args *a = p->args;
  const float *A = (const float *)a->A.data + begin * a->A.stride[0], *R = a->residual.data;
  float *C = (float *)a->out.data + begin * a->out.stride[0];
  if (R) R += begin * a->residual.stride[0];
  int fused = R && a->activation == KRAIT_ACT_NONE;
  kr_gemm_rows_call call = {&p->panels, A, a->A.stride[0], end - begin, C,
                            a->out.stride[0], R, a->residual.stride[0], a->N, fused ? KR_GEMM_ADD : KR_GEMM_SET};
  if (!fused) call.E = NULL;
  multiply_panels(&call, first, last);
  if (a->activation == KRAIT_ACT_NONE) return;
  const int64_t n = (last < a->N ? last : a->N) - first;
  for (int64_t m = 0; m < end - begin; m++) {
    apply_silu(C + m * a->out.stride[0] + first, n);
    if (R) add_row(C + m * a->out.stride[0] + first, R + m * a->residual.stride[0] + first, n);
  }
}

static void multiply_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const int64_t columns = columns_of(&p->panels), M = p->args->M;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t row = i / p->n_groups * ROW_BLOCK, first = i % p->n_groups * p->group;
    multiply_block(p, row, row + ROW_BLOCK < M ? row + ROW_BLOCK : M, first, first + p->group < columns ? first + p->group : columns);
  }
}

int32_t KR_FN(kr_gemm)(const krait_ctx *ctx, const void *args) {
  const krait_gemm_args *a = args;
  product p = {.args = a, .panels = place_panels(a->call.scratch, a->K, a->N, 0)};
  const int64_t columns = columns_of(&p.panels), n_panels = (columns + NR - 1) / NR, n_blocks = (a->M + ROW_BLOCK - 1) / ROW_BLOCK;
  for (int64_t n = 0; n < columns; n++) p.panels.bias[n] = n < a->N && kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
  kr_parallel(ctx, n_panels, 1 + 65536 / (a->K * NR + 1), pack_some, &p);
  int64_t groups = n_blocks ? (4 * krait_ctx_n_threads(ctx) + n_blocks - 1) / n_blocks : 1;
  if (groups > n_panels) groups = n_panels;
  p.group = (n_panels + groups - 1) / groups * NR;
  p.n_groups = (columns + p.group - 1) / p.group;
  kr_parallel(ctx, n_blocks * p.n_groups, 1, multiply_blocks, &p);
  return KRAIT_OK;
}
