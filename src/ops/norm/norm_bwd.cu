/* norm_bwd.cu: gradients of add + norm and of the gated norm (add_norm_ref.c and gated_norm_ref.c have the equations).
 *   kr_norm_bwd_1, kr_norm_bwd_2  the row lies in registers; a thread keeps the parameters' gradients of its own features over
 *                                 all rows that its part is dealt
 *   kr_norm_bwd_any               rows of any length and stride, and the second pair of parameters: those sums lie in memory
 *   kr_norm_sum                   adds the parts of each sum, in one order
 * Statistics are recomputed. Bound by memory: each tensor is read or written once (a gate's inputs again, from the cache). */
#include "norm.cuh"

KR_DEV void read_normed(const int E, const kr_norm_plan &p, int64_t r, int64_t m, int inside, float (&v)[8]) {
  float z[8];
  read_run(E, p.x, r, m, inside, v);
  if (p.gate != KR_NORM_GATE_FIRST) return;
  read_run(E, p.z, r, m, inside, z);
  EACH(k) v[k] *= kr_silu(z[k]);
}

/* The gradient at the norm's output. */
KR_DEV void read_gradient(const int E, const kr_norm_plan &p, int64_t r, int64_t m, int inside, float (&d)[8]) {
  float z[8];
  read_or(E, p.dout, r, m, inside, 0.0f, d);
  if (p.gate != KR_NORM_GATE_LAST) return;
  read_run(E, p.z, r, m, inside, z);
  EACH(k) d[k] *= kr_silu(z[k]);
}

/* dv: the gradient at what was normalised. */
KR_DEV void write_gradients(const int E, const kr_norm_plan &p, int64_t r, int64_t m, float (&dv)[8], const float (&xhat)[8], const float (&weight)[8]) {
  float a[8], b[8], z[8];
  if (p.gate != KR_NORM_NO_GATE) {
    read_run(E, p.z, r, m, 1, z);
    if (p.gate == KR_NORM_GATE_FIRST) {
      read_run(E, p.x, r, m, 1, a);
      EACH(k) a[k] = dv[k] * a[k] * gate_slope(z[k]), dv[k] *= kr_silu(z[k]);
    } else {
      read_or(E, p.dout, r, m, 1, 0.0f, a);
      read_or(E, p.bias, 0, m, 1, 0.0f, b);
      EACH(k) a[k] *= kr_fma(xhat[k], weight[k], b[k]) * gate_slope(z[k]);
    }
    if (p.dz.data) write_run(E, p.dz, r, m, a);
    if (p.dx.data) write_run(E, p.dx, r, m, dv);
    return;
  }
  if (p.dresidual_out.data) {
    read_run(E, p.dresidual_out, r, m, 1, a);
    EACH(k) dv[k] += a[k];
  }
  if (p.dx1.data) write_run(E, p.dx1, r, m, dv);
  if (p.dresidual.data) write_run(E, p.dresidual, r, m, dv);
  if (!p.dx.data) return;
  const float scale = p.rowscale.data ? kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype) : 1.0f;
  EACH(k) dv[k] *= scale;
  write_run(E, p.dx, r, m, dv);
}

KR_DEV int64_t first_feature(const place &at, int unit) { return (int64_t)(unit * at.threads + at.thread) * 8; }

/* Row r, n features (0: no row, the thread only takes part in sums), becomes xhat. Returns 1 / sqrt(var + eps). */
KR_DEV float normalise(const kr_norm_plan &p, const place &at, const int units, int64_t r, int64_t n, float (&v)[KR_NORM_UNITS][8], float *shared) {
  const int E = 8;
  float mean = 0.0f, squares = 0.0f, unused = 0.0f;
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) {
      read_normed(E, p, r, at.group + first_feature(at, u), first_feature(at, u) < n, v[u]);
      EACH(k) mean += v[u][k];
    }
  if (p.rms) mean = 0.0f;
  else sum_rows(p, at, mean, unused, shared);
  mean *= p.inverse_n;
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) EACH(k) {
        v[u][k] = first_feature(at, u) < n ? v[u][k] - mean : 0.0f;
        squares = kr_fma(v[u][k], v[u][k], squares);
      }
  sum_rows(p, at, squares, unused, shared);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) EACH(k) v[u][k] *= scale;
  return scale;
}

KR_DEV void back_in_registers(const kr_norm_plan &p, const int units) {
  KR_SHARED float shared[32];
  const int E = 8;
  const place at = here(p);
  const int64_t part = (int64_t)kr_block_x() * p.rows_per_block + at.sub;
  float weight[8], dweight[KR_NORM_UNITS][8], dbias[KR_NORM_UNITS][8];
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units) EACH(k) dweight[u][k] = dbias[u][k] = 0.0f;
  for (int64_t r0 = (int64_t)kr_block_x() * p.rows_per_block; r0 < p.R; r0 += p.n_parts) {
    const int64_t r = r0 + at.sub, n = r < p.R ? p.n : 0;
    float xhat[KR_NORM_UNITS][8], d[KR_NORM_UNITS][8], along = 0.0f, level = 0.0f;
    const float scale = normalise(p, at, units, r, n, xhat, shared);
#pragma unroll
    for (int u = 0; u < KR_NORM_UNITS; u++)
      if (u < units) {
        read_gradient(E, p, r, at.group + first_feature(at, u), first_feature(at, u) < n, d[u]);
        read_or(E, p.weight, 0, at.group + first_feature(at, u), first_feature(at, u) < n, 1.0f, weight);
        EACH(k) {
          dweight[u][k] = kr_fma(d[u][k], xhat[u][k], dweight[u][k]);
          dbias[u][k] += d[u][k];
          d[u][k] *= weight[k];
          along = kr_fma(d[u][k], xhat[u][k], along);
          level += d[u][k];
        }
      }
    sum_rows(p, at, along, level, shared);
    along *= p.inverse_n;
    level = p.rms ? 0.0f : level * p.inverse_n;
#pragma unroll
    for (int u = 0; u < KR_NORM_UNITS; u++)
      if (u < units && first_feature(at, u) < n) {
        EACH(k) d[u][k] = (d[u][k] - kr_fma(xhat[u][k], along, level)) * scale;
        if (p.gate == KR_NORM_GATE_LAST) read_or(E, p.weight, 0, at.group + first_feature(at, u), 1, 1.0f, weight);
        write_gradients(E, p, r, at.group + first_feature(at, u), d[u], xhat[u], weight);
      }
  }
  const kr_norm_view sums = {p.part, p.M, 1, KRAIT_F32, 1};
