/* cuda.c: an open device: its primary context, the kernels loaded so far, launches and memory.
 * Kernels are found in a table hashed by the address of their kr_kernel and the tier: readers take no lock, a first use
 * loads the module under one. */
#include "cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc.h"
#include "chains.h"
#include "ladder.h"
#include "log.h"
#include "packed_code.h"
#include "status.h"

enum { SLOT_BITS = 11, N_SLOTS = 1 << SLOT_BITS, MAX_MODULES = 512, STATIC_SHARED_BYTES = 48 * 1024, LOG_BYTES = 1024 };

typedef struct slot {
  _Atomic(const kr_kernel *) kernel; /* written last; NULL: free */
  uint64_t tier;
  void *function;
} slot;

typedef struct loaded {
  const char *image;
  void *module;
} loaded;

struct kr_cuda {
  const kr_driver *driver;
  kr_device_info info;
  int device;
  void *context;
  pthread_mutex_t lock;
  slot slots[N_SLOTS];
  loaded modules[MAX_MODULES];
  int n_modules, cubins_refused, takes_together;
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
  if (!result && (status = kr_chains_open(driver, &cuda->chains)) < 0) driver->DevicePrimaryCtxRelease(cuda->device);
  if (status < 0) {
    kr_free(cuda);
    return status;
  }
  pthread_mutex_init(&cuda->lock, NULL);
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
  if (kr_cuda_begin(cuda) >= 0) {
    kr_chains_close(&cuda->chains);
    for (int i = 0; i < cuda->n_modules; i++) cuda->driver->ModuleUnload(cuda->modules[i].module);
    kr_cuda_end(cuda);
  }
  cuda->driver->DevicePrimaryCtxRelease(cuda->device);
  pthread_mutex_destroy(&cuda->lock);
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

static int32_t find_text(const char *module, const char *tier, const char **text) {
  const char *name, *t;
  for (int i = 0; kr_cuda_embedded(i, &name, &t, NULL, NULL); i++)
    if (strcmp(name, module) == 0 && strcmp(t, tier) == 0) return kr_cuda_text(i, text);
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "this build has no device code of %s for tier %s", module, tier);
}

static const char *find_cubin(const kr_cuda *cuda, const char *module, const char *tier) {
  const int capability = cuda->info.major * 10 + cuda->info.minor;
  const kr_cubin *c;
  for (int i = 0; !cuda->cubins_refused && (c = kr_cuda_cubin(i)); i++)
    if (c->capability == capability && strcmp(c->module, module) == 0 && strcmp(c->tier, tier) == 0) return c->image;
  return NULL;
}

/* image: PTX text, which the driver compiles unless its cache has the result, or a cubin. */
static int32_t compile(const kr_cuda *cuda, const char *image, const char *name, void **module) {
  char log[LOG_BYTES] = "";
  int options[] = {KR_CU_JIT_ERROR_LOG_BUFFER, KR_CU_JIT_ERROR_LOG_BYTES};
  void *values[] = {log, (void *)(uintptr_t)sizeof log};
  kr_cu_result result = cuda->driver->ModuleLoadDataEx(module, image, 2, options, values);
  if (!result) return KRAIT_OK;
  int32_t status = kr_driver_fail(cuda->driver, result, "loading device code");
  return kr_fail_cuda(status, result, "%s; module %s%s%.300s", krait_error_detail(), name, log[0] ? ": " : "", log);
}

static int32_t load_module(kr_cuda *cuda, const char *image, const kr_kernel *kernel, void **module) {
  for (int i = 0; i < cuda->n_modules; i++)
    if (cuda->modules[i].image == image) {
      *module = cuda->modules[i].module;
      return KRAIT_OK;
    }
  KR_CHECK(cuda->n_modules < MAX_MODULES, KRAIT_ERR_DRIVER, "more than %d modules", MAX_MODULES);
  KR_TRY(compile(cuda, image, kernel->module, module));
  cuda->modules[cuda->n_modules++] = (loaded){image, *module};
  return KRAIT_OK;
}

/* Machine code for exactly this device, if the build has it and the driver accepts it; else the tier's PTX. */
static int32_t load_best(kr_cuda *cuda, const char *tier, const kr_kernel *kernel, void **module) {
  const char *text, *cubin = find_cubin(cuda, kernel->module, tier);
  if (cubin) {
    const int32_t status = load_module(cuda, cubin, kernel, module);
    if (status != KRAIT_ERR_DRIVER) return status;
    cuda->cubins_refused = 1;
    kr_log("PTX instead of the machine code for compute capability %d.%d: %s", cuda->info.major, cuda->info.minor,
           krait_error_detail());
  }
  KR_TRY(find_text(kernel->module, tier, &text));
  return load_module(cuda, text, kernel, module);
}

