/* gated_delta_rule.cu: the recurrence, with the state in registers: a column in four lanes, row i in lane i % 4. Lanes
 * of a column share their sums; nothing is exchanged otherwise. */
#include "kernel.cuh"

#include "gated_delta_rule_params.h"

/* The sum of a column's four lanes, in each. */
KR_DEV float sum_of_four(float v) {
  v += kr_shuffle_xor(v, 1);
  return v + kr_shuffle_xor(v, 2);
}

/* This lane's part of a row of n, by one over the row's length, times scale. */
template <int N>
KR_DEV void read_unit(const kr_view &v, int64_t at, int n, float eps, float scale, float (&to)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int m = 0; m < N; m++) {
    const int i = (kr_thread() & 3) + 4 * m;
    to[m] = i < n ? kr_load(v.data, at + i * v.stride[3], v.dtype) : 0.0f;
    sum = kr_fma(to[m], to[m], sum);
  }
  const float by = scale * kr_rsqrt(sum_of_four(sum) + eps);
#pragma unroll
  for (int m = 0; m < N; m++) to[m] *= by;
}

template <int N>
KR_DEV void move_column(const kr_view &v, int64_t at, int n, float (&s)[N], int is_out) {
#pragma unroll
  for (int m = 0; m < N; m++) {
    const int i = (kr_thread() & 3) + 4 * m;
    if (i >= n) continue;
    float *place = (float *)v.data + at + i * v.stride[2];
    if (is_out)
      *place = s[m];
    else
      s[m] = *place;
  }
}

template <int N>
KR_DEV void run_column(const kr_delta_params &p) {
  const kr_gated_delta_rule_args &a = p.a;
  const int block = kr_block_x(), part = block % p.parts, h = block / p.parts % (int)a.H, head = h / (int)(a.H / a.Hk),
            j = part * KR_DELTA_COLUMNS + kr_thread() / 4, n = (int)a.Dk, is_there = j < a.Dv;
  const int64_t b = block / p.parts / (int)a.H, jj = is_there ? j : 0; /* lanes beyond the end share in sums */
  const int64_t row = p.rows.data ? ((const int32_t *)p.rows.data)[b * p.rows.stride[0]] : b;
  const float A = ((const float *)a.A.data)[h * a.A.stride[0]],
              bias = ((const float *)a.dt_bias.data)[h * a.dt_bias.stride[0]], of_q = kr_rsqrt((float)n);
  float s[N], k[N], q[N];
#pragma unroll
  for (int m = 0; m < N; m++) s[m] = 0.0f;
  if (p.before.data && row >= 0)
    move_column(p.before, row * p.before.stride[0] + h * p.before.stride[1] + jj * p.before.stride[3], n, s, 0);
  for (int64_t t = 0; t < a.L; t++) {
    float had = 0.0f, out = 0.0f;
    read_unit(a.k, b * a.k.stride[0] + t * a.k.stride[1] + head * a.k.stride[2], n, a.eps, 1.0f, k);
    read_unit(a.q, b * a.q.stride[0] + t * a.q.stride[1] + head * a.q.stride[2], n, a.eps, of_q, q);
    const float dt = kr_load(a.a.data, b * a.a.stride[0] + t * a.a.stride[1] + h * a.a.stride[2], a.a.dtype) + bias,
                decay = kr_exp(A * kr_softplus(dt)),
                beta =
                    a.beta_scale *
                    kr_sigmoid(kr_load(a.b.data, b * a.b.stride[0] + t * a.b.stride[1] + h * a.b.stride[2], a.b.dtype)),
                v = kr_load(a.v.data, b * a.v.stride[0] + t * a.v.stride[1] + h * a.v.stride[2] + jj * a.v.stride[3],
                            a.v.dtype);
#pragma unroll
    for (int m = 0; m < N; m++) had = kr_fma(k[m], s[m], had);
    const float change = beta * (v - decay * sum_of_four(had));
#pragma unroll
    for (int m = 0; m < N; m++) {
      s[m] = kr_fma(k[m], change, decay * s[m]);
      out = kr_fma(q[m], s[m], out);
    }
    out = row >= 0 ? sum_of_four(out) : 0.0f;
    if (is_there && (kr_thread() & 3) == 0)
      kr_store(a.out.data, b * a.out.stride[0] + t * a.out.stride[1] + h * a.out.stride[2] + j * a.out.stride[3],
               a.out.dtype, out);
  }
  if (p.after.data && row >= 0 && is_there)
    move_column(p.after, row * p.after.stride[0] + h * p.after.stride[1] + j * p.after.stride[3], n, s, 1);
}

KR_KERNEL void KR_BOUNDS(KR_DELTA_THREADS, 3) kr_gated_delta_columns_128(const kr_delta_params p) { run_column<32>(p); }
KR_KERNEL void KR_BOUNDS(KR_DELTA_THREADS, 1) kr_gated_delta_columns_256(const kr_delta_params p) { run_column<64>(p); }
