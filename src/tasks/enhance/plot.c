/* plot.c: spectrograms with a fixed size in pixels, whatever the length of the recording: each column is the mean power
 * of its frames. Decibels are relative to a sine at full scale. */
#define _GNU_SOURCE
#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "audio.h"
#include "charts.h"
#include "clocale.h"
#include "colors.h"
#include "outfile.h"
#include "png.h"
#include "spectrum.h"
#include "status.h"
#include "track.h"

enum { N_FFT = 512, N_BINS = N_FFT / 2 + 1, N_COLUMNS = 1000, MAX_HZ = 48000, RANGE_DB = 70, MOST_PANELS = 3 };
enum {
  LEFT = 74,
  TOP = 92,
  GAP = 62,
  PANEL_HEIGHT = 2 * N_BINS / 2 + 23,
  BAR_LEFT = LEFT + N_COLUMNS + 24,
  BAR_WIDTH = 16
};
enum { IMAGE_WIDTH = BAR_LEFT + BAR_WIDTH + 74 };

static int panels_height(int n) { return n * PANEL_HEIGHT + (n - 1) * GAP; }
static int image_height(int n) { return TOP + panels_height(n) + 62; }

struct kr_plot {
  kr_outfile target;
};

typedef struct panel {
  float *power; /* N_COLUMNS * N_BINS */
  int32_t hz;
  double length_s;
} panel;

int32_t kr_plot_begin(const char *png_path, int keep_existing, kr_plot **plot) {
  kr_plot *p = kr_zalloc(sizeof *p);
  KR_CHECK(p, KRAIT_ERR_NO_MEMORY, "no memory for a picture");
  int32_t status = kr_outfile_begin(&p->target, png_path);
  p->target.keep |= keep_existing;
  if (status < 0) kr_free(p);
  else *plot = p;
  return status;
}

int32_t kr_plot_commit(kr_plot **plot) {
  int32_t status = kr_outfile_commit(&(*plot)->target);
  kr_plot_abandon(plot);
  return status;
}

void kr_plot_abandon(kr_plot **plot) {
  if (!*plot) return;
  kr_outfile_abandon(&(*plot)->target);
  kr_free(*plot);
  *plot = NULL;
}

/* ---- the numbers ---- */
static int32_t open_spectrum(kr_spectrum **spectrum) {
  float window[N_FFT];
  double sum = 0;
  for (int i = 0; i < N_FFT; i++) sum += window[i] = (float)(0.5 - 0.5 * cos(2 * 3.14159265358979323846 * i / N_FFT));
  for (int i = 0; i < N_FFT; i++) window[i] = (float)(window[i] * 2 / sum); /* a sine at full scale has power 1 */
  return kr_spectrum_open(N_FFT, window, N_FFT, spectrum);
}

/* Columns without frames (short recordings) repeat their left neighbour. */
static void finish_columns(panel *p, const int64_t *n_frames) {
  for (int c = 0; c < N_COLUMNS; c++) {
    float *column = p->power + (size_t)c * N_BINS;
    if (n_frames[c] == 0 && c > 0) memcpy(column, column - N_BINS, N_BINS * sizeof(float));
    for (int k = 0; k < N_BINS && n_frames[c] > 0; k++) column[k] /= (float)n_frames[c];
  }
}

static int32_t sum_frames(panel *p, kr_track *track, kr_spectrum *spectrum, int64_t *n_frames) {
  float frame[N_FFT] = {0}, power[N_BINS];
  const int64_t length = kr_track_length(track);
  int64_t hop = length / N_COLUMNS;
  hop = hop < 32 ? 32 : hop > N_FFT / 2 ? N_FFT / 2 : hop;
  for (int64_t at = -hop / 2, n = hop; n == hop; at += hop) { /* `at`: middle of the block just read */
    memmove(frame, frame + hop, (size_t)(N_FFT - hop) * sizeof(float));
    KR_TRY(kr_track_read(track, frame + N_FFT - hop, hop, &n));
    memset(frame + N_FFT - hop + n, 0, (size_t)(hop - n) * sizeof(float));
    const int64_t column = (at + hop - N_FFT / 2) * N_COLUMNS / (length > 0 ? length : 1);
    if (at + hop < N_FFT / 2 || column >= N_COLUMNS) continue;
    kr_spectrum_power(spectrum, frame, power);
    for (int k = 0; k < N_BINS; k++) p->power[column * N_BINS + k] += power[k];
    n_frames[column]++;
  }
  return KRAIT_OK;
}

