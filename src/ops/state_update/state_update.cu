/* state_update.cu: one step of the scan per (batch, head, channel); the equation is in state_update_ref.c.
 *   kr_state_update_4, _same_4   four states per lane; states in float32, or (_same) in the inputs' type KR_DTYPE
 *   kr_dt_update_4, _same_4      the same, after the channel's lanes have computed its time step's dot product
 *   kr_state_update_rows, _same_rows  two threads hold the 16 states of a channel, for several sequences: large batches
 *   kr_dt_update_rows, _same_rows  the same, after tensor cores have computed the time steps of the block's channels
 *   kr_dt_update_same_rows_4     the same with four sequences a block instead of eight: few channels
 *   kr_state_update_heads, _same_heads  eight channels per lane, one decay for all states of a head (Mamba-2)
 *   kr_state_update_heads_256    the same with two times four states per lane
 *   kr_state_update_same_heads_8  the same with eight states per lane
 *   kr_state_update_any          any types, strides and number of states
 * Bound by reading and writing the state once, so a thread issues all its loads before using the first. */
#include "overlap.cuh"
#include "pack.cuh"
#include "row_lanes.cuh"
#include "state_update_params.h"

KR_DEV int64_t at3(const kr_view &v, int64_t i, int64_t j, int64_t k) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
}
KR_DEV float get(const kr_view &v, int64_t offset) { return kr_load(v.data, offset, v.dtype); }

/* Tensor types, compile-time constants in kernels specialised for them. */
typedef struct types {
  int32_t state, input; /* input: x, dt, z, B, C */
} types;

/* Unconverted elements, so that all of a thread's loads are in flight before it waits for one; 0 for absent views. */
KR_DEV uint32_t load_one(const kr_view &v, int32_t dtype, int64_t offset) {
  if (!v.data) return 0;
  return dtype == KRAIT_F32 ? ((const uint32_t *)v.data)[offset] : ((const uint16_t *)v.data)[offset];
}
KR_DEV float one_of(int32_t dtype, uint32_t raw) {
  return dtype == KRAIT_F32 ? kr_bits_to_float(raw) : kr_unpack(raw, 0, dtype);
}

typedef struct __attribute__((aligned(8))) four_halves {
  uint32_t w[2];
} four_halves;

/* Four contiguous elements. */
KR_DEV kr_raw16 load_four(const kr_view &v, int32_t dtype, int64_t offset) {
  if (dtype == KRAIT_F32) return *(const kr_raw16 *)((const float *)v.data + offset);
  const four_halves q = *(const four_halves *)((const uint16_t *)v.data + offset);
  return kr_raw16{{q.w[0], q.w[1], 0, 0}};
}
KR_DEV void four_of(int32_t dtype, const kr_raw16 &raw, float (&x)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++)
    x[k] = dtype == KRAIT_F32 ? kr_bits_to_float(raw.w[k]) : kr_unpack(raw.w[k >> 1], k & 1, dtype);
}

/* The sequence and channel of a thread, and the offsets of their tensors. */
typedef struct place {
  int64_t b, h, c, row, s0, A0, B0, C0; /* row of the state, negative: skip the step; offsets of state 0 */
  int exists, live, lane;
} place;

KR_DEV place here(const kr_update_params &p) {
  const kr_state_update_args &a = p.a;
  place at;
  uint32_t i = (uint32_t)(((int64_t)kr_block_x() * 128 + kr_thread()) >> p.lanes_shift), row = kr_divide(i, p.P),
           b = kr_divide(row, p.H);
  at.lane = kr_thread() & (p.lanes - 1);
  at.exists = b < a.B;
  if (!at.exists) i = row = b = 0;
  at.c = i - row * p.P.by, at.h = row - b * p.H.by, at.b = b;
  const int64_t g = kr_divide((uint32_t)at.h, p.heads_per_group);
  at.row = a.state_batch_indices.data
               ? ((const int32_t *)a.state_batch_indices.data)[at.b * a.state_batch_indices.stride[0]]
               : at.b;
  if (at.row >= a.n_states) at.row = -1; /* the host cannot check */
  at.live = at.exists && at.row >= 0;
  at.s0 = at.row * a.state.stride[0] + at.h * a.state.stride[1] + at.c * a.state.stride[2];
  at.A0 = at3(a.A, at.h, at.c, 0), at.B0 = at3(a.Bmat, at.b, g, 0), at.C0 = at3(a.Cmat, at.b, g, 0);
  return at;
}

/* Per-thread scalar operands. */
typedef struct scalars {
  uint32_t dt, x, bias, D, z;
} scalars;

