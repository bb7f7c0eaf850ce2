/* lzma.h: unpacks a raw LZMA stream (LZMA1 without a container's header; lc 3, lp 0, pb 0), which tools/device_code.py
 * packs device code into. */
#ifndef KR_LZMA_H
#define KR_LZMA_H

#include <stddef.h>
#include <stdint.h>

typedef uint16_t kr_lzma_bit; /* probabilities that a bit is 0, in units of 1/2048 */

typedef struct kr_lzma_lengths {
  kr_lzma_bit is_long, is_longest, low[8], middle[8], high[256];
} kr_lzma_lengths;

typedef struct kr_lzma {
  const uint8_t *in, *in_end;
  uint8_t *out;
  size_t at, n_out; /* bytes unpacked so far, and in total */
  uint32_t range, code, distances[4], state;
  /* The rest is only probabilities. */
  kr_lzma_bit is_match[12], is_repeated[12], is_older[12], is_older_still[12], is_oldest[12], is_more_than_one[12];
  kr_lzma_bit distance_slots[4][64], near[128], align[16], literals[8][0x300];
  kr_lzma_lengths matches, repeats;
} kr_lzma;

/* out has room for n_out bytes, which the stream is known to unpack to. Returns 0 if this cannot be such a stream. */
int kr_lzma_begin(kr_lzma *lzma, const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out);
/* Unpacks until the first n bytes of out are available (or a few more), at most n_out; may be called again for more.
 * Returns 0 if the stream is found to be damaged; not all damage is detected. */
int kr_lzma_unpack(kr_lzma *lzma, size_t n);

#endif
