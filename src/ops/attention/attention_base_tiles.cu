/* attention_base_tiles.cu: attention by multiply-adds in tiles of 64 rows by 64 keys, for every GPU. A thread has eight
 * rows: their products with four keys, and their sums of a sixteenth of the channels; the 16 even, or odd, lanes of a
 * warp share the rows. Rows, keys and values go through 16 KB of shared memory in pieces, weights through another 16.
 * Compiled once per type of q, k and v (KR_DTYPE). kr_attention_tiles_D: heads of up to D channels. */
#include "attention_base.h"
#include "attention_fragments.cuh"
#include "row_lanes.cuh"

enum { ROWS = KR_ATTENTION_TILE_ROWS, KEYS = 64, THREADS = KR_ATTENTION_BASE_THREADS };
enum { PIECE = 32 /* channels of rows and keys at a time */, OWN = 8 /* rows of a thread */ };

typedef kr_eight<KR_DTYPE> eight;
enum { ELEMENT_BYTES = sizeof(eight) / 8 };
KR_DEV void read_wide(const kr_attention_tensor &t, int64_t at, int exists, float (&v)[8]) {
  eight raw = {};
  if (exists) raw = *(const eight *)((const char *)t.data + ELEMENT_BYTES * at);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = kr_eight_at<KR_DTYPE>(raw, i);
}

/* A piece of the channels of 64 rows, or keys, with the channels one under the other; a thread has 16 of one. */
KR_DEV void load_piece(const kr_attention_params &p, const kr_attention_tensor &t, int64_t at, int exists, int piece,
                       float *to) {
  const int first = kr_thread() / 64 * 16;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int d = first + 8 * h, channel = piece * PIECE + d;
    float v[8];
    read_wide(t, at + channel, exists && channel < p.D, v);
#pragma unroll
    for (int i = 0; i < 8; i++) to[(d + i) * 64 + kr_thread() % 64] = v[i];
  }
}

/* `n` values from key `first` on, side by side as in memory; zeros from `end` on. */
template <int D>
KR_DEV void load_values(const kr_attention_params &p, const sequence &s, int kv, int first, int end, float *to) {
  const int PER_KEY = D / 8, N = 4096 / D;
#pragma unroll
  for (int k = kr_thread() / PER_KEY; k < N; k += THREADS / PER_KEY) {
    const int channel = kr_thread() % PER_KEY * 8, exists = first + k < end && channel < p.D;
    float v[8];
    read_wide(p.v, exists ? key_at(p, p.v, s, kv, first + k) + channel : 0, exists, v);
    kr_float4 *const at = (kr_float4 *)(to + k * D + channel);
    at[0] = kr_float4{{v[0], v[1], v[2], v[3]}}, at[1] = kr_float4{{v[4], v[5], v[6], v[7]}};
  }
}

/* Four rows' weights of a key lie together, their groups mixed so that neither side meets in a bank. */
KR_DEV float *weights_at(float *weights, int key, int group) {
  return weights + key * ROWS + 4 * (group ^ (key / 4 % 16));
}

KR_DEV void read_rows(const float *from, float (&v)[OWN]) {
#pragma unroll
  for (int h = 0; h < 2; h++) *(kr_float4 *)(v + 4 * h) = *(const kr_float4 *)(from + 4 * h);
}

