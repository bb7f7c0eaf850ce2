/* instance_norm.cu: instance norm with PReLU, pooling, and their gradients (instance_norm_ref.c has the equations).
 * Memory-bound: the norm reads x twice, its gradient x three times and dout twice.
 *   kr_instance_parts       sums over a part of the rows, shifted by its first row: the part's mean and sum of squares
 *   kr_instance_stats       mean and deviation of each (b, c) from the parts
 *   kr_instance_apply       out
 *   kr_instance_back_parts  sums of dz, dz xhat and the slope gradient over a part
 *   kr_instance_back_stats  the same over all parts of each (b, c)
 *   kr_instance_back_apply  dx
 *   kr_instance_back_sums   the parameter gradients: sums over b
 *   ..._two                 the same for 16-bit types, two channels per thread
 *   kr_pool, kr_pool_back   a block takes all rows of some channels; max pooling's gradient repeats the search
 * One module per activation type, KR_DTYPE; parameters, statistics and sums are float32. */
#include "instance_norm_params.h"
#include "element.cuh"
#include "pack.cuh"

enum { AHEAD = 4, TWO = KR_DTYPE == 0 ? 1 : 2 }; /* AHEAD: rows in flight */

typedef struct place {
  int lane, row, rows; /* within the block */
  int64_t b, c, first, end; /* row range of the part */
  uint32_t part;
} place;

/* A thread of the norm's kernels has V adjacent channels: 1, or 2 of 16 bits. */
template <int V>
KR_DEV place here(const kr_middle_params &p) {
  place at;
  uint32_t block = (uint32_t)kr_block_x();
  at.lane = kr_thread() & (int)(p.lanes - 1), at.row = kr_thread() / (int)p.lanes,
  at.rows = KR_MIDDLE_THREADS / (int)p.lanes;
  at.c = ((int64_t)(block % p.n_channels) * p.lanes + at.lane) * V;
  block /= p.n_channels;
  at.part = block % p.n_parts, at.b = block / p.n_parts;
  at.first = at.part * p.rows, at.end = min64(p.S, at.first + p.rows);
  return at;
}

KR_DEV const element *column(const kr_view &v, int64_t b, int64_t c) {
  return (const element *)v.data + b * v.stride[0] + c * v.stride[2];
}
KR_DEV float parameter(const kr_view &v, int64_t c, float other) {
  return v.data ? ((const float *)v.data)[c * v.stride[0]] : other;
}
template <int V>
KR_DEV void load(const element *from, int64_t at, float (&v)[V]) {
  if (V == 1) {
    v[0] = value(from, at);
    return;
  }
  const uint32_t both = *(const uint32_t *)(from + at);
  v[0] = element_value((element)both), v[V - 1] = element_value((element)(both >> 16));
}
template <int V>
KR_DEV void store(element *to, int64_t at, const float (&v)[V]) {
  if (V == 1) put(to, at, v[0]);
  else *(uint32_t *)(to + at) = kr_pack(v[0], v[V - 1], KR_DTYPE);
}

/* Per-channel parameters and statistics of a thread. */
template <int V>
struct channels {
  float weight[V], bias[V], slope[V], mean[V], scale[V];
};
template <int V>
KR_DEV channels<V> channels_of(const kr_middle_params &p, const place &at) {
  channels<V> k;
#pragma unroll
  for (int e = 0; e < V; e++)
    k.weight[e] = parameter(p.weight, at.c + e, 1.0f), k.bias[e] = parameter(p.bias, at.c + e, 0.0f),
    k.slope[e] = parameter(p.slope, at.c + e, 1.0f), k.mean[e] = p.stats[at.b * 4 * p.C + at.c + e],
    k.scale[e] = p.stats[(at.b * 4 + 1) * p.C + at.c + e];
  return k;
}

