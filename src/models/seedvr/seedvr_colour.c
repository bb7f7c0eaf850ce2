/* seedvr_colour.c: the result's colours from the input: StableSR's wavelet and adaptive instance normalisation,
 * ComfyUI's ranks in CIELAB; and ComfyUI's joins of overlapping batches. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "seedvr_frames.h"
#include "status.h"

int32_t kr_colour_of(const char *name, int32_t *colour) {
  static const char *const names[] = {"wavelet", "adain", "lab", "none"};
  for (int32_t i = 0; i < 4; i++)
    if (strcmp(name, names[i]) == 0) {
      *colour = i;
      return KRAIT_OK;
    }
  return kr_fail(KRAIT_ERR_ARGUMENT, "unknown colour correction '%.40s': wavelet, adain, lab or none", name);
}

/* ---- the coarse part: five blurs with (1 2 1) on both axes, steps 1 to 16, edges repeated; frame by frame, whose two
 * maps stay in the caches ---- */

enum { LEVELS = 5 };

typedef struct blur {
  int64_t H, W, step;
  const float *from, *less; /* less: what is blurred is from - less; or NULL */
  float *to, *sum;          /* sum: the result is added to it; or NULL */
  float *lines;             /* a row for each worker */
} blur;

static int64_t inside(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

static void blur_down(const blur *b, int64_t y, float *to) {
  const int64_t n = 3 * b->W, rows[3] = {y * n, inside(y - b->step, b->H) * n, inside(y + b->step, b->H) * n};
  const float *at = b->from + rows[0], *above = b->from + rows[1], *below = b->from + rows[2];
  if (!b->less) {
    for (int64_t i = 0; i < n; i++) to[i] = 0.5f * at[i] + 0.25f * (above[i] + below[i]);
    return;
  }
  const float *less = b->less + rows[0], *less_above = b->less + rows[1], *less_below = b->less + rows[2];
  for (int64_t i = 0; i < n; i++)
    to[i] = 0.5f * (at[i] - less[i]) + 0.25f * (above[i] - less_above[i] + (below[i] - less_below[i]));
}

static void blur_edge(const blur *b, int64_t begin, int64_t end, const float *row, float *to) {
  for (int64_t x = begin; x < end; x++)
    for (int k = 0; k < 3; k++)
      to[3 * x + k] = 0.5f * row[3 * x + k] +
                      0.25f * (row[3 * inside(x - b->step, b->W) + k] + row[3 * inside(x + b->step, b->W) + k]);
}

static void blur_across(const blur *b, const float *row, float *to) {
  const int64_t left = b->step < b->W ? b->step : b->W, right = left < b->W - b->step ? b->W - b->step : left,
                step = 3 * b->step;
  blur_edge(b, 0, left, row, to);
  for (int64_t i = 3 * left; i < 3 * right; i++) to[i] = 0.5f * row[i] + 0.25f * (row[i - step] + row[i + step]);
  blur_edge(b, right, b->W, row, to);
}

static void blur_rows(void *user, int64_t begin, int64_t end, int worker) {
  const blur *b = user;
  const int64_t n = 3 * b->W;
  float *row = b->lines + worker * n;
  for (int64_t y = begin; y < end; y++) {
    float *to = b->to + y * n;
    blur_down(b, y, row);
    blur_across(b, row, to);
    for (int64_t i = 0; b->sum && i < n; i++) b->sum[y * n + i] += to[i];
  }
}

/* A frame; maps: two, and the rows. */
static void correct_frame(const krait_ctx *ctx, const int64_t size[3], int64_t most, float *maps, float *content,
                          const float *style) {
  const int64_t n = 3 * size[1] * size[2];
  for (int level = 0; level < LEVELS; level++) {
    const int64_t step = (int64_t)1 << level;
    blur b = {.H = size[1], .W = size[2], .step = step < most ? step : most, .to = maps + level % 2 * n,
              .from = level ? maps + (level + 1) % 2 * n : style, .less = level ? NULL : content,
              .sum = level == LEVELS - 1 ? content : NULL, .lines = maps + 2 * n};
    kr_parallel(ctx, size[1], 8, blur_rows, &b);
  }
}

/* content's fine part and style's coarse part: the blur is linear, so that one of the difference does. The steps of a
 * level are at most `most`. */
static int32_t correct_wavelet(const krait_ctx *ctx, const int64_t size[3], int64_t most, float *content,
                               const float *style) {
  const int64_t n = 3 * size[1] * size[2];
  float *maps = kr_alloc_array((size_t)(2 * n + kr_pool_size(ctx->pool) * 3 * size[2]), sizeof *maps);
  KR_CHECK(maps, KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  for (int64_t t = 0; t < size[0]; t++) correct_frame(ctx, size, most, maps, content + t * n, style + t * n);
  kr_free(maps);
  return KRAIT_OK;
}

/* ---- mean and deviation of each frame's colours ---- */

static void measure_colour(const float *x, int64_t n, int k, double *mean, double *deviation) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[3 * i + k];
  *mean = sum / (double)n;
  for (int64_t i = 0; i < n; i++) squares += ((double)x[3 * i + k] - *mean) * ((double)x[3 * i + k] - *mean);
  *deviation = sqrt(squares / (double)(n > 1 ? n - 1 : 1) + 1e-5);
}

typedef struct films {
  int64_t n; /* of a frame's pixels; or of all */
  float *content;
  const float *style;
} films;

/* Colours of frames. */
static void correct_adain(void *user, int64_t begin, int64_t end, int worker) {
  const films *f = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    float *x = f->content + i / 3 * 3 * f->n;
    double mean, deviation, to_mean, to_deviation;
    measure_colour(x, f->n, (int)(i % 3), &mean, &deviation);
    measure_colour(f->style + i / 3 * 3 * f->n, f->n, (int)(i % 3), &to_mean, &to_deviation);
    for (int64_t p = 0; p < f->n; p++)
      x[3 * p + i % 3] = (float)(((double)x[3 * p + i % 3] - mean) / deviation * to_deviation + to_mean);
  }
}

