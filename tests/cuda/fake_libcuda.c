/* fake_libcuda.c: a driver library for tests without a GPU: device memory is host memory that only copies and kernels
 * may access (host access ends the test, as on a GPU), kernels do nothing (or run in the emulator: KR_EMULATE),
 * launches unsupported by the compute capability are refused, and failures are injected: KR_FAKE_CUDA controls start-up
 * ("init=999,version=8000,count=0,capability=50"; "together=1": blocks of a launch may wait for each other),
 * fake_cuda_fail_at makes the n-th later call fail. fake_cuda_held counts resources not released. */
#define _DEFAULT_SOURCE /* MADV_DONTNEED, MAP_NORESERVE */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_BINARY = 209, NOT_FOUND = 500, TOO_MANY_TOGETHER = 720 };
enum { NOT_SUPPORTED = 801, NOT_WHILE_RECORDING = 900 };
enum { PLAIN, AHEAD, TOGETHER }; /* launches */
enum { GLOBAL, THREAD_LOCAL, RELAXED }; /* capture modes */

static _Atomic long calls, loads;
static _Atomic int held;
static long fail_at, launches_ahead;
static int fail_with, capture_mode = RELAXED;
static _Thread_local void *current[16];
static _Thread_local int depth;
static char context_object;
static const void *loaded_image;
static char loaded_head[17];

static void taken(void) { held++; }
static void left(void) { held--; }
static void loaded(void) { loads++; }

EXPORT void fake_cuda_fail_at(long n, int result);
EXPORT long fake_cuda_calls(void);
EXPORT int fake_cuda_held(void);
EXPORT long fake_cuda_ahead(void); /* launches that may start while the previous kernel runs */
EXPORT long fake_cuda_loads(void); /* images loaded so far */
EXPORT const void *fake_cuda_loaded(void); /* the last image loaded */
EXPORT const char *fake_cuda_head(void);   /* its first 16 characters */
EXPORT void fake_cuda_capture(int mode);   /* as if a stream were capturing in this mode */
EXPORT int fake_cuda_capture_mode(void);
EXPORT void fake_cuda_touch(int on); /* 1: device memory may be accessed, until 0 */

void fake_cuda_fail_at(long n, int result) { fail_at = n, fail_with = result, calls = 0; }
long fake_cuda_calls(void) { return calls; }
int fake_cuda_held(void) { return held; }
long fake_cuda_ahead(void) { return launches_ahead; }
long fake_cuda_loads(void) { return loads; }
const void *fake_cuda_loaded(void) { return loaded_image; }
const char *fake_cuda_head(void) { return loaded_head; }
void fake_cuda_capture(int mode) { capture_mode = mode; }
int fake_cuda_capture_mode(void) { return capture_mode; }

/* Device memory: whole pages of one reserved range, accessible only while a copy or a kernel runs. Sanitizer builds use
 * their malloc instead, which guards the ends of each block. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void open_memory(void) {}
static void close_memory(void) {}
static void *take_memory(size_t bytes) { return malloc(bytes); }
static void leave_memory(void *block) { free(block); }
#else
enum { PAGE = 4096, MOST_BLOCKS = 1 << 16, POISON = 0xfb, MOST_POISON = 1 << 20 };
static const size_t RANGE = (size_t)1 << 36;
static struct {
  pthread_mutex_t lock;
  char *start;
  size_t used; /* bytes up to the end of the last block */
  int users, n;
  struct {
    size_t at, bytes;
  } blocks[MOST_BLOCKS]; /* in order of address */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void let(int access) {
  if (memory.used) mprotect(memory.start, memory.used, access);
}

static void open_memory(void) {
  pthread_mutex_lock(&memory.lock);
  if (!memory.users++) let(PROT_READ | PROT_WRITE);
  pthread_mutex_unlock(&memory.lock);
}

static void close_memory(void) {
  pthread_mutex_lock(&memory.lock);
  if (!--memory.users) let(PROT_NONE);
  pthread_mutex_unlock(&memory.lock);
}

/* The first gap that is large enough; a page between blocks stays free. */
static int place_of(size_t bytes, size_t *at) {
  int i = 0;
  for (*at = 0; i < memory.n && memory.blocks[i].at < *at + bytes + PAGE; i++)
    *at = memory.blocks[i].at + memory.blocks[i].bytes + PAGE;
  return i;
}

