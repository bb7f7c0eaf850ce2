/* mamba3_turn.cuh: shared by Mamba 3's kernels on warpgroups: a head's biases, and queries or keys from B or C in
 * shared memory by rotations of a packet (mamba3_walk_params.h). */
#ifndef KR_MAMBA3_TURN_CUH
#define KR_MAMBA3_TURN_CUH

#include "../ssd/ssd_hopper_tiles.cuh"
#include "mamba3_inner_params.h"
#include "mamba3_views.cuh"

enum { TURNING = KR_MAMBA3_INNER_M / 8 }; /* of the columns by 16, those that turn, where at most 32 pairs do */

/* A head's biases of B or C, by a warpgroup: [column / 16][column / 2 % 4][column / 8 % 2][column % 2]. */
KR_DEV int bias_place(int n) { return n / 16 * 16 + n / 2 % 4 * 4 + n / 8 % 2 * 2 + n % 2; }
KR_DEV void put_own_biases(const kr_view &bias, int h, int n_states, int n, float *to) {
  to[bias_place(n)] = n < n_states ? get(bias, at3(bias, h, 0, n)) : 0.0f;
}

/* The rotations of a lane's pairs in 16 columns k. */
KR_DEV kr_raw16 rotations_at(const unsigned char *turns, const lanes &me, int k) {
  return *(const kr_raw16 *)(turns + 2048 * k + 16 * me.thread);
}

/* A warp's tokens of B or C with biases, turned, to the tile of keys or queries. */
KR_DEV void turn_rows(const unsigned char *from, unsigned char *to, const float *biases, const unsigned char *turns,
                      const lanes &me) {
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t two[4];
    take_matrices(two, from + k / 4 * TILE, me, 2 * (k & 3));
    const kr_float4 own = *(const kr_float4 *)(biases + 16 * k + 4 * me.q);
    kr_raw16 by = {};
    if (k < TURNING) by = rotations_at(turns, me, k);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x = kr_unpack(two[i], 0, KR_DTYPE) + own.v[i & 2],
                  y = kr_unpack(two[i], 1, KR_DTYPE) + own.v[(i & 2) + 1];
      const float c = kr_unpack(by.w[i], 0, KRAIT_F16), s = kr_unpack(by.w[i], 1, KRAIT_F16);
      two[i] = k < TURNING ? pack(kr_fma(c, x, -(s * y)), kr_fma(s, x, c * y)) : pack(x, y);
    }
    put_matrices(to + k / 4 * TILE, me, 2 * (k & 3), two[0], two[1], two[2], two[3]);
  }
  kr_show_to_copies();
}

#endif
