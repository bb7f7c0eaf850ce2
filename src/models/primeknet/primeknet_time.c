/* primeknet_time.c: the time stages of the blocks on a CPU: graphs of primeknet_graph.c over the sequences of some
 * positions, which stay in the cache. Positions do not meet within the stage, so that each thread runs whole pieces by
 * itself. */
#include <string.h>

#include "alloc.h"
#include "primeknet_graph.h"
#include "primeknet_session.h"
#include "status.h"

enum { SEQUENCES = 4 }; /* positions of a piece with GRU and LSTM: as many as the operator takes at once */

static int64_t piece_of(const kr_primeknet *m) { return m->config.stage == KR_PK_MAMBA ? 1 : SEQUENCES; }

static kr_tensor find(void *user, kr_graph *g, const char *name, kr_dims dims) {
  const kr_primeknet *m = user;
  for (const pk_parameter *p = m->parameters; p; p = p->next)
    if (strcmp(p->name, name) == 0) return kr_graph_weight(g, name, KRAIT_F32, dims, p->data);
  return 0;
}

static int32_t open_stage(kr_pk_session *s, int64_t block, int64_t n, pk_stage *to) {
  const kr_primeknet *m = s->model;
  const krait_view layout = {.stride = {m->Cp, (m->config.F2 + 2) * m->Cp, 1}, .dtype = KRAIT_F32};
  const kr_dims dims = KR_DIMS(n, s->T, m->config.C);
  KR_TRY(kr_graph_open(&to->graph));
  to->x = kr_graph_input_like(to->graph, "x", &layout, dims);
  to->out = kr_graph_output_like(to->graph, "out", &layout, dims);
  kr_pk_time_stage_record(to->graph, &m->config, find, (void *)m, block, to->x, to->out);
  return kr_graph_plan(to->graph, s->alone, KR_PLAN_CONSTANT);
}

static int32_t open_runners(kr_pk_session *s) {
  uint64_t most = 0;
  for (int64_t i = 0; i < s->n_stages; i++)
    if (s->stages[i].graph && kr_graph_bytes(s->stages[i].graph) > most) most = kr_graph_bytes(s->stages[i].graph);
  for (int t = 0; t < s->n_threads; t++) {
    pk_scratch *w = &s->scratch[t];
    w->runners = kr_zalloc((size_t)s->n_stages * sizeof(kr_runner *));
    w->stage_memory = kr_alloc(most);
    KR_CHECK(w->runners && (w->stage_memory || !most), KRAIT_ERR_NO_MEMORY, "no memory for a session");
    for (int64_t i = 0; i < s->n_stages; i++)
      if (s->stages[i].graph) KR_TRY(kr_runner_open_in(s->stages[i].graph, w->stage_memory, most, &w->runners[i]));
  }
  return KRAIT_OK;
}

void pk_stages_close(kr_pk_session *s) {
  for (int t = 0; t < s->n_threads && s->scratch; t++) {
    pk_scratch *w = &s->scratch[t];
    for (int64_t i = 0; i < s->n_stages && w->runners; i++) kr_runner_close(&w->runners[i]);
    kr_free(w->runners), kr_free(w->stage_memory);
    w->runners = NULL, w->stage_memory = NULL;
  }
  for (int64_t i = 0; i < s->n_stages && s->stages; i++) kr_graph_close(&s->stages[i].graph);
  kr_free(s->stages);
  s->stages = NULL;
}

/* Two graphs a block: of whole pieces, and of what is left. */
int32_t pk_stages_prepare(kr_pk_session *s) {
  const kr_pk_config *c = &s->model->config;
  const int64_t n = piece_of(s->model);
  pk_stages_close(s);
  s->n_stages = c->n_blocks * 2;
  s->stages = kr_zalloc((size_t)(s->n_stages + 1) * sizeof *s->stages);
  KR_CHECK(s->stages, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  for (int64_t b = 0; b < c->n_blocks; b++) {
    if (c->F2 >= n) KR_TRY(open_stage(s, b, n, &s->stages[2 * b]));
    if (c->F2 % n) KR_TRY(open_stage(s, b, c->F2 % n, &s->stages[2 * b + 1]));
  }
  return open_runners(s);
}

typedef struct time_job {
  const kr_pk_session *s;
  const pk_map *x;
  int64_t block, n;
} time_job;

static int32_t run_piece(const time_job *job, int64_t i, const pk_scratch *w) {
  const int64_t at = 2 * job->block + (job->x->width - i * job->n < job->n);
  const pk_stage *stage = &job->s->stages[at];
  float *from = job->x->data + i * job->n * job->s->model->Cp;
  KR_TRY(kr_runner_bind(w->runners[at], stage->x, from));
  KR_TRY(kr_runner_bind(w->runners[at], stage->out, from));
  return kr_runner_run(w->runners[at], NULL);
}

static void time_range(void *user, int64_t begin, int64_t end, int worker) {
  const time_job *job = user;
  pk_scratch *w = &job->s->scratch[worker];
  for (int64_t i = begin; i < end && w->status >= 0; i++) w->status = run_piece(job, i, w);
}

void pk_time_stage(kr_pk_session *s, int64_t block, const pk_map *x) {
  time_job job = {s, x, block, piece_of(s->model)};
  kr_parallel(s->model->ctx, (x->width + job.n - 1) / job.n, 1, time_range, &job);
}
