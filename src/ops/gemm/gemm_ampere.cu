/* gemm_ampere.cu: products by warp-level tensor-core mma, of 16-bit factors, of float32 ones rounded to tf32, or of
 * float32 ones as sums of two scaled float16 parts that gemm_split.cu has made (KR_PARTS), which is as accurate as
 * float32 multiply-adds. A block computes a 128 x BN tile, one warp per 64 x 64 of it (64 x 48 for BN = 192); cp.async
 * copies A and B into a ring of stages of BK of K, of both parts; in the turing tier (KR_TURING), which has float16
 * alone, a thread's share of the next stage waits in registers, for which a warp of parts has 32 x 64; bfloat16 factors
 * come there as scaled float16 ones. Strides are arbitrary: where 16 bytes are not aligned,
 * elements are copied one by one. Compiled once per type (KR_HALF: float16, also of parts; KR_TF32) and memory order of
 * the factors, like gemm_hopper.cu; with KR_GATES, also gated products and 192-column tiles. */
#include "gemm_finish.cuh"
#include "gemm_ampere.h"
#include "halves.cuh"
#include "turing.cuh"

#if defined(KR_TF32)
typedef kr_tf32 element;
typedef uint32_t stored;
#elif defined(KR_HALF)
typedef kr_f16 element;
typedef uint16_t stored;
enum { TYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
typedef uint16_t stored;
enum { TYPE = KRAIT_BF16 };
#endif
#ifdef KR_PARTS
enum { MATRICES = KR_N_HALVES, ORIGINAL = KRAIT_F32 }; /* of each factor in a stage; type of scaled factors */
#else
enum { MATRICES = 1, ORIGINAL = KRAIT_BF16 };
#endif
#if defined(KR_PARTS) || defined(KR_TURING)
#define KR_SCALED
typedef kr_gemm_halves_params call;
KR_DEV const kr_gemm_params &params_of(const call &c) { return c.params; }
#else
typedef kr_gemm_params call;
KR_DEV const kr_gemm_params &params_of(const call &c) { return c; }
#endif
/* WM: rows of a warp; CHUNK: elements in 16 bytes; STEP_K: k per mma, STEPS: of a stage. */
enum {
  BM = KR_AMPERE_BM,
  WM = KR_IS_TURING && MATRICES > 1 ? 32 : 64,
  K_ROW_BYTES = KR_AMPERE_K_BYTES,
  BK = K_ROW_BYTES / sizeof(stored),
  CHUNK = 16 / sizeof(stored),
  STEP_K = 2 * CHUNK,
  STEPS = BK / STEP_K,
  STAGES_OF_TIER = KR_IS_TURING ? KR_TURING_STAGES : KR_AMPERE_STAGES,
  STAGED_ROW = 72
};

/* ---- to shared memory -------------------------------------------------------------------------------------------- */

/* Location of a chunk in a tile of ROWS m (or n) by BK of k, in its memory order. m-contiguous tf32 is read element by
 * element, eight from each of four lines at a time: two chunks per line. */
template <int ROWS, int MN>
KR_DEV int chunk_at(int line, int chunk) {
  if (MN && sizeof(stored) == 4) return line * ROWS * 4 + (chunk ^ (line & 3) << 1) * 16;
  return MN ? kr_swizzle<ROWS * 2>(line, chunk) : kr_swizzle<K_ROW_BYTES>(line, chunk);
}

/* A thread's share of copying a factor: the same chunk of every `LINES`-th line. */
template <int ROWS, int MN, int THREADS, int HALVES>
struct copier {
  enum {
    PER_LINE = MN ? ROWS / CHUNK : BK / CHUNK,
    LINES = THREADS / PER_LINE,
    N = ROWS * BK / CHUNK / THREADS,
    LINE_BYTES = MN ? ROWS * (int)sizeof(stored) : (int)K_ROW_BYTES
  };
  const stored *at;    /* in the next stage */
  int64_t step, advance; /* in elements: between lines, between stages */
  int64_t along;         /* between elements of a chunk, if copied one by one */
  int place, line, left; /* in shared memory; first line; remaining elements of a partial chunk, or lines */
  int packs, flies;
  kr_flight flights[MATRICES][N];

