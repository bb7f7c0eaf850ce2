/* sheet.c: a contact sheet: four frames per row with their times and scores; those that the video tower saw have a
 * border. */
#define _GNU_SOURCE
#include <cairo.h>
#include <stdio.h>

#include "charts.h"
#include "clocale.h"
#include "describer.h"

enum { COLUMNS = 4, GAP = 12, CAPTION = 22, LEGEND = 66, BORDER = 4, LEAST = 120 /* pixels of a frame on the sheet */ };

static int is_chosen(const krait_video_info *film, int i) {
  for (int k = 0; k < KRAIT_FILM_CHOSEN; k++)
    if (film->chosen[k] == i) return 1;
  return 0;
}

/* A frame's bytes in cairo's format. */
static cairo_surface_t *picture_of(const uint8_t *rgb, int64_t side) {
  cairo_surface_t *picture = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)side, (int)side);
  uint8_t *data = cairo_image_surface_get_data(picture);
  if (!data) return picture;
  const int stride = cairo_image_surface_get_stride(picture);
  for (int64_t y = 0; y < side; y++)
    for (int64_t x = 0; x < side; x++) {
      const uint8_t *at = rgb + 3 * (y * side + x);
      *(uint32_t *)(void *)(data + y * stride + 4 * x) = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
    }
  cairo_surface_mark_dirty(picture);
  return picture;
}

static void put_sheet_frame(cairo_t *c, const krait_video_info *film, const uint8_t *rgb, int64_t side, int i,
                            double size) {
  const double x = GAP + i % COLUMNS * (size + GAP), y = GAP + i / COLUMNS * (size + GAP + CAPTION);
  char text[64];
  if (is_chosen(film, i)) {
    cairo_set_source_rgb(c, 0.95, 0.55, 0.1);
    cairo_rectangle(c, x - BORDER, y - BORDER, size + 2 * BORDER, size + 2 * BORDER);
    cairo_fill(c);
  }
  cairo_surface_t *picture = picture_of(rgb, side);
  cairo_save(c);
  cairo_translate(c, x, y);
  cairo_scale(c, size / (double)side, size / (double)side);
  cairo_set_source_surface(c, picture, 0, 0);
  cairo_pattern_set_filter(cairo_get_source(c), CAIRO_FILTER_NEAREST);
  cairo_rectangle(c, 0, 0, (double)side, (double)side);
  cairo_fill(c);
  cairo_restore(c);
  cairo_surface_destroy(picture);
  if (film->fps > 0)
    snprintf(text, sizeof text, "%.1f s, score %.0f", (double)film->at[i] / film->fps, film->score[i]);
  else
    snprintf(text, sizeof text, "frame %lld, score %.0f", (long long)film->at[i], film->score[i]);
  cairo_set_source_rgb(c, 0.2, 0.2, 0.2);
  kr_chart_text(c, x, y + size + 18, KR_CHART_LEFT, 13, text);
}

/* What the border and the numbers mean. */
static void put_sheet_legend(cairo_t *c, double y) {
  cairo_set_source_rgb(c, 0.95, 0.55, 0.1);
  cairo_rectangle(c, GAP, y + 4, 14, 14);
  cairo_fill(c);
  cairo_set_source_rgb(c, 1, 1, 1);
  cairo_rectangle(c, GAP + 3, y + 7, 8, 8);
  cairo_fill(c);
  cairo_set_source_rgb(c, 0.2, 0.2, 0.2);
  kr_chart_text(c, GAP + 22, y + 16, KR_CHART_LEFT, 13, "chosen: the video tower saw these frames too");
  kr_chart_text(c, GAP, y + 36, KR_CHART_LEFT, 13, "score: the attention that a frame receives from its half of them;");
  kr_chart_text(c, GAP, y + 54, KR_CHART_LEFT, 13, "the highest four of each half are chosen");
}

int32_t kr_describer_draw(const krait_video_info *film, const uint8_t *frames, int64_t side, const char *png_path) {
  const double size = side < LEAST ? LEAST : (double)side, width = GAP + COLUMNS * (size + GAP);
  const double below = GAP + (film->n + COLUMNS - 1) / COLUMNS * (size + GAP + CAPTION);
  cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)width, (int)(below + LEGEND));
  cairo_t *c = cairo_create(surface);
  const locale_t locale = kr_c_locale_begin();
  cairo_set_source_rgb(c, 1, 1, 1);
  cairo_paint(c);
  cairo_select_font_face(c, "sans", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  for (int i = 0; i < film->n; i++) put_sheet_frame(c, film, frames + i * side * side * 3, side, i, size);
  put_sheet_legend(c, below);
  kr_c_locale_end(locale);
  const int32_t status = kr_chart_write(c, png_path);
  cairo_destroy(c);
  cairo_surface_destroy(surface);
  return status;
}
