/* pixels.h: a film's frames as the two towers were trained to see them. */
#ifndef KR_VIDEOGPT_PIXELS_H
#define KR_VIDEOGPT_PIXELS_H

#include <stdint.h>

/* Which frames of a film are looked at: one a second; if that gives more than 16, 16 spread evenly over those; if
 * fewer, 16 frames so far apart that they fit in. Ascending; returns how many, 1 to 16. */
int kr_film_positions(int64_t n_frames, double fps, int64_t at[16]);

/* rgb (height, width, 3) bytes. out (side, side, 3): as OpenCV's linear resize of bytes does it; the aspect is not
 * kept. */
int32_t kr_resize_linear(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out);
/* As Pillow's bicubic resize does it, so that the shorter side is `side`; then the middle. */
int32_t kr_resize_bicubic(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out);
/* (v / 255 - mean) / deviation: colour k of pixel i to out[k colour + i]. */
void kr_pixels_of_video(const uint8_t *rgb, int64_t n, int64_t colour, float *out);
void kr_pixels_of_clip(const uint8_t *rgb, int64_t n, int64_t colour, float *out);

#endif
