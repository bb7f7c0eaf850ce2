/* weight_loader.c: tensors and buffers in a context's memory. */
#include "weight_loader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "quantize.h"
#include "status.h"
#include "view.h"

/* ---- blocks ---- */

int32_t kr_block_get(const krait_ctx *ctx, const char *what, uint64_t bytes, void *block) {
  void **to = block;
  if (ctx->cuda) {
    KR_TRY(kr_cuda_alloc(ctx->cuda, (size_t)bytes, to));
    return kr_cuda_fill(ctx->cuda, *to, 0, (size_t)bytes, NULL);
  }
  *to = kr_zalloc((size_t)bytes);
  KR_CHECK(*to, KRAIT_ERR_NO_MEMORY, "no memory for %s: %llu bytes", what, (unsigned long long)bytes);
  return KRAIT_OK;
}

void kr_block_free(const krait_ctx *ctx, void *block) {
  if (!block) return;
  if (ctx->cuda)
    kr_cuda_free(ctx->cuda, block);
  else
    kr_free(block);
}

int32_t kr_block_put(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes) {
  if (ctx->cuda) return kr_cuda_copy_in(ctx->cuda, to, from, (size_t)bytes, NULL);
  if (bytes) memcpy(to, from, (size_t)bytes);
  return KRAIT_OK;
}

int32_t kr_block_read(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes) {
  if (ctx->cuda) {
    KR_TRY(kr_cuda_copy_out(ctx->cuda, to, from, (size_t)bytes, NULL));
    return kr_cuda_wait(ctx->cuda, NULL);
  }
  if (bytes) memcpy(to, from, (size_t)bytes);
  return KRAIT_OK;
}

/* ---- tensors ---- */

const char *kr_loader_label(const kr_loader *p) {
  return p->folder ? kr_model_folder_label(p->folder) : p->weights ? "the weights" : "random weights";
}

static int is_random(const kr_loader *p) { return !p->folder && !p->weights; }

const kr_weight *kr_loader_peek(const kr_loader *p, const char *name) {
  char key[200];
  snprintf(key, sizeof key, "%s%s", p->prefix ? p->prefix : "", name);
  return p->folder ? kr_model_folder_find(p->folder, key) : p->weights ? kr_weights_find(p->weights, key) : NULL;
}

static uint64_t weight_loader_elements_of(kr_sizes s) {
  uint64_t n = 1;
  for (int i = 0; i < s.n; i++) n *= (uint64_t)s.size[i];
  return n;
}

/* Uniform, with a standard deviation of about 0.02: small enough that nothing saturates. */
static int32_t need_random(kr_loader *p, uint64_t n) {
  const uint64_t bytes = n * krait_dtype_bytes(p->random_type);
  uint64_t seed = 1;
  if (bytes <= p->random_bytes) return KRAIT_OK;
  kr_free(p->random);
  p->random = kr_alloc((size_t)bytes);
  p->random_bytes = p->random ? bytes : 0;
  KR_CHECK(p->random, KRAIT_ERR_NO_MEMORY, "no memory for random weights");
  const krait_view view = {.data = p->random, .dtype = p->random_type};
  for (uint64_t i = 0; i < n; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    kr_put(&view, (int64_t)i, ((double)(seed >> 40) / (1 << 24) - 0.5) * 0.07);
  }
  return KRAIT_OK;
}

