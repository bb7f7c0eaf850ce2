/* restore_batches.c: frames into batches, each a film of its own, whose ends overlap and are blended. */
#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "ctx.h"
#include "restorer.h"
#include "status.h"

struct kr_batches {
  kr_batches_use use;
  kr_frame_size size;
  kr_resizer *resizer;
  int64_t most, overlap, n, frame; /* frames of a batch; in the buffer; values of one */
  int64_t n_tail;
  float *film, *decoded, *tail; /* (padded most, H, W, 3) twice; (overlap, H, W, 3) */
  uint8_t *rgb;                 /* (most, out_h, out_w, 3) of samples */
  int64_t frame_bytes;
  int32_t n_batches, n_known;
  int64_t since_ns;
  double stage_s[KR_STAGES];
};

int32_t kr_batches_open(const kr_batches_use *use, int64_t h, int64_t w, kr_batches **out) {
  kr_frame_size size;
  KR_TRY(kr_frame_fit(&use->plan->rule, h, w, &size));
  KR_TRY(kr_restore_plan_batches(use->r, use->plan, &size));
  kr_batches *b = *out = kr_zalloc(sizeof *b);
  KR_CHECK(b, KRAIT_ERR_NO_MEMORY, "no memory for batches of frames");
  b->use = *use, b->size = size;
  b->most = use->plan->o.frames_per_batch, b->overlap = use->plan->o.overlap;
  b->frame = 3 * size.H * size.W, b->frame_bytes = 3 * size.out_h * size.out_w * use->samples;
  b->film = kr_alloc_array((size_t)(b->frame * kr_frames_padded(b->most)), sizeof *b->film);
  b->decoded = kr_alloc_array((size_t)(b->frame * kr_frames_padded(b->most)), sizeof *b->decoded);
  b->tail = kr_alloc_array((size_t)(b->frame * b->overlap) + 1, sizeof *b->tail);
  b->rgb = kr_alloc((size_t)(b->frame_bytes * b->most));
  const int32_t status = b->film && b->decoded && b->tail && b->rgb
                             ? kr_resizer_open(use->r->ctx, &size, &b->resizer)
                             : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for batches of %lld frames of %lld x %lld",
                                       (long long)b->most, (long long)size.W, (long long)size.H);
  if (status < 0) kr_batches_close(out);
  return status;
}

void kr_batches_close(kr_batches **handle) {
  kr_batches *b = handle ? *handle : NULL;
  if (!b) return;
  *handle = NULL;
  kr_resizer_close(&b->resizer);
  kr_free(b->film);
  kr_free(b->decoded);
  kr_free(b->tail);
  kr_free(b->rgb);
  kr_free(b);
}

const kr_frame_size *kr_batches_size(const kr_batches *b) { return &b->size; }

void kr_batches_report(const kr_batches *b, krait_restore_info *info) {
  info->n_batches = b->n_batches, info->n_resumed = b->n_known;
  for (int i = 0; i < KR_STAGES; i++) info->stage_s[i] = b->stage_s[i];
}

static int32_t tell_stage(void *user, int stage, double share) {
  kr_batches *b = user;
  const int64_t now_ns = kr_clock_ns();
  b->stage_s[stage] += (double)(now_ns - b->since_ns) * 1e-9;
  b->since_ns = now_ns;
  return b->use.progress ? b->use.progress(b->use.user, stage, share) : KRAIT_OK;
}

/* decoded := the batch, restored and in the film's colours. */
static int32_t restore_frames(kr_batches *b) {
  const int64_t padded = kr_frames_padded(b->n), size[3] = {b->n, b->size.H, b->size.W};
  for (int64_t i = b->n; i < padded; i++)
    memcpy(b->film + i * b->frame, b->film + (b->n - 1) * b->frame, (size_t)b->frame * sizeof *b->film);
  const kr_restore_batch batch = {.size = {padded, b->size.H, b->size.W}, .film = b->film, .progress = tell_stage,
                                  .user = b, .decoded = b->decoded};
  b->since_ns = kr_clock_ns();
  KR_TRY(kr_restore_run(&b->use.r->models, &b->use.plan->settings, &batch));
  return kr_colour_run(b->use.r->ctx, b->use.plan->colour, size, b->decoded, b->film);
}

static int32_t give_out(kr_batches *b, const kr_batch_part *part) {
  memmove(b->tail, part->tail, (size_t)(part->n_tail * b->frame) * sizeof *b->tail);
  b->n_tail = part->n_tail;
  for (int64_t i = 0; i < part->n_frames; i++)
    KR_TRY(b->use.out(b->use.user, &b->size, part->rgb + i * b->frame_bytes, b->film + i * b->frame));
  b->n_batches++;
  return KRAIT_OK;
}

static void put_frames(void *user, int64_t begin, int64_t end, int worker) {
  const kr_batches *b = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++)
    kr_frame_put(&b->size, b->decoded + i * b->frame, b->use.samples, b->rgb + i * b->frame_bytes);
}

static int32_t run_batch(kr_batches *b, int is_last) {
  kr_batch_part part = {.n_frames = is_last ? b->n : b->n - b->overlap, .n_tail = is_last ? 0 : b->overlap};
  const kr_batch_part wanted = part;
  int found = 0;
  if (b->use.known) KR_TRY(b->use.known(b->use.user, &part, &found));
  if (found && part.n_frames == wanted.n_frames && part.n_tail == wanted.n_tail) {
    b->n_known++;
    return give_out(b, &part);
  }
  KR_CHECK(!found, KRAIT_ERR_FILE_FORMAT, "the finished batches beside the result are of another film");
  KR_TRY(restore_frames(b));
  const int64_t joined = b->n_tail < b->n ? b->n_tail : b->n;
  kr_blend(joined, b->frame, b->tail, b->decoded);
  kr_parallel(b->use.r->ctx, wanted.n_frames, 1, put_frames, b);
  part = wanted;
  part.rgb = b->rgb, part.tail = b->decoded + wanted.n_frames * b->frame;
  if (b->use.finished) KR_TRY(b->use.finished(b->use.user, &part));
  return give_out(b, &part);
}

static int32_t make_room(kr_batches *b) {
  if (b->n < b->most) return KRAIT_OK;
  KR_TRY(run_batch(b, 0));
  memmove(b->film, b->film + (b->n - b->overlap) * b->frame, (size_t)(b->overlap * b->frame) * sizeof *b->film);
  b->n = b->overlap;
  return KRAIT_OK;
}

int32_t kr_batches_add(kr_batches *b, const uint8_t *rgb) {
  KR_TRY(make_room(b));
  kr_frame_crop(&b->size, kr_resizer_run(b->resizer, rgb), b->film + b->n++ * b->frame);
  return KRAIT_OK;
}

int32_t kr_batches_add_floats(kr_batches *b, const float *rgb) {
  KR_TRY(make_room(b));
  kr_frame_crop(&b->size, kr_resizer_run_floats(b->resizer, rgb), b->film + b->n++ * b->frame);
  return KRAIT_OK;
}

/* A batch runs when a frame finds the buffer full. */
int64_t kr_batches_due(const kr_batches *b, int64_t n_more) {
  const int64_t step = b->most - b->overlap, over = b->n + n_more - b->most;
  return over > 0 ? (over + step - 1) / step * step : 0;
}

int64_t kr_batches_held(const kr_batches *b) { return b->n; }

int32_t kr_batches_end(kr_batches *b) {
  const int32_t status = b->n ? run_batch(b, 1) : KRAIT_OK;
  b->n = b->n_tail = 0;
  return status;
}