/* Reduces N values over the block's rows; thread row 0 has the sums. */
template <int N>
KR_DEV void sum_rows(const kr_middle_params &p, const place &at, float (&v)[N]) {
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

template <int V>
KR_DEV void sum_parts(const kr_middle_params &p) {
  const place at = here<V>(p);
  float sums[2 * V] = {}, origin[V] = {};
  if (at.c < p.C) {
    const element *const x = column(p.x, at.b, at.c);
    load(x, at.first * p.x.stride[1], origin);
#pragma unroll 4
    for (int64_t s = at.first + at.row; s < at.end; s += at.rows) {
      float v[V];
      load(x, s * p.x.stride[1], v);
#pragma unroll
      for (int e = 0; e < V; e++) {
        const float d = v[e] - origin[e];
        sums[2 * e] += d, sums[2 * e + 1] = kr_fma(d, d, sums[2 * e + 1]);
      }
    }
  }
  sum_rows(p, at, sums);
  if (at.row || at.c >= p.C) return;
  float *const to = p.partial + ((at.b * p.n_parts + at.part) * KR_MIDDLE_SUMS) * p.C + at.c;
#pragma unroll
  for (int e = 0; e < V; e++) {
    const float n = (float)(at.end - at.first), mean = sums[2 * e] / n, squares = sums[2 * e + 1] - sums[2 * e] * mean;
    to[e] = origin[e] + mean, to[p.C + e] = squares < 0.0f ? 0.0f : squares;
  }
}

/* One thread per (b, c). */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_stats(const kr_middle_params p) {
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

template <int V>
KR_DEV void apply(const kr_middle_params &p) {
  const place at = here<V>(p);
  if (at.c >= p.C) return;
  const element *const x = column(p.x, at.b, at.c);
  element *const out = (element *)column(p.out, at.b, at.c);
  const channels<V> k = channels_of<V>(p, at);
  for (int64_t s = at.first + at.row; s < at.end; s += AHEAD * at.rows) {
    float v[AHEAD][V] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      if (s + i * at.rows < at.end) load(x, (s + i * at.rows) * p.x.stride[1], v[i]);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
#pragma unroll
      for (int e = 0; e < V; e++) {
        const float y = kr_fma((v[i][e] - k.mean[e]) * k.scale[e], k.weight[e], k.bias[e]);
        v[i][e] = y > 0.0f ? y : y * k.slope[e];
      }
      if (s + i * at.rows < at.end) store(out, (s + i * at.rows) * p.out.stride[1], v[i]);
    }
  }
}

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_parts(const kr_middle_params p) { sum_parts<1>(p); }
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_parts_two(const kr_middle_params p) { sum_parts<TWO>(p); }
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_apply(const kr_middle_params p) { apply<1>(p); }
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_apply_two(const kr_middle_params p) { apply<TWO>(p); }

/* ---- backward ---- */

template <int V>
KR_DEV void sum_back_parts(const kr_middle_params &p) {
  const place at = here<V>(p);
  float sums[3 * V] = {};
  if (at.c < p.C) {
    const element *const x = column(p.x, at.b, at.c), *const dout = column(p.dout, at.b, at.c);
    const channels<V> k = channels_of<V>(p, at);
#pragma unroll 4
    for (int64_t s = at.first + at.row; s < at.end; s += at.rows) {
      float xs[V], ds[V];
      load(x, s * p.x.stride[1], xs), load(dout, s * p.dout.stride[1], ds);
#pragma unroll
      for (int e = 0; e < V; e++) {
        const float xhat = (xs[e] - k.mean[e]) * k.scale[e], v = kr_fma(xhat, k.weight[e], k.bias[e]), d = ds[e],
                    dz = v > 0.0f ? d : d * k.slope[e];
        sums[3 * e] += dz, sums[3 * e + 1] = kr_fma(dz, xhat, sums[3 * e + 1]);
        if (!(v > 0.0f)) sums[3 * e + 2] = kr_fma(d, v, sums[3 * e + 2]);
      }
    }
  }
  sum_rows(p, at, sums);
  if (at.row || at.c >= p.C) return;
  float *const to = p.partial + ((at.b * p.n_parts + at.part) * KR_MIDDLE_SUMS) * p.C + at.c;
#pragma unroll
  for (int e = 0; e < V; e++)
    to[e] = sums[3 * e], to[p.C + e] = sums[3 * e + 1], to[2 * p.C + e] = sums[3 * e + 2];
}
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_parts(const kr_middle_params p) {
  sum_back_parts<1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_parts_two(const kr_middle_params p) {
  sum_back_parts<TWO>(p);
}

/* The sums of a (b, c) overwrite those of its first part. */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_stats(const kr_middle_params p) {
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

template <int V>
KR_DEV void apply_back(const kr_middle_params &p) {
  const place at = here<V>(p);
  if (at.c >= p.C) return;
  const element *const x = column(p.x, at.b, at.c), *const dout = column(p.dout, at.b, at.c);
  const channels<V> k = channels_of<V>(p, at);
  element *const dx = (element *)column(p.out, at.b, at.c);
  float by[V], level[V], along[V];
#pragma unroll
  for (int e = 0; e < V; e++)
    by[e] = k.scale[e] * k.weight[e], level[e] = p.stats[(at.b * 4 + 2) * p.C + at.c + e],
    along[e] = p.stats[(at.b * 4 + 3) * p.C + at.c + e];
  for (int64_t s = at.first + at.row; s < at.end; s += AHEAD * at.rows) {
    float v[AHEAD][V] = {}, d[AHEAD][V] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int64_t r = s + i * at.rows;
      if (r < at.end) load(x, r * p.x.stride[1], v[i]), load(dout, r * p.dout.stride[1], d[i]);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int64_t r = s + i * at.rows;
#pragma unroll
      for (int e = 0; e < V; e++) {
        const float xhat = (v[i][e] - k.mean[e]) * k.scale[e],
                    dz = kr_fma(xhat, k.weight[e], k.bias[e]) > 0.0f ? d[i][e] : d[i][e] * k.slope[e];
        v[i][e] = by[e] * (dz - level[e] - xhat * along[e]);
      }
      if (r < at.end) store(dx, r * p.out.stride[1], v[i]);
    }
  }
}
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_apply(const kr_middle_params p) { apply_back<1>(p); }
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_apply_two(const kr_middle_params p) {
  apply_back<TWO>(p);
}

/* One thread per c; block_y is the parameter. */
KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_instance_back_sums(const kr_middle_params p) {
  const int64_t c = (int64_t)kr_block_x() * KR_MIDDLE_THREADS + kr_thread();
  const int which = kr_block_y();
  const kr_view &to = which == 0 ? p.dbias : which == 1 ? p.dweight : p.dslope;
  if (c >= p.C || !to.data) return;
  float sum = 0.0f;
  for (int64_t b = 0; b < p.B; b++) sum += p.partial[(b * p.n_parts * KR_MIDDLE_SUMS + which) * p.C + c];
  ((float *)to.data)[c * to.stride[0]] = sum;
}

/* ---- pooling: one part ---- */

/* The first maximum of a column: in every thread of row 0. */
KR_DEV int64_t first_of_largest(const kr_middle_params &p, const place &at, const element *x) {
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

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_pool(const kr_middle_params p) {
  const place at = here<1>(p);
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

KR_KERNEL void KR_BOUNDS(KR_MIDDLE_THREADS, 4) kr_pool_back(const kr_middle_params p) {
  const place at = here<1>(p);
  const int64_t best =
      p.kind == KRAIT_POOL_MAX ? first_of_largest(p, at, at.c < p.C ? column(p.x, at.b, at.c) : 0) : -1;
  if (at.c >= p.C) return;
  const float d = value((const element *)p.dout.data, at.b * p.dout.stride[0] + at.c * p.dout.stride[1]),
              share = p.kind == 0 ? d * p.inverse_S : d;
  element *const dx = (element *)column(p.out, at.b, at.c);
  for (int64_t s = at.first + at.row; s < at.end; s += at.rows)
    put(dx, s * p.out.stride[1], best < 0 || s == best ? share : 0.0f);
}
