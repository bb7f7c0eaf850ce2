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

static int aligned(const krait_view *v) {
  const int64_t bytes = (int64_t)krait_dtype_bytes(v->dtype) * 4;
  const int last = v->stride[3] == 1 ? 3 : -1;
  return last == 3 && v->stride[0] % 4 == 0 && v->stride[1] % 4 == 0 && v->stride[2] % 4 == 0 && (uintptr_t)v->data % (uintptr_t)bytes == 0;
}

static int aligned_A(const krait_view *v) {
  return v->stride[2] == 1 && v->stride[0] % 4 == 0 && v->stride[1] % 4 == 0 && (uintptr_t)v->data % 16 == 0;
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_update_plan p = {.a = *(const krait_state_update_args *)args, .lanes = 1};
  p.packs = p.a.N % 4 == 0 && aligned(&p.a.state) && aligned_A(&p.a.A);
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
