/* attention_tiles.cuh: shared by all attention kernels: a sequence's location, which keys a row sees, what is applied
 * to a score. Rows i and keys j count from their sequence's start; its last row and its last key are aligned (bottom
 * right). */
#ifndef KR_ATTENTION_TILES_CUH
#define KR_ATTENTION_TILES_CUH

#include "kernel.cuh"

#include "attention_params.h"

typedef struct sequence {
  int64_t q_at, k_at;           /* first row of q; of k and v, if not paged */
  int q_b, k_b;                 /* batch */
  int n_q, n_k, shift;          /* row i is aligned with key i + shift */
  int rows_q, rows_k;           /* in memory: rows from n_q on are unused */
  const int32_t *pages;
} sequence;

KR_DEV int at_most(int a, int b) { return a < b ? a : b; }
KR_DEV int at_least(int a, int b) { return a > b ? a : b; }
KR_DEV int index_at(const kr_attention_index &v, int i) { return v.data[i * v.step]; }

/* For packed rows; bad offsets are kept within the tensor. */
KR_DEV int length_of(const kr_attention_index &offsets, int b, int total, int64_t *at) {
  const int begin = index_at(offsets, b), end = index_at(offsets, b + 1);
  *at = begin;
  return begin < 0 || end < begin || end > total ? 0 : end - begin;
}

KR_DEV sequence sequence_of(const kr_attention_params &p, int b) {
  sequence s = {0, 0, b, b, 0, 0, 0, p.Lq, p.Lk, nullptr};
  if (p.cu_q.data) s.rows_q = length_of(p.cu_q, b, p.Lq, &s.q_at), s.q_b = 0;
  if (p.cu_k.data) s.rows_k = length_of(p.cu_k, b, p.Lk, &s.k_at), s.k_b = 0;
  if (p.table.data) s.pages = p.table.data + b * p.table_b, s.rows_k = p.Lk * p.n_pages;
  s.n_q = p.used_q.data ? at_least(at_most(s.rows_q, index_at(p.used_q, b)), 0) : s.rows_q;
  s.n_k = p.used_k.data ? at_least(at_most(s.rows_k, index_at(p.used_k, b)), 0) : s.rows_k;
  if (p.cache_row.data) {
    s.k_b = index_at(p.cache_row, b);
    if (s.k_b < 0 || s.k_b >= p.Bk) s.k_b = 0, s.n_k = 0;
  }
  if (p.leftpad.data) {
    const int skipped = at_least(index_at(p.leftpad, b), 0);
    s.k_at += skipped, s.n_k = at_least(s.n_k - skipped, 0);
  }
  s.shift = s.n_k - s.n_q;
  return s;
}

/* A row sees keys first to end - 1. */
KR_DEV int first_key(const kr_attention_params &p, const sequence &s, int i) {
  return p.left < 0 ? 0 : at_least(i + s.shift - p.left, 0);
}
KR_DEV int end_key(const kr_attention_params &p, const sequence &s, int i) {
  return p.right < 0 ? s.n_k : at_least(at_most(i + s.shift + p.right + 1, s.n_k), 0);
}
/* A key is seen by rows first to end - 1. */
KR_DEV int first_row(const kr_attention_params &p, const sequence &s, int j) {
  return p.right < 0 ? 0 : at_least(j - s.shift - p.right, 0);
}
KR_DEV int end_row(const kr_attention_params &p, const sequence &s, int j) {
  return p.left < 0 ? s.n_q : at_least(at_most(j - s.shift + p.left + 1, s.n_q), 0);
}

KR_DEV int64_t page_of(const kr_attention_params &p, const sequence &s, int number) {
  const int page = s.pages[number * p.table.step];
  return page < 0 || page >= p.Bk ? 0 : page;
}
/* Offset of key j of a head. */
KR_DEV int64_t key_at(const kr_attention_params &p, const kr_attention_tensor &v, const sequence &s, int h, int j) {
  if (s.pages) return page_of(p, s, j / p.Lk) * v.b + j % p.Lk * v.t + h * v.h;
  return s.k_b * v.b + (s.k_at + j) * v.t + h * v.h;
}
KR_DEV int64_t query_at(const kr_attention_tensor &v, const sequence &s, int h, int i) {
  return s.q_b * v.b + (s.q_at + i) * v.t + h * v.h;
}

KR_DEV float slope_of(const kr_attention_params &p, int b, int h) {
  return p.slopes ? p.slopes[b * p.slopes_b + h * p.slopes_h] : 0.0f;
}

/* Philox 4 x 32, ten rounds. */
KR_DEV void philox(uint32_t (&c)[4], uint32_t key0, uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u) {
    const uint32_t high0 = kr_mul_high(0xd2511f53u, c[0]), low0 = 0xd2511f53u * c[0],
                   high1 = kr_mul_high(0xcd9e8d57u, c[2]), low1 = 0xcd9e8d57u * c[2];
    c[0] = high1 ^ c[1] ^ key0, c[1] = low1, c[2] = high0 ^ c[3] ^ key1, c[3] = low0;
  }
}
/* The bytes of key j / 32 * 32 + {0, 8, 16, 24} + column (even) and the next, for rows row (0 to 7 in 16) and row + 8,
 * as ops.h defines. */
KR_DEV void roll(const kr_attention_params &p, uint32_t (&words)[4], int b, int h, int i, int j) {
  words[0] = (uint32_t)(j / 32 * 4 + j % 8 / 2), words[1] = (uint32_t)(i / 16 * 8 + i % 8),
  words[2] = (uint32_t)(b * p.H + h), words[3] = (uint32_t)index_at(p.rng, 2);
  philox(words, (uint32_t)index_at(p.rng, 0), (uint32_t)index_at(p.rng, 1) ^ (uint32_t)index_at(p.rng, 3));
}
/* Factor of a probability: 0 if dropped. */
KR_DEV float kept(const kr_attention_params &p, int b, int h, int i, int j) {
  uint32_t words[4];
  roll(p, words, b, h, i, j);
  const int quarter = j % 32 / 8;
  const uint32_t word = quarter & 2 ? quarter & 1 ? words[3] : words[2] : quarter & 1 ? words[1] : words[0];
  return (int)(word >> (i % 16 / 8 * 16 + j % 2 * 8) & 255) < p.keep_below ? p.keep_scale : 0.0f;
}

/* Accurate to float32's last bits: for small arguments the difference would cancel. */
KR_DEV float tanh_of(float x) {
  const float square = x * x,
              small =
                  x * kr_fma(square, kr_fma(square, kr_fma(square, -0.053968254f, 0.13333334f), -0.33333334f), 1.0f);
  return kr_select(square < 0.04f, small, 1.0f - 2.0f * kr_rcp(1.0f + kr_exp2(2.0f * KR_LOG2E * x)));
}

/* A score from the product of its row and key. */
KR_DEV float score_of(const kr_attention_params &p, float product, float slope, int i, int j, int shift) {
  float s = product * p.scale;
  if (p.softcap > 0) s = p.softcap * tanh_of(product * p.scale_by_cap);
  const int far = i + shift - j;
  return s - slope * (float)(far < 0 ? -far : far);
}
/* The score's derivative at `product`, without the scale. */
KR_DEV float score_slope(const kr_attention_params &p, float product) {
  if (p.softcap <= 0) return 1.0f;
  const float t = tanh_of(product * p.scale_by_cap);
  return 1.0f - t * t;
}

#endif
