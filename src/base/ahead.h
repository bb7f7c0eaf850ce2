/* ahead.h: a producer thread that makes bytes ahead of their consumer, for example to unpack and search on two cores: a
 * few pieces are buffered in between. */
#ifndef KR_AHEAD_H
#define KR_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_ahead kr_ahead;

/* The next bytes, in order; a negative status ends the work and is passed to the consumer with its sentence. */
typedef int32_t (*kr_make_fn)(void *user, void *out, size_t bytes);

/* bytes: in total. NULL if there is no memory or no thread: the caller then makes them itself. user belongs to the
 * thread until it is closed. */
kr_ahead *kr_ahead_open(kr_make_fn make, void *user, uint64_t bytes);
int32_t kr_ahead_take(kr_ahead *ahead, void *out, size_t bytes);
void kr_ahead_close(kr_ahead **ahead); /* waits for the thread, which makes no further pieces */

#endif
