/* mamba_lm_weights.c: reads every tensor by its key and shape. Large ones stay in the file's memory (a GPU gets
 * copies); A_log, D and dt_bias are converted to float32, A is -exp(A_log). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "ctx.h"
#include "mamba_lm.h"
#include "weight_loader.h"
#include "status.h"
#include "view.h"

enum { AS_STORED, AS_FLOAT, AS_DECAY }; /* AS_DECAY: -exp */

typedef struct loader {
  const krait_ctx *ctx;
  const kr_model_folder *folder;
  const kr_mamba_lm_config *c;
  kr_mamba_lm_weights *w;
  kr_arena *arena; /* computed tensors of a CPU */
  char *device;    /* on a GPU: all of them; NULL: only count */
  uint64_t used;
  const uint16_t *random; /* instead of a folder: values for the largest tensor, of type random_type */
  int32_t random_type;
  const uint16_t *random_scales,
      *random_halves;           /* for 8 bits: scales for the largest tensor, and its float16 values; else NULL */
  const int32_t *random_supers; /* for 4 bits: super-blocks for it; else NULL */
} loader;

typedef struct shape {
  int32_t n;
  int64_t size[3];
} shape;
#define SHAPE(...) (shape){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}}

static const char *label_of(const loader *l) { return l->folder ? kr_model_folder_label(l->folder) : "random weights"; }

static uint64_t mamba_lm_elements_of(shape s) {
  uint64_t n = 1;
  for (int i = 0; i < s.n; i++) n *= (uint64_t)s.size[i];
  return n;
}

/* The stored tensor; for random weights one with this shape. */
static const kr_weight *find_item(const loader *l, const char *name, int is_needed, shape want, kr_weight *made) {
  if (l->folder) return kr_model_folder_find(l->folder, name);
  if (!is_needed) return NULL;
  *made = (kr_weight){.name = name,
                      .dtype = l->random_type,
                      .n_dims = want.n,
                      .data = l->random,
                      .bytes = mamba_lm_elements_of(want) * krait_dtype_bytes(l->random_type)};
  for (int i = 0; i < want.n; i++) made->shape[i] = want.size[i];
  return made;
}

static int32_t check_shape(const loader *l, const kr_weight *item, shape want) {
  char found[192], wanted[192];
  int same = item->n_dims == want.n;
  for (int i = 0; same && i < want.n; i++) same = item->shape[i] == want.size[i];
  KR_CHECK(same, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' has shape %s, the model requires %s", label_of(l), item->name,
           kr_shape_format(item->n_dims, item->shape, found, sizeof found),
           kr_shape_format(want.n, want.size, wanted, sizeof wanted));
  KR_CHECK(item->dtype == KRAIT_F32 || item->dtype == KRAIT_F16 || item->dtype == KRAIT_BF16, KRAIT_ERR_WEIGHTS,
           "%s: tensor '%s' is %s, not float32, float16 or bfloat16", label_of(l), item->name,
           krait_dtype_name(item->dtype));
  return KRAIT_OK;
}

static int32_t to_device(loader *l, const void *data, uint64_t bytes, const void **at) {
  const uint64_t place = l->used;
  l->used = (l->used + bytes + 255) & ~(uint64_t)255;
  *at = l->device ? l->device + place : data;
  return l->device ? kr_cuda_copy_in(l->ctx->cuda, l->device + place, data, bytes, NULL) : KRAIT_OK;
}

static int32_t compute(loader *l, const kr_weight *item, int how, const void **data, uint64_t *bytes) {
  const krait_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype);
  float *values = kr_arena_try(l->arena, (size_t)n * sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  for (uint64_t i = 0; i < n; i++) {
    const double v = kr_get(&view, (int64_t)i);
    values[i] = (float)(how == AS_DECAY ? -exp(v) : v);
    KR_CHECK(isfinite(values[i]), KRAIT_ERR_WEIGHTS,
             "%s: tensor '%s' is not finite at element %llu; the file is damaged, or its training diverged",
             label_of(l), item->name, (unsigned long long)i);
  }
  *data = values;
  *bytes = n * sizeof *values;
  return KRAIT_OK;
}