static void *take_memory(size_t bytes) {
  void *block = NULL;
  pthread_mutex_lock(&memory.lock);
  if (!memory.start) {
    void *range = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory.start = range == MAP_FAILED ? NULL : range;
  }
  size_t at, whole = (bytes + PAGE - 1) / PAGE * PAGE;
  const int i = place_of(whole, &at);
  if (memory.start && memory.n < MOST_BLOCKS && at + whole <= RANGE) {
    memmove(memory.blocks + i + 1, memory.blocks + i, (size_t)(memory.n++ - i) * sizeof *memory.blocks);
    memory.blocks[i].at = at, memory.blocks[i].bytes = whole;
    if (at + whole > memory.used) memory.used = at + whole;
    block = memory.start + at;
    let(PROT_READ | PROT_WRITE);
    memset(block, POISON, whole < MOST_POISON ? whole : MOST_POISON); /* not zero-initialized */
    if (!memory.users) let(PROT_NONE);
  }
  pthread_mutex_unlock(&memory.lock);
  return block;
}

static void leave_memory(void *block) {
  if (!block) return;
  pthread_mutex_lock(&memory.lock);
  for (int i = 0; i < memory.n; i++)
    if (memory.start + memory.blocks[i].at == block) {
      madvise(block, memory.blocks[i].bytes, MADV_DONTNEED);
      memmove(memory.blocks + i, memory.blocks + i + 1, (size_t)(--memory.n - i) * sizeof *memory.blocks);
      break;
    }
  pthread_mutex_unlock(&memory.lock);
}
#endif

void fake_cuda_touch(int on) { on ? open_memory() : close_memory(); }

static long fake_libcuda_setting(const char *key, long otherwise) {
  const char *text = getenv("KR_FAKE_CUDA");
  const char *at = text ? strstr(text, key) : NULL;
  return at ? strtol(at + strlen(key), NULL, 10) : otherwise;
}

static int failed(void) { return ++calls == fail_at ? fail_with : 0; }

/* Shared memory bytes per block. */
static int shared_bytes(void) {
  const long c = fake_libcuda_setting("capability=", 90);
  const int is_small = c == 86 || c == 88 || c == 89 || c >= 120,
            own = c < 70   ? 49152
                  : c < 75 ? 98304
                  : c < 80 ? 65536
                  : is_small ? 101376
                  : c < 90   ? 166912
                             : 232448;
  return (int)fake_libcuda_setting("shared=", own);
}

#define FAKE(name, parameters, ...)  \
  EXPORT int name parameters;        \
  int name parameters {              \
    int result = failed();           \
    if (result) return result;       \
    __VA_ARGS__;                     \
    return 0;                        \
  }
#define UNUSED(x) (void)(x)

EXPORT int cuInit(unsigned flags);
int cuInit(unsigned flags) { return UNUSED(flags), (int)fake_libcuda_setting("init=", 0); }
EXPORT int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) { return *version = (int)fake_libcuda_setting("version=", 13000), 0; }
EXPORT int cuGetErrorName(int result, const char **text);
int cuGetErrorName(int result, const char **text) {
  return *text = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                 : result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
                               : "CUDA_ERROR_FAKE",
         0;
}
EXPORT int cuGetErrorString(int result, const char **text);
int cuGetErrorString(int result, const char **text) { return UNUSED(result), *text = "as the test asked", 0; }

FAKE(cuDeviceGetCount, (int *n), *n = (int)fake_libcuda_setting("count=", 1))
FAKE(cuDeviceGet, (int *device, int ordinal), *device = ordinal)
FAKE(cuDeviceGetName, (char *name, int bytes, int device), UNUSED(device), snprintf(name, (size_t)bytes, "Fake GPU"))
FAKE(cuDeviceTotalMem_v2, (size_t *bytes, int device), UNUSED(device),
     *bytes = (size_t)fake_libcuda_setting("memory=", 1 << 30))
