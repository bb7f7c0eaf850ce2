/* seedvr_colour.c: the result's colours from the input: StableSR's wavelet and adaptive instance normalisation,
 * ComfyUI's ranks in CIELAB; and ComfyUI's joins of overlapping batches. */
#include <math.h>
#include <stdlib.h>
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

/* ---- the coarse part: five blurs with (1 2 1) on both axes, steps 1 to 16, edges repeated ---- */

enum { LEVELS = 5 };

typedef struct blur {
  int64_t H, W, step;
  const float *from;
  float *to;
  int is_across;
} blur;

static int64_t inside(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

/* Rows of all frames. */
static void blur_rows(void *user, int64_t begin, int64_t end, int worker) {
  const blur *b = user;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t frame = row / b->H * b->H, y = row % b->H, n = 3 * b->W;
    const float *at = b->from + row * n, *above = b->from + (frame + inside(y - b->step, b->H)) * n,
                *below = b->from + (frame + inside(y + b->step, b->H)) * n;
    float *to = b->to + row * n;
    if (b->is_across)
      for (int64_t x = 0; x < b->W; x++)
        for (int k = 0; k < 3; k++)
          to[3 * x + k] = 0.5f * at[3 * x + k] +
                          0.25f * (at[3 * inside(x - b->step, b->W) + k] + at[3 * inside(x + b->step, b->W) + k]);
    else
      for (int64_t x = 0; x < n; x++) to[x] = 0.5f * at[x] + 0.25f * (above[x] + below[x]);
  }
}

int32_t kr_colour_low(const krait_ctx *ctx, const int64_t size[3], int64_t most, float *film) {
  const int64_t rows = size[0] * size[1];
  float *other = kr_alloc_array((size_t)(3 * rows * size[2]), sizeof *other);
  KR_CHECK(other, KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  blur b = {.H = size[1], .W = size[2]};
  for (int level = 0; level < LEVELS; level++) {
    b.step = (int64_t)1 << level < most ? (int64_t)1 << level : most;
    b.from = film, b.to = other, b.is_across = 1;
    kr_parallel(ctx, rows, 8, blur_rows, &b);
    b.from = other, b.to = film, b.is_across = 0;
    kr_parallel(ctx, rows, 8, blur_rows, &b);
  }
  kr_free(other);
  return KRAIT_OK;
}

/* content's fine part and style's coarse part: the blur is linear, so that one of the difference does. */
static int32_t correct_wavelet(const krait_ctx *ctx, const int64_t size[3], int64_t most, float *content,
                               const float *style) {
  const int64_t n = 3 * size[0] * size[1] * size[2];
  float *difference = kr_alloc_array((size_t)n, sizeof *difference);
  KR_CHECK(difference, KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  for (int64_t i = 0; i < n; i++) difference[i] = style[i] - content[i];
  const int32_t status = kr_colour_low(ctx, size, most, difference);
  for (int64_t i = 0; status >= 0 && i < n; i++) content[i] += difference[i];
  kr_free(difference);
  return status;
}

/* ---- mean and deviation of each frame's colours ---- */

static void measure_colour(const float *x, int64_t n, int k, double *mean, double *deviation) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[3 * i + k];
  *mean = sum / (double)n;
  for (int64_t i = 0; i < n; i++) squares += ((double)x[3 * i + k] - *mean) * ((double)x[3 * i + k] - *mean);
  *deviation = sqrt(squares / (double)(n > 1 ? n - 1 : 1) + 1e-5);
}

static void correct_adain(const int64_t size[3], float *content, const float *style) {
  const int64_t n = size[1] * size[2];
  for (int64_t i = 0; i < 3 * size[0]; i++) {
    float *x = content + i / 3 * 3 * n;
    double mean, deviation, to_mean, to_deviation;
    measure_colour(x, n, (int)(i % 3), &mean, &deviation);
    measure_colour(style + i / 3 * 3 * n, n, (int)(i % 3), &to_mean, &to_deviation);
    for (int64_t p = 0; p < n; p++)
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

typedef struct ranked {
  float value;
  int32_t at;
} ranked;

static int compare_ranked(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->value != y->value ? (x->value > y->value) - (x->value < y->value) : (x->at > y->at) - (x->at < y->at);
}

static void rank(const float *film, int64_t n, int k, ranked *to) {
  for (int64_t i = 0; i < n; i++) to[i] = (ranked){film[3 * i + k], (int32_t)i};
  qsort(to, (size_t)n, sizeof *to, compare_ranked);
}

static int32_t match_ranks(int64_t n, float *content, const float *style) {
  ranked *own = kr_alloc_array((size_t)n, sizeof *own), *others = kr_alloc_array((size_t)n, sizeof *others);
  const int32_t status = own && others ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to correct colours");
  for (int k = 0; k < 3 && status >= 0; k++) {
    rank(content, n, k, own), rank(style, n, k, others);
    for (int64_t i = 0; i < n; i++) {
      float *to = content + 3 * (int64_t)own[i].at + k;
      *to = k ? others[i].value : 0.8f * *to + 0.2f * others[i].value;
    }
  }
  kr_free(own);
  kr_free(others);
  return status;
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
  for (int64_t i = 0; i < n; i++) to_lab(content + 3 * i), to_lab(other + 3 * i);
  const int32_t status = match_ranks(n, content, other);
  for (int64_t i = 0; status >= 0 && i < n; i++) from_lab(content + 3 * i);
  kr_free(other);
  return status;
}

int32_t kr_colour_run(const krait_ctx *ctx, int32_t colour, const int64_t size[3], float *content,
                      const float *style) {
  if (colour == KR_COLOUR_WAVELET) return correct_wavelet(ctx, size, (int64_t)1 << LEVELS, content, style);
  if (colour == KR_COLOUR_LAB) return correct_lab(ctx, size, content, style);
  if (colour == KR_COLOUR_ADAIN) correct_adain(size, content, style);
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
