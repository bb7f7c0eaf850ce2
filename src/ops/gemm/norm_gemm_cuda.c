/* norm_gemm_cuda.c: calls accepted by the one- and two-row products with a fused norm (gemm_m16.cu, gemm_q8.cu). */
#include "gemm/gemm_impls.h"
#include "gemm/gemm_q8_impls.h"
#include "gemm/norm_gemm_impls.h"
#include "op_list.h"
#include "turing_impl.h"
#include "view.h"

/* The factors' type; that of the row where weights are 8-bit. */
static int32_t norm_gemm_dtype_of(const kr_norm_gemm_args *a) {
  return kr_has(&a->qweight) ? a->weight.dtype : a->Bmat.dtype;
}

/* A float32 row before weights of 16 bits is treated as a residual added to zeros. */
static int is_float_row(const kr_norm_gemm_args *a) {
  return a->x.dtype == KRAIT_F32 && norm_gemm_dtype_of(a) != KRAIT_F32 && !kr_has(&a->z);
}

static kr_gemm_args norm_gemm_product_of(const kr_norm_gemm_args *a) {
  kr_gemm_args product = {.call = {.size = sizeof(kr_gemm_args), .flags = a->call.flags, .stream = a->call.stream},
                          .M = a->M,
                          .N = a->N,
                          .K = a->K,
                          .activation = a->activation,
                          .A = a->x,
                          .Bmat = a->Bmat,
                          .B2 = a->B2,
                          .bias = a->bias,
                          .out = a->out};
  if (is_float_row(a)) product.A.dtype = a->Bmat.dtype;
  return product;
}

/* Rows of the operands' type or float32, accessible in packs. */
static int is_packed_for_norm_gemm(const kr_view *v, int64_t M, int32_t dtype) {
  return !kr_has(v) || ((v->dtype == KRAIT_F32 || v->dtype == dtype) && v->stride[1] == 1 &&
                        (M == 1 || v->stride[0] % 8 == 0) && (uintptr_t)v->data % 16 == 0);
}

/* Four taps of the operands' type, channels in multiples of four, float32 states. */
static const char *refuse_norm_gemm_conv(const kr_norm_gemm_args *a) {
  const kr_view *s = &a->conv_state, *w = &a->conv_weight, *b = &a->conv_bias, *out = &a->conv_out;
  if (!kr_has(w)) return NULL;
  if (a->W != 4 || a->C % 4 || a->conv_from % 4 || a->n_states < 1)
    return "a convolution of other than four taps, not of fours, or without states";
  const int32_t dtype = norm_gemm_dtype_of(a);
  if (w->dtype != dtype || (kr_has(b) && b->dtype != dtype) || s->dtype != KRAIT_F32 ||
      (out->dtype != KRAIT_F32 && out->dtype != dtype))
    return "taps, bias or conv_out of another type than the factors, or a state other than float32";
  const int64_t rows = a->M > 1 ? out->stride[0] % 4 : 0;
  const uintptr_t at = (uintptr_t)s->data | (uintptr_t)w->data | (kr_has(b) ? (uintptr_t)b->data * 2 : 0) |
                       (uintptr_t)out->data * (out->dtype == KRAIT_F32 ? 1 : 2);
  return w->stride[1] == 1 && w->stride[0] == 4 && (!kr_has(b) || b->stride[0] == 1) && out->stride[1] == 1 && !rows &&
                 s->stride[2] == 1 && s->stride[1] == 3 && s->stride[0] % 4 == 0 && at % 16 == 0
             ? NULL
             : "taps, bias, state or conv_out with gaps, or not aligned";
}

/* Checks the norm's part of a call. */
static const char *refuse_norm_gemm_norm(const kr_norm_gemm_args *a) {
  const int32_t dtype = norm_gemm_dtype_of(a);
  if (is_float_row(a) && kr_has(&a->residual)) return "something is added to a row of float32";
  if (a->out.dtype != KRAIT_F32 && a->out.dtype != dtype) return "out is neither float32 nor of the factors' type";
  if (!kr_has(&a->weight) || a->weight.dtype != dtype || (uintptr_t)a->weight.data % 16 ||
      (a->weight.stride[0] != 1 && a->K > 1))
    return "no weight of the norm of the factors' type, without gaps and aligned to 16 bytes";
  if (kr_has(&a->z) && a->z.dtype != dtype) return "a gate of another type";
  return is_packed_for_norm_gemm(&a->z, a->M, dtype) && is_packed_for_norm_gemm(&a->residual, a->M, dtype) &&
                 is_packed_for_norm_gemm(&a->residual_out, a->M, dtype)
             ? refuse_norm_gemm_conv(a)
             : "rows of z, residual or residual_out have gaps or are not aligned to 16 bytes";
}