static int32_t take_weight(loader *l, const kr_weight *item, shape want, int how, kr_mamba_lm_tensor *to) {
  const void *data = item->data;
  uint64_t bytes = item->bytes;
  KR_TRY(check_shape(l, item, want));
  if (how != AS_STORED) KR_TRY(compute(l, item, how, &data, &bytes));
  to->dtype = how == AS_STORED ? item->dtype : KRAIT_F32;
  l->w->bytes += bytes;
  if (l->ctx->cuda) return to_device(l, data, bytes, &to->data);
  to->data = data;
  if (l->folder || how != AS_STORED) return KRAIT_OK;
  void *copy = kr_arena_try(l->arena, (size_t)bytes); /* memory of its own: a token must read as much as it would */
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  to->data = memcpy(copy, data, (size_t)bytes);
  return KRAIT_OK;
}

/* Its own memory, so that a token reads as many bytes as with real weights. */
static int32_t copy_random(loader *l, const kr_weight *qweight, const kr_weight *scales, kr_mamba_lm_tensor *to) {
  void *copy = kr_arena_try(l->arena, (size_t)(qweight->bytes + scales->bytes));
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", qweight->name);
  to->data = memcpy(copy, qweight->data, (size_t)qweight->bytes);
  to->scales = memcpy((char *)copy + qweight->bytes, scales->data, (size_t)scales->bytes);
  return KRAIT_OK;
}

/* A quantized matrix: used directly on a CPU; on a GPU for steps, and dequantized to float16 for prefill. */
static int32_t take_mamba_lm_q8(loader *l, const kr_weight *qweight, const kr_weight *scales, shape want,
                                kr_mamba_lm_tensor *to) {
  const int64_t N = want.size[0], S = want.size[1] / 32;
  const int fits = want.size[1] % 32 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 &&
                   qweight->shape[0] == N && qweight->shape[1] == 8 * S && scales && scales->n_dims == 2 &&
                   scales->dtype == KRAIT_F16 && scales->shape[0] == N && scales->shape[1] == S;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensors '%s' and '%s.scales' are not q8_0 of shape (%lld, %lld)", label_of(l),
           qweight->name, qweight->name, (long long)N, (long long)want.size[1]);
  l->w->bytes += qweight->bytes + scales->bytes;
  if (!l->ctx->cuda) {
    *to = (kr_mamba_lm_tensor){.data = qweight->data, .dtype = KRAIT_I32, .scales = scales->data};
    return l->random ? copy_random(l, qweight, scales, to) : KRAIT_OK;
  }
  KR_TRY(to_device(l, qweight->data, qweight->bytes, &to->qweight));
  KR_TRY(to_device(l, scales->data, scales->bytes, &to->qscales));
  to->dtype = KRAIT_F16;
  if (l->random_halves || !l->device)
    return to_device(l, l->random_halves, (uint64_t)(N * want.size[1]) * sizeof *l->random_halves, &to->data);
  uint16_t *halves = NULL;
  int32_t status = kr_widen_q8(l->ctx, qweight, scales, &halves);
  if (status >= 0) status = to_device(l, halves, (uint64_t)(N * want.size[1]) * sizeof *halves, &to->data);
  if (status >= 0) status = kr_cuda_wait(l->ctx->cuda, NULL);
  kr_free(halves);
  return status;
}

/* Words of q4_k, used directly. */
static int32_t take_mamba_lm_q4k(loader *l, const kr_weight *qweight, shape want, kr_mamba_lm_tensor *to) {
  const int64_t N = want.size[0], K = want.size[1];
  const int fits = K % 256 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 && qweight->shape[0] == N &&
                   qweight->shape[1] == K / 256 * 36;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is not q4_k of shape (%lld, %lld)", label_of(l), qweight->name,
           (long long)N, (long long)K);
  l->w->bytes += qweight->bytes;
  *to = (kr_mamba_lm_tensor){.data = qweight->data, .dtype = KRAIT_I32};
  if (l->ctx->cuda) return to_device(l, qweight->data, qweight->bytes, &to->data);
  if (l->folder) return KRAIT_OK;
  void *copy =
      kr_arena_try(l->arena, (size_t)qweight->bytes); /* memory of its own: a token must read as much as it would */
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", qweight->name);
  to->data = memcpy(copy, qweight->data, (size_t)qweight->bytes);
  return KRAIT_OK;
}

