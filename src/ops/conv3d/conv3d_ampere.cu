/* conv3d_ampere.cu: the causal convolution as an implicit product on a warp's tensor cores, of 16-bit factors or
 * (KR_TF32) of float32 ones as sums of two tf32 parts. A block computes 128 positions by BN channels, a warp 64 x 64 of
 * it; cp.async copies windows and weights into a ring of stages of BK terms. A thread copies the same 16 bytes of terms
 * of several positions; it looks for their places again only where its tap changes. Channels that do not fill 16 bytes
 * are copied one by one. */
#include "conv3d.cuh"
#include "mma.cuh"

#if defined(KR_TF32)
typedef kr_tf32 element;
typedef uint32_t stored;
#elif defined(KR_HALF)
typedef kr_f16 element;
typedef uint16_t stored;
#else
typedef kr_bf16 element;
typedef uint16_t stored;
#endif
enum {
  BM = KR_CONV3D_AMPERE_BM,
  LINE_BYTES = KR_CONV3D_AMPERE_BYTES,
  BK = LINE_BYTES / sizeof(stored),
  CHUNK = 16 / sizeof(stored),
  STEP_K = 2 * CHUNK,
  STAGES = KR_CONV3D_AMPERE_STAGES,
  PER_LINE = LINE_BYTES / 16,
  STAGED_ROW = 72,
  UNROLLED = sizeof(stored) == 4 ? 1 : 2 /* steps at once: registers of parts suffice for one */
};

/* ---- to shared memory ---- */

/* The same chunk of terms of every LINES-th position. */
template <int THREADS>
struct windows {
  enum { LINES = THREADS / PER_LINE, N = BM / LINES };
  const stored *at[N]; /* the next chunk; NULL: zeros */
  int tap, c;          /* of the next chunk */

  KR_DEV void look(windows &w, const kr_conv3d_params &p, int m) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const int position = m + kr_thread() / PER_LINE + i * LINES;
      kr_frame f;
      const int is_inside =
          position < p.M && w.tap < p.TAPS && kr_find_tap(p, kr_window_of(p, position), w.tap, f);
      w.at[i] = is_inside ? (const stored *)f.data + f.at + w.c : NULL;
    }
  }
  KR_DEV void open(windows &w, const kr_conv3d_params &p, int m) {
    const int term = kr_thread() % PER_LINE * CHUNK;
    w.tap = (int)kr_divide((uint32_t)term, p.by_C), w.c = term - w.tap * p.C;
    if (p.x.packs) look(w, p, m);
  }
  KR_DEV int place_of(int i) {
    const int line = kr_thread() / PER_LINE + i * LINES;
    return kr_swizzle<LINE_BYTES>(line, kr_thread() % PER_LINE);
  }
  KR_DEV void copy(windows &w, const kr_conv3d_params &p, int m, uint32_t to, unsigned char *generic) {
    if (!p.x.packs) {
      copy_elements(w, p, m, generic);
      return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
      kr_copy_some_at(to + (uint32_t)place_of(i), w.at[i] ? w.at[i] : p.x.data, w.at[i] ? 16 : 0);
      w.at[i] = w.at[i] ? w.at[i] + BK : NULL;
    }
    w.c += BK;
    if (w.c < p.C) return;
    while (w.c >= p.C) w.c -= p.C, w.tap++;
    look(w, p, m);
  }
  KR_DEV void copy_elements(windows &w, const kr_conv3d_params &p, int m, unsigned char *generic) {
#pragma unroll 1
    for (int i = 0; i < N; i++) {
      const int position = m + kr_thread() / PER_LINE + i * LINES;
      const kr_spot window = kr_window_of(p, position < p.M ? position : 0);
      stored *const to = (stored *)(generic + place_of(i));
      int tap = w.tap, c = w.c;
#pragma unroll 1
      for (int j = 0; j < CHUNK; j++) {
        kr_frame f;
        const int is_inside = position < p.M && tap < p.TAPS && kr_find_tap(p, window, tap, f);
        to[j] = is_inside ? ((const stored *)f.data)[f.at + c * f.c] : (stored)0;
        if (++c == p.C) c = 0, tap++;
      }
    }
    w.c += BK;
    while (w.c >= p.C) w.c -= p.C, w.tap++;
  }
};

