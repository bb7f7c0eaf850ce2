/* instance_norm_simd.c: instance norm and pooling over (B,S,C) with channels as lanes. The norm works in chunks of
 * positions that stay in cache; a task of the others is a vector of channels of one b, summed in blocks of 64 positions
 * to keep float32 sums short. */
#include "instance_norm/instance_norm_impls.h"
#include "instance_norm/moments.h"
#include "op_list.h"
#include "vec.h"
#include "view.h"

enum { SUM_ROWS = 64 };

static inline kr_v load_inorm_some(const float *p, int n) { return n == KR_VL ? kr_v_load(p) : kr_v_loadn(p, n); }
static inline void store_inorm_some(float *p, kr_v v, int n) {
  if (n == KR_VL) kr_v_store(p, v);
  else kr_v_storen(p, v, n);
}
static float *inorm_at(const kr_view *v, int64_t b, int64_t s, int64_t c) {
  return (float *)v->data + kr_at3(v, b, s, c);
}
static int inorm_lanes_of(int64_t C, int64_t c) { return (int)(C - c < KR_VL ? C - c : KR_VL); }

static kr_v inorm_simd_parameter(const kr_view *v, int64_t c, int n, float other) {
  float lanes[KR_VL];
  for (int k = 0; k < KR_VL; k++) lanes[k] = k < n && kr_has(v) ? ((const float *)v->data)[kr_at1(v, c + k)] : other;
  return kr_v_load(lanes);
}

static void measure_inorm_simd(const float *x, int64_t step, int64_t S, int n, float eps, kr_v *mean, kr_v *scale) {
  const kr_v inverse = kr_v_set1(1.0f / (float)S);
  kr_v sum = kr_v_zero(), square = kr_v_zero();
  for (int64_t s = 0; s < S; s += SUM_ROWS) {
    kr_v part = kr_v_zero();
    for (int64_t i = s; i < s + SUM_ROWS && i < S; i++) part = kr_v_add(part, load_inorm_some(x + i * step, n));
    sum = kr_v_add(sum, part);
  }
  *mean = kr_v_mul(sum, inverse);
  for (int64_t s = 0; s < S; s += SUM_ROWS) {
    kr_v part = kr_v_zero();
    for (int64_t i = s; i < s + SUM_ROWS && i < S; i++) {
      const kr_v d = kr_v_sub(load_inorm_some(x + i * step, n), *mean);
      part = kr_v_fma(d, d, part);
    }
    square = kr_v_add(square, part);
  }
  *scale = kr_v_div(kr_v_set1(1), kr_v_sqrt(kr_v_fma(square, inverse, kr_v_set1(eps))));
}

static int64_t vectors(int64_t C) { return (C + KR_VL - 1) / KR_VL; }

/* ---- the norm: moments of chunks, then of each b, then the normalisation ---- */

typedef struct norm_run {
  const kr_instance_norm_args *a;
  int64_t size, n_chunks; /* positions per chunk; chunks per b */
  float *mean, *m2;       /* (B, n_chunks, C) */
  float *affine;          /* (B, 3, C): scale, shift, slope */
} norm_run;

static int64_t inorm_length_of(const norm_run *r, int64_t chunk) {
  const int64_t left = r->a->S - chunk * r->size;
  return left < r->size ? left : r->size;
}

static void measure_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const norm_run *r = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / r->n_chunks, chunk = i % r->n_chunks;
    kr_moments(inorm_at(&r->a->x, b, chunk * r->size, 0), r->a->x.stride[1], inorm_length_of(r, chunk), r->a->C,
               r->mean + i * r->a->C, r->m2 + i * r->a->C);
  }
}

static kr_affine inorm_affine_of(const norm_run *r, int64_t b) {
  float *from = r->affine + 3 * b * r->a->C;
  return (kr_affine){from, from + r->a->C, from + 2 * r->a->C};
}

static float inorm_value(const kr_view *v, int64_t c, float other) {
  return kr_has(v) ? ((const float *)v->data)[kr_at1(v, c)] : other;
}

static void merge_channels(const norm_run *r, int64_t b) {
  const kr_instance_norm_args *a = r->a;
  const kr_affine to = inorm_affine_of(r, b);
  for (int64_t c = 0; c < a->C; c++) {
    double mean, variance;
    kr_moments_merge(r->mean + b * r->n_chunks * a->C, r->m2 + b * r->n_chunks * a->C, r->size, a->S, a->C, c, &mean,
                     &variance);
    kr_affine_set(&to, c, (double)inorm_value(&a->weight, c, 1), (double)inorm_value(&a->bias, c, 0), mean, variance,
                  a->eps);
    to.slope[c] = inorm_value(&a->slope, c, 1);
  }
}

