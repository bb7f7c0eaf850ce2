/* pixels.c: the two resize methods, byte-identical with the libraries of the published preprocessing, and the frame
 * positions. */
#include "pixels.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { MOST = 16 };

/* ---- which frames ---- */

int kr_film_positions(int64_t n_frames, double fps, int64_t at[MOST]) {
  const double rounded = nearbyint(fps);
  const int64_t second = rounded >= 1 && rounded < 1e9 ? (int64_t)rounded : 1,
                n = (n_frames + second - 1) / second; /* less than half a frame per second: every frame */
  const int64_t stride = n >= MOST ? second : n_frames - 1 >= MOST - 1 ? (n_frames - 1) / (MOST - 1) : 1;
  const double step = (double)(n - 1) / (MOST - 1);
  int found = 0;
  if (n > MOST)
    for (; found < MOST; found++) at[found] = (found == MOST - 1 ? n - 1 : (int64_t)(found * step)) * second;
  else
    for (int64_t p = 0; p < n_frames && found < MOST; p += stride) at[found++] = p;
  return found;
}

/* ---- OpenCV's linear resize of bytes: 11-bit coefficients, horizontal sums of 19 bits, of which 4 are dropped before
 * the vertical sum ---- */

enum { COEFFICIENT = 2048 };

typedef struct pair {
  int64_t from, to; /* two neighbours */
  int32_t first, second;
} pair;

/* Samples beyond an edge repeat it; horizontally its coefficient is then exactly one, vertically two coefficients add
 * up to one, which rounds differently. */
static pair pair_of(int64_t i, int64_t n, int64_t side, int is_across) {
  const double scale = 1 / ((double)side / (double)n);
  float f = (float)(((double)i + 0.5) * scale - 0.5);
  int64_t s = (int64_t)floorf(f);
  f -= (float)s;
  if (is_across && (s < 0 || s >= n - 1)) f = 0;
  return (pair){s < 0   ? 0
                : s < n ? s
                        : n - 1,
                s + 1 < 0   ? 0
                : s + 1 < n ? s + 1
                            : n - 1,
                (int32_t)lrintf((1 - f) * COEFFICIENT), (int32_t)lrintf(f * COEFFICIENT)};
}

static void sum_across(const uint8_t *row, const pair *columns, int64_t side, int32_t *sums) {
  for (int64_t x = 0; x < side; x++)
    for (int k = 0; k < 3; k++)
      sums[3 * x + k] =
          row[3 * columns[x].from + k] * columns[x].first + row[3 * columns[x].to + k] * columns[x].second;
}

int32_t kr_resize_linear(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out) {
  pair *columns = kr_alloc_array((size_t)side, sizeof *columns);
  int32_t *sums = kr_alloc_array((size_t)(6 * side), sizeof *sums);
  const int32_t status = columns && sums ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to resize a frame");
  for (int64_t x = 0; status >= 0 && x < side; x++) columns[x] = pair_of(x, width, side, 1);
  for (int64_t y = 0; status >= 0 && y < side; y++) {
    const pair row = pair_of(y, height, side, 0);
    int32_t *const below = sums + 3 * side;
    sum_across(rgb + row.from * width * 3, columns, side, sums);
    sum_across(rgb + row.to * width * 3, columns, side, below);
    for (int64_t i = 0; i < 3 * side; i++)
      out[y * side * 3 + i] =
          (uint8_t)((((row.first * (sums[i] >> 4)) >> 16) + ((row.second * (below[i] >> 4)) >> 16) + 2) >> 2);
  }
  kr_free(columns);
  kr_free(sums);
  return status;
}

/* ---- Pillow's bicubic resize: a kernel scaled with the reduction, 22-bit coefficients, bytes between the horizontal
 * and the vertical pass ---- */

enum { BITS = 22 };

typedef struct kernel {
  int64_t n; /* taps, at most */
  int64_t *from, *taps;
  int32_t *weights; /* (outputs, n) */
} kernel;

