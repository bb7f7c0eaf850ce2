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

/* Adjacent windows that are passed at once. */
typedef struct batch {
  int64_t n, size, start; /* of the first one */
  int is_last;            /* its last one ends with the stream */
  float *result;
} batch;

struct kr_windows {
  kr_windows_shape shape;
  kr_window_runner runner;
  kr_sink sink;
  float *history;   /* the last samples of the stream: at least the last `window`, and all that are not yet passed */
  float *results;   /* of a batch; with `finish` also of the previous one */
  const float **in; /* a batch's windows */
  float **out;
  float *held;      /* the previous window's output over the coming fade */
  float *rise;      /* the fade's weights of the later window */
  batch due;        /* passed, not delivered */
  int64_t end;      /* samples pushed */
  int64_t n_history;
  int64_t start;    /* of the next full window */
  int64_t joint;    /* samples delivered; while n_run > 0 also where the coming fade begins */
  int64_t n_run;
  int turn;
};

static int64_t hop_of(const kr_windows_shape *s) { return s->window - s->overlap; }
static int64_t margin_of(const kr_windows_shape *s) { return (s->overlap - s->fade) / 2; }
/* From the first sample of a full batch to the last. */
static int64_t span_of(const kr_windows *w) { return (w->runner.most - 1) * hop_of(&w->shape) + w->shape.window; }

int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n) {
  if (n <= 0) return 0;
  if (n <= shape->window) return 1;
  return 1 + (n - shape->window + hop_of(shape) - 1) / hop_of(shape);
}

static int32_t open_windows_parts(kr_windows *w) {
  const int64_t window = w->shape.window, fade = w->shape.fade, most = w->runner.most;
  w->history = kr_alloc_array((size_t)(window + span_of(w) + 1), sizeof(float));
  w->results = kr_alloc_array((size_t)window, (size_t)(w->runner.finish ? 2 * most : most) * sizeof(float));
  w->in = kr_alloc_array((size_t)most, sizeof *w->in);
  w->out = kr_alloc_array((size_t)most, sizeof *w->out);
  w->held = kr_alloc_array((size_t)fade, sizeof(float));
  w->rise = kr_alloc_array((size_t)fade, sizeof(float));
  KR_CHECK(w->history && w->results && w->in && w->out && w->held && w->rise, KRAIT_ERR_NO_MEMORY,
           "no memory for windows of %lld samples", (long long)window);
  for (int64_t i = 0; i < fade; i++)
    w->rise[i] = (float)(0.5 - 0.5 * cos(3.14159265358979323846 * ((double)i + 0.5) / (double)fade));
  return KRAIT_OK;
}

int32_t kr_windows_open(const kr_windows_shape *shape, const kr_window_runner *runner, kr_sink sink,
                        kr_windows **windows) {
  KR_CHECK(shape->fade >= 1 && shape->fade <= shape->overlap && shape->overlap <= shape->window / 2, KRAIT_ERR_ARGUMENT,
           "windows of %lld samples cannot overlap by %lld with a fade of %lld", (long long)shape->window,
           (long long)shape->overlap, (long long)shape->fade);
  kr_windows *w = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for windows");
  *w = (kr_windows){.shape = *shape, .runner = *runner, .sink = sink};
  if (w->runner.most < 1) w->runner.most = 1;
  const int32_t status = open_windows_parts(w);
  if (status < 0) kr_windows_close(&w);
  *windows = w;
  return status;
}

void kr_windows_close(kr_windows **windows) {
  kr_windows *w = *windows;
  if (!w) return;
  if (w->due.n && w->runner.finish) w->runner.finish(w->runner.user); /* no results are written after this */
  kr_free(w->history);
  kr_free(w->results);
  kr_free(w->in);
  kr_free(w->out);
  kr_free(w->held);
  kr_free(w->rise);
  kr_free(w);
  *windows = NULL;
}