KR_DEV void load_parameters(const kr_state_update_args &a, const place &at, scalars &raw) {
  raw.bias = load_one(a.dt_bias, a.dt_bias.dtype, at3(a.dt_bias, at.h, at.c, 0)),
  raw.D = load_one(a.Dvec, a.Dvec.dtype, at3(a.Dvec, at.h, at.c, 0));
}
KR_DEV void load_inputs(const kr_state_update_args &a, const place &at, const types t, scalars &raw) {
  raw.dt = load_one(a.dt, t.input, at3(a.dt, at.b, at.h, at.c)),
  raw.x = load_one(a.x, t.input, at3(a.x, at.b, at.h, at.c)),
  raw.z = load_one(a.z, t.input, at3(a.z, at.b, at.h, at.c));
}

/* log(1 + e^v) to float32's last places, where kr_softplus's logarithm is off by up to 2e-5 of a small result: with
 * e = e^-|v|, log(1 + e) is 2 artanh(e / (2 + e)), whose series ends at 2e-8. */
KR_DEV float softplus_close(float v) {
  const float high = kr_bits_to_float(kr_float_to_bits(v) & 0x7fffffffu), e = kr_exp2(-KR_LOG2E * high),
              s = e * kr_rcp(2.0f + e), square = s * s;
  float sum = 1.0f / 13.0f;
#pragma unroll
  for (int odd = 11; odd > 0; odd -= 2) sum = kr_fma(sum, square, 1.0f / (float)odd);
  return kr_fma(2.0f * s, sum, kr_select(v < 0.0f, 0.0f, v));
}

KR_DEV float softened(const kr_state_update_args &a, float dt) {
  return a.call.flags & KRAIT_UPDATE_SOFTPLUS ? softplus_close(dt) : dt;
}
KR_DEV float time_step(const kr_state_update_args &a, float dt, uint32_t raw_bias) {
  return softened(a, a.dt_bias.data ? dt + one_of(a.dt_bias.dtype, raw_bias) : dt);
}

/* y: this lane's partial sum over the states. */
KR_DEV void write_output(const kr_update_params &p, const place &at, float y, float x, float z, uint32_t raw_D) {
  const kr_state_update_args &a = p.a;
  for (int d = 1; d < p.lanes; d <<= 1) y += kr_shuffle_xor(y, d);
  if (!at.exists || at.lane) return;
  if (a.Dvec.data) y = kr_fma(one_of(a.Dvec.dtype, raw_D), x, y);
  if (a.z.data) y *= kr_silu(z);
  kr_store(a.out.data, at3(a.out, at.b, at.h, at.c), a.out.dtype, at.row < 0 ? 0.0f : y);
}

/* A has stride 0 where all states of a channel share one decay. */
KR_DEV kr_raw16 load_A(const kr_view &A, int64_t offset, int n) {
  if (A.stride[2]) return load_four(A, KRAIT_F32, offset + n);
  const uint32_t one = load_one(A, KRAIT_F32, offset);
  return kr_raw16{{one, one, one, one}};
}

/* Touches all parameters before the wait, so that they are at hand after it (programmatic dependent launch). */
KR_DEV void wait_ahead(const kr_update_params &p) {
  kr_keep_all_near(p);
  kr_griddep_wait();
}

/* Dot product for a channel's time step: this lane's packs of eight inputs; weights are loaded before the wait. */
typedef kr_eight<KR_DTYPE> eight;
enum { ELEMENT_BYTES = sizeof(eight) / 8 };
KR_DEV eight load_eight(const void *data, int64_t offset, int exists) {
  eight v = {};
  if (exists) v = *(const eight *)((const char *)data + ELEMENT_BYTES * offset);
  return v;
}
KR_DEV void load_dt_weights(const kr_update_params &p, const place &at, eight (&w)[KR_DT_PACKS]) {
#pragma unroll
  for (int i = 0; i < KR_DT_PACKS; i++) {
    const int pack = at.lane + i * p.lanes;
    w[i] = load_eight(p.dt_weight, at.c * p.dt_row + 8 * pack, at.exists && pack < p.packs);
  }
}
KR_DEV float multiply_dt(const kr_update_params &p, const place &at, const eight (&w)[KR_DT_PACKS]) {
  float dt = 0.0f;
  eight r[KR_DT_PACKS];
#pragma unroll
  for (int i = 0; i < KR_DT_PACKS; i++) {
    const int pack = at.lane + i * p.lanes;
    r[i] = load_eight(p.r, at.b * p.r_row + 8 * pack, pack < p.packs);
  }
#pragma unroll
  for (int i = 0; i < KR_DT_PACKS; i++)
#pragma unroll
    for (int k = 0; k < 8; k++) dt = kr_fma(kr_eight_at<KR_DTYPE>(w[i], k), kr_eight_at<KR_DTYPE>(r[i], k), dt);
  for (int d = 1; d < p.lanes; d <<= 1) dt += kr_shuffle_xor(dt, d);
  return dt;
}

