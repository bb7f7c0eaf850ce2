/* windows.h: a function of one window of samples, applied to a stream of any length in bounded memory.
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

/* out and in have n samples and do not overlap; 1 <= n <= window. */
typedef int32_t (*kr_window_fn)(void *user, const float *in, float *out, int64_t n);

int32_t kr_windows_open(const kr_windows_shape *shape, kr_window_fn fn, void *user, kr_sink sink, kr_windows **windows);
void kr_windows_close(kr_windows **windows);
int32_t kr_windows_push(kr_windows *windows, const float *samples, int64_t n);
/* Ends the stream: as many samples as were pushed have reached the sink. */
int32_t kr_windows_finish(kr_windows *windows);

/* Calls of fn that a stream of n samples needs. */
int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n);

#endif
