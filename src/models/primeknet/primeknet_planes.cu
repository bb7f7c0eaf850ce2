/* primeknet_planes.cu: the ends of PrimeKnet: the spectrum to magnitude and phase, the decoders' maps to one number per
 * bin, and back to a spectrum. */
#include "pack.cuh"
#include "primeknet_plan.h"

#define PI 3.14159265358979f

/* atan of 0 <= x <= 1: around 0 or pi / 4 by an odd polynomial with the least error (6e-10) up to tan(pi / 8). */
KR_DEV float atan_unit(float x) {
  const int high = x > 0.41421356f;
  const float v = kr_select(high, (x - 1.0f) / (x + 1.0f), x), s = v * v;
  float y = kr_fma(
      s, kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, -0.06039303f, 0.10575461f), -0.14240388f), 0.19998236f), -0.33333308f),
      1.0f);
  y = v * y;
  return kr_select(high, y + 0.78539816f, y);
}

KR_DEV float atan2_of(float y, float x) {
  const float ay = kr_bits_to_float(kr_float_to_bits(y) & 0x7fffffffu),
              ax = kr_bits_to_float(kr_float_to_bits(x) & 0x7fffffffu);
  const float most = ay > ax ? ay : ax, least = ay > ax ? ax : ay;
  float a = most > 0.0f ? atan_unit(least / most) : 0.0f;
  if (ay > ax) a = 0.5f * PI - a;
  if (kr_float_to_bits(x) >> 31) a = PI - a;
  return kr_bits_to_float(kr_float_to_bits(a) | (kr_float_to_bits(y) & 0x80000000u));
}

/* |x| up to some turns. */
KR_DEV void sin_cos(float x, float *sine, float *cosine) {
  const float turns = kr_fma(x, 0.63661977f, 12582912.0f) - 12582912.0f; /* to the nearest quarter */
  const int quarter = (int)turns & 3;
  float r = kr_fma(turns, -1.5707964f, x);
  r = kr_fma(turns, 4.3711388e-8f, r);
  const float s = r * r;
  const float sr =
      r * kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, 2.7557319e-6f, -1.9841270e-4f), 8.3333333e-3f), -0.16666667f), 1.0f);
  const float cr =
      kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, 2.4801587e-5f, -1.3888889e-3f), 4.1666667e-2f), -0.5f), 1.0f);
  const float a = quarter & 1 ? cr : sr, b = quarter & 1 ? sr : cr;
  *sine = quarter & 2 ? -a : a;
  *cosine = (quarter + 1) & 2 ? -b : b;
}

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_polar(const pk_planes p) {
  const int64_t i = (int64_t)kr_block_x() * 128 + kr_thread();
  if (i >= p.n) return;
  const float re = p.com_in[i * 2], im = p.com_in[i * 2 + 1];
  p.polar[i * 2] = __builtin_sqrtf(re * re + im * im);
  p.polar[i * 2 + 1] = atan2_of(im, re);
}

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
KR_DEV lane_norm norm_of(const pk_affine &a, int item, int Cp) {
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
      if (lead && b.exists) p.plane[(int64_t)item * p.F * p.T.by + b.at] = atan2_of(im, re);
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
  sin_cos(phase, &sine, &cosine);
  if (p.mag) p.mag[i] = mag;
  if (p.pha) p.pha[i] = phase;
  if (p.com) p.com[i * 2] = mag * cosine, p.com[i * 2 + 1] = mag * sine;
}
