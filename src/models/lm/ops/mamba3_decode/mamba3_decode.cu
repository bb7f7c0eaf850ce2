/* mamba3_decode.cu: Mamba-3's layers in one launch (mamba_decode_stream.cuh). Rows of B, C, dt, A, trap and angles come
 * first; their results are on their way to everybody while x and z are multiplied. A block's channels are of one head
 * or two, each of whose key and query two warps make. All blocks of a head read its last key and its angles; that of
 * its first channel replaces them when it has everybody's y, which is made of them. */
#include "../../../../ops/mamba_decode/mamba_decode_stream.cuh"
#include "../mamba3_raw_step/mamba3_raw_step.cuh"
#include "mamba3_decode_params.h"

enum { KIND = KR_DECODE_MAMBA3, HEADS = KR_STREAM_HEADS, VECTORS = 2 /* of a head: key, query */ };

KR_DEV const kr_stream3_params &params3_of(const worker &b) { return *(const kr_stream3_params *)b.params; }
KR_DEV kr_stream_head *heads_of(const worker &b) { return (kr_stream_head *)(b.memory + b.params->at.heads); }

/* ---- keys and queries -------------------------------------------------------------------------------------------- */

/* The head of the block, from 0, and the vector that a warp makes: 0 the key, 1 the query. */
KR_DEV int made_head(void) { return own_warp() & (HEADS - 1); }
KR_DEV int made_vector(void) { return own_warp() / HEADS; }
KR_DEV int makes(const worker &b) {
  return made_vector() < VECTORS && head_of(b, 0) + made_head() <= head_of(b, b.s.channels.n - 1);
}

/* What a lane reads ahead for the vector that its warp makes, and what it makes of it. */
typedef struct vector_terms {
  kr_float4 norm, bias, last, made;
  float angle[2], dt_bias;
} vector_terms;

/* Of a head's keys or angles of a layer. */
KR_DEV int64_t kept_of_head(const kr_decode_state &s, const worker &b, int layer, int h) {
  return layer * s.layer + (int64_t)b.slot * s.slot + h * s.channel;
}

KR_DEV void read_vector(const worker &b, int layer, vector_terms &t) {
  const kr_stream3_params &p = params3_of(b);
  const int n = 4 * own_lane(), h = head_of(b, 0) + made_head();
  const kr_decode_floats &bias = made_vector() ? p.C_bias : p.B_bias;
  t.norm = t.bias = t.last = kr_float4{{0, 0, 0, 0}}, t.angle[0] = t.angle[1] = t.dt_bias = 0.0f;
  if (!makes(b)) return;
  t.dt_bias = p.s.p.dt_bias.data[layer * p.s.p.dt_bias.layer + h];
  if (!has_states(b)) return;
  t.norm = *(const kr_float4 *)(p.BC_norm.data + layer * p.BC_norm.layer + made_vector() * p.s.p.N + n);
  t.bias = *(const kr_float4 *)(bias.data + layer * bias.layer + h * bias.row + n);
  t.last = *(const kr_float4 *)((const float *)p.keys.data + kept_of_head(p.keys, b, layer, h) + n);
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (n / 2 + k < p.M) t.angle[k] = ((const float *)p.angles.data)[kept_of_head(p.angles, b, layer, h) + n / 2 + k];
}

