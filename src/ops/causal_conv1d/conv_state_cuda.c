/* conv_state_cuda.c: launches of the convolution with a running state: one step by groups of four channels, up to four
 * taps, any number; and of packed sequences' states. */
#include "overlap.h"
#include "conv_state_params.h"
#include "conv_impls.h"
#include "op_list.h"
#include "view.h"
#include "cuda_views.h"

static const kr_kernel update = {"conv_state", "kr_conv_update"}, update_any = {"conv_state", "kr_conv_update_any"},
                       varlen = {"conv_state", "kr_varlen_states"};

enum { STEP_OF_FOURS, FEW_TAPS, ANY_TAPS };
enum { FEWEST_SEQUENCES = 3 }; /* for step_of_fours */

/* Channels in aligned groups of four. */
static int is_by_fours(const kr_view *v) {
  return v->stride[1] == 1 && v->stride[0] % 4 == 0 && (uintptr_t)v->data % (4 * krait_dtype_bytes(v->dtype)) == 0;
}

static const char *refuse_step(const kr_causal_conv1d_update_args *a) {
  const kr_view *s = &a->conv_state, *w = &a->weight, *b = &a->bias;
  if (a->L != 1 || a->W != 4 || a->S != 3 || a->D % 4 || kr_has(&a->cache_seqlens) || a->activation != KRAIT_ACT_SILU)
    return "not a single step of four taps with SiLU and a multiple of four channels";
  if (a->B < FEWEST_SEQUENCES || a->n_states < 1) return "fewer than three sequences, or no states";
  if (w->dtype != a->x.dtype || (kr_has(b) && b->dtype != a->x.dtype) || s->dtype != KRAIT_F32)
    return "x, taps and bias not of one type, or state not float32";
  return is_by_fours(&a->x) && is_by_fours(&a->out) && w->stride[0] == 4 && w->stride[1] == 1 &&
                 (uintptr_t)w->data % 16 == 0 && (!kr_has(b) || (b->stride[0] == 1 && (uintptr_t)b->data % 8 == 0)) &&
                 s->stride[2] == 1 && s->stride[1] == 3 && s->stride[0] % 4 == 0 && (uintptr_t)s->data % 16 == 0
             ? NULL
             : "x, out, taps, bias or state not contiguous, or unaligned";
}

static const char *refuse_conv_state_update(const krait_ctx *ctx, const void *args, int family) {
  const kr_causal_conv1d_update_args *a = args;
  (void)ctx;
  if (a->B * a->D >= (1ll << 31) - KR_CONV_UPDATE_THREADS) return "2^31 channels or more";
  if (family == STEP_OF_FOURS) return refuse_step(a);
  if (family == FEW_TAPS) return a->W > KR_CONV_UPDATE_TAPS ? "W above 4" : NULL;
  return a->W > KR_CONV_UPDATE_MOST_TAPS ? "W above 128" : NULL;
}

static int32_t run_step(const krait_ctx *ctx, const kr_causal_conv1d_update_args *a, uint64_t tier) {
  static const kr_kernel by_type[] = {{"conv_step_f32", "kr_conv_step_fours"},
                                      {"conv_step_f16", "kr_conv_step_fours"},
                                      {"conv_step_bf16", "kr_conv_step_fours"}};
  const kr_conv_step_params p = {.step = {.state = a->conv_state.data,
                                        .weight = a->weight.data,
                                        .bias = a->bias.data,
                                        .slots = a->conv_state_indices.data,
                                        .out = a->out.data,
                                        .state_row = a->conv_state.stride[0],
                                        .slot_step = a->conv_state_indices.stride[0],
                                        .out_row = a->out.stride[0],
                                        .channels = (int32_t)a->D,
                                        .n_states = (int32_t)a->n_states},
                               .x = a->x.data,
                               .x_row = a->x.stride[0],
                               .fours = kr_divisor_of(a->D / 4),
                               .B = (int32_t)a->B,
                               .state_ahead = (a->call.flags & KR_CALL_STATE_PDL) != 0};
  const kr_grid grid = {.x = kr_blocks_of(a->B * (a->D / 4), KR_CONV_UPDATE_THREADS),
                        .block = KR_CONV_UPDATE_THREADS,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &by_type[a->x.dtype], &grid, &p, sizeof p);
}

static int32_t run_update(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  kr_conv_update_params p = {.a = *(const kr_causal_conv1d_update_args *)args};
  const uint32_t threads = family == FEW_TAPS ? KR_CONV_UPDATE_THREADS : KR_CONV_UPDATE_ANY_THREADS;
  if (p.a.D == 0 || p.a.B == 0) return KRAIT_OK;
  if (family == STEP_OF_FOURS) return run_step(ctx, args, tier);
  p.D = kr_divisor_of(p.a.D);
  const kr_grid grid = {.x = kr_blocks_of(p.a.B * p.a.D, threads),
                        .block = threads,
                        .is_pdl = family == FEW_TAPS && (p.a.call.flags & KR_CALL_PDL),
                        .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, family == FEW_TAPS ? &update : &update_any, &grid, &p, sizeof p);
}

static uint64_t conv_state_no_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(causal_conv1d_update, step_of_fours, STEP_OF_FOURS, run_update, refuse_conv_state_update,
               conv_state_no_scratch)
KR_CUDA_FAMILY(causal_conv1d_update, few_taps, FEW_TAPS, run_update, refuse_conv_state_update, conv_state_no_scratch)
KR_CUDA_FAMILY(causal_conv1d_update, any_taps, ANY_TAPS, run_update, refuse_conv_state_update, conv_state_no_scratch)

static int32_t run_varlen(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_varlen_params p = {.a = *(const kr_causal_conv1d_varlen_states_args *)args};
  const int64_t n = p.a.S * p.a.D * p.a.state_len;
  if (n == 0) return KRAIT_OK;
  p.D = kr_divisor_of(p.a.D), p.state_len = kr_divisor_of(p.a.state_len);
  const kr_grid grid = {
      .x = kr_blocks_of(n, KR_CONV_UPDATE_THREADS), .block = KR_CONV_UPDATE_THREADS, .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &varlen, &grid, &p, sizeof p);
}

const char *kr_causal_conv1d_varlen_states_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_varlen_states_args *a = args;
  (void)ctx;
  return a->S * a->D * a->state_len >= (1ll << 31) - KR_CONV_UPDATE_THREADS ? "2^31 elements of states or more" : NULL;
}

uint64_t kr_causal_conv1d_varlen_states_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return 0;
}

KR_CUDA_TIERS(causal_conv1d_varlen_states, run_varlen)
