/* instance_norm.cu: instance norm with PReLU, pools, and their gradients (instance_norm_ref.c has the equations). Bound
 * by memory: the norm reads x twice, its gradient x three times and dout twice.
 *   kr_instance_parts       sums of a part of the rows around its first row: mean and sum of squares of the part
 *   kr_instance_stats       mean and deviation of each (b, c) from the parts
 *   kr_instance_apply       out
 *   kr_instance_back_parts  sums of dz, dz xhat and of the slope's gradient over a part
 *   kr_instance_back_stats  the same over all parts of each (b, c)
 *   kr_instance_back_apply  dx
 *   kr_instance_back_sums   the parameters' gradients: sums over b
 *   kr_pool, kr_pool_back   a block takes all rows of some channels; the gradient of the largest looks for it again
 * A module per type of the activations, KR_DTYPE; parameters, statistics and sums are float32. */
#include "instance_norm_plan.h"
#include "element.cuh"
#include "pack.cuh"

enum { AHEAD = 4 }; /* rows under way */

typedef struct place {
  int lane, row, rows; /* within the block */
  int64_t b, c, first, end; /* rows of the part */
  uint32_t part;
} place;

KR_DEV place here(const kr_middle_plan &p) {
  place at;
  uint32_t block = (uint32_t)kr_block_x();
  at.lane = kr_thread() & (int)(p.lanes - 1), at.row = kr_thread() / (int)p.lanes,
  at.rows = KR_MIDDLE_THREADS / (int)p.lanes;
  at.c = (int64_t)(block % p.n_channels) * p.lanes + at.lane;
  block /= p.n_channels;
  at.part = block % p.n_parts, at.b = block / p.n_parts;
  at.first = at.part * p.rows, at.end = min64(p.S, at.first + p.rows);
  return at;
}

KR_DEV const element *column(const krait_view &v, int64_t b, int64_t c) {
  return (const element *)v.data + b * v.stride[0] + c * v.stride[2];
}
KR_DEV float parameter(const krait_view &v, int64_t c, float other) {
  return v.data ? ((const float *)v.data)[c * v.stride[0]] : other;
}

/* Adds N values of the block's rows; thread row 0 has the sums. */
template <int N>
KR_DEV void sum_rows(const kr_middle_plan &p, const place &at, float (&v)[N]) {
  KR_SHARED float shared[N * KR_MIDDLE_THREADS];
#pragma unroll
  for (int k = 0; k < N; k++) shared[k * KR_MIDDLE_THREADS + kr_thread()] = v[k];
  for (int half = at.rows / 2; half > 0; half /= 2) {
    kr_sync();
    if (at.row < half) {
#pragma unroll
      for (int k = 0; k < N; k++)
        shared[k * KR_MIDDLE_THREADS + kr_thread()] = v[k] +=
            shared[k * KR_MIDDLE_THREADS + kr_thread() + half * (int)p.lanes];
    }
  }
}

/* ---- forward ---- */

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_parts(const kr_middle_plan p) {
  const place at = here(p);
  float sums[2] = {0.0f, 0.0f}, origin = 0.0f;
  if (at.c < p.C) {
    const element *const x = column(p.x, at.b, at.c);
    origin = value(x, at.first * p.x.stride[1]);
#pragma unroll 4
    for (int64_t s = at.first + at.row; s < at.end; s += at.rows) {
      const float d = value(x, s * p.x.stride[1]) - origin;
      sums[0] += d, sums[1] = kr_fma(d, d, sums[1]);
    }
  }
  sum_rows(p, at, sums);
  if (at.row || at.c >= p.C) return;
  const float n = (float)(at.end - at.first), mean = sums[0] / n, squares = sums[1] - sums[0] * mean;
  float *const to = p.partial + ((at.b * p.n_parts + at.part) * KR_MIDDLE_SUMS) * p.C + at.c;
  to[0] = origin + mean, to[p.C] = squares < 0.0f ? 0.0f : squares;
}

