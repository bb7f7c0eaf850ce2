/* norm_bwd.cu: gradients of add + norm and of the gated norm (equations in add_norm_ref.c and gated_norm_ref.c).
 *   kr_norm_bwd_1              the row in registers, 8 features per thread, the next row prefetched; a thread
 *                              accumulates its features' parameter gradients over all rows of its part
 *   kr_norm_bwd_2              the same, 16 features per thread, without prefetch
 *   kr_norm_bwd_single_8, _16  both feature by feature, for rows of any alignment
 *   kr_norm_bwd_mixed_1, _2, _single  the same with row tensors in both float32 and the 16-bit type
 *   kr_norm_bwd_any            rows of any length, mixed 16-bit types, and the second pair of parameters: sums are
 *                              accumulated in memory
 *   kr_norm_sum                reduces the partial sums in fixed order
 * Statistics are recomputed. Memory-bound: each tensor is read or written once (a gate's inputs often again, from
 * cache). */
#include "norm.cuh"

/* A thread's operands of one row. second: the gate, or the gradient of residual_out. */
typedef struct row_part {
  raw_run x[KR_NORM_SINGLES], dout[KR_NORM_SINGLES], second[KR_NORM_SINGLES];
} row_part;

KR_DEV void load_part(const kr_norm_params &p, const place &at, const form f, int64_t r, row_part &part,
                      int with_second) {
  EACH_UNIT(u) {
    const int m = first_feature(at, f, u);
    const int inside = r < p.R && m < p.n;
    part.x[u] = load_run(f, p.x, r, at.group + m, inside);
    part.dout[u] = load_run(f, p.dout, r, at.group + m, inside);
    if (with_second) part.second[u] = load_run(f, p.second, r, at.group + m, inside);
  }
}

/* Normalises row r of n features to xhat (0: no row, the thread only joins in sums). Returns 1 / sqrt(var + eps). */
KR_DEV float normalise(const kr_norm_params &p, const place &at, const form f, int n, float (&v)[KR_NORM_SINGLES][8],
                       float *shared) {
  float mean = 0.0f, squares = 0.0f;
  EACH_UNIT(u) EACH(k) mean += v[u][k];
  mean = p.rms ? 0.0f : sum_row(p, at, mean, shared) * p.inverse_n;
  EACH_UNIT(u) {
    const float level = first_feature(at, f, u) < n ? mean : 0.0f; /* out-of-range features are 0 */
    EACH(k) {
      v[u][k] -= level;
      squares = kr_fma(v[u][k], v[u][k], squares);
    }
  }
  squares = sum_row(p, at, squares, shared + MOST_WARPS);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
  EACH_UNIT(u) EACH(k) v[u][k] *= scale;
  return scale;
}

/* Writes one run's gradients; dv: the gradient of the norm's input. */
KR_DEV void write_gradients(const kr_norm_params &p, const form f, int64_t r, int64_t m, const raw_run &raw_x,
                            const raw_run &raw_dout, const raw_run &raw_second, float (&dv)[8], const float (&xhat)[8],
                            const float (&weight)[8]) {
  float a[8], b[8], second[8];
  convert_or(f, p.second, raw_second, 0.0f, second);
  if (p.gate == KR_NORM_NO_GATE) {
    EACH(k) dv[k] += second[k];
    if (p.dx1.data) write_run(f, p.dx1, r, m, dv);
    if (p.dresidual.data) write_run(f, p.dresidual, r, m, dv);
    if (!p.dx.data) return;
    const float scale = p.rowscale.data ? kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype) : 1.0f;
    EACH(k) dv[k] *= scale;
    write_run(f, p.dx, r, m, dv);
    return;
  }
  if (p.gate == KR_NORM_GATE_FIRST) {
    convert_run(f, p.x, raw_x, a);
    EACH(k) a[k] = dv[k] * a[k] * gate_slope(second[k]), dv[k] *= kr_silu(second[k]);
  } else {
    convert_or(f, p.dout, raw_dout, 0.0f, a);
    read_parameter(f, p.bias, m, 1, 0.0f, b);
    EACH(k) a[k] *= kr_fma(xhat[k], weight[k], b[k]) * gate_slope(second[k]);
  }
  if (p.dz.data) write_run(f, p.dz, r, m, a);
  if (p.dx.data) write_run(f, p.dx, r, m, dv);
}

