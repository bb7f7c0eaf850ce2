/* primeknet_time.c: the time stage (MODEL.md section 3.2): each frequency is a sequence of T frames. A thread takes a
 * group of neighbouring frequencies, copies their sequences out, and runs every sub-block on them in chunks of CHUNK
 * frames that stay in the cache. Mamba (primeknet_mamba.c) takes one sequence at a time; GRU and LSTM a group, whose
 * recurrent products share the weights. */
#include <string.h>

#include "primeknet_session.h"

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
    if (m->config.stage != KR_PK_MAMBA) run_recurrent(s, &net->recurrent, w, group);
    else if (w->status >= 0) w->status = pk_mamba_run(s, &net->mamba, w, w->y);
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