FAKE(cuDeviceGetAttribute, (int *value, int attribute, int device), UNUSED(device),
     *value = attribute == 75   ? (int)fake_libcuda_setting("capability=", 90) / 10
              : attribute == 76 ? (int)fake_libcuda_setting("capability=", 90) % 10
              : attribute == 97 ? shared_bytes()
              : attribute == 16 ? (int)fake_libcuda_setting("multiprocessors=", 8)
              : attribute == 38 ? (int)fake_libcuda_setting("l2=", 8)
              : attribute == 95 ? (int)fake_libcuda_setting("together=", 0)
                                : 8)
FAKE(cuDevicePrimaryCtxRetain, (void **context, int device), UNUSED(device), *context = &context_object, taken())
FAKE(cuCtxGetCurrent, (void **context), *context = depth ? current[depth - 1] : NULL)
FAKE(cuCtxSynchronize, (void), (void)0)
FAKE(cuThreadExchangeStreamCaptureMode, (int *mode), const int before = capture_mode;
     capture_mode = *mode, *mode = before)
/* Texts are kept, each once, since who loads one may free it. */
static struct text {
  struct text *next;
  char text[];
} *texts;
static pthread_mutex_t texts_lock = PTHREAD_MUTEX_INITIALIZER;
static const void *kept_image(const void *image) {
  if (memcmp(image, "\177ELF", 4) == 0) return image;
  pthread_mutex_lock(&texts_lock);
  struct text *t = texts;
  while (t && strcmp(t->text, image) != 0) t = t->next;
  const size_t n = t ? 0 : strlen(image) + 1;
  if (!t && (t = malloc(sizeof *t + n))) memcpy(t->text, image, n), t->next = texts, texts = t;
  pthread_mutex_unlock(&texts_lock);
  return t ? t->text : NULL;
}

/* Machine code is accepted only if the test says so. What was linked is its text again. */
FAKE(cuModuleLoadDataEx, (void **module, const void *image, unsigned n, int *options, void **values), UNUSED(n),
     UNUSED(options), UNUSED(values);
     if (capture_mode != RELAXED) return NOT_WHILE_RECORDING;
     if (memcmp(image, "\177ELF", 4) == 0 && !fake_libcuda_setting("cubins=", 0)) return NO_BINARY;
     snprintf(loaded_head, sizeof loaded_head, "%s", (const char *)image);
     loaded_image = kept_image(image), *module = (void *)(uintptr_t)loaded_image, taken(), loaded())
/* A library is its text. */
FAKE(cuLibraryLoadData,
     (void **library, const void *image, int *options, void **values, unsigned n, int *more, void **more_values,
      unsigned n_more),
     UNUSED(options), UNUSED(values), UNUSED(n), UNUSED(more), UNUSED(more_values), UNUSED(n_more);
     if (capture_mode != RELAXED) return NOT_WHILE_RECORDING;
     snprintf(loaded_head, sizeof loaded_head, "%s", (const char *)image);
     loaded_image = kept_image(image), *library = (void *)(uintptr_t)loaded_image, taken(), loaded())
FAKE(cuLibraryGetModule, (void **module, void *library), *module = library)
FAKE(cuLinkCreate_v2, (unsigned n, int *options, void **values, void **link), UNUSED(n), UNUSED(options),
     UNUSED(values), *link = calloc(1, sizeof(void *)), taken())
FAKE(cuLinkAddData_v2,
     (void *link, int kind, void *data, size_t bytes, const char *name, unsigned n, int *options, void **values),
     UNUSED(kind), UNUSED(name), UNUSED(n), UNUSED(options), UNUSED(values);
     /* The real one takes both: it leaves setmaxnreg out, and each wgmma waits for the one before. */
     if (strlen(data) + 1 != bytes || strstr(data, "setmaxnreg") ||
         strstr(data, "wgmma.mma_async")) return INVALID_VALUE;
     *(const void **)link = kept_image(data))
FAKE(cuLinkComplete, (void *link, void **cubin, size_t *bytes), *cubin = *(void **)link, *bytes = strlen(*cubin) + 1)
EXPORT int cuLinkDestroy(void *link);
int cuLinkDestroy(void *link) { return free(link), left(), 0; }
#ifdef KR_EMULATE
#include "emulator.h"
/* A kernel's maximum threads per block and static shared memory, from the loaded PTX text. */
typedef struct kernel {
  const char *image, *name;
  void *emulated;
  unsigned most_threads, shared;
} kernel;
static kernel kernels[4096];
static int n_kernels;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