static void norm_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const norm_run *r = user;
  const kr_instance_norm_args *a = r->a;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / r->n_chunks, chunk = i % r->n_chunks, s = chunk * r->size;
    const kr_affine by = inorm_affine_of(r, b);
    kr_affine_rows(inorm_at(&a->x, b, s, 0), a->x.stride[1], inorm_length_of(r, chunk), a->C, &by,
                   inorm_at(&a->out, b, s, 0), a->out.stride[1]);
  }
}

int32_t KR_FN(kr_instance_norm)(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  norm_run r = {.a = a, .size = kr_norm_chunk(a->C), .n_chunks = kr_norm_chunks(a->S, a->C), .mean = a->call.scratch};
  r.m2 = r.mean + a->B * r.n_chunks * a->C, r.affine = r.m2 + a->B * r.n_chunks * a->C;
  kr_parallel(ctx, a->B * r.n_chunks, 1, measure_chunks, &r);
  for (int64_t b = 0; b < a->B; b++) merge_channels(&r, b);
  kr_parallel(ctx, a->B * r.n_chunks, 1, norm_chunks, &r);
  return KRAIT_OK;
}

/* ---- its gradient: sums[3][B][C] of dweight, dbias, dslope, then dx ---- */

typedef struct back_lanes {
  kr_v mean, scale, weight, bias, slope;
} back_lanes;

static inline kr_v through(const back_lanes *l, kr_v x, kr_v d, kr_v *xhat, kr_v *below) {
  *xhat = kr_v_mul(kr_v_sub(x, l->mean), l->scale);
  const kr_v v = kr_v_fma(*xhat, l->weight, l->bias);
  const kr_vm above = kr_v_gt(v, kr_v_zero());
  *below = kr_v_select(above, kr_v_zero(), kr_v_mul(d, v));
  return kr_v_select(above, d, kr_v_mul(d, l->slope));
}

static void channels_back(void *user, int64_t begin, int64_t end, int worker) {
  const kr_instance_norm_bwd_args *a = user;
  float *const all = a->call.scratch;
  (void)worker;
  for (int64_t task = begin; task < end; task++) {
    const int64_t b = task / vectors(a->C), c = task % vectors(a->C) * KR_VL;
    const int n = inorm_lanes_of(a->C, c);
    back_lanes l = {.weight = inorm_simd_parameter(&a->weight, c, n, 1),
                    .bias = inorm_simd_parameter(&a->bias, c, n, 0),
                    .slope = inorm_simd_parameter(&a->slope, c, n, 1)};
    kr_v sum[3] = {kr_v_zero(), kr_v_zero(), kr_v_zero()}, xhat, below;
    measure_inorm_simd(inorm_at(&a->x, b, 0, c), a->x.stride[1], a->S, n, a->eps, &l.mean, &l.scale);
    for (int64_t s = 0; s < a->S; s += SUM_ROWS) {
      kr_v part[3] = {kr_v_zero(), kr_v_zero(), kr_v_zero()};
      for (int64_t i = s; i < s + SUM_ROWS && i < a->S; i++) {
        const kr_v dz = through(&l, load_inorm_some(inorm_at(&a->x, b, i, c), n),
                                load_inorm_some(inorm_at(&a->dout, b, i, c), n), &xhat, &below);
        part[0] = kr_v_fma(dz, xhat, part[0]), part[1] = kr_v_add(part[1], dz), part[2] = kr_v_add(part[2], below);
      }
      for (int k = 0; k < 3; k++) sum[k] = kr_v_add(sum[k], part[k]);
    }
    for (int k = 0; k < 3; k++) store_inorm_some(all + (k * a->B + b) * a->C + c, sum[k], n);
    if (!kr_has(&a->dx)) continue;
    const kr_v inverse = kr_v_set1(1.0f / (float)a->S), along = kr_v_mul(sum[0], inverse),
               level = kr_v_mul(sum[1], inverse), factor = kr_v_mul(l.scale, l.weight);
    for (int64_t s = 0; s < a->S; s++) {
      const kr_v dz = through(&l, load_inorm_some(inorm_at(&a->x, b, s, c), n),
                              load_inorm_some(inorm_at(&a->dout, b, s, c), n), &xhat, &below);
      store_inorm_some(inorm_at(&a->dx, b, s, c), kr_v_mul(factor, kr_v_fnma(xhat, along, kr_v_sub(dz, level))), n);
    }
  }
}

