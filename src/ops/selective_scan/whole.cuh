/* whole.cuh: what the two modules for the usual call share (selective_scan_whole.cu, selective_scan_whole_bwd.cu): packs of 16
 * bytes, E elements, that a lane copies past the registers to a place of its own, and step sizes. */
#ifndef KR_SCAN_WHOLE_CUH
#define KR_SCAN_WHOLE_CUH

#include "gate.cuh"
#include "pack.cuh"
#include "scan_plan.h"

enum { E = KR_DTYPE == KRAIT_F32 ? 4 : 8 };

KR_DEV void copy_pack(kr_raw16 *to, const char *from, int exists) {
  if (exists) kr_copy16(to, from);
  else *to = kr_raw16{{0, 0, 0, 0}};
}

/* dt of a pack of delta; bias in units of log 2. */
KR_DEV void step_sizes(const kr_scan_plan &p, const kr_raw16 &delta, float bias, float (&dt)[E]) {
#pragma unroll
  for (int k = 0; k < E; k++) dt[k] = kr_fma(pack_at(delta, k, KR_DTYPE), KR_LOG2E, bias);
  if (p.softplus) {
#pragma unroll
    for (int k = 0; k < E; k++) dt[k] = kr_softplus_log2(dt[k]);
  } else {
#pragma unroll
    for (int k = 0; k < E; k++) dt[k] *= KR_LN2;
  }
}

/* A sum over a run of n lanes. */
KR_DEV float sum_packs(const int n, float v) {
#pragma unroll
  for (int by = 1; by < n; by *= 2) v += kr_shuffle_xor(v, by);
  return v;
}

#endif
