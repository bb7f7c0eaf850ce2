/* projected_scan.cu: the scan of a Mamba block with its step size and gate: one thread per channel of a sequence with
 * all its states, or two threads with half of them each. Inputs of the next steps are prefetched into shared memory. */
#include "pack.cuh"
#include "projected_scan_params.h"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

enum { STEPS = 8, MOST_RANK = 4 };

/* One step of OWN states: all exist, and B and C are aligned. */
template <int OWN>
KR_DEV float step_even(const float *all_B, const float *all_C, float delta, float du, const float (&A)[OWN],
                       float (&state)[OWN]) {
  float y[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < OWN; n += 4) {
    const kr_float4 B = load4(all_B + n), C = load4(all_C + n);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      state[n + j] = kr_fma(kr_exp2(delta * A[n + j]), state[n + j], du * B.v[j]);
      y[j & 1] = kr_fma(state[n + j], C.v[j], y[j & 1]);
    }
  }
  return y[0] + y[1];
}

template <int MOST_N>
KR_DEV float step_any(const float *BC, int N, float delta, float du, const float (&A)[MOST_N], float (&state)[MOST_N]) {
  float y = 0.0f;
#pragma unroll
  for (int n = 0; n < MOST_N; n++)
    if (n < N) {
      state[n] = kr_fma(kr_exp2(delta * A[n]), state[n], du * BC[n]);
      y = kr_fma(state[n], BC[N + n], y);
    }
  return y;
}

/* A block's inputs for STEPS frames, fetched some frames ahead: inputs and gates of its channels; rank, B and C of all.
 * */
template <int CHANNELS, int MOST_X>
struct __attribute__((aligned(16))) scan_stage {
  float u[STEPS * CHANNELS], z[STEPS * CHANNELS], proj[STEPS * MOST_X];
};

/* Frames past the last are read as the last. */
template <int CHANNELS, int MOST_X>
KR_DEV void fetch(const kr_projected_scan_params &p, int64_t first, int t0, scan_stage<CHANNELS, MOST_X> &to) {
  enum { PER_ROW = CHANNELS / 4 };
  const int e0 = kr_block_y() * CHANNELS, per_proj = p.X / 4;
  if (t0 < p.L) {
#pragma unroll
    for (int n = kr_thread(); n < STEPS * PER_ROW; n += 128) {
      const int i = n / PER_ROW, e = n % PER_ROW * 4;
      const int64_t row = first + (t0 + i < p.L ? t0 + i : p.L - 1);
      if (e0 + e >= p.D) continue;
      kr_copy16(to.u + n * 4, p.u + row * p.u_row + e0 + e);
      kr_copy16(to.z + n * 4, p.z + row * p.z_row + e0 + e);
    }
    const int left = (p.L - t0 < STEPS ? p.L - t0 : STEPS) * per_proj;
    for (int n = kr_thread(); n < STEPS * per_proj; n += 128)
      kr_copy16(to.proj + n * 4, p.proj + (first + t0) * p.X + (n < left ? n : 0) * 4);
  }
  kr_commit_copies();
}

/* LANES adjacent threads share a channel's states; a block has 128 / LANES channels of one sequence. */
template <int MOST_N, int MOST_X, int LANES, int EVEN>
KR_DEV void scan(const kr_projected_scan_params &p) {
  enum { OWN = MOST_N / LANES, CHANNELS = 128 / LANES, STAGES = EVEN ? 3 : 2 };
  KR_SHARED scan_stage<CHANNELS, MOST_X> stages[STAGES];
  const int channel = kr_thread() / LANES, e = kr_block_y() * CHANNELS + channel, part = kr_thread() % LANES * OWN,
            stores = e < p.D && part == 0, at = e < p.D ? e : 0;
  const int64_t first = (int64_t)kr_block_x() * p.L;
  float A[OWN], state[OWN], rank[MOST_RANK];
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) fetch(p, first, i * STEPS, stages[i]);
#pragma unroll
  for (int n = 0; n < OWN; n++)
    A[n] = part + n < p.N ? p.A[(int64_t)at * p.N + part + n] * KR_LOG2E : 0.0f, state[n] = 0.0f;
#pragma unroll
  for (int r = 0; r < MOST_RANK; r++) rank[r] = r < p.R ? p.dt_weight[(int64_t)r * p.dt_rank + at] : 0.0f;
  const float bias = p.dt_bias[at], skip = p.Dvec[at];
  const int X = EVEN ? MOST_X : p.X;
#pragma unroll 1
  for (int t0 = 0, side = 0; t0 < p.L; t0 += STEPS) {
    const scan_stage<CHANNELS, MOST_X> &stage = stages[side];
    float delta[STEPS];
    kr_copied<STAGES - 2>();
    kr_sync(); /* this stage has arrived, and the previous one is free */
    fetch(p, first, t0 + (STAGES - 1) * STEPS, stages[side == 0 ? STAGES - 1 : side - 1]);
    side = side + 1 < STAGES ? side + 1 : 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      float sum = bias;
#pragma unroll
      for (int r = 0; r < MOST_RANK; r++)
        if (EVEN || r < p.R) sum = kr_fma(stage.proj[i * X + r], rank[r], sum);
      for (int r = MOST_RANK; !EVEN && r < p.R; r++)
        sum = kr_fma(stage.proj[i * X + r], p.dt_weight[(int64_t)r * p.dt_rank + at], sum);
      delta[i] = kr_select(t0 + i < p.L, kr_softplus(sum), 0.0f); /* steps past the last leave the states unchanged */
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const float *proj = stage.proj + i * X;
      const float u = stage.u[i * CHANNELS + channel], du = delta[i] * u;
      float y;
      if (EVEN) y = step_even<OWN>(proj + MOST_RANK + part, proj + MOST_RANK + MOST_N + part, delta[i], du, A, state);
      else y = step_any<OWN>(proj + p.R, p.N, delta[i], du, A, state);
#pragma unroll
      for (int d = 1; d < LANES; d <<= 1) y += kr_shuffle_xor(y, d);
      y = kr_fma(skip, u, y) * stage.z[i * CHANNELS + channel];
      if (stores && t0 + i < p.L) p.out[(first + t0 + i) * p.out_row + e] = y;
    }
  }
}

/* 16: 16 states, rank 4, 48 values per row of proj. */
KR_KERNEL void KR_BOUNDS(128, 7) kr_projected_scan_16(const kr_projected_scan_params p) { scan<16, 48, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_projected_scan_16_2(const kr_projected_scan_params p) { scan<16, 48, 2, 1>(p); }
KR_KERNEL void KR_BOUNDS(128, 1) kr_projected_scan_any(const kr_projected_scan_params p) { scan<64, 144, 1, 0>(p); }
