/* primeknet_graph.c: PrimeKnet as calls of a graph: its parameters, from the table of keys, in blocks on maps
 * (ops/map_blocks.h). */
#include "primeknet_graph.h"

#include <stdarg.h>
#include <stdio.h>

#include "primeknet_weights.h"
#include "builder.h"

_Static_assert((int)KR_PK_MAX_DEPTH <= (int)KR_DENSE_MOST, "layers that a dense block holds");
_Static_assert((int)KR_PK_MAX_KERNELS <= (int)KR_FILTER_BANK_MOST, "chunks that a bank holds");

typedef struct maker {
  kr_builder w;
  const kr_pk_config *c;
  kr_pk_parameter_fn *parameter;
  void *user;
  const kr_pk_graph *io;
} maker;

/* ---- parameters: each scope of the table becomes a struct of tensors and its reader; `number` is what '#' stands for,
 * `n` the letter that is not a size of the model ---- */

typedef struct place {
  char name[96];
} place;

static place pk_place_of(const char *format, ...) {
  place p;
  va_list list;
  va_start(list, format);
  vsnprintf(p.name, sizeof p.name, format, list);
  va_end(list);
  return p;
}

static kr_tensor take_pk(const maker *m, kr_pk_parameter_fn *from, const char *prefix, const char *key, int64_t number,
                      kr_dims dims) {
  char name[KR_PK_MAX_NAME];
  size_t used = (size_t)snprintf(name, sizeof name, "%s", prefix);
  for (; *key; key++) {
    if (*key == '@') used += (size_t)snprintf(name + used, sizeof name - used, "%s", m->w.one_sided ? ".conv" : "");
    else if (*key == '#') used += (size_t)snprintf(name + used, sizeof name - used, "%lld", (long long)number);
    else name[used++] = *key, name[used] = 0;
  }
  return from(m->user, m->w.g, name, dims);
}

/* For a streaming model: over the batch, or with known statistics. the reader handles `before`. */
static kr_norm take_norm(const maker *m, const char *prefix, const char *key, const char *slope, int64_t channels) {
  const kr_dims d = KR_DIMS(channels);
  const place at = pk_place_of("%s%s.", prefix, key);
  kr_norm n = {.eps = (float)KR_PK_NORM_EPS, .over_batch = m->c->streams};
  n.weight = take_pk(m, m->parameter, at.name, "weight", 0, d);
  n.bias = take_pk(m, m->parameter, at.name, "bias", 0, d);
  n.slope = take_pk(m, m->parameter, prefix, slope, 0, d);
  if (!m->c->streams) return n;
  kr_pk_parameter_fn *const statistic = m->io->measured ? m->io->measured : m->parameter;
  const kr_tensor mean = take_pk(m, statistic, at.name, "running_mean", 0, d),
                  var = take_pk(m, statistic, at.name, "running_var", 0, d);
  if (m->io->measured) n.mean = mean, n.var = var;
  else n.shift = mean, n.scale = var;
  return n;
}

#define FIELD(field, key, ...) kr_tensor field;
#define FIELD_B(field, key, ...) kr_tensor field##_w, field##_b;
#define FIELD_N(field, key, slope, channels) kr_norm field;
#define READ(field, key, ...) p.field = take_pk(m, m->parameter, prefix, key, number, KR_DIMS(__VA_ARGS__));
#define READ_B(field, key, ...) \
  READ(field##_w, key ".weight", __VA_ARGS__) READ(field##_b, key ".bias", KR_DIMS(__VA_ARGS__).size[0])
#define READ_N(field, key, slope, channels) p.field = take_norm(m, prefix, key, slope ".weight", channels);
#define SCOPE(scope, KEYS)                                                                                   \
  typedef struct scope##_p {                                                                                 \
    KEYS(FIELD, FIELD_B, FIELD_N)                                                                            \
  } scope##_p;                                                                                               \
  static scope##_p read_##scope(const maker *m, const char *prefix, int64_t n, int64_t number) {             \
    const kr_pk_config *c = m->c;                                                                            \
    const int64_t C = c->C, F = c->F, H = c->hidden, E = c->d_inner, R = c->dt_rank, N = c->d_state, W = c->d_conv; \
    scope##_p p;                                                                                             \
    (void)(C + F + H + E + R + N + W + n);                                                                   \
    KEYS(READ, READ_B, READ_N)                                                                               \
    return p;                                                                                                \
  }