/* The matrices that krait_lm_quantize quantizes. */
static int try_random_q8(loader *l, const char *name, shape want, kr_mamba_lm_tensor *to) {
  static const char *const ends[] = {".in_proj.weight", ".x_proj.weight", ".out_proj.weight", "lm_head.weight"};
  const int64_t N = want.size[0], S = want.size[1] / 32;
  int is_one = 0;
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    is_one = is_one || (strlen(name) >= strlen(ends[i]) && strcmp(name + strlen(name) - strlen(ends[i]), ends[i]) == 0);
  if (!is_one || want.size[1] % 32) return 0;
  if (l->random_supers && want.size[1] % 256 == 0 && !strstr(name, "x_proj") && !strstr(name, "lm_head")) {
    const kr_weight supers = {.name = name,
                              .dtype = KRAIT_I32,
                              .n_dims = 2,
                              .shape = {N, want.size[1] / 256 * 36},
                              .data = l->random_supers,
                              .bytes = (uint64_t)(N * want.size[1] / 256) * 144};
    const int32_t taken = take_mamba_lm_q4k(l, &supers, want, to);
    return taken < 0 ? taken : 1;
  }
  const kr_weight qweight = {.name = name,
                           .dtype = KRAIT_I32,
                           .n_dims = 2,
                           .shape = {N, 8 * S},
                           .data = l->random,
                           .bytes = (uint64_t)(N * 8 * S) * 4};
  const kr_weight scales = {.name = name,
                            .dtype = KRAIT_F16,
                            .n_dims = 2,
                            .shape = {N, S},
                            .data = l->random_scales,
                            .bytes = (uint64_t)(N * S) * 2};
  const int32_t status = take_mamba_lm_q8(l, &qweight, &scales, want, to);
  return status < 0 ? status : 1;
}

/* Reads it if the file has it quantized: 1; 0: it does not. */
static int32_t try_quantised(loader *l, const char *name, shape want, kr_mamba_lm_tensor *to) {
  char key[160], scales[168];
  if (want.n != 2) return 0;
  if (l->random_scales) return try_random_q8(l, name, want, to);
  if (!l->folder) return 0;
  snprintf(key, sizeof key, "%s.q8_0", name);
  snprintf(scales, sizeof scales, "%s.scales", key);
  const kr_weight *qweight = kr_model_folder_find(l->folder, key);
  if (!qweight) {
    snprintf(key, sizeof key, "%s.q4_k", name);
    qweight = kr_model_folder_find(l->folder, key);
    if (!qweight) return 0;
    const int32_t status = take_mamba_lm_q4k(l, qweight, want, to);
    return status < 0 ? status : 1;
  }
  const int32_t status = take_mamba_lm_q8(l, qweight, kr_model_folder_find(l->folder, scales), want, to);
  return status < 0 ? status : 1;
}