/* ---- CIELAB: a and b get the input's values of the same rank over all frames, L a fifth of them ---- */

static const double white[3] = {0.95047, 1, 1.08883};

static void to_lab(float *rgb) {
  static const double m[3][3] = {{0.4124564, 0.3575761, 0.1804375}, {0.2126729, 0.7151522, 0.0721750},
                                 {0.0193339, 0.1191920, 0.9503041}};
  double linear[3], f[3];
  for (int k = 0; k < 3; k++) {
    double v = (double)rgb[k] * 0.5 + 0.5;
    v = v < 0 ? 0 : v > 1 ? 1 : v;
    linear[k] = v > 0.04045 ? pow((v + 0.055) / 1.055, 2.4) : v / 12.92;
  }
  for (int k = 0; k < 3; k++) {
    const double v = (m[k][0] * linear[0] + m[k][1] * linear[1] + m[k][2] * linear[2]) / white[k], edge = 6.0 / 29;
    f[k] = v > edge * edge * edge ? cbrt(v) : (29.0 / 3 * 29 / 3 * 29 / 3 * v + 16) / 116;
  }
  rgb[0] = (float)(116 * f[1] - 16), rgb[1] = (float)(500 * (f[0] - f[1])), rgb[2] = (float)(200 * (f[1] - f[2]));
}

static void from_lab(float *lab) {
  static const double m[3][3] = {{3.2404542, -1.5371385, -0.4985314}, {-0.9692660, 1.8760108, 0.0415560},
                                 {0.0556434, -0.2040259, 1.0572252}};
  const double fy = ((double)lab[0] + 16) / 116, f[3] = {(double)lab[1] / 500 + fy, fy, fy - (double)lab[2] / 200};
  double xyz[3];
  for (int k = 0; k < 3; k++)
    xyz[k] = white[k] * (f[k] > 6.0 / 29 ? f[k] * f[k] * f[k] : (116 * f[k] - 16) / (29.0 / 3 * 29 / 3 * 29 / 3));
  for (int k = 0; k < 3; k++) {
    double v = m[k][0] * xyz[0] + m[k][1] * xyz[1] + m[k][2] * xyz[2];
    v = v > 0.0031308 ? 1.055 * pow(v, 1 / 2.4) - 0.055 : 12.92 * v;
    v = v < 0 ? 0 : v > 1 ? 1 : v;
    lab[k] = (float)(2 * v - 1);
  }
}

/* Keys in the order of values; pixels of equal values keep theirs. */
typedef struct ranked {
  uint32_t key;
  int32_t at;
} ranked;

