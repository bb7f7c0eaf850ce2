/* wgmma.cuh: Hopper's building blocks (sm_90a): transaction barriers in shared memory, bulk tensor copies, and products
 * of a warpgroup (four warps, the first a multiple of four) with operands in shared memory.
 *
 * An operand's tile consists of blocks that are 128 bytes wide, 64 elements of 16 bits, as written by a tensor map with
 * 128-byte swizzle and a box of 64 elements; a block starts at a multiple of 1024 bytes.
 *   K-major: a block holds 64 values of k for each of its rows (m or n).             kr_k_major(address)
 *   M- or N-major: a block holds 64 values of m or n for each of its 64 values of k. kr_mn_major(address, bytes from a
 *     block of 64 m or n to the next)
 * Products are issued in chains of up to four steps of 16 k, one block of 64: kr_wgmma<N, T>(d, a, b, ...) waits within
 * the same asm statement until at most LEFT groups are in flight, because the compiler may move d between two
 * statements. With LEFT = 0 the chain is complete on return. A chain left in flight (LEFT > 0) must be closed by
 * kr_wgmma_wait before d is touched; check ptxas' log: C7508 to C7515 mean that it serialised everything. d:
 * with warp w of four, g = lane / 4, q = lane % 4: d[4 j + {0, 1}] is row 16 w + g, columns 8 j + 2 q and + 1; d[4 j +
 * {2, 3}] row + 8. */
#ifndef KR_WGMMA_CUH
#define KR_WGMMA_CUH

#include "mma.cuh"

/* Offset per step of 16 k, in a block of either kind. */
enum {
  KR_K_STEP_BYTES = 32,
  KR_MN_STEP_BYTES = 2048
};

/* Descriptors: address and strides in units of 16 bytes, 128-byte swizzle. */
KR_DEV uint64_t kr_k_major(uint32_t address) {
  return (uint64_t)(address >> 4) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
KR_DEV uint64_t kr_mn_major(uint32_t address, uint32_t next_block_bytes) {
  return (uint64_t)(address >> 4) | (uint64_t)(next_block_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

#ifndef KR_EMULATE /* emulator.h has those that emulated kernels use */

/* ---- shared memory, barriers ------------------------------------------------------------------------------------- */

/* A barrier is 8 bytes; a phase completes after `arrivals` arrivals and all announced bytes. */
KR_DEV void kr_barrier_open(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}
/* By the thread that initialised them, before the block's kr_sync(). */
KR_DEV void kr_barriers_opened(void) {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" : : : "memory");
}
KR_DEV void kr_barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
KR_DEV void kr_barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}
/* Waits for the phase of this parity; the phase before the first has parity 1 and is complete. */
KR_DEV void kr_barrier_await(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra "
      "AGAIN;\n\t}"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}
/* Makes this thread's shared-memory writes visible to bulk copies and tensor cores after the next barrier. */
KR_DEV void kr_show_to_copies(void) { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

/* ---- bulk copies ------------------------------------------------------------------------------------------------- */

/* A box of a three-dimensional tensor, innermost first; out of bounds reads as zero and is not stored. map: the generic
 * address of a tensor map in constant, parameter or global memory. */
KR_DEV void kr_load_box(uint32_t to, uint64_t map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
KR_DEV void kr_load_box(uint32_t to, uint64_t map, uint32_t barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}
/* Multicast to the cluster's blocks in mask, at the same offset in each, whose barrier there counts the bytes. */
KR_DEV void kr_load_box_to_all(uint32_t to, uint64_t map, uint32_t barrier, int x, int y, int z, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask)
      : "memory");
}
KR_DEV void kr_store_box(uint64_t map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}
KR_DEV void kr_store_box(uint64_t map, uint32_t from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(from)
               : "memory");
}
/* Adds to the contents of memory, each sum rounded to T, the map's type. */
template <class T>
KR_DEV void kr_add_box(uint64_t map, uint32_t from, int x, int y, int z, int w) {
  asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(from)
               : "memory");
}
/* A multiple of 16 bytes, 16-byte aligned. */
KR_DEV void kr_load_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
KR_DEV void kr_store_bytes(void *to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}
KR_DEV void kr_commit_stores(void) { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }
/* Waits until all but the N latest groups of this thread's stores have read their shared memory. */
template <int N>
KR_DEV void kr_stores_read(void) { asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory"); }
KR_DEV void kr_fetch_map(uint64_t map) { asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory"); }

/* The generic address of the named kernel's parameter, a struct by value; within the kernel itself. The compiler would
 * copy a parameter whose address is taken, and a copy in local memory is not a valid tensor map. */
#define KR_PARAMETERS_ADDRESS(kernel, address) \
  asm("{\n\t.reg .u64 at;\n\tmov.u64 at, " #kernel "_param_0;\n\tcvta.param.u64 %0, at;\n\t}" : "=l"(address))

/* Stores four 8 x 8 matrices of 16-bit elements, two per register, to rows of 16 bytes; lane l gives the address of row
 * l % 8 of matrix l / 8. */
KR_DEV void kr_store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/* ---- registers, clusters ----------------------------------------------------------------------------------------- */

/* By every warp of a warpgroup; only in kernels with KR_BOUNDS. */
template <int REGISTERS>
KR_DEV void kr_give_registers(void) { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS)); }
template <int REGISTERS>
KR_DEV void kr_take_registers(void) { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS)); }

