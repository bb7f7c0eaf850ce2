/* mamba_decode_cuda.c: a call's params, and which types and places of tensors a GPU's kernel accepts. */
#include "mamba_decode/mamba_decode_params.h"
#include "mamba_decode_impls.h"
#include "view.h"

/* ---- the params -------------------------------------------------------------------------------------------------- */

static kr_decode_matrix words_of(const kr_view *v, const kr_view *scales) {
  return (kr_decode_matrix){v->data,      4 * v->stride[0],  4 * v->stride[1],
                            scales->data, scales->stride[0], scales->stride[1]};
}

static int64_t n_columns_of(const kr_mamba_decode_args *a) {
  return kr_has(&a->dt_proj) ? a->R + 2 * a->N : 2 * a->G * a->N + a->H;
}

kr_decode_params kr_mamba_decode_describe(const kr_mamba_decode_args *a) {
  const int64_t is_second = !kr_has(&a->dt_proj);
  kr_decode_params p = {.in_proj = kr_decode_matrix_of(&a->in_proj),
                        .x_proj = kr_decode_matrix_of(&a->x_proj),
                        .dt_proj = kr_decode_matrix_of(&a->dt_proj),
                        .out_proj = kr_decode_matrix_of(&a->out_proj),
                        .norm = kr_decode_halves_of(&a->norm_weight),
                        .conv = kr_decode_halves_of(&a->conv_weight),
                        .conv_bias = kr_decode_halves_of(&a->conv_bias),
                        .gate_norm = kr_decode_halves_of(&a->gate_norm),
                        .dt_bias = kr_decode_floats_of(&a->dt_bias),
                        .A = kr_decode_floats_of(&a->A),
                        .D = kr_decode_floats_of(&a->Dvec),
                        .conv_state = kr_decode_state_of(&a->conv_state),
                        .ssm_state = kr_decode_state_of(&a->ssm_state),
                        .x = a->x.data,
                        .out = a->out.data,
                        .slots = a->state_batch_indices.data,
                        .eps = a->eps,
                        .n_layers = (int32_t)a->Y,
                        .n_slots = (int32_t)a->n_states,
                        .width = (int32_t)a->D,
                        .inner = (int32_t)a->E,
                        .N = (int32_t)a->N,
                        .W = (int32_t)a->W,
                        .R = (int32_t)a->R,
                        .H = (int32_t)a->H,
                        .n_columns = (int32_t)n_columns_of(a),
                        .kind = is_second ? KR_DECODE_MAMBA2 : KR_DECODE_MAMBA};
  if (kr_has(&a->in_proj_qweight)) {
    p.in_proj = words_of(&a->in_proj_qweight, &a->in_proj_scales),
    p.out_proj = words_of(&a->out_proj_qweight, &a->out_proj_scales);
    p.x_proj = words_of(&a->x_proj_qweight, &a->x_proj_scales);
  }
  p.head_width = (int32_t)(is_second ? a->E / a->H : 1);
  return p;
}

/* ---- accepted calls ---------------------------------------------------------------------------------------------- */

int kr_decode_lies_in(const kr_view *v, int n_dims, int64_t elements) {
  int64_t strides = 0;
  for (int i = 0; i + 1 < n_dims; i++) strides |= v->stride[i];
  return !v->data || (v->stride[n_dims - 1] == 1 && strides % elements == 0 &&
                      (uintptr_t)v->data % ((uintptr_t)elements * krait_dtype_bytes(v->dtype)) == 0);
}

static int is_of(const kr_view *v, int32_t dtype) { return !v->data || v->dtype == dtype; }

static const char *refuse_types(const kr_mamba_decode_args *a) {
  const kr_view *const halves[] = {&a->x,         &a->norm_weight,    &a->in_proj,       &a->conv_weight,
                                      &a->conv_bias, &a->x_proj,         &a->dt_proj,       &a->gate_norm,
                                      &a->out_proj,  &a->in_proj_scales, &a->x_proj_scales, &a->out_proj_scales};
  const int is_q8 = kr_has(&a->in_proj_qweight);
  if (a->x.dtype != KRAIT_F16 && (is_q8 || a->x.dtype != KRAIT_BF16))
    return is_q8 ? "x is not float16 beside weights of 8 bits" : "x is not of 16 bits";
  for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
    if (!is_of(halves[i], a->x.dtype)) return "weights of another type than x";
  const kr_view *const states[] = {&a->conv_state, &a->ssm_state};
  for (int i = 0; i < 2; i++)
    if (states[i]->dtype != KRAIT_F32 && states[i]->dtype != a->x.dtype) return "states of another 16-bit type than x";
  return NULL;
}

static const char *refuse_places(const kr_mamba_decode_args *a) {
  const int rows = kr_decode_lies_in(&a->in_proj, 3, 8) && kr_decode_lies_in(&a->x_proj, 3, 8) &&
                   kr_decode_lies_in(&a->dt_proj, 3, 8) && kr_decode_lies_in(&a->out_proj, 3, 8) &&
                   kr_decode_lies_in(&a->in_proj_qweight, 3, 4) && kr_decode_lies_in(&a->x_proj_qweight, 3, 4) &&
                   kr_decode_lies_in(&a->out_proj_qweight, 3, 4) && kr_decode_lies_in(&a->in_proj_scales, 3, 2) &&
                   kr_decode_lies_in(&a->x_proj_scales, 3, 2) && kr_decode_lies_in(&a->out_proj_scales, 3, 2);
  const int fours = kr_decode_lies_in(&a->x, 2, 4) && kr_decode_lies_in(&a->norm_weight, 2, 4) &&
                    kr_decode_lies_in(&a->gate_norm, 2, 4) && kr_decode_lies_in(&a->out, 2, 4) &&
                    kr_decode_lies_in(&a->ssm_state, 4, 4) && (!kr_has(&a->dt_proj) || kr_decode_lies_in(&a->A, 3, 4));
  const int ones = kr_decode_lies_in(&a->conv_weight, 3, 1) && kr_decode_lies_in(&a->conv_bias, 2, 1) &&
                   kr_decode_lies_in(&a->dt_bias, 2, 1) && kr_decode_lies_in(&a->Dvec, 2, 1) &&
                   (kr_has(&a->dt_proj) || kr_decode_lies_in(&a->A, 2, 1));
  return rows && fours && ones ? NULL : "weights or states do not lie together, or unaligned";
}

const char *kr_mamba_decode_refuse_tensors(const kr_mamba_decode_args *a) {
  const char *why = refuse_types(a);
  return why ? why : refuse_places(a);
}
