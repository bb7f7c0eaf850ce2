/* png.h: writes a picture as PNG: 8 bits per colour, without transparency. */
#ifndef KR_PNG_H
#define KR_PNG_H

#include <stdint.h>

#include "outfile.h"

/* pixels (height, width): 0x00RRGGBB. Into the temporary file of target. */
int32_t kr_png_put(const kr_outfile *target, const uint32_t *pixels, int32_t width, int32_t height);

#endif
