/* mamba3_decay_simd.c: tiles of rows by a vector of heads; of the gradient's sums each tile has its own. */
#include "mamba3_decay/mamba3_decay_impls.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { ROWS = 64 };

static kr_v activate_rates(uint32_t flags, kr_v v) {
  const kr_v one = kr_v_set1(1), zero = kr_v_zero();
  if (flags & KRAIT_MAMBA3_SOFTPLUS_A) return kr_v_softplus(v);
  return kr_v_div(kr_v_add(one, kr_v_max(zero, v)), kr_v_sub(one, kr_v_min(zero, v)));
}
/* Of act, from v and act(v); 0 below the floor. */
static kr_v find_slopes(uint32_t flags, kr_v v, kr_v act, kr_v floor) {
  const kr_v one = kr_v_set1(1), low = kr_v_select(kr_v_lt(v, kr_v_zero()), kr_v_mul(act, act), one);
  return kr_v_select(kr_v_lt(act, floor), kr_v_zero(), flags & KRAIT_MAMBA3_SOFTPLUS_A ? kr_v_sigmoid(v) : low);
}

static void load_decay_rows(float *to, const kr_view *v, int64_t r, int64_t h, int rows, int lanes) {
  const kr_plane plane = {v->data, v->dtype, r * v->stride[0] + h * v->stride[1], v->stride[0], v->stride[1]};
  kr_tile_load(to, KR_VL, &plane, rows, lanes);
}
static void store_decay_rows(const float *from, const kr_view *v, int64_t r, int64_t h, int rows, int lanes) {
  const kr_plane plane = {v->data, v->dtype, r * v->stride[0] + h * v->stride[1], v->stride[0], v->stride[1]};
  kr_tile_store(from, KR_VL, &plane, rows, lanes);
}
static kr_v load_decay_bias(const kr_view *bias, int64_t h, int lanes) {
  _Alignas(64) float of_heads[16] = {0};
  if (kr_has(bias)) kr_row_load(of_heads, bias->data, bias->dtype, kr_at1(bias, h), bias->stride[0], lanes);
  return kr_v_load(of_heads);
}

static int64_t decay_columns(int64_t H) { return (H + KR_VL - 1) / KR_VL; }
static int decay_least(int64_t n, int most) { return n < most ? (int)n : most; }

/* Tiles [begin, end), a row of them after the other. */
static void compute_decays(void *user, int64_t begin, int64_t end, int worker) {
  const kr_mamba3_decay_args *a = user;
  const int64_t columns = decay_columns(a->H);
  const kr_v floor = kr_v_set1(a->A_floor);
  _Alignas(64) float s[ROWS * KR_VL], v[ROWS * KR_VL];
  (void)worker;
  for (int64_t at = begin; at < end; at++) {
    const int64_t r = at / columns * ROWS, h = at % columns * KR_VL;
    const int rows = decay_least(a->R - r, ROWS), lanes = decay_least(a->H - h, KR_VL);
    const kr_v bias = load_decay_bias(&a->dt_bias, h, lanes);
    load_decay_rows(s, &a->dt_raw, r, h, rows, lanes), load_decay_rows(v, &a->A_raw, r, h, rows, lanes);
    for (int i = 0; i < rows * KR_VL; i += KR_VL) {
      const kr_v dt = kr_v_softplus(kr_v_add(kr_v_load(s + i), bias)),
                 rate = kr_v_max(floor, activate_rates(a->call.flags, kr_v_load(v + i))); /* NaN stays NaN */
      kr_v_store(s + i, dt), kr_v_store(v + i, kr_v_neg(kr_v_mul(rate, dt)));
    }
    store_decay_rows(s, &a->dt, r, h, rows, lanes), store_decay_rows(v, &a->log_decay, r, h, rows, lanes);
  }
}

int32_t KR_FN(kr_mamba3_decay)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_args *a = args;
  kr_parallel(ctx, (a->R + ROWS - 1) / ROWS * decay_columns(a->H), 4, compute_decays, (void *)args);
  return KRAIT_OK;
}

/* ---- the gradient ---- */

static int64_t rows_of_tiles(int64_t R) { return (R + ROWS - 1) / ROWS; }

/* One tile; dt_raw and A_raw become their gradients -> the sums over its rows. */
static kr_v back_tile(const kr_mamba3_decay_bwd_args *a, float *s, float *v, const float *ddt, const float *dlog,
                      kr_v bias, int rows) {
  const kr_v floor = kr_v_set1(a->A_floor);
  kr_v sum = kr_v_zero();
  for (int i = 0; i < rows * KR_VL; i += KR_VL) {
    const kr_v raw = kr_v_add(kr_v_load(s + i), bias), A = kr_v_load(v + i), act = activate_rates(a->call.flags, A),
               d = kr_v_load(dlog + i),
               ds = kr_v_mul(kr_v_fnma(kr_v_max(floor, act), d, kr_v_load(ddt + i)), kr_v_sigmoid(raw));
    sum = kr_v_add(sum, ds);
    kr_v_store(s + i, ds);
    kr_v_store(v + i, kr_v_neg(kr_v_mul(kr_v_mul(kr_v_softplus(raw), d), find_slopes(a->call.flags, A, act, floor))));
  }
  return sum;
}

static void compute_decay_gradients(void *user, int64_t begin, int64_t end, int worker) {
  const kr_mamba3_decay_bwd_args *a = user;
  const int64_t columns = decay_columns(a->H);
  _Alignas(64) float s[ROWS * KR_VL], v[ROWS * KR_VL], ddt[ROWS * KR_VL], dlog[ROWS * KR_VL];
  (void)worker;
  for (int64_t at = begin; at < end; at++) {
    const int64_t r = at / columns * ROWS, h = at % columns * KR_VL;
    const int rows = decay_least(a->R - r, ROWS), lanes = decay_least(a->H - h, KR_VL);
    load_decay_rows(s, &a->dt_raw, r, h, rows, lanes), load_decay_rows(v, &a->A_raw, r, h, rows, lanes);
    load_decay_rows(ddt, &a->ddt, r, h, rows, lanes), load_decay_rows(dlog, &a->dlog_decay, r, h, rows, lanes);
    const kr_v sum = back_tile(a, s, v, ddt, dlog, load_decay_bias(&a->dt_bias, h, lanes), rows);
    if (kr_has(&a->ddt_bias)) kr_v_store((float *)a->call.scratch + at * KR_VL, sum);
    if (kr_has(&a->ddt_raw)) store_decay_rows(s, &a->ddt_raw, r, h, rows, lanes);
    if (kr_has(&a->dA_raw)) store_decay_rows(v, &a->dA_raw, r, h, rows, lanes);
  }
}

int32_t KR_FN(kr_mamba3_decay_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_bwd_args *a = args;
  const int64_t tiles = rows_of_tiles(a->R), columns = decay_columns(a->H);
  kr_parallel(ctx, tiles * columns, 4, compute_decay_gradients, (void *)args);
  for (int64_t h = 0; kr_has(&a->ddt_bias) && h < a->H; h++) {
    double sum = 0;
    for (int64_t t = 0; t < tiles; t++) sum += (double)((const float *)a->call.scratch)[t * columns * KR_VL + h];
    kr_put(&a->ddt_bias, kr_at1(&a->ddt_bias, h), sum);
  }
  return KRAIT_OK;
}

uint64_t KR_FN(kr_mamba3_decay_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_bwd_args *a = args;
  (void)ctx;
  return kr_has(&a->ddt_bias) ? (uint64_t)(rows_of_tiles(a->R) * decay_columns(a->H) * KR_VL) * sizeof(float) : 0;
}