/* The sum of the numbers in brackets after each of these words. */
static unsigned sizes_behind(const char *from, const char *end, const char *words) {
  unsigned n = 0;
  while ((from = strstr(from, words)) && from < end) n += (unsigned)strtoul((from = strchr(from, '[')) + 1, NULL, 10);
  return n;
}

/* For texts from tools/device_code.py; others have none. */
static void read_text(kernel *k) {
  char entry[200];
  snprintf(entry, sizeof entry, ".entry %s(", k->name);
  const char *const from = strstr(k->image, entry), *const next = from ? strstr(from + 1, ".entry ") : NULL,
                   *const end = from && !next ? from + strlen(from) : next,
                   *const threads = from ? strstr(from, "\n.maxntid ") : NULL;
  k->most_threads = threads && threads < end ? (unsigned)strtoul(threads + 10, NULL, 10) : 1024;
  k->shared = from ? sizes_behind(from, end, "\n.shared .align") : 0;
}

static kernel *kernel_of(const char *image, const char *name, void *emulated) {
  for (int i = 0; i < n_kernels; i++)
    if (kernels[i].image == image && strcmp(kernels[i].name, name) == 0) return &kernels[i];
  if (n_kernels == (int)(sizeof kernels / sizeof *kernels)) return NULL;
  kernel *k = &kernels[n_kernels++];
  *k = (kernel){.image = image, .name = name, .emulated = emulated};
  return read_text(k), k;
}
static void *find(void *module, const char *name) {
  void *const emulated = kr_emulated_find(module, name);
  pthread_mutex_lock(&kernels_lock);
  kernel *const found = emulated ? kernel_of(module, name, emulated) : NULL;
  pthread_mutex_unlock(&kernels_lock);
  return found;
}
static unsigned most_threads(const void *function) { return ((const kernel *)function)->most_threads; }
static unsigned own_shared(const void *function) { return ((const kernel *)function)->shared; }
static void run_fake_libcuda(void *function, const unsigned grid[3], unsigned block, unsigned shared, const void *args,
                             int how) {
  void *const emulated = ((kernel *)function)->emulated;
  open_memory();
  (how == AHEAD      ? kr_emulated_launch_pdl
   : how == TOGETHER ? kr_emulated_launch_cooperative
                     : kr_emulated_launch)(emulated, grid, block, shared, args);
  close_memory();
}
#else
static void *find(void *module, const char *name) { return UNUSED(name), module; }
static unsigned most_threads(const void *function) { return UNUSED(function), 1024; }
static unsigned own_shared(const void *function) { return UNUSED(function), 0; }
static void run_fake_libcuda(void *function, const unsigned grid[3], unsigned block, unsigned shared, const void *args,
                             int how) {
  UNUSED(function), UNUSED(grid), UNUSED(block), UNUSED(shared), UNUSED(args), UNUSED(how);
}
#endif
/* Tensor maps for the emulator: 16-bit elements, swizzling of rows of 128 bytes, or 64. */
#ifdef KR_EMULATE
FAKE(
    cuTensorMapEncodeTiled,
    (void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *strides,
     const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int promotion, int fill),
    UNUSED(type), UNUSED(interleave), UNUSED(promotion), UNUSED(fill);
    if (rank > 4 || swizzle != (box[0] == 32 ? 2 : 3)) return INVALID_VALUE;
    if ((uintptr_t)address % 16 || (uintptr_t)map % 64) return INVALID_VALUE;
    kr_emulated_map m = {.data = address, .rank = rank, .bytes = 2}; for (uint32_t i = 0; i < rank; i++) {
      m.sizes[i] = sizes[i], m.box[i] = (box[i] + steps[i] - 1) / steps[i], m.steps[i] = steps[i];
      if (i && (strides[i - 1] % 16 || strides[i - 1] >> 40)) return INVALID_VALUE;
      if (i) m.strides[i - 1] = strides[i - 1];
      if (!sizes[i] || sizes[i] >> 32 || !box[i] || box[i] > 256 || !steps[i] || steps[i] > 8) return INVALID_VALUE;
    } memcpy(map, &m, sizeof m))
