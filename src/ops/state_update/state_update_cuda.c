/* state_update_cuda.c: lanes per channel, four states at a time where they lie together, and the launch. */
#include "cuda_row.h"
#include "op_list.h"
#include "view.h"

typedef struct kr_update_plan {
  krait_state_update_args a;
  kr_divisor P, H, heads_per_group;
  int32_t lanes, lanes_shift, packs;
} kr_update_plan;

static const kr_kernel kernel = {"state_update", "kr_state_update"};

/* Four elements along the last of n dimensions are one aligned access. */
static int by_fours(const krait_view *v, int n) {
  int64_t strides = v->stride[n - 1] == 1 ? 0 : 1;
  for (int i = 0; i < n - 1; i++) strides |= v->stride[i];
  return strides % 4 == 0 && (uintptr_t)v->data % (4 * krait_dtype_bytes(v->dtype)) == 0;
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_update_plan p = {.a = *(const krait_state_update_args *)args, .lanes = 1};
  p.packs = p.a.N % 4 == 0 && by_fours(&p.a.state, 4) && by_fours(&p.a.A, 3) && by_fours(&p.a.Bmat, 3) && by_fours(&p.a.Cmat, 3);
  const int64_t units = p.packs ? p.a.N / 4 : p.a.N;
  while (p.lanes < 32 && p.lanes < units) p.lanes *= 2, p.lanes_shift++;
  p.P = kr_divisor_of(p.a.P), p.H = kr_divisor_of(p.a.H), p.heads_per_group = kr_divisor_of(p.a.H / p.a.G);
  const int64_t threads = p.a.B * p.a.H * p.a.P * p.lanes;
  const kr_grid grid = {.x = (uint32_t)((threads + 127) / 128), .block = 128, .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernel, &grid, &p, sizeof p);
}

const char *kr_state_update_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_state_update_args *a = args;
  (void)ctx;
  if (a->dt.dtype == KRAIT_F64 || a->Bmat.dtype == KRAIT_F64 || a->Cmat.dtype == KRAIT_F64) return "float64 inputs";
  if (a->B * a->H * a->P >= (1ll << 31) - 128) return "2^31 channels or more";
  return NULL;
}

uint64_t kr_state_update_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  (void)args;
  return 0;
}

KR_CUDA_TIERS(state_update, run)
