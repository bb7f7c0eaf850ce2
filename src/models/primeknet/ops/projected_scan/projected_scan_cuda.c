/* projected_scan_cuda.c: plans and launches of the scan of a Mamba block. */
#include "cuda_impl.h"
#include "primeknet_ops.h"
#include "projected_scan/projected_scan_params.h"
#include "projected_scan/projected_scan_impls.h"

static const kr_kernel whole = {"projected_scan", "kr_projected_scan_16"},
                       halved = {"projected_scan", "kr_projected_scan_16_2"},
                       any = {"projected_scan", "kr_projected_scan_any"};

enum { MOST_STATES = 64, MOST_COLUMNS = 144, THREADS = 128 };

/* Evenly spaced rows (b, l), in aligned groups of four. */
static int are_rows_for_projected_scan(const kr_view *v, const kr_projected_scan_args *a) {
  return v->stride[2] == 1 && v->stride[1] % 4 == 0 && v->stride[1] < (int64_t)1 << 31 &&
         (a->B < 2 || v->stride[0] == a->L * v->stride[1]) && (uintptr_t)v->data % 16 == 0;
}

const char *kr_projected_scan_any_refuse(const krait_ctx *ctx, const void *args) {
  const kr_projected_scan_args *a = args;
  (void)ctx;
  if (a->N > MOST_STATES || a->X > MOST_COLUMNS) return "more than 64 states, or than 144 columns of proj";
  if (a->D % 4 || a->X % 4 || !are_rows_for_projected_scan(&a->u, a) || !are_rows_for_projected_scan(&a->z, a) ||
      !are_rows_for_projected_scan(&a->proj, a) || a->proj.stride[1] != a->X)
    return "rows are not evenly spaced in aligned groups of four";
  if (a->out.stride[2] != 1 || (a->B > 1 && a->out.stride[0] != a->L * a->out.stride[1]) ||
      a->out.stride[1] >= (int64_t)1 << 31)
    return "rows of out are not evenly spaced";
  if ((a->D > 1 && a->dt_weight.stride[0] != 1) || a->dt_weight.stride[1] >= (int64_t)1 << 31 ||
      a->dt_bias.stride[0] != 1 || a->Dvec.stride[0] != 1 || a->A.stride[1] != 1 || a->A.stride[0] != a->N)
    return "channel parameters are not contiguous";
  return a->B * (double)a->L >= 2147483648.0 || a->D >= (int64_t)1 << 20 ? "2^31 steps, or 2^20 channels, or more"
                                                                         : NULL;
}
const char *kr_projected_scan_16_refuse(const krait_ctx *ctx, const void *args) {
  const kr_projected_scan_args *a = args;
  return a->N != 16 || a->R != 4 || a->X != 48 ? "not 16 states, rank 4 and rows of 48"
                                               : kr_projected_scan_any_refuse(ctx, args);
}

static int32_t launch_projected_scan(const krait_ctx *ctx, const kr_projected_scan_args *a, uint64_t tier,
                                     const kr_kernel *kernel, int64_t channels) {
  const kr_projected_scan_params p = {.u = a->u.data,
                                    .z = a->z.data,
                                    .proj = a->proj.data,
                                    .dt_weight = a->dt_weight.data,
                                    .dt_bias = a->dt_bias.data,
                                    .A = a->A.data,
                                    .Dvec = a->Dvec.data,
                                    .out = a->out.data,
                                    .B = a->B,
                                    .L = (int32_t)a->L,
                                    .D = (int32_t)a->D,
                                    .R = (int32_t)a->R,
                                    .N = (int32_t)a->N,
                                    .X = (int32_t)a->X,
                                    .u_row = (int32_t)a->u.stride[1],
                                    .z_row = (int32_t)a->z.stride[1],
                                    .out_row = (int32_t)a->out.stride[1],
                                    .dt_rank = (int32_t)a->dt_weight.stride[1]};
  const kr_grid grid = {.x = (uint32_t)a->B,
                        .y = (uint32_t)((a->D + channels - 1) / channels),
                        .block = THREADS,
                        .stream = a->call.stream};
  return a->B && a->L ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, &p, sizeof p) : KRAIT_OK;
}

/* Two threads per channel if there are few blocks. */
static int32_t launch_16_states(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_projected_scan_args *a = args;
  const int two = a->B * ((a->D + THREADS - 1) / THREADS) < 2 * (int64_t)kr_cuda_info(ctx->cuda)->n_multiprocessors;
  return launch_projected_scan(ctx, a, tier, two ? &halved : &whole, two ? THREADS / 2 : THREADS);
}
static int32_t launch_any_states(const krait_ctx *ctx, const void *args, uint64_t tier) {
  return launch_projected_scan(ctx, args, tier, &any, THREADS);
}

#define ROW(name, tier, cap)                                                          \
  int32_t kr_projected_scan_##name##_##tier(const krait_ctx *ctx, const void *args) { \
    return launch_##name##_states(ctx, args, cap);                                                \
  }
ROW(16, ampere, KRAIT_CAP_CUDA_AMPERE)
ROW(16, base, KRAIT_CAP_CUDA_BASE)
ROW(any, ampere, KRAIT_CAP_CUDA_AMPERE)
ROW(any, base, KRAIT_CAP_CUDA_BASE)