KR_DEV uint32_t kr_cluster_rank(void) {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
KR_DEV void kr_sync_cluster(void) {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" : : : "memory");
}
/* The barrier at the same offset in another block of the cluster. */
KR_DEV void kr_barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n\t.reg .u32 remote;\n\tmapa.shared::cluster.u32 remote, %0, "
      "%1;\n\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}"
      :
      : "r"(barrier), "r"(rank)
      : "memory");
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* The accumulators as asm text and operands, for N / 2 registers. */
#define KR_TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define KR_TO_9 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define KR_TO_31 KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", %30, %31"
#define KR_TO_47 KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KR_TO_63 \
  KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3) ", " KR_TEN(4) ", " KR_TEN(5) ", %60, %61, %62, %63"
#define KR_TO_79 \
  KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3) ", " KR_TEN(4) ", " KR_TEN(5) ", " KR_TEN(6) ", " KR_TEN(7)
#define KR_TO_95                                                                                                 \
  KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3) ", " KR_TEN(4) ", " KR_TEN(5) ", " KR_TEN(6) ", " KR_TEN( \
      7) ", " KR_TEN(8) ", %90, %91, %92, %93, %94, %95"
#define KR_TO_127                                                                                                     \
  KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3) ", " KR_TEN(4) ", " KR_TEN(5) ", " KR_TEN(6) ", " KR_TEN(      \
      7) ", " KR_TEN(8) ", " KR_TEN(9) ", " KR_TEN(10) ", " KR_TEN(11) ", %120, %121, %122, %123, %124, %125, %126, " \
                                                                       "%127"
#define KR_INOUT8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define KR_INOUT32(i) KR_INOUT8(i), KR_INOUT8(i + 8), KR_INOUT8(i + 16), KR_INOUT8(i + 24)
#define KR_INOUT_64 KR_INOUT32(0)
#define KR_INOUT_160 KR_INOUT32(0), KR_INOUT32(32), KR_INOUT8(64), KR_INOUT8(72)
#define KR_INOUT_96 KR_INOUT32(0), KR_INOUT8(32), KR_INOUT8(40)
#define KR_INOUT_128 KR_INOUT32(0), KR_INOUT32(32)
#define KR_INOUT_192 KR_INOUT32(0), KR_INOUT32(32), KR_INOUT32(64)
#define KR_INOUT_256 KR_INOUT32(0), KR_INOUT32(32), KR_INOUT32(64), KR_INOUT32(96)

template <int N, class T>
struct kr_wgmma_shape {};

#define KR_WGMMA_STEP(N, TYPE, REGISTERS, ADDS)                                                   \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, a, b, " ADDS \
  ", 1, 1, %[ta], %[tb];\n\t"
