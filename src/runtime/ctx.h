/* ctx.h: the contents of a krait_ctx: capabilities, threads, policy, counters. Immutable after open, except for
 * counters. */
#ifndef KR_CTX_H
#define KR_CTX_H

#include <krait/krait.h>
#include <stdatomic.h>

#include "cuda.h"
#include "pool.h"

/* Data that a higher layer attaches to a context: set once, closed before it. */
typedef struct kr_kept {
  void (*close)(struct kr_kept *kept);
} kr_kept;

/* Scratch that the context lends to calls (lent_scratch.c). */
enum { KR_SCRATCH_SLOTS = 16 };
typedef struct kr_scratch_slot {
  atomic_flag is_lent;
  void *memory, *stream;
  uint64_t bytes;
} kr_scratch_slot;

struct krait_ctx {
  uint64_t caps; /* capabilities of implementations in this context: KRAIT_CAP_CPU and ISAs, or the tiers of a device */
  int32_t device;   /* KRAIT_DEVICE_CPU or KRAIT_DEVICE_CUDA(i) */
  int32_t fallback; /* KRAIT_FALLBACK_*, never _DEFAULT */
  int verbose;
  kr_pool *pool;
  kr_cuda *cuda; /* NULL on the CPU */
  krait_ctx
      *cpu; /* with KRAIT_FALLBACK_CPU on a GPU: the context for calls that no GPU implementation accepts; else NULL */
  int fell_back; /* the best device was requested, but it is the CPU because no GPU is usable */
  atomic_ullong n_calls, n_fallbacks;
  atomic_flag warned;
  _Atomic(kr_kept *) graphs; /* src/graph/graph_kernel_cache.c */
  kr_scratch_slot lent[KR_SCRATCH_SLOTS];
};

static const uint64_t kr_device_tiers = KRAIT_CAP_CUDA_HOPPER * 2 - KRAIT_CAP_CUDA_BASE; /* all bits from base on */
uint64_t kr_tier_of(const char *text); /* "base", "turing", "ampere", "hopper"; 0: another word */

/* Loops of CPU implementations. Outputs must not depend on how the range is split. */
static inline void kr_parallel(const krait_ctx *ctx, int64_t n, int64_t grain, kr_range_fn fn, void *user) {
  kr_pool_run(ctx->pool, n, grain, fn, user);
}
static inline void kr_parallel_long(const krait_ctx *ctx, int64_t n, int64_t grain, kr_range_fn fn, void *user) {
  kr_pool_run_long(ctx->pool, n, grain, fn, user);
}

#endif
