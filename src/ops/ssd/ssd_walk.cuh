/* ssd_walk.cuh: the SSD token by token, for every type, size and option: a warp scans four channels of a head over
 * time, states spread over its lanes. With GRADIENT the states before every chunk of tokens are kept, and dz replaces
 * the output. */
#ifndef KR_SSD_WALK_CUH
#define KR_SSD_WALK_CUH

#include "kernel.cuh"

#include "ssd_params.h"

enum { ROWS = 4 }; /* channels per warp */

KR_DEV int64_t of(const kr_ssd_tensor &v, int64_t b, int64_t t, int64_t h, int64_t n) {
  return b * v.b + t * v.t + h * v.h + n * v.n;
}

/* dt + dt_bias. */
KR_DEV float raw_step(const kr_ssd_params &p, int b, int64_t t, int h) {
  const float d = kr_load(p.dt.data, of(p.dt, b, t, h, 0), p.dt.dtype);
  return p.bias.data ? d + kr_load(p.bias.data, h * p.bias.h, p.bias.dtype) : d;
}

KR_DEV float clamp_step(const kr_ssd_params &p, float d) {
  return d < p.dt_min ? p.dt_min : d > p.dt_max ? p.dt_max : d;
}

KR_DEV float step_size(const kr_ssd_params &p, int b, int64_t t, int h) {
  const float d = raw_step(p, b, t, h);
  return clamp_step(p, p.softplus ? kr_softplus(d) : d);
}

KR_DEV float rate_of(const kr_ssd_params &p, int h) { return p.A.data ? ((const float *)p.A.data)[h * p.A.h] : 0.0f; }

/* The logarithm of what the state before a token of step size d is multiplied by. */
KR_DEV float log_decay_at(const kr_ssd_params &p, int b, int64_t t, int h, float d, float A) {
  return p.log_decay.data ? kr_load(p.log_decay.data, of(p.log_decay, b, t, h, 0), p.log_decay.dtype) : d * A;
}

/* HALF: in to.dtype, else float32, as the forward call's states are. */
template <int S, int HALF>
KR_DEV void keep_states(const kr_ssd_params &p, const kr_ssd_tensor &to, int64_t row, int h, int c0,
                        const float (&s)[ROWS][S]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < S; k++)
      if (c0 + r < p.P && k * 32 + lane < p.N)
        kr_store(to.data, of(to, row, c0 + r, h, k * 32 + lane), HALF ? to.dtype : KRAIT_F32, s[r][k]);
}

/* Stores the state after token t for every sequence that ends there. */
template <int S>
KR_DEV void keep_varlen(const kr_ssd_params &p, int64_t t, int h, int c0, const float (&s)[ROWS][S]) {
  for (int i = 0; i < p.S; i++) {
    const int32_t begin = p.offsets[i * p.offsets_step], end = p.offsets[(i + 1) * p.offsets_step];
    if (end == t + 1 && begin < end) keep_states<S, 0>(p, p.varlen, i, h, c0, s);
  }
}

/* Reduces four sums over the warp's lanes; lane r gets that of row r. */
KR_DEV float add_lanes(float (&y)[ROWS]) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1)
#pragma unroll
    for (int r = 0; r < ROWS; r++) y[r] += kr_shuffle_xor(y[r], d);
  const int lane = kr_thread() & 31;
  return lane == 0 ? y[0] : lane == 1 ? y[1] : lane == 2 ? y[2] : y[3];
}

template <int GRADIENT>
KR_DEV void write_token(const kr_ssd_params &p, int b, int64_t t, int h, int c, float y, int padding) {
  const int64_t place = ((int64_t)b * p.L + (p.keep_y ? p.L - 1 - t : t)) * p.H * p.P + (int64_t)h * p.P + c;
  if (p.keep_y) {
    p.add[place] = y;
    return;
  }
  if (p.add) y += p.add[place];
  if (GRADIENT && !p.dz.data) return;
  if (p.D.data)
    y = kr_fma(kr_load(p.D.data, of(p.D, b, t, h, c), p.D.dtype), kr_load(p.x.data, of(p.x, b, t, h, c), p.x.dtype),
               y);
  if (GRADIENT) {
    const float z = kr_load(p.z.data, of(p.z, b, t, h, c), p.z.dtype), s = kr_sigmoid(z),
                dout = kr_load(p.dout.data, of(p.dout, b, t, h, c), p.dout.dtype);
    kr_store(p.dz.data, of(p.dz, b, t, h, c), p.dz.dtype,
             padding || dout == 0 ? 0.0f : dout * y * s * kr_fma(z, 1.0f - s, 1.0f));
    return;
  }
  if (p.z.data) y *= kr_silu(kr_load(p.z.data, of(p.z, b, t, h, c), p.z.dtype));
  kr_store(p.out.data, of(p.out, b, t, h, c), p.out.dtype, padding ? 0.0f : y);
}

/* Output of a token's ranks, of rows from t on. */
template <int S>
KR_DEV void write_ranks(const kr_ssd_params &p, int b, int64_t t, int h, int c0, const float (&s)[ROWS][S]) {
  const int lane = kr_thread() & 31, g = h / p.heads;
  for (int i = 0; i <= p.last_rank; i++) {
    float y[ROWS] = {};
#pragma unroll
    for (int k = 0; k < S; k++) {
      const int n = k * 32 + lane;
      const float C = n < p.N ? kr_load(p.Cmat.data, of(p.Cmat, b, t + i, g, n), p.Cmat.dtype) : 0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r++) y[r] = kr_fma(C, s[r][k], y[r]);
    }
    const float sum = add_lanes(y);
    if (lane < ROWS && c0 + lane < p.P) write_token<0>(p, b, t + i, h, c0 + lane, sum, 0);
  }
}

