/* conv_norm_simd.c: a convolution along H with norm and PReLU, one position along W (a frame) at a time: each output's
 * taps are a window of the frame, so that a frame is one product, or for the transpose one per residue of the outputs
 * modulo S, over the zero-padded frame. Moments of frames are merged in order in double. */
#include <string.h>

#include "ctx.h"
#include "conv_norm/conv_norm_impls.h"
#include "gemm/gemm_kernel.h"
#include "instance_norm/moments.h"
#include "primeknet_ops.h"
#include "view.h"

enum { MOST_STEPS = 16 };

typedef struct conv {
  const kr_conv_norm_args *a;
  int64_t n_parts; /* products per frame: 1 or S */
  kr_panels parts[MOST_STEPS];
  float *matrix, *mean, *m2, *affine, *rows; /* (K C, N); (B W, N) twice; (B, 3, N); a frame buffer per thread */
} conv;

static int is_transposed_for_conv_norm(const kr_conv_norm_args *a) {
  return (a->call.flags & KR_CONV_NORM_TRANSPOSED) != 0;
}
/* Taps of product r. */
static int64_t conv_norm_taps_of(const kr_conv_norm_args *a, int64_t r) {
  return is_transposed_for_conv_norm(a) ? (a->K - r + a->S - 1) / a->S : a->K;
}
/* Zero padding on either side of a frame. */
static int64_t margin(const kr_conv_norm_args *a) {
  return is_transposed_for_conv_norm(a) ? conv_norm_taps_of(a, 0) - 1 : 0;
}
static int is_contiguous(const kr_conv_norm_args *a) {
  return !is_transposed_for_conv_norm(a) && a->x.stride[1] == a->C;
}
static int64_t conv_norm_row_floats(const kr_conv_norm_args *a) {
  return is_contiguous(a) ? 0 : ((a->H + 2 * margin(a)) * a->C + 63) / 64 * 64;
}

/* Memory of a call; base NULL: only counted. */
static int64_t lay_out_conv_norm(const krait_ctx *ctx, const kr_conv_norm_args *a, float *base, conv *k) {
  int64_t used = 0;
#define TAKE(n) (used += ((n) + 63) / 64 * 64, base ? base + used - ((n) + 63) / 64 * 64 : NULL)
  k->a = a, k->n_parts = is_transposed_for_conv_norm(a) ? a->S : 1;
  for (int64_t r = 0; r < k->n_parts; r++)
    k->parts[r].data =
        conv_norm_taps_of(a, r) > 0 ? TAKE(KR_FN(kr_panels_floats)(conv_norm_taps_of(a, r) * a->C, a->N)) : NULL;
  k->matrix = TAKE(a->K * a->C * a->N);
  k->mean = TAKE(a->B * a->W * a->N), k->m2 = TAKE(a->B * a->W * a->N), k->affine = TAKE(3 * a->B * a->N);
  k->rows = TAKE(krait_ctx_n_threads(ctx) * conv_norm_row_floats(a));
#undef TAKE
  return used;
}

uint64_t KR_FN(kr_conv_norm_scratch)(const krait_ctx *ctx, const void *args) {
  conv k;
  return (uint64_t)lay_out_conv_norm(ctx, args, NULL, &k) * sizeof(float);
}

/* Product r's taps in the order of the window's positions: for a transpose, the last tap first. */
static void pack_conv_norm(conv *k, int64_t r) {
  const kr_conv_norm_args *a = k->a;
  const int64_t n_taps = conv_norm_taps_of(a, r);
  if (n_taps <= 0) return;
  for (int64_t j = 0; j < n_taps; j++) {
    const int64_t tap = is_transposed_for_conv_norm(a) ? r + (n_taps - 1 - j) * a->S : j;
    for (int64_t c = 0; c < a->C; c++)
      for (int64_t n = 0; n < a->N; n++)
        k->matrix[(j * a->C + c) * a->N + n] = ((const float *)a->weight.data)[kr_at3(&a->weight, n, tap, c)];
  }
  KR_FN(kr_panels_pack)(&k->parts[r], k->parts[r].data, n_taps * a->C, a->N, k->matrix, a->N, 1, NULL);
}