SCOPE(encoder, KR_PK_ENCODER_KEYS)
SCOPE(dense, KR_PK_DENSE_KEYS)
SCOPE(block, KR_PK_BLOCK_KEYS)
SCOPE(position, KR_PK_POSITION_KEYS)
SCOPE(attention, KR_PK_ATTENTION_KEYS)
SCOPE(moving, KR_PK_MOVING_KEYS)
SCOPE(wrap, KR_PK_WRAP_KEYS)
SCOPE(mamba, KR_PK_MAMBA_KEYS)
SCOPE(recurrent, KR_PK_RECURRENT_KEYS)
SCOPE(prime, KR_PK_PRIME_KEYS)
SCOPE(mask, KR_PK_MASK_KEYS)
SCOPE(phase, KR_PK_PHASE_KEYS)

/* ---- encoder and decoders ---- */

/* The layers of the dense block of this part. */
static kr_dense_block dense_of(const maker *m, const char *part) {
  kr_dense_block b = {.C = m->c->C, .L = m->c->depth};
  for (int64_t i = 0; i < b.L; i++) {
    const place at = pk_place_of("%s.dense_block.dense_block.%lld.", part, (long long)i);
    dense_p p = read_dense(m, at.name, (i + 1) * b.C, 0);
    p.norm.before = p.mix_b;
    b.layers[i] = (kr_dense_layer){p.taps_w, p.taps_b, p.mix_w, p.norm};
  }
  return b;
}

/* The weight of a convolution (outputs,inputs,1,taps), or a transposed one (inputs,outputs,1,taps), with the taps as
 * the middle dimension. */
static kr_tensor taps_of(const maker *m, kr_tensor weight, const int *order) {
  const kr_dims d = dims_of(&m->w, weight);
  return kr_graph_permute(m->w.g, reshape(&m->w, weight, KR_DIMS(d.size[0], d.size[1], d.size[3])), order);
}

static kr_tensor encoder(const maker *m, kr_tensor features) {
  const kr_builder *w = &m->w;
  encoder_p p = read_encoder(m, "dense_encoder.", 0, 0);
  p.lift_norm.before = p.lift_b, p.down_norm.before = p.down_b;
  const int is_apart = is_fused(w) || (w->mode == KR_BUILD_PER_FRAME && !m->c->depth) || m->c->stride > 1;
  kr_tensor x = features;
  if (is_apart)
    x = kr_conv_norm_record(w, "lift", 0, m->c->stride, m->c->stride > 1 ? cast(w, "features", x, w->rows_dtype) : x,
                            taps_of(m, p.lift_w, (int[]){0, 2, 1}), &p.lift_norm);
  kr_dense_block dense = dense_of(m, "dense_encoder");
  if (!is_apart) dense.lift = p.lift_w, dense.lift_norm = p.lift_norm;
  x = kr_dense_block_record(w, &dense, x);
  return kr_conv_norm_record(w, "down", 0, m->c->down, x, taps_of(m, p.down_w, (int[]){0, 2, 1}), &p.down_norm);
}

/* (B,F,T) as (B,T,F): per-frequency tensors are then expanded over adjacent dimensions. */
static kr_tensor by_frame(const maker *m, kr_tensor plane) {
  return kr_graph_permute(m->w.g, plane, (int[]){0, 2, 1});
}

/* slope (last_w u + last_b), by frame: u has one number for each bin. */
static kr_tensor sloped(const maker *m, const mask_p *p, kr_tensor u) {
  const kr_builder *w = &m->w;
  const int64_t F = m->c->F;
  const kr_dims plane = KR_DIMS(w->B, F, w->T), frames = KR_DIMS(w->B, w->T, F), bins = KR_DIMS(F);
#define SPREAD(t) kr_graph_expand(w->g, reshape(w, t, KR_DIMS(1, 1, F)), frames)
  const kr_tensor slope = reshape(w, p->sigmoid_slope, bins), one[] = {reshape(w, p->last_w, KR_DIMS(1)), p->last_b},
                  factor = multiply(w, "slope", slope, kr_graph_expand(w->g, one[0], bins)),
                  summand = multiply(w, "slope", slope, kr_graph_expand(w->g, one[1], bins));
  return add(w, "slope", multiply(w, "slope", by_frame(m, reshape(w, u, plane)), SPREAD(factor)), SPREAD(summand));
#undef SPREAD
}

