/* primeknet_stages.c: the two stages of a block as calls of a graph, x: rows (B F2 T, C). Training and a CPU's slices
 * take operators one by one; a GPU's inference takes what surrounds a product with the product (map_product), so that
 * parameters of norms, filters of length 1 and beta go into its weights, which are constants of the plan. */
#include "primeknet_maker.h"

#include "mamba_block.h"

/* ---- products with what surrounds them ---- */

static int has_halves(const maker *m) { return m->io->fused == KR_PK_HALF_FACTORS; }

/* Rows as (B,F2,T,.) and as sequences along time. */
static kr_tensor as_map(const maker *m, kr_tensor rows) {
  return rows ? reshape(m, rows, KR_DIMS(m->B, m->c->F2, m->T, kr_graph_dims(m->g, rows).size[1])) : 0;
}
static kr_tensor as_sequences(const maker *m, kr_tensor rows) {
  return reshape(m, rows, KR_DIMS(m->B * m->c->F2, m->T, kr_graph_dims(m->g, rows).size[1]));
}

/* Into a.out or a new tensor. */
static kr_tensor map_product(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                             krait_map_product_args a) {
  const int64_t M = kr_graph_dims(m->g, weight).size[0] / (a.call.flags & KRAIT_MAP_GATE ? 2 : 1);
  const kr_tensor out = a.out.data ? 0 : new_tensor(m, KR_DIMS(kr_graph_dims(m->g, rows).size[0], M));
  if (has_halves(m)) a.call.flags |= KRAIT_MAP_TF32;
  a.eps = 1e-6f;
  a.x = view(m, as_map(m, rows)), a.weight = view(m, laid_out(m, weight)), a.bias = view(m, bias);
  if (out) a.out = view(m, as_map(m, out));
  kr_graph_call(m->g, name, &kr_op_map_product, &a);
  return out;
}

/* Of a gate's two halves in pairs: (2C,inputs) or (2C). */
static kr_tensor in_pairs(const maker *m, kr_tensor t) {
  const kr_dims d = kr_graph_dims(m->g, t);
  const int64_t C = d.size[0] / 2, inputs = d.n > 1 ? d.size[1] : 1;
  const kr_tensor pairs = new_tensor(m, KR_DIMS(C, 2, inputs));
  copy(m, "pairs", kr_graph_permute(m->g, reshape(m, t, KR_DIMS(2, C, inputs)), (int[]){1, 0, 2}), pairs);
  return reshape(m, pairs, d);
}

/* x through the norm of its channels and a product; the norm's weight and bias go into a fused one. */
static kr_tensor normed_product(const maker *m, const char *name, kr_tensor x, kr_tensor norm_w, kr_tensor norm_b,
                                kr_tensor weight, kr_tensor bias, krait_map_product_args a) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  if (!m->io->fused)
    return product(m, name, not_kept(m, channel_norm(m, x, norm_w, norm_b)), weight, bias, 0, 0);
  const kr_tensor both = product(m, "norm_bias", reshape(m, norm_b, KR_DIMS(1, d.size[1])), weight, bias, 0, 0);
  bias = reshape(m, both, KR_DIMS(d.size[0]));
  weight = multiply(m, "norm_weight", weight, beside(m, norm_w, d.size[0]));
  if (a.call.flags & KRAIT_MAP_GATE) weight = in_pairs(m, weight), bias = in_pairs(m, bias);
  a.call.flags |= KRAIT_MAP_NORM;
  return map_product(m, name, x, weight, bias, a);
}

/* What the end of a stage adds besides: beta x of where it began; x 0: nothing. */
typedef struct skip {
  kr_tensor x, beta;
} skip;

