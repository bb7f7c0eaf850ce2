/* spectra_ref.c: spectra in polar form, losses, spectral norm, and their gradients, written to be read; in double.
 *   to_polar    q = re^2 + im^2 + eps, mag = q^(power/2); x, y = re + re_add, im + im_add, pha = atan2(y, x)
 *               dre = dmag power re q^(power/2-1) - dpha y / (x^2 + y^2), dim = dmag power im q^(power/2-1) + dpha x /
 *                 (x^2 + y^2)
 *   from_polar  re, im = mag^power (cos, sin)(pha); dmag = power mag^(power-1) (dre cos + dim sin), dpha = mag^power
 *               (dim cos - dre sin)
 *   loss        scale sum d^2, or scale sum |a|, a = d - 2 pi round(d / 2 pi), d = x - y; dx = 2 scale d dout, or scale
 *               sign(a) dout; dy = -dx */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "op_list.h"
#include "spectra/spectra_impls.h"
#include "status.h"
#include "view.h"

static double spectra_element(const kr_view *v, int64_t i, int64_t j, int64_t k) {
  return kr_has(v) ? kr_get(v, kr_at3(v, i, j, k)) : 0;
}
static void put_spectra(const kr_view *v, int64_t i, int64_t j, int64_t k, double value) {
  if (kr_has(v)) kr_put(v, kr_at3(v, i, j, k), value);
}

int32_t kr_to_polar_ref(const krait_ctx *ctx, const void *args) {
  const kr_to_polar_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++) {
        const double re = spectra_element(&a->re, i, j, k), im = spectra_element(&a->im, i, j, k);
        put_spectra(&a->mag, i, j, k, pow(re * re + im * im + (double)a->eps, (double)a->power / 2));
        put_spectra(&a->pha, i, j, k, atan2(im + (double)a->im_add, re + (double)a->re_add));
      }
  return KRAIT_OK;
}

int32_t kr_to_polar_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_to_polar_bwd_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++) {
        const double re = spectra_element(&a->re, i, j, k), im = spectra_element(&a->im, i, j, k),
                     x = re + (double)a->re_add, y = im + (double)a->im_add;
        const double q = re * re + im * im + (double)a->eps,
                     around = spectra_element(&a->dpha, i, j, k) / (x * x + y * y);
        const double along = spectra_element(&a->dmag, i, j, k) * (double)a->power * pow(q, (double)a->power / 2 - 1);
        put_spectra(&a->dre, i, j, k, along * re - around * y);
        put_spectra(&a->dim, i, j, k, along * im + around * x);
      }
  return KRAIT_OK;
}

int32_t kr_from_polar_ref(const krait_ctx *ctx, const void *args) {
  const kr_from_polar_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++) {
        const double m = pow(spectra_element(&a->mag, i, j, k), (double)a->power),
                     pha = spectra_element(&a->pha, i, j, k);
        put_spectra(&a->re, i, j, k, m * cos(pha));
        put_spectra(&a->im, i, j, k, m * sin(pha));
      }
  return KRAIT_OK;
}

int32_t kr_from_polar_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_from_polar_bwd_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++) {
        const double mag = spectra_element(&a->mag, i, j, k), c = cos(spectra_element(&a->pha, i, j, k)),
                     s = sin(spectra_element(&a->pha, i, j, k)), power = (double)a->power;
        const double dre = spectra_element(&a->dre, i, j, k), dim = spectra_element(&a->dim, i, j, k);
        put_spectra(&a->dmag, i, j, k, power * pow(mag, power - 1) * (dre * c + dim * s));
        put_spectra(&a->dpha, i, j, k, pow(mag, power) * (dim * c - dre * s));
      }
  return KRAIT_OK;
}

/* ---- losses ---- */

static double spectra_ref_difference(uint32_t flags, const kr_view *x, const kr_view *y, int64_t i, int64_t j,
                                     int64_t k, int64_t n) {
  const double d = kr_get(x, kr_at4(x, i, j, k, n)) - (kr_has(y) ? kr_get(y, kr_at4(y, i, j, k, n)) : 0),
               turn = 6.283185307179586;
  return flags & KRAIT_LOSS_ANGLE ? d - turn * rint(d / turn) : d;
}

int32_t kr_loss_ref(const krait_ctx *ctx, const void *args) {
  const kr_loss_args *a = args;
  const int angle = (a->call.flags & KRAIT_LOSS_ANGLE) != 0;
  double sum = 0;
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++)
        for (int64_t n = 0; n < a->N; n++) {
          const double d = spectra_ref_difference(a->call.flags, &a->x, &a->y, i, j, k, n);
          sum += angle ? fabs(d) : d * d;
        }
  kr_put(&a->out, 0, sum * (double)a->scale);
  return KRAIT_OK;
}

