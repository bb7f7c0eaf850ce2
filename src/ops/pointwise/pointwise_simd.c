/* pointwise_simd.c: rows of up to PIECE elements through a cached buffer, if out, x and y are contiguous along the same
 * dimension; else in tiles, so that each is accessed in its own memory order. A sum over rows is split into blocks of
 * 64 rows to keep float32 sums short. */
#include "gemm/gemm_vectors.h"
#include "op_list.h"
#include "pointwise/pointwise_walk.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { PIECE = 512, PLAIN_PIECE = 16384, TILE_ROWS = 32, SUM_ROWS = 64 };

typedef struct job {
  const kr_pointwise_args *a;
  kr_walk w;
  int64_t n_pieces; /* of the innermost dimension; or tiles of the inner two */
} job;

/* The derivative of x P(x), P the normal distribution, which has a series at 0. */
static inline kr_v gelu_slope(kr_v x) {
  const kr_v height = kr_v_set1(0.39894228f),
             normal = kr_v_mul(height, kr_v_exp(kr_v_mul(kr_v_set1(-0.5f), kr_v_mul(x, x)))),
             series = kr_v_fma(height, x, kr_v_set1(0.5f)), below = kr_v_div(gemm_gelu_exact(x), x);
  return kr_v_fma(x, normal, kr_v_select(kr_v_lt(kr_v_abs(x), kr_v_set1(0.01f)), series, below));
}

/* n floats, whole vectors; x and y may be NULL. */
static void compute(const kr_pointwise_args *a, const float *x, const float *y, float *out, int64_t n) {
  const kr_v x_scale = kr_v_set1(a->x_scale), y_scale = kr_v_set1(a->y_scale), one = kr_v_set1(1);
  const int product = (a->call.flags & KRAIT_POINTWISE_PRODUCT) != 0,
            slope = (a->call.flags & KRAIT_POINTWISE_SLOPE) != 0, silu = a->activation == KRAIT_ACT_SILU;
  const int sigmoid = a->activation == KRAIT_ACT_SIGMOID, relu = a->activation == KRAIT_ACT_RELU,
            exponential = a->activation == KRAIT_ACT_EXP, gelu = a->activation == KRAIT_ACT_GELU;
  for (int64_t i = 0; i < n; i += KR_VL) {
    kr_v v = x ? kr_v_load(x + i) : one, derivative = one;
    if (x && silu && slope) kr_v_silu_and_slope(v, &derivative);
    if (x && sigmoid) v = kr_v_sigmoid(v), derivative = kr_v_mul(v, kr_v_sub(one, v));
    if (x && relu) derivative = kr_v_select(kr_v_gt(v, kr_v_zero()), one, kr_v_zero()), v = kr_v_max(kr_v_zero(), v);
    if (x && exponential) v = derivative = kr_v_exp(v);
    if (x && gelu) v = slope ? (derivative = gelu_slope(v)) : gemm_gelu_exact(v);
    if (x && slope) v = derivative;
    else if (x && silu) v = kr_v_silu(v);
    v = kr_v_mul(v, x_scale);
    if (y) v = product ? kr_v_mul(v, kr_v_load(y + i)) : kr_v_fma(kr_v_load(y + i), y_scale, v);
    kr_v_store(out + i, v);
  }
}

static int64_t at_of(const kr_walk *w, int view, int64_t i, int64_t j, int64_t k, int64_t n) {
  const int64_t *s = w->stride[view];
  return i * s[0] + j * s[1] + k * s[2] + n * s[3];
}

/* A copy of these for each tensor would be most of the code. */
static __attribute__((noinline)) void load_piece(float *to, const kr_view *v, int64_t at, int64_t step, int64_t n) {
  kr_row_load(to, v->data, v->dtype, at, step, n);
}
static __attribute__((noinline)) void store_piece(const float *from, const kr_view *v, int64_t at, int64_t step,
                                                  int64_t n) {
  kr_row_store(from, v->data, v->dtype, at, step, n);
}

