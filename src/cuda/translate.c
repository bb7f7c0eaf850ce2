/* translate.c: the driver's translation of PTX. Loading PTX as a module holds a lock of the driver's while it is
 * translated; the linker of the driver translates without one (H200, driver 580: 41 kernels by 16 threads in 0.35 s; as
 * modules in 3.0 s, by one thread in 3.3 s), and so do libraries (since CUDA 12), both by the same cache; but see
 * translate(). */
#include "translate.h"

#include <stdatomic.h>
#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "code_cache.h"
#include "cubin_file.h"
#include "env.h"
#include "log.h"
#include "packed_code.h"
#include "ptx_entry.h"
#include "status.h"

enum { LOG_BYTES = 1024 };

static int32_t fail(const kr_cuda *cuda, kr_cu_result result, const char *name, const char *log) {
  const int32_t status = kr_driver_fail(kr_cuda_driver(cuda), result, "loading device code");
  return kr_fail_cuda(status, result, "%s; module %s%s%.300s", krait_error_detail(), name, log[0] ? ": " : "", log);
}

void kr_code_unload(const kr_cuda *cuda, const kr_code *code) {
  if (code->library)
    kr_cuda_driver(cuda)->LibraryUnload(code->library);
  else
    kr_cuda_driver(cuda)->ModuleUnload(code->module);
}

int32_t kr_load_image(const kr_cuda *cuda, const void *image, const char *name, kr_code *code) {
  char log[LOG_BYTES] = "";
  int options[] = {KR_CU_JIT_ERROR_LOG_BUFFER, KR_CU_JIT_ERROR_LOG_BYTES};
  void *values[] = {log, (void *)(uintptr_t)sizeof log};
  const kr_cu_result result = kr_cuda_driver(cuda)->ModuleLoadDataEx(&code->module, image, 2, options, values);
  code->library = NULL;
  return result ? fail(cuda, result, name, log) : KRAIT_OK;
}

static int32_t link_text(const kr_cuda *cuda, const char *text, const char *name, kr_code *code) {
  const kr_driver *d = kr_cuda_driver(cuda);
  char log[LOG_BYTES] = "";
  int options[] = {KR_CU_JIT_ERROR_LOG_BUFFER, KR_CU_JIT_ERROR_LOG_BYTES};
  void *values[] = {log, (void *)(uintptr_t)sizeof log}, *link = NULL, *cubin = NULL;
  size_t bytes = 0;
  kr_cu_result result = d->LinkCreate(2, options, values, &link);
  if (!result) result = d->LinkAddData(link, KR_CU_INPUT_PTX, (void *)text, strlen(text) + 1, name, 0, NULL, NULL);
  if (!result) result = d->LinkComplete(link, &cubin, &bytes);
  int32_t status = result ? fail(cuda, result, name, log) : kr_load_image(cuda, cubin, name, code);
  if (link) d->LinkDestroy(link);
  return status;
}

/* Without a place for the translator's messages, which it might fill later. */
static int32_t load_library(const kr_cuda *cuda, const char *text, const char *name, kr_code *code) {
  const kr_driver *d = kr_cuda_driver(cuda);
  kr_cu_result result = d->LibraryLoadData(&code->library, text, NULL, NULL, 0, NULL, NULL, 0);
  if (result) return fail(cuda, result, name, "");
  result = d->LibraryGetModule(&code->module, code->library);
  if (result) d->LibraryUnload(code->library);
  return result ? fail(cuda, result, name, "") : KRAIT_OK;
}

/* What the linker translates can be called by other code, so it leaves setmaxnreg out, and warps that were to take
 * registers from others spill them: up to 1,640 bytes instead of 0 to 390, an SSD's gradient 23 % slower; and a wgmma
 * waits for the one before (ptxas -c: C7509). Kernels with either are loaded as libraries, where the driver has them
 * and takes the text, else as modules. */
static int is_for_linker(const char *text) {
  return !strstr(text, "setmaxnreg") && !strstr(text, "wgmma.mma_async");
}

static int32_t translate(const kr_cuda *cuda, const char *text, const char *module_name, kr_code *code) {
  const kr_driver *d = kr_cuda_driver(cuda);
  kr_code_cache_check();
  if (is_for_linker(text)) return link_text(cuda, text, module_name, code);
  const int has_libraries = d->LibraryLoadData && d->LibraryGetModule && d->LibraryUnload;
  if (has_libraries && load_library(cuda, text, module_name, code) >= 0) return KRAIT_OK;
  return kr_load_image(cuda, text, module_name, code);
}

/* Machine code of this very text, from the file beside the library; code->module stays NULL if there is none, or the
 * driver does not take it. */
static int32_t load_ready(const kr_cuda *cuda, const char *text, const char *module_name, kr_code *code) {
  static atomic_flag said = ATOMIC_FLAG_INIT;
  const kr_device_info *info = kr_cuda_info(cuda);
  void *cubin = kr_cubin_find(info->major * 10 + info->minor, text);
  *code = (kr_code){0};
  if (!cubin) return KRAIT_OK;
  const int32_t status = kr_load_image(cuda, cubin, module_name, code);
  kr_free(cubin);
  if (status != KRAIT_ERR_DRIVER) return status;
  if (!atomic_flag_test_and_set(&said)) kr_log("PTX instead of the machine code in a file: %s", krait_error_detail());
  *code = (kr_code){0};
  return KRAIT_OK;
}

static int32_t load_text(const kr_cuda *cuda, const char *text, const char *module_name, const char *entry,
                         kr_code *code) {
  const int64_t start = kr_clock_ns();
  KR_TRY(load_ready(cuda, text, module_name, code));
  const int is_ready = code->module != NULL;
  if (!is_ready) KR_TRY(translate(cuda, text, module_name, code));
  if (kr_env_verbose())
    kr_log("device code: %.*s, %s: %s%zu bytes of PTX in %.1f ms", (int)strcspn(text + 3, "\n"), text + 3, entry,
           is_ready ? "machine code for " : "", strlen(text), (double)(kr_clock_ns() - start) * 1e-6);
  return KRAIT_OK;
}

int32_t kr_load_entry(const kr_cuda *cuda, int text, const char *entry, kr_code *code) {
  const char *whole, *name, *tier;
  kr_cuda_embedded(text, &name, &tier, NULL, NULL);
  KR_TRY(kr_cuda_text(text, &whole));
  kr_ptx_part part = {.end = whole};
  while (kr_ptx_next(&part))
    if (strlen(entry) == part.n_name && memcmp(part.name, entry, part.n_name) == 0) {
      char *alone = kr_ptx_alone(whole, &part, name, tier);
      KR_CHECK(alone, KRAIT_ERR_NO_MEMORY, "no memory for the device code of %s", name);
      const int32_t status = load_text(cuda, alone, name, entry, code);
      kr_free(alone);
      return status;
    }
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "module %s for tier %s has no kernel %s", name, tier, entry);
}
