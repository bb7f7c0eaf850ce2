/* seedvr_windows.c: partitions tokens into windows, and computes their positions in the packed sequences and their
 * rotary angles. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "seedvr.h"
#include "status.h"

enum { AREA_720P = 45 * 80, MOST_FRAMES = 30 };

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t extent_of(const kr_seedvr_window *w) {
  return (w->edge[1] - w->edge[0]) * (w->edge[3] - w->edge[2]) * (w->edge[5] - w->edge[4]);
}

/* A window's tokens along t, h, w; rounds half to even, as upstream. */
static void window_extent(const int64_t size[3], const int64_t count[3], int64_t extent[3]) {
  const double s = sqrt(AREA_720P / (double)(size[1] * size[2]));
  extent[0] = ceil_div(size[0] < MOST_FRAMES ? size[0] : MOST_FRAMES, count[0]);
  for (int d = 1; d < 3; d++) {
    extent[d] = ceil_div((int64_t)rint((double)size[d] * s), count[d]);
    if (extent[d] < 1) extent[d] = 1;
  }
}

/* Parts of an axis: their maximum number, and the bounds of the i-th; an empty one has to <= from. */
static int64_t count_pieces(int64_t size, int64_t k, int is_shifted) {
  return is_shifted && k < size ? (int64_t)ceil(((double)size - 0.5) / (double)k) + 1 : ceil_div(size, k);
}
static void piece(int64_t size, int64_t k, int is_shifted, int64_t i, int64_t *edge) {
  const double shift = is_shifted && k < size ? 0.5 : 0;
  const int64_t from = (int64_t)(((double)i - shift) * (double)k), to = (int64_t)(((double)i + 1 - shift) * (double)k);
  edge[0] = from > 0 ? from : 0;
  edge[1] = to < size ? to : size;
}

int64_t kr_seedvr_windows(const int64_t size[3], const int64_t count[3], int is_shifted, kr_seedvr_window *windows,
                          int64_t most) {
  int64_t extent[3], n[3], found = 0;
  window_extent(size, count, extent);
  for (int d = 0; d < 3; d++) n[d] = count_pieces(size[d], extent[d], is_shifted);
  for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++) {
    const int64_t at[3] = {i % n[0], i / n[0] % n[1], i / n[0] / n[1]};
    kr_seedvr_window w;
    int is_empty = 0;
    for (int d = 0; d < 3; d++) {
      piece(size[d], extent[d], is_shifted, at[d], w.edge + 2 * d);
      is_empty |= w.edge[2 * d + 1] <= w.edge[2 * d];
    }
    if (is_empty) continue;
    if (found < most) windows[found] = w;
    found++;
  }
  return found;
}

/* ---- the layout ---- */

typedef struct filler {
  const kr_seedvr_config *c;
  const float *freqs;
  int64_t n_freqs, n_text, T;
  const int64_t *size;
  kr_seedvr_layout *to;
  float *cos[3], *sin[3]; /* of a window: (its places, n_freqs) of each axis */
} filler;

/* The angles of a place on an axis. */
static void turn_place(const filler *f, double place, float *cosines, float *sines) {
  for (int64_t r = 0; r < f->n_freqs; r++) {
    const double angle = place * (double)f->freqs[r];
    cosines[r] = (float)cos(angle), sines[r] = (float)sin(angle);
  }
}

/* A row's angles: those of its places on the three axes. */
static void turn_row(const filler *f, int64_t row, const int64_t in[3]) {
  const int64_t n = f->n_freqs;
  for (int axis = 0; axis < 3; axis++) {
    memcpy(f->to->cos + (3 * row + axis) * n, f->cos[axis] + in[axis] * n, (size_t)n * sizeof(float));
    memcpy(f->to->sin + (3 * row + axis) * n, f->sin[axis] + in[axis] * n, (size_t)n * sizeof(float));
  }
}

/* -1 to 1 along an axis, or counted, in time after the text. */
static double seedvr_windows_place_of(const filler *f, int axis, int64_t i, int64_t n) {
  if (f->c->is_3b) return (double)(i + (axis == 0 ? f->n_text : 0));
  return n > 1 ? -1 + 2 * (double)i / (double)(n - 1) : -1;
}

