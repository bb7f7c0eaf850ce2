/* emulator.h: the device primitives of src/cuda/dev/kernel.cuh on the host: a block's threads are coroutines that
 * switch at barriers and shuffles; blocks run one after another, or together if they wait for each other. Device
 * sources include it as C++ (KR_EMULATE), the tests as C. Uninitialized shared memory and shuffles from missing threads
 * read as NaN. */
#ifndef KR_EMULATOR_H
#define KR_EMULATOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kr_emulated_place {
  int thread, block_threads, block[3], grid_x;
  unsigned char *dynamic_shared;
} kr_emulated_place;
extern kr_emulated_place kr_emulated_now; /* of the running thread */

void kr_emulated_sync(void);
void kr_emulated_sync_warp(void);
void kr_emulated_copy(void *to, const void *from,
                      int n_bytes); /* up to 16, zeros from NULL; garbage until waited for */
void kr_emulated_copy_some(void *to, const void *from, int n_exist, int n_bytes); /* zeros from n_exist on */
void kr_emulated_commit_copies(void);
void kr_emulated_await_copies(unsigned n_under_way);
float kr_emulated_shuffle(float v, int other); /* the value of another thread of the warp */
void kr_emulated_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void kr_emulated_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void kr_emulated_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void kr_emulated_mma_bytes(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void kr_emulated_load_matrices(uint32_t d[4], const void *row, int turned);
void kr_emulated_sync_some(int barrier, int n_threads);
void kr_emulated_others_done(void); /* overlap.cuh */
void kr_emulated_arrive(int barrier, int n_threads);
void kr_emulated_await(const int32_t *from, int least);
void kr_emulated_again(void);     /* a poll of global memory was not satisfied: lets all others run first */
void kr_emulated_published(void); /* global memory that others poll was written */

/* Clusters of n_blocks along x (cluster.cuh): four floats for the shared memory of the first block, at the same place
 * as `to` in this block's; whether all blocks of the cluster have come here: then this one has what they sent. */
void kr_emulated_send(const void *to, const float v[4], int n_blocks);
int kr_emulated_gathered(int n_blocks);

/* Hopper's: transaction barriers, boxes of tensor maps (as described by fake_libcuda.c), warpgroup products. Addresses
 * are offsets in dynamic shared memory. Boxes and bytes arrive as late as possible; products are computed at once. */
typedef struct kr_emulated_map {
  void *data;
  uint64_t sizes[4], strides[3]; /* bytes */
  uint32_t box[4], steps[4];     /* elements of a box, that far apart */
  uint32_t rank, bytes;          /* of an element */
} kr_emulated_map;
uint32_t kr_emulated_shared_at(const void *p);
void *kr_emulated_at(uint32_t address);
void kr_emulated_barrier_open(uint32_t barrier, int arrivals);
void kr_emulated_barrier_arrive(uint32_t barrier, int bytes); /* announced before */
void kr_emulated_barrier_await(uint32_t barrier, uint32_t parity);
void kr_emulated_load_box(uint32_t to, uint64_t map, uint32_t barrier, const int at[4]);
/* adds: -1: overwrites; 0, 1: adds to the float16, bfloat16 values in place. */
void kr_emulated_store_box(uint64_t map, uint32_t from, const int at[4], int adds);
void kr_emulated_load_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier);
uint64_t kr_emulated_parameters(void);
void kr_emulated_sync_warpgroup(void); /* a warpgroup issues products, and waits for them, together */
/* d += a b of 64 x n x 16, a from a descriptor or, with registers, of this lane; is_bf16: else float16. */
void kr_emulated_wgmma(float *d, int n, const uint32_t *registers, uint64_t a, uint64_t b, int add, int a_mn, int b_mn,
                       int is_bf16);

typedef struct kr_emulated_kernel {
  const char *module, *name;
  void (*call)(const void *args);
  unsigned char *shared, *end_of_shared; /* its module's static shared memory; NULL: none */
  struct kr_emulated_kernel *next;
} kr_emulated_kernel;
void kr_emulated_add(kr_emulated_kernel *kernel);

/* ---- for tests ---- */
enum { KR_ORDER_FORWARDS, KR_ORDER_BACKWARDS, KR_ORDER_RANDOM, KR_N_ORDERS };
void kr_emulated_order(int order);              /* of threads and blocks, from the next launch */
void kr_emulated_blocks_in_order(int yes);      /* for kernels whose blocks wait for earlier ones */
void kr_emulated_skip_barrier(int64_t n); /* every thread skips its n-th block barrier (from 0); -1: none */
int64_t kr_emulated_launches(void);
int64_t kr_emulated_pdl(void); /* of these, by kr_emulated_launch_pdl */
int64_t kr_emulated_skipped(void);              /* barriers skipped by threads */

