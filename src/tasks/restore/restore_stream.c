/* restore_stream.c: frames in memory, restored batch by batch as they come. */
#include "public_names.h"

#include <string.h>

#include "alloc.h"
#include "restorer.h"
#include "status.h"

struct krait_restore_stream {
  krait_restorer *r;
  kr_restore_choices plan;
  kr_batches *batches;
  int32_t dtype;
  int64_t in_bytes, out_bytes; /* of a frame */
  uint8_t *out;                /* where the next frame goes */
  int64_t n_done, n_frames;    /* of this film; n_frames: 0 if unknown */
  int has_failed;
};

static int32_t put_frame(void *user, const kr_frame_size *size, const void *rgb, const float *before) {
  krait_restore_stream *s = user;
  (void)size, (void)before;
  memcpy(s->out, rgb, (size_t)s->out_bytes);
  s->out += s->out_bytes, s->n_done++;
  return KRAIT_OK;
}

static int32_t tell_stream(void *user, int stage, double share) {
  const krait_restore_stream *s = user;
  const krait_restore_options *o = &s->plan.o;
  const krait_restore_progress p = {sizeof p, stage, share, s->n_done, s->n_frames, s->r->plan};
  KR_CHECK(!o->progress || o->progress(o->user, &p) == 0, KRAIT_ERR_CANCELLED, "stopped after %lld frames",
           (long long)s->n_done);
  return KRAIT_OK;
}

int32_t krait_restore_stream_open(krait_restorer *r, const krait_restore_options *options, int32_t dtype,
                                  int64_t width, int64_t height, krait_restore_stream **out) {
  KR_CHECK(r && out, KRAIT_ERR_ARGUMENT, "restorer and stream must not be NULL");
  *out = NULL;
  KR_CHECK(dtype == KRAIT_U8 || dtype == KRAIT_F32, KRAIT_ERR_ARGUMENT, "frames must be KRAIT_U8 or KRAIT_F32");
  krait_restore_stream *s = *out = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a stream of frames");
  s->r = r, s->dtype = dtype;
  int32_t status = kr_restore_choose(r, options, &s->plan);
  const kr_batches_use use = {.r = r, .plan = &s->plan, .out = put_frame, .progress = tell_stream, .user = s,
                              .samples = dtype == KRAIT_U8 ? KR_SAMPLES_8 : KR_SAMPLES_FLOAT};
  if (status >= 0) status = kr_batches_open(&use, height, width, &s->batches);
  if (status < 0) {
    krait_restore_stream_close(out);
    return status;
  }
  const kr_frame_size *size = kr_batches_size(s->batches);
  s->in_bytes = 3 * height * width * (int64_t)krait_dtype_bytes(dtype);
  s->out_bytes = 3 * size->out_h * size->out_w * (int64_t)krait_dtype_bytes(dtype);
  return KRAIT_OK;
}

void krait_restore_stream_close(krait_restore_stream **handle) {
  krait_restore_stream *s = handle ? *handle : NULL;
  if (!s) return;
  *handle = NULL;
  kr_batches_close(&s->batches);
  kr_free(s);
}

int64_t krait_restore_stream_latency(const krait_restore_stream *s) { return s ? s->plan.o.frames_per_batch : 0; }

static int32_t check_room(const krait_restore_stream *s, const void *out, int64_t room, int64_t due) {
  KR_CHECK(!s->has_failed, KRAIT_ERR_ARGUMENT, "the stream has failed; open another one");
  KR_CHECK(room >= due && (out || due == 0), KRAIT_ERR_ARGUMENT, "%lld frames are due, out has room for %lld",
           (long long)due, (long long)(out ? room : 0));
  return KRAIT_OK;
}

static int32_t push_frames(krait_restore_stream *s, const uint8_t *frames, int64_t n) {
  for (int64_t i = 0; i < n; i++, frames += s->in_bytes)
    KR_TRY(s->dtype == KRAIT_U8 ? kr_batches_add(s->batches, frames)
                                : kr_batches_add_floats(s->batches, (const float *)(const void *)frames));
  return KRAIT_OK;
}

int32_t krait_restore_stream_push(krait_restore_stream *s, const void *frames, int64_t n, void *out, int64_t room,
                                  int64_t *n_out) {
  KR_CHECK(s && n_out && n >= 0 && (frames || n == 0), KRAIT_ERR_ARGUMENT,
           "stream, frames and n_out must not be NULL, n not negative");
  const int64_t before = s->n_done;
  *n_out = 0;
  KR_TRY(check_room(s, out, room, kr_batches_due(s->batches, n)));
  s->out = out;
  const int32_t status = push_frames(s, frames, n);
  s->has_failed = status < 0, *n_out = s->n_done - before;
  return status;
}

int32_t krait_restore_stream_finish(krait_restore_stream *s, void *out, int64_t room, int64_t *n_out) {
  KR_CHECK(s && n_out, KRAIT_ERR_ARGUMENT, "stream and n_out must not be NULL");
  const int64_t before = s->n_done;
  *n_out = 0;
  KR_TRY(check_room(s, out, room, kr_batches_held(s->batches)));
  s->out = out;
  const int32_t status = kr_batches_end(s->batches);
  s->has_failed = status < 0, *n_out = s->n_done - before, s->n_done = 0;
  return status;
}

int32_t krait_restorer_frames(krait_restorer *r, const krait_restore_options *options, int64_t n, int64_t height,
                              int64_t width, const uint8_t *rgb, uint8_t *out) {
  krait_restore_stream *s = NULL;
  int64_t n_pushed = 0, n_rest = 0;
  KR_CHECK(r && rgb && out && n >= 1, KRAIT_ERR_ARGUMENT, "restorer and frames must not be NULL, n at least 1");
  KR_TRY(krait_restore_stream_open(r, options, KRAIT_U8, width, height, &s));
  s->n_frames = n;
  int32_t status = krait_restore_stream_push(s, rgb, n, out, n, &n_pushed);
  if (status >= 0) status = krait_restore_stream_finish(s, out + n_pushed * s->out_bytes, n - n_pushed, &n_rest);
  krait_restore_stream_close(&s);
  return status;
}
