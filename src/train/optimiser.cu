/* optimiser.cu: what happens to all parameters of a model between two steps, element by element as parameters.c does it
 * on the host, and the sum of the gradients' squares in float64, always in the same order. */
#include "kernel.cuh"
#include "optimiser_params.h"

#ifdef KR_EMULATE
#define ROOT(x) sqrtf(x)
#else
#define ROOT(x) __nvvm_sqrt_rn_f(x)
#endif

KR_KERNEL void KR_BOUNDS(KR_OPTIMISER_THREADS, 4) kr_optimiser_adamw(const kr_optimiser_params p) {
  const int64_t i = (int64_t)kr_block_x() * KR_OPTIMISER_THREADS + kr_thread();
  if (i >= p.n) return;
  const float g = p.gradient[i] * p.scale, m = p.m[i] + (g - p.m[i]) * (1.0f - p.beta1),
              v = p.v[i] * p.beta2 + g * g * (1.0f - p.beta2);
  const float value = p.value[i] * p.keep - p.step * m / (ROOT(v) / p.root + p.eps);
  p.m[i] = m, p.v[i] = v, p.value[i] = value;
  if (p.average) p.average[i] = p.average_keep * p.average[i] + p.average_take * value;
}

/* Gradients of the batches that make one step together. */
KR_KERNEL void KR_BOUNDS(KR_OPTIMISER_THREADS, 4) kr_optimiser_add(const kr_optimiser_params p) {
  const int64_t i = (int64_t)kr_block_x() * KR_OPTIMISER_THREADS + kr_thread();
  if (i >= p.n) return;
  const float total = (p.total_keep != 0.0f ? p.total[i] : 0.0f) + p.gradient[i];
  p.total[i] = total;
  if (p.by != 0.0f) p.gradient[i] = total / p.by;
}

KR_DEV double sum_block(double v) {
  KR_SHARED double shared[KR_OPTIMISER_THREADS];
  shared[kr_thread()] = v;
  for (int half = KR_OPTIMISER_THREADS / 2; half > 0; half /= 2) {
    kr_sync();
    if (kr_thread() < half) shared[kr_thread()] = v += shared[kr_thread() + half];
  }
  return v;
}

KR_KERNEL void KR_BOUNDS(KR_OPTIMISER_THREADS, 4) kr_optimiser_squares(const kr_optimiser_params p) {
  double sum = 0.0;
  for (int64_t i = (int64_t)kr_block_x() * KR_OPTIMISER_THREADS + kr_thread(); i < p.n;
       i += KR_OPTIMISER_PARTS * KR_OPTIMISER_THREADS)
    sum += (double)p.gradient[i] * (double)p.gradient[i];
  sum = sum_block(sum);
  if (kr_thread() == 0) p.squares[kr_block_x()] = sum;
}

KR_KERNEL void KR_BOUNDS(KR_OPTIMISER_THREADS, 4) kr_optimiser_squares_sum(const kr_optimiser_params p) {
  const double sum = sum_block(kr_thread() < KR_OPTIMISER_PARTS ? p.squares[kr_thread()] : 0.0);
  if (kr_thread() == 0) p.squares[KR_OPTIMISER_PARTS] = sum;
}
