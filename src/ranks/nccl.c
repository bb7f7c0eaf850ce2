/* nccl.c: opens NCCL, fills the table, and turns its results into statuses. */
#include "nccl.h"

#include <pthread.h>
#include <stdio.h>

#include "dlib.h"
#include "env.h"
#include "status.h"

enum { OLDEST = 2700 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kr_nccl table;
static int32_t load_status;
static char load_detail[512];

static int32_t find_symbols(kr_dlib *lib, const char *path) {
#define KR_NCCL(name, symbol, parameters)                                                                    \
  {                                                                                                          \
    union {                                                                                                  \
      void *object;                                                                                          \
      int(*function) parameters;                                                                             \
    } found = {kr_dlib_find(lib, symbol)};                                                                   \
    KR_CHECK(found.object, KRAIT_ERR_UNSUPPORTED, "%s has no %s: it is not NCCL, or too old", path, symbol); \
    table.name = found.function;                                                                             \
  }
#include "nccl.def"
#undef KR_NCCL
  union {
    void *object;
    const char *(*function)(int);
  } text = {kr_dlib_find(lib, "ncclGetErrorString")};
  KR_CHECK(text.object, KRAIT_ERR_UNSUPPORTED, "%s has no ncclGetErrorString: it is not NCCL", path);
  table.GetErrorString = text.function;
  return KRAIT_OK;
}

static int32_t load_table(void) {
  const char *path = kr_env_libnccl() ? kr_env_libnccl() : "libnccl.so.2", *why = "";
  kr_dlib *lib = kr_dlib_open(path, &why);
  KR_CHECK(
      lib, KRAIT_ERR_UNSUPPORTED,
      "several GPUs need NCCL (%s): set KRAIT_LIBNCCL to a libnccl.so.2, such as that of PyTorch's nvidia/nccl/lib",
      why);
  KR_TRY(find_symbols(lib, path)); /* stays loaded: it starts threads */
  KR_NCCL_TRY(&table, GetVersion(&table.version), "asking its version");
  KR_CHECK(table.version >= OLDEST, KRAIT_ERR_UNSUPPORTED, "%s is NCCL %d, krait needs 2.7 or later", path,
           table.version);
  return KRAIT_OK;
}

static void load_once(void) {
  load_status = load_table();
  if (load_status < 0) snprintf(load_detail, sizeof load_detail, "%s", krait_error_detail());
}

int32_t kr_nccl_load(const kr_nccl **nccl) {
  pthread_once(&once, load_once);
  *nccl = load_status < 0 ? NULL : &table;
  return load_status < 0 ? kr_fail(load_status, "%s", load_detail) : KRAIT_OK;
}

int32_t kr_nccl_fail(const kr_nccl *nccl, int result, const char *doing) {
  return kr_fail(KRAIT_ERR_DRIVER, "NCCL, %s: %s (%d)", doing,
                 nccl->GetErrorString ? nccl->GetErrorString(result) : "no text", result);
}
