/* perceptual_loss.c: see perceptual_loss.h. An item's result does not depend on the thread that computes it. */
#include "perceptual_loss.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "disturbance.h"
#include "intelligibility.h"
#include "metrics.h"
#include "status.h"

struct kr_perceptual_loss {
  kr_pool *pool;
  kr_disturbance **of_worker;
  kr_intelligibility **understood; /* of the workers, too */
  double (*values)[KR_PERCEPTUAL_LOSS_TERMS]; /* of the items */
  float *own;                      /* of the items: the gradient of SI-SDR and STOI */
  int64_t n;
  const float *clean, *made;
  const double *weights;
  float *pull;
};

int32_t kr_perceptual_loss_open(kr_pool *pool, int64_t n, int64_t most, kr_perceptual_loss **perceptual) {
  const int n_workers = kr_pool_size(pool);
  kr_perceptual_loss *e = *perceptual = kr_zalloc(sizeof *e);
  KR_CHECK(e, KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  e->pool = pool, e->n = n;
  e->values = kr_alloc_array((size_t)most, sizeof *e->values);
  e->own = kr_alloc_array((size_t)(most * n), sizeof *e->own);
  e->of_worker = kr_zalloc((size_t)n_workers * sizeof *e->of_worker);
  e->understood = kr_zalloc((size_t)n_workers * sizeof *e->understood);
  const int has_all = e->values && e->own && e->of_worker && e->understood;
  int32_t status = has_all ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  for (int k = 0; k < n_workers && status >= 0; k++) status = kr_disturbance_open(n, &e->of_worker[k]);
  for (int k = 0; k < n_workers && status >= 0; k++) status = kr_intelligibility_open(n, &e->understood[k]);
  if (status < 0) kr_perceptual_loss_close(perceptual);
  return status;
}

void kr_perceptual_loss_close(kr_perceptual_loss **perceptual) {
  kr_perceptual_loss *e = *perceptual;
  if (!e) return;
  for (int k = 0; e->of_worker && k < kr_pool_size(e->pool); k++) kr_disturbance_close(&e->of_worker[k]);
  for (int k = 0; e->understood && k < kr_pool_size(e->pool); k++) kr_intelligibility_close(&e->understood[k]);
  kr_free(e->of_worker), kr_free(e->understood), kr_free(e->values), kr_free(e->own), kr_free(e);
  *perceptual = NULL;
}

/* P.862.2: the score of a disturbance, and its derivative. */
static double opinion_of(double disturbance, double *slope) {
  const double power = exp(3.8224 - 1.3669 * (4.5 - disturbance));
  *slope = 4 * 1.3669 * power / ((1 + power) * (1 + power));
  return 4 / (1 + power);
}

static void hear_disturbance(const kr_perceptual_loss *e, int64_t b, int worker, float *pull) {
  const double *const w = e->weights;
  if (w[KR_PERCEPTUAL_LOSS_DISTURBANCE] == 0 && w[KR_PERCEPTUAL_LOSS_PESQ] == 0) return;
  double slope, of_same;
  const double d = kr_disturbance_run(e->of_worker[worker], e->clean + b * e->n, e->made + b * e->n, pull),
               best = opinion_of(0, &of_same);
  e->values[b][KR_PERCEPTUAL_LOSS_DISTURBANCE] = d,
  e->values[b][KR_PERCEPTUAL_LOSS_PESQ] = best - opinion_of(d, &slope);
  const float scale = (float)(w[KR_PERCEPTUAL_LOSS_DISTURBANCE] + w[KR_PERCEPTUAL_LOSS_PESQ] * slope);
  for (int64_t i = 0; pull && i < e->n; i++) pull[i] *= scale;
}

static void hear_others(const kr_perceptual_loss *e, int64_t b, int worker, float *own) {
  const double *const w = e->weights;
  const float *const clean = e->clean + b * e->n, *const made = e->made + b * e->n;
  if (w[KR_PERCEPTUAL_LOSS_SI_SDR] != 0)
    e->values[b][KR_PERCEPTUAL_LOSS_SI_SDR] = kr_si_sdr_lack(clean, made, e->n, w[KR_PERCEPTUAL_LOSS_SI_SDR], own);
  if (w[KR_PERCEPTUAL_LOSS_STOI] != 0)
    e->values[b][KR_PERCEPTUAL_LOSS_STOI] =
        kr_intelligibility_lack(e->understood[worker], clean, made, w[KR_PERCEPTUAL_LOSS_STOI], e->pull ? own : NULL);
}

/* The two halves of an item: there are more threads than items. */
static void hear_perceptual_loss(void *user, int64_t begin, int64_t end, int worker) {
  const kr_perceptual_loss *e = user;
  for (int64_t k = begin; k < end; k++) {
    const int64_t b = k / 2;
    float *const own = e->own + b * e->n, *const pull = e->pull ? e->pull + b * e->n : NULL,
                 *const to = k % 2 ? own : pull;
    if (to) memset(to, 0, (size_t)e->n * sizeof *to);
    if (k % 2)
      hear_others(e, b, worker, own);
    else
      hear_disturbance(e, b, worker, pull);
  }
}

static void add_perceptual_loss(void *user, int64_t begin, int64_t end, int worker) {
  const kr_perceptual_loss *e = user;
  (void)worker;
  for (int64_t i = begin * e->n; i < end * e->n; i++) e->pull[i] += e->own[i];
}

void kr_perceptual_loss_hear(kr_perceptual_loss *e, int64_t items, const float *clean, const float *made,
                             const double weights[KR_PERCEPTUAL_LOSS_TERMS], float *pull,
                             double sums[KR_PERCEPTUAL_LOSS_TERMS]) {
  e->clean = clean, e->made = made, e->weights = weights, e->pull = pull;
  for (int64_t b = 0; b < items; b++)
    for (int k = 0; k < KR_PERCEPTUAL_LOSS_TERMS; k++) e->values[b][k] = 0;
  kr_pool_run(e->pool, 2 * items, 1, hear_perceptual_loss, e);
  if (pull) kr_pool_run(e->pool, items, 1, add_perceptual_loss, e);
  for (int k = 0; k < KR_PERCEPTUAL_LOSS_TERMS; k++) {
    sums[k] = 0;
    for (int64_t b = 0; b < items; b++) sums[k] += e->values[b][k];
  }
}
