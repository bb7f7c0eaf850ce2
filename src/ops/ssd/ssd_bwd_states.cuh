/* ssd_bwd_states.cuh: a block of the SSD gradient of float32 that passes 64 channels by 64 states from chunk to chunk,
 * and the tiles that it leaves. */
#ifndef KR_SSD_BWD_STATES_CUH
#define KR_SSD_BWD_STATES_CUH

#include "ssd_bwd_inner.cuh"
#include "ssd_bwd_parts.cuh"

enum { SLICE = KR_SSD_BWD_FLOATS_SLICE }; /* states per block that passes them on */

/* The P x N state tile of a chunk, N padded to whole slices: rows of channels in parts, then one over the scales of the
 * slices. */
template <int N, int PARTS>
struct tile {
  enum { ROWS_BYTES = PB * row_of<N, PARTS>::BYTES, BYTES = ROWS_BYTES + KR_SSD_BWD_FLOATS_SCALES };
};
KR_DEV int padded(const kr_ssd_params &f) { return f.N <= SLICE ? SLICE : 2 * SLICE; }
template <int PARTS>
KR_DEV unsigned char *tile_at(const kr_ssd_bwd_params &p, void *tiles, int b, int h, int block, int64_t chunk) {
  const int64_t narrow = tile<SLICE, PARTS>::BYTES, wide = tile<2 * SLICE, PARTS>::BYTES,
                bytes = padded(p.f) == SLICE ? narrow : wide;
  return (unsigned char *)tiles +
         ((((int64_t)b * p.f.H + h) * p.f.blocks_per_head + block) * p.n_chunks + chunk) * bytes;
}

/* A lane's pairs of two blocks of eight columns, four neighbours at a time. */
KR_DEV void leave_pairs(unsigned char *to, int q, uint32_t first, uint32_t second) {
  const int odd = q & 1;
  const uint32_t other = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(odd ? first : second), 1));
  *(uint64_t *)(to + 16 * odd + 4 * (q & 2)) = odd ? (uint64_t)second << 32 | other : (uint64_t)other << 32 | first;
}

template <int PARTS>
KR_DEV void leave_states(unsigned char *to, int width, const warp_place &me, float (&s)[SLICE / 8][4], int up) {
  const float scale = kr_power_of_two(up);
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int j = 0; j < SLICE / 8; j += 2) {
      unsigned char *const at = to + (me.row + 8 * h) * (1 + PARTS) * width * 2 + 16 * j;
      uint32_t high[2], low[2];
#pragma unroll
      for (int k = 0; k < 2; k++) kr_halve(s[j + k][2 * h] * scale, s[j + k][2 * h + 1] * scale, 1.0f, high[k], low[k]);
      leave_pairs(at, me.q, high[0], high[1]);
      if (PARTS) leave_pairs(at + 2 * width, me.q, low[0], low[1]);
    }
}

KR_DEV uint32_t largest_state(const float (&s)[SLICE / 8][4]) {
  uint32_t largest[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < SLICE / 8; j++) find_larger(largest, s[j]);
  return kr_larger(largest[0], largest[1]);
}

/* A block's shared memory: two stages of x and B, or of dy and C; largest numbers of the states, in turn, and of B. */
typedef struct walk_room {
  chunk_steps steps[2];
  float weights[Q];
  uint32_t of_states[2][WALKERS / 32], of_matrix[WALKERS / 32];
} walk_room;

/* S = keeps S + (weights X)^T B; out as in take_chunk. Returns whether a dropped state was not finite. */
template <int PARTS>
KR_DEV int take_tokens(float (&s)[SLICE / 8][4], const float *x, unsigned char *B, walk_room &room,
                       const chunk_steps &steps, int has_sequences, int out) {
  const warp_place me = warp();
  const int spoilt = keep_of_state<SLICE / 8>(s, state_left(steps)), i = kr_thread();
  sixteen v[2];
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < 2; k++) largest = kr_larger(largest, read_sixteen<SLICE>(v[k], B, steps, k * WALKERS + i));
  leave_largest(room.of_matrix, largest);
  if (i < Q) room.weights[i] = out ? state_reaches(steps, i) : input_left(steps, has_sequences, i);
  kr_sync();
  const int up = scale_of_largest<WALKERS / 32>(room.of_matrix);