/* Four states per lane, a single step. */
KR_DEV void update_fours(const kr_update_params &p, const types t, const int with_dt) {
  const kr_state_update_args &a = p.a;
  const int ahead = (a.call.flags & KR_CALL_STATE_PDL) != 0;
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const place at = here(p);
  const int n = at.lane * 4, mine = at.live && n < a.N;
  kr_raw16 raw_s = {}, raw_A = {}, raw_B = {}, raw_C = {};
  scalars raw;
  if (mine) raw_s = load_four(a.state, t.state, at.s0 + n), raw_A = load_A(a.A, at.A0, n);
  load_parameters(a, at, raw);
  eight dt_weights[KR_DT_PACKS];
  if (with_dt) load_dt_weights(p, at, dt_weights);
  if (ahead) wait_ahead(p);
  if (mine) raw_B = load_four(a.Bmat, t.input, at.B0 + n), raw_C = load_four(a.Cmat, t.input, at.C0 + n);
  load_inputs(a, at, t, raw);
  const float given = with_dt ? multiply_dt(p, at, dt_weights) : one_of(t.input, raw.dt);
  const float x = one_of(t.input, raw.x), dt = time_step(a, given, raw.bias);
  float s[4], A[4], B[4], C[4], y = 0.0f;
  four_of(t.state, raw_s, s);
  four_of(KRAIT_F32, raw_A, A);
  four_of(t.input, raw_B, B);
  four_of(t.input, raw_C, C);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    s[k] = kr_fma(kr_exp(dt * A[k]), s[k], dt * x * B[k]);
    y = kr_fma(C[k], s[k], y);
  }
  if (mine && t.state == KRAIT_F32)
    *(kr_float4 *)((float *)a.state.data + at.s0 + n) = kr_float4{{s[0], s[1], s[2], s[3]}};
  else if (mine)
    *(four_halves *)((uint16_t *)a.state.data + at.s0 + n) =
        four_halves{{kr_pack(s[0], s[1], t.state), kr_pack(s[2], s[3], t.state)}};
  write_output(p, at, y, x, one_of(t.input, raw.z), raw.D);
}

KR_KERNEL void KR_BOUNDS(128, 8) kr_state_update_4(const kr_update_params p) {
  update_fours(p, types{KRAIT_F32, KR_DTYPE}, 0);
}
KR_KERNEL void KR_BOUNDS(128, 8) kr_state_update_same_4(const kr_update_params p) {
  update_fours(p, types{KR_DTYPE, KR_DTYPE}, 0);
}
KR_KERNEL void KR_BOUNDS(128, 4) kr_dt_update_4(const kr_update_params p) {
  update_fours(p, types{KRAIT_F32, KR_DTYPE}, 1);
}
KR_KERNEL void KR_BOUNDS(128, 4) kr_dt_update_same_4(const kr_update_params p) {
  if (KR_DTYPE != KRAIT_F32) update_fours(p, types{KR_DTYPE, KR_DTYPE}, 1);
}

/* ---- eight states per thread, several sequences ------------------------------------------------------------------ */

enum {
  ROW_STATES = KR_UPDATE_ROW_STATES,
  ROW_PACKS = ROW_STATES / 8,
  OWN = 8, /* states of a thread */
  CHANNELS_HERE = KR_UPDATE_ROWS_CHANNELS
};

KR_DEV int slot_from(int slots, int lane) {
  return (int)kr_float_to_bits(kr_shuffle_from(kr_bits_to_float((uint32_t)slots), lane));
}

#if (KR_TIER >= 80 || defined(KR_EMULATE)) && KR_DTYPE != 0
#include "mma.cuh"
#if KR_DTYPE == KRAIT_F16
typedef kr_f16 element;
#else
typedef kr_bf16 element;
#endif
enum { HAS_STEPS = 1 };

/* Time steps of a block's channels for up to eight sequences, on tensor cores: a warp has a tile of 16 channels, whose
 * weights are in registers before the wait. Any order of k works if both operands share it. */
enum { STEP_COLUMNS = 8, STEP_PACKS = KR_UPDATE_STEP_PACKS };
typedef struct step_weights {
  kr_raw16 low[STEP_PACKS / 4], high[STEP_PACKS / 4]; /* of channels lane / 4 and eight on */
} step_weights;

