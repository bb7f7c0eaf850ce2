/* seedvr_restore.c: the models of a restoration, and a batch of frames through them. */
#include "seedvr_restore.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "seedvr_sampler.h"
#include "status.h"
#include "view.h"

static const double SCALING = 0.9152; /* of latents, between autoencoder and transformer */
enum { NOISE_EPS, NOISE_START, NOISE_CONDITION };

/* ---- models ---- */

/* The file's own configuration, or the published one of this model. */
static int32_t open_config(const kr_weights *weights, const char *model, kr_config **config) {
  char overrides[64];
  snprintf(overrides, sizeof overrides, "model=%s", model);
  return kr_config_open(weights, NULL, kr_weights_metadata(weights, "model") ? NULL : overrides, config);
}

int32_t kr_restore_load_vae(kr_restore_models *m, const kr_weights *weights) {
  kr_config *config = NULL;
  kr_vae_config c;
  KR_TRY(open_config(weights, "seedvr_vae", &config));
  const char *model = kr_config_model(config);
  int32_t status = model && strcmp(model, "seedvr_vae") == 0
                       ? kr_vae_config_read(config, &c)
                       : kr_fail(KRAIT_ERR_WEIGHTS, "the model is '%s', not seedvr_vae", model ? model : "");
  if (status >= 0) status = kr_vae_open(m->ctx, &c, weights, m->dtype, &m->vae);
  kr_config_close(&config);
  return status;
}

int32_t kr_restore_load_dit(kr_restore_models *m, const kr_weights *weights) {
  kr_config *config = NULL;
  const char *published = kr_weights_find(weights, "vid_out_norm.weight") ? "seedvr_dit3b" : "seedvr_dit7b";
  KR_TRY(open_config(weights, published, &config));
  const char *model = kr_config_model(config);
  int32_t status = kr_seedvr_config_read(model ? model : published, config, &m->c);
  if (status >= 0) status = kr_seedvr_weights_open(m->ctx, &m->c, weights, m->dtype, &m->w);
  m->is_loaded = status >= 0;
  kr_config_close(&config);
  return status;
}

int32_t kr_restore_load_text(kr_restore_models *m, int which, const kr_weight *item) {
  char shape[192];
  KR_CHECK(item->n_dims == 2 && item->shape[1] == m->c.txt_in && item->shape[0] >= 1 && item->shape[0] <= 1 << 16 &&
               kr_is_float_dtype(item->dtype),
           KRAIT_ERR_WEIGHTS, "the text's tensor is %s %s, must be tokens of %lld features",
           krait_dtype_name(item->dtype), kr_shape_format(item->n_dims, item->shape, shape, sizeof shape),
           (long long)m->c.txt_in);
  const int64_t n = item->shape[0] * item->shape[1];
  const kr_view from = {.data = (void *)item->data, .dtype = item->dtype};
  kr_free(m->text[which]);
  m->text[which] = kr_alloc_array((size_t)n, sizeof(float));
  KR_CHECK(m->text[which], KRAIT_ERR_NO_MEMORY, "no memory for the text's features");
  for (int64_t i = 0; i < n; i++) m->text[which][i] = (float)kr_get(&from, i);
  m->n_text[which] = item->shape[0];
  return KRAIT_OK;
}

int32_t kr_restore_load_random(kr_restore_models *m, int is_7b) {
  enum { SENTENCE = 58 };
  kr_config *config = NULL;
  kr_vae_config c;
  KR_TRY(kr_config_open(NULL, NULL, "model=seedvr_vae", &config));
  int32_t status = kr_vae_config_read(config, &c);
  if (status >= 0) status = kr_vae_open(m->ctx, &c, NULL, m->dtype, &m->vae);
  kr_config_close(&config);
  KR_TRY(status);
  KR_TRY(kr_config_open(NULL, NULL, is_7b ? "model=seedvr_dit7b" : "model=seedvr_dit3b", &config));
  status = kr_seedvr_config_read(is_7b ? "seedvr_dit7b" : "seedvr_dit3b", config, &m->c);
  if (status >= 0) status = kr_seedvr_weights_open(m->ctx, &m->c, NULL, m->dtype, &m->w);
  m->is_loaded = status >= 0;
  kr_config_close(&config);
  KR_TRY(status);
  m->n_text[KR_TEXT_POSITIVE] = SENTENCE;
  m->text[KR_TEXT_POSITIVE] = kr_alloc_array((size_t)(SENTENCE * m->c.txt_in), sizeof(float));
  KR_CHECK(m->text[KR_TEXT_POSITIVE], KRAIT_ERR_NO_MEMORY, "no memory for the text's features");
  kr_seedvr_noise(m->ctx, 1, 0, 0, SENTENCE * m->c.txt_in, m->text[KR_TEXT_POSITIVE]);
  return KRAIT_OK;
}