const char *kr_norm_gemm_few_refuse(const krait_ctx *ctx, const void *args) {
  const kr_norm_gemm_args *a = args;
  if (kr_has(&a->qweight)) return "weights of 8 bits";
  if (kr_has(&a->z) && kr_has(&a->B2)) return "a gate before the norm and one behind it";
  const kr_gemm_args product = norm_gemm_product_of(a);
  const char *why = kr_gemm_normed_refuse(ctx, &product, kr_has(&a->conv_weight));
  return why ? why : refuse_norm_gemm_norm(a);
}

static kr_conv_step conv_of(const kr_norm_gemm_args *a) {
  return (kr_conv_step){.state = a->conv_state.data,
                        .weight = a->conv_weight.data,
                        .bias = a->conv_bias.data,
                        .slots = a->conv_state_indices.data,
                        .out = a->conv_out.data,
                        .state_row = a->conv_state.stride[0],
                        .slot_step = a->conv_state_indices.stride[0],
                        .out_row = a->conv_out.stride[0],
                        .from = (int32_t)a->conv_from,
                        .channels = (int32_t)a->C,
                        .n_states = (int32_t)a->n_states,
                        .out_is_float = a->conv_out.dtype == KRAIT_F32};
}

static kr_normed normed_of(const kr_norm_gemm_args *a) {
  const kr_view *other = kr_has(&a->z) ? &a->z : is_float_row(a) ? &a->x : &a->residual;
  return (kr_normed){.other = other->data,
                     .weight = a->weight.data,
                     .sum = a->residual_out.data,
                     .other_row = other->stride[0],
                     .sum_row = a->residual_out.stride[0],
                     .eps = a->eps,
                     .inverse_K = (float)(1 / (double)a->K),
                     .other_is_float = other->dtype == KRAIT_F32,
                     .sum_is_float = a->residual_out.dtype == KRAIT_F32};
}

const char *kr_norm_gemm_few_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(norm_gemm_dtype_of(args));
  return why ? why : kr_norm_gemm_few_refuse(ctx, args);
}

static int32_t run_norm_gemm_few(const krait_ctx *ctx, const kr_norm_gemm_args *a, uint64_t tier) {
  const kr_gemm_args product = norm_gemm_product_of(a);
  const kr_normed norm = normed_of(a);
  const kr_conv_step conv = conv_of(a);
  return a->M ? kr_gemm_normed(ctx, &product, &norm, kr_has(&a->z), &conv, tier) : KRAIT_OK;
}

int32_t kr_norm_gemm_few(const krait_ctx *ctx, const void *args) {
  return run_norm_gemm_few(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_norm_gemm_few_turing(const krait_ctx *ctx, const void *args) {
  return run_norm_gemm_few(ctx, args, KRAIT_CAP_CUDA_TURING);
}

/* ---- 8-bit weights ----------------------------------------------------------------------------------------------- */

static kr_gemm_q8_args quantized_product_of(const kr_norm_gemm_args *a) {
  kr_gemm_q8_args product = {
      .call = {.size = sizeof(kr_gemm_q8_args), .flags = a->call.flags, .stream = a->call.stream},
      .M = a->M,
      .N = a->N,
      .S = a->S,
      .A = a->x,
      .qweight = a->qweight,
      .scales = a->scales,
      .bias = a->bias,
      .out = a->out};
  if (is_float_row(a)) product.A.dtype = a->weight.dtype;
  return product;
}

const char *kr_norm_gemm_q8_refuse(const krait_ctx *ctx, const void *args) {
  const kr_norm_gemm_args *a = args;
  if (!kr_has(&a->qweight)) return "weights of other than 8 bits";
  if (kr_has(&a->z) || a->activation != KRAIT_ACT_NONE) return "a gate or an activation";
  const kr_gemm_q8_args product = quantized_product_of(a);
  const char *why = kr_gemm_q8_normed_refuse(ctx, &product);
  return why                                  ? why
         : product.A.dtype != a->weight.dtype ? "x of another type than the norm's weight"
                                              : refuse_norm_gemm_norm(a);
}

const char *kr_norm_gemm_q8_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(norm_gemm_dtype_of(args));
  return why ? why : kr_norm_gemm_q8_refuse(ctx, args);
}

static int32_t run_norm_gemm_q8(const krait_ctx *ctx, const kr_norm_gemm_args *a, uint64_t tier) {
  const kr_gemm_q8_args product = quantized_product_of(a);
  const kr_normed norm = normed_of(a);
  const kr_conv_step conv = conv_of(a);
  return a->M && a->N ? kr_gemm_q8_normed(ctx, &product, &norm, &conv, tier) : KRAIT_OK;
}

int32_t kr_norm_gemm_q8(const krait_ctx *ctx, const void *args) {
  return run_norm_gemm_q8(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_norm_gemm_q8_turing(const krait_ctx *ctx, const void *args) {
  return run_norm_gemm_q8(ctx, args, KRAIT_CAP_CUDA_TURING);
}
