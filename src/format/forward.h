/* forward.h: a forward-only stream, such as an archive member that is being unpacked, as a source: the first 2 MiB and
 * the last KR_FORWARD_WINDOW_BYTES (three quarters of that for longer members) are kept; reading elsewhere restarts the
 * stream, a few times at most. */
#ifndef KR_FORWARD_H
#define KR_FORWARD_H

#include "source.h"

enum { KR_FORWARD_WINDOW_BYTES = 16 << 20 };

typedef struct kr_forward_memory { /* for the next one to take: system calls and fragments of memory for each member
                                    would be many */
  uint8_t *window, *head, *blocks;
  size_t cap; /* of the window */
} kr_forward_memory;

typedef struct kr_forward_feed {
  void *user;
  int32_t (*begin)(void *user);                         /* at the first byte, also again */
  int32_t (*read)(void *user, void *out, size_t bytes); /* exactly the next ones */
} kr_forward_feed;

/* spare provides the memory, and gets it back at the end: it must outlive the source. name is borrowed. */
int32_t kr_forward_open(kr_forward_memory *spare, const kr_forward_feed *feed, uint64_t bytes, const char *name,
                        kr_source **source);
void *kr_forward_user(kr_source *source);
void kr_forward_close(kr_source **source);
void kr_forward_free_memory(kr_forward_memory *memory);

#endif