void kr_restore_unload(kr_restore_models *m) {
  kr_vae_close(&m->vae);
  if (m->is_loaded) kr_seedvr_weights_close(&m->w);
  for (int i = 0; i < KR_TEXTS; i++) kr_free(m->text[i]);
  *m = (kr_restore_models){0};
}

/* ---- memory ---- */

/* Of a frame, or the largest tile. */
static kr_vae_run largest_run(const kr_restore_models *m, const int64_t size[3]) {
  kr_vae_run run = {.size = {size[0], size[1], size[2]}};
  for (int i = 1; i < 3 && m->tile; i++) run.size[i] = m->tile < size[i] ? m->tile : size[i];
  return run;
}

static void release_all(kr_restore_models *m) {
  for (int side = 0; side < KR_VAE_SIDES; side++) kr_vae_release(m->vae, side);
  kr_seedvr_weights_release(&m->w);
}

typedef struct listing {
  kr_plan_stage *stage;
  uint64_t most_host;
} listing;

static void list_move(void *user, const kr_vae_saving *saving, const kr_vae_needs *needs) {
  const listing *l = user;
  if (needs->host_bytes <= l->most_host)
    kr_plan_stage_add(l->stage, &(kr_plan_move){*saving, needs->bytes, needs->host_bytes, needs->moved_bytes});
}

/* All ways to cut, with every range of sizes of convolutions' memories on the host, or none. */
static int32_t list_moves(kr_restore_models *m, int side, const int64_t size[3], kr_plan_stage *stage) {
  enum { MOST_SIZES = 8 };
  uint64_t sizes[MOST_SIZES + 1] = {0};
  int32_t n = 0;
  kr_vae_run run = largest_run(m, size);
  listing l = {stage, kr_memory_available() / 2};
  KR_TRY(kr_vae_memory_sizes(m->vae, side, &run, MOST_SIZES, sizes, &n));
  KR_TRY(kr_vae_each_cut(m->vae, side, &run, list_move, &l));
  for (int32_t i = 0; i < n; i++)
    for (int32_t j = i + 1; j <= n; j++) {
      run.saving.host_to = sizes[i], run.saving.host_above = sizes[j];
      KR_TRY(kr_vae_each_cut(m->vae, side, &run, list_move, &l));
    }
  return KRAIT_OK;
}

/* On a CPU weights stay in any case. */
static void keep_on_host(kr_plan_needs *needs) {
  uint64_t all = 0;
  for (int i = 0; i < KR_PLAN_STAGES; i++) all += needs->stages[i].weights, needs->stages[i].weights = 0;
  for (int i = 0; i < KR_PLAN_STAGES; i++) needs->stages[i].work += all;
}

static int32_t count_stages(kr_restore_models *m, const int64_t size[3], kr_plan_needs *needs) {
  static const int stages[KR_VAE_SIDES] = {KR_PLAN_ENCODE, KR_PLAN_DECODE};
  const kr_vae_run run = largest_run(m, size);
  int64_t latent[3];
  *needs = (kr_plan_needs){0};
  for (int side = 0; side < KR_VAE_SIDES; side++) {
    kr_vae_needs side_needs;
    KR_TRY(kr_vae_count(m->vae, side, &run, &side_needs));
    needs->stages[stages[side]].weights = kr_vae_weight_bytes(m->vae, side);
    needs->stages[stages[side]].work = side_needs.bytes;
  }
  kr_plan_stage *stage = &needs->stages[KR_PLAN_SAMPLE];
  kr_vae_latent_size(kr_vae_config_of(m->vae), size, latent);
  stage->weights = m->ctx->cuda ? m->w.loader.used : m->w.loader.bytes;
  for (int i = 0; i < KR_TEXTS; i++) { /* a graph for each text */
    uint64_t bytes = 0, streamed = 0;
    if (m->text[i])
      KR_TRY(kr_seedvr_latents_bytes(m->ctx, &m->c, &m->w, latent, m->n_text[i], &bytes, &streamed));
    stage->work += bytes, stage->streamed += streamed;
  }
  if (!m->ctx->cuda) keep_on_host(needs);
  return KRAIT_OK;
}

