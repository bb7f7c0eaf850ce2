/* primeknet_time.c: the time stage (MODEL.md section 3.2): each frequency is a sequence of T frames. A thread takes a
 * group of neighbouring frequencies, copies their sequences out, and runs every sub-block on them in chunks of CHUNK
 * frames that stay in the cache. Mamba takes one sequence at a time; GRU and LSTM a group, whose recurrent products
 * share the weights. */
#include <string.h>

#include "primeknet_session.h"
#include "status.h"

typedef struct time_job {
  kr_pk_session *s;
  const pk_block *block;
  const pk_map *x;
} time_job;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The gate form gives g in one product; the mean over all frames has to be known before the second one. */
static void attention(const kr_pk_session *s, const pk_attention *a, pk_scratch *w, float *y, float *g) {
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp;
  for (int64_t t = 0; t < s->T; t += KR_PK_CHUNK) {
    int64_t n = least(s->T - t, KR_PK_CHUNK);
    m->layers->norm_rows(y + t * Cp, Cp, n, m->config.C, 1e-6f, w->normed, Cp);
    pk_gemm(m, &a->gate, w->normed, Cp, n, g + t * Cp, Cp, KR_GEMM_SET);
  }
  m->layers->column_sums(g, Cp, s->T, Cp, w->mean);
  pk_attend(m, a, w, g, s->T, y);
}

/* ---- Mamba ------------------------------------------------------------------------------------------------------- */

static krait_view rows_view(float *data, int64_t ld) {
  return (krait_view){.data = data, .stride = {0, 1, ld}, .dtype = KRAIT_F32};
}

static krait_view vector_view(const float *data, int64_t stride0) {
  return (krait_view){.data = (void *)data, .stride = {stride0, 1}, .dtype = KRAIT_F32};
}

static krait_view state_view(float *data, int64_t stride_d, int64_t stride_n) {
  return (krait_view){.data = data, .stride = {0, stride_d, stride_n}, .dtype = KRAIT_F32};
}

/* One chunk; carried holds the states before it, and next receives those after it. first: there is nothing before. */
static krait_causal_conv1d_args conv_call(const kr_primeknet *m, const pk_mamba *net, const pk_scratch *w, int64_t n,
                                          int first, int from) {
  const kr_pk_config *c = &m->config;
  krait_causal_conv1d_args a = {
      .call = {.size = sizeof a}, .B = 1, .D = c->d_inner, .L = n, .W = c->d_conv, .activation = KRAIT_ACT_SILU};
  a.x = rows_view(w->xz, 2 * m->Ep);
  a.weight = vector_view(net->conv_w, c->d_conv);
  a.bias = (krait_view){.data = (void *)net->conv_b, .stride = {1}, .dtype = KRAIT_F32};
  a.out = rows_view(w->xc, m->Ep);
  if (c->d_conv < 2) return a;
  if (!first) a.initial_states = state_view(w->conv_state[from], 1, m->Ep);
  a.final_states = state_view(w->conv_state[1 - from], 1, m->Ep);
  return a;
}

static krait_selective_scan_args scan_call(const kr_primeknet *m, const pk_mamba *net, const pk_scratch *w, int64_t n,
                                           int first, int from) {
  const kr_pk_config *c = &m->config;
  krait_selective_scan_args a = {.call = {.size = sizeof a, .flags = KRAIT_SCAN_SOFTPLUS},
                                 .B = 1,
                                 .D = c->d_inner,
                                 .L = n,
                                 .N = c->d_state,
                                 .G = 1};
  a.u = rows_view(w->xc, m->Ep);
  a.delta = rows_view(w->delta, m->Ep);
  a.A = vector_view(net->A, c->d_state);
  a.Bmat = (krait_view){.data = w->dbl + c->dt_rank, .stride = {0, 0, 1, m->Xp}, .dtype = KRAIT_F32};
  a.Cmat = (krait_view){.data = w->dbl + c->dt_rank + c->d_state, .stride = {0, 0, 1, m->Xp}, .dtype = KRAIT_F32};
  a.Dvec = (krait_view){.data = (void *)net->D, .stride = {1}, .dtype = KRAIT_F32};
  a.z = rows_view(w->xz + m->Ep, 2 * m->Ep);
  a.delta_bias = (krait_view){.data = (void *)net->dt_bias, .stride = {1}, .dtype = KRAIT_F32};
  if (!first) a.initial_state = state_view(w->scan_state[from], c->d_state, 1);
  a.last_state = state_view(w->scan_state[1 - from], c->d_state, 1);
  a.out = rows_view(w->xc, m->Ep);
  return a;
}

