/* gated_delta_step.cu: one token. A block has KR_DELTA_STEP_COLUMNS columns of a head's state, a thread four neighbours
 * of every GROUPS-th row, which are on their way before the previous kernel has ended. The sums over a column of k and
 * of q are those of the state before the token: q^T state' = decay q^T state + (q^T k) change. */
#include "row_lanes.cuh"

#include "gated_delta_gates.cuh"

enum {
  THREADS = KR_DELTA_STEP_THREADS,
  WARPS = THREADS / 32,
  ACROSS = KR_DELTA_STEP_COLUMNS / 4,
  GROUPS = THREADS / ACROSS
};

/* A row of DK times scale, as given or of length one, by one warp. */
template <int DK>
KR_DEV void put_line(const kr_gated_delta_rule_args &a, const kr_view &from, int64_t at, float scale,
                     float (&line)[DK]) {
  const int lane = kr_thread() & 31;
  float x[DK / 32], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < DK / 32; i++) x[i] = kr_load(from.data, at + (lane + 32 * i) * from.stride[3], from.dtype);
#pragma unroll
  for (int i = 0; i < DK / 32; i++) sum = kr_fma(x[i], x[i], sum);
  const float length = kr_rsqrt(kr_sum_lanes(sum) + a.eps),
              by = a.call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? scale : scale * length;
#pragma unroll
  for (int i = 0; i < DK / 32; i++) line[lane + 32 * i] = by * x[i];
}

/* Over the rows of a warp, which lanes ACROSS apart have: in each of them. */
KR_DEV float sum_of_rows(float v) {
#pragma unroll
  for (int d = ACROSS; d < 32; d *= 2) v += kr_shuffle_xor(v, d);
  return v;
}

/* What a warp's rows add to the sums of four columns, and to q^T k. */
typedef struct part_sums {
  kr_float4 of_k, of_q;
  float qk;
} part_sums;

template <int DK>
KR_DEV part_sums multiply_lines(const float (&k)[DK], const float (&q)[DK], const kr_raw16 (&state)[DK / GROUPS]) {
  part_sums to = {};
#pragma unroll
  for (int i = 0; i < DK / GROUPS; i++) {
    const int row = kr_thread() / ACROSS + GROUPS * i;
    to.qk = kr_fma(q[row], k[row], to.qk);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float s = kr_bits_to_float(state[i].w[c]);
      to.of_k.v[c] = kr_fma(k[row], s, to.of_k.v[c]), to.of_q.v[c] = kr_fma(q[row], s, to.of_q.v[c]);
    }
  }
  to.qk = sum_of_rows(to.qk);
#pragma unroll
  for (int c = 0; c < 4; c++) to.of_k.v[c] = sum_of_rows(to.of_k.v[c]), to.of_q.v[c] = sum_of_rows(to.of_q.v[c]);
  return to;
}

template <int DK>
KR_DEV void run_step(const kr_delta_params &p) {
  KR_SHARED float lines[2][DK]; /* key, query */
  KR_SHARED part_sums parts[WARPS][ACROSS];
  const kr_gated_delta_rule_args &a = p.a;
  const int ahead = (a.call.flags & KR_CALL_STATE_PDL) != 0, warp = kr_thread() / 32, across = kr_thread() % ACROSS,
            block = kr_block_x(), h = block / p.parts % (int)a.H, head = h / (int)(a.H / a.Hk),
            j = block % p.parts * KR_DELTA_STEP_COLUMNS + 4 * across, exists = j < a.Dv;
  const int64_t b = block / p.parts / (int)a.H;
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const int64_t row = p.rows.data ? ((const int32_t *)p.rows.data)[b * p.rows.stride[0]] : b;
  const int live = exists && row >= 0;
  float *const state = (float *)p.before.data + row * p.before.stride[0] + h * p.before.stride[1] + j +
                       kr_thread() / ACROSS * p.before.stride[2];
  kr_raw16 raw[DK / GROUPS] = {};
#pragma unroll
  for (int i = 0; i < DK / GROUPS; i++)
    if (live) raw[i] = kr_read_state(state + GROUPS * i * p.before.stride[2]);
  if (ahead) kr_keep_all_near(p), kr_griddep_wait();
  if (warp == 0) put_line(a, a.k, b * a.k.stride[0] + head * a.k.stride[2], 1.0f, lines[0]);
  if (warp == 1) put_line(a, a.q, b * a.q.stride[0] + head * a.q.stride[2], kr_rsqrt((float)DK), lines[1]);
  const float decay = decay_of(a, h, at_token(a.a, b, 0, h)), beta = beta_of(a, at_token(a.b, b, 0, h));
  float v[4] = {};
#pragma unroll
  for (int c = 0; c < 4; c++)
    if (exists)
      v[c] = kr_load(a.v.data, b * a.v.stride[0] + h * a.v.stride[2] + (j + c) * a.v.stride[3], a.v.dtype);
  kr_sync();
  const part_sums own = multiply_lines(lines[0], lines[1], raw);
  if ((kr_thread() & 31) < ACROSS) parts[warp][across] = own;
  kr_sync();
  float qk = 0.0f, of_k[4] = {}, of_q[4] = {}, change[4];
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const part_sums &from = parts[w][across];
    qk += from.qk;
#pragma unroll
    for (int c = 0; c < 4; c++) of_k[c] += from.of_k.v[c], of_q[c] += from.of_q.v[c];
  }
#pragma unroll
  for (int c = 0; c < 4; c++) change[c] = beta * (v[c] - decay * of_k[c]);
#pragma unroll
  for (int i = 0; i < DK / GROUPS; i++) {
    const float k = lines[0][kr_thread() / ACROSS + GROUPS * i];
#pragma unroll
    for (int c = 0; c < 4; c++)
      raw[i].w[c] = kr_float_to_bits(kr_fma(k, change[c], decay * kr_bits_to_float(raw[i].w[c])));
    if (live) kr_write_state(state + GROUPS * i * p.before.stride[2], raw[i]);
  }
  if (kr_thread() >= ACROSS || !exists) return;
#pragma unroll
  for (int c = 0; c < 4; c++)
    kr_store(a.out.data, b * a.out.stride[0] + h * a.out.stride[2] + (j + c) * a.out.stride[3], a.out.dtype,
             live ? kr_fma(decay, of_q[c], qk * change[c]) : 0.0f);
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_gated_delta_step_64(const kr_delta_params p) { run_step<64>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_gated_delta_step_128(const kr_delta_params p) { run_step<128>(p); }
