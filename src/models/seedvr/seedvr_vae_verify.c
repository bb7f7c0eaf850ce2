/* seedvr_vae_verify.c: the autoencoder's kr_model_kind, and every case of a golden file: encoded and decoded whole, and
 * in slices. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "model_kind.h"
#include "seedvr_vae.h"
#include "status.h"

static int is_vae(const kr_model_source *s) { return s->model && strcmp(s->model, "seedvr_vae") == 0; }

static void close_vae_model(void **handle) { kr_vae_close((kr_vae **)handle); }

static int32_t open_vae_model(const krait_ctx *ctx, const char *model, const kr_config *config,
                              const kr_weights *weights, int32_t precision, void **handle) {
  kr_vae_config c;
  kr_vae *vae = NULL;
  (void)model, (void)precision; /* float32 */
  KR_TRY(kr_vae_config_read(config, &c));
  const int32_t status = kr_vae_open(ctx, &c, weights, KRAIT_F32, &vae);
  *handle = vae;
  return status;
}

static int32_t open_vae_session(const void *impl, void **timeline) {
  *timeline = (void *)impl;
  return KRAIT_OK;
}
static void close_vae_session(void **timeline) { *timeline = NULL; }

/* ---- a case ---- */

typedef struct vae_case {
  kr_vae *vae;
  const kr_weights *golden;
  const char *name;
  int name_length;
  krait_verify_result *rows;
  int32_t n_rows, *n_filled;
  int64_t film[3], latent[3], out[3];
  const int32_t *tile; /* height, width, overlaps; or NULL */
} vae_case;

static const kr_weight *find_part(const vae_case *c, const char *part) {
  char key[128];
  snprintf(key, sizeof key, "golden.%.*s.%s", c->name_length, c->name, part);
  return kr_weights_find(c->golden, key);
}

/* The recorded tensor (C,T,H,W) as (T,H,W,C). */
static int32_t take_part(const vae_case *c, const char *part, int64_t channels, const int64_t size[3], float **to) {
  const int64_t n = size[0] * size[1] * size[2];
  const float *from;
  char key[128];
  snprintf(key, sizeof key, "golden.%.*s.%s", c->name_length, c->name, part);
  KR_TRY(kr_weights_take_f32(c->golden, key, 4, (int64_t[]){channels, size[0], size[1], size[2]}, &from));
  *to = kr_alloc_array((size_t)(n * channels), sizeof **to);
  KR_CHECK(*to, KRAIT_ERR_NO_MEMORY, "no memory for %s", key);
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < channels; k++) (*to)[i * channels + k] = from[k * n + i];
  return KRAIT_OK;
}

/* Columns first.. of `channels` of rows of `all`, against the recorded tensor, if there is one. */
static int32_t compare_part(const vae_case *c, const char *part, int64_t channels, const int64_t size[3], int64_t all,
                            int64_t first, const float *got) {
  const int64_t n = size[0] * size[1] * size[2];
  float *want = NULL, *columns = NULL;
  char name[32];
  if (!find_part(c, part)) return KRAIT_OK;
  int32_t status = take_part(c, part, channels, size, &want);
  columns = status >= 0 ? kr_alloc_array((size_t)(n * channels), sizeof *columns) : NULL;
  if (status >= 0 && !columns) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %s", part);
  for (int64_t i = 0; status >= 0 && i < n; i++)
    memcpy(columns + i * channels, got + i * all + first, (size_t)channels * sizeof *columns);
  snprintf(name, sizeof name, "%.*s.%s", c->name_length, c->name, part);
  if (status >= 0) kr_verify_add(name, columns, want, n * channels, c->rows, c->n_rows, c->n_filled);
  kr_free(want);
  kr_free(columns);
  return status;
}

static kr_vae_run run_of(const vae_case *c, const int64_t size[3], int is_whole) {
  kr_vae_run run = {.size = {size[0], size[1], size[2]}, .is_whole = is_whole};
  for (int i = 0; i < 2 && c->tile; i++) run.tile[i] = c->tile[i], run.tile_overlap[i] = c->tile[2 + i];
  return run;
}

static int32_t check_encoder(const vae_case *c, const float *film, int is_whole) {
  const int64_t L = kr_vae_config_of(c->vae)->latent, n = c->latent[0] * c->latent[1] * c->latent[2];
  const kr_vae_run run = run_of(c, c->film, is_whole);
  float *moments = kr_alloc_array((size_t)(2 * n * L), sizeof *moments);
  KR_CHECK(moments, KRAIT_ERR_NO_MEMORY, "no memory for latents");
  int32_t status = kr_vae_encode(c->vae, &run, film, moments);
  if (status >= 0) status = compare_part(c, "moments", 2 * L, c->latent, 2 * L, 0, moments);
  for (int64_t i = 0; status >= 0 && i < n; i++)
    for (int64_t k = L; k < 2 * L; k++) moments[2 * L * i + k] = fminf(fmaxf(moments[2 * L * i + k], -30), 20);
  if (status >= 0) status = compare_part(c, is_whole ? "mean" : "mean_sliced", L, c->latent, 2 * L, 0, moments);
  if (status >= 0) status = compare_part(c, is_whole ? "logvar" : "logvar_sliced", L, c->latent, 2 * L, L, moments);
  kr_free(moments);
  return status;
}

