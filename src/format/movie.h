/* movie.h: audio from files that libsndfile cannot read (m4a, webm, video), through the program ffmpeg if it is
 * installed. */
#ifndef KR_MOVIE_H
#define KR_MOVIE_H
#include <stdint.h>

/* Whether the file begins like a container for FFmpeg: nothing else is passed to it (playlists could name other
 * files). */
int kr_movie_is(int fd);
/* FFmpeg's name of its format, or NULL. */
const char *kr_movie_demuxer(int fd);
/* Writes the first audio track of from as float AU into to, which is then rewound. Without ffmpeg the error gives its
 * command. */
int32_t kr_movie_decode(int from, int to, const char *name);
#endif
