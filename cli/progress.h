/* progress.h: one line on standard error that says how far the work is, when a person watches (a terminal). */
#ifndef KR_PROGRESS_H
#define KR_PROGRESS_H

#include <stdint.h>

typedef struct kr_progress {
  const char *name;
  const double *audio_s; /* length of the recording, known by the first call of show; NULL: it is none */
  double start_s, shown_s;
} kr_progress;

void kr_progress_begin(kr_progress *progress, const char *name, const double *audio_s);
int32_t kr_progress_show(void *progress, int64_t done, int64_t total); /* a krait_progress_fn */
void kr_progress_end(void);                                            /* takes the line away */
int kr_progress_is_shown(void);                                        /* for signal handlers */

#endif
