/* seedvr_restore_time.c: times a whole restoration of a batch, stage by stage, with random weights of the published
 * sizes. */
#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "ctx.h"
#include "model_time.h"
#include "seedvr_frames.h"
#include "seedvr_restore.h"
#include "seedvr_sampler.h"
#include "sized.h"
#include "status.h"

typedef struct timing_run {
  kr_restore_models m;
  int64_t size[3]; /* T, H, W */
  float *film, *decoded;
  uint8_t *small, *bytes; /* a frame before; all frames afterwards */
  kr_frame_size frame;
  int64_t since_ns;
  double stage_s[KR_STAGES], resize_s, colour_s, round_s, flops[KR_STAGES];
  kr_seedvr_report_fn report;
  void *user;
  uint64_t memory_bytes, used_bytes[KR_STAGES]; /* as given; of the device, at most */
  uint64_t free_before;
} timing_run;

static void measure_memory(timing_run *r, int stage) {
  uint64_t bytes;
  if (!r->m.ctx->cuda || kr_mem_left(r->m.ctx, &bytes) < 0 || bytes > r->free_before) return;
  if (r->free_before - bytes > r->used_bytes[stage]) r->used_bytes[stage] = r->free_before - bytes;
}

static int32_t add_time(void *user, int stage, double share) {
  timing_run *r = user;
  const int64_t now_ns = kr_clock_ns();
  (void)share;
  measure_memory(r, stage);
  r->stage_s[stage] += (double)(now_ns - r->since_ns) * 1e-9, r->since_ns = now_ns;
  r->flops[stage] = kr_vae_flops(r->m.vae); /* of all stages until now */
  return KRAIT_OK;
}
static void pass_line(void *user, const char *line) {
  const timing_run *r = user;
  r->report(r->user, line);
}

/* A small frame, over and over, to those that are restored. */
static int32_t resize_frames(timing_run *r) {
  const int64_t n = 3 * r->size[1] * r->size[2];
  kr_resizer *resizer = NULL;
  KR_TRY(kr_resizer_open(r->m.ctx, &r->frame, &resizer));
  const int64_t since_ns = kr_clock_ns();
  for (int64_t i = 0; i < r->size[0]; i++) kr_frame_crop(&r->frame, kr_resizer_run(resizer, r->small), r->film + i * n);
  r->resize_s = (double)(kr_clock_ns() - since_ns) * 1e-9;
  kr_resizer_close(&resizer);
  return KRAIT_OK;
}

static void round_frames(void *user, int64_t begin, int64_t end, int worker) {
  const timing_run *r = user;
  const int64_t n = 3 * r->size[1] * r->size[2];
  (void)worker;
  for (int64_t i = begin; i < end; i++) kr_frame_put(&r->frame, r->decoded + i * n, KR_SAMPLES_8, r->bytes + i * n);
}

/* with_lines: what the operators' own timing takes counts as a stage's. */
static int32_t run_once(timing_run *r, int with_lines) {
  const kr_restore_settings settings = {.steps = 1, .scale = 1, .seed = 666};
  const kr_restore_batch batch = {.size = {r->size[0], r->size[1], r->size[2]}, .film = r->film, .progress = add_time,
                                  .line = with_lines ? pass_line : NULL, .user = r, .decoded = r->decoded};
  const double before = kr_vae_flops(r->m.vae);
  memset(r->stage_s, 0, sizeof r->stage_s);
  KR_TRY(resize_frames(r));
  r->since_ns = kr_clock_ns();
  KR_TRY(kr_restore_run(&r->m, &settings, &batch));
  KR_TRY(add_time(r, KR_STAGE_DECODE, 1)); /* what follows its last step */
  r->flops[KR_STAGE_DECODE] -= r->flops[KR_STAGE_ENCODE], r->flops[KR_STAGE_ENCODE] -= before;
  r->since_ns = kr_clock_ns();
  KR_TRY(kr_colour_run(r->m.ctx, KR_COLOUR_WAVELET, r->size, r->decoded, r->film));
  r->colour_s = (double)(kr_clock_ns() - r->since_ns) * 1e-9, r->since_ns = kr_clock_ns();
  kr_parallel(r->m.ctx, r->size[0], 1, round_frames, r);
  r->round_s = (double)(kr_clock_ns() - r->since_ns) * 1e-9;
  return KRAIT_OK;
}