/* x + beta (W h + b), beta in the weights; of fused ones h is multiplied by the factors, if any, before. */
static kr_tensor scaled_back(const maker *m, kr_tensor h, kr_tensor weight, kr_tensor bias, kr_tensor beta, kr_tensor x,
                             kr_tensor factors, skip s) {
  const kr_dims w = kr_graph_dims(m->g, weight);
  const kr_tensor scaled = turned(m, multiply(m, "scale_weight", turned(m, weight), beside(m, beta, w.size[1]))),
                  summand = multiply(m, "scale_bias", bias, reshape(m, beta, KR_DIMS(w.size[0])));
  if (!m->io->fused) return product(m, "out", h, scaled, summand, x, 0);
  return map_product(m, "out", h, scaled, summand,
                     (krait_map_product_args){.factors = view(m, factors),
                                              .residual = view(m, as_map(m, x)),
                                              .skip = view(m, as_map(m, s.x)),
                                              .skip_scale = view(m, s.x ? reshape(m, s.beta, KR_DIMS(m->c->C)) : 0)});
}

/* ---- channel attention ---- */

/* g (rows, C), each frame times the product of what the last eleven were. */
static kr_tensor attend_moving(const maker *m, const char *prefix, const pk_attention_p *attention, kr_tensor g) {
  const int64_t C = m->c->C, K = KR_PK_MOVING_FRAMES, number = 0;
  const kr_dims map = KR_DIMS(m->B, m->c->F2, m->T, C), rows = kr_graph_dims(m->g, g);
  pk_moving_p p;
  KR_PK_MOVING_KEYS(READ)
  kr_tensor frames = reshape(m, g, map);
  if (m->io->has_past) {
    const kr_tensor room = room_with_past(m, "moving", map, K - 1);
    copy(m, "moving", frames, newest(m, room)), frames = room;
  }
  const int by_time[] = {0, 2, 1, 3};
  const kr_tensor out = new_like(m, frames);
  kr_graph_call(m->g, "moving", &kr_op_depthwise_conv,
                &(krait_depthwise_conv_args){.DH = 1,
                                             .DW = 1,
                                             .PH = K - 1,
                                             .x = view(m, kr_graph_permute(m->g, frames, by_time)),
                                             .weight = view(m, reshape(m, p.taps, KR_DIMS(C, K, 1))),
                                             .out = view(m, kr_graph_permute(m->g, out, by_time))});
  keep_past(m, frames, K - 1);
  kr_tensor moving = out;
  if (m->io->has_past) copy(m, "moving", newest(m, out), moving = new_rows(m, map));
  return not_kept(m, multiply(m, "attended", g,
                              product(m, "attention", reshape(m, moving, rows), matrix(m, attention->attn_w),
                                      attention->attn_b, 0, 0)));
}

/* The gated half of x: along time filters of length 1 go into the product. */
static kr_tensor gated(const maker *m, const pk_attention_p *p, int along_time, kr_tensor x) {
  const int64_t C = m->c->C, K = along_time ? 1 : 3;
  kr_tensor weight = matrix(m, p->gate_w), bias = p->gate_b;
  if (along_time) {
    const kr_tensor taps = reshape(m, p->taps, KR_DIMS(2 * C));
    weight = turned(m, multiply(m, "gate_weight", turned(m, weight), beside(m, taps, C)));
    bias = add(m, "gate_bias", multiply(m, "gate_bias", bias, taps), p->taps_b);
  }
  kr_tensor wide = normed_product(m, "gate", x, p->norm_w, p->norm_b, weight, bias,
                                  (krait_map_product_args){.call.flags = along_time ? KRAIT_MAP_GATE : 0});
  if (m->io->fused && along_time) return wide;
  if (m->io->fused) {
    const kr_tensor g = new_like(m, x);
    kr_graph_call(m->g, "gate_filter", &kr_op_gated_filter,
                  &(krait_gated_filter_args){.P = m->one_sided ? K - 1 : (K - 1) / 2,
                                             .x = view(m, as_map(m, wide)),
                                             .weight = view(m, by_taps(m, reshape(m, p->taps, KR_DIMS(2 * C, K)))),
                                             .bias = view(m, p->taps_b),
                                             .out = view(m, as_map(m, g))});
    return g;
  }
  if (!along_time)
    wide = reshape(m, filter(m, "gate_filter", as_map(m, wide), p->taps, p->taps_b, 1), kr_graph_dims(m->g, wide));
  return multiply(m, "gated", columns(m, wide, 0, C), columns(m, wide, C, C));
}