static void mask_decoder(const maker *m, kr_tensor x, kr_tensor mag_in, kr_tensor mag) {
  const kr_builder *w = &m->w;
  const kr_dense_block block = dense_of(m, "mask_decoder");
  const kr_tensor dense = kr_dense_block_record(w, &block, x);
  mask_p p = read_mask(m, "mask_decoder.", 0, 0);
  /* the product after the transposed convolution is merged into its weights: (input, tap) */
  const int64_t C = m->c->C, K = KR_PK_TAPS(m->c->up);
  const kr_tensor by_tap = new_tensor(w, KR_DIMS(C, K, C));
  copy(w, "by_tap", taps_of(m, p.up_w, (int[]){0, 2, 1}), by_tap);
  const kr_tensor taps = product(w, "merge", reshape(w, by_tap, KR_DIMS(K * C, C)), matrix(w, p.merge_w), 0, 0, 0),
                  rows = kr_few_products_record(w, "up", rows_of(w, dense),
                                                transposed(w, reshape(w, taps, KR_DIMS(C, K))), 0, 0),
                  up = cast(w, "up", kr_fold_record(w, K, m->c->up, map_of(w, rows, dense)), w->dtype);
  p.norm.before = reshape(
      w, product(w, "up_bias", reshape(w, p.up_b, KR_DIMS(1, C)), matrix(w, p.merge_w), p.merge_b, 0, 0), KR_DIMS(1));
  const kr_tensor u = kr_norm_record(w, &p.norm, up, 0);
  kr_graph_pointwise(
      w->g, "mask",
      (kr_pointwise_args){
          .call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SIGMOID, .x_scale = (float)m->c->sigmoid_beta},
      sloped(m, &p, u), by_frame(m, mag_in), by_frame(m, mag));
}

/* One of the phase's two parts, of parts for each position of map u; with a strided lift it is what is added to the
 * input's. */
static kr_tensor phase_part(const maker *m, kr_tensor parts, kr_tensor u, int64_t k) {
  const kr_builder *w = &m->w;
  const kr_dims plane = KR_DIMS(w->B, m->c->F, w->T);
  const kr_tensor part = reshape(w, map_of(w, columns(w, parts, k, 1), u), plane);
  if (m->c->stride == 1) return part;
  return add(w, "phase_skip", part, reshape(w, kr_graph_slice(w->g, m->io->com_in, 3, k, 1), plane));
}

static void phase_decoder(const maker *m, kr_tensor x, kr_tensor pha) {
  const kr_builder *w = &m->w;
  const int64_t C = m->c->C, n = w->B * m->c->F * w->T;
  const kr_dense_block block = dense_of(m, "phase_decoder");
  const kr_tensor dense = kr_dense_block_record(w, &block, x);
  phase_p p = read_phase(m, "phase_decoder.", 0, 0);
  p.norm.before = p.up_b;
  const kr_tensor u = kr_conv_norm_record(w, "phase_up", KR_CONV_NORM_TRANSPOSED, m->c->up, dense,
                                          taps_of(m, p.up_w, (int[]){1, 2, 0}), &p.norm);
  const kr_tensor weight = new_tensor(w, KR_DIMS(2, C)), bias = new_tensor(w, KR_DIMS(2)),
                  weights[] = {matrix(w, p.real_w), matrix(w, p.imag_w)}, biases[] = {p.real_b, p.imag_b};
  for (int i = 0; i < 2; i++) {
    copy(w, "phase_weight", weights[i], kr_graph_slice(w->g, weight, 0, i, 1));
    copy(w, "phase_bias", biases[i], kr_graph_slice(w->g, bias, 0, i, 1));
  }
  const kr_tensor aligned = columns(w, new_rows(w, KR_DIMS(n, w->rows_dtype == w->dtype ? 2 : 8)), 0, 2);
  const kr_tensor parts =
      cast(w, "phase_parts", kr_few_products_record(w, "phase_parts", rows_of(w, u), weight, bias, aligned), w->dtype);
  const kr_tensor re = phase_part(m, parts, u, 0), im = phase_part(m, parts, u, 1);
  kr_graph_call(w->g, "phase", &kr_op_to_polar,
                &(kr_to_polar_args){.power = 1, .re = view(w, re), .im = view(w, im), .pha = view(w, pha)});
}

