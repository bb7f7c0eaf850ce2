/* graph_kernel_cache.c: the cache of graphs in a context. The key is all bytes of the args except addresses, of which
 * only the presence counts. The least recently used graph is evicted; a graph in use stays until its last user is done.
 * On a GPU a graph keeps runners for addresses that come again, as those of a training step do, which then replay their
 * launches as one; all others share one runner, which is bound anew. */
#include "graph_kernel_cache.h"

#include <string.h>

#include "alloc.h"
#include "graph_parts.h"
#include "graph_rewrite.h"
#include "graph_runner.h"
#include "status.h"

enum { MOST_KEPT = 64, MOST_RUNNERS = 64, MOST_SEEN = 128 };

/* The first one of an entry is for any addresses. */
typedef struct kept_runner {
  kr_runner *runner;
  uint64_t addresses; /* their hash */
  uint64_t last_use;
  int32_t is_used;
} kept_runner;

typedef struct entry {
  const kr_graph_impl *impl;
  unsigned char *key;
  kr_graph *graph;
  uint64_t last_use;
  int32_t n_users;
  kept_runner runners[MOST_RUNNERS];
  uint64_t seen[MOST_SEEN]; /* hashes of addresses, newest at n_seen - 1 */
  uint64_t n_seen;
} entry;

typedef struct kernel_cache {
  kr_kept base;
  atomic_flag lock; /* held while entries are searched, never while a graph is created */
  uint64_t n_uses;
  entry *entries[MOST_KEPT];
} kernel_cache;

static void lock(kernel_cache *k) {
  while (atomic_flag_test_and_set_explicit(&k->lock, memory_order_acquire)) {}
}
static void unlock(kernel_cache *k) { atomic_flag_clear_explicit(&k->lock, memory_order_release); }

static void close_entry(entry *e) {
  for (int i = 0; i < MOST_RUNNERS; i++) kr_runner_close(&e->runners[i].runner);
  kr_graph_close(&e->graph);
  kr_free(e->key);
  kr_free(e);
}

static void close_all(kr_kept *base) {
  kernel_cache *k = (kernel_cache *)base;
  for (int i = 0; i < MOST_KEPT; i++)
    if (k->entries[i]) close_entry(k->entries[i]);
  kr_free(k);
}

static kernel_cache *kept_of(const krait_ctx *ctx) {
  krait_ctx *owner = (krait_ctx *)ctx; /* a cache, like that of kernels */
  kr_kept *there = atomic_load(&owner->graphs);
  if (there) return (kernel_cache *)there;
  kernel_cache *k = kr_zalloc(sizeof *k);
  if (!k) return NULL;
  k->base.close = close_all;
  atomic_flag_clear(&k->lock);
  if (atomic_compare_exchange_strong(&owner->graphs, &there, &k->base)) return k;
  kr_free(k);
  return (kernel_cache *)there;
}

/* ---- keys ---- */

static void write_key(const kr_op *op, const void *args, unsigned char *key) {
  memcpy(key, args, op->args_bytes);
  kr_call *call = (kr_call *)key;
  call->stream = call->scratch = NULL;
  call->scratch_bytes = 0;
  for (int i = 0; i < op->sig->n_tensors; i++) {
    kr_view *v = kr_sig_view(op->sig, key, i);
    if (v->data) v->data = (void *)1;
    else *v = (kr_view){0};
  }
}

static entry *make_entry(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args, const unsigned char *key,
                         int32_t *status) {
  entry *e = kr_zalloc(sizeof *e);
  if (e) e->key = kr_alloc(impl->op->args_bytes);
  *status = e && e->key ? kr_graph_open(&e->graph) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  if (*status >= 0) {
    memcpy(e->key, key, impl->op->args_bytes);
    e->impl = impl, e->n_users = 1;
    impl->record(e->graph, args, impl->dtype);
    *status = kr_graph_plan(e->graph, ctx, impl->flags);
  }
  if (*status >= 0) return e;
  if (e) close_entry(e);
  return NULL;
}

