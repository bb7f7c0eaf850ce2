/* attention_softmax.cuh: from scores to weights, in the accumulators of a warp's mma; for the forward kernels of 16
 * bits and of float32. */
#ifndef KR_ATTENTION_SOFTMAX_CUH
#define KR_ATTENTION_SOFTMAX_CUH

#include "attention_fragments.cuh"

/* A block's rows and its thread's share of them: rows 16 m + g and 16 m + g + 8 of the warp's, of M. */
typedef struct block {
  sequence s;
  int row, h, kv, b, warp_row, lane;
} block;

/* Softcap and slopes; scores as base-2 exponents. */
template <int M, int N>
KR_DEV void make_any_scores(const kr_attention_params &p, const block &at, float slope, int key,
                            float (&s)[M][N / 8][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        s[m][j][i] = KR_LOG2E * score_of(p, s[m][j][i], slope, at.warp_row + 16 * m + at.lane / 4 + i / 2 * 8,
                                         key + 8 * j + at.lane % 4 * 2 + i % 2, at.s.shift);
}

template <int M, int N>
KR_DEV void hide(const kr_attention_params &p, const block &at, int key, float (&s)[M][N / 8][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = at.warp_row + 16 * m + at.lane / 4 + 8 * r, first = first_key(p, at.s, i) - key - at.lane % 4 * 2,
                end = end_key(p, at.s, i) - key - at.lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int c = 0; c < 2; c++)
          if (8 * j + c < first || 8 * j + c >= end) s[m][j][2 * r + c] = MINUS_INFINITY;
    }
}

/* One draw gives the lane's bytes for 32 keys. */
template <int M, int N>
KR_DEV void drop(const kr_attention_params &p, const block &at, int key, float (&s)[M][N / 8][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int j = 0; j < N / 8; j += 4) {
      uint32_t words[4];
      roll(p, words, at.b, at.h, at.warp_row + 16 * m + at.lane / 4, key + 8 * j + at.lane % 4 * 2);
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          s[m][j + k][i] = (int)(words[k] >> i * 8 & 255) < p.keep_below ? s[m][j + k][i] * p.keep_scale : 0.0f;
    }
}

/* Turns scores into weights; rescales o where a row's maximum has grown. */
template <int D, int M, int N>
KR_DEV void weigh(float (&s)[M][N / 8][4], float scale, float (&most)[M][2], float (&sum)[M][2],
                  float (&o)[M][D / 8][4]) {
  float high[M][2];
  int grows = 0;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float a = higher(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
      for (int j = 1; j < N / 8; j++) a = higher(a, higher(s[m][j][2 * r], s[m][j][2 * r + 1]));
      a = higher(a, kr_shuffle_xor(a, 1));
      high[m][r] = higher(a, kr_shuffle_xor(a, 2));
      grows |= (high[m][r] - most[m][r]) * scale > SLACK;
    }
  if (kr_any_lane(grows)) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float now = higher(most[m][r], high[m][r]),
                    shrink = now == MINUS_INFINITY ? 1.0f : kr_exp2((most[m][r] - now) * scale);
        most[m][r] = now, sum[m][r] *= shrink;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[m][j][2 * r] *= shrink, o[m][j][2 * r + 1] *= shrink;
      }
  }
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float offset = most[m][r] == MINUS_INFINITY ? 0.0f : most[m][r] * scale;
      float part[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          s[m][j][2 * r + c] = kr_exp2(kr_fma(s[m][j][2 * r + c], scale, -offset));
          part[c] += s[m][j][2 * r + c];
        }
      sum[m][r] += part[0] + part[1];
    }
}

#endif
