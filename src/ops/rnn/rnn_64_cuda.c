/* rnn_64_cuda.c: plans and launches of the rows for 64 units and for more than KR_RNN_MOST_UNITS. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "rnn/rnn_params.h"
#include "rnn/rnn_impls.h"
#include "status.h"
#include "view.h"

static const kr_kernel held[] = {{"rnn_64", "kr_rnn_64_1"}, {"rnn_64", "kr_rnn_64_2"}, {"rnn_64", "kr_rnn_64_4"}},
                       by_tensor_cores[] = {{"rnn_64_tensor", "kr_rnn_64_tensor_4"},
                                            {"rnn_64_tensor", "kr_rnn_64_tensor_8"}},
                       wide = {"rnn_64", "kr_rnn_wide"};

static int64_t n_multiprocessors(const krait_ctx *ctx) { return kr_cuda_info(ctx->cuda)->n_multiprocessors; }

static int is_too_long(int64_t B, int64_t L) { return B >= (int64_t)1 << 31 || L >= (int64_t)1 << 31; }

static const char *refuse_strides(const kr_rnn_args *a) {
  if (is_too_long(a->B, a->L)) return "2^31 sequences or steps";
  if (a->x.stride[2] != 1 || (a->H > 1 && a->out.stride[2] != 1)) return "a step's units are not contiguous";
  if (kr_is_far(a->x.stride[1]) || kr_is_far(a->out.stride[1]) ||
      kr_is_far(a->weight.stride[0]) || kr_is_far(a->weight.stride[1]) ||
      kr_is_far(a->bias.stride[0]))
    return "strides of steps or gates of 2^20 or more";
  return NULL;
}
const char *kr_rnn_64_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  (void)ctx;
  if (kr_has(&a->cells)) return "cells are requested";
  return a->H != 64 ? "not 64 units" : refuse_strides(a);
}
const char *kr_rnn_64_tensor_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const char *why = a->H != 64 ? "not 64 units" : refuse_strides(a);
  (void)ctx;
  if (why) return why;
  if (kr_has(&a->cells) && (a->cells.stride[2] != 1 || kr_is_far(a->cells.stride[1])))
    return "a step's cells are not contiguous, or a time stride of 2^20 or more";
  return a->x.stride[0] % 4 || a->x.stride[1] % 4 || (uintptr_t)a->x.data % 16 ? "unaligned steps of x" : NULL;
}
const char *kr_rnn_wide_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  (void)ctx;
  if (kr_has(&a->cells)) return "cells are requested";
  if (a->H <= KR_RNN_MOST_UNITS) return "160 units or fewer";
  return a->H > KR_RNN_MOST_WIDE ? "more than 2048 units" : refuse_strides(a);
}

static kr_rnn_64_params rnn_64_plan_of(const kr_rnn_args *a) {
  return (kr_rnn_64_params){.x = a->x.data,
                          .weight = a->weight.data,
                          .bias = a->bias.data,
                          .out = a->out.data,
                          .cells = a->cells.data,
                          .B = a->B,
                          .x_b = a->x.stride[0],
                          .x_t = (int32_t)a->x.stride[1],
                          .weight_gate = (int32_t)a->weight.stride[0],
                          .weight_unit = (int32_t)a->weight.stride[1],
                          .bias_gate = (int32_t)a->bias.stride[0],
                          .out_b = a->out.stride[0],
                          .out_t = (int32_t)a->out.stride[1],
                          .cells_b = a->cells.stride[0],
                          .cells_t = (int32_t)a->cells.stride[1],
                          .L = (int32_t)a->L,
                          .H = (int32_t)a->H,
                          .gates = a->call.flags & KRAIT_RNN_LSTM ? 4 : 3};
}

static int32_t launch_rnn_64(const krait_ctx *ctx, uint64_t tier, const kr_kernel *kernel, const kr_rnn_args *a,
                      int64_t per_block, kr_grid grid) {
  const kr_rnn_64_params p = rnn_64_plan_of(a);
  if (!a->B || !a->L) return KRAIT_OK;
  grid.x = kr_blocks_of(a->B, per_block);
  grid.stream = a->call.stream;
  return kr_cuda_launch(ctx->cuda, tier, kernel, &grid, &p, sizeof p);
}

/* Sequences are spread over all multiprocessors before a block gets several. */
int32_t kr_rnn_64(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const int64_t most_blocks = 2 * n_multiprocessors(ctx);
  const int log_group = a->B <= most_blocks ? 0 : a->B <= 2 * most_blocks ? 1 : 2;
  return launch_rnn_64(ctx, KRAIT_CAP_CUDA_BASE, &held[log_group], a, 1 << log_group, (kr_grid){.block = 256});
}
int32_t kr_rnn_64_tensor(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const int many = a->B > 4 * n_multiprocessors(ctx);
  return launch_rnn_64(ctx, KRAIT_CAP_CUDA_AMPERE, &by_tensor_cores[many], a, many ? 8 : 4, (kr_grid){.block = 512});
}
int32_t kr_rnn_wide(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const uint32_t gates = a->call.flags & KRAIT_RNN_LSTM ? 4 : 3;
  return launch_rnn_64(ctx, KRAIT_CAP_CUDA_BASE, &wide, a, 1,
                (kr_grid){.block = 256, .shared_bytes = (2 + gates) * (uint32_t)a->H * sizeof(float)});
}
