/* attention_base.cuh: shared by the base tier's attention kernels: a block of four warps holds a tile of 32 keys (or
 * rows) in float32; a lane computes the products of one of them with its warp's R rows (or keys), also in shared
 * memory. Any type, strides, size and option. */
#ifndef KR_ATTENTION_BASE_CUH
#define KR_ATTENTION_BASE_CUH

#include "attention_tiles.cuh"

enum { WARPS = KR_ATTENTION_BASE_THREADS / 32, TILE = 32 };
#define MINUS_INFINITY (-__builtin_inff())

KR_DEV int lane_of(void) { return kr_thread() & 31; }
KR_DEV int warp_of(void) { return kr_thread() >> 5; }

KR_DEV float sum_lanes(float v) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}
KR_DEV float highest_lane(float v) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const float other = kr_shuffle_xor(v, d);
    v = other > v ? other : v;
  }
  return v;
}

/* A block's work: tile of rows (or of keys), head, batch. */
typedef struct task {
  int tile, h, b;
} task;
KR_DEV task task_of(int n_tiles, int H) {
  const int rest = kr_block_x() / n_tiles;
  return task{kr_block_x() - rest * n_tiles, rest % H, rest / H};
}

/* Offset of element d of a tile's row, each row one bank after the previous: by a padding word or, if there is no room
 * for it (KR_ATTENTION_BASE_PITCH), by rotating each row by its number. */
template <int K>
KR_DEV int in_tile(int row, int d) {
  const int pitch = KR_ATTENTION_BASE_PITCH(K);
  return pitch > 32 * K ? row * pitch + d : row * pitch + ((row + d) & (pitch - 1));
}
/* This many elements are contiguous in every row. */
template <int K>
KR_DEV constexpr int straight(void) { return KR_ATTENTION_BASE_PITCH(K) > 32 * K ? 32 * K : 32 * K - TILE; }
/* The lane's k-th element of a row. */
template <int K>
KR_DEV int own_in_tile(int row, int k) {
  return 32 * k < straight<K>() ? in_tile<K>(row, 0) + lane_of() + 32 * k : in_tile<K>(row, lane_of() + 32 * k);
}

/* 32 keys, or rows, from `first`; zeros from `end` on. */
template <int K>
KR_DEV void load_keys(const kr_attention_params &p, float *tile, const kr_attention_tensor &v, const sequence &s, int h,
                      int first, int end, int D) {
  for (int r = warp_of(); r < TILE; r += WARPS) {
    const int64_t at = first + r < end ? key_at(p, v, s, h, first + r) : 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int d = lane_of() + 32 * k;
      tile[own_in_tile<K>(r, k)] = first + r < end && d < D ? kr_load(v.data, at + d * v.d, v.dtype) : 0.0f;
    }
  }
}
template <int K>
KR_DEV void load_queries(float *tile, const kr_attention_tensor &v, const sequence &s, int h, int first, int end,
                         int D) {
  for (int r = warp_of(); r < TILE; r += WARPS) {
    const int64_t at = first + r < end ? query_at(v, s, h, first + r) : 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int d = lane_of() + 32 * k;
      tile[own_in_tile<K>(r, k)] = first + r < end && d < D ? kr_load(v.data, at + d * v.d, v.dtype) : 0.0f;
    }
  }
}

/* Products of the lane's row of the tile with each of the warp's R rows. */
template <int K, int R>
KR_DEV void multiply(float (&s)[R], const float *tile, const float *rows) {
  const float *const mine = tile + in_tile<K>(lane_of(), 0), *const theirs = rows + warp_of() * R * 32 * K;
#pragma unroll
  for (int r = 0; r < R; r++) s[r] = 0;
#pragma unroll 8
  for (int d = 0; d < straight<K>(); d++) {
    const float v = mine[d];
#pragma unroll
    for (int r = 0; r < R; r++) s[r] = kr_fma(theirs[r * 32 * K + d], v, s[r]);
  }
#pragma unroll 8
  for (int d = straight<K>(); d < 32 * K; d++) {
    const float v = tile[in_tile<K>(lane_of(), d)];
#pragma unroll
    for (int r = 0; r < R; r++) s[r] = kr_fma(theirs[r * 32 * K + d], v, s[r]);
  }
}

/* o += w tile; the weights of the tile's 32 rows are distributed over the lanes. */
template <int K, int R>
KR_DEV void accumulate(float (&o)[R][K], const float (&w)[R], const float *tile) {
#pragma unroll 4
  for (int j = 0; j < TILE; j++) {
    float v[K];
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = tile[own_in_tile<K>(j, k)];
#pragma unroll
    for (int r = 0; r < R; r++) {
      const float one = kr_shuffle_from(w[r], j);
#pragma unroll
      for (int k = 0; k < K; k++) o[r][k] = kr_fma(one, v[k], o[r][k]);
    }
  }
}

template <int K>
KR_DEV void store_row(const kr_attention_tensor &to, int64_t at, const float (&o)[K], float scale, int D) {
#pragma unroll
  for (int k = 0; k < K; k++)
    if (lane_of() + 32 * k < D) kr_store(to.data, at + (lane_of() + 32 * k) * to.d, to.dtype, o[k] * scale);
}

#endif
