/* cuda.h: one GPU as a context sees it: the tiers of device code it takes, kernels loaded on first use, launches,
 * memory. Everything here may be called from any number of threads; the kernel cache is the only mutable state.
 *
 * An op declares its kernels as constants and launches them by address:
 *   static const kr_kernel scan_fwd = {"selective_scan", "kr_scan_fwd"};          // <op>.cu, its extern "C" name
 *   KR_TRY(kr_cuda_launch(ctx->cuda, tier, &scan_fwd, &(kr_grid){.x = n, .block = 128, .stream = s}, &plan,
 *                         sizeof plan));
 * The kernel takes one struct by value. */
#ifndef KR_CUDA_H
#define KR_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

typedef struct kr_cuda kr_cuda;

typedef struct kr_device_info {
  char name[128];
  int major, minor, n_multiprocessors;
  int64_t memory_bytes, l2_bytes, shared_bytes; /* shared: the maximum per block */
  uint64_t caps; /* tiers that device, driver and build support */
} kr_device_info;

int32_t kr_cuda_n_devices(int *n);
int32_t kr_cuda_device_info(int index, kr_device_info *info);
/* Tiers in this build, whatever the machine, as capabilities. */
uint64_t kr_cuda_built_tiers(void);
/* One embedded PTX text (text and bytes may be NULL: it is then not unpacked; *text is NULL when out of memory);
 * returns 0 past the last. */
int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes);
/* Machine code of one module for one architecture; NULL past the last. Absent from most builds. */
typedef struct kr_cubin {
  const char *module, *tier;
  int capability; /* 90 for 9.0 only */
  const char *image;
  size_t bytes;
} kr_cubin;
const kr_cubin *kr_cuda_cubin(int index);

/* Retains the device's primary context, as the runtime and PyTorch do. mask: allowed tiers. Fails with
 * KRAIT_ERR_DRIVER_OLD or KRAIT_ERR_UNSUPPORTED if no tier is left, and says why for each. */
int32_t kr_cuda_open(int index, uint64_t mask, kr_cuda **cuda);
/* A device without any tier: memory and copies, no kernels. */
int32_t kr_cuda_open_for_copies(int index, kr_cuda **cuda);
void kr_cuda_close(kr_cuda **cuda);
const kr_device_info *kr_cuda_info(const kr_cuda *cuda);
const kr_driver *kr_cuda_driver(const kr_cuda *cuda);

typedef struct kr_kernel {
  const char *module, *name;
} kr_kernel;

typedef struct kr_grid {
  uint32_t x, y, z;    /* blocks; 0 means 1 */
  uint32_t block;      /* threads */
  uint32_t shared_bytes;
  uint32_t cluster;    /* blocks along x per cluster, a divisor of x; more than 1 only for hopper texts */
  int32_t is_cooperative; /* all blocks are co-resident and may wait for each other; only if kr_cuda_has_cooperative,
                           * and no more than fit */
  int32_t is_pdl;    /* may start while the previous kernel runs: it follows overlap.cuh's rule, and its module has a
                        * hopper text, which is then the one that runs. Elsewhere an ordinary launch */
  void *stream;
} kr_grid;

/* Enqueues without waiting. tier is a KRAIT_CAP_CUDA_*. An empty grid is success. */
int32_t kr_cuda_launch(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, const kr_grid *grid,
                       const void *args, size_t args_bytes);
/* Consecutive launches on the stream of the first: collected by kr_chain_add, then enqueued at once, which takes less
 * driver time than a single launch where graphs are fast. What args point to must live until then. */
enum { KR_MOST_LAUNCHES = 8 };
typedef struct kr_chain {
  struct {
    const kr_kernel *kernel;
    kr_grid grid;
    const void *args;
  } launches[KR_MOST_LAUNCHES];
  int n;
} kr_chain;
static inline void kr_chain_add(kr_chain *chain, const kr_kernel *kernel, const kr_grid *grid, const void *args) {
  if (grid->x == 0) return;
  if (chain->n < KR_MOST_LAUNCHES)
    chain->launches[chain->n].kernel = kernel, chain->launches[chain->n].grid = *grid,
    chain->launches[chain->n].args = args;
  chain->n++;
}
int32_t kr_cuda_launch_chain(const kr_cuda *cuda, uint64_t tier, const kr_chain *chain);
int kr_cuda_has_cooperative(const kr_cuda *cuda);
int kr_cuda_has_pdl(const kr_cuda *cuda);
/* While on, launches of this thread with is_pdl are ordinary ones of the same kernels; returns whether it was on. */
int kr_cuda_in_order(int on);
/* Shared memory per block with which a multiprocessor holds no more than its even share of the grid; 0: no limit. For
 * kernels that start ahead: their blocks would otherwise crowd the multiprocessors that the previous kernel leaves
 * first. */
