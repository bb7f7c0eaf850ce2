/* emulated_restore.c: a small restoration on the emulated device, under AddressSanitizer and UBSan: every way to use
 * the memory gives the same film, close to the CPU's, and takes no more of it than planned. Usage: emulated_restore
 * LIBRARY. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <math.h>
#include <stdlib.h>

#include "alloc.h"
#include "ctx.h"
#include "seedvr/seedvr_restore.h"
#include "seedvr/seedvr_sampler.h"
#include "restore/restorer.h"

enum { T = 5, H = 8, W = 16, N = 3 * T * H * W };

static const kr_vae_config vae_config = {.n_levels = 3, .width = {8, 16, 16}, .n_layers = 1, .n_groups = 4,
                                         .latent = 4, .n_time = 2, .more = 4, .eps = 1e-6f};

static void open_models(const krait_ctx *ctx, int32_t dtype, kr_restore_models *m) {
  kr_config *config = NULL;
  *m = (kr_restore_models){.ctx = ctx, .dtype = dtype};
  assert_int_equal(kr_vae_open(ctx, &vae_config, NULL, dtype, &m->vae), KRAIT_OK);
  assert_int_equal(kr_config_open(NULL, NULL,
                                  "vid_in_channels=9,vid_out_channels=4,vid_dim=32,txt_in_dim=24,heads=2,"
                                  "head_dim=16,num_layers=3,mm_layers=1,rope_dim=16",
                                  &config),
                   KRAIT_OK);
  if (kr_seedvr_config_read("seedvr_dit3b", config, &m->c) < 0 ||
      kr_seedvr_weights_open(ctx, &m->c, NULL, dtype, &m->w) < 0)
    fail_msg("%s", krait_error_detail());
  kr_config_close(&config);
  m->is_loaded = 1, m->n_text[KR_TEXT_POSITIVE] = 3;
  m->text[KR_TEXT_POSITIVE] = kr_alloc_array((size_t)(3 * m->c.txt_in), sizeof(float));
  kr_seedvr_noise(ctx, 1, 0, 0, 3 * m->c.txt_in, m->text[KR_TEXT_POSITIVE]);
}

/* The device's memory that is taken, at most, when a stage reports. */
typedef struct watch {
  const krait_ctx *ctx;
  uint64_t free_before, most;
} watch;
static int32_t watch_memory(void *user, int stage, double share) {
  watch *w = user;
  uint64_t bytes;
  (void)stage, (void)share;
  if (!w->ctx->cuda) return KRAIT_OK;
  assert_int_equal(kr_mem_left(w->ctx, &bytes), KRAIT_OK);
  if (w->free_before - bytes > w->most) w->most = w->free_before - bytes;
  return KRAIT_OK;
}

static void restore_film(kr_restore_models *m, watch *w, float *decoded) {
  static float film[N];
  const kr_restore_settings settings = {.steps = 1, .scale = 1, .seed = 5};
  const kr_restore_batch batch = {.size = {T, H, W}, .film = film, .progress = watch_memory, .user = w,
                                  .decoded = decoded};
  for (int i = 0; i < N; i++) film[i] = (float)(i * 37 % 101) / 50.5f - 1;
  *w = (watch){.ctx = m->ctx};
  assert_int_equal(kr_mem_left(m->ctx, &w->free_before), KRAIT_OK);
  if (kr_restore_run(m, &settings, &batch) < 0) fail_msg("%s", krait_error_detail());
}

static double distance(const float *got, const float *want) {
  double error = 0, norm = 0;
  for (int i = 0; i < N; i++)
    error += (double)(got[i] - want[i]) * (double)(got[i] - want[i]), norm += (double)want[i] * (double)want[i];
  return sqrt(error / norm);
}

