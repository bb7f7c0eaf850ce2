/* stroke_font.c: every glyph is its width and its strokes, separated by spaces. A stroke is a list of points, each a
 * column and a line of a grid ('0' to '9', 'a' is 10): line 0 is the deepest, 3 the base line, 9 the height of an x, 12
 * that of a capital. '~' before a point makes it the control point of a quadratic curve; two such points in succession
 * have a point of the curve in their middle, as in TrueType. */
#include "stroke_font.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "unicode.h"
#include "utf8.h"

enum { BASE_LINE = 3, X_HEIGHT = 9, CAPITAL_HEIGHT = 12, SPACE = 2 /* between two letters */ };
enum { MARK_WIDTH = 5, CEDILLA = 0x327 };
static const double unit = 0.08, thickness = 0.095; /* of the grid and of a stroke, in sizes */

static const char box[] = "5 030c5c5303";
static const char *const ascii[] = {
    /* from the space on */
    "2", "0 0c06 0304", "2 0c0a 2c2a", "6 2c13 5c43 0969 0666", "6 3d32 5a~5c3c~0c~0838~68~6333~0305",
    "7 0a~0c~3c~38~080a 6c13 45~47~77~73~4345", "6 6319~0c3c~5c~5928~07~0323~5367", "0 0c0a", "2 2d~0b07~0421",
    "2 0d~2b27~2401", "4 2c27 0b48 4b08", "6 3a34 0767", "1 1402", "3 0737", "0 0304", "4 024d",
    /* 0 to 9, and on */
    "5 08~0c~5c~53~0308", "5 1a3c33", "5 0a~0c~5c5a~580353", "5 0b~1c2c~5c~5828~58~5323~1304", "5 4c0656 4c43",
    "5 5c0c0828~58~5323~1304", "5 5b~4c3c~0c06~03~53~58~0806", "5 0c5c23",
    "5 0a~0c~5c~58~080a 06~08~58~53~0306", "5 04~1323~5359~5c~0c~07~5759", "0 0304 0809", "1 1402 1819",
    "5 5a0754", "5 0959 0555", "5 0a5704", "4 0a~0c~4c4a~482726 2324",
    "8 67~69~39~35~6567 6966~65~8588~8c~0c~0353",
    /* A to Z, and on */
    "6 033c63 1656", "6 030c3c~5c~583808 38~68~633303", "6 6a~5c3c~0c~0333~5365", "6 030c2c~6c~632303",
    "5 5c0c0353 0848", "5 5c0c03 0848", "6 6a~5c3c~0c~0333~63666747", "6 0c03 6c63 0868", "0 0c03",
    "4 4c46~4323~0306", "6 0c03 6c06 2863", "5 0c0353", "8 030c468c83", "6 030c636c", "6 3c~6c~63~03~0c3c",
    "6 030c3c~6c~673707", "6 3c~6c~63~03~0c3c 4562", "6 030c3c~6c~673707 3763",
    "6 5a~5c3c~0c~0838~68~6333~0305", "6 0c6c 3c33", "6 0c06~0333~63666c", "6 0c336c", "8 0c234c638c",
    "6 0c63 6c03", "6 0c386c 3833", "6 0c6c0363", "2 2d0d0121", "4 0d42", "2 0d2d2101", "4 092c49", "5 0151",
    "1 0d1b",
    /* a to z, and on */
    "5 5953 56~59~09~03~5356", "5 0c03 06~09~59~53~0306", "5 58~4939~0906~0333~4354", "5 5c53 56~59~09~03~5356",
    "5 0656~59~09~0333~4354", "4 4c~2c2a23 0949", "5 5952~5020~1001 56~59~09~03~5356", "5 0c03 06~0939~595653",
    "0 0903 0b0c", "2 2921~2000 2b2c", "5 0c03 4905 2753", "1 0c04~0313",
    "8 0903 06~0929~494643 46~4969~898683", "5 0903 06~0939~595653", "5 06~09~59~53~0306",
    "5 0900 06~09~59~53~0306", "5 5950 56~59~09~03~5356", "3 0903 06~0939", "4 48~4929~09~0626~46~4323~0304",
    "3 1b15~1333 0939", "5 0906~0323~5356 5953", "4 092349", "8 0923496389", "4 0943 4903", "4 0923 4910",
    "4 09490343", "3 3d~1d1a~1707~1714~1131", "0 0d01", "3 0d~2d2a~2737~2724~2101", "6 06~1937~5568"};

typedef struct glyph {
  uint32_t code;
  const char *strokes;
} glyph;

static const glyph others[] = {{0xa0, "2"},
                               {0xdf, "5 030a~0c2c~4c~4828~58~5323"},
                               {0xb7, "0 0708"},
                               {0x2013, "5 0757"},
                               {0x2014, "8 0787"},
                               {0x2019, "1 1c0a"},
                               {0x2026, "6 0304 3334 6364"},
                               {0x2192, "6 0767 496745"},
                               {0x2265, "5 0c5906 0353"}};

