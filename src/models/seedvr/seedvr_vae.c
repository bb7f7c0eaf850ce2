/* seedvr_vae.c: SeedVR's autoencoder: its configuration, its weights, and films in slices of time: 5 frames first, then
 * 4 at a time; 2 latents first, then one. The convolutions' last frames go from slice to slice. */
#include "seedvr_vae.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"
#include "view.h"

/* ---- configuration ---- */

static const char *const vae_keys[] = {
    "act_fn",        "block_out_channels", "layers_per_block",        "norm_num_groups",
    "in_channels",   "out_channels",       "latent_channels",         "slicing_sample_min_size",
    "down_block_types", "up_block_types",  "temporal_scale_num",      "inflation_mode",
    "use_quant_conv", "use_post_quant_conv", "spatial_downsample_factor", "temporal_downsample_factor",
    "freeze_encoder", "down_block_type", "up_block_type", "time_receptive_field", "slicing_up_num", "attention",
};

static int32_t read_widths(const kr_config *config, kr_vae_config *c) {
  static const int64_t published[] = {128, 256, 512, 512};
  int32_t n = 4;
  memcpy(c->width, published, sizeof published);
  KR_TRY(kr_config_ints(config, "block_out_channels", 1, 1 << 14, KR_VAE_MOST_LEVELS, c->width, &n));
  c->n_levels = n;
  KR_CHECK(c->n_time < c->n_levels, KRAIT_ERR_WEIGHTS,
           "configuration: temporal_scale_num is %lld, must be below the %lld levels", (long long)c->n_time,
           (long long)c->n_levels);
  for (int64_t i = 0; i < c->n_levels; i++)
    KR_CHECK(c->width[i] % c->n_groups == 0, KRAIT_ERR_WEIGHTS,
             "configuration: block_out_channels[%lld] %lld is not a multiple of norm_num_groups %lld", (long long)i,
             (long long)c->width[i], (long long)c->n_groups);
  KR_CHECK(c->width[c->n_levels - 1] <= 512, KRAIT_ERR_UNSUPPORTED,
           "configuration: block_out_channels: the last is %lld, at most 512 is supported",
           (long long)c->width[c->n_levels - 1]);
  return KRAIT_OK;
}

int32_t kr_vae_config_read(const kr_config *config, kr_vae_config *c) {
  *c = (kr_vae_config){.eps = 1e-6f};
  int64_t colours;
  KR_TRY(kr_config_check_keys(config, vae_keys, sizeof vae_keys / sizeof *vae_keys));
  KR_TRY(kr_config_int(config, "layers_per_block", 2, 1, 16, &c->n_layers));
  KR_TRY(kr_config_int(config, "norm_num_groups", 32, 1, 1024, &c->n_groups));
  KR_TRY(kr_config_int(config, "latent_channels", 16, 1, 256, &c->latent));
  KR_TRY(kr_config_int(config, "temporal_scale_num", 2, 0, 4, &c->n_time));
  KR_TRY(kr_config_int(config, "in_channels", KR_VAE_COLOURS, KR_VAE_COLOURS, KR_VAE_COLOURS, &colours));
  KR_TRY(kr_config_int(config, "out_channels", KR_VAE_COLOURS, KR_VAE_COLOURS, KR_VAE_COLOURS, &colours));
  KR_TRY(read_widths(config, c));
  c->more = (int64_t)1 << c->n_time, c->first = c->more + 1;
  return KRAIT_OK;
}

static int64_t scale_of(const kr_vae_config *c) { return (int64_t)1 << (c->n_levels - 1); }

void kr_vae_latent_size(const kr_vae_config *c, const int64_t film[3], int64_t latent[3]) {
  latent[0] = (film[0] - 1) / c->more + 1;
  for (int k = 1; k < 3; k++) latent[k] = film[k] / scale_of(c);
}

void kr_vae_film_size(const kr_vae_config *c, const int64_t latent[3], int64_t film[3]) {
  film[0] = (latent[0] - 1) * c->more + 1;
  for (int k = 1; k < 3; k++) film[k] = latent[k] * scale_of(c);
}