/* From the columns; every lane of the warp. */
KR_DEV void make_vector(const worker &b, vector_terms &t) {
  const kr_stream3_params &p = params3_of(b);
  const float *const columns = FLOATS(columns), *const dt = columns + 2 * p.s.p.N;
  const int H = p.s.p.H, has = has_states(b), n = has ? 4 * own_lane() : 0, h = head_of(b, 0) + made_head();
  const float d = kr_softplus(dt[h] + t.dt_bias);
  float v[4], square = 0.0f;
  load_floats(columns + made_vector() * p.s.p.N + n, v);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = has ? v[k] : 0.0f, square = kr_fma(v[k], v[k], square);
#pragma unroll
  for (int by = 16; by; by /= 2) square += kr_shuffle_xor(square, by);
  const float scale = kr_rsqrt(kr_fma(square, p.inverse_N, 1e-5f));
#pragma unroll
  for (int k = 0; k < 4; k++) t.made.v[k] = kr_fma(v[k] * scale, t.norm.v[k], t.bias.v[k]);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    if (!has || n / 2 + k >= p.M) continue;
    const uint32_t turn = add_turns(turn_of_angle(t.angle[k]), turn_of_step(dt[3 * H + n / 2 + k], d));
    turn_pair(t.made, k, rotation_of(turn));
    t.angle[k] = angle_of(turn);
  }
}

KR_DEV void scale_to(float *to, float by, const kr_float4 &v) {
  *(kr_float4 *)to = kr_float4{{by * v.v[0], by * v.v[1], by * v.v[2], by * v.v[3]}};
}

/* For all warps of the block. */
KR_DEV void make_heads(const worker &b, vector_terms &t) {
  const kr_stream3_params &p = params3_of(b);
  if (makes(b)) {
    kr_stream_head &to = heads_of(b)[made_head()];
    const int h = head_of(b, 0) + made_head(), H = p.s.p.H, at = 4 * own_lane();
    const float *const dt = FLOATS(columns) + 2 * p.s.p.N + h;
    make_vector(b, t);
    if (made_vector()) {
      *(kr_float4 *)(to.query + at) = t.made;
    } else {
      const float d = kr_softplus(dt[0] + t.dt_bias), trap = dt[2 * H],
                  alpha = kr_exp(-rate_of(p.flags, p.A_floor, dt[H]) * d);
      scale_to(to.last + at, kr_sigmoid(-trap) * d * alpha, t.last);
      scale_to(to.key + at, kr_sigmoid(trap) * d, t.made);
      if (at == 0) to.alpha[0] = alpha;
    }
  }
  sync_workers();
}

/* Key and angles of a head whose first channel is the block's, when all blocks have read the last ones. */
KR_DEV void keep_heads(const worker &b, int layer, const vector_terms &t) {
  const kr_stream3_params &p = params3_of(b);
  const int n = 4 * own_lane(), h = head_of(b, 0) + made_head();
  if (!makes(b) || made_vector() || !has_states(b) || h * p.s.p.head_width < b.s.channels.from) return;
  *(kr_float4 *)((float *)p.keys.data + kept_of_head(p.keys, b, layer, h) + n) = t.made;
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (n / 2 + k < p.M) ((float *)p.angles.data)[kept_of_head(p.angles, b, layer, h) + n / 2 + k] = t.angle[k];
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

typedef struct channel_terms {
  float s[SCANS][4], last[SCANS]; /* states; the last token's x */
  float D;                        /* of this thread's channel */
} channel_terms;

KR_DEV int64_t last_value(const worker &b, int layer, int i) {
  const kr_decode_state &v = params3_of(b).values;
  return layer * v.layer + (int64_t)b.slot * v.slot + b.s.channels.from + i;
}

KR_DEV void read_channels(const worker &b, int layer, channel_terms &t) {
  const kr_stream3_params &p = params3_of(b);
  const float *const D = p.s.p.D.data + layer * p.s.p.D.layer, *const values = (const float *)p.values.data;
#pragma unroll
  for (int k = 0; k < SCANS; k++) {
    const int i = own_channel(k), exists = i < b.s.channels.n;
    t.last[k] = exists ? values[last_value(b, layer, i)] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) t.s[k][j] = 0.0f;
    if (exists && has_states(b)) read_states(p.s.p.ssm_state, own_states(b, layer, i, own_lane()), t.s[k]);
  }
  t.D = fresh_thread() < b.s.channels.n ? D[head_of(b, fresh_thread())] : 0.0f;
}