/* The product of each sequence's mean, spread over its positions. */
static kr_tensor mean_factors(const maker *m, const pk_attention_p *p, int along_time, kr_tensor g) {
  const int64_t C = m->c->C, F2 = m->c->F2;
  const kr_tensor weight = turned(m, new_tensor(m, KR_DIMS(C, C))),
                  out = new_tensor(m, KR_DIMS(m->B, along_time ? F2 : m->T, C));
  copy(m, "attention", matrix(m, p->attn_w), weight);
  kr_graph_call(m->g, "attention", &kr_op_mean_product,
                &(krait_mean_product_args){.x = view(m, along_time ? as_map(m, g) : framewise(m, as_map(m, g))),
                                           .weight = view(m, weight),
                                           .bias = view(m, p->attn_b),
                                           .out = view(m, out)});
  const kr_dims one = along_time ? KR_DIMS(m->B, F2, 1, C) : KR_DIMS(m->B, 1, m->T, C);
  return kr_graph_spread(m->g, reshape(m, out, one), KR_DIMS(m->B, F2, m->T, C));
}

static kr_tensor attention(const maker *m, const char *stage, int64_t b, int64_t n, int along_time, kr_tensor x) {
  const int64_t C = m->c->C, K = along_time ? 1 : 3, number = 0, F2 = m->c->F2, rows = m->B * F2 * m->T;
  char prefix[MAX_PREFIX];
  pk_attention_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.%s.%lld.0.", (long long)b, stage, (long long)n);
  KR_PK_ATTENTION_KEYS(READ)
  const kr_tensor g = gated(m, &p, along_time, x);
  kr_tensor scaled = g, factors = 0;
  if (m->io->fused) factors = mean_factors(m, &p, along_time, g);
  else if (along_time && m->c->streams) scaled = attend_moving(m, prefix, &p, g);
  else {
    const kr_dims sequences = along_time ? KR_DIMS(m->B * F2, m->T, C) : KR_DIMS(m->B, F2, m->T * C);
    const int64_t n_means = along_time ? m->B * F2 : m->B * m->T;
    const kr_tensor mean = kr_graph_call(
        m->g, "mean", &kr_op_pool, &(krait_pool_args){.x = view(m, reshape(m, g, sequences)), .out = kr_graph_ask()});
    const kr_tensor scale =
        product(m, "attention", reshape(m, mean, KR_DIMS(n_means, C)), matrix(m, p.attn_w), p.attn_b, 0, 0);
    const kr_tensor spread =
        kr_graph_spread(m->g, reshape(m, scale, KR_DIMS(sequences.size[0], 1, sequences.size[2])), sequences);
    scaled =
        reshape(m, not_kept(m, multiply(m, "attended", reshape(m, g, sequences), spread)), KR_DIMS(rows, C));
  }
  return scaled_back(m, scaled, matrix(m, p.out_w), p.out_b, p.beta, x, factors, (skip){0});
}

/* ---- the time network; x: rows before its norm ---- */

/* weight (outputs, H) behind proj_conv1: weight W1 and weight b1 + bias. */
static kr_tensor behind_first(const maker *m, const pk_wrap_p *w, kr_tensor weight, kr_tensor bias,
                              kr_tensor *both_bias) {
  const int64_t n = kr_graph_dims(m->g, weight).size[0], H = kr_graph_dims(m->g, weight).size[1];
  *both_bias = reshape(m, product(m, "in_bias", reshape(m, w->in_b, KR_DIMS(1, H)), weight, bias, 0, 0), KR_DIMS(n));
  return product(m, "in_weight", weight, turned(m, matrix(m, w->in_w)), 0, 0, 0);
}

