/* kernel.cuh: the device vocabulary: thread indices, barriers, shuffles, conversions, exponentials, 16-byte access. No
 * toolkit header is included: clang reads it as CUDA, and the tests' emulator (KR_EMULATE) as host C++. KR_TIER is 50,
 * 80 or 90: the lowest capability the text is compiled for. float16 and bfloat16 are uint16_t. */
#ifndef KR_KERNEL_CUH
#define KR_KERNEL_CUH

#include <stdint.h>

#include "op_args.h"

#ifdef KR_EMULATE
#include "emulator.h"
#else

#define KR_DEV static __attribute__((device)) __attribute__((always_inline)) inline
#define KR_KERNEL extern "C" __attribute__((global))
#define KR_BOUNDS(threads, blocks) __attribute__((launch_bounds(threads, blocks)))
#define KR_SHARED __attribute__((shared))
#define KR_DYNAMIC_SHARED(name) extern __attribute__((shared)) __attribute__((aligned(16))) unsigned char name[]

KR_DEV int kr_thread(void) { return __nvvm_read_ptx_sreg_tid_x(); }
KR_DEV int kr_block_threads(void) { return __nvvm_read_ptx_sreg_ntid_x(); }
KR_DEV int kr_block_x(void) { return __nvvm_read_ptx_sreg_ctaid_x(); }
KR_DEV int kr_block_y(void) { return __nvvm_read_ptx_sreg_ctaid_y(); }
KR_DEV int kr_block_z(void) { return __nvvm_read_ptx_sreg_ctaid_z(); }
KR_DEV int kr_grid_x(void) { return __nvvm_read_ptx_sreg_nctaid_x(); }
KR_DEV void kr_sync(void) { __syncthreads(); }
KR_DEV void kr_sync_warp(void) { __nvvm_bar_warp_sync(0xffffffffu); }
KR_DEV float kr_shuffle_xor(float v, int mask) { return __nvvm_shfl_sync_bfly_f32(0xffffffffu, v, mask, 31); }

/* From the lane `by` below or above within its run of `width` lanes, a power of two; the lane's own value if there is
 * none. */
KR_DEV float kr_shuffle_up(float v, int by, int width) {
  return __nvvm_shfl_sync_up_f32(0xffffffffu, v, by, (32 - width) << 8);
}
KR_DEV float kr_shuffle_down(float v, int by, int width) {
  return __nvvm_shfl_sync_down_f32(0xffffffffu, v, by, (32 - width) << 8 | 31);
}

KR_DEV uint32_t kr_mul_high(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }

/* A pointer advanced through global memory: makes the compiler keep one instead of one per unrolled step. */
template <typename T>
KR_DEV void kr_one_pointer(T *&p) {
  __attribute__((address_space(1))) T *global = (__attribute__((address_space(1))) T *)p;
  asm("" : "+l"(global));
  p = (T *)global;
}

/* Any lane's value. */
KR_DEV float kr_shuffle_from(float v, int lane) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, v, lane, 31); }

KR_DEV float kr_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
KR_DEV float kr_log2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
KR_DEV float kr_rcp(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
KR_DEV float kr_rsqrt(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
/* condition ? a : b without a branch: the compiler would prefer to branch around a special function. */
KR_DEV float kr_select(int condition, float a, float b) {
  float y;
  asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p; }" : "=f"(y) : "f"(a), "f"(b), "r"(condition));
  return y;
}
KR_DEV float kr_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KR_DEV float kr_bits_to_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
KR_DEV uint32_t kr_float_to_bits(float v) { return __builtin_bit_cast(uint32_t, v); }
KR_DEV float kr_from_f16(uint16_t h) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h)); return v; }
KR_DEV uint16_t kr_to_f16(float v) { uint16_t h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h; }
#if KR_TIER >= 80
/* NaN propagates. */
KR_DEV float kr_at_most(float x, float limit) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
  return y;
}
/* Relative error 2^-11. */
KR_DEV float kr_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KR_DEV uint16_t kr_to_bf16(float v) { uint16_t h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v)); return h; }
KR_DEV uint32_t kr_pack_bf16(float low, float high) {
  uint32_t h;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
  return h;
}
KR_DEV uint32_t kr_pack_f16(float low, float high) {
  uint32_t h;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
  return h;
}

