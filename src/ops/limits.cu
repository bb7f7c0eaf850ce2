/* limits.cu: what a GPU can do at most: each thread keeps chains of multiply-adds, or of exponentials as the operators compute them, in
 * registers. Full blocks of 256 threads, eight on a multiprocessor, hide the latency of the chains. */
#include "kernel.cuh"
#include "limits_plan.h"

KR_DEV void begin_chains(float *chain) {
  for (int k = 0; k < KR_LIMIT_CHAINS; k++) chain[k] = 0.001f * (float)(kr_thread() + k);
}

KR_DEV void write_sum(const kr_limit_plan &p, const float *chain) {
  float sum = 0;
  for (int k = 0; k < KR_LIMIT_CHAINS; k++) sum += chain[k];
  p.out[(int64_t)kr_block_x() * KR_LIMIT_THREADS + kr_thread()] = sum;
}

KR_KERNEL void KR_BOUNDS(KR_LIMIT_THREADS, 8) kr_limit_fmas(const kr_limit_plan p) {
  float chain[KR_LIMIT_CHAINS];
  begin_chains(chain);
#pragma unroll 1
  for (int32_t r = 0; r < p.rounds; r++)
    for (int i = 0; i < KR_LIMIT_STEPS; i++)
      for (int k = 0; k < KR_LIMIT_CHAINS; k++) chain[k] = kr_fma(chain[k], p.factor, p.summand);
  write_sum(p, chain);
}

KR_KERNEL void KR_BOUNDS(KR_LIMIT_THREADS, 8) kr_limit_exps(const kr_limit_plan p) {
  float chain[KR_LIMIT_CHAINS];
  begin_chains(chain);
#pragma unroll 1
  for (int32_t r = 0; r < p.rounds; r++)
    for (int i = 0; i < KR_LIMIT_STEPS; i++)
      for (int k = 0; k < KR_LIMIT_CHAINS; k++) chain[k] = kr_exp(-chain[k]);
  write_sum(p, chain);
}