static void apply_pieces(void *user, int64_t begin, int64_t end, int worker) {
  const job *p = user;
  const kr_pointwise_args *a = p->a;
  _Alignas(64) float x[PIECE], y[PIECE];
  (void)worker;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t row = piece / p->n_pieces, first = piece % p->n_pieces * PIECE,
            n = p->w.n[3] - first < PIECE ? p->w.n[3] - first : PIECE;
    const int64_t k = row % p->w.n[2], j = row / p->w.n[2] % p->w.n[1], i = row / p->w.n[2] / p->w.n[1];
    if (kr_has(&a->x)) load_piece(x, &a->x, at_of(&p->w, KR_WALK_X, i, j, k, first), p->w.stride[KR_WALK_X][3], n);
    if (kr_has(&a->y)) load_piece(y, &a->y, at_of(&p->w, KR_WALK_Y, i, j, k, first), p->w.stride[KR_WALK_Y][3], n);
    compute(a, kr_has(&a->x) ? x : NULL, kr_has(&a->y) ? y : NULL, x, (n + KR_VL - 1) / KR_VL * KR_VL);
    store_piece(x, &a->out, at_of(&p->w, KR_WALK_OUT, i, j, k, first), p->w.stride[KR_WALK_OUT][3], n);
  }
}

/* The gradients of f(g) u, by pieces. */
static void gate_pieces(void *user, int64_t begin, int64_t end, int worker) {
  const job *p = user;
  const kr_pointwise_args *a = p->a;
  kr_pointwise_args value = *a, slope = *a;
  _Alignas(64) float g[PIECE], y[PIECE], u[PIECE], gate[PIECE];
  (void)worker;
  value.x_scale = slope.x_scale = 1.0f, value.call.flags = KRAIT_POINTWISE_PRODUCT,
  slope.call.flags = KRAIT_POINTWISE_PRODUCT | KRAIT_POINTWISE_SLOPE;
  for (int64_t piece = begin; piece < end; piece++) {
    const int64_t row = piece / p->n_pieces, first = piece % p->n_pieces * PIECE,
                  n = p->w.n[3] - first < PIECE ? p->w.n[3] - first : PIECE, whole = (n + KR_VL - 1) / KR_VL * KR_VL;
    const int64_t k = row % p->w.n[2], j = row / p->w.n[2] % p->w.n[1], i = row / p->w.n[2] / p->w.n[1];
    const int64_t x_at = at_of(&p->w, KR_WALK_X, i, j, k, first), out_at = at_of(&p->w, KR_WALK_OUT, i, j, k, first),
                  x_step = p->w.stride[KR_WALK_X][3], out_step = p->w.stride[KR_WALK_OUT][3];
    load_piece(g, &a->x, x_at, x_step, n);
    load_piece(u, &a->x, x_at + a->x.stride[0], x_step, n);
    load_piece(y, &a->y, at_of(&p->w, KR_WALK_Y, i, j, k, first), p->w.stride[KR_WALK_Y][3], n);
    compute(&value, g, y, gate, whole);
    compute(&slope, g, u, g, whole);
    for (int64_t m = 0; m < whole; m += KR_VL) kr_v_store(g + m, kr_v_mul(kr_v_load(g + m), kr_v_load(y + m)));
    store_piece(g, &a->out, out_at, out_step, n);
    store_piece(gate, &a->out, out_at + a->out.stride[0], out_step, n);
  }
}

/* ---- contiguous float32 without an activation: no buffer ---- */

static inline kr_v plain_load(const float *from, int lanes) {
  return lanes >= KR_VL ? kr_v_load(from) : kr_v_loadn(from, lanes);
}
static inline void plain_store(float *to, kr_v v, int lanes) {
  if (lanes >= KR_VL) kr_v_store(to, v);
  else kr_v_storen(to, v, lanes);
}

enum { COPY, SUM, PRODUCT };
typedef struct plain_rows { /* n_rows of n floats */
  const float *x, *y;
  float *out;
  int64_t n, n_rows, next_x, next_y, next_out;
  float x_scale, y_scale;
} plain_rows;

/* kind is a constant after inlining. */
static inline __attribute__((always_inline)) void apply_rows(const int kind, plain_rows p) {
  const kr_v by_x = kr_v_set1(p.x_scale), by_y = kr_v_set1(p.y_scale);
  const int64_t whole = p.n / KR_VL * KR_VL;
  const int rest = (int)(p.n - whole);
  for (; p.n_rows > 0; p.n_rows--, p.x += p.next_x, p.out += p.next_out) {
    for (int64_t i = 0; i < p.n; i += KR_VL) {
      const int lanes = i < whole ? KR_VL : rest;
      kr_v v = kr_v_mul(plain_load(p.x + i, lanes), by_x);
      if (kind == PRODUCT) v = kr_v_mul(v, plain_load(p.y + i, lanes));
      if (kind == SUM) v = kr_v_fma(plain_load(p.y + i, lanes), by_y, v);
      plain_store(p.out + i, v, lanes);
    }
    if (kind != COPY) p.y += p.next_y;
  }
}

