/* spectra_simd.c: spectra in polar form and losses, elementwise in float32, sums in double. */
#include <math.h>

#include "op_list.h"
#include "spectra/spectra_impls.h"
#include "vec_math.h"
#include "view.h"

static const float *in_row(const kr_view *v, int64_t i, int64_t j) {
  return kr_has(v) ? (const float *)v->data + kr_at3(v, i, j, 0) : NULL;
}
static float *out_row(const kr_view *v, int64_t i, int64_t j) {
  return kr_has(v) ? (float *)v->data + kr_at3(v, i, j, 0) : NULL;
}

static float power_of(float x, float power) { return power == 1 ? x : power == 0 ? 1 : powf(x, power); }

/* ---- to polar form: elements in order, whatever their strides, BLOCK at once ---- */

enum { BLOCK = 64 };

typedef struct polar_block {
  float q[BLOCK], x[BLOCK], y[BLOCK], mag[BLOCK], pha[BLOCK]; /* x, y: whose angle is wanted */
} polar_block;

/* q^power for normal q above 0. */
static kr_v power_of_each(kr_v q, float power) {
  kr_v exponent, f = kr_v_sub(kr_v_split(q, &exponent), kr_v_set1(1.0f)), square = kr_v_mul(f, f),
                 log = kr_v_fma(kr_v_mul(square, f), kr_log1p_series(f), kr_v_fnma(kr_v_set1(0.5f), square, f));
  return kr_v_exp2_any(kr_v_set1(power), kr_v_fma(log, kr_v_set1(1.44269504f), exponent));
}

/* An angle less than the one given, which is above - excess: near pi its rounding decides the sign of the sine. */
static kr_v supplement(float above, float excess, kr_v angle) {
  return kr_v_sub(kr_v_set1(above), kr_v_add(angle, kr_v_set1(excess)));
}

/* atan2(y, x) where x^2 + y^2 is a normal number: that of a ratio up to tan(pi/8), by symmetry about the axes and the
 * diagonals, and odd terms (Cephes). */
static kr_v angle_of(kr_v y, kr_v x) {
  const kr_v zero = kr_v_zero(), one = kr_v_set1(1.0f);
  const kr_v across = kr_v_abs(x), up = kr_v_abs(y), large = kr_v_max(across, up), small = kr_v_min(across, up);
  const kr_vm is_wide = kr_v_gt(small, kr_v_mul(large, kr_v_set1(0.41421356f)));
  const kr_v z = kr_v_div(kr_v_select(is_wide, kr_v_sub(small, large), small),
                          kr_v_select(is_wide, kr_v_add(small, large), large)),
             s = kr_v_mul(z, z);
  kr_v p = kr_v_fma(kr_v_set1(8.05374449538e-2f), s, kr_v_set1(-1.38776856032e-1f));
  p = kr_v_fma(p, s, kr_v_set1(1.99777106478e-1f));
  p = kr_v_fma(p, s, kr_v_set1(-3.33329491539e-1f));
  kr_v angle = kr_v_fma(kr_v_mul(z, s), p, z);
  angle = kr_v_select(is_wide, kr_v_add(angle, kr_v_set1(0.785398163f)), angle);
  angle = kr_v_select(kr_v_gt(up, across), supplement(1.57079637f, 4.37113883e-8f, angle), angle);
  angle = kr_v_select(kr_v_lt(x, zero), supplement(3.14159274f, 8.74227766e-8f, angle), angle);
  return kr_v_select(kr_v_lt(kr_v_div(one, y), zero), kr_v_neg(angle), angle); /* the sign also of zeros */
}

/* Whether all are far from what only libm's functions take: zeros, subnormals, infinities, NaN. */
static int is_plain(const polar_block *b, int n) {
  int plain = 1;
  for (int i = 0; i < n; i++) {
    const float size = b->x[i] * b->x[i] + b->y[i] * b->y[i];
    plain &= (b->q[i] > 1e-37f) & (b->q[i] < 1e37f) & (size > 1e-37f) & (size < 1e37f);
  }
  return plain;
}

static void turn_to_polar(const kr_to_polar_args *a, polar_block *b, int n) {
  if (!is_plain(b, n)) {
    for (int i = 0; i < n; i++)
      b->mag[i] = a->power == 1 ? sqrtf(b->q[i]) : powf(b->q[i], a->power / 2), b->pha[i] = atan2f(b->y[i], b->x[i]);
    return;
  }
  for (int i = n; i < BLOCK; i++) b->q[i] = b->x[i] = b->y[i] = 1;
  for (int i = 0; i < n && kr_has(&a->mag); i += KR_VL) {
    const kr_v q = kr_v_load(b->q + i);
    kr_v_store(b->mag + i, a->power == 1 ? kr_v_sqrt(q) : power_of_each(q, a->power / 2));
  }
  for (int i = 0; i < n && kr_has(&a->pha); i += KR_VL)
    kr_v_store(b->pha + i, angle_of(kr_v_load(b->y + i), kr_v_load(b->x + i)));
}

/* The place of the element after that at i, j, k. */
static void step_on(const kr_to_polar_args *a, int64_t *i, int64_t *j, int64_t *k) {
  if (++*k < a->K) return;
  *k = 0;
  if (++*j == a->J) *j = 0, ++*i;
}

static void to_polar_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const kr_to_polar_args *a = user;
  const int64_t n_all = a->I * a->J * a->K;
  polar_block b;
  (void)worker;
  for (int64_t at = begin * BLOCK; at < end * BLOCK && at < n_all; at += BLOCK) {
    const int n = (int)(n_all - at < BLOCK ? n_all - at : BLOCK);
    int64_t i = at / a->K / a->J, j = at / a->K % a->J, k = at % a->K, i0 = i, j0 = j, k0 = k;
    for (int e = 0; e < n; e++, step_on(a, &i, &j, &k)) {
      const float x = in_row(&a->re, i, j)[k * a->re.stride[2]], y = in_row(&a->im, i, j)[k * a->im.stride[2]];
      b.q[e] = x * x + y * y + a->eps, b.x[e] = x + a->re_add, b.y[e] = y + a->im_add;
    }
    turn_to_polar(a, &b, n);
    for (int e = 0; e < n; e++, step_on(a, &i0, &j0, &k0)) {
      if (kr_has(&a->mag)) out_row(&a->mag, i0, j0)[k0 * a->mag.stride[2]] = b.mag[e];
      if (kr_has(&a->pha)) out_row(&a->pha, i0, j0)[k0 * a->pha.stride[2]] = b.pha[e];
    }
  }
}
int32_t KR_FN(kr_to_polar)(const krait_ctx *ctx, const void *args) {
  const kr_to_polar_args *a = args;
  kr_parallel(ctx, (a->I * a->J * a->K + BLOCK - 1) / BLOCK, 8, to_polar_blocks, (void *)args);
  return KRAIT_OK;
}

/* ---- the other forms, element by element ---- */

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
