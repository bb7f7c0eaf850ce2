/* restore_verify.c: golden files of a restoration: every stage with the recorded noise; and those of its parts. */
#include "public_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "model_kind.h"
#include "restorer.h"
#include "sized.h"
#include "status.h"

typedef struct check {
  krait_restorer *r;
  const kr_weights *golden;
  krait_verify_result *rows;
  int32_t n_rows, *n_filled;
} check;

static const kr_weight *find_golden(const check *c, const char *name) {
  char key[96];
  snprintf(key, sizeof key, "golden.%s", name);
  return kr_weights_find(c->golden, key);
}

static int64_t count_of(const kr_weight *item) {
  int64_t n = 1;
  for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
  return n;
}

/* got (T,H,W,3) against the recorded tensor, (3,T,H,W) or (T,3,H,W), or (3,H,W) of one frame. */
static int32_t compare_film(const check *c, const char *name, const int64_t size[3], int is_frames_first,
                            const float *got) {
  const kr_weight *item = find_golden(c, name);
  const int64_t area = size[1] * size[2], n = 3 * size[0] * area;
  if (!item) return KRAIT_OK;
  KR_CHECK(item->dtype == KRAIT_F32 && count_of(item) == n, KRAIT_ERR_WEIGHTS, "golden.%s has another size", name);
  float *turned = kr_alloc_array((size_t)n, sizeof *turned);
  KR_CHECK(turned, KRAIT_ERR_NO_MEMORY, "no memory for golden.%s", name);
  for (int64_t i = 0; i < n; i++) {
    const int64_t t = i / 3 / area, k = i % 3, at = i / 3 % area;
    turned[is_frames_first ? (t * 3 + k) * area + at : (k * size[0] + t) * area + at] = got[i];
  }
  kr_verify_add(name, turned, item->data, n, c->rows, c->n_rows, c->n_filled);
  kr_free(turned);
  return KRAIT_OK;
}

static int32_t compare_rows(const check *c, const char *name, int64_t n, const float *got) {
  const kr_weight *item = find_golden(c, name);
  if (!item) return KRAIT_OK;
  KR_CHECK(item->dtype == KRAIT_F32 && count_of(item) == n, KRAIT_ERR_WEIGHTS, "golden.%s has another size", name);
  kr_verify_add(name, got, item->data, n, c->rows, c->n_rows, c->n_filled);
  return KRAIT_OK;
}

/* ---- a restoration ---- */

typedef struct pipeline {
  kr_frame_size size;
  int64_t n, padded, latents, L;
  kr_restore_settings settings;
  float *film, *decoded, *eps, *latent, *condition, *x0;
} pipeline;

static double option_of(const check *c, const char *key, double otherwise) {
  const char *text = kr_weights_metadata(c->golden, "options"), *at = text ? strstr(text, key) : NULL;
  return at ? strtod(at + strlen(key), NULL) : otherwise;
}

static int32_t take_recorded(const check *c, const char *name, const pipeline *p, const float **to) {
  const kr_weight *item = find_golden(c, name);
  KR_CHECK(item && item->dtype == KRAIT_F32 && count_of(item) == p->latents * p->L, KRAIT_ERR_WEIGHTS,
           "golden.%s is missing, or has another size than the latents", name);
  *to = item->data;
  return KRAIT_OK;
}

static int32_t make_film(const check *c, pipeline *p, const uint8_t *frames) {
  kr_resizer *resizer = NULL;
  const int64_t frame = 3 * p->size.H * p->size.W;
  KR_TRY(kr_resizer_open(c->r->ctx, &p->size, &resizer));
  for (int64_t i = 0; i < p->n; i++)
    kr_frame_crop(&p->size, kr_resizer_run(resizer, frames + 3 * i * p->size.from_h * p->size.from_w),
                  p->film + i * frame);
  for (int64_t i = p->n; i < p->padded; i++)
    memcpy(p->film + i * frame, p->film + (p->n - 1) * frame, (size_t)frame * sizeof *p->film);
  kr_resizer_close(&resizer);
  return KRAIT_OK;
}

