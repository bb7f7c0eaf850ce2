/* ears.c: see ears.h. An item's result does not depend on the thread that has it. */
#include "ears.h"

#include <math.h>

#include "alloc.h"
#include "disturbance.h"
#include "intelligibility.h"
#include "metrics.h"
#include "status.h"

struct kr_ears {
  kr_pool *pool;
  kr_disturbance **of_worker;
  kr_intelligibility **understood; /* of the workers, too */
  double (*values)[KR_EARS_TERMS]; /* of the items */
  float *own;                      /* of the items: a term's gradient */
  int64_t n;
  const float *clean, *made;
  const double *weights;
  float *pull;
};

int32_t kr_ears_open(kr_pool *pool, int64_t n, int64_t most, kr_ears **ears) {
  const int n_workers = kr_pool_size(pool);
  kr_ears *e = *ears = kr_zalloc(sizeof *e);
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
  if (status < 0) kr_ears_close(ears);
  return status;
}

void kr_ears_close(kr_ears **ears) {
  kr_ears *e = *ears;
  if (!e) return;
  for (int k = 0; e->of_worker && k < kr_pool_size(e->pool); k++) kr_disturbance_close(&e->of_worker[k]);
  for (int k = 0; e->understood && k < kr_pool_size(e->pool); k++) kr_intelligibility_close(&e->understood[k]);
  kr_free(e->of_worker), kr_free(e->understood), kr_free(e->values), kr_free(e->own), kr_free(e);
  *ears = NULL;
}

/* P.862.2: the score of a disturbance, and what it loses by more of it. */
static double opinion_of(double disturbance, double *slope) {
  const double power = exp(3.8224 - 1.3669 * (4.5 - disturbance));
  *slope = 4 * 1.3669 * power / ((1 + power) * (1 + power));
  return 4 / (1 + power);
}

static void add(float *pull, const float *own, int64_t n) {
  for (int64_t i = 0; pull && i < n; i++) pull[i] += own[i];
}

static void hear_item(const kr_ears *e, int64_t b, int worker) {
  const float *const clean = e->clean + b * e->n, *const made = e->made + b * e->n;
  const double *const w = e->weights;
  float *const own = e->own + b * e->n, *const pull = e->pull ? e->pull + b * e->n : NULL;
  double *const values = e->values[b];
  for (int64_t i = 0; pull && i < e->n; i++) pull[i] = 0;
  for (int k = 0; k < KR_EARS_TERMS; k++) values[k] = 0;
  if (w[KR_EARS_DISTURBANCE] != 0 || w[KR_EARS_OPINION] != 0) {
    double slope, of_same;
    const double d = kr_disturbance_run(e->of_worker[worker], clean, made, pull), best = opinion_of(0, &of_same);
    values[KR_EARS_DISTURBANCE] = d, values[KR_EARS_OPINION] = best - opinion_of(d, &slope);
    const float scale = (float)(w[KR_EARS_DISTURBANCE] + w[KR_EARS_OPINION] * slope);
    for (int64_t i = 0; pull && i < e->n; i++) pull[i] *= scale;
  }
  if (w[KR_EARS_SI_SDR] != 0) {
    values[KR_EARS_SI_SDR] = kr_si_sdr_lack(clean, made, e->n, w[KR_EARS_SI_SDR], own);
    add(pull, own, e->n);
  }
  if (w[KR_EARS_STOI] != 0) {
    values[KR_EARS_STOI] =
        kr_intelligibility_lack(e->understood[worker], clean, made, w[KR_EARS_STOI], pull ? own : NULL);
    add(pull, own, e->n);
  }
}

static void hear(void *user, int64_t begin, int64_t end, int worker) {
  const kr_ears *e = user;
  for (int64_t b = begin; b < end; b++) hear_item(e, b, worker);
}

void kr_ears_hear(kr_ears *e, int64_t items, const float *clean, const float *made,
                  const double weights[KR_EARS_TERMS], float *pull, double sums[KR_EARS_TERMS]) {
  e->clean = clean, e->made = made, e->weights = weights, e->pull = pull;
  kr_pool_run(e->pool, items, 1, hear, e);
  for (int k = 0; k < KR_EARS_TERMS; k++) {
    sums[k] = 0;
    for (int64_t b = 0; b < items; b++) sums[k] += e->values[b][k];
  }
}
