/* round_trip.c: copies the tensors of a call to the host, each from its first to its last element (tensors that
 * overlap, such as halves of one allocation, as one block), runs the CPU's implementation there, and copies back the
 * blocks that it wrote. */
#include "round_trip.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

typedef struct block {
  uint64_t from, to; /* device addresses */
  unsigned char *host;
  int is_written;
} block;

typedef struct trip {
  const krait_ctx *ctx;
  void *stream;
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
  kr_view_uses uses;
  block blocks[KR_MOST_VIEWS];
  int n_blocks;
} trip;

static kr_view *view_of(trip *t, int i) { return (kr_view *)(t->args + t->uses.list[i].offset); }

/* The addresses that a tensor reaches; empty when it has no elements. */
static block reach(const kr_view *view, const kr_view_use *use) {
  const int64_t bytes = (int64_t)krait_dtype_bytes(view->dtype);
  int64_t low = 0, high = 0;
  for (int d = 0; d < use->n_dims; d++) {
    if (use->shape[d] <= 0) return (block){0};
    const int64_t last = (use->shape[d] - 1) * view->stride[d];
    *(last < 0 ? &low : &high) += last;
  }
  const uint64_t address = (uint64_t)(uintptr_t)view->data;
  return (block){.from = address + (uint64_t)(low * bytes),
                 .to = address + (uint64_t)((high + 1) * bytes),
                 .is_written = (use->role & 2) != 0};
}

/* Blocks never overlap: one that touches others is merged with them. */
static void add_block(trip *t, block b) {
  for (int i = 0; i < t->n_blocks;) {
    block *have = &t->blocks[i];
    if (b.to <= have->from || have->to <= b.from) {
      i++;
      continue;
    }
    b.from = b.from < have->from ? b.from : have->from;
    b.to = b.to > have->to ? b.to : have->to;
    b.is_written |= have->is_written;
    *have = t->blocks[--t->n_blocks];
    i = 0;
  }
  t->blocks[t->n_blocks++] = b;
}

static int32_t copy_in(trip *t) {
  for (int i = 0; i < t->n_blocks; i++) {
    block *b = &t->blocks[i];
    const size_t bytes = (size_t)(b->to - b->from);
    b->host = kr_alloc(bytes);
    KR_CHECK(b->host, KRAIT_ERR_NO_MEMORY, "no memory for a copy of %zu bytes on the host", bytes);
    KR_TRY(kr_cuda_copy_out(t->ctx->cuda, b->host, (void *)(uintptr_t)b->from, bytes, t->stream));
  }
  return kr_cuda_wait(t->ctx->cuda, t->stream);
}

static void move_views(trip *t) {
  for (int i = 0; i < t->uses.n; i++) {
    kr_view *view = view_of(t, i);
    const uint64_t address = (uint64_t)(uintptr_t)view->data;
    for (int k = 0; k < t->n_blocks; k++)
      if (address >= t->blocks[k].from && address < t->blocks[k].to) {
        view->data = t->blocks[k].host + (address - t->blocks[k].from);
        break;
      }
  }
}

static int32_t run_on_cpu(const kr_op *op, trip *t) {
  kr_call *call = (kr_call *)t->args;
  int32_t status = KRAIT_OK;
  const kr_impl *impl = kr_op_resolve(op, t->ctx->cpu, t->args, &status);
  if (!impl) return status;
  call->stream = NULL;
  call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(t->ctx->cpu, t->args) : 0;
  call->scratch = kr_alloc(call->scratch_bytes);
  KR_CHECK(call->scratch, KRAIT_ERR_NO_MEMORY, "no memory for %llu bytes of scratch on the host",
           (unsigned long long)call->scratch_bytes);
  status = impl->run(t->ctx->cpu, t->args);
  kr_free(call->scratch);
  return status;
}

static int32_t copy_back(trip *t) {
  for (int i = 0; i < t->n_blocks; i++) {
    const block *b = &t->blocks[i];
    if (b->is_written)
      KR_TRY(kr_cuda_copy_in(t->ctx->cuda, (void *)(uintptr_t)b->from, b->host, (size_t)(b->to - b->from), t->stream));
  }
  return kr_cuda_wait(t->ctx->cuda, t->stream); /* the host's copies are freed next */
}

int32_t kr_round_trip(const kr_op *op, const krait_ctx *ctx, const void *args) {
  trip *t = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory for a call of %s on the CPU", op->name);
  t->ctx = ctx;
  t->stream = ((const kr_call *)args)->stream;
  memcpy(t->args, args, op->args_bytes);
  t->uses.args = t->args;
  kr_op_views(op, &t->uses);
  for (int i = 0; i < t->uses.n; i++) {
    const block b = reach(view_of(t, i), &t->uses.list[i]);
    if (b.to > b.from) add_block(t, b);
  }
  int32_t status = copy_in(t);
  if (status >= 0) {
    move_views(t);
    status = run_on_cpu(op, t);
  }
  if (status >= 0) status = copy_back(t);
  for (int i = 0; i < t->n_blocks; i++) kr_free(t->blocks[i].host);
  kr_free(t);
  return status;
}
