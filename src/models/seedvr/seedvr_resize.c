/* seedvr_resize.c: frames to the size that the models take: torchvision's antialiased cubic resize on floats, a crop
 * from the centre or black borders, and back to bytes. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "seedvr_frames.h"
#include "status.h"

/* ---- size ---- */

enum { MOST_SIDE = 1 << 14 };

static int32_t scaled_size(const kr_frame_rule *rule, kr_frame_size *to) {
  const double h = (double)to->from_h, w = (double)to->from_w, shorter = h < w ? h : w, longer = h < w ? w : h;
  double s = rule->shorter > 0 ? (double)rule->shorter / shorter
                               : sqrt((double)rule->area_h * (double)rule->area_w / (h * w));
  if (rule->shorter > 0 && rule->longest > 0 && longer * s > (double)rule->longest) s = (double)rule->longest / longer;
  KR_CHECK(h * s < MOST_SIDE && w * s < MOST_SIDE, KRAIT_ERR_SHAPE,
           "frames of %lld x %lld would become %.0f x %.0f pixels, more than %d a side", (long long)to->from_w,
           (long long)to->from_h, w * s, h * s, MOST_SIDE);
  to->scaled_h = (int64_t)rint(h * s), to->scaled_w = (int64_t)rint(w * s);
  return KRAIT_OK;
}

int32_t kr_frame_fit(const kr_frame_rule *rule, int64_t h, int64_t w, kr_frame_size *to) {
  *to = (kr_frame_size){.from_h = h, .from_w = w};
  KR_CHECK(h >= 1 && w >= 1 && h <= MOST_SIDE && w <= MOST_SIDE, KRAIT_ERR_SHAPE,
           "frames of %lld x %lld pixels: each side must be 1 to %d", (long long)w, (long long)h, MOST_SIDE);
  KR_CHECK(rule->shorter > 0 || (rule->area_h > 0 && rule->area_w > 0), KRAIT_ERR_ARGUMENT,
           "the size of the result is %lld x %lld: both must be above 0", (long long)rule->area_w,
           (long long)rule->area_h);
  KR_TRY(scaled_size(rule, to));
  const int64_t step = KR_FRAME_STEP, over_h = to->scaled_h % step, over_w = to->scaled_w % step;
  if (rule->is_padded) {
    to->H = to->scaled_h + (step - over_h) % step, to->W = to->scaled_w + (step - over_w) % step;
    to->out_h = to->scaled_h, to->out_w = to->scaled_w;
  } else {
    to->H = to->out_h = to->scaled_h - over_h, to->W = to->out_w = to->scaled_w - over_w;
    to->top = (int64_t)rint((double)over_h / 2), to->left = (int64_t)rint((double)over_w / 2);
  }
  KR_CHECK(to->out_h >= 1 && to->out_w >= 1, KRAIT_ERR_SHAPE,
           "frames of %lld x %lld become %lld x %lld, less than %lld pixels on a side: ask for a larger size, or pad",
           (long long)w, (long long)h, (long long)to->scaled_w, (long long)to->scaled_h, (long long)step);
  return KRAIT_OK;
}

int64_t kr_frames_padded(int64_t n) { return n <= 1 ? n : (n + 2) / 4 * 4 + 1; }

/* ---- resizing ---- */

typedef struct taps {
  int64_t n; /* of each output, at most */
  int32_t *first, *count;
  float *weights; /* (outputs, n) */
} taps;

struct kr_resizer {
  const krait_ctx *ctx;
  kr_frame_size size;
  taps across, down;
  float *wide, *out, *rows; /* rows: one of the frame for each worker */
  const uint8_t *rgb;  /* or */
  const float *floats;
};

/* Keys' cubic with a = -0.5. */
static double cubic_of(double x) {
  const double a = -0.5;
  x = fabs(x);
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void taps_close(taps *t) {
  kr_free(t->first);
  kr_free(t->count);
  kr_free(t->weights);
}

static void fill_taps(const taps *t, int64_t n, int64_t m) {
  const double r = (double)n / (double)m, q = r > 1 ? r : 1;
  for (int64_t i = 0; i < m; i++) {
    const double centre = r * ((double)i + 0.5);
    int64_t lo = (int64_t)floor(centre - 2 * q + 0.5), hi = (int64_t)floor(centre + 2 * q + 0.5);
    double sum = 0;
    lo = lo < 0 ? 0 : lo, hi = hi > n ? n : hi;
    t->first[i] = (int32_t)lo, t->count[i] = (int32_t)(hi - lo);
    for (int64_t j = lo; j < hi; j++) sum += cubic_of(((double)j - centre + 0.5) / q);
    for (int64_t j = lo; j < hi; j++)
      t->weights[i * t->n + j - lo] = (float)(cubic_of(((double)j - centre + 0.5) / q) / sum);
  }
}

static int taps_open(taps *t, int64_t n, int64_t m) {
  const double r = (double)n / (double)m;
  t->n = 2 * (int64_t)ceil(2 * (r > 1 ? r : 1)) + 2;
  t->first = kr_alloc_array((size_t)m, sizeof *t->first);
  t->count = kr_alloc_array((size_t)m, sizeof *t->count);
  t->weights = kr_alloc_array((size_t)(m * t->n), sizeof *t->weights);
  if (!t->first || !t->count || !t->weights) return 0;
  fill_taps(t, n, m);
  return 1;
}

int32_t kr_resizer_open(const krait_ctx *ctx, const kr_frame_size *size, kr_resizer **out) {
  kr_resizer *r = *out = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory to resize frames");
  r->ctx = ctx, r->size = *size;
  r->wide = kr_alloc_array((size_t)(3 * size->from_h * size->scaled_w), sizeof *r->wide);
  r->out = kr_alloc_array((size_t)(3 * size->scaled_h * size->scaled_w), sizeof *r->out);
  r->rows = kr_alloc_array((size_t)(kr_pool_size(ctx->pool) * 3 * size->from_w), sizeof *r->rows);
  if (r->wide && r->out && r->rows && taps_open(&r->across, size->from_w, size->scaled_w) &&
      taps_open(&r->down, size->from_h, size->scaled_h))
    return KRAIT_OK;
  kr_resizer_close(out);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to resize frames of %lld x %lld", (long long)size->from_w,
                 (long long)size->from_h);
}

