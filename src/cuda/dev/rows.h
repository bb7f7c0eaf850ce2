/* rows.h: a tensor (batch, row, time) as kernels see it; host and device read the same struct. */
#ifndef KR_ROWS_H
#define KR_ROWS_H

#include <stdint.h>

typedef struct kr_rows {
  void *data;            /* position 0 in the direction of the walk: the far end when it runs backwards */
  int64_t b, row, t;     /* strides in elements; t is negative when the walk runs backwards */
  int32_t dtype, packs;  /* packs: 16-byte accesses along time are aligned */
} kr_rows;

#endif