KR_DEV void load_step_weights(const kr_update_params &p, step_weights &w) {
  const int lane = kr_thread() & 31, c = kr_block_x() * CHANNELS_HERE + (kr_thread() - lane) / 2 + lane / 4;
  const kr_raw16 *const from = (const kr_raw16 *)((const uint16_t *)p.dt_weight + c * p.dt_row) + lane % 4,
                        *const far = (const kr_raw16 *)((const uint16_t *)p.dt_weight + (c + 8) * p.dt_row) + lane % 4;
#pragma unroll
  for (int k = 0; k < STEP_PACKS / 4; k++) {
    const int in = 4 * k + lane % 4 < p.packs;
    w.low[k] = w.high[k] = kr_raw16{{0, 0, 0, 0}};
    if (in && c < p.a.P) w.low[k] = from[4 * k];
    if (in && c + 8 < p.a.P) w.high[k] = far[4 * k];
  }
}

/* The block's rows of r, padded with zeros. */
KR_DEV void load_step_inputs(const kr_update_params &p, int first, int n, kr_raw16 (&r)[STEP_COLUMNS][STEP_PACKS]) {
  for (int i = kr_thread(); i < STEP_COLUMNS * STEP_PACKS; i += 128) {
    const int s = i / STEP_PACKS, pack = i - s * STEP_PACKS;
    if (s >= n || first + s >= (int)p.a.B || pack >= p.packs) r[s][pack] = kr_raw16{{0, 0, 0, 0}};
    else kr_copy16(&r[s][pack], (const uint16_t *)p.r + (first + s) * p.r_row + 8 * pack);
  }
  kr_commit_copies();
}

/* Call after a barrier; writes the time steps of the warp's channels. bias: of this thread's channel. */
template <int N>
KR_DEV void multiply_steps(const kr_update_params &p, const step_weights &w, float bias,
                           const kr_raw16 (&r)[STEP_COLUMNS][STEP_PACKS], float (&dt)[N][CHANNELS_HERE]) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4, c = (kr_thread() - lane) / 2 + g;
  float d[4] = {};
#pragma unroll
  for (int k = 0; k < STEP_PACKS / 4; k++) {
    if (4 * k >= p.packs) break;
    const kr_raw16 from = r[g][4 * k + q];
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      const uint32_t a[4] = {w.low[k].w[pair], w.high[k].w[pair], w.low[k].w[pair + 1], w.high[k].w[pair + 1]};
      kr_mma_as(element(), d, a, from.w[pair], from.w[pair + 1]);
    }
  }
  const float biases[2] = {kr_shuffle_from(bias, 2 * g), kr_shuffle_from(bias, 2 * g + 16)};
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (N == STEP_COLUMNS || 2 * q + i % 2 < N)
      dt[2 * q + i % 2][c + i / 2 * 8] = softened(p.a, d[i] + biases[i / 2]);
  kr_sync_warp();
}
#else
enum { HAS_STEPS = 0, STEP_COLUMNS = 1, STEP_PACKS = 1 };
typedef struct step_weights {
  int none;
} step_weights;
KR_DEV void load_step_weights(const kr_update_params &, step_weights &) {}
KR_DEV void load_step_inputs(const kr_update_params &, int, int, kr_raw16 (&)[STEP_COLUMNS][STEP_PACKS]) {}
template <int N>
KR_DEV void multiply_steps(const kr_update_params &, const step_weights &, float,
                           const kr_raw16 (&)[STEP_COLUMNS][STEP_PACKS], float (&)[N][CHANNELS_HERE]) {}
#endif

/* One sequence: updates and stores this thread's eight states; returns its part of y. */
template <int PACKS>
KR_DEV float update_own(const types t, float dt, float x, const float (&A)[OWN], const kr_raw16 &raw_B,
                        const kr_raw16 &raw_C, const kr_raw16 (&raw)[PACKS], kr_raw16 *to) {
  const int in_pack = OWN / PACKS;
  const float dx = dt * x;
  float v[OWN], y = 0.0f;
#pragma unroll
  for (int n = 0; n < OWN; n++) {
    const uint32_t word = raw[n / in_pack].w[t.state == KRAIT_F32 ? n % 4 : n / 2];
    const float old = t.state == KRAIT_F32 ? kr_bits_to_float(word) : kr_unpack(word, n & 1, t.state);
    v[n] = kr_fma(kr_exp2(dt * A[n]), old, dx * kr_unpack(raw_B.w[n / 2], n & 1, t.input));
    y = kr_fma(kr_unpack(raw_C.w[n / 2], n & 1, t.input), v[n], y);
  }
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    kr_raw16 packed;
#pragma unroll
    for (int i = 0; i < 4; i++)
      packed.w[i] = t.state == KRAIT_F32 ? kr_float_to_bits(v[k * in_pack + i])
                                         : kr_pack(v[2 * i], v[2 * i + 1], t.state);
    if (to) kr_write_state(to + k, packed);
  }
  return y;
}

