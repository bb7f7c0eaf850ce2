/* quantize_q4k.c: scale and base of 32 weights by least squares, tried from several ranges; then both in six bits, each
 * moved by one if that lowers the error, and last the two factors of the super-block. Errors are sums of squares. */
#include <math.h>
#include <string.h>

#include "quantize.h"
#include "view.h"

enum { PART = 32, PARTS = 8, SUPER = PART * PARTS, WORDS = 36, LEVELS = 15, MOST = 63 };

/* w is about scale q + base, base <= 0. */
typedef struct line {
  float scale, base;
} line;

static float nearest(float v) { return v + 12582912.0f - 12582912.0f; } /* for |v| < 2^22 */

static float level(float w, line l, float inverse) {
  const float q = nearest((w - l.base) * inverse);
  return q < 0 ? 0 : q > LEVELS ? LEVELS : q;
}

static float inverse_of(line l) { return l.scale > 0 ? 1 / l.scale : 0; }

static float error_of(const float *w, line l) {
  const float inverse = inverse_of(l);
  float sum = 0;
  for (int i = 0; i < PART; i++) {
    const float d = w[i] - (l.scale * level(w[i], l, inverse) + l.base);
    sum += d * d;
  }
  return sum;
}

/* The best line for the levels that l gives. */
static line fit(const float *w, line l) {
  const float inverse = inverse_of(l);
  float q1 = 0, q2 = 0, w1 = 0, wq = 0;
  for (int i = 0; i < PART; i++) {
    const float q = level(w[i], l, inverse);
    q1 += q, q2 += q * q, w1 += w[i], wq += w[i] * q;
  }
  const float determinant = PART * q2 - q1 * q1;
  line better = l;
  if (determinant > 0) better = (line){(PART * wq - q1 * w1) / determinant, (q2 * w1 - q1 * wq) / determinant};
  if (better.base > 0 && q2 > 0) better = (line){wq / q2, 0};
  return better.scale > 0 && better.base <= 0 ? better : l;
}

/* Fits l, and keeps it if it is the best so far. */
static line try_line(const float *w, line l, line *best, float *least) {
  l = fit(w, l);
  const float error = error_of(w, l);
  if (error < *least) *least = error, *best = l;
  return l;
}

static line fit_part(const float *w) {
  float low = 0, high = w[0];
  for (int i = 0; i < PART; i++) low = w[i] < low ? w[i] : low, high = w[i] > high ? w[i] : high;
  if (high <= low) return (line){0, low};
  line best = {(high - low) / LEVELS, low};
  float least = error_of(w, best);
  for (float range = LEVELS - 1; range <= LEVELS + 3; range += 0.5f)
    try_line(w, (line){(high - low) / range, low}, &best, &least); /* above LEVELS the ends are cut */
  line l = best;
  for (int round = 0; round < 2; round++) l = try_line(w, l, &best, &least);
  return best;
}

/* ---- a super-block ---- */

typedef struct super {
  uint16_t d, e;             /* float16 factors of scales and minima */
  int scale[PARTS], minimum[PARTS];
} super;

static line line_of(const super *s, int j) {
  return (line){kr_f16_to_float(s->d) * (float)s->scale[j], -kr_f16_to_float(s->e) * (float)s->minimum[j]};
}

static int six_bits(float v, float factor) {
  const float q = factor > 0 ? nearest(v / factor) : 0;
  return q > MOST ? MOST : q < 0 ? 0 : (int)q;
}

static float part_error(const float *w, const super *s, int j) { return error_of(w + j * PART, line_of(s, j)); }

/* The neighbours of a part's scale and minimum, while one is better. */
static void move_part(const float *w, super *s, int j) {
  float least = part_error(w, s, j);
  const int scale = s->scale[j], minimum = s->minimum[j];
  int best_scale = scale, best_minimum = minimum;
  for (int i = 0; i < 9; i++) {
    s->scale[j] = scale + i % 3 - 1, s->minimum[j] = minimum + i / 3 - 1;
    if (s->scale[j] < 0 || s->scale[j] > MOST || s->minimum[j] < 0 || s->minimum[j] > MOST) continue;
    const float error = part_error(w, s, j);
    if (error < least) least = error, best_scale = s->scale[j], best_minimum = s->minimum[j];
  }
  s->scale[j] = best_scale, s->minimum[j] = best_minimum;
}

static float super_error(const float *w, const super *s) {
  float sum = 0;
  for (int j = 0; j < PARTS; j++) sum += part_error(w, s, j);
  return sum;
}

