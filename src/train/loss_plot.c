/* loss_plot.c: see loss_plot.h. Losses have a logarithmic axis, because their weights differ. */
#define _GNU_SOURCE
#include "loss_plot.h"

#include <cairo.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "clocale.h"
#include "outfile.h"
#include "status.h"

enum { WIDTH = 1000, HEIGHT = 640, LEFT = 78, RIGHT = 170, TOP = 30, BOTTOM = 56, N_CURVES = 9 };

static const struct {
  const char *key;
  double red, green, blue;
} curves[N_CURVES] = {{"total", 0, 0, 0},           {"valid", 0.84, 0.15, 0.16},   {"magnitude", 0.12, 0.47, 0.71},
                      {"phase_ip", 1, 0.5, 0.05},   {"complex", 0.17, 0.63, 0.17}, {"consistency", 0.58, 0.4, 0.74},
                      {"metric", 0.55, 0.34, 0.29}, {"disc_g", 0.89, 0.47, 0.76},  {"disc_r", 0.5, 0.5, 0.5}};

typedef struct history {
  double *values; /* (n, 1 + N_CURVES): the step, then a value of each curve; NAN: none */
  int64_t n, room;
} history;

static int32_t take_line(history *h, const char *line) {
  json_t *record = json_loads(line, 0, NULL);
  if (!json_is_object(record)) { /* the last line of a run that was killed */
    json_decref(record);
    return KRAIT_OK;
  }
  if (h->n == h->room) {
    const int64_t room = h->room ? 2 * h->room : 256;
    double *values = kr_realloc(h->values, (size_t)(h->room * (1 + N_CURVES)) * sizeof *values,
                                (size_t)(room * (1 + N_CURVES)) * sizeof *values);
    if (!values) json_decref(record);
    KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a run's log");
    h->values = values, h->room = room;
  }
  double *row = h->values + h->n++ * (1 + N_CURVES);
  row[0] = json_number_value(json_object_get(record, "step"));
  for (int i = 0; i < N_CURVES; i++) {
    const json_t *value = json_object_get(record, curves[i].key);
    row[1 + i] = json_is_number(value) && json_number_value(value) > 0 ? json_number_value(value) : NAN;
  }
  json_decref(record);
  return KRAIT_OK;
}

static int32_t read_log(history *h, const char *path) {
  char line[4096];
  FILE *file = fopen(path, "r");
  KR_CHECK(file, KRAIT_ERR_FILE_READ, "%s: %s", path, strerror(errno));
  int32_t status = KRAIT_OK;
  while (status >= 0 && fgets(line, sizeof line, file)) status = take_line(h, line);
  fclose(file);
  KR_CHECK(status < 0 || h->n, KRAIT_ERR_FILE_FORMAT, "%s has no line of progress", path);
  return status;
}

typedef struct axes {
  double step0, step1, low, high; /* low, high: powers of ten */
} axes;

static axes axes_of(const history *h) {
  axes a = {h->values[0], h->values[(h->n - 1) * (1 + N_CURVES)], INFINITY, -INFINITY};
  for (int64_t n = 0; n < h->n; n++)
    for (int i = 1; i <= N_CURVES; i++) {
      const double v = h->values[n * (1 + N_CURVES) + i];
      if (!isnan(v)) a.low = fmin(a.low, floor(log10(v))), a.high = fmax(a.high, ceil(log10(v)));
    }
  if (!(a.step1 > a.step0)) a.step1 = a.step0 + 1;
  if (!(a.high > a.low)) a.low = isfinite(a.low) ? a.low : 0, a.high = a.low + 1;
  return a;
}

static double x_of(const axes *a, double step) {
  return LEFT + (step - a->step0) / (a->step1 - a->step0) * (WIDTH - LEFT - RIGHT);
}
static double y_of(const axes *a, double power) {
  return HEIGHT - BOTTOM - (power - a->low) / (a->high - a->low) * (HEIGHT - TOP - BOTTOM);
}

static void put_text(cairo_t *c, double x, double y, double part, const char *text) {
  cairo_text_extents_t extents;
  cairo_text_extents(c, text, &extents);
  cairo_move_to(c, x - part * extents.x_advance, y);
  cairo_show_text(c, text);
}

