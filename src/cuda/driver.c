/* driver.c: opens libcuda, fills the table, and maps the driver's results to statuses. */
#include "driver.h"

#include <pthread.h>
#include <stdio.h>

#include "dlib.h"
#include "env.h"
#include "status.h"

enum { REQUIRED, OPTIONAL };

typedef void (*any_function)(void);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kr_driver table;
static int32_t load_status;
static int64_t load_native;
static char load_detail[512];

static int32_t find_symbols(kr_dlib *lib, const char *path) {
#define KR_CU(need, name, symbol, parameters)                                                                     \
  {                                                                                                               \
    union {                                                                                                       \
      void *object;                                                                                               \
      kr_cu_result(*function) parameters;                                                                         \
    } found = {kr_dlib_find(lib, symbol)};                                                                        \
    KR_CHECK(found.object || need == OPTIONAL, KRAIT_ERR_DRIVER_OLD, "%s has no %s: the driver is too old", path, \
             symbol);                                                                                             \
    table.name = found.function;                                                                                  \
  }
#include "driver.def"
#undef KR_CU
  return KRAIT_OK;
}

static int32_t load_table(void) {
  const char *path = kr_env_libcuda() ? kr_env_libcuda() : "libcuda.so.1", *why = "";
  kr_dlib *lib = kr_dlib_open(path, &why);
  KR_CHECK(lib, KRAIT_ERR_DRIVER_MISSING, "no NVIDIA driver: %s", why);
  KR_TRY(find_symbols(lib, path)); /* never closed: unloading a driver that has started threads is unsafe */
  kr_cu_result result = table.Init(0);
  if (result == KR_CU_NO_DEVICE)
    return kr_fail_cuda(KRAIT_ERR_NO_DEVICE, result, "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)");
  if (result) return kr_driver_fail(&table, result, "starting the driver");
  KR_CU_TRY(&table, DriverGetVersion(&table.version), "querying the driver's version");
  KR_CHECK(kr_driver_ptx_version(table.version) >= 60, KRAIT_ERR_DRIVER_OLD,
           "the driver supports CUDA %d.%d, krait needs 9.0 (driver R384) or later", table.version / 1000,
           table.version % 1000 / 10);
  return KRAIT_OK;
}

static void load_once(void) {
  load_status = load_table();
  load_native = krait_error_native();
  if (load_status < 0) snprintf(load_detail, sizeof load_detail, "%s", krait_error_detail());
}

int32_t kr_driver_load(const kr_driver **driver) {
  pthread_once(&once, load_once);
  *driver = load_status < 0 ? NULL : &table;
  if (load_status >= 0) return KRAIT_OK;
  return load_native ? kr_fail_cuda(load_status, load_native, "%s", load_detail)
                     : kr_fail(load_status, "%s", load_detail);
}

int kr_driver_ptx_version(int cuda_version) {
  static const struct {
    int cuda, ptx;
  } versions[] = { /* newest first; generated from doctor.tables */
#define KR_CUDA_VERSION(cuda, ptx) {cuda, ptx},
#include "driver_versions.def"
#undef KR_CUDA_VERSION
  };
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    if (cuda_version >= versions[i].cuda) return versions[i].ptx;
  return 0;
}

/* After these errors the context fails every later call. */
static int is_sticky(kr_cu_result result) {
  static const int sticky[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};
  for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++)
    if (result == sticky[i]) return 1;
  return 0;
}

int32_t kr_driver_fail(const kr_driver *driver, kr_cu_result result, const char *doing) {
  const char *name = NULL, *text = NULL;
  driver->GetErrorName(result, &name);
  driver->GetErrorString(result, &text);
  int32_t status = result == KR_CU_OUT_OF_MEMORY ? KRAIT_ERR_DEVICE_MEMORY
                   : is_sticky(result)           ? KRAIT_ERR_DEVICE_LOST
                                                 : KRAIT_ERR_DRIVER;
  return kr_fail_cuda(status, result, "%s: %s (%d, %s)", doing, name ? name : "unknown driver error", result,
                      text ? text : "no text");
}