/* Where window i of a batch begins, and up to where it is delivered. */
static int64_t start_of(const kr_windows *w, const batch *b, int64_t i) {
  return b->is_last && i == b->n - 1 ? w->end - b->size : b->start + i * hop_of(&w->shape);
}
static int64_t until_of(const kr_windows *w, const batch *b, int64_t i) {
  return b->is_last && i == b->n - 1 ? w->end : start_of(w, b, i) + hop_of(&w->shape) + margin_of(&w->shape);
}

/* Delivers everything up to `until`; samples in the fade after it are kept. */
static int32_t deliver_windows(kr_windows *w, float *result, int64_t start, int64_t n, int64_t until) {
  const int64_t fade = w->shape.fade;
  float *from = result + (w->joint - start);
  if (w->n_run > 0)
    for (int64_t i = 0; i < fade; i++) from[i] = w->held[i] + (from[i] - w->held[i]) * w->rise[i];
  KR_TRY(kr_sink_push(&w->sink, from, until - w->joint));
  w->joint = until;
  w->n_run++;
  if (until + fade <= start + n) memcpy(w->held, result + (until - start), (size_t)fade * sizeof(float));
  return KRAIT_OK;
}

static int32_t deliver_batch(kr_windows *w, const batch *b) {
  for (int64_t i = 0; i < b->n; i++) {
    float *result = b->result + i * w->shape.window;
    if (w->runner.done) KR_TRY(w->runner.done(w->runner.user, result, b->size));
    KR_TRY(deliver_windows(w, result, start_of(w, b, i), b->size, until_of(w, b, i)));
  }
  return KRAIT_OK;
}

/* The next n windows; while they are computed the ones before are delivered. */
static int32_t give(kr_windows *w, int64_t n, int64_t size, int is_last) {
  const int64_t window = w->shape.window;
  const batch before = w->due, next = {n, size, w->start, is_last, w->results + w->turn * w->runner.most * window};
  for (int64_t i = 0; i < n; i++)
    w->in[i] = w->history + (start_of(w, &next, i) - (w->end - w->n_history)), w->out[i] = next.result + i * window;
  KR_TRY(w->runner.run(w->runner.user, n, w->in, w->out, size));
  if (!w->runner.finish) return deliver_batch(w, &next);
  w->due = next, w->turn = !w->turn;
  return deliver_batch(w, &before);
}

static void append(kr_windows *w, const float *samples, int64_t n) {
  const int64_t window = w->shape.window, open = w->end - w->start, kept = open > window ? open : window;
  if (w->n_history + n > window + span_of(w) + 1) {
    memmove(w->history, w->history + w->n_history - kept, (size_t)kept * sizeof(float));
    w->n_history = kept;
  }
  memcpy(w->history + w->n_history, samples, (size_t)n * sizeof(float));
  w->n_history += n;
  w->end += n;
}

int32_t kr_windows_push(kr_windows *w, const float *samples, int64_t n) {
  while (n > 0) {
    int64_t capacity =
        w->start + span_of(w) + 1 - w->end; /* one sample more than the windows: none of them is the last */
    int64_t step = n < capacity ? n : capacity;
    append(w, samples, step);
    samples += step;
    n -= step;
    if (step < capacity) continue;
    KR_TRY(give(w, w->runner.most, w->shape.window, 0));
    w->start += w->runner.most * hop_of(&w->shape);
  }
  return KRAIT_OK;
}

int32_t kr_windows_finish(kr_windows *w) {
  const int64_t window = w->shape.window, hop = hop_of(&w->shape), more = w->end - w->start - window;
  if (w->end == 0) return KRAIT_OK;
  KR_TRY(give(w, 1 + (more > 0 ? (more + hop - 1) / hop : 0), w->end < window ? w->end : window, 1));
  if (!w->runner.finish) return KRAIT_OK;
  KR_TRY(w->runner.finish(w->runner.user));
  return deliver_batch(w, &w->due);
}
