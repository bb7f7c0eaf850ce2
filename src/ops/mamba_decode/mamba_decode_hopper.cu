/* mamba_decode_hopper.cu: Mamba's and Mamba-2's layers in one launch (mamba_decode_stream.cuh). First come rows whose
 * results everybody waits for: x, whose u is on its way while z is multiplied; Mamba-2's B, C and dt before both.
 * Weights of 8 bits are multiplied as they are: inputs become two bytes a value with a step per 32, and tensor cores
 * sum bytes exactly. */
#include "mamba_decode_stream.cuh"

/* ---- Mamba's columns and scan ------------------------------------------------------------------------------------ */

/* x_proj's rows: all warps share K, since few rows leave most teams nothing. */
template <int Q8>
KR_DEV void multiply_columns(worker &b, const segment &s, uint32_t tag) {
  const kr_stream_params &params = *b.params;
  operands<Q8, COLUMN_UNITS> x;
  take_inputs<Q8, WARPS>(b, 0, own_warp(), x);
  for (int i = 0; i < stages_of(s); i++) {
    float *sums = FLOATS(column_sums) + (i & 1) * OUT_EACH * WARPS;
    kr_barrier_await(BARRIERS(full) + 8 * b.at.slot, b.at.round);
    const float part = sum_rows<OUT_EACH, WARPS>(b.memory + b.at.slot * params.stage_bytes, own_warp(), x);
    const int own = own_row<OUT_EACH, Q8>(), row = i * OUT_EACH + fresh_thread();
    if (own >= 0) sums[own * WARPS + own_warp()] = part;
    sync_workers();
    if (fresh_thread() < QUARTERS) kr_barrier_arrive(BARRIERS(empty) + 8 * b.at.slot);
    if (fresh_thread() < OUT_EACH && row < s.n) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) sum += sums[fresh_thread() * WARPS + w];
      kr_put_word(params.column_words + s.first + row, (uint64_t)kr_float_to_bits(sum) | (uint64_t)tag << 32);
    }
    b.turn = (b.turn + 1) & (TEAMS - 1);
    advance(b.at, 1, params.n_stages);
  }
}

KR_DEV void gather_columns(const worker &b, uint32_t tag) {
  for (int i = fresh_thread(); i < b.params->p.n_columns; i += WORKERS) {
    uint64_t word;
    while ((uint32_t)((word = kr_get_word(b.params->column_words + i)) >> 32) != tag) kr_poll_again();
    FLOATS(columns)[i] = kr_bits_to_float((uint32_t)word);
  }
  sync_workers();
}

/* Four lanes a channel, four states each. */
typedef struct scan_terms {
  float s[4], A[4], D, bias;
} scan_terms;

KR_DEV void read_scan(const worker &b, int layer, scan_terms &t) {
  const kr_decode_params &p = b.params->p;
  const int me = fresh_thread(), i = me / 4, c = b.s.channels.from + i;
  if (i >= b.s.channels.n) return;
  read_states(p.ssm_state, own_states(b, layer, i, me % 4), t.s);
  const kr_float4 A = *(const kr_float4 *)(p.A.data + layer * p.A.layer + c * p.A.row + 4 * (me % 4));
#pragma unroll
  for (int k = 0; k < 4; k++) t.A[k] = A.v[k];
  t.D = p.D.data[layer * p.D.layer + c], t.bias = p.dt_bias.data[layer * p.dt_bias.layer + c];
}

KR_DEV float over_four(float v) {
  v += kr_shuffle_xor(v, 2);
  return v + kr_shuffle_xor(v, 1);
}

/* dt_proj's row of channel i times the columns' first R, by four lanes. */
KR_DEV float time_step(const worker &b, int i, int lane) {
  const int R = b.params->p.R;
  float sum = 0.0f;
  for (int k = 4 * lane; k < R; k += 16) {
    float w[4], x[4];
    load_four(b.memory + b.params->at.dt_rows + 2 * (i * R + k), w);
    load_floats(FLOATS(columns) + k, x);
#pragma unroll
    for (int j = 0; j < 4; j++) sum = kr_fma(w[j], x[j], sum);
  }
  return over_four(sum);
}