  /* HALVES: the last 32 of every 64 rows come from `second`; LINES must be a multiple of 64, so that a thread copies
   * from one of them. */
  KR_DEV void open(copier &c, const kr_gemm_matrix &matrix, const kr_gemm_matrix &second, int batch, int first,
                   int limit, int k, int is_b) {
    const int chunk = kr_thread() % PER_LINE;
    c.line = kr_thread() / PER_LINE;
    c.place = chunk_at<ROWS, MN>(c.line, chunk);
    const int tile_row = MN ? chunk * CHUNK : c.line, row = HALVES ? tile_row / 64 * 32 + tile_row % 32 : tile_row;
    const kr_gemm_matrix &m = HALVES && tile_row & 32 ? second : matrix;
    const int64_t row_stride = is_b ? m.column : m.row, k_stride = is_b ? m.row : m.column;
    c.packs = m.packs;
    c.along = MN ? row_stride : k_stride;
    c.step = MN ? LINES * k_stride : (HALVES ? LINES / 2 : LINES) * row_stride;
    c.advance = BK * k_stride;
    c.at = (const stored *)m.data + batch * m.batch + (first + row) * row_stride +
           (k + (MN ? c.line : chunk * CHUNK)) * k_stride;
    c.left = limit - first - row;
    if (!MN) c.line = chunk * CHUNK;
  }

  /* A stage entirely within bounds. */
  KR_DEV void copy_whole(copier &c, uint32_t to) {
    const stored *at = c.at;
#pragma unroll
    for (int i = 0; i < N; i++, at += c.step) kr_begin_copy(c.flights[0][i], to + (uint32_t)place_of(c, i), at);
    c.at += c.advance, c.flies = 1;
  }

  /* After either copy, before others read the stage, of whose matrices each has so many bytes. */
  KR_DEV void end(const copier &c, uint32_t to, int bytes) {
    if (!KR_IS_TURING || !c.flies) return;
#pragma unroll
    for (int matrix = 0; matrix < MATRICES; matrix++)
#pragma unroll
      for (int i = 0; i < N; i++)
        kr_end_copy(c.flights[matrix][i], to + (uint32_t)(matrix * bytes + place_of(c, i)));
  }

  /* A stage of one of several matrices: aligned, lines filled up with zeros to whole chunks. */
  KR_DEV void copy_part(copier &c, int matrix, uint32_t to, int64_t further, int left_k) {
    const stored *at = c.at + further;
#pragma unroll
    for (int i = 0; i < N; i++, at += c.step)
      kr_begin_copy(c.flights[matrix][i], to + (uint32_t)place_of(c, i), at, exist(c, i, left_k) > 0);
    c.flies = 1;
  }

  /* A stage that starts left_k before the end of K. Bounds-checking every chunk would cost a third of the throughput,
   * hence copy_whole. */
  KR_DEV void copy(copier &c, unsigned char *to, int left_k) {
    const stored *at = c.at;
    c.flies = KR_IS_TURING && c.packs && (MN ? c.left : left_k) % CHUNK == 0;
    if (c.flies) {
#pragma unroll
      for (int i = 0; i < N; i++, at += c.step) kr_begin_copy(c.flights[0][i], 0, at, exist(c, i, left_k) > 0);
    } else if (c.packs && !KR_IS_TURING) {
#pragma unroll
      for (int i = 0; i < N; i++, at += c.step) {
        const int n = exist(c, i, left_k);
        kr_copy_some(to + place_of(c, i), n > 0 ? at : c.at, n > CHUNK ? 16 : n > 0 ? (int)sizeof(stored) * n : 0);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < N; i++, at += c.step) copy_elements(to + place_of(c, i), at, c.along, exist(c, i, left_k));
    }
    c.at += c.advance;
  }

  /* Lines less than four apart are swizzled differently. */
  KR_DEV int place_of(const copier &c, int i) {
    return (MN && sizeof(stored) == 4 && LINES == 2 ? c.place ^ (i & 1) << 6 : c.place) + i * LINES * LINE_BYTES;
  }

  /* In-bounds elements of the i-th chunk. */
  KR_DEV int exist(const copier &c, int i, int left_k) {
    const int STEP = HALVES ? LINES / 2 : LINES;
    return MN ? (c.line + i * LINES < left_k ? c.left : 0) : (i * STEP < c.left ? left_k - c.line : 0);
  }

