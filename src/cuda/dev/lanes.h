/* lanes.h: what device code that norms a row of a product's left factor while it reads it is told; host and device read
 * the same struct. */
#ifndef KR_LANES_H
#define KR_LANES_H

#include <stdint.h>

typedef struct kr_normed {
  const void *other, *weight; /* what is added (or NULL), or the gate; the norm's weight, of the factor's 16 bits */
  void *sum;                  /* gets what is normed, or NULL */
  int64_t other_row, sum_row;
  float eps, inverse_K;
  int32_t other_is_float, sum_is_float; /* float32 instead of the factor's type */
} kr_normed;

#endif