/* The power of two by which a row of states is divided to be kept in float16: 1 where float16 holds all that is
 * finite in it. Called by all lanes. */
template <int S>
KR_DEV float scale_of_row(const float (&row)[S]) {
  float most = 0;
#pragma unroll
  for (int k = 0; k < S; k++) {
    const float v = kr_bits_to_float(kr_float_to_bits(row[k]) & 0x7fffffffu);
    most = v > most && kr_float_to_bits(v) < 0x7f800000u ? v : most;
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const float other = kr_shuffle_xor(most, d);
    most = other > most ? other : most;
  }
  return most < 32768.0f ? 1.0f : kr_bits_to_float((kr_float_to_bits(most) & 0x7f800000u) - (14u << 23));
}

template <int S>
KR_DEV void keep_scaled(const kr_ssd_params &p, const kr_ssd_tensor &to, int64_t place, int c0, float *scales,
                        const float (&s)[ROWS][S]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const float scale = scale_of_row<S>(s[r]), inverse = 1.0f / scale;
    if (c0 + r >= p.P) continue;
    if (lane == 0) scales[place * p.P + c0 + r] = scale;
#pragma unroll
    for (int k = 0; k < S; k++)
      if (k * 32 + lane < p.N) kr_store(to.data, of(to, place, c0 + r, 0, k * 32 + lane), KRAIT_F16, s[r][k] * inverse);
  }
}

/* Stores the state before token t, the first of its chunk, to `kept`; in float16 every row by its scale. */
template <int S>
KR_DEV void keep_before(const kr_ssd_params &p, void *kept, float *scales, int b, int64_t t, int h, int c0,
                        const float (&s)[ROWS][S]) {
  const int64_t n_chunks = (p.L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK,
                place = ((int64_t)b * p.H + h) * n_chunks + t / KR_SSD_CHUNK;
  kr_ssd_tensor to = {};
  to.data = kept, to.b = (int64_t)p.P * p.N, to.t = p.N, to.n = 1, to.dtype = p.kept_dtype;
  if (p.kept_dtype == KRAIT_F32) keep_states<S, 0>(p, to, place, 0, c0, s);
  else if (p.kept_dtype == KRAIT_F16) keep_scaled<S>(p, to, place, c0, scales, s);
  else keep_states<S, 1>(p, to, place, 0, c0, s);
}

/* RANKS: rows come in runs of ranks (p.last_rank), whose inputs are all added before any is read. */
template <int S, int GRADIENT, int RANKS>
KR_DEV void walk(const kr_ssd_params &p) {
  const int lane = kr_thread() & 31, blocks = (p.P + 4 * ROWS - 1) / (4 * ROWS), h = kr_block_x() / blocks,
            b = kr_block_z(), g = h / p.heads;
  const int c0 = (kr_block_x() - h * blocks) * 4 * ROWS + (kr_thread() >> 5) * ROWS;
  const float A = rate_of(p, h);
  float s[ROWS][S];
  if (c0 >= p.P || (p.spoilt && !p.spoilt[b * p.H + h])) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < S; k++) {
      const int exists = p.initial.data && c0 + r < p.P && k * 32 + lane < p.N;
      s[r][k] = exists ? kr_load(p.initial.data, of(p.initial, b, c0 + r, h, k * 32 + lane), p.initial.dtype) : 0.0f;
    }
  int32_t before = 0;
  for (int64_t t = 0; t < p.L; t++) {
    if (GRADIENT && p.kept && t % KR_SSD_CHUNK == 0) keep_before<S>(p, p.kept, p.kept_scale, b, t, h, c0, s);
    const int32_t now = p.seq_idx ? p.seq_idx[b * p.seq_b + t * p.seq_t] : 0;
    const float d = step_size(p, b, t, h), decay = kr_exp(log_decay_at(p, b, t, h, d, A));
    float x[ROWS], y[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      x[r] = c0 + r < p.P ? d * kr_load(p.x.data, of(p.x, b, t, h, c0 + r), p.x.dtype) : 0.0f;
#pragma unroll
    for (int k = 0; k < S; k++) {
      const int n = k * 32 + lane;
      const float B = n < p.N ? kr_load(p.Bmat.data, of(p.Bmat, b, t, g, n), p.Bmat.dtype) : 0.0f;
      const float C = !RANKS && n < p.N ? kr_load(p.Cmat.data, of(p.Cmat, b, t, g, n), p.Cmat.dtype) : 0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float carried = now != before ? 0.0f : decay * s[r][k];
        s[r][k] = now < 0 || n >= p.N ? 0.0f : kr_fma(x[r], B, carried);
        if (!RANKS) y[r] = now < 0 ? 0.0f : kr_fma(C, s[r][k], y[r]);
      }
    }
    before = now;
    if (RANKS) {
      if ((t & p.last_rank) == p.last_rank) write_ranks<S>(p, b, t - p.last_rank, h, c0, s);
    } else {
      const float sum = add_lanes(y);
      if (lane < ROWS && c0 + lane < p.P) write_token<GRADIENT>(p, b, t, h, c0 + lane, sum, now < 0);
    }
    if (p.offsets) keep_varlen<S>(p, t, h, c0, s);
  }
  if (p.final.data) keep_states<S, 0>(p, p.final, b, h, c0, s);
}

#endif
