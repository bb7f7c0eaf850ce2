/* spectra.cu: spectra in polar form, losses, transforms and spectral norm (spectra_ref.c has the equations).
 *   kr_to_polar, kr_to_polar_back, kr_from_polar, kr_from_polar_back, kr_loss_back   one element per thread
 *   kr_loss_parts, kr_loss_sum   sums in float64, in a fixed order
 *   kr_transform                 a product with float64 sums; its tiles are float64 in shared memory
 *   kr_spectral_norm, _back      one block: the weights of a discriminator are small */
#include "polar.cuh"
#include "pack.cuh"
#include "spectra_params.h"

typedef struct place {
  uint32_t i, j, k;
  int inside;
} place;

KR_DEV place here(const kr_polar_params &p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_POLAR_THREADS + (uint32_t)kr_thread(),
                 row = kr_divide(thread, p.K), i = kr_divide(row, p.J);
  return place{i, row - i * p.J.by, thread - row * p.K.by, thread < p.n};
}
KR_DEV float get(const kr_view &v, const place &at) {
  return v.data ? ((const float *)v.data)[at.i * v.stride[0] + at.j * v.stride[1] + at.k * v.stride[2]] : 0.0f;
}
KR_DEV void put(const kr_view &v, const place &at, float value) {
  if (v.data) ((float *)v.data)[at.i * v.stride[0] + at.j * v.stride[1] + at.k * v.stride[2]] = value;
}

KR_KERNEL void KR_BOUNDS(KR_POLAR_THREADS, 4) kr_to_polar(const kr_polar_params p) {
  const place at = here(p);
  if (!at.inside) return;
  const float x = get(p.a, at), y = get(p.b, at);
  if (p.c.data) put(p.c, at, kr_power(kr_fma(x, x, kr_fma(y, y, p.eps)), p.power * 0.5f));
  if (p.d.data) put(p.d, at, kr_atan2(y + p.im_add, x + p.re_add));
}

KR_KERNEL void KR_BOUNDS(KR_POLAR_THREADS, 4) kr_to_polar_back(const kr_polar_params p) {
  const place at = here(p);
  if (!at.inside) return;
  const float x = get(p.a, at), y = get(p.b, at), u = x + p.re_add, v = y + p.im_add;
  const float along =
      p.da.data ? get(p.da, at) * p.power * kr_power(kr_fma(x, x, kr_fma(y, y, p.eps)), p.power * 0.5f - 1.0f) : 0.0f;
  const float around = p.db.data ? get(p.db, at) / kr_fma(u, u, v * v) : 0.0f;
  put(p.c, at, kr_fma(along, x, -around * v));
  put(p.d, at, kr_fma(along, y, around * u));
}

KR_KERNEL void KR_BOUNDS(KR_POLAR_THREADS, 4) kr_from_polar(const kr_polar_params p) {
  const place at = here(p);
  if (!at.inside) return;
  float sine, cosine;
  const float m = kr_power(get(p.a, at), p.power);
  kr_sine_cosine(get(p.b, at), sine, cosine);
  put(p.c, at, m * cosine);
  put(p.d, at, m * sine);
}

KR_KERNEL void KR_BOUNDS(KR_POLAR_THREADS, 4) kr_from_polar_back(const kr_polar_params p) {
  const place at = here(p);
  if (!at.inside) return;
  float sine, cosine;
  const float m = get(p.a, at), x = get(p.da, at), y = get(p.db, at);
  kr_sine_cosine(get(p.b, at), sine, cosine);
  put(p.c, at, p.power * kr_power(m, p.power - 1.0f) * kr_fma(x, cosine, y * sine));
  put(p.d, at, kr_power(m, p.power) * kr_fma(y, cosine, -x * sine));
}

/* ---- losses ---- */

KR_DEV int64_t offset_of(const kr_view &v, uint32_t i, uint32_t j, uint32_t k, uint32_t n) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2] + n * v.stride[3];
}

KR_DEV float difference_at(const kr_loss_params &p, uint32_t element, uint32_t &i, uint32_t &j, uint32_t &k,
                           uint32_t &n) {
  const uint32_t row = kr_divide(element, p.N), plane = kr_divide(row, p.K);
  i = kr_divide(plane, p.J), j = plane - i * p.J.by, k = row - plane * p.K.by, n = element - row * p.N.by;
  const float x = ((const float *)p.x.data)[offset_of(p.x, i, j, k, n)],
              d = p.y.data ? x - ((const float *)p.y.data)[offset_of(p.y, i, j, k, n)] : x;
  if (!p.angle) return d;
  const float turns = kr_nearest(d * 0.15915494f);
  return kr_fma(turns, 1.7484555e-7f, kr_fma(turns, -6.2831855f, d));
}

