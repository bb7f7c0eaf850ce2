/* turing_impl.h: which types the turing tier's implementations take. */
#ifndef KR_TURING_IMPL_H
#define KR_TURING_IMPL_H

#include <krait/krait.h>
#include <stddef.h>

/* Its tensor cores have no bfloat16 and no float32; the base tier takes those. */
static inline const char *kr_turing_refuse(int32_t dtype) { return dtype == KRAIT_F16 ? NULL : "not float16"; }

#endif