/* What may be taken: the driver and its code need some beside it. */
static int32_t find_most(const kr_restore_models *m, uint64_t given, uint64_t *most) {
  const uint64_t code = (uint64_t)512 << 20, slack = (uint64_t)256 << 20;
  uint64_t free_bytes;
  *most = given ? given : UINT64_MAX;
  if (!m->ctx->cuda) return KRAIT_OK;
  if (given) *most = given > code ? given - code : 0;
  KR_TRY(kr_mem_left(m->ctx, &free_bytes));
  const uint64_t left = free_bytes > slack ? free_bytes - slack : 0;
  if (left < *most) *most = left;
  return KRAIT_OK;
}

int32_t kr_restore_plan_for(kr_restore_models *m, const int64_t size[3], uint64_t given, char *text,
                            size_t text_bytes) {
  kr_plan_needs needs;
  uint64_t most;
  release_all(m);
  KR_TRY(find_most(m, given, &most));
  KR_TRY(count_stages(m, size, &needs));
  int fits = kr_memory_use_choose(&needs, most, &m->plan);
  if (!fits && m->ctx->cuda) {
    KR_TRY(list_moves(m, KR_VAE_ENCODER, size, &needs.stages[KR_PLAN_ENCODE]));
    KR_TRY(list_moves(m, KR_VAE_DECODER, size, &needs.stages[KR_PLAN_DECODE]));
    fits = kr_memory_use_choose(&needs, most, &m->plan);
  }
  const double least = (double)(m->plan.bytes + (m->ctx->cuda ? (uint64_t)512 << 20 : 0)) * 0x1p-30;
  KR_CHECK(fits, KRAIT_ERR_NO_MEMORY,
           "batches of %lld frames of %lld x %lld need at least %.2f GiB of memory, %.2f GiB may be used: smaller "
           "frames or batches need less",
           (long long)size[0], (long long)size[2], (long long)size[1], least, (double)most * 0x1p-30);
  kr_memory_use_print(&m->plan, most, text, text_bytes);
  return KRAIT_OK;
}

/* ---- a batch ---- */

typedef struct run {
  kr_restore_models *m;
  const kr_restore_settings *s;
  const kr_restore_batch *b;
  int64_t latent[3], n, L; /* latents: their size, their number, channels */
  float *z, *condition, *noise, *x, *rows; /* (n,L), (n,L+1), (n,L), (n,L), (n,2L+1) */
  kr_seedvr_latents *latents;
  int64_t n_steps;
} run;

static int32_t tell(const run *r, int stage, double share) {
  return r->b->progress ? r->b->progress(r->b->user, stage, share) : KRAIT_OK;
}
static int32_t tell_encoded(void *user, double share) { return tell(user, KR_STAGE_ENCODE, share); }
static int32_t tell_decoded(void *user, double share) { return tell(user, KR_STAGE_DECODE, share); }
static void tell_line(void *user, const char *line) {
  const run *r = user;
  r->b->line(r->b->user, line);
}

/* Recorded noise, or drawn into r->noise. */
static const float *noise_of(const run *r, const float *recorded, int purpose) {
  if (recorded) return recorded;
  kr_seedvr_noise(r->m->ctx, r->s->seed, r->b->number, (uint64_t)purpose, r->n * r->L, r->noise);
  return r->noise;
}

typedef struct values {
  const float *x;
  atomic_int is_bad;
} values;

