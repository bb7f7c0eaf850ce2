/* scan_host.h: how the host cuts a scan for the GPU; forward and backward share it. */
#ifndef KR_SCAN_HOST_H
#define KR_SCAN_HOST_H

#include <krait/ops.h>

#include "cuda_row.h"
#include "scan_plan.h"
#include "status.h"

kr_scan_mat kr_scan_mat_of(const krait_view *v, int reverse, int64_t L);
kr_scan_state kr_scan_state_of(const krait_view *v);
const char *kr_scan_refusal(const krait_selective_scan_args *a);
uint32_t kr_scan_shared_bytes(const kr_scan_plan *p);
void kr_scan_plan_of(kr_scan_plan *p, const krait_selective_scan_args *a, int reverse, int n_multiprocessors);
/* n_chunks_summed: chunks whose sum of dt is wanted; forward needs all but the last. The scratch of the chunks, and the launches that fill it with every chunk's first state. */
uint64_t kr_scan_chunk_bytes(const kr_scan_plan *p);
int32_t kr_scan_chunk_starts(const krait_ctx *ctx, uint64_t tier, kr_scan_plan *p, int n_chunks_summed, char *scratch, void *stream);

#endif