KR_DEV void scan(const worker &b, int layer, float scale, scan_terms &t) {
  const kr_decode_params &p = b.params->p;
  const int me = fresh_thread(), lane = me % 4, exists = me / 4 < b.s.channels.n, i = exists ? me / 4 : 0;
  if ((me & ~31) / 4 >= b.s.channels.n) return;
  const float dt = kr_softplus(time_step(b, i, lane) + t.bias), x = FLOATS(x)[i],
              *columns = FLOATS(columns) + p.R + 4 * lane;
  float y = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++)
    t.s[k] = kr_fma(kr_exp(dt * t.A[k]), t.s[k], dt * x * columns[k]), y = kr_fma(columns[p.N + k], t.s[k], y);
  y = over_four(y);
  if (!exists) return;
  if (lane == 0) FLOATS(y)[i] = kr_fma(t.D, x, y) * kr_silu(sum_of(FLOATS(z_sums) + 4 * i) * scale);
  write_states(p.ssm_state, own_states(b, layer, i, lane), t.s);
}

/* dt_proj's rows of a layer, into their own place. */
KR_DEV void load_dt_rows(const worker &b, int layer) {
  const kr_decode_params &p = b.params->p;
  const int bytes = b.s.channels.n * 2 * p.R;
  kr_show_to_copies();
  kr_barrier_expect(BARRIERS(dt_full), bytes);
  load_once(kr_once(), (b.memory + b.params->at.dt_rows),
            p.dt_proj.data + layer * p.dt_proj.layer + b.s.channels.from * p.dt_proj.row, bytes, BARRIERS(dt_full));
}

/* ---- Mamba-2's scan ---------------------------------------------------------------------------------------------- */

typedef struct head_terms {
  float s[SCANS][4], A[SCANS], bias[SCANS];
  float D[2]; /* a group's; of the channel whose y this lane writes */
} head_terms;

template <int FROM, int N>
KR_DEV float read_factor(const worker &b, const float *D) {
  const int i = summed_channel<FROM, N>();
  return i < b.s.channels.n ? D[head_of(b, i)] : 0.0f;
}

KR_DEV void read_heads(const worker &b, int layer, head_terms &t) {
  const kr_decode_params &p = b.params->p;
  const float *const A = p.A.data + layer * p.A.layer, *const D = p.D.data + layer * p.D.layer,
                     *const bias = p.dt_bias.data + layer * p.dt_bias.layer;
#pragma unroll
  for (int k = 0; k < SCANS; k++) {
    const int i = own_channel(k), exists = i < b.s.channels.n, h = head_of(b, exists ? i : 0);
    t.A[k] = A[h], t.bias[k] = bias[h];
#pragma unroll
    for (int j = 0; j < 4; j++) t.s[k][j] = 0.0f;
    if (exists && has_states(b)) read_states(p.ssm_state, own_states(b, layer, i, own_lane()), t.s[k]);
  }
  t.D[0] = read_factor<0, FIRST_SCANS>(b, D), t.D[1] = read_factor<FIRST_SCANS, OTHER_SCANS>(b, D);
}

/* Of the columns: this lane's B and C; nothing of C where it has no states. */
typedef struct inner_terms {
  float B[4], C[4];
} inner_terms;
KR_DEV void take_columns(const worker &b, inner_terms &c) {
  const int has = has_states(b), from = has ? 4 * own_lane() : 0;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float C = FLOATS(columns)[b.params->p.N + from + j];
    c.B[j] = FLOATS(columns)[from + j], c.C[j] = has ? C : 0.0f;
  }
}

template <int FROM, int N>
KR_DEV void scan_group(const worker &b, int layer, float scale, const inner_terms &c, float D, head_terms &t) {
  const kr_decode_params &p = b.params->p;
  float y[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    const int at = FROM + k, i = own_channel(at) < b.s.channels.n ? own_channel(at) : 0;
    const float dt = kr_softplus(FLOATS(columns)[2 * p.N + head_of(b, i)] + t.bias[at]), decay = kr_exp(dt * t.A[at]),
                step = dt * FLOATS(x)[i];
    y[k] = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
      t.s[at][j] = kr_fma(decay, t.s[at][j], step * c.B[j]), y[k] = kr_fma(c.C[j], t.s[at][j], y[k]);
  }
  const float sum = over_lanes<16>(y);
  write_group<FROM, N>(b, layer, t.s);
  const int i = summed_channel<FROM, N>();
  if (own_lane() % (32 / N) == 0 && i < b.s.channels.n)
    FLOATS(y)[i] = kr_fma(D, FLOATS(x)[i], sum) * kr_silu(sum_of(FLOATS(z_sums) + 4 * i) * scale);
}

