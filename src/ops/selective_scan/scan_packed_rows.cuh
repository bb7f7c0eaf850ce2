/* scan_packed_rows.cuh: shared by the common-case kernels (selective_scan_packed_rows.cu,
 * selective_scan_packed_rows_bwd.cu; partly selective_scan_channels_last_n16.cu and scan_channels_last.cuh): 16-byte
 * packs of E elements, copied asynchronously by each lane to a slot of its own; step sizes; exponentials by
 * multiply-adds. ANY: rows may be unaligned and of any length. Then the aligned 16-byte blocks that contain a row's
 * packs of a tile are copied, by each pack's lane the one where it begins, by the last one's also the next; so lanes
 * read what others copied. Bytes past a row's end are not read and come as zeros; bytes before its start, in its first
 * block, are undefined. */
#ifndef KR_SCAN_PACKED_ROWS_CUH
#define KR_SCAN_PACKED_ROWS_CUH

#include "scan_gate.cuh"
#include "pack.cuh"
#include "scan_params.h"

enum { E = KR_DTYPE == KRAIT_F32 ? 4 : 8 };

KR_DEV void copy_pack(kr_raw16 *to, const char *from, int exists) {
#if KR_TIER >= 80 || defined(KR_EMULATE)
  kr_copy_or_zero<16>(to, from, exists);
#else
  if (exists) kr_copy16(to, from);
  else *to = kr_raw16{{0, 0, 0, 0}};
#endif
}

/* Copies 16 bytes asynchronously. */
KR_DEV void copy_16(void *to, const char *from) {
#ifdef KR_EMULATE
  kr_emulated_copy(to, from, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)to), "l"(from)
               : "memory");
#endif
}

/* One 16-byte shared-memory read, which the compiler would split where it needs one float first. */
KR_DEV kr_float4 read_four(const float *from) {
#ifdef KR_EMULATE
  return *(const kr_float4 *)from;
#else
  kr_float4 q;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(q.v[0]), "=f"(q.v[1]), "=f"(q.v[2]), "=f"(q.v[3])
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) const void *)from)
               : "memory");
  return q;
#endif
}

/* The thread's number, reread so that values derived from it are recomputed instead of kept in registers. */
KR_DEV int thread_again(void) {
#ifdef KR_EMULATE
  return kr_thread();
#else
  int v;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
  return v;
#endif
}

/* Copies an aligned block if it exists. */
KR_DEV void copy_if(kr_raw16 *to, const char *from, int exists) {
#if defined(KR_EMULATE) || KR_TIER < 80
  if (exists) kr_copy16(to, from);
#else
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)to), "l"(from), "r"(exists)
               : "memory");
#endif
}

/* The first n bytes of an aligned block, n clamped to 0 ... 16; zeros for the rest. The emulator does not read before
 * `first`. */
KR_DEV void copy_block(kr_raw16 *to, const char *from, int first, int n) {
  n = n < 0 ? 0 : n > 16 ? 16 : n;
#ifdef KR_EMULATE
  const int end = n > first ? n : first;
  __builtin_memset(to, 0xfb, 16);
  if (end > first) kr_emulated_copy((char *)to + first, from + first, end - first);
  if (end < 16) kr_emulated_copy((char *)to + end, nullptr, 16 - end);
#elif KR_TIER < 80
  (void)first;
#pragma unroll 1
  for (int k = 0; k < 8; k++) ((uint16_t *)to)[k] = 2 * k < n ? ((const uint16_t *)from)[k] : 0;
#else
  (void)first;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)to), "l"(from), "r"(n)
               : "memory");
#endif
}

/* 32 bits of two words from bit `bits`, below 32. */
KR_DEV uint32_t shifted(uint32_t low, uint32_t high, int bits) {
#ifdef KR_EMULATE
  return (uint32_t)(((uint64_t)high << 32 | low) >> bits);
#else
  uint32_t v;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(bits));
  return v;
#endif
}

/* v if step k is below n_left, else 0; opaque, so that the test is not hoisted. */
KR_DEV float until(float v, int k, int n_left) {
#ifdef KR_EMULATE
  return k < n_left ? v : 0.0f;
#else
  float y;
  asm("{ .reg .pred p; setp.lt.s32 p, %2, %3; selp.f32 %0, %1, 0f00000000, p; }"
      : "=f"(y)
      : "f"(v), "r"(k), "r"(n_left));
  return y;
#endif
}

/* A pack's offset within its block, in bytes. */
KR_DEV int misfit(const char *from) { return (int)((uintptr_t)from & 15); }

/* Copies the block of the pack at `from`, n_left bytes before its row's end, and for a row's last pack of a tile what
 * it needs of the next block. inside: both are before that end, or the row does not exist. begins: the row starts with
 * this pack. */
KR_DEV void copy_anywhere(kr_raw16 *place, kr_raw16 *next, const char *from, int exists, int n_left, int is_last,
                          int inside, int begins) {
  const int before = misfit(from), behind = n_left + before - 16;
  from -= before;
#ifdef KR_EMULATE
  inside = inside && !begins;
#endif
  if (inside) {
    copy_if(place, from, exists);
    copy_if(next, from + 16, exists && is_last);
    return;
  }
  copy_block(place, from, begins ? before : 0, exists ? n_left + before : 0);
  if (is_last) copy_block(next, from + 16, 0, !exists ? 0 : behind < before ? behind : before);
}

