/* spectra_simd.c: spectra in polar form and losses, elementwise in float32, sums in double. */
#include <math.h>

#include "op_list.h"
#include "spectra/spectra_impls.h"
#include "vec.h"
#include "view.h"

static const float *in_row(const kr_view *v, int64_t i, int64_t j) {
  return kr_has(v) ? (const float *)v->data + kr_at3(v, i, j, 0) : NULL;
}
static float *out_row(const kr_view *v, int64_t i, int64_t j) {
  return kr_has(v) ? (float *)v->data + kr_at3(v, i, j, 0) : NULL;
}

static float power_of(float x, float power) { return power == 1 ? x : power == 0 ? 1 : powf(x, power); }

static void to_polar_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_to_polar_args *a = user;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t i = row / a->J, j = row % a->J;
    const float *re = in_row(&a->re, i, j), *im = in_row(&a->im, i, j);
    float *mag = out_row(&a->mag, i, j), *pha = out_row(&a->pha, i, j);
    for (int64_t k = 0; k < a->K; k++) {
      const float x = re[k * a->re.stride[2]], y = im[k * a->im.stride[2]], q = x * x + y * y + a->eps;
      if (mag) mag[k * a->mag.stride[2]] = a->power == 1 ? sqrtf(q) : powf(q, a->power / 2);
      if (pha) pha[k * a->pha.stride[2]] = atan2f(y + a->im_add, x + a->re_add);
    }
  }
}
int32_t KR_FN(kr_to_polar)(const krait_ctx *ctx, const void *args) {
  const kr_to_polar_args *a = args;
  kr_parallel(ctx, a->I * a->J, 1 + 512 / (a->K + 1), to_polar_rows, (void *)args);
  return KRAIT_OK;
}

static void to_polar_rows_back(void *user, int64_t begin, int64_t end, int worker) {
  const kr_to_polar_bwd_args *a = user;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t i = row / a->J, j = row % a->J;
    const float *re = in_row(&a->re, i, j), *im = in_row(&a->im, i, j), *dmag = in_row(&a->dmag, i, j),
                *dpha = in_row(&a->dpha, i, j);
    float *dre = out_row(&a->dre, i, j), *dim = out_row(&a->dim, i, j);
    for (int64_t k = 0; k < a->K; k++) {
      const float x = re[k * a->re.stride[2]], y = im[k * a->im.stride[2]], q = x * x + y * y + a->eps,
                  u = x + a->re_add, v = y + a->im_add;
      const float along = dmag ? dmag[k * a->dmag.stride[2]] * a->power * powf(q, a->power / 2 - 1) : 0,
                  around = dpha ? dpha[k * a->dpha.stride[2]] / (u * u + v * v) : 0;
      if (dre) dre[k * a->dre.stride[2]] = along * x - around * v;
      if (dim) dim[k * a->dim.stride[2]] = along * y + around * u;
    }
  }
}
int32_t KR_FN(kr_to_polar_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_to_polar_bwd_args *a = args;
  kr_parallel(ctx, a->I * a->J, 1 + 512 / (a->K + 1), to_polar_rows_back, (void *)args);
  return KRAIT_OK;
}

static void from_polar_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_from_polar_args *a = user;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t i = row / a->J, j = row % a->J;
    const float *mag = in_row(&a->mag, i, j), *pha = in_row(&a->pha, i, j);
    float *re = out_row(&a->re, i, j), *im = out_row(&a->im, i, j);
    for (int64_t k = 0; k < a->K; k++) {
      const float m = power_of(mag[k * a->mag.stride[2]], a->power), p = pha[k * a->pha.stride[2]];
      if (re) re[k * a->re.stride[2]] = m * cosf(p);
      if (im) im[k * a->im.stride[2]] = m * sinf(p);
    }
  }
}
int32_t KR_FN(kr_from_polar)(const krait_ctx *ctx, const void *args) {
  const kr_from_polar_args *a = args;
  kr_parallel(ctx, a->I * a->J, 1 + 512 / (a->K + 1), from_polar_rows, (void *)args);
  return KRAIT_OK;
}

static void from_polar_rows_back(void *user, int64_t begin, int64_t end, int worker) {
  const kr_from_polar_bwd_args *a = user;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t i = row / a->J, j = row % a->J;
    const float *mag = in_row(&a->mag, i, j), *pha = in_row(&a->pha, i, j), *dre = in_row(&a->dre, i, j),
                *dim = in_row(&a->dim, i, j);
    float *dmag = out_row(&a->dmag, i, j), *dpha = out_row(&a->dpha, i, j);
    for (int64_t k = 0; k < a->K; k++) {
      const float m = mag[k * a->mag.stride[2]], p = pha[k * a->pha.stride[2]], c = cosf(p), s = sinf(p);
      const float x = dre ? dre[k * a->dre.stride[2]] : 0, y = dim ? dim[k * a->dim.stride[2]] : 0;
      if (dmag) dmag[k * a->dmag.stride[2]] = a->power * power_of(m, a->power - 1) * (x * c + y * s);
      if (dpha) dpha[k * a->dpha.stride[2]] = power_of(m, a->power) * (y * c - x * s);
    }
  }
}
int32_t KR_FN(kr_from_polar_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_from_polar_bwd_args *a = args;
  kr_parallel(ctx, a->I * a->J, 1 + 512 / (a->K + 1), from_polar_rows_back, (void *)args);
  return KRAIT_OK;
}

