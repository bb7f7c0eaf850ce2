/* restorer.c: krait_restorer: models from the files of a folder, options with their defaults. */
#define _GNU_SOURCE
#include "public_names.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "ctx.h"
#include "restorer.h"
#include "sized.h"
#include "status.h"

/* ---- files ---- */

enum { PATH_BYTES = 4096 };
enum { FILE_DIT, FILE_VAE, FILE_POSITIVE, FILE_NEGATIVE, FILE_TEXTS, N_FILES };
typedef struct found_files {
  char path[N_FILES][PATH_BYTES];
  int n[N_FILES];
} found_files;

static int has_word(const char *name, const char *word) {
  const size_t n = strlen(word);
  for (; *name; name++) {
    size_t i = 0;
    while (i < n && tolower((unsigned char)name[i]) == word[i]) i++;
    if (i == n) return 1;
  }
  return 0;
}

static int ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n > m && strcmp(name + n - m, end) == 0;
}

/* What a file of the folder is; -1: something else. */
static int kind_of_file(const char *name) {
  const int is_torch = ends_with(name, ".pt") || ends_with(name, ".pth"), is_safe = ends_with(name, ".safetensors");
  if (!is_torch && !is_safe && !ends_with(name, ".gguf")) return -1;
  if (has_word(name, "golden")) return -1;
  if (has_word(name, "pos_emb")) return FILE_POSITIVE;
  if (has_word(name, "neg_emb")) return FILE_NEGATIVE;
  if (strcmp(name, "text.safetensors") == 0) return FILE_TEXTS;
  if (has_word(name, "vae")) return FILE_VAE;
  return has_word(name, "seedvr") || has_word(name, "dit") ? FILE_DIT : -1;
}

static int32_t find_files(const char *folder, found_files *f) {
  DIR *dir = opendir(folder);
  KR_CHECK(dir, KRAIT_ERR_FILE_OPEN, "cannot read the folder %s: %s", folder, strerror(errno));
  for (struct dirent *entry; (entry = readdir(dir));) {
    const int kind = kind_of_file(entry->d_name);
    if (kind < 0) continue;
    f->n[kind]++;
    snprintf(f->path[kind], PATH_BYTES, "%s/%s", folder, entry->d_name);
  }
  closedir(dir);
  return KRAIT_OK;
}

static int32_t choose_file(found_files *f, int kind, const char *given, const char *folder, const char *what,
                           const char *option) {
  if (given) {
    snprintf(f->path[kind], PATH_BYTES, "%s", given), f->n[kind] = 1;
    return KRAIT_OK;
  }
  KR_CHECK(f->n[kind] != 0, KRAIT_ERR_FILE_OPEN, "%s has no %s; name one by %s", folder, what, option);
  KR_CHECK(f->n[kind] == 1, KRAIT_ERR_FILE_OPEN, "%s has %d files that could be the %s; name one by %s", folder,
           f->n[kind], what, option);
  return KRAIT_OK;
}

/* ---- loading ---- */

typedef int32_t (*take_weights_fn)(krait_restorer *r, const kr_weights *weights);

static int32_t take_vae(krait_restorer *r, const kr_weights *w) { return kr_restore_load_vae(&r->models, w); }
static int32_t take_dit(krait_restorer *r, const kr_weights *w) { return kr_restore_load_dit(&r->models, w); }

static int32_t take_only_text(krait_restorer *r, const kr_weights *w, int which) {
  KR_CHECK(kr_weights_count(w) == 1, KRAIT_ERR_WEIGHTS, "a text's file has one tensor, this one %lld",
           (long long)kr_weights_count(w));
  return kr_restore_load_text(&r->models, which, kr_weights_at(w, 0));
}
static int32_t take_positive(krait_restorer *r, const kr_weights *w) { return take_only_text(r, w, KR_TEXT_POSITIVE); }
static int32_t take_negative(krait_restorer *r, const kr_weights *w) { return take_only_text(r, w, KR_TEXT_NEGATIVE); }

