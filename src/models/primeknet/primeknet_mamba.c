/* primeknet_mamba.c: a Mamba layer of the time stage on a CPU: for a chunk of one position's sequence, y + W2 mamba(W1
 * norm(y)) is a graph around the one Mamba block, which hands its states on to the next chunk. Every thread runs it for
 * itself, with the layer's weights bound. */
#include <string.h>

#include "mamba_block.h"
#include "op_list.h"
#include "primeknet_session.h"
#include "status.h"

/* Of a chunk, at most: products pack their weights anew for each, and a chunk stays in the cache. */
enum { MOST_FRAMES = 136 };

static krait_view layout(int64_t a, int64_t b, int64_t c) {
  return (krait_view){.stride = {a, b, c}, .dtype = KRAIT_F32};
}

static kr_tensor weight(kr_graph *g, const char *name, kr_dims dims) {
  return kr_graph_weight(g, name, KRAIT_F32, dims, NULL);
}

static kr_tensor turned(kr_graph *g, kr_tensor t) { return kr_graph_permute(g, t, (int[]){1, 0}); }

/* x W + bias (+ residual) into out; W is (inputs, outputs). */
static void product(kr_graph *g, const char *name, kr_tensor x, kr_tensor W, kr_tensor bias, kr_tensor residual,
                    kr_tensor out) {
  kr_graph_call(g, name, &kr_op_gemm,
                &(krait_gemm_args){.A = kr_graph_view(g, x),
                                   .Bmat = kr_graph_view(g, W),
                                   .bias = kr_graph_view(g, bias),
                                   .residual = kr_graph_view(g, residual),
                                   .out = kr_graph_view(g, out)});
}

/* As they lie in pk_mamba: inputs before outputs. */
static void record_weights(kr_graph *g, const kr_pk_config *c, pk_mamba_chunk *l) {
  const int64_t C = c->C, E = c->d_inner, N = c->d_state, R = c->dt_rank;
  l->in_w = weight(g, "in_w", KR_DIMS(C, 2 * E)), l->in_b = weight(g, "in_b", KR_DIMS(2 * E));
  l->conv_w = weight(g, "conv_w", KR_DIMS(E, c->d_conv)), l->conv_b = weight(g, "conv_b", KR_DIMS(E));
  l->x_w = weight(g, "x_w", KR_DIMS(E, R + 2 * N));
  l->dt_w = weight(g, "dt_w", KR_DIMS(R, E)), l->dt_b = weight(g, "dt_b", KR_DIMS(E));
  l->A = weight(g, "A", KR_DIMS(E, N)), l->D = weight(g, "D", KR_DIMS(E));
  l->out_w = weight(g, "out_w", KR_DIMS(E, C)), l->out_b = weight(g, "out_b", KR_DIMS(C));
}

/* Before and after; a convolution of one tap has no state. */
static void record_states(kr_graph *g, const kr_pk_config *c, pk_mamba_chunk *l) {
  const int64_t E = c->d_inner, N = c->d_state, taps = c->d_conv - 1;
  const krait_view conv = layout(E * taps, 1, E), scan = layout(E * N, N, 1);
  l->conv[0] = taps > 0 ? kr_graph_input_like(g, "conv_states", &conv, KR_DIMS(1, E, taps)) : 0;
  l->conv[1] = taps > 0 ? kr_graph_output_like(g, "conv_states_out", &conv, KR_DIMS(1, E, taps)) : 0;
  l->scan[0] = kr_graph_input_like(g, "scan_state", &scan, KR_DIMS(1, E, N));
  l->scan[1] = kr_graph_output_like(g, "scan_state_out", &scan, KR_DIMS(1, E, N));
}