static void find_bad(void *user, int64_t begin, int64_t end, int worker) {
  values *v = user;
  uint32_t bits, is_bad = 0;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    memcpy(&bits, v->x + i, sizeof bits);
    is_bad |= (bits & 0x7f800000) == 0x7f800000; /* infinite, or not a number */
  }
  if (is_bad) atomic_store(&v->is_bad, 1);
}

static int32_t check_values(const run *r, const float *x, int64_t n, const char *stage) {
  values v = {.x = x};
  kr_parallel(r->m->ctx, n, 1 << 16, find_bad, &v);
  KR_CHECK(!atomic_load(&v.is_bad), KRAIT_ERR_WEIGHTS,
           "%s gave values that are not finite: the weights are damaged, or of another model", stage);
  return KRAIT_OK;
}

/* z = 0.9152 (mean + exp(logvar / 2) eps). */
static int32_t encode(run *r) {
  const kr_vae_run call = {.size = {r->b->size[0], r->b->size[1], r->b->size[2]}, .progress = tell_encoded,
                           .line = r->b->line ? tell_line : NULL, .user = r,
                           .saving = r->m->plan.moves[KR_PLAN_ENCODE].saving, .tile = {r->m->tile, r->m->tile},
                           .tile_overlap = {r->m->tile_overlap, r->m->tile_overlap}};
  const int64_t n = r->n, L = r->L;
  float *moments = kr_alloc_array((size_t)(2 * n * L), sizeof *moments);
  KR_CHECK(moments, KRAIT_ERR_NO_MEMORY, "no memory for latents");
  int32_t status = kr_vae_encode(r->m->vae, &call, r->b->film, moments);
  if (status >= 0) status = check_values(r, moments, 2 * n * L, "the encoder");
  const float *eps = status >= 0 ? noise_of(r, r->b->eps, NOISE_EPS) : NULL;
  for (int64_t i = 0; status >= 0 && i < n * L; i++) {
    const float *at = moments + i / L * 2 * L + i % L;
    const double logvar = fmin(fmax((double)at[L], -30), 20);
    r->z[i] = (float)(SCALING * ((double)at[0] + exp(logvar / 2) * (double)eps[i]));
  }
  kr_free(moments);
  return status;
}

/* [z, 1], with noise in z for SeedVR; its shift takes the sizes in upstream's order. */
static void make_condition(run *r) {
  const int64_t n = r->n, L = r->L, shape[3] = {r->latent[1], r->latent[2], L};
  if (r->b->latent) memcpy(r->b->latent, r->z, (size_t)(n * L) * sizeof *r->z);
  if (r->s->condition_noise > 0)
    kr_seedvr_mix(kr_seedvr_shift(KR_SEEDVR_TIMES * r->s->condition_noise, shape), n * L, r->z,
                  noise_of(r, r->b->aug_noise, NOISE_CONDITION));
  for (int64_t i = 0; i < n; i++) {
    memcpy(r->condition + i * (L + 1), r->z + i * L, (size_t)L * sizeof *r->z);
    r->condition[i * (L + 1) + L] = 1;
  }
  if (r->b->condition) memcpy(r->b->condition, r->condition, (size_t)(n * (L + 1)) * sizeof *r->z);
}

static int32_t find_velocity(void *user, const float *x, double t, int is_negative, float *v) {
  run *r = user;
  const int64_t L = r->L, wide = 2 * L + 1;
  for (int64_t i = 0; i < r->n; i++) {
    memcpy(r->rows + i * wide, x + i * L, (size_t)L * sizeof *x);
    memcpy(r->rows + i * wide + L, r->condition + i * (L + 1), (size_t)(L + 1) * sizeof *x);
  }
  KR_TRY(kr_seedvr_latents_run(r->latents, is_negative, r->rows, r->m->text[is_negative], r->m->n_text[is_negative], t,
                               v));
  const double all = (double)r->s->steps * (r->s->scale != 1 ? 2 : 1);
  return tell(r, KR_STAGE_SAMPLE, (double)++r->n_steps / all);
}