/* A thread takes a (b, c). */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_stats(const kr_middle_plan p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_MIDDLE_THREADS + kr_thread(), b = thread / p.C,
                c = thread - b * p.C;
  if (b >= p.B) return;
  const float *const from = p.partial + b * p.n_parts * KR_MIDDLE_SUMS * p.C + c;
  float mean = 0.0f, squares = 0.0f;
  const float origin = from[0];
  for (uint32_t part = 0; part < p.n_parts; part++)
    mean += (from[part * KR_MIDDLE_SUMS * p.C] - origin) * (float)(min64(p.S, (part + 1) * p.rows) - part * p.rows);
  mean = kr_fma(mean, p.inverse_S, origin);
  for (uint32_t part = 0; part < p.n_parts; part++) {
    const float d = from[part * KR_MIDDLE_SUMS * p.C] - mean;
    squares += kr_fma(d * d, (float)(min64(p.S, (part + 1) * p.rows) - part * p.rows),
                      from[(part * KR_MIDDLE_SUMS + 1) * p.C]);
  }
  float *const to = p.stats + b * 4 * p.C + c;
  to[0] = mean, to[p.C] = kr_rsqrt(kr_fma(squares, p.inverse_S, p.eps));
}

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_apply(const kr_middle_plan p) {
  const place at = here(p);
  if (at.c >= p.C) return;
  const element *const x = column(p.x, at.b, at.c);
  const float mean = p.stats[at.b * 4 * p.C + at.c], scale = p.stats[(at.b * 4 + 1) * p.C + at.c];
  const float weight = parameter(p.weight, at.c, 1.0f), bias = parameter(p.bias, at.c, 0.0f),
              slope = parameter(p.slope, at.c, 1.0f);
  element *const out = (element *)column(p.out, at.b, at.c);
  int64_t s = at.first + at.row;
  for (; s + (AHEAD - 1) * at.rows < at.end; s += AHEAD * at.rows) {
    float v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = value(x, (s + k * at.rows) * p.x.stride[1]);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const float y = kr_fma((v[k] - mean) * scale, weight, bias);
      put(out, (s + k * at.rows) * p.out.stride[1], y > 0.0f ? y : y * slope);
    }
  }
  for (; s < at.end; s += at.rows) {
    const float y = kr_fma((value(x, s * p.x.stride[1]) - mean) * scale, weight, bias);
    put(out, s * p.out.stride[1], y > 0.0f ? y : y * slope);
  }
}

/* ---- backward ---- */

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_parts(const kr_middle_plan p) {
  const place at = here(p);
  float sums[3] = {0.0f, 0.0f, 0.0f};
  if (at.c < p.C) {
    const element *const x = column(p.x, at.b, at.c), *const dout = column(p.dout, at.b, at.c);
    const float mean = p.stats[at.b * 4 * p.C + at.c], scale = p.stats[(at.b * 4 + 1) * p.C + at.c];
    const float weight = parameter(p.weight, at.c, 1.0f), bias = parameter(p.bias, at.c, 0.0f),
                slope = parameter(p.slope, at.c, 1.0f);
#pragma unroll 4
    for (int64_t s = at.first + at.row; s < at.end; s += at.rows) {
      const float xhat = (value(x, s * p.x.stride[1]) - mean) * scale, v = kr_fma(xhat, weight, bias),
                  d = value(dout, s * p.dout.stride[1]), dz = v > 0.0f ? d : d * slope;
      sums[0] += dz, sums[1] = kr_fma(dz, xhat, sums[1]);
      if (!(v > 0.0f)) sums[2] = kr_fma(d, v, sums[2]);
    }
  }
  sum_rows(p, at, sums);
  if (at.row || at.c >= p.C) return;
  float *const to = p.partial + ((at.b * p.n_parts + at.part) * KR_MIDDLE_SUMS) * p.C + at.c;
  to[0] = sums[0], to[p.C] = sums[1], to[2 * p.C] = sums[2];
}

