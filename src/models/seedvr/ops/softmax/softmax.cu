/* softmax.cu: the softmax of rows, a block each: largest value and sum of exponentials in one pass, merged in a fixed
 * order; then the quotients. */
#include "kernel.cuh"
#include "softmax_params.h"

enum { THREADS = KR_SOFTMAX_THREADS };

/* The largest value, and the sum of exponentials below it. */
typedef struct level {
  float top, sum;
} level;
/* A top of minus infinity has no sum: nothing was there. A value that is not a number makes the sum one. */
KR_DEV level join(level a, level b) {
  const float top = a.top > b.top ? a.top : b.top;
  level both;
  both.top = top;
  both.sum = a.sum == 0.0f ? 0.0f : a.sum * kr_exp(a.top - top);
  both.sum += b.sum == 0.0f ? 0.0f : b.sum * kr_exp(b.top - top);
  return both;
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_softmax(kr_softmax_params p) {
  KR_SHARED float tops[THREADS], sums[THREADS];
  const float *x = (const float *)p.x.data + (int64_t)kr_block_x() * p.x.stride[0];
  const int64_t out = (int64_t)kr_block_x() * p.out.stride[0];
  level own = {-__builtin_inff(), 0.0f};
  for (int64_t n = kr_thread(); n < p.N; n += THREADS) own = join(own, (level){x[n * p.x.stride[1]], 1.0f});
  tops[kr_thread()] = own.top, sums[kr_thread()] = own.sum;
  kr_sync();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (kr_thread() < half) {
      own = join(own, (level){tops[kr_thread() + half], sums[kr_thread() + half]});
      tops[kr_thread()] = own.top, sums[kr_thread()] = own.sum;
    }
    kr_sync();
  }
  const float top = tops[0], by = 1.0f / sums[0];
  for (int64_t n = kr_thread(); n < p.N; n += THREADS)
    kr_store(p.out.data, out + n * p.out.stride[1], p.out.dtype, kr_exp(x[n * p.x.stride[1]] - top) * by);
}
