/* limits.h: the vector loops that measure the limits of a core; one version per ISA. */
#ifndef KR_LIMITS_H
#define KR_LIMITS_H

#include <stdint.h>

/* Each runs `rounds` times over 1024 floats and returns something that depends on all of it. */
typedef float kr_limit_fn(float *values, int64_t rounds);
kr_limit_fn kr_limit_exps_avx512, kr_limit_exps_avx2, kr_limit_exps_neon, kr_limit_exps_scalar;
kr_limit_fn kr_limit_fmas_avx512, kr_limit_fmas_avx2, kr_limit_fmas_neon, kr_limit_fmas_scalar;

#endif
