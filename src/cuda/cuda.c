/* cuda.c: an open device: its primary context, launches and memory. */
#include "cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "chains.h"
#include "kernels.h"
#include "ladder.h"
#include "packed_code.h"
#include "ptx_entry.h"
#include "status.h"
#include "translate.h"

enum { MET_BITS = 10, N_MET = 1 << MET_BITS };

struct kr_cuda {
  const kr_driver *driver;
  kr_device_info info;
  int device;
  void *context;
  int takes_together;
  _Atomic(const void *) met[N_MET]; /* hashed by address */
  kr_kernels *kernels;
  kr_chains *chains; /* NULL: launches are issued one by one */
};

const kr_device_info *kr_cuda_info(const kr_cuda *cuda) { return &cuda->info; }
const kr_driver *kr_cuda_driver(const kr_cuda *cuda) { return cuda->driver; }

static int32_t hold_device(int index, const kr_device_info *info, const kr_driver *driver, kr_cuda **handle) {
  kr_cuda *cuda = kr_zalloc(sizeof *cuda);
  KR_CHECK(cuda, KRAIT_ERR_NO_MEMORY, "no memory for a device");
  cuda->driver = driver;
  cuda->info = *info;
  kr_cu_result result = driver->DeviceGet(&cuda->device, index);
  if (!result) result = driver->DevicePrimaryCtxRetain(&cuda->context, cuda->device);
  if (!result && driver->DeviceGetAttribute(&cuda->takes_together, KR_CU_ATTR_TOGETHER, cuda->device))
    cuda->takes_together = 0;
  int32_t status = result ? kr_driver_fail(driver, result, "opening the device's context") : KRAIT_OK;
  if (!result && (status = kr_kernels_open(cuda, &cuda->kernels)) >= 0) status = kr_chains_open(driver, &cuda->chains);
  if (!result && status < 0) driver->DevicePrimaryCtxRelease(cuda->device);
  if (status < 0) {
    kr_kernels_close(&cuda->kernels);
    kr_free(cuda);
    return status;
  }
  *handle = cuda;
  return KRAIT_OK;
}

int32_t kr_cuda_open(int index, uint64_t mask, kr_cuda **handle) {
  kr_device_info info;
  char why[512];
  const kr_driver *driver;
  *handle = NULL;
  KR_TRY(kr_cuda_device_info(index, &info));
  KR_TRY(kr_driver_load(&driver));
  int ptx = kr_driver_ptx_version(driver->version);
  info.caps = kr_ladder(&info, ptx, mask, why, sizeof why);
  KR_CHECK(info.caps, KRAIT_ERR_UNSUPPORTED,
           "GPU %d (%s, compute capability %d.%d, driver for PTX %d.%d) takes no tier: %s", index, info.name,
           info.major, info.minor, ptx / 10, ptx % 10, why);
  return hold_device(index, &info, driver, handle);
}

int32_t kr_cuda_open_for_copies(int index, kr_cuda **handle) {
  kr_device_info info;
  const kr_driver *driver;
  *handle = NULL;
  KR_TRY(kr_cuda_device_info(index, &info));
  KR_TRY(kr_driver_load(&driver));
  info.caps = 0;
  return hold_device(index, &info, driver, handle);
}

void kr_cuda_close(kr_cuda **handle) {
  kr_cuda *cuda = *handle;
  if (!cuda) return;
  const int entered = kr_cuda_begin(cuda) >= 0;
  kr_chains_close(&cuda->chains);
  kr_kernels_close(&cuda->kernels);
  if (entered) kr_cuda_end(cuda);
  cuda->driver->DevicePrimaryCtxRelease(cuda->device);
  kr_free(cuda);
  *handle = NULL;
}

int32_t kr_cuda_begin(const kr_cuda *cuda) {
  KR_CU_TRY(cuda->driver, CtxPushCurrent(cuda->context), "entering the device's context");
  return KRAIT_OK;
}

void kr_cuda_end(const kr_cuda *cuda) {
  void *popped;
  cuda->driver->CtxPopCurrent(&popped);
}

/* Switches context only if another is current: the common case, a framework on the same device, costs one cheap call.
 * */
