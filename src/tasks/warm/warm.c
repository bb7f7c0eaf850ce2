/* warm.c: a model is warmed by running it: whatever it launches is then in the driver's cache. */
#define _POSIX_C_SOURCE 200809L
#include "warm.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <krait/enhance.h>
#include <krait/language.h>

#include "alloc.h"
#include "code_cache.h"
#include "ctx.h"
#include "status.h"

/* ---- the cache ---- */

enum { MOST_DEPTH = 6 }; /* the driver's folders are three deep */

static int64_t bytes_below(const char *folder, int depth) {
  int64_t bytes = 0;
  DIR *entries = depth < MOST_DEPTH ? opendir(folder) : NULL;
  for (const struct dirent *e; entries && (e = readdir(entries));) {
    char path[KR_CACHE_PATH];
    struct stat info;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    const int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (n >= (int)sizeof path || lstat(path, &info) != 0) continue;
    bytes += S_ISDIR(info.st_mode) ? bytes_below(path, depth + 1) : (int64_t)info.st_size;
  }
  if (entries) closedir(entries);
  return bytes;
}

void kr_warm_find_cache(kr_warm_cache *cache) {
  kr_code_cache c;
  kr_code_cache_find(&c);
  *cache = (kr_warm_cache){.used_bytes = c.path[0] ? bytes_below(c.path, 0) : 0, .most_bytes = c.most_bytes};
  snprintf(cache->path, sizeof cache->path, "%s", c.path);
  snprintf(cache->why, sizeof cache->why, "%s", c.why);
}

/* ---- all kernels ---- */

typedef struct share {
  const kr_cuda *cuda;
  int n;
} share;

static void compile_share(void *user, int64_t begin, int64_t end, int worker) {
  const share *s = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) kr_cuda_compile(s->cuda, (int)i, s->n);
}

int32_t kr_warm_all(const krait_ctx *ctx) {
  share s = {ctx->cuda, 4 * krait_ctx_n_threads(ctx)}; /* shares differ in how long they take */
  KR_CHECK(ctx->cuda, KRAIT_ERR_NO_DEVICE, "there is no GPU to translate code for");
  kr_parallel(ctx, s.n, 1, compile_share, &s);
  return KRAIT_OK;
}

/* ---- models ---- */

static int32_t run_prompt(krait_lm_session *session, int64_t n) {
  enum { STEPS = 3 }; /* the first as it is, the second recorded, the third replayed */
  int32_t *ids = kr_zalloc((size_t)n * sizeof *ids);
  KR_CHECK(ids, KRAIT_ERR_NO_MEMORY, "no memory for a prompt");
  int32_t status = krait_lm_reset(session);
  for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i % 64);
  if (status >= 0) status = krait_lm_prefill_ids(session, ids, n);
  for (int i = 0; i < STEPS && status >= 0 && !krait_lm_is_done(session); i++) status = krait_lm_step(&session, 1);
  kr_free(ids);
  return status;
}

int32_t kr_warm_language(const krait_ctx *ctx, const char *path) {
  static const int64_t lengths[] = {1, 12, 100, 1000};
  const krait_lm_options options = {.size = sizeof options, .path = path, .no_tokenizer = 1};
  krait_lm *lm = NULL;
  krait_lm_session *session = NULL;
  int32_t status = krait_lm_open(ctx, &options, &lm);
  if (status >= 0) status = krait_lm_session_open(lm, NULL, &session);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths && status >= 0; i++) status = run_prompt(session, lengths[i]);
  krait_lm_session_close(&session);
  krait_lm_close(&lm);
  return status;
}

/* Silence would not be computed. */
static float *make_noise(int64_t n) {
  float *samples = kr_alloc_array((size_t)n, sizeof *samples);
  uint32_t seed = 1;
  for (int64_t i = 0; samples && i < n; i++) {
    seed = seed * 1664525 + 1013904223;
    samples[i] = ((float)(seed >> 8) / (1 << 24) - 0.5f) * 0.1f;
  }
  return samples;
}

int32_t kr_warm_denoiser(const krait_ctx *ctx, const char *weights) {
  static const int64_t seconds[] = {2, 60, 600};
  enum { RATE_HZ = 16000, MOST_S = 600 };
  const krait_denoiser_options options = {.size = sizeof options, .weights_path = weights};
  krait_denoiser *denoiser = NULL;
  krait_denoiser_session *session = NULL;
  float *samples = make_noise((int64_t)MOST_S * RATE_HZ);
  int32_t status = samples ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %d seconds of sound", MOST_S);
  if (status >= 0) status = krait_denoiser_open(ctx, &options, &denoiser);
  if (status >= 0) status = krait_denoiser_session_open(denoiser, &session);
  for (size_t i = 0; i < sizeof seconds / sizeof *seconds && status >= 0; i++)
    status = krait_enhance_samples(session, samples, samples, seconds[i] * RATE_HZ, NULL, NULL);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&denoiser);
  kr_free(samples);
  return status;
}