/* Behind the first product, z's silu included: the convolution with x_proj, the scan with step and gate. */
static kr_tensor fused_mamba(const maker *m, const pk_mamba_p *p, kr_tensor A, kr_tensor xz) {
  const int64_t E = m->c->d_inner, N = m->c->d_state, R = m->c->dt_rank, n = kr_graph_dims(m->g, xz).size[0],
                X = (R + 2 * N + 15) / 16 * 16; /* rows of whole lines */
  const kr_tensor u = new_tensor(m, KR_DIMS(n, E)), proj = new_tensor(m, KR_DIMS(n, X));
  map_product(m, "x_proj", columns(m, xz, 0, E), p->x_w, 0,
              (krait_map_product_args){.conv_weight = view(m, reshape(m, p->conv_w, KR_DIMS(E, m->c->d_conv))),
                                       .conv_bias = view(m, p->conv_b),
                                       .out = view(m, as_map(m, columns(m, proj, 0, R + 2 * N))),
                                       .conv_out = view(m, as_map(m, u))});
  kr_graph_call(m->g, "scan", &kr_op_projected_scan,
                &(krait_projected_scan_args){.u = view(m, as_sequences(m, u)),
                                             .proj = view(m, as_sequences(m, proj)),
                                             .dt_weight = view(m, by_taps(m, p->dt_w)),
                                             .dt_bias = view(m, p->dt_b),
                                             .A = view(m, A),
                                             .Dvec = view(m, p->D),
                                             .z = view(m, as_sequences(m, columns(m, xz, E, E))),
                                             .out = view(m, as_sequences(m, u))});
  return u;
}

static kr_tensor mamba(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor x, kr_tensor *out_weight) {
  const int64_t H = m->c->hidden, E = m->c->d_inner, N = m->c->d_state, R = m->c->dt_rank, W = m->c->d_conv, number = 0,
                sequences = m->B * m->c->F2;
  char prefix[MAX_PREFIX + 8];
  pk_mamba_p p;
  kr_tensor bias;
  snprintf(prefix, sizeof prefix, "%smamba.", before);
  KR_PK_MAMBA_KEYS(READ)
  const kr_tensor weight = behind_first(m, w, p.in_w, 0, &bias), A = new_tensor(m, KR_DIMS(E, N));
  const kr_tensor rows = normed_product(m, "in", x, w->norm_w, w->norm_b, weight, bias,
                                        (krait_map_product_args){.call.flags = KRAIT_MAP_SILU, .silu_from = E});
  kr_graph_pointwise(m->g, "A", (krait_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = -1}, p.A_log, 0, A);
  *out_weight = product(m, "out_weight", matrix(m, w->out_w), turned(m, p.out_w), 0, 0, 0);
  if (m->io->fused) return fused_mamba(m, &p, A, rows);
  const kr_tensor xz = as_sequences(m, rows), y = new_rows(m, KR_DIMS(sequences, m->T, E));
  kr_tensor conv_next = 0, scan_next;
  const kr_tensor conv_state = W > 1 ? state_of(m, "conv_state", KR_DIMS(sequences, E, W - 1), &conv_next) : 0,
                  scan_state = state_of(m, "scan_state", KR_DIMS(sequences, E, N), &scan_next);
  kr_mamba_block_record(m->g, &(kr_mamba_block){.flags = KRAIT_SCAN_SOFTPLUS,
                                                .dtype = m->rows_dtype,
                                                .is_merged = m->rows_dtype != m->dtype,
                                                .xz = kr_graph_permute(m->g, xz, (int[]){0, 2, 1}),
                                                .conv_weight = reshape(m, p.conv_w, KR_DIMS(E, W)),
                                                .conv_bias = p.conv_b,
                                                .x_proj_weight = p.x_w,
                                                .dt_proj_weight = p.dt_w,
                                                .delta_bias = p.dt_b,
                                                .A = A,
                                                .Dvec = p.D,
                                                .conv_states = conv_state,
                                                .conv_states_out = conv_next,
                                                .scan_state = scan_state,
                                                .scan_state_out = scan_next,
                                                .out = kr_graph_permute(m->g, y, (int[]){0, 2, 1})});
  if (conv_state) copy(m, "conv_state", conv_next, conv_state);
  if (scan_state) copy(m, "scan_state", scan_next, scan_state);
  return reshape(m, y, KR_DIMS(sequences * m->T, E));
}