uint32_t kr_cuda_even_bytes(const kr_cuda *cuda, uint32_t blocks);
/* Loads the kernel now, so that its first launch costs no more than later ones. */
int32_t kr_cuda_prepare(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel);
/* Has the driver translate every n-th kernel that the context takes, starting with number first, into its disk cache:
 * n threads translate all of them side by side. */
void kr_cuda_compile(const kr_cuda *cuda, int first, int n);
/* A rehearsal: while list is not NULL, launches of this thread do nothing but to note kernels that are not loaded; then
 * any number of threads load them (from first up to end). What fails to load fails again at its launch. */
enum { KR_MOST_NOTED = 512 };
typedef struct kr_kernel_list {
  int n;
  struct {
    const kr_kernel *kernel;
    uint64_t tier;
  } at[KR_MOST_NOTED];
} kr_kernel_list;
/* Whether a pointer is shown to the device for the first time (an implementation: then it is worth a rehearsal). */
int kr_cuda_meets(const kr_cuda *cuda, const void *what);
void kr_cuda_note(kr_kernel_list *list);
int kr_cuda_is_noting(void);
void kr_cuda_load(const kr_cuda *cuda, const kr_kernel_list *list, int64_t first, int64_t end);

/* Memory and copies for models, tests and the checker; ops use what the caller provides. */
int32_t kr_cuda_alloc(const kr_cuda *cuda, size_t bytes,
                      void **block); /* reports needed and free bytes if memory is short */
void kr_cuda_free(const kr_cuda *cuda, void *block);
/* Host memory that copies to and from the device use without an intermediate copy of the driver's: NULL if there is
 * none. A copy may still be running when its call returns. */
void *kr_cuda_alloc_host(const kr_cuda *cuda, size_t bytes);
void kr_cuda_free_host(const kr_cuda *cuda, void *block);
int32_t kr_cuda_copy_in(const kr_cuda *cuda, void *to_device, const void *from, size_t bytes, void *stream);
int32_t kr_cuda_copy_out(const kr_cuda *cuda, void *to, const void *from_device, size_t bytes, void *stream);
int32_t kr_cuda_copy(const kr_cuda *cuda, void *to_device, const void *from_device, size_t bytes, void *stream);
int32_t kr_cuda_fill(const kr_cuda *cuda, void *device, int byte, size_t bytes, void *stream);
int32_t kr_cuda_wait(const kr_cuda *cuda, void *stream);

/* A private stream, and graphs: launches on the stream between begin and end are captured, not run. A driver without
 * graphs gives KRAIT_ERR_UNSUPPORTED from begin. A kernel's first launch may be captured too: loading stays outside. */
int32_t kr_cuda_stream_open(const kr_cuda *cuda, void **stream);
void kr_cuda_stream_close(const kr_cuda *cuda, void **stream);
int32_t kr_cuda_graph_begin(const kr_cuda *cuda, void *stream);
int32_t kr_cuda_graph_end(const kr_cuda *cuda, void *stream, void **graph);
int32_t kr_cuda_graph_launch(const kr_cuda *cuda, void *graph, void *stream);
void kr_cuda_graph_close(const kr_cuda *cuda, void **graph);

/* Device time between two points of a stream; reading waits for the second. */
typedef struct kr_cuda_timer {
  void *from, *to;
} kr_cuda_timer;
int32_t kr_cuda_timer_open(const kr_cuda *cuda, kr_cuda_timer *timer);
void kr_cuda_timer_close(const kr_cuda *cuda, kr_cuda_timer *timer);
int32_t kr_cuda_timer_mark(const kr_cuda *cuda, void *point, void *stream);
int32_t kr_cuda_wait_for(const kr_cuda *cuda, void *point,
                         void *stream); /* later work on this stream waits for the mark on another */
int32_t kr_cuda_timer_read(const kr_cuda *cuda, const kr_cuda_timer *timer, double *seconds);

/* Makes the device's context current on this thread; pairs nest. Implementations need not: launches and copies do
 * it. */
int32_t kr_cuda_begin(const kr_cuda *cuda);
void kr_cuda_end(const kr_cuda *cuda);

#endif