/* d and e by least squares for the current levels, scales and minima. */
static void refit(const float *w, super *s) {
  double xx = 0, yy = 0, xy = 0, wx = 0, wy = 0;
  for (int i = 0; i < SUPER; i++) {
    const int j = i / PART;
    const line l = line_of(s, j);
    const double x = s->scale[j] * (double)level(w[i], l, inverse_of(l)), y = -s->minimum[j];
    xx += x * x, yy += y * y, xy += x * y, wx += w[i] * x, wy += w[i] * y;
  }
  const double determinant = xx * yy - xy * xy;
  super other = *s;
  if (determinant > 0)
    other.d = kr_float_to_f16((float)((wx * yy - wy * xy) / determinant)),
    other.e = kr_float_to_f16((float)((wy * xx - wx * xy) / determinant));
  else if (xx > 0) other.d = kr_float_to_f16((float)(wx / xx));
  if (!(other.d >> 15) && !(other.e >> 15) && super_error(w, &other) < super_error(w, s)) *s = other;
}

static uint16_t factor_of(float most) { return kr_float_to_f16(most / MOST > 65504 ? 65504 : most / MOST); }

static super fit_super(const float *w) {
  line lines[PARTS];
  float scale = 0, minimum = 0;
  for (int j = 0; j < PARTS; j++) {
    lines[j] = fit_part(w + j * PART);
    scale = lines[j].scale > scale ? lines[j].scale : scale,
    minimum = -lines[j].base > minimum ? -lines[j].base : minimum;
  }
  super s = {.d = factor_of(scale), .e = factor_of(minimum)};
  for (int j = 0; j < PARTS; j++)
    s.scale[j] = six_bits(lines[j].scale, kr_f16_to_float(s.d)),
    s.minimum[j] = six_bits(-lines[j].base, kr_f16_to_float(s.e));
  for (int round = 0; round < 2; round++) {
    for (int j = 0; j < PARTS; j++) move_part(w, &s, j);
    refit(w, &s);
  }
  return s;
}

/* ---- its bytes ---- */

static void put_super(const float *w, const super *s, uint8_t *bytes) {
  memset(bytes, 0, WORDS * 4);
  const uint16_t halves[] = {s->d, s->e};
  for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(halves[i / 2] >> (i % 2 * 8));
  for (int j = 0; j < 4; j++) {
    bytes[4 + j] = (uint8_t)(s->scale[j] | s->scale[j + 4] >> 4 << 6);
    bytes[8 + j] = (uint8_t)(s->minimum[j] | s->minimum[j + 4] >> 4 << 6);
    bytes[12 + j] = (uint8_t)((s->scale[j + 4] & 15) | (s->minimum[j + 4] & 15) << 4);
  }
  for (int i = 0; i < SUPER; i++) {
    const line l = line_of(s, i / PART);
    const int q = (int)level(w[i], l, inverse_of(l));
    bytes[16 + i / 64 * 32 + i % 32] |= (uint8_t)(q << (i / PART % 2 * 4));
  }
}

int kr_q4k_fits(const kr_weight *item) {
  return item->n_dims == 2 && item->shape[0] > 0 && item->shape[1] > 0 && item->shape[1] % SUPER == 0 &&
         kr_is_float_dtype(item->dtype);
}

void kr_q4k_quantize(const kr_weight *item, int64_t from, int64_t to, int32_t *words) {
  const kr_view view = {.data = (void *)item->data, .dtype = item->dtype};
  const int64_t S = item->shape[1] / SUPER;
  for (int64_t s = from * S; s < to * S; s++) {
    float w[SUPER];
    for (int i = 0; i < SUPER; i++) w[i] = (float)kr_get(&view, s * SUPER + i);
    const super fitted = fit_super(w);
    put_super(w, &fitted, (uint8_t *)(words + s * WORDS));
  }
}

void kr_q4k_row(const int32_t *words, int64_t S, float *to) {
  const uint8_t *bytes = (const uint8_t *)words;
  for (int64_t i = 0; i < S * SUPER; i++) {
    const uint8_t *at = bytes + i / SUPER * WORDS * 4;
    const int64_t k = i % SUPER, j = k / PART;
    const float d = kr_f16_to_float((uint16_t)(at[0] | at[1] << 8)),
                e = kr_f16_to_float((uint16_t)(at[2] | at[3] << 8));
    const int scale = j < 4 ? at[4 + j] & 63 : (at[8 + j] & 15) | at[j] >> 6 << 4,
              minimum = j < 4 ? at[8 + j] & 63 : at[8 + j] >> 4 | at[4 + j] >> 6 << 4;
    to[i] = d * (float)scale * (float)(at[16 + k / 64 * 32 + k % 32] >> (j % 2 * 4) & 15) - e * (float)minimum;
  }
}