#endif
FAKE(cuModuleGetFunction, (void **function, void *module, const char *name),
     if (!(*function = find(module, name))) return NOT_FOUND)
FAKE(cuFuncGetAttribute, (int *value, int attribute, void *function), UNUSED(attribute),
     *value = (int)own_shared(function))
FAKE(cuFuncSetAttribute, (void *function, int attribute, int value), UNUSED(function), UNUSED(attribute), UNUSED(value))
/* How much of a gibibyte is taken: the sizes of blocks by address. */
static struct {
  pthread_mutex_t lock;
  struct {
    uint64_t address;
    size_t bytes;
  } blocks[1 << 14];
  size_t bytes;
} taken_blocks = {.lock = PTHREAD_MUTEX_INITIALIZER};
static void count_block(uint64_t address, size_t bytes) {
  size_t i = 0;
  pthread_mutex_lock(&taken_blocks.lock);
  while (i < (1 << 14) - 1 && taken_blocks.blocks[i].address) i++;
  taken_blocks.blocks[i].address = address, taken_blocks.blocks[i].bytes = bytes, taken_blocks.bytes += bytes;
  pthread_mutex_unlock(&taken_blocks.lock);
}
static void discount_block(uint64_t address) {
  pthread_mutex_lock(&taken_blocks.lock);
  for (size_t i = 0; address && i < 1 << 14; i++)
    if (taken_blocks.blocks[i].address == address) {
      taken_blocks.blocks[i].address = 0, taken_blocks.bytes -= taken_blocks.blocks[i].bytes;
      break;
    }
  pthread_mutex_unlock(&taken_blocks.lock);
}
FAKE(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total), *total = (size_t)1 << 30;
     *free_bytes = taken_blocks.bytes < *total ? *total - taken_blocks.bytes : 0)
static void copy(void *to, const void *from, size_t bytes) {
  open_memory();
  memmove(to, from, bytes);
  close_memory();
}
FAKE(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream), UNUSED(stream),
     copy((void *)(uintptr_t)to, from, bytes))
FAKE(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream), UNUSED(stream),
     copy(to, (void *)(uintptr_t)from, bytes))
FAKE(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream), UNUSED(stream),
     copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes))
FAKE(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream), UNUSED(stream),
     open_memory(), memset((void *)(uintptr_t)to, value, bytes), close_memory())
FAKE(cuMemAllocHost_v2, (void **block, size_t bytes), *block = malloc(bytes), taken())
FAKE(cuStreamCreate, (void **stream, unsigned flags), UNUSED(flags), *stream = &held, taken())
FAKE(cuStreamSynchronize, (void *stream), UNUSED(stream))
FAKE(cuEventCreate, (void **event, unsigned flags), UNUSED(flags), *event = &held, taken())
FAKE(cuEventRecord, (void *event, void *stream), UNUSED(event), UNUSED(stream))
FAKE(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), UNUSED(stream), UNUSED(event), UNUSED(flags))
FAKE(cuEventSynchronize, (void *event), UNUSED(event))
FAKE(cuEventElapsedTime, (float *ms, void *from, void *to), UNUSED(from), UNUSED(to), *ms = 1)

/* Graphs: explicitly built ones run their kernels. So do captured ones if the test sets record=1 (only launches are
 * captured: copies happen at once); otherwise they are empty, and capture is unavailable where kernels run. */
enum { MOST_ARGS = 4096 }; /* only the kernel knows its args' size: the maximum */
typedef struct fake_graph {
  struct {
    void *function;
    unsigned grid[3], block, shared;
    const void *args; /* NULL: copied */
    int how;
    _Alignas(16) unsigned char copied[MOST_ARGS];
  } nodes[256];
  int n;
} fake_graph;
typedef struct fake_node {
  void *function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
} fake_node;
static fake_graph *recorded;
static int recording;

__attribute__((no_sanitize("address"))) static void copy_args(volatile unsigned char *to, const void *from) {
  for (int i = 0; i < MOST_ARGS; i++) to[i] = ((const volatile unsigned char *)from)[i];
}