int32_t KR_FN(kr_instance_norm_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  const kr_view *const outputs[] = {&a->dweight, &a->dbias, &a->dslope};
  const float *all = a->call.scratch;
  kr_parallel(ctx, a->B * vectors(a->C), 1 + 4096 / (a->S * KR_VL), channels_back, (void *)args);
  for (int k = 0; k < 3; k++)
    for (int64_t c = 0; c < a->C && kr_has(outputs[k]); c++) {
      float sum = 0;
      for (int64_t b = 0; b < a->B; b++) sum += all[(k * a->B + b) * a->C + c];
      ((float *)outputs[k]->data)[kr_at1(outputs[k], c)] = sum;
    }
  return KRAIT_OK;
}

/* ---- pooling ---- */

static void pool_channels(void *user, int64_t begin, int64_t end, int worker) {
  const kr_pool_args *a = user;
  const int largest = (a->call.flags & KRAIT_POOL_MAX) != 0;
  (void)worker;
  for (int64_t task = begin; task < end; task++) {
    const int64_t b = task / vectors(a->C), c = task % vectors(a->C) * KR_VL, step = a->x.stride[1];
    const int n = inorm_lanes_of(a->C, c);
    const float *x = inorm_at(&a->x, b, 0, c);
    kr_v sum = largest ? load_inorm_some(x, n) : kr_v_zero();
    for (int64_t s = 0; s < a->S; s += SUM_ROWS) {
      kr_v part = kr_v_zero();
      for (int64_t i = s; i < s + SUM_ROWS && i < a->S; i++) {
        const kr_v v = load_inorm_some(x + i * step, n);
        if (largest) sum = kr_v_select(kr_v_gt(v, sum), v, sum);
        else part = kr_v_add(part, v);
      }
      if (!largest) sum = kr_v_add(sum, part);
    }
    if (!(a->call.flags & (KRAIT_POOL_SUM | KRAIT_POOL_MAX))) sum = kr_v_mul(sum, kr_v_set1(1.0f / (float)a->S));
    store_inorm_some((float *)a->out.data + kr_at2(&a->out, b, c), sum, n);
  }
}

int32_t KR_FN(kr_pool)(const krait_ctx *ctx, const void *args) {
  const kr_pool_args *a = args;
  kr_parallel(ctx, a->B * vectors(a->C), 1 + 4096 / (a->S * KR_VL), pool_channels, (void *)args);
  return KRAIT_OK;
}

static void spread_largest(const kr_pool_bwd_args *a, int64_t b, int64_t c) {
  int64_t best = 0;
  for (int64_t s = 1; s < a->S; s++)
    if (*inorm_at(&a->x, b, s, c) > *inorm_at(&a->x, b, best, c)) best = s;
  for (int64_t s = 0; s < a->S; s++)
    *inorm_at(&a->dx, b, s, c) = s == best ? ((const float *)a->dout.data)[kr_at2(&a->dout, b, c)] : 0;
}

static void pool_channels_back(void *user, int64_t begin, int64_t end, int worker) {
  const kr_pool_bwd_args *a = user;
  (void)worker;
  for (int64_t task = begin; task < end; task++) {
    const int64_t b = task / vectors(a->C), c = task % vectors(a->C) * KR_VL;
    const int n = inorm_lanes_of(a->C, c);
    if (a->call.flags & KRAIT_POOL_MAX) {
      for (int k = 0; k < n; k++) spread_largest(a, b, c + k);
      continue;
    }
    const kr_v d = kr_v_mul(load_inorm_some((const float *)a->dout.data + kr_at2(&a->dout, b, c), n),
                            kr_v_set1(a->call.flags & KRAIT_POOL_SUM ? 1 : 1.0f / (float)a->S));
    for (int64_t s = 0; s < a->S; s++) store_inorm_some(inorm_at(&a->dx, b, s, c), d, n);
  }
}

int32_t KR_FN(kr_pool_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_pool_bwd_args *a = args;
  if (kr_has(&a->dx))
    kr_parallel(ctx, a->B * vectors(a->C), 1 + 4096 / (a->S * KR_VL), pool_channels_back, (void *)args);
  return KRAIT_OK;
}