/* A layer's tensor; one that is not needed may be missing. */
static int32_t take_mamba_lm(loader *l, int64_t layer, const char *name, int is_needed, shape want, int how,
                             kr_mamba_lm_tensor *to) {
  char key[128];
  snprintf(key, sizeof key, "backbone.layers.%lld.%s", (long long)layer, name);
  kr_weight made;
  const int32_t is_quantised = how == AS_STORED ? try_quantised(l, key, want, to) : 0;
  if (is_quantised != 0) return is_quantised < 0 ? is_quantised : KRAIT_OK;
  const kr_weight *item = find_item(l, key, is_needed, want, &made);
  KR_CHECK(item || !is_needed, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is missing", label_of(l), key);
  return item ? take_weight(l, item, want, how, to) : KRAIT_OK;
}

static int32_t take_mamba1(loader *l, int64_t i, kr_mamba_lm_layer *to) {
  const kr_mamba_lm_config *c = l->c;
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.weight", 1, SHAPE(2 * c->Di, c->d), AS_STORED, &to->in_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.bias", 0, SHAPE(2 * c->Di), AS_STORED, &to->in_proj_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.conv1d.weight", 1, SHAPE(c->Di, 1, c->W), AS_STORED, &to->conv));
  KR_TRY(take_mamba_lm(l, i, "mixer.conv1d.bias", 0, SHAPE(c->Di), AS_STORED, &to->conv_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.x_proj.weight", 1, SHAPE(c->R + 2 * c->N, c->Di), AS_STORED, &to->x_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.dt_proj.weight", 1, SHAPE(c->Di, c->R), AS_STORED, &to->dt_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.dt_proj.bias", 1, SHAPE(c->Di), AS_FLOAT, &to->dt_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.A_log", 1, SHAPE(c->Di, c->N), AS_DECAY, &to->A));
  return take_mamba_lm(l, i, "mixer.D", 1, SHAPE(c->Di), AS_FLOAT, &to->D);
}

static int32_t take_mamba2(loader *l, int64_t i, kr_mamba_lm_layer *to) {
  const kr_mamba_lm_config *c = l->c;
  const int64_t C = c->Di + 2 * c->G * c->N, rows = c->Di + C + c->H;
  char key[64];
  snprintf(key, sizeof key, "backbone.layers.%lld.mixer.D", (long long)i);
  const kr_weight *D = l->folder ? kr_model_folder_find(l->folder, key) : NULL;
  to->D_per_channel = D && D->n_dims == 1 && D->shape[0] == c->Di && c->Di != c->H;
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.weight", 1, SHAPE(rows, c->d), AS_STORED, &to->in_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.bias", 0, SHAPE(rows), AS_STORED, &to->in_proj_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.conv1d.weight", 1, SHAPE(C, 1, c->W), AS_STORED, &to->conv));
  KR_TRY(take_mamba_lm(l, i, "mixer.conv1d.bias", 0, SHAPE(C), AS_STORED, &to->conv_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.dt_bias", 1, SHAPE(c->H), AS_FLOAT, &to->dt_bias));
  KR_TRY(take_mamba_lm(l, i, "mixer.A_log", 1, SHAPE(c->H), AS_DECAY, &to->A));
  KR_TRY(take_mamba_lm(l, i, "mixer.D", 1, SHAPE(to->D_per_channel ? c->Di : c->H), AS_FLOAT, &to->D));
  return take_mamba_lm(l, i, "mixer.norm.weight", 1, SHAPE(c->Di), AS_STORED, &to->gate_norm);
}

static int32_t take_mamba_lm_attention(loader *l, int64_t i, kr_mamba_lm_layer *to) {
  const kr_mamba_lm_attention *a = &l->c->attention;
  const int64_t C = kr_mamba_lm_channels(l->c, i);
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.weight", 1, SHAPE(C, l->c->d), AS_STORED, &to->in_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.in_proj.bias", 0, SHAPE(C), AS_STORED, &to->in_proj_bias));
  if (!a->W) return KRAIT_OK;
  KR_TRY(take_mamba_lm(l, i, "mixer.conv1d.weight", 1, SHAPE(C, 1, a->W), AS_STORED, &to->conv));
  return take_mamba_lm(l, i, "mixer.conv1d.bias", 1, SHAPE(C), AS_STORED, &to->conv_bias);
}

static int32_t take_mamba_lm_layer(loader *l, int64_t i, kr_mamba_lm_layer *to) {
  const kr_mamba_lm_config *c = l->c;
  KR_TRY(take_mamba_lm(l, i, "norm.weight", 1, SHAPE(c->d), AS_STORED, &to->norm));
  KR_TRY(take_mamba_lm(l, i, "norm.bias", 0, SHAPE(c->d), AS_STORED, &to->norm_bias));
  const int is_attention = c->attention.layers[i];
  KR_TRY((is_attention ? take_mamba_lm_attention : c->mixer == KR_MIXER_MAMBA1 ? take_mamba1 : take_mamba2)(l, i, to));
  KR_TRY(take_mamba_lm(l, i, "mixer.out_proj.weight", 1,
                       SHAPE(c->d, is_attention ? c->attention.H * c->attention.D : c->Di), AS_STORED, &to->out_proj));
  KR_TRY(take_mamba_lm(l, i, "mixer.out_proj.bias", 0, SHAPE(c->d), AS_STORED, &to->out_proj_bias));
  if (!c->F) return KRAIT_OK;
  KR_TRY(take_mamba_lm(l, i, "norm2.weight", 1, SHAPE(c->d), AS_STORED, &to->norm2));
  KR_TRY(take_mamba_lm(l, i, "norm2.bias", 0, SHAPE(c->d), AS_STORED, &to->norm2_bias));
  KR_TRY(take_mamba_lm(l, i, "mlp.fc1.weight", 1, SHAPE(2 * c->F, c->d), AS_STORED, &to->fc1));
  KR_TRY(take_mamba_lm(l, i, "mlp.fc1.bias", 0, SHAPE(2 * c->F), AS_STORED, &to->fc1_bias));
  KR_TRY(take_mamba_lm(l, i, "mlp.fc2.weight", 1, SHAPE(c->d, c->F), AS_STORED, &to->fc2));
  return take_mamba_lm(l, i, "mlp.fc2.bias", 0, SHAPE(c->d), AS_STORED, &to->fc2_bias);
}

static int32_t take_global(loader *l, const char *name, const char *other, int is_needed, shape want,
                           kr_mamba_lm_tensor *to) {
  kr_weight made;
  const kr_weight *item = find_item(l, name, is_needed, want, &made);
  if (!item && other) item = find_item(l, other, is_needed, want, &made);
  KR_CHECK(item || !is_needed, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is missing", label_of(l), name);
  return item ? take_weight(l, item, want, AS_STORED, to) : KRAIT_OK;
}

static int32_t take_mamba_lm_all(loader *l) {
  const kr_mamba_lm_config *c = l->c;
  kr_mamba_lm_weights *w = l->w;
  const kr_weight *head = l->folder ? kr_model_folder_find(l->folder, "lm_head.weight") : NULL;
  const kr_weight *embedding = l->folder ? kr_model_folder_find(l->folder, "backbone.embedding.weight") : NULL;
  l->used = w->bytes = 0;
  KR_TRY(
      take_global(l, "backbone.embeddings.weight", "backbone.embedding.weight", 1, SHAPE(c->V, c->d), &w->embedding));
  const int32_t is_quantised = try_quantised(l, "lm_head.weight", SHAPE(c->V, c->d), &w->head);
  KR_TRY(is_quantised);
  const int is_tied = !is_quantised && (!head || (embedding && head->data == embedding->data));
  if (is_tied) w->head = w->embedding;
  else if (!is_quantised) KR_TRY(take_global(l, "lm_head.weight", NULL, 1, SHAPE(c->V, c->d), &w->head));
  KR_TRY(take_global(l, "backbone.norm_f.weight", NULL, 1, SHAPE(c->d), &w->norm_f));
  KR_TRY(take_global(l, "backbone.norm_f.bias", NULL, 0, SHAPE(c->d), &w->norm_f_bias));
  for (int64_t i = 0; i < c->n_layers; i++) KR_TRY(take_mamba_lm_layer(l, i, &w->layers[i]));
  if (!is_tied) /* the embedding is only looked up */
    w->bytes -= (uint64_t)(c->V * c->d) * krait_dtype_bytes(w->embedding.dtype);
  return KRAIT_OK;
}

static int32_t read_all(loader *l) {
  KR_TRY(take_mamba_lm_all(l));
  l->w->dtype = !l->ctx->cuda                                ? KRAIT_F32
                : l->w->layers[0].in_proj.dtype == KRAIT_I32 ? KRAIT_F16
                                                             : l->w->layers[0].in_proj.dtype;
  if (!l->ctx->cuda) {
    l->w->owned = l->arena;
    l->arena = NULL;
    return KRAIT_OK;
  }
  KR_TRY(kr_cuda_alloc(l->ctx->cuda, l->used, (void **)&l->device));
  l->w->owned = l->device;
  KR_TRY(take_mamba_lm_all(l));
  return kr_cuda_wait(l->ctx->cuda, NULL);
}

static int32_t load_mamba_lm(loader *l) {
  kr_mamba_lm_weights *w = l->w;
  *w = (kr_mamba_lm_weights){.layers = kr_alloc_array((size_t)l->c->n_layers, sizeof *w->layers)};
  l->arena = kr_arena_open();
  int32_t status = w->layers && l->arena
                       ? KRAIT_OK
                       : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)l->c->n_layers);
  if (status >= 0) status = read_all(l);
  if (l->arena) kr_arena_close(&l->arena);
  if (status < 0) kr_mamba_lm_weights_free(l->ctx, w);
  return status;
}

