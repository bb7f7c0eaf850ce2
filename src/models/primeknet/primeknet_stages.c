/* primeknet_stages.c: the stages of the blocks on a CPU: graphs of primeknet_graph.c over a piece of the map that stays
 * in the cache: some positions' sequences along time, or a frame along frequency. Pieces do not meet within a stage, so
 * that each thread runs whole pieces by itself. */
#include <string.h>

#include "alloc.h"
#include "primeknet_graph.h"
#include "primeknet_session.h"
#include "status.h"

/* Frames of a piece along frequency: 1; positions of one along time: of a recurrence as many as it takes at once. */
enum { SEQUENCES = 4 };

static int64_t piece_of(const kr_pk_session *s, int along_time) {
  return along_time && s->model->config.stage != KR_PK_MAMBA ? SEQUENCES : 1;
}

/* The graph of n positions or frames; a runner for each thread, in the memory that the thread has for all of them. */
static int32_t open_stage(kr_pk_session *s, int64_t block, int along_time, int64_t n, pk_stage *to) {
  const kr_primeknet *m = s->model;
  const int64_t row = (m->config.F2 + 2) * m->Cp;
  const krait_view layout = {.stride = {m->Cp, row, 1}, .dtype = KRAIT_F32};
  const kr_dims dims = along_time ? KR_DIMS(n, s->T, m->config.C) : KR_DIMS(m->config.F2, n, m->config.C);
  KR_TRY(kr_graph_open(&to->graph));
  to->x = kr_graph_input_like(to->graph, "x", &layout, dims);
  to->out = kr_graph_output_like(to->graph, "out", &layout, dims);
  kr_pk_stage_record(to->graph, &m->config, pk_parameter_of, (void *)&m->parameters, block, along_time, to->x, to->out);
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

/* Four graphs a block: along time and along frequency, of whole pieces and of what is left. */
static int64_t index_of(int64_t block, int along_time, int is_rest) { return block * 4 + along_time * 2 + is_rest; }

int32_t pk_stages_prepare(kr_pk_session *s) {
  pk_stages_close(s);
  s->n_stages = s->model->config.n_blocks * 4;
  s->stages = kr_zalloc((size_t)(s->n_stages + 1) * sizeof *s->stages);
  KR_CHECK(s->stages, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  for (int64_t b = 0; b < s->model->config.n_blocks; b++)
    for (int along_time = 0; along_time < 2; along_time++) {
      const int64_t n = piece_of(s, along_time), all = along_time ? s->model->config.F2 : s->T;
      if (all >= n) KR_TRY(open_stage(s, b, along_time, n, &s->stages[index_of(b, along_time, 0)]));
      if (all % n) KR_TRY(open_stage(s, b, along_time, all % n, &s->stages[index_of(b, along_time, 1)]));
    }
  return open_runners(s);
}

typedef struct stage_job {
  const kr_pk_session *s;
  const pk_map *x;
  int64_t block, n, all, step; /* piece, all positions or frames, floats from one to the next */
  int along_time;
} stage_job;

static int32_t run_piece(const stage_job *job, int64_t i, const pk_scratch *w) {
  const int64_t at = index_of(job->block, job->along_time, job->all - i * job->n < job->n);
  const pk_stage *stage = &job->s->stages[at];
  float *from = job->x->data + i * job->n * job->step;
  KR_TRY(kr_runner_bind(w->runners[at], stage->x, from));
  KR_TRY(kr_runner_bind(w->runners[at], stage->out, from));
  return kr_runner_run(w->runners[at], NULL);
}

static void stage_range(void *user, int64_t begin, int64_t end, int worker) {
  const stage_job *job = user;
  pk_scratch *w = &job->s->scratch[worker];
  for (int64_t i = begin; i < end && w->status >= 0; i++) w->status = run_piece(job, i, w);
}

void pk_stage_run(kr_pk_session *s, int64_t block, int along_time, const pk_map *x) {
  const int64_t n = piece_of(s, along_time), all = along_time ? s->model->config.F2 : s->T;
  stage_job job = {s, x, block, n, all, along_time ? s->model->Cp : x->row, along_time};
  kr_parallel(s->model->ctx, (all + n - 1) / n, 1, stage_range, &job);
}
