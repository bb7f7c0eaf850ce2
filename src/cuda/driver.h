/* driver.h: the NVIDIA driver, loaded at run time as a table of function pointers (driver.def). Nothing links against
 * it. */
#ifndef KR_DRIVER_H
#define KR_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int kr_cu_result; /* CUresult; 0 is success */

/* CUDA_KERNEL_NODE_PARAMS, first version: a launch as a node of a graph. */
typedef struct kr_cu_kernel_node {
  void *function;
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void **parameters, **extra;
} kr_cu_kernel_node;

/* CUlaunchAttribute, CUlaunchConfig. */
typedef struct kr_cu_launch_attribute {
  int id, pad;
  union {
    char bytes[64];
    int value;
    unsigned cluster[3];
  } of;
} kr_cu_launch_attribute;
typedef struct kr_cu_launch {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void *stream;
  kr_cu_launch_attribute *attributes;
  unsigned n_attributes;
} kr_cu_launch;

typedef struct kr_driver {
#define KR_CU(need, name, symbol, parameters) kr_cu_result(*name) parameters;
#include "driver.def"
#undef KR_CU
  int version; /* 13000 for CUDA 13.0 */
} kr_driver;

/* Loads the library (KRAIT_LIBCUDA, else libcuda.so.1) and initialises it, once per process; later calls repeat the
 * first result. A failing status says why: no library, a missing symbol, the driver's own message. */
int32_t kr_driver_load(const kr_driver **driver);

/* The highest PTX version (60 for 6.0) that a driver of this CUDA version reads. */
int kr_driver_ptx_version(int cuda_version);

/* A failed driver call as a status, with the driver's error name and text: KRAIT_ERR_DEVICE_LOST for errors that break
 * the context until the process ends, KRAIT_ERR_DEVICE_MEMORY when out of memory, else KRAIT_ERR_DRIVER. */
int32_t kr_driver_fail(const kr_driver *driver, kr_cu_result result, const char *doing);

#define KR_CU_TRY(driver, call, doing)                                               \
  do {                                                                               \
    kr_cu_result kr_cu_result_ = (driver)->call;                                     \
    if (kr_cu_result_) return kr_driver_fail((driver), kr_cu_result_, (doing));      \
  } while (0)

/* The driver ABI's constants that we use. */
enum {
  KR_CU_OUT_OF_MEMORY = 2,
  KR_CU_NO_DEVICE = 100,
  KR_CU_JIT_ERROR_LOG_BUFFER = 5,
  KR_CU_JIT_ERROR_LOG_BYTES = 6,
  KR_CU_INPUT_PTX = 1, /* of the linker */
  KR_CU_SHARED_BYTES_STATIC = 1, /* function attribute */
  KR_CU_SHARED_BYTES_MAX = 8, /* function attribute: dynamic shared memory */
  KR_CU_STREAM_NON_BLOCKING = 1,
  KR_CU_CAPTURE_RELAXED = 2,
  KR_CU_LAUNCH_CLUSTER = 4, /* launch attribute: blocks of a cluster */
  KR_CU_LAUNCH_PDL = 6, /* launch attribute: programmatic stream serialization */
  KR_CU_ATTR_MULTIPROCESSORS = 16,
  KR_CU_ATTR_L2_BYTES = 38,
  KR_CU_ATTR_MAJOR = 75,
  KR_CU_ATTR_MINOR = 76,
  KR_CU_ATTR_TOGETHER = 95, /* cooperative launches */
  KR_CU_ATTR_SHARED_OPTIN = 97,
  KR_CU_MAP_F16 = 6, /* a tensor map's types, swizzle, L2 promotion */
  KR_CU_MAP_BF16 = 9,
  KR_CU_MAP_SWIZZLE_64 = 2,
  KR_CU_MAP_SWIZZLE_128 = 3,
  KR_CU_MAP_PROMOTE_128 = 2,
  KR_CU_MAP_PROMOTE_256 = 3,
};

#endif