static int32_t take_texts(krait_restorer *r, const kr_weights *w) {
  const kr_weight *positive = kr_weights_find(w, "pos"), *negative = kr_weights_find(w, "neg");
  KR_CHECK(positive, KRAIT_ERR_WEIGHTS, "the file has no tensor 'pos'");
  KR_TRY(kr_restore_load_text(&r->models, KR_TEXT_POSITIVE, positive));
  return negative ? kr_restore_load_text(&r->models, KR_TEXT_NEGATIVE, negative) : KRAIT_OK;
}

static int32_t load_file(krait_restorer *r, const char *path, take_weights_fn take) {
  kr_weights *weights = NULL;
  const int in_parts = take == take_dit && r->ctx->cuda; /* of a GPU, which gets them part by part */
  KR_TRY((in_parts ? kr_weights_open_in_parts : kr_weights_open)(path, &weights));
  int32_t status = take(r, weights);
  if (status == KRAIT_ERR_WEIGHTS || status == KRAIT_ERR_UNSUPPORTED)
    status = kr_fail(status, "%s: %s", path, krait_error_detail());
  if (status >= 0 && in_parts) r->dit = weights;
  else kr_weights_close(&weights);
  return status;
}

static int32_t load_texts(krait_restorer *r, const found_files *f, const char *folder) {
  if (f->n[FILE_TEXTS]) KR_TRY(load_file(r, f->path[FILE_TEXTS], take_texts));
  if (f->n[FILE_POSITIVE]) KR_TRY(load_file(r, f->path[FILE_POSITIVE], take_positive));
  if (f->n[FILE_NEGATIVE]) KR_TRY(load_file(r, f->path[FILE_NEGATIVE], take_negative));
  KR_CHECK(r->models.text[KR_TEXT_POSITIVE], KRAIT_ERR_FILE_OPEN,
           "%s has no pos_emb.pt: copy pos_emb.pt and neg_emb.pt of SeedVR's repository into it", folder);
  return KRAIT_OK;
}

static int32_t load_all(krait_restorer *r, const krait_restorer_options *o, int with_texts) {
  found_files *f = kr_zalloc(sizeof *f);
  KR_CHECK(f, KRAIT_ERR_NO_MEMORY, "no memory for file names");
  int32_t status = find_files(o->path, f);
  if (status >= 0) status = choose_file(f, FILE_VAE, o->vae_path, o->path, "autoencoder (*vae*.pth)", "--vae");
  if (status >= 0) status = choose_file(f, FILE_DIT, o->dit_path, o->path, "transformer (seedvr*.pth)", "--dit");
  if (status >= 0) status = load_file(r, f->path[FILE_DIT], take_dit);
  if (status >= 0) status = load_file(r, f->path[FILE_VAE], take_vae);
  if (status >= 0 && with_texts) status = load_texts(r, f, o->path);
  const char *name = strrchr(f->path[FILE_DIT], '/');
  r->is_v1 = has_word(name ? name : f->path[FILE_DIT], "seedvr_");
  kr_free(f);
  return status;
}

/* As published where there are tensor cores for it: float16 would not hold the autoencoder's values. */
static int32_t choose_type(const krait_ctx *ctx, uint32_t precision) {
  return ctx->caps & KRAIT_CAP_CUDA_AMPERE && precision != KRAIT_PRECISION_FP32 ? KRAIT_BF16 : KRAIT_F32;
}

static int32_t open_restorer(const krait_ctx *ctx, const krait_restorer_options *given, int with_texts,
                             krait_restorer **out) {
  KR_CHECK(ctx && given && out, KRAIT_ERR_ARGUMENT, "ctx, options and restorer must not be NULL");
  krait_restorer_options o;
  *out = NULL;
  KR_TRY(kr_struct_take("krait_restorer_options", given, sizeof o, &o, sizeof o));
  KR_CHECK(o.path, KRAIT_ERR_ARGUMENT, "options.path must name the models' folder");
  krait_restorer *r = *out = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for a restorer");
  r->ctx = r->models.ctx = ctx, r->memory_bytes = o.memory_bytes, r->host_most = KR_HOST_MOST;
  r->models.dtype = choose_type(ctx, o.precision);
  const int32_t status = load_all(r, &o, with_texts);
  if (status < 0) krait_restorer_close(out);
  return status;
}

