/* attention_hopper_bwd.cuh: shared by the warpgroup kernels of attention's gradient: lane mapping, box copies,
 * products, masks, alternation. A block owns OWN rows or keys. */
#ifndef KR_ATTENTION_HOPPER_BWD_CUH
#define KR_ATTENTION_HOPPER_BWD_CUH

#include "attention_fragments.cuh"
#include "wgmma.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { D = KR_D, BLOCKS = D / 64, THREADS = KR_HOPPER_BWD_THREADS, OWN = KR_HOPPER_BWD_ROWS };
enum { GROUP_BARRIER = 1 /* and the next */, TURN = 3 /* and the next */ };

typedef struct lanes {
  int group, thread, first_row,
      column; /* of the block's rows or keys: first_row and first_row + 8; of a tile: 8 j + column and the next */
} lanes;
KR_DEV lanes lanes_of(int thread) {
  const int lane = thread & 31;
  return lanes{thread / 128, thread & 127, 64 * (thread / 128) + 16 * (thread / 32 & 3) + lane / 4, lane % 4 * 2};
}
KR_DEV lanes lanes_here(void) { return lanes_of(kr_thread() - 128); }

/* The heads of rows that a block of keys walks: all that share its keys, or one of p.split_keys parts of them, whose
 * sums of dk and dv are added by kr_attention_hopper_join. */
typedef struct walk {
  int unit, first, end;
} walk;
KR_DEV walk walk_here(const kr_attention_params &p) {
  const int parts = p.split_keys, unit = kr_block_x() / parts, part = kr_block_x() - unit * parts;
  return walk{unit, part * p.heads / parts, (part + 1) * p.heads / parts};
}

/* A block's sums of dk and dv in memory: 16 bytes a thread, one thread behind the other; behind the sums of dq. */
KR_DEV kr_raw16 *part_at(const kr_attention_params &p, int64_t block, const lanes &me) {
  return (kr_raw16 *)(p.partial + (int64_t)p.H * p.n_splits * 64 * D + block * 2 * OWN * D) + me.thread +
         128 * me.group;
}
KR_DEV void store_part(kr_raw16 *to, const float (&o)[D / 2]) {
#pragma unroll
  for (int j = 0; j < D / 8; j++)
    to[256 * j] = (kr_raw16){{kr_float_to_bits(o[4 * j]), kr_float_to_bits(o[4 * j + 1]),
                              kr_float_to_bits(o[4 * j + 2]), kr_float_to_bits(o[4 * j + 3])}};
}

KR_DEV int64_t delta_at(const kr_attention_params &p, const sequence &s, int h, int i) {
  return h * p.delta_h + (int64_t)s.q_b * p.Lq + s.q_at + i;
}
KR_DEV float lse_of(const kr_attention_params &p, const sequence &s, int h, int i) {
  return ((const float *)p.lse.data)[query_at(p.lse, s, h, i)];
}

template <int N>
KR_DEV void load_boxes(uint32_t to, uint64_t map, uint32_t barrier, int t, int h, int b) {
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) kr_load_box(to + i * N * 128, map, barrier, 64 * i, t, h, b);
}

/* Starts s = own tile of rows `which`, times the ring's tile: 64 by N. */
template <int N>
KR_DEV void start_scores(uint32_t own, uint32_t tile, const lanes &me, float (&s)[N / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
#pragma unroll
    for (int step = 0; step < 4; step++)
      kr_wgmma_step<N, element, 0, 0>(s, kr_k_major(own + i * OWN * 128 + me.group * 64 * 128 + step * KR_K_STEP_BYTES),
                                      kr_k_major(tile + i * N * 128 + step * KR_K_STEP_BYTES), i + step > 0);
  kr_wgmma_commit();
}

/* Starts o += w tile. */
template <int N>
KR_DEV void start_sum(uint32_t tile, const uint32_t (&w)[N / 4], float (&o)[D / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int step = 0; step < N / 16; step++)
    kr_wgmma_step_registers<D, element, 1>(o, w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3],
                                           kr_mn_major(tile + step * KR_MN_STEP_BYTES, N * 128), 1);
  kr_wgmma_commit();
}

/* Clears rows of both tiles of a stage from `from` on: they are another sequence's or undefined, and zero times
 * anything need not be zero. */
template <int N>
KR_DEV void clear_behind(unsigned char *stage, const lanes &me, int from) {
  if (from >= N) return;
  const int rows = N - from;
  for (int i = me.thread; i < rows * 8 * 2 * BLOCKS; i += 128) {
    const int block = i / (rows * 8);
    *(kr_raw16 *)(stage + block * N * 128 + from * 128 + (i - block * rows * 8) * 16) = (kr_raw16){{0, 0, 0, 0}};
  }
  kr_show_to_copies();
  kr_sync_at<128>(GROUP_BARRIER + me.group);
}

template <int N>
KR_DEV void pack_all(const float (&s)[N / 2], uint32_t (&w)[N / 4]) {
#pragma unroll
  for (int i = 0; i < N / 4; i++) w[i] = kr_pack(s[2 * i], s[2 * i + 1], DTYPE);
}

/* Stores row r of the lane's two. */
KR_DEV void store_row(const kr_attention_params &p, uint16_t *to, const lanes &me, int r, const float (&o)[D / 2],
                      float scale, int there, int counts) {
#pragma unroll
  for (int j = 0; j < D / 8; j += 4) {
    uint32_t w[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      w[k] = counts ? kr_pack(o[4 * (j + k) + 2 * r] * scale, o[4 * (j + k) + 2 * r + 1] * scale, DTYPE) : 0;
    const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
    const int column = 8 * j + 4 * me.column;
    if (there && column < p.D) *(kr_raw16 *)(to + column) = eight;
  }
}

/* The warpgroups alternate in issuing products, so that one does its exponentials while the tensor cores work for the
 * other. */
KR_DEV void take_turn(const lanes &me) { kr_sync_at<256>(TURN + me.group); }
KR_DEV void give_turn(const lanes &me) { kr_arrive_at<256>(TURN + 1 - me.group); }

/* Masks scores outside first to end - 1, per row of the lane's two, in the tile at `begin`. */
template <int N>
KR_DEV void hide(float (&s)[N / 2], const lanes &me, int begin, const int (&first)[2], const int (&end)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int low = first[r] - begin - me.column, high = end[r] - begin - me.column;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        if (8 * j + c < low || 8 * j + c >= high) s[4 * j + 2 * r + c] = MINUS_INFINITY;
  }
}

#endif