/* ---- the time network: rows x before its norm ---- */

/* A weight (outputs, H) merged with proj_conv1, with the bias. */
static kr_tensor behind_first(const maker *m, const wrap_p *p, kr_tensor weight, kr_tensor *bias) {
  const kr_builder *w = &m->w;
  const kr_dims d = dims_of(w, weight);
  *bias = reshape(w, product(w, "in_bias", reshape(w, p->in_b, KR_DIMS(1, d.size[1])), weight, *bias, 0, 0),
                  KR_DIMS(d.size[0]));
  return product(w, "in_weight", weight, transposed(w, matrix(w, p->in_w)), 0, 0, 0);
}

/* *next: what it becomes; of a single frame it is updated in place. */
static kr_tensor state_of(const maker *m, const char *name, kr_dims dims, kr_tensor *next) {
  const kr_tensor state = m->w.has_past ? kr_graph_state(m->w.g, name, m->w.dtype, dims) : 0;
  *next = state && m->w.T > 1 ? new_tensor(&m->w, dims) : state;
  return state;
}

/* *out_weight: proj_conv2's on entry; on return merged with the preceding out_proj. */
static kr_tensor mamba(const maker *m, const char *prefix, const wrap_p *wrap, kr_tensor x, kr_tensor *out_weight) {
  const kr_builder *w = &m->w;
  const int64_t E = m->c->d_inner, N = m->c->d_state, W = m->c->d_conv, sequences = w->B * w->F;
  const mamba_p p = read_mamba(m, pk_place_of("%smamba.", prefix).name, 0, 0);
  kr_tensor bias = 0;
  const kr_tensor weight = behind_first(m, wrap, p.in_w, &bias), A = new_tensor(w, KR_DIMS(E, N));
  const kr_tensor rows = kr_normed_product_record(
      w, "in", x, wrap->norm_w, wrap->norm_b, weight, bias,
      (kr_map_product_args){.call.flags = KR_MAP_SILU, .silu_from = E});
  kr_graph_pointwise(w->g, "A", (kr_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = -1}, p.A_log, 0, A);
  *out_weight = product(w, "out_weight", *out_weight, transposed(w, p.out_w), 0, 0, 0);
  kr_mamba_block b = {.flags = KRAIT_SCAN_SOFTPLUS,
                      .dtype = w->rows_dtype,
                      .is_merged = w->rows_dtype != w->dtype,
                      .conv_weight = reshape(w, p.conv_w, KR_DIMS(E, W)),
                      .conv_bias = p.conv_b,
                      .x_proj_weight = p.x_w,
                      .dt_proj_weight = p.dt_w,
                      .delta_bias = p.dt_b,
                      .A = A,
                      .Dvec = p.D};
  if (is_fused(w)) return kr_projected_mamba_record(w, &b, rows);
  const kr_tensor y = new_rows(w, KR_DIMS(sequences, w->T, E));
  b.xz = kr_graph_permute(w->g, as_sequences(w, rows), (int[]){0, 2, 1});
  b.out = kr_graph_permute(w->g, y, (int[]){0, 2, 1});
  b.conv_states = W > 1 ? state_of(m, "conv_state", KR_DIMS(sequences, E, W - 1), &b.conv_states_out) : 0;
  b.scan_state = state_of(m, "scan_state", KR_DIMS(sequences, E, N), &b.scan_state_out);
  kr_mamba_block_record(w->g, &b);
  if (b.conv_states != b.conv_states_out) copy(w, "conv_state", b.conv_states_out, b.conv_states);
  if (b.scan_state != b.scan_state_out) copy(w, "scan_state", b.scan_state_out, b.scan_state);
  return reshape(w, y, KR_DIMS(sequences * w->T, E));
}

