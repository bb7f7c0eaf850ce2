/* gated_delta_rule.cu: the recurrence, with the state in registers: a column in four lanes, row i in lane i % 4. Lanes
 * of a column share their sums; nothing is exchanged otherwise. */
#include "kernel.cuh"

#include "gated_delta_gates.cuh"

/* The sum of a column's four lanes, in each. */
KR_DEV float sum_of_four(float v) {
  v += kr_shuffle_xor(v, 1);
  return v + kr_shuffle_xor(v, 2);
}

/* This lane's part of a row of n times scale, as given or of length one. */
template <int N>
KR_DEV void read_row(const kr_gated_delta_rule_args &a, const kr_view &v, int64_t at, int n, float scale,
                     float (&to)[N]) {
  float sum = 0.0f;
#pragma unroll
  for (int m = 0; m < N; m++) {
    const int i = (kr_thread() & 3) + 4 * m;
    to[m] = i < n ? kr_load(v.data, at + i * v.stride[3], v.dtype) : 0.0f;
    sum = kr_fma(to[m], to[m], sum);
  }
  const float length = kr_rsqrt(sum_of_four(sum) + a.eps),
              by = a.call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? scale : scale * length;
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

/* The state before a token, and what it has for the key: the sum over the column. */
template <int N>
KR_DEV float decay_column(const kr_gated_delta_rule_args &a, int64_t at, float decay, const float (&k)[N],
                          float (&s)[N]) {
  float had = 0.0f;
#pragma unroll
  for (int m = 0; m < N; m++) {
    const int i = (kr_thread() & 3) + 4 * m;
    const float by = a.key_decay.data && i < a.Dk
                         ? kr_exp(kr_load(a.key_decay.data, at + i * a.key_decay.stride[3], a.key_decay.dtype))
                         : 1.0f;
    s[m] *= by * decay;
    had = kr_fma(k[m], s[m], had);
  }
  return sum_of_four(had);
}

template <int N>
KR_DEV void run_column(const kr_delta_params &p) {
  const kr_gated_delta_rule_args &a = p.a;
  const int block = kr_block_x(), part = block % p.parts, h = block / p.parts % (int)a.H, head = h / (int)(a.H / a.Hk),
            j = part * KR_DELTA_COLUMNS + kr_thread() / 4, n = (int)a.Dk, is_there = j < a.Dv;
  const int64_t b = block / p.parts / (int)a.H, jj = is_there ? j : 0; /* lanes beyond the end share in sums */
  const int64_t row = p.rows.data ? ((const int32_t *)p.rows.data)[b * p.rows.stride[0]] : b;
  const float of_q = kr_rsqrt((float)n);
  float s[N], k[N], q[N];
#pragma unroll
  for (int m = 0; m < N; m++) s[m] = 0.0f;
  if (p.before.data && row >= 0)
    move_column(p.before, row * p.before.stride[0] + h * p.before.stride[1] + jj * p.before.stride[3], n, s, 0);
  for (int64_t t = 0; t < a.L; t++) {
    float out = 0.0f;
    read_row(a, a.k, b * a.k.stride[0] + t * a.k.stride[1] + head * a.k.stride[2], n, 1.0f, k);
    read_row(a, a.q, b * a.q.stride[0] + t * a.q.stride[1] + head * a.q.stride[2], n, of_q, q);
    const float decay = decay_of(a, h, at_token(a.a, b, t, h)), beta = beta_of(a, at_token(a.b, b, t, h)),
                v = kr_load(a.v.data, b * a.v.stride[0] + t * a.v.stride[1] + h * a.v.stride[2] + jj * a.v.stride[3],
                            a.v.dtype);
    const int64_t keys = b * a.key_decay.stride[0] + t * a.key_decay.stride[1] + h * a.key_decay.stride[2];
    const float change = beta * (v - decay_column(a, keys, decay, k, s));
#pragma unroll
    for (int m = 0; m < N; m++) {
      s[m] = kr_fma(k[m], change, s[m]);
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