static int32_t read_panel(panel *p, const char *path, int32_t hz) {
  int64_t n_frames[N_COLUMNS] = {0};
  kr_track *track = NULL;
  kr_spectrum *spectrum = NULL;
  p->power = kr_alloc_array((size_t)N_COLUMNS * N_BINS, sizeof(float));
  KR_CHECK(p->power, KRAIT_ERR_NO_MEMORY, "no memory for a spectrogram");
  p->hz = hz;
  KR_TRY(open_spectrum(&spectrum));
  int32_t status = kr_track_open(path, 0, hz, &track);
  if (status == KRAIT_OK) {
    p->length_s = (double)kr_track_length(track) / hz;
    status = sum_frames(p, track, spectrum, n_frames);
  }
  if (status == KRAIT_OK) finish_columns(p, n_frames);
  kr_track_close(&track);
  kr_spectrum_close(&spectrum);
  return status;
}

/* The level exceeded by one cell in 2000: determines the top of the colour scale. */
static double high_db(const panel *p) {
  enum { LOWEST = -150, STEPS = 200 };
  int64_t n_cells[STEPS] = {0}, left = N_COLUMNS * N_BINS / 2000;
  for (size_t i = 0; i < (size_t)N_COLUMNS * N_BINS; i++) {
    const double at = 10 * log10(p->power[i] + 1e-20) - LOWEST;
    n_cells[at < 0 ? 0 : at >= STEPS ? STEPS - 1 : (int)at]++;
  }
  int step = STEPS - 1;
  for (; step > 0 && left >= n_cells[step]; step--) left -= n_cells[step];
  return LOWEST + step + 1;
}

/* ---- the drawing ---- */
static void put_tick(kr_canvas *c, double x0, double y0, double x1, double y1) {
  c->thickness = 1;
  kr_chart_line(c, x0, y0, x1, y1);
}

static void put_plot_frame(kr_canvas *c, double x, double y, double width, double height) {
  c->thickness = 1;
  kr_canvas_frame(c, x - 0.5, y - 0.5, width + 1, height + 1);
}

/* The panel is higher than its bins: a pixel between two of them has the power between theirs. */
static void put_pixels(kr_canvas *c, const panel *p, int32_t top, double top_db) {
  for (int32_t y = 0; y < PANEL_HEIGHT; y++) {
    const double at = (PANEL_HEIGHT - 1 - y) * (N_BINS - 1.0) / (PANEL_HEIGHT - 1);
    const int bin = at < N_BINS - 1 ? (int)at : N_BINS - 2;
    for (int32_t x = 0; x < N_COLUMNS; x++) {
      const float *power = p->power + (size_t)x * N_BINS + bin;
      const double between = power[0] + (at - bin) * (power[1] - power[0]);
      kr_canvas_pixel(c, LEFT + x, top + y, kr_color(1 + (10 * log10(between + 1e-20) - top_db) / RANGE_DB));
    }
  }
}

static void put_axes(kr_canvas *c, const panel *p, double y, const char *name) {
  char text[40];
  const double bottom = y + PANEL_HEIGHT, top_khz = p->hz / 2000.0;
  kr_canvas_color(c, 0, 0, 0);
  put_plot_frame(c, LEFT, y, N_COLUMNS, PANEL_HEIGHT);
  kr_chart_text(c, LEFT, y - 8, KR_CHART_LEFT, 14, name);
  const double step_s = kr_chart_step(p->length_s, 10), step_khz = kr_chart_step(top_khz, 4);
  for (int i = 0; i * step_s <= p->length_s * 1.0001; i++) {
    const double x = LEFT + i * step_s / p->length_s * N_COLUMNS;
    put_tick(c, x, bottom, x, bottom + 5);
    snprintf(text, sizeof text, "%.6g", i * step_s);
    kr_chart_text(c, x, bottom + 19, KR_CHART_CENTER, 12, text);
  }
  for (int i = 0; i * step_khz <= top_khz * 1.0001; i++) {
    const double at = bottom - i * step_khz / top_khz * PANEL_HEIGHT;
    put_tick(c, LEFT - 5, at, LEFT, at);
    snprintf(text, sizeof text, "%.4g", i * step_khz);
    kr_chart_text(c, LEFT - 9, at + 4, KR_CHART_RIGHT, 12, text);
  }
  kr_chart_upright_text(c, 24, y + PANEL_HEIGHT / 2.0, 13, "frequency (kHz)");
}

