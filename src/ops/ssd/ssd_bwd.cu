/* ssd_bwd.cu: the SSD's gradient (equations in ssd_bwd_ref.c) for every type, size and option, one time direction at a
 * time:
 * kr_ssd_bwd_walks_sS   token by token, as the forward scan: the state before each chunk; dz. Concurrently, in reverse:
 *                       M, the gradient of the state after each chunk
 * kr_ssd_bwd_chunks     one block per chunk and group: given S and M, chunks are independent. Heads are processed in
 *                       turn, so dB and dC are summed in a fixed order; the intra-chunk part of dB and dC is one
 *                       product with the sum over heads
 * kr_ssd_bwd_add        reductions over chunks
 * The gradient of the log-decay at token t, q_t = e_t <M_t, S_{t-1}>, is summed over pairs of a token before t and one
 * at or after t, using only terms with positive decays: non-finite values reach no other sequence, and no token that
 * the equation does not couple to them. So chunked rows leave the groups of heads in which they met such values
 * (f.spoilt) to these kernels, with S and M in the storage type (f.kept_dtype; in
 * float16 a row of states has a scale, since they may be here because they left its range). */
#include "ssd_walk.cuh"

#include "ssd_bwd_params.h"

enum { Q = KR_SSD_CHUNK, THREADS = KR_SSD_BWD_THREADS, ROW = Q + 1, PART = 32 };

template <int S>
KR_DEV void walk_after(const kr_ssd_bwd_params &p) {
  const kr_ssd_params &f = p.f;
  const int lane = kr_thread() & 31, blocks = (f.P + 4 * ROWS - 1) / (4 * ROWS), h = kr_block_x() / blocks,
            b = kr_block_z(), g = h / f.heads;
  const int c0 = (kr_block_x() - h * blocks) * 4 * ROWS + (kr_thread() >> 5) * ROWS;
  const float A = rate_of(f, h);
  float m[ROWS][S];
  if (c0 >= f.P || (f.spoilt && !f.spoilt[b * f.H + h])) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < S; k++) {
      const int exists = p.dfinal.data && c0 + r < f.P && k * 32 + lane < f.N;
      m[r][k] = exists ? kr_load(p.dfinal.data, of(p.dfinal, b, c0 + r, h, k * 32 + lane), p.dfinal.dtype) : 0.0f;
    }
  for (int64_t t = f.L - 1; t >= 0; t--) {
    if (t == f.L - 1 || t % Q == Q - 1) keep_before<S>(f, p.M, p.M_scale, b, t, h, c0, m);
    const int32_t now = f.seq_idx ? f.seq_idx[b * f.seq_b + t * f.seq_t] : 0,
                  before = f.seq_idx && t ? f.seq_idx[b * f.seq_b + (t - 1) * f.seq_t] : 0;
    const float decay = kr_exp(log_decay_at(f, b, t, h, step_size(f, b, t, h), A));
    const int nothing = now != before || now < 0;
    float dy[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      dy[r] = c0 + r < f.P ? kr_load(f.dout.data, of(f.dout, b, t, h, c0 + r), f.dout.dtype) : 0.0f;
      if (f.z.data && c0 + r < f.P) dy[r] *= kr_silu(kr_load(f.z.data, of(f.z, b, t, h, c0 + r), f.z.dtype));
    }
#pragma unroll
    for (int k = 0; k < S; k++) {
      const int n = k * 32 + lane;
      const float C = n < f.N ? kr_load(f.Cmat.data, of(f.Cmat, b, t, g, n), f.Cmat.dtype) : 0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r++) m[r][k] = nothing || n >= f.N ? 0.0f : decay * kr_fma(dy[r], C, m[r][k]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int k = 0; k < S; k++)
      if (p.dinitial.data && c0 + r < f.P && k * 32 + lane < f.N)
        kr_store(p.dinitial.data, of(p.dinitial, b, c0 + r, h, k * 32 + lane), p.dinitial.dtype, m[r][k]);
}

