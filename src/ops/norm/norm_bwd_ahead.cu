/* norm_bwd_ahead.cu: gradient of the gated RMS norm for 16-bit rows (equation in gated_norm_ref.c): eight features of a
 * row per thread, the next rows prefetched asynchronously into shared memory. Without a mean both row sums, of squares
 * and of the gradient's component along the row, are available at once: one barrier per row. There is no bias gradient.
 * Memory-bound. */
#include "norm.cuh"

enum { STAGES = KR_NORM_AHEAD_STAGES, TENSORS = KR_NORM_AHEAD_TENSORS, WARPS = KR_NORM_AHEAD_THREADS / 32 };

typedef struct ahead {
  kr_raw16 *mine; /* this thread's run of the first tensor in the first stage */
  int threads, inside;
  int64_t first; /* first feature */
} ahead;

/* Prefetches x, dout and gate of row r; zeros if there is none. */
KR_DEV void fetch_row(const kr_norm_params &p, const ahead &a, int64_t r, int stage) {
  const kr_norm_view *const views[TENSORS] = {&p.x, &p.dout, &p.second};
  const int exists = a.inside && r < p.R;
#pragma unroll
  for (int k = 0; k < TENSORS; k++) {
    const uint16_t *const from = (const uint16_t *)views[k]->data + (exists ? r * views[k]->row + a.first : 0);
    kr_copy_or_zero<16>(a.mine + (stage * TENSORS + k) * a.threads, from, exists);
  }
  kr_commit_copies();
}

/* Half (0 or 1) of a run: four features. */
KR_DEV void convert(const kr_raw16 &raw, int half, float (&x)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) x[k] = kr_unpack(raw.w[2 * half + (k >> 1)], k & 1, KR_DTYPE);
}

KR_DEV kr_raw16 taken(const ahead &a, int stage, int tensor) { return a.mine[(stage * TENSORS + tensor) * a.threads]; }

/* Block-wide sums of both, in fixed order. */
KR_DEV void sum_block_pair(float &a, float &b, float (*shared)[WARPS], int n_warps) {
  const int lane = kr_thread() & 31;
  for (int d = 16; d; d >>= 1) a += kr_shuffle_xor(a, d), b += kr_shuffle_xor(b, d);
  if (lane == 0) shared[0][kr_thread() >> 5] = a, shared[1][kr_thread() >> 5] = b;
  kr_sync();
  a = lane < n_warps ? shared[0][lane] : 0.0f, b = lane < n_warps ? shared[1][lane] : 0.0f;
  for (int d = 16; d; d >>= 1) a += kr_shuffle_xor(a, d), b += kr_shuffle_xor(b, d);
}

/* One run's sums: squares of the normalised values, and their product with the weighted gradient. */
KR_DEV void add_sums(const kr_norm_params &p, const ahead &a, int stage, const float (&weight)[8], float &squares,
                     float &along) {
  const kr_raw16 raw[TENSORS] = {taken(a, stage, 0), taken(a, stage, 1), taken(a, stage, 2)};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float x[4], d[4], z[4];
    convert(raw[0], half, x), convert(raw[1], half, d), convert(raw[2], half, z);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float gate = kr_silu(z[k]);
      if (p.gate == KR_NORM_GATE_FIRST) x[k] *= gate;
      else d[k] *= gate;
      squares = kr_fma(x[k], x[k], squares);
      along = kr_fma(d[k] * weight[4 * half + k], x[k], along);
    }
  }
}

KR_DEV void write_run16(const kr_norm_view &v, int64_t r, int64_t m, const uint32_t (&words)[4]) {
  if (v.data) *(kr_raw16 *)((uint16_t *)v.data + r * v.row + m) = kr_raw16{{words[0], words[1], words[2], words[3]}};
}

/* dx and dz of one run, and its contribution to the weight's gradient. along: the row's sum divided by n. */
KR_DEV void write_row(const kr_norm_params &p, const ahead &a, int64_t r, int stage, const float (&weight)[8],
                      float scale, float along, float (&dweight)[8]) {
  const kr_raw16 raw[TENSORS] = {taken(a, stage, 0), taken(a, stage, 1), taken(a, stage, 2)};
  const int first = p.gate == KR_NORM_GATE_FIRST;
  uint32_t dx_words[4], dz_words[4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float x[4], dout[4], z[4];
    convert(raw[0], half, x), convert(raw[1], half, dout), convert(raw[2], half, z);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float s = kr_sigmoid(z[k]), gate = z[k] * s, slope = s * kr_fma(z[k], 1.0f - s, 1.0f),
                  w = weight[4 * half + k];
      const float xhat = (first ? x[k] * gate : x[k]) * scale, d = first ? dout[k] : dout[k] * gate,
                  dv = (d * w - xhat * along) * scale;
      dweight[4 * half + k] = kr_fma(d, xhat, dweight[4 * half + k]);
      z[k] = (first ? dv * x[k] : dout[k] * (xhat * w)) * slope;
      x[k] = first ? dv * gate : dv;
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
      dx_words[2 * half + k] = kr_pack(x[2 * k], x[2 * k + 1], KR_DTYPE),
                          dz_words[2 * half + k] = kr_pack(z[2 * k], z[2 * k + 1], KR_DTYPE);
  }
  if (!a.inside) return;
  write_run16(p.dx, r, a.first, dx_words);
  write_run16(p.dz, r, a.first, dz_words);
}

KR_KERNEL void KR_BOUNDS(KR_NORM_AHEAD_THREADS, 1) kr_norm_bwd_ahead(const kr_norm_params p) {
  KR_DYNAMIC_SHARED(memory);
  KR_SHARED float shared[2][2][WARPS];
  static_assert(sizeof shared == KR_NORM_AHEAD_BESIDE, "the host counts it");
  const ahead a = {(kr_raw16 *)memory + kr_thread(), kr_block_threads(), kr_thread() * 8 < p.n,
                   (int64_t)kr_block_y() * p.n + kr_thread() * 8};
  float weight[8], dweight[8];
  int stage = 0, turn = 0;
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) fetch_row(p, a, kr_block_x() + (int64_t)s * p.n_parts, s);
  read_parameter(form{8, 1, 1, 0, 0}, p.weight, a.first, a.inside, 1.0f, weight);
#pragma unroll
  for (int k = 0; k < 8; k++) dweight[k] = 0.0f;
#pragma unroll 1
  for (int64_t r = kr_block_x(); r < p.R; r += p.n_parts) {
    float squares = 0.0f, along = 0.0f;
    kr_copied<STAGES - 2>();
    add_sums(p, a, stage, weight, squares, along);
    fetch_row(p, a, r + (int64_t)(STAGES - 1) * p.n_parts, stage ? stage - 1 : STAGES - 1);
    sum_block_pair(squares, along, shared[turn], a.threads >> 5);
    const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
    write_row(p, a, r, stage, weight, scale, along * scale * p.inverse_n, dweight);
    stage = stage == STAGES - 1 ? 0 : stage + 1, turn ^= 1;
  }
  kr_copied<0>();
  const kr_norm_view sums = {p.part, p.M, 1, KRAIT_F32, 1};
  if (a.inside) write_run(form{8, 1, 1, 0, 0}, sums, (int64_t)kr_block_x() * 2, a.first, dweight);
}