static void put_color_bar(kr_canvas *c, double top_db, double height) {
  char text[40];
  for (int i = 0; i < (int)height; i++) {
    const uint32_t color = kr_color(1 - i / height);
    kr_canvas_color(c, (color >> 16 & 255) / 255.0, (color >> 8 & 255) / 255.0, (color & 255) / 255.0);
    kr_canvas_fill(c, BAR_LEFT, TOP + i, BAR_WIDTH, 1);
  }
  kr_canvas_color(c, 0, 0, 0);
  put_plot_frame(c, BAR_LEFT, TOP, BAR_WIDTH, height);
  for (int db = 0; db <= RANGE_DB; db += 10) {
    const double y = TOP + height * db / RANGE_DB;
    put_tick(c, BAR_LEFT + BAR_WIDTH, y, BAR_LEFT + BAR_WIDTH + 5, y);
    snprintf(text, sizeof text, "%s%.0f", db ? "" : "\xe2\x89\xa5", fabs(top_db - db) < 0.5 ? 0 : top_db - db);
    kr_chart_text(c, BAR_LEFT + BAR_WIDTH + 9, y + 4, KR_CHART_LEFT, 12, text);
  }
  kr_chart_upright_text(c, BAR_LEFT + BAR_WIDTH + 58, TOP + height / 2, 13, "power (dB re full-scale sine)");
}

static void draw_plot(kr_canvas *c, const kr_plot_text *text, const panel *panels, int n) {
  static const char *const names[MOST_PANELS] = {"before", "after", "reference (clean)"};
  const char *slash = strrchr(text->title, '/');
  double top_db = RANGE_DB - 150;
  for (int i = 0; i < n; i++) top_db = fmax(top_db, ceil(high_db(&panels[i]) / 10) * 10);
  for (int i = 0; i < n; i++) {
    const double y = TOP + i * (PANEL_HEIGHT + GAP);
    put_pixels(c, &panels[i], TOP + i * (PANEL_HEIGHT + GAP), top_db);
    put_axes(c, &panels[i], y, names[i]);
  }
  kr_chart_text(c, LEFT + N_COLUMNS / 2.0, image_height(n) - 16, KR_CHART_CENTER, 13, "time (s)");
  kr_chart_text(c, LEFT + N_COLUMNS / 2.0, 28, KR_CHART_CENTER, 18,
           strcmp(text->title, "-") == 0 ? "standard input"
           : slash                       ? slash + 1
                                         : text->title);
  kr_chart_text(c, LEFT + N_COLUMNS / 2.0, 52, KR_CHART_CENTER, 14, text->scores);
  put_color_bar(c, top_db, panels_height(n));
}

static int32_t draw_surface(const kr_plot *plot, const kr_plot_text *text, const panel *panels, int n) {
  kr_canvas c;
  KR_TRY(kr_canvas_open(&c, IMAGE_WIDTH, image_height(n)));
  const locale_t locale = kr_c_locale_begin();
  draw_plot(&c, text, panels, n);
  kr_c_locale_end(locale);
  const int32_t status = kr_png_put(&plot->target, c.pixels, c.width, c.height);
  kr_canvas_close(&c);
  return status;
}

int32_t kr_plot_draw(kr_plot *plot, const kr_plot_text *text, const char *before_path, const char *after_path,
                     const char *reference_path) {
  const char *const paths[MOST_PANELS] = {before_path, after_path, reference_path};
  const int n = reference_path ? 3 : 2;
  panel panels[MOST_PANELS] = {{0}};
  kr_audio_in *in = NULL;
  KR_TRY(kr_audio_open(before_path, &in));
  const int32_t rate = kr_audio_in_info(in)->sample_rate_hz, hz = rate < MAX_HZ ? rate : MAX_HZ;
  kr_audio_close(&in);
  int32_t status = KRAIT_OK;
  for (int i = 0; i < n && status == KRAIT_OK; i++) status = read_panel(&panels[i], paths[i], hz);
  if (status == KRAIT_OK) status = draw_surface(plot, text, panels, n);
  for (int i = 0; i < n; i++) kr_free(panels[i].power);
  return status;
}