static int32_t check_decoder(const vae_case *c, const float *latent, int is_whole) {
  const int64_t *size = c->out;
  const kr_vae_run run = run_of(c, size, is_whole);
  float *film = kr_alloc_array((size_t)(size[0] * size[1] * size[2] * KR_VAE_COLOURS), sizeof *film);
  KR_CHECK(film, KRAIT_ERR_NO_MEMORY, "no memory for a film");
  int32_t status = kr_vae_decode(c->vae, &run, latent, film);
  if (status >= 0)
    status = compare_part(c, is_whole ? "decoded" : "decoded_sliced", KR_VAE_COLOURS, size, KR_VAE_COLOURS, 0, film);
  kr_free(film);
  return status;
}

static int32_t check_case(vae_case *c) {
  const kr_vae_config *config = kr_vae_config_of(c->vae);
  const kr_weight *video = find_part(c, "video");
  float *film = NULL, *latent = NULL;
  KR_CHECK(video && video->n_dims == 4, KRAIT_ERR_WEIGHTS, "golden.%.*s.video must be (3,T,H,W)", c->name_length,
           c->name);
  memcpy(c->film, video->shape + 1, sizeof c->film);
  kr_vae_latent_size(config, c->film, c->latent);
  kr_vae_film_size(config, c->latent, c->out);
  int32_t status = take_part(c, "video", KR_VAE_COLOURS, c->film, &film);
  if (status >= 0) status = take_part(c, "latent", config->latent, c->latent, &latent);
  const kr_weight *tile = find_part(c, "tile");
  if (status >= 0 && tile && !(tile->dtype == KRAIT_I32 && tile->n_dims == 1 && tile->shape[0] == 4))
    status = kr_fail(KRAIT_ERR_WEIGHTS, "golden.%.*s.tile must be four int32", c->name_length, c->name);
  c->tile = tile ? tile->data : NULL;
  for (int is_whole = 1; is_whole >= 0 && status >= 0; is_whole--) {
    if (is_whole || find_part(c, "mean_sliced")) status = check_encoder(c, film, is_whole);
    if (status >= 0 && (is_whole || find_part(c, "decoded_sliced"))) status = check_decoder(c, latent, is_whole);
  }
  kr_free(film);
  kr_free(latent);
  return status;
}

static int32_t verify_vae(void *timeline, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                          int32_t *n_filled) {
  static const char before[] = "golden.", after[] = ".video";
  for (int64_t i = 0; i < kr_weights_count(golden); i++) {
    const char *name = kr_weights_at(golden, i)->name;
    const size_t n = strlen(name), most = sizeof before - 1 + sizeof after - 1;
    if (n <= most || strncmp(name, before, sizeof before - 1) != 0 || strcmp(name + n - sizeof after + 1, after) != 0)
      continue;
    vae_case c = {.vae = timeline, .golden = golden, .name = name + sizeof before - 1, .name_length = (int)(n - most),
                  .rows = rows, .n_rows = n_rows, .n_filled = n_filled};
    KR_TRY(check_case(&c));
  }
  return KRAIT_OK;
}

static int32_t graphs_of_vae(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  enum { HEIGHT = 288, WIDTH = 512 };
  kr_vae_config c;
  kr_vae *vae = NULL;
  KR_TRY(kr_vae_config_read(s->config, &c));
  int32_t status = kr_vae_open(ctx, &c, s->weights, KRAIT_F32, &vae);
  for (int is_decoder = 0; is_decoder < KR_VAE_SIDES && status >= 0; is_decoder++) {
    int64_t size[3] = {1, HEIGHT, WIDTH};
    if (is_decoder) kr_vae_latent_size(&c, (int64_t[]){1, HEIGHT, WIDTH}, size);
    for (int64_t k = 0; k < c.n_levels && status >= 0; k++) {
      kr_vae_graph g = {.is_decoder = is_decoder, .segment = k, .part = KR_VAE_FIRST, .size = {1, size[1], size[2]}};
      char heading[96];
      snprintf(heading, sizeof heading, "SeedVR's %s, level %lld, the first frame of 512 x 288",
               is_decoder ? "decoder" : "encoder", (long long)k + 1);
      status = kr_vae_plan_graph(vae, &g);
      if (status >= 0) status = fn(user, heading, g.g);
      memcpy(size, g.out_size, sizeof size);
      kr_vae_graph_close(&g);
    }
  }
  kr_vae_close(&vae);
  return status;
}

const kr_model_kind kr_model_seedvr_vae = {.name = "seedvr_vae",
                                           .detect = is_vae,
                                           .graphs = graphs_of_vae,
                                           .open = open_vae_model,
                                           .close = close_vae_model,
                                           .session_open = open_vae_session,
                                           .session_close = close_vae_session,
                                           .verify = verify_vae};