/* A value near a half may round either way: bytes one apart count as equal, if they are at most one in a thousand. */
static void forgive_rounding(int64_t n, float *got, const float *want) {
  int64_t n_apart = 0;
  for (int64_t i = 0; i < n; i++) n_apart += got[i] != want[i];
  for (int64_t i = 0; i < n && n_apart * 1000 <= n; i++)
    if (got[i] - want[i] <= 1 && want[i] - got[i] <= 1) got[i] = want[i];
}

static int32_t compare_bytes(const check *c, const pipeline *p) {
  const kr_weight *item = find_golden(c, "out");
  const int64_t n = 3 * p->size.out_h * p->size.out_w;
  if (!item) return KRAIT_OK;
  KR_CHECK(item->dtype == KRAIT_U8 && count_of(item) == n * p->n, KRAIT_ERR_WEIGHTS, "golden.out has another size");
  uint8_t *rgb = kr_alloc((size_t)n);
  float *got = kr_alloc_array((size_t)(n * p->n), sizeof *got), *want = kr_alloc_array((size_t)(n * p->n), sizeof *got);
  const int32_t status = rgb && got && want ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for golden.out");
  for (int64_t i = 0; status >= 0 && i < n * p->n; i++) {
    if (i % n == 0) kr_frame_put(&p->size, p->decoded + i / n * 3 * p->size.H * p->size.W, KR_SAMPLES_8, rgb);
    got[i] = rgb[i % n], want[i] = ((const uint8_t *)item->data)[i];
  }
  if (status >= 0) forgive_rounding(n * p->n, got, want);
  if (status >= 0) kr_verify_add("out", got, want, n * p->n, c->rows, c->n_rows, c->n_filled);
  kr_free(rgb);
  kr_free(got);
  kr_free(want);
  return status;
}

static int32_t run_pipeline(const check *c, pipeline *p) {
  const int64_t size[3] = {p->padded, p->size.H, p->size.W}, shown[3] = {p->n, p->size.H, p->size.W};
  const float *eps, *noise, *aug_noise;
  KR_TRY(take_recorded(c, "eps", p, &eps));
  KR_TRY(take_recorded(c, "noise", p, &noise));
  KR_TRY(take_recorded(c, "aug_noise", p, &aug_noise));
  for (int64_t i = 0; i < p->latents * p->L; i++) p->eps[i] = eps[i % p->L * p->latents + i / p->L];
  const kr_restore_batch batch = {.size = {size[0], size[1], size[2]}, .film = p->film, .eps = p->eps, .noise = noise,
                                  .aug_noise = aug_noise, .latent = p->latent, .condition = p->condition,
                                  .x0 = p->x0, .decoded = p->decoded};
  KR_TRY(kr_restore_run(&c->r->models, &p->settings, &batch));
  KR_TRY(compare_film(c, "padded", size, 0, p->film));
  KR_TRY(compare_rows(c, "latent", p->latents * p->L, p->latent));
  KR_TRY(compare_rows(c, "cond", p->latents * (p->L + 1), p->condition));
  KR_TRY(compare_rows(c, "x0", p->latents * p->L, p->x0));
  KR_TRY(compare_film(c, "decoded", size, 0, p->decoded));
  KR_TRY(kr_colour_run(c->r->ctx, KR_COLOUR_WAVELET, shown, p->decoded, p->film));
  KR_TRY(compare_film(c, "corrected", shown, 1, p->decoded));
  return compare_bytes(c, p);
}

static int32_t load_recorded_texts(const check *c) {
  static const char *const names[] = {"pos", "neg"};
  for (int i = 0; i < KR_TEXTS; i++) {
    const kr_weight *item = find_golden(c, names[i]);
    if (item) KR_TRY(kr_restore_load_text(&c->r->models, i, item));
  }
  return KRAIT_OK;
}