static void record(kr_graph *g, const kr_primeknet *m, int64_t n, pk_mamba_chunk *l) {
  const kr_pk_config *c = &m->config;
  const int64_t E = c->d_inner;
  const krait_view rows = layout(m->Cp, 1, 0);
  l->y = kr_graph_input_like(g, "y", &rows, KR_DIMS(n, c->C));
  l->out = kr_graph_output_like(g, "out", &rows, KR_DIMS(n, c->C));
  record_weights(g, c, l);
  record_states(g, c, l);
  const kr_tensor normed = kr_graph_temp(g, KRAIT_F32, KR_DIMS(n, c->C)),
                  xz = kr_graph_temp(g, KRAIT_F32, KR_DIMS(n, 2 * E)), h = kr_graph_temp(g, KRAIT_F32, KR_DIMS(n, E));
  kr_graph_call(
      g, "norm", &kr_op_add_norm,
      &(krait_add_norm_args){.eps = 1e-6f, .x = kr_graph_view(g, l->y), .out = kr_graph_view(g, normed)});
  product(g, "in", normed, l->in_w, l->in_b, 0, xz);
  const int by_channel[] = {0, 2, 1};
  kr_mamba_block_record(
      g, &(kr_mamba_block){.flags = KRAIT_SCAN_SOFTPLUS,
                           .dtype = KRAIT_F32,
                           .xz = kr_graph_permute(g, kr_graph_reshape(g, xz, KR_DIMS(1, n, 2 * E)), by_channel),
                           .conv_weight = l->conv_w,
                           .conv_bias = l->conv_b,
                           .x_proj_weight = turned(g, l->x_w),
                           .dt_proj_weight = turned(g, l->dt_w),
                           .delta_bias = l->dt_b,
                           .A = l->A,
                           .Dvec = l->D,
                           .conv_states = l->conv[0],
                           .conv_states_out = l->conv[1],
                           .scan_state = l->scan[0],
                           .scan_state_out = l->scan[1],
                           .out = kr_graph_permute(g, kr_graph_reshape(g, h, KR_DIMS(1, n, E)), by_channel)});
  product(g, "out", h, l->out_w, l->out_b, l->y, l->out);
}

/* For chunks of n frames. */
static int32_t open_layer(kr_pk_session *s, int64_t n, int which) {
  pk_mamba_chunk *l = &s->layer[which];
  KR_TRY(kr_graph_open(&l->graph));
  record(l->graph, s->model, n, l);
  KR_TRY(kr_graph_plan(l->graph, s->alone, 0));
  for (int i = 0; i < s->n_threads; i++) KR_TRY(kr_runner_open(l->graph, &s->scratch[i].layer[which]));
  return KRAIT_OK;
}

void pk_mamba_close(kr_pk_session *s) {
  for (int which = 0; which < 2; which++) {
    for (int i = 0; i < s->n_threads && s->scratch; i++) kr_runner_close(&s->scratch[i].layer[which]);
    kr_graph_close(&s->layer[which].graph);
  }
}

int32_t pk_mamba_prepare(kr_pk_session *s) {
  pk_mamba_close(s);
  if (s->model->config.stage != KR_PK_MAMBA) return KRAIT_OK;
  const int64_t n_chunks = (s->T + MOST_FRAMES - 1) / MOST_FRAMES;
  s->chunk = (s->T + n_chunks - 1) / n_chunks;
  KR_TRY(open_layer(s, s->chunk, 0));
  return s->T % s->chunk ? open_layer(s, s->T % s->chunk, 1) : KRAIT_OK;
}

static int32_t bind_weights(const pk_mamba_chunk *l, const pk_mamba *net, kr_runner *r) {
  const struct {
    kr_tensor t;
    const float *data;
  } all[] = {{l->in_w, net->in.data},     {l->in_b, net->in.bias},   {l->conv_w, net->conv_w}, {l->conv_b, net->conv_b},
             {l->x_w, net->x_proj.data},  {l->dt_b, net->dt_bias},   {l->A, net->A},           {l->D, net->D},
             {l->dt_w, net->dt_proj.data}, {l->out_w, net->out.data}, {l->out_b, net->out.bias}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) KR_TRY(kr_runner_bind(r, all[i].t, (void *)all[i].data));
  return KRAIT_OK;
}

static int32_t run_chunk(const pk_mamba_chunk *l, const pk_scratch *w, kr_runner *r, float *y, int from) {
  for (int i = 0; i < 2; i++) {
    const int at = i ? 1 - from : from;
    if (l->conv[i]) KR_TRY(kr_runner_bind(r, l->conv[i], w->conv_state[at]));
    KR_TRY(kr_runner_bind(r, l->scan[i], w->scan_state[at]));
    KR_TRY(kr_runner_bind(r, i ? l->out : l->y, y));
  }
  return kr_runner_run(r, NULL);
}

int32_t pk_mamba_run(const kr_pk_session *s, const pk_mamba *net, pk_scratch *w, float *y) {
  const kr_primeknet *m = s->model;
  const int64_t E = m->config.d_inner;
  memset(w->conv_state[0], 0, (size_t)(E * (m->config.d_conv - 1)) * sizeof(float));
  memset(w->scan_state[0], 0, (size_t)(E * m->config.d_state) * sizeof(float));
  for (int which = 0; which < 2; which++)
    if (w->layer[which]) KR_TRY(bind_weights(&s->layer[which], net, w->layer[which]));
  int from = 0;
  for (int64_t t = 0; t < s->T; t += s->chunk, from = 1 - from) {
    const int which = s->T - t < s->chunk;
    KR_TRY(run_chunk(&s->layer[which], w, w->layer[which], y + t * m->Cp, from));
  }
  return KRAIT_OK;
}