/* ---- weights: found by key while a graph is recorded, and kept ---- */

enum { MOST_WEIGHTS = 2048 };
typedef struct vae_weight {
  char key[96];
  void *data;
} vae_weight;

struct kr_vae {
  const krait_ctx *ctx;
  kr_vae_config c;
  const kr_weights *weights; /* while it is opened */
  vae_weight *kept;
  int64_t n_kept;
  uint64_t bytes;
  double flops;  /* of all runs */
  int32_t dtype; /* of maps and filters */
  int is_open;   /* every weight is found */
};

const kr_vae_config *kr_vae_config_of(const kr_vae *vae) { return &vae->c; }

/* Older files have other names for the attention's products. */
static const kr_weight *find_vae_weight(const kr_weights *weights, const char *key) {
  static const char *const names[][2] = {
      {"to_q.", "query."}, {"to_k.", "key."}, {"to_v.", "value."}, {"to_out.0.", "proj_attn."}};
  const kr_weight *item = kr_weights_find(weights, key);
  for (int i = 0; i < 4 && !item; i++) {
    const char *at = strstr(key, names[i][0]);
    char other[160];
    if (!at) continue;
    snprintf(other, sizeof other, "%.*s%s%s", (int)(at - key), key, names[i][1], at + strlen(names[i][0]));
    item = kr_weights_find(weights, other);
  }
  return item;
}

static int32_t check_vae_weight(const kr_weight *item, const char *key, const kr_sizes *want) {
  char has[192], wants[192];
  KR_CHECK(item, KRAIT_ERR_WEIGHTS, "the autoencoder's tensor '%s' is missing", key);
  int same = item->n_dims == want->n;
  for (int i = 0; same && i < want->n; i++) same = item->shape[i] == want->size[i];
  KR_CHECK(same, KRAIT_ERR_WEIGHTS, "tensor '%s' has shape %s, the autoencoder requires %s", key,
           kr_shape_format(item->n_dims, item->shape, has, sizeof has),
           kr_shape_format(want->n, want->size, wants, sizeof wants));
  KR_CHECK(kr_is_float_dtype(item->dtype), KRAIT_ERR_WEIGHTS, "tensor '%s' is %s, not of a float type", key,
           krait_dtype_name(item->dtype));
  return KRAIT_OK;
}

/* Of a convolution, the input channels last. */
static void convert_vae_weight(const kr_weight *item, const kr_view *to) {
  const kr_view from = {.data = (void *)item->data, .dtype = item->dtype};
  int64_t n = 1, C = 1, taps = 1;
  for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
  for (int i = 2; i < item->n_dims; i++) taps *= item->shape[i];
  if (item->n_dims == 5) C = item->shape[1];
  for (int64_t i = 0; i < n; i++) {
    const int64_t k = i / (C * taps), c = i / taps % C, tap = i % taps;
    kr_put(to, item->n_dims == 5 ? (k * taps + tap) * C + c : i, kr_get(&from, i));
  }
}

/* About as large as trained ones, so that values stay in range. */
static void fill_randomly(const kr_view *to, uint64_t n, kr_sizes want) {
  uint32_t state = 12345;
  const double scale = want.n > 1 ? sqrt(3 / ((double)n / (double)want.size[0])) : 0.1;
  for (uint64_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    kr_put(to, (int64_t)i, ((double)(state >> 8) * 0x1p-23 - 1) * scale);
  }
}

