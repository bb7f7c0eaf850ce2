/* norm.cu: add + norm and the gated norm (equations in add_norm_ref.c and gated_norm_ref.c).
 *   kr_norm_1, kr_norm_2          the row in registers, 8 or 16 features per thread: one pass over each tensor
 *   kr_norm_single_8, _16         the same feature by feature, for rows of any alignment
 *   kr_norm_mixed_1, _2, _single  the same with row tensors in both float32 and the 16-bit type
 *   kr_norm_stream                a 16-bit row added to a float32 residual stream: runs of four features, which a warp
 *                                 accesses side by side in both types
 *   kr_norm_any                   rows of any length and mixed 16-bit types: inputs are read three times, twice from
 *                                 cache
 * Several short rows share a block. Memory-bound. */
#include "overlap.cuh"
#include "norm.cuh"

KR_DEV void add_run(const form f, const kr_norm_view &v, const raw_run &raw, float (&sum)[8]) {
  float other[8];
  convert_run(f, v, raw, other);
  EACH(k) sum[k] += other[k];
}

KR_DEV void multiply_gate(const form f, const kr_norm_view &v, const raw_run &raw, float (&x)[8]) {
  float z[8];
  convert_run(f, v, raw, z);
  EACH(k) x[k] *= kr_silu(z[k]);
}

KR_DEV raw_run weight_run(const form f, const kr_norm_view &weight, const place &at, int u, int n) {
  const int first = first_feature(at, f, u);
  return load_run(of_parameters(f), weight, 0, at.group + first, first < n);
}

KR_DEV void scale_run(const form f, const kr_norm_view &weight, const raw_run &raw_w, const kr_norm_view &bias,
                      int64_t m, float scale, const float (&v)[8], float (&y)[8]) {
  const form g = of_parameters(f);
  const raw_run raw_b = load_run(g, bias, 0, m, 1);
  float w[8], b[8];
  convert_or(g, weight, raw_w, 1.0f, w);
  convert_or(g, bias, raw_b, 0.0f, b);
  EACH(k) y[k] = kr_fma(v[k] * scale, w[k], b[k]);
}