/* Plans for less and less memory until none fits. */
static void every_plan_gives_the_film(void **state) {
  static float want[N], first[N], got[N];
  const int64_t size[3] = {T, H, W};
  const uint64_t code = (uint64_t)512 << 20; /* of the driver, in what is given */
  krait_ctx *contexts[2];
  kr_restore_models m;
  watch w;
  char line[256];
  int n_plans = 0, seen[3] = {0}, n_moved = 0;
  (void)state;
  for (int i = 0; i < 2; i++)
    assert_int_equal(krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .n_threads = 1,
                                                         .device = i ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU},
                                    &contexts[i]),
                     KRAIT_OK);
  open_models(contexts[0], KRAIT_F32, &m);
  restore_film(&m, &w, want);
  kr_restore_unload(&m);
  open_models(contexts[1], KRAIT_F32, &m);
  for (uint64_t most = 0; kr_restore_plan_for(&m, size, most, line, sizeof line) >= 0; n_plans++) {
    restore_film(&m, &w, got);
    print_message("%s; measured %.3f MiB of %.3f\n", line, (double)w.most * 0x1p-20, (double)m.plan.bytes * 0x1p-20);
    assert_true(w.most > 0 && w.most <= m.plan.bytes);
    if (n_plans == 0) {
      memcpy(first, got, sizeof first);
      assert_true(distance(got, want) < 2e-5);
    }
    assert_memory_equal(first, got, sizeof got);
    seen[m.plan.weights]++, n_moved += m.plan.host_bytes > 0;
    most = code + m.plan.bytes - (n_moved ? m.plan.bytes / 2 : 1);
  }
  assert_true(seen[KR_PLAN_RESIDENT] && seen[KR_PLAN_BY_STAGE] && n_moved);
  assert_non_null(strstr(krait_error_detail(), "need at least"));
  for (uint32_t cuts = 0; cuts < 4; cuts++) { /* everything on the host that can be there */
    const kr_plan_move move = {.saving = {.host_to = UINT64_MAX, .cuts = cuts, .host_cuts = cuts & 1}};
    m.plan = (kr_memory_use){.weights = KR_PLAN_STREAMED, .moves = {[KR_PLAN_ENCODE] = move, [KR_PLAN_DECODE] = move}};
    restore_film(&m, &w, got);
    assert_memory_equal(first, got, sizeof got);
  }
  kr_restore_unload(&m);
  for (int i = 0; i < 2; i++) krait_ctx_close(&contexts[i]);
}

/* ---- a batch that nobody chose ---- */

/* It is shortened until the host needs no more than it should; a number that was given is not. */
static void batches_suit_the_host(void **state) {
  const kr_frame_size size = {.H = H, .W = W, .out_h = H, .out_w = W};
  krait_ctx *ctx;
  krait_restorer r = {.host_most = UINT64_MAX};
  (void)state;
  assert_int_equal(krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .n_threads = 1,
                                                       .device = KRAIT_DEVICE_CUDA(0)},
                                  &ctx),
                   KRAIT_OK);
  open_models(ctx, KRAIT_F32, &r.models);
  r.ctx = ctx;
  kr_restore_choices plan = {.o = {.frames_per_batch = KR_FRAMES_PER_BATCH}, .is_batch_free = 1};
  assert_int_equal(kr_restore_plan_batches(&r, &plan, &size), KRAIT_OK);
  while (!r.models.plan.host_bytes) {
    r.memory_bytes = ((uint64_t)512 << 20) + r.models.plan.bytes - 1;
    assert_int_equal(kr_restore_plan_batches(&r, &plan, &size), KRAIT_OK);
  }
  assert_int_equal(plan.o.frames_per_batch, KR_FRAMES_PER_BATCH);
  assert_null(strstr(r.plan, "batches of"));
  const uint64_t whole = kr_restore_host_bytes(&r, &plan, &size);
  for (uint64_t most = whole - 1, last = KR_FRAMES_PER_BATCH; last > 5; most = most * 9 / 10) {
    r.host_most = most, plan.o.frames_per_batch = KR_FRAMES_PER_BATCH;
    assert_int_equal(kr_restore_plan_batches(&r, &plan, &size), KRAIT_OK);
    print_message("%s\n", r.plan);
    const uint64_t host = kr_restore_host_bytes(&r, &plan, &size), n = (uint64_t)plan.o.frames_per_batch;
    if (host > most) { /* no batch does: the longest */
      assert_int_equal(n, KR_FRAMES_PER_BATCH);
      break;
    }
    assert_true(n < KR_FRAMES_PER_BATCH && n <= last && n % 4 == 1);
    assert_non_null(strstr(r.plan, "batches of"));
    last = n;
  }
  plan.is_batch_free = 0, plan.o.frames_per_batch = KR_FRAMES_PER_BATCH;
  assert_int_equal(kr_restore_plan_batches(&r, &plan, &size), KRAIT_OK);
  assert_int_equal(plan.o.frames_per_batch, KR_FRAMES_PER_BATCH);
  plan = (kr_restore_choices){.o = {.frames_per_batch = KR_FRAMES_PER_BATCH, .overlap = 13}, .is_batch_free = 1};
  assert_int_equal(kr_restore_plan_batches(&r, &plan, &size), KRAIT_OK);
  assert_true(plan.o.frames_per_batch > plan.o.overlap);
  kr_restore_unload(&r.models);
  krait_ctx_close(&ctx);
}