static void put_axes(cairo_t *c, const axes *a) {
  char text[40];
  cairo_set_line_width(c, 1);
  for (double power = a->low; power <= a->high; power++) {
    const double y = y_of(a, power);
    cairo_set_source_rgb(c, 0.85, 0.85, 0.85);
    cairo_move_to(c, LEFT, y), cairo_line_to(c, WIDTH - RIGHT, y), cairo_stroke(c);
    cairo_set_source_rgb(c, 0, 0, 0);
    snprintf(text, sizeof text, "%.6g", pow(10, power));
    put_text(c, LEFT - 8, y + 4, 1, text);
  }
  for (int i = 0; i <= 5; i++) {
    const double step = a->step0 + i * (a->step1 - a->step0) / 5, x = x_of(a, step);
    cairo_move_to(c, x, HEIGHT - BOTTOM), cairo_line_to(c, x, HEIGHT - BOTTOM + 5), cairo_stroke(c);
    snprintf(text, sizeof text, "%.0f", step);
    put_text(c, x, HEIGHT - BOTTOM + 20, 0.5, text);
  }
  cairo_rectangle(c, LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM), cairo_stroke(c);
  put_text(c, (WIDTH + LEFT - RIGHT) / 2.0, HEIGHT - 14, 0.5, "step");
}

static void put_curve(cairo_t *c, const history *h, const axes *a, int i, double *legend_y) {
  int n_points = 0;
  cairo_set_source_rgb(c, curves[i].red, curves[i].green, curves[i].blue);
  cairo_set_line_width(c, i < 2 ? 2 : 1);
  for (int64_t n = 0; n < h->n; n++) {
    const double *row = h->values + n * (1 + N_CURVES), v = row[1 + i];
    if (isnan(v)) continue;
    if (n_points++) cairo_line_to(c, x_of(a, row[0]), y_of(a, log10(v)));
    else cairo_move_to(c, x_of(a, row[0]), y_of(a, log10(v)));
  }
  cairo_stroke(c);
  if (!n_points) return;
  cairo_move_to(c, WIDTH - RIGHT + 16, *legend_y - 4), cairo_line_to(c, WIDTH - RIGHT + 40, *legend_y - 4),
      cairo_stroke(c);
  put_text(c, WIDTH - RIGHT + 48, *legend_y, 0, curves[i].key);
  *legend_y += 22;
}

static cairo_status_t write_bytes(void *user, const unsigned char *bytes, unsigned int n) {
  return fwrite(bytes, 1, n, user) == n ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static int32_t write_png(cairo_surface_t *surface, const char *path) {
  kr_outfile out;
  KR_TRY(kr_outfile_begin(&out, path));
  FILE *file = fopen(out.temp_path, "wb");
  int failed = !file || cairo_surface_write_to_png_stream(surface, write_bytes, file) != CAIRO_STATUS_SUCCESS;
  if (file && fclose(file) != 0) failed = 1;
  const int32_t status =
      failed ? kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", path) : kr_outfile_commit(&out);
  kr_outfile_abandon(&out);
  return status;
}

int32_t kr_loss_plot_write(const char *log_path, const char *png_path) {
  history h = {0};
  int32_t status = read_log(&h, log_path);
  if (status >= 0) {
    const axes a = axes_of(&h);
    double legend_y = TOP + 14;
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH, HEIGHT);
    cairo_t *c = cairo_create(surface);
    const locale_t locale = kr_c_locale_begin();
    cairo_set_source_rgb(c, 1, 1, 1), cairo_paint(c);
    cairo_select_font_face(c, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL),
        cairo_set_font_size(c, 13);
    put_axes(c, &a);
    for (int i = N_CURVES - 1; i >= 0; i--) put_curve(c, &h, &a, i, &legend_y);
    kr_c_locale_end(locale);
    status = cairo_status(c) == CAIRO_STATUS_SUCCESS ? write_png(surface, png_path)
                                                     : kr_fail(KRAIT_ERR_UNSUPPORTED, "cannot draw %s: %s", png_path,
                                                               cairo_status_to_string(cairo_status(c)));
    cairo_destroy(c);
    cairo_surface_destroy(surface);
  }
  kr_free(h.values);
  return status;
}