static kr_tensor recurrent(const maker *m, const char *prefix, const wrap_p *wrap, kr_tensor x) {
  const int is_lstm = m->c->stage == KR_PK_LSTM;
  kr_rnn_layer layers[KR_PK_MAX_LAYERS];
  for (int64_t i = 0; i < m->c->layers; i++) {
    const recurrent_p p =
        read_recurrent(m, pk_place_of("%s%s.", prefix, is_lstm ? "lstm" : "gru").name, is_lstm ? 4 : 3, i);
    layers[i] = (kr_rnn_layer){p.ih_w, p.ih_b, p.hh_w, p.hh_b};
  }
  layers[0].in_weight = behind_first(m, wrap, layers[0].in_weight, &layers[0].in_bias);
  return kr_rnn_layers_record(&m->w, layers, m->c->layers, is_lstm, wrap->norm_w, wrap->norm_b, x);
}

/* ---- the prime kernel net ---- */

static kr_tensor prime(const maker *m, const char *prefix, const wrap_p *wrap, const kr_back_product *back) {
  kr_filter_bank bank = {.J = m->c->n_kernels, .norm_weight = wrap->norm_w, .norm_bias = wrap->norm_b};
  bank.in_weight = wrap->in_w, bank.in_bias = wrap->in_b;
  for (int32_t j = 0; j < m->c->n_kernels; j++) {
    const prime_p p = read_prime(m, prefix, m->c->kernels[j], m->c->kernels[j]);
    bank.chunks[j] = (kr_filter_chunk){p.attn_taps_w, p.attn_taps_b, p.attn_w, p.attn_b, p.conv_taps_w, p.conv_taps_b};
  }
  return kr_filter_bank_record(&m->w, &bank, back);
}

/* The time network, or the prime kernel net. */
static kr_tensor network(const maker *m, const char *prefix, int along_time, kr_tensor x, kr_tensor skip,
                         kr_tensor skip_scale) {
  const kr_builder *w = &m->w;
  const wrap_p p = read_wrap(m, prefix, along_time ? m->c->hidden : m->c->n_kernels * m->c->C, 0);
  kr_back_product back = {matrix(w, p.out_w), p.out_b, p.beta, x, 0, skip, skip_scale};
  if (!along_time) return prime(m, prefix, &p, &back);
  const kr_tensor y = m->c->stage == KR_PK_MAMBA ? mamba(m, prefix, &p, x, &back.weight) : recurrent(m, prefix, &p, x);
  return kr_back_record(w, y, &back);
}

/* ---- channel attention ---- */

/* g (rows, C), filtered along time; of a stream, whose earlier frames are the state, by the running convolution. */
static kr_tensor filter_moving(const maker *m, kr_tensor g, kr_tensor taps) {
  const kr_builder *w = &m->w;
  const int64_t C = m->c->C, K = KR_PK_MOVING_FRAMES;
  if (!w->has_past) {
    const kr_tensor frames = reshape(w, g, KR_DIMS(w->B, w->F, w->T, C)), out = new_like(w, frames);
    filter(w, "moving", framewise(w, frames), taps, 0, 1, framewise(w, out)); /* along T where F is of maps */
    return reshape(w, out, dims_of(w, g));
  }
  const kr_tensor out = new_like(w, g),
                  state = kr_graph_state(w->g, "moving", w->rows_dtype, KR_DIMS(w->B * w->F, K - 1, C));
  const int by_channel[] = {0, 2, 1};
  kr_graph_call(w->g, "moving", &kr_op_causal_conv1d_update,
                &(kr_causal_conv1d_update_args){
                    .activation = KRAIT_ACT_NONE,
                    .x = view(w, kr_graph_permute(w->g, as_sequences(w, g), by_channel)),
                    .conv_state = view(w, kr_graph_permute(w->g, state, by_channel)),
                    .weight = view(w, by_taps(w, reshape(w, taps, KR_DIMS(C, K)))),
                    .out = view(w, kr_graph_permute(w->g, as_sequences(w, out), by_channel))});
  return out;
}

/* g (rows, C), each frame times the product of the last eleven frames. */
static kr_tensor attend_moving(const maker *m, const char *prefix, const attention_p *attention, kr_tensor g) {
  const kr_builder *w = &m->w;
  const moving_p p = read_moving(m, prefix, KR_PK_MOVING_FRAMES, 0);
  return not_kept(w, multiply(w, "attended", g,
                              product(w, "attention", filter_moving(m, g, p.taps), matrix(w, attention->attn_w),
                                      attention->attn_b, 0, 0)));
}

