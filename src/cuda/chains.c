/* chains.c: one executable graph per stream and sequence of kernels; every launch updates the parameters first. A graph
 * launch waits for that graph's previous launch, so streams do not share graphs until there are 128: then the least
 * recently used one of that length is retargeted to another stream and other kernels, at 1.4 us more per kernel. While
 * a stream is being captured, launches are recorded one by one. */
#include "chains.h"

#include <pthread.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum {
  MOST_KEPT = 128,
  QUICK_DRIVER = 12060 /* constant launch time for graphs that are straight chains */
};

typedef struct kept_chain {
  void *stream, *functions[KR_MOST_LAUNCHES];
  uint64_t last_use;
  int n;
  void *graph, *instance, *nodes[KR_MOST_LAUNCHES];
} kept_chain;

struct kr_chains {
  const kr_driver *driver;
  pthread_mutex_t lock;
  uint64_t n_uses;
  int n_kept;
  kept_chain kept[MOST_KEPT];
};

int32_t kr_chains_open(const kr_driver *d, kr_chains **chains) {
  *chains = NULL;
  if (d->version < QUICK_DRIVER || !d->GraphCreate || !d->GraphAddKernelNode || !d->GraphExecKernelNodeSetParams ||
      !d->StreamIsCapturing || !d->GraphInstantiate || !d->GraphLaunch || !d->GraphExecDestroy || !d->GraphDestroy)
    return KRAIT_OK;
  kr_chains *c = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a device");
  c->driver = d;
  pthread_mutex_init(&c->lock, NULL);
  *chains = c;
  return KRAIT_OK;
}

/* Forces the next launch to rebuild it. */
static void forget(const kr_driver *d, kept_chain *r) {
  if (r->instance) d->GraphExecDestroy(r->instance);
  if (r->graph) d->GraphDestroy(r->graph);
  r->instance = r->graph = NULL;
}

void kr_chains_close(kr_chains **chains) {
  kr_chains *c = *chains;
  if (!c) return;
  for (int i = 0; i < c->n_kept; i++) forget(c->driver, &c->kept[i]);
  pthread_mutex_destroy(&c->lock);
  kr_free(c);
  *chains = NULL;
}

/* The graph of these kernels on this stream, else a new one, else that length's least recently used; NULL: none. */
static kept_chain *kept_of(kr_chains *c, void *stream, void *const *functions, int n) {
  kept_chain *oldest = NULL;
  for (int i = 0; i < c->n_kept; i++) {
    kept_chain *r = &c->kept[i];
    if (r->n != n) continue;
    if (r->stream == stream && memcmp(r->functions, functions, (size_t)n * sizeof *functions) == 0) return r;
    if (!oldest || r->last_use < oldest->last_use) oldest = r;
  }
  kept_chain *r = c->n_kept < MOST_KEPT ? &c->kept[c->n_kept++] : oldest;
  if (!r) return NULL;
  r->stream = stream, r->n = n;
  memcpy(r->functions, functions, (size_t)n * sizeof *functions);
  return r;
}

static kr_cu_kernel_node node_of(const kept_chain *r, const kr_chain *chain, int i, void **parameters) {
  const kr_grid *g = &chain->launches[i].grid;
  return (kr_cu_kernel_node){r->functions[i], g->x, g->y ? g->y : 1, g->z ? g->z : 1, g->block, 1, 1, g->shared_bytes,
                             parameters,      NULL};
}

static kr_cu_result build(const kr_driver *d, kept_chain *r, const kr_chain *chain) {
  kr_cu_result result = d->GraphCreate(&r->graph, 0);
  for (int i = 0; i < chain->n && !result; i++) {
    void *parameters[] = {(void *)chain->launches[i].args};
    const kr_cu_kernel_node node = node_of(r, chain, i, parameters);
    result = d->GraphAddKernelNode(&r->nodes[i], r->graph, i ? &r->nodes[i - 1] : NULL, i > 0, &node);
  }
  return result ? result : d->GraphInstantiate(&r->instance, r->graph, 0);
}

/* The caller may be capturing a graph on another stream, which forbids its thread to allocate. */
static kr_cu_result build_aside(const kr_driver *d, kept_chain *r, const kr_chain *chain) {
  int mode = KR_CU_CAPTURE_RELAXED;
  const int aside = d->ThreadExchangeStreamCaptureMode && d->ThreadExchangeStreamCaptureMode(&mode) == 0;
  const kr_cu_result result = build(d, r, chain);
  if (aside) d->ThreadExchangeStreamCaptureMode(&mode);
  return result;
}

static kr_cu_result replace(const kr_driver *d, kept_chain *r, const kr_chain *chain) {
  kr_cu_result result = 0;
  for (int i = 0; i < chain->n && !result; i++) {
    void *parameters[] = {(void *)chain->launches[i].args};
    const kr_cu_kernel_node node = node_of(r, chain, i, parameters);
    result = d->GraphExecKernelNodeSetParams(r->instance, r->nodes[i], &node);
  }
  return result;
}

int kr_chains_launch(kr_chains *c, const kr_chain *chain, void *const *functions) {
  const kr_driver *d = c->driver;
  void *stream = chain->launches[0].grid.stream;
  int recording = 0;
  if (d->StreamIsCapturing(stream, &recording) || recording) return 0;
  pthread_mutex_lock(&c->lock);
  kept_chain *r = kept_of(c, stream, functions, chain->n);
  kr_cu_result result = !r ? 1 : r->instance ? replace(d, r, chain) : build_aside(d, r, chain);
  if (!result) result = d->GraphLaunch(r->instance, stream);
  if (r) r->last_use = ++c->n_uses;
  if (r && result) forget(d, r);
  pthread_mutex_unlock(&c->lock);
  return result == 0;
}
