/* decoder.h: FFmpeg's programs ffmpeg and ffprobe as child processes, whose output is read from a pipe: a decoder that
 * crashes, hangs or runs out of memory on a hostile file is one sentence, and their libraries need not fit this
 * process. */
#ifndef KR_DECODER_H
#define KR_DECODER_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct kr_decoder {
  const char *program, *name; /* of the file that is read */
  pid_t pid;
  int out, errors;            /* pipes from the child; -1: closed */
  int status;                 /* of waitpid, after the end */
  unsigned char bytes[1 << 16];
  size_t first, n_bytes;      /* read from out and not yet taken */
  char text[1024];            /* the beginning of what it says about errors */
  size_t n_text;
} kr_decoder;

/* Starts words[0] (to a NULL) with file `from` as its standard input, which it opens again as
 * "file:/proc/self/fd/0". KRAIT_ERR_FILE_FORMAT with advice if it is not installed; kind: what the file is, or NULL. */
int32_t kr_decoder_begin(kr_decoder *d, const char *const *words, int from, const char *name, const char *kind);
/* n bytes, or fewer at the end. No byte for a minute is an error. */
int32_t kr_decoder_read(kr_decoder *d, void *to, size_t n, size_t *n_read);
/* After the last byte: waits for the child. An end by a signal is an error, its exit status and text are not. */
int32_t kr_decoder_end(kr_decoder *d);
/* Stops it if it runs; after end, or twice, or on a zeroed struct, it does nothing. */
void kr_decoder_abandon(kr_decoder *d);
/* After end: whether it says that the file is cut short. */
int kr_decoder_says_cut(const kr_decoder *d);
/* After end: "NAME has no readable WHAT; FFmpeg: ...". */
int32_t kr_decoder_fail(const kr_decoder *d, const char *what);
/* Tests: another limit than a minute. */
void kr_decoder_use_limit(int ms);
#endif
