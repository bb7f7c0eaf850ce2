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

/* Adjacent windows that are computed at once. */
typedef struct batch {
  int64_t n, size, start; /* of the first one */
  int is_last;            /* its last one ends with the stream */
  float *result;
} batch;

struct kr_windows {
  kr_windows_shape shape;
  int64_t most;
  int is_late;
  float *history;   /* the last samples of the stream: at least the last `window`, and all that are not yet computed */
  float *results;   /* of a batch; if late also of the previous one */
  kr_window_batch pointers;
  float *held;      /* the previous window's output over the coming fade */
  float *rise;      /* the fade's weights of the later window */
  batch due;        /* to be computed; n 0: none */
  batch ahead;      /* computed, not complete; n 0: none */
  batch complete;   /* of which n_pulled windows were pulled */
  int64_t n_pulled;
  int64_t end;      /* samples pushed */
  int64_t n_history;
  int64_t start;    /* of the next full window */
  int64_t joint;    /* samples pulled; while n_run > 0 also where the coming fade begins */
  int64_t n_run;
  int turn;
};

static int64_t hop_of(const kr_windows_shape *s) { return s->window - s->overlap; }
static int64_t margin_of(const kr_windows_shape *s) { return (s->overlap - s->fade) / 2; }
/* From the first sample of a full batch to the last. */
static int64_t span_of(const kr_windows *w) { return (w->most - 1) * hop_of(&w->shape) + w->shape.window; }

int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n) {
  if (n <= 0) return 0;
  if (n <= shape->window) return 1;
  return 1 + (n - shape->window + hop_of(shape) - 1) / hop_of(shape);
}

static int32_t open_windows_parts(kr_windows *w) {
  const int64_t window = w->shape.window, fade = w->shape.fade, most = w->most;
  w->history = kr_alloc_array((size_t)(window + span_of(w) + 1), sizeof(float));
  w->results = kr_alloc_array((size_t)window, (size_t)(w->is_late ? 2 * most : most) * sizeof(float));
  w->pointers.in = kr_alloc_array((size_t)most, sizeof *w->pointers.in);
  w->pointers.out = kr_alloc_array((size_t)most, sizeof *w->pointers.out);
  w->held = kr_alloc_array((size_t)fade, sizeof(float));
  w->rise = kr_alloc_array((size_t)fade, sizeof(float));
  KR_CHECK(w->history && w->results && w->pointers.in && w->pointers.out && w->held && w->rise, KRAIT_ERR_NO_MEMORY,
           "no memory for windows of %lld samples", (long long)window);
  for (int64_t i = 0; i < fade; i++)
    w->rise[i] = (float)(0.5 - 0.5 * cos(3.14159265358979323846 * ((double)i + 0.5) / (double)fade));
  return KRAIT_OK;
}

int32_t kr_windows_open(const kr_windows_shape *shape, int64_t most, int is_late, kr_windows **windows) {
  KR_CHECK(shape->fade >= 1 && shape->fade <= shape->overlap && shape->overlap <= shape->window / 2, KRAIT_ERR_ARGUMENT,
           "windows of %lld samples cannot overlap by %lld with a fade of %lld", (long long)shape->window,
           (long long)shape->overlap, (long long)shape->fade);
  kr_windows *w = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for windows");
  *w = (kr_windows){.shape = *shape, .most = most < 1 ? 1 : most, .is_late = is_late};
  const int32_t status = open_windows_parts(w);
  if (status < 0) kr_windows_close(&w);
  *windows = w;
  return status;
}

void kr_windows_close(kr_windows **windows) {
  kr_windows *w = *windows;
  if (!w) return;
  kr_free(w->history);
  kr_free(w->results);
  kr_free(w->pointers.in);
  kr_free(w->pointers.out);
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

/* ---- what goes in ---- */

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

static void make_due(kr_windows *w, int64_t n, int64_t size, int is_last) {
  w->due = (batch){n, size, w->start, is_last, w->results + w->turn * w->most * w->shape.window};
}

int64_t kr_windows_push(kr_windows *w, const float *samples, int64_t n) {
  /* One sample more than the windows: none of them is the last. */
  const int64_t capacity = w->start + span_of(w) + 1 - w->end, taken = n < capacity ? n : capacity;
  append(w, samples, taken);
  if (taken == capacity) make_due(w, w->most, w->shape.window, 0);
  return taken;
}

void kr_windows_end(kr_windows *w) {
  const int64_t window = w->shape.window, hop = hop_of(&w->shape), more = w->end - w->start - window;
  if (w->end) make_due(w, 1 + (more > 0 ? (more + hop - 1) / hop : 0), w->end < window ? w->end : window, 1);
}

/* ---- what is computed ---- */

const kr_window_batch *kr_windows_due(kr_windows *w) {
  const batch *b = &w->due;
  if (!b->n) return NULL;
  for (int64_t i = 0; i < b->n; i++) {
    w->pointers.in[i] = w->history + (start_of(w, b, i) - (w->end - w->n_history));
    w->pointers.out[i] = b->result + i * w->shape.window;
  }
  w->pointers.n = b->n, w->pointers.n_samples = b->size;
  return &w->pointers;
}

void kr_windows_computed(kr_windows *w) {
  w->complete = w->is_late ? w->ahead : w->due;
  w->ahead = w->is_late ? w->due : (batch){0};
  w->n_pulled = 0;
  if (w->is_late) w->turn = !w->turn;
  if (!w->due.is_last) w->start += w->most * hop_of(&w->shape);
  w->due = (batch){0};
}

int kr_windows_is_ahead(const kr_windows *w) { return w->ahead.n > 0; }

void kr_windows_settle(kr_windows *w) {
  w->complete = w->ahead, w->ahead = (batch){0};
  w->n_pulled = 0;
}

/* ---- what comes out ---- */

/* Everything up to where window i is used, faded in; samples in the fade after it are kept. */
int kr_windows_pull(kr_windows *w, kr_window_part *part) {
  const batch *b = &w->complete;
  if (w->n_pulled == b->n) return 0;
  const int64_t i = w->n_pulled++, fade = w->shape.fade, start = start_of(w, b, i), until = until_of(w, b, i);
  float *result = b->result + i * w->shape.window, *from = result + (w->joint - start);
  if (w->n_run > 0)
    for (int64_t k = 0; k < fade; k++) from[k] = w->held[k] + (from[k] - w->held[k]) * w->rise[k];
  *part = (kr_window_part){result, from, b->size, until - w->joint};
  w->joint = until;
  w->n_run++;
  if (until + fade <= start + b->size) memcpy(w->held, result + (until - start), (size_t)fade * sizeof(float));
  return 1;
}
