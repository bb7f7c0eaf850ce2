/* language_quantize.c: a language model's weights again with its large matrices in 8 bits; which those are is said by their keys. */
#include <stdio.h>
#include <string.h>

#include <krait/language.h>

#include "alloc.h"
#include "arena.h"
#include "model_folder.h"
#include "quantize.h"
#include "safetensors.h"
#include "status.h"
#include "view.h"

static int ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), n_end = strlen(end);
  return n > n_end && strcmp(name + n - n_end, end) == 0;
}

/* Products that are large and have nothing fused into them; of Qwen2 those of its own layers, not of towers beside it. */
static int is_product(const char *name) {
  static const char *const of_mamba[] = {".in_proj.weight", ".x_proj.weight", ".out_proj.weight", ".fc2.weight"};
  static const char *const of_qwen2[] = {".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".o_proj.weight", ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"};
  const int is_qwen2 = strncmp(name, "model.layers.", 13) == 0;
  if (!is_qwen2 && strncmp(name, "backbone.", 9) != 0) return strcmp(name, "lm_head.weight") == 0;
  const char *const *ends = is_qwen2 ? of_qwen2 : of_mamba;
  const size_t n = is_qwen2 ? sizeof of_qwen2 / sizeof *of_qwen2 : sizeof of_mamba / sizeof *of_mamba;
  for (size_t i = 0; i < n; i++)
    if (ends_with(name, ends[i])) return 1;
  return 0;
}

/* What decides how states move: kept in float32. */
static int is_of_states(const char *name) { return strncmp(name, "backbone.", 9) == 0 && (strstr(name, ".A_log") || strstr(name, ".dt_bias") || strstr(name, ".dt_proj.bias") || (strlen(name) > 2 && strcmp(name + strlen(name) - 2, ".D") == 0)); }

typedef struct output {
  kr_arena *arena;
  kr_list items; /* kr_weight */
} output;

static int32_t add(output *o, const kr_weight *item) {
  kr_weight *to = kr_list_push(o->arena, &o->items);
  KR_CHECK(!kr_arena_failed(o->arena), KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  *to = *item;
  return KRAIT_OK;
}

/* name: what it is called in the new file. */
static int32_t add_quantised(output *o, const kr_weight *item, const char *name) {
  const int64_t N = item->shape[0], S = item->shape[1] / 32;
  const size_t n = (size_t)(N * S);
  int32_t *words = kr_arena_try(o->arena, n * 8 * sizeof *words);
  uint16_t *scales = words ? kr_arena_try(o->arena, n * sizeof *scales) : NULL;
  KR_CHECK(scales, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  kr_q8_quantize(item, words, scales);
  KR_TRY(add(o, &(kr_weight){kr_arena_print(o->arena, "%s.q8_0", name), KRAIT_I32, 2, {N, 8 * S}, words, n * 8 * sizeof *words}));
  return add(o, &(kr_weight){kr_arena_print(o->arena, "%s.q8_0.scales", name), KRAIT_F16, 2, {N, S}, scales, n * sizeof *scales});
}

static int32_t add_widened(output *o, const kr_weight *item) {
  const krait_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype);
  float *values = kr_arena_try(o->arena, (size_t)n * sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  for (uint64_t i = 0; i < n; i++) values[i] = (float)kr_get(&view, (int64_t)i);
  kr_weight wide = *item;
  wide.data = values, wide.dtype = KRAIT_F32, wide.bytes = n * sizeof *values;
  return add(o, &wide);
}

static int is_embedding(const char *name) {
  return strcmp(name, "backbone.embedding.weight") == 0 || strcmp(name, "backbone.embeddings.weight") == 0 || strcmp(name, "model.embed_tokens.weight") == 0;
}

/* The embedding stays for looking tokens up; where it is the output matrix too, that is quantised beside it. */
static int32_t add_tensor(output *o, const kr_weight *item, int is_tied) {
  if (is_of_states(item->name) && kr_is_float_dtype(item->dtype)) return add_widened(o, item);
  if (is_product(item->name) && kr_q8_fits(item)) return is_tied && strcmp(item->name, "lm_head.weight") == 0 ? KRAIT_OK : add_quantised(o, item, item->name);
  KR_TRY(add(o, item));
  return is_tied && is_embedding(item->name) && kr_q8_fits(item) ? add_quantised(o, item, "lm_head.weight") : KRAIT_OK;
}

static int32_t quantise(const kr_model_folder *folder, const char *out_path, output *o) {
  const kr_weight *head = kr_model_folder_find(folder, "lm_head.weight"), *embedding = kr_model_folder_find(folder, "backbone.embedding.weight"), *item;
  const int is_tied = !head || (embedding && head->data == embedding->data);
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)) != NULL; i++) KR_TRY(add_tensor(o, item, is_tied));
  return kr_safetensors_write(out_path, o->items.at, (int64_t)o->items.n, &(kr_metadata){"quantized", "q8_0"}, 1);
}

int32_t krait_lm_quantize(const char *in_path, const char *out_path, const char *format) {
  kr_model_folder *folder = NULL;
  KR_CHECK(in_path && out_path && format, KRAIT_ERR_ARGUMENT, "in_path, out_path and format must not be NULL");
  KR_CHECK(strcmp(format, "q8_0") == 0, KRAIT_ERR_ARGUMENT, "'%s' is no way to quantise that krait knows; q8_0 is", format);
  KR_TRY(kr_model_folder_open(in_path, &folder));
  output o = {.arena = kr_arena_open(), .items = KR_LIST(kr_weight)};
  const int is_known = kr_model_folder_find(folder, "backbone.norm_f.weight") || kr_model_folder_find(folder, "model.norm.weight");
  const int32_t status = !is_known ? kr_fail(KRAIT_ERR_UNSUPPORTED, "%s has neither of the tensors 'backbone.norm_f.weight' and 'model.norm.weight'; Mamba and Qwen2 language models are quantised", in_path)
                         : o.arena ? quantise(folder, out_path, &o) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to quantise %s", in_path);
  if (o.arena) kr_arena_close(&o.arena);
  kr_model_folder_close(&folder);
  return status;
}