#pragma unroll
  for (int k = 0; k < 2; k++) leave_sixteen<SLICE, PARTS>(B, v[k], k * WALKERS + i, kr_power_of_two(up));
  operand<PARTS> a[Q / 16];
  row_scales scales;
  {
    float tokens[Q / 16][2][4];
    uint32_t of_rows[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      read_tokens(tokens[k][0], tokens[k][1], me, x, room.weights, k);
      find_larger(of_rows, tokens[k][0]), find_larger(of_rows, tokens[k][1]);
    }
    scales = scales_of_rows(of_rows);
#pragma unroll
    for (int k = 0; k < Q / 16; k++) scale_operand(a[k], tokens[k][0], tokens[k][1], scales.up);
  }
  scales.down[0] *= kr_power_of_two(-up), scales.down[1] *= kr_power_of_two(-up);
  kr_sync();
#pragma unroll
  for (int n = 0; n < SLICE / 16; n++) {
    float d[2][4];
    clear(d[0]), clear(d[1]);
    kr_sync_warp(); /* or all reads would be moved here, and their registers to local memory */
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      operand<PARTS> b;
      read_columns_turned<SLICE>(b, B, me, k, 2 * n);
      multiply_pair(d[0], d[1], a[k], b);
    }
#pragma unroll
    for (int r = 0; r < 8; r++)
      s[2 * n + r / 4][r % 4] = kr_fma(d[r / 4][r % 4], scales.down[r % 4 / 2], s[2 * n + r / 4][r % 4]);
    kr_hold(s[2 * n]), kr_hold(s[2 * n + 1]);
  }
  return spoilt;
}

template <int PARTS>
KR_DEV void walk_states(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const kr_ssd_params &f = p.f;
  const int back = kr_block_y(); /* in time */
  const int width = padded(f), slices = width / SLICE, unit = kr_block_x() / slices,
            slice = kr_block_x() - unit * slices, n0 = slice * SLICE, h = unit / f.blocks_per_head,
            block = unit - h * f.blocks_per_head, p0 = block * PB, b = kr_block_z(), STAGE = Q * (PB + SLICE) * 4;
  walk_room &room = *(walk_room *)(shared + 2 * STAGE);
  const kr_ssd_tensor &rows = back ? f.dout : f.x, &matrix = back ? f.Cmat : f.Bmat;
  const int64_t row_at = b * rows.b + h * rows.h + p0, matrix_at = b * matrix.b + h / f.heads * matrix.h + n0;
  float s[SLICE / 8][4];
  int spoilt = 0;
  load_state<SLICE>(f, back ? p.dfinal : f.initial, b, h, p0 + kr_thread() / 32 * 16, n0, s);
  leave_largest(room.of_states[0], largest_state(s));
#pragma unroll 1
  for (int i = -1; i < p.n_chunks; i++) {
    unsigned char *const now = shared + (i & 1) * STAGE, *const next = shared + (~i & 1) * STAGE;
    const int c = back ? p.n_chunks - 1 - i : i, following = back ? c - 1 : c + 1;
    const int64_t t0 = (int64_t)following * Q;
    kr_copied<0>();
    if (i >= 0) kr_sync();
    if (i + 1 < p.n_chunks) {
      copy_floats<PB, WALKERS, FOR_CHANNELS>((float *)next, rows, row_at, t0, f.L, f.P - p0);
      copy_floats<SLICE, WALKERS, FOR_PARTS>((float *)(next + Q * PB * 4), matrix, matrix_at, t0, f.L, f.N - n0);
      copy_steps(room.steps + (~i & 1), steps_at(f, b, h, following));
      kr_commit_copies();
    }
    if (i < 0) continue;
    unsigned char *const to = tile_at<PARTS>(p, back ? p.M : p.S, b, h, block, c);
    const int up = scale_of_largest<WALKERS / 32>(room.of_states[i & 1]);
    leave_states<PARTS>(to + 2 * n0, width, warp(), s, up);
    if (kr_thread() == 0) ((float *)(to + PB * (1 + PARTS) * width * 2))[slice] = kr_power_of_two(-up);
    spoilt |=
        take_tokens<PARTS>(s, (const float *)now, now + Q * PB * 4, room, room.steps[i & 1], f.seq_idx != 0, back);
    leave_largest(room.of_states[~i & 1], largest_state(s));
  }
  if (spoilt || is_spoilt<SLICE / 8>(s)) report_nonfinite_group(f, b, h);
  if (back && p.dinitial.data) store_state<SLICE>(f, p.dinitial, b, h, p0 + kr_thread() / 32 * 16, n0, s);
}

#endif