int32_t kr_mamba_lm_weights_read(const krait_ctx *ctx, const kr_model_folder *folder, const kr_mamba_lm_config *c,
                            kr_mamba_lm_weights *w) {
  return load_mamba_lm(&(loader){.ctx = ctx, .folder = folder, .c = c, .w = w});
}

/* Uniform, with a standard deviation of about 0.02, so that nothing saturates. */
static void fill_mamba_lm_random(void *data, int32_t dtype, uint64_t n) {
  const krait_view view = {.data = data, .dtype = dtype};
  uint64_t seed = 1;
  for (uint64_t i = 0; i < n; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    kr_put(&view, (int64_t)i, ((double)(seed >> 40) / (1 << 24) - 0.5) * 0.07);
  }
}

/* 8 bits: the random bytes themselves, one scale for all of them. */
static int32_t load_q8(loader *l, uint64_t n) {
  uint16_t *scales = kr_alloc_array((size_t)(n / 32 + 1), sizeof *scales),
           *halves = kr_alloc_array((size_t)n, sizeof *halves);
  int32_t status = scales && halves ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for random weights");
  for (uint64_t i = 0; status >= 0 && i <= n / 32; i++) scales[i] = kr_float_to_f16(0.0003f);
  for (uint64_t i = 0; status >= 0 && i < n; i++)
    halves[i] = kr_float_to_f16((float)((const int8_t *)l->random)[i] * kr_f16_to_float(scales[0]));
  l->random_scales = scales, l->random_halves = halves;
  if (status >= 0) status = load_mamba_lm(l);
  kr_free(scales), kr_free(halves);
  return status;
}