/* Two neighbouring threads share a channel, so that a warp's accesses to states lie together. PACKS: 16-byte packs of a
 * thread's states; SEQUENCES: per thread, sharing one load of A, bias and D. Each of the two finishes every second
 * sequence: its gate and output. What differs by sequence waits in shared memory, which leaves registers to more
 * blocks; a loop over sequences that is not unrolled is slower where a multiprocessor has few warps. */
template <int PACKS, int SEQUENCES, int WITH_DT>
KR_DEV void update_rows(const kr_update_params &p, const types t) {
  KR_SHARED kr_raw16 states[SEQUENCES][PACKS][128];
  KR_SHARED kr_raw16 both[SEQUENCES][2][ROW_PACKS];
  KR_SHARED kr_raw16 r[STEP_COLUMNS][STEP_PACKS]; /* WITH_DT */
  KR_SHARED float dts[SEQUENCES][CHANNELS_HERE], xs[SEQUENCES][CHANNELS_HERE], zs[SEQUENCES][CHANNELS_HERE];
  const kr_state_update_args &a = p.a;
  const int ahead = (a.call.flags & KR_CALL_STATE_PDL) != 0, half = kr_thread() & 1, channel = kr_thread() / 2,
            c = kr_block_x() * CHANNELS_HERE + channel, b0 = kr_block_y() * SEQUENCES, exists = c < a.P,
            left = (int)a.B - b0;
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const int64_t first = (c * a.state.stride[2] + half * OWN) * (t.state == KRAIT_F32 ? 4 : 2),
                slot_step = a.state.stride[0] * (t.state == KRAIT_F32 ? 4 : 2);
  int slots = kr_thread() % SEQUENCES; /* of sequence lane % SEQUENCES; negative: none */
  slots = slots < left ? b0 + slots : -1;
  if (a.state_batch_indices.data && slots >= 0)
    slots = ((const int32_t *)a.state_batch_indices.data)[slots * a.state_batch_indices.stride[0]];
  if (slots >= a.n_states) slots = -1; /* the host cannot check */
#pragma unroll
  for (int s = 0; s < SEQUENCES; s++) {
    const int slot = slot_from(slots, s);
#pragma unroll
    for (int k = 0; k < PACKS; k++)
      if (exists && slot >= 0)
        kr_copy_state(&states[s][k][kr_thread()], (const char *)a.state.data + slot * slot_step + first + 16 * k);
  }
  kr_commit_copies();
  kr_raw16 raw_A[OWN / 4] = {};
#pragma unroll
  for (int k = 0; k < OWN / 4; k++)
    if (exists) raw_A[k] = *((const kr_raw16 *)((const float *)a.A.data + c * a.A.stride[1] + half * OWN) + k);
  const int64_t own = exists ? c : 0;
  const uint32_t raw_bias = load_one(a.dt_bias, a.dt_bias.dtype, own * a.dt_bias.stride[1]),
                 raw_D = load_one(a.Dvec, a.Dvec.dtype, own * a.Dvec.stride[1]);
  step_weights weights;
  if (WITH_DT) load_step_weights(p, weights);
  if (ahead) wait_ahead(p);
  if (WITH_DT) load_step_inputs(p, b0, SEQUENCES, r);
  uint32_t raw_dt[SEQUENCES / 2], raw_x[SEQUENCES / 2], raw_z[SEQUENCES / 2];
#pragma unroll
  for (int j = 0; j < SEQUENCES / 2; j++) {
    const int64_t b = 2 * j + half < left ? b0 + 2 * j + half : 0;
    raw_dt[j] = WITH_DT ? 0 : load_one(a.dt, t.input, at3(a.dt, b, 0, own));
    raw_x[j] = load_one(a.x, t.input, at3(a.x, b, 0, own));
    raw_z[j] = load_one(a.z, t.input, at3(a.z, b, 0, own));
  }
  const int pack = kr_thread() % ROW_PACKS, which = kr_thread() / ROW_PACKS % 2, of = kr_thread() / (2 * ROW_PACKS);
  if (of < SEQUENCES && of < left) {
    const kr_view &from = which ? a.Cmat : a.Bmat;
    both[of][which][pack] = *((const kr_raw16 *)((const uint16_t *)from.data + (b0 + of) * from.stride[0]) + pack);
  }
  const float bias = a.dt_bias.data ? one_of(a.dt_bias.dtype, raw_bias) : 0.0f;
#pragma unroll
  for (int j = 0; j < SEQUENCES / 2; j++) {
    if (!WITH_DT) dts[2 * j + half][channel] = softened(a, one_of(t.input, raw_dt[j]) + bias);
    xs[2 * j + half][channel] = one_of(t.input, raw_x[j]), zs[2 * j + half][channel] = one_of(t.input, raw_z[j]);
  }
  float A[OWN];
#pragma unroll
  for (int k = 0; k < OWN; k++) A[k] = kr_bits_to_float(raw_A[k / 4].w[k % 4]) * KR_LOG2E;
  kr_copied<0>();
  kr_sync();
  if (WITH_DT) multiply_steps(p, weights, bias, r, dts);
#pragma unroll
  for (int j = 0; j < SEQUENCES; j += 2) {
    float y[2];
    int live[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int s = j + i;
      kr_raw16 raw[PACKS];
#pragma unroll
      for (int k = 0; k < PACKS; k++) raw[k] = states[s][k][kr_thread()];
      const int slot = slot_from(slots, s);
      live[i] = slot >= 0;
      kr_raw16 *to = (kr_raw16 *)((char *)a.state.data + slot * slot_step + first);
      y[i] = update_own<PACKS>(t, dts[s][channel], xs[s][channel], A, both[s][0][half], both[s][1][half], raw,
                               exists && live[i] ? to : nullptr);
    }
    const int s = j + half;
    float sum = kr_select(half, y[1], y[0]) + kr_shuffle_xor(kr_select(half, y[0], y[1]), 1);
    if (a.Dvec.data) sum = kr_fma(one_of(a.Dvec.dtype, raw_D), xs[s][channel], sum);
    if (a.z.data) sum *= kr_silu(zs[s][channel]);
    if (exists && s < left)
      kr_store(a.out.data, at3(a.out, b0 + s, 0, c), a.out.dtype, (half ? live[1] : live[0]) ? sum : 0.0f);
  }
}

