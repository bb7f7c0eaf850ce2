/* gemm_describe.c: see gemm_describe.h. */
#include "gemm/gemm_describe.h"

#include "view.h"

/* A one-element dimension has no stride; the params gets one that keeps packs aligned. */
kr_gemm_matrix kr_gemm_matrix_of(const kr_view *v, int64_t rows, int64_t columns, int64_t P) {
  kr_gemm_matrix m = {v->data, v->stride[0], v->stride[1], P > 1 ? v->stride[2] : 0, v->dtype, 0};
  const int64_t per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  if (!v->data) return (kr_gemm_matrix){0};
  if (rows == 1) m.row = m.column == 1 ? (columns + 7) / 8 * 8 : 1;
  if (columns == 1) m.column = m.row == 1 ? (rows + 7) / 8 * 8 : 1;
  const int64_t across = m.column == 1 ? m.row : m.column;
  m.packs = (m.column == 1 || m.row == 1) && across % per_pack == 0 && m.batch % per_pack == 0 &&
            (uintptr_t)v->data % 16 == 0 && v->dtype != KRAIT_F64;
  return m;
}

static kr_gemm_matrix gemm_vector_of(const kr_view *v, int64_t P) {
  if (!v->data) return (kr_gemm_matrix){0};
  return (kr_gemm_matrix){v->data, v->stride[0], 0, P > 1 ? v->stride[1] : 0, v->dtype, 0};
}

kr_gemm_params kr_gemm_describe(const kr_gemm_args *a) {
  const int64_t P = kr_gemm_products(a);
  kr_gemm_params p = {.A = kr_gemm_matrix_of(&a->A, a->M, a->K, P),
                    .B = kr_gemm_matrix_of(&a->Bmat, a->K, a->N, P),
                    .B2 = kr_gemm_matrix_of(&a->B2, a->K, a->N, P),
                    .out = kr_gemm_matrix_of(&a->out, a->M, a->N, P),
                    .residual = kr_gemm_matrix_of(&a->residual, a->M, a->N, P),
                    .bias = gemm_vector_of(&a->bias, 1),
                    .bias2 = gemm_vector_of(&a->bias2, 1),
                    .row_scale = gemm_vector_of(&a->row_scale, P),
                    .M = (int32_t)a->M,
                    .N = (int32_t)a->N,
                    .K = (int32_t)a->K,
                    .P = (int32_t)P,
                    .n_splits = 1,
                    .activation = a->activation,
                    .scale = a->scale != 0 ? a->scale : 1};
  p.out.packs = p.out.packs && p.out.column == 1;
  p.residual.packs = p.residual.packs && p.residual.column == 1;
  return p;
}

int kr_gemm_order_of(const kr_gemm_params *p) {
  const int a_k = p->A.column == 1, a_m = p->A.row == 1 && !a_k, b_n = p->B.column == 1, b_k = !b_n;
  if (p->B2.data && (p->B2.column == 1) != b_n) return KR_NO_ORDER;
  if (a_m) return b_n ? KR_ORDER_MN : KR_NO_ORDER;
  return b_k ? KR_ORDER_KK : KR_ORDER_KN;
}