static int32_t enter(const kr_cuda *cuda, int *entered) {
  void *current = NULL;
  *entered = 0;
  if (cuda->driver->CtxGetCurrent(&current) == 0 && current == cuda->context) return KRAIT_OK;
  KR_TRY(kr_cuda_begin(cuda));
  *entered = 1;
  return KRAIT_OK;
}

static void leave(const kr_cuda *cuda, int entered) {
  if (entered) kr_cuda_end(cuda);
}

/* Older drivers cannot capture such launches. */
int kr_cuda_has_cooperative(const kr_cuda *cuda) {
  return cuda->takes_together && cuda->driver->LaunchCooperativeKernel && cuda->driver->version >= 12000;
}

/* Drivers before 12.3 cannot capture such launches. */
int kr_cuda_has_pdl(const kr_cuda *cuda) {
  return cuda->driver->LaunchKernelEx && cuda->driver->version >= 12030 && (cuda->info.caps & KRAIT_CAP_CUDA_HOPPER);
}

uint32_t kr_cuda_even_bytes(const kr_cuda *cuda, uint32_t blocks) {
  enum { OF_THE_SYSTEM = 1024 /* per block */, LINE = 128, MOST = 32 };
  const uint32_t n = (uint32_t)cuda->info.n_multiprocessors, share = (blocks + n - 1) / n;
  if (!kr_cuda_has_pdl(cuda) || share == 0 || share >= MOST) return 0;
  return ((uint32_t)cuda->info.shared_bytes + OF_THE_SYSTEM) / share / LINE * LINE - OF_THE_SYSTEM;
}

static _Thread_local int in_order;

int kr_cuda_in_order(int on) {
  const int was = in_order;
  in_order = on;
  return was;
}

/* Of the text that runs. */
static uint64_t tier_for(const kr_cuda *cuda, uint64_t tier, const kr_grid *g) {
  return g->is_pdl && kr_cuda_has_pdl(cuda) ? KRAIT_CAP_CUDA_HOPPER : tier;
}

static int32_t function_for(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, const kr_grid *g,
                            void **function) {
  return kr_kernels_find(cuda->kernels, tier_for(cuda, tier, g), kernel, function);
}

int32_t kr_cuda_prepare(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel) {
  int entered;
  void *function;
  KR_TRY(enter(cuda, &entered));
  int32_t status = kr_kernels_find(cuda->kernels, tier, kernel, &function);
  leave(cuda, entered);
  return status;
}

static int takes(const kr_cuda *cuda, const char *tier) {
  for (int t = 0; kr_tier_at(t); t++)
    if (strcmp(kr_tier_at(t)->name, tier) == 0) return (cuda->info.caps & kr_tier_at(t)->cap) != 0;
  return 0;
}

static void compile_entry(const kr_cuda *cuda, int text, const kr_ptx_part *part) {
  char entry[128];
  kr_code code;
  snprintf(entry, sizeof entry, "%.*s", (int)part->n_name, part->name);
  if (kr_load_entry(cuda, text, entry, &code) >= 0) kr_code_unload(cuda, &code);
}

/* One context for all threads: they translate side by side (translate.c). A failure recurs at the kernel's first use.
 */
void kr_cuda_compile(const kr_cuda *cuda, int first, int n) {
  const char *name, *tier, *text;
  int entered, number = 0;
  if (enter(cuda, &entered) < 0) return;
  for (int i = 0; kr_cuda_embedded(i, &name, &tier, NULL, NULL); i++) {
    if (!takes(cuda, tier) || kr_cuda_text(i, &text) < 0) continue;
    kr_ptx_part part = {.end = text};
    while (kr_ptx_next(&part))
      if (number++ % n == first) compile_entry(cuda, i, &part);
  }
  leave(cuda, entered);
}

/* ---- launches noted instead of run ---- */

static _Thread_local kr_kernel_list *noted;

/* When the table is full, nothing is new any more. */
int kr_cuda_meets(const kr_cuda *cuda, const void *what) {
  _Atomic(const void *) *met = ((kr_cuda *)cuda)->met;
  const uint64_t hash = (uint64_t)(uintptr_t)what * 0x9e3779b97f4a7c15ull;
  for (uint32_t i = (uint32_t)(hash >> (64 - MET_BITS)), n = 0; n < N_MET; i = (i + 1) % N_MET, n++) {
    const void *held = atomic_load_explicit(&met[i], memory_order_relaxed);
    if (held == what) return 0;
    if (!held && atomic_compare_exchange_strong(&met[i], &held, what)) return 1;
    if (held == what) return 0;
  }
  return 0;
}