/* d += a b on a warp's tensor cores: m16n8k16, float16 operands. With g = lane / 4 and q = lane % 4 a lane holds in a:
 * row g (a[0], a[2]) and row g + 8, columns 2 q, 2 q + 1 and, from a[2] on, eight further; in b0 and b1: the same as
 * rows of column g; in d: columns 2 q and 2 q + 1 of row g, then of row g + 8. */
KR_DEV void kr_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Named barrier (1 to 15) for THREADS of the block's threads, whole warps. */
template <int BARRIER, int THREADS>
KR_DEV void kr_sync_some(void) { asm volatile("bar.sync %0, %1;" : : "n"(BARRIER), "n"(THREADS) : "memory"); }
/* The same with a run-time barrier number; kr_arrive_at arrives without waiting. */
template <int THREADS>
KR_DEV void kr_sync_at(int barrier) { asm volatile("bar.sync %0, %1;" : : "r"(barrier), "n"(THREADS) : "memory"); }
template <int THREADS>
KR_DEV void kr_arrive_at(int barrier) { asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "n"(THREADS) : "memory"); }
KR_DEV int kr_any_lane(int yes) { return __nvvm_vote_any_sync(0xffffffffu, yes != 0); }

/* Release/acquire between blocks: writes before kr_publish are visible to whoever has awaited it. */
KR_DEV void kr_publish(int32_t *to, int value) {
  asm volatile("st.release.gpu.s32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
}
KR_DEV void kr_await(const int32_t *from, int least) {
  int value;
  do asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  while (value < least);
}
#endif
#endif /* KR_EMULATE */

/* Asynchronous copies of 16 or 4 bytes from global to shared memory, ampere tier and up: kr_copied<N>() waits until at
 * most the N latest commits are in flight; other threads see the bytes after a kr_sync(). Immediate on lower tiers. */
#ifdef KR_EMULATE /* emulator.h: as late as allowed */
#elif KR_TIER < 80
KR_DEV void kr_copy16(void *shared, const void *from) {
  __builtin_memcpy(__builtin_assume_aligned(shared, 16), __builtin_assume_aligned(from, 16), 16);
}
KR_DEV void kr_copy4(void *shared, const void *from) {
  __builtin_memcpy(__builtin_assume_aligned(shared, 4), __builtin_assume_aligned(from, 4), 4);
}
KR_DEV void kr_commit_copies(void) {}
template <int N>
KR_DEV void kr_copied(void) {}
#else
KR_DEV void kr_copy16(void *shared, const void *from) {
  asm volatile("{ .reg .u64 to; cvta.to.shared.u64 to, %0; cp.async.cg.shared.global [to], [%1], 16; }"
               :
               : "l"(shared), "l"(from)
               : "memory");
}
KR_DEV void kr_copy4(void *shared, const void *from) {
  asm volatile("{ .reg .u64 to; cvta.to.shared.u64 to, %0; cp.async.ca.shared.global [to], [%1], 4; }"
               :
               : "l"(shared), "l"(from)
               : "memory");
}
/* 8 or 16 bytes; zeros if !exists, in which case `from` is not read. */
template <int BYTES>
KR_DEV void kr_copy_or_zero(void *shared, const void *from, int exists) {
  const uint32_t to = (uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)shared;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" : : "r"(to), "l"(from), "r"(exists ? 8 : 0) : "memory");
}
KR_DEV void kr_commit_copies(void) { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N>
KR_DEV void kr_copied(void) { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }
#endif

#if defined(KR_EMULATE) || KR_TIER < 80
KR_DEV float kr_at_most(float x, float limit) { return kr_select(x > limit, limit, x); }
KR_DEV uint16_t kr_to_bf16(float v) {
  uint32_t bits = kr_float_to_bits(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
KR_DEV uint32_t kr_pack_bf16(float low, float high) { return (uint32_t)kr_to_bf16(high) << 16 | kr_to_bf16(low); }
KR_DEV uint32_t kr_pack_f16(float low, float high) { return (uint32_t)kr_to_f16(high) << 16 | kr_to_f16(low); }
#endif

KR_DEV float kr_from_bf16(uint16_t h) { return kr_bits_to_float((uint32_t)h << 16); }

#define KR_LOG2E 1.4426950408889634f
#define KR_LN2 0.6931471805599453f

KR_DEV float kr_exp(float x) { return kr_exp2(x * KR_LOG2E); }
KR_DEV float kr_sigmoid(float x) { return kr_rcp(1.0f + kr_exp2(-KR_LOG2E * x)); }
KR_DEV float kr_silu(float x) { return x * kr_sigmoid(x); }

/* log(1 + e^v); v if above 20. Below -5 the sum 1 + e^v loses e^v's digits, so a series takes over. */
KR_DEV float kr_softplus(float v) {
  float e = kr_exp2(v * KR_LOG2E);
  float small = e * kr_fma(e, kr_fma(e, 0.33333334f, -0.5f), 1.0f), large = KR_LN2 * kr_log2(1.0f + e);
  return kr_select(v > 20.0f, v, kr_select(v < -5.0f, small, large));
}

/* The same for v = w log 2. */
KR_DEV float kr_softplus_log2(float w) {
  const float e = kr_exp2(w), small = e * kr_fma(e, kr_fma(e, 0.33333334f, -0.5f), 1.0f),
              large = kr_select(w > 20.0f * KR_LOG2E, w, kr_log2(1.0f + e));
  return kr_select(w < -5.0f * KR_LOG2E, small, KR_LN2 * large);
}

/* Softplus's derivative at output y: 1 - e^-y; a series for small y, where the difference loses digits. */
KR_DEV float kr_softplus_slope(float y) {
  float small = y * kr_fma(y, kr_fma(y, 0.16666667f, -0.5f), 1.0f);
  return kr_select(y < 0.02f, small, 1.0f - kr_exp2(-KR_LOG2E * y));
}

typedef struct __attribute__((aligned(8))) kr_float2 {
  float v[2];
} kr_float2;
typedef struct __attribute__((aligned(16))) kr_float4 {
  float v[4];
} kr_float4;
typedef struct __attribute__((aligned(16))) kr_raw16 {
  uint32_t w[4];
} kr_raw16;

KR_DEV float kr_unpack(uint32_t pair, int high, int32_t dtype) {
  if (dtype == KRAIT_BF16) return kr_bits_to_float(high ? pair & 0xffff0000u : pair << 16);
  return kr_from_f16((uint16_t)(high ? pair >> 16 : pair));
}
KR_DEV uint32_t kr_pack(float low, float high, int32_t dtype) {
  return dtype == KRAIT_BF16 ? kr_pack_bf16(low, high) : kr_pack_f16(low, high);
}

/* One element of any float type. */
KR_DEV float kr_load(const void *data, int64_t offset, int32_t dtype) {
  if (dtype == KRAIT_F32) return ((const float *)data)[offset];
  uint16_t h = ((const uint16_t *)data)[offset];
  return dtype == KRAIT_BF16 ? kr_from_bf16(h) : kr_from_f16(h);
}
KR_DEV void kr_store(void *data, int64_t offset, int32_t dtype, float v) {
  if (dtype == KRAIT_F32) ((float *)data)[offset] = v;
  else ((uint16_t *)data)[offset] = dtype == KRAIT_BF16 ? kr_to_bf16(v) : kr_to_f16(v);
}

#endif