#pragma unroll
  for (int u = 0; u < KR_NORM_UNITS; u++)
    if (u < units && first_feature(at, u) < p.n) {
      write_run(E, sums, part * 2, at.group + first_feature(at, u), dweight[u]);
      write_run(E, sums, part * 2 + 1, at.group + first_feature(at, u), dbias[u]);
    }
}

KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 2) kr_norm_bwd_1(const kr_norm_plan p) { back_in_registers(p, 1); }
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_2(const kr_norm_plan p) { back_in_registers(p, 2); }

/* xhat of one feature; returns the sum of both outputs' gradients times their weights, and adds to the parameters' (sums not 0). */
KR_DEV float read_one(const kr_norm_plan &p, int64_t r, int64_t m, float mean, float scale, float (&xhat)[8], float *sums) {
  float d[8], weight[8], w = 0.0f;
  read_normed(1, p, r, m, 1, xhat);
  xhat[0] = (xhat[0] - mean) * scale;
  for (int pair = 0; pair < p.n_sums / 2; pair++) {
    if (pair) read_or(1, p.dout1, r, m, 1, 0.0f, d);
    else read_gradient(1, p, r, m, 1, d);
    read_or(1, pair ? p.weight1 : p.weight, 0, m, 1, 1.0f, weight);
    w = kr_fma(d[0], weight[0], w);
    if (!sums) continue;
    sums[2 * pair * p.M + m] += d[0] * xhat[0];
    sums[(2 * pair + 1) * p.M + m] += d[0];
  }
  return w;
}

KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_any(const kr_norm_plan p) {
  KR_SHARED float shared[32];
  const place at = here(p);
  float *sums = p.part + ((int64_t)kr_block_x() * p.rows_per_block + at.sub) * p.n_sums * p.M;
  for (int64_t m = at.thread; m < p.n; m += at.threads)
    for (int s = 0; s < p.n_sums; s++) sums[s * p.M + at.group + m] = 0.0f;
  for (int64_t r0 = (int64_t)kr_block_x() * p.rows_per_block; r0 < p.R; r0 += p.n_parts) {
    const int64_t r = r0 + at.sub, n = r < p.R ? p.n : 0;
    float v[8], w[8], weight[8], mean = 0.0f, squares = 0.0f, along = 0.0f, level = 0.0f, unused = 0.0f;
    for (int64_t m = at.thread; m < n && !p.rms; m += at.threads) {
      read_normed(1, p, r, at.group + m, 1, v);
      mean += v[0];
    }
    sum_rows(p, at, mean, unused, shared);
    mean *= p.inverse_n;
    for (int64_t m = at.thread; m < n; m += at.threads) {
      read_normed(1, p, r, at.group + m, 1, v);
      squares = kr_fma(v[0] - mean, v[0] - mean, squares);
    }
    sum_rows(p, at, squares, unused, shared);
    const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
    for (int64_t m = at.thread; m < n; m += at.threads) {
      const float d = read_one(p, r, at.group + m, mean, scale, v, sums);
      along = kr_fma(d, v[0], along), level += d;
    }
    sum_rows(p, at, along, level, shared);
    along *= p.inverse_n;
    level = p.rms ? 0.0f : level * p.inverse_n;
    for (int64_t m = at.thread; m < n; m += at.threads) {
      w[0] = (read_one(p, r, at.group + m, mean, scale, v, 0) - kr_fma(v[0], along, level)) * scale;
      read_or(1, p.weight, 0, at.group + m, 1, 1.0f, weight);
      write_gradients(1, p, r, at.group + m, w, v, weight);
    }
  }
}

/* 32 features a block, a slice of the parts a warp. */
KR_KERNEL void KR_BOUNDS(KR_NORM_SUM_THREADS, 4) kr_norm_sum(const kr_norm_plan p) {
  KR_SHARED float slices[KR_NORM_SUM_THREADS];
  const int lane = kr_thread() & 31, slice = kr_thread() >> 5, which = kr_block_y();
  const int64_t m = (int64_t)kr_block_x() * 32 + lane;
  const kr_norm_view &to = p.sums[which];
  float sum = 0.0f;
  for (int64_t part = slice; part < p.n_parts && m < p.M; part += KR_NORM_SUM_THREADS / 32) sum += p.part[(part * p.n_sums + which) * p.M + m];
  slices[kr_thread()] = sum;
  kr_sync();
  if (slice || m >= p.M || !to.data) return;
  for (int k = 1; k < KR_NORM_SUM_THREADS / 32; k++) sum += slices[k * 32 + lane];
  kr_store(to.data, m * to.col, to.dtype, sum);
}
