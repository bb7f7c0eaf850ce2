/* turing.cuh: mma.cuh for sources that are compiled for the turing tier as well. Its tensor cores take products of
 * float16 in steps of eight; it has no asynchronous copies, so that a thread's 16 bytes on their way to shared memory
 * (kr_flight) wait in registers between kr_begin_copy and kr_end_copy. From ampere on they need none, and
 * kr_commit_copies and kr_copied say when they have arrived; these do nothing here, where a kr_sync() after kr_end_copy
 * is enough. */
#ifndef KR_TURING_CUH
#define KR_TURING_CUH

#include "kernel.cuh"

#if KR_TIER == 75 && !defined(KR_EMULATE)
KR_DEV void kr_mma_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
/* As kernel.cuh's of later tiers. */
KR_DEV void kr_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  kr_mma_half(d, a[0], a[1], b0), kr_mma_half(d, a[2], a[3], b1);
}
template <int BARRIER, int THREADS>
KR_DEV void kr_sync_some(void) { asm volatile("bar.sync %0, %1;" : : "n"(BARRIER), "n"(THREADS) : "memory"); }
KR_DEV int kr_any_lane(int yes) { return __nvvm_vote_any_sync(0xffffffffu, yes != 0); }
#endif

#include "mma.cuh"

/* The products of kr_mma_as in steps: where they are two, the second waits for the first, so that whoever computes
 * several products goes through all of them once per step. */
#if KR_TIER == 75
enum { KR_IS_TURING = 1, KR_MMA_STEPS = 2 };
KR_DEV void kr_mma_step(int step, kr_f16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef KR_EMULATE
  const uint32_t half[4] = {a[2 * step], a[2 * step + 1], 0, 0};
  kr_emulated_mma(d, half, step ? b1 : b0, 0);
#else
  kr_mma_half(d, a[2 * step], a[2 * step + 1], step ? b1 : b0);
#endif
}
typedef kr_raw16 kr_flight;
KR_DEV void kr_begin_copy(kr_flight &flight, uint32_t, const void *from) { flight = *(const kr_raw16 *)from; }
/* Zeros unless it exists, and then `from` is not read. */
KR_DEV void kr_begin_copy(kr_flight &flight, uint32_t, const void *from, int exists) {
  flight = exists ? *(const kr_raw16 *)from : kr_raw16{{0, 0, 0, 0}};
}
KR_DEV void kr_end_copy(const kr_flight &flight, uint32_t shared) {
#ifdef KR_EMULATE
  *(kr_raw16 *)kr_emulated_at(shared) = flight;
#else
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(shared), "r"(flight.w[0]), "r"(flight.w[1]), "r"(flight.w[2]), "r"(flight.w[3])
               : "memory");
#endif
}
#else
enum { KR_IS_TURING = 0, KR_MMA_STEPS = 1 };
template <class T>
KR_DEV void kr_mma_step(int, T type, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  kr_mma_as(type, d, a, b0, b1);
}
struct kr_flight {};
KR_DEV void kr_begin_copy(kr_flight &, uint32_t shared, const void *from) {
#ifdef KR_EMULATE
  kr_emulated_copy(kr_emulated_at(shared), from, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared), "l"(from) : "memory");
#endif
}
KR_DEV void kr_begin_copy(kr_flight &, uint32_t shared, const void *from, int exists) {
  kr_copy_some_at(shared, from, exists ? 16 : 0);
}
KR_DEV void kr_end_copy(const kr_flight &, uint32_t) {}
#endif

/* Two products with one a; b: of both. */
template <class T>
KR_DEV void kr_mma_pair(T type, float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int step = 0; step < KR_MMA_STEPS; step++)
    kr_mma_step(step, type, d0, a, b[0], b[1]), kr_mma_step(step, type, d1, a, b[2], b[3]);
}

#endif