/* Combining marks over a letter as high as an x, on a grid of their own, five columns wide. */
static const glyph marks[] = {{0x300, "5 1c3a"},      {0x301, "5 4c2a"},
                              {0x302, "5 1a3c5a"},    {0x303, "5 0a~1c2b~3a5c"},
                              {0x304, "5 1b4b"},      {0x308, "5 1b1c 4b4c"},
                              {0x30a, "5 2b~2d~4d~4a~2a2b"}, {0x30c, "5 1c3a5c"},
                              {CEDILLA, "5 33~4110"}};

static const char *find(const glyph *table, size_t n, uint32_t code) {
  for (size_t i = 0; i < n; i++)
    if (table[i].code == code) return table[i].strokes;
  return NULL;
}

static const char *strokes_of(uint32_t code) {
  if (code >= ' ' && code <= '~') return ascii[code - ' '];
  const char *other = find(others, sizeof others / sizeof *others, code);
  return other ? other : box;
}

static int digit(char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; }

/* ---- one glyph ---- */
typedef struct pen {
  kr_canvas *c;
  double x, y;             /* of column 0 and the base line */
  double right[2], up[2];  /* one column, one line of the grid */
} pen;

typedef struct point {
  double x, y;
} point;

static pen moved(pen p, double columns, double lines) {
  p.x += columns * p.right[0] + lines * p.up[0], p.y += columns * p.right[1] + lines * p.up[1];
  return p;
}

static point point_at(const pen *p, const char *at) {
  const pen there = moved(*p, digit(at[0]), digit(at[1]) - BASE_LINE);
  return (point){there.x, there.y};
}

/* From the first point of a stroke to the character after its last one. */
static const char *put_stroke(const pen *p, const char *at) {
  const point first = point_at(p, at);
  kr_canvas_move(p->c, first.x, first.y);
  at += 2;
  while (*at && *at != ' ') {
    const int is_curve = *at == '~';
    const point next = point_at(p, at + is_curve);
    at += is_curve + 2;
    if (!is_curve) {
      kr_canvas_line(p->c, next.x, next.y);
      continue;
    }
    const int is_followed = *at == '~'; /* by another control point */
    const point then = point_at(p, at + is_followed);
    if (is_followed) kr_canvas_curve(p->c, next.x, next.y, (next.x + then.x) / 2, (next.y + then.y) / 2);
    else kr_canvas_curve(p->c, next.x, next.y, then.x, then.y), at += 2;
  }
  return at;
}

static void put_glyph(const pen *p, const char *strokes) {
  for (const char *at = strokes + 1; *at;) at = put_stroke(p, at + 1);
}

static void put_mark(const pen *p, uint32_t letter, int width, uint32_t mark) {
  const char *strokes = find(marks, sizeof marks / sizeof *marks, mark);
  const int is_high = mark != CEDILLA && (letter < 'a' || (letter <= 'z' && strchr("bdfhklt", (int)letter)));
  const pen above = moved(*p, (width - MARK_WIDTH) / 2.0, is_high ? CAPITAL_HEIGHT - X_HEIGHT : 0);
  if (strokes) put_glyph(&above, strokes);
}

/* ---- text ---- */
/* The next character, and the mark on it (0: none; composed or not), of text that may not be UTF-8. Returns its
 * bytes. */
static size_t read_character(const char *text, size_t n, uint32_t *code, uint32_t *mark) {
  const int n_bytes = kr_utf8_read(text, n, code);
  *mark = 0;
  if (n_bytes == 0) *code = 0;
  if (n_bytes == 0) return 1;
  kr_split_mark(*code, code, mark);
  uint32_t next = 0;
  const int n_next = kr_utf8_read(text + n_bytes, n - (size_t)n_bytes, &next);
  const int is_mark = next >= 0x300 && next < 0x370;
  if (is_mark) *mark = next;
  return (size_t)(n_bytes + (is_mark ? n_next : 0));
}

/* Without a canvas it only moves the pen. */
static void put_text(pen *p, const char *text) {
  uint32_t code, mark;
  for (size_t n = strlen(text), n_read; n > 0; n -= n_read, text += n_read) {
    n_read = read_character(text, n, &code, &mark);
    const char *strokes = strokes_of(code);
    const int width = digit(*strokes);
    if (p->c) put_glyph(p, strokes);
    if (p->c && mark) put_mark(p, code, width, mark);
    *p = moved(*p, width + SPACE, 0);
  }
}

double kr_stroke_width(double size, const char *text) {
  pen p = {.right = {unit * size, 0}};
  put_text(&p, text);
  return *text ? p.x - SPACE * unit * size : 0;
}

void kr_stroke_draw(kr_canvas *c, double x, double y, int is_upright, double size, const char *text) {
  const double step = unit * size, old = c->thickness;
  pen p = {c, x, y, {is_upright ? 0 : step, is_upright ? -step : 0}, {is_upright ? -step : 0, is_upright ? 0 : -step}};
  c->thickness = thickness * size;
  put_text(&p, text);
  kr_canvas_end(c);
  c->thickness = old;
}