static void apply_contiguous(void *user, int64_t begin, int64_t end, int worker) {
  const job *p = user;
  const kr_pointwise_args *a = p->a;
  const int64_t n = p->w.n[3];
  int64_t row = begin / p->n_pieces, first = begin % p->n_pieces * PLAIN_PIECE, k = row % p->w.n[2],
          j = row / p->w.n[2] % p->w.n[1], i = row / p->w.n[2] / p->w.n[1];
  const float *const x = a->x.data, *const y = a->y.data;
  float *const out = a->out.data;
  const int kind = !kr_has(&a->y) ? COPY : a->call.flags & KRAIT_POINTWISE_PRODUCT ? PRODUCT : SUM;
  (void)worker;
  for (int64_t piece = begin; piece < end; piece++) {
    const int64_t left = n - first, rows_left = p->w.n[2] - k;
    plain_rows r = {.x = x + at_of(&p->w, KR_WALK_X, i, j, k, first),
                    .y = kind == COPY ? NULL : y + at_of(&p->w, KR_WALK_Y, i, j, k, first),
                    .out = out + at_of(&p->w, KR_WALK_OUT, i, j, k, first),
                    .n = left < PLAIN_PIECE ? left : PLAIN_PIECE,
                    .n_rows = p->n_pieces > 1 ? 1 : rows_left < end - piece ? rows_left : end - piece,
                    .next_x = p->w.stride[KR_WALK_X][2],
                    .next_y = p->w.stride[KR_WALK_Y][2],
                    .next_out = p->w.stride[KR_WALK_OUT][2],
                    .x_scale = a->x_scale,
                    .y_scale = a->y_scale};
    if (kind == COPY) apply_rows(COPY, r);
    else if (kind == SUM) apply_rows(SUM, r);
    else apply_rows(PRODUCT, r);
    piece += r.n_rows - 1;
    if ((first += PLAIN_PIECE) < n) continue;
    first = 0;
    if ((k += r.n_rows) < p->w.n[2]) continue;
    k = 0;
    if (++j == p->w.n[1]) j = 0, i++;
  }
}

static int is_plain_for_pointwise(const job *p) {
  const kr_pointwise_args *a = p->a;
  const int64_t *const s[] = {p->w.stride[KR_WALK_X], p->w.stride[KR_WALK_Y], p->w.stride[KR_WALK_OUT]};
  return kr_has(&a->x) && a->x.dtype == KRAIT_F32 && a->out.dtype == KRAIT_F32 &&
         (!kr_has(&a->y) || a->y.dtype == KRAIT_F32) && a->activation == KRAIT_ACT_NONE &&
         !(a->call.flags & KRAIT_POINTWISE_SLOPE) && s[0][3] == 1 && s[2][3] == 1 && (!kr_has(&a->y) || s[1][3] == 1) &&
         p->w.n[3] >= KR_VL;
}

static void run_pointwise_tile(const job *p, int64_t i, int64_t j, int64_t k, int64_t n) {
  const kr_pointwise_args *a = p->a;
  _Alignas(64) float x[TILE_ROWS * KR_VL], y[TILE_ROWS * KR_VL];
  const kr_view *views[KR_WALK_VIEWS] = {&a->out, &a->x, &a->y};
  kr_plane planes[KR_WALK_VIEWS];
  const int rows = (int)(p->w.n[2] - k < TILE_ROWS ? p->w.n[2] - k : TILE_ROWS),
            lanes = (int)(p->w.n[3] - n < KR_VL ? p->w.n[3] - n : KR_VL);
  for (int v = 0; v < KR_WALK_VIEWS; v++)
    planes[v] =
        (kr_plane){views[v]->data, views[v]->dtype, at_of(&p->w, v, i, j, k, n), p->w.stride[v][2], p->w.stride[v][3]};
  if (kr_has(&a->x)) kr_tile_load(x, KR_VL, &planes[KR_WALK_X], rows, lanes);
  if (kr_has(&a->y)) kr_tile_load(y, KR_VL, &planes[KR_WALK_Y], rows, lanes);
  compute(a, kr_has(&a->x) ? x : NULL, kr_has(&a->y) ? y : NULL, x, rows * KR_VL);
  kr_tile_store(x, KR_VL, &planes[KR_WALK_OUT], rows, lanes);
}

