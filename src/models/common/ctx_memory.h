/* ctx_memory.h: memory of a context, a GPU's or the host's. On a GPU, calls but kr_mem_read are enqueued. */
#ifndef KR_CTX_MEMORY_H
#define KR_CTX_MEMORY_H

#include <krait/krait.h>

/* *at: the new memory, zero; what: for the message if there is none. */
int32_t kr_mem_get(const krait_ctx *ctx, const char *what, uint64_t bytes, void *at);
void kr_mem_free(const krait_ctx *ctx, void *at);                                      /* NULL is nothing */
int32_t kr_mem_put(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes);  /* from host memory */
int32_t kr_mem_read(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes); /* complete when it returns */
int32_t kr_mem_copy(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes); /* within it */
int32_t kr_mem_fill(const krait_ctx *ctx, void *at, int byte, uint64_t bytes);
/* A GPU's memory that may be allocated now, by anybody; UINT64_MAX for the host's. */
int32_t kr_mem_left(const krait_ctx *ctx, uint64_t *bytes);
int32_t kr_mem_wait(const krait_ctx *ctx); /* for all that was enqueued */

#endif
