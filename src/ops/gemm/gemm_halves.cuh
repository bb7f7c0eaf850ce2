/* gemm_halves.cuh: a warpgroup's products of float32 factors in two float16 parts, the low ones KR_HALVES_APART times
 * too large. */
#ifndef KR_GEMM_HALVES_CUH
#define KR_GEMM_HALVES_CUH

#include "products.cuh"

#ifdef KR_EMULATE
template <int A_MN, int B_MN>
KR_DEV void kr_wgmma_halves(float (&sum)[64], float (&low)[64], uint64_t a, uint64_t a_low, uint64_t b,
                            uint64_t b_low) {
  float d[64];
  kr_wgmma<128, kr_f16, A_MN, B_MN, 0>(d, a, b, 0);
  for (int i = 0; i < 64; i++) sum[i] += d[i];
  kr_wgmma<128, kr_f16, A_MN, B_MN, 0>(low, a_low, b, 1);
  kr_wgmma<128, kr_f16, A_MN, B_MN, 0>(low, a, b_low, 1);
}
#else
/* %0 to %63: sum; %64 to %127: low; d0 to d63: this stage's. */
#define KR_LOW_SUMS \
  "%64, %65, %66, %67, %68, %69, " KR_TEN(7) ", " KR_TEN(8) ", " KR_TEN(9) ", " KR_TEN(10) ", " KR_TEN(11) ", %120, " \
                                                                         "%121, %122, %123, %124, %125, %126, %127"
#define KR_D_TEN(t) "d" #t "0, d" #t "1, d" #t "2, d" #t "3, d" #t "4, d" #t "5, d" #t "6, d" #t "7, d" #t "8, d" #t "9"
#define KR_STAGE_SUMS \
  KR_D_TEN() ", " KR_D_TEN(1) ", " KR_D_TEN(2) ", " KR_D_TEN(3) ", " KR_D_TEN(4) ", " KR_D_TEN(5) ", d60, d61, d62, d63"
#define KR_ADD(i) "add.f32 %" #i ", %" #i ", d" #i ";\n\t"
#define KR_ADD_TEN(t) \
  KR_ADD(t##0)        \
  KR_ADD(t##1) KR_ADD(t##2) KR_ADD(t##3) KR_ADD(t##4) KR_ADD(t##5) KR_ADD(t##6) KR_ADD(t##7) KR_ADD(t##8) KR_ADD(t##9)
#define KR_PRODUCT(SUMS, A, B, ADDS) \
  "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" SUMS "}, " A ", " B ", " ADDS ", 1, 1, %[ta], %[tb];\n\t"
#define KR_NEXT_A(A) "add.s64 " A ", " A ", %[sa];\n\t"
#define KR_NEXT_B(B) "add.s64 " B ", " B ", %[sb];\n\t"
#define KR_NEXT_16(SUMS, A, B) KR_NEXT_A(A) KR_NEXT_B(B) KR_PRODUCT(SUMS, A, B, "1")
#define KR_OF_8(v, i)                                                                                         \
  "+f"(v[i]), "+f"(v[i + 1]), "+f"(v[i + 2]), "+f"(v[i + 3]), "+f"(v[i + 4]), "+f"(v[i + 5]), "+f"(v[i + 6]), \
      "+f"(v[i + 7])
#define KR_OF_64(v)                                                                                             \
  KR_OF_8(v, 0), KR_OF_8(v, 8), KR_OF_8(v, 16), KR_OF_8(v, 24), KR_OF_8(v, 32), KR_OF_8(v, 40), KR_OF_8(v, 48), \
      KR_OF_8(v, 56)

/* sum += a b over 64 k, low += a_low b + a b_low (descriptors). Tensor cores round sums towards zero: those of the high
 * parts start from zero, and are added by ordinary additions (Ootomo and Yokota, "Recovering single precision accuracy
 * from Tensor Cores", 2022), while the low parts' products, whose sums need only half of the digits, are under way. */
template <int A_MN, int B_MN>
KR_DEV void kr_wgmma_halves(float (&sum)[64], float (&low)[64], uint64_t a, uint64_t a_low, uint64_t b,
                            uint64_t b_low) {
  asm volatile(
      "{\n\t.reg .b64 ah, al, bh, bl, ah2, bh2;\n\t.reg .f32 d<64>;\n\t"
      "mov.b64 ah, %[a];\n\tmov.b64 al, %[al];\n\tmov.b64 bh, %[b];\n\tmov.b64 bl, %[bl];\n\t"
      "mov.b64 ah2, ah;\n\tmov.b64 bh2, bh;\n\twgmma.fence.sync.aligned;\n\t" KR_PRODUCT(KR_STAGE_SUMS, "ah", "bh", "0")
          KR_NEXT_16(KR_STAGE_SUMS, "ah", "bh") KR_NEXT_16(KR_STAGE_SUMS, "ah", "bh")
              KR_NEXT_16(KR_STAGE_SUMS, "ah", "bh") "wgmma.commit_group.sync.aligned;\n\t" KR_PRODUCT(
                  KR_LOW_SUMS, "al", "bh2", "1") KR_PRODUCT(KR_LOW_SUMS, "ah2", "bl", "1")
                  KR_NEXT_16(KR_LOW_SUMS, "al", "bh2") KR_NEXT_16(KR_LOW_SUMS, "ah2", "bl") KR_NEXT_16(
                      KR_LOW_SUMS, "al", "bh2") KR_NEXT_16(KR_LOW_SUMS, "ah2", "bl")
                      KR_NEXT_16(KR_LOW_SUMS, "al", "bh2") KR_NEXT_16(
                          KR_LOW_SUMS, "ah2",
                          "bl") "wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 1;\n\t" KR_ADD_TEN()
                          KR_ADD_TEN(1) KR_ADD_TEN(2) KR_ADD_TEN(3) KR_ADD_TEN(4) KR_ADD_TEN(5) KR_ADD(60) KR_ADD(61)
                              KR_ADD(62) KR_ADD(63) "wgmma.wait_group.sync.aligned 0;\n\t}"
      : KR_OF_64(sum), KR_OF_64(low)
      : [a] "l"(a), [al] "l"(a_low), [b] "l"(b), [bl] "l"(b_low), [ta] "n"(A_MN), [tb] "n"(B_MN),
        [sa] "n"((A_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) >> 4),
        [sb] "n"((B_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) >> 4)
      : "memory");
}
#endif

#endif