static pk_recurrent_p layer_of(const maker *m, const char *prefix, int64_t number) {
  const int64_t H = m->c->hidden, G = m->c->stage == KR_PK_LSTM ? 4 : 3;
  pk_recurrent_p p;
  KR_PK_RECURRENT_KEYS(READ)
  return p;
}

/* The first two layers at once, the norm and their inputs' products included: factors are float16. */
static kr_tensor two_layers(const maker *m, const char *prefix, const pk_wrap_p *w, uint32_t flags, kr_tensor x) {
  const pk_recurrent_p p[] = {layer_of(m, prefix, 0), layer_of(m, prefix, 1)};
  const int64_t n = kr_graph_dims(m->g, p[0].ih_w).size[0], C = m->c->C;
  const kr_tensor h = new_tensor(m, KR_DIMS(kr_graph_dims(m->g, x).size[0], m->c->hidden));
  kr_tensor bias, first = behind_first(m, w, p[0].ih_w, p[0].ih_b, &bias);
  bias = reshape(m, product(m, "norm_bias", reshape(m, w->norm_b, KR_DIMS(1, C)), first, bias, 0, 0), KR_DIMS(n));
  first = multiply(m, "norm_weight", first, beside(m, w->norm_w, n));
  kr_graph_call(m->g, "recurrences", &kr_op_rnn_pair,
                &(krait_rnn_pair_args){.call.flags = flags | KRAIT_RNN_TF32 | KRAIT_RNN_NORM,
                                       .eps = 1e-6f,
                                       .x = view(m, as_sequences(m, x)),
                                       .in_weight = view(m, laid_out(m, first)),
                                       .in_bias = view(m, bias),
                                       .weight = view(m, laid_out(m, p[0].hh_w)),
                                       .bias = view(m, p[0].hh_b),
                                       .in_weight2 = view(m, laid_out(m, p[1].ih_w)),
                                       .in_bias2 = view(m, p[1].ih_b),
                                       .weight2 = view(m, laid_out(m, p[1].hh_w)),
                                       .bias2 = view(m, p[1].hh_b),
                                       .out = view(m, as_sequences(m, h))});
  return h;
}

static kr_tensor recurrent(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor x,
                           kr_tensor *out_weight) {
  const int is_lstm = m->c->stage == KR_PK_LSTM, is_pair = has_halves(m) && m->c->layers > 1;
  const uint32_t flags = is_lstm ? KRAIT_RNN_LSTM : 0;
  char prefix[MAX_PREFIX + 8];
  snprintf(prefix, sizeof prefix, "%s%s.", before, is_lstm ? "lstm" : "gru");
  if (is_pair) x = two_layers(m, prefix, w, flags, x);
  for (int64_t number = is_pair ? 2 : 0; number < m->c->layers; number++) {
    const pk_recurrent_p p = layer_of(m, prefix, number);
    kr_tensor bias = p.ih_b, gates;
    if (number == 0) {
      const kr_tensor weight = behind_first(m, w, p.ih_w, p.ih_b, &bias);
      gates = normed_product(m, "gates", x, w->norm_w, w->norm_b, weight, bias, (krait_map_product_args){0});
    } else if (m->io->fused) gates = map_product(m, "gates", x, p.ih_w, bias, (krait_map_product_args){0});
    else gates = product(m, "gates", x, p.ih_w, bias, 0, 0);
    gates = cast(m, "gates", gates, m->dtype);
    const kr_tensor h =
        kr_graph_call(m->g, "recurrence", &kr_op_rnn,
                      &(krait_rnn_args){.call.flags = flags,
                                        .x = view(m, as_sequences(m, gates)),
                                        .weight = view(m, m->io->fused ? by_taps(m, p.hh_w) : p.hh_w),
                                        .bias = view(m, p.hh_b),
                                        .out = kr_graph_ask(),
                                        .cells = is_lstm && !m->is_piece && !m->io->fused ? kr_graph_ask()
                                                                                          : (krait_view){0}});
    x = cast(m, "gates", reshape(m, h, KR_DIMS(kr_graph_dims(m->g, x).size[0], m->c->hidden)), m->rows_dtype);
  }
  *out_weight = matrix(m, w->out_w);
  return x;
}

