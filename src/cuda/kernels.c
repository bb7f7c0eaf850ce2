/* kernels.c: the table of loaded kernels, hashed by the address of their kr_kernel and the tier: readers take no lock.
 * A first use has the driver translate the kernel's entry without a lock, so that threads translate side by side, and
 * takes the result into the table under one. */
#include "kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ladder.h"
#include "log.h"
#include "packed_code.h"
#include "status.h"
#include "translate.h"

enum { SLOT_BITS = 11, N_SLOTS = 1 << SLOT_BITS, STATIC_SHARED_BYTES = 48 * 1024 };

typedef struct slot {
  _Atomic(const kr_kernel *) kernel; /* written last; NULL: free */
  uint64_t tier;
  void *function;
} slot;

/* The module of one entry of a text, or of all entries of a cubin (entry: NULL). */
typedef struct loaded {
  const char *image, *entry;
  kr_code code;
} loaded;

struct kr_kernels {
  const kr_cuda *cuda;
  pthread_mutex_t lock;
  slot slots[N_SLOTS];
  loaded modules[N_SLOTS];
  int n_modules;
  atomic_int cubins_refused;
};

int32_t kr_kernels_open(const kr_cuda *cuda, kr_kernels **kernels) {
  kr_kernels *k = *kernels = kr_zalloc(sizeof *k);
  KR_CHECK(k, KRAIT_ERR_NO_MEMORY, "no memory for a device");
  k->cuda = cuda;
  pthread_mutex_init(&k->lock, NULL);
  return KRAIT_OK;
}

void kr_kernels_close(kr_kernels **kernels) {
  kr_kernels *k = *kernels;
  if (!k) return;
  for (int i = 0; i < k->n_modules; i++) kr_code_unload(k->cuda, &k->modules[i].code);
  pthread_mutex_destroy(&k->lock);
  kr_free(k);
  *kernels = NULL;
}

/* ---- modules ---- */

static int32_t find_text(const char *module, const char *tier, int *text) {
  const char *name, *t;
  for (*text = 0; kr_cuda_embedded(*text, &name, &t, NULL, NULL); ++*text)
    if (strcmp(name, module) == 0 && strcmp(t, tier) == 0) return KRAIT_OK;
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "this build has no device code of %s for tier %s", module, tier);
}

static const char *find_cubin(const kr_kernels *k, const char *module, const char *tier) {
  const kr_device_info *info = kr_cuda_info(k->cuda);
  const kr_cubin *c;
  for (int i = 0; !k->cubins_refused && (c = kr_cuda_cubin(i)); i++)
    if (c->capability == info->major * 10 + info->minor && strcmp(c->module, module) == 0 && strcmp(c->tier, tier) == 0)
      return c->image;
  return NULL;
}

/* With the lock held. */
static void *module_of(const kr_kernels *k, const char *image, const char *entry) {
  for (int i = 0; i < k->n_modules; i++) {
    const loaded *m = &k->modules[i];
    if (m->image == image && (m->entry == entry || (m->entry && entry && strcmp(m->entry, entry) == 0)))
      return m->code.module;
  }
  return NULL;
}

/* What two threads have loaded at the same time is kept once. */
static int32_t keep_code(kr_kernels *k, const char *image, const char *entry, const kr_code *code, void **module) {
  pthread_mutex_lock(&k->lock);
  void *kept = module_of(k, image, entry);
  const int is_new = !kept && k->n_modules < N_SLOTS;
  if (is_new) k->modules[k->n_modules++] = (loaded){image, entry, *code};
  pthread_mutex_unlock(&k->lock);
  if (!is_new) kr_code_unload(k->cuda, code);
  *module = is_new ? code->module : kept;
  KR_CHECK(*module, KRAIT_ERR_DRIVER, "more than %d modules", N_SLOTS);
  return KRAIT_OK;
}

static int32_t load_cubin(kr_kernels *k, const char *image, const char *name, void **module) {
  pthread_mutex_lock(&k->lock);
  *module = module_of(k, image, NULL);
  pthread_mutex_unlock(&k->lock);
  if (*module) return KRAIT_OK;
  kr_code code;
  KR_TRY(kr_load_image(k->cuda, image, name, &code));
  return keep_code(k, image, NULL, &code, module);
}

static int32_t load_entry(kr_kernels *k, const char *tier, const kr_kernel *kernel, void **module) {
  int text;
  const char *image;
  KR_TRY(find_text(kernel->module, tier, &text));
  KR_TRY(kr_cuda_text(text, &image));
  pthread_mutex_lock(&k->lock);
  *module = module_of(k, image, kernel->name);
  pthread_mutex_unlock(&k->lock);
  if (*module) return KRAIT_OK;
  kr_code code;
  KR_TRY(kr_load_entry(k->cuda, text, kernel->name, &code));
  return keep_code(k, image, kernel->name, &code, module);
}

