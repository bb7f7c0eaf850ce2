/* canvas.c: a pixel's coverage by a stroke is what its distance from the middle line leaves. */
#include "canvas.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { CURVE_PIECES = 8, FULL = 255 };

int32_t kr_canvas_open(kr_canvas *c, int32_t width, int32_t height) {
  const size_t n = (size_t)width * (size_t)height;
  *c = (kr_canvas){.width = width, .height = height, .opacity = 1, .thickness = 1};
  c->pixels = kr_alloc_array(n, sizeof *c->pixels), c->mask = kr_alloc_array(n, 1);
  if (!c->pixels || !c->mask) kr_canvas_close(c);
  KR_CHECK(c->pixels, KRAIT_ERR_NO_MEMORY, "no memory for a picture of %d x %d pixels", width, height);
  for (size_t i = 0; i < n; i++) c->pixels[i] = 0xffffff;
  return KRAIT_OK;
}

void kr_canvas_close(kr_canvas *c) {
  kr_free(c->pixels);
  kr_free(c->mask);
  c->pixels = NULL, c->mask = NULL;
}

void kr_canvas_color(kr_canvas *c, double red, double green, double blue) {
  c->color[0] = red, c->color[1] = green, c->color[2] = blue;
}

void kr_canvas_pixel(kr_canvas *c, int32_t x, int32_t y, uint32_t color) {
  if (x >= 0 && x < c->width && y >= 0 && y < c->height) c->pixels[(int64_t)y * c->width + x] = color;
}

static void blend(kr_canvas *c, int32_t x, int32_t y, double share) {
  uint32_t *pixel = c->pixels + (int64_t)y * c->width + x, mixed = 0;
  for (int i = 0, shift = 16; i < 3; i++, shift -= 8) {
    const double old = *pixel >> shift & FULL;
    mixed |= (uint32_t)(old + (FULL * c->color[i] - old) * share * c->opacity + 0.5) << shift;
  }
  *pixel = mixed;
}

/* ---- strokes ---- */
static int32_t clamp(double v, int32_t most) { return v < 0 ? 0 : v > most ? most : (int32_t)v; }

/* The square of the distance of (x, y) from the segment from a over d. */
static double distance2(const double *a, const double *d, double length2, double x, double y) {
  const double along = length2 > 0 ? ((x - a[0]) * d[0] + (y - a[1]) * d[1]) / length2 : 0;
  const double at = along < 0 ? 0 : along > 1 ? 1 : along, dx = x - a[0] - at * d[0], dy = y - a[1] - at * d[1];
  return dx * dx + dy * dy;
}

static void cover(kr_canvas *c, double x0, double y0, double x1, double y1, double radius) {
  const double a[2] = {x0, y0}, d[2] = {x1 - x0, y1 - y0}, length2 = d[0] * d[0] + d[1] * d[1];
  /* a line thinner than a pixel is a pale one */
  const double far = fmax(radius, 0.5) + 0.5, most = FULL * fmin(1, 2 * radius);
  if (!isfinite(x0 + y0 + x1 + y1)) return;
  const int32_t left = clamp(fmin(x0, x1) - far, c->width), right = clamp(fmax(x0, x1) + far + 1, c->width);
  const int32_t top = clamp(fmin(y0, y1) - far, c->height), bottom = clamp(fmax(y0, y1) + far + 1, c->height);
  for (int32_t y = top; y < bottom; y++)
    for (int32_t x = left; x < right; x++) {
      const double d2 = distance2(a, d, length2, x + 0.5, y + 0.5);
      if (d2 >= far * far) continue;
      const uint8_t covered = (uint8_t)(most * fmin(1, far - sqrt(d2)) + 0.5);
      uint8_t *mask = c->mask + (int64_t)y * c->width + x;
      if (covered > *mask) *mask = covered;
    }
  if (left >= right || top >= bottom) return;
  const int is_empty = c->x1 == 0;
  c->x0 = is_empty || left < c->x0 ? left : c->x0, c->x1 = right > c->x1 ? right : c->x1;
  c->y0 = is_empty || top < c->y0 ? top : c->y0, c->y1 = bottom > c->y1 ? bottom : c->y1;
}

void kr_canvas_move(kr_canvas *c, double x, double y) { c->x = x, c->y = y; }

void kr_canvas_line(kr_canvas *c, double x, double y) {
  cover(c, c->x, c->y, x, y, c->thickness / 2);
  kr_canvas_move(c, x, y);
}

void kr_canvas_curve(kr_canvas *c, double control_x, double control_y, double x, double y) {
  const double x0 = c->x, y0 = c->y;
  for (int i = 1; i <= CURVE_PIECES; i++) {
    const double t = (double)i / CURVE_PIECES, u = 1 - t;
    kr_canvas_line(c, u * u * x0 + 2 * u * t * control_x + t * t * x, u * u * y0 + 2 * u * t * control_y + t * t * y);
  }
}

void kr_canvas_end(kr_canvas *c) {
  for (int32_t y = c->y0; y < c->y1; y++) {
    uint8_t *row = c->mask + (int64_t)y * c->width;
    for (int32_t x = c->x0; x < c->x1; x++)
      if (row[x]) blend(c, x, y, row[x] / (double)FULL);
    memset(row + c->x0, 0, (size_t)(c->x1 - c->x0));
  }
  c->x0 = c->y0 = c->x1 = c->y1 = 0;
}

/* ---- shapes ---- */
void kr_canvas_frame(kr_canvas *c, double x, double y, double width, double height) {
  kr_canvas_move(c, x, y);
  kr_canvas_line(c, x + width, y), kr_canvas_line(c, x + width, y + height);
  kr_canvas_line(c, x, y + height), kr_canvas_line(c, x, y);
  kr_canvas_end(c);
}

/* How much of [at, at + 1] is in [from, to]. */
static double overlap(double at, double from, double to) { return fmax(0, fmin(at + 1, to) - fmax(at, from)); }

void kr_canvas_fill(kr_canvas *c, double x, double y, double width, double height) {
  const int32_t right = clamp(ceil(x + width), c->width), bottom = clamp(ceil(y + height), c->height);
  for (int32_t row = clamp(y, c->height); row < bottom; row++)
    for (int32_t column = clamp(x, c->width); column < right; column++)
      blend(c, column, row, overlap(row, y, y + height) * overlap(column, x, x + width));
}

void kr_canvas_dot(kr_canvas *c, double x, double y, double radius) {
  cover(c, x, y, x, y, radius);
  kr_canvas_end(c);
}
