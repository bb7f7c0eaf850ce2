/* primeknet_device_stages.c: the blocks' stages on the GPU: products with what lies between them, the residuals in the
 * products' ends. */
#include <string.h>

#include "primeknet_launch.h"

static const kr_kernel pointwise = {"tile_norm", "kr_tile_norm"};

static uint32_t blocks_of(int64_t n, int64_t per_block) { return (uint32_t)((n + per_block - 1) / per_block); }

static int64_t all_rows(const pk_device_session *s) { return s->n_items * pk_rows(s, s->model->config.F2); }

/* The residual of a sub-block; the last one of a stage adds the block's beta x and writes x. */
static void end_product(pk_device_session *s, pk_product *p, const float *E, const float *beta) {
  p->epilogue = KR_PK_ADD;
  p->E = E;
  p->out = beta ? s->x : s->y;
  if (beta) p->X = s->x, p->beta = pk_weight(s, beta);
  pk_launch_product(s, p);
}

static void without_sub_blocks(pk_device_session *s, const float *beta) {
  const int64_t n = all_rows(s) * s->model->Cp;
  const kr_tile_norm_plan p = {
      .x = s->x, .beta = pk_weight(s, beta), .n = n, .per_item = n, .C = (int32_t)s->model->Cp};
  pk_launch(s, &pointwise,
            (kr_grid){.x = blocks_of(n / 4, KR_TILE_NORM_THREADS), .block = KR_TILE_NORM_THREADS}, &p, sizeof p);
}