static void run_pointwise_tiles(void *user, int64_t begin, int64_t end, int worker) {
  const job *p = user;
  (void)worker;
  for (int64_t piece = begin; piece < end; piece++) {
    const int64_t outer = piece / p->n_pieces, k = piece % p->n_pieces * TILE_ROWS;
    for (int64_t n = 0; n < p->w.n[3]; n += KR_VL) run_pointwise_tile(p, outer / p->w.n[1], outer % p->w.n[1], k, n);
  }
}

/* A view that is strided along out's innermost dimension. */
static int is_strided(const kr_walk *w, int view) { return w->stride[view][3] != 0 && w->stride[view][3] != 1; }

int32_t KR_FN(kr_pointwise)(const krait_ctx *ctx, const void *args) {
  job p = {.a = args, .w = kr_walk_of(args)};
  const int64_t outer = p.w.n[0] * p.w.n[1];
  if (outer * p.w.n[2] * p.w.n[3] == 0) return KRAIT_OK;
  if (!kr_is_gate(p.a) && p.w.n[2] > 1 && (is_strided(&p.w, KR_WALK_X) || is_strided(&p.w, KR_WALK_Y))) {
    p.n_pieces = (p.w.n[2] + TILE_ROWS - 1) / TILE_ROWS;
    kr_parallel(ctx, outer * p.n_pieces, 1 + 16384 / (TILE_ROWS * p.w.n[3]), run_pointwise_tiles, &p);
    return KRAIT_OK;
  }
  if (!kr_is_gate(p.a) && is_plain_for_pointwise(&p)) {
    p.n_pieces = (p.w.n[3] + PLAIN_PIECE - 1) / PLAIN_PIECE;
    kr_parallel(ctx, outer * p.w.n[2] * p.n_pieces, 1 + PLAIN_PIECE / p.w.n[3], apply_contiguous, &p);
    return KRAIT_OK;
  }
  p.n_pieces = (p.w.n[3] + PIECE - 1) / PIECE;
  kr_parallel(ctx, outer * p.w.n[2] * p.n_pieces, 1 + 16384 / (p.w.n[3] < PIECE ? p.w.n[3] : PIECE),
              kr_is_gate(p.a) ? gate_pieces : apply_pieces, &p);
  return KRAIT_OK;
}

static void sum_columns(void *user, int64_t begin, int64_t end, int worker) {
  const kr_sum_rows_args *a = user;
  _Alignas(64) float tile[SUM_ROWS * KR_VL];
  (void)worker;
  for (int64_t m = begin * KR_VL; m < a->M && m < end * KR_VL; m += KR_VL) {
    const int lanes = (int)(a->M - m < KR_VL ? a->M - m : KR_VL);
    kr_v all = kr_v_zero();
    for (int64_t r = 0; r < a->R; r += SUM_ROWS) {
      const int rows = (int)(a->R - r < SUM_ROWS ? a->R - r : SUM_ROWS);
      const kr_plane plane = {a->x.data, a->x.dtype, kr_at2(&a->x, r, m), a->x.stride[0], a->x.stride[1]};
      kr_v some = kr_v_zero();
      kr_tile_load(tile, KR_VL, &plane, rows, lanes);
      for (int i = 0; i < rows; i++) some = kr_v_add(some, kr_v_load(tile + i * KR_VL));
      all = kr_v_add(all, some);
    }
    kr_v_store(tile, all);
    kr_row_store(tile, a->out.data, a->out.dtype, kr_at1(&a->out, m), a->out.stride[0], lanes);
  }
}

int32_t KR_FN(kr_sum_rows)(const krait_ctx *ctx, const void *args) {
  const kr_sum_rows_args *a = args;
  kr_parallel(ctx, (a->M + KR_VL - 1) / KR_VL, 1 + 16384 / (KR_VL * (a->R + 1)), sum_columns, (void *)args);
  return KRAIT_OK;
}