/* With the lock held. */
static entry *find(kernel_cache *k, const kr_graph_impl *impl, const unsigned char *key) {
  for (int i = 0; i < MOST_KEPT; i++) {
    entry *e = k->entries[i];
    if (!e || e->impl != impl || memcmp(e->key, key, impl->op->args_bytes) != 0) continue;
    e->n_users++;
    e->last_use = ++k->n_uses;
    return e;
  }
  return NULL;
}

/* With the lock held. Returns the entry to evict; e itself if every other one is in use. */
static entry *insert(kernel_cache *k, entry *e) {
  int oldest = -1;
  for (int i = 0; i < MOST_KEPT; i++) {
    entry *other = k->entries[i];
    if (!other) {
      oldest = i;
      break;
    }
    if (other->n_users == 0 && (oldest < 0 || other->last_use < k->entries[oldest]->last_use)) oldest = i;
  }
  if (oldest < 0) return e;
  entry *gone = k->entries[oldest];
  e->last_use = ++k->n_uses;
  k->entries[oldest] = e;
  return gone;
}

/* *own: the caller closes it after use. */
static int32_t get(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args, entry **got, int *own) {
  unsigned char key[4096];
  kernel_cache *k = ctx ? kept_of(ctx) : NULL;
  int32_t status = KRAIT_OK;
  write_key(impl->op, args, key);
  if (k) lock(k), *got = find(k, impl, key), unlock(k);
  else *got = NULL;
  *own = 0;
  if (*got) return KRAIT_OK;
  *got = make_entry(impl, ctx, args, key, &status);
  *own = !k;
  if (!*got || !k) return status;
  lock(k);
  entry *gone = insert(k, *got);
  unlock(k);
  *own = gone == *got;
  if (gone && !*own) close_entry(gone);
  return KRAIT_OK;
}

static void put(const krait_ctx *ctx, entry *e, int own) {
  if (own) {
    close_entry(e);
    return;
  }
  kernel_cache *k = kept_of(ctx);
  lock(k), e->n_users--, unlock(k);
}

/* ---- implementations ---- */

kr_tensor kr_graph_argument(kr_graph *g, const void *args, const kr_view *view, int32_t role, const char *name,
                            kr_dims dims) {
  if (!view->data) return 0;
  const kr_tensor t =
      role == KR_IN ? kr_graph_input_like(g, name, view, dims) : kr_graph_output_like(g, name, view, dims);
  if (t) KR_STORAGE(g, KR_PART(g, t)->storage)->source = (const char *)view - (const char *)args;
  return t;
}

kr_tensor kr_graph_own_argument(kr_graph *g, const void *args, const kr_view *view, const char *name, kr_dims dims) {
  const kr_tensor t = kr_graph_argument(g, args, view, KR_IN, name, dims);
  int shares = 0;
  for (int i = 0; t && view->dtype != KRAIT_C64 && i < dims.n; i++) shares |= dims.size[i] > 1 && view->stride[i] == 0;
  if (!shares) return t;
  const kr_tensor own = kr_graph_temp(g, view->dtype, dims);
  kr_graph_pointwise(g, name, (kr_pointwise_args){.x_scale = 1}, t, 0, own);
  return own;
}

/* Through a copy if its tokens are not rows of one matrix. */
void kr_graph_use_kept(kr_graph *g, const void *args, const kr_view *view, const char *name, kr_tensor t) {
  const kr_dims dims = kr_graph_dims(g, t);
  kr_tensor kept = t ? kr_graph_argument(g, args, view, KR_IN, name, dims) : 0;
  if (!kept) return;
  if (!kr_graph_can_reshape(g, kept, KR_DIMS(dims.size[0] * dims.size[1], dims.size[2]))) {
    const kr_tensor rows = kr_graph_temp(g, view->dtype, dims);
    kr_graph_pointwise(g, name, (kr_pointwise_args){.x_scale = 1}, kept, 0, rows);
    if (kr_graph_status(g) < 0) return;
    kr_graph_move_last(g, 0);
    kept = rows;
  }
  kr_graph_read_instead(g, t, kept);
}

static void *argument_of(const kr_graph *g, size_t storage, const void *args) {
  return ((const kr_view *)((const char *)args + KR_STORAGE(g, storage)->source))->data;
}