template <int D>
KR_DEV void forward(const kr_attention_params &p) {
  const int OF_LANE = D / 64; /* groups of four channels of a thread */
  KR_SHARED float __attribute__((aligned(16))) pieces[2 * PIECE * 64], weights[KEYS * ROWS];
  const int rest = kr_block_x() / p.n_q_tiles, row0 = (kr_block_x() - rest * p.n_q_tiles) * ROWS, h = rest % p.H,
            b = rest / p.H, kv = h / p.heads, x = kr_thread() >> 1 & 15,
            y = (kr_thread() & 1) + (kr_thread() >> 5) * 2, own = row0 + OWN * y;
  const sequence s = sequence_of(p, b);
  if (row0 >= s.rows_q) return;
  const float slope = slope_of(p, b, h) * KR_LOG2E, scale = p.scale * KR_LOG2E;
  const int last = at_most(row0 + ROWS, s.n_q) - 1, end = row0 < s.n_q ? end_key(p, s, last) : 0,
            seen_from = first_key(p, s, last), seen_to = end_key(p, s, row0), is_plain = p.softcap <= 0 && !p.slopes;
  float o[OWN][4 * OF_LANE] = {}, most[OWN], sum[OWN];
#pragma unroll
  for (int r = 0; r < OWN; r++) most[r] = MINUS_INFINITY, sum[r] = 0.0f;
  const int q_row = row0 + kr_thread() % 64, q_exists = q_row < s.n_q;
  const int64_t q_at = q_exists ? query_at(p.q, s, h, q_row) : 0;
#pragma unroll 1
  for (int j0 = first_key(p, s, row0) / KEYS * KEYS; j0 < end; j0 += KEYS) {
    float score[OWN][4] = {};
    const int k_row = j0 + kr_thread() % 64, k_exists = k_row < end;
    const int64_t k_at = k_exists ? key_at(p, p.k, s, kv, k_row) : 0;
#pragma unroll 1
    for (int piece = 0; piece < D / PIECE; piece++) {
      kr_sync();
      load_piece(p, p.q, q_at, q_exists, piece, pieces);
      load_piece(p, p.k, k_at, k_exists, piece, pieces + PIECE * 64);
      kr_sync();
#pragma unroll 4
      for (int d = 0; d < PIECE; d++) {
        float q[OWN];
        read_rows(pieces + d * 64 + OWN * y, q);
        const kr_float4 k = *(const kr_float4 *)(pieces + (PIECE + d) * 64 + 4 * x);
#pragma unroll
        for (int r = 0; r < OWN; r++)
#pragma unroll
          for (int c = 0; c < 4; c++) score[r][c] = kr_fma(q[r], k.v[c], score[r][c]);
      }
    }
    const int is_whole = j0 >= seen_from && j0 + KEYS <= seen_to;
#pragma unroll
    for (int r = 0; r < OWN; r++) {
      const int i = own + r, from = is_whole ? 0 : first_key(p, s, i), to = is_whole ? INT32_MAX : end_key(p, s, i);
      float high = most[r];
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int j = j0 + 4 * x + c;
        float one = is_plain ? score[r][c] * scale
                             : KR_LOG2E * score_of(p, score[r][c], 0.0f, i, j, s.shift) -
                                   slope * (float)(i + s.shift < j ? j - i - s.shift : i + s.shift - j);
        if (j < from || j >= to) one = MINUS_INFINITY;
        score[r][c] = one, high = higher(high, one);
      }
#pragma unroll
      for (int d = 2; d < 32; d <<= 1) high = higher(high, kr_shuffle_xor(high, d));
      const float offset = high == MINUS_INFINITY ? 0.0f : high, shrink = kr_exp2(most[r] - offset);
      most[r] = high, sum[r] *= shrink;
#pragma unroll
      for (int c = 0; c < 4 * OF_LANE; c++) o[r][c] *= shrink;
#pragma unroll
      for (int c = 0; c < 4; c++) score[r][c] = kr_exp2(score[r][c] - offset), sum[r] += score[r][c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int g = 0; g < 2; g++)
        *(kr_float4 *)weights_at(weights, 4 * x + c, 2 * y + g) =
            kr_float4{{score[4 * g][c], score[4 * g + 1][c], score[4 * g + 2][c], score[4 * g + 3][c]}};
#pragma unroll 1
    for (int first = 0; first < KEYS; first += 4096 / D) {
      kr_sync();
      load_values<D>(p, s, kv, j0 + first, end, pieces);
      kr_sync();
#pragma unroll 4
      for (int k = 0; k < 4096 / D; k++) {
        float w[OWN];
#pragma unroll
        for (int g = 0; g < 2; g++)
          *(kr_float4 *)(w + 4 * g) = *(const kr_float4 *)weights_at(weights, first + k, 2 * y + g);
#pragma unroll
        for (int l = 0; l < OF_LANE; l++) {
          const kr_float4 v = *(const kr_float4 *)(pieces + k * D + 64 * l + 4 * x);
#pragma unroll
          for (int r = 0; r < OWN; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[r][4 * l + c] = kr_fma(w[r], v.v[c], o[r][4 * l + c]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < OWN; r++) {
    const int i = own + r;
    float total = sum[r];
#pragma unroll
    for (int d = 2; d < 32; d <<= 1) total += kr_shuffle_xor(total, d);
    if (i >= s.rows_q) continue;
    float by = 1.0f, offset = most[r];
    if (p.sinks && total > 0.0f) {
      const float sink = kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype) * KR_LOG2E, now = higher(sink, offset);
      by = kr_exp2(offset - now), total = kr_fma(total, by, kr_exp2(sink - now)), offset = now;
    }
    const int none = total == 0.0f || i >= s.n_q; /* not a number stays */
    by = none ? 0.0f : by / total;
    const int64_t at = query_at(p.out, s, h, i);
#pragma unroll
    for (int c = 0; c < 4 * OF_LANE; c++) {
      const int d = c / 4 * 64 + 4 * x + c % 4;
      if (d < p.D) kr_store(p.out.data, at + d * p.out.d, p.out.dtype, none ? 0.0f : o[r][c] * by);
    }
    if (p.lse.data && x == 0)
      ((float *)p.lse.data)[query_at(p.lse, s, h, i)] = none ? -MINUS_INFINITY : KR_LN2 * (offset + kr_log2(total));
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_attention_tiles_64(const kr_attention_params p) { forward<64>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_tiles_128(const kr_attention_params p) { forward<128>(p); }
