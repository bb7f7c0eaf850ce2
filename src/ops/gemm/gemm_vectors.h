/* gemm_vectors.h: what the vector rows of products share: vectors of a tensor of any float type and stride, and what
 * follows a sum. */
#ifndef KR_GEMM_VECTORS_H
#define KR_GEMM_VECTORS_H

#include <krait/ops.h>

#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

static inline int gemm_lanes(int64_t n) { return n < 0 ? 0 : n > KR_VL ? KR_VL : (int)n; }

/* Lanes whose elements are `stride` apart. */
static inline kr_v gemm_load(const krait_view *view, int64_t at, int64_t stride, int lanes) {
  if (stride == 1) return lanes > 0 ? kr_v_load_as(view->data, at, lanes, view->dtype) : kr_v_zero();
  float values[KR_VL] = {0};
  for (int i = 0; i < lanes; i++) values[i] = kr_scalar_load(view->data, at + i * stride, view->dtype);
  return kr_v_load(values);
}

static inline void gemm_store(const krait_view *view, int64_t at, int64_t stride, kr_v v, int lanes) {
  if (stride == 1) {
    if (lanes > 0) kr_v_store_as(view->data, at, lanes, view->dtype, v);
    return;
  }
  float values[KR_VL];
  kr_v_store(values, v);
  for (int i = 0; i < lanes; i++) kr_scalar_store(view->data, at + i * stride, view->dtype, values[i]);
}

/* erf to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
static inline kr_v gemm_gelu_exact(kr_v x) {
  static const float c[] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  const kr_v z = kr_v_mul(kr_v_abs(x), kr_v_set1(0.70710678f)), one = kr_v_set1(1.0f),
             t = kr_v_div(one, kr_v_fma(kr_v_set1(0.3275911f), z, one));
  kr_v poly = kr_v_set1(c[0]);
  for (int i = 1; i < 5; i++) poly = kr_v_fma(t, poly, kr_v_set1(c[i]));
  const kr_v tail = kr_v_mul(kr_v_mul(poly, t), kr_v_exp(kr_v_neg(kr_v_mul(z, z))));
  return kr_v_mul(kr_v_mul(kr_v_set1(0.5f), x),
                  kr_v_select(kr_v_lt(x, kr_v_zero()), tail, kr_v_sub(kr_v_set1(2.0f), tail)));
}

/* 0.5 (1 + tanh y) is the sigmoid of 2 y. */
static inline kr_v gemm_gelu_tanh(kr_v x) {
  const kr_v y =
      kr_v_mul(kr_v_mul(kr_v_set1(1.5957691216f), x), kr_v_fma(kr_v_mul(kr_v_set1(0.044715f), x), x, kr_v_set1(1.0f)));
  return kr_v_mul(x, kr_v_sigmoid(y));
}

static inline kr_v gemm_activated(kr_v v, int32_t activation) {
  switch (activation) {
    case KRAIT_ACT_SILU: return kr_v_silu(v);
    case KRAIT_ACT_GELU: return gemm_gelu_exact(v);
    case KRAIT_ACT_GELU_TANH: return gemm_gelu_tanh(v);
    default: return v;
  }
}

/* What sums of row m are multiplied with. */
static inline float gemm_scale(const krait_gemm_args *a, int64_t batch, int64_t m) {
  const float scale = a->scale != 0 ? a->scale : 1;
  const krait_view *r = &a->row_scale;
  return kr_has(r) ? scale * kr_scalar_load(r->data, m * r->stride[0] + (batch ? batch * r->stride[1] : 0), r->dtype)
                   : scale;
}

/* Elements of a matrix (M,N) of each product, of row m from a column on. */
static inline kr_v gemm_elements(const krait_view *v, int64_t batch, int64_t m, int64_t column, int lanes) {
  return gemm_load(v, m * v->stride[0] + column * v->stride[1] + (batch ? batch * v->stride[2] : 0), v->stride[1],
                   lanes);
}

/* Scaled sums with their bias, of row m from a column on, activated, gated where there is a gate, multiplied by the
 * factor, added to the residual, and stored. */
static inline void gemm_finish_some(const krait_gemm_args *a, int64_t batch, int64_t m, int64_t column, int lanes,
                                    kr_v v, const kr_v *gate) {
  const krait_view *out = &a->out;
  v = gemm_activated(v, a->activation);
  if (gate) v = kr_v_mul(v, *gate);
  if (kr_has(&a->factor)) v = kr_v_mul(v, gemm_elements(&a->factor, batch, m, column, lanes));
  if (kr_has(&a->residual)) v = kr_v_add(v, gemm_elements(&a->residual, batch, m, column, lanes));
  gemm_store(out, m * out->stride[0] + column * out->stride[1] + (batch ? batch * out->stride[2] : 0), out->stride[1],
             v, lanes);
}
static inline void gemm_finish(const krait_gemm_args *a, int64_t batch, int64_t m, int64_t column, kr_v v,
                               const kr_v *gate) {
  gemm_finish_some(a, batch, m, column, gemm_lanes(a->N - column), v, gate);
}

#endif