/* A lane's part of a head. */
typedef struct head_part {
  float last[4], key[4], query[4], alpha;
} head_part;
KR_DEV void take_head(const worker &b, int head, head_part &h) {
  const kr_stream_head &from = heads_of(b)[head];
  const int at = 4 * own_lane();
  load_floats(from.last + at, h.last), load_floats(from.key + at, h.key), load_floats(from.query + at, h.query);
  h.alpha = from.alpha[0];
}

template <int FROM, int N>
KR_DEV void scan_channels(const worker &b, int layer, channel_terms &t, head_part &head, int &taken) {
  float y[N];
#pragma unroll
  for (int k = 0; k < N; k++) {
    const int at = FROM + k, i = own_channel(at) < b.s.channels.n ? own_channel(at) : 0,
              own = own_channel(at) < b.s.channels.n ? head_of(b, i) - head_of(b, 0) : taken;
    if (own != taken) take_head(b, own, head), taken = own;
    const float x = FLOATS(x)[i];
    y[k] = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      t.s[at][j] = kr_fma(x, head.key[j], kr_fma(t.last[at], head.last[j], head.alpha * t.s[at][j]));
      y[k] = kr_fma(head.query[j], t.s[at][j], y[k]);
    }
  }
  const float sum = over_lanes<16>(y);
  write_group<FROM, N>(b, layer, t.s);
  const int i = summed_channel<FROM, N>();
  if (own_lane() % (32 / N) == 0 && i < b.s.channels.n) FLOATS(y)[i] = sum;
}

KR_DEV void scan_layer(const worker &b, int layer, channel_terms &t) {
  head_part head;
  int taken = 0;
  take_head(b, 0, head);
  scan_channels<0, FIRST_SCANS>(b, layer, t, head, taken);
  if (FIRST_SCANS * WARPS < b.s.channels.n) scan_channels<FIRST_SCANS, OTHER_SCANS>(b, layer, t, head, taken);
}

/* ---- a layer ----------------------------------------------------------------------------------------------------- */

KR_DEV mail mail_of_columns(const kr_stream_params &p) {
  return mail{p.column_words, p.columns, p.column_pairs, 4, p.over_column_pairs};
}

KR_DEV void send_columns(const worker &b, float scale, uint32_t tag) {
  const mail m = mail_of_columns(*b.params);
  const int i = fresh_thread();
  float v[4];
  if (i >= m.pairs) return;
#pragma unroll
  for (int k = 0; k < 4; k++)
    v[k] = 4 * i + k < b.s.columns.n ? sum_of(FLOATS(column_sums) + 4 * (4 * i + k)) * scale : 0.0f;
  kr_put_words(m.words + 2 * (kr_block_x() * m.pairs + i), two_floats(v, tag), two_floats(v + 2, tag));
}

KR_DEV void receive_columns(const worker &b, uint32_t tag) {
  const mail m = mail_of_columns(*b.params);
  const received<KR_STREAM_COLUMN_PAIRS> r = find_received<KR_STREAM_COLUMN_PAIRS>(m);
  uint64_t low[KR_STREAM_COLUMN_PAIRS], high[KR_STREAM_COLUMN_PAIRS];
  receive(m, r, tag, low, high);
#pragma unroll
  for (int k = 0; k < KR_STREAM_COLUMN_PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < r.n[k]) FLOATS(columns)[r.from[k] + i] = from24(i < 2 ? low[k] : high[k], i % 2);
  sync_workers();
}

/* x of the block's channels, which is also kept: nobody else has its last. */
KR_DEV void finish_values(const worker &b, int layer, float scale) {
  const int i = fresh_thread();
  if (i < b.s.channels.n) {
    const float x = sum_of(FLOATS(sums) + 4 * i) * scale;
    FLOATS(x)[i] = x, ((float *)params3_of(b).values.data)[last_value(b, layer, i)] = x;
  }
}

/* From in_proj's inputs to y of the block's channels without its gate, and z. In the middle of z everybody's columns
 * are there, and while heads and states are made of them the other half is on its way. Returns the norm's scale. */
