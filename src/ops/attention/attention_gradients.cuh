/* attention_gradients.cuh: from scores to gradients of scores, in the accumulators of a warp's mma; for the gradient's
 * kernels of 16 bits and of float32. */
#ifndef KR_ATTENTION_GRADIENTS_CUH
#define KR_ATTENTION_GRADIENTS_CUH

#include "attention_fragments.cuh"

typedef struct block {
  sequence s;
  int h, b;
} block;

KR_DEV int64_t delta_at(const kr_attention_params &p, const sequence &s, int h, int i) {
  return h * p.delta_h + (int64_t)s.q_b * p.Lq + s.q_at + i;
}
KR_DEV float lse_of(const kr_attention_params &p, const sequence &s, int h, int i) {
  return ((const float *)p.lse.data)[query_at(p.lse, s, h, i)];
}

/* One element of dS, without the scale, and the probability after dropout. */
template <int ANY>
KR_DEV float gradient_of(const kr_attention_params &p, float product, float by_dout, float lse, float delta,
                         float slope, float keep, int i, int j, int shift, float *probability) {
  if (!ANY) {
    *probability = kr_exp2(kr_fma(product, p.scale * KR_LOG2E, -lse));
    return *probability * (by_dout - delta);
  }
  const float P = kr_exp2(kr_fma(score_of(p, product, slope, i, j, shift), KR_LOG2E, -lse));
  *probability = P * keep;
  return P * kr_fma(by_dout, keep, -delta) * score_slope(p, product);
}

/* dS of a warp's 16 M rows and N keys from their products, in s. ALL: every row sees every key. */
template <int ANY, int ALL, int M, int N>
KR_DEV void weigh_keys(const kr_attention_params &p, const block &at, float slope, float (&s)[M][N / 8][4],
                       const float (&dp)[M][N / 8][4], const float (&lse)[M][2], const float (&delta)[M][2], int row0,
                       int key0, const int (&first_of)[M][2], const int (&end_of)[M][2]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int m = 0; m < M; m++) {
    uint32_t words[4] = {};
    if (ANY && p.rng.data) roll(p, words, at.b, at.h, row0 + 16 * m + lane / 4, key0 + lane % 4 * 2);
    if (N < 32 && key0 & 16) words[0] = words[2], words[1] = words[3]; /* they are of 32 keys */
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int r = c / 2, key = key0 + 8 * j + lane % 4 * 2 + c % 2,
                  seen = ALL || (key >= first_of[m][r] && key < end_of[m][r]);
        const float keep = !ANY || !p.rng.data                             ? 1.0f
                           : (int)(words[j] >> c * 8 & 255) < p.keep_below ? p.keep_scale
                                                                           : 0.0f;
        float probability;
        const float ds = gradient_of<ANY>(p, s[m][j][c], dp[m][j][c], lse[m][r], delta[m][r], slope, keep,
                                          row0 + 16 * m + lane / 4 + 8 * r, key, at.s.shift, &probability);
        s[m][j][c] = seen ? ds : 0.0f;
      }
  }
}

/* P and dS of a warp's 16 M keys and N rows from their products, in place. ALL: every row sees every key. */
template <int ANY, int ALL, int M, int N>
KR_DEV void weigh_rows(const kr_attention_params &p, const block &at, int h, float slope, float (&s)[M][N / 8][4],
                       float (&dp)[M][N / 8][4], const float *lse, const float *delta, int i0, int key0) {
  const int lane = kr_thread() & 31;
  int lo[M][2], hi[M][2]; /* rows that see the lane's keys */
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + 16 * m + lane / 4 + 8 * r;
      lo[m][r] = first_row(p, at.s, key), hi[m][r] = key < at.s.n_k ? end_row(p, at.s, key) : 0;
    }
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const kr_float2 l = *(const kr_float2 *)(lse + 8 * j + lane % 4 * 2),
                    d = *(const kr_float2 *)(delta + 8 * j + lane % 4 * 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int i = i0 + 8 * j + lane % 4 * 2 + c % 2, key = key0 + 16 * m + lane / 4 + c / 2 * 8,
                  seen = ALL || (i >= lo[m][c / 2] && i < hi[m][c / 2]);
        const float keep = ANY && p.rng.data ? kept(p, at.b, h, i, key) : 1.0f;
        float probability;
        const float ds = gradient_of<ANY>(p, s[m][j][c], dp[m][j][c], l.v[c % 2] * KR_LOG2E, d.v[c % 2], slope, keep, i,
                                          key, at.s.shift, &probability);
        s[m][j][c] = seen ? probability : 0.0f, dp[m][j][c] = seen ? ds : 0.0f;
      }
  }
}

#endif