static kr_tensor attention(const maker *m, const char *prefix, int along_time, kr_tensor x) {
  const kr_builder *w = &m->w;
  const attention_p p = read_attention(m, prefix, along_time ? 1 : 3, 0);
  kr_back_product back = {.weight = matrix(w, p.out_w), .bias = p.out_b, .beta = p.beta, .x = x};
  kr_tensor g = kr_gate_record(w, &(kr_gate){p.norm_w, p.norm_b, p.gate_w, p.gate_b, p.taps_w, p.taps_b}, x);
  if (along_time && m->c->streams) g = attend_moving(m, prefix, &p, g);
  else g = kr_mean_record(w, g, along_time, matrix(w, p.attn_w), p.attn_b, &back.factors);
  return kr_back_record(w, g, &back);
}

/* ---- the blocks ---- */

/* A stage of block b and its skip, x: rows; into out, with the same number of elements and any strides, or a new
 * tensor. */
static kr_tensor stage(const maker *given, int64_t b, int along_time, kr_tensor beta, kr_tensor x, kr_tensor out) {
  maker own = *given;
  const maker *m = &own;
  const kr_builder *w = &m->w;
  own.w.one_sided = given->w.one_sided && (along_time || !given->c->streams);
  const int64_t n_parts = along_time ? m->c->n_time : m->c->n_freq;
  const char *const kind = along_time ? "time" : "freq";
  kr_tensor y = x;
  for (int64_t n = 0; n < n_parts; n++) {
    const place at = pk_place_of("sequence_block.%lld.%s_stage.%lld.", (long long)b, kind, (long long)n);
    const kr_tensor skip = n + 1 == n_parts ? x : 0; /* of fused calls */
    const kr_tensor attended = part_of(w, y, attention(m, pk_place_of("%s0.", at.name).name, along_time, y));
    y = part_of(w, attended, network(m, pk_place_of("%s1.", at.name).name, along_time, attended, skip, beta));
  }
  if (is_fused(w) && n_parts) return y;
  const kr_tensor scaled = multiply(w, "skip", x, beside(w, beta, dims_of(w, x).size[0]));
  if (!out) return add(w, "skip", y, scaled);
  const kr_dims dims = dims_of(w, out);
  kr_graph_pointwise(w->g, "skip", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, reshape(w, y, dims),
                     reshape(w, scaled, dims), out);
  return out;
}

typedef struct stage_part {
  const maker *m;
  int64_t block;
  int along_time;
} stage_part;

static block_p skips(const maker *m, int64_t b) {
  return read_block(m, pk_place_of("sequence_block.%lld.", (long long)b).name, 0, 0);
}

static void stage_slice(void *user, kr_graph *g, kr_tensor x, kr_tensor out) {
  const stage_part *part = user;
  const kr_dims d = kr_graph_dims(g, x);
  maker own = *part->m;
  own.w.g = g, own.w.mode = KR_BUILD_OPS, own.w.is_piece = 1, own.w.F = d.size[0], own.w.T = d.size[1];
  const kr_tensor copied = new_tensor(&own.w, d);
  copy(&own.w, "piece", x, copied); /* out is x */
  const block_p p = skips(&own, part->block);
  stage(&own, part->block, part->along_time, part->along_time ? p.beta_t : p.beta_f,
        reshape(&own.w, copied, KR_DIMS(d.size[0] * d.size[1], d.size[2])), out);
}

/* x, rows, plus what belongs to their positions; in two steps, since a gradient is summed over adjacent dimensions. */
static kr_tensor add_position(const maker *m, int64_t b, kr_tensor x) {
  const kr_builder *w = &m->w;
  const int64_t F2 = m->c->F2, C = m->c->C, n = F2 * w->T * C;
  const position_p p = read_position(m, pk_place_of("sequence_block.%lld.", (long long)b).name, F2, 0);
  kr_tensor frames = p.bias;
  if (w->T > 1) {
    frames = new_rows(w, KR_DIMS(F2, w->T, C));
    copy(w, "position", kr_graph_expand(w->g, reshape(w, p.bias, KR_DIMS(F2, 1, C)), dims_of(w, frames)), frames);
  }
  const kr_dims all = KR_DIMS(w->B, n);
  const kr_tensor y = add(w, "position", reshape(w, x, all),
                          kr_graph_expand(w->g, reshape(w, frames, KR_DIMS(1, n)), all));
  return reshape(w, y, dims_of(w, x));
}

