/* track.h: one channel of an audio file, read at a rate chosen by the caller, for scores and plots. */
#ifndef KR_TRACK_H
#define KR_TRACK_H

#include <stdint.h>

typedef struct kr_track kr_track;

/* channel counts from 0; for a file with fewer channels, its last one. */
int32_t kr_track_open(const char *path, int32_t channel, int32_t sample_rate_hz, kr_track **track);
void kr_track_close(kr_track **track);
int64_t kr_track_length(const kr_track *track); /* samples at the track's rate, according to the header */
/* n_read < n only at the end. */
int32_t kr_track_read(kr_track *track, float *samples, int64_t n, int64_t *n_read);

#endif
