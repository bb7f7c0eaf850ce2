/* limits_simd.c: 1024 exponentials, or 1024 multiply-adds, per round, in the L1 cache. */
#include "limits.h"
#include "vec_math.h"

enum { VALUES = 1024, CHAINS = 10 }; /* two units, each five deep */

float KR_FN(kr_limit_exps)(float *values, int64_t rounds) {
  float results[VALUES];
  kr_v sum = kr_v_zero();
  for (int64_t r = 0; r < rounds; r++) {
    for (int i = 0; i < VALUES; i += KR_VL) kr_v_store(results + i, kr_v_exp(kr_v_load(values + i)));
    sum = kr_v_add(sum, kr_v_load(results));
    values[r % VALUES] *= 0.999f;
  }
  return kr_v_sum(sum);
}

float KR_FN(kr_limit_fmas)(float *values, int64_t rounds) {
  kr_v chain[CHAINS];
  for (int k = 0; k < CHAINS; k++) chain[k] = kr_v_load(values + k * KR_VL);
  const kr_v a = kr_v_set1(0.999f), b = kr_v_set1(0.001f);
  for (int64_t r = 0; r < rounds * VALUES / (KR_VL * CHAINS); r++)
    for (int k = 0; k < CHAINS; k++) chain[k] = kr_v_fma(chain[k], a, b);
  for (int k = 1; k < CHAINS; k++) chain[0] = kr_v_add(chain[0], chain[k]);
  return kr_v_sum(chain[0]);
}
