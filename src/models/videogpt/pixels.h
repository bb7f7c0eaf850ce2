/* pixels.h: preprocesses a video's frames for the two towers. */
#ifndef KR_VIDEOGPT_PIXELS_H
#define KR_VIDEOGPT_PIXELS_H

#include <stdint.h>

/* Selects the frames of a video to use: one per second; if that gives more than 16, 16 spread evenly over those; if
 * fewer, up to 16 evenly spaced frames. Ascending; returns their number, 1 to 16. */
int kr_film_positions(int64_t n_frames, double fps, int64_t at[16]);

/* rgb (height, width, 3) bytes. out (side, side, 3): like OpenCV's linear resize of bytes; does not keep the aspect
 * ratio. */
int32_t kr_resize_linear(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out);
/* Like Pillow's bicubic resize, so that the shorter side is `side`; then a center crop. */
int32_t kr_resize_bicubic(const uint8_t *rgb, int64_t width, int64_t height, int64_t side, uint8_t *out);
/* (v / 255 - mean) / deviation: writes colour k of pixel i to out[k colour + i]. */
void kr_pixels_of_video(const uint8_t *rgb, int64_t n, int64_t colour, float *out);
void kr_pixels_of_clip(const uint8_t *rgb, int64_t n, int64_t colour, float *out);

#endif
