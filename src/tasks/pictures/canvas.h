/* canvas.h: pixels to draw on: rectangles, lines, dots; edges are smooth. All memory is taken at the start, so that a
 * picture is complete or an error. */
#ifndef KR_CANVAS_H
#define KR_CANVAS_H

#include <stdint.h>

typedef struct kr_canvas {
  int32_t width, height;
  uint32_t *pixels;   /* (height, width): 0x00RRGGBB */
  uint8_t *mask;      /* (height, width): how much of each pixel the strokes so far cover */
  int32_t x0, y0, x1, y1; /* of the mask, what is not zero */
  double color[3], opacity;
  double thickness;   /* of strokes, in pixels */
  double x, y;        /* where the pen is */
} kr_canvas;

/* White, with a black and opaque pen. */
int32_t kr_canvas_open(kr_canvas *c, int32_t width, int32_t height);
void kr_canvas_close(kr_canvas *c); /* also of a zeroed struct */
void kr_canvas_color(kr_canvas *c, double red, double green, double blue); /* 0 to 1 */

/* A stroke, with round ends, is visible after end; where it crosses itself it covers once. Parts outside the canvas
 * or at no finite place are left out. */
void kr_canvas_move(kr_canvas *c, double x, double y);
void kr_canvas_line(kr_canvas *c, double x, double y);
void kr_canvas_curve(kr_canvas *c, double control_x, double control_y, double x, double y); /* quadratic */
void kr_canvas_end(kr_canvas *c);

void kr_canvas_frame(kr_canvas *c, double x, double y, double width, double height);
void kr_canvas_fill(kr_canvas *c, double x, double y, double width, double height);
void kr_canvas_dot(kr_canvas *c, double x, double y, double radius);
void kr_canvas_pixel(kr_canvas *c, int32_t x, int32_t y, uint32_t color);

#endif