/* The block's sum, in thread 0. */
KR_DEV double sum_block(double v) {
  KR_SHARED double shared[KR_LOSS_THREADS];
  shared[kr_thread()] = v;
  for (int half = KR_LOSS_THREADS / 2; half > 0; half /= 2) {
    kr_sync();
    if (kr_thread() < half) shared[kr_thread()] = v += shared[kr_thread() + half];
  }
  return v;
}

KR_KERNEL void KR_BOUNDS(KR_LOSS_THREADS, 4) kr_loss_parts(const kr_loss_params p) {
  uint32_t i, j, k, n;
  double sum = 0.0;
  for (uint32_t at = (uint32_t)kr_block_x() * KR_LOSS_THREADS + (uint32_t)kr_thread(); at < p.n;
       at += p.n_parts * KR_LOSS_THREADS) {
    const float d = difference_at(p, at, i, j, k, n);
    sum += p.angle ? (double)__builtin_fabsf(d) : (double)d * (double)d;
  }
  sum = sum_block(sum);
  if (kr_thread() == 0) p.partial[kr_block_x()] = sum;
}

KR_KERNEL void KR_BOUNDS(KR_LOSS_THREADS, 4) kr_loss_sum(const kr_loss_params p) {
  double sum = 0.0;
  for (uint32_t part = (uint32_t)kr_thread(); part < p.n_parts; part += KR_LOSS_THREADS) sum += p.partial[part];
  sum = sum_block(sum);
  if (kr_thread() == 0) *(float *)p.out.data = (float)(sum * (double)p.scale);
}

KR_KERNEL void KR_BOUNDS(KR_LOSS_THREADS, 4) kr_loss_back(const kr_loss_params p) {
  const uint32_t at = (uint32_t)kr_block_x() * KR_LOSS_THREADS + (uint32_t)kr_thread();
  uint32_t i, j, k, n;
  if (at >= p.n) return;
  const float d = difference_at(p, at, i, j, k, n), scale = p.scale * *(const float *)p.dout.data;
  const float slope = p.angle ? (d > 0.0f ? scale : d < 0.0f ? -scale : d == 0.0f ? 0.0f : d) : 2.0f * scale * d;
  if (p.dx.data) ((float *)p.dx.data)[offset_of(p.dx, i, j, k, n)] = slope;
  if (p.dy.data) ((float *)p.dy.data)[offset_of(p.dy, i, j, k, n)] = -slope;
}

/* ---- transform ---- */

KR_KERNEL void KR_BOUNDS(KR_TRANSFORM_THREADS, 2) kr_transform(const kr_transform_args a) {
  KR_SHARED double left[KR_TRANSFORM_DEPTH][KR_TRANSFORM_TILE + 1], right[KR_TRANSFORM_DEPTH][KR_TRANSFORM_TILE];
  const int64_t r0 = (int64_t)kr_block_x() * KR_TRANSFORM_TILE, n0 = (int64_t)kr_block_y() * KR_TRANSFORM_TILE;
  const int row = kr_thread() / 16, column = kr_thread() % 16;
  double sum[2][2] = {{0.0, 0.0}, {0.0, 0.0}};
  for (int64_t k0 = 0; k0 < a.K; k0 += KR_TRANSFORM_DEPTH) {
    for (int i = kr_thread(); i < KR_TRANSFORM_TILE * KR_TRANSFORM_DEPTH; i += KR_TRANSFORM_THREADS) {
      const int64_t r = r0 + i / KR_TRANSFORM_DEPTH, k = k0 + i % KR_TRANSFORM_DEPTH,
                    below = k0 + i / KR_TRANSFORM_TILE, n = n0 + i % KR_TRANSFORM_TILE;
      left[i % KR_TRANSFORM_DEPTH][i / KR_TRANSFORM_DEPTH] =
          r < a.R && k < a.K ? (double)((const float *)a.x.data)[r * a.x.stride[0] + k * a.x.stride[1]] : 0.0;
      right[i / KR_TRANSFORM_TILE][i % KR_TRANSFORM_TILE] =
          n < a.N && below < a.K
              ? (double)((const float *)a.matrix.data)[below * a.matrix.stride[0] + n * a.matrix.stride[1]]
              : 0.0;
    }
    kr_sync();
#pragma unroll
    for (int k = 0; k < KR_TRANSFORM_DEPTH; k++)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          sum[i][j] = __builtin_fma(left[k][row + 16 * i], right[k][column + 16 * j], sum[i][j]);
    kr_sync();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      const int64_t r = r0 + row + 16 * i, n = n0 + column + 16 * j;
      if (r < a.R && n < a.N) ((float *)a.out.data)[r * a.out.stride[0] + n * a.out.stride[1]] = (float)sum[i][j];
    }
}

