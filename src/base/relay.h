/* relay.h: items pass in order from one thread to another, which works at the same time: a film's frames are read and
 * written while others are restored. */
#ifndef KR_RELAY_H
#define KR_RELAY_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_relay kr_relay;
typedef struct kr_relay_item {
  struct kr_relay_item *next;
  size_t bytes;
  int64_t width, height; /* of a picture */
  uint8_t data[];
} kr_relay_item;

/* The other thread's work: it puts items until it ends, or takes all. A negative status and its sentence go to the side
 * that opened the relay, after what was put before. */
typedef int32_t (*kr_relay_fn)(void *user, kr_relay *relay);
/* Up to 64 items wait, of at most most_bytes together, but two always may. user belongs to the thread until the relay
 * is closed. NULL: there is no memory or no thread. */
kr_relay *kr_relay_open(uint64_t most_bytes, kr_relay_fn fn, void *user);
/* Copies the item, once there is room. Fails if the taking side has ended. */
int32_t kr_relay_put(kr_relay *relay, int64_t width, int64_t height, const void *data, size_t bytes);
/* 1: the next item, which the caller frees; 0: there is none after the last. */
int32_t kr_relay_take(kr_relay *relay, kr_relay_item **item);
/* No more is put: waits until the thread has taken all, and returns what it returned. */
int32_t kr_relay_finish(kr_relay *relay);
/* Waits for the thread, which puts or takes no further item. */
void kr_relay_close(kr_relay **relay);

#endif
