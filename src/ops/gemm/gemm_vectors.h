/* gemm_vectors.h: shared by the vector implementations of products: vector access to a tensor of any float type and
 * stride, and the epilogue. */
#ifndef KR_GEMM_VECTORS_H
#define KR_GEMM_VECTORS_H

#include "op_args.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

static inline int gemm_lanes(int64_t n) { return n < 0 ? 0 : n > KR_VL ? KR_VL : (int)n; }

/* Loads lanes `stride` elements apart. */
static inline kr_v gemm_load(const kr_view *view, int64_t at, int64_t stride, int lanes) {
  if (stride == 1) return lanes > 0 ? kr_v_load_as(view->data, at, lanes, view->dtype) : kr_v_zero();
  float values[KR_VL] = {0};
  for (int i = 0; i < lanes; i++) values[i] = kr_scalar_load(view->data, at + i * stride, view->dtype);
  return kr_v_load(values);
}

static inline void gemm_store(const kr_view *view, int64_t at, int64_t stride, kr_v v, int lanes) {
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

/* The factor of row m's sums. */
static inline float gemm_scale(const kr_gemm_args *a, int64_t batch, int64_t m) {
  const float scale = a->scale != 0 ? a->scale : 1;
  const kr_view *r = &a->row_scale;
  return kr_has(r) ? scale * kr_scalar_load(r->data, m * r->stride[0] + (batch ? batch * r->stride[1] : 0), r->dtype)
                   : scale;
}

/* Elements of row m of an (M,N) matrix of each product, from a column. */
static inline kr_v gemm_elements(const kr_view *v, int64_t batch, int64_t m, int64_t column, int lanes) {
  return gemm_load(v, m * v->stride[0] + column * v->stride[1] + (batch ? batch * v->stride[2] : 0), v->stride[1],
                   lanes);
}

/* The epilogue of row m from a column: scale, bias, activation, gate if any, factor, residual, store. */
static inline void gemm_finish_some(const kr_gemm_args *a, int64_t batch, int64_t m, int64_t column, int lanes,
                                    kr_v v, const kr_v *gate) {
  const kr_view *out = &a->out;
  v = gemm_activated(v, a->activation);
  if (gate) v = kr_v_mul(v, *gate);
  if (kr_has(&a->factor)) v = kr_v_mul(v, gemm_elements(&a->factor, batch, m, column, lanes));
  if (kr_has(&a->residual)) v = kr_v_add(v, gemm_elements(&a->residual, batch, m, column, lanes));
  gemm_store(out, m * out->stride[0] + column * out->stride[1] + (batch ? batch * out->stride[2] : 0), out->stride[1],
             v, lanes);
}
static inline void gemm_finish(const kr_gemm_args *a, int64_t batch, int64_t m, int64_t column, kr_v v,
                               const kr_v *gate) {
  gemm_finish_some(a, batch, m, column, gemm_lanes(a->N - column), v, gate);
}

/* Vector v of a row's sums, with scale and bias; is_plain: these are already applied. */
KR_INLINE kr_v gemm_scaled(int is_plain, const float *sums, const float *bias, kr_v scale, int v) {
  const kr_v sum = kr_v_load(sums + v * KR_VL);
  return is_plain ? sum : kr_v_fma(sum, scale, kr_v_load(bias + v * KR_VL));
}

/* Whole vectors of contiguous columns; type and vectors are constants after inlining. */
KR_INLINE void gemm_finish_whole(const int32_t type, const int vectors, const kr_gemm_args *a, int is_plain,
                                 const float *sums, const float *bias, int64_t batch, int64_t m, int rows,
                                 int64_t column) {
  const kr_view *out = &a->out, *r = &a->residual, *f = &a->factor;
  const int has_residual = kr_has(r), has_factor = kr_has(f);
  int64_t to = m * out->stride[0] + column + (batch ? batch * out->stride[2] : 0),
          added = m * r->stride[0] + column + (batch ? batch * r->stride[2] : 0),
          times = m * f->stride[0] + column + (batch ? batch * f->stride[2] : 0);
  for (int k = 0; k < rows;
       k++, sums += vectors * KR_VL, to += out->stride[0], added += r->stride[0], times += f->stride[0]) {
    const kr_v scale = kr_v_set1(is_plain ? 1 : gemm_scale(a, batch, m + k));
    for (int v = 0; v < vectors; v++) {
      kr_v x = gemm_activated(gemm_scaled(is_plain, sums, bias, scale, v), a->activation);
      if (has_factor) x = kr_v_mul(x, kr_v_load_as(f->data, times + v * KR_VL, KR_VL, type));
      if (has_residual) x = kr_v_add(x, kr_v_load_as(r->data, added + v * KR_VL, KR_VL, type));
      kr_v_store_as(out->data, to + v * KR_VL, KR_VL, type, x);
    }
  }
}

/* Absent, or rows laid out like the result's. */
static inline int gemm_lies_as_out(const kr_gemm_args *a, const kr_view *v) {
  return !kr_has(v) || (v->stride[1] == 1 && v->dtype == a->out.dtype);
}

/* Rows of sums, `vectors` (a constant) contiguous ones from a column; with a gate, the second half multiplies the
 * first. is_plain: scale and bias are already applied. */
KR_INLINE void gemm_finish_rows(const kr_gemm_args *a, int is_plain, const int vectors, const float *sums,
                                const float *bias, int64_t batch, int64_t m, int rows, int64_t column) {
  const int is_gated = kr_has(&a->B2), n = is_gated ? vectors / 2 : vectors;
  if (!is_gated && column + vectors * KR_VL <= a->N && a->out.stride[1] == 1 && gemm_lies_as_out(a, &a->residual) &&
      gemm_lies_as_out(a, &a->factor)) {
    if (a->out.dtype == KRAIT_F32)
      gemm_finish_whole(KRAIT_F32, vectors, a, is_plain, sums, bias, batch, m, rows, column);
    else if (a->out.dtype == KRAIT_F16)
      gemm_finish_whole(KRAIT_F16, vectors, a, is_plain, sums, bias, batch, m, rows, column);
    else gemm_finish_whole(KRAIT_BF16, vectors, a, is_plain, sums, bias, batch, m, rows, column);
    return;
  }
  for (int k = 0; k < rows; k++, sums += vectors * KR_VL) {
    const kr_v scale = kr_v_set1(gemm_scale(a, batch, m + k));
    for (int v = 0; v < n; v++) {
      const kr_v first = gemm_scaled(is_plain, sums, bias, scale, v);
      kr_v gate = first;
      if (is_gated) gate = gemm_scaled(is_plain, sums, bias, scale, v + n);
      gemm_finish(a, batch, m + k, column + v * KR_VL, first, is_gated ? &gate : NULL);
    }
  }
}

#endif