void kr_cuda_note(kr_kernel_list *list) { noted = list; }
int kr_cuda_is_noting(void) { return noted != NULL; }

static void note(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, const kr_grid *g) {
  tier = tier_for(cuda, tier, g);
  if (noted->n == KR_MOST_NOTED || kr_kernels_have(cuda->kernels, tier, kernel)) return;
  for (int i = 0; i < noted->n; i++) {
    const kr_kernel *other = noted->at[i].kernel; /* several files may declare a kernel */
    if (noted->at[i].tier == tier && strcmp(other->name, kernel->name) == 0 &&
        strcmp(other->module, kernel->module) == 0)
      return;
  }
  noted->at[noted->n].kernel = kernel, noted->at[noted->n++].tier = tier;
}

void kr_cuda_load(const kr_cuda *cuda, const kr_kernel_list *list, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; i++) (void)kr_cuda_prepare(cuda, list->at[i].tier, list->at[i].kernel);
}

static int32_t launch(const kr_cuda *cuda, void *function, const kr_kernel *kernel, const kr_grid *g,
                      const void *args) {
  void *parameters[] = {(void *)args};
  if (g->is_cooperative) {
    KR_CU_TRY(cuda->driver,
              LaunchCooperativeKernel(function, g->x, g->y ? g->y : 1, g->z ? g->z : 1, g->block, 1, 1, g->shared_bytes,
                                      g->stream, parameters),
              kernel->name);
    return KRAIT_OK;
  }
  kr_cu_launch_attribute attributes[2];
  unsigned n_attributes = 0;
  if (g->is_pdl && !in_order && kr_cuda_has_pdl(cuda))
    attributes[n_attributes++] = (kr_cu_launch_attribute){.id = KR_CU_LAUNCH_PDL, .of.value = 1};
  if (g->cluster > 1)
    attributes[n_attributes++] = (kr_cu_launch_attribute){.id = KR_CU_LAUNCH_CLUSTER, .of.cluster = {g->cluster, 1, 1}};
  if (n_attributes) {
    const kr_cu_launch config = {g->x,      g->y ? g->y : 1, g->z ? g->z : 1, g->block, 1, 1, g->shared_bytes,
                                 g->stream, attributes,      n_attributes};
    KR_CU_TRY(cuda->driver, LaunchKernelEx(&config, function, parameters, NULL), kernel->name);
    return KRAIT_OK;
  }
  KR_CU_TRY(cuda->driver,
            LaunchKernel(function, g->x, g->y ? g->y : 1, g->z ? g->z : 1, g->block, 1, 1, g->shared_bytes, g->stream,
                         parameters, NULL),
            kernel->name);
  return KRAIT_OK;
}

int32_t kr_cuda_launch(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, const kr_grid *grid,
                       const void *args, size_t args_bytes) {
  int entered;
  void *function = NULL;
  (void)args_bytes; /* the kernel's own parameter size, known to the driver */
  if (grid->x == 0) return KRAIT_OK;
  if (noted) return note(cuda, tier, kernel, grid), KRAIT_OK;
  KR_TRY(enter(cuda, &entered));
  int32_t status = function_for(cuda, tier, kernel, grid, &function);
  if (status >= 0) status = launch(cuda, function, kernel, grid, args);
  leave(cuda, entered);
  return status;
}

static int32_t launch_chain(const kr_cuda *cuda, uint64_t tier, const kr_chain *chain) {
  void *functions[KR_MOST_LAUNCHES];
  KR_CHECK(chain->n <= KR_MOST_LAUNCHES, KRAIT_ERR_UNSUPPORTED, "more than %d launches in a row", KR_MOST_LAUNCHES);
  for (int i = 0; i < chain->n; i++)
    KR_TRY(function_for(cuda, tier, chain->launches[i].kernel, &chain->launches[i].grid, &functions[i]));
  if (chain->n > 1 && cuda->chains && kr_chains_launch(cuda->chains, chain, functions)) return KRAIT_OK;
  for (int i = 0; i < chain->n; i++)
    KR_TRY(launch(cuda, functions[i], chain->launches[i].kernel, &chain->launches[i].grid, chain->launches[i].args));
  return KRAIT_OK;
}

