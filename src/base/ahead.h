/* ahead.h: bytes that a thread of its own makes ahead of the one that takes them, as when unpacking and searching share
 * two cores: a few pieces wait in between. */
#ifndef KR_AHEAD_H
#define KR_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_ahead kr_ahead;

/* The next bytes, in order; a negative status ends the work, with its sentence for the one that takes. */
typedef int32_t (*kr_make_fn)(void *user, void *out, size_t bytes);

/* bytes in all. NULL where there is no memory or no thread: then the caller makes them itself. user is the thread's
 * until it is closed. */
kr_ahead *kr_ahead_open(kr_make_fn make, void *user, uint64_t bytes);
int32_t kr_ahead_take(kr_ahead *ahead, void *out, size_t bytes);
void kr_ahead_close(kr_ahead **ahead); /* waits for the thread, which makes no further piece */

#endif
