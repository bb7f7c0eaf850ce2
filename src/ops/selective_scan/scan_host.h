/* scan_host.h: how the host cuts a scan for the GPU; forward and backward share it. */
#ifndef KR_SCAN_HOST_H
#define KR_SCAN_HOST_H

#include <krait/ops.h>

#include "cuda_row.h"
#include "scan_plan.h"
#include "status.h"

kr_scan_mat kr_scan_mat_of(const krait_view *v, int reverse, int64_t L);
kr_scan_state kr_scan_state_of(const krait_view *v);
/* What no fast kernel takes; what those with states over lanes do not take. */
const char *kr_scan_general(const krait_selective_scan_args *a);
const char *kr_scan_refusal(const krait_selective_scan_args *a);
uint32_t kr_scan_shared_bytes(const kr_scan_plan *p);
void kr_scan_plan_of(kr_scan_plan *p, const krait_selective_scan_args *a, int reverse, int64_t blocks_wanted,
                     int64_t least_chunks);
void kr_scan_cut(kr_scan_plan *p, int64_t blocks_wanted, int64_t least_chunks);
/* Where time is cut: the scratch of the chunks' states and sums. */
uint64_t kr_scan_chunk_bytes(const kr_scan_plan *p);
void kr_scan_chunk_scratch(kr_scan_plan *p, char *scratch);
/* Whether groups of four elements of each row, and of B and C, are aligned: DIRECT in lanes.cuh. */
int kr_scan_is_aligned(const kr_scan_plan *p);
/* Whether that is not so, but rows are: time over lanes then reads them element by element. */
int kr_scan_is_anywhere(const kr_scan_plan *p);

/* How the kernels for the usual call take the rows of a tensor: not, or wherever they begin, or in whole packs;
 * kr_scan_plan.whole. */
typedef enum kr_scan_fit { KR_SCAN_NO_FIT, KR_SCAN_ANYWHERE, KR_SCAN_PACKS } kr_scan_fit;
/* The least of them. Absent rows fit. */
kr_scan_fit kr_scan_rows_fit(const kr_scan_plan *p, int n, const kr_rows *const *rows);
/* How selective_scan_whole.cu walks along u, delta, B and C; its shared memory for y, for states alone, or for the
 * gradient of a cut. */
typedef enum kr_scan_walk { KR_SCAN_OUTPUT, KR_SCAN_STATES, KR_SCAN_CUT } kr_scan_walk;
kr_scan_fit kr_scan_whole_fit(const krait_ctx *ctx, const kr_scan_plan *p);
uint32_t kr_scan_whole_bytes(const kr_scan_plan *p, kr_scan_walk walk, kr_scan_fit fit);

/* Channels-last rows: why their kernels do not take a call, or NULL; whether they take it, and then *p is cut for them;
 * shared memory of their walks (KR_SCAN_STATES: the gradient's sweep, too). */
const char *kr_scan_last_refuse(const kr_scan_plan *p, int is_gradient);
int kr_scan_last_plan(kr_scan_plan *p, const krait_ctx *ctx, int is_gradient);
/* Whether states before each 8th step lie as those kernels have them; where. */
int kr_scan_last_keeps(kr_scan_plan *p, const krait_view *states);
uint32_t kr_scan_usual_bytes(void);
uint32_t kr_scan_last_bytes(const kr_scan_plan *p, kr_scan_walk walk);
uint32_t kr_scan_last_back_bytes(const kr_scan_plan *p);

/* Whatever the fast kernels refuse (kr_scan_refusal) goes to the general ones of selective_scan_any_cuda.c. */
uint64_t kr_scan_any_scratch(const krait_selective_scan_args *a);
int32_t kr_scan_any_run(const krait_ctx *ctx, uint64_t tier, const krait_selective_scan_args *a);
uint64_t kr_scan_any_bwd_scratch(const krait_ctx *ctx, const krait_selective_scan_bwd_args *a);
int32_t kr_scan_any_bwd_run(const krait_ctx *ctx, uint64_t tier, const krait_selective_scan_bwd_args *a);

#endif