/* Whether a device supports such a launch. */
static int takes(const void *function, const unsigned grid[3], unsigned block, unsigned shared) {
  return grid[0] && grid[1] && grid[2] && block && grid[0] <= INT32_MAX && grid[1] <= 65535 && grid[2] <= 65535 &&
         block <= most_threads(function) && shared + own_shared(function) <= (unsigned)shared_bytes();
}

/* Whether all blocks are resident at once; registers aside. */
static int fit_together(const void *function, const unsigned grid[3], unsigned block, unsigned shared) {
  const unsigned each = shared + own_shared(function) + 1024, by_shared = ((unsigned)shared_bytes() + 1024) / each,
                 by_threads = 2048 / block, most = by_shared < by_threads ? by_shared : by_threads;
  return (uint64_t)grid[0] * grid[1] * grid[2] <=
         (uint64_t)most * (uint64_t)fake_libcuda_setting("multiprocessors=", 8);
}

static int launch_fake_libcuda(void *function, const unsigned grid[3], unsigned block, unsigned shared,
                               const void *args, int how) {
  if (!takes(function, grid, block, shared)) return INVALID_VALUE;
  if (how == TOGETHER && !fit_together(function, grid, block, shared)) return TOO_MANY_TOGETHER;
  if (!recording || !recorded) return run_fake_libcuda(function, grid, block, shared, args, how), 0;
  if (recorded->n == (int)(sizeof recorded->nodes / sizeof *recorded->nodes))
    return fake_libcuda_setting("record=", 0) ? OUT_OF_MEMORY : 0;
  recorded->nodes[recorded->n].function = function, recorded->nodes[recorded->n].block = block,
  recorded->nodes[recorded->n].shared = shared, recorded->nodes[recorded->n].how = how;
  copy_args(recorded->nodes[recorded->n].copied, args);
  memcpy(recorded->nodes[recorded->n++].grid, grid, 3 * sizeof *grid);
  return 0;
}
FAKE(cuLaunchKernel,
     (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      void *stream, void **parameters, void **extra),
     UNUSED(by), UNUSED(bz), UNUSED(stream), UNUSED(extra);
     const int launched = launch_fake_libcuda(function, (const unsigned[]){gx, gy, gz}, bx, shared, parameters[0],
                                              PLAIN);
     if (launched) return launched)
FAKE(cuLaunchCooperativeKernel,
     (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      void *stream, void **parameters),
     UNUSED(by), UNUSED(bz), UNUSED(stream);
     if (!fake_libcuda_setting("together=", 0)) return NOT_SUPPORTED;
     const int launched = launch_fake_libcuda(function, (const unsigned[]){gx, gy, gz}, bx, shared, parameters[0],
                                              TOGETHER);
     if (launched) return launched)
/* CUlaunchConfig with attributes: programmatic stream serialization, and clusters along x. */
typedef struct fake_attribute {
  int id, pad;
  union {
    char bytes[64];
    int value;
    unsigned cluster[3];
  } of;
} fake_attribute;
typedef struct fake_config {
  unsigned grid[3], block[3], shared;
  void *stream;
  const fake_attribute *attributes;
  unsigned n_attributes;
} fake_config;
static int is_cluster(const fake_config *c, const fake_attribute *a) {
  return a->id == 4 && a->of.cluster[0] >= 1 && a->of.cluster[0] <= 8 && c->grid[0] % a->of.cluster[0] == 0;
}
FAKE(cuLaunchKernelEx, (const fake_config *c, void *function, void **parameters, void **extra), UNUSED(extra);
     int how = PLAIN;
     for (unsigned i = 0; i < c->n_attributes; i++) {
       const fake_attribute *a = &c->attributes[i];
       if (a->id == 6 && a->of.value == 1) how = AHEAD;
       else if (!is_cluster(c, a)) return INVALID_VALUE;
     }
     launches_ahead += how == AHEAD;
     const int launched = launch_fake_libcuda(function, c->grid, c->block[0], c->shared, parameters[0], how);
     if (launched) return launched)