int32_t kr_cuda_launch_chain(const kr_cuda *cuda, uint64_t tier, const kr_chain *chain) {
  int entered;
  if (chain->n == 0) return KRAIT_OK;
  for (int i = 0; noted && i < chain->n && i < KR_MOST_LAUNCHES; i++)
    note(cuda, tier, chain->launches[i].kernel, &chain->launches[i].grid);
  if (noted) return KRAIT_OK;
  KR_TRY(enter(cuda, &entered));
  const int32_t status = launch_chain(cuda, tier, chain);
  leave(cuda, entered);
  return status;
}

int32_t kr_cuda_alloc(const kr_cuda *cuda, size_t bytes, void **block) {
  int entered;
  uint64_t address = 0;
  size_t free_bytes = 0, total_bytes = 0;
  *block = NULL;
  KR_TRY(enter(cuda, &entered));
  kr_cu_result result = cuda->driver->MemAlloc(&address, bytes ? bytes : 1);
  if (result == KR_CU_OUT_OF_MEMORY) cuda->driver->MemGetInfo(&free_bytes, &total_bytes);
  leave(cuda, entered);
  *block = (void *)(uintptr_t)address;
  if (result == KR_CU_OUT_OF_MEMORY)
    return kr_fail_cuda(KRAIT_ERR_DEVICE_MEMORY, result, "out of device memory: %zu bytes needed, %zu of %zu free",
                        bytes, free_bytes, total_bytes);
  return result ? kr_driver_fail(cuda->driver, result, "allocating device memory") : KRAIT_OK;
}

void kr_cuda_free(const kr_cuda *cuda, void *block) {
  int entered;
  if (!block || enter(cuda, &entered) < 0) return;
  cuda->driver->MemFree((uint64_t)(uintptr_t)block);
  leave(cuda, entered);
}

void *kr_cuda_alloc_host(const kr_cuda *cuda, size_t bytes) {
  int entered;
  void *block = NULL;
  if (!cuda->driver->MemAllocHost || !cuda->driver->MemFreeHost || enter(cuda, &entered) < 0) return NULL;
  if (cuda->driver->MemAllocHost(&block, bytes) != 0) block = NULL;
  leave(cuda, entered);
  return block;
}

void kr_cuda_free_host(const kr_cuda *cuda, void *block) {
  int entered;
  if (!block || enter(cuda, &entered) < 0) return;
  cuda->driver->MemFreeHost(block);
  leave(cuda, entered);
}

#define IN_CONTEXT(call, doing)                                    \
  do {                                                             \
    int entered;                                                   \
    KR_TRY(enter(cuda, &entered));                                 \
    kr_cu_result result = cuda->driver->call;                      \
    leave(cuda, entered);                                          \
    return result ? kr_driver_fail(cuda->driver, result, doing) : KRAIT_OK; \
  } while (0)

int32_t kr_cuda_copy_in(const kr_cuda *cuda, void *to_device, const void *from, size_t bytes, void *stream) {
  IN_CONTEXT(MemcpyHtoDAsync((uint64_t)(uintptr_t)to_device, from, bytes, stream), "copying to the device");
}

int32_t kr_cuda_copy_out(const kr_cuda *cuda, void *to, const void *from_device, size_t bytes, void *stream) {
  IN_CONTEXT(MemcpyDtoHAsync(to, (uint64_t)(uintptr_t)from_device, bytes, stream), "copying from the device");
}

int32_t kr_cuda_copy(const kr_cuda *cuda, void *to_device, const void *from_device, size_t bytes, void *stream) {
  IN_CONTEXT(MemcpyDtoDAsync((uint64_t)(uintptr_t)to_device, (uint64_t)(uintptr_t)from_device, bytes, stream),
             "copying on the device");
}

int32_t kr_cuda_fill(const kr_cuda *cuda, void *device, int byte, size_t bytes, void *stream) {
  IN_CONTEXT(MemsetD8Async((uint64_t)(uintptr_t)device, (unsigned char)byte, bytes, stream), "filling device memory");
}

