/* seedvr_vae.c: SeedVR's autoencoder: its configuration and its weights, which stay in host memory; a GPU's memory has
 * those of the side that is at work. */
#include "seedvr_vae.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "staging.h"
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
  c->more = (int64_t)1 << c->n_time;
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

enum { MOST_WEIGHTS = 2048, MEMORY_LINE = 256 };
typedef struct vae_weight {
  char key[160];
  void *host;         /* also on a GPU: its memory takes only the side that is at work */
  uint64_t bytes, at; /* at: in the side's memory */
  int side;
} vae_weight;

struct kr_vae {
  const krait_ctx *ctx;
  kr_vae_config c;
  const kr_weights *weights; /* while it is opened */
  vae_weight *kept;
  int64_t n_kept, n_found;   /* n_found: of the file's tensors */
  uint64_t bytes[KR_VAE_SIDES];
  char *device[KR_VAE_SIDES]; /* on a GPU, while a side is held */
  char *host_room;            /* kr_vae_host_room's */
  uint64_t host_room_bytes;
  double flops;  /* of all runs */
  int32_t dtype; /* of maps and filters */
  int is_open;   /* every weight is found */
};

const kr_vae_config *kr_vae_config_of(const kr_vae *vae) { return &vae->c; }
const krait_ctx *kr_vae_ctx(const kr_vae *vae) { return vae->ctx; }

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

typedef struct reading {
  const kr_weight *item;
  int64_t C, taps;
  float *to;
} reading;

/* Of a convolution, the input channels last. */
static void read_rows(void *user, int64_t begin, int64_t end, int worker) {
  const reading *r = user;
  const kr_view from = {.data = (void *)r->item->data, .dtype = r->item->dtype};
  (void)worker;
  for (int64_t k = begin; k < end; k++)
    for (int64_t c = 0; c < r->C; c++)
      for (int64_t tap = 0; tap < r->taps; tap++)
        r->to[(k * r->taps + tap) * r->C + c] = (float)kr_get(&from, (k * r->C + c) * r->taps + tap);
}

/* About as large as trained ones, so that values stay in range. */
static void fill_randomly(float *to, uint64_t n, kr_sizes want) {
  uint32_t state = 12345;
  const double scale = want.n > 1 ? sqrt(3 / ((double)n / (double)want.size[0])) : 0.1;
  for (uint64_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    to[i] = (float)(((double)(state >> 8) * 0x1p-23 - 1) * scale);
  }
}

static int64_t count_elements(kr_sizes s) {
  int64_t n = 1;
  for (int i = 0; i < s.n; i++) n *= s.size[i];
  return n;
}

