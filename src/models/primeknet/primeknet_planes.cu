/* primeknet_planes.cu: the end of PrimeKnet: the decoders' maps to one number per bin, and back to a spectrum. */
#include "pack.cuh"
#include "polar.cuh"
#include "primeknet_plan.h"

/* ---- dots with a decoder's map: sixteen lanes have a position, each of them four channels; Cp is at most 64 ------ */

enum { LANES = 16, GROUPS = 128 / LANES, AT_ONCE = 4, STRIDE = GROUPS * AT_ONCE };

typedef struct lane_norm {
  kr_float4 scale, shift, slope;
} lane_norm;

KR_DEV kr_float4 lane_of(const float *from, int Cp, float otherwise) {
  const int c = kr_thread() % LANES * 4;
  if (from && c < Cp) return *(const kr_float4 *)(from + c);
  return kr_float4{{otherwise, otherwise, otherwise, otherwise}};
}

/* Without a norm the slope is 1. */
KR_DEV lane_norm norm_of(const kr_tile_affine &a, int item, int Cp) {
  return lane_norm{lane_of(a.scale ? a.scale + item * Cp : NULL, Cp, 1.0f),
                   lane_of(a.scale ? a.shift + item * Cp : NULL, Cp, 0.0f),
                   lane_of(a.scale ? a.slope : NULL, Cp, 1.0f)};
}

/* This lane's channels of a map of `width` frequencies; positions outside read the nearest one. */
KR_DEV kr_float4 load_map(const pk_planes &p, int item, int f, int t, int width) {
  const int within = f < 0 ? 0 : f < width ? f : width - 1;
  return lane_of(p.map + (((int64_t)item * width + within) * p.T.by + t) * p.Cp, p.Cp, 0.0f);
}

KR_DEV float dot(const kr_float4 &x, const kr_float4 &w) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; j++) sum = kr_fma(x.v[j], w.v[j], sum);
  return sum;
}

KR_DEV void apply(const lane_norm &n, kr_float4 &x) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float v = kr_fma(x.v[j], n.scale.v[j], n.shift.v[j]);
    x.v[j] = v < 0.0f ? v * n.slope.v[j] : v;
  }
}

