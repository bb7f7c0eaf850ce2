/* windows.h: a function of windows of samples, applied to a stream of any length in bounded memory.
 *
 * A stream of at most `window` samples is one call. A longer one is cut into windows of exactly `window` samples that
 * share `overlap` samples; the last ends with the stream and so shares more. Two neighbours are joined by a
 * raised-cosine cross-fade of `fade` samples in the middle of what they share, so that the outer (overlap - fade) / 2
 * samples of a window, where the function sees no context on one side, are not used. */
#ifndef KR_WINDOWS_H
#define KR_WINDOWS_H

#include "stream.h"

typedef struct kr_windows kr_windows;

typedef struct kr_windows_shape {
  int64_t window, overlap, fade; /* fade <= overlap <= window / 2; fade >= 1 */
} kr_windows_shape;

/* Processes windows independently: the number passed at once affects only the time. */
typedef struct kr_window_runner {
  void *user;
  int64_t most; /* windows at once: n of them, and twice as many results, are stored; 0: one */
  /* in[k] and out[k], k < n <= most, have n_samples each and do not overlap; 1 <= n_samples <= window. in has been read
   * when it returns. */
  int32_t (*run)(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples);
  /* NULL: output is complete when run returns. Otherwise it is complete after this call, or after the runner's next
   * run, and the stream continues meanwhile. */
  int32_t (*finish)(void *user);
  /* Or NULL: receives each window in order, once it is complete. */
  int32_t (*done)(void *user, const float *out, int64_t n_samples);
} kr_window_runner;

int32_t kr_windows_open(const kr_windows_shape *shape, const kr_window_runner *runner, kr_sink sink,
                        kr_windows **windows);
void kr_windows_close(kr_windows **windows);
int32_t kr_windows_push(kr_windows *windows, const float *samples, int64_t n);
/* Ends the stream: as many samples as were pushed have reached the sink. */
int32_t kr_windows_finish(kr_windows *windows);

/* Windows that a stream of n samples needs. */
int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n);

#endif