/* Positions per slice along time: for a recurrence as many as it processes at once. */
enum { SEQUENCES = 4 };

/* x (B,F2,T,C) through the blocks; frame by frame: in place, a slice at a time. */
static kr_tensor blocks(const maker *m, kr_tensor x) {
  const kr_builder *w = &m->w;
  const int64_t C = m->c->C, F2 = m->c->F2;
  const int in_slices = w->mode == KR_BUILD_PER_FRAME;
  const kr_dims rows = KR_DIMS(w->B * F2 * w->T, C);
  for (int64_t b = 0; b < m->c->n_blocks && in_slices; b++)
    for (int along_time = 1; along_time >= 0; along_time--) {
      stage_part part = {m, b, along_time};
      const int64_t n = along_time && m->c->stage != KR_PK_MAMBA ? SEQUENCES : 1;
      const kr_tensor map = reshape(w, x, KR_DIMS(F2, w->T, C));
      kr_graph_map_slices(w->g, along_time ? "time_stage" : "freq_stage", !along_time, n, stage_slice, &part, map, map);
    }
  for (int64_t b = 0; b < m->c->n_blocks && !in_slices; b++) {
    const block_p p = skips(m, b);
    x = reshape(w, x, rows);
    if (m->c->has_position_bias) x = add_position(m, b, x);
    x = stage(m, b, 0, p.beta_f, stage(m, b, 1, p.beta_t, x, 0), 0);
  }
  return reshape(w, x, KR_DIMS(w->B, F2, w->T, C));
}

void kr_pk_graph_record(kr_graph *g, const kr_pk_config *config, kr_pk_parameter_fn *parameter, void *user,
                        kr_pk_graph *io) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims in = kr_graph_dims(g, io->com_in), plane = KR_DIMS(in.size[0], in.size[1], in.size[2]);
  const maker m = {.w = {.g = g,
                         .dtype = kr_graph_dtype(g, io->com_in),
                         .rows_dtype = io->halves ? io->halves : kr_graph_dtype(g, io->com_in),
                         .mode = io->mode,
                         .B = in.size[0],
                         .F = config->F2,
                         .T = in.size[2],
                         .one_sided = config->causal,
                         .has_past = config->streams && !io->measured,
                         .recompute = io->recompute},
                   .c = config,
                   .parameter = parameter,
                   .user = user,
                   .io = io};
  const kr_builder *w = &m.w, spectra = {.g = g, .mode = io->mode, .rows_dtype = w->dtype, .B = w->B, .T = w->T};
#define PART(tensor, k) view(w, reshape(w, kr_graph_slice(g, tensor, 3, k, 1), plane))
  const kr_tensor features = kr_graph_slice(g, new_map(&spectra, in.size[1], 4), 3, 0, 2); /* aligned */
  kr_graph_call(g, "features", &kr_op_to_polar,
                &(kr_to_polar_args){.power = 1,
                                       .re = PART(io->com_in, 0),
                                       .im = PART(io->com_in, 1),
                                       .mag = PART(features, 0),
                                       .pha = PART(features, 1)});
  const kr_tensor mag_in = reshape(w, kr_graph_slice(g, features, 3, 0, 1), plane);
  if (!io->mag) io->mag = new_tensor(w, plane);
  if (!io->pha) io->pha = new_tensor(w, plane);
  const kr_tensor x = blocks(&m, encoder(&m, features));
  if (is_fused(w)) kr_graph_lane(g, 2);
  mask_decoder(&m, x, mag_in, io->mag);
  if (is_fused(w)) kr_graph_lane(g, 1);
  phase_decoder(&m, x, io->pha);
  kr_graph_lane(g, 0);
#undef PART
  if (io->com) kr_spectral_parts(g, "com", io->mag, io->pha, io->com);
}
