/* state_update_cuda.c: lanes per channel, four states at a time where they lie together, and the launch. */
#include "cuda_row.h"
#include "op_list.h"
#include "view.h"

typedef struct kr_update_plan {
  krait_state_update_args a;
  kr_divisor P, H, heads_per_group;
  int32_t lanes, lanes_shift;
} kr_update_plan;

static const kr_kernel fours[] = KR_BY_TYPE("state_update", "kr_state_update_4"), same_fours[] = KR_BY_TYPE("state_update", "kr_state_update_same_4"), any[] = KR_BY_TYPE("state_update", "kr_state_update_any");

/* Four elements along the last of n dimensions are one aligned access. */
static int by_fours(const krait_view *v, int n) {
  int64_t strides = v->stride[n - 1] == 1 ? 0 : 1;
  for (int i = 0; i < n - 1; i++) strides |= v->stride[i];
  return strides % 4 == 0 && (uintptr_t)v->data % (4 * krait_dtype_bytes(v->dtype)) == 0;
}

/* Up to 32 lanes of four states each, of types that a kernel is made for. */
static int takes_fours(const krait_state_update_args *a) {
  const int one_input = a->dt.dtype == a->x.dtype && a->Bmat.dtype == a->x.dtype && a->Cmat.dtype == a->x.dtype && (!kr_has(&a->z) || a->z.dtype == a->x.dtype);
  if (!one_input || (a->state.dtype != KRAIT_F32 && a->state.dtype != a->x.dtype)) return 0;
  return a->N % 4 == 0 && a->N <= 128 && by_fours(&a->state, 4) && (a->A.stride[2] == 0 || by_fours(&a->A, 3)) && by_fours(&a->Bmat, 3) && by_fours(&a->Cmat, 3);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_update_plan p = {.a = *(const krait_state_update_args *)args, .lanes = 1};
  const int by_four = takes_fours(&p.a);
  const kr_kernel *kernel = !by_four ? any : p.a.state.dtype == KRAIT_F32 ? fours : same_fours;
  const int64_t units = by_four ? p.a.N / 4 : p.a.N;
  while (p.lanes < 32 && p.lanes < units) p.lanes *= 2, p.lanes_shift++;
  p.P = kr_divisor_of(p.a.P), p.H = kr_divisor_of(p.a.H), p.heads_per_group = kr_divisor_of(p.a.H / p.a.G);
  const int64_t threads = p.a.B * p.a.H * p.a.P * p.lanes;
  const kr_grid grid = {.x = (uint32_t)((threads + 127) / 128), .block = 128, .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernel[p.a.x.dtype], &grid, &p, sizeof p);
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
