/* exchange.cuh: reducing bulk copies to global memory, and matrix stores (sm_90a), for kernels that the emulator runs
 * too. */
#ifndef KR_EXCHANGE_CUH
#define KR_EXCHANGE_CUH

#include "wgmma.cuh"

/* Adds a multiple of 16 bytes of shared memory to global memory, as float32; both 16-byte aligned. */
#ifndef KR_EMULATE
KR_DEV void kr_add_bytes(void *to, uint32_t from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}
#else
KR_DEV void kr_add_bytes(void *to, uint32_t from, int bytes) {
  const float *const values = (const float *)kr_emulated_at(from);
  for (int i = 0; i < bytes / 4; i++) ((float *)to)[i] += values[i];
}
/* A row's address is passed between lanes in halves, which a float holds exactly. */
KR_DEV void kr_store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t words[4] = {a, b, c, d};
  const int lane = kr_thread() & 31;
  for (int m = 0; m < 4; m++) {
    const int from = (kr_thread() & ~31) + 8 * m + lane / 4;
    const float low = kr_emulated_shuffle((float)(to & 0xffff), from),
                high = kr_emulated_shuffle((float)(to >> 16), from);
    *(uint32_t *)kr_emulated_at(((uint32_t)high << 16 | (uint32_t)low) + (uint32_t)(lane % 4) * 4) = words[m];
  }
}
#endif

#endif
