/* conv_state_cuda.c: launches of the running convolution, of up to four taps and of any number, and of packed
 * sequences' states. */
#include "overlap.h"
#include "conv_state_plan.h"
#include "conv_rows.h"
#include "op_list.h"

static const kr_kernel update = {"conv_state", "kr_conv_update"}, update_any = {"conv_state", "kr_conv_update_any"},
                       varlen = {"conv_state", "kr_varlen_states"};

static uint32_t blocks_of(int64_t n, int64_t threads) { return (uint32_t)((n + threads - 1) / threads); }

enum { FEW_TAPS, ANY_TAPS };

static const char *refuse_update(const krait_ctx *ctx, const void *args, int family) {
  const krait_causal_conv1d_update_args *a = args;
  (void)ctx;
  if (a->B * a->D >= (1ll << 31) - KR_CONV_UPDATE_THREADS) return "2^31 channels or more";
  if (family == FEW_TAPS) return a->W > KR_CONV_UPDATE_TAPS ? "W above 4" : NULL;
  return a->W > KR_CONV_UPDATE_MOST_TAPS ? "W above 128" : NULL;
}

static int32_t run_update(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  kr_conv_update_plan p = {.a = *(const krait_causal_conv1d_update_args *)args};
  const uint32_t threads = family == FEW_TAPS ? KR_CONV_UPDATE_THREADS : KR_CONV_UPDATE_ANY_THREADS;
  if (p.a.D == 0) return KRAIT_OK;
  p.D = kr_divisor_of(p.a.D);
  const kr_grid grid = {.x = blocks_of(p.a.B * p.a.D, threads),
                        .block = threads,
                        .is_ahead = family == FEW_TAPS && (p.a.call.flags & KR_CALL_AHEAD),
                        .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, family == FEW_TAPS ? &update : &update_any, &grid, &p, sizeof p);
}

static uint64_t no_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(causal_conv1d_update, few_taps, FEW_TAPS, run_update, refuse_update, no_scratch)
KR_CUDA_FAMILY(causal_conv1d_update, any_taps, ANY_TAPS, run_update, refuse_update, no_scratch)

static int32_t run_varlen(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_varlen_plan p = {.a = *(const krait_causal_conv1d_varlen_states_args *)args};
  const int64_t n = p.a.S * p.a.D * p.a.state_len;
  if (n == 0) return KRAIT_OK;
  p.D = kr_divisor_of(p.a.D), p.state_len = kr_divisor_of(p.a.state_len);
  const kr_grid grid = {
      .x = blocks_of(n, KR_CONV_UPDATE_THREADS), .block = KR_CONV_UPDATE_THREADS, .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &varlen, &grid, &p, sizeof p);
}

const char *kr_causal_conv1d_varlen_states_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_varlen_states_args *a = args;
  (void)ctx;
  return a->S * a->D * a->state_len >= (1ll << 31) - KR_CONV_UPDATE_THREADS ? "2^31 elements of states or more" : NULL;
}

uint64_t kr_causal_conv1d_varlen_states_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return 0;
}

KR_CUDA_TIERS(causal_conv1d_varlen_states, run_varlen)
