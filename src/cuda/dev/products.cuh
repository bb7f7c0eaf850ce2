/* products.cuh: chains of warpgroup products and three-dimensional boxes (sm_90a), for kernels that the emulator runs
 * too. */
#ifndef KR_PRODUCTS_CUH
#define KR_PRODUCTS_CUH

#include "exchange.cuh"

#ifdef KR_EMULATE
KR_DEV void kr_load_box(uint32_t to, uint64_t map, uint32_t barrier, int x, int y, int z) {
  ::kr_load_box(to, map, barrier, x, y, z, 0);
}
KR_DEV void kr_store_box(uint64_t map, uint32_t from, int x, int y, int z) { ::kr_store_box(map, from, x, y, z, 0); }
template <int N, class T, int A_MN, int B_MN, int LEFT>
KR_DEV void kr_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  kr_wgmma_begin();
  for (int s = 0; s < 4; s++)
    kr_wgmma_step<N, T, A_MN, B_MN>(d, a + (uint64_t)(s * (A_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) / 16),
                                    b + (uint64_t)(s * (B_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) / 16), add || s);
  kr_wgmma_wait<N, LEFT>(d);
}
#endif

#endif
