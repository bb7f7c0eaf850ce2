/* turing.cuh: mma.cuh for sources that are compiled for the turing tier as well. Its tensor cores take products of
 * float16 in steps of eight; it has no asynchronous copies, so that a thread's 16 bytes on their way to shared memory
 * (kr_flight) wait in registers between kr_begin_copy and kr_end_copy. From ampere on they need none, and
 * kr_commit_copies and kr_copied say when they have arrived; these do nothing here, where a kr_sync() after kr_end_copy
 * is enough. */
#ifndef KR_TURING_CUH
#define KR_TURING_CUH

#include "kernel.cuh"

#if KR_TIER == 75 && !defined(KR_EMULATE)
/* As kernel.cuh's of later tiers. */
KR_DEV void kr_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
#pragma unroll
  for (int k = 0; k < 2; k++)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
}
template <int BARRIER, int THREADS>
KR_DEV void kr_sync_some(void) { asm volatile("bar.sync %0, %1;" : : "n"(BARRIER), "n"(THREADS) : "memory"); }
KR_DEV int kr_any_lane(int yes) { return __nvvm_vote_any_sync(0xffffffffu, yes != 0); }
#endif

#include "mma.cuh"

#if KR_TIER == 75
enum { KR_IS_TURING = 1 };
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
enum { KR_IS_TURING = 0 };
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

#endif