static void bind_runner(kr_runner *r, const void *args) {
  for (size_t i = 0; i < r->graph->storages.n; i++)
    if (KR_STORAGE(r->graph, i)->source >= 0) kr_runner_rebind(r, i, argument_of(r->graph, i, args));
}

static uint64_t hash_addresses(const kr_graph *g, const void *args) {
  uint64_t hash = (uint64_t)(uintptr_t)((const kr_call *)args)->scratch;
  for (size_t i = 0; i < g->storages.n; i++)
    if (KR_STORAGE(g, i)->source >= 0)
      hash = (hash ^ (uint64_t)(uintptr_t)argument_of(g, i, args)) * 0x9e3779b97f4a7c15ull, hash ^= hash >> 29;
  return hash;
}

static int has_addresses(const kr_runner *r, const void *args) {
  int same = kr_runner_memory(r) == ((const kr_call *)args)->scratch || !kr_graph_bytes(r->graph);
  for (size_t i = 0; same && i < r->graph->storages.n; i++)
    same = KR_STORAGE(r->graph, i)->source < 0 || r->bound[i] == argument_of(r->graph, i, args);
  return same;
}

/* Whether these addresses were among the last ones; they are from now on. */
static int were_seen(entry *e, uint64_t hash) {
  for (int i = 0; i < MOST_SEEN; i++)
    if (e->seen[i] == hash) return 1;
  e->seen[e->n_seen++ % MOST_SEEN] = hash;
  return 0;
}

/* With the lock held: a place for a runner with these addresses, which may have to be opened or bound; NULL: all in
 * use. */
static kept_runner *take_runner(kernel_cache *k, entry *e, uint64_t hash, const void *args) {
  kept_runner *found = NULL, *oldest = NULL;
  for (int i = 1; i < MOST_RUNNERS && !found; i++) {
    kept_runner *p = &e->runners[i];
    if (p->is_used) continue;
    if (p->runner && p->addresses == hash && has_addresses(p->runner, args))
      found = p;
    else if (!oldest || p->last_use < oldest->last_use)
      oldest = p;
  }
  if (!found) found = oldest && were_seen(e, hash) ? oldest : e->runners[0].is_used ? NULL : &e->runners[0];
  if (found) found->is_used = 1, found->addresses = hash, found->last_use = ++k->n_uses;
  return found;
}

static int32_t run_kept_graph(const kr_graph *g, kr_runner **r, const void *args) {
  const kr_call *call = args;
  if (*r)
    kr_runner_move(*r, call->scratch);
  else
    KR_TRY(kr_runner_open_in(g, call->scratch, call->scratch_bytes, r));
  bind_runner(*r, args);
  const int32_t status = kr_runner_run(*r, call->stream);
  if ((*r)->extra) kr_runner_close(r); /* its own scratch, which calls on other streams would share */
  else if ((*r)->recorder) kr_cuda_stream_close(kr_graph_cuda(g), &(*r)->recorder); /* there are many runners */
  return status;
}

static int32_t run_entry(const krait_ctx *ctx, entry *e, const void *args) {
  const kr_call *call = args;
  kernel_cache *k =
      ctx && kr_graph_cuda(e->graph) && call->scratch_bytes >= kr_graph_bytes(e->graph) ? kept_of(ctx) : NULL;
  kept_runner *kept = NULL;
  kr_runner *own = NULL;
  if (k) {
    const uint64_t hash = hash_addresses(e->graph, args);
    lock(k), kept = take_runner(k, e, hash, args), unlock(k);
  }
  const int32_t status = run_kept_graph(e->graph, kept ? &kept->runner : &own, args);
  kr_runner_close(&own);
  if (kept) lock(k), kept->is_used = 0, unlock(k);
  return status;
}

int32_t kr_graph_impl_run(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args) {
  entry *e;
  int own;
  KR_TRY(get(impl, ctx, args, &e, &own));
  const int32_t status = run_entry(ctx, e, args);
  put(ctx, e, own);
  return status;
}

uint64_t kr_graph_impl_scratch(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args) {
  entry *e;
  int own;
  if (get(impl, ctx, args, &e, &own) < 0) return 0; /* the run reports the reason */
  const uint64_t bytes = kr_graph_bytes(e->graph);
  put(ctx, e, own);
  return bytes;
}
