/* element.cuh: elements of one type, KR_DTYPE, fixed when a module is compiled: float32, float16 or bfloat16 (0, 1, 2).
 * */
#ifndef KR_ELEMENT_CUH
#define KR_ELEMENT_CUH

#include "kernel.cuh"

#if KR_DTYPE == 0
typedef float element;
#else
typedef uint16_t element;
#endif

/* Without inline asm, so that Clang may duplicate it when unrolling loops. */
KR_DEV float element_value(element e) {
#if KR_DTYPE == 1 && !defined(KR_EMULATE)
  return (float)__builtin_bit_cast(_Float16, e);
#else
  return kr_load(&e, 0, KR_DTYPE);
#endif
}
KR_DEV float value(const element *p, int64_t at) { return element_value(p[at]); }
KR_DEV void put(element *p, int64_t at, float v) { kr_store(p, at, KR_DTYPE, v); }

#endif