/* The same chunk of terms of every LINES-th channel. */
template <int BN, int THREADS>
struct weights {
  enum { LINES = THREADS / PER_LINE, N = BN / LINES };
  const stored *at;
  int64_t step;
  int term, left; /* of the next chunk; channels from the first */

  KR_DEV void open(weights &w, const kr_conv3d_params &p, int n) {
    const int line = kr_thread() / PER_LINE;
    w.term = kr_thread() % PER_LINE * CHUNK;
    w.at = (const stored *)p.weight.data + (n + line) * p.weight.k + w.term;
    w.step = LINES * p.weight.k;
    w.left = p.K - n - line;
  }
  KR_DEV void copy(weights &w, const kr_conv3d_params &p, uint32_t to, unsigned char *generic) {
    const stored *from = w.at;
    const int terms = p.n_terms - w.term;
#pragma unroll
    for (int i = 0; i < N; i++, from += w.step) {
      const int place = kr_swizzle<LINE_BYTES>(kr_thread() / PER_LINE + i * LINES, kr_thread() % PER_LINE),
                n = i * LINES < w.left ? terms : 0;
      if (p.weight.packs) {
        kr_copy_some_at(to + (uint32_t)place, n > 0 ? from : (const stored *)p.weight.data,
                        n >= CHUNK ? 16 : n > 0 ? n * (int)sizeof(stored) : 0);
        continue;
      }
      stored *const elements = (stored *)(generic + place);
#pragma unroll 1
      for (int j = 0; j < CHUNK; j++) elements[j] = j < n ? from[j] : (stored)0;
    }
    w.at += BK, w.term += BK;
  }
};

/* ---- from shared memory: as in gemm_ampere.cu, both factors contiguous in the terms ---- */

template <int AS_B>
KR_DEV void read_fragment(uint32_t (&f)[4], const unsigned char *tile, int row, int step) {
  const int lane = kr_thread() & 31, second = lane / 8 & 1, upper = lane / 16;
  const int rows = (AS_B ? upper : second) * 8, ks = AS_B ? second : upper;
  kr_load_matrices(f, tile + kr_swizzle<LINE_BYTES>(row + rows + (lane & 7), step * 2 + ks));
}

#ifdef KR_TF32
/* As gemm_ampere.cu multiplies parts: the product of low parts left out, each sum of eight terms from zero. Fragments
 * are read where they are used: registers do not suffice for more. */
KR_DEV void multiply_step(float (&d)[4][8][4], const unsigned char *positions, int row, const unsigned char *channels,
                          int column, int step) {
  uint32_t b_high[4][4], b_low[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t b[4];
    read_fragment<1>(b, channels, column + 16 * j, step);
    kr_split_tf32(b, b_high[j], b_low[j]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t a[4], high[4], low[4];
    read_fragment<0>(a, positions, row + 16 * i, step);
    kr_split_tf32(a, high, low);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int h = j % 2 * 2;
      float sum[4] = {0, 0, 0, 0};
      kr_mma_as(element(), sum, low, b_high[j / 2][h], b_high[j / 2][h + 1]);
      kr_mma_as(element(), sum, high, b_low[j / 2][h], b_low[j / 2][h + 1]);
      kr_mma_as(element(), sum, high, b_high[j / 2][h], b_high[j / 2][h + 1]);
#pragma unroll
      for (int r = 0; r < 4; r++) d[i][j][r] += sum[r];
    }
  }
}