static int64_t fill_window(const filler *f, const kr_seedvr_window *w, int64_t at) {
  const int64_t *e = w->edge;
  for (int axis = 0; axis < 3; axis++)
    for (int64_t i = 0, n = e[2 * axis + 1] - e[2 * axis]; i < n; i++)
      turn_place(f, seedvr_windows_place_of(f, axis, i, n), f->cos[axis] + i * f->n_freqs,
                 f->sin[axis] + i * f->n_freqs);
  for (int64_t i = 0; i < extent_of(w); i++) {
    const int64_t n_w = e[5] - e[4], n_h = e[3] - e[2], in[3] = {i / (n_h * n_w), i / n_w % n_h, i % n_w};
    const int64_t row = ((e[0] + in[0]) * f->size[1] + e[2] + in[1]) * f->size[2] + e[4] + in[2];
    turn_row(f, row, in);
    f->to->video_at[row] = (int32_t)at;
    f->to->to_packed[at++] = (int32_t)row;
  }
  return at;
}

static void fill(const filler *f, const kr_seedvr_window *windows) {
  kr_seedvr_layout *to = f->to;
  int64_t at = 0;
  for (int64_t i = 0; i < to->n_windows; i++) {
    to->starts[i] = (int32_t)at;
    at = fill_window(f, &windows[i], at);
    for (int64_t p = 0; p < f->n_text; p++, at++) {
      to->text_at[i * f->n_text + p] = (int32_t)at;
      to->to_packed[at] = (int32_t)(f->T + p);
    }
    const int64_t n = at - to->starts[i];
    to->longest = n > to->longest ? n : to->longest;
    to->pairs += (double)n * (double)n;
  }
  to->starts[to->n_windows] = (int32_t)at;
  for (int64_t i = 0; f->c->is_3b && i < 3 * f->n_text; i++) {
    const int64_t first = (3 * f->T + i) * f->n_freqs;
    turn_place(f, (double)(i / 3), to->cos + first, to->sin + first);
  }
}

/* Each table begins at a multiple of 256 bytes, as copies on a GPU do. */
static void *take_seedvr_windows(kr_seedvr_layout *to, int64_t n, size_t bytes_each) {
  void *at = to->memory ? (char *)to->memory + to->bytes : NULL;
  to->bytes = (to->bytes + (size_t)n * bytes_each + 255) & ~(size_t)255;
  return at;
}

static void take_tables(const filler *f, kr_seedvr_layout *to) {
  to->bytes = 0;
  to->to_packed = take_seedvr_windows(to, to->n_packed, sizeof *to->to_packed);
  to->video_at = take_seedvr_windows(to, f->T, sizeof *to->video_at);
  to->text_at = take_seedvr_windows(to, to->n_windows * f->n_text, sizeof *to->text_at);
  to->starts = take_seedvr_windows(to, to->n_windows + 1, sizeof *to->starts);
  to->cos = take_seedvr_windows(to, to->n_turned * 3 * f->n_freqs, sizeof *to->cos);
  to->sin = take_seedvr_windows(to, to->n_turned * 3 * f->n_freqs, sizeof *to->sin);
}

int32_t kr_seedvr_layout_open(const kr_seedvr_config *c, const float *freqs, int64_t n_freqs, const int64_t size[3],
                              int64_t n_text, int is_shifted, kr_seedvr_layout *to) {
  filler f = {.c = c, .freqs = freqs, .n_freqs = n_freqs, .n_text = n_text, .T = size[0] * size[1] * size[2],
              .size = size, .to = to};
  *to = (kr_seedvr_layout){.n_windows = kr_seedvr_windows(size, c->window, is_shifted, NULL, 0)};
  to->n_packed = f.T + to->n_windows * n_text;
  to->n_turned = f.T + (c->is_3b ? n_text : 0);
  KR_CHECK(to->n_packed < INT32_MAX, KRAIT_ERR_SHAPE, "seedvr: %lld tokens in %lld windows are more than 2^31",
           (long long)to->n_packed, (long long)to->n_windows);
  kr_seedvr_window *windows = kr_alloc_array((size_t)to->n_windows, sizeof *windows);
  take_tables(&f, to);
  float *places = kr_alloc_array((size_t)(2 * (size[0] + size[1] + size[2]) * n_freqs), sizeof *places), *at = places;
  to->memory = windows && places ? kr_alloc(to->bytes) : NULL;
  if (to->memory) {
    for (int axis = 0; axis < 3; at += 2 * size[axis++] * n_freqs)
      f.cos[axis] = at, f.sin[axis] = at + size[axis] * n_freqs;
    kr_seedvr_windows(size, c->window, is_shifted, windows, to->n_windows);
    take_tables(&f, to);
    fill(&f, windows);
  }
  kr_free(windows);
  kr_free(places);
  KR_CHECK(to->memory, KRAIT_ERR_NO_MEMORY, "no memory for %lld windows", (long long)to->n_windows);
  return KRAIT_OK;
}

void kr_seedvr_layout_close(kr_seedvr_layout *layout) {
  kr_free(layout->memory);
  *layout = (kr_seedvr_layout){0};
}
