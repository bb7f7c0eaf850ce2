/* charts.h: what the pictures of this program share: text, round steps of an axis, and writing the PNG. */
#ifndef KR_CHARTS_H
#define KR_CHARTS_H

#include "canvas.h"
#include "outfile.h"

enum { KR_CHART_LEFT, KR_CHART_CENTER, KR_CHART_RIGHT };
/* x is the text's left end, middle or right end; y its base line. */
void kr_chart_text(kr_canvas *c, double x, double y, int align, double size, const char *text);
/* The middle of a text that runs upwards. */
void kr_chart_upright_text(kr_canvas *c, double x, double y, double size, const char *text);
void kr_chart_line(kr_canvas *c, double x0, double y0, double x1, double y1);
/* 1, 2 or 5 times a power of ten, so that at most n_most steps fit into span. */
double kr_chart_step(double span, int n_most);

/* Under its name, which appears only when the picture is complete. */
int32_t kr_chart_write(const kr_canvas *c, const char *png_path);

#endif
