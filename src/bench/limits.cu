/* limits.cu: what a GPU can do at most: each thread keeps chains of multiply-adds, or of exponentials as the operators
 * compute them, in registers. Full blocks of 256 threads, eight on a multiprocessor, hide the latency of the chains. */
#include "kernel.cuh"
#include "limits_params.h"

KR_DEV void run_chains(const kr_limit_params &p, const int EXPS) {
  float chain[KR_LIMIT_CHAINS], sum = 0;
  for (int k = 0; k < KR_LIMIT_CHAINS; k++) chain[k] = 0.001f * (float)(kr_thread() + k);
#pragma unroll 1
  for (int32_t r = 0; r < p.rounds; r++)
    for (int i = 0; i < KR_LIMIT_STEPS; i++)
      for (int k = 0; k < KR_LIMIT_CHAINS; k++)
        chain[k] = EXPS ? kr_exp(-chain[k]) : kr_fma(chain[k], p.factor, p.summand);
  for (int k = 0; k < KR_LIMIT_CHAINS; k++) sum += chain[k];
  p.out[(int64_t)kr_block_x() * KR_LIMIT_THREADS + kr_thread()] = sum;
}

KR_KERNEL void KR_BOUNDS(KR_LIMIT_THREADS, 8) kr_limit_fmas(const kr_limit_params p) { run_chains(p, 0); }
KR_KERNEL void KR_BOUNDS(KR_LIMIT_THREADS, 8) kr_limit_exps(const kr_limit_params p) { run_chains(p, 1); }