KR_DEV void scan_heads(const worker &b, int layer, float scale, head_terms &t) {
  inner_terms c;
  take_columns(b, c);
  scan_group<0, FIRST_SCANS>(b, layer, scale, c, t.D[0], t);
  if (FIRST_SCANS * WARPS < b.s.channels.n) scan_group<FIRST_SCANS, OTHER_SCANS>(b, layer, scale, c, t.D[1], t);
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

/* The convolution's operands of a thread: channel i of the block's; behind them, Mamba-2's columns. */
template <int SECOND>
KR_DEV int convolved(const worker &b, int i) {
  const kr_decode_params &p = b.params->p;
  if (i < b.s.channels.n) return b.s.channels.from + i;
  const int column = b.s.columns.from + i - b.s.channels.n;
  return SECOND && i - b.s.channels.n < b.s.columns.n && column < p.n_columns - p.H ? p.inner + column : -1;
}

template <int SECOND>
KR_DEV void read_own_taps(const worker &b, int layer, taps &t) {
  const int c = convolved<SECOND>(b, fresh_thread());
  if (c < 0) return;
  place_taps(b.params->p, layer, b.slot, c, t);
  read_taps(b.params->p, layer, c, t);
}

/* The block's channels: u. */
template <int SECOND>
KR_DEV void finish_x(const worker &b, const taps &t, float scale) {
  const int i = fresh_thread();
  if (i < b.s.channels.n) {
    const float u = convolve(b.params->p, t, sum_of(FLOATS(sums) + 4 * i) * scale);
    FLOATS(x)[i] = SECOND ? u : from_half(to_half(u));
  }
  sync_workers();
}

/* Mamba-2's B, C and dt, to everybody. */
template <int SECOND>
KR_DEV void finish_columns(const worker &b, const taps &t, float scale, uint32_t tag) {
  const int i = fresh_thread() - b.s.channels.n;
  if (i < 0 || i >= b.s.columns.n) return;
  const float sum = sum_of(FLOATS(column_sums) + 4 * i) * scale,
              v = convolved<SECOND>(b, fresh_thread()) < 0 ? sum : convolve(b.params->p, t, sum);
  kr_put_word(b.params->column_words + b.s.columns.from + i, (uint64_t)kr_float_to_bits(v) | (uint64_t)tag << 32);
}

/* From in_proj's inputs to u of all blocks (Mamba), and the columns. Returns the norm's scale. */
template <int SECOND, int Q8>
KR_DEV float project_in(worker &b, const taps &t, const operands<Q8, IN_UNITS> &x, uint32_t tag) {
  const kr_stream_params &params = *b.params;
  const kr_decode_params &p = params.p;
  const segment xs = segment_of<SECOND, Q8>(params, b.s, X_ROWS), z = segment_of<SECOND, Q8>(params, b.s, Z_ROWS),
                columns = segment_of<SECOND, Q8>(params, b.s, COLUMN_ROWS);
  const float scale = scale_of(FLOATS(squares), p.width, p.eps);
  const int before = stages_before<SECOND>(z);
  if (SECOND) {
    multiply<IN_EACH>(b, columns, 0, stages_of(columns), x, FLOATS(column_sums));
    sync_workers();
    finish_columns<SECOND>(b, t, scale, tag);
  }
  multiply<IN_EACH>(b, xs, 0, stages_of(xs), x, FLOATS(sums));
  sync_workers();
  finish_x<SECOND>(b, t, scale);
  if (!SECOND) send(mail_of_u(params), FLOATS(x), tag);
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    multiply<IN_EACH>(b, z, half ? before : 0, half ? stages_of(z) : before, x, FLOATS(z_sums));
    if (half || SECOND) break;
    gather_halves<U_PAIRS>(b, mail_of_u(params), tag);
    multiply_columns<Q8>(b, columns, tag);
  }
  gather_columns(b, tag);
  return scale;
}