/* The file's tensor, or random values: as float32, which the caller frees. */
static int32_t read_source(kr_vae *vae, const char *key, kr_sizes want, float **values) {
  const kr_weight *item = vae->weights ? find_vae_weight(vae->weights, key) : NULL;
  const int64_t n = count_elements(want);
  if (vae->weights) KR_TRY(check_vae_weight(item, key, &want));
  *values = kr_alloc_array((size_t)n, sizeof **values);
  KR_CHECK(*values, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", key);
  vae->n_found++;
  if (!item) fill_randomly(*values, (uint64_t)n, want);
  const int64_t rows = want.size[0], C = want.n == 5 ? want.size[1] : n / rows;
  if (item) kr_parallel(vae->ctx, rows, 1, read_rows, &(reading){item, C, n / rows / C, *values});
  return KRAIT_OK;
}

static int32_t keep_values(kr_vae *vae, const char *key, int32_t dtype, int64_t n, const float *values) {
  KR_CHECK(vae->n_kept < MOST_WEIGHTS, KRAIT_ERR_UNSUPPORTED, "an autoencoder of more than %d tensors", MOST_WEIGHTS);
  vae_weight *kept = &vae->kept[vae->n_kept];
  kept->bytes = (uint64_t)n * krait_dtype_bytes(dtype);
  kept->side = strncmp(key, "decoder.", 8) == 0 ? KR_VAE_DECODER : KR_VAE_ENCODER;
  kept->at = vae->bytes[kept->side];
  kept->host = kr_alloc((size_t)kept->bytes);
  KR_CHECK(kept->host, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", key);
  const kr_view to = {.data = kept->host, .dtype = dtype};
  for (int64_t i = 0; i < n; i++) kr_put(&to, i, (double)values[i]);
  snprintf(kept->key, sizeof kept->key, "%.*s", (int)sizeof kept->key - 1, key);
  vae->bytes[kept->side] += (kept->bytes + MEMORY_LINE - 1) / MEMORY_LINE * MEMORY_LINE;
  vae->n_kept++;
  return KRAIT_OK;
}

/* ---- weights made of the file's ---- */

static int ends_in(const char *key, const char *end) {
  const size_t n = strlen(key), m = strlen(end);
  return n > m && strcmp(key + n - m, end) == 0;
}

/* Kernel frame i of (K, 27, C) to channels i K .. of (KR_VAE_APART, 9, C). */
static int32_t keep_apart(kr_vae *vae, const char *conv, int64_t C) {
  const int64_t K = KR_VAE_COLOURS, n = 9 * C;
  char key[160];
  float *from = NULL, *to = kr_alloc_array((size_t)(KR_VAE_APART * n), sizeof *to);
  KR_CHECK(to, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", conv);
  snprintf(key, sizeof key, "%s.weight", conv);
  int32_t status = read_source(vae, key, KR_SIZES(K, C, 3, 3, 3), &from);
  for (int64_t i = 0; status >= 0 && i < 3 * K; i++)
    memcpy(to + i * n, from + (i % K * 3 + i / K) * n, (size_t)n * sizeof *to);
  snprintf(key, sizeof key, "%s.apart", conv);
  if (status >= 0) status = keep_values(vae, key, vae->dtype, KR_VAE_APART * n, to);
  kr_free(from);
  kr_free(to);
  return status;
}

/* The bias belongs to the last frame's sums. */
static int32_t keep_apart_bias(kr_vae *vae, const char *conv) {
  const int64_t K = KR_VAE_COLOURS;
  float *from = NULL, to[KR_VAE_APART] = {0};
  char key[160];
  snprintf(key, sizeof key, "%s.bias", conv);
  KR_TRY(read_source(vae, key, KR_SIZES(K), &from));
  memcpy(to + 2 * K, from, (size_t)K * sizeof *to);
  kr_free(from);
  snprintf(key, sizeof key, "%s.apart_bias", conv);
  return keep_values(vae, key, KRAIT_F32, KR_VAE_APART, to);
}

typedef struct keeping {
  kr_vae *vae;
  const char *prefix;
  int64_t C;
} keeping;

static int32_t keep_place(void *user, int set, int place, const float *weights, const float *bias) {
  const keeping *k = user;
  char key[112];
  snprintf(key, sizeof key, "%s%d.%d.small", k->prefix, set, place);
  KR_TRY(keep_values(k->vae, key, k->vae->dtype, k->C * 4 * kr_vae_up_frames(set) * k->C, weights));
  snprintf(key, sizeof key, "%s%d.%d.small_bias", k->prefix, set, place);
  return keep_values(k->vae, key, KRAIT_F32, 4 * k->C, bias);
}

/* All weights of a level's upsampling. */
static int32_t keep_up(kr_vae *vae, int64_t level) {
  const int64_t C = vae->c.width[vae->c.n_levels - 1 - level], r = level < vae->c.n_time ? 2 : 1;
  const kr_sizes want[] = {KR_SIZES(4 * r * C, C, 1, 1, 1), KR_SIZES(4 * r * C), KR_SIZES(C, C, 3, 3, 3), KR_SIZES(C)};
  static const char *const names[] = {"upscale_conv.weight", "upscale_conv.bias", "conv.weight", "conv.bias"};
  float *values[4] = {NULL};
  char prefix[64], key[112];
  int32_t status = KRAIT_OK;
  snprintf(prefix, sizeof prefix, "decoder.up_blocks.%lld.upsamplers.0.", (long long)level);
  for (int i = 0; i < 4 && status >= 0; i++) {
    snprintf(key, sizeof key, "%s%s", prefix, names[i]);
    status = read_source(vae, key, want[i], &values[i]);
  }
  if (status >= 0)
    status = kr_vae_up_make(&(kr_vae_up){vae->ctx, C, (int)r, values[0], values[1], values[2], values[3], keep_place,
                                         &(keeping){vae, prefix, C}});
  for (int i = 0; i < 4; i++) kr_free(values[i]);
  return status;
}

static int32_t keep_vae_weight(kr_vae *vae, const char *key, kr_sizes want) {
  long long level;
  char conv[112];
  float *values = NULL;
  snprintf(conv, sizeof conv, "%.*s", (int)(strrchr(key, '.') - key), key);
  if (ends_in(key, ".small") && sscanf(key, "decoder.up_blocks.%lld.", &level) == 1) return keep_up(vae, level);
  if (ends_in(key, ".apart")) return keep_apart(vae, conv, want.size[2]);
  if (ends_in(key, ".apart_bias")) return keep_apart_bias(vae, conv);
  int32_t status = read_source(vae, key, want, &values);
  if (status >= 0)
    status = keep_values(vae, key, want.n > 1 ? vae->dtype : KRAIT_F32, count_elements(want), values);
  kr_free(values);
  return status;
}

/* ---- finding them ---- */

static const vae_weight *kept_of(const kr_vae *vae, const char *key) {
  for (int64_t i = 0; i < vae->n_kept; i++)
    if (strcmp(vae->kept[i].key, key) == 0) return &vae->kept[i];
  return NULL;
}

/* On a GPU, the address of a side that is not held only says that there is a weight: for graphs that do not run. */
static int32_t find_kept(void *user, const char *key, kr_sizes want, const void **at) {
  kr_vae *vae = user;
  if (!vae->is_open && !kept_of(vae, key)) KR_TRY(keep_vae_weight(vae, key, want));
  const vae_weight *kept = kept_of(vae, key);
  KR_CHECK(kept, KRAIT_ERR_WEIGHTS, "the autoencoder's tensor '%s' is missing", key);
  *at = vae->device[kept->side] ? vae->device[kept->side] + kept->at : kept->host;
  return KRAIT_OK;
}

static int32_t record_part(kr_vae *vae, kr_vae_graph *graph) {
  graph->dtype = vae->dtype, graph->by_products = vae->ctx->cuda != NULL;
  return kr_vae_record(&vae->c, find_kept, vae, graph);
}

int32_t kr_vae_plan_graph(kr_vae *vae, kr_vae_graph *graph) {
  KR_TRY(record_part(vae, graph));
  return kr_graph_plan(graph->g, vae->ctx, 0);
}

int32_t kr_vae_hold(kr_vae *vae, int side) {
  kr_staging *staging = NULL;
  if (!vae->ctx->cuda || vae->device[side]) return KRAIT_OK;
  KR_TRY(kr_mem_get(vae->ctx, "the autoencoder's weights", vae->bytes[side], &vae->device[side]));
  KR_TRY(kr_mem_wait(vae->ctx));
  int32_t status = kr_staging_open(vae->ctx, &staging);
  for (int64_t i = 0; status >= 0 && i < vae->n_kept; i++)
    if (vae->kept[i].side == side)
      status = kr_staging_put(staging, vae->device[side] + vae->kept[i].at, vae->kept[i].host, vae->kept[i].bytes);
  if (status >= 0) status = kr_staging_finish(staging);
  kr_staging_close(&staging);
  if (status < 0) kr_vae_release(vae, side);
  return status;
}

void kr_vae_release(kr_vae *vae, int side) {
  kr_mem_free(vae->ctx, vae->device[side]);
  vae->device[side] = NULL;
}

static void free_host_room(kr_vae *vae) {
  if (vae->ctx->cuda && vae->host_room) kr_cuda_free_host(vae->ctx->cuda, vae->host_room);
  else kr_free(vae->host_room);
  vae->host_room = NULL, vae->host_room_bytes = 0;
}

char *kr_vae_host_room(kr_vae *vae, uint64_t bytes) {
  if (bytes <= vae->host_room_bytes) return vae->host_room;
  free_host_room(vae);
  vae->host_room = vae->ctx->cuda ? kr_cuda_alloc_host(vae->ctx->cuda, (size_t)bytes) : kr_alloc((size_t)bytes);
  vae->host_room_bytes = vae->host_room ? bytes : 0;
  return vae->host_room;
}

/* Every segment's graph once, of the smallest film, which finds every weight. */
static int32_t load_vae(kr_vae *vae) {
  const int64_t side = scale_of(&vae->c);
  for (int64_t i = 0; i < KR_VAE_SIDES * vae->c.n_levels; i++) {
    const int is_decoder = i >= vae->c.n_levels;
    kr_vae_graph graph = {.is_decoder = is_decoder, .segment = i % vae->c.n_levels, .size = {1, side, side}};
    const int32_t status = record_part(vae, &graph);
    kr_vae_graph_close(&graph);
    if (status < 0) return status;
  }
  KR_CHECK(!vae->weights || kr_weights_count(vae->weights) == vae->n_found, KRAIT_ERR_WEIGHTS,
           "the file has %lld tensors, but the autoencoder has %lld: the configuration belongs to another model",
           (long long)kr_weights_count(vae->weights), (long long)vae->n_found);
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
  for (int side = 0; side < KR_VAE_SIDES; side++) kr_vae_release(vae, side);
  free_host_room(vae);
  for (int64_t i = 0; i < vae->n_kept; i++) kr_free(vae->kept[i].host);
  kr_free(vae->kept);
  kr_free(vae);
}

uint64_t kr_vae_weight_bytes(const kr_vae *vae, int side) { return vae->bytes[side]; }
double kr_vae_flops(const kr_vae *vae) { return vae->flops; }
void kr_vae_add_flops(kr_vae *vae, double flops) { vae->flops += flops; }
