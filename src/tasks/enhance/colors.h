/* colors.h: a dark-to-bright colour scale whose lightness rises evenly, so that it also reads in grey. */
#ifndef KR_COLORS_H
#define KR_COLORS_H

#include <stdint.h>

/* share 0..1 -> 0x00RRGGBB */
static inline uint32_t kr_color(double share) {
  static const unsigned char stops[][3] = {{4, 4, 18},     {34, 17, 80},    {84, 22, 122},
                                           {134, 38, 126}, {188, 56, 108},  {232, 88, 76},
                                           {250, 148, 80}, {252, 208, 128}, {254, 252, 200}};
  enum { LAST = sizeof stops / sizeof *stops - 1 };
  const double at = (share < 0 ? 0 : share > 1 ? 1 : share) * LAST;
  const int low = at >= LAST ? LAST - 1 : (int)at;
  uint32_t color = 0;
  for (int i = 0; i < 3; i++)
    color = color << 8 | (uint32_t)(stops[low][i] + (stops[low + 1][i] - stops[low][i]) * (at - low) + 0.5);
  return color;
}

#endif
