/* scan_gate.cuh: the forward scan's gate, silu, for outputs of type KR_DTYPE. */
#ifndef KR_SCAN_GATE_CUH
#define KR_SCAN_GATE_CUH

#include "kernel.cuh"

/* One special-function op instead of two where bfloat16 rounding hides the difference. */
KR_DEV float gate_of(float z) {
#if KR_DTYPE == 2 && KR_TIER >= 80 && !defined(KR_EMULATE)
  const float half = 0.5f * z;
  return kr_fma(half, kr_tanh(half), half);
#else
  return kr_silu(z);
#endif
}

#endif
