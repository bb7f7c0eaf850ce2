/* language_quantize.c: rewrites a language model's weights with its large matrices in 8 or 4 bits, chosen by their
 * keys. */
#include "public_names.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <krait/language.h>

#include "alloc.h"
#include "arena.h"
#include "ctx.h"
#include "lm/lm.h"
#include "model_folder.h"
#include "quantize.h"
#include "safetensors.h"
#include "status.h"
#include "view.h"

typedef struct output {
  const krait_ctx *ctx;
  const kr_lm_family *family;
  int is_q4k;
  kr_arena *arena;
  kr_list items; /* kr_weight */
  int64_t n_new; /* matrices that were not quantised before */
} output;

static int32_t add_lm_quantize(output *o, const kr_weight *item) {
  kr_weight *to = kr_list_push(o->arena, &o->items);
  KR_CHECK(!kr_arena_failed(o->arena), KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  *to = *item;
  return KRAIT_OK;
}

/* A matrix by rows, for threads. */
typedef struct rows {
  const kr_weight *item;
  int32_t *qweight;
  uint16_t *scales;         /* q8_0's; NULL: q4_k */
  _Atomic int64_t n_finite; /* elements before the first that is infinite or NaN */
} rows;

static void check_rows(void *user, int64_t begin, int64_t end, int worker) {
  rows *r = user;
  const kr_view view = {.data = (void *)r->item->data, .dtype = r->item->dtype};
  const int64_t K = r->item->shape[1];
  (void)worker;
  int64_t i = begin * K, least = atomic_load(&r->n_finite);
  while (i < end * K && isfinite(kr_get(&view, i))) i++;
  while (i < end * K && i < least && !atomic_compare_exchange_weak(&r->n_finite, &least, i)) continue;
}

static int32_t check_lm_quantize_finite(const output *o, const kr_weight *item) {
  const int64_t n = item->shape[0] * item->shape[1];
  rows r = {.item = item, .n_finite = n};
  kr_parallel(o->ctx, item->shape[0], 1, check_rows, &r);
  KR_CHECK(r.n_finite == n, KRAIT_ERR_WEIGHTS,
           "tensor '%s' is not finite at element %lld; the file is damaged, or its training diverged", item->name,
           (long long)r.n_finite);
  return KRAIT_OK;
}

static void quantise_rows(void *user, int64_t begin, int64_t end, int worker) {
  const rows *r = user;
  (void)worker;
  if (r->scales) kr_q8_quantize(r->item, begin, end, r->qweight, r->scales);
  else kr_q4k_quantize(r->item, begin, end, r->qweight);
}

static int32_t add_q4k(output *o, const kr_weight *item, const char *name) {
  const int64_t N = item->shape[0], S = item->shape[1] / 256;
  const size_t bytes = (size_t)(N * S) * 144;
  rows r = {.item = item, .qweight = kr_arena_try(o->arena, bytes)};
  KR_CHECK(r.qweight, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  kr_parallel(o->ctx, N, 1, quantise_rows, &r);
  return add_lm_quantize(
      o, &(kr_weight){kr_arena_print(o->arena, "%s.q4_k", name), KRAIT_I32, 2, {N, 36 * S}, r.qweight, bytes});
}

/* name: its name in the new file. */
static int32_t add_quantised(output *o, const kr_weight *item, const char *name, int is_delicate) {
  KR_TRY(check_lm_quantize_finite(o, item));
  o->n_new++;
  if (o->is_q4k && !is_delicate && kr_q4k_fits(item)) return add_q4k(o, item, name);
  const int64_t N = item->shape[0], S = item->shape[1] / 32;
  const size_t n = (size_t)(N * S);
  int32_t *qweight = kr_arena_try(o->arena, n * 8 * sizeof *qweight);
  uint16_t *scales = qweight ? kr_arena_try(o->arena, n * sizeof *scales) : NULL;
  KR_CHECK(scales, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  kr_parallel(o->ctx, N, 1, quantise_rows, &(rows){.item = item, .qweight = qweight, .scales = scales});
  KR_TRY(add_lm_quantize(
      o, &(kr_weight){
             kr_arena_print(o->arena, "%s.q8_0", name), KRAIT_I32, 2, {N, 8 * S}, qweight, n * 8 * sizeof *qweight}));
  return add_lm_quantize(
      o,
      &(kr_weight){kr_arena_print(o->arena, "%s.q8_0.scales", name), KRAIT_F16, 2, {N, S}, scales, n * sizeof *scales});
}

static int32_t add_widened(output *o, const kr_weight *item) {
  const kr_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype);
  float *values = kr_arena_try(o->arena, (size_t)n * sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  for (uint64_t i = 0; i < n; i++) values[i] = (float)kr_get(&view, (int64_t)i);
  kr_weight wide = *item;
  wide.data = values, wide.dtype = KRAIT_F32, wide.bytes = n * sizeof *values;
  return add_lm_quantize(o, &wide);
}

/* The embedding is kept for looking tokens up; if it is also the output matrix, a quantised copy is added. */
static int32_t add_tensor(output *o, const kr_weight *item, const char *head, int is_tied) {
  const char *field;
  const int32_t flags = kr_lm_key_flags(o->family, item->name, &field);
  if (flags & KR_LM_FLOAT && kr_is_float_dtype(item->dtype)) return add_widened(o, item);
  if (flags & KR_LM_PRODUCT && kr_q8_fits(item))
    return is_tied && strcmp(field, "head") == 0 ? KRAIT_OK
                                                 : add_quantised(o, item, item->name, (flags & KR_LM_DELICATE) != 0);
  KR_TRY(add_lm_quantize(o, item));
  const int is_embedding = field && strcmp(field, "embedding") == 0;
  return is_tied && is_embedding && kr_q8_fits(item) ? add_quantised(o, item, head, 1) : KRAIT_OK;
}

/* Whether the embedding is also the output matrix, whose key is *head. */
static int has_tied_head(const output *o, const kr_model_folder *folder, const char **head) {
  const char *other;
  char in_blocks[160];
  const kr_weight *embedding = kr_lm_find_weight(o->family, folder, "embedding", &other),
                  *own = kr_lm_find_weight(o->family, folder, "head", head);
  if (own) return embedding && own->data == embedding->data;
  for (int i = 0; i < 2; i++) { /* a GGUF file's */
    snprintf(in_blocks, sizeof in_blocks, "%s.%s", *head, i ? "q4_k" : "q8_0");
    if (kr_model_folder_find(folder, in_blocks)) return 0;
  }
  return 1;
}

static int32_t quantise(const kr_model_folder *folder, const char *out_path, output *o) {
  const kr_weight *item;
  const char *head, *norm;
  KR_TRY(kr_lm_family_of(folder, &o->family));
  KR_CHECK(kr_lm_find_weight(o->family, folder, "norm_f", &norm), KRAIT_ERR_UNSUPPORTED,
           "%s has no tensor '%s'; only language models (%s) can be quantized", kr_model_folder_label(folder), norm,
           o->family->models);
  KR_CHECK(o->arena, KRAIT_ERR_NO_MEMORY, "no memory to quantize %s", kr_model_folder_label(folder));
  const int is_tied = has_tied_head(o, folder, &head);
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)) != NULL; i++)
    if (kr_model_folder_find(folder, item->name) == item) /* one name in two files: the first is used */
      KR_TRY(add_tensor(o, item, head, is_tied));
  KR_CHECK(o->n_new > 0, KRAIT_ERR_UNSUPPORTED,
           "%s has no matrix to quantize: each is quantized already, or has rows that are not whole blocks of 32",
           kr_model_folder_label(folder));
  return kr_safetensors_write(out_path, o->items.at, (int64_t)o->items.n,
                              &(kr_metadata){"quantized", o->is_q4k ? "q4_k" : "q8_0"}, 1);
}

int32_t krait_lm_quantize(const char *in_path, const char *out_path, const char *format) {
  kr_model_folder *folder = NULL;
  KR_CHECK(in_path && out_path && format, KRAIT_ERR_ARGUMENT, "in_path, out_path and format must not be NULL");
  const int is_q4k = strcmp(format, "q4_k") == 0;
  krait_ctx *ctx = NULL;
  KR_CHECK(is_q4k || strcmp(format, "q8_0") == 0, KRAIT_ERR_ARGUMENT, "unknown quantization '%s'; use q8_0 or q4_k",
           format);
  KR_TRY(kr_model_folder_open(in_path, &folder));
  const int32_t opened =
      krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx);
  output o = {.ctx = ctx, .is_q4k = is_q4k, .arena = kr_arena_open(), .items = KR_LIST(kr_weight)};
  const int32_t status = opened < 0 ? opened : quantise(folder, out_path, &o);
  if (o.arena) kr_arena_close(&o.arena);
  krait_ctx_close(&ctx);
  kr_model_folder_close(&folder);
  return status;
}
