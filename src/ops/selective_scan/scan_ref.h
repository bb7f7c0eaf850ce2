/* scan_ref.h: shared by the scan's reference implementations, forward and gradient: sequences, complex numbers,
 * elements. */
#ifndef KR_SCAN_REF_H
#define KR_SCAN_REF_H

#include <math.h>

#include "view.h"

typedef struct number {
  double re, im;
} number;

static inline number number_of(double re) { return (number){re, 0}; }
static inline number add(number a, number b) { return (number){a.re + b.re, a.im + b.im}; }
static inline number scale(double s, number a) { return (number){s * a.re, a.im == 0 ? a.im : s * a.im}; }
static inline number conjugate(number a) { return (number){a.re, -a.im}; }
/* Real factors stay real, so that infinity does not become NaN through 0 * inf. */
static inline number times(number a, number b) {
  if (a.im == 0 && b.im == 0) return (number){a.re * b.re, 0};
  return (number){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
static inline number exponential(number a) {
  double size = exp(a.re);
  return a.im == 0 ? number_of(size) : (number){size * cos(a.im), size * sin(a.im)};
}

static inline number get_number(const kr_view *v, int64_t offset) {
  if (v->dtype != KRAIT_C64) return number_of(kr_get(v, offset));
  const float *pair = (const float *)v->data + 2 * offset;
  return (number){pair[0], pair[1]};
}
static inline void put_number(const kr_view *v, int64_t offset, number value) {
  if (v->dtype != KRAIT_C64) {
    kr_put(v, offset, value.re);
    return;
  }
  float *pair = (float *)v->data + 2 * offset;
  pair[0] = (float)value.re;
  pair[1] = (float)value.im;
}

/* One sequence in one direction: step i is at time first + i * step of batch entry b. */
typedef struct walk {
  int64_t b, first, n;
  int step;
  int64_t state_row; /* row of initial_state and last_state */
} walk;

static inline int64_t time_of(const walk *w, int64_t i) { return w->first + i * w->step; }

static inline walk walk_of(int64_t row, int64_t L, const kr_view *cu_seqlens, int reverse) {
  int64_t b = row, begin = 0, end = L;
  if (kr_has(cu_seqlens)) {
    b = 0;
    begin = kr_get_i32(cu_seqlens, kr_at1(cu_seqlens, row));
    end = kr_get_i32(cu_seqlens, kr_at1(cu_seqlens, row + 1));
  }
  return (walk){b, reverse ? end - 1 : begin, end - begin, reverse ? -1 : 1, row};
}

/* B or C of channel d, state n, time t: constant (D,N), or variable (B,G,N,L) with complex pairs interleaved on L. */
static inline number get_parameter(const kr_view *v, int constant, int is_complex, int64_t b, int64_t g, int64_t d,
                                   int64_t n, int64_t t) {
  if (constant) return get_number(v, kr_at2(v, d, n));
  if (!is_complex) return number_of(kr_get(v, kr_at4(v, b, g, n, t)));
  return (number){kr_get(v, kr_at4(v, b, g, n, 2 * t)), kr_get(v, kr_at4(v, b, g, n, 2 * t + 1))};
}

static inline double softplus(double x) { return x <= 20 ? log1p(exp(x)) : x; }
static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }

#endif
