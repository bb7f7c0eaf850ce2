/* conv3d_base.cu: the causal convolution as an implicit product by float32 FMAs, for every GPU, any types and strides.
 * A block of 256 threads computes 128 positions by 128 channels; a thread has positions 4 y + {0..3} and those + 64,
 * channels 4 x + {0..3} and those + 64. A thread fetches eight terms of one position and of one channel for the next
 * stage while the current one is multiplied. kr_conv3d_keep then copies the frames that the next part needs. */
#include "conv3d.cuh"

enum { BM = 128, BN = 128, BK = 16, ROW = BM + 4, THREADS = KR_CONV3D_BASE_THREADS, TERMS = 8 };

KR_DEV void put_terms(float *stage, int row, int k, const float (&v)[TERMS]) {
#pragma unroll
  for (int i = 0; i < TERMS; i++) stage[(k + i) * ROW + row] = v[i];
}

KR_DEV void widen(const void *data, int64_t at, int32_t dtype, float (&v)[TERMS]) {
  const kr_raw16 raw = load_pack(data, at, 1, dtype, 1, TERMS);
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = pack_at(raw, i, dtype);
  const kr_raw16 more = dtype == KRAIT_F32 ? load_pack(data, at + 4, 1, dtype, 1, TERMS) : raw;
#pragma unroll
  for (int i = 4; i < TERMS; i++) v[i] = pack_at(more, i, dtype);
}

/* The terms k to k + 8 of the window, of one tap, in packs; zeros outside. */
KR_DEV void fetch_terms(const kr_conv3d_params &p, int m, int k, float (&v)[TERMS]) {
  kr_frame f;
  const int tap = (int)kr_divide((uint32_t)k, p.by_C), c = k - tap * p.C;
#pragma unroll
  for (int i = 0; i < TERMS; i++) v[i] = 0.0f;
  if (m < p.M && k < p.n_terms && kr_find_tap(p, kr_window_of(p, m), tap, f)) widen(f.data, f.at + c, p.x.dtype, v);
}

/* The same terms of channel n. */
KR_DEV void fetch_weights(const kr_conv3d_params &p, int n, int k, float (&v)[TERMS]) {
#pragma unroll
  for (int i = 0; i < TERMS; i++) v[i] = 0.0f;
  if (n < p.K && k < p.n_terms) widen(p.weight.data, n * p.weight.k + k, p.weight.dtype, v);
}

/* Both, one by one, of any types and strides. */
KR_DEV void copy_elements(const kr_conv3d_params &p, int m, int n, int k, int row, int term, float *stage) {
  int tap = (int)kr_divide((uint32_t)k, p.by_C), c = k - tap * p.C;
#pragma unroll 1
  for (int i = 0; i < TERMS; i++) {
    kr_frame f;
    const int is_inside = k + i < p.n_terms && m < p.M && kr_find_tap(p, kr_window_of(p, m), tap, f);
    float *const to = stage + (term + i) * ROW + row;
    to[0] = is_inside ? kr_load(f.data, f.at + c * f.c, p.x.dtype) : 0.0f;
    to[BK * ROW] = n < p.K && k + i < p.n_terms
                       ? kr_load(p.weight.data, n * p.weight.k + tap * p.weight.tap + c * p.weight.c, p.weight.dtype)
                       : 0.0f;
    if (++c == p.C) c = 0, tap++;
  }
}

KR_DEV void multiply_terms(float (&d)[8][8], const float *a, const float *b) {
#pragma unroll 2
  for (int k = 0; k < BK; k++) {
    const kr_float4 a0 = *(const kr_float4 *)(a + k * ROW), a1 = *(const kr_float4 *)(a + k * ROW + 64),
                    b0 = *(const kr_float4 *)(b + k * ROW), b1 = *(const kr_float4 *)(b + k * ROW + 64);
#pragma unroll
    for (int i = 0; i < 64; i++)
      d[i / 8][i % 8] = kr_fma(i / 8 < 4 ? a0.v[i / 8 % 4] : a1.v[i / 8 % 4],
                               i % 8 < 4 ? b0.v[i % 4] : b1.v[i % 4], d[i / 8][i % 8]);
  }
}