int32_t kr_loss_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_loss_bwd_args *a = args;
  const int angle = (a->call.flags & KRAIT_LOSS_ANGLE) != 0;
  const double scale = (double)a->scale * kr_get(&a->dout, 0);
  (void)ctx;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++)
        for (int64_t n = 0; n < a->N; n++) {
          const double d = spectra_ref_difference(a->call.flags, &a->x, &a->y, i, j, k, n),
                       slope = scale * (angle ? (d > 0) - (d < 0) : 2 * d);
          if (kr_has(&a->dx)) kr_put(&a->dx, kr_at4(&a->dx, i, j, k, n), slope);
          if (kr_has(&a->dy)) kr_put(&a->dy, kr_at4(&a->dy, i, j, k, n), -slope);
        }
  return KRAIT_OK;
}

/* ---- spectral norm ---- */

static double norm_of(const double *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  return sqrt(sum);
}
static void divide(double *x, int64_t n, double by) {
  for (int64_t i = 0; i < n; i++) x[i] /= by > 1e-12 ? by : 1e-12;
}

uint64_t kr_spectral_norm_scratch(const krait_ctx *ctx, const void *args) {
  const kr_spectral_norm_args *a = args;
  (void)ctx;
  return (uint64_t)(2 * a->O + a->K) * sizeof(double);
}

int32_t kr_spectral_norm_ref(const krait_ctx *ctx, const void *args) {
  const kr_spectral_norm_args *a = args;
  double *v = a->call.scratch, *u = v + a->K, *Wv = u + a->O, sigma = 0;
  (void)ctx;
  memset(v, 0, (size_t)a->K * sizeof *v);
  for (int64_t o = 0; o < a->O; o++)
    for (int64_t k = 0; k < a->K; k++)
      v[k] += kr_get(&a->weight, kr_at2(&a->weight, o, k)) * kr_get(&a->u, kr_at1(&a->u, o));
  divide(v, a->K, norm_of(v, a->K));
  for (int64_t o = 0; o < a->O; o++) {
    Wv[o] = 0;
    for (int64_t k = 0; k < a->K; k++) Wv[o] += kr_get(&a->weight, kr_at2(&a->weight, o, k)) * v[k];
    u[o] = Wv[o];
  }
  divide(u, a->O, norm_of(u, a->O));
  for (int64_t o = 0; o < a->O; o++) sigma += u[o] * Wv[o];
  for (int64_t o = 0; o < a->O; o++) kr_put(&a->u_out, kr_at1(&a->u_out, o), u[o]);
  for (int64_t k = 0; k < a->K; k++) kr_put(&a->v_out, kr_at1(&a->v_out, k), v[k]);
  kr_put(&a->sigma, 0, sigma);
  for (int64_t o = 0; o < a->O; o++)
    for (int64_t k = 0; k < a->K; k++)
      kr_put(&a->out, kr_at2(&a->out, o, k), kr_get(&a->weight, kr_at2(&a->weight, o, k)) / sigma);
  return KRAIT_OK;
}

int32_t kr_spectral_norm_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_spectral_norm_bwd_args *a = args;
  const double sigma = kr_get(&a->sigma, 0);
  double along = 0;
  (void)ctx;
  for (int64_t o = 0; o < a->O; o++)
    for (int64_t k = 0; k < a->K; k++)
      along += kr_get(&a->dout, kr_at2(&a->dout, o, k)) * kr_get(&a->out, kr_at2(&a->out, o, k));
  for (int64_t o = 0; o < a->O; o++)
    for (int64_t k = 0; k < a->K; k++) {
      const double uv = kr_get(&a->u, kr_at1(&a->u, o)) * kr_get(&a->v, kr_at1(&a->v, k));
      kr_put(&a->dweight, kr_at2(&a->dweight, o, k), (kr_get(&a->dout, kr_at2(&a->dout, o, k)) - along * uv) / sigma);
    }
  return KRAIT_OK;
}

int32_t kr_transform_ref(const krait_ctx *ctx, const void *args) {
  const kr_transform_args *a = args;
  (void)ctx;
  for (int64_t r = 0; r < a->R; r++)
    for (int64_t n = 0; n < a->N; n++) {
      double sum = 0;
      for (int64_t k = 0; k < a->K; k++)
        sum += kr_get(&a->x, kr_at2(&a->x, r, k)) * kr_get(&a->matrix, kr_at2(&a->matrix, k, n));
      kr_put(&a->out, kr_at2(&a->out, r, n), sum);
    }
  return KRAIT_OK;
}