int32_t pk_scan_scratch_bytes(const kr_primeknet *model, uint64_t *bytes) {
  float dummy[8] = {0}; /* only the addresses are looked at, and they must differ */
  *bytes = 0;
  if (!model->config.n_blocks || !model->config.n_time) return KRAIT_OK;
  pk_scratch w = {.xc = dummy,
                  .delta = dummy + 1,
                  .dbl = dummy + 2,
                  .xz = dummy + 3,
                  .scan_state = {dummy + 4, dummy + 5},
                  .conv_state = {dummy + 6, dummy + 7}};
  uint64_t conv_bytes = 0;
  krait_selective_scan_args scan = scan_call(model, &model->blocks[0].time[0].mamba, &w, KR_PK_CHUNK, 0, 0);
  krait_causal_conv1d_args conv = conv_call(model, &model->blocks[0].time[0].mamba, &w, KR_PK_CHUNK, 0, 0);
  KR_TRY(krait_selective_scan_scratch_bytes(model->ctx, &scan, bytes));
  KR_TRY(krait_causal_conv1d_scratch_bytes(model->ctx, &conv, &conv_bytes));
  if (conv_bytes > *bytes) *bytes = conv_bytes;
  return KRAIT_OK;
}

static int32_t mamba_chunk(const kr_pk_session *s, const pk_mamba *net, pk_scratch *w, float *y, int64_t n, int first,
                           int from) {
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp;
  m->layers->norm_rows(y, Cp, n, m->config.C, 1e-6f, w->normed, Cp);
  pk_gemm(m, &net->in, w->normed, Cp, n, w->xz, 2 * m->Ep, KR_GEMM_SET);
  krait_causal_conv1d_args conv = conv_call(m, net, w, n, first, from);
  conv.call.scratch = w->op_scratch, conv.call.scratch_bytes = s->op_scratch_bytes;
  KR_TRY(krait_causal_conv1d(m->ctx, &conv));
  pk_gemm(m, &net->x_proj, w->xc, m->Ep, n, w->dbl, m->Xp, KR_GEMM_SET);
  pk_gemm(m, &net->dt_proj, w->dbl, m->Xp, n, w->delta, m->Ep, KR_GEMM_SET);
  krait_selective_scan_args scan = scan_call(m, net, w, n, first, from);
  scan.call.scratch = w->op_scratch, scan.call.scratch_bytes = s->op_scratch_bytes;
  KR_TRY(krait_selective_scan(m->ctx, &scan));
  pk_gemm(m, &net->out, w->xc, m->Ep, n, y, Cp, KR_GEMM_ADD);
  return KRAIT_OK;
}

static void run_mamba(const kr_pk_session *s, const pk_mamba *net, pk_scratch *w, float *y) {
  int from = 0;
  for (int64_t t = 0; t < s->T; t += KR_PK_CHUNK, from = 1 - from) {
    int32_t status = mamba_chunk(s, net, w, y + t * s->model->Cp, least(s->T - t, KR_PK_CHUNK), t == 0, from);
    if (status < 0) w->status = status;
  }
}

/* ---- GRU and LSTM: rows of a chunk are ordered (frame, sequence) ------------------------------------------------- */

static void gru_steps(const kr_primeknet *m, const kr_panels *hidden, pk_scratch *w, int64_t n, int64_t group,
                      float *h) {
  const int64_t Hp = m->Hp;
  for (int64_t t = 0; t < n; t++) {
    pk_gemm(m, hidden, h, Hp, group, w->gates_h, 3 * Hp, KR_GEMM_SET);
    m->layers->gru_step(w->gates_x + t * group * 3 * Hp, w->gates_h, group, Hp, h, w->steps + t * group * Hp);
  }
}