static int32_t keep_vae_weight(kr_vae *vae, const char *key, kr_sizes want, const void **at) {
  const kr_weight *item = vae->weights ? find_vae_weight(vae->weights, key) : NULL;
  uint64_t n = 1;
  if (vae->weights) KR_TRY(check_vae_weight(item, key, &want));
  KR_CHECK(vae->n_kept < MOST_WEIGHTS, KRAIT_ERR_UNSUPPORTED, "an autoencoder of more than %d tensors", MOST_WEIGHTS);
  for (int i = 0; i < want.n; i++) n *= (uint64_t)want.size[i];
  const int32_t dtype = want.n > 1 ? vae->dtype : KRAIT_F32;
  const uint64_t bytes = n * krait_dtype_bytes(dtype);
  void *host = kr_alloc((size_t)bytes);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", key);
  const kr_view to = {.data = host, .dtype = dtype};
  if (item) convert_vae_weight(item, &to);
  else fill_randomly(&to, n, want);
  vae_weight *kept = &vae->kept[vae->n_kept];
  int32_t status = kr_mem_get(vae->ctx, key, bytes, &kept->data);
  if (status >= 0) status = kr_mem_put(vae->ctx, kept->data, host, bytes);
  if (status >= 0) status = kr_mem_wait(vae->ctx);
  kr_free(host);
  if (status < 0) return status;
  snprintf(kept->key, sizeof kept->key, "%s", key);
  vae->bytes += bytes;
  vae->n_kept++, *at = kept->data;
  return KRAIT_OK;
}

static int32_t find_kept(void *user, const char *key, kr_sizes want, const void **at) {
  kr_vae *vae = user;
  for (int64_t i = 0; i < vae->n_kept; i++)
    if (strcmp(vae->kept[i].key, key) == 0) {
      *at = vae->kept[i].data;
      return KRAIT_OK;
    }
  KR_CHECK(!vae->is_open, KRAIT_ERR_WEIGHTS, "the autoencoder's tensor '%s' is missing", key);
  return keep_vae_weight(vae, key, want, at);
}

static int32_t record_part(kr_vae *vae, kr_vae_graph *graph) {
  graph->dtype = vae->dtype, graph->by_products = vae->ctx->cuda != NULL;
  return kr_vae_record(&vae->c, find_kept, vae, graph);
}

/* Both graphs once, of the smallest film, which finds every weight. */
static int32_t load_vae(kr_vae *vae) {
  const int64_t side = 2 * scale_of(&vae->c);
  for (int is_decoder = 0; is_decoder < 2; is_decoder++) {
    kr_vae_graph graph = {.is_decoder = is_decoder, .size = {1, is_decoder ? 2 : side, is_decoder ? 2 : side}};
    const int32_t status = record_part(vae, &graph);
    kr_vae_graph_close(&graph);
    if (status < 0) return status;
  }
  KR_CHECK(!vae->weights || kr_weights_count(vae->weights) == vae->n_kept, KRAIT_ERR_WEIGHTS,
           "the file has %lld tensors, but the autoencoder has %lld: the configuration belongs to another model",
           (long long)kr_weights_count(vae->weights), (long long)vae->n_kept);
  return KRAIT_OK;
}

int32_t kr_vae_open(const krait_ctx *ctx, const kr_vae_config *c, const kr_weights *weights, int32_t dtype,
                    kr_vae **out) {
  kr_vae *vae = *out = kr_zalloc(sizeof *vae);
  KR_CHECK(vae, KRAIT_ERR_NO_MEMORY, "no memory for the autoencoder");
  vae->ctx = ctx, vae->c = *c, vae->weights = weights, vae->dtype = dtype;
  vae->kept = kr_zalloc(MOST_WEIGHTS * sizeof *vae->kept);
  const int32_t status = vae->kept ? load_vae(vae) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the autoencoder");
  vae->weights = NULL, vae->is_open = 1;
  if (status < 0) kr_vae_close(out);
  return status;
}

void kr_vae_close(kr_vae **handle) {
  kr_vae *vae = handle ? *handle : NULL;
  if (!vae) return;
  *handle = NULL;
  for (int64_t i = 0; i < vae->n_kept; i++) kr_mem_free(vae->ctx, vae->kept[i].data);
  kr_free(vae->kept);
  kr_free(vae);
}

/* ---- slices ---- */

typedef struct slicing {
  kr_vae *vae;
  const kr_vae_run *run;
  int is_decoder;
  int64_t size[3], out_channels, in_channels; /* of what is read */
  kr_vae_graph graphs[3];                     /* by part */
  void *in, *out;                             /* of the largest slice */
  void **memories;
  int64_t n_memories;
} slicing;

