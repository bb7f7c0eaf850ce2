/* attention_sums.cuh: the single-pass gradient, whose blocks take keys and add their parts of dq to float32 sums in
 * memory: the schedule, and the kernels before and after. The sums have accumulator layout: (head, tile of 64 rows, 16
 * of them, 8 channels), and of these 128 (lane, 4), for bulk copies, or (4, lane), for warp stores (BY_LANE 0). */
#ifndef KR_ATTENTION_SUMS_CUH
#define KR_ATTENTION_SUMS_CUH

#include "attention_fragments.cuh"
#include "attention_sums.h"

/* Tiles of 64 rows before a sequence's first one, per head; sequences begin at multiples of 128 rows. */
KR_DEV int sums_tile(const kr_attention_params &p, const sequence &s, int b) {
  return p.cu_q.data ? (int)((s.q_at + (int64_t)KR_SUMS_ROWS * b) / KR_SUMS_ROWS) * 2
                     : b * ((p.Lq + KR_SUMS_ROWS - 1) / KR_SUMS_ROWS) * 2;
}

/* A block's keys, and the tiles of rows that see them: first to end - 1, starting at start. */
typedef struct unit {
  sequence s;
  int b, kv, key0, first, end, start;
} unit;
template <int OWN, int ROWS>
KR_DEV unit unit_here(const kr_attention_params &p, int index = kr_block_x()) {
  const task at = task_of_keys(p, (p.rows_k + OWN - 1) / OWN, index);
  unit u;
  u.b = at.b, u.kv = at.h, u.key0 = at.tile * OWN;
  u.s = sequence_of(p, u.b);
  const int has_keys = u.key0 < u.s.n_k, last = at_most(u.key0 + OWN, u.s.n_k) - 1;
  u.first = has_keys ? first_row(p, u.s, u.key0) / ROWS : 0;
  u.end = has_keys ? (end_row(p, u.s, last) + ROWS - 1) / ROWS : 0;
  u.end = at_least(u.end, u.first);
  u.start = p.left >= 0 || p.right >= 0 || u.end == u.first ? u.first
                                                            : at.tile * 2 % u.end; /* blocks start at different rows */
  return u;
}

template <int D>
KR_DEV void clear_sums(const kr_attention_params &p) {
  const int64_t n = (int64_t)p.H * p.n_splits * 64 * D / 4, step = (int64_t)kr_grid_x() * 256;
  for (int64_t i = (int64_t)kr_block_x() * 256 + kr_thread(); i < n; i += step)
    ((kr_raw16 *)p.partial)[i] = (kr_raw16){{0, 0, 0, 0}};
}

/* A warp takes 16 rows of a head, 32 channels at a time. */
template <int D, int BY_LANE>
KR_DEV void end_sums(const kr_attention_params &p, const int dtype) {
  const int n_tiles = (p.rows_q + 63) / 64, head = kr_block_x() / n_tiles, tile = kr_block_x() - head * n_tiles,
            b = head / p.H, h = head - b * p.H, lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const sequence s = sequence_of(p, b);
  if (tile * 64 >= s.rows_q) return;
  const float *const from =
      p.partial + (int64_t)h * p.n_splits * 64 * D + ((int64_t)(sums_tile(p, s, b) + tile) * 4 + warp) * 16 * D;
#pragma unroll
  for (int j = 0; j < D / 8; j += 4) {
    float v[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if (BY_LANE) {
        const kr_raw16 four = ((const kr_raw16 *)from)[(j + k) * 32 + lane];
        for (int c = 0; c < 4; c++) v[k][c] = kr_bits_to_float(four.w[c]);
      } else
        for (int c = 0; c < 4; c++) v[k][c] = from[(j + k) * 128 + c * 32 + lane];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = tile * 64 + 16 * warp + lane / 4 + 8 * r, counts = row < s.n_q;
      uint32_t w[4];
#pragma unroll
      for (int k = 0; k < 4; k++) w[k] = counts ? kr_pack(v[k][2 * r] * p.scale, v[k][2 * r + 1] * p.scale, dtype) : 0;
      const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
      const int column = 8 * j + lane % 4 * 8;
      if (row < s.rows_q && column < p.D)
        *(kr_raw16 *)((uint16_t *)p.dq.data + query_at(p.dq, s, h, row) + column) = eight;
    }
  }
}

#endif
