/* state_update_cuda.c: lanes per channel, and the launch. Four families: eight channels of a head with one decay; all
 * 16 states of a channel by two threads for many sequences; four contiguous states at a time; any strides. */
#include "overlap.h"
#include "cuda_impl.h"
#include "state_update_params.h"
#include "state_update_impls.h"
#include "view.h"

enum { HEADS, WHOLE_CHANNELS, FOUR_STATES, ANY_STRIDES };

static const kr_kernel heads[] = KR_BY_TYPE("state_update", "kr_state_update_heads"),
                       same_heads[] = KR_BY_TYPE("state_update", "kr_state_update_same_heads");
static const kr_kernel heads_256[] = KR_BY_TYPE("state_update", "kr_state_update_heads_256"),
                       same_heads_8[] = KR_BY_TYPE("state_update", "kr_state_update_same_heads_8");
static const kr_kernel whole[] = KR_BY_TYPE("state_update", "kr_state_update_rows"),
                       same_whole[] = KR_BY_TYPE("state_update", "kr_state_update_same_rows");
static const kr_kernel fours[] = KR_BY_TYPE("state_update", "kr_state_update_4"),
                       same_fours[] = KR_BY_TYPE("state_update", "kr_state_update_same_4"),
                       any[] = KR_BY_TYPE("state_update", "kr_state_update_any");

/* Whether four elements along the last of n dimensions are one aligned access. */
static int state_update_by_fours(const kr_view *v, int n) {
  int64_t strides = v->stride[n - 1] == 1 ? 0 : 1;
  for (int i = 0; i < n - 1; i++) strides |= v->stride[i];
  return strides % 4 == 0 && (uintptr_t)v->data % (4 * krait_dtype_bytes(v->dtype)) == 0;
}

/* Whether eight 16-bit states are one aligned access and at least eight lanes share a channel. */
static int takes_eights(const kr_state_update_args *a) {
  const int64_t strides = a->state.stride[0] | a->state.stride[1] | a->state.stride[2] | a->Bmat.stride[0] |
                          a->Bmat.stride[1] | a->Cmat.stride[0] | a->Cmat.stride[1];
  const uintptr_t at = (uintptr_t)a->state.data | (uintptr_t)a->Bmat.data | (uintptr_t)a->Cmat.data;
  return a->state.dtype != KRAIT_F32 && a->N >= 64 && strides % 8 == 0 && at % 16 == 0;
}

static const char *refuse_heads(const kr_state_update_args *a) {
  const int64_t strides = a->x.stride[0] | a->x.stride[1];
  const int holds_256 = a->state.dtype == KRAIT_F32 || takes_eights(a);
  if (a->N != 32 && a->N != 64 && a->N != 128 && !(a->N == 256 && holds_256)) return "N is not 32, 64, 128 or 256";
  if (a->P % 8) return "P is no multiple of 8";
  if (a->A.stride[1] || a->A.stride[2] || a->dt.stride[2] || (kr_has(&a->dt_bias) && a->dt_bias.stride[1]))
    return "channels of a head that do not decay alike";
  return a->x.stride[2] == 1 && strides % 8 == 0 && (uintptr_t)a->x.data % 16 == 0
             ? NULL
             : "channels do not lie together in aligned groups of eight";
}

/* Batch size from which two threads per channel give enough threads. */
enum { FEWEST_SEQUENCES = 32 };

static int is_aligned_for_state_update(const kr_view *v, int dim) {
  const int64_t bytes = (int64_t)krait_dtype_bytes(v->dtype);
  return v->stride[0] * bytes % 16 == 0 && v->stride[dim] * bytes % 16 == 0 && (uintptr_t)v->data % 16 == 0;
}

static const char *refuse_whole(const kr_state_update_args *a) {
  if (a->B < FEWEST_SEQUENCES || a->B >= 65536) return "fewer than 32 sequences, or 65536";
  if (a->H != 1 || a->N != KR_UPDATE_ROW_STATES) return "more than one head, or N is not 16";
  if (a->x.dtype == KRAIT_F32) return "not 16 bits";
  return a->A.stride[2] == 1 && a->A.stride[1] % 4 == 0 && is_aligned_for_state_update(&a->state, 2) &&
                 is_aligned_for_state_update(&a->Bmat, 0) && is_aligned_for_state_update(&a->Cmat, 0) &&
                 (uintptr_t)a->A.data % 16 == 0
             ? NULL
             : "states, A, B or C are not aligned to 16 bytes";
}

