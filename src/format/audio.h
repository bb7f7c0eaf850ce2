/* audio.h: reads and writes audio files, block by block, in any format, sample rate and channel count that libsndfile
 * supports. Samples are float32, interleaved, full scale 1. */
#ifndef KR_AUDIO_H
#define KR_AUDIO_H

#include <stdint.h>

typedef struct kr_audio_info {
  int32_t sample_rate_hz, n_channels;
  int32_t format;   /* libsndfile's container | encoding */
  int64_t n_frames; /* according to the header; reading may find less, which is an error, or (MPEG) a little more */
} kr_audio_info;

/* ---- reading: "-" is standard input; pipes, which cannot be rewound, are first copied to an unlinked temporary file
 * ---- */
typedef struct kr_audio_in kr_audio_in;
int32_t kr_audio_open(const char *path, kr_audio_in **in);
void kr_audio_close(kr_audio_in **in);
const kr_audio_info *kr_audio_in_info(const kr_audio_in *in);
/* n_read < n_frames only at the end. NaN, infinities and truncated files are errors that name the position. */
int32_t kr_audio_read(kr_audio_in *in, float *samples, int64_t n_frames, int64_t *n_read);
int32_t kr_audio_rewind(kr_audio_in *in);
const char *kr_audio_in_path(
    const kr_audio_in *in); /* opens the same recording again while in is open, standard input too */

/* ---- writing: appears under its name only on commit ---- */
typedef struct kr_audio_out kr_audio_out;
/* The format of path's extension (with the nearest encoding), else that of like, else WAV; sample rate, channels and
 * text tags of like. path "-" is standard output. A path that is like's own file is refused; with keep_existing, so is
 * one that exists, at commit. */
int32_t kr_audio_create(const char *path, const kr_audio_in *like, int keep_existing, kr_audio_out **out);
int32_t kr_audio_write(kr_audio_out *out, const float *samples, int64_t n_frames);
/* No more samples: the file under kr_audio_out_path is complete, has been read back and counted, but does not have its
 * final name yet. */
int32_t kr_audio_finish(kr_audio_out *out);
const char *kr_audio_out_path(const kr_audio_out *out);
const char *kr_audio_out_note(
    const kr_audio_out *out); /* if the input's format cannot be written: what is written instead; else "" */
int32_t kr_audio_commit(kr_audio_out **out);   /* finishes, moves into place and frees; on failure nothing is left */
void kr_audio_abandon(kr_audio_out **out);     /* removes what was written and frees */
/* The extension that an output of in must have instead of name's, or NULL if name's is right. */
const char *kr_audio_extension(const kr_audio_in *in, const char *name);

#endif