/* 4 bits: the random bytes again, with two small factors in each super-block. */
static int32_t load_q4k(loader *l, uint64_t n) {
  const uint64_t n_qweight = (n / 256 + 1) * 36, factors = kr_float_to_f16(0.00003f);
  int32_t *supers = kr_alloc_array((size_t)n_qweight, sizeof *supers);
  KR_CHECK(supers, KRAIT_ERR_NO_MEMORY, "no memory for random weights");
  for (uint64_t i = 0; i < n_qweight; i++)
    supers[i] = i % 36 ? ((const int32_t *)l->random)[i % (n / 4)] : (int32_t)(factors | factors << 16);
  l->random_supers = supers;
  const int32_t status = load_q8(l, n);
  kr_free(supers);
  return status;
}

int32_t kr_mamba_lm_weights_random(const krait_ctx *ctx, const kr_mamba_lm_config *c, int32_t dtype,
                                   kr_mamba_lm_weights *w) {
  const int32_t type = dtype == KRAIT_Q8_0 || dtype == KRAIT_Q4_K ? KRAIT_F16 : dtype;
  const uint64_t rows = (uint64_t)(c->V > 4 * c->Di + 4 * c->G * c->N ? c->V : 4 * c->Di + 4 * c->G * c->N),
                 n = rows * (uint64_t)(c->d > c->Di ? c->d : c->Di);
  void *random = kr_alloc_array((size_t)n, krait_dtype_bytes(type));
  *w = (kr_mamba_lm_weights){0};
  KR_CHECK(random, KRAIT_ERR_NO_MEMORY, "no memory for random weights");
  fill_mamba_lm_random(random, type, n);
  loader l = {.ctx = ctx, .c = c, .w = w, .random = random, .random_type = type};
  const int32_t status = dtype == KRAIT_Q8_0   ? load_q8(&l, n)
                         : dtype == KRAIT_Q4_K ? load_q4k(&l, n)
                                               : load_mamba_lm(&l);
  kr_free(random);
  return status;
}

void kr_mamba_lm_weights_free(const krait_ctx *ctx, kr_mamba_lm_weights *w) {
  if (w->owned && ctx->cuda) kr_cuda_free(ctx->cuda, w->owned);
  else if (w->owned) kr_arena_close((kr_arena **)&w->owned);
  kr_free(w->layers);
  *w = (kr_mamba_lm_weights){0};
}
