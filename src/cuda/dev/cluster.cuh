/* cluster.cuh: the blocks of a cluster send floats to the shared memory of its first block, which finishes their common
 * work (compute capability 9.0 on). Every thread of every block calls kr_cluster_starts(), then kr_cluster_started()
 * before its first kr_send(), then kr_gathered() once.
 * The emulator runs blocks one after another, in any order: there the last one to run finishes. */
#ifndef KR_CLUSTER_CUH
#define KR_CLUSTER_CUH

#include "kernel.cuh"

#if defined(KR_EMULATE)
enum { KR_CLUSTERS = 1 };
KR_DEV void kr_cluster_starts(void) {}
KR_DEV void kr_cluster_started(void) {}
KR_DEV void kr_send(float *to, const kr_float4 &v, int n_blocks) { kr_emulated_send(to, v.v, n_blocks); }
KR_DEV int kr_gathered(int n_blocks) { return kr_emulated_gathered(n_blocks); }
#elif KR_TIER >= 90
enum { KR_CLUSTERS = 1 };
KR_DEV void kr_cluster_starts(void) { asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory"); }
KR_DEV void kr_cluster_started(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }
/* To the first block's shared memory, at the same place as `to` in this block's. */
KR_DEV void kr_send(float *to, const kr_float4 &v, int n_blocks) {
  (void)n_blocks;
  asm volatile("{\n\t.reg .u32 remote;\n\tmapa.shared::cluster.u32 remote, %0, 0;\n\t"
               "st.shared::cluster.v4.f32 [remote], {%1, %2, %3, %4};\n\t}"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) float *)to), "f"(v.v[0]), "f"(v.v[1]),
                 "f"(v.v[2]), "f"(v.v[3])
               : "memory");
}
/* Waits until all blocks of the cluster have sent; whether this one finishes. */
KR_DEV int kr_gathered(int n_blocks) {
  uint32_t rank;
  (void)n_blocks;
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" : : : "memory");
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank == 0;
}
#else
enum { KR_CLUSTERS = 0 };
KR_DEV void kr_cluster_starts(void) {}
KR_DEV void kr_cluster_started(void) {}
KR_DEV void kr_send(float *, const kr_float4 &, int) {}
KR_DEV int kr_gathered(int) { return 0; }
#endif

#endif