static int32_t sample(run *r) {
  const kr_sampling sampling = {.steps = r->s->steps, .n_rows = r->n, .n_channels = r->L, .scale = r->s->scale,
                                .rescale = r->s->rescale, .velocity = find_velocity, .user = r};
  KR_CHECK(r->s->scale == 1 || r->m->text[KR_TEXT_NEGATIVE], KRAIT_ERR_WEIGHTS,
           "guidance of scale %g needs the negative text, neg_emb.pt", r->s->scale);
  memcpy(r->x, noise_of(r, r->b->noise, NOISE_START), (size_t)(r->n * r->L) * sizeof *r->x);
  const int is_streamed = r->m->plan.weights == KR_PLAN_STREAMED;
  if (!is_streamed) KR_TRY(kr_seedvr_weights_hold(&r->m->w));
  KR_TRY(kr_seedvr_latents_open(r->m->ctx, &r->m->c, &r->m->w, r->latent, is_streamed, &r->latents));
  const int32_t status = kr_seedvr_sample(&sampling, r->x);
  kr_seedvr_latents_close(&r->latents);
  if (status < 0) return status;
  if (r->b->x0) memcpy(r->b->x0, r->x, (size_t)(r->n * r->L) * sizeof *r->x);
  return check_values(r, r->x, r->n * r->L, "the transformer");
}

static int32_t decode(run *r) {
  const int64_t *size = r->b->size;
  const kr_vae_run call = {.size = {size[0], size[1], size[2]}, .progress = tell_decoded,
                           .line = r->b->line ? tell_line : NULL, .user = r,
                           .saving = r->m->plan.moves[KR_PLAN_DECODE].saving, .tile = {r->m->tile, r->m->tile},
                           .tile_overlap = {r->m->tile_overlap, r->m->tile_overlap}};
  for (int64_t i = 0; i < r->n * r->L; i++) r->x[i] = (float)((double)r->x[i] / SCALING);
  KR_TRY(kr_vae_decode(r->m->vae, &call, r->x, r->b->decoded));
  return check_values(r, r->b->decoded, size[0] * size[1] * size[2] * KR_VAE_COLOURS, "the decoder");
}

static int32_t run_stages(run *r) {
  const int by_stage = r->m->plan.weights != KR_PLAN_RESIDENT;
  KR_TRY(encode(r));
  if (by_stage) kr_vae_release(r->m->vae, KR_VAE_ENCODER);
  make_condition(r);
  KR_TRY(sample(r));
  if (by_stage) kr_seedvr_weights_release(&r->m->w);
  KR_TRY(decode(r));
  if (by_stage) kr_vae_release(r->m->vae, KR_VAE_DECODER);
  return KRAIT_OK;
}

static int32_t check_models(const kr_restore_models *m) {
  KR_CHECK(m->vae && m->is_loaded && m->text[KR_TEXT_POSITIVE], KRAIT_ERR_WEIGHTS,
           "restoring needs an autoencoder, a transformer and its text");
  const int64_t L = kr_vae_config_of(m->vae)->latent;
  KR_CHECK(m->c.vid_in == 2 * L + 1 && m->c.vid_out == L, KRAIT_ERR_WEIGHTS,
           "the transformer has %lld channels in and %lld out, the autoencoder's latents need %lld and %lld",
           (long long)m->c.vid_in, (long long)m->c.vid_out, (long long)(2 * L + 1), (long long)L);
  return KRAIT_OK;
}

int32_t kr_restore_run(kr_restore_models *m, const kr_restore_settings *s, const kr_restore_batch *b) {
  KR_TRY(check_models(m));
  run r = {.m = m, .s = s, .b = b, .L = kr_vae_config_of(m->vae)->latent};
  kr_vae_latent_size(kr_vae_config_of(m->vae), b->size, r.latent);
  r.n = r.latent[0] * r.latent[1] * r.latent[2];
  float *memory = kr_alloc_array((size_t)(r.n * (6 * r.L + 2)), sizeof *memory);
  KR_CHECK(memory, KRAIT_ERR_NO_MEMORY, "no memory for latents");
  r.z = memory, r.noise = r.z + r.n * r.L, r.x = r.noise + r.n * r.L, r.condition = r.x + r.n * r.L;
  r.rows = r.condition + r.n * (r.L + 1);
  const int32_t status = run_stages(&r);
  kr_free(memory);
  return status;
}