int32_t krait_restorer_open(const krait_ctx *ctx, const krait_restorer_options *given, krait_restorer **out) {
  return open_restorer(ctx, given, 1, out);
}
int32_t kr_restorer_open_models(const krait_ctx *ctx, const krait_restorer_options *given, krait_restorer **out) {
  return open_restorer(ctx, given, 0, out);
}

void krait_restorer_close(krait_restorer **handle) {
  krait_restorer *r = handle ? *handle : NULL;
  if (!r) return;
  *handle = NULL;
  kr_restore_unload(&r->models);
  if (r->dit) kr_weights_close(&r->dit);
  kr_free(r);
}

/* ---- options ---- */

static int32_t check_numbers(const krait_restore_options *o) {
  KR_CHECK(o->width >= 0 && o->height >= 0 && o->shorter >= 0 && o->longest >= 0, KRAIT_ERR_ARGUMENT,
           "the size of the result must not be negative");
  KR_CHECK(o->steps >= 1 && o->steps <= 1000, KRAIT_ERR_ARGUMENT, "%lld sampling steps: must be 1 to 1000",
           (long long)o->steps);
  KR_CHECK(isfinite(o->scale) && o->scale > 0 && isfinite(o->rescale) && o->rescale >= 0 && o->rescale <= 1,
           KRAIT_ERR_ARGUMENT, "guidance of scale %g, rescaled by %g: must be above 0, and 0 to 1", o->scale,
           o->rescale);
  KR_CHECK(o->condition_noise >= 0 && o->condition_noise < 1, KRAIT_ERR_ARGUMENT,
           "condition noise of %g: must be 0 or more, and below 1", o->condition_noise);
  KR_CHECK(o->quality >= 0 && o->quality <= 51, KRAIT_ERR_ARGUMENT, "quality %d: must be 0 to 51", (int)o->quality);
  KR_CHECK(o->frames_per_batch >= 1 && o->frames_per_batch <= 1 << 16, KRAIT_ERR_ARGUMENT,
           "%lld frames a batch: must be 1 to 65536", (long long)o->frames_per_batch);
  KR_CHECK(o->overlap >= 0 && o->overlap < o->frames_per_batch, KRAIT_ERR_ARGUMENT,
           "batches of %lld frames overlap by %lld: must be fewer", (long long)o->frames_per_batch,
           (long long)o->overlap);
  KR_CHECK(o->tile >= 0 && (o->tile == 0 || o->tile >= 16) && o->tile_overlap >= 0 && o->tile_overlap <= o->tile,
           KRAIT_ERR_ARGUMENT, "tiles of %lld pixels that overlap by %lld: must be at least 16, and at most a tile",
           (long long)o->tile, (long long)o->tile_overlap);
  return KRAIT_OK;
}

/* One size is a square; none the published default. */
static void fill_rule(const krait_restore_options *o, kr_frame_rule *rule) {
  *rule = (kr_frame_rule){.shorter = o->shorter, .longest = o->longest, .is_padded = o->is_padded};
  rule->area_h = o->width || o->height ? o->height : 720, rule->area_w = o->width || o->height ? o->width : 1280;
}

static int32_t fill_options(const krait_restorer *r, const krait_restore_options *given, kr_restore_choices *plan) {
  krait_restore_options *o = &plan->o;
  *o = (krait_restore_options){.size = sizeof *o};
  if (given) KR_TRY(kr_struct_take("krait_restore_options", given, sizeof *o, o, sizeof *o));
  const int is_v1 = r && r->is_v1;
  plan->is_batch_free = o->frames_per_batch == 0;
  if (o->frames_per_batch == 0) o->frames_per_batch = KR_FRAMES_PER_BATCH;
  if (o->steps == 0) o->steps = is_v1 ? 50 : 1;
  if (o->scale == 0) o->scale = is_v1 ? 6.5 : 1;
  if (o->condition_noise == 0 && is_v1) o->condition_noise = 0.1;
  if (o->seed == 0) o->seed = 666;
  if (o->tile && o->tile_overlap == 0) o->tile_overlap = o->tile < 256 ? o->tile / 2 : 128;
  if (o->quality == 0) o->quality = 14;
  if (!o->colour) o->colour = "wavelet";
  return check_numbers(o);
}