static uint32_t order_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float value_at_order(uint32_t key) {
  const uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

enum { DIGITS = 3, DIGIT_BITS = 11 };

/* By one digit, from x into to. */
static void sort_digit(int digit, int64_t n, const ranked *x, ranked *to) {
  int64_t ends[1 << DIGIT_BITS] = {0}, begin = 0;
  const int shift = digit * DIGIT_BITS, mask = (1 << DIGIT_BITS) - 1;
  for (int64_t i = 0; i < n; i++) ends[x[i].key >> shift & (uint32_t)mask]++;
  for (int i = 0; i <= mask; i++) {
    const int64_t count = ends[i];
    ends[i] = begin, begin += count;
  }
  for (int64_t i = 0; i < n; i++) to[ends[x[i].key >> shift & (uint32_t)mask]++] = x[i];
}

/* Colour k of a film, sorted; in one of the two rooms of n. */
static const ranked *rank(const float *film, int64_t n, int k, ranked *rooms) {
  ranked *from = rooms, *to = rooms + n;
  for (int64_t i = 0; i < n; i++) from[i] = (ranked){order_of(film[3 * i + k]), (int32_t)i};
  for (int digit = 0; digit < DIGITS; digit++) {
    ranked *const sorted = to;
    sort_digit(digit, n, from, to);
    to = from, from = sorted;
  }
  return from;
}

static int32_t match_ranks(int64_t n, float *content, const float *style) {
  ranked *rooms = kr_alloc_array((size_t)(2 * n), sizeof *rooms);
  float *others = kr_alloc_array((size_t)n, sizeof *others);
  const int32_t status = rooms && others ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  for (int k = 0; k < 3 && status >= 0; k++) {
    const ranked *sorted = rank(style, n, k, rooms);
    for (int64_t i = 0; i < n; i++) others[i] = value_at_order(sorted[i].key);
    sorted = rank(content, n, k, rooms);
    for (int64_t i = 0; i < n; i++) {
      float *to = content + 3 * (int64_t)sorted[i].at + k;
      *to = k ? others[i] : 0.8f * *to + 0.2f * others[i];
    }
  }
  kr_free(rooms);
  kr_free(others);
  return status;
}

static void turn_to_lab(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t i = begin; i < end; i++) to_lab((float *)user + 3 * i);
}
static void turn_from_lab(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t i = begin; i < end; i++) from_lab((float *)user + 3 * i);
}

static void clip_colours(int64_t n, float *film) {
  for (int64_t i = 0; i < n; i++) film[i] = film[i] < -1 ? -1 : film[i] > 1 ? 1 : film[i];
}

static int32_t correct_lab(const krait_ctx *ctx, const int64_t size[3], float *content, const float *style) {
  const int64_t n = size[0] * size[1] * size[2], shorter = size[1] < size[2] ? size[1] : size[2];
  KR_CHECK(n < INT32_MAX, KRAIT_ERR_UNSUPPORTED, "colours by rank of more than 2^31 pixels a batch");
  KR_TRY(correct_wavelet(ctx, size, shorter / 8 > 1 ? shorter / 8 : 1, content, style));
  clip_colours(3 * n, content);
  float *other = kr_alloc_array((size_t)(3 * n), sizeof *other);
  KR_CHECK(other, KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  memcpy(other, style, (size_t)(3 * n) * sizeof *other);
  kr_parallel(ctx, n, 1 << 12, turn_to_lab, content);
  kr_parallel(ctx, n, 1 << 12, turn_to_lab, other);
  const int32_t status = match_ranks(n, content, other);
  if (status >= 0) kr_parallel(ctx, n, 1 << 12, turn_from_lab, content);
  kr_free(other);
  return status;
}

int32_t kr_colour_run(const krait_ctx *ctx, int32_t colour, const int64_t size[3], float *content,
                      const float *style) {
  if (colour == KR_COLOUR_WAVELET) return correct_wavelet(ctx, size, (int64_t)1 << LEVELS, content, style);
  if (colour == KR_COLOUR_LAB) return correct_lab(ctx, size, content, style);
  films f = {size[1] * size[2], content, style};
  if (colour == KR_COLOUR_ADAIN) kr_parallel(ctx, 3 * size[0], 1, correct_adain, &f);
  return KRAIT_OK;
}

/* ---- joins ---- */

void kr_blend(int64_t k, int64_t n, const float *before, float *after) {
  for (int64_t i = 0; i < k; i++) {
    const double u = k > 1 ? (double)i / (double)(k - 1) : 0, eased = 3 * u - 1,
                 within = eased < 0 ? 0 : eased > 1 ? 1 : eased;
    const double w = k >= 3 ? 0.5 + 0.5 * cos(3.14159265358979323846 * within) : 1 - u;
    for (int64_t j = i * n; j < (i + 1) * n; j++)
      after[j] = (float)(w * (double)before[j] + (1 - w) * (double)after[j]);
  }
}
