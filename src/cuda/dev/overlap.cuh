/* overlap.cuh: kernels that start while the previous one on their stream still runs (programmatic dependent launch:
 * compute capability 9.0 on; elsewhere, and in ordinary launches, these functions do nothing).
 *
 * The rule. A kernel that is ever launched with kr_grid.is_pdl calls in every thread that stays
 *   kr_launch_dependents()   at its beginning: once all blocks have, or have ended, the next kernel's blocks may start;
 *   kr_griddep_wait()      before it reads what any kernel of its stream writes, and before it writes anything at all.
 * kr_griddep_wait() waits until the previous kernel has completed and its writes are visible; as that one has waited
 * for its predecessor, everything earlier has completed as well. Hence after it nothing can be read too early, and
 * nothing be overwritten that is still being read. Before it there may be work that does not depend on memory, and
 * loads of memory that nobody writes: parameters if KR_CALL_PDL is set, states and their indices if
 * KR_CALL_STATE_PDL is. */
#ifndef KR_OVERLAP_CUH
#define KR_OVERLAP_CUH

#include "overlap.h"
#include "kernel.cuh"

#if !defined(KR_EMULATE) && KR_TIER >= 90
enum { KR_AHEAD = 1 };
/* Prefetches a line. */
KR_DEV void kr_fetch(const void *from) { asm volatile("prefetch.global.L1 [%0];" : : "l"(from)); }
/* Loads a parameter here, so that later uses do not wait for its 64 bytes. */
KR_DEV void kr_keep_near(int32_t v) { asm volatile("" : : "r"(v)); }
KR_DEV void kr_keep_near(int64_t v) { asm volatile("" : : "l"(v)); }
KR_DEV void kr_keep_near(float v) { asm volatile("" : : "f"(v)); }
KR_DEV void kr_keep_near(const void *v) { asm volatile("" : : "l"(v)); }
KR_DEV void kr_launch_dependents(void) { asm volatile("griddepcontrol.launch_dependents;"); }
KR_DEV void kr_griddep_wait(void) { asm volatile("griddepcontrol.wait;" : : : "memory"); }
/* Touches each line of the kernel's parameters, which begin 16 bytes into a line: a line's first use costs a memory
 * access. The predicated instruction has no effect: kr_launch_dependents() has executed it already. */
template <typename T>
KR_DEV void kr_keep_all_near(const T &parameters) {
  uint32_t v = 0;
#pragma unroll
  for (size_t at = 48; at < sizeof parameters; at += 64) v ^= *(const uint32_t *)((const char *)&parameters + at);
  asm volatile("{\n\t.reg .pred any;\n\tsetp.eq.u32 any, %0, 0;\n\t@any griddepcontrol.launch_dependents;\n\t}"
               :
               : "r"(v));
}
/* L2 policy: evicted first. For what a step reads or writes once, so that it displaces less of what every layer reads
 * again. */
KR_DEV uint64_t kr_once(void) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/* 16 bytes that this kernel reads once, and nobody writes meanwhile; fetches 256 bytes into L2. */
KR_DEV kr_raw16 kr_read_once(const void *from) {
  kr_raw16 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(from), "l"(kr_once()));
  return v;
}
/* 16 bytes of a state, which this thread overwrites. */
KR_DEV kr_raw16 kr_read_state(const void *from) {
  kr_raw16 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(from), "l"(kr_once())
               : "memory");
  return v;
}
/* The same into shared memory, as kr_copy16. */
KR_DEV void kr_copy_state(void *shared, const void *from) {
  asm volatile("{ .reg .u64 to; cvta.to.shared.u64 to, %0;\n\t"
               "cp.async.cg.shared.global.L2::cache_hint [to], [%1], 16, %2; }"
               :
               : "l"(shared), "l"(from), "l"(kr_once())
               : "memory");
}
KR_DEV void kr_write_state(void *to, const kr_raw16 &v) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
               :
               : "l"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "l"(kr_once())
               : "memory");
}
#else
enum { KR_AHEAD = 0 };
KR_DEV void kr_fetch(const void *from) { (void)from; }
template <typename T>
KR_DEV void kr_keep_near(T v) { (void)v; }
template <typename T>
KR_DEV void kr_keep_all_near(const T &) {}
KR_DEV void kr_launch_dependents(void) {}
#ifdef KR_EMULATE
KR_DEV void kr_griddep_wait(void) { kr_emulated_others_done(); }
#else
KR_DEV void kr_griddep_wait(void) {}
#endif
KR_DEV kr_raw16 kr_read_once(const void *from) { return *(const kr_raw16 *)from; }
KR_DEV kr_raw16 kr_read_state(const void *from) { return *(const kr_raw16 *)from; }
KR_DEV void kr_copy_state(void *shared, const void *from) { kr_copy16(shared, from); }
KR_DEV void kr_write_state(void *to, const kr_raw16 &v) { *(kr_raw16 *)to = v; }
#endif

#endif
