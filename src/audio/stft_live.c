/* stft_live.c: see stft_live.h. A frame is available with its last sample; a sample is final when the last frame that
 * covers it is; a chunk is in work until the next one is available. Both transforms are those for whole recordings,
 * applied to as few frames as needed: the output equals that for the whole recording. */
#include "stft_live.h"

#include <string.h>

#include "alloc.h"
#include "status.h"
#include "stft.h"

enum { BEFORE = 3, EARLIER = 3, MORE = 10 };
/* BEFORE: earlier frames that the first new samples also need; EARLIER: hops of samples that a new frame needs before
 * its middle, one more for the last ones, for which the end is reflected; MORE: frames of a piece beyond a chunk. */

struct kr_stft_live {
  kr_stft_live_options o;
  kr_stft *stft;
  int64_t F, hop, chunk;
  int64_t n_heard, n_said, n_frames;        /* since the beginning; n_frames: finished */
  int64_t n_taken;                          /* the frames in work, of a piece of T frames from frame `piece` on */
  int64_t T, piece;
  float *heard;                             /* from sample `from` on */
  int64_t from;
  float *com;                               /* (F,T,2) of a piece */
  float *mag, *pha;                         /* (F, BEFORE + chunk): the frames before, then new ones */
  float *part_mag, *part_pha, *wav;
};

int32_t kr_stft_live_open(const kr_stft_live_options *options, kr_stft_live **live) {
  kr_stft_live *l = *live = kr_zalloc(sizeof *l);
  KR_CHECK(l, KRAIT_ERR_NO_MEMORY, "no memory for a stream");
  l->o = *options;
  l->F = options->n_fft / 2 + 1, l->hop = options->n_fft / 4, l->chunk = options->chunk;
  const int64_t most = l->chunk + MORE, plane = l->F * most; /* frames of any piece */
  int32_t status = kr_stft_open(options->n_fft, l->hop, options->pool, &l->stft);
  if (status >= 0) {
    l->heard = kr_zalloc((size_t)(2 * most * l->hop + 6 * plane) * sizeof *l->heard);
    if (!l->heard) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a stream");
  }
  if (status < 0) {
    kr_stft_live_close(live);
    return status;
  }
  l->wav = l->heard + most * l->hop, l->com = l->wav + most * l->hop, l->mag = l->com + 2 * plane;
  l->pha = l->mag + plane, l->part_mag = l->pha + plane, l->part_pha = l->part_mag + plane;
  return KRAIT_OK;
}

void kr_stft_live_close(kr_stft_live **live) {
  kr_stft_live *l = *live;
  if (!l) return;
  kr_stft_close(&l->stft);
  kr_free(l->heard);
  kr_free(l);
  *live = NULL;
}

/* Whole chunks of frames that n samples have filled. */
static int64_t frames_of(const kr_stft_live *l, int64_t n) {
  return n < l->hop ? 0 : (n - l->hop) / l->hop / l->chunk * l->chunk;
}
/* Samples that are final after n frames. */
static int64_t done_by(const kr_stft_live *l, int64_t n) { return n > 2 ? (n - 2) * l->hop : 0; }

int64_t kr_stft_live_due(const kr_stft_live *l, int64_t n) { return done_by(l, frames_of(l, n) - l->chunk); }
int64_t kr_stft_live_latency(const kr_stft_live *l) { return (3 + 2 * l->chunk) * l->hop; }

/* Passes the next n frames to the model; `end` samples have been heard as far as they are concerned. */
static int32_t take_frames(kr_stft_live *l, int64_t n, int64_t end) {
  l->piece = l->n_frames < EARLIER ? 0 : l->n_frames - EARLIER; /* its middle is the start of the piece */
  l->T = kr_stft_n_frames(l->stft, end - l->piece * l->hop);
  KR_TRY(kr_stft_forward_some(l->stft, l->heard + (l->piece * l->hop - l->from), end - l->piece * l->hop,
                              l->n_frames - l->piece, n, l->o.power, l->com));
  KR_TRY(l->o.take(l->o.user, l->com, l->T, l->n_frames - l->piece, n));
  l->n_taken = n;
  return KRAIT_OK;
}

/* Appends the model's output for the frames in work to the earlier ones. */
static int32_t join_frames(kr_stft_live *l) {
  const int64_t n = l->n_taken, T = l->T, first = l->n_frames - l->piece,
                before = l->n_frames < BEFORE ? l->n_frames : BEFORE, width = before + n;
  l->n_taken = 0;
  KR_TRY(l->o.give(l->o.user, T, first, n, l->part_mag, l->part_pha)); /* at the positions of the input */
  for (int64_t f = l->F - 1; f >= 0; f--) { /* earlier frames move up within wider rows: the last one first */
    memmove(l->mag + f * width, l->mag + f * before, (size_t)before * sizeof *l->mag);
    memmove(l->pha + f * width, l->pha + f * before, (size_t)before * sizeof *l->pha);
    memcpy(l->mag + f * width + before, l->part_mag + f * T + first, (size_t)n * sizeof *l->mag);
    memcpy(l->pha + f * width + before, l->part_pha + f * T + first, (size_t)n * sizeof *l->pha);
  }
  return KRAIT_OK;
}