/* The sums of a (b, c) take the place of its first part's. */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_stats(const kr_middle_plan p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_MIDDLE_THREADS + kr_thread(), b = thread / p.C,
                c = thread - b * p.C;
  if (b >= p.B) return;
  float *const from = p.partial + b * p.n_parts * KR_MIDDLE_SUMS * p.C + c, sums[3] = {0.0f, 0.0f, 0.0f};
  for (uint32_t part = 0; part < p.n_parts; part++)
#pragma unroll
    for (int k = 0; k < 3; k++) sums[k] += from[(part * KR_MIDDLE_SUMS + k) * p.C];
#pragma unroll
  for (int k = 0; k < 3; k++) from[k * p.C] = sums[k];
  p.stats[(b * 4 + 2) * p.C + c] = sums[0] * p.inverse_S, p.stats[(b * 4 + 3) * p.C + c] = sums[1] * p.inverse_S;
}

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_apply(const kr_middle_plan p) {
  const place at = here(p);
  if (at.c >= p.C) return;
  const element *const x = column(p.x, at.b, at.c), *const dout = column(p.dout, at.b, at.c);
  const float *const stats = p.stats + at.b * 4 * p.C + at.c;
  const float weight = parameter(p.weight, at.c, 1.0f), bias = parameter(p.bias, at.c, 0.0f),
              slope = parameter(p.slope, at.c, 1.0f), mean = stats[0], scale = stats[p.C], level = stats[2 * p.C],
              along = stats[3 * p.C];
  element *const dx = (element *)column(p.out, at.b, at.c);
  const float by = scale * weight;
  int64_t s = at.first + at.row;
  for (; s < at.end; s += AHEAD * at.rows) {
    float v[AHEAD], d[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t r = s + k * at.rows;
      v[k] = r < at.end ? value(x, r * p.x.stride[1]) : 0.0f,
      d[k] = r < at.end ? value(dout, r * p.dout.stride[1]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t r = s + k * at.rows;
      const float xhat = (v[k] - mean) * scale, dz = kr_fma(xhat, weight, bias) > 0.0f ? d[k] : d[k] * slope;
      if (r < at.end) put(dx, r * p.out.stride[1], by * (dz - level - xhat * along));
    }
  }
}

/* A thread takes a c; a block_y a parameter. */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_sums(const kr_middle_plan p) {
  const int64_t c = (int64_t)kr_block_x() * KR_MIDDLE_THREADS + kr_thread();
  const int which = kr_block_y();
  const krait_view &to = which == 0 ? p.dbias : which == 1 ? p.dweight : p.dslope;
  if (c >= p.C || !to.data) return;
  float sum = 0.0f;
  for (int64_t b = 0; b < p.B; b++) sum += p.partial[(b * p.n_parts * KR_MIDDLE_SUMS + which) * p.C + c];
  ((float *)to.data)[c * to.stride[0]] = sum;
}

/* ---- pools: one part ---- */

/* The first of the largest of a column: in every thread of row 0. */
KR_DEV int64_t first_of_largest(const kr_middle_plan &p, const place &at, const element *x) {
  KR_SHARED float values[KR_MIDDLE_THREADS];
  KR_SHARED int64_t places[KR_MIDDLE_THREADS];
  int64_t best = 0;
  float largest = x ? value(x, 0) : 0.0f;
  for (int64_t s = at.row; x && s < p.S; s += at.rows) {
    const float v = value(x, s * p.x.stride[1]);
    if (v > largest) largest = v, best = s;
  }
  values[kr_thread()] = largest, places[kr_thread()] = best;
  for (int half = at.rows / 2; half > 0; half /= 2) {
    kr_sync();
    if (at.row >= half) continue;
    const float other = values[kr_thread() + half * (int)p.lanes];
    const int64_t where = places[kr_thread() + half * (int)p.lanes];
    if (other > largest || (other == largest && where < best)) largest = other, best = where;
    values[kr_thread()] = largest, places[kr_thread()] = best;
  }
  kr_sync();
  return places[at.lane];
}

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_pool(const kr_middle_plan p) {
  const place at = here(p);
  const element *const x = at.c < p.C ? column(p.x, at.b, at.c) : 0;
  float sums[1] = {0.0f};
  if (p.kind == KRAIT_POOL_MAX) {
    const int64_t best = first_of_largest(p, at, x);
    if (x) sums[0] = value(x, best * p.x.stride[1]);
  } else {
    if (x) {
#pragma unroll 4
      for (int64_t s = at.row; s < p.S; s += at.rows) sums[0] += value(x, s * p.x.stride[1]);
    }
    sum_rows(p, at, sums);
    if (p.kind == 0) sums[0] *= p.inverse_S;
  }
  if (at.row == 0 && x)
    put((element *)p.out.data, at.b * p.out.stride[0] + at.c * p.out.stride[1], sums[0]);
}

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_pool_back(const kr_middle_plan p) {
  const place at = here(p);
  const int64_t best =
      p.kind == KRAIT_POOL_MAX ? first_of_largest(p, at, at.c < p.C ? column(p.x, at.b, at.c) : 0) : -1;
  if (at.c >= p.C) return;
  const float d = value((const element *)p.dout.data, at.b * p.dout.stride[0] + at.c * p.dout.stride[1]),
              share = p.kind == 0 ? d * p.inverse_S : d;
  element *const dx = (element *)column(p.out, at.b, at.c);
  for (int64_t s = at.first + at.row; s < at.end; s += at.rows)
    put(dx, s * p.out.stride[1], best < 0 || s == best ? share : 0.0f);
}