int32_t kr_cuda_wait(const kr_cuda *cuda, void *stream) {
  IN_CONTEXT(StreamSynchronize(stream), "waiting for the device");
}

/* ---- streams, graphs, timers ------------------------------------------------------------------------------------- */

int32_t kr_cuda_stream_open(const kr_cuda *cuda, void **stream) {
  *stream = NULL;
  IN_CONTEXT(StreamCreate(stream, KR_CU_STREAM_NON_BLOCKING), "creating a stream");
}

void kr_cuda_stream_close(const kr_cuda *cuda, void **stream) {
  int entered;
  if (!*stream || enter(cuda, &entered) < 0) return;
  cuda->driver->StreamDestroy(*stream);
  leave(cuda, entered);
  *stream = NULL;
}

int32_t kr_cuda_graph_begin(const kr_cuda *cuda, void *stream) {
  const kr_driver *d = cuda->driver;
  KR_CHECK(d->StreamBeginCapture && d->StreamEndCapture && d->GraphInstantiate && d->GraphLaunch &&
               d->GraphExecDestroy && d->GraphDestroy,
           KRAIT_ERR_UNSUPPORTED, "this driver has no graphs");
  IN_CONTEXT(StreamBeginCapture(stream, KR_CU_CAPTURE_RELAXED), "recording a graph");
}

int32_t kr_cuda_graph_end(const kr_cuda *cuda, void *stream, void **graph) {
  int entered;
  void *recorded = NULL;
  *graph = NULL;
  KR_TRY(enter(cuda, &entered));
  kr_cu_result result = cuda->driver->StreamEndCapture(stream, &recorded);
  if (!result) result = cuda->driver->GraphInstantiate(graph, recorded, 0);
  if (recorded) cuda->driver->GraphDestroy(recorded);
  leave(cuda, entered);
  return result ? kr_driver_fail(cuda->driver, result, "recording a graph") : KRAIT_OK;
}

int32_t kr_cuda_graph_launch(const kr_cuda *cuda, void *graph, void *stream) {
  IN_CONTEXT(GraphLaunch(graph, stream), "launching a graph");
}

void kr_cuda_graph_close(const kr_cuda *cuda, void **graph) {
  int entered;
  if (!*graph || enter(cuda, &entered) < 0) return;
  cuda->driver->GraphExecDestroy(*graph);
  leave(cuda, entered);
  *graph = NULL;
}

int32_t kr_cuda_timer_open(const kr_cuda *cuda, kr_cuda_timer *timer) {
  int entered;
  *timer = (kr_cuda_timer){0};
  KR_TRY(enter(cuda, &entered));
  kr_cu_result result = cuda->driver->EventCreate(&timer->from, 0);
  if (!result) result = cuda->driver->EventCreate(&timer->to, 0);
  leave(cuda, entered);
  return result ? kr_driver_fail(cuda->driver, result, "creating an event") : KRAIT_OK;
}

void kr_cuda_timer_close(const kr_cuda *cuda, kr_cuda_timer *timer) {
  int entered;
  if (enter(cuda, &entered) < 0) return;
  if (timer->from) cuda->driver->EventDestroy(timer->from);
  if (timer->to) cuda->driver->EventDestroy(timer->to);
  leave(cuda, entered);
  *timer = (kr_cuda_timer){0};
}

int32_t kr_cuda_timer_mark(const kr_cuda *cuda, void *point, void *stream) {
  IN_CONTEXT(EventRecord(point, stream), "recording an event");
}

int32_t kr_cuda_wait_for(const kr_cuda *cuda, void *point, void *stream) {
  IN_CONTEXT(StreamWaitEvent(stream, point, 0), "waiting for an event");
}

int32_t kr_cuda_timer_read(const kr_cuda *cuda, const kr_cuda_timer *timer, double *seconds) {
  int entered;
  float ms = 0;
  KR_TRY(enter(cuda, &entered));
  kr_cu_result result = cuda->driver->EventSynchronize(timer->to);
  if (!result) result = cuda->driver->EventElapsedTime(&ms, timer->from, timer->to);
  leave(cuda, entered);
  *seconds = (double)ms * 1e-3;
  return result ? kr_driver_fail(cuda->driver, result, "reading an event") : KRAIT_OK;
}
