/* denormals.h: numbers below the smallest normal one count as 0 in this thread, between begin and end: arithmetic with
 * them is many times slower, and what fades away in a filter or a state would become one. */
#ifndef KR_DENORMALS_H
#define KR_DENORMALS_H

#include <stdint.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
static inline uint64_t kr_denormals_begin(void) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040); /* results, and operands */
  return before;
}
static inline void kr_denormals_end(uint64_t before) { _mm_setcsr((unsigned)before); }
#elif defined(__aarch64__)
static inline uint64_t kr_denormals_begin(void) {
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
  return before;
}
static inline void kr_denormals_end(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#else
static inline uint64_t kr_denormals_begin(void) { return 0; }
static inline void kr_denormals_end(uint64_t before) { (void)before; }
#endif

#endif
