/* rows.h: a tensor (batch, row, time) as kernels see it; host and device read the same struct. */
#ifndef KR_ROWS_H
#define KR_ROWS_H

#include <stdint.h>

typedef struct kr_rows {
  void *data;            /* position 0 in scan order: the far end of a reversed scan */
  int64_t b, row, t;     /* strides in elements; t is negative in a reversed scan */
  int32_t dtype, packs;  /* packs: 16-byte accesses along time are aligned */
} kr_rows;

/* Division by a number known to the host, as a multiplication: 64-bit division takes a GPU over a hundred instructions.
 * For dividends below 2^31. */
typedef struct kr_divisor {
  uint32_t by, multiplier, shift;
} kr_divisor;

#endif
