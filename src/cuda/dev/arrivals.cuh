/* arrivals.cuh: which of several blocks' warps comes last, so that it may replace what all of them have read; nobody
 * waits for the others. The counter is zero before the first and after the last.
 *
 *   const float before = kr_arrive(counter, read, one);   // read: made of every loaded word; one: 1 that the compiler
 *                                                         // does not know
 *   ...
 *   if (kr_is_last(before, counter, n)) replace
 *
 * No fence: a fence would wait for all of a warp's other loads. The number that a warp adds depends on what its lanes
 * have read, and what the last one writes on the sum, so it cannot be what they have read. */
#ifndef KR_ARRIVALS_CUH
#define KR_ARRIVALS_CUH

#include "kernel.cuh"

/* Called by whole warps; the result is for kr_is_last. */
KR_DEV float kr_arrive(float *counter, uint32_t read, float one) {
  float before = 0;
#ifdef KR_EMULATE
  (void)read;
  kr_sync_warp();
  if ((kr_thread() & 31) == 0) before = *counter, *counter = before + one;
#else
  float adds;
  asm volatile(
      "{ .reg .pred own, any;\n\tsetp.ne.u32 own, %1, 0;\n\tvote.sync.any.pred any, own, 0xffffffff;\n\t"
      "selp.f32 %0, %2, 0f3F800000, any; }"
      : "=f"(adds)
      : "r"(read), "f"(one));
  if ((kr_thread() & 31) == 0)
    asm volatile("atom.global.add.f32 %0, [%1], %2;" : "=f"(before) : "l"(counter), "f"(adds) : "memory");
#endif
  return before;
}

/* Whether this warp is the last of n. Called by whole warps. */
KR_DEV int kr_is_last(float before, float *counter, int n) {
  const int is_last = kr_shuffle_from(before, 0) == (float)(n - 1);
  if (is_last && (kr_thread() & 31) == 0) *counter = 0;
  return is_last;
}

#endif