static double cubic(double x) {
  const double a = -0.5;
  x = fabs(x);
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void kernel_free(kernel *k) {
  kr_free(k->from);
  kr_free(k->taps);
  kr_free(k->weights);
}

/* Taps and weights of output i, for resizing `in` samples to `out`. */
static void fill_kernel(const kernel *k, int64_t in, int64_t out, int64_t i, double *w) {
  const double scale = (double)in / (double)out, filter = scale < 1 ? 1 : scale, support = 2 * filter,
               center = ((double)i + 0.5) * scale;
  int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);
  double sum = 0;
  if (from < 0) from = 0;
  if (to > in) to = in;
  for (int64_t x = from; x < to; x++) sum += w[x - from] = cubic(((double)x - center + 0.5) / filter);
  for (int64_t x = 0; x < to - from; x++) {
    const double scaled = w[x] / sum * (1 << BITS);
    k->weights[i * k->n + x] = (int32_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  }
  k->from[i] = from, k->taps[i] = to - from;
}

static int32_t make_kernel(int64_t in, int64_t out, kernel *k) {
  const double scale = (double)in / (double)out, support = 2 * (scale < 1 ? 1 : scale);
  *k = (kernel){.n = 2 * (int64_t)ceil(support) + 1};
  k->from = kr_alloc_array((size_t)out, sizeof *k->from);
  k->taps = kr_alloc_array((size_t)out, sizeof *k->taps);
  k->weights = kr_alloc_array((size_t)(out * k->n), sizeof *k->weights);
  double *w = kr_alloc_array((size_t)k->n, sizeof *w);
  const int32_t status =
      k->from && k->taps && k->weights && w ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to resize a frame");
  for (int64_t i = 0; status >= 0 && i < out; i++) fill_kernel(k, in, out, i, w);
  kr_free(w);
  if (status < 0) kernel_free(k);
  return status;
}

static uint8_t clip_byte(int32_t sum) {
  const int32_t v = sum >> BITS;
  return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* n_out rows of n_columns bytes from rows of `row` bytes: along the kernel's dimension samples are `step` bytes apart.
 * Output i of a lane is at i out_step. */
typedef struct lanes {
  int64_t n, from_lane, step, to_lane, out_step;
} lanes;

static void apply(const kernel *k, int64_t first, int64_t n_out, const lanes *l, const uint8_t *from, uint8_t *to) {
  for (int64_t i = 0; i < n_out; i++)
    for (int64_t lane = 0; lane < l->n; lane++) {
      const int32_t *w = k->weights + (first + i) * k->n;
      const uint8_t *at = from + lane / 3 * l->from_lane + lane % 3 + k->from[first + i] * l->step;
      int32_t sum = 1 << (BITS - 1);
      for (int64_t x = 0; x < k->taps[first + i]; x++) sum += at[x * l->step] * w[x];
      to[lane / 3 * l->to_lane + lane % 3 + i * l->out_step] = clip_byte(sum);
    }
}

int32_t kr_resize_bicubic(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out) {
  const int is_wide = width >= height;
  const int64_t w = is_wide ? (int64_t)((double)(side * width) / (double)height) : side,
                h = is_wide ? side : (int64_t)((double)(side * height) / (double)width);
  kernel across, down;
  KR_TRY(make_kernel(width, w, &across));
  int32_t status = make_kernel(height, h, &down);
  if (status < 0) {
    kernel_free(&across);
    return status;
  }
  uint8_t *middle = kr_alloc((size_t)(height * side * 3));
  if (!middle) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to resize a frame");
  if (status >= 0) {
    apply(&across, (w - side) / 2, side,
          &(lanes){.n = 3 * height, .from_lane = 3 * width, .step = 3, .to_lane = 3 * side, .out_step = 3}, rgb,
          middle);
    apply(&down, (h - side) / 2, side,
          &(lanes){.n = 3 * side, .from_lane = 3, .step = 3 * side, .to_lane = 3, .out_step = 3 * side}, middle, out);
  }
  kr_free(middle);
  kernel_free(&across);
  kernel_free(&down);
  return status;
}

/* ---- numbers ---- */

static void normalise_pixels(const uint8_t *rgb, int64_t n, int64_t colour, const double *mean, const double *deviation,
                      float *out) {
  for (int k = 0; k < 3; k++)
    for (int64_t i = 0; i < n; i++) out[k * colour + i] = (float)((rgb[3 * i + k] / 255.0 - mean[k]) / deviation[k]);
}

void kr_pixels_of_video(const uint8_t *rgb, int64_t n, int64_t colour, float *out) {
  normalise_pixels(rgb, n, colour, (const double[]){0.485, 0.456, 0.406}, (const double[]){0.229, 0.224, 0.225}, out);
}

void kr_pixels_of_clip(const uint8_t *rgb, int64_t n, int64_t colour, float *out) {
  normalise_pixels(rgb, n, colour, (const double[]){0.48145466, 0.4578275, 0.40821073},
            (const double[]){0.26862954, 0.26130258, 0.27577711}, out);
}