static pk_wrap_p wrap_of(const maker *m, const char *stage, int64_t b, int64_t n, int64_t H) {
  const int64_t C = m->c->C, number = 0;
  char prefix[MAX_PREFIX];
  pk_wrap_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.%s.%lld.1.", (long long)b, stage, (long long)n);
  KR_PK_WRAP_KEYS(READ)
  return p;
}

static kr_tensor time_network(const maker *m, int64_t b, int64_t n, kr_tensor x, skip s) {
  const pk_wrap_p p = wrap_of(m, "time_stage", b, n, m->c->hidden);
  char prefix[MAX_PREFIX];
  kr_tensor weight = 0;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.time_stage.%lld.1.", (long long)b, (long long)n);
  const kr_tensor y =
      m->c->stage == KR_PK_MAMBA ? mamba(m, prefix, &p, x, &weight) : recurrent(m, prefix, &p, x, &weight);
  return scaled_back(m, y, weight, p.out_b, p.beta, x, 0, s);
}

/* ---- the prime kernel net ---- */

static pk_prime_p chunk_of(const maker *m, const char *prefix, int64_t K) {
  const int64_t C = m->c->C, number = K;
  pk_prime_p p;
  KR_PK_PRIME_KEYS(READ)
  return p;
}

/* Behind the first product, chunks: (rows, J C). */
static kr_tensor filter_bank(const maker *m, const char *prefix, const pk_wrap_p *w, kr_tensor chunks, kr_tensor x,
                             skip s) {
  const int64_t C = m->c->C, J = m->c->n_kernels, H = J * C;
  int64_t n_taps = 0;
  for (int64_t j = 0; j < J; j++) n_taps += m->c->kernels[j];
  const kr_tensor taps = turned(m, new_tensor(m, KR_DIMS(n_taps, C))),
                  gate_taps = turned(m, new_tensor(m, KR_DIMS(n_taps, C))), taps_bias = new_tensor(m, KR_DIMS(H)),
                  gate_bias = new_tensor(m, KR_DIMS(H)), weight = new_tensor(m, KR_DIMS(H, C)),
                  weight_bias = new_tensor(m, KR_DIMS(H)), out = new_like(m, x),
                  out_weight = multiply(m, "scale_weight", turned(m, matrix(m, w->out_w)), beside(m, w->beta, H)),
                  out_bias = multiply(m, "scale_bias", w->out_b, reshape(m, w->beta, KR_DIMS(C)));
  for (int64_t j = 0, first = 0; j < J; first += m->c->kernels[j++]) {
    const int64_t K = m->c->kernels[j];
    const pk_prime_p p = chunk_of(m, prefix, K);
#define PUT(from, to) copy(m, "chunk", from, kr_graph_slice(m->g, to, 0, j * C, C))
    copy(m, "taps", reshape(m, p.attn_taps, KR_DIMS(C, K)), columns(m, taps, first, K));
    copy(m, "taps", reshape(m, p.conv_taps, KR_DIMS(C, K)), columns(m, gate_taps, first, K));
    PUT(p.attn_taps_b, taps_bias);
    PUT(p.conv_taps_b, gate_bias);
    PUT(matrix(m, p.attn_w), weight);
    PUT(p.attn_b, weight_bias);
#undef PUT
  }
  krait_filter_bank_args a = {
      .call.flags = (m->one_sided ? KRAIT_FILTER_BANK_ONE_SIDED : 0) | (has_halves(m) ? KRAIT_FILTER_BANK_TF32 : 0),
      .J = J,
      .x = view(m, as_map(m, chunks)),
      .taps = view(m, taps),
      .taps_bias = view(m, taps_bias),
      .gate_taps = view(m, gate_taps),
      .gate_bias = view(m, gate_bias),
      .weight = view(m, laid_out(m, weight)),
      .weight_bias = view(m, weight_bias),
      .out_weight = view(m, laid_out(m, turned(m, out_weight))),
      .out_bias = view(m, out_bias),
      .residual = view(m, as_map(m, x)),
      .skip = view(m, as_map(m, s.x)),
      .skip_scale = view(m, s.x ? reshape(m, s.beta, KR_DIMS(C)) : 0),
      .out = view(m, as_map(m, out))};
  for (int64_t j = 0; j < J; j++) (&a.K1)[j] = m->c->kernels[j];
  kr_graph_call(m->g, "prime", &kr_op_filter_bank, &a);
  return out;
}

