/* charts.c: what every picture needs. */
#include "charts.h"

#include <math.h>

#include "png.h"
#include "status.h"
#include "stroke_font.h"

void kr_chart_text(kr_canvas *c, double x, double y, int align, double size, const char *text) {
  const double part = align == KR_CHART_LEFT ? 0 : align == KR_CHART_CENTER ? 0.5 : 1;
  kr_stroke_draw(c, x - part * kr_stroke_width(size, text), y, 0, size, text);
}

void kr_chart_upright_text(kr_canvas *c, double x, double y, double size, const char *text) {
  kr_stroke_draw(c, x, y + kr_stroke_width(size, text) / 2, 1, size, text);
}

void kr_chart_line(kr_canvas *c, double x0, double y0, double x1, double y1) {
  kr_canvas_move(c, x0, y0);
  kr_canvas_line(c, x1, y1);
  kr_canvas_end(c);
}

double kr_chart_step(double span, int n_most) {
  static const double factors[] = {1, 2, 5, 10};
  const double step = pow(10, floor(log10(span / n_most)));
  for (int i = 0; i < 4; i++)
    if (span / (step * factors[i]) <= n_most) return step * factors[i];
  return step * 10;
}

int32_t kr_chart_write(const kr_canvas *c, const char *png_path) {
  kr_outfile target = {0};
  int32_t status = kr_outfile_begin(&target, png_path);
  if (status >= 0) status = kr_png_put(&target, c->pixels, c->width, c->height);
  if (status >= 0) status = kr_outfile_commit(&target);
  kr_outfile_abandon(&target);
  return status;
}
