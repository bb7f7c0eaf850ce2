/* ctx.c: opens and closes contexts: device, capabilities, threads, fallback policy. */
#include "public_names.h"

#include "ctx.h"

#include <string.h>

#include "alloc.h"
#include "env.h"
#include "lent_scratch.h"
#include "probe.h"
#include "log.h"
#include "sized.h"
#include "status.h"

static int32_t fallback_policy(int32_t asked, int32_t *policy) {
  KR_CHECK(asked >= KRAIT_FALLBACK_DEFAULT && asked <= KRAIT_FALLBACK_CPU, KRAIT_ERR_ARGUMENT,
           "fallback is %d, not a KRAIT_FALLBACK_*", asked);
  const char *text = kr_env_fallback();
  *policy = asked ? asked : KRAIT_FALLBACK_WARN;
  if (asked || !text) return KRAIT_OK;
  if (strcmp(text, "never") == 0) *policy = KRAIT_FALLBACK_NEVER;
  else if (strcmp(text, "cpu") == 0) *policy = KRAIT_FALLBACK_CPU;
  else KR_CHECK(strcmp(text, "warn") == 0, KRAIT_ERR_ARGUMENT, "KRAIT_FALLBACK is '%s', not warn, never or cpu", text);
  return KRAIT_OK;
}

/* needed: the tier given in the environment, which a GPU must support. */
static int32_t wanted_caps(uint64_t mask, uint64_t *wanted, uint64_t *needed) {
  *wanted = mask ? mask | KRAIT_CAP_CPU : KRAIT_CAPS_ALL;
  *needed = 0;
  if (mask) return KRAIT_OK;
  uint64_t tier = KRAIT_CAPS_ALL;
  if (kr_env_caps()) KR_TRY(krait_caps_parse(kr_env_caps(), wanted));
  if (kr_env_tier()) KR_TRY(krait_tier_parse(kr_env_tier(), &tier));
  *wanted &= tier;
  if (kr_env_tier()) *needed = kr_tier_of(kr_env_tier()) & *wanted;
  return KRAIT_OK;
}

static int32_t read_options(const krait_ctx_options *given, krait_ctx_options *options) {
  *options = (krait_ctx_options){.size = sizeof *options};
  if (!given) return KRAIT_OK;
  return kr_struct_take("krait_ctx_options", given, sizeof *options, options, sizeof *options);
}

/* Printed once per process, even if a program opens many contexts on a machine without a GPU. */
static void say_no_gpu(const char *why) {
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&said)) kr_log("running on the CPU: %s", why);
}

static int32_t open_cuda(int index, uint64_t wanted, uint64_t needed, kr_cuda **cuda) {
  KR_TRY(kr_cuda_open(index, wanted, cuda));
  if (!(needed & ~kr_cuda_info(*cuda)->caps)) return KRAIT_OK;
  kr_cuda_close(cuda);
  return kr_cuda_open(index, (wanted & ~kr_device_tiers) | needed, cuda); /* which reports the reason */
}

/* The first GPU that supports a tier; if there is none, KRAIT_OK, unless fallback is disabled. */
static int32_t open_first_gpu(krait_ctx *ctx, uint64_t wanted, uint64_t needed) {
  int n = 0;
  int32_t status = kr_cuda_n_devices(&n);
  for (int i = 0; i < n; i++) {
    if ((status = open_cuda(i, wanted, needed, &ctx->cuda)) < 0) continue;
    ctx->device = KRAIT_DEVICE_CUDA(i);
    return KRAIT_OK;
  }
  if (ctx->fallback == KRAIT_FALLBACK_NEVER)
    return kr_fail(KRAIT_ERR_FALLBACK, "no usable GPU, and fallback to the CPU is disabled: %s", krait_error_detail());
  ctx->fell_back = status != KRAIT_ERR_DRIVER_MISSING;
  if (ctx->fell_back || kr_env_verbose())
    say_no_gpu(krait_error_detail()); /* not worth a message on a machine without
                                         a GPU */
  return KRAIT_OK;
}

