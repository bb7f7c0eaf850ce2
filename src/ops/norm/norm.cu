/* norm.cu: add + norm and the gated norm (add_norm_ref.c and gated_norm_ref.c have the equations).
 *   kr_norm_1, kr_norm_2   the row lies in registers, 8 or 16 features a thread: each tensor is read or written once
 *   kr_norm_any            rows of any length and stride: inputs are read three times, twice from the cache
 * Several short rows share a block. Bound by memory. */
#include "norm.cuh"

/* What is normalised. */
KR_DEV void read_summed(const int E, const kr_norm_plan &p, int64_t r, int64_t m, int inside, float (&v)[8]) {
  float other[8];
  read_run(E, p.x, r, m, inside, v);
  if (p.rowscale.data) {
    const float scale = inside ? kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype) : 0.0f;
    EACH(k) v[k] *= scale;
  }
  if (p.x1.data) {
    read_run(E, p.x1, r, m, inside, other);
    EACH(k) v[k] += other[k];
  }
  if (p.residual.data) {
    read_run(E, p.residual, r, m, inside, other);
    EACH(k) v[k] += other[k];
  }
  if (p.gate == KR_NORM_GATE_FIRST) {
    read_run(E, p.z, r, m, inside, other);
    EACH(k) v[k] *= kr_silu(other[k]);
  }
}

KR_DEV void write_normed(const int E, const kr_norm_plan &p, int64_t r, int64_t m, const float (&v)[8], float mean, float scale) {
  float w[8], b[8], y[8];
  if (p.residual_out.data) write_run(E, p.residual_out, r, m, v);
  read_or(E, p.weight, 0, m, 1, 1.0f, w);
  read_or(E, p.bias, 0, m, 1, 0.0f, b);
  EACH(k) y[k] = kr_fma((v[k] - mean) * scale, w[k], b[k]);
  if (p.gate == KR_NORM_GATE_LAST) {
    read_run(E, p.z, r, m, 1, w);
    EACH(k) y[k] *= kr_silu(w[k]);
  }
  write_run(E, p.out, r, m, y);
  if (!p.out1.data) return;
  read_or(E, p.weight1, 0, m, 1, 1.0f, w);
  read_or(E, p.bias1, 0, m, 1, 0.0f, b);
  EACH(k) y[k] = kr_fma((v[k] - mean) * scale, w[k], b[k]);
  write_run(E, p.out1, r, m, y);
}

KR_DEV void norm_in_registers(const kr_norm_plan &p, const int units) {
  KR_SHARED float shared[32];
  const int E = 8;
  const place at = here(p);
  const int64_t r = (int64_t)kr_block_x() * p.rows_per_block + at.sub, n = r < p.R ? p.n : 0;
  float v[KR_NORM_UNITS][8], mean = 0.0f, squares = 0.0f, unused = 0.0f;
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) {
      const int64_t m = (int64_t)(u * at.threads + at.thread) * E;
      read_summed(E, p, r, at.group + m, m < n, v[u]);
      EACH(k) mean += v[u][k];
    }
  if (p.rms) mean = 0.0f;
  else sum_rows(p, at, mean, unused, shared);
  mean *= p.inverse_n;
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units && (int64_t)(u * at.threads + at.thread) * E < n) EACH(k) squares = kr_fma(v[u][k] - mean, v[u][k] - mean, squares);
  sum_rows(p, at, squares, unused, shared);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) {
      const int64_t m = (int64_t)(u * at.threads + at.thread) * E;
      if (m < n) write_normed(E, p, r, at.group + m, v[u], mean, scale);
    }
}

KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 4) kr_norm_1(const kr_norm_plan p) { norm_in_registers(p, 1); }
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 2) kr_norm_2(const kr_norm_plan p) { norm_in_registers(p, 2); }

KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_any(const kr_norm_plan p) {
  KR_SHARED float shared[32];
  const int E = 1;
  const place at = here(p);
  const int64_t r = (int64_t)kr_block_x() * p.rows_per_block + at.sub, n = r < p.R ? p.n : 0;
  float v[8], mean = 0.0f, squares = 0.0f, unused = 0.0f;
  for (int64_t m = at.thread; m < n && !p.rms; m += at.threads) {
    read_summed(E, p, r, at.group + m, 1, v);
    mean += v[0];
  }
  sum_rows(p, at, mean, unused, shared);
  mean *= p.inverse_n;
  for (int64_t m = at.thread; m < n; m += at.threads) {
    read_summed(E, p, r, at.group + m, 1, v);
    squares = kr_fma(v[0] - mean, v[0] - mean, squares);
  }
  sum_rows(p, at, squares, unused, shared);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
  for (int64_t m = at.thread; m < n; m += at.threads) {
    read_summed(E, p, r, at.group + m, 1, v);
    write_normed(E, p, r, at.group + m, v, mean, scale);
  }
}
