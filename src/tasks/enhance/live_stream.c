/* live_stream.c: streaming through a denoiser: with the model's own stream if it has one; otherwise the last second is
 * processed again every quarter of a second, and samples followed by at least a tenth of a second are due. This works
 * for any model, and the latency is the sum (docs/speed/primeknet-cpu.md has the cost and quality). Adjacent
 * outputs are cross-faded. */
#include "public_names.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "enhance.h"
#include "status.h"

enum { WINDOW = 16000, HOP = 4000, AHEAD = 1600, FADE = 160, LATENCY = HOP + AHEAD }; /* samples at 16 kHz */

struct krait_denoiser_stream {
  krait_denoiser_session *session; /* taken; NULL: a denoiser without one, or closed */
  int has_session;
  kr_denoiser denoiser;
  kr_stft_live *live; /* the model's own, or NULL */
  float heard[WINDOW], said[WINDOW], tail[FADE]; /* the newest last; tail: the continuation of the last output */
  int64_t n_heard, n_said, n_waiting;            /* n_waiting: those of n_heard that have not been processed yet */
  int has_failed;                                /* an output is missing: the samples due exceed the window */
};

int32_t kr_stream_open(const kr_denoiser *denoiser, krait_denoiser_stream **stream) {
  *stream = kr_zalloc(sizeof **stream);
  KR_CHECK(*stream, KRAIT_ERR_NO_MEMORY, "no memory for a stream");
  (*stream)->denoiser = *denoiser;
  const int32_t status = denoiser->live ? denoiser->live(denoiser->user, &(*stream)->live) : KRAIT_OK;
  if (status < 0) krait_denoiser_stream_close(stream);
  return status;
}

int32_t krait_denoiser_stream_open(krait_denoiser_session *session, krait_denoiser_stream **stream) {
  kr_denoiser denoiser;
  KR_CHECK(session && stream, KRAIT_ERR_ARGUMENT, "session and stream must not be NULL");
  *stream = NULL;
  KR_TRY(kr_session_denoiser(session, &denoiser));
  KR_TRY(kr_stream_open(&denoiser, stream));
  (*stream)->has_session = 1;
  return kr_session_take(session, &(*stream)->session); /* it is free, or it had not given its denoiser */
}

void krait_denoiser_stream_close(krait_denoiser_stream **stream) {
  if (!stream || !*stream) return;
  kr_session_give_back(&(*stream)->session);
  kr_free(*stream);
  *stream = NULL;
}

static int is_orphan(const krait_denoiser_stream *s) { return s->has_session && !s->session; }

int64_t krait_denoiser_stream_latency(const krait_denoiser_stream *stream) {
  if (!stream || is_orphan(stream)) return 0;
  return stream->live ? kr_stft_live_latency(stream->live) : LATENCY;
}

static void remember(krait_denoiser_stream *s, const float *in, int64_t n) {
  memmove(s->heard, s->heard + n, (size_t)(WINDOW - n) * sizeof *in);
  memcpy(s->heard + WINDOW - n, in, (size_t)n * sizeof *in);
  s->n_heard += n, s->n_waiting += n;
}

/* The number of samples due: all at the end. */
static int32_t answer(krait_denoiser_stream *s, int is_end, float *out, int64_t *n_out) {
  const int64_t length = s->n_heard < WINDOW ? s->n_heard : WINDOW, begin = s->n_heard - length,
                due = is_end ? s->n_heard : s->n_heard - AHEAD, n = due - s->n_said;
  s->n_waiting = 0;
  if (n <= 0) return KRAIT_OK;
  KR_TRY(kr_enhance_samples(&s->denoiser, s->heard + WINDOW - length, s->said, length, NULL, NULL));
  float *const from = s->said + (s->n_said - begin);
  for (int64_t i = 0; i < FADE && i < n && s->n_said; i++) {
    const float share = ((float)i + 0.5f) / FADE;
    from[i] = share * from[i] + (1 - share) * s->tail[i];
  }
  if (!is_end) memcpy(s->tail, s->said + (due - begin), sizeof s->tail);
  memcpy(out + *n_out, from, (size_t)n * sizeof *out);
  s->n_said = due, *n_out += n;
  return KRAIT_OK;
}