/* A GPU that was requested; if it supports no tier, calls run on the host, if KRAIT_FALLBACK_CPU allows that. */
static int32_t open_gpu(krait_ctx *ctx, int index, uint64_t wanted, uint64_t needed) {
  int32_t status = open_cuda(index, wanted, needed, &ctx->cuda);
  if (status != KRAIT_ERR_UNSUPPORTED || ctx->fallback != KRAIT_FALLBACK_CPU) return status;
  kr_log("running on the host, because of KRAIT_FALLBACK=cpu: %s (further fallbacks of this context are only counted)",
         krait_error_detail());
  atomic_flag_test_and_set(&ctx->warned);
  return kr_cuda_open_for_copies(index, &ctx->cuda);
}

static int32_t open_device(krait_ctx *ctx, int32_t device, uint64_t wanted, uint64_t needed) {
  KR_CHECK(device == KRAIT_DEVICE_AUTO || device == KRAIT_DEVICE_CPU || device >= KRAIT_DEVICE_CUDA(0),
           KRAIT_ERR_ARGUMENT, "device is %d, not a KRAIT_DEVICE_*", device);
  ctx->device = KRAIT_DEVICE_CPU;
  if (device == KRAIT_DEVICE_AUTO && wanted & kr_device_tiers) KR_TRY(open_first_gpu(ctx, wanted, needed));
  if (device >= KRAIT_DEVICE_CUDA(0)) {
    KR_TRY(open_gpu(ctx, device - KRAIT_DEVICE_CUDA(0), wanted, needed));
    ctx->device = device;
  }
  ctx->caps = ctx->cuda ? kr_cuda_info(ctx->cuda)->caps : krait_cpu_caps() & wanted;
  return KRAIT_OK;
}

int32_t krait_ctx_open(const krait_ctx_options *given, krait_ctx **handle) {
  KR_CHECK(handle, KRAIT_ERR_ARGUMENT, "ctx must not be NULL");
  *handle = NULL;
  krait_ctx_options options;
  int32_t policy;
  uint64_t wanted, needed;
  KR_TRY(read_options(given, &options));
  KR_TRY(fallback_policy(options.fallback, &policy));
  KR_TRY(wanted_caps(options.caps_mask, &wanted, &needed));
  krait_ctx *ctx = kr_zalloc(sizeof *ctx);
  KR_CHECK(ctx, KRAIT_ERR_NO_MEMORY, "no memory for a context");
  ctx->fallback = policy;
  ctx->verbose = kr_env_verbose();
  int32_t status = open_device(ctx, options.device, wanted, needed);
  int n_threads = options.n_threads > 0 ? options.n_threads : kr_env_threads();
  if (status >= 0) {
    ctx->pool = kr_pool_open(n_threads > 0 ? n_threads : kr_usable_cores());
    if (!ctx->pool) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for threads");
  }
  if (status >= 0 && ctx->cuda && policy == KRAIT_FALLBACK_CPU) {
    const krait_ctx_options cpu = {.size = sizeof cpu,
                                   .device = KRAIT_DEVICE_CPU,
                                   .caps_mask = wanted,
                                   .n_threads = n_threads,
                                   .fallback = KRAIT_FALLBACK_WARN};
    status = krait_ctx_open(&cpu, &ctx->cpu);
  }
  if (status < 0) krait_ctx_close(&ctx);
  *handle = ctx;
  return status;
}

void krait_ctx_close(krait_ctx **handle) {
  if (!handle || !*handle) return;
  kr_kept *graphs = atomic_load(&(*handle)->graphs);
  if (graphs) graphs->close(graphs);
  kr_lent_close(*handle);
  krait_ctx_close(&(*handle)->cpu);
  kr_pool_close(&(*handle)->pool);
  kr_cuda_close(&(*handle)->cuda);
  kr_free(*handle);
  *handle = NULL;
}

uint64_t krait_ctx_caps(const krait_ctx *ctx) { return ctx ? ctx->caps : 0; }
int32_t krait_ctx_device(const krait_ctx *ctx) { return ctx ? ctx->device : KRAIT_DEVICE_CPU; }
int32_t krait_ctx_n_threads(const krait_ctx *ctx) { return ctx ? kr_pool_size(ctx->pool) : 0; }

int32_t krait_ctx_read_stats(const krait_ctx *ctx, krait_ctx_stats *stats) {
  KR_CHECK(ctx && stats, KRAIT_ERR_ARGUMENT, "ctx and stats must not be NULL");
  const krait_ctx_stats now = {.n_calls = atomic_load(&ctx->n_calls), .n_fallbacks = atomic_load(&ctx->n_fallbacks)};
  return kr_struct_give("krait_ctx_stats", stats, sizeof now, &now, sizeof now);
}
