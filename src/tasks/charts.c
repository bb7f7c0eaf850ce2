/* charts.c: cairo's calls that every picture needs. */
#define _GNU_SOURCE
#include "charts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "status.h"

void kr_chart_text(cairo_t *c, double x, double y, int align, double size, const char *text) {
  cairo_text_extents_t extents;
  cairo_set_font_size(c, size);
  cairo_text_extents(c, text, &extents);
  const double part = align == KR_CHART_LEFT ? 0 : align == KR_CHART_CENTER ? 0.5 : 1;
  cairo_move_to(c, x - part * extents.x_advance, y);
  cairo_show_text(c, text);
}

void kr_chart_upright_text(cairo_t *c, double x, double y, double size, const char *text) {
  cairo_save(c);
  cairo_translate(c, x, y);
  cairo_rotate(c, -3.14159265358979323846 / 2);
  kr_chart_text(c, 0, 0, KR_CHART_CENTER, size, text);
  cairo_restore(c);
}

void kr_chart_line(cairo_t *c, double x0, double y0, double x1, double y1) {
  cairo_move_to(c, x0, y0);
  cairo_line_to(c, x1, y1);
  cairo_stroke(c);
}

double kr_chart_step(double span, int n_most) {
  static const double factors[] = {1, 2, 5, 10};
  const double step = pow(10, floor(log10(span / n_most)));
  for (int i = 0; i < 4; i++)
    if (span / (step * factors[i]) <= n_most) return step * factors[i];
  return step * 10;
}

static cairo_status_t write_bytes(void *user, const unsigned char *bytes, unsigned int n) {
  return fwrite(bytes, 1, n, user) == n ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

int32_t kr_chart_put(cairo_t *c, const kr_outfile *target) {
  if (cairo_status(c) != CAIRO_STATUS_SUCCESS)
    return kr_fail(KRAIT_ERR_UNSUPPORTED, "cannot draw %s: %s", target->path, cairo_status_to_string(cairo_status(c)));
  FILE *file = fopen(target->temp_path, "wb");
  if (!file) return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", target->path);
  errno = 0;
  int failed = cairo_surface_write_to_png_stream(cairo_get_target(c), write_bytes, file) != CAIRO_STATUS_SUCCESS;
  if (fclose(file) != 0) failed = 1;
  return failed ? kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", target->path) : KRAIT_OK;
}

int32_t kr_chart_write(cairo_t *c, const char *png_path) {
  kr_outfile target = {0};
  int32_t status = kr_outfile_begin(&target, png_path);
  if (status >= 0) status = kr_chart_put(c, &target);
  if (status >= 0) status = kr_outfile_commit(&target);
  kr_outfile_abandon(&target);
  return status;
}