static void lstm_steps(const kr_primeknet *m, const kr_panels *hidden, pk_scratch *w, int64_t n, int64_t group,
                       float *h, float *c) {
  const int64_t Hp = m->Hp;
  for (int64_t t = 0; t < n; t++) {
    float *gates = w->gates_x + t * group * 4 * Hp;
    pk_gemm(m, hidden, h, Hp, group, gates, 4 * Hp, KR_GEMM_ADD);
    m->layers->lstm_step(gates, group, Hp, c, h, w->steps + t * group * Hp);
  }
}

static void recurrent_chunk(const kr_pk_session *s, const pk_recurrent *net, pk_scratch *w, int64_t t, int64_t n,
                            int64_t group) {
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp, Hp = m->Hp, gates = (m->config.stage == KR_PK_GRU ? 3 : 4) * Hp;
  for (int64_t q = 0; q < group; q++)
    m->layers->norm_rows(w->y + (q * s->T + t) * Cp, Cp, n, m->config.C, 1e-6f, w->normed + q * Cp, group * Cp);
  for (int64_t i = 0; i < m->config.layers; i++) {
    float *h = w->h + i * group * Hp;
    pk_gemm(m, &net->input[i], i ? w->steps : w->normed, i ? Hp : Cp, n * group, w->gates_x, gates, KR_GEMM_SET);
    if (m->config.stage == KR_PK_GRU) gru_steps(m, &net->hidden[i], w, n, group, h);
    else lstm_steps(m, &net->hidden[i], w, n, group, h, w->c + i * group * Hp);
  }
  for (int64_t q = 0; q < group; q++)
    pk_gemm(m, &net->out, w->steps + q * Hp, group * Hp, n, w->y + (q * s->T + t) * Cp, Cp, KR_GEMM_ADD);
}

static void run_recurrent(const kr_pk_session *s, const pk_recurrent *net, pk_scratch *w, int64_t group) {
  const size_t state_bytes = (size_t)(s->model->config.layers * group * s->model->Hp) * sizeof(float);
  memset(w->h, 0, state_bytes);
  memset(w->c, 0, state_bytes);
  for (int64_t t = 0; t < s->T; t += KR_PK_CHUNK) recurrent_chunk(s, net, w, t, least(s->T - t, KR_PK_CHUNK), group);
}

/* ---- the stage --------------------------------------------------------------------------------------------------- */

static void copy_in(const time_job *job, int64_t f, float *y) {
  const int64_t Cp = job->s->model->Cp;
  const float *from = job->x->data + f * Cp;
  for (int64_t t = 0; t < job->s->T; t++) memcpy(y + t * Cp, from + t * job->x->row, (size_t)Cp * sizeof(float));
}

static void time_group(const time_job *job, int64_t f, int64_t group, pk_scratch *w) {
  const kr_pk_session *s = job->s;
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp;
  for (int64_t q = 0; q < group; q++) copy_in(job, f + q, w->y + q * s->T * Cp);
  for (int64_t n = 0; n < m->config.n_time; n++) {
    const pk_time *net = &job->block->time[n];
    for (int64_t q = 0; q < group; q++) attention(s, &net->attention, w, w->y + q * s->T * Cp, w->g + q * s->T * Cp);
    if (m->config.stage == KR_PK_MAMBA) run_mamba(s, &net->mamba, w, w->y);
    else run_recurrent(s, &net->recurrent, w, group);
  }
  for (int64_t q = 0; q < group; q++) {
    float *column = job->x->data + (f + q) * Cp;
    m->layers->scale_add(w->y + q * s->T * Cp, Cp, column, job->x->row, s->T, Cp, job->block->beta_t, column,
                         job->x->row);
  }
}

static void time_range(void *user, int64_t begin, int64_t end, int worker) {
  const time_job *job = user;
  const int64_t group = job->s->group;
  for (int64_t i = begin; i < end; i++)
    time_group(job, i * group, least(job->x->width - i * group, group), &job->s->scratch[worker]);
}

void pk_time_stage(kr_pk_session *s, const pk_block *block, const pk_map *x) {
  time_job job = {s, block, x};
  kr_parallel(s->model->ctx, (x->width + s->group - 1) / s->group, 1, time_range, &job);
}
