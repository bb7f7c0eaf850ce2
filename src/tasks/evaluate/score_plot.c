/* score_plot.c: one line per recording, from its score before to that after, sorted by the first measure. */
#define _GNU_SOURCE
#include <krait/data.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "charts.h"
#include "clocale.h"
#include "status.h"

enum { LEFT = 230, TOP = 84, BOTTOM = 70, PANEL = 420, GAP = 46, RIGHT = 30, MOST_HEIGHT = 1200, LEAST_HEIGHT = 120 };
enum { NAMED_HEIGHT = 13 /* pixels that a line needs to have a name */ };

typedef struct chart {
  const krait_score_rows *rows;
  int64_t *order;
  double line; /* pixels per recording */
  double height;
} chart;

static double score_at(const chart *ch, int64_t row, int measure, int is_after) {
  return (is_after ? ch->rows->after : ch->rows->before)[row * ch->rows->n_measures + measure];
}

static double last_score(const krait_score_rows *r, int64_t row) {
  const double v = (r->after ? r->after : r->before)[row * r->n_measures];
  return isfinite(v) ? v : -INFINITY;
}

static int by_score(const void *a, const void *b, void *rows) {
  const int64_t i = *(const int64_t *)a, k = *(const int64_t *)b;
  const double x = last_score(rows, i), y = last_score(rows, k);
  return x != y ? (x < y) - (x > y) : (i > k) - (i < k);
}

typedef struct scale {
  double low, high, x;
} scale;

static scale scale_of(const chart *ch, int measure) {
  scale s = {INFINITY, -INFINITY, LEFT + measure * (PANEL + GAP)};
  for (int64_t i = 0; i < ch->rows->n_rows; i++)
    for (int side = 0; side <= (ch->rows->after != NULL); side++) {
      const double v = score_at(ch, i, measure, side);
      if (isfinite(v)) s.low = fmin(s.low, v), s.high = fmax(s.high, v);
    }
  if (!(s.high >= s.low)) s.low = 0, s.high = 1;
  const double step = kr_chart_step(fmax(s.high - s.low, 1e-3), 6);
  s.low = floor(s.low / step + 0.01) * step, s.high = ceil(s.high / step + 1e-9) * step;
  return s;
}

static double x_of(const scale *s, double v) { return s->x + (v - s->low) / (s->high - s->low) * PANEL; }

static void put_scale(kr_canvas *c, const chart *ch, const scale *s, const char *title) {
  char text[40];
  const double step = kr_chart_step(s->high - s->low, 6), bottom = TOP + ch->height;
  c->thickness = 1;
  for (double v = ceil(s->low / step - 0.01) * step; v <= s->high + step / 100; v += step) {
    kr_canvas_color(c, 0.88, 0.88, 0.88);
    kr_chart_line(c, x_of(s, v), TOP, x_of(s, v), bottom);
    kr_canvas_color(c, 0, 0, 0);
    snprintf(text, sizeof text, "%.4g", fabs(v) < step / 100 ? 0 : v);
    kr_chart_text(c, x_of(s, v), bottom + 18, KR_CHART_CENTER, 12, text);
  }
  kr_canvas_frame(c, s->x, TOP, PANEL, ch->height);
  kr_chart_text(c, s->x + PANEL / 2.0, TOP - 10, KR_CHART_CENTER, 14, title);
}

static void put_dot(kr_canvas *c, double x, double y, double radius, int is_after) {
  kr_canvas_color(c, is_after ? 0.12 : 0.55, is_after ? 0.47 : 0.55, is_after ? 0.71 : 0.55);
  kr_canvas_dot(c, x, y, radius);
}

/* A score that became worse is red. */
static void put_line(kr_canvas *c, const chart *ch, const scale *s, int64_t at, int measure) {
  const int64_t row = ch->order[at];
  const double before = score_at(ch, row, measure, 0), y = TOP + (0.5 + (double)at) * ch->line,
               after = ch->rows->after ? score_at(ch, row, measure, 1) : NAN, radius = fmin(4, ch->line / 2.5);
  if (isfinite(before) && isfinite(after)) {
    if (after >= before) kr_canvas_color(c, 0.62, 0.78, 0.9);
    else kr_canvas_color(c, 0.9, 0.35, 0.3);
    c->thickness = fmin(2.5, ch->line / 2);
    kr_chart_line(c, x_of(s, before), y, x_of(s, after), y);
  }
  if (isfinite(before)) put_dot(c, x_of(s, before), y, radius, 0);
  if (isfinite(after)) put_dot(c, x_of(s, after), y, radius, 1);
}

