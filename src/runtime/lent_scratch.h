/* lent_scratch.h: the scratch that a context lends to calls without their own. Memory that came back is lent again: on
 * the CPU to any call, on a GPU to calls of the same stream, which run one after the other. */
#ifndef KR_LENT_SCRATCH_H
#define KR_LENT_SCRATCH_H

#include "ctx.h"
#include "op.h"

typedef struct kr_lent_scratch {
  void *memory;
  int slot; /* -1: no slot was free, and the memory is freed when it comes back */
} kr_lent_scratch;

/* Refused while the stream is captured into a graph, which would keep the memory's address. */
int32_t kr_lent_take(const krait_ctx *ctx, void *stream, uint64_t bytes, kr_lent_scratch *lent);
void kr_lent_return(const krait_ctx *ctx, const kr_lent_scratch *lent);
void kr_lent_close(krait_ctx *ctx); /* frees all of it */
/* Runs a call, whose args get scratch of that size. */
int32_t kr_lent_run(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, void *args, uint64_t bytes);

#endif
