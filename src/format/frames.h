/* frames.h: the pictures of a film, or one picture, through FFmpeg's libavfilter where it is installed. */
#ifndef KR_FRAMES_H
#define KR_FRAMES_H
#include <stdint.h>

/* Frame i of the film; rgb: (side, side, 3) bytes, valid during the call. A negative status ends the reading. */
typedef int32_t (*kr_frame_fn)(void *user, int64_t i, const uint8_t *rgb);
/* Every frame, its shorter edge resized to side (bilinear), the middle cut out. */
int32_t kr_frames_read(int fd, const char *name, int64_t side, kr_frame_fn take, void *user);

/* n frames spread evenly over the film, of a fraction 1/(2n), 3/(2n), ... of it; a shorter film repeats frames. Of a long film every 2nd, 4th, ... frame
 * is looked at, so that memory does not grow with it. rgb: (n, side, side, 3). at (n): their indices; may be NULL. */
int32_t kr_frames_spread(int fd, const char *name, int64_t side, int64_t n, uint8_t *rgb, int64_t *at);
#endif
