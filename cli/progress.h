/* progress.h: a progress line on standard error, if it is a terminal. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

typedef struct cli_progress {
  const char *name;
  const double *audio_s; /* length of the recording, known by the first call of show; NULL: not a recording */
  double start_s, shown_s;
} cli_progress;

void cli_progress_begin(cli_progress *progress, const char *name, const double *audio_s);
int32_t cli_progress_show(void *progress, int64_t done, int64_t total); /* a krait_progress_fn */
void cli_progress_end(void);                                            /* removes the line */
int cli_progress_is_shown(void);                                        /* for signal handlers */

#endif