KR_DEV void back_in_registers(const kr_norm_params &p, const form f) {
  KR_SHARED float shared[4 * MOST_WARPS];
  const place at = here(p);
  const int64_t part = (int64_t)kr_block_x() * p.rows_per_block + at.sub;
  float weight[KR_NORM_SINGLES][8], dweight[KR_NORM_SINGLES][8], dbias[KR_NORM_SINGLES][8], other[8];
  row_part now, next;
  load_part(p, at, f, part, next, f.ahead != 2);
  EACH_UNIT(u) {
    EACH(k) dweight[u][k] = dbias[u][k] = 0.0f;
    if (f.keep)
      read_parameter(f, p.weight, at.group + first_feature(at, f, u), first_feature(at, f, u) < p.n, 1.0f, weight[u]);
  }
  for (int64_t r0 = part - at.sub; r0 < p.R; r0 += p.n_parts) {
    const int64_t r = r0 + at.sub;
    const int n = r < p.R ? (int)p.n : 0;
    float xhat[KR_NORM_SINGLES][8], d[KR_NORM_SINGLES][8], along = 0.0f, level = 0.0f;
    now = next;
    if (f.ahead) load_part(p, at, f, r + p.n_parts, next, f.ahead != 2);
    EACH_UNIT(u) {
      convert_run(f, p.x, now.x[u], xhat[u]);
      convert_or(f, p.dout, now.dout[u], 0.0f, d[u]);
      if (p.gate == KR_NORM_NO_GATE) continue;
      if (f.ahead == 2)
        now.second[u] = load_run(f, p.second, r, at.group + first_feature(at, f, u), first_feature(at, f, u) < n);
      convert_run(f, p.second, now.second[u], other);
      if (p.gate == KR_NORM_GATE_FIRST) EACH(k) xhat[u][k] *= kr_silu(other[k]);
      else EACH(k) d[u][k] *= kr_silu(other[k]);
    }
    const float scale = normalise(p, at, f, n, xhat, shared);
    EACH_UNIT(u) {
      if (!f.keep)
        read_parameter(f, p.weight, at.group + first_feature(at, f, u), first_feature(at, f, u) < n, 1.0f, weight[u]);
      EACH(k) {
        dweight[u][k] = kr_fma(d[u][k], xhat[u][k], dweight[u][k]);
        dbias[u][k] += d[u][k];
        d[u][k] *= weight[u][k];
        along = kr_fma(d[u][k], xhat[u][k], along);
        level += d[u][k];
      }
    }
    sum_row_pair(p, at, along, level, shared + 2 * MOST_WARPS);
    along *= p.inverse_n;
    level = p.rms ? 0.0f : level * p.inverse_n;
    EACH_UNIT(u) {
      const int64_t m = at.group + first_feature(at, f, u);
      if (first_feature(at, f, u) >= n) continue;
      EACH(k) d[u][k] = (d[u][k] - kr_fma(xhat[u][k], along, level)) * scale;
      if (!f.keep)
        now.x[u] = load_run(f, p.x, r, m, p.gate == KR_NORM_GATE_FIRST),
        now.dout[u] = load_run(f, p.dout, r, m, p.gate == KR_NORM_GATE_LAST);
      if (f.ahead != 1) now.second[u] = load_run(f, p.second, r, m, 1);
      if (!f.keep && p.gate == KR_NORM_GATE_LAST) read_parameter(f, p.weight, m, 1, 1.0f, weight[u]);
      write_gradients(p, f, r, m, now.x[u], now.dout[u], now.second[u], d[u], xhat[u], weight[u]);
    }
    if (!f.ahead) load_part(p, at, f, r + p.n_parts, next, 1);
  }
  const kr_norm_view sums = {p.part, p.M, 1, KRAIT_F32, 1};
  EACH_UNIT(u)
    if (first_feature(at, f, u) < p.n) {
      write_run(of_parameters(f), sums, part * 2, at.group + first_feature(at, f, u), dweight[u]);
      write_run(of_parameters(f), sums, part * 2 + 1, at.group + first_feature(at, f, u), dbias[u]);
    }
}

KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_1(const kr_norm_params p) {
  back_in_registers(p, form{8, 1, 0, KR_DTYPE == KRAIT_F32 ? 2 : 1, 1});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_2(const kr_norm_params p) {
  back_in_registers(p, form{8, 2, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_mixed_1(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) back_in_registers(p, form{8, 1, 1, 1, 1});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_mixed_2(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) back_in_registers(p, form{8, 2, 1, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_single_8(const kr_norm_params p) {
  back_in_registers(p, form{1, KR_NORM_FEW_SINGLES, 0, 2, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_single_16(const kr_norm_params p) {
  back_in_registers(p, form{1, KR_NORM_SINGLES, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_mixed_single(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) back_in_registers(p, form{1, KR_NORM_FEW_SINGLES, 1, 2, 0});
}

/* ---- rows of any length ------------------------------------------------------------------------------------------ */

KR_DEV float normed_at(const kr_norm_params &p, int64_t r, int64_t m) {
  const float x = get(p.x, r, m, 0.0f);
  return p.gate == KR_NORM_GATE_FIRST ? x * kr_silu(get(p.second, r, m, 0.0f)) : x;
}

/* The gradient of the norm's output. */
KR_DEV float gradient_at(const kr_norm_params &p, int64_t r, int64_t m) {
  const float d = get(p.dout, r, m, 0.0f);
  return p.gate == KR_NORM_GATE_LAST ? d * kr_silu(get(p.second, r, m, 0.0f)) : d;
}

/* Sum of both outputs' gradients times their weights; accumulates parameter gradients (unless sums is 0). */
KR_DEV float weighted_at(const kr_norm_params &p, int64_t r, int64_t m, float xhat, float *sums) {
  float w = 0.0f;
  for (int pair = 0; pair < p.n_sums / 2; pair++) {
    const float d = pair ? get(p.dout1, r, m, 0.0f) : gradient_at(p, r, m);
    w = kr_fma(d, get(pair ? p.weight1 : p.weight, 0, m, 1.0f), w);
    if (!sums) continue;
    sums[2 * pair * p.M + m] += d * xhat;
    sums[(2 * pair + 1) * p.M + m] += d;
  }
  return w;
}

KR_DEV void put_gradients(const kr_norm_params &p, int64_t r, int64_t m, float dv, float xhat) {
  const float second = get(p.second, r, m, 0.0f);
  if (p.gate == KR_NORM_NO_GATE) {
    put(p.dx1, r, m, dv + second);
    put(p.dresidual, r, m, dv + second);
    put(p.dx, r, m,
        (dv + second) * (p.rowscale.data ? kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype) : 1.0f));
    return;
  }
  const float level = p.gate == KR_NORM_GATE_FIRST
                          ? dv * get(p.x, r, m, 0.0f)
                          : get(p.dout, r, m, 0.0f) * kr_fma(xhat, get(p.weight, 0, m, 1.0f), get(p.bias, 0, m, 0.0f));
  put(p.dz, r, m, level * gate_slope(second));
  put(p.dx, r, m, p.gate == KR_NORM_GATE_FIRST ? dv * kr_silu(second) : dv);
}

KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_bwd_any(const kr_norm_params p) {
  KR_SHARED float shared[4 * MOST_WARPS];
  const place at = here(p);
  float *sums = p.part + ((int64_t)kr_block_x() * p.rows_per_block + at.sub) * p.n_sums * p.M;
  for (int64_t m = at.thread; m < p.n; m += at.threads)
    for (int s = 0; s < p.n_sums; s++) sums[s * p.M + at.group + m] = 0.0f;
  for (int64_t r0 = (int64_t)kr_block_x() * p.rows_per_block; r0 < p.R; r0 += p.n_parts) {
    const int64_t r = r0 + at.sub, end = at.group + (r < p.R ? p.n : 0), begin = at.group + at.thread;
    float mean = 0.0f, squares = 0.0f, along = 0.0f, level = 0.0f;
    for (int64_t m = begin; m < end && !p.rms; m += at.threads) mean += normed_at(p, r, m);
    mean = p.rms ? 0.0f : sum_row(p, at, mean, shared) * p.inverse_n;
    for (int64_t m = begin; m < end; m += at.threads) {
      const float v = normed_at(p, r, m) - mean;
      squares = kr_fma(v, v, squares);
    }
    squares = sum_row(p, at, squares, shared + MOST_WARPS);
    const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
    for (int64_t m = begin; m < end; m += at.threads) {
      const float xhat = (normed_at(p, r, m) - mean) * scale, d = weighted_at(p, r, m, xhat, sums);
      along = kr_fma(d, xhat, along), level += d;
    }
    sum_row_pair(p, at, along, level, shared + 2 * MOST_WARPS);
    along *= p.inverse_n;
    level = p.rms ? 0.0f : level * p.inverse_n;
    for (int64_t m = begin; m < end; m += at.threads) {
      const float xhat = (normed_at(p, r, m) - mean) * scale;
      put_gradients(p, r, m, (weighted_at(p, r, m, xhat, 0) - kr_fma(xhat, along, level)) * scale, xhat);
    }
  }
}

/* 32 features per block, a slice of the parts per warp. */
KR_KERNEL void KR_BOUNDS(KR_NORM_SUM_THREADS, 1) kr_norm_sum(const kr_norm_params p) {
  KR_SHARED float slices[KR_NORM_SUM_THREADS];
  const int lane = kr_thread() & 31, slice = kr_thread() >> 5, which = kr_block_y();
  const int64_t m = (int64_t)kr_block_x() * 32 + lane;
  const kr_norm_view &to = p.sums[which];
  float sum = 0.0f;
  if (!to.data) return;
#pragma unroll 8
  for (int64_t part = slice; part < p.n_parts && m < p.M; part += KR_NORM_SUM_THREADS / 32)
    sum += p.part[(part * p.n_sums + which) * p.M + m];
  slices[kr_thread()] = sum;
  kr_sync();
  if (slice || m >= p.M) return;
  for (int k = 1; k < KR_NORM_SUM_THREADS / 32; k++) sum += slices[k * 32 + lane];
  kr_store(to.data, m * to.col, to.dtype, sum);
}