/* The number of samples returned after n more samples of input. */
static int64_t due_with(const krait_denoiser_stream *s, int64_t n) {
  const int64_t heard = s->n_heard + n;
  if (s->live) return kr_stft_live_due(s->live, heard) - s->n_said;
  const int64_t answered = heard - (s->n_waiting + n) % HOP;
  return answered - AHEAD > s->n_said ? answered - AHEAD - s->n_said : 0;
}

/* With the model's own stream. */
static int32_t pass(krait_denoiser_stream *s, const float *in, int64_t n, int is_end, float *out, int64_t *n_out) {
  int32_t status = kr_stft_live_push(s->live, in, n, is_end, out, n_out);
  for (int64_t i = 0; i < *n_out && status >= 0; i++)
    if (!isfinite(out[i]))
      status = kr_fail(KRAIT_ERR_UNSUPPORTED, "the model's result is not a finite number at sample %lld",
                       (long long)(s->n_said + i));
  if (status < 0) {
    kr_stft_live_begin(s->live);
    *n_out = 0;
    return status;
  }
  s->n_heard += n, s->n_said += *n_out;
  return KRAIT_OK;
}

int32_t krait_denoiser_stream_push(krait_denoiser_stream *s, const float *in, int64_t n_samples, float *out,
                                   int64_t capacity, int64_t *n_out) {
  KR_CHECK(s && n_out && n_samples >= 0 && (in || !n_samples) && (out || !capacity), KRAIT_ERR_ARGUMENT,
           "stream, in, out and n_out must not be NULL, n_samples not negative");
  *n_out = 0;
  KR_CHECK(!is_orphan(s), KRAIT_ERR_ARGUMENT, "the stream's session was closed before it");
  KR_CHECK(!s->has_failed, KRAIT_ERR_ARGUMENT,
           "an earlier push has failed: call krait_denoiser_stream_finish to start again");
  const int64_t due = due_with(s, n_samples);
  KR_CHECK(capacity >= due, KRAIT_ERR_ARGUMENT, "room for %lld samples, but %lld are due", (long long)capacity,
           (long long)due);
  for (int64_t i = 0; i < n_samples; i++)
    KR_CHECK(isfinite(in[i]), KRAIT_ERR_ARGUMENT, "in[%lld] is not a finite number", (long long)i);
  if (s->live) {
    const int32_t status = pass(s, in, n_samples, 0, out, n_out);
    s->has_failed = status < 0;
    return status;
  }
  for (int64_t i = 0; i < n_samples;) {
    const int64_t wanted = HOP - s->n_waiting, n = n_samples - i < wanted ? n_samples - i : wanted;
    remember(s, in + i, n), i += n;
    if (s->n_waiting < HOP) continue;
    const int32_t status = answer(s, 0, out, n_out);
    s->has_failed = status < 0;
    KR_TRY(status);
  }
  return KRAIT_OK;
}

int32_t krait_denoiser_stream_finish(krait_denoiser_stream *s, float *out, int64_t capacity, int64_t *n_out) {
  KR_CHECK(s && n_out && (out || !capacity), KRAIT_ERR_ARGUMENT, "stream, out and n_out must not be NULL");
  *n_out = 0;
  KR_CHECK(!is_orphan(s), KRAIT_ERR_ARGUMENT, "the stream's session was closed before it");
  KR_CHECK(capacity >= s->n_heard - s->n_said, KRAIT_ERR_ARGUMENT, "room for %lld samples, but %lld are due",
           (long long)capacity, (long long)(s->n_heard - s->n_said));
  const int32_t status = !s->live        ? answer(s, 1, out, n_out)
                         : s->has_failed ? KRAIT_OK
                                         : pass(s, NULL, 0, 1, out, n_out);
  s->n_heard = s->n_said = s->n_waiting = 0, s->has_failed = 0;
  return status;
}
