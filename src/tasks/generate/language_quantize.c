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
#include "model_folder.h"
#include "quantize.h"
#include "safetensors.h"
#include "status.h"
#include "view.h"

static int ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), n_end = strlen(end);
  return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* Large products with nothing fused into them; of Qwen2 those of its own layers, not of vision towers in the same
 * file. */
static int is_product(const char *name) {
  static const char *const of_mamba[] = {".in_proj.weight", ".x_proj.weight", ".out_proj.weight", ".fc2.weight"};
  static const char *const of_qwen2[] = {".q_proj.weight",    ".k_proj.weight",  ".v_proj.weight",   ".o_proj.weight",
                                         ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"};
  const int is_qwen2 = strncmp(name, "model.layers.", 13) == 0;
  if (!is_qwen2 && strncmp(name, "backbone.", 9) != 0) return strcmp(name, "lm_head.weight") == 0;
  const char *const *ends = is_qwen2 ? of_qwen2 : of_mamba;
  const size_t n = is_qwen2 ? sizeof of_qwen2 / sizeof *of_qwen2 : sizeof of_mamba / sizeof *of_mamba;
  for (size_t i = 0; i < n; i++)
    if (ends_with(name, ends[i])) return 1;
  return 0;
}

/* The parameters of the recurrence: kept in float32. */
static int is_of_states(const char *name) {
  return strncmp(name, "backbone.", 9) == 0 &&
         (strstr(name, ".A_log") || strstr(name, ".dt_bias") || strstr(name, ".dt_proj.bias") ||
          (strlen(name) > 2 && strcmp(name + strlen(name) - 2, ".D") == 0));
}

typedef struct output {
  const krait_ctx *ctx;
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

/* The projections for the step size, B and C, and the output matrix: small compared with the rest, or errors in them
 * affect every token. At least 8 bits. */
static int is_delicate(const char *name) {
  return ends_with(name, ".x_proj.weight") || strcmp(name, "lm_head.weight") == 0;
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
  const krait_view view = {.data = (void *)r->item->data, .dtype = r->item->dtype};
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
static int32_t add_quantised(output *o, const kr_weight *item, const char *name) {
  KR_TRY(check_lm_quantize_finite(o, item));
  o->n_new++;
  if (o->is_q4k && !is_delicate(name) && kr_q4k_fits(item)) return add_q4k(o, item, name);
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
  const krait_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype);
  float *values = kr_arena_try(o->arena, (size_t)n * sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  for (uint64_t i = 0; i < n; i++) values[i] = (float)kr_get(&view, (int64_t)i);
  kr_weight wide = *item;
  wide.data = values, wide.dtype = KRAIT_F32, wide.bytes = n * sizeof *values;
  return add_lm_quantize(o, &wide);
}

static int is_embedding(const char *name) {
  return strcmp(name, "backbone.embedding.weight") == 0 || strcmp(name, "backbone.embeddings.weight") == 0 ||
         strcmp(name, "model.embed_tokens.weight") == 0;
}

/* The embedding is kept for looking tokens up; if it is also the output matrix, a quantised copy is added. */
static int32_t add_tensor(output *o, const kr_weight *item, int is_tied) {
  if (is_of_states(item->name) && kr_is_float_dtype(item->dtype)) return add_widened(o, item);
  if (is_product(item->name) && kr_q8_fits(item))
    return is_tied && strcmp(item->name, "lm_head.weight") == 0 ? KRAIT_OK : add_quantised(o, item, item->name);
  KR_TRY(add_lm_quantize(o, item));
  return is_tied && is_embedding(item->name) && kr_q8_fits(item) ? add_quantised(o, item, "lm_head.weight") : KRAIT_OK;
}

static int32_t quantise(const kr_model_folder *folder, const char *out_path, output *o) {
  const kr_weight *head = kr_model_folder_find(folder, "lm_head.weight"),
                  *embedding = kr_model_folder_find(folder, "backbone.embedding.weight"), *item;
  const int has_blocks = kr_model_folder_find(folder, "lm_head.weight.q8_0") || /* a GGUF file's */
                         kr_model_folder_find(folder, "lm_head.weight.q4_k");
  const int is_tied = head ? embedding && head->data == embedding->data : !has_blocks;
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)) != NULL; i++)
    if (kr_model_folder_find(folder, item->name) == item) /* one name in two files: the first is used */
      KR_TRY(add_tensor(o, item, is_tied));
  KR_CHECK(o->n_new > 0, KRAIT_ERR_UNSUPPORTED, "%s has no matrix left to quantize; quantize the original weights",
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
  const int is_known =
      kr_model_folder_find(folder, "backbone.norm_f.weight") || kr_model_folder_find(folder, "model.norm.weight");
  const int32_t status = opened < 0  ? opened
                         : !is_known ? kr_fail(KRAIT_ERR_UNSUPPORTED,
                                               "%s has neither of the tensors 'backbone.norm_f.weight' and "
                                               "'model.norm.weight'; only Mamba and Qwen2 language models can be "
                                               "quantized",
                                               in_path)
                         : o.arena   ? quantise(folder, out_path, &o)
                                     : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to quantize %s", in_path);
  if (o.arena) kr_arena_close(&o.arena);
  krait_ctx_close(&ctx);
  kr_model_folder_close(&folder);
  return status;
}
