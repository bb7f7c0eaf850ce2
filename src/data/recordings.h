/* recordings.h: a source of recordings (data.h lists the kinds): their number, lengths and samples at 16 kHz. Any
 * number of threads may read. A bad recording is detected and reported once, and then refused immediately. */
#ifndef KR_RECORDINGS_H
#define KR_RECORDINGS_H

#include <stdint.h>

typedef struct kr_recordings kr_recordings;
enum { KR_RECORDINGS_HZ = 16000 };

typedef void (*kr_recordings_report)(void *user, const char *line);

/* what ("speech", "noise") names the source in messages. KRAIT_ERR_FILE_* if there are no recordings. */
int32_t kr_recordings_open(const char *source, const char *dir, const char *what, kr_recordings_report report,
                           void *user, kr_recordings **recordings);
void kr_recordings_close(kr_recordings **recordings);
int64_t kr_recordings_count(const kr_recordings *recordings);
int64_t kr_recordings_n_bad(kr_recordings *recordings); /* found so far */
const char *kr_recordings_name(const kr_recordings *recordings,
                               int64_t i); /* below the source's folder, without extension */
int64_t kr_recordings_find(const kr_recordings *recordings, const char *name); /* by the last part of the name; -1:
                                                                                  none */

/* Length and channels according to the header: a file that cannot be opened, is empty or has too low a rate is bad. */
int32_t kr_recordings_probe(kr_recordings *recordings, int64_t i, int64_t *n_samples, int32_t *n_channels);
/* The same, after reading all of it once: a broken or silent one is bad. Recordings must pass this before random draws,
 * so that the draws do not depend on what was read before. */
int32_t kr_recordings_check(kr_recordings *recordings, int64_t i, int64_t *n_samples, int32_t *n_channels);
/* n samples from `from` on of one channel, zeros behind its end. Checked, too. */
int32_t kr_recordings_read(kr_recordings *recordings, int64_t i, int32_t channel, int64_t from, int64_t n,
                           float *samples);

#endif