/* y = from + the attention on it; g holds its gated half. */
static void attend(pk_device_session *s, const pk_attention *a, const float *from, int frames_are_sequences) {
  const kr_primeknet *m = s->model;
  const int64_t F = m->config.F2, Cp = m->Cp, along_time = Cp, along_frequency = s->T * Cp;
  pk_run_op(s, &kr_op_mean_product,
            &(krait_mean_product_args){
                .call = {.size = sizeof(krait_mean_product_args), .stream = s->lane->stream},
                .I = s->n_items,
                .J = frames_are_sequences ? s->T : F,
                .S = frames_are_sequences ? F : s->T,
                .C = Cp,
                .x = {.data = s->g,
                      .stride = {F * s->T * Cp, frames_are_sequences ? along_time : along_frequency,
                                 frames_are_sequences ? along_frequency : along_time, 1},
                      .dtype = KRAIT_F32},
                .weight = pk_view(pk_weight(s, a->attn.data), 1, pk_panel_columns(&a->attn), 0),
                .bias = pk_view(pk_weight(s, a->attn.bias), 1, 0, 0),
                .out = pk_view(s->factors, (frames_are_sequences ? s->T : F) * Cp, Cp, 1)});
  pk_product p = pk_product_of(s, &a->out, KR_PK_A_SCALED, s->g, m->Cp, m->Cp, s->y, m->Cp);
  p.factors = s->factors;
  p.frames_are_sequences = frames_are_sequences;
  p.window = kr_divisor_of(pk_rows(s, m->config.F2));
  end_product(s, &p, from, NULL);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void run_mamba(pk_device_session *s, const pk_mamba *net, const float *beta) {
  const kr_primeknet *m = s->model;
  const kr_pk_config *c = &m->config;
  pk_product in = pk_product_of(s, &net->in, KR_PK_A_NORM, s->y, m->Cp, m->Cp, s->xz, 2 * m->Ep);
  in.silu_from = (int32_t)m->Ep;
  pk_launch_product(s, &in);
  pk_product x_proj = pk_product_of(s, &net->x_proj, KR_PK_A_CONV, s->xz, 2 * m->Ep, m->Ep, s->dbl, m->Xp);
  x_proj.conv_w = pk_weight(s, net->conv_w), x_proj.conv_b = pk_weight(s, net->conv_b);
  x_proj.n_convolved = (int32_t)c->d_inner, x_proj.n_taps = (int32_t)c->d_conv;
  x_proj.made = s->xc;
  pk_launch_product(s, &x_proj);
  const int64_t n = all_rows(s) / s->T, Ep = m->Ep, N = c->d_state;
  const krait_view rows = pk_view(s->xc, s->T * Ep, Ep, 1);
  pk_run_op(s, &kr_op_projected_scan,
            &(krait_projected_scan_args){
                .call = {.size = sizeof(krait_projected_scan_args), .stream = s->lane->stream},
                .B = n,
                .L = s->T,
                .D = Ep,
                .N = N,
                .R = c->dt_rank,
                .X = m->Xp,
                .u = rows,
                .proj = pk_view(s->dbl, s->T * m->Xp, m->Xp, 1),
                .dt_weight = pk_view(pk_weight(s, net->dt_proj.data), 1, pk_panel_columns(&net->dt_proj), 0),
                .dt_bias = pk_view(pk_weight(s, net->dt_bias), 1, 0, 0),
                .A = pk_view(pk_weight(s, net->A), N, 1, 0),
                .Dvec = pk_view(pk_weight(s, net->D), 1, 0, 0),
                .z = pk_view(s->xz + Ep, s->T * 2 * Ep, 2 * Ep, 1),
                .out = rows});
  pk_product out = pk_product_of(s, &net->out, KR_PK_A_ROWS, s->xc, m->Ep, m->Ep, s->y, m->Cp);
  end_product(s, &out, s->y, beta);
}

/* Behind the input's product; its result has states that are zeros up to the padded width. */
static void run_layer(pk_device_session *s, const kr_panels *hidden, uint32_t flags) {
  const int64_t Hp = s->model->Hp, n_gates = (flags & KRAIT_RNN_LSTM ? 4 : 3) * Hp;
  pk_run_op(s, &kr_op_rnn,
            &(krait_rnn_args){.call = {.size = sizeof(krait_rnn_args), .flags = flags, .stream = s->lane->stream},
                              .B = all_rows(s) / s->T,
                              .L = s->T,
                              .H = Hp,
                              .x = pk_view(s->gates, s->T * n_gates, n_gates, 1),
                              .weight = pk_view(pk_weight(s, hidden->data), 1, pk_panel_columns(hidden), 0),
                              .bias = pk_view(pk_weight(s, hidden->bias), 1, 0, 0),
                              .out = pk_view(s->steps, s->T * Hp, Hp, 1)});
}

/* The first two layers in one launch, their inputs' products and the norm included. Returns whether it did: its factors
 * are float16. */
static int run_two_layers(pk_device_session *s, const pk_recurrent *net, uint32_t flags) {
  const kr_primeknet *m = s->model;
  if (!net->halves[0] || !s->device->halves) return 0;
  krait_view weights[4], biases[4];
  for (int i = 0; i < 4; i++) {
    weights[i] = pk_view(pk_weight(s, (const float *)net->halves[i]), i ? m->Hp : m->Cp, 1, 0);
    weights[i].dtype = KRAIT_F16;
    biases[i] = pk_view(pk_weight(s, (i % 2 ? net->hidden : net->input)[i / 2].bias), 1, 0, 0);
  }
  const int64_t n = all_rows(s) / s->T;
  pk_run_op(s, &kr_op_rnn_pair,
            &(krait_rnn_pair_args){.call = {.size = sizeof(krait_rnn_pair_args),
                                            .flags = flags | KRAIT_RNN_TF32 | KRAIT_RNN_NORM,
                                            .stream = s->lane->stream,
                                            .scratch = s->gates,
                                            .scratch_bytes = (uint64_t)(n * s->T * 4 * m->Hp) * sizeof(float)},
                                   .B = n,
                                   .L = s->T,
                                   .C = m->config.C,
                                   .H = m->Hp,
                                   .eps = 1e-6f,
                                   .x = pk_view(s->y, s->T * m->Cp, m->Cp, 1),
                                   .in_weight = weights[0],
                                   .in_bias = biases[0],
                                   .weight = weights[1],
                                   .bias = biases[1],
                                   .in_weight2 = weights[2],
                                   .in_bias2 = biases[2],
                                   .weight2 = weights[3],
                                   .bias2 = biases[3],
                                   .out = pk_view(s->steps, s->T * m->Hp, m->Hp, 1)});
  return 1;
}

static void run_recurrent(pk_device_session *s, const pk_recurrent *net, const float *beta) {
  const kr_primeknet *m = s->model;
  const uint32_t flags = m->config.stage == KR_PK_LSTM ? KRAIT_RNN_LSTM : 0;
  const int64_t n_gates = (flags ? 4 : 3) * m->Hp;
  for (int64_t i = run_two_layers(s, net, flags) ? 2 : 0; i < m->config.layers; i++) {
    pk_product in = i ? pk_product_of(s, &net->input[i], m->Hp <= KR_TILE_COLUMNS ? KR_PK_A_HELD : KR_PK_A_ROWS,
                                      s->steps, m->Hp, m->Hp, s->gates, n_gates)
                      : pk_product_of(s, &net->input[i], KR_PK_A_NORM, s->y, m->Cp, m->Cp, s->gates, n_gates);
    pk_launch_product(s, &in);
    run_layer(s, &net->hidden[i], flags);
  }
  pk_product out = pk_product_of(s, &net->out, KR_PK_A_ROWS, s->steps, m->Hp, m->Hp, s->y, m->Cp);
  end_product(s, &out, s->y, beta);
}

void pk_device_time_stage(pk_device_session *s, const pk_block *block) {
  const kr_primeknet *m = s->model;
  for (int64_t n = 0; n < m->config.n_time; n++) {
    const pk_time *net = &block->time[n];
    const float *from = n ? s->y : s->x, *beta = n + 1 == m->config.n_time ? block->beta_t : NULL;
    pk_product gate = pk_product_of(s, &net->attention.gate, KR_PK_A_NORM, from, m->Cp, m->Cp, s->g, m->Cp);
    gate.epilogue = KR_PK_GATE;
    pk_launch_product(s, &gate);
    attend(s, &net->attention, from, 0);
    if (m->config.stage == KR_PK_MAMBA) run_mamba(s, &net->mamba, beta);
    else run_recurrent(s, &net->recurrent, beta);
  }
  if (!m->config.n_time) without_sub_blocks(s, block->beta_t);
}

/* ---- frequency --------------------------------------------------------------------------------------------------- */

static void gate_frequencies(pk_device_session *s, const pk_attention *a, const float *from) {
  const kr_primeknet *m = s->model;
  const pk_product both = pk_product_of(s, &a->gate, KR_PK_A_NORM, from, m->Cp, m->Cp, s->pair, 2 * m->Cp);
  pk_launch_product(s, &both);
  const int64_t F = m->config.F2, Cp = m->Cp;
  pk_run_op(s, &kr_op_gated_filter,
            &(krait_gated_filter_args){
                .call = {.size = sizeof(krait_gated_filter_args), .stream = s->lane->stream},
                .B = s->n_items,
                .H = F,
                .W = s->T,
                .C = Cp,
                .K = a->k,
                .P = m->config.causal ? a->k - 1 : (a->k - 1) / 2,
                .x = pk_map_view(s, m->config.F2, s->pair, 2 * Cp),
                .weight = pk_view(pk_weight(s, a->taps), 1, 2 * Cp, 0),
                .bias = pk_view(pk_weight(s, a->taps_bias), 1, 0, 0),
                .out = pk_map_view(s, m->config.F2, s->g, Cp)});
}

/* The first product of all chunks at once, then the rest. */
static void feed_forward(pk_device_session *s, const pk_prime *prime, const float *beta) {
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp, J = m->config.n_kernels, *k = m->config.kernels;
  const int halves = s->device->halves;
  pk_product in = pk_product_of(s, &prime->in[0], KR_PK_A_NORM, s->y, Cp, Cp, s->chunks, J * Cp);
  in.n_panels = (int32_t)J;
  in.out_panel = Cp;
  for (int64_t j = 0; j < J; j++)
    in.w[j] = pk_weight(s, prime->in[j].data), in.bias[j] = pk_weight(s, prime->in[j].bias);
  pk_launch_product(s, &in);
#define VECTOR(of) pk_view(pk_weight(s, prime->of), 1, 0, 0)
  krait_filter_bank_args a = {
      .call = {.size = sizeof a,
               .flags = (m->config.causal ? KRAIT_FILTER_BANK_ONE_SIDED : 0) | (halves ? KRAIT_FILTER_BANK_TF32 : 0),
               .stream = s->lane->stream},
      .B = s->n_items,
      .H = m->config.F2,
      .W = s->T,
      .C = Cp,
      .J = J,
      .K = prime->n_taps,
      .x = pk_map_view(s, m->config.F2, s->chunks, J * Cp),
      .taps = pk_view(pk_weight(s, prime->taps), 1, Cp, 0),
      .taps_bias = VECTOR(taps_bias),
      .gate_taps = pk_view(pk_weight(s, prime->gate_taps), 1, Cp, 0),
      .gate_bias = VECTOR(gate_bias),
      .weight = halves ? pk_half_view(s, prime->weight_halves, Cp) : pk_view(pk_weight(s, prime->weight), 1, J * Cp, 0),
      .weight_bias = VECTOR(weight_bias),
      .out_weight =
          halves ? pk_half_view(s, prime->out_halves, J * Cp) : pk_view(pk_weight(s, prime->out_weight), 1, Cp, 0),
      .out_bias = VECTOR(out_bias),
      .residual = pk_map_view(s, m->config.F2, s->y, Cp),
      .out = pk_map_view(s, m->config.F2, beta ? s->x : s->y, Cp)};
#undef VECTOR
  if (beta) a.skip = a.out, a.skip_scale = pk_view(pk_weight(s, beta), 1, 0, 0);
  memcpy(&a.K1, k, (size_t)J * sizeof *k);
  pk_run_op(s, &kr_op_filter_bank, &a);
}

void pk_device_freq_stage(pk_device_session *s, const pk_block *block) {
  const kr_primeknet *m = s->model;
  for (int64_t n = 0; n < m->config.n_freq; n++) {
    const pk_freq *net = &block->freq[n];
    const float *from = n ? s->y : s->x;
    gate_frequencies(s, &net->attention, from);
    attend(s, &net->attention, from, 1);
    feed_forward(s, &net->prime, n + 1 == m->config.n_freq ? block->beta_f : NULL);
  }
  if (!m->config.n_freq) without_sub_blocks(s, block->beta_f);
}