/* ---- weights that stay in their file ---- */

static void run_dit(const krait_ctx *ctx, const kr_weights *weights, const char *model, int is_streamed, float *v,
                    int64_t *n) {
  const int64_t size[3] = {2, 4, 6}, n_text = 3;
  kr_config *config = NULL;
  kr_seedvr_config c;
  kr_seedvr_weights w;
  kr_seedvr_latents *latents = NULL;
  assert_int_equal(kr_config_open(weights, NULL, NULL, &config), KRAIT_OK);
  if (kr_seedvr_config_read(model, config, &c) < 0 || kr_seedvr_weights_open(ctx, &c, weights, KRAIT_F32, &w) < 0)
    fail_msg("%s", krait_error_detail());
  float *x = kr_alloc_array((size_t)(48 * c.vid_in), sizeof *x),
        *text = kr_alloc_array((size_t)(3 * c.txt_in), sizeof *text);
  kr_seedvr_noise(ctx, 1, 0, 0, 48 * c.vid_in, x), kr_seedvr_noise(ctx, 2, 0, 0, 3 * c.txt_in, text);
  uint64_t bytes, streamed;
  assert_int_equal(kr_seedvr_latents_bytes(ctx, &c, &w, size, n_text, &bytes, &streamed), KRAIT_OK);
  if (!is_streamed) assert_int_equal(kr_seedvr_weights_hold(&w), KRAIT_OK);
  if (kr_seedvr_latents_open(ctx, &c, &w, size, is_streamed, &latents) < 0 ||
      kr_seedvr_latents_run(latents, 0, x, text, n_text, 500, v) < 0)
    fail_msg("%s", krait_error_detail());
  *n = 48 * c.vid_out;
  kr_seedvr_latents_close(&latents);
  kr_seedvr_weights_close(&w);
  kr_config_close(&config);
  kr_free(x), kr_free(text);
}

static void weights_may_stay_in_their_file(void **state) {
  static float want[4096], got[4096];
  krait_ctx *ctx;
  (void)state;
  assert_int_equal(krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .n_threads = 2,
                                                       .device = KRAIT_DEVICE_CUDA(0)},
                                  &ctx),
                   KRAIT_OK);
  static const char *const models[] = {"dit3b", "dit7b"};
  for (int i = 0; i < 4; i++) {
    char path[512], model[32];
    kr_weights *weights = NULL;
    int64_t n;
    snprintf(path, sizeof path, GOLDEN "/%s.weights.safetensors", models[i / 2]);
    snprintf(model, sizeof model, "seedvr_%s", models[i / 2]);
    assert_int_equal(kr_weights_open(path, &weights), KRAIT_OK);
    run_dit(ctx, weights, model, i % 2, want, &n);
    kr_weights_close(&weights);
    assert_int_equal(kr_weights_open_in_parts(path, &weights), KRAIT_OK);
    assert_true(kr_weights_are_in_parts(weights));
    run_dit(ctx, weights, model, i % 2, got, &n);
    kr_weights_close(&weights);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    assert_true(got[0] != 0 && got[n - 1] != 0);
  }
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  if (!kr_cuda_built_tiers()) return printf("skipped: this build has no device code (no clang)\n"), 77;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  setenv("KR_FAKE_CUDA", "capability=80,shared=98304,multiprocessors=16", 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_plan_gives_the_film),
                                     cmocka_unit_test(batches_suit_the_host),
                                     cmocka_unit_test(weights_may_stay_in_their_file)};
  return cmocka_run_group_tests_name("a restoration on an emulated device", tests, NULL, NULL);
}