KR_DEV float sum_lanes(float v) {
#pragma unroll
  for (int d = LANES / 2; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* A block's position i: bin, frequency and frame; past the item's end its first one. */
typedef struct bin {
  int at, f, t, exists;
} bin;

KR_DEV bin bin_of(const pk_planes &p, int i) {
  const int n = p.F * (int)p.T.by, first = kr_block_x() * KR_PK_POSITIONS, exists = first + i < n,
            at = exists ? first + i : first;
  const int f = (int)kr_divide((uint32_t)at, p.T);
  return bin{at, f, at - f * (int)p.T.by, exists};
}

/* Moments of the block's bins, by its first warp. */
KR_DEV void leave_moments(const pk_planes &p, const float *values) {
  const int n = p.F * (int)p.T.by, left = n - kr_block_x() * KR_PK_POSITIONS,
            count = left < KR_PK_POSITIONS ? left : KR_PK_POSITIONS, lane = kr_thread();
  if (lane >= 32) return;
  float own[KR_PK_POSITIONS / 32], mean = 0.0f, squares = 0.0f;
#pragma unroll
  for (int i = 0; i < KR_PK_POSITIONS / 32; i++)
    own[i] = values[lane + i * 32], mean += lane + i * 32 < count ? own[i] : 0.0f;
  mean = sum_lanes(mean);
  mean = (mean + kr_shuffle_xor(mean, 16)) / (float)count;
#pragma unroll
  for (int i = 0; i < KR_PK_POSITIONS / 32; i++)
    squares += lane + i * 32 < count ? (own[i] - mean) * (own[i] - mean) : 0.0f;
  squares = sum_lanes(squares);
  squares += kr_shuffle_xor(squares, 16);
  float *to = p.partial + ((int64_t)kr_block_y() * ((n + KR_PK_POSITIONS - 1) / KR_PK_POSITIONS) + kr_block_x()) * 3;
  if (lane == 0) to[0] = (float)count, to[1] = mean, to[2] = squares;
}

/* Even bins see positions f / 2 - 1 and f / 2, odd ones (f - 1) / 2. The block's bins leave their moments. */
KR_KERNEL void KR_BOUNDS(128, 7) kr_pk_mask(const pk_planes p) {
  KR_SHARED float values[KR_PK_POSITIONS];
  const int item = kr_block_y(), lead = kr_thread() % LANES == 0;
  const kr_float4 before = lane_of(p.w0, p.Cp, 0.0f), here = lane_of(p.w0 + p.Cp, p.Cp, 0.0f),
                  odd = lane_of(p.w1, p.Cp, 0.0f);
#pragma unroll 1
  for (int i0 = kr_thread() / LANES; i0 < KR_PK_POSITIONS; i0 += STRIDE) {
    kr_float4 x[AT_ONCE], y[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const bin b = bin_of(p, i0 + i * GROUPS);
      x[i] = load_map(p, item, b.f / 2, b.t, p.F2), y[i] = load_map(p, item, (b.f - 1) / 2, b.t, p.F2);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const bin b = bin_of(p, i0 + i * GROUPS);
      const float own = b.f / 2 < p.F2 ? dot(x[i], here) : 0.0f, other = b.f ? dot(y[i], before) : 0.0f;
      const float sum = sum_lanes(b.f & 1 ? dot(x[i], odd) : own + other) + p.b0;
      if (lead) values[i0 + i * GROUPS] = sum;
      if (lead && b.exists) p.plane[(int64_t)item * p.F * p.T.by + b.at] = sum;
    }
  }
  kr_sync();
  leave_moments(p, values);
}

/* The angle of two dots with the upsampled map. */
KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_angle(const pk_planes p) {
  const int item = kr_block_y(), lead = kr_thread() % LANES == 0;
  const lane_norm norm = norm_of(p.affine, item, p.Cp);
  const kr_float4 real = lane_of(p.w0, p.Cp, 0.0f), imaginary = lane_of(p.w1, p.Cp, 0.0f);
#pragma unroll 1
  for (int i0 = kr_thread() / LANES; i0 < KR_PK_POSITIONS; i0 += STRIDE) {
    kr_float4 x[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const bin b = bin_of(p, i0 + i * GROUPS);
      x[i] = load_map(p, item, b.f, b.t, p.F);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const bin b = bin_of(p, i0 + i * GROUPS);
      apply(norm, x[i]);
      const float re = sum_lanes(dot(x[i], real)) + p.b0, im = sum_lanes(dot(x[i], imaginary)) + p.b1;
      if (lead && b.exists) p.plane[(int64_t)item * p.F * p.T.by + b.at] = kr_atan2(im, re);
    }
  }
}

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_spectrum(const pk_planes p) {
  const int64_t i = (int64_t)kr_block_x() * 128 + kr_thread();
  if (i >= p.n) return;
  const uint32_t whole = kr_divide((uint32_t)i, p.T), item = whole / (uint32_t)p.F, f = whole % (uint32_t)p.F;
  float v = kr_fma(p.mask[i], p.mask_scale[item], p.mask_shift[item]);
  v = (v < 0.0f ? v * p.slope : v) * p.last_weight + p.last_bias;
  const float mag = p.polar[i * 2] * p.beta / (1.0f + kr_exp(-p.sigmoid_slope[f] * v)), phase = p.phase[i];
  float sine, cosine;
  kr_sine_cosine(phase, sine, cosine);
  if (p.mag) p.mag[i] = mag;
  if (p.pha) p.pha[i] = phase;
  if (p.com) p.com[i * 2] = mag * cosine, p.com[i * 2 + 1] = mag * sine;
}
