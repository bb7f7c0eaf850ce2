/* rnn_pair_cuda.c: plan and launch of two layers of 64 units at once, rnn_pair.cu. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "rnn_pair/rnn_pair_impls.h"
#include "rnn_pair/rnn_pair_params.h"
#include "status.h"

static const kr_kernel pairs[] = {
    {"rnn_pair", "kr_rnn_pair_2"}, {"rnn_pair", "kr_rnn_pair_4"}, {"rnn_pair", "kr_rnn_pair_8"}};

static int is_float16_rows(const kr_view *w) {
  return w->dtype == KRAIT_F16 && w->stride[1] == 1 && w->stride[0] % 4 == 0 && !kr_is_far(w->stride[0]) &&
         (uintptr_t)w->data % 8 == 0;
}

const char *kr_rnn_pair_64_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_pair_args *a = args;
  (void)ctx;
  if (!(a->call.flags & KR_RNN_TF32)) return "KR_RNN_TF32 is not given";
  if (a->H != 64 || a->C > 64 || a->C % 4) return "not 64 units, or inputs not a multiple of four up to 64";
  if (!is_float16_rows(&a->in_weight) || !is_float16_rows(&a->weight) ||
      !is_float16_rows(&a->in_weight2) || !is_float16_rows(&a->weight2))
    return "weights are not aligned float16 rows";
  if (a->x.stride[2] != 1 || a->x.stride[0] % 4 || a->x.stride[1] % 4 || (uintptr_t)a->x.data % 16)
    return "unaligned steps of x";
  if (a->out.stride[2] != 1) return "a step's units are not contiguous";
  if (kr_is_far(a->x.stride[1]) || kr_is_far(a->out.stride[1]) ||
      kr_is_far(a->in_bias.stride[0]) || kr_is_far(a->bias.stride[0]) ||
      kr_is_far(a->in_bias2.stride[0]) || kr_is_far(a->bias2.stride[0]))
    return "strides of steps or gates of 2^20 or more";
  return a->B >= (int64_t)1 << 31 || a->L >= (int64_t)1 << 31 ? "2^31 sequences or steps" : NULL;
}

/* Which kernel: few sequences are spread over all multiprocessors. */
static int rnn_pair_kind_of(const krait_ctx *ctx, int64_t B) {
  const int64_t n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  return B <= n ? 0 : B <= 2 * n ? 1 : 2;
}

/* The first layer's states, then its blocks' progress counters. */
static uint64_t between_bytes(const kr_rnn_pair_args *a) {
  return kr_scratch_round((uint64_t)(a->B * a->L) * 64 * sizeof(float));
}
static uint64_t progress_bytes(const kr_rnn_pair_args *a) {
  return (uint64_t)kr_blocks_of(a->B, 2) * sizeof(int32_t);
}

uint64_t kr_rnn_pair_64_scratch(const krait_ctx *ctx, const void *args) {
  return (void)ctx, between_bytes(args) + kr_scratch_round(progress_bytes(args));
}

static kr_rnn_pair_layer layer_of(const kr_view *in_weight, const kr_view *in_bias, const kr_view *weight,
                                  const kr_view *bias) {
  return (kr_rnn_pair_layer){in_weight->data,
                             weight->data,
                             in_bias->data,
                             bias->data,
                             (int32_t)in_weight->stride[0],
                             (int32_t)weight->stride[0],
                             (int32_t)in_bias->stride[0],
                             (int32_t)bias->stride[0]};
}

int32_t kr_rnn_pair_64(const krait_ctx *ctx, const void *args) {
  const kr_rnn_pair_args *a = args;
  const int kind = rnn_pair_kind_of(ctx, a->B);
  const int64_t per_block = 2 << kind;
  const kr_rnn_pair_params p = {.x = a->x.data,
                              .layers = {layer_of(&a->in_weight, &a->in_bias, &a->weight, &a->bias),
                                         layer_of(&a->in_weight2, &a->in_bias2, &a->weight2, &a->bias2)},
                              .between = a->call.scratch,
                              .out = a->out.data,
                              .progress = (int32_t *)((char *)a->call.scratch + between_bytes(a)),
                              .B = a->B,
                              .x_b = a->x.stride[0],
                              .x_t = (int32_t)a->x.stride[1],
                              .out_b = a->out.stride[0],
                              .out_t = (int32_t)a->out.stride[1],
                              .L = (int32_t)a->L,
                              .C = (int32_t)a->C,
                              .gates = a->call.flags & KRAIT_RNN_LSTM ? 4 : 3,
                              .n_blocks = (int32_t)kr_blocks_of(a->B, per_block),
                              .eps = a->call.flags & KR_RNN_NORM ? a->eps : -1};
  const kr_grid grid = {.x = 2 * (uint32_t)p.n_blocks,
                        .block = per_block == 8 ? KR_RNN_PAIR_THREADS : KR_RNN_PAIR_THREADS + 32,
                        .shared_bytes = (uint32_t)per_block * KR_RNN_SEQUENCE_BYTES,
                        .stream = a->call.stream};
  if (!a->B || !a->L) return KRAIT_OK;
  KR_TRY(kr_cuda_fill(ctx->cuda, p.progress, 0, progress_bytes(a), a->call.stream));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &pairs[kind], &grid, &p, sizeof p);
}
