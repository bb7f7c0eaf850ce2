/* attention_sums.h: sizes of the gradient that accumulates dq in memory, for host and device. */
#ifndef KR_ATTENTION_SUMS_H
#define KR_ATTENTION_SUMS_H

/* A sequence's sums begin at multiples of this many rows. */
enum { KR_SUMS_ROWS = 128 };

/* ampere's shared memory: keys and values, P and dS, two stages of rows with their lse and delta. */
#define KR_AMPERE_SUMS_SHARED(D, KEYS, ROWS) \
  ((uint32_t)(2 * (KEYS) * (D) * 2 + 2 * (KEYS) * (ROWS) * 2 + 2 * (2 * (ROWS) * (D) * 2 + 2 * (ROWS) * 4)))

enum { KR_HOPPER_SUMS_STAGES = 2 };
/* Rows per tile; shared memory: keys and values, the ring, two tiles of dS, sums in flight, the rows' lse and delta. */
#define KR_HOPPER_SUMS_ROWS(D) ((D) == 128 ? 64 : 128)
#define KR_HOPPER_SUMS_SHARED(D)                                                         \
  ((uint32_t)((2 * 128 + KR_HOPPER_SUMS_STAGES * 2 * KR_HOPPER_SUMS_ROWS(D)) * (D) * 2 + \
              2 * 128 * KR_HOPPER_SUMS_ROWS(D) * 2 + 8 * 16 * 64 * 4 +                   \
              KR_HOPPER_SUMS_STAGES * 2 * KR_HOPPER_SUMS_ROWS(D) * 4 + 1024 + 128))

#endif
