/* loss_plot.c: see loss_plot.h. Losses have a logarithmic axis, because their weights differ; each is drawn as it was
 * logged, pale, and smoothed. */
#define _GNU_SOURCE
#include "loss_plot.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "charts.h"
#include "clocale.h"
#include "status.h"

enum { WIDTH = 1100, HEIGHT = 760, LEFT = 78, RIGHT = 150, TOP = 64, BOTTOM = 56, GAP = 40, RATE_HEIGHT = 110 };
enum { LOSS_BOTTOM = HEIGHT - BOTTOM - RATE_HEIGHT - GAP, N_CURVES = 13, RATE = N_CURVES };

/* Named as krait train prints them; from up to three values of the log's line, which are added. */
static const struct {
  const char *name;
  const char *keys[3];
  double red, green, blue;
} curves[N_CURVES] = {{"total", {"total"}, 0, 0, 0},
                      {"valid", {"valid"}, 0.84, 0.15, 0.16},
                      {"magnitude", {"magnitude"}, 0.12, 0.47, 0.71},
                      {"phase", {"phase_ip", "phase_gd", "phase_iaf"}, 1, 0.5, 0.05},
                      {"complex", {"complex"}, 0.17, 0.63, 0.17},
                      {"consistency", {"consistency"}, 0.58, 0.4, 0.74},
                      {"metric", {"metric"}, 0.55, 0.34, 0.29},
                      {"disc", {"disc_r", "disc_g"}, 0.5, 0.5, 0.5},
                      {"time", {"time"}, 0.09, 0.75, 0.81},
                      {"disturbance", {"disturbance"}, 0.74, 0.74, 0.13},
                      {"pesq", {"pesq"}, 0.89, 0.47, 0.76},
                      {"si_sdr", {"si_sdr"}, 0.4, 0.65, 0.95},
                      {"stoi", {"stoi"}, 0.3, 0.3, 0.6}};

enum { COLUMNS = 2 + N_CURVES };

typedef struct history {
  double *values; /* (n, COLUMNS): the step, a value of each curve, the learning rate; NAN: none */
  int64_t n, capacity;
} history;

static int32_t take_line(history *h, const char *line) {
  json_t *record = json_loads(line, 0, NULL);
  if (!json_is_object(record)) { /* the last line of a run that was killed */
    json_decref(record);
    return KRAIT_OK;
  }
  if (h->n == h->capacity) {
    const int64_t capacity = h->capacity ? 2 * h->capacity : 256;
    double *values = kr_realloc(h->values, (size_t)(h->capacity * COLUMNS) * sizeof *values,
                                (size_t)(capacity * COLUMNS) * sizeof *values);
    if (!values) json_decref(record);
    KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a run's log");
    h->values = values, h->capacity = capacity;
  }
  double *row = h->values + h->n++ * COLUMNS;
  row[0] = json_number_value(json_object_get(record, "step"));
  for (int i = 0; i < N_CURVES; i++) {
    double sum = 0;
    for (int k = 0; k < 3 && curves[i].keys[k]; k++)
      sum += json_number_value(json_object_get(record, curves[i].keys[k]));
    row[1 + i] = sum > 0 ? sum : NAN;
  }
  row[1 + RATE] = json_number_value(json_object_get(record, "lr"));
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

/* ---- the axes ---- */
typedef struct axes {
  double step0, step1;
  double low, high; /* of the losses */
  double most_rate;
} axes;

/* The next 1, 2 or 5 times a power of ten, below or above. */
static double round_value(double value, int is_up) {
  static const double factors[] = {1, 2, 5, 10};
  const double power = pow(10, floor(log10(value)));
  for (int i = 0; i < 4; i++) {
    const double at = power * factors[is_up ? i : 3 - i];
    if (is_up ? at >= value * 0.999 : at <= value * 1.001) return at;
  }
  return power;
}

static axes axes_of(const history *h) {
  axes a = {h->values[0], h->values[(h->n - 1) * COLUMNS], INFINITY, 0, 0};
  for (int64_t n = 0; n < h->n; n++) {
    const double *row = h->values + n * COLUMNS;
    for (int i = 1; i <= N_CURVES; i++)
      if (!isnan(row[i])) a.low = fmin(a.low, row[i]), a.high = fmax(a.high, row[i]);
    a.most_rate = fmax(a.most_rate, row[1 + RATE]);
  }
  if (!(a.step1 > a.step0)) a.step1 = a.step0 + 1;
  if (!(a.high > 0)) a.low = 0.1, a.high = 1;
  a.low = round_value(fmax(a.low, a.high * 1e-6), 0), a.high = round_value(a.high, 1);
  if (!(a.high > a.low)) a.high = 10 * a.low;
  if (!(a.most_rate > 0)) a.most_rate = 1;
  return a;
}

static double x_of(const axes *a, double step) {
  return LEFT + (step - a->step0) / (a->step1 - a->step0) * (WIDTH - LEFT - RIGHT);
}
static double y_of(const axes *a, double loss) {
  return LOSS_BOTTOM - log(fmax(loss, a->low) / a->low) / log(a->high / a->low) * (LOSS_BOTTOM - TOP);
}
static double y_of_rate(const axes *a, double rate) {
  return HEIGHT - BOTTOM - rate / (1.08 * a->most_rate) * RATE_HEIGHT;
}

static void put_level(kr_canvas *c, double y, const char *text) {
  kr_canvas_color(c, 0.87, 0.87, 0.87);
  kr_chart_line(c, LEFT, y, WIDTH - RIGHT, y);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, LEFT - 8, y + 4, KR_CHART_RIGHT, 12, text);
}