int32_t kr_loader_find(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight *found) {
  char key[200], has[192], wants[192];
  snprintf(key, sizeof key, "%s%s", p->prefix ? p->prefix : "", name);
  if (is_random(p)) {
    if (is_needed) KR_TRY(need_random(p, weight_loader_elements_of(want)));
    *found = (kr_weight){.data = is_needed ? p->random : NULL,
                         .dtype = p->random_type,
                         .bytes = weight_loader_elements_of(want) * krait_dtype_bytes(p->random_type)};
    return KRAIT_OK;
  }
  const kr_weight *item = kr_loader_peek(p, name);
  *found = item ? *item : (kr_weight){0};
  KR_CHECK(item || !is_needed, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is missing", kr_loader_label(p), key);
  if (!item) return KRAIT_OK;
  int same = item->n_dims == want.n;
  for (int i = 0; same && i < want.n; i++) same = item->shape[i] == want.size[i];
  KR_CHECK(same, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' has shape %s, the model requires %s", kr_loader_label(p), key,
           kr_shape_format(item->n_dims, item->shape, has, sizeof has),
           kr_shape_format(want.n, want.size, wants, sizeof wants));
  KR_CHECK(item->dtype == KRAIT_F32 || item->dtype == KRAIT_F16 || item->dtype == KRAIT_BF16, KRAIT_ERR_WEIGHTS,
           "%s: tensor '%s' is %s, not float32, float16 or bfloat16", kr_loader_label(p), key,
           krait_dtype_name(item->dtype));
  return KRAIT_OK;
}

/* apart: the next tensor begins at a multiple of 256 bytes. */
static int32_t copy_in(kr_loader *p, const void *data, uint64_t bytes, int apart, const void **at) {
  const uint64_t place = p->used;
  p->used = apart ? (place + bytes + 255) & ~(uint64_t)255 : place + bytes;
  *at = p->device ? p->device + place : data;
  return p->device ? kr_cuda_copy_in(p->ctx->cuda, p->device + place, data, (size_t)bytes, NULL) : KRAIT_OK;
}

static int32_t copy_host(kr_loader *p, const void *data, uint64_t bytes, const void **at) {
  void *copy = kr_arena_try(p->arena, (size_t)bytes + 1);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for %llu bytes of weights", (unsigned long long)bytes);
  *at = memcpy(copy, data, (size_t)bytes);
  return KRAIT_OK;
}

static int32_t take_weight_loader(kr_loader *p, const kr_weight *item, int apart, kr_weight_ref *to) {
  *to = (kr_weight_ref){.data = item->data, .dtype = item->dtype};
  if (!item->data) return KRAIT_OK;
  p->bytes += item->bytes;
  if (p->ctx->cuda) return copy_in(p, item->data, item->bytes, apart, &to->data);
  return p->folder ? KRAIT_OK
                   : copy_host(p, item->data, item->bytes,
                               &to->data); /* random weights: a token must read as much as with real ones */
}

typedef struct q8_rows {
  const kr_weight *qweight, *scales;
  uint16_t *halves;
} q8_rows;

static void widen_rows(void *user, int64_t begin, int64_t end, int worker) {
  const q8_rows *r = user;
  (void)worker;
  kr_q8_widen(r->qweight->data, r->scales->data, r->scales->shape[1], begin, end, r->halves);
}

int32_t kr_widen_q8(const krait_ctx *ctx, const kr_weight *qweight, const kr_weight *scales, uint16_t **halves) {
  const int64_t N = scales->shape[0], K = 32 * scales->shape[1];
  *halves = kr_alloc_array((size_t)(N * K), sizeof **halves);
  KR_CHECK(*halves, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", qweight->name);
  kr_parallel(ctx, N, 1, widen_rows, &(q8_rows){qweight, scales, *halves});
  return KRAIT_OK;
}

/* Unchanged on a CPU, float16 on a GPU. */
static int32_t take_weight_loader_q8(kr_loader *p, const kr_weight *qweight, const kr_weight *scales, kr_sizes want,
                                     int apart, kr_weight_ref *to) {
  const int64_t N = want.size[0], K = want.size[1], S = K / 32;
  uint16_t *halves = NULL;
  const int fits = K % 32 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 && qweight->shape[0] == N &&
                   qweight->shape[1] == 8 * S && scales && scales->n_dims == 2 && scales->dtype == KRAIT_F16 &&
                   scales->shape[0] == N && scales->shape[1] == S;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensors '%s' and '%s.scales' are not q8_0 of shape (%lld, %lld)",
           kr_loader_label(p), qweight->name, qweight->name, (long long)N, (long long)K);
  if (!p->ctx->cuda) {
    p->bytes += qweight->bytes + scales->bytes;
    *to = (kr_weight_ref){qweight->data, KRAIT_I32, scales->data};
    return KRAIT_OK;
  }
  const kr_weight wide = {.name = qweight->name, .dtype = KRAIT_F16, .bytes = (uint64_t)(N * K) * sizeof *halves};
  int32_t status = p->device ? kr_widen_q8(p->ctx, qweight, scales, &halves) : KRAIT_OK;
  p->bytes += wide.bytes;
  to->dtype = KRAIT_F16;
  if (status >= 0) status = copy_in(p, halves, wide.bytes, apart, &to->data);
  if (status >= 0 && p->device) status = kr_cuda_wait(p->ctx->cuda, NULL);
  if (status >= 0 && !p->device) to->data = qweight->data; /* only counted */
  kr_free(halves);
  return status;
}

/* Words of q4_k, unchanged. */
static int32_t take_weight_loader_q4k(kr_loader *p, const kr_weight *qweight, kr_sizes want, int apart,
                                      kr_weight_ref *to) {
  const int64_t N = want.size[0], K = want.size[1];
  const int fits = K % 256 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 && qweight->shape[0] == N &&
                   qweight->shape[1] == K / 256 * 36;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is not q4_k of shape (%lld, %lld)", kr_loader_label(p),
           qweight->name, (long long)N, (long long)K);
  return take_weight_loader(p, qweight, apart, to);
}