/* ---- losses ---- */

static float spectra_simd_difference(uint32_t flags, float x, float y) {
  const float d = x - y;
  return flags & KRAIT_LOSS_ANGLE ? d - 6.2831853f * rintf(d / 6.2831853f) : d;
}

static void sum_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const kr_loss_args *a = user;
  const int64_t rows = a->I * a->J * a->K;
  double *sums = a->call.scratch;
  (void)worker;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    double sum = 0;
    for (int64_t row = chunk * rows / KR_LOSS_CHUNKS; row < (chunk + 1) * rows / KR_LOSS_CHUNKS; row++) {
      const int64_t k = row % a->K, j = row / a->K % a->J, i = row / a->K / a->J;
      const float *x = (const float *)a->x.data + kr_at4(&a->x, i, j, k, 0),
                  *y = kr_has(&a->y) ? (const float *)a->y.data + kr_at4(&a->y, i, j, k, 0) : NULL;
      for (int64_t n = 0; n < a->N; n++) {
        const double d =
            (double)spectra_simd_difference(a->call.flags, x[n * a->x.stride[3]], y ? y[n * a->y.stride[3]] : 0);
        sum += a->call.flags & KRAIT_LOSS_ANGLE ? fabs(d) : d * d;
      }
    }
    sums[chunk] = sum;
  }
}

int32_t KR_FN(kr_loss)(const krait_ctx *ctx, const void *args) {
  const kr_loss_args *a = args;
  const double *sums = a->call.scratch;
  double sum = 0;
  kr_parallel(ctx, KR_LOSS_CHUNKS, 4, sum_chunks, (void *)args);
  for (int chunk = 0; chunk < KR_LOSS_CHUNKS; chunk++) sum += sums[chunk];
  *(float *)a->out.data = (float)(sum * (double)a->scale);
  return KRAIT_OK;
}

static void loss_rows_back(void *user, int64_t begin, int64_t end, int worker) {
  const kr_loss_bwd_args *a = user;
  const float scale = a->scale * *(const float *)a->dout.data;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t k = row % a->K, j = row / a->K % a->J, i = row / a->K / a->J;
    const float *x = (const float *)a->x.data + kr_at4(&a->x, i, j, k, 0),
                *y = kr_has(&a->y) ? (const float *)a->y.data + kr_at4(&a->y, i, j, k, 0) : NULL;
    for (int64_t n = 0; n < a->N; n++) {
      const float d = spectra_simd_difference(a->call.flags, x[n * a->x.stride[3]], y ? y[n * a->y.stride[3]] : 0);
      const float slope = a->call.flags & KRAIT_LOSS_ANGLE ? (float)((d > 0) - (d < 0)) * scale : 2 * scale * d;
      if (kr_has(&a->dx)) ((float *)a->dx.data)[kr_at4(&a->dx, i, j, k, n)] = slope;
      if (kr_has(&a->dy)) ((float *)a->dy.data)[kr_at4(&a->dy, i, j, k, n)] = -slope;
    }
  }
}

int32_t KR_FN(kr_loss_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_loss_bwd_args *a = args;
  kr_parallel(ctx, a->I * a->J * a->K, 1 + 4096 / (a->N + 1), loss_rows_back, (void *)args);
  return KRAIT_OK;
}

/* ---- products with sums in double: four rows at a time, streaming the matrix row by row ---- */

enum { TRANSFORM_ROWS = 4, TRANSFORM_COLUMNS = 64 };

static void transform_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_transform_args *a = user;
  const float *matrix = a->call.scratch; /* [K][N], row-major */
  (void)worker;
  for (int64_t r = begin * TRANSFORM_ROWS; r < end * TRANSFORM_ROWS && r < a->R; r += TRANSFORM_ROWS) {
    const int n_rows = (int)(a->R - r < TRANSFORM_ROWS ? a->R - r : TRANSFORM_ROWS);
    for (int64_t first = 0; first < a->N; first += TRANSFORM_COLUMNS) {
      const int64_t n = a->N - first < TRANSFORM_COLUMNS ? a->N - first : TRANSFORM_COLUMNS;
      double sum[TRANSFORM_ROWS][TRANSFORM_COLUMNS] = {{0}};
      for (int64_t k = 0; k < a->K; k++) {
        const float *row = matrix + k * a->N + first;
        for (int i = 0; i < n_rows; i++) {
          const double x = (double)((const float *)a->x.data)[kr_at2(&a->x, r + i, k)];
          for (int64_t j = 0; j < n; j++) sum[i][j] += x * (double)row[j];
        }
      }
      for (int i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < n; j++) ((float *)a->out.data)[kr_at2(&a->out, r + i, first + j)] = (float)sum[i][j];
    }
  }
}

int32_t KR_FN(kr_transform)(const krait_ctx *ctx, const void *args) {
  const kr_transform_args *a = args;
  float *matrix = a->call.scratch;
  for (int64_t k = 0; k < a->K; k++)
    for (int64_t n = 0; n < a->N; n++) matrix[k * a->N + n] = ((const float *)a->matrix.data)[kr_at2(&a->matrix, k, n)];
  kr_parallel(ctx, (a->R + TRANSFORM_ROWS - 1) / TRANSFORM_ROWS, 1 + 65536 / (a->K * a->N), transform_rows,
              (void *)args);
  return KRAIT_OK;
}
