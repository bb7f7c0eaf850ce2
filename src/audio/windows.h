/* windows.h: cuts a stream of any length into windows, in bounded memory, and joins their results: the caller pushes
 * samples, computes what is due, and pulls what is complete.
 *
 * A stream of at most `window` samples is one call. A longer one is cut into windows of exactly `window` samples that
 * share `overlap` samples; the last ends with the stream and so shares more. Two neighbours are joined by a
 * raised-cosine cross-fade of `fade` samples in the middle of what they share, so that the outer (overlap - fade) / 2
 * samples of a window, where the function sees no context on one side, are not used. */
#ifndef KR_WINDOWS_H
#define KR_WINDOWS_H

#include <stdint.h>

typedef struct kr_windows kr_windows;

typedef struct kr_windows_shape {
  int64_t window, overlap, fade; /* fade <= overlap <= window / 2; fade >= 1 */
} kr_windows_shape;

/* Windows that are to be computed at once; independent of each other: their number affects only the time. */
typedef struct kr_window_batch {
  int64_t n, n_samples; /* of each */
  const float **in;     /* stays until the next push */
  float **out;          /* these do not overlap with anything */
} kr_window_batch;

/* A window whose result is complete, and the samples of the output stream that are known with it. */
typedef struct kr_window_part {
  const float *result, *samples; /* samples lie in result */
  int64_t n_result, n;
} kr_window_part;

/* Up to `most` windows at once: n of them, and twice as many results, are stored; 0: one. is_late: a batch's results
 * are complete only when the next one has been computed, or after kr_windows_settle; else at once. */
int32_t kr_windows_open(const kr_windows_shape *shape, int64_t most, int is_late, kr_windows **windows);
void kr_windows_close(kr_windows **windows);
/* Returns how many samples it took: all, or as many as make a batch due, which must then be computed. */
int64_t kr_windows_push(kr_windows *windows, const float *samples, int64_t n);
void kr_windows_end(kr_windows *windows); /* of the stream */
/* The windows to compute now; NULL: none. */
const kr_window_batch *kr_windows_due(kr_windows *windows);
void kr_windows_computed(kr_windows *windows); /* what was due last */
int kr_windows_is_ahead(const kr_windows *windows); /* late: a computed batch is not complete yet */
void kr_windows_settle(kr_windows *windows);        /* it is now */
/* The next complete window, in order; 0: none. In all, as many samples as were pushed. */
int kr_windows_pull(kr_windows *windows, kr_window_part *part);

/* Windows that a stream of n samples needs. */
int64_t kr_windows_count(const kr_windows_shape *shape, int64_t n);

#endif
