/* host_case.c: the inputs and scratch of a CPU's implementation end, or begin, at inaccessible memory: an
 * implementation that reads beyond them is stopped. Changes to an input are copied back to where the checker looks for
 * them. */
#include "host_case.h"

#include <string.h>

#include "alloc.h"
#include "case.h"
#include "status.h"

enum { POISON_BYTE = 0xff, PHASES = 64 };

typedef struct fenced_input {
  unsigned char *block, *home; /* home: in the tensor's storage */
  size_t bytes;
} fenced_input;

static kr_view *host_case_view_of(kr_case *c, int i) { return (kr_view *)(c->args + c->tensors[i].view_offset); }
static size_t phase_of(const void *data) { return (uintptr_t)data % PHASES; }
static int is_at_front(const kr_case *c) { return (int)(c->random >> 63); }

/* A tensor's elements and the gaps between them. */
static size_t host_case_bytes_of(const kr_case_tensor *t, const kr_view *view) {
  int64_t n = 1;
  for (int d = 0; d < t->n_dims; d++) {
    if (t->shape[d] < 1) return 0;
    n += (t->shape[d] - 1) * view->stride[d];
  }
  return (size_t)n * krait_dtype_bytes(view->dtype);
}

/* Only read, and not shared with another tensor: some calls work in place. */
static int is_fenced(kr_case *c, int i) {
  const kr_case_tensor *t = &c->tensors[i];
  const unsigned char *begin = t->storage,
                      *end = begin + (size_t)t->n_storage * krait_dtype_bytes(host_case_view_of(c, i)->dtype);
  for (int k = 0; k < c->n_tensors; k++) {
    const unsigned char *data = host_case_view_of(c, k)->data;
    if ((data >= begin && data < end) != (k == i)) return 0;
  }
  return !(t->role & KR_OUT);
}

static int32_t fence(kr_case *c, int i, fenced_input *f) {
  kr_view *view = host_case_view_of(c, i);
  if (!is_fenced(c, i)) return KRAIT_OK;
  f->home = view->data;
  f->bytes = host_case_bytes_of(&c->tensors[i], view);
  f->block = kr_alloc_fenced(f->bytes, phase_of(f->home), is_at_front(c));
  KR_CHECK(f->block, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  view->data = memcpy(f->block, f->home, f->bytes);
  return KRAIT_OK;
}

static void put_back(kr_case *c, int i, const fenced_input *f) {
  if (!f->block) return;
  memcpy(f->home, f->block, f->bytes);
  host_case_view_of(c, i)->data = f->home;
  kr_free_fenced(f->block, f->bytes, phase_of(f->home), is_at_front(c));
}

static int32_t run_host_case_with_scratch(const krait_ctx *ctx, const kr_case *c, kr_call *call,
                                          const kr_impl *impl) {
  const int front = is_at_front(c);
  call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, call) : 0;
  call->scratch = NULL;
  if (call->scratch_bytes) {
    call->scratch = kr_alloc_fenced(call->scratch_bytes, 0, front);
    KR_CHECK(call->scratch, KRAIT_ERR_NO_MEMORY, "no memory for scratch");
    memset(call->scratch, POISON_BYTE, call->scratch_bytes);
  }
  const int32_t status = impl->run(ctx, call);
  kr_free_fenced(call->scratch, call->scratch_bytes, 0, front);
  call->scratch = NULL;
  return status;
}

int32_t kr_case_run_on_host(const krait_ctx *ctx, kr_case *c, const kr_impl *impl) {
  fenced_input inputs[KR_CASE_MAX_VIEWS] = {{0}};
  int32_t status = KRAIT_OK;
  for (int i = 0; i < c->n_tensors && status >= 0; i++) status = fence(c, i, &inputs[i]);
  if (status >= 0) status = run_host_case_with_scratch(ctx, c, (kr_call *)c->args, impl);
  for (int i = 0; i < c->n_tensors; i++) put_back(c, i, &inputs[i]);
  return status;
}