/* args are not copied: they must live until the launch. */
static void set_node(fake_graph *graph, int i, const fake_node *from) {
  graph->nodes[i].function = from->function, graph->nodes[i].block = from->block[0],
  graph->nodes[i].shared = from->shared, graph->nodes[i].args = from->parameters[0];
  memcpy(graph->nodes[i].grid, from->grid, sizeof from->grid);
}
FAKE(cuStreamIsCapturing, (void *stream, int *status), UNUSED(stream), *status = recording)
FAKE(cuGraphCreate, (void **graph, unsigned flags), UNUSED(flags), *graph = calloc(1, sizeof(fake_graph)), taken())
FAKE(cuGraphAddKernelNode, (void **node, void *graph, void *const *after, size_t n_after, const fake_node *from),
     UNUSED(after), UNUSED(n_after);
     fake_graph *g = graph;
     if (!takes(from->function, from->grid, from->block[0], from->shared)) return INVALID_VALUE;
     set_node(g, g->n, from), *node = (void *)(uintptr_t)++g->n)
FAKE(cuGraphExecKernelNodeSetParams, (void *instance, void *node, const fake_node *from),
     if (!takes(from->function, from->grid, from->block[0], from->shared)) return INVALID_VALUE;
     set_node(instance, (int)(uintptr_t)node - 1, from))
FAKE(cuGraphInstantiateWithFlags, (void **instance, void *graph, unsigned long long flags), UNUSED(flags),
     *instance = memcpy(malloc(sizeof(fake_graph)), graph, sizeof(fake_graph)), taken())
FAKE(cuGraphLaunch, (void *instance, void *stream), UNUSED(stream); if (recording) return NOT_WHILE_RECORDING;
     fake_graph *g = instance; for (int i = 0; i < g->n; i++)
         run_fake_libcuda(g->nodes[i].function, g->nodes[i].grid, g->nodes[i].block, g->nodes[i].shared,
                          g->nodes[i].args ? g->nodes[i].args : g->nodes[i].copied, g->nodes[i].how))
EXPORT int cuGraphExecDestroy(void *instance);
int cuGraphExecDestroy(void *instance) { return free(instance), left(), 0; }
EXPORT int cuGraphDestroy(void *graph);
int cuGraphDestroy(void *graph) { return free(graph), left(), 0; }
#ifdef KR_EMULATE
#define TAKES_RECORDING fake_libcuda_setting("record=", 0)
#else
#define TAKES_RECORDING 1
#endif
FAKE(cuStreamBeginCapture_v2, (void *stream, int mode), UNUSED(stream), UNUSED(mode);
     if (!TAKES_RECORDING) return NOT_FOUND; recorded = calloc(1, sizeof *recorded), recording = 1)
EXPORT int cuStreamEndCapture(void *stream, void **graph);
int cuStreamEndCapture(void *stream, void **graph) {
  const int result = failed();
  UNUSED(stream), recording = 0;
  if (result) free(recorded);
  else *graph = recorded, taken();
  return recorded = NULL, result;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  int result = failed();
  if (result || bytes > (size_t)1 << 30) return result ? result : OUT_OF_MEMORY;
  *address = (uint64_t)(uintptr_t)take_memory(bytes);
  count_block(*address, bytes);
  return taken(), 0;
}

/* Releasing, and entering the context for it, cannot fail: the caller could do nothing about it. */
EXPORT int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context) { return current[depth++] = context, 0; }
EXPORT int cuDevicePrimaryCtxRelease(int device);
int cuDevicePrimaryCtxRelease(int device) { return UNUSED(device), left(), 0; }
EXPORT int cuModuleUnload(void *module);
int cuModuleUnload(void *module) { return UNUSED(module), left(), 0; }
EXPORT int cuLibraryUnload(void *library);
int cuLibraryUnload(void *library) { return UNUSED(library), left(), 0; }
EXPORT int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context) { return *context = current[--depth], 0; }
EXPORT int cuMemFree_v2(uint64_t address);
int cuMemFree_v2(uint64_t address) {
  discount_block(address);
  return leave_memory((void *)(uintptr_t)address), left(), 0;
}
EXPORT int cuMemFreeHost(void *block);
int cuMemFreeHost(void *block) { return free(block), left(), 0; }
EXPORT int cuStreamDestroy_v2(void *stream);
int cuStreamDestroy_v2(void *stream) { return UNUSED(stream), left(), 0; }
EXPORT int cuEventDestroy_v2(void *event);
int cuEventDestroy_v2(void *event) { return UNUSED(event), left(), 0; }
