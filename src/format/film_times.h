/* film_times.h: when each frame of a film is shown, for films whose frames are not evenly spaced in time. */
#ifndef KR_FILM_TIMES_H
#define KR_FILM_TIMES_H

#include <stddef.h>
#include <stdint.h>

/* Microseconds after the first frame, in the order of showing: each at least a little after the one before. */
enum { KR_FILM_LEAST_STEP_US = 100 };
typedef struct kr_film_times {
  int64_t *us, n, room;
} kr_film_times;
int32_t kr_film_times_read(int fd, const char *name, const char *demuxer, kr_film_times *to);
/* Whether frames do not follow at rate / per a second, but for the rounding of containers. */
int kr_film_times_are_uneven(const kr_film_times *times, int64_t rate, int64_t per);
/* Of frame i; after the last known one frames follow at rate / per a second. */
int64_t kr_film_time_us(const kr_film_times *times, int64_t i, int64_t rate, int64_t per);
void kr_film_times_free(kr_film_times *times);

/* ---- frames with times, as ffmpeg reads them from a pipe: Matroska, uncompressed ---- */
enum { KR_RAW_FILM_MOST_HEAD = 256 };
/* fourcc: of ffmpeg's raw formats. Both return the number of bytes. */
size_t kr_raw_film_head(uint8_t to[KR_RAW_FILM_MOST_HEAD], int64_t width, int64_t height, const char fourcc[4]);
/* Before each frame's bytes. */
size_t kr_raw_film_frame(uint8_t to[KR_RAW_FILM_MOST_HEAD], int64_t time_us, size_t frame_bytes);

#endif