static int64_t volume(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

int32_t kr_vae_graph_open(kr_vae *vae, kr_vae_graph *graph) {
  KR_TRY(record_part(vae, graph));
  return kr_vae_graph_prepare(vae->ctx, graph);
}

/* The graph of `frames` frames of this part. */
static int32_t need_graph(slicing *s, int part, int64_t frames) {
  kr_vae_graph *graph = &s->graphs[part];
  if (graph->g) return KRAIT_OK;
  *graph = (kr_vae_graph){
      .is_decoder = s->is_decoder, .part = part, .size = {frames, s->size[1], s->size[2]}};
  return kr_vae_graph_open(s->vae, graph);
}

static int32_t need_memories(slicing *s) {
  const kr_vae_graph *graph = &s->graphs[KR_VAE_FIRST];
  if (s->memories) return KRAIT_OK;
  s->n_memories = graph->n_memories;
  s->memories = kr_zalloc((size_t)(s->n_memories + 1) * sizeof *s->memories);
  KR_CHECK(s->memories, KRAIT_ERR_NO_MEMORY, "no memory for slices of a film");
  for (int64_t i = 0; i < s->n_memories; i++)
    KR_TRY(kr_mem_get(s->vae->ctx, "the memory of a convolution", graph->memories[i].bytes, &s->memories[i]));
  return KRAIT_OK;
}

static int32_t bind_memories(const slicing *s, kr_vae_graph *graph) {
  for (int64_t i = 0; i < graph->n_memories; i++) {
    KR_TRY(kr_runner_bind(graph->runner, graph->memories[i].is, s->memories[i]));
    if (graph->part == KR_VAE_LATER) KR_TRY(kr_runner_bind(graph->runner, graph->memories[i].was, s->memories[i]));
  }
  return KRAIT_OK;
}

/* *n_out: values written. */
static int32_t run_slice(slicing *s, int part, int64_t frames, const float *from, float *to, int64_t *n_out) {
  const krait_ctx *ctx = s->vae->ctx;
  KR_TRY(need_graph(s, part, frames));
  kr_vae_graph *graph = &s->graphs[part];
  const uint64_t in_bytes = (uint64_t)(volume(graph->size) * s->in_channels) * sizeof *from;
  *n_out = volume(graph->out_size) * s->out_channels;
  if (part == KR_VAE_FIRST) KR_TRY(need_memories(s));
  if (!s->in) KR_TRY(kr_mem_get(ctx, "a slice", in_bytes, &s->in));
  if (!s->out) KR_TRY(kr_mem_get(ctx, "a slice", (uint64_t)*n_out * sizeof *to, &s->out));
  KR_TRY(kr_mem_put(ctx, s->in, from, in_bytes));
  KR_TRY(kr_runner_bind(graph->runner, graph->in, s->in));
  KR_TRY(kr_runner_bind(graph->runner, graph->out, s->out));
  if (part != KR_VAE_WHOLE) KR_TRY(bind_memories(s, graph));
  KR_TRY(kr_runner_run(graph->runner, NULL));
  s->vae->flops += graph->flops;
  return kr_mem_read(ctx, to, s->out, (uint64_t)*n_out * sizeof *to);
}

static int32_t run_all_slices(slicing *s, const float *from, float *to) {
  const int64_t T = s->size[0], first = s->is_decoder ? 2 : s->vae->c.first, more = s->is_decoder ? 1 : s->vae->c.more,
                frame = s->size[1] * s->size[2] * s->in_channels;
  const int is_whole = s->run->is_whole || T <= first;
  for (int64_t t = 0, n; t < T; t += n) {
    int64_t written;
    n = is_whole ? T : t ? more : first;
    if (t) kr_vae_graph_close(&s->graphs[KR_VAE_FIRST]);
    KR_TRY(run_slice(s, is_whole ? KR_VAE_WHOLE : t ? KR_VAE_LATER : KR_VAE_FIRST, n, from + t * frame, to, &written));
    to += written;
    if (s->run->progress) KR_TRY(s->run->progress(s->run->user, (double)(t + n) / (double)T));
  }
  kr_vae_graph *last = &s->graphs[is_whole ? KR_VAE_WHOLE : T > first ? KR_VAE_LATER : KR_VAE_FIRST];
  if (!s->run->line) return KRAIT_OK;
  KR_TRY(kr_runner_profile(last->runner, NULL));
  return kr_graph_print(last->g, last->runner, s->run->line, s->run->user);
}

static void end_slices(slicing *s) {
  const krait_ctx *ctx = s->vae->ctx;
  for (int i = 0; i < 3; i++) kr_vae_graph_close(&s->graphs[i]);
  for (int64_t i = 0; i < s->n_memories && s->memories; i++) kr_mem_free(ctx, s->memories[i]);
  kr_free(s->memories);
  kr_mem_free(ctx, s->in);
  kr_mem_free(ctx, s->out);
}

static int32_t check_film(const kr_vae_config *c, const int64_t size[3]) {
  const int64_t scale = scale_of(c), most = (int64_t)1 << 40;
  KR_CHECK(size[0] >= 1 && size[1] >= scale && size[2] >= scale && size[1] <= 1 << 16 && size[2] <= 1 << 16 &&
               size[0] <= most / (size[1] * size[2]),
           KRAIT_ERR_SHAPE, "a film of %lld frames of %lld x %lld: must be at least 1 frame of %lld x %lld, and fit",
           (long long)size[0], (long long)size[2], (long long)size[1], (long long)scale, (long long)scale);
  KR_CHECK((size[0] - 1) % c->more == 0, KRAIT_ERR_SHAPE, "a film of %lld frames: must be a multiple of %lld, plus one",
           (long long)size[0], (long long)c->more);
  return KRAIT_OK;
}

int32_t kr_vae_encode(kr_vae *vae, const kr_vae_run *run, const float *film, float *moments) {
  slicing s = {.vae = vae, .run = run, .in_channels = KR_VAE_COLOURS, .out_channels = 2 * vae->c.latent};
  KR_TRY(check_film(&vae->c, run->size));
  memcpy(s.size, run->size, sizeof s.size);
  const int32_t status = run_all_slices(&s, film, moments);
  end_slices(&s);
  return status;
}

int32_t kr_vae_decode(kr_vae *vae, const kr_vae_run *run, const float *latents, float *film) {
  slicing s = {.vae = vae, .run = run, .is_decoder = 1, .in_channels = vae->c.latent, .out_channels = KR_VAE_COLOURS};
  KR_TRY(check_film(&vae->c, run->size));
  kr_vae_latent_size(&vae->c, run->size, s.size);
  const int32_t status = run_all_slices(&s, latents, film);
  end_slices(&s);
  return status;
}

/* ---- memory ---- */

uint64_t kr_vae_weight_bytes(const kr_vae *vae) { return vae->bytes; }
double kr_vae_flops(const kr_vae *vae) { return vae->flops; }

int32_t kr_vae_bytes(kr_vae *vae, const int64_t size[3], uint64_t *bytes) {
  *bytes = 0;
  KR_TRY(check_film(&vae->c, size));
  for (int is_decoder = 0; is_decoder < 2; is_decoder++) {
    int64_t of[3];
    if (is_decoder) kr_vae_latent_size(&vae->c, size, of);
    else memcpy(of, size, sizeof of);
    const int64_t first = is_decoder ? 2 : vae->c.first;
    kr_vae_graph graph = {.is_decoder = is_decoder, .part = of[0] > first ? KR_VAE_FIRST : KR_VAE_WHOLE,
                          .size = {of[0] > first ? first : of[0], of[1], of[2]}};
    int32_t status = record_part(vae, &graph);
    if (status >= 0) status = kr_graph_plan(graph.g, vae->ctx, 0);
    uint64_t all = status >= 0 ? kr_graph_bytes(graph.g) : 0;
    for (int64_t i = 0; status >= 0 && i < graph.n_memories; i++) all += graph.memories[i].bytes;
    kr_vae_graph_close(&graph);
    if (status < 0) return status;
    if (all > *bytes) *bytes = all;
  }
  return KRAIT_OK;
}
