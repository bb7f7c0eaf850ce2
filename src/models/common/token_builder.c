/* token_builder.c: how a weight is multiplied follows from how it is stored. */
#include "token_builder.h"

#include <stdio.h>

#include "ctx.h"

/* ---- weights ---- */

static kr_tensor record_named(const kr_token_builder *b, const char *name, int32_t dtype, kr_dims dims,
                              const void *data) {
  char layer[24] = "", full[96];
  if (b->layer >= 0) snprintf(layer, sizeof layer, "%lld.", (long long)b->layer);
  snprintf(full, sizeof full, "%s%s%s%s", b->part ? b->part : "", b->part ? "." : "", layer, name);
  return data ? kr_graph_weight(b->g, full, dtype, dims, data) : 0;
}

kr_tensor kr_record_weight(const kr_token_builder *b, const char *name, const kr_weight_ref *w, kr_dims dims) {
  return w ? record_named(b, name, w->dtype, dims, w->data) : 0;
}

kr_tensor kr_record_cast(const kr_token_builder *b, const char *name, kr_tensor x) {
  if (kr_graph_dtype(b->g, x) == b->dtype) return x;
  const kr_tensor out = kr_graph_temp(b->g, b->dtype, kr_graph_dims(b->g, x));
  copy(b, name, x, out);
  return out;
}

kr_tensor kr_record_gather(const kr_token_builder *b, const char *name, kr_tensor table, kr_tensor index,
                           kr_tensor out) {
  return kr_graph_call(
      b->g, name, &kr_op_gather_rows,
      &(kr_gather_rows_args){.table = view(b, table), .index = view(b, index), .out = view(b, out)});
}

/* ---- products ---- */

/* Whether a GPU reads a weight's 8-bit data directly: for few rows. */
static int reads_words(const kr_token_builder *b, const kr_weight_ref *w, kr_tensor x) {
  return w->qweight && b->reads_qweight && kr_graph_dims(b->g, x).size[0] <= KR_MOST_BY_QWEIGHT &&
         b->ctx->caps & KRAIT_CAP_CUDA_AMPERE && kr_graph_view(b->g, x).stride[0] % 8 == 0;
}

static kr_tensor record_q4k(const kr_token_builder *b, const char *name, kr_tensor x, const kr_linear *p,
                            kr_tensor bias, kr_tensor out) {
  const kr_tensor words = kr_record_weight(b, name, p->w, KR_DIMS(p->N, p->K / 256 * 36));
  return kr_graph_call(
      b->g, name, &kr_op_gemm_q4k,
      &(kr_gemm_q4k_args){.A = view(b, x), .qweight = view(b, words), .bias = view(b, bias), .out = view(b, out)});
}

static kr_tensor record_q8(const kr_token_builder *b, const char *name, kr_tensor x, const kr_linear *p, kr_tensor bias,
                           kr_tensor out) {
  const int is_kept = !p->w->scales; /* beside float16 */
  char of_scales[80];
  snprintf(of_scales, sizeof of_scales, "%s.scales", name);
  const kr_tensor words =
                      record_named(b, name, KRAIT_I32, KR_DIMS(p->N, p->K / 4), is_kept ? p->w->qweight : p->w->data),
                  scales = record_named(b, of_scales, KRAIT_F16, KR_DIMS(p->N, p->K / 32),
                                        is_kept ? p->w->qscales : p->w->scales);
  return kr_graph_call(b->g, name, &kr_op_gemm_q8,
                       &(kr_gemm_q8_args){.A = view(b, x),
                                             .qweight = view(b, words),
                                             .scales = view(b, scales),
                                             .bias = view(b, bias),
                                             .out = view(b, out)});
}

/* Of products that read blocks, which have no scale of their own: x first, so that a bias stays as it is. */
static kr_tensor scale_rows(const kr_token_builder *b, const char *name, kr_tensor x, float scale) {
  if (scale == 0 || scale == 1) return x;
  const kr_tensor scaled = kr_graph_temp(b->g, b->dtype, kr_graph_dims(b->g, x));
  scale_into(b, name, (double)scale, x, scaled);
  return scaled;
}

kr_tensor kr_record_linear(const kr_token_builder *b, const char *name, kr_tensor x, const kr_linear *p) {
  char of_bias[80];
  snprintf(of_bias, sizeof of_bias, "%s_bias", name);
  const kr_tensor bias = p->bias_row ? p->bias_row : kr_record_weight(b, of_bias, p->bias, KR_DIMS(p->N)),
                  out = p->out ? p->out : kr_graph_temp(b->g, b->dtype, KR_DIMS(kr_graph_dims(b->g, x).size[0], p->N));
  if (p->w && p->w->dtype == KRAIT_I32 && !p->w->scales)
    return record_q4k(b, name, scale_rows(b, name, x, p->scale), p, bias, out);
  if (p->w && (p->w->scales || reads_words(b, p->w, x)))
    return record_q8(b, name, scale_rows(b, name, x, p->scale), p, bias, out);
  const kr_tensor matrix = p->w ? kr_record_weight(b, name, p->w, KR_DIMS(p->N, p->K)) : p->matrix;
  return kr_graph_call(b->g, name, &kr_op_gemm,
                       &(kr_gemm_args){.activation = p->activation,
                                          .scale = p->scale,
                                          .A = view(b, x),
                                          .Bmat = transposed(b, matrix),
                                          .bias = view(b, bias),
                                          .residual = view(b, p->residual),
                                          .out = view(b, out)});
}

void kr_record_gated(const kr_token_builder *b, const char *name, kr_tensor x, const kr_gated *p, kr_tensor out) {
  kr_graph_call(b->g, name, &kr_op_gemm,
                &(kr_gemm_args){.activation = p->activation,
                                   .scale = p->scale,
                                   .A = view(b, x),
                                   .Bmat = transposed(b, p->gate),
                                   .B2 = transposed(b, p->up),
                                   .bias = view(b, p->gate_bias),
                                   .bias2 = view(b, p->up_bias),
                                   .out = view(b, out)});
}

/* ---- norms ---- */

kr_tensor kr_record_norm(const kr_token_builder *b, const char *name, kr_tensor x, kr_tensor *stream,
                         const kr_norm *norm) {
  const kr_dims dims = kr_graph_dims(b->g, x);
  const kr_tensor sum = stream ? kr_graph_temp(b->g, KRAIT_F32, dims) : 0,
                  out = norm->out ? norm->out : kr_graph_temp(b->g, b->dtype, dims);
  kr_graph_call(b->g, name, &kr_op_add_norm,
                &(kr_add_norm_args){.call.flags = norm->is_rms ? KRAIT_NORM_RMS : 0,
                                       .eps = norm->eps,
                                       .x = view(b, x),
                                       .residual = view(b, stream ? *stream : 0),
                                       .weight = view(b, norm->weight),
                                       .bias = view(b, norm->bias),
                                       .out = view(b, out),
                                       .residual_out = view(b, sum)});
  if (stream) *stream = sum;
  return out;
}
