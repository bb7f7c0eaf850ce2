/* windows.c: overlapping windows with a cross-fade (windows.h). Positions are counted in samples from the start of the
 * stream.
 *
 *   window k     |------------------------------|
 *   window k+1                     |--------o---|----------------------|
 *                                  |margin|fade |margin|
 *                                  start  joint
 */
#include "windows.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

struct kr_windows {
  kr_windows_shape shape;
  kr_window_fn fn;
  void *user;
  kr_sink sink;
  float *history; /* the last samples of the stream, 2 * window of room: never fewer than the last `window` are kept */
  float *result;  /* fn's output */
  float *held;    /* the previous window's output over the coming fade */
  float *rise;    /* the fade's weights of the later window */
  int64_t end;    /* samples pushed */
  int64_t n_history;
  int64_t start;  /* of the next full window */
  int64_t joint;  /* samples delivered; while n_run > 0 also where the coming fade begins */
  int64_t n_run;
};

static int64_t hop_of(const kr_windows_shape *s) { return s->window - s->overlap; }
static int64_t margin_of(const kr_windows_shape *s) { return (s->overlap - s->fade) / 2; }

int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n) {
  if (n <= 0) return 0;
  if (n <= shape->window) return 1;
  return 1 + (n - shape->window + hop_of(shape) - 1) / hop_of(shape);
}

int32_t kr_windows_open(const kr_windows_shape *shape, kr_window_fn fn, void *user, kr_sink sink,
                        kr_windows **windows) {
  KR_CHECK(shape->fade >= 1 && shape->fade <= shape->overlap && shape->overlap <= shape->window / 2, KRAIT_ERR_ARGUMENT,
           "windows of %lld samples cannot overlap by %lld with a fade of %lld", (long long)shape->window,
           (long long)shape->overlap, (long long)shape->fade);
  kr_windows *w = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for windows");
  *w = (kr_windows){.shape = *shape, .fn = fn, .user = user, .sink = sink};
  w->history = kr_alloc_array((size_t)shape->window * 2, sizeof(float));
  w->result = kr_alloc_array((size_t)shape->window, sizeof(float));
  w->held = kr_alloc_array((size_t)shape->fade, sizeof(float));
  w->rise = kr_alloc_array((size_t)shape->fade, sizeof(float));
  if (!w->history || !w->result || !w->held || !w->rise) {
    kr_windows_close(&w);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for windows of %lld samples", (long long)shape->window);
  }
  for (int64_t i = 0; i < shape->fade; i++)
    w->rise[i] = (float)(0.5 - 0.5 * cos(3.14159265358979323846 * ((double)i + 0.5) / (double)shape->fade));
  *windows = w;
  return KRAIT_OK;
}

void kr_windows_close(kr_windows **windows) {
  kr_windows *w = *windows;
  if (!w) return;
  kr_free(w->history);
  kr_free(w->result);
  kr_free(w->held);
  kr_free(w->rise);
  kr_free(w);
  *windows = NULL;
}

/* Runs fn on [start, start + n) and delivers everything up to `until`; what lies in the fade after it is held. */
static int32_t run_window(kr_windows *w, int64_t start, int64_t n, int64_t until) {
  const kr_windows_shape *s = &w->shape;
  const float *in = w->history + (start - (w->end - w->n_history));
  KR_TRY(w->fn(w->user, in, w->result, n));
  float *from = w->result + (w->joint - start);
  if (w->n_run > 0)
    for (int64_t i = 0; i < s->fade; i++) from[i] = w->held[i] + (from[i] - w->held[i]) * w->rise[i];
  KR_TRY(kr_sink_push(&w->sink, from, until - w->joint));
  w->joint = until;
  w->n_run++;
  if (until + s->fade <= start + n) memcpy(w->held, w->result + (until - start), (size_t)s->fade * sizeof(float));
  return KRAIT_OK;
}

static void append(kr_windows *w, const float *samples, int64_t n) {
  const int64_t window = w->shape.window;
  if (w->n_history + n > 2 * window) {
    memmove(w->history, w->history + w->n_history - window, (size_t)window * sizeof(float));
    w->n_history = window;
  }
  memcpy(w->history + w->n_history, samples, (size_t)n * sizeof(float));
  w->n_history += n;
  w->end += n;
}

int32_t kr_windows_push(kr_windows *w, const float *samples, int64_t n) {
  const int64_t window = w->shape.window, hop = hop_of(&w->shape);
  while (n > 0) {
    int64_t room = w->start + window + 1 - w->end; /* one sample more than the window: proof that it is not the last */
    int64_t step = n < room ? n : room;
    append(w, samples, step);
    samples += step;
    n -= step;
    if (step < room) continue;
    KR_TRY(run_window(w, w->start, window, w->start + hop + margin_of(&w->shape)));
    w->start += hop;
  }
  return KRAIT_OK;
}

int32_t kr_windows_finish(kr_windows *w) {
  if (w->end == 0) return KRAIT_OK;
  const int64_t n = w->end < w->shape.window ? w->end : w->shape.window;
  return run_window(w, w->end - n, n, w->end);
}