/* Chosen so that no tier spills registers. */
enum { ROWS_BLOCKS = KR_TIER >= 90 ? 5 : 4 };
KR_KERNEL void KR_BOUNDS(128, ROWS_BLOCKS) kr_state_update_rows(const kr_update_params p) {
  if (KR_DTYPE != KRAIT_F32) update_rows<2, KR_UPDATE_ROWS_WIDE, 0>(p, types{KRAIT_F32, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, ROWS_BLOCKS) kr_state_update_same_rows(const kr_update_params p) {
  if (KR_DTYPE != KRAIT_F32) update_rows<1, KR_UPDATE_ROWS_SAME, 0>(p, types{KR_DTYPE, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, ROWS_BLOCKS) kr_dt_update_rows(const kr_update_params p) {
  if (HAS_STEPS) update_rows<2, KR_UPDATE_ROWS_WIDE, HAS_STEPS>(p, types{KRAIT_F32, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, ROWS_BLOCKS) kr_dt_update_same_rows(const kr_update_params p) {
  if (HAS_STEPS) update_rows<1, KR_UPDATE_ROWS_SAME, HAS_STEPS>(p, types{KR_DTYPE, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, ROWS_BLOCKS) kr_dt_update_same_rows_4(const kr_update_params p) {
  if (HAS_STEPS) update_rows<1, KR_UPDATE_ROWS_FEW, HAS_STEPS>(p, types{KR_DTYPE, KR_DTYPE});
}

/* ---- eight channels of a head with one decay for all states: decay, B and C are shared --------------------------- */

enum { CHANNELS = 8 };

KR_DEV void load_channels(const kr_view &x, int32_t dtype, int64_t offset, float (&v)[CHANNELS]) {
  kr_raw16 raw[2];
  const char *from = (const char *)x.data + offset * (dtype == KRAIT_F32 ? 4 : 2);
  raw[0] = *(const kr_raw16 *)from;
  if (dtype == KRAIT_F32) raw[1] = *(const kr_raw16 *)(from + 16);
#pragma unroll
  for (int k = 0; k < CHANNELS; k++)
    v[k] = dtype == KRAIT_F32 ? kr_bits_to_float(raw[k / 4].w[k % 4]) : kr_unpack(raw[0].w[k / 2], k & 1, dtype);
}

/* Reduces each channel's sum across its lanes; a lane gets that of channel lane % 8. */
KR_DEV float sum_channels(const float (&y)[CHANNELS], int lane, int lanes) {
  float four[4], two[2];
#pragma unroll
  for (int k = 0; k < 4; k++)
    four[k] =
        kr_select(lane & 1, y[2 * k + 1], y[2 * k]) + kr_shuffle_xor(kr_select(lane & 1, y[2 * k], y[2 * k + 1]), 1);
#pragma unroll
  for (int k = 0; k < 2; k++)
    two[k] = kr_select(lane & 2, four[2 * k + 1], four[2 * k]) +
             kr_shuffle_xor(kr_select(lane & 2, four[2 * k], four[2 * k + 1]), 2);
  float sum = kr_select(lane & 4, two[1], two[0]) + kr_shuffle_xor(kr_select(lane & 4, two[0], two[1]), 4);
  for (int d = 8; d < lanes; d <<= 1) sum += kr_shuffle_xor(sum, d);
  return sum;
}

/* STATES per lane, four or eight (16 bytes); also used for B and C. */
template <int STATES>
KR_DEV void load_states(const kr_view &v, int32_t dtype, int64_t offset, kr_raw16 &raw) {
  if (STATES == 4) raw = load_four(v, dtype, offset);
  else raw = kr_read_state((const uint16_t *)v.data + offset);
}
template <int STATES>
KR_DEV void load_group(const kr_view &v, int32_t dtype, int64_t offset, kr_raw16 &raw) {
  if (STATES == 4) raw = load_four(v, dtype, offset);
  else raw = *(const kr_raw16 *)((const uint16_t *)v.data + offset);
}
template <int STATES>
KR_DEV void states_of(int32_t dtype, const kr_raw16 &raw, float (&x)[STATES]) {
#pragma unroll
  for (int k = 0; k < STATES; k++)
    x[k] = dtype == KRAIT_F32 ? kr_bits_to_float(raw.w[k % 4]) : kr_unpack(raw.w[k / 2], k & 1, dtype);
}
template <int STATES>
KR_DEV void store_states(const kr_view &v, int32_t dtype, int64_t offset, const float (&x)[STATES]) {
  if (dtype == KRAIT_F32) {
    *(kr_float4 *)((float *)v.data + offset) = kr_float4{{x[0], x[1], x[2], x[3]}};
    return;
  }
  uint32_t w[STATES / 2];
#pragma unroll
  for (int k = 0; k < STATES / 2; k++) w[k] = kr_pack(x[2 * k], x[2 * k + 1], dtype);
  if (STATES == 4) *(four_halves *)((uint16_t *)v.data + offset) = four_halves{{w[0], w[1]}};
  else kr_write_state((uint16_t *)v.data + offset, kr_raw16{{w[0], w[1], w[STATES / 2 - 2], w[STATES / 2 - 1]}});
}

/* p.P: packs of eight channels. A lane has STATES neighbours in each of PARTS parts of a channel's states. */
template <int STATES, int PARTS>
KR_DEV void update_heads(const kr_update_params &p, const types t) {
  const kr_state_update_args &a = p.a;
  const int ahead = (a.call.flags & KR_CALL_STATE_PDL) != 0;
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const uint32_t i = (uint32_t)(((int64_t)kr_block_x() * 128 + kr_thread()) >> p.lanes_shift);
  const int lane = kr_thread() & (p.lanes - 1), n = lane * STATES;
  uint32_t row = kr_divide(i, p.P), b = kr_divide(row, p.H);
  const int exists = b < a.B;
  const int64_t first = exists ? (i - row * p.P.by) * CHANNELS : 0, h = exists ? row - b * p.H.by : 0;
  if (!exists) b = 0;
  const int64_t g = kr_divide((uint32_t)h, p.heads_per_group), c = first + (lane & 7);
  int64_t slot = a.state_batch_indices.data
                     ? ((const int32_t *)a.state_batch_indices.data)[b * a.state_batch_indices.stride[0]]
                     : b;
  if (slot >= a.n_states) slot = -1; /* the host cannot check */
  const int live = exists && slot >= 0;
  const int64_t s0 = slot * a.state.stride[0] + h * a.state.stride[1] + first * a.state.stride[2] + n;
  kr_raw16 raw[PARTS][CHANNELS] = {};
#pragma unroll
  for (int part = 0; part < PARTS; part++)
#pragma unroll
    for (int k = 0; k < CHANNELS; k++)
      if (live)
        load_states<STATES>(a.state, t.state, s0 + part * 32 * STATES + k * a.state.stride[2], raw[part][k]);
  const uint32_t raw_bias = load_one(a.dt_bias, a.dt_bias.dtype, at3(a.dt_bias, h, 0, 0)),
                 raw_A = load_one(a.A, KRAIT_F32, at3(a.A, h, 0, 0)),
                 raw_D = load_one(a.Dvec, a.Dvec.dtype, at3(a.Dvec, h, c, 0));
  if (ahead) wait_ahead(p);
  kr_raw16 raw_B[PARTS], raw_C[PARTS];
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    load_group<STATES>(a.Bmat, t.input, at3(a.Bmat, b, g, n + part * 32 * STATES), raw_B[part]);
    load_group<STATES>(a.Cmat, t.input, at3(a.Cmat, b, g, n + part * 32 * STATES), raw_C[part]);
  }
  const float dt = time_step(a, one_of(t.input, load_one(a.dt, t.input, at3(a.dt, b, h, 0))), raw_bias);
  const float decay = kr_exp(dt * one_of(KRAIT_F32, raw_A));
  const uint32_t raw_x = load_one(a.x, t.input, at3(a.x, b, h, c)),
                 raw_z = load_one(a.z, t.input, at3(a.z, b, h, c));
  float x[CHANNELS], y[CHANNELS] = {};
  load_channels(a.x, t.input, at3(a.x, b, h, first), x);
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    float B[STATES], C[STATES];
    states_of<STATES>(t.input, raw_B[part], B);
    states_of<STATES>(t.input, raw_C[part], C);
#pragma unroll
    for (int k = 0; k < CHANNELS; k++) {
      const float dx = dt * x[k];
      float s[STATES];
      states_of<STATES>(t.state, raw[part][k], s);
#pragma unroll
      for (int j = 0; j < STATES; j++) s[j] = kr_fma(decay, s[j], dx * B[j]), y[k] = kr_fma(C[j], s[j], y[k]);
      if (live) store_states<STATES>(a.state, t.state, s0 + part * 32 * STATES + k * a.state.stride[2], s);
    }
  }
  float sum = sum_channels(y, lane, p.lanes);
  if (a.Dvec.data) sum = kr_fma(one_of(a.Dvec.dtype, raw_D), one_of(t.input, raw_x), sum);
  if (a.z.data) sum *= kr_silu(one_of(t.input, raw_z));
  if (exists && lane < CHANNELS) kr_store(a.out.data, at3(a.out, b, h, c), a.out.dtype, live ? sum : 0.0f);
}

KR_KERNEL void KR_BOUNDS(128, 6) kr_state_update_heads(const kr_update_params p) {
  update_heads<4, 1>(p, types{KRAIT_F32, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, 3) kr_state_update_heads_256(const kr_update_params p) {
  update_heads<4, 2>(p, types{KRAIT_F32, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, 6) kr_state_update_same_heads(const kr_update_params p) {
  update_heads<4, 1>(p, types{KR_DTYPE, KR_DTYPE});
}
KR_KERNEL void KR_BOUNDS(128, 5) kr_state_update_same_heads_8(const kr_update_params p) {
  if (KR_DTYPE != KRAIT_F32) update_heads<KR_DTYPE == KRAIT_F32 ? 4 : 8, 1>(p, types{KR_DTYPE, KR_DTYPE});
}

KR_KERNEL void KR_BOUNDS(128, 8) kr_state_update_any(const kr_update_params p) {
  const kr_state_update_args &a = p.a;
  const place at = here(p);
  const float x = get(a.x, at3(a.x, at.b, at.h, at.c)), z = a.z.data ? get(a.z, at3(a.z, at.b, at.h, at.c)) : 0.0f;
  const uint32_t raw_bias = load_one(a.dt_bias, a.dt_bias.dtype, at3(a.dt_bias, at.h, at.c, 0)),
                 raw_D = load_one(a.Dvec, a.Dvec.dtype, at3(a.Dvec, at.h, at.c, 0));
  const float dt = time_step(a, get(a.dt, at3(a.dt, at.b, at.h, at.c)), raw_bias);
  float y = 0.0f;
  for (int64_t n = at.lane; n < a.N && at.live; n += p.lanes) {
    const int64_t to = at.s0 + n * a.state.stride[3];
    const float s = kr_fma(kr_exp(dt * get(a.A, at.A0 + n * a.A.stride[2])), get(a.state, to),
                           dt * x * get(a.Bmat, at.B0 + n * a.Bmat.stride[2]));
    kr_store(a.state.data, to, a.state.dtype, s);
    y = kr_fma(get(a.Cmat, at.C0 + n * a.Cmat.stride[2]), s, y);
  }
  write_output(p, at, y, x, z, raw_D);
}
