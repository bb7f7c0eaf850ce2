/* view_struct.h: a tensor without its sizes, which are fields of an operator's args, the same for C and device code. */
#ifndef KR_VIEW_STRUCT_H
#define KR_VIEW_STRUCT_H

#include <stdint.h>

/* Strides are in the order of the dimensions; unused ones are ignored, 0 on an input repeats it. A view whose data is
 * NULL is absent. */
typedef struct kr_view {
  void *data;        /* never written through for inputs */
  int64_t stride[4]; /* in elements */
  int32_t dtype;     /* KRAIT_F32, ... */
  int32_t reserved;  /* 0 */
} kr_view;

#endif