/* ---- for the driver library (fake_libcuda.c) ---- */
void *kr_emulated_find(const void *image, const char *name); /* NULL: no such kernel */
void kr_emulated_launch(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes, const void *args);

/* The same for a kernel that may start while the previous one runs: a block without a thread that waits for it ends the
 * program with a message. */
void kr_emulated_launch_pdl(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes,
                              const void *args);
/* All blocks live at once and may wait for each other. Static shared memory is not for such kernels. */
void kr_emulated_launch_cooperative(void *kernel, const unsigned grid[3], unsigned block, unsigned shared_bytes,
                                 const void *args);

#ifdef __cplusplus
}
#include <math.h>

#include "half.h"

#define KR_DEV static inline
#define KR_KERNEL static
#define KR_BOUNDS(threads, blocks)
#define KR_SHARED static __attribute__((section(KR_EMULATED_SHARED)))
#define KR_DYNAMIC_SHARED(name) unsigned char *const name = kr_emulated_now.dynamic_shared

KR_DEV int kr_thread(void) { return kr_emulated_now.thread; }
KR_DEV int kr_block_threads(void) { return kr_emulated_now.block_threads; }
KR_DEV int kr_block_x(void) { return kr_emulated_now.block[0]; }
KR_DEV int kr_block_y(void) { return kr_emulated_now.block[1]; }
KR_DEV int kr_block_z(void) { return kr_emulated_now.block[2]; }
KR_DEV int kr_grid_x(void) { return kr_emulated_now.grid_x; }
template <typename T>
KR_DEV void kr_one_pointer(T *&p) { (void)p; }
KR_DEV float kr_shuffle_from(float v, int lane) { return kr_emulated_shuffle(v, (kr_thread() & ~31) + lane); }
KR_DEV void kr_sync(void) { kr_emulated_sync(); }
KR_DEV void kr_sync_warp(void) { kr_emulated_sync_warp(); }
KR_DEV void kr_copy16(void *shared, const void *from) { kr_emulated_copy(shared, from, 16); }
KR_DEV void kr_copy4(void *shared, const void *from) { kr_emulated_copy(shared, from, 4); }
template <int BYTES>
KR_DEV void kr_copy_or_zero(void *shared, const void *from, int exists) {
  kr_emulated_copy(shared, exists ? from : nullptr, BYTES);
}
KR_DEV void kr_commit_copies(void) { kr_emulated_commit_copies(); }
template <int N>
KR_DEV void kr_copied(void) { kr_emulated_await_copies(N); }
KR_DEV void kr_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kr_emulated_mma(d, a, b0, b1); }
template <int BARRIER, int THREADS>
KR_DEV void kr_sync_some(void) { kr_emulated_sync_some(BARRIER, THREADS); }
template <int THREADS>
KR_DEV void kr_sync_at(int barrier) { kr_emulated_sync_some(barrier, THREADS); }
template <int THREADS>
KR_DEV void kr_arrive_at(int barrier) { kr_emulated_arrive(barrier, THREADS); }
KR_DEV int kr_any_lane(int yes) {
  float any = yes ? 1.0f : 0.0f;
  for (int d = 1; d < 32; d <<= 1) {
    const float other = kr_emulated_shuffle(any, kr_thread() ^ d);
    any = other > any ? other : any;
  }
  return any > 0;
}
KR_DEV uint32_t kr_shared_at(const void *p) { return kr_emulated_shared_at(p); }
KR_DEV void kr_barrier_open(uint32_t barrier, int arrivals) { kr_emulated_barrier_open(barrier, arrivals); }
KR_DEV void kr_barriers_opened(void) {}
KR_DEV void kr_barrier_arrive(uint32_t barrier) { kr_emulated_barrier_arrive(barrier, 0); }
KR_DEV void kr_barrier_expect(uint32_t barrier, int bytes) { kr_emulated_barrier_arrive(barrier, bytes); }
KR_DEV void kr_barrier_await(uint32_t barrier, uint32_t parity) { kr_emulated_barrier_await(barrier, parity); }
KR_DEV void kr_show_to_copies(void) {}
KR_DEV void kr_load_box(uint32_t to, uint64_t map, uint32_t barrier, int x, int y, int z, int w) {
  const int at[4] = {x, y, z, w};
  kr_emulated_load_box(to, map, barrier, at);
}
KR_DEV void kr_load_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier) {
  kr_emulated_load_bytes(to, from, bytes, barrier);
}
KR_DEV void kr_store_bytes(void *to, uint32_t from, int bytes) {
  __builtin_memcpy(to, kr_emulated_at(from), (size_t)bytes);
  kr_emulated_published();
}
KR_DEV void kr_store_box(uint64_t map, uint32_t from, int x, int y, int z, int w) {
  const int at[4] = {x, y, z, w};
  kr_emulated_store_box(map, from, at, -1);
}
KR_DEV void kr_commit_stores(void) {}
template <int N>
KR_DEV void kr_stores_read(void) {}
KR_DEV void kr_fetch_map(uint64_t map) { (void)map; }
#define KR_PARAMETERS_ADDRESS(kernel, address) address = kr_emulated_parameters()
template <int REGISTERS>
KR_DEV void kr_give_registers(void) {}
template <int REGISTERS>
KR_DEV void kr_take_registers(void) {}
struct kr_f16;
struct kr_bf16;
template <class T> struct kr_emulated_type { enum { IS_BF16 = 1 }; };
template <> struct kr_emulated_type<kr_f16> { enum { IS_BF16 = 0 }; };
template <class T>
KR_DEV void kr_add_box(uint64_t map, uint32_t from, int x, int y, int z, int w) {
  const int at[4] = {x, y, z, w};
  kr_emulated_store_box(map, from, at, kr_emulated_type<T>::IS_BF16);
}
KR_DEV void kr_wgmma_begin(void) { kr_emulated_sync_warpgroup(); }
KR_DEV void kr_wgmma_commit(void) {}
template <int N, class T, int A_MN, int B_MN>
KR_DEV void kr_wgmma_step(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  kr_emulated_wgmma(d, N, nullptr, a, b, add, A_MN, B_MN, kr_emulated_type<T>::IS_BF16);
}
template <int N, class T, int B_MN>
KR_DEV void kr_wgmma_step_registers(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                                    int add) {
  const uint32_t a[4] = {a0, a1, a2, a3};
  kr_emulated_wgmma(d, N, a, 0, b, add, 0, B_MN, kr_emulated_type<T>::IS_BF16);
}
template <int N, int LEFT>
KR_DEV void kr_wgmma_wait(float (&d)[N / 2]) { (void)d, kr_emulated_sync_warpgroup(); }
KR_DEV void kr_publish(int32_t *to, int value) { *to = value, kr_emulated_published(); }
KR_DEV void kr_await(const int32_t *from, int least) { kr_emulated_await(from, least); }
KR_DEV float kr_shuffle_xor(float v, int mask) { return kr_emulated_shuffle(v, kr_thread() ^ mask); }
KR_DEV float kr_shuffle_up(float v, int by, int width) {
  return kr_emulated_shuffle(v, kr_thread() - ((kr_thread() & (width - 1)) >= by ? by : 0));
}
KR_DEV float kr_shuffle_down(float v, int by, int width) {
  return kr_emulated_shuffle(v, kr_thread() + ((kr_thread() & (width - 1)) + by < width ? by : 0));
}