int32_t kr_restore_choose(const krait_restorer *r, const krait_restore_options *given, kr_restore_choices *plan) {
  KR_TRY(fill_options(r, given, plan));
  const krait_restore_options *o = &plan->o;
  fill_rule(o, &plan->rule);
  plan->o.frames_per_batch = kr_frames_padded(o->frames_per_batch);
  plan->settings = (kr_restore_settings){o->steps, o->scale, o->rescale, o->condition_noise, o->seed};
  return kr_colour_of(o->colour, &plan->colour);
}

static int32_t plan_batch(krait_restorer *r, kr_restore_choices *plan, const kr_frame_size *size, int64_t n) {
  plan->o.frames_per_batch = kr_frames_padded(n);
  return kr_restore_plan_for(&r->models, (int64_t[3]){plan->o.frames_per_batch, size->H, size->W}, r->memory_bytes,
                             r->plan, sizeof r->plan);
}

/* The longest batch with which the host needs little; if there is none, the longest one that fits. */
static int32_t choose_batch(krait_restorer *r, kr_restore_choices *plan, const kr_frame_size *size) {
  const int64_t most = plan->o.frames_per_batch;
  int64_t longest = 0;
  uint64_t longest_host = 0;
  int32_t status = KRAIT_OK;
  for (int64_t n = most; n > plan->o.overlap && n >= 5; n -= 4) {
    status = plan_batch(r, plan, size, n);
    if (status < 0 && status != KRAIT_ERR_NO_MEMORY) return status;
    if (status < 0) continue;
    const uint64_t host = kr_restore_host_bytes(r, plan, size);
    if (!longest) longest = n, longest_host = host;
    if (host > r->host_most) continue;
    const size_t used = strlen(r->plan);
    if (n < longest)
      snprintf(r->plan + used, sizeof r->plan - used, "; batches of %lld frames: %.2f GiB of the host (%lld: %.2f)",
               (long long)n, (double)host * 0x1p-30, (long long)longest, (double)longest_host * 0x1p-30);
    return KRAIT_OK;
  }
  return longest ? plan_batch(r, plan, size, longest) : status;
}

int32_t kr_restore_plan_batches(krait_restorer *r, kr_restore_choices *plan, const kr_frame_size *size) {
  r->models.tile = plan->o.tile, r->models.tile_overlap = plan->o.tile_overlap;
  return plan->is_batch_free && r->ctx->cuda ? choose_batch(r, plan, size)
                                             : plan_batch(r, plan, size, plan->o.frames_per_batch);
}

uint64_t kr_restore_host_bytes(const krait_restorer *r, const kr_restore_choices *plan, const kr_frame_size *size) {
  const uint64_t pixels = (uint64_t)(size->H * size->W), n = (uint64_t)kr_frames_padded(plan->o.frames_per_batch),
                 overlap = (uint64_t)plan->o.overlap, frame = 3 * pixels * sizeof(float),
                 films = (2 * n + overlap) * frame + n * 3 * pixels, /* before and after; samples */
      colours = plan->colour == KR_COLOUR_LAB ? n * (frame + 20 * pixels) : 2 * frame;
  uint64_t weights = 0;
  for (int side = 0; side < KR_VAE_SIDES && r->ctx->cuda; side++)
    weights += kr_vae_weight_bytes(r->models.vae, side);
  return r->models.plan.host_bytes + films + colours + weights;
}

int32_t krait_restorer_size(const krait_restore_options *options, int64_t width, int64_t height, int64_t *out_width,
                            int64_t *out_height) {
  kr_restore_choices plan;
  kr_frame_size size;
  KR_CHECK(out_width && out_height, KRAIT_ERR_ARGUMENT, "out_width and out_height must not be NULL");
  KR_TRY(kr_restore_choose(NULL, options, &plan));
  KR_TRY(kr_frame_fit(&plan.rule, height, width, &size));
  *out_width = size.out_w, *out_height = size.out_h;
  return KRAIT_OK;
}