static void put_name(kr_canvas *c, const chart *ch, int64_t at) {
  const char *name = ch->rows->names[ch->order[at]];
  const size_t n = strlen(name);
  const char *end = n > 32 ? name + n - 31 : name;
  char text[64];
  while (n > 32 && (*end & 0xc0) == 0x80) end++; /* not within a character */
  snprintf(text, sizeof text, "%s%s", n > 32 ? "\xe2\x80\xa6" : "", end);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, LEFT - 10, TOP + (0.5 + (double)at) * ch->line + 4, KR_CHART_RIGHT, 12, text);
}

static void put_score_plot_legend(kr_canvas *c, const chart *ch, double width) {
  const krait_score_rows *r = ch->rows;
  char text[200];
  const double y = TOP + ch->height + 46;
  snprintf(text, sizeof text, "%lld recording%s, sorted by %s", (long long)r->n_rows, r->n_rows == 1 ? "" : "s",
           r->measures[0]);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, width / 2, 30, KR_CHART_CENTER, 18, r->title);
  kr_chart_text(c, width / 2, 54, KR_CHART_CENTER, 13, text);
  put_dot(c, LEFT, y - 4, 4, 0);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, LEFT + 10, y, KR_CHART_LEFT, 13, r->after ? "before" : "score");
  if (!r->after) return;
  put_dot(c, LEFT + 80, y - 4, 4, 1);
  kr_canvas_color(c, 0, 0, 0);
  kr_chart_text(c, LEFT + 90, y, KR_CHART_LEFT, 13, "after");
  kr_canvas_color(c, 0.9, 0.35, 0.3);
  kr_chart_text(c, LEFT + 150, y, KR_CHART_LEFT, 13, "red line: worse after");
}

static void draw_score_plot(kr_canvas *c, const chart *ch, double width) {
  const krait_score_rows *r = ch->rows;
  for (int m = 0; m < r->n_measures; m++) {
    const scale s = scale_of(ch, m);
    put_scale(c, ch, &s, r->measures[m]);
    for (int64_t i = 0; i < r->n_rows; i++) put_line(c, ch, &s, i, m);
  }
  for (int64_t i = 0; i < r->n_rows && ch->line >= NAMED_HEIGHT; i++) put_name(c, ch, i);
  put_score_plot_legend(c, ch, width);
}

int32_t krait_scores_plot(const krait_score_rows *r, const char *png_path) {
  KR_CHECK(r && png_path && r->size == sizeof *r && r->n_rows > 0 && r->n_rows < (int64_t)1 << 24 && r->title &&
               r->names && r->before && r->measures && r->n_measures > 0 && r->n_measures <= 4,
           KRAIT_ERR_ARGUMENT, "krait_scores_plot: rows need their size, a title, names, one to four measures, scores");
  const double line = fmin(20, (double)MOST_HEIGHT / (double)r->n_rows);
  chart ch = {r, kr_alloc_array((size_t)r->n_rows, sizeof *ch.order), line,
              fmax(LEAST_HEIGHT, line * (double)r->n_rows)};
  KR_CHECK(ch.order, KRAIT_ERR_NO_MEMORY, "no memory for the order of %lld recordings", (long long)r->n_rows);
  for (int64_t i = 0; i < r->n_rows; i++) ch.order[i] = i;
  qsort_r(ch.order, (size_t)r->n_rows, sizeof *ch.order, by_score, (void *)r);
  const double width = LEFT + r->n_measures * PANEL + (r->n_measures - 1) * GAP + RIGHT;
  kr_canvas c = {0};
  int32_t status = kr_canvas_open(&c, (int32_t)width, (int32_t)(TOP + ch.height + BOTTOM));
  const locale_t locale = kr_c_locale_begin();
  if (status >= 0) draw_score_plot(&c, &ch, width);
  kr_c_locale_end(locale);
  if (status >= 0) status = kr_chart_write(&c, png_path);
  kr_canvas_close(&c);
  kr_free(ch.order);
  return status;
}
