/* lent_scratch.c: a few slots of memory with a flag each, without a lock: whoever sets a slot's flag has it. */
#include "lent_scratch.h"

#include "alloc.h"
#include "driver.h"
#include "status.h"

/* CU_STREAM_PER_THREAD: one handle, but another queue in each thread. */
#define STREAM_OF_THREAD ((void *)2)

static kr_scratch_slot *slot_at(const krait_ctx *ctx, int i) { return &((krait_ctx *)ctx)->lent[i]; }

/* What is set is cleared, so that a slot without memory has no size and no stream. */
static void free_memory(const krait_ctx *ctx, kr_scratch_slot *s) {
  if (ctx->cuda)
    kr_cuda_free(ctx->cuda, s->memory); /* which waits for calls that use it */
  else
    kr_free(s->memory);
  s->memory = s->stream = NULL;
  s->bytes = 0;
}

static int32_t get_memory(const krait_ctx *ctx, uint64_t bytes, void **memory) {
  if (ctx->cuda) return kr_cuda_alloc(ctx->cuda, bytes, memory);
  KR_CHECK(bytes <= SIZE_MAX, KRAIT_ERR_NO_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)bytes);
  *memory = kr_alloc((size_t)bytes);
  KR_CHECK(*memory, KRAIT_ERR_NO_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)bytes);
  return KRAIT_OK;
}

static int has_room(const krait_ctx *ctx, const kr_scratch_slot *s, void *stream, uint64_t bytes) {
  return s->bytes >= bytes && (!ctx->cuda || s->stream == stream);
}

/* A slot for this call, its flag set: one with memory that fits, else an empty one or that of the same stream, else
 * any; -1 if all are lent. */
static int find_slot(const krait_ctx *ctx, void *stream, uint64_t bytes) {
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < KR_SCRATCH_SLOTS; i++) {
      kr_scratch_slot *s = slot_at(ctx, i);
      if (atomic_flag_test_and_set_explicit(&s->is_lent, memory_order_acquire)) continue;
      if (round == 2 || has_room(ctx, s, stream, bytes) || (round == 1 && (!s->memory || s->stream == stream)))
        return i;
      atomic_flag_clear_explicit(&s->is_lent, memory_order_release);
    }
  return -1;
}

static int32_t check_not_captured(const krait_ctx *ctx, void *stream) {
  int is_captured = 0;
  if (!ctx->cuda || !kr_cuda_driver(ctx->cuda)->StreamIsCapturing) return KRAIT_OK;
  KR_TRY(kr_cuda_begin(ctx->cuda));
  if (kr_cuda_driver(ctx->cuda)->StreamIsCapturing(stream, &is_captured) != 0) is_captured = 0;
  kr_cuda_end(ctx->cuda);
  KR_CHECK(!is_captured, KRAIT_ERR_SCRATCH,
           "a call that is captured into a CUDA graph needs scratch of its own: krait_scratch_bytes says how much");
  return KRAIT_OK;
}

int32_t kr_lent_take(const krait_ctx *ctx, void *stream, uint64_t bytes, kr_lent_scratch *lent) {
  KR_TRY(check_not_captured(ctx, stream));
  lent->slot = ctx->cuda && stream == STREAM_OF_THREAD ? -1 : find_slot(ctx, stream, bytes);
  if (lent->slot < 0) return get_memory(ctx, bytes, &lent->memory);
  kr_scratch_slot *s = slot_at(ctx, lent->slot);
  if (!has_room(ctx, s, stream, bytes)) {
    free_memory(ctx, s);
    const int32_t status = get_memory(ctx, bytes, &s->memory);
    if (status < 0) {
      s->memory = NULL;
      kr_lent_return(ctx, lent);
      return status;
    }
    s->bytes = bytes, s->stream = stream;
  }
  lent->memory = s->memory;
  return KRAIT_OK;
}

void kr_lent_return(const krait_ctx *ctx, const kr_lent_scratch *lent) {
  if (lent->slot >= 0)
    atomic_flag_clear_explicit(&slot_at(ctx, lent->slot)->is_lent, memory_order_release);
  else if (ctx->cuda)
    kr_cuda_free(ctx->cuda, lent->memory);
  else
    kr_free(lent->memory);
}

void kr_lent_close(krait_ctx *ctx) {
  for (int i = 0; i < KR_SCRATCH_SLOTS; i++)
    if (ctx->lent[i].memory) free_memory(ctx, &ctx->lent[i]);
}

int32_t kr_lent_run(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, void *args, uint64_t bytes) {
  kr_call *call = args;
  kr_lent_scratch lent;
  KR_TRY(kr_lent_take(ctx, call->stream, bytes, &lent));
  call->scratch = lent.memory, call->scratch_bytes = bytes;
  const int32_t status = kr_op_run_impl(op, impl, ctx, args, bytes);
  kr_lent_return(ctx, &lent);
  return status;
}
