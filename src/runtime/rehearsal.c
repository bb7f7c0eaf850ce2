/* rehearsal.c: a list of kernels, then a loop over it by the context's threads. */
#include "rehearsal.h"

#include "alloc.h"
#include "ctx.h"

typedef struct loading {
  const kr_cuda *cuda;
  kr_kernel_list list;
} loading;

static void load_range(void *user, int64_t begin, int64_t end, int worker) {
  const loading *l = user;
  (void)worker;
  kr_cuda_load(l->cuda, &l->list, begin, end);
}

void kr_rehearse(const krait_ctx *ctx, int32_t (*run)(void *user), void *user) {
  if (!ctx || !ctx->cuda || kr_cuda_is_noting()) return;
  loading *l = kr_alloc(sizeof *l);
  if (!l) return;
  l->cuda = ctx->cuda, l->list.n = 0;
  kr_cuda_note(&l->list);
  (void)run(user);
  kr_cuda_note(NULL);
  if (l->list.n > 1) kr_parallel(ctx, l->list.n, 1, load_range, l); /* a single one is loaded as it is launched */
  kr_free(l);
}
