/* av.h: FFmpeg's libavfilter, loaded at run time if it is installed; nothing links against it. */
#ifndef KR_AV_H
#define KR_AV_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "dlib.h"

/* AVRational */
typedef struct kr_av_rational {
  int num, den;
} kr_av_rational;

typedef struct kr_av {
#define KR_AV(result, name, arguments) result(*name) arguments;
#include "avfilter.def"
#undef KR_AV
  kr_dlib *lib;
  char need[640]; /* after a failed load: "FFmpeg's libavfilter; ...": install it, or why the installed one fails */
} kr_av;

/* The fields of AVFrame before those that moved between versions. */
typedef struct kr_av_frame {
  unsigned char *data[8];
  int line_bytes[8];
  unsigned char **extended_data;
  int width, height, n_samples, format;
} kr_av_frame;

enum {
  KR_AV_TEXT_BYTES = 200,
  KR_AV_END = -('E' | 'O' << 8 | 'F' << 16 | ' ' << 24), /* the return value of av_buffersink_get_frame at the end */
};

/* 0: not installed, or a required function is missing. The library stays loaded: it has its own threads and tables. */
int kr_av_load(kr_av *av);
/* While this thread decodes: the first error that the library would print goes into text (KR_AV_TEXT_BYTES). */
void kr_av_listen(const kr_av *av, char *text);
void kr_av_listen_no_more(const kr_av *av);
/* "NAME has no readable WHAT (FFmpeg: ...)". */
int32_t kr_av_fail(const kr_av *av, const char *name, const char *what, int error, const char *text);
#endif