static int32_t load_kernel(kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, void **function) {
  void *module = NULL;
  KR_TRY(load_best(cuda, kr_tier_name(tier), kernel, &module));
  KR_CU_TRY(cuda->driver, ModuleGetFunction(function, module, kernel->name), kernel->name);
  int fixed = 0, allowed = (int)cuda->info.shared_bytes;
  KR_CU_TRY(cuda->driver, FuncGetAttribute(&fixed, KR_CU_SHARED_BYTES_STATIC, *function), kernel->name);
  if (allowed > STATIC_SHARED_BYTES)
    KR_CU_TRY(cuda->driver, FuncSetAttribute(*function, KR_CU_SHARED_BYTES_MAX, allowed - fixed), kernel->name);
  return KRAIT_OK;
}

/* The caller may be capturing a graph, which forbids its thread to load: loading is kept out of the capture. */
static int32_t load_aside(kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, void **function) {
  int mode = KR_CU_CAPTURE_RELAXED;
  const int aside =
      cuda->driver->ThreadExchangeStreamCaptureMode && cuda->driver->ThreadExchangeStreamCaptureMode(&mode) == 0;
  const int32_t status = load_kernel(cuda, tier, kernel, function);
  if (aside) cuda->driver->ThreadExchangeStreamCaptureMode(&mode);
  return status;
}

/* The kernel's slot, or a free one; NULL if neither exists. */
static slot *slot_of(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel) {
  const uint64_t hash = ((uint64_t)(uintptr_t)kernel ^ tier << 20) * 0x9e3779b97f4a7c15ull;
  for (uint32_t i = (uint32_t)(hash >> (64 - SLOT_BITS)), n = 0; n < N_SLOTS; i = (i + 1) % N_SLOTS, n++) {
    slot *s = (slot *)&cuda->slots[i];
    const kr_kernel *held = atomic_load_explicit(&s->kernel, memory_order_acquire);
    if (!held || (held == kernel && s->tier == tier)) return s;
  }
  return NULL;
}

static int is_loaded(const slot *s) { return s && atomic_load_explicit(&((slot *)s)->kernel, memory_order_acquire); }

static int32_t function_of(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, void **function) {
  slot *s = slot_of(cuda, tier, kernel);
  int32_t status = KRAIT_OK;
  if (!is_loaded(s)) {
    kr_cuda *mutable_cuda = (kr_cuda *)cuda;
    pthread_mutex_lock(&mutable_cuda->lock);
    s = slot_of(cuda, tier, kernel);
    if (!s) status = kr_fail(KRAIT_ERR_UNSUPPORTED, "%s: a context holds at most %d kernels", kernel->name, N_SLOTS);
    else if (!is_loaded(s) && (status = load_aside(mutable_cuda, tier, kernel, &s->function)) >= 0) {
      s->tier = tier;
      atomic_store_explicit(&s->kernel, kernel, memory_order_release);
    }
    pthread_mutex_unlock(&mutable_cuda->lock);
  }
  *function = status < 0 ? NULL : s->function;
  return status;
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

static int32_t function_for(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel, const kr_grid *g,
                            void **function) {
  return function_of(cuda, g->is_pdl && kr_cuda_has_pdl(cuda) ? KRAIT_CAP_CUDA_HOPPER : tier, kernel, function);
}

int32_t kr_cuda_prepare(const kr_cuda *cuda, uint64_t tier, const kr_kernel *kernel) {
  int entered;
  void *function;
  KR_TRY(enter(cuda, &entered));
  int32_t status = function_of(cuda, tier, kernel, &function);
  leave(cuda, entered);
  return status;
}

static int takes(const kr_cuda *cuda, const char *tier) {
  for (int t = 0; kr_tier_at(t); t++)
    if (strcmp(kr_tier_at(t)->name, tier) == 0) return (cuda->info.caps & kr_tier_at(t)->cap) != 0;
  return 0;
}

/* A failure here recurs at the kernel's first use, and is reported there. */
void kr_cuda_compile(const kr_cuda *cuda, int first, int n) {
  const char *name, *tier, *text;
  void *context, *module;
  if (cuda->driver->CtxCreate(&context, 0, cuda->device)) return;
  for (int i = first; kr_cuda_embedded(i, &name, &tier, NULL, NULL); i += n)
    if (takes(cuda, tier) && !find_cubin(cuda, name, tier) && kr_cuda_text(i, &text) >= 0 &&
        compile(cuda, text, name, &module) >= 0)
      cuda->driver->ModuleUnload(module);
  cuda->driver->CtxDestroy(context);
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
  if (g->is_pdl && kr_cuda_has_pdl(cuda))
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
