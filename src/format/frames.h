/* frames.h: the frames of a video, or a single image, through the program ffmpeg if it is installed. */
#ifndef KR_FRAMES_H
#define KR_FRAMES_H
#include <stdint.h>

int32_t kr_film_open(const char *path, int *fd); /* for reading; only a regular file */

/* Frame i of the video; rgb: (side, side, 3) bytes, valid during the call. A negative status ends the reading. */
typedef int32_t (*kr_frame_fn)(void *user, int64_t i, const uint8_t *rgb);
/* Every frame, its shorter edge resized to side (bilinear) and center-cropped. */
int32_t kr_frames_read(int fd, const char *name, int64_t side, kr_frame_fn take, void *user);

/* n frames spread evenly over the video, at fractions 1/(2n), 3/(2n), ... of it; a shorter video repeats frames. Of a
 * long video only every 2nd, 4th, ... frame is considered, so that memory does not grow with its length. rgb: (n, side,
 * side, 3). at (n): their indices; may be NULL. */
int32_t kr_frames_spread(int fd, const char *name, int64_t side, int64_t n, uint8_t *rgb, int64_t *at);

/* ---- chosen frames ---- */
typedef struct kr_film {
  int64_t n_frames; /* 1 for an image */
  double fps;       /* 0: unknown */
} kr_film;
/* Decodes all of it. */
int32_t kr_film_measure(int fd, const char *name, kr_film *film);
/* Frame at[k] in its own size; rgb (height, width, 3) is valid during the call. */
typedef int32_t (*kr_picture_fn)(void *user, int64_t k, int64_t width, int64_t height, const uint8_t *rgb);
/* at: ascending, without repetition, n >= 1. */
int32_t kr_film_frames(int fd, const char *name, const int64_t *at, int n, kr_picture_fn take, void *user);

/* ---- every frame in its own size, turned as the film says ---- */
typedef struct kr_film_about {
  const char *demuxer;
  int is_picture;            /* an image file */
  int64_t width, height;     /* after turning */
  int64_t rate, per;         /* frames per second, as the container says: rate / per */
  double start_s;            /* of the first frame, after what begins first: sound, or itself */
  int64_t n_frames;          /* as the container says; 0: unknown */
  char primaries[32], transfer[32], matrix[32], range[16]; /* colour tags, as ffmpeg names them; "" unknown */
} kr_film_about;
int32_t kr_film_describe(int fd, const char *name, kr_film_about *about);
enum { KR_FILM_HD_LINES = 720 }; /* from this height on players take BT.709's colours where a film says nothing */
enum { KR_FILM_AHEAD_BYTES = 256 << 20 }; /* of frames, at most, that are read ahead, or wait to be written */
/* Frames are read by a thread ahead of take. A status other than 0 ends the reading; a negative one is an error. */
int32_t kr_film_each(int fd, const char *name, const kr_film_about *about, kr_picture_fn take, void *user);
#endif
