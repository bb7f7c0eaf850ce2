/* scan_host.h: how the host splits a scan for the GPU; shared by forward and backward. */
#ifndef KR_SCAN_HOST_H
#define KR_SCAN_HOST_H

#include "cuda_impl.h"
#include "op_args.h"
#include "scan_params.h"
#include "status.h"

/* The fields that the args of the forward call and of its gradient share. */
#define KR_SCAN_SHARED_ARGS(a)                                                                                       \
  .call = (a)->call, .B = (a)->B, .D = (a)->D, .L = (a)->L, .N = (a)->N, .G = (a)->G, .S = (a)->S, .u = (a)->u,       \
  .delta = (a)->delta, .A = (a)->A, .Bmat = (a)->Bmat, .Cmat = (a)->Cmat, .Dvec = (a)->Dvec, .z = (a)->z,             \
  .delta_bias = (a)->delta_bias, .initial_state = (a)->initial_state, .seq_idx = (a)->seq_idx,                        \
  .cu_seqlens = (a)->cu_seqlens, .A_reverse = (a)->A_reverse

kr_scan_mat kr_scan_mat_of(const kr_view *v, int reverse, int64_t L);
kr_scan_state kr_scan_state_of(const kr_view *v);
/* Why no fast kernel takes a call, or NULL; why those with states across lanes do not, or NULL. */
const char *kr_scan_general(const kr_selective_scan_args *a);
const char *kr_scan_refusal(const kr_selective_scan_args *a);
uint32_t kr_scan_shared_bytes(const kr_scan_params *p);
void kr_scan_params_of(kr_scan_params *p, const kr_selective_scan_args *a, int reverse, int64_t blocks_wanted,
                     int64_t least_chunks);
void kr_scan_cut(kr_scan_params *p, int64_t blocks_wanted, int64_t least_chunks);
/* Chunked in time: scratch for the chunks' states and sums. */
uint64_t kr_scan_chunk_bytes(const kr_scan_params *p);
void kr_scan_chunk_scratch(kr_scan_params *p, char *scratch);
/* Whether every row, B and C can be read in aligned groups of four elements: DIRECT in scan_time_over_lanes.cuh. */
int kr_scan_is_aligned(const kr_scan_params *p);
/* Whether time is contiguous but not so aligned: time over lanes then reads element by element. */
int kr_scan_is_anywhere(const kr_scan_params *p);

/* How the packed kernels read a tensor's rows: not at all, unaligned, or as aligned 16-byte packs;
 * kr_scan_params.whole. */
typedef enum kr_scan_fit { KR_SCAN_NO_FIT, KR_SCAN_ANYWHERE, KR_SCAN_PACKS } kr_scan_fit;
/* The worst fit of n rows; absent rows fit. */
kr_scan_fit kr_scan_rows_fit(const kr_scan_params *p, int n, const kr_rows *const *rows);
/* What selective_scan_packed_rows.cu computes: outputs, states alone, or the chunked gradient's sweep; and its shared
 * memory for each. */
typedef enum kr_scan_walk { KR_SCAN_OUTPUT, KR_SCAN_STATES, KR_SCAN_CUT } kr_scan_walk;
kr_scan_fit kr_scan_packed_rows_fit(const krait_ctx *ctx, const kr_scan_params *p);
uint32_t kr_scan_packed_rows_bytes(const kr_scan_params *p, kr_scan_walk walk, kr_scan_fit fit);

/* Channels-last kernels: why they reject a call, or NULL; whether they take it, in which case *p is filled in; shared
 * memory of each kernel (KR_SCAN_STATES also serves the gradient's sweep). */
const char *kr_scan_channels_last_refuse(const kr_scan_params *p, int is_gradient);
int kr_scan_channels_last_params(kr_scan_params *p, const krait_ctx *ctx, int is_gradient);
/* Whether the caller's states (one per 8 steps) have the layout those kernels need; if so, *p points at them. */
int kr_scan_channels_last_keeps(kr_scan_params *p, const kr_view *states);
uint32_t kr_scan_channels_last_n16_bytes(void);
uint32_t kr_scan_channels_last_bytes(const kr_scan_params *p, kr_scan_walk walk);
uint32_t kr_scan_channels_last_back_bytes(const kr_scan_params *p);

/* What kr_scan_refusal rejects goes to the general kernels of selective_scan_general_cuda.c. */
uint64_t kr_scan_general_scratch(const kr_selective_scan_args *a);
int32_t kr_scan_general_run(const krait_ctx *ctx, uint64_t tier, const kr_selective_scan_args *a);
uint64_t kr_scan_general_bwd_scratch(const krait_ctx *ctx, const kr_selective_scan_bwd_args *a);
int32_t kr_scan_general_bwd_run(const krait_ctx *ctx, uint64_t tier, const kr_selective_scan_bwd_args *a);

#endif
