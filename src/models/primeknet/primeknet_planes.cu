/* primeknet_planes.cu: the ends of PrimeKnet: the spectrum to magnitude and phase, the decoders' maps to one number per bin, and back
 * to a spectrum. */
#include "pack.cuh"
#include "primeknet_plan.h"

#define PI 3.14159265358979f

/* atan of 0 <= x <= 1: around 0 or pi / 4 by an odd polynomial with the least error (6e-10) up to tan(pi / 8). */
KR_DEV float atan_unit(float x) {
  const int high = x > 0.41421356f;
  const float v = kr_select(high, (x - 1.0f) / (x + 1.0f), x), s = v * v;
  float y = kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, -0.06039303f, 0.10575461f), -0.14240388f), 0.19998236f), -0.33333308f), 1.0f);
  y = v * y;
  return kr_select(high, y + 0.78539816f, y);
}

KR_DEV float atan2_of(float y, float x) {
  const float ay = kr_bits_to_float(kr_float_to_bits(y) & 0x7fffffffu), ax = kr_bits_to_float(kr_float_to_bits(x) & 0x7fffffffu);
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
  const float sr = r * kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, 2.7557319e-6f, -1.9841270e-4f), 8.3333333e-3f), -0.16666667f), 1.0f);
  const float cr = kr_fma(s, kr_fma(s, kr_fma(s, kr_fma(s, 2.4801587e-5f, -1.3888889e-3f), 4.1666667e-2f), -0.5f), 1.0f);
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

/* Channel c.. of a decoder's map, as its norm leaves it; zero outside. */
KR_DEV float map_dot(const pk_planes &p, int item, int f, uint32_t t, const float *w, int width, int lane) {
  float sum = 0.0f;
  if (f < 0 || f >= width) return sum;
  const float *x = p.map + (((int64_t)item * width + f) * p.T.by + t) * p.Cp;
  for (int c = lane; c < p.Cp; c += 32) {
    float v = x[c];
    if (p.affine.scale) {
      v = kr_fma(v, p.affine.scale[item * p.Cp + c], p.affine.shift[item * p.Cp + c]);
      v = v < 0.0f ? v * p.affine.slope[c] : v;
    }
    sum = kr_fma(v, w[c], sum);
  }
  return sum;
}

KR_DEV float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* Even bins see positions f / 2 - 1 and f / 2, odd ones (f - 1) / 2. A warp has sixteen bins; the block's 64 leave their moments. */
KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_mask(const pk_planes p) {
  KR_SHARED float values[KR_PK_POSITIONS];
  const int lane = kr_thread() & 31, item = kr_block_y(), n = p.F * (int)p.T.by, first = kr_block_x() * KR_PK_POSITIONS;
  for (int i = kr_thread() >> 5; i < KR_PK_POSITIONS; i += 4) {
    const int at = first + i < n ? first + i : first;
    const int f = (int)kr_divide((uint32_t)at, p.T), half = f / 2;
    const uint32_t t = (uint32_t)at - (uint32_t)f * p.T.by;
    float sum;
    if (f & 1) sum = map_dot(p, item, half, t, p.w1, p.F2, lane);
    else sum = map_dot(p, item, half - 1, t, p.w0, p.F2, lane) + map_dot(p, item, half, t, p.w0 + p.Cp, p.F2, lane);
    sum = warp_sum(sum) + p.b0;
    if (lane == 0) values[i] = sum;
    if (lane == 0 && first + i < n) p.plane[(int64_t)item * n + at] = sum;
  }
  kr_sync();
  if (kr_thread()) return;
  const int count = n - first < KR_PK_POSITIONS ? n - first : KR_PK_POSITIONS;
  float mean = 0.0f, squares = 0.0f;
  for (int i = 0; i < count; i++) mean += values[i];
  mean /= (float)count;
  for (int i = 0; i < count; i++) squares = kr_fma(values[i] - mean, values[i] - mean, squares);
  float *to = p.partial + ((int64_t)item * ((n + KR_PK_POSITIONS - 1) / KR_PK_POSITIONS) + kr_block_x()) * 3;
  to[0] = (float)count, to[1] = mean, to[2] = squares;
}

/* The angle of two dots with the upsampled map. */
KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_angle(const pk_planes p) {
  const int lane = kr_thread() & 31, item = kr_block_y(), n = p.F * (int)p.T.by, first = kr_block_x() * KR_PK_POSITIONS;
  for (int i = kr_thread() >> 5; i < KR_PK_POSITIONS; i += 4) {
    const int at = first + i < n ? first + i : first;
    const int f = (int)kr_divide((uint32_t)at, p.T);
    const uint32_t t = (uint32_t)at - (uint32_t)f * p.T.by;
    const float real = warp_sum(map_dot(p, item, f, t, p.w0, p.F, lane)) + p.b0, imaginary = warp_sum(map_dot(p, item, f, t, p.w1, p.F, lane)) + p.b1;
    if (lane == 0 && first + i < n) p.plane[(int64_t)item * n + at] = atan2_of(imaginary, real);
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
