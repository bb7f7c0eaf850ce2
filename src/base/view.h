/* view.h: element access to a kr_view in any float type, for reference implementations and checks; and small
 * argument helpers. */
#ifndef KR_VIEW_H
#define KR_VIEW_H

#include <krait/krait.h>

#include "half.h"
#include "view_struct.h"

static inline int kr_has(const kr_view *view) { return view->data != NULL; }

static inline int kr_is_float_dtype(int32_t dtype) { return dtype >= KRAIT_F32 && dtype <= KRAIT_F64; }
static inline int kr_is_activation_dtype(int32_t dtype) { return dtype >= KRAIT_F32 && dtype <= KRAIT_BF16; }

static inline int64_t kr_at1(const kr_view *v, int64_t i) { return i * v->stride[0]; }
static inline int64_t kr_at2(const kr_view *v, int64_t i, int64_t j) { return i * v->stride[0] + j * v->stride[1]; }
static inline int64_t kr_at3(const kr_view *v, int64_t i, int64_t j, int64_t k) {
  return i * v->stride[0] + j * v->stride[1] + k * v->stride[2];
}
static inline int64_t kr_at4(const kr_view *v, int64_t i, int64_t j, int64_t k, int64_t l) {
  return i * v->stride[0] + j * v->stride[1] + k * v->stride[2] + l * v->stride[3];
}

static inline double kr_get(const kr_view *v, int64_t offset) {
  switch (v->dtype) {
    case KRAIT_F16: return kr_f16_to_float(((const uint16_t *)v->data)[offset]);
    case KRAIT_BF16: return kr_bf16_to_float(((const uint16_t *)v->data)[offset]);
    case KRAIT_F64: return ((const double *)v->data)[offset];
    default: return ((const float *)v->data)[offset];
  }
}

/* Rounds to the view's type; from double to a 16-bit type in two steps, as the fast implementations do from float. */
static inline void kr_put(const kr_view *v, int64_t offset, double value) {
  switch (v->dtype) {
    case KRAIT_F16: ((uint16_t *)v->data)[offset] = kr_float_to_f16((float)value); break;
    case KRAIT_BF16: ((uint16_t *)v->data)[offset] = kr_float_to_bf16((float)value); break;
    case KRAIT_F64: ((double *)v->data)[offset] = value; break;
    default: ((float *)v->data)[offset] = (float)value;
  }
}

static inline int32_t kr_get_i32(const kr_view *v, int64_t offset) { return ((const int32_t *)v->data)[offset]; }

#endif
