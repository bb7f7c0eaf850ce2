/* gated_delta_triangle.cuh: u of a chunk's tokens, one after the other. */
#ifndef KR_GATED_DELTA_TRIANGLE_CUH
#define KR_GATED_DELTA_TRIANGLE_CUH

#include "kernel.cuh"

/* u[t] -= sum over i < t of solve[i][t] u[i]: a column by a thread. What is behind N in a line of solve is not read. */
template <int N, int LINE> KR_DEV void solve_triangle(const float (&solve)[N][LINE], float (&u)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
#pragma unroll
    for (int t = i / 4 * 4; t < N; t += 4) {
      const kr_float4 four = *(const kr_float4 *)(solve[i] + t);
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (t + k > i) u[t + k] = kr_fma(-four.v[k], u[i], u[t + k]);
    }
  }
}

#endif
