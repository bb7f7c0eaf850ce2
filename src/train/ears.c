/* ears.c: see ears.h. An item's result does not depend on the thread that has it. */
#include "ears.h"

#include "alloc.h"
#include "disturbance.h"
#include "status.h"

struct kr_ears {
  kr_pool *pool;
  kr_disturbance **of_worker;
  double *values; /* of the items */
  int64_t n;
  const float *clean, *made;
  float *pull, scale;
};

int32_t kr_ears_open(kr_pool *pool, int64_t n, int64_t most, kr_ears **ears) {
  const int n_workers = kr_pool_size(pool);
  kr_ears *e = *ears = kr_zalloc(sizeof *e);
  KR_CHECK(e, KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  e->pool = pool, e->n = n;
  e->values = kr_alloc_array((size_t)most, sizeof *e->values);
  e->of_worker = kr_zalloc((size_t)n_workers * sizeof *e->of_worker);
  int32_t status =
      e->values && e->of_worker ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  for (int k = 0; k < n_workers && status >= 0; k++) status = kr_disturbance_open(n, &e->of_worker[k]);
  if (status < 0) kr_ears_close(ears);
  return status;
}

void kr_ears_close(kr_ears **ears) {
  kr_ears *e = *ears;
  if (!e) return;
  for (int k = 0; e->of_worker && k < kr_pool_size(e->pool); k++) kr_disturbance_close(&e->of_worker[k]);
  kr_free(e->of_worker), kr_free(e->values), kr_free(e);
  *ears = NULL;
}

static void hear(void *user, int64_t begin, int64_t end, int worker) {
  const kr_ears *e = user;
  for (int64_t b = begin; b < end; b++) {
    float *const pull = e->pull ? e->pull + b * e->n : NULL;
    e->values[b] = kr_disturbance_run(e->of_worker[worker], e->clean + b * e->n, e->made + b * e->n, pull);
    for (int64_t i = 0; pull && i < e->n; i++) pull[i] *= e->scale;
  }
}

double kr_ears_hear(kr_ears *e, int64_t items, const float *clean, const float *made, float scale, float *pull) {
  double sum = 0;
  e->clean = clean, e->made = made, e->scale = scale, e->pull = pull;
  kr_pool_run(e->pool, items, 1, hear, e);
  for (int64_t b = 0; b < items; b++) sum += e->values[b];
  return sum;
}