static int32_t place_one(kr_loader *p, const char *name, int is_needed, kr_sizes want, int apart, kr_weight_ref *to) {
  char key[160], scales[168];
  kr_weight item;
  *to = (kr_weight_ref){0};
  snprintf(key, sizeof key, "%s.q8_0", name);
  snprintf(scales, sizeof scales, "%s.scales", key);
  const kr_weight *qweight = want.n == 2 ? kr_loader_peek(p, key) : NULL;
  if (qweight) return take_weight_loader_q8(p, qweight, kr_loader_peek(p, scales), want, apart, to);
  snprintf(key, sizeof key, "%s.q4_k", name);
  const kr_weight *super = want.n == 2 ? kr_loader_peek(p, key) : NULL;
  if (super) return take_weight_loader_q4k(p, super, want, apart, to);
  KR_TRY(kr_loader_find(p, name, is_needed, want, &item));
  return take_weight_loader(p, &item, apart, to);
}

int32_t kr_load(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight_ref *to) {
  return kr_load_rows(p, 1, &name, is_needed, &want, to);
}

int32_t kr_load_rows(kr_loader *p, int n, const char *const *names, int is_needed, const kr_sizes *want,
                      kr_weight_ref *to) {
  for (int i = 0; i < n; i++) {
    KR_TRY(place_one(p, names[i], is_needed || (i > 0 && to[0].data), want[i], i == n - 1, &to[i]));
    KR_CHECK(!to[i].data || (to[0].data && to[i].dtype == to[0].dtype), KRAIT_ERR_WEIGHTS,
             "%s: tensors '%s' and '%s' must both exist and have the same type", kr_loader_label(p), names[0],
             names[i]);
  }
  return KRAIT_OK;
}

int32_t kr_load_buffer(kr_loader *p, const void *data, uint64_t bytes, int32_t dtype, kr_weight_ref *to) {
  to->dtype = dtype;
  return p->ctx->cuda ? copy_in(p, data, bytes, 1, &to->data) : copy_host(p, data, bytes, &to->data);
}

int32_t kr_load_f32(kr_loader *p, const char *name, kr_sizes want, double (*f)(double), kr_weight_ref *to) {
  const int64_t n = (int64_t)weight_loader_elements_of(want);
  kr_weight item;
  KR_TRY(kr_loader_find(p, name, 1, want, &item));
  const krait_view view = {.data = (void *)item.data, .dtype = item.dtype};
  float *values = kr_alloc_array((size_t)n + 1, sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", name);
  int64_t bad = -1;
  for (int64_t i = 0; i < n; i++) {
    values[i] = (float)(f ? f(kr_get(&view, i)) : kr_get(&view, i));
    if (!isfinite(values[i]) && bad < 0) bad = i;
  }
  p->bytes += (uint64_t)n * sizeof *values;
  const int32_t status =
      bad < 0 ? kr_load_buffer(p, values, (uint64_t)n * sizeof *values, KRAIT_F32, to)
              : kr_fail(KRAIT_ERR_WEIGHTS,
                        "%s: tensor '%s' is not finite at element %lld; the file is damaged, or its training diverged",
                        kr_loader_label(p), name, (long long)bad);
  kr_free(values);
  return status;
}

/* ---- all of them ---- */

static int32_t run_twice(kr_loader *p, kr_take_fn take_all, void *user) {
  p->arena = kr_arena_open();
  KR_CHECK(p->arena, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  p->used = p->bytes = 0;
  KR_TRY(take_all(p, user));
  if (!p->ctx->cuda) return KRAIT_OK;
  KR_TRY(kr_cuda_alloc(p->ctx->cuda, (size_t)p->used, (void **)&p->device));
  p->used = p->bytes = 0;
  KR_TRY(take_all(p, user));
  return kr_cuda_wait(p->ctx->cuda, NULL);
}

int32_t kr_loader_run(kr_loader *p, kr_take_fn take_all, void *user) {
  const int32_t status = run_twice(p, take_all, user);
  kr_free(p->random);
  p->random = NULL;
  p->random_bytes = 0;
  return status;
}

void kr_loader_close(kr_loader *p) {
  if (p->device) kr_cuda_free(p->ctx->cuda, p->device);
  if (p->arena) kr_arena_close(&p->arena);
  p->device = NULL;
}