void kr_resizer_close(kr_resizer **handle) {
  kr_resizer *r = handle ? *handle : NULL;
  if (!r) return;
  *handle = NULL;
  taps_close(&r->across), taps_close(&r->down);
  kr_free(r->wide);
  kr_free(r->out);
  kr_free(r->rows);
  kr_free(r);
}

static void resize_row(const kr_resizer *r, const float *row, float *to) {
  const taps *t = &r->across;
  for (int64_t x = 0; x < r->size.scaled_w; x++, to += 3) {
    const float *from = row + 3 * (int64_t)t->first[x], *weights = t->weights + x * t->n;
    float sums[3] = {0};
    for (int32_t j = 0; j < t->count[x]; j++)
      for (int k = 0; k < 3; k++) sums[k] += weights[j] * from[3 * j + k];
    memcpy(to, sums, sizeof sums);
  }
}

static void resize_across(void *user, int64_t begin, int64_t end, int worker) {
  const kr_resizer *r = user;
  const int64_t n = 3 * r->size.from_w;
  float *row = r->rows + worker * n;
  for (int64_t y = begin; y < end; y++) {
    for (int64_t i = 0; r->rgb && i < n; i++) row[i] = (float)r->rgb[y * n + i] / 255.0f;
    resize_row(r, r->rgb ? row : r->floats + y * n, r->wide + 3 * y * r->size.scaled_w);
  }
}

static void resize_down(void *user, int64_t begin, int64_t end, int worker) {
  const kr_resizer *r = user;
  const taps *t = &r->down;
  const int64_t n = 3 * r->size.scaled_w;
  (void)worker;
  for (int64_t y = begin; y < end; y++) {
    float *to = r->out + y * n;
    memset(to, 0, (size_t)n * sizeof *to);
    for (int32_t j = 0; j < t->count[y]; j++) {
      const float w = t->weights[y * t->n + j], *from = r->wide + (t->first[y] + j) * n;
      for (int64_t x = 0; x < n; x++) to[x] += w * from[x];
    }
    for (int64_t x = 0; x < n; x++) to[x] = to[x] < 0 ? 0 : to[x] > 1 ? 1 : to[x];
  }
}

static const float *resize_frame(kr_resizer *r) {
  kr_parallel(r->ctx, r->size.from_h, 8, resize_across, r);
  kr_parallel(r->ctx, r->size.scaled_h, 8, resize_down, r);
  return r->out;
}

const float *kr_resizer_run(kr_resizer *r, const uint8_t *rgb) {
  r->rgb = rgb;
  return resize_frame(r);
}

const float *kr_resizer_run_floats(kr_resizer *r, const float *rgb) {
  r->rgb = NULL, r->floats = rgb;
  return resize_frame(r);
}

void kr_frame_crop(const kr_frame_size *s, const float *scaled, float *frame) {
  const int64_t n = 3 * s->W, left = s->scaled_w - s->left, n_inside = 3 * (left < s->W ? left : s->W);
  for (int64_t y = 0; y < s->H; y++, frame += n) {
    const int64_t from_y = y + s->top, m = from_y < s->scaled_h ? n_inside : 0,
                  at = 3 * (from_y * s->scaled_w + s->left);
    for (int64_t i = 0; i < m; i++) frame[i] = (scaled[at + i] - 0.5f) / 0.5f;
    for (int64_t i = m; i < n; i++) frame[i] = -1;
  }
}

/* v in -1..1, of `most` steps: rounded half to even, as adding and taking away 1.5 * 2^23 does. */
static float round_sample(float v, float most) {
  const float clipped = v < -1 ? -1 : v > 1 ? 1 : v, magic = 0x1.8p23f;
  return (clipped * 0.5f + 0.5f) * most + magic - magic;
}

void kr_frame_put(const kr_frame_size *s, const float *frame, int samples, void *rgb) {
  const int64_t n = 3 * s->out_w;
  for (int64_t y = 0; y < s->out_h; y++, frame += 3 * s->W) {
    uint8_t *bytes = (uint8_t *)rgb + y * n;
    uint16_t *words = (uint16_t *)rgb + y * n;
    float *floats = (float *)rgb + y * n;
    if (samples == KR_SAMPLES_8)
      for (int64_t i = 0; i < n; i++) bytes[i] = (uint8_t)round_sample(frame[i], 255);
    else if (samples == KR_SAMPLES_16)
      for (int64_t i = 0; i < n; i++) words[i] = (uint16_t)round_sample(frame[i], 65535);
    else
      for (int64_t i = 0; i < n; i++)
        floats[i] = (frame[i] < -1 ? -1 : frame[i] > 1 ? 1 : frame[i]) * 0.5f + 0.5f;
  }
}