/* A row of up to 128 features in runs of eight takes half a warp. */
KR_DEV place place_here(const kr_norm_params &p) {
  place at = here(p);
  if (p.row_shift == 4) at.threads = 16, at.thread = kr_thread() & 15;
  return at;
}
KR_DEV float sum_of_row(const kr_norm_params &p, const place &at, float v, float *shared) {
  if (p.row_shift != 4) return sum_row(p, at, v, shared);
  for (int d = 8; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

KR_DEV void norm_in_registers(const kr_norm_params &p, const form f) {
  KR_SHARED float shared[4 * MOST_WARPS];
  const place at = place_here(p);
  const int64_t r = (int64_t)kr_block_x() * p.rows_per_block + at.sub;
  const int n = r < p.R ? (int)p.n : 0;
  raw_run raw[KR_NORM_SINGLES], second[KR_NORM_SINGLES];
  raw_run weight[KR_NORM_SINGLES];
  const int ahead = KR_AHEAD && f.E == 8 && (f.units == 1 || f.mixed); /* where registers for the weights suffice */
  kr_launch_dependents();
  if (ahead) EACH_UNIT(u) weight[u] = weight_run(f, p.weight, at, u, n);
  kr_keep_near(p.x.data), kr_keep_near(p.second.data), kr_keep_near(p.out.data), kr_keep_near(p.residual_out.data),
      kr_keep_near(p.x1.data), kr_keep_near(p.out1.data), kr_keep_near(p.rowscale.data), kr_keep_near(p.eps);
  kr_griddep_wait();
  float v[KR_NORM_SINGLES][8], mean = 0.0f, squares = 0.0f;
  EACH_UNIT(u) {
    raw[u] = load_run(f, p.x, r, at.group + first_feature(at, f, u), first_feature(at, f, u) < n);
    second[u] = load_run(f, p.second, r, at.group + first_feature(at, f, u), first_feature(at, f, u) < n);
  }
  EACH_UNIT(u) convert_run(f, p.x, raw[u], v[u]);
  if (p.rowscale.data && n) {
    const float scale = kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype);
    EACH_UNIT(u) EACH(k) v[u][k] *= scale;
  }
  if (p.x1.data) {
    EACH_UNIT(u) raw[u] = load_run(f, p.x1, r, at.group + first_feature(at, f, u), first_feature(at, f, u) < n);
    EACH_UNIT(u) add_run(f, p.x1, raw[u], v[u]);
  }
  if (p.gate == KR_NORM_GATE_FIRST) EACH_UNIT(u) multiply_gate(f, p.second, second[u], v[u]);
  if (p.gate == KR_NORM_NO_GATE && p.second.data) EACH_UNIT(u) add_run(f, p.second, second[u], v[u]);
  EACH_UNIT(u) EACH(k) mean += v[u][k];
  mean = p.rms ? 0.0f : sum_of_row(p, at, mean, shared) * p.inverse_n;
  EACH_UNIT(u) {
    if (p.residual_out.data && first_feature(at, f, u) < n)
      write_run(f, p.residual_out, r, at.group + first_feature(at, f, u), v[u]);
    float own = 0.0f;
    EACH(k) {
      v[u][k] -= mean;
      own = kr_fma(v[u][k], v[u][k], own);
    }
    squares += first_feature(at, f, u) < n ? own : 0.0f;
  }
  squares = sum_of_row(p, at, squares, shared + MOST_WARPS);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
  EACH_UNIT(u) {
    const int64_t m = at.group + first_feature(at, f, u);
    float y[8];
    if (first_feature(at, f, u) >= n) continue;
    if (!ahead) weight[u] = weight_run(f, p.weight, at, u, n);
    scale_run(f, p.weight, weight[u], p.bias, m, scale, v[u], y);
    if (p.gate == KR_NORM_GATE_LAST) multiply_gate(f, p.second, second[u], y);
    write_run(f, p.out, r, m, y);
    if (!p.out1.data) continue;
    scale_run(f, p.weight1, weight_run(f, p.weight1, at, u, n), p.bias1, m, scale, v[u], y);
    write_run(f, p.out1, r, m, y);
  }
}

KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 4) kr_norm_1(const kr_norm_params p) {
  norm_in_registers(p, form{8, 1, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, KR_DTYPE == 0 ? 1 : 2) kr_norm_2(const kr_norm_params p) {
  norm_in_registers(p, form{8, 2, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 4) kr_norm_mixed_1(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) norm_in_registers(p, form{8, 1, 1, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_mixed_2(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) norm_in_registers(p, form{8, 2, 1, 0, 0});
}
#if KR_TIER < 90 /* aligned rows start ahead */
KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 5) kr_norm_single_8(const kr_norm_params p) {
  norm_in_registers(p, form{1, KR_NORM_FEW_SINGLES, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_single_16(const kr_norm_params p) {
  norm_in_registers(p, form{1, KR_NORM_SINGLES, 0, 0, 0});
}
KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 2) kr_norm_mixed_single(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) norm_in_registers(p, form{1, KR_NORM_FEW_SINGLES, 1, 0, 0});
}
#endif

#if KR_TIER >= 80 || defined(KR_EMULATE)
/* Four features of a row in KR_DTYPE. */
typedef struct __attribute__((aligned(8))) four {
  uint32_t w[2];
} four;

KR_DEV float of_four(const four &q, int k) { return kr_unpack(q.w[k / 2], k % 2, KR_DTYPE); }

/* The address of this thread's first feature; runs are `step` features apart. */
KR_DEV char *first_four(const kr_norm_view &v, int r, int m, int bytes) {
  char *at = (char *)v.data + ((int64_t)r * v.row + m) * bytes;
  kr_one_pointer(at);
  return at;
}

KR_DEV void next_four(char *&at, int bytes) {
  at += bytes;
  kr_one_pointer(at);
}

/* A row per block. Few registers: eight rows of 2560 features fit a multiprocessor, so that 1024 are one wave. */
KR_DEV void norm_stream(const kr_norm_params &p) {
  KR_SHARED float shared[MOST_WARPS];
  const place at = here(p);
  const int r = kr_block_x(), m = at.thread * 4, step = at.threads * 4, left = (int)p.n - m;
  four weight[KR_NORM_FOURS], x[KR_NORM_FOURS];
  kr_float4 sum[KR_NORM_FOURS];
  float squares = 0.0f;
  char *from = first_four(p.weight, 0, m, 2);
  kr_launch_dependents();
#pragma unroll
  for (int u = 0; u < KR_NORM_FOURS; u++, next_four(from, step * 2))
    if (u * step < left) weight[u] = *(const four *)from;
  kr_keep_near(p.x.data), kr_keep_near(p.second.data), kr_keep_near(p.out.data), kr_keep_near(p.residual_out.data),
      kr_keep_near(p.eps);
  from = first_four(p.x, r, m, 2);
  char *at_sum = first_four(p.second, r, m, 4);
  kr_griddep_wait();
#pragma unroll
  for (int u = 0; u < KR_NORM_FOURS; u++, next_four(from, step * 2)) {
    x[u] = four{{0, 0}};
    if (u * step < left) x[u] = *(const four *)from;
  }
#pragma unroll
  for (int u = 0; u < KR_NORM_FOURS; u++, next_four(at_sum, step * 4)) {
    sum[u] = kr_float4{{0, 0, 0, 0}};
    if (u * step < left && p.second.data) sum[u] = *(const kr_float4 *)at_sum;
  }
  at_sum = first_four(p.residual_out, r, m, 4);
#pragma unroll
  for (int u = 0; u < KR_NORM_FOURS; u++, next_four(at_sum, step * 4)) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      sum[u].v[k] += of_four(x[u], k);
      squares = kr_fma(sum[u].v[k], sum[u].v[k], squares);
    }
    if (u * step < left && p.residual_out.data) *(kr_float4 *)at_sum = sum[u];
  }
  const float scale = kr_rsqrt(kr_fma(sum_row(p, at, squares, shared), p.inverse_n, p.eps));
  from = first_four(p.out, r, m, 2);
#pragma unroll
  for (int u = 0; u < KR_NORM_FOURS; u++, next_four(from, step * 2)) {
    float y[4];
#pragma unroll
    for (int k = 0; k < 4; k++) y[k] = sum[u].v[k] * scale * of_four(weight[u], k);
    if (u * step < left) *(four *)from = four{{kr_pack(y[0], y[1], KR_DTYPE), kr_pack(y[2], y[3], KR_DTYPE)}};
  }
}
KR_KERNEL void KR_BOUNDS(KR_NORM_SMALL_THREADS, 5) kr_norm_stream(const kr_norm_params p) {
  if (KR_DTYPE != KRAIT_F32) norm_stream(p);
}
#endif

#if KR_TIER < 90
/* The value to be normalised. */
KR_DEV float summed_at(const kr_norm_params &p, int64_t r, int64_t m) {
  float v = get(p.x, r, m, 0.0f);
  if (p.rowscale.data) v *= kr_load(p.rowscale.data, r * p.rowscale.row, p.rowscale.dtype);
  v += get(p.x1, r, m, 0.0f);
  if (p.gate == KR_NORM_GATE_FIRST) return v * kr_silu(get(p.second, r, m, 0.0f));
  return p.gate == KR_NORM_NO_GATE ? v + get(p.second, r, m, 0.0f) : v;
}

KR_KERNEL void KR_BOUNDS(KR_NORM_THREADS, 1) kr_norm_any(const kr_norm_params p) {
  KR_SHARED float shared[4 * MOST_WARPS];
  const place at = here(p);
  const int64_t r = (int64_t)kr_block_x() * p.rows_per_block + at.sub, n = r < p.R ? p.n : 0;
  float mean = 0.0f, squares = 0.0f;
  kr_launch_dependents(), kr_griddep_wait();
  for (int64_t m = at.thread; m < n && !p.rms; m += at.threads) mean += summed_at(p, r, at.group + m);
  mean = p.rms ? 0.0f : sum_row(p, at, mean, shared) * p.inverse_n;
  for (int64_t m = at.thread; m < n; m += at.threads) {
    const float v = summed_at(p, r, at.group + m) - mean;
    squares = kr_fma(v, v, squares);
  }
  squares = sum_row(p, at, squares, shared + MOST_WARPS);
  const float scale = kr_rsqrt(kr_fma(squares, p.inverse_n, p.eps));
  for (int64_t i = at.thread; i < n; i += at.threads) {
    const int64_t m = at.group + i;
    const float v = summed_at(p, r, m), xhat = (v - mean) * scale,
                y = kr_fma(xhat, get(p.weight, 0, m, 1.0f), get(p.bias, 0, m, 0.0f));
    put(p.residual_out, r, m, v);
    put(p.out, r, m, p.gate == KR_NORM_GATE_LAST ? y * kr_silu(get(p.second, r, m, 0.0f)) : y);
    put(p.out1, r, m, kr_fma(xhat, get(p.weight1, 0, m, 1.0f), get(p.bias1, 0, m, 0.0f)));
  }
}
#endif