template <int S>
KR_DEV void walk_either(const kr_ssd_bwd_params &p) {
  if (kr_block_y()) walk_after<S>(p);
  else walk<S, 1, 0>(p.f);
}
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_bwd_walks_s4(const kr_ssd_bwd_params p) { walk_either<4>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_bwd_walks_s16(const kr_ssd_bwd_params p) { walk_either<16>(p); }

/* ---- a chunk ---- */

/* A chunk's tokens for one head. a: cumulative log2-decays, each as two floats, since a chunk's sums can be large and
 * their differences small; bad: NaN decays so far, which the sums leave out; into: decay of a token's input to the
 * chunk's end, out: decay of the incoming state to a token. */
typedef struct chunk_steps {
  float raw[Q], d[Q], a[Q], rest[Q], bad[Q], segment[Q], into[Q], out[Q];
  float inputs[Q], before[Q], after[Q], q[Q];
  float keeps, sum[THREADS / 32];
} chunk_steps;

typedef struct place {
  int b, h, g, n; /* n: tokens */
  int64_t t0;
} place;

KR_DEV float nan_if(int is_nan, float v) { return is_nan ? kr_bits_to_float(0x7fc00000u) : v; }
KR_DEV float decay_between(const chunk_steps &s, int i, int j) {
  return nan_if(s.bad[i] != s.bad[j], kr_exp2((s.a[i] - s.a[j]) + (s.rest[i] - s.rest[j])));
}

/* Called by all threads; a chunk is short, so one thread scans it. Sums restart with each sequence, so no other
 * sequence's terms are in them. */
KR_DEV void prepare(const kr_ssd_params &f, const place &at, chunk_steps &s) {
  const int i = kr_thread();
  if (i < at.n) {
    s.raw[i] = raw_step(f, at.b, at.t0 + i, at.h);
    s.d[i] = clamp_step(f, f.softplus ? kr_softplus(s.raw[i]) : s.raw[i]);
    s.a[i] = log_decay_at(f, at.b, at.t0 + i, at.h, s.d[i], rate_of(f, at.h)) * KR_LOG2E;
  }
  kr_sync();
  if (i == 0) {
    float sum = 0, rest = 0, bad = 0, segment = 0;
    for (int t = 0; t < at.n; t++) {
      const int64_t token = at.t0 + t;
      const int32_t now = f.seq_idx ? f.seq_idx[at.b * f.seq_b + token * f.seq_t] : 0,
                    before = f.seq_idx && token ? f.seq_idx[at.b * f.seq_b + (token - 1) * f.seq_t] : 0;
      float step = s.a[t];
      step = step < -160.0f ? -160.0f : step;
      if (!(step == step)) step = 0, bad += 1.0f;
      const float next = sum + step, back = next - sum;
      rest += (sum - (next - back)) + (step - back);
      sum = next;
      if (now != before) sum = rest = bad = 0, segment += 1.0f;
      s.a[t] = sum, s.rest[t] = rest, s.bad[t] = bad, s.segment[t] = now < 0 ? -1.0f : segment;
    }
    const int last = at.n - 1;
    for (int t = 0; t < at.n; t++)
      s.into[t] = s.segment[t] == segment && s.segment[t] >= 0 ? decay_between(s, last, t) : 0.0f,
      s.out[t] = s.segment[t] == 0 ? nan_if(s.bad[t] > 0, kr_exp2(s.a[t] + s.rest[t])) : 0.0f;
    s.keeps = segment == 0 ? s.out[last] : 0.0f;
  }
  kr_sync();
}

KR_DEV float x_at(const kr_ssd_params &f, const place &at, const chunk_steps &s, int t, int c) {
  return s.segment[t] < 0 ? 0.0f : kr_load(f.x.data, of(f.x, at.b, at.t0 + t, at.h, c), f.x.dtype);
}
KR_DEV float B_at(const kr_ssd_params &f, const place &at, int t, int n) {
  return kr_load(f.Bmat.data, of(f.Bmat, at.b, at.t0 + t, at.g, n), f.Bmat.dtype);
}
KR_DEV float C_at(const kr_ssd_params &f, const place &at, int t, int n) {
  return kr_load(f.Cmat.data, of(f.Cmat, at.b, at.t0 + t, at.g, n), f.Cmat.dtype);
}

/* PART channels from c0 on of dout, gated, as the sums use it; zeros beyond. */
KR_DEV void stage_dy(const kr_ssd_params &f, const place &at, const chunk_steps &s, int c0, float *dy) {
  for (int i = kr_thread(); i < Q * PART; i += THREADS) {
    const int t = i / PART, c = c0 + i % PART;
    float v = 0;
    if (t < at.n && c < f.P && s.segment[t] >= 0) {
      v = kr_load(f.dout.data, of(f.dout, at.b, at.t0 + t, at.h, c), f.dout.dtype);
      if (f.z.data) v *= kr_silu(kr_load(f.z.data, of(f.z, at.b, at.t0 + t, at.h, c), f.z.dtype));
    }
    dy[t * (PART + 1) + i % PART] = v;
  }
}

/* A chunk's S or M: (channel, state), and the scales of its channels in float16. */
typedef struct kept_state {
  const void *data;
  const float *scales;
  int64_t from;
  int32_t N, dtype;
} kept_state;
KR_DEV kept_state kept_of(const kr_ssd_bwd_params &p, const place &at, const void *data, const float *scales) {
  const int64_t place = ((int64_t)at.b * p.f.H + at.h) * p.n_chunks + at.t0 / Q;
  return {data, p.f.kept_dtype == KRAIT_F16 ? scales + place * p.f.P : 0, place * p.f.P * p.f.N, p.f.N,
          p.f.kept_dtype};
}
KR_DEV float scale_at(const kept_state &s, int channel) { return s.scales ? s.scales[channel] : 1.0f; }
/* Without its channel's scale. */
KR_DEV float kept_at(const kept_state &s, int channel, int n) {
  return kr_load(s.data, s.from + (int64_t)channel * s.N + n, s.dtype);
}
KR_DEV float state_at(const kept_state &s, int channel, int n) { return kept_at(s, channel, n) * scale_at(s, channel); }

/* Sum over the four threads of a token. */
KR_DEV float add_four(float v) {
  v += kr_shuffle_xor(v, 1);
  return v + kr_shuffle_xor(v, 2);
}

KR_DEV float add_block(float v, float *sums) {
  float total = 0;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  if ((kr_thread() & 31) == 0) sums[kr_thread() >> 5] = v;
  kr_sync();
  for (int w = 0; w < THREADS / 32; w++) total += sums[w];
  return total;
}

/* dx of this part's channels, and <M_t, x_t (outer) B_t>. passes: C_i B_j times the decay from j to i. */
KR_DEV void give_dx(const kr_ssd_bwd_params &p, const place &at, chunk_steps &s, const float *passes, const float *dy,
                    const kept_state &M, int c0) {
  const kr_ssd_params &f = p.f;
  const int j = kr_thread() >> 2, end = f.P - c0 < PART ? f.P - c0 : PART;
  float inputs = 0, after = 0;
  for (int c = kr_thread() & 3; c < end && j < at.n; c += 4) {
    float within = 0, from_after = 0;
    for (int i = j & ~f.last_rank; i < at.n; i++)
      within = passes[i * ROW + j] == 0 ? within : kr_fma(passes[i * ROW + j], dy[i * (PART + 1) + c], within);
    for (int n = 0; s.into[j] != 0 && n < f.N; n++)
      from_after = kr_fma(kept_at(M, c0 + c, n), B_at(f, at, j, n), from_after);
    from_after *= s.into[j] * scale_at(M, c0 + c);
    const float x = x_at(f, at, s, j, c0 + c), all = within + from_after, own = dy[j * (PART + 1) + c];
    inputs = kr_fma(x, all, inputs), after = kr_fma(x, from_after, after);
    float dx = s.d[j] * all;
    if (f.D.data && !p.adds)
      dx = kr_fma(kr_load(f.D.data, of(f.D, at.b, at.t0 + j, at.h, c0 + c), f.D.dtype), own, dx);
    if (s.segment[j] < 0) dx = 0;
    if (p.adds) dx += ((const float *)p.all_dx.data)[of(p.all_dx, at.b, at.t0 + j, at.h, c0 + c)];
    if (p.keeps) ((float *)p.all_dx.data)[of(p.all_dx, at.b, at.t0 + j, at.h, c0 + c)] = dx;
    else if (p.dx.data) kr_store(p.dx.data, of(p.dx, at.b, at.t0 + j, at.h, c0 + c), p.dx.dtype, dx);
  }
  inputs = add_four(inputs), after = add_four(after);
  if ((kr_thread() & 3) == 0)
    s.inputs[j] = (c0 ? s.inputs[j] : 0) + inputs,
    s.after[j] = (c0 ? s.after[j] : 0) + (s.into[j] == 0 ? 0.0f : s.d[j] * after);
}

/* The inter-chunk terms of dC and dB, from S and M. */
KR_DEV void give_matrices(const kr_ssd_bwd_params &p, const place &at, chunk_steps &s, const float *dy,
                          const kept_state &S, const kept_state &M, int c0, int first) {
  const kr_ssd_params &f = p.f;
  const int t = kr_thread() >> 2, end = f.P - c0 < PART ? f.P - c0 : PART;
  float before = 0;
  for (int n = kr_thread() & 3; n < f.N && t < at.n; n += 4) {
    float *const sum_C = (float *)p.sum_C.data + of(p.sum_C, at.b, at.t0 + t, at.g, n), *const sum_B =
                                                                                            (float *)p.sum_B.data +
                                                                                            of(p.sum_B, at.b, at.t0 + t,
                                                                                               at.g, n);
    float c = 0, b = 0;
    for (int k = 0; s.out[t] != 0 && k < end; k++)
      c = kr_fma(dy[t * (PART + 1) + k], state_at(S, c0 + k, n), c);
    for (int k = 0; s.into[t] != 0 && k < end; k++)
      b = kr_fma(x_at(f, at, s, t, c0 + k), state_at(M, c0 + k, n), b);
    c *= s.out[t], b *= s.into[t] * s.d[t];
    if (s.out[t] != 0) before = kr_fma(C_at(f, at, t, n), c, before);
    *sum_C = first ? c : *sum_C + c;
    *sum_B = first ? b : *sum_B + b;
  }
  before = add_four(before);
  if ((kr_thread() & 3) == 0) s.before[t] = (c0 ? s.before[t] : 0) + before;
}

/* q of every token: from pairs (given[i][j]: from token j to a later token i; replaced by its sums over j), from the
 * state before the chunk, and to what follows it. */
KR_DEV void pass_over(chunk_steps &s, float *given, int n, float through) {
  const int t = kr_thread();
  if (t < n) {
    float sum = 0;
    for (int j = 0; j < t; j++) given[t * ROW + j] = sum += given[t * ROW + j];
  }
  kr_sync();
  if (t < n) {
    float pairs = 0;
    for (int i = t; t > 0 && i < n; i++) pairs += given[i * ROW + t - 1];
    s.q[t] = pairs;
  }
  kr_sync();
  if (t == 0) {
    float after = 0, before = 0;
    for (int i = 0; i < n; i++) {
      s.q[i] += after;
      after += s.after[i];
    }
    for (int i = n - 1; i >= 0; i--) {
      before += s.before[i];
      s.q[i] += before + through;
    }
  }
  kr_sync();
}

/* ddt of a head's tokens, and its sums over the chunk. */
KR_DEV void finish_steps(const kr_ssd_bwd_params &p, const place &at, chunk_steps &s, float *parts) {
  const kr_ssd_params &f = p.f;
  const int t = kr_thread();
  float dA = 0, bias = 0;
  if (t < at.n) {
    const int64_t kept = of(p.all_dd, at.b, at.t0 + t, at.h, 0);
    float dd = s.segment[t] < 0 ? 0.0f : f.A.data ? kr_fma(rate_of(f, at.h), s.q[t], s.inputs[t]) : s.inputs[t];
    dA = s.segment[t] < 0 ? 0.0f : s.d[t] * s.q[t];
    if (p.dlog_decay.data)
      kr_store(p.dlog_decay.data, of(p.dlog_decay, at.b, at.t0 + t, at.h, 0), p.dlog_decay.dtype,
               s.segment[t] < 0 ? 0.0f : s.q[t]);
    if (p.adds) dd += ((const float *)p.all_dd.data)[kept];
    if (p.keeps) ((float *)p.all_dd.data)[kept] = dd;
    const float unclamped = f.softplus ? kr_softplus(s.raw[t]) : s.raw[t];
    if (unclamped < f.dt_min || unclamped > f.dt_max) dd = 0;
    if (f.softplus && s.raw[t] <= 20.0f) dd *= kr_softplus_slope(unclamped);
    if (!p.keeps && p.ddt.data) kr_store(p.ddt.data, of(p.ddt, at.b, at.t0 + t, at.h, 0), p.ddt.dtype, dd);
    bias = dd;
  }
  kr_sync();
  dA = add_block(dA, s.sum);
  kr_sync();
  bias = add_block(bias, s.sum);
  if (t == 0) parts[f.P] = dA, parts[f.P + 1] = bias;
}

KR_DEV void run_head(const kr_ssd_bwd_params &p, const place &at, chunk_steps &s, float *passes, float *given,
                     float *dy, const float (&CB)[4][4], float (&W)[4][4], int first) {
  const kr_ssd_params &f = p.f;
  const int i0 = (kr_thread() >> 4) * 4, j0 = (kr_thread() & 15) * 4, chunk = (int)(at.t0 / Q);
  const kept_state S = kept_of(p, at, p.S, f.kept_scale), M = kept_of(p, at, p.M, p.M_scale);
  float *const parts = p.parts + (((int64_t)at.b * p.n_chunks + chunk) * f.H + at.h) * (f.P + 2);
  float xy[4][4] = {}, through = 0;
  prepare(f, at, s);
  for (int c0 = 0; c0 < f.P; c0 += PART) {
    kr_sync();
    stage_dy(f, at, s, c0, dy);
    kr_sync();
    for (int c = 0; c < PART && c0 + c < f.P; c++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float x = j0 + j < at.n ? x_at(f, at, s, j0 + j, c0 + c) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) xy[i][j] = kr_fma(dy[(i0 + i) * (PART + 1) + c], x, xy[i][j]);
      }
    if (kr_thread() < PART && c0 + kr_thread() < f.P) {
      float dD = 0;
      for (int t = 0; t < at.n; t++)
        dD = kr_fma(dy[t * (PART + 1) + kr_thread()], x_at(f, at, s, t, c0 + kr_thread()), dD);
      parts[c0 + kr_thread()] = dD;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int to = i0 + i, from = j0 + j,
                reaches = from <= (to | f.last_rank) && from < at.n && to < at.n &&
                          s.segment[to] == s.segment[from] && s.segment[to] >= 0;
      const float decay = reaches ? decay_between(s, to, from) : 0.0f,
                  v = reaches ? xy[i][j] * decay * s.d[from] : 0.0f;
      W[i][j] += v;
      if (f.has_token_D && p.dD.data && to == from && to < at.n)
        ((float *)p.dD.data)[of(p.dD, at.b, at.t0 + to, at.h, 0)] = xy[i][j];
      passes[to * ROW + from] = reaches ? CB[i][j] * decay : 0.0f;
      given[to * ROW + from] = reaches && from < to ? v * CB[i][j] : 0.0f;
    }
  for (int c0 = 0; c0 < f.P; c0 += PART) {
    kr_sync();
    stage_dy(f, at, s, c0, dy);
    kr_sync();
    give_dx(p, at, s, passes, dy, M, c0);
    give_matrices(p, at, s, dy, S, M, c0, first && c0 == 0);
  }
  if (s.keeps != 0)
    for (int c = kr_thread() >> 5; c < f.P; c += THREADS / 32)
      for (int n = kr_thread() & 31; n < f.N; n += 32)
        through = kr_fma(state_at(S, c, n), state_at(M, c, n), through);
  through = add_block(through, s.sum) * s.keeps;
  pass_over(s, given, at.n, s.keeps == 0 ? 0.0f : through);
  finish_steps(p, at, s, parts);
}

/* dB and dC: the heads' contributions, plus W (from j to i, summed over heads) times C and B. */
KR_DEV void finish_matrices(const kr_ssd_bwd_params &p, const place &at, const float *W) {
  const kr_ssd_params &f = p.f;
  const int t = kr_thread() >> 2;
  for (int n = kr_thread() & 3; n < f.N && t < at.n; n += 4) {
    float *const sum_C = (float *)p.sum_C.data + of(p.sum_C, at.b, at.t0 + t, at.g, n), *const sum_B =
                                                                                            (float *)p.sum_B.data +
                                                                                            of(p.sum_B, at.b, at.t0 + t,
                                                                                               at.g, n);
    float b = *sum_B, c = *sum_C;
    for (int i = t & ~f.last_rank; i < at.n; i++)
      b = W[i * ROW + t] == 0 ? b : kr_fma(W[i * ROW + t], C_at(f, at, i, n), b);
    for (int j = 0; j <= (t | f.last_rank) && j < at.n; j++)
      c = W[t * ROW + j] == 0 ? c : kr_fma(W[t * ROW + j], B_at(f, at, j, n), c);
    *sum_B = b, *sum_C = c;
    if (p.keeps) continue;
    if (p.dB.data) kr_store(p.dB.data, of(p.dB, at.b, at.t0 + t, at.g, n), p.dB.dtype, b);
    if (p.dC.data) kr_store(p.dC.data, of(p.dC, at.b, at.t0 + t, at.g, n), p.dC.dtype, c);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_chunks(const kr_ssd_bwd_params p) {
  KR_SHARED float passes[Q * ROW], given[Q * ROW], dy[Q * (PART + 1)];
  KR_SHARED chunk_steps s;
  const kr_ssd_params &f = p.f;
  place at = {kr_block_z(), 0, kr_block_y(), 0, 0};
  if (f.spoilt && !f.spoilt[at.b * f.H + at.g * f.heads]) return;
  const int i0 = (kr_thread() >> 4) * 4, j0 = (kr_thread() & 15) * 4;
#pragma unroll 1
  for (int chunk = kr_block_x(); chunk < p.n_chunks; chunk += kr_grid_x()) {
    at.t0 = (int64_t)chunk * Q, at.n = f.L - at.t0 < Q ? (int)(f.L - at.t0) : Q;
    float CB[4][4] = {}, W[4][4] = {};
    for (int n = 0; n < f.N; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float B = j0 + j < at.n ? B_at(f, at, j0 + j, n) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) CB[i][j] = kr_fma(i0 + i < at.n ? C_at(f, at, i0 + i, n) : 0.0f, B, CB[i][j]);
      }
    for (int k = 0; k < f.heads; k++) {
      at.h = at.g * f.heads + k;
      kr_sync();
      run_head(p, at, s, passes, given, dy, CB, W, k == 0 && !p.adds);
    }
    kr_sync();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) given[(i0 + i) * ROW + j0 + j] = W[i][j];
    kr_sync();
    finish_matrices(p, at, given);
  }
}

/* One block per head, each warp takes some rows of its parts: a lane takes channels, then dA and the bias. */
KR_KERNEL void KR_BOUNDS(KR_SSD_BWD_ADDERS, 1) kr_ssd_bwd_add(const kr_ssd_bwd_params p) {
  enum { WARPS = KR_SSD_BWD_ADDERS / 32, AT_ONCE = 3 };
  KR_SHARED float sums[WARPS][32 * AT_ONCE];
  const kr_ssd_params &f = p.f;
  const int h = kr_block_x(), warp = kr_thread() >> 5, lane = kr_thread() & 31;
  const int64_t n = (int64_t)f.B * p.n_chunks, step = WARPS * (int64_t)f.H * (f.P + 2);
  float own_D = 0; /* of one D for all channels */
  for (int first = 0; first < f.P + 2; first += 32 * AT_ONCE) {
    const float *from = p.parts + (warp * (int64_t)f.H + h) * (f.P + 2) + first + lane;
    float sum[AT_ONCE] = {};
    int counts[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int c = first + 32 * k + lane;
      counts[k] = c < f.P + 2 && (c < f.P ? p.dD : c == f.P ? p.dA : p.dbias).data && (c >= f.P || !f.has_token_D);
    }
#pragma unroll 4
    for (int64_t i = warp; i < n; i += WARPS, from += step)
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) sum[k] += counts[k] ? from[32 * k] : 0.0f;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) sums[warp][32 * k + lane] = sum[k];
    kr_sync();
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int c = first + 32 * k + lane;
      const kr_ssd_tensor &to = c < f.P ? p.dD : c == f.P ? p.dA : p.dbias;
      if (warp || !counts[k]) continue;
#pragma unroll
      for (int w = 1; w < WARPS; w++) sum[k] += sums[w][32 * k + lane];
      if (c < f.P && !to.n) own_D += sum[k];
      else ((float *)to.data)[h * to.h + (c < f.P ? c * to.n : 0)] = sum[k];
    }
    kr_sync();
  }
  if (warp || !p.dD.data || p.dD.n || f.has_token_D) return;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) own_D += kr_shuffle_xor(own_D, d);
  if (lane == 0) ((float *)p.dD.data)[h * p.dD.h] = own_D;
}