/* After n new frames: outputs samples up to number `to`, and keeps the last frames. */
static int32_t say(kr_stft_live *l, int64_t n, int64_t to, float *out, int64_t *n_out) {
  const int64_t before = l->n_frames < BEFORE ? l->n_frames : BEFORE, width = before + n,
                kept = width < BEFORE ? width : BEFORE, first = (l->n_frames - before) * l->hop;
  if (to > l->n_said) {
    KR_TRY(kr_stft_inverse(l->stft, l->mag, l->pha, width, l->o.power, l->wav));
    memcpy(out + *n_out, l->wav + (l->n_said - first), (size_t)(to - l->n_said) * sizeof *out);
    *n_out += to - l->n_said, l->n_said = to;
  }
  for (int64_t f = 0; f < l->F; f++) {
    memmove(l->mag + f * kept, l->mag + f * width + width - kept, (size_t)kept * sizeof *l->mag);
    memmove(l->pha + f * kept, l->pha + f * width + width - kept, (size_t)kept * sizeof *l->pha);
  }
  l->n_frames += n;
  const int64_t from = (l->n_frames < EARLIER ? 0 : l->n_frames - EARLIER) * l->hop;
  memmove(l->heard, l->heard + (from - l->from), (size_t)(l->n_heard - from) * sizeof *l->heard);
  l->from = from;
  return KRAIT_OK;
}

/* The frames in work, if any, up to sample number `most` of the output. */
static int32_t end_frames(kr_stft_live *l, int64_t most, float *out, int64_t *n_out) {
  const int64_t n = l->n_taken, done = done_by(l, l->n_frames + n);
  if (!n) return KRAIT_OK;
  KR_TRY(join_frames(l));
  return say(l, n, done < most ? done : most, out, n_out);
}

/* The remaining frames, of which the last see the end reflected; padded with silence to whole frames, and to at least
 * one transform. */
static int32_t finish(kr_stft_live *l, float *out, int64_t *n_out) {
  const int64_t all = l->n_heard;
  int64_t padded = (all + l->hop - 1) / l->hop * l->hop;
  KR_TRY(end_frames(l, all, out, n_out));
  if (padded < 4 * l->hop) padded = 4 * l->hop;
  memset(l->heard + (all - l->from), 0, (size_t)(padded - all) * sizeof *l->heard);
  l->n_heard = padded;
  for (const int64_t T = padded / l->hop + 1; l->n_frames < T;) {
    const int64_t n = T - l->n_frames < l->chunk ? T - l->n_frames : l->chunk;
    KR_TRY(take_frames(l, n, padded));
    if (l->n_frames + n < T) KR_TRY(end_frames(l, all, out, n_out));
    else {
      KR_TRY(join_frames(l));
      KR_TRY(say(l, n, all, out, n_out));
    }
  }
  return KRAIT_OK;
}

/* The number of samples that fills the next chunk. The first transform needs one sample more than its frame. */
static int64_t filled_at(const kr_stft_live *l) {
  const int64_t n = (l->n_frames + l->n_taken + l->chunk + 1) * l->hop;
  return n > 2 * l->hop ? n : 2 * l->hop + 1;
}

static int32_t push(kr_stft_live *l, const float *in, int64_t n, int is_end, float *out, int64_t *n_out) {
  if (!l->n_heard) KR_TRY(l->o.begin(l->o.user));
  for (int64_t i = 0; i < n;) {
    const int64_t end = filled_at(l), wanted = end - l->n_heard, some = n - i < wanted ? n - i : wanted;
    memcpy(l->heard + (l->n_heard - l->from), in + i, (size_t)some * sizeof *in);
    l->n_heard += some, i += some;
    if (some < wanted) {
      if (l->n_taken)
        KR_TRY(l->o.work(l->o.user, 1 - (double)(wanted - some) / (double)(l->chunk * l->hop)));
      continue;
    }
    KR_TRY(end_frames(l, INT64_MAX, out, n_out));
    KR_TRY(take_frames(l, l->chunk, end)); /* the first frame sees its right half reflected */
  }
  return is_end && l->n_heard ? finish(l, out, n_out) : KRAIT_OK;
}

void kr_stft_live_begin(kr_stft_live *l) { l->n_heard = l->n_said = l->n_frames = l->n_taken = l->from = 0; }

int32_t kr_stft_live_push(kr_stft_live *l, const float *in, int64_t n, int is_end, float *out, int64_t *n_out) {
  *n_out = 0;
  const int32_t status = push(l, in, n, is_end, out, n_out);
  if (is_end || status < 0) kr_stft_live_begin(l);
  return status;
}