/* The frame's positions, contiguous and zero-padded. */
static const float *conv_norm_frame_of(const conv *k, int64_t b, int64_t w, float *padded) {
  const kr_conv_norm_args *a = k->a;
  const float *x = (const float *)a->x.data + kr_at4(&a->x, b, 0, w, 0);
  const int64_t edge = margin(a) * a->C, inside = a->H * a->C;
  if (is_contiguous(a)) return x;
  memset(padded, 0, (size_t)edge * sizeof *padded),
      memset(padded + edge + inside, 0, (size_t)edge * sizeof *padded);
  for (int64_t h = 0; h < a->H; h++)
    memcpy(padded + edge + h * a->C, x + h * a->x.stride[1], (size_t)a->C * sizeof *padded);
  return padded + edge;
}

static void convolve_range(void *user, int64_t begin, int64_t end, int worker) {
  const conv *k = user;
  const kr_conv_norm_args *a = k->a;
  const int64_t C = a->C, next = a->out.stride[1];
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / a->W, w = i % a->W;
    const float *x = conv_norm_frame_of(k, b, w, k->rows + worker * conv_norm_row_floats(a));
    float *out = (float *)a->out.data + kr_at4(&a->out, b, 0, w, 0);
    for (int64_t r = 0; r < k->n_parts; r++) {
      const int64_t n_taps = conv_norm_taps_of(a, r),
                    n = is_transposed_for_conv_norm(a) ? (a->OH - r + a->S - 1) / a->S : a->OH;
      const kr_gemm_rows_call call = {.weights = &k->parts[r],
                                      .A = is_transposed_for_conv_norm(a) ? x - (n_taps - 1) * C : x,
                                      .lda = is_transposed_for_conv_norm(a) ? C : a->S * C,
                                      .M = n,
                                      .C = out + r * next,
                                      .ldc = k->n_parts * next,
                                      .n_store = a->N};
      if (n_taps > 0) KR_FN(kr_gemm_rows)(&call);
      for (int64_t o = 0; n_taps <= 0 && o < n; o++) /* outputs that no tap reaches */
        memset(out + (r + o * a->S) * next, 0, (size_t)a->N * sizeof *out);
    }
    kr_moments(out, next, a->OH, a->N, k->mean + i * a->N, k->m2 + i * a->N);
  }
}

static kr_affine conv_norm_affine_of(const conv *k, int64_t b) {
  float *from = k->affine + 3 * b * k->a->N;
  return (kr_affine){from, from + k->a->N, from + 2 * k->a->N};
}

static void norm_range(void *user, int64_t begin, int64_t end, int worker) {
  const conv *k = user;
  const kr_conv_norm_args *a = k->a;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const kr_affine by = conv_norm_affine_of(k, i / a->W);
    float *out = (float *)a->out.data + kr_at4(&a->out, i / a->W, 0, i % a->W, 0);
    kr_affine_rows(out, a->out.stride[1], a->OH, a->N, &by, out, a->out.stride[1]);
  }
}

static float conv_norm_value(const kr_view *v, int64_t n) { return ((const float *)v->data)[kr_at1(v, n)]; }

static void merge_conv_norm(const conv *k, int64_t b) {
  const kr_conv_norm_args *a = k->a;
  const kr_affine to = conv_norm_affine_of(k, b);
  const int64_t first = b * a->W * a->N;
  for (int64_t n = 0; n < a->N; n++) {
    double mean, variance;
    kr_moments_merge(k->mean + first, k->m2 + first, a->OH, a->OH * a->W, a->N, n, &mean, &variance);
    kr_affine_set(&to, n, (double)conv_norm_value(&a->norm_weight, n), (double)conv_norm_value(&a->norm_bias, n), mean,
                  variance, a->eps);
    to.slope[n] = conv_norm_value(&a->slope, n);
  }
}

int32_t KR_FN(kr_conv_norm)(const krait_ctx *ctx, const void *args) {
  const kr_conv_norm_args *a = args;
  conv k;
  lay_out_conv_norm(ctx, a, a->call.scratch, &k);
  for (int64_t r = 0; r < k.n_parts; r++) pack_conv_norm(&k, r);
  kr_parallel(ctx, a->B * a->W, 2, convolve_range, &k);
  for (int64_t b = 0; b < a->B; b++) merge_conv_norm(&k, b);
  kr_parallel(ctx, a->B * a->W, 4, norm_range, &k);
  return KRAIT_OK;
}