/* The special functions flush subnormals, as .ftz does. */
KR_DEV float kr_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
KR_DEV float kr_exp2(float x) { return kr_flush(exp2f(kr_flush(x))); }
KR_DEV float kr_log2(float x) { return kr_flush(log2f(kr_flush(x))); }
KR_DEV float kr_rcp(float x) { return kr_flush((float)(1.0 / (double)kr_flush(x))); }
KR_DEV float kr_rsqrt(float x) { return (float)(1.0 / sqrt((double)kr_flush(x))); }
KR_DEV float kr_select(int condition, float a, float b) { return condition ? a : b; }
KR_DEV float kr_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KR_DEV uint32_t kr_mul_high(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
KR_DEV float kr_bits_to_float(uint32_t bits) { return kr_bits_float(bits); }
KR_DEV uint32_t kr_float_to_bits(float v) { return kr_float_bits(v); }
KR_DEV float kr_from_f16(uint16_t h) { return kr_f16_to_float(h); }
KR_DEV uint16_t kr_to_f16(float v) { return kr_float_to_f16(v); }

/* One kernel of a module; wrap.py writes these after the included source. */
template <class P> P kr_parameter(void (*)(P));
/* A section of the module's own, with the linker's names for its ends. */
#define KR_EMULATED_MODULE(module)                                                                   \
  extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_kr_shared_##module[], \
      __stop_kr_shared_##module[];
#define KR_EMULATED_KERNEL(module, name)                                           \
  static kr_emulated_kernel name##_entry = {                                       \
      #module,                                                                     \
      #name,                                                                       \
      [](const void *args) { name(*(const decltype(kr_parameter(name)) *)args); }, \
      __start_kr_shared_##module,                                                  \
      __stop_kr_shared_##module,                                                   \
      nullptr};                                                                    \
  __attribute__((constructor)) static void add_##name(void) { kr_emulated_add(&name##_entry); }
#endif
#endif
