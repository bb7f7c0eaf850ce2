/* film_out.h: writes a film through the program ffmpeg as a child process: frames come from here, sound, subtitles and
 * titles from the film that was read. The film appears under its name only when complete. */
#ifndef KR_FILM_OUT_H
#define KR_FILM_OUT_H

#include "film_times.h"
#include "frames.h"
#include "outfile.h"

typedef struct kr_film_look {
  int64_t width, height;
  int is_ten_bits; /* frames then are 16 bits a sample */
  int is_hevc;
  int quality; /* x264's and x265's constant rate factor; 0 to 51 */
  const kr_film_times *times; /* of the frames, until it is closed; NULL: at the film's rate */
} kr_film_look;

typedef struct kr_film_out kr_film_out;
/* Whether path ends like a film that can be written: .mp4, .m4v, .mov, .mkv. */
int kr_film_out_is(const char *path);
/* from: the film that was read, and what it is; its sound is copied. */
int32_t kr_film_out_begin(const char *path, const kr_film_look *look, int from, const kr_film_about *about,
                          kr_film_out **out);
int32_t kr_film_out_add(kr_film_out *out, const void *rgb);
/* Ends the film and gives it its name. */
int32_t kr_film_out_commit(kr_film_out *out);
/* Removes what was written if it was not committed; frees. */
void kr_film_out_close(kr_film_out **out);

#endif