  KR_DEV void copy_elements(unsigned char *to, const stored *at, int64_t stride, int n) {
    kr_raw16 raw = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
      if (i < n) raw.w[i * 4 / CHUNK] |= (uint32_t)at[i * stride] << (sizeof(stored) == 2 ? i % 2 * 16 : 0);
    *(kr_raw16 *)to = raw;
  }
};

/* ---- from shared memory ------------------------------------------------------------------------------------------ */

/* Element by element, where kr_load_matrices cannot transpose. */
template <int ROWS, int AS_B>
KR_DEV void read_elements(uint32_t (&f)[4], const unsigned char *tile, int row, int step) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane & 3;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int at = row + (AS_B ? r / 2 : r % 2) * 8 + g, k = step * STEP_K + (AS_B ? r % 2 : r / 2) * CHUNK + q;
    f[r] = *(const uint32_t *)(tile + chunk_at<ROWS, 1>(k, at / 4) + at % 4 * 4);
  }
}

/* Two 16-row fragments (m, or two times 8 of n) by STEP_K, from row `row` and step `step`. As a: a[0], a[1] are rows
 * 0..7, 8..15 of the first half of k; a[2], a[3] of the second. As b: b[0], b[1] belong to the first eight rows, b[2],
 * b[3] to the others. */
template <int ROWS, int MN, int AS_B>
KR_DEV void read_factor(uint32_t (&f)[4], const unsigned char *tile, int row, int step) {
  const int lane = kr_thread() & 31, second = lane / 8 & 1, upper = lane / 16, within = lane & 7;
  const int rows = (AS_B ? upper : second) * 8, ks = (AS_B ? second : upper) * CHUNK;
  if (MN && sizeof(stored) == 4) read_elements<ROWS, AS_B>(f, tile, row, step);
  else if (MN) kr_load_matrices_turned(f, tile + chunk_at<ROWS, MN>(step * STEP_K + ks + within, (row + rows) / 8));
  else kr_load_matrices(f, tile + chunk_at<ROWS, MN>(row + rows + within, (step * STEP_K + ks) / CHUNK));
  if (sizeof(stored) == 4) {
#pragma unroll
    for (int r = 0; r < 4; r++) f[r] = kr_round_tf32(f[r]);
  }
}

template <int BN, int WN>
KR_DEV void read_factors(uint32_t (&a)[4][4], uint32_t (&b)[WN / 16][4], const unsigned char *stage, int row,
                         int column, int step) {
#pragma unroll
  for (int i = 0; i < 4; i++) read_factor<BM, KR_A_MN, 0>(a[i], stage, row + 16 * i, step);
#pragma unroll
  for (int j = 0; j < WN / 16; j++) read_factor<BN, KR_B_MN, 1>(b[j], stage + BM * K_ROW_BYTES, column + 16 * j, step);
}

#if defined(KR_PARTS) && defined(KR_TURING)
/* d += (a's high part + its low part) (b's likewise), as below, by a stage's steps: 32 terms a sum, of which those of
 * low parts have accumulators of their own, so that eight products do not wait for each other. before_last: called
 * before the last sixteen columns. */
