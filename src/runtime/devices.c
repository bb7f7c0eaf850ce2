/* devices.c: the public list of GPUs and of embedded device code. */
#include "public_names.h"

#include <string.h>

#include "cuda.h"
#include "packed_code.h"
#include "sized.h"
#include "status.h"

#include <krait/krait.h>

int32_t krait_device_count(int32_t *n) {
  KR_CHECK(n, KRAIT_ERR_ARGUMENT, "n must not be NULL");
  int count = 0;
  int32_t status = kr_cuda_n_devices(&count);
  *n = status < 0 ? 0 : count;
  return status;
}

int32_t krait_device_read(int32_t index, krait_device_info *info) {
  kr_device_info d;
  const kr_driver *driver;
  KR_CHECK(info, KRAIT_ERR_ARGUMENT, "info must not be NULL");
  KR_TRY(kr_cuda_device_info(index, &d));
  KR_TRY(kr_driver_load(&driver));
  krait_device_info known = {.index = index,
                             .major = d.major,
                             .minor = d.minor,
                             .n_multiprocessors = d.n_multiprocessors,
                             .driver_version = driver->version,
                             .ptx_version = kr_driver_ptx_version(driver->version),
                             .memory_bytes = d.memory_bytes,
                             .l2_bytes = d.l2_bytes,
                             .caps = d.caps};
  memcpy(known.name, d.name, sizeof known.name);
  known.name[sizeof known.name - 1] = 0;
  return kr_struct_give("krait_device_info", info, sizeof known, &known, sizeof known);
}

int32_t krait_embedded_ptx(int32_t index, const char **module, const char **tier, const char **text) {
  KR_CHECK(module && tier && text, KRAIT_ERR_ARGUMENT, "module, tier and text must not be NULL");
  KR_CHECK(kr_cuda_embedded(index, module, tier, NULL, NULL), KRAIT_ERR_ARGUMENT, "there is no embedded PTX %d", index);
  return kr_cuda_text(index, text);
}

int32_t krait_embedded_cubin(int32_t index, const char **module, const char **tier, int32_t *capability) {
  KR_CHECK(module && tier && capability, KRAIT_ERR_ARGUMENT, "module, tier and capability must not be NULL");
  const kr_cubin *cubin = kr_cuda_cubin(index);
  KR_CHECK(cubin, KRAIT_ERR_ARGUMENT, "there is no embedded cubin %d", index);
  *module = cubin->module, *tier = cubin->tier, *capability = cubin->capability;
  return KRAIT_OK;
}
