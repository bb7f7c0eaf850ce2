/* sheet.c: a contact sheet: four frames per row with their times and scores; those that the video tower saw have a
 * border. */
#define _GNU_SOURCE
#include <stdio.h>

#include "charts.h"
#include "clocale.h"
#include "describer.h"
#include "status.h"

enum { COLUMNS = 4, GAP = 12, CAPTION = 22, LEGEND = 66, BORDER = 4, LEAST = 120 /* pixels of a frame on the sheet */ };

static int is_chosen(const krait_video_info *film, int i) {
  for (int k = 0; k < KRAIT_FILM_CHOSEN; k++)
    if (film->chosen[k] == i) return 1;
  return 0;
}

/* Small ones are enlarged without smoothing. */
static void put_picture(kr_canvas *c, int32_t left, int32_t top, int32_t size, const uint8_t *rgb, int64_t side) {
  for (int32_t y = 0; y < size; y++)
    for (int32_t x = 0; x < size; x++) {
      const uint8_t *at = rgb + 3 * (y * side / size * side + x * side / size);
      kr_canvas_pixel(c, left + x, top + y, (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2]);
    }
}

static void put_sheet_frame(kr_canvas *c, const krait_video_info *film, const uint8_t *rgb, int64_t side, int i,
                            int32_t size) {
  const int32_t x = GAP + i % COLUMNS * (size + GAP), y = GAP + i / COLUMNS * (size + GAP + CAPTION);
  char text[64];
  if (is_chosen(film, i)) {
    kr_canvas_color(c, 0.95, 0.55, 0.1);
    kr_canvas_fill(c, x - BORDER, y - BORDER, size + 2 * BORDER, size + 2 * BORDER);
  }
  put_picture(c, x, y, size, rgb, side);
  if (film->fps > 0)
    snprintf(text, sizeof text, "%.1f s, score %.0f", (double)film->at[i] / film->fps, film->score[i]);
  else
    snprintf(text, sizeof text, "frame %lld, score %.0f", (long long)film->at[i], film->score[i]);
  kr_canvas_color(c, 0.2, 0.2, 0.2);
  kr_chart_text(c, x, y + size + 18, KR_CHART_LEFT, 13, text);
}

/* What the border and the numbers mean. */
static void put_sheet_legend(kr_canvas *c, double y) {
  kr_canvas_color(c, 0.95, 0.55, 0.1);
  kr_canvas_fill(c, GAP, y + 4, 14, 14);
  kr_canvas_color(c, 1, 1, 1);
  kr_canvas_fill(c, GAP + 3, y + 7, 8, 8);
  kr_canvas_color(c, 0.2, 0.2, 0.2);
  kr_chart_text(c, GAP + 22, y + 16, KR_CHART_LEFT, 13, "chosen: the video tower saw these frames too");
  kr_chart_text(c, GAP, y + 36, KR_CHART_LEFT, 13, "score: the attention that a frame receives from its half of them;");
  kr_chart_text(c, GAP, y + 54, KR_CHART_LEFT, 13, "the highest four of each half are chosen");
}

int32_t kr_describer_draw(const krait_video_info *film, const uint8_t *frames, int64_t side, const char *png_path) {
  const int32_t size = side < LEAST ? LEAST : (int32_t)side;
  const int32_t below = GAP + (film->n + COLUMNS - 1) / COLUMNS * (size + GAP + CAPTION);
  kr_canvas c;
  KR_TRY(kr_canvas_open(&c, GAP + COLUMNS * (size + GAP), below + LEGEND));
  const locale_t locale = kr_c_locale_begin();
  for (int i = 0; i < film->n; i++) put_sheet_frame(&c, film, frames + i * side * side * 3, side, i, size);
  put_sheet_legend(&c, below);
  kr_c_locale_end(locale);
  const int32_t status = kr_chart_write(&c, png_path);
  kr_canvas_close(&c);
  return status;
}