#define KR_WGMMA_NEXT "add.s64 a, a, %[sa];\n\tadd.s64 b, b, %[sb];\n\t"
#define KR_WGMMA_SHAPE(N, T, TYPE, REGISTERS)                                                                         \
  template <>                                                                                                         \
  struct kr_wgmma_shape<N, T> {                                                                                       \
    template <int A_MN, int B_MN, int LEFT>                                                                           \
    KR_DEV void four(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {                                            \
      asm volatile(                                                                                                   \
          "{\n\t.reg .pred add;\n\t.reg .b64 a, b;\n\tsetp.ne.b32 add, %[add], 0;\n\tmov.b64 a, %[a];\n\tmov.b64 b, " \
          "%[b];\n\t"                                                                                                 \
          "wgmma.fence.sync.aligned;\n\t" KR_WGMMA_STEP(N, TYPE, REGISTERS, "add")                                    \
              KR_WGMMA_NEXT KR_WGMMA_STEP(N, TYPE, REGISTERS, "1")                                                    \
                  KR_WGMMA_NEXT KR_WGMMA_STEP(N, TYPE, REGISTERS, "1") KR_WGMMA_NEXT KR_WGMMA_STEP(                   \
                      N, TYPE, REGISTERS,                                                                             \
                      "1") "wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned %[left];\n\t}"          \
          : KR_INOUT_##N                                                                                              \
          : [a] "l"(a), [b] "l"(b), [add] "r"(add), [ta] "n"(A_MN), [tb] "n"(B_MN), [left] "n"(LEFT),                 \
            [sa] "n"((A_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) >> 4),                                               \
            [sb] "n"((B_MN ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES) >> 4)                                                \
          : "memory");                                                                                                \
    }                                                                                                                 \
    template <int B_MN, int LEFT>                                                                                     \
    KR_DEV void from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {                      \
      asm volatile(                                                                                                   \
          "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %[add], 0;\n\twgmma.fence.sync.aligned;\n\t"                      \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS                              \
          "}, {%[a0], %[a1], %[a2], %[a3]}, %[b], add, 1, 1, %[tb];\n\t"                                              \
          "wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned %[left];\n\t}"                           \
          : KR_INOUT_##N                                                                                              \
          : [a0] "r"(a[0]), [a1] "r"(a[1]), [a2] "r"(a[2]), [a3] "r"(a[3]), [b] "l"(b), [add] "r"(add),               \
            [tb] "n"(B_MN), [left] "n"(LEFT)                                                                          \
          : "memory");                                                                                                \
    }                                                                                                                 \
    template <int A_MN, int B_MN>                                                                                     \
    KR_DEV void step(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {                                            \
      asm volatile(                                                                                                   \
          "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %[add], 0;\n\t"                                                   \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS                              \
          "}, %[a], %[b], add, 1, 1, %[ta], %[tb];\n\t}"                                                              \
          : KR_INOUT_##N                                                                                              \
          : [a] "l"(a), [b] "l"(b), [add] "r"(add), [ta] "n"(A_MN), [tb] "n"(B_MN)                                    \
          : "memory");                                                                                                \
    }                                                                                                                 \
    template <int B_MN>                                                                                               \
    KR_DEV void step_registers(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,     \
                               int add) {                                                                             \
      asm volatile(                                                                                                   \
          "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %[add], 0;\n\t"                                                   \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS                              \
          "}, {%[a0], %[a1], %[a2], %[a3]}, %[b], add, 1, 1, %[tb];\n\t}"                                             \
          : KR_INOUT_##N                                                                                              \
          : [a0] "r"(a0), [a1] "r"(a1), [a2] "r"(a2), [a3] "r"(a3), [b] "l"(b), [add] "r"(add), [tb] "n"(B_MN)        \
          : "memory");                                                                                                \
    }                                                                                                                 \
    template <int LEFT>                                                                                               \
    KR_DEV void wait(float (&d)[N / 2]) {                                                                             \
      asm volatile("wgmma.wait_group.sync.aligned %[left];" : KR_INOUT_##N : [left] "n"(LEFT) : "memory");            \
    }                                                                                                                 \
  };
#define KR_WGMMA_SHAPES(N, REGISTERS) \
  KR_WGMMA_SHAPE(N, kr_f16, "f16", REGISTERS) KR_WGMMA_SHAPE(N, kr_bf16, "bf16", REGISTERS)
KR_WGMMA_SHAPES(64, KR_TO_31)
KR_WGMMA_SHAPES(96, KR_TO_47)
KR_WGMMA_SHAPES(128, KR_TO_63)
KR_WGMMA_SHAPES(160, KR_TO_79)
KR_WGMMA_SHAPES(192, KR_TO_95)
KR_WGMMA_SHAPES(256, KR_TO_127)

/* d = a b, or d += a b with add, over 64 k; a and b: descriptors of a block's first step. */
template <int N, class T, int A_MN, int B_MN, int LEFT>
KR_DEV void kr_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  kr_wgmma_shape<N, T>::template four<A_MN, B_MN, LEFT>(d, a, b, add);
}
/* Over 16 k, a in registers: a[0], a[2] hold row g, a[1], a[3] row g + 8 of the warp's 16; columns 2 q, 2 q + 1 and,
 * from a[2] on, eight further. */
template <int N, class T, int B_MN, int LEFT>
KR_DEV void kr_wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {
  kr_wgmma_shape<N, T>::template from_registers<B_MN, LEFT>(d, a, b, add);
}
/* Chains of any length, left in flight: kr_wgmma_begin(), steps of 16 k, kr_wgmma_commit(), and kr_wgmma_wait before d,
 * or the operands' memory, is touched. Registers of d and a belong to the tensor cores until then. */
KR_DEV void kr_wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
KR_DEV void kr_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
template <int N, class T, int A_MN, int B_MN>
KR_DEV void kr_wgmma_step(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  kr_wgmma_shape<N, T>::template step<A_MN, B_MN>(d, a, b, add);
}
template <int N, class T, int B_MN>
KR_DEV void kr_wgmma_step_registers(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                                    int add) {
  kr_wgmma_shape<N, T>::template step_registers<B_MN>(d, a0, a1, a2, a3, b, add);
}
/* Waits until at most LEFT groups are in flight. */
template <int N, int LEFT>
KR_DEV void kr_wgmma_wait(float (&d)[N / 2]) { kr_wgmma_shape<N, kr_bf16>::template wait<LEFT>(d); }
#endif /* KR_EMULATE */

#endif
