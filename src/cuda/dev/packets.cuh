/* packets.cuh: 8-byte words in global memory that carry their own tag, for blocks of one launch that wait for each
 * other (kr_grid.is_cooperative): a reader sees a word's data and its flag together, so that nobody needs a fence or a
 * counter. Tags change from one use of a word to the next. Words are written and read whole, but a pair is two words:
 * both have a tag. A reader calls kr_poll_again() between two looks. Volta on. */
#ifndef KR_PACKETS_CUH
#define KR_PACKETS_CUH

#include "kernel.cuh"

#if defined(KR_EMULATE)
typedef struct __attribute__((aligned(16))) kr_two_words {
  uint64_t of[2];
} kr_two_words;
KR_DEV void kr_put_words(uint64_t *to, uint64_t a, uint64_t b) {
  *(kr_two_words *)to = kr_two_words{{a, b}};
  kr_emulated_published();
}
KR_DEV void kr_get_words(const uint64_t *from, uint64_t &a, uint64_t &b) {
  const kr_two_words words = *(const kr_two_words *)from;
  a = words.of[0], b = words.of[1];
}
KR_DEV void kr_put_word(uint64_t *to, uint64_t a) { *to = a, kr_emulated_published(); }
KR_DEV uint64_t kr_get_word(const uint64_t *from) { return *from; }
KR_DEV void kr_poll_again(void) { kr_emulated_again(); }
#elif KR_TIER >= 70
/* Pairs are 16-byte aligned. */
KR_DEV void kr_put_words(uint64_t *to, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" : : "l"(to), "l"(a), "l"(b) : "memory");
}
KR_DEV void kr_get_words(const uint64_t *from, uint64_t &a, uint64_t &b) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}
KR_DEV void kr_put_word(uint64_t *to, uint64_t a) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" : : "l"(to), "l"(a) : "memory");
}
KR_DEV uint64_t kr_get_word(const uint64_t *from) {
  uint64_t a;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(a) : "l"(from) : "memory");
  return a;
}
KR_DEV void kr_poll_again(void) {}
#endif

#endif
