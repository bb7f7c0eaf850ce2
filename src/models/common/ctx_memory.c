/* ctx_memory.c: the driver's calls, or the C library's. */
#include "ctx_memory.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"

int32_t kr_mem_get(const krait_ctx *ctx, const char *what, uint64_t bytes, void *at) {
  void **to = at;
  if (ctx->cuda) {
    KR_TRY(kr_cuda_alloc(ctx->cuda, (size_t)bytes, to));
    return kr_cuda_fill(ctx->cuda, *to, 0, (size_t)bytes, NULL);
  }
  *to = kr_zalloc((size_t)bytes);
  KR_CHECK(*to, KRAIT_ERR_NO_MEMORY, "no memory for %s: %llu bytes", what, (unsigned long long)bytes);
  return KRAIT_OK;
}

void kr_mem_free(const krait_ctx *ctx, void *at) {
  if (!at) return;
  if (ctx->cuda)
    kr_cuda_free(ctx->cuda, at);
  else
    kr_free(at);
}

int32_t kr_mem_put(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes) {
  if (ctx->cuda) return kr_cuda_copy_in(ctx->cuda, to, from, (size_t)bytes, NULL);
  if (bytes) memcpy(to, from, (size_t)bytes);
  return KRAIT_OK;
}

int32_t kr_mem_read(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes) {
  if (ctx->cuda) {
    KR_TRY(kr_cuda_copy_out(ctx->cuda, to, from, (size_t)bytes, NULL));
    return kr_cuda_wait(ctx->cuda, NULL);
  }
  if (bytes) memcpy(to, from, (size_t)bytes);
  return KRAIT_OK;
}

int32_t kr_mem_copy(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes) {
  if (ctx->cuda) return kr_cuda_copy(ctx->cuda, to, from, (size_t)bytes, NULL);
  if (bytes) memcpy(to, from, (size_t)bytes);
  return KRAIT_OK;
}

int32_t kr_mem_fill(const krait_ctx *ctx, void *at, int byte, uint64_t bytes) {
  if (ctx->cuda) return kr_cuda_fill(ctx->cuda, at, (unsigned char)byte, (size_t)bytes, NULL);
  if (bytes) memset(at, byte, (size_t)bytes);
  return KRAIT_OK;
}

int32_t kr_mem_left(const krait_ctx *ctx, uint64_t *bytes) {
  size_t left = 0, all;
  *bytes = UINT64_MAX;
  if (!ctx->cuda) return KRAIT_OK;
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  KR_TRY(kr_cuda_begin(ctx->cuda));
  const kr_cu_result result = driver->MemGetInfo(&left, &all);
  kr_cuda_end(ctx->cuda);
  *bytes = left;
  return result ? kr_driver_fail(driver, result, "asking for free device memory") : KRAIT_OK;
}

int32_t kr_mem_wait(const krait_ctx *ctx) { return ctx->cuda ? kr_cuda_wait(ctx->cuda, NULL) : KRAIT_OK; }