/* The pack at byte `before` of a block. */
KR_DEV kr_raw16 read_anywhere(const kr_raw16 *place, const kr_raw16 *next, int before) {
  const uint32_t *const own = (const uint32_t *)place + before / 4, *const then =
                                                                        (const uint32_t *)(next - 1) + before / 4;
  const int bits = (before & 2) * 8;
  uint32_t word[5];
#pragma unroll
  for (int k = 0; k < 5; k++) word[k] = before / 4 + k < 4 ? own[k] : then[k];
  if (E == 4) return {{word[0], word[1], word[2], word[3]}};
  return {{shifted(word[0], word[1], bits), shifted(word[1], word[2], bits), shifted(word[2], word[3], bits),
           shifted(word[3], word[4], bits)}};
}

KR_DEV kr_raw16 round_pack(const float (&v)[E]) {
  kr_raw16 raw;
#pragma unroll
  for (int k = 0; k < 4; k++)
    raw.w[k] = E == 4 ? kr_float_to_bits(v[k]) : kr_pack(v[2 * k % E], v[(2 * k + 1) % E], KR_DTYPE);
  return raw;
}

/* Stores word w of n of a row's packs in a tile, joined with the next word, to an unaligned row that ends after n_left
 * elements. A warp's lanes hold adjacent words: single words of packs would each be a 32-byte write to L2. */
KR_DEV void store_word(char *row, int w, int n, uint32_t own, uint32_t next, int n_left) {
  if (E == 4) {
    if (w < n_left) ((uint32_t *)row)[w] = own;
    return;
  }
  const int odd = (int)((uintptr_t)row >> 1 & 1), first = 2 * w + odd;
  uint16_t *const at = (uint16_t *)row + first;
  const uint32_t v = shifted(own, next, odd * 16);
  if (odd && w == 0 && n_left > 0) *(uint16_t *)row = (uint16_t)own;
  if (first + 1 < n_left && w < n - odd) *(uint32_t *)at = v;
  else if (first < n_left) *at = (uint16_t)v;
}

/* Forces later uses to be recomputed from these 16 bytes: only they stay in registers. */
KR_DEV void keep_packed(kr_raw16 &raw) {
#ifndef KR_EMULATE
#pragma unroll
  for (int k = 0; k < 4; k++) asm volatile("" : "+r"(raw.w[k]));
#else
  (void)raw;
#endif
}

/* log(1 + e^v): log(1 + e) is e times a polynomial for e = e^-|v|, so that small values keep precision and one
 * special-function op suffices. Relative error 2^-22.7 plus the exponential's. */
KR_DEV float softplus_of(float v) {
  const float e = kr_exp2(__builtin_fabsf(v) * -KR_LOG2E);
  float q = 0.00536481058f;
  q = kr_fma(q, e, -0.0300657395f), q = kr_fma(q, e, 0.079204455f), q = kr_fma(q, e, -0.137537956f),
  q = kr_fma(q, e, 0.191536516f);
  q = kr_fma(q, e, -0.248571634f), q = kr_fma(q, e, 0.33321324f), q = kr_fma(q, e, -0.499996483f),
  q = kr_fma(q, e, 1.0f);
  return kr_fma(q, e, __builtin_fmaxf(v, 0.0f));
}

/* 2^(a b) without the special-function unit: floor, a polynomial for the fraction that is exactly 1 and 2 at its ends,
 * and an integer add for the exponent. Relative error 2^-22.6; zero below 2^-126, at most 2^128 above 2^127, zero for
 * NaN. */
KR_DEV float exp2_of_product(float a, float b) {
  const float one = 12582912.0f; /* 1.5 * 2^23: its last bit is 1 */
  float t, f, q = 0.00187931862f;
#ifdef KR_EMULATE
  const double exact = (double)a * b;
  t = (float)__builtin_floor(exact + one), f = kr_fma(a, b, one - t), f = f > 0.0f ? f < 1.0f ? f : 1.0f : 0.0f;
#else
  asm("fma.rm.ftz.f32 %0, %1, %2, %3;" : "=f"(t) : "f"(a), "f"(b), "f"(one));
  asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(f) : "f"(a), "f"(b), "f"(one - t));
#endif
  q = kr_fma(q, f, 0.00899099559f), q = kr_fma(q, f, 0.0558186769f), q = kr_fma(q, f, 0.240159273f),
  q = kr_fma(q, f, 0.693151712f);
  q = kr_fma(q, f, 1.0f);
  const float n = __builtin_fminf(__builtin_fmaxf(t, one - 127.0f), one + 127.0f);
  return kr_bits_to_float(kr_float_to_bits(q) + (kr_float_to_bits(n) << 23));
}

/* dt of a pack of delta. */
KR_DEV void step_sizes(int softplus, const kr_raw16 &delta, float bias, float (&dt)[E]) {
#pragma unroll
  for (int k = 0; k < E; k++) dt[k] = pack_at(delta, k, KR_DTYPE) + bias;
  if (!softplus) return;
#pragma unroll
  for (int k = 0; k < E; k++) dt[k] = softplus_of(dt[k]);
}

/* A sum over a run of n lanes. */
KR_DEV float sum_packs(const int n, float v) {
#pragma unroll
  for (int by = 1; by < n; by *= 2) v += kr_shuffle_xor(v, by);
  return v;
}

#endif
