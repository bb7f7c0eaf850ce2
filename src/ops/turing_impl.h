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

/* Where three products of float16 parts take longer than multiply-adds of float32: worth it where tensor cores are
 * several times as fast also for float32 sums, as on the data-centre GPUs (8.0, 9.0, 10.x) and on 7.5. On others
 * float16's rate is two to four times that of multiply-adds. */
static inline const char *kr_turing_refuse_parts(const kr_device_info *info) {
  const int capability = info->major * 10 + info->minor;
  return capability == 80 || info->major == 9 || info->major == 10 ? NULL
         : capability == 75 ? kr_turing_refuse_device(info)
                            : "tensor cores are not several times as fast as multiply-adds on this GPU";
}

#endif
