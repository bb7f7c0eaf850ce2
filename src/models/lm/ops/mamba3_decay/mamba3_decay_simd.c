/* mamba3_decay_simd.c: tiles of rows by a vector of heads. */
#include "lm_ops.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { ROWS = 64 };

/* max(act(v), floor); NaN stays NaN. */
static kr_v rates(uint32_t flags, kr_v v, kr_v floor) {
  const kr_v one = kr_v_set1(1), zero = kr_v_zero();
  if (flags & KR_MAMBA3_SOFTPLUS_A) return kr_v_max(floor, kr_v_softplus(v));
  return kr_v_max(floor, kr_v_div(kr_v_add(one, kr_v_max(zero, v)), kr_v_sub(one, kr_v_min(zero, v))));
}

static void load_rows(float *to, const kr_view *v, int64_t r, int64_t h, int rows, int lanes) {
  const kr_plane plane = {v->data, v->dtype, r * v->stride[0] + h * v->stride[1], v->stride[0], v->stride[1]};
  kr_tile_load(to, KR_VL, &plane, rows, lanes);
}
static void store_rows(const float *from, const kr_view *v, int64_t r, int64_t h, int rows, int lanes) {
  const kr_plane plane = {v->data, v->dtype, r * v->stride[0] + h * v->stride[1], v->stride[0], v->stride[1]};
  kr_tile_store(from, KR_VL, &plane, rows, lanes);
}
static kr_v load_bias(const kr_view *bias, int64_t h, int lanes) {
  _Alignas(64) float of_heads[16] = {0};
  if (kr_has(bias)) kr_row_load(of_heads, bias->data, bias->dtype, kr_at1(bias, h), bias->stride[0], lanes);
  return kr_v_load(of_heads);
}

static int64_t columns_of(int64_t H) { return (H + KR_VL - 1) / KR_VL; }
static int least(int64_t n, int most) { return n < most ? (int)n : most; }

/* Tiles [begin, end), a row of them after the other. */
static void compute_decays(void *user, int64_t begin, int64_t end, int worker) {
  const kr_mamba3_decay_args *a = user;
  const int64_t columns = columns_of(a->H);
  const kr_v floor = kr_v_set1(a->A_floor);
  _Alignas(64) float s[ROWS * KR_VL], v[ROWS * KR_VL];
  (void)worker;
  for (int64_t at = begin; at < end; at++) {
    const int64_t r = at / columns * ROWS, h = at % columns * KR_VL;
    const int rows = least(a->R - r, ROWS), lanes = least(a->H - h, KR_VL);
    const kr_v bias = load_bias(&a->dt_bias, h, lanes);
    load_rows(s, &a->dt_raw, r, h, rows, lanes), load_rows(v, &a->A_raw, r, h, rows, lanes);
    for (int i = 0; i < rows * KR_VL; i += KR_VL) {
      const kr_v dt = kr_v_softplus(kr_v_add(kr_v_load(s + i), bias)),
                 rate = rates(a->call.flags, kr_v_load(v + i), floor);
      kr_v_store(s + i, dt), kr_v_store(v + i, kr_v_neg(kr_v_mul(rate, dt)));
    }
    store_rows(s, &a->dt, r, h, rows, lanes), store_rows(v, &a->log_decay, r, h, rows, lanes);
  }
}

int32_t KR_FN(kr_mamba3_decay)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_args *a = args;
  kr_parallel(ctx, (a->R + ROWS - 1) / ROWS * columns_of(a->H), 4, compute_decays, (void *)args);
  return KRAIT_OK;
}
