/* stroke_font.h: a font of lines, so that text needs no font of the system and looks the same everywhere. Printable
 * ASCII, accents, and what the pictures use besides; other characters are a box. */
#ifndef KR_STROKE_FONT_H
#define KR_STROKE_FONT_H

#include "canvas.h"

double kr_stroke_width(double size, const char *text);
/* text is UTF-8; its left end is x, its base line y. Upright: it runs upwards from there. */
void kr_stroke_draw(kr_canvas *c, double x, double y, int is_upright, double size, const char *text);

#endif