template <int BN, int WN, class CALL>
KR_DEV void multiply_stage(float (&d)[WM / 16][WN / 8][4], const unsigned char *stage, int row, int column,
                           const CALL &before_last) {
  const unsigned char *const of_b = stage + MATRICES * BM * K_ROW_BYTES;
  uint32_t a_high[STEPS][WM / 16][4], a_low[STEPS][WM / 16][4];
#pragma unroll
  for (int at = 0; at < STEPS * WM / 16; at++) {
    const int s = at / (WM / 16), i = at % (WM / 16);
    read_factor<BM, KR_A_MN, 0>(a_high[s][i], stage, row + 16 * i, s);
    read_factor<BM, KR_A_MN, 0>(a_low[s][i], stage + BM * K_ROW_BYTES, row + 16 * i, s);
  }
#pragma unroll
  for (int j = 0; j < WN / 16; j++) {
    if (j == WN / 16 - 1) before_last();
    float high[WM / 16][2][4], low[WM / 16][2][4];
#pragma unroll
    for (int at = 0; at < WM / 2; at++) high[at / 8][at / 4 % 2][at % 4] = low[at / 8][at / 4 % 2][at % 4] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      uint32_t b_high[4], b_low[4];
      read_factor<BN, KR_B_MN, 1>(b_high, of_b, column + 16 * j, s);
      read_factor<BN, KR_B_MN, 1>(b_low, of_b + BN * K_ROW_BYTES, column + 16 * j, s);
#pragma unroll
      for (int step = 0; step < KR_MMA_STEPS; step++) {
#pragma unroll
        for (int at = 0; at < WM / 8; at++)
          kr_mma_step(step, element(), low[at / 2][at % 2], a_low[s][at / 2], b_high[at % 2 * 2],
                      b_high[at % 2 * 2 + 1]);
#pragma unroll
        for (int at = 0; at < WM / 8; at++)
          kr_mma_step(step, element(), high[at / 2][at % 2], a_high[s][at / 2], b_high[at % 2 * 2],
                      b_high[at % 2 * 2 + 1]);
#pragma unroll
        for (int at = 0; at < WM / 8; at++)
          kr_mma_step(step, element(), low[at / 2][at % 2], a_high[s][at / 2], b_low[at % 2 * 2],
                      b_low[at % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int at = 0; at < WM / 2; at++) {
      const int i = at / 8, n = at / 4 % 2, r = at % 4;
      d[i][2 * j + n][r] += kr_fma(low[i][n][r], 1.0f / KR_HALVES_APART, high[i][n][r]);
    }
#pragma unroll
    for (int at = 0; at < WM / 8; at++) kr_hold(d[at / 2][2 * j + at % 2]);
  }
}
#elif defined(KR_PARTS)
/* Sixteen rows of fragments times 32 columns'. */
KR_DEV void multiply_row(float (&d)[4][4], const uint32_t (&a)[4], const uint32_t (&b)[2][4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) kr_mma_as(element(), d[j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}

/* d += (a's high part + its low part) (b's likewise) without the product of low parts, which are KR_HALVES_APART times
 * too large; the small terms first. Tensor cores round sums towards zero: each sum of sixteen terms starts from zero,
 * and is added by an ordinary addition (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores",
 * 2022). */
template <int BN, int WN>
KR_DEV void multiply_parts(float (&d)[4][WN / 8][4], const unsigned char *stage, int row, int column, int step) {
  const unsigned char *const of_b = stage + MATRICES * BM * K_ROW_BYTES;
#pragma unroll
  for (int half = 0; half < WN / 32; half++) {
    uint32_t b_high[2][4], b_low[2][4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      read_factor<BN, KR_B_MN, 1>(b_high[j], of_b, column + 32 * half + 16 * j, step);
      read_factor<BN, KR_B_MN, 1>(b_low[j], of_b + BN * K_ROW_BYTES, column + 32 * half + 16 * j, step);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t high[4], low[4];
      float sum[4][4];
      read_factor<BM, KR_A_MN, 0>(high, stage, row + 16 * i, step);
      read_factor<BM, KR_A_MN, 0>(low, stage + BM * K_ROW_BYTES, row + 16 * i, step);
#pragma unroll
      for (int at = 0; at < 16; at++) sum[at / 4][at % 4] = 0.0f;
      multiply_row(sum, low, b_high), multiply_row(sum, high, b_low);
#pragma unroll
      for (int at = 0; at < 16; at++) sum[at / 4][at % 4] *= 1.0f / KR_HALVES_APART;
      multiply_row(sum, high, b_high);
#pragma unroll
      for (int at = 0; at < 16; at++) d[i][4 * half + at / 4][at % 4] += sum[at / 4][at % 4];
    }
  }
}
#else
template <int WN>
KR_DEV void multiply(float (&d)[4][WN / 8][4], const uint32_t (&a)[4][4], const uint32_t (&b)[WN / 16][4]) {
#pragma unroll
  for (int step = 0; step < KR_MMA_STEPS; step++)
#pragma unroll
    for (int j = 0; j < WN / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        kr_mma_step(step, element(), d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}
#endif

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* Splits of K: the unit's own k. */
typedef struct span {
  int begin, end;
} span;

#ifdef KR_SCALED
/* Eight columns of a row by multiply-adds, left at `to`. */
KR_DEV void compute_again(const kr_gemm_params &p, const kr_gemm_matrix &B, int batch, int m, int n, span k,
                          float *to) {
  const int64_t a = batch * p.A.batch + m * p.A.row, b = batch * B.batch;
#pragma unroll 1
  for (int i = 0; i < 8; i++) {
    float sum = 0.0f;
#pragma unroll 1
    for (int64_t t = k.begin; t < k.end && n + i < p.N; t++)
      sum = kr_fma(kr_load(p.A.data, a + t * p.A.column, ORIGINAL),
                   kr_load(B.data, b + t * B.row + (n + i) * B.column, ORIGINAL), sum);
    to[i] = sum;
  }
}

/* Takes back the scales of a row and of eight columns, whose sums lie at `staged`. An infinite factor's parts are not a
 * number where the other's low part is 0, and scaled sums may be larger than float32's largest: where one is not finite
 * all are computed again by multiply-adds. */
KR_DEV void unscale_run(const call &c, const kr_gemm_matrix &B, const float *unscale_n, int batch, int m, int n, span k,
                        float *staged, float (&v)[8]) {
  const kr_gemm_params &p = c.params;
  const float of_m = m < p.M ? c.unscale_m[(int64_t)batch * p.M + m] : 0.0f;
  unscale_n += (int64_t)batch * p.N + n;
  float none = 0.0f; /* not a number if one is not finite */
#pragma unroll
  for (int i = 0; i < 8; i++) {
    v[i] = v[i] * (n + i < p.N ? unscale_n[i] : 0.0f) * of_m;
    none += v[i] - v[i];
  }
  if (none == 0.0f || m >= p.M) return;
  compute_again(p, B, batch, m, n, k, staged);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = staged[i];
}
#endif

/* Passes 16 rows of the warp's columns at a time through the warp's own shared memory, to give each lane eight
 * contiguous columns. */
template <int WN, int GATED>
KR_DEV void finish_rows(const call &c, const kr_column_terms<8> &terms, float *staged, const float (&d)[WN / 8][4],
                        int slab, int batch, int m, int n, span k) {
  const kr_gemm_params &p = params_of(c);
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4, LANES = GATED ? 4 : 8;
  (void)k; /* of scaled factors */
  kr_sync_warp();
#pragma unroll
  for (int j = 0; j < WN / 8; j++) {
    *(kr_float2 *)(staged + g * STAGED_ROW + 8 * j + 2 * q) = (kr_float2){{d[j][0], d[j][1]}};
    *(kr_float2 *)(staged + (g + 8) * STAGED_ROW + 8 * j + 2 * q) = (kr_float2){{d[j][2], d[j][3]}};
  }
  kr_sync_warp();
#pragma unroll 1
  for (int row = lane / LANES; row < 16; row += 32 / LANES) {
    float *const from = staged + row * STAGED_ROW + lane % LANES * 8;
    float v[8], second[8];
    if (WN < 64 && lane % LANES >= WN / 8) break;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = from[i], second[i] = GATED ? from[32 + i] : 0.0f;
#ifdef KR_SCALED
    if (MATRICES > 1 || c.unscale_m) {
      const int at_m = m + row, at_n = n + lane % LANES * 8;
      unscale_run(c, p.B, c.unscale_n, batch, at_m, at_n, k, from, v);
      if (GATED) unscale_run(c, p.B2, c.unscale_n2, batch, at_m, at_n, k, from + 32, second);
    }
#endif
    if (p.n_splits > 1) kr_keep_run<8>(p, slab, m + row, n + lane % LANES * 8, v);
    else kr_finish_run<8, GATED>(p, terms, batch, m + row, n + lane % LANES * 8, v, second);
  }
}

#if !defined(KR_TF32) && !defined(KR_PARTS)
/* Nothing but a scale in the epilogue, out of the factors' 16-bit type, packs aligned. */
KR_DEV int is_plain(const kr_gemm_params &p) {
  return p.n_splits == 1 && !p.bias.data && !p.residual.data && !p.row_scale.data &&
         p.activation == KRAIT_ACT_NONE && p.out.packs && p.N % 8 == 0 && p.out.dtype == TYPE;
}

/* Stores its rows in 16-byte packs, as above. */
template <int WN>
KR_DEV void store_tile(const kr_gemm_params &p, uint32_t *staged, const float (&d)[4][WN / 8][4], int batch, int m,
                       int n) {
  enum { WORDS = WN / 2 + 4 }; /* per row; padded against bank conflicts */
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4, row = lane / 8, pack = lane % 8;
  const int exists = pack < WN / 8 && n + pack * 8 < p.N;
  uint16_t *to = (uint16_t *)p.out.data + batch * p.out.batch + (m + row) * p.out.row + n + pack * 8;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    kr_sync_warp();
#pragma unroll
    for (int j = 0; j < WN / 8; j++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        staged[(g + 8 * h) * WORDS + 4 * j + q] = kr_pack(d[i][j][2 * h] * p.scale, d[i][j][2 * h + 1] * p.scale, TYPE);
    kr_sync_warp();
#pragma unroll
    for (int r = 0; r < 16; r += 4, to += 4 * p.out.row)
      if (exists && m + 16 * i + row + r < p.M)
        *(kr_raw16 *)to = *(const kr_raw16 *)(staged + (row + r) * WORDS + pack * 4);
  }
}
#endif

template <int BN, int WN, int STAGES, int GATED>
KR_DEV void run(const call &c) {
  KR_DYNAMIC_SHARED(shared);
  const kr_gemm_params &p = params_of(c);
  const int WARPS_M = BM / WM, THREADS = BN / WN * WARPS_M * 32, B_AT = MATRICES * BM * K_ROW_BYTES,
            STAGE_BYTES = B_AT + MATRICES * BN * K_ROW_BYTES, WIDTH = GATED ? BN / 2 : BN;
  const kr_gemm_unit u = kr_gemm_unit_at(p, kr_block_x());
  const int m = u.m * BM, n = u.n * WIDTH, slab = u.slab, batch = u.batch;
  const int begin = u.split * p.k_split, end = p.K - begin < p.k_split ? p.K : begin + p.k_split,
            n_blocks = (end - begin + BK - 1) / BK;
  const int warp = kr_thread() / 32, row = warp % WARPS_M * WM, column = warp / WARPS_M * WN;
  copier<BM, KR_A_MN, THREADS, 0> from_a;
  copier<BN, KR_B_MN, THREADS, GATED> from_b;
  from_a.open(from_a, c.A, c.A, batch, m, p.M, begin, 0);
  from_b.open(from_b, c.B, c.B2, batch, n, p.N, begin, 1);
  float d[WM / 16][WN / 8][4];
#pragma unroll
  for (int i = 0; i < WM / 32 * WN; i++) d[i / (WN / 2)][i / 4 % (WN / 8)][i % 4] = 0.0f;
  const int is_whole = c.A.packs && c.B.packs && p.M - m >= BM && p.N - n >= WIDTH;
  const uint32_t stages = kr_shared_at(shared);
  int left_k = end - begin;
  const auto begin_stage = [&](int place) __attribute__((always_inline)) {
    from_a.flies = from_b.flies = 0;
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
      const int a = place * STAGE_BYTES + i * BM * K_ROW_BYTES, b = place * STAGE_BYTES + B_AT + i * BN * K_ROW_BYTES;
      const int64_t a_further = i ? p.P * c.A.batch : 0, b_further = i ? p.P * c.B.batch : 0;
      if (MATRICES > 1 && left_k > 0) {
        from_a.copy_part(from_a, i, stages + a, a_further, left_k);
        from_b.copy_part(from_b, i, stages + b, b_further, left_k);
      } else if (MATRICES == 1 && is_whole && left_k >= BK) {
        from_a.copy_whole(from_a, stages + a), from_b.copy_whole(from_b, stages + b);
      } else if (MATRICES == 1 && left_k > 0) {
        from_a.copy(from_a, shared + a, left_k), from_b.copy(from_b, shared + b, left_k);
      }
    }
    if (MATRICES > 1) /* else the copies advance: behind both, turing's kernels would spill 150 bytes */
      from_a.at += from_a.advance, from_b.at += from_b.advance;
    left_k -= BK;
    kr_commit_copies();
  };
  /* Of two stages, the one that has begun last is the next to be used. */
  const auto end_stage = [&](int place) {
    from_a.end(from_a, stages + place * STAGE_BYTES, BM * K_ROW_BYTES);
    from_b.end(from_b, stages + place * STAGE_BYTES + B_AT, BN * K_ROW_BYTES);
  };
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) begin_stage(s);
  end_stage(0);
#ifdef KR_PARTS
  kr_copied<STAGES - 2>();
  kr_sync();
  for (int block = 0, at = 0; block < n_blocks; block++) {
    const unsigned char *stage = shared + at * STAGE_BYTES;
    begin_stage(at ? at - 1 : STAGES - 1);
    if (++at == STAGES) at = 0;
#ifdef KR_TURING
    multiply_stage<BN, WN>(d, stage, row, column, [&]() __attribute__((always_inline)) { end_stage(at); });
#else
#pragma unroll
    for (int s = 0; s < STEPS; s++) multiply_parts<BN, WN>(d, stage, row, column, s);
#endif
    kr_copied<STAGES - 2>();
    kr_sync();
  }
#else
  uint32_t a[2][4][4], b[2][WN / 16][4]; /* a warp reads a step ahead */
  kr_copied<STAGES - 2>();
  kr_sync();
  read_factors<BN, WN>(a[0], b[0], shared, row, column, 0);
  int at = 0, next = STAGES - 1;
  for (int block = 0; block < n_blocks; block++) {
    const unsigned char *stage = shared + at * STAGE_BYTES;
    begin_stage(next);
    if (++at == STAGES) at = 0;
    if (++next == STAGES) next = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int ahead = s + 1, slot = ahead % 2;
      if (ahead < STEPS) {
        read_factors<BN, WN>(a[slot], b[slot], stage, row, column, ahead);
      } else {
        end_stage(at);
        kr_copied<STAGES - 2>();
        kr_sync();
        read_factors<BN, WN>(a[slot], b[slot], shared + at * STAGE_BYTES, row, column, 0); /* unused in the end */
      }
      multiply<WN>(d, a[s % 2], b[s % 2]);
    }
  }
#endif
  const int to_column = n + (GATED ? column / 2 : column);
  kr_column_terms<8> terms;
  kr_copied<0>();
  kr_sync();
#if !defined(KR_TF32) && !defined(KR_PARTS)
  if (!GATED && is_plain(p)) {
    store_tile<WN>(p, (uint32_t *)shared + warp * 16 * (WN / 2 + 4), d, batch, m + row, to_column);
    return;
  }
#endif
  kr_read_terms<8>(p, to_column + (kr_thread() & (GATED ? 3 : 7)) * 8, terms);
#pragma unroll
  for (int i = 0; i < WM / 16; i++)
    finish_rows<WN, GATED>(c, terms, (float *)shared + warp * 16 * STAGED_ROW, d[i], slab, batch, m + row + 16 * i,
                           to_column, (span){begin, end});
}

#ifdef KR_PARTS
#ifdef KR_TURING
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_128(kr_gemm_halves_params params) {
  run<128, 64, KR_TURING_STAGES, 0>(params);
}
#ifdef KR_GATES
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_gated(kr_gemm_halves_params params) {
  run<128, 64, KR_TURING_STAGES, 1>(params);
}
#endif
#else
KR_KERNEL void KR_BOUNDS(128, 2) kr_gemm_ampere_128(kr_gemm_halves_params params) {
  run<128, 64, KR_AMPERE_HALVES_STAGES, 0>(params);
}
#ifdef KR_GATES
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_gated(kr_gemm_halves_params params) {
  run<256, 64, KR_AMPERE_HALVES_STAGES, 1>(params);
}
#endif
#endif
#else
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_256(call params) {
  run<256, 64, STAGES_OF_TIER, 0>(params);
}
KR_KERNEL void KR_BOUNDS(128, 2) kr_gemm_ampere_128(call params) {
  run<128, 64, STAGES_OF_TIER, 0>(params);
}
#ifdef KR_TF32
KR_KERNEL void KR_BOUNDS(64, 4) kr_gemm_ampere_64(call params) { run<64, 64, STAGES_OF_TIER, 0>(params); }
#endif
#ifdef KR_GATES
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_gated(call params) {
  run<256, 64, STAGES_OF_TIER, 1>(params);
}
#ifndef KR_TF32
KR_KERNEL void KR_BOUNDS(256, 1) kr_gemm_ampere_192(call params) {
  run<192, 48, STAGES_OF_TIER, 0>(params);
}
#endif
#endif
#endif
