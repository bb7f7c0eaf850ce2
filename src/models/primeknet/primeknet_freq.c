/* primeknet_freq.c: the frequency stage (MODEL.md section 3.3): each frame is a sequence of F2 positions, worked
 * through while it is in the cache: channel attention with a depthwise filter of 3, then the feed-forward net with one
 * prime kernel per chunk. */
#include <string.h>

#include "primeknet_session.h"

/* The mean over the sequence gates the rows of the last matrix; w->mean holds the column sums of g. */
void pk_attend(const kr_primeknet *m, const pk_attention *a, pk_scratch *w, const float *g, int64_t n, float *y) {
  const int64_t Cp = m->Cp;
  const float inverse = 1.0f / (float)n;
  for (int64_t c = 0; c < Cp; c++) w->mean[c] *= inverse;
  pk_gemm(m, &a->attn, w->mean, Cp, 1, w->attn, Cp, KR_GEMM_SET);
  kr_panels scaled;
  m->layers->panels_scale(&a->out, w->attn, &scaled, w->scaled);
  pk_gemm(m, &scaled, g, Cp, n, y, Cp, KR_GEMM_ADD);
}

/* y holds F2 rows; the gate's input lies between zero rows in w->wide. */
static void attention(const kr_primeknet *m, const pk_attention *a, pk_scratch *w) {
  const int64_t Cp = m->Cp, F2 = m->config.F2, before = m->config.causal ? a->k - 1 : (a->k - 1) / 2;
  float *inside = w->wide + (a->k - 1) * 2 * Cp;
  m->layers->norm_rows(w->y, Cp, F2, m->config.C, 1e-6f, w->normed, Cp);
  pk_gemm(m, &a->gate, w->normed, Cp, F2, inside, 2 * Cp, KR_GEMM_SET);
  m->layers->depthwise_gate(inside - before * 2 * Cp, 2 * Cp, F2, Cp, a->k, a->taps, a->taps_bias, w->g, Cp, w->mean);
  pk_attend(m, a, w, w->g, F2, w->y);
}

static void prime_chunk(const kr_primeknet *m, const pk_prime *p, pk_scratch *w) {
  const int64_t Cp = m->Cp, F2 = m->config.F2, before = m->config.causal ? p->k - 1 : (p->k - 1) / 2;
  float *inside = w->narrow + m->config.max_kernel * Cp;
  pk_gemm(m, &p->in, w->normed, Cp, F2, inside, Cp, KR_GEMM_SET);
  m->layers->depthwise_pair(inside - before * Cp, Cp, F2, Cp, p->k, (const float *const[]){p->attn_taps, p->conv_taps},
                            (const float *const[]){p->attn_taps_bias, p->conv_taps_bias},
                            (float *const[]){w->taps_a, w->taps_b}, Cp);
  pk_gemm(m, &p->attn, w->taps_a, Cp, F2, w->taps_b, Cp, KR_GEMM_MUL);
  pk_gemm(m, &p->out, w->taps_b, Cp, F2, w->y, Cp, KR_GEMM_ADD);
}

typedef struct freq_job {
  kr_pk_session *s;
  const pk_block *block;
  const pk_map *x;
} freq_job;

static void freq_range(void *user, int64_t begin, int64_t end, int worker) {
  const freq_job *job = user;
  const kr_primeknet *m = job->s->model;
  const int64_t Cp = m->Cp, F2 = m->config.F2;
  pk_scratch *w = &job->s->scratch[worker];
  for (int64_t t = begin; t < end; t++) {
    float *row = job->x->data + t * job->x->row;
    memcpy(w->y, row, (size_t)(F2 * Cp) * sizeof(float));
    for (int64_t n = 0; n < m->config.n_freq; n++) {
      const pk_freq *f = &job->block->freq[n];
      attention(m, &f->attention, w);
      m->layers->norm_rows(w->y, Cp, F2, m->config.C, 1e-6f, w->normed, Cp);
      for (int32_t j = 0; j < m->config.n_kernels; j++) prime_chunk(m, &f->prime[j], w);
    }
    m->layers->scale_add(w->y, Cp, row, Cp, F2, Cp, job->block->beta_f, row, Cp);
  }
}

void pk_freq_stage(kr_pk_session *s, const pk_block *block, const pk_map *x) {
  freq_job job = {s, block, x};
  kr_parallel(s->model->ctx, s->T, 2, freq_range, &job);
}
