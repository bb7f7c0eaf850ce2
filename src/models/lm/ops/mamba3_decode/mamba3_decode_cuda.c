/* mamba3_decode_cuda.c: which calls the streaming kernel of Mamba-3 accepts, its params, and its launch: all blocks
 * together. */
#include "cuda_impl.h"
#include "lm_ops.h"
#include "mamba3_decode/mamba3_decode.h"
#include "mamba3_decode/mamba3_decode_params.h"
#include "mamba_decode/mamba_decode_impls.h"
#include "status.h"
#include "view.h"

/* ---- the params -------------------------------------------------------------------------------------------------- */

static kr_stream3_params params_of_mamba3_decode(const krait_ctx *ctx, const kr_mamba3_decode_args *a) {
  const kr_decode_params p = {.in_proj = kr_decode_matrix_of(&a->in_proj),
                              .out_proj = kr_decode_matrix_of(&a->out_proj),
                              .norm = kr_decode_halves_of(&a->norm_weight),
                              .dt_bias = kr_decode_floats_of(&a->dt_bias),
                              .D = kr_decode_floats_of(&a->Dvec),
                              .ssm_state = kr_decode_state_of(&a->ssm_state),
                              .x = a->x.data,
                              .out = a->out.data,
                              .slots = a->state_batch_indices.data,
                              .eps = a->eps,
                              .n_layers = (int32_t)a->Y,
                              .n_slots = (int32_t)a->n_states,
                              .width = (int32_t)a->D,
                              .inner = (int32_t)(a->H * a->P),
                              .N = (int32_t)a->N,
                              .H = (int32_t)a->H,
                              .n_columns = (int32_t)kr_mamba3_decode_columns(a),
                              .kind = KR_DECODE_MAMBA3,
                              .head_width = (int32_t)a->P};
  return (kr_stream3_params){.s = kr_stream_params_of(ctx, &p),
                             .BC_norm = kr_decode_floats_of(&a->BC_norm),
                             .B_bias = kr_decode_floats_of(&a->B_bias),
                             .C_bias = kr_decode_floats_of(&a->C_bias),
                             .angles = kr_decode_state_of(&a->angle_state),
                             .keys = kr_decode_state_of(&a->B_state),
                             .values = kr_decode_state_of(&a->x_state),
                             .M = (int32_t)a->M,
                             .flags = a->call.flags,
                             .A_floor = a->A_floor,
                             .inverse_N = 1.0f / (float)a->N};
}

/* ---- accepted calls ---------------------------------------------------------------------------------------------- */

static const char *refuse_mamba3_tensors(const kr_mamba3_decode_args *a) {
  const int32_t dtype = a->x.dtype;
  if (dtype != KRAIT_F16 && dtype != KRAIT_BF16) return "x is not of 16 bits";
  if (a->norm_weight.dtype != dtype || a->in_proj.dtype != dtype || a->out_proj.dtype != dtype)
    return "weights of another type than x";
  if (a->ssm_state.dtype != KRAIT_F32 && a->ssm_state.dtype != dtype) return "states of another 16-bit type than x";
  if (!kr_decode_lies_in(&a->in_proj, 3, 8) || !kr_decode_lies_in(&a->out_proj, 3, 8) || a->in_proj.stride[1] != a->D ||
      a->out_proj.stride[1] != a->H * a->P)
    return "gaps between rows of a weight, or unaligned ones";
  const int fours = kr_decode_lies_in(&a->x, 2, 4) && kr_decode_lies_in(&a->norm_weight, 2, 4) &&
                    kr_decode_lies_in(&a->out, 2, 4) && kr_decode_lies_in(&a->ssm_state, 4, 4) &&
                    kr_decode_lies_in(&a->B_state, 4, 4) && kr_decode_lies_in(&a->BC_norm, 2, 4) &&
                    kr_decode_lies_in(&a->B_bias, 3, 4) && kr_decode_lies_in(&a->C_bias, 3, 4);
  const int ones = kr_decode_lies_in(&a->dt_bias, 2, 1) && kr_decode_lies_in(&a->Dvec, 2, 1) &&
                   kr_decode_lies_in(&a->angle_state, 4, 1) && kr_decode_lies_in(&a->x_state, 4, 1) &&
                   a->x_state.stride[2] == a->P;
  return fours && ones ? NULL : "weights or states do not lie together, or unaligned";
}

static const char *refuse_mamba3_shape(const krait_ctx *ctx, const kr_mamba3_decode_args *a) {
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors, E = a->H * a->P;
  if (a->B != 1) return "more than one sequence";
  if (a->D != KR_STREAM_WIDTH || E != 2 * a->D) return "widths other than 2560 and 5120";
  if (a->N % 4 || a->N > KR_STREAM_MOST_N) return "N is no multiple of 4, or above 128";
  if (E > KR_STREAM_MOST_CHANNELS * blocks) return "few multiprocessors for the width";
  if (a->P < (E + blocks - 1) / blocks) return "heads narrower than a block's channels";
  if (a->Y >= 1 << 16 || a->n_states >= INT32_MAX) return "too large";
  return NULL;
}

const char *kr_mamba3_decode_streamed_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decode_args *a = args;
  if (!kr_cuda_has_cooperative(ctx->cuda)) return "a driver that does not start all blocks together";
  const char *why = refuse_mamba3_shape(ctx, a);
  if (!why) why = refuse_mamba3_tensors(a);
  if (why) return why;
  const kr_stream3_params p = params_of_mamba3_decode(ctx, a);
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (blocks * p.s.channel_pairs > KR_STREAM_WORKERS * KR_STREAM_U_PAIRS ||
      blocks * p.s.stream_pairs > KR_STREAM_WORKERS * KR_STREAM_STREAM_PAIRS ||
      blocks * p.s.column_pairs > KR_STREAM_WORKERS * KR_STREAM_COLUMN_PAIRS)
    return "too many blocks, or columns for them";
  return p.s.window > 0 ? NULL : "a block's memory does not hold its ring";
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

uint64_t kr_mamba3_decode_streamed_scratch(const krait_ctx *ctx, const void *args) {
  kr_stream3_params p = params_of_mamba3_decode(ctx, args);
  return kr_stream_lay_out_words(&p.s, kr_cuda_info(ctx->cuda)->n_multiprocessors, NULL);
}

int32_t kr_mamba3_decode_streamed(const krait_ctx *ctx, const void *args) {
  static const kr_kernel f16 = {"mamba3_decode_f16", "kr_mamba3_stream"},
                         bf16 = {"mamba3_decode_bf16", "kr_mamba3_stream"};
  const kr_mamba3_decode_args *a = args;
  const int64_t blocks = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  kr_stream3_params p = params_of_mamba3_decode(ctx, a);
  const uint64_t words = kr_stream_lay_out_words(&p.s, blocks, a->call.scratch);
  const kr_grid grid = {.x = (uint32_t)blocks,
                        .block = KR_STREAM_THREADS,
                        .shared_bytes = (uint32_t)p.s.at.end,
                        .stream = a->call.stream,
                        .is_cooperative = 1};
  KR_TRY(kr_cuda_fill(ctx->cuda, a->call.scratch, 0, words, a->call.stream)); /* no word has a layer's tag */
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, a->x.dtype == KRAIT_F16 ? &f16 : &bf16, &grid, &p, sizeof p);
}
