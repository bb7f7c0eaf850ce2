/* lane_fft.c: see lane_fft.h. Stockham's order (each pass writes where the next one reads in sequence): after p passes
 * of four, 4^p lanes are neighbours, so even a single signal has vectors from the second pass on. */
#include "lane_fft.h"

#include <math.h>

#include "alloc.h"
#include "status.h"

int32_t kr_lane_fft_open(int64_t n, int most_lanes, kr_lane_fft *fft) {
  float **const blocks[] = {&fft->re, &fft->im, &fft->re_next, &fft->im_next, &fft->w_re, &fft->w_im};
  int is_complete = 1;
  *fft = (kr_lane_fft){.n = n};
  for (int i = 0; i < 6; i++) {
    *blocks[i] = kr_alloc_array((size_t)(i < 4 ? n * most_lanes : n), sizeof(float));
    is_complete &= *blocks[i] != NULL;
  }
  if (!is_complete) {
    kr_lane_fft_close(fft);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a transform of %lld samples", (long long)n);
  }
  for (int64_t k = 0; k < n; k++) {
    const double angle = -6.283185307179586476925 * (double)k / (double)n;
    fft->w_re[k] = (float)cos(angle), fft->w_im[k] = (float)sin(angle);
  }
  return KRAIT_OK;
}

void kr_lane_fft_close(kr_lane_fft *fft) {
  float *const blocks[] = {fft->re, fft->im, fft->re_next, fft->im_next, fft->w_re, fft->w_im};
  for (int i = 0; i < 6; i++) kr_free(blocks[i]);
  *fft = (kr_lane_fft){0};
}

void kr_lane_fft_turn(kr_lane_fft *fft) {
  float *const re = fft->re, *const im = fft->im;
  fft->re = fft->re_next, fft->im = fft->im_next;
  fft->re_next = re, fft->im_next = im;
}

typedef struct four { /* complex numbers of one transform, or four places for them */
  float *re[4], *im[4];
} four;

static four places(float *re, float *im, int64_t apart) {
  return (four){{re, re + apart, re + 2 * apart, re + 3 * apart}, {im, im + apart, im + 2 * apart, im + 3 * apart}};
}

/* One butterfly of four, `lanes` times, from x to y, which do not overlap. */
static void combine_four(const four *x, const four *y, int64_t lanes, const float *w) {
  const float *const a = x->re[0], *const b = x->re[1], *const c = x->re[2], *const d = x->re[3];
  const float *const a_ = x->im[0], *const b_ = x->im[1], *const c_ = x->im[2], *const d_ = x->im[3];
  float *const p = y->re[0], *const f = y->re[1], *const g = y->re[2], *const h = y->re[3];
  float *const p_ = y->im[0], *const f_ = y->im[1], *const g_ = y->im[2], *const h_ = y->im[3];
  const float w1 = w[0], w1_ = w[1], w2 = w[2], w2_ = w[3], w3 = w[4], w3_ = w[5];
#pragma GCC ivdep
  for (int64_t q = 0; q < lanes; q++) {
    const float s = a[q] + c[q], s_ = a_[q] + c_[q], t = a[q] - c[q], t_ = a_[q] - c_[q];
    const float u = b[q] + d[q], u_ = b_[q] + d_[q], v = b[q] - d[q], v_ = b_[q] - d_[q];
    p[q] = s + u, p_[q] = s_ + u_;
    f[q] = (t + v_) * w1 - (t_ - v) * w1_, f_[q] = (t + v_) * w1_ + (t_ - v) * w1;
    g[q] = (s - u) * w2 - (s_ - u_) * w2_, g_[q] = (s - u) * w2_ + (s_ - u_) * w2;
    h[q] = (t - v_) * w3 - (t_ + v) * w3_, h_[q] = (t - v_) * w3_ + (t_ + v) * w3;
  }
}

void kr_lane_fft_run(kr_lane_fft *fft, int lanes) {
  const float *const w_re = fft->w_re, *const w_im = fft->w_im;
  int64_t n = fft->n, n_lanes = lanes;
  for (; n >= 4; n /= 4, n_lanes *= 4, kr_lane_fft_turn(fft))
    for (int64_t p = 0, step = fft->n / n; p < n / 4; p++) {
      const int64_t k = p * step, from = p * n_lanes, to = 4 * from;
      const float w[6] = {w_re[k], w_im[k], w_re[2 * k], w_im[2 * k], w_re[3 * k], w_im[3 * k]};
      const four x = places(fft->re + from, fft->im + from, n / 4 * n_lanes),
                 y = places(fft->re_next + to, fft->im_next + to, n_lanes);
      combine_four(&x, &y, n_lanes, w);
    }
  if (n != 2) return;
  for (int64_t q = 0; q < n_lanes; q++) {
    fft->re_next[q] = fft->re[q] + fft->re[q + n_lanes], fft->re_next[q + n_lanes] = fft->re[q] - fft->re[q + n_lanes];
    fft->im_next[q] = fft->im[q] + fft->im[q + n_lanes], fft->im_next[q + n_lanes] = fft->im[q] - fft->im[q + n_lanes];
  }
  kr_lane_fft_turn(fft);
}