KR_DEV float project_in(worker &b, int layer, const operands<0, IN_UNITS> &x, vector_terms &vector,
                        channel_terms &channels, uint32_t tag) {
  enum { Q8 = 0 };
  const kr_stream_params &params = *b.params;
  const segment xs = segment_of<KIND, Q8>(params, b.s, X_ROWS), z = segment_of<KIND, Q8>(params, b.s, Z_ROWS),
                columns = segment_of<KIND, Q8>(params, b.s, COLUMN_ROWS);
  const float scale = scale_of(FLOATS(squares), params.p.width, params.p.eps);
  const int all = stages_of(z), before = all / 2;
  multiply<IN_EACH>(b, columns, 0, stages_of(columns), x, FLOATS(column_sums));
  sync_workers();
  send_columns(b, scale, tag);
  multiply<IN_EACH>(b, xs, 0, stages_of(xs), x, FLOATS(sums));
  sync_workers();
  finish_values(b, layer, scale);
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    multiply<IN_EACH>(b, z, half ? before : 0, half ? all : before, x, FLOATS(z_sums));
    if (half) break;
    receive_columns(b, tag);
    make_heads(b, vector);
    scan_layer(b, layer, channels);
  }
  return scale;
}

KR_DEV void close_gates(const worker &b, float scale, float D) {
  const int i = fresh_thread();
  if (i < b.s.channels.n)
    FLOATS(y)[i] = kr_fma(D, FLOATS(x)[i], FLOATS(y)[i]) * kr_silu(sum_of(FLOATS(z_sums) + 4 * i) * scale);
  sync_workers();
}

/* y of all blocks times out_proj. */
KR_DEV void project_out(worker &b, int layer, float scale, float D, uint32_t tag, const vector_terms &t) {
  enum { Q8 = 0 };
  const kr_stream_params &params = *b.params;
  const segment out = segment_of<KIND, Q8>(params, b.s, OUT_ROWS);
  const mail m = mail_of_y<KIND>(params);
  operands<Q8, OUT_UNITS> x;
  sync_workers();
  close_gates(b, scale, D);
  send(m, FLOATS(y), tag);
  gather_halves<U_PAIRS>(b, m, tag);
  keep_heads(b, layer, t);
  take_inputs<Q8, QUARTERS>(b, 0, own_quarter(), x);
  multiply<OUT_EACH>(b, out, 0, stages_of(out), x, FLOATS(out_sums));
  sync_workers();
  finish_out(b, 1.0f, layer + 1 == params.p.n_layers, tag);
}

KR_DEV void run_layers(worker &b) {
  const kr_stream_params &params = *b.params;
  const kr_decode_params &p = params.p;
#pragma unroll 1
  for (int layer = 0; layer < p.n_layers; layer++) {
    const uint32_t tag = (uint32_t)layer + 1;
    channel_terms channels;
    vector_terms vector;
    factors<STREAM_PAIRS> norm;
    read_channels(b, layer, channels), read_vector(b, layer, vector);
    const received<STREAM_PAIRS> of_stream = find_received<STREAM_PAIRS>(mail_of_stream(params));
    read_factors(p.norm, layer, of_stream, norm);
    if (layer)
      gather_normed(b, mail_of_stream(params), of_stream, norm, tag - 1, FLOATS(squares));
    else
      start_normed(b, of_stream, norm);
    operands<0, IN_UNITS> x;
    take_inputs<0, QUARTERS>(b, 1, own_quarter(), x);
    const float scale = project_in(b, layer, x, vector, channels, tag);
    project_out(b, layer, scale, channels.D, tag, vector);
  }
}

KR_KERNEL void KR_BOUNDS(KR_STREAM_THREADS, 1) kr_mamba3_stream(const kr_stream3_params params) {
  KR_DYNAMIC_SHARED(shared);
  worker b;
  if (!begin(params.s, shared, b)) return;
  if (kr_thread() < WORKERS) return run_layers(b);
  copy_weights<KIND, 0>(b);
}