static void put_loss_levels(kr_canvas *c, const axes *a) {
  static const int factors[] = {1, 2, 5};
  const int is_wide = a->high / a->low > 2e3; /* then powers of ten are enough */
  char text[40];
  for (double power = pow(10, floor(log10(a->low) + 1e-9)); power <= a->high * 1.001; power *= 10)
    for (int i = 0; i < (is_wide ? 1 : 3); i++) {
      const double at = power * factors[i];
      if (at < a->low * 0.999 || at > a->high * 1.001) continue;
      snprintf(text, sizeof text, "%.6g", at);
      put_level(c, y_of(a, at), text);
    }
}

static void put_axes(kr_canvas *c, const axes *a) {
  char text[40];
  const double step = kr_chart_step(a->step1 - a->step0, 8), bottom = HEIGHT - BOTTOM;
  c->thickness = 1;
  put_loss_levels(c, a);
  const double rate_step = kr_chart_step(a->most_rate, 3);
  for (int i = 0; i * rate_step <= a->most_rate * 1.001; i++) {
    snprintf(text, sizeof text, "%.3g", i * rate_step);
    put_level(c, y_of_rate(a, i * rate_step), text);
  }
  for (double at = ceil(a->step0 / step) * step; at <= a->step1 * 1.0001; at += step) {
    const double x = x_of(a, at);
    kr_canvas_color(c, 0.87, 0.87, 0.87);
    kr_chart_line(c, x, TOP, x, LOSS_BOTTOM), kr_chart_line(c, x, bottom - RATE_HEIGHT, x, bottom);
    kr_canvas_color(c, 0, 0, 0);
    kr_chart_line(c, x, bottom, x, bottom + 5);
    snprintf(text, sizeof text, "%.10g", at);
    kr_chart_text(c, x, bottom + 20, KR_CHART_CENTER, 12, text);
  }
  kr_canvas_frame(c, LEFT, TOP, WIDTH - LEFT - RIGHT, LOSS_BOTTOM - TOP);
  kr_canvas_frame(c, LEFT, bottom - RATE_HEIGHT, WIDTH - LEFT - RIGHT, RATE_HEIGHT);
  kr_chart_text(c, (WIDTH + LEFT - RIGHT) / 2.0, HEIGHT - 14, KR_CHART_CENTER, 13, "step");
  kr_chart_upright_text(c, 22, (TOP + LOSS_BOTTOM) / 2.0, 13, "loss");
  kr_chart_upright_text(c, 22, bottom - RATE_HEIGHT / 2.0, 13, "learning rate");
}

/* ---- the curves ---- */
/* An exponential mean over about a thirtieth of the lines; of few lines, and of validations, the values themselves. */
static void trace(kr_canvas *c, const history *h, const axes *a, int i, int is_smooth) {
  const double keep = is_smooth && i != 1 && h->n > 30 ? 1 - 30.0 / (double)h->n : 0;
  double mean = NAN;
  for (int64_t n = 0; n < h->n; n++) {
    const double *row = h->values + n * COLUMNS, v = row[1 + i];
    if (isnan(v)) continue;
    const int is_first = isnan(mean);
    mean = is_first ? v : keep * mean + (1 - keep) * v;
    if (is_first) kr_canvas_move(c, x_of(a, row[0]), y_of(a, mean));
    else kr_canvas_line(c, x_of(a, row[0]), y_of(a, mean));
    if (is_first && h->n == 1) kr_canvas_line(c, x_of(a, row[0]) + 1, y_of(a, mean));
  }
  kr_canvas_end(c);
}

