/* turing_impl.h: which types the turing tier's implementations take. */
#ifndef KR_TURING_IMPL_H
#define KR_TURING_IMPL_H

#include <krait/krait.h>
#include <stddef.h>
#include <string.h>

#include "cuda.h"

/* Its tensor cores have no bfloat16 and no float32: these take implementations of their own, by scaled float16 parts,
 * or the base tier's. */
static inline const char *kr_turing_refuse(int32_t dtype) { return dtype == KRAIT_F16 ? NULL : "not float16"; }

/* GPUs of 7.5 without tensor cores are told by their names alone: GeForce GTX 16xx and MX450, MX550, T400 to T1200,
 * Quadro T1000 and T2000, CMP 30HX. */
static inline const char *kr_turing_refuse_device(const kr_device_info *info) {
  static const char *const without[] = {"GTX 16", "MX4", "MX5", "T400", "T500", "T550", "T600", "T1000", "T1200",
                                        "T2000", "CMP 30"};
  for (size_t i = 0; i < sizeof without / sizeof *without; i++)
    if (info->major == 7 && strstr(info->name, without[i])) return "this GPU has no tensor cores";
  return NULL;
}

#endif