static int32_t verify_pipeline(const check *c, const kr_weight *frames) {
  const kr_vae_config *config = kr_vae_config_of(c->r->models.vae);
  const char *script = kr_weights_metadata(c->golden, "script");
  const int is_v1 = script && strstr(script, "seedvr_") != NULL;
  const kr_frame_rule rule = {.area_h = (int64_t)option_of(c, "\"res_h\":", 720),
                              .area_w = (int64_t)option_of(c, "\"res_w\":", 1280)};
  pipeline p = {.n = frames->shape[0], .padded = kr_frames_padded(frames->shape[0]), .L = config->latent};
  int64_t latent[3];
  KR_TRY(kr_frame_fit(&rule, frames->shape[1], frames->shape[2], &p.size));
  kr_vae_latent_size(config, (int64_t[]){p.padded, p.size.H, p.size.W}, latent);
  p.latents = latent[0] * latent[1] * latent[2];
  p.settings = (kr_restore_settings){.steps = (int64_t)option_of(c, "\"sample_steps\":", 1),
                                     .scale = option_of(c, "\"cfg_scale\":", 1),
                                     .rescale = option_of(c, "\"cfg_rescale\":", 0),
                                     .condition_noise = is_v1 ? 0.1 : 0};
  KR_TRY(load_recorded_texts(c));
  const int64_t film = 3 * p.padded * p.size.H * p.size.W;
  float *memory = kr_alloc_array((size_t)(2 * film + p.latents * (4 * p.L + 1)), sizeof *memory);
  KR_CHECK(memory, KRAIT_ERR_NO_MEMORY, "no memory for a film");
  p.film = memory, p.decoded = p.film + film, p.eps = p.decoded + film, p.latent = p.eps + p.latents * p.L;
  p.x0 = p.latent + p.latents * p.L, p.condition = p.x0 + p.latents * p.L;
  int32_t status = make_film(c, &p, frames->data);
  if (status >= 0) status = run_pipeline(c, &p);
  kr_free(memory);
  return status;
}

/* Of several files in the folder, the one that the golden file was made with. */
static void find_recorded_model(const kr_weights *golden, const char *folder, const char *key, const char **path,
                                char text[4096]) {
  const char *name = kr_weights_metadata(golden, key);
  struct stat st;
  if (*path || !name || strchr(name, '/')) return;
  snprintf(text, 4096, "%s/%s", folder, name);
  if (stat(text, &st) == 0) *path = text;
}

static int32_t verify_whole(check *c, const krait_ctx *ctx, const krait_restorer_options *options,
                            const kr_weight *frames) {
  char dit[4096], vae[4096];
  krait_restorer_options o = *options;
  find_recorded_model(c->golden, o.path, "dit", &o.dit_path, dit);
  find_recorded_model(c->golden, o.path, "vae", &o.vae_path, vae);
  KR_CHECK(frames->dtype == KRAIT_U8 && frames->n_dims == 4 && frames->shape[3] == 3 && frames->shape[0] >= 1,
           KRAIT_ERR_WEIGHTS, "golden.frames is not (n,h,w,3) of bytes");
  KR_TRY(kr_restorer_open_models(ctx, &o, &c->r));
  const int32_t status = verify_pipeline(c, frames);
  krait_restorer_close(&c->r);
  return status;
}

int32_t krait_restorer_verify(const krait_ctx *ctx, const krait_restorer_options *given, const char *golden_path,
                              krait_verify_result *rows, int32_t n_rows, int32_t *n_filled) {
  KR_CHECK(ctx && given && golden_path && n_filled && (rows || n_rows == 0), KRAIT_ERR_ARGUMENT,
           "ctx, options, golden_path, rows and n_filled must not be NULL");
  krait_restorer_options o;
  kr_weights *golden = NULL;
  *n_filled = 0;
  KR_TRY(kr_struct_take("krait_restorer_options", given, sizeof o, &o, sizeof o));
  KR_CHECK(o.path, KRAIT_ERR_ARGUMENT, "options.path must name the models' folder");
  KR_TRY(kr_weights_open(golden_path, &golden));
  check c = {NULL, golden, rows, n_rows, n_filled};
  const kr_weight *frames = find_golden(&c, "frames");
  int32_t status = frames ? verify_whole(&c, ctx, &o, frames)
                          : kr_restore_verify_parts(&(kr_verify_sink){ctx, rows, n_rows, n_filled}, golden);
  if (status >= 0 && *n_filled == 0)
    status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s has no recorded output of a restoration; nothing was compared",
                     golden_path);
  kr_weights_close(&golden);
  return status;
}