/* Validations are few, and the first may be the only one. */
static void put_dots(kr_canvas *c, const history *h, const axes *a, int i) {
  for (int64_t n = 0; n < h->n; n++) {
    const double *row = h->values + n * COLUMNS;
    if (isnan(row[1 + i])) continue;
    kr_canvas_dot(c, x_of(a, row[0]), y_of(a, row[1 + i]), 4);
  }
}

static int has_curve(const history *h, int i) {
  for (int64_t n = 0; n < h->n; n++)
    if (!isnan(h->values[n * COLUMNS + 1 + i])) return 1;
  return 0;
}

static void put_curve(kr_canvas *c, const history *h, const axes *a, int i, double *legend_y) {
  if (!has_curve(h, i)) return;
  c->thickness = 1;
  kr_canvas_color(c, curves[i].red, curves[i].green, curves[i].blue);
  c->opacity = 0.25;
  if (h->n > 30 && i != 1) trace(c, h, a, i, 0);
  c->opacity = 1;
  c->thickness = i < 2 ? 2.5 : 1.5;
  trace(c, h, a, i, 1);
  if (i == 1) put_dots(c, h, a, i);
  kr_chart_line(c, WIDTH - RIGHT + 14, *legend_y - 4, WIDTH - RIGHT + 38, *legend_y - 4);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, WIDTH - RIGHT + 46, *legend_y, KR_CHART_LEFT, 13, curves[i].name);
  *legend_y += 21;
}

/* The learning rate is that of an epoch: it changes between two lines. */
static void put_rate(kr_canvas *c, const history *h, const axes *a) {
  kr_canvas_color(c, 0.12, 0.47, 0.71);
  c->thickness = 2;
  for (int64_t n = 0; n < h->n; n++) {
    const double *row = h->values + n * COLUMNS, x = x_of(a, row[0]), y = y_of_rate(a, row[1 + RATE]);
    if (n == 0) kr_canvas_move(c, x, y);
    else kr_canvas_line(c, x, y_of_rate(a, row[1 + RATE - COLUMNS])), kr_canvas_line(c, x, y);
  }
  kr_canvas_end(c);
}

static void put_titles(kr_canvas *c, const history *h, const char *log_path) {
  char text[300], folder[200];
  int64_t best = -1;
  for (int64_t n = 0; n < h->n; n++)
    if (!isnan(h->values[n * COLUMNS + 2]) && (best < 0 || h->values[n * COLUMNS + 2] < h->values[best * COLUMNS + 2]))
      best = n;
  const char *slash = strrchr(log_path, '/');
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - log_path) : 1, slash ? log_path : ".");
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, (WIDTH + LEFT - RIGHT) / 2.0, 28, KR_CHART_CENTER, 18, folder);
  const int n_text = snprintf(text, sizeof text, "training losses up to step %.0f", h->values[(h->n - 1) * COLUMNS]);
  if (best >= 0)
    snprintf(text + n_text, sizeof text - (size_t)n_text, "; lowest validation loss %.4g at step %.0f",
             h->values[best * COLUMNS + 2], h->values[best * COLUMNS]);
  kr_chart_text(c, (WIDTH + LEFT - RIGHT) / 2.0, 50, KR_CHART_CENTER, 13, text);
}

static void draw_loss_plot(kr_canvas *c, const history *h, const char *log_path) {
  const axes a = axes_of(h);
  double legend_y = TOP + 14;
  const locale_t locale = kr_c_locale_begin();
  put_axes(c, &a);
  put_titles(c, h, log_path);
  for (int i = 0; i < N_CURVES; i++) put_curve(c, h, &a, i, &legend_y);
  put_rate(c, h, &a);
  kr_c_locale_end(locale);
}

int32_t kr_loss_plot_write(const char *log_path, const char *png_path) {
  history h = {0};
  kr_canvas c = {0};
  int32_t status = read_log(&h, log_path);
  if (status >= 0) status = kr_canvas_open(&c, WIDTH, HEIGHT);
  if (status >= 0) draw_loss_plot(&c, &h, log_path);
  if (status >= 0) status = kr_chart_write(&c, png_path);
  kr_canvas_close(&c);
  kr_free(h.values);
  return status;
}