/* Sums that are not finite, since an infinite factor's parts are not a number, once more by multiply-adds. */
KR_DEV void mend_sums(const kr_conv3d_params &p, int m, int k, float *sums) {
#pragma unroll 1
  for (int i = 0; i < 8; i++) {
    if (sums[i] - sums[i] == 0.0f || m >= p.M || k + i >= p.K) continue;
    const float *weight = (const float *)p.weight.data + (k + i) * p.weight.k;
    float sum = 0.0f;
#pragma unroll 1
    for (int t = 0; t < p.n_terms; t++) {
      const int tap = (int)kr_divide((uint32_t)t, p.by_C), c = t - tap * p.C;
      kr_frame f;
      if (kr_find_tap(p, kr_window_of(p, m), tap, f))
        sum = kr_fma(((const float *)f.data)[f.at + c * f.c], weight[t], sum);
    }
    sums[i] = sum;
  }
}
#else
KR_DEV void multiply_step(float (&d)[4][8][4], const unsigned char *positions, int row, const unsigned char *channels,
                          int column, int step) {
  uint32_t a[4][4], b[4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    read_fragment<0>(a[i], positions, row + 16 * i, step), read_fragment<1>(b[i], channels, column + 16 * i, step);
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) kr_mma_as(element(), d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}
#endif

/* ---- a tile ---- */

/* 16 positions of the warp's channels pass through its own shared memory: each lane gets eight adjacent channels. */
KR_DEV void finish_rows(const kr_conv3d_params &p, const float (&bias)[8], float *staged, const float (&d)[8][4], int m,
                        int n) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4;
  kr_sync_warp();
#pragma unroll
  for (int j = 0; j < 8; j++) {
    *(kr_float2 *)(staged + g * STAGED_ROW + 8 * j + 2 * q) = (kr_float2){{d[j][0], d[j][1]}};
    *(kr_float2 *)(staged + (g + 8) * STAGED_ROW + 8 * j + 2 * q) = (kr_float2){{d[j][2], d[j][3]}};
  }
  kr_sync_warp();
#pragma unroll 1
  for (int row = lane / 8; row < 16; row += 4) {
    float *from = staged + row * STAGED_ROW + lane % 8 * 8, v[8];
#ifdef KR_TF32
    mend_sums(p, m + row, n + lane % 8 * 8, from);
#endif
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = from[i];
    kr_finish_spot<8>(p, m + row, n + lane % 8 * 8, bias, v);
  }
}

template <int BN>
KR_DEV void run(const kr_conv3d_params &p) {
  KR_DYNAMIC_SHARED(shared);
  enum { THREADS = BN, STAGE = (BM + BN) * LINE_BYTES, STEPS = BK / STEP_K };
  const int tile = (int)kr_divide((uint32_t)kr_block_x(), p.by_n), m = tile * BM,
            n = (kr_block_x() - tile * p.n_n) * BN, n_blocks = (p.n_terms + BK - 1) / BK, warp = kr_thread() / 32,
            row = warp % 2 * 64, column = warp / 2 * 64;
  windows<THREADS> from_x;
  weights<BN, THREADS> from_w;
  from_x.open(from_x, p, m), from_w.open(from_w, p, n);
  float d[4][8][4];
#pragma unroll
  for (int i = 0; i < 128; i++) d[i / 32][i / 4 % 8][i % 4] = 0.0f;
  const uint32_t stages = kr_shared_at(shared);
  int at = 0, next = 0;
#pragma unroll 1
  for (int block = 1 - STAGES; block < n_blocks; block++) {
    const unsigned char *stage = shared + at * STAGE;
    if (block >= 0) {
      kr_copied<STAGES - 2>();
      kr_sync();
      if (++at == STAGES) at = 0;
    }
    if (block + STAGES - 1 < n_blocks) {
      unsigned char *const to = shared + next * STAGE;
      from_x.copy(from_x, p, m, stages + next * STAGE, to);
      from_w.copy(from_w, p, stages + next * STAGE + BM * LINE_BYTES, to + BM * LINE_BYTES);
    }
    kr_commit_copies();
    if (++next == STAGES) next = 0;
    if (block < 0) continue;
#pragma unroll UNROLLED
    for (int s = 0; s < STEPS; s++) multiply_step(d, stage, row, stage + BM * LINE_BYTES, column, s);
  }
  kr_copied<0>();
  kr_sync();
  float bias[8];
  const int k = n + column + (kr_thread() & 7) * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) bias[i] = kr_bias_of(p, k + i);
#pragma unroll
  for (int i = 0; i < 4; i++)
    finish_rows(p, bias, (float *)shared + warp * 16 * STAGED_ROW, d[i], m + row + 16 * i, n + column);
}

#ifndef KR_TF32 /* whose registers do not suffice */
KR_KERNEL void KR_BOUNDS(256, 1) kr_conv3d_ampere_256(kr_conv3d_params p) { run<256>(p); }
#endif
KR_KERNEL void KR_BOUNDS(128, 2) kr_conv3d_ampere_128(kr_conv3d_params p) { run<128>(p); }
KR_KERNEL void KR_BOUNDS(64, 4) kr_conv3d_ampere_64(kr_conv3d_params p) { run<64>(p); }