template <int PACKS>
KR_DEV void run(const kr_conv3d_params &p) {
  KR_SHARED float __attribute__((aligned(16))) stages[2][2][BK * ROW];
  const int tile = (int)kr_divide((uint32_t)kr_block_x(), p.by_n), m = tile * BM,
            n = (kr_block_x() - tile * p.n_n) * BN;
  const int row = kr_thread() / 2, term = kr_thread() % 2 * TERMS, x = kr_thread() % 16 * 4, y = kr_thread() / 16 * 4;
  float d[8][8];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i / 8][i % 8] = 0.0f;
  int which = 1;
#pragma unroll 1
  for (int k = -BK; k < p.n_terms; k += BK, which ^= 1) { /* the next stage is fetched while this one is multiplied */
    const int more = k + BK < p.n_terms, next = k + BK + term;
    float *const stage = stages[which ^ 1][0];
    float next_a[TERMS], next_b[TERMS];
    if (more && PACKS) fetch_terms(p, m + row, next, next_a), fetch_weights(p, n + row, next, next_b);
    if (more && !PACKS) copy_elements(p, m + row, n + row, next, row, term, stage);
    if (k >= 0) multiply_terms(d, stages[which][0] + y, stages[which][1] + x);
    if (more && PACKS) put_terms(stage, row, term, next_a), put_terms(stage + BK * ROW, row, term, next_b);
    kr_sync();
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float bias[4];
    const int k = n + x + 64 * half;
#pragma unroll
    for (int i = 0; i < 4; i++) bias[i] = kr_bias_of(p, k + i);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float v[4] = {d[i][4 * half], d[i][4 * half + 1], d[i][4 * half + 2], d[i][4 * half + 3]};
      kr_finish_spot<4>(p, m + y + (i < 4 ? i : 60 + i), k, bias, v);
    }
  }
}

/* packs: eight terms are of one tap, in aligned 16 bytes. */
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_conv3d_base_packs(kr_conv3d_params p) { run<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_conv3d_base(kr_conv3d_params p) { run<0>(p); }

/* Frame m comes from frame m or a later one of the state, so that both may be the same memory: a thread copies its
 * channels of one position frame after frame. */
KR_KERNEL void KR_BOUNDS(KR_CONV3D_KEEP_THREADS, 4) kr_conv3d_keep(kr_conv3d_params p) {
  const kr_conv3d_map &to = p.final_states;
  const int per_pack = to.dtype == KRAIT_F32 ? 4 : 8, n_packs = (p.C + per_pack - 1) / per_pack;
  const uint32_t index = (uint32_t)kr_block_x() * KR_CONV3D_KEEP_THREADS + (uint32_t)kr_thread();
  const int place = (int)kr_divide(index, p.by_packs), c = ((int)index - place * n_packs) * per_pack, left = p.C - c,
            h = (int)kr_divide((uint32_t)place, p.by_W), w = place - h * p.W;
  if (h >= p.H) return;
#pragma unroll 1
  for (int m = 0; m < p.past; m++) {
    const kr_frame f = kr_frame_of(p, p.front + p.T - p.past + m);
    const int64_t put = kr_spot_at(to, (kr_spot){m, h, w}) + c * to.c;
    const kr_raw16 raw = load_pack(f.data, f.at + h * f.h + w * f.w + c * f.c, f.c, p.x.dtype, p.x.packs, left);
    if (to.packs && left >= per_pack) {
      if (to.dtype == KRAIT_F32) *(kr_raw16 *)((float *)to.data + put) = raw;
      else *(kr_raw16 *)((uint16_t *)to.data + put) = raw;
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i >= per_pack || i >= left) continue;
      if (to.dtype == KRAIT_F32) ((uint32_t *)to.data)[put + i * to.c] = raw.w[i & 3];
      else ((uint16_t *)to.data)[put + i * to.c] = (uint16_t)(raw.w[i >> 1] >> (i & 1) * 16);
    }
  }
}
