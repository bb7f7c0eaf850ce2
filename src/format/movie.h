/* movie.h: sound out of what libsndfile cannot read (m4a, webm, films), through FFmpeg's libavfilter where it is
 * installed. */
#ifndef KR_MOVIE_H
#define KR_MOVIE_H
#include <stdint.h>

/* Whether the file begins like a container that FFmpeg is asked about: nothing else is shown to it (playlists could
 * name other files). */
int kr_movie_is(int fd);
/* The name that FFmpeg gives its kind, or NULL. */
const char *kr_movie_demuxer(int fd);
/* The first sound track of from, as float W64 into to, which ends rewound. Without the libraries the sentence names the
 * ffmpeg command. */
int32_t kr_movie_decode(int from, int to, const char *name);
#endif