/* Machine code for exactly this device, if the build has it and the driver accepts it; else the tier's PTX. */
static int32_t load_best(kr_kernels *k, const char *tier, const kr_kernel *kernel, void **module) {
  const char *cubin = find_cubin(k, kernel->module, tier);
  if (cubin) {
    const int32_t status = load_cubin(k, cubin, kernel->module, module);
    if (status != KRAIT_ERR_DRIVER) return status;
    k->cubins_refused = 1;
    kr_log("PTX instead of the machine code for compute capability %d.%d: %s", kr_cuda_info(k->cuda)->major,
           kr_cuda_info(k->cuda)->minor, krait_error_detail());
  }
  return load_entry(k, tier, kernel, module);
}

static int32_t load_kernel(kr_kernels *k, uint64_t tier, const kr_kernel *kernel, void **function) {
  const kr_driver *driver = kr_cuda_driver(k->cuda);
  void *module = NULL;
  KR_TRY(load_best(k, kr_tier_name(tier), kernel, &module));
  KR_CU_TRY(driver, ModuleGetFunction(function, module, kernel->name), kernel->name);
  int fixed = 0, allowed = (int)kr_cuda_info(k->cuda)->shared_bytes;
  KR_CU_TRY(driver, FuncGetAttribute(&fixed, KR_CU_SHARED_BYTES_STATIC, *function), kernel->name);
  if (allowed > STATIC_SHARED_BYTES)
    KR_CU_TRY(driver, FuncSetAttribute(*function, KR_CU_SHARED_BYTES_MAX, allowed - fixed), kernel->name);
  return KRAIT_OK;
}

/* The caller may be capturing a graph, which forbids its thread to load: loading is kept out of the capture. */
static int32_t load_aside(kr_kernels *k, uint64_t tier, const kr_kernel *kernel, void **function) {
  const kr_driver *driver = kr_cuda_driver(k->cuda);
  int mode = KR_CU_CAPTURE_RELAXED;
  const int aside = driver->ThreadExchangeStreamCaptureMode && driver->ThreadExchangeStreamCaptureMode(&mode) == 0;
  const int32_t status = load_kernel(k, tier, kernel, function);
  if (aside) driver->ThreadExchangeStreamCaptureMode(&mode);
  return status;
}

/* ---- the table ---- */

/* The kernel's slot, or a free one; NULL if neither exists. */
static slot *slot_of(kr_kernels *k, uint64_t tier, const kr_kernel *kernel) {
  const uint64_t hash = ((uint64_t)(uintptr_t)kernel ^ tier << 20) * 0x9e3779b97f4a7c15ull;
  for (uint32_t i = (uint32_t)(hash >> (64 - SLOT_BITS)), n = 0; n < N_SLOTS; i = (i + 1) % N_SLOTS, n++) {
    slot *s = &k->slots[i];
    const kr_kernel *held = atomic_load_explicit(&s->kernel, memory_order_acquire);
    if (!held || (held == kernel && s->tier == tier)) return s;
  }
  return NULL;
}

static int is_loaded(slot *s) { return s && atomic_load_explicit(&s->kernel, memory_order_acquire); }

int kr_kernels_have(kr_kernels *k, uint64_t tier, const kr_kernel *kernel) {
  return is_loaded(slot_of(k, tier, kernel));
}

/* Another thread may have been faster: its function is then the one that is used. */
static int32_t fill_slot(kr_kernels *k, uint64_t tier, const kr_kernel *kernel, void **function) {
  pthread_mutex_lock(&k->lock);
  slot *s = slot_of(k, tier, kernel);
  if (is_loaded(s)) {
    *function = s->function;
  } else if (s) {
    s->tier = tier, s->function = *function;
    atomic_store_explicit(&s->kernel, kernel, memory_order_release);
  }
  pthread_mutex_unlock(&k->lock);
  KR_CHECK(s, KRAIT_ERR_UNSUPPORTED, "%s: a context holds at most %d kernels", kernel->name, N_SLOTS);
  return KRAIT_OK;
}

int32_t kr_kernels_find(kr_kernels *k, uint64_t tier, const kr_kernel *kernel, void **function) {
  slot *s = slot_of(k, tier, kernel);
  if (is_loaded(s)) {
    *function = s->function;
    return KRAIT_OK;
  }
  *function = NULL;
  KR_TRY(load_aside(k, tier, kernel, function));
  return fill_slot(k, tier, kernel, function);
}