static const char *refuse_state_update(const krait_ctx *ctx, const void *args, int family) {
  const kr_state_update_args *a = args;
  (void)ctx;
  if (a->B * a->H * a->P >= (1ll << 31) - 128) return "2^31 channels or more";
  if (family == ANY_STRIDES) return NULL;
  if (a->dt.dtype != a->x.dtype || a->Bmat.dtype != a->x.dtype || a->Cmat.dtype != a->x.dtype ||
      (kr_has(&a->z) && a->z.dtype != a->x.dtype))
    return "inputs of several types";
  if (a->state.dtype != KRAIT_F32 && a->state.dtype != a->x.dtype) return "state of another 16-bit type than x";
  if (a->N % 4 || (a->N > 128 && family != HEADS)) return "N is no multiple of 4, or above 128";
  const int together = state_update_by_fours(&a->state, 4) &&
                       (a->A.stride[2] == 0 || state_update_by_fours(&a->A, 3)) && state_update_by_fours(&a->Bmat, 3) &&
                       state_update_by_fours(&a->Cmat, 3);
  if (!together) return "states do not lie together in aligned groups of four";
  return family == HEADS ? refuse_heads(a) : family == WHOLE_CHANNELS ? refuse_whole(a) : NULL;
}

int32_t kr_update_lanes(int64_t units) {
  int32_t lanes = 1;
  while (lanes < 32 && lanes < units) lanes *= 2;
  return lanes;
}

kr_update_params kr_update_params_of(kr_state_update_args a, int per_run, int64_t units) {
  kr_update_params p = {.a = a,
                      .P = kr_divisor_of(a.P / per_run),
                      .H = kr_divisor_of(a.H),
                      .heads_per_group = kr_divisor_of(a.H / a.G),
                      .lanes = kr_update_lanes(units)};
  while (1 << p.lanes_shift < p.lanes) p.lanes_shift++;
  return p;
}

static int32_t launch_whole_channels(const krait_ctx *ctx, const kr_update_params *p, uint64_t tier) {
  const int is_float = p->a.state.dtype == KRAIT_F32, sequences = is_float ? KR_UPDATE_ROWS_WIDE : KR_UPDATE_ROWS_SAME;
  const kr_grid grid = {.x = (uint32_t)((p->a.P + KR_UPDATE_ROWS_CHANNELS - 1) / KR_UPDATE_ROWS_CHANNELS),
                        .y = (uint32_t)((p->a.B + sequences - 1) / sequences),
                        .block = 128,
                        .is_pdl = (p->a.call.flags & KR_CALL_PDL) != 0,
                        .stream = p->a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &(is_float ? whole : same_whole)[p->a.x.dtype], &grid, p, sizeof *p);
}

static int32_t run_state_update(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_state_update_args *a = args;
  const int is_float = a->state.dtype == KRAIT_F32, per_run = family == HEADS ? 8 : 1;
  const int by_eights = family == HEADS && takes_eights(a);
  const kr_update_params p =
      kr_update_params_of(*a, per_run, family == ANY_STRIDES ? a->N : by_eights ? a->N / 8 : a->N / 4);
  const kr_kernel *kernel = family == ANY_STRIDES ? any
                            : by_eights           ? same_heads_8
                            : family == HEADS     ? (!is_float ? same_heads : a->N == 256 ? heads_256 : heads)
                            : is_float            ? fours
                                                  : same_fours;
  if (family == WHOLE_CHANNELS) return launch_whole_channels(ctx, &p, tier);
  const int64_t threads = p.a.B * p.a.H * p.a.P / per_run * p.lanes;
  const kr_grid grid = {.x = (uint32_t)((threads + 127) / 128),
                        .block = 128,
                        .is_pdl = family != ANY_STRIDES && (p.a.call.flags & KR_CALL_PDL),
                        .stream = p.a.call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernel[p.a.x.dtype], &grid, &p, sizeof p);
}

static uint64_t state_update_no_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(state_update, heads, HEADS, run_state_update, refuse_state_update, state_update_no_scratch)
KR_CUDA_FAMILY(state_update, whole_channels, WHOLE_CHANNELS, run_state_update, refuse_state_update,
               state_update_no_scratch)
KR_CUDA_FAMILY(state_update, four_states, FOUR_STATES, run_state_update, refuse_state_update, state_update_no_scratch)
KR_CUDA_FAMILY(state_update, any_strides, ANY_STRIDES, run_state_update, refuse_state_update, state_update_no_scratch)