static kr_tensor prime_network(const maker *m, int64_t b, int64_t n, kr_tensor x, skip s) {
  const int64_t C = m->c->C, H = m->c->n_kernels * C, rows = kr_graph_dims(m->g, x).size[0];
  char prefix[MAX_PREFIX];
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.freq_stage.%lld.1.", (long long)b, (long long)n);
  const pk_wrap_p w = wrap_of(m, "freq_stage", b, n, H);
  const kr_tensor in_w = matrix(m, w.in_w);
  if (m->io->fused) {
    const kr_tensor chunks = normed_product(m, "in", x, w.norm_w, w.norm_b, in_w, w.in_b, (krait_map_product_args){0});
    return filter_bank(m, prefix, &w, chunks, x, s);
  }
  const kr_tensor normed = not_kept(m, channel_norm(m, x, w.norm_w, w.norm_b)),
                  h = m->is_piece ? 0 : product(m, "in", normed, in_w, w.in_b, 0, 0),
                  gated = new_rows(m, KR_DIMS(rows, H));
  for (int32_t j = 0; j < m->c->n_kernels; j++) {
    const pk_prime_p p = chunk_of(m, prefix, m->c->kernels[j]);
    /* a piece's chunks stay in the cache one after the other */
    const kr_tensor own = h ? columns(m, h, j * C, C)
                            : product(m, "in", normed, kr_graph_slice(m->g, in_w, 0, j * C, C),
                                      kr_graph_slice(m->g, w.in_b, 0, j * C, C), 0, 0),
                    chunk = as_map(m, own);
    const kr_tensor filtered =
        reshape(m, not_kept(m, filter(m, "prime_filter", chunk, p.attn_taps, p.attn_taps_b, 1)), KR_DIMS(rows, C));
    const kr_tensor other = reshape(m, filter(m, "prime_conv", chunk, p.conv_taps, p.conv_taps_b, 1), KR_DIMS(rows, C));
    multiply_into(m, "prime_gated", product(m, "prime_mix", filtered, matrix(m, p.attn_w), p.attn_b, 0, 0), other,
                  columns(m, gated, j * C, C));
  }
  return scaled_back(m, gated, matrix(m, w.out_w), w.out_b, w.beta, x, 0, s);
}

/* ---- a stage ---- */

kr_tensor pk_stage(const maker *given, int64_t b, int along_time, kr_tensor beta, kr_tensor x, kr_tensor out) {
  maker own = *given;
  const maker *m = &own;
  own.one_sided = given->one_sided && (along_time || !given->c->streams);
  const int64_t n_parts = along_time ? m->c->n_time : m->c->n_freq, rows = m->B * m->c->F2 * m->T;
  kr_tensor y = x;
  for (int64_t n = 0; n < n_parts; n++) {
    const skip s = {n + 1 == n_parts ? x : 0, beta}; /* of fused calls */
    const kr_tensor attended =
        part_of(m, y, attention(m, along_time ? "time_stage" : "freq_stage", b, n, along_time, y));
    y = part_of(m, attended, along_time ? time_network(m, b, n, attended, s) : prime_network(m, b, n, attended, s));
  }
  if (m->io->fused && n_parts) return y;
  const char *name = along_time ? "time_skip" : "freq_skip";
  const kr_tensor scaled = multiply(m, name, x, beside(m, beta, rows));
  if (!out) return add(m, name, y, scaled);
  const kr_dims dims = kr_graph_dims(m->g, out);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, reshape(m, y, dims),
                     reshape(m, scaled, dims), out);
  return out;
}
