/* mma.cuh: building blocks of products on a warp's tensor cores, ampere tier and up; the emulator has them too.
 * kernel.cuh has the asynchronous copies (kr_copy16, kr_commit_copies, kr_copied) and kr_mma for float16.
 *
 * With g = lane / 4 and q = lane % 4, the operands of m16n8k16 in registers of two elements: a[0]: row g, columns 2 q
 * and + 1; a[1]: row g + 8; a[2], a[3]: the same, eight columns on. b[0]: column g, rows 2 q and + 1; b[1]: eight rows
 * on. Accumulators: d[0], d[1]: row g, columns 2 q and + 1; d[2], d[3]: row g + 8. kr_load_matrices loads operands from
 * 16-byte rows in shared memory: plain if k is contiguous; transposed if m or n is. For conflict-free access the eight
 * rows of a matrix should be in different banks: kr_swizzle. */
#ifndef KR_MMA_CUH
#define KR_MMA_CUH

#include "kernel.cuh"

struct kr_f16 {};
struct kr_bf16 {};
/* m16n8k8: one element per register, where the text above says two of 16 bits: column q of each half. */
struct kr_tf32 {
};

#ifdef KR_EMULATE
KR_DEV void kr_load_matrices(uint32_t (&d)[4], const void *row) { kr_emulated_load_matrices(d, row, 0); }
KR_DEV void kr_load_matrices_turned(uint32_t (&d)[4], const void *row) { kr_emulated_load_matrices(d, row, 1); }
KR_DEV void kr_mma_as(kr_f16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  kr_emulated_mma(d, a, b0, b1);
}
KR_DEV void kr_mma_as(kr_bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  kr_emulated_mma_bf16(d, a, b0, b1);
}
KR_DEV void kr_mma_as(kr_tf32, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  kr_emulated_mma_tf32(d, a, b0, b1);
}
KR_DEV uint32_t kr_round_tf32(uint32_t bits) {
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}
KR_DEV void kr_copy_some(void *shared, const void *from, int bytes) { kr_emulated_copy_some(shared, from, bytes, 16); }
KR_DEV void kr_load_matrices_at(uint32_t (&d)[4], uint32_t row) {
  kr_emulated_load_matrices(d, kr_emulated_at(row), 0);
}
KR_DEV void kr_load_matrices_turned_at(uint32_t (&d)[4], uint32_t row) {
  kr_emulated_load_matrices(d, kr_emulated_at(row), 1);
}
KR_DEV void kr_copy_some_at(uint32_t shared, const void *from, int bytes) {
  kr_emulated_copy_some(kr_emulated_at(shared), from, bytes, 16);
}
#else
KR_DEV uint32_t kr_shared_at(const void *p) {
  return (uint32_t)(uintptr_t)(__attribute__((address_space(3))) const void *)p;
}

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8 and gets of each
 * matrix, as one register, columns 2 q and + 1 of row g; transposed: rows 2 q and + 1 of column g. */
KR_DEV void kr_load_matrices_at(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}
KR_DEV void kr_load_matrices_turned_at(uint32_t (&d)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row)
               : "memory");
}
KR_DEV void kr_load_matrices(uint32_t (&d)[4], const void *row) { kr_load_matrices_at(d, kr_shared_at(row)); }
KR_DEV void kr_load_matrices_turned(uint32_t (&d)[4], const void *row) {
  kr_load_matrices_turned_at(d, kr_shared_at(row));
}

/* d += a b. */
KR_DEV void kr_mma_as(kr_f16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kr_mma(d, a, b0, b1); }
KR_DEV void kr_mma_as(kr_bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

KR_DEV void kr_mma_as(kr_tf32, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A float32's bits rounded to 11 significant bits, ties away from 0: the tensor cores ignore the others. */
KR_DEV uint32_t kr_round_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(kr_bits_to_float(bits)));
  return rounded;
}

/* Asynchronous copy of the first `bytes` of 16, zero-filled; `from` is not read if bytes is 0. */
KR_DEV void kr_copy_some_at(uint32_t shared, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared), "l"(from), "r"(bytes) : "memory");
}
KR_DEV void kr_copy_some(void *shared, const void *from, int bytes) {
  kr_copy_some_at(kr_shared_at(shared), from, bytes);
}
#endif

/* x = high + low with 11 significant bits each, up to float32's own rounding (low is cut by the tensor core). Where x
 * is infinite, or rounds to infinity, low is not finite: whoever multiplies parts mends results that are not. */
KR_DEV void kr_split_tf32(const uint32_t (&x)[4], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int r = 0; r < 4; r++) {
    high[r] = (x[r] + 0x1000u) & ~0x1fffu;
    low[r] = kr_float_to_bits(kr_bits_to_float(x[r]) - kr_bits_to_float(high[r]));
  }
}

/* Swizzled position of 16-byte chunk `chunk` of row `row`, for rows of ROW_BYTES (a power of two, at least 32): eight
 * rows at one chunk, and eight chunks of one row, are in different banks. */
template <int ROW_BYTES>
KR_DEV int kr_swizzle(int row, int chunk) {
  const int per_line = 128 / ROW_BYTES; /* rows per 128 bytes, all banks once */
  if (per_line <= 1) return row * ROW_BYTES + (chunk ^ (row & 7)) * 16;
  return row * ROW_BYTES + (chunk ^ (row / (per_line ? per_line : 1) & (ROW_BYTES / 16 - 1))) * 16;
}

#endif