static void keep_least(double *least, double s) { *least = *least == 0 || s < *least ? s : *least; }

static int32_t time_restore_runs(timing_run *r, int32_t n_runs, kr_restore_timing *t) {
  for (int32_t i = r->m.ctx->cuda ? -1 : 0; i < n_runs; i++) { /* a GPU's first run loads its kernels */
    KR_TRY(run_once(r, 0));
    if (i < 0) continue;
    t->encode_flops = r->flops[KR_STAGE_ENCODE], t->decode_flops = r->flops[KR_STAGE_DECODE];
    keep_least(&t->encode_s, r->stage_s[KR_STAGE_ENCODE]), keep_least(&t->sample_s, r->stage_s[KR_STAGE_SAMPLE]);
    keep_least(&t->decode_s, r->stage_s[KR_STAGE_DECODE]), keep_least(&t->colour_s, r->colour_s);
    keep_least(&t->resize_s, r->resize_s), keep_least(&t->round_s, r->round_s);
  }
  return r->report ? run_once(r, 1) : KRAIT_OK;
}

static int32_t measure_restore(timing_run *r, int32_t n_runs, kr_restore_timing *t) {
  const int64_t n = 3 * r->size[0] * r->size[1] * r->size[2];
  r->film = kr_alloc_array((size_t)(2 * n), sizeof *r->film);
  r->bytes = kr_alloc((size_t)(2 * n)), r->small = r->bytes ? r->bytes + n : NULL;
  KR_CHECK(r->film && r->bytes, KRAIT_ERR_NO_MEMORY, "no memory for frames");
  r->decoded = r->film + n;
  for (int64_t i = 0; i < n / r->size[0] / 4; i++) r->small[i] = (uint8_t)(i * 7919 % 251);
  KR_TRY(kr_frame_fit(&(kr_frame_rule){.area_h = r->size[1], .area_w = r->size[2]}, r->size[1] / 2, r->size[2] / 2,
                      &r->frame));
  KR_TRY(kr_restore_plan_for(&r->m, r->size, r->memory_bytes, t->plan, sizeof t->plan));
  memcpy(t->planned_bytes, r->m.plan.stage_bytes, sizeof t->planned_bytes);
  t->host_bytes = r->m.plan.host_bytes, t->moved_bytes = r->m.plan.moved_bytes;
  KR_TRY(kr_mem_left(r->m.ctx, &r->free_before));
  KR_TRY(time_restore_runs(r, n_runs, t));
  memcpy(t->measured_bytes, r->used_bytes, sizeof t->measured_bytes);
  return KRAIT_OK;
}

int32_t kr_restore_measure(const krait_ctx *ctx, const kr_seedvr_shape *shape, int32_t dtype, uint64_t memory_bytes,
                           int32_t n_runs, kr_seedvr_report_fn report, void *user, kr_restore_timing *timing) {
  kr_restore_timing t = {.size = sizeof t};
  timing_run r = {.m = {.ctx = ctx, .dtype = dtype}, .report = report, .user = user,
                  .memory_bytes = memory_bytes};
  r.size[0] = kr_frames_padded(shape->n_frames);
  r.size[1] = shape->height / 16 * 16, r.size[2] = shape->width / 16 * 16;
  KR_CHECK(shape->n_frames >= 1 && r.size[1] >= 16 && r.size[2] >= 16 && n_runs >= 1, KRAIT_ERR_ARGUMENT,
           "%lld frames of %lld x %lld: must be at least one of 16 x 16", (long long)shape->n_frames,
           (long long)shape->width, (long long)shape->height);
  KR_CHECK(dtype == KRAIT_F32 || (ctx->cuda && dtype == KRAIT_BF16), KRAIT_ERR_DTYPE,
           "dtype must be float32, or on a GPU bfloat16");
  int32_t status = kr_restore_load_random(&r.m, shape->variant == 7);
  if (status >= 0) status = measure_restore(&r, n_runs, &t);
  kr_free(r.film);
  kr_free(r.bytes);
  kr_restore_unload(&r.m);
  return status < 0 ? status : kr_struct_give("kr_restore_timing", timing, sizeof t, &t, sizeof t);
}