/* ---- spectral norm: one block ---- */

/* The sum, in every thread. */
KR_DEV float sum_all(float v) {
  KR_SHARED float shared[KR_SPECTRAL_THREADS];
  kr_sync();
  shared[kr_thread()] = v;
  for (int half = KR_SPECTRAL_THREADS / 2; half > 0; half /= 2) {
    kr_sync();
    if (kr_thread() < half) shared[kr_thread()] = v += shared[kr_thread() + half];
  }
  kr_sync();
  return shared[0];
}

KR_DEV float one_over(float squares) {
  const float norm = squares * kr_rsqrt(squares > 0.0f ? squares : 1.0f);
  return 1.0f / (squares == squares && !(norm > 1e-12f) ? 1e-12f : norm);
}

KR_DEV float weight_at(const kr_spectral_norm_args &a, int64_t o, int64_t k) {
  return ((const float *)a.weight.data)[o * a.weight.stride[0] + k * a.weight.stride[1]];
}

KR_KERNEL void KR_BOUNDS(KR_SPECTRAL_THREADS, 1) kr_spectral_norm(const kr_spectral_norm_args a) {
  float *const v = (float *)a.call.scratch, *const product = v + a.K;
  const int thread = kr_thread(), warp = thread >> 5, lane = thread & 31;
  float squares = 0.0f;
  for (int64_t k = thread; k < a.K; k += KR_SPECTRAL_THREADS) {
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t o = 0; o < a.O; o++)
      sum = kr_fma(weight_at(a, o, k), ((const float *)a.u.data)[o * a.u.stride[0]], sum);
    v[k] = sum, squares = kr_fma(sum, sum, squares);
  }
  float by = one_over(sum_all(squares));
  for (int64_t k = thread; k < a.K; k += KR_SPECTRAL_THREADS) {
    v[k] *= by;
    ((float *)a.v_out.data)[k * a.v_out.stride[0]] = v[k];
  }
  kr_sync();
  for (int64_t o = warp; o < a.O; o += KR_SPECTRAL_THREADS / 32) {
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t k = lane; k < a.K; k += 32) sum = kr_fma(weight_at(a, o, k), v[k], sum);
    for (int d = 16; d > 0; d >>= 1) sum += kr_shuffle_xor(sum, d);
    if (lane == 0) product[o] = sum;
  }
  kr_sync();
  squares = 0.0f;
  for (int64_t o = thread; o < a.O; o += KR_SPECTRAL_THREADS) squares = kr_fma(product[o], product[o], squares);
  squares = sum_all(squares);
  by = one_over(squares);
  const float sigma = squares * by;
  for (int64_t o = thread; o < a.O; o += KR_SPECTRAL_THREADS)
    ((float *)a.u_out.data)[o * a.u_out.stride[0]] = product[o] * by;
  if (thread == 0) *(float *)a.sigma.data = sigma;
  for (int64_t o = warp; o < a.O; o += KR_SPECTRAL_THREADS / 32)
    for (int64_t k = lane; k < a.K; k += 32)
      ((float *)a.out.data)[o * a.out.stride[0] + k * a.out.stride[1]] = weight_at(a, o, k) / sigma;
}

KR_KERNEL void KR_BOUNDS(KR_SPECTRAL_THREADS, 1) kr_spectral_norm_back(const kr_spectral_norm_bwd_args a) {
  const int warp = kr_thread() >> 5, lane = kr_thread() & 31;
  const float *const out = (const float *)a.out.data, *const dout = (const float *)a.dout.data;
  float along = 0.0f;
  for (int64_t o = warp; o < a.O; o += KR_SPECTRAL_THREADS / 32)
    for (int64_t k = lane; k < a.K; k += 32)
      along = kr_fma(dout[o * a.dout.stride[0] + k * a.dout.stride[1]], out[o * a.out.stride[0] + k * a.out.stride[1]],
                     along);
  along = sum_all(along);
  const float by = 1.0f / *(const float *)a.sigma.data;
  for (int64_t o = warp; o < a.O; o += KR_SPECTRAL_THREADS / 32)
    for (int64_t k = lane; k < a.K; k += 32) {
      const float uv = ((const float *)a.u.data)[o * a.u.stride[0]] * ((const float *)a.v.data)[k * a.v.stride[0]];
      ((float *)a.dweight.data)[o * a.dweight.stride[0] + k * a.dweight.stride[1]] =
          kr_fma(-along, uv, dout[o * a.dout.stride[0] + k * a.dout.stride[1]]) * by;
    }
}
