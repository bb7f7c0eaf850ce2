/* scan_impls.h: shared by the scan's host files: inputs common to forward and gradient, and scratch sizes. */
#ifndef KR_SCAN_IMPLS_H
#define KR_SCAN_IMPLS_H

#include "op_args.h"

/* The inputs common to kr_selective_scan_args and its _bwd_args, so that one function body reads both. */
typedef struct kr_scan_inputs {
  uint32_t flags;
  int64_t B, D, L, N, G, S;
  const kr_view *u, *delta, *A, *Bmat, *Cmat, *Dvec, *z, *delta_bias, *initial_state, *seq_idx, *cu_seqlens,
      *A_reverse;
} kr_scan_inputs;

#define KR_SCAN_INPUTS(a)                                                    \
  {(a)->call.flags, (a)->B,           (a)->D,           (a)->L,              \
   (a)->N,          (a)->G,           (a)->S,           &(a)->u,             \
   &(a)->delta,     &(a)->A,          &(a)->Bmat,       &(a)->Cmat,          \
   &(a)->Dvec,      &(a)->z,          &(a)->delta_bias, &(a)->initial_state, \
   &(a)->seq_idx,   &(a)->cu_seqlens, &(a)->A_reverse}

/* Checks B and S with or without cu_seqlens. */
int32_t kr_scan_check_sequences(const char *op, int64_t B, int64_t S, const kr_view *cu_seqlens);

/* Checks n_kept with or without states. */
int32_t kr_scan_check_kept(const char *op, int64_t L, int64_t n_kept, const kr_view *states);

struct kr_case;
int32_t kr_scan_case(struct kr_case *c, int64_t index);     /* random calls of the scan */
int32_t kr_scan_bwd_case(struct kr_case *c, int64_t index); /* and of its gradient, with the kept states it may read */

typedef uint64_t kr_scratch_fn(const krait_ctx *ctx, const void *args);
kr_scratch_fn kr_selective_scan_ref_scratch, kr_selective_scan_scratch_avx512, kr_selective_scan_scratch_avx2,
    kr_selective_scan_scratch_neon, kr_selective_scan_scratch_scalar;
kr_scratch_fn kr_selective_scan_bwd_ref_scratch, kr_selective_scan_bwd_scratch_avx512,
    kr_selective_scan_bwd_scratch_avx2, kr_selective_scan_bwd_scratch_neon, kr_selective_scan_bwd_scratch_scalar;

#endif
