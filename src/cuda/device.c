/* device.c: the GPUs present, and which tiers of our device code each takes (the ladder). */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "ladder.h"
#include "status.h"

static const kr_tier tiers[] = {
#define KR_TIER(name, cap, low, high, ptx, arch) {#name, cap, low, high, ptx},
#include "archs.def"
#undef KR_TIER
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

const kr_tier *kr_tier_at(int index) { return index >= 0 && index < N_TIERS ? &tiers[index] : NULL; }

const char *kr_tier_name(uint64_t cap) {
  for (int i = 0; i < N_TIERS; i++)
    if (tiers[i].cap == cap) return tiers[i].name;
  return "none";
}

/* NULL, or why this device with this driver cannot run the tier. */
static const char *refuse_tier(const kr_tier *tier, int capability, int ptx_version) {
  if (!(kr_cuda_built_tiers() & tier->cap)) return "not in this build (no suitable clang when it was configured)";
  if (ptx_version < tier->ptx_version) return "the driver reads only older PTX";
  if (capability < tier->low) return "the device is older";
  if (tier->high && capability > tier->high) return "the device is of a different generation";
  return NULL;
}

uint64_t kr_ladder(const kr_device_info *info, int ptx_version, uint64_t mask, char *why, size_t why_bytes) {
  uint64_t caps = 0;
  size_t used = 0;
  if (why_bytes) why[0] = 0;
  for (int i = 0; i < N_TIERS; i++) {
    const char *refusal =
        mask & tiers[i].cap ? refuse_tier(&tiers[i], info->major * 10 + info->minor, ptx_version) : "masked";
    if (!refusal) caps |= tiers[i].cap;
    else if (used < why_bytes)
      used += (size_t)snprintf(why + used, why_bytes - used, "%s%s: %s", used ? "; " : "", tiers[i].name, refusal);
  }
  return caps;
}

int32_t kr_cuda_n_devices(int *n) {
  const kr_driver *driver;
  *n = 0;
  KR_TRY(kr_driver_load(&driver));
  KR_CU_TRY(driver, DeviceGetCount(n), "counting devices");
  KR_CHECK(*n > 0, KRAIT_ERR_NO_DEVICE, "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)");
  return KRAIT_OK;
}

static int32_t read_attributes(const kr_driver *driver, int device, kr_device_info *info) {
  int l2 = 0, shared = 0;
  size_t memory = 0;
  KR_CU_TRY(driver, DeviceGetName(info->name, (int)sizeof info->name, device), "querying a device's name");
  KR_CU_TRY(driver, DeviceGetAttribute(&info->major, KR_CU_ATTR_MAJOR, device), "querying the compute capability");
  KR_CU_TRY(driver, DeviceGetAttribute(&info->minor, KR_CU_ATTR_MINOR, device), "querying the compute capability");
  KR_CU_TRY(driver, DeviceGetAttribute(&info->n_multiprocessors, KR_CU_ATTR_MULTIPROCESSORS, device),
            "querying the number of multiprocessors");
  KR_CU_TRY(driver, DeviceGetAttribute(&l2, KR_CU_ATTR_L2_BYTES, device), "querying the cache size");
  KR_CU_TRY(driver, DeviceTotalMem(&memory, device), "querying the memory size");
  if (driver->DeviceGetAttribute(&shared, KR_CU_ATTR_SHARED_OPTIN, device) || shared < 49152) shared = 49152;
  info->memory_bytes = (int64_t)memory;
  info->l2_bytes = l2;
  info->shared_bytes = shared;
  return KRAIT_OK;
}

int32_t kr_cuda_device_info(int index, kr_device_info *info) {
  const kr_driver *driver;
  int n, device;
  memset(info, 0, sizeof *info);
  KR_TRY(kr_cuda_n_devices(&n));
  KR_CHECK(index >= 0 && index < n, KRAIT_ERR_NO_DEVICE, "there is no GPU %d, this machine has %d", index, n);
  KR_TRY(kr_driver_load(&driver));
  KR_CU_TRY(driver, DeviceGet(&device, index), "opening a device");
  KR_TRY(read_attributes(driver, device, info));
  info->caps = kr_ladder(info, kr_driver_ptx_version(driver->version), KRAIT_CAPS_ALL, NULL, 0);
  return KRAIT_OK;
}
