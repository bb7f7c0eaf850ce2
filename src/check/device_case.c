/* device_case.c: the storage of a case, including guard bytes, is copied to the GPU as one block; the addresses in the
 * args are redirected to it for the call. Scratch has its own guard bytes. */
#include "device_case.h"

#include <string.h>

#include "alloc.h"
#include "case.h"
#include "status.h"

enum { SCRATCH_GUARD_BYTES = 256, POISON_BYTE = 0xff };

typedef struct moved {
  const krait_ctx *ctx;
  kr_case *c;
  unsigned char *block, *scratch;
  size_t offsets[KR_CASE_MAX_VIEWS], bytes[KR_CASE_MAX_VIEWS], n_bytes;
  uint64_t scratch_bytes;
} moved;

static kr_view *device_case_view_of(kr_case *c, int i) {
  return (kr_view *)(c->args + c->tensors[i].view_offset);
}

static void lay_out_device_case(moved *m) {
  m->n_bytes = 0;
  for (int i = 0; i < m->c->n_tensors; i++) {
    m->bytes[i] = (size_t)m->c->tensors[i].n_storage * krait_dtype_bytes(device_case_view_of(m->c, i)->dtype);
    m->offsets[i] = m->n_bytes;
    m->n_bytes = (m->n_bytes + m->bytes[i] + 255) & ~(size_t)255;
  }
}

static int32_t copy_storage(moved *m, int to_device) {
  for (int i = 0; i < m->c->n_tensors; i++) {
    unsigned char *host = m->c->tensors[i].storage, *device = m->block + m->offsets[i];
    KR_TRY(to_device ? kr_cuda_copy_in(m->ctx->cuda, device, host, m->bytes[i], NULL)
                     : kr_cuda_copy_out(m->ctx->cuda, host, device, m->bytes[i], NULL));
  }
  return kr_cuda_wait(m->ctx->cuda, NULL);
}

static void move_views(moved *m, int to_device) {
  for (int i = 0; i < m->c->n_tensors; i++) {
    unsigned char *host = m->c->tensors[i].storage, *device = m->block + m->offsets[i];
    kr_view *view = device_case_view_of(m->c, i);
    unsigned char *from = to_device ? host : device, *to = to_device ? device : host;
    view->data = to + ((unsigned char *)view->data - from);
  }
}

static int32_t check_scratch(moved *m) {
  unsigned char guards[2][SCRATCH_GUARD_BYTES];
  if (!m->scratch) return KRAIT_OK;
  KR_TRY(kr_cuda_copy_out(m->ctx->cuda, guards[0], m->scratch, SCRATCH_GUARD_BYTES, NULL));
  KR_TRY(kr_cuda_copy_out(m->ctx->cuda, guards[1], m->scratch + SCRATCH_GUARD_BYTES + m->scratch_bytes,
                          SCRATCH_GUARD_BYTES, NULL));
  KR_TRY(kr_cuda_wait(m->ctx->cuda, NULL));
  for (int i = 0; i < SCRATCH_GUARD_BYTES; i++)
    KR_CHECK(guards[0][i] == POISON_BYTE && guards[1][i] == POISON_BYTE, KRAIT_ERR_SCRATCH,
             "wrote outside its %llu bytes of scratch", (unsigned long long)m->scratch_bytes);
  return KRAIT_OK;
}

static int32_t run_on_device(moved *m, const kr_impl *impl) {
  kr_call *call = (kr_call *)m->c->args;
  const kr_cuda *cuda = m->ctx->cuda;
  KR_TRY(copy_storage(m, 1));
  move_views(m, 1);
  m->scratch_bytes = call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(m->ctx, call) : 0;
  int32_t status = KRAIT_OK;
  if (m->scratch_bytes) {
    status = kr_cuda_alloc(cuda, m->scratch_bytes + 2 * SCRATCH_GUARD_BYTES, (void **)&m->scratch);
    if (status >= 0)
      status = kr_cuda_fill(cuda, m->scratch, POISON_BYTE, m->scratch_bytes + 2 * SCRATCH_GUARD_BYTES, NULL);
    call->scratch = m->scratch + SCRATCH_GUARD_BYTES;
  }
  if (status >= 0) status = impl->run(m->ctx, call);
  call->scratch = NULL;
  move_views(m, 0);
  KR_TRY(status);
  KR_TRY(kr_cuda_wait(cuda, NULL));
  KR_TRY(check_scratch(m));
  return copy_storage(m, 0);
}

int32_t kr_case_run_on_device(const krait_ctx *ctx, kr_case *c, const kr_impl *impl) {
  moved m = {.ctx = ctx, .c = c};
  lay_out_device_case(&m);
  KR_TRY(kr_cuda_alloc(ctx->cuda, m.n_bytes, (void **)&m.block));
  int32_t status = run_on_device(&m, impl);
  kr_cuda_free(ctx->cuda, m.scratch);
  kr_cuda_free(ctx->cuda, m.block);
  return status;
}