/* y of all blocks times out_proj; gates: of Mamba-2's norm. */
template <int SECOND, int Q8>
KR_DEV void project_out(worker &b, int layer, uint32_t tag, const factors<Y_PAIRS> &gates) {
  const kr_stream_params &params = *b.params;
  const kr_decode_params &p = params.p;
  const segment out = segment_of<SECOND, Q8>(params, b.s, OUT_ROWS);
  const mail m = mail_of_y<SECOND>(params);
  operands<Q8, OUT_UNITS> x;
  sync_workers();
  send(m, FLOATS(y), tag);
  if (SECOND) {
    gather_normed(b, m, find_received<Y_PAIRS>(m), gates, tag, FLOATS(gate_squares));
  } else {
    if (fresh_thread() == 32 && layer + 1 < p.n_layers) load_dt_rows(b, layer + 1);
    gather_halves<U_PAIRS>(b, m, tag);
  }
  take_inputs<Q8, QUARTERS>(b, SECOND, own_quarter(), x);
  multiply<OUT_EACH>(b, out, 0, stages_of(out), x, FLOATS(out_sums));
  sync_workers();
  finish_out(b, SECOND ? scale_of(FLOATS(gate_squares), p.inner, 1e-5f) : 1.0f, layer + 1 == p.n_layers, tag);
}

template <int SECOND, int Q8>
KR_DEV void run_layers(worker &b) {
  const kr_stream_params &params = *b.params;
  const kr_decode_params &p = params.p;
  if (!SECOND && fresh_thread() == 32) load_dt_rows(b, 0);
#pragma unroll 1
  for (int layer = 0; layer < p.n_layers; layer++) {
    const uint32_t tag = (uint32_t)layer + 1;
    taps t;
    scan_terms lanes;
    head_terms heads;
    factors<STREAM_PAIRS> norm;
    read_own_taps<SECOND>(b, layer, t);
    if (SECOND)
      read_heads(b, layer, heads);
    else
      read_scan(b, layer, lanes);
    const received<STREAM_PAIRS> of_stream = find_received<STREAM_PAIRS>(mail_of_stream(params));
    read_factors(p.norm, layer, of_stream, norm);
    if (layer)
      gather_normed(b, mail_of_stream(params), of_stream, norm, tag - 1, FLOATS(squares));
    else
      start_normed(b, of_stream, norm);
    operands<Q8, IN_UNITS> x;
    take_inputs<Q8, QUARTERS>(b, 1, own_quarter(), x);
    const float scale = project_in<SECOND>(b, t, x, tag);
    factors<Y_PAIRS> gates;
    if (SECOND) {
      read_factors(p.gate_norm, layer, find_received<Y_PAIRS>(mail_of_y<SECOND>(params)), gates);
      scan_heads(b, layer, scale, heads);
    } else
      kr_barrier_await(BARRIERS(dt_full), layer & 1), scan(b, layer, scale, lanes);
    project_out<SECOND, Q8>(b, layer, tag, gates);
  }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

template <int SECOND, int Q8>
KR_DEV void run(const kr_stream_params &params) {
  KR_DYNAMIC_SHARED(shared);
  worker b;
  if (!begin(params, shared, b)) return;
  if (kr_thread() < WORKERS) return run_layers<SECOND, Q8>(b);
  copy_weights<SECOND, Q8>(b);
}

KR_KERNEL void KR_BOUNDS(KR_STREAM_THREADS, 1) kr_mamba_stream(const kr_stream_params params) { run<0, 0>(params); }
KR_KERNEL void KR_BOUNDS(KR_STREAM_THREADS, 1) kr_mamba2_stream(const kr_stream_params params) { run<1, 0>(params); }
#ifdef KR_HALF
KR_KERNEL void KR_BOUNDS(KR_STREAM_THREADS, 1) kr_mamba_stream_q8(const kr_stream_params params) { run<0, 1>(params); }
KR_KERNEL void KR_BOUNDS(KR_STREAM_THREADS, 1) kr_mamba2_stream_q8(const kr_stream_params params) { run<1, 1>(params); }
#endif
