/* instance_norm.c: costs, rows and random cases of instance norm (with PReLU) and of pooling over the middle dimension
 * of (B,S,C). The equations are in instance_norm_ref.c. */
#include <math.h>

#include "check.h"
#include "instance_norm/instance_norm_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static double elements(int64_t B, int64_t S, int64_t C) { return (double)B * (double)S * (double)C; }

static void count_instance_norm(const void *args, kr_cost *cost) {
  const kr_instance_norm_args *a = args;
  *cost = (kr_cost){.flops = 8 * elements(a->B, a->S, a->C),
                    .bytes = 2 * (double)krait_dtype_bytes(a->x.dtype) * elements(a->B, a->S, a->C)};
}
static void count_instance_norm_bwd(const void *args, kr_cost *cost) {
  const kr_instance_norm_bwd_args *a = args;
  *cost = (kr_cost){.flops = 20 * elements(a->B, a->S, a->C),
                    .bytes = 3 * (double)krait_dtype_bytes(a->x.dtype) * elements(a->B, a->S, a->C)};
}
static void count_pool(const void *args, kr_cost *cost) {
  const kr_pool_args *a = args;
  *cost = (kr_cost){.flops = elements(a->B, a->S, a->C),
                    .bytes = (double)krait_dtype_bytes(a->x.dtype) * elements(a->B, a->S, a->C)};
}
static void count_pool_bwd(const void *args, kr_cost *cost) {
  const kr_pool_bwd_args *a = args;
  *cost = (kr_cost){.flops = elements(a->B, a->S, a->C),
                    .bytes = 2 * (double)krait_dtype_bytes(a->x.dtype) * elements(a->B, a->S, a->C)};
}

static const char *const gaps = "channels are not contiguous", *const halves = "16-bit tensors";
static const char *refuse_inorm_norm(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[2] != 1 || a->out.stride[2] != 1 ? gaps : NULL;
}
static const char *refuse_norm_bwd(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[2] != 1 || a->dout.stride[2] != 1 || (kr_has(&a->dx) && a->dx.stride[2] != 1) ? gaps : NULL;
}
static const char *refuse_pool(const krait_ctx *ctx, const void *args) {
  const kr_pool_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[2] != 1 || a->out.stride[1] != 1 ? gaps : NULL;
}
static const char *refuse_pool_bwd(const krait_ctx *ctx, const void *args) {
  const kr_pool_bwd_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[2] != 1 || a->dout.stride[1] != 1 || (kr_has(&a->dx) && a->dx.stride[2] != 1) ? gaps : NULL;
}

static uint64_t instance_norm_scratch(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  (void)ctx;
  return (uint64_t)(a->B * (2 * kr_norm_chunks(a->S, a->C) + 3) * a->C) * sizeof(float);
}
static uint64_t bwd_scratch(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  (void)ctx;
  return (uint64_t)(3 * a->B * a->C) * sizeof(float);
}

static const kr_impl norm_impls[] = {
    KR_CUDA_IMPLS(instance_norm)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_inorm_norm, kr_instance_norm_##isa, instance_norm_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_instance_norm_ref, NULL},
};
static const kr_impl norm_bwd_impls[] = {
    KR_CUDA_IMPLS(instance_norm_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_norm_bwd, kr_instance_norm_bwd_##isa, bwd_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_instance_norm_bwd_ref, NULL},
};
static const kr_impl pool_impls[] = {
    KR_CUDA_IMPLS(pool)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_pool, kr_pool_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_pool_ref, NULL},
};
static const kr_impl pool_bwd_impls[] = {
    KR_CUDA_IMPLS(pool_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_pool_bwd, kr_pool_bwd_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_pool_bwd_ref, NULL},
};

int32_t kr_pool_case(kr_case *c, int64_t index) {
  static const uint32_t kinds[] = {0, KRAIT_POOL_SUM, KRAIT_POOL_MAX};
  c->contiguous = index % 2;
  ((kr_call *)c->args)->flags = kinds[kr_case_int(c, 0, 2)];
  *kr_case_size(c, "B") = kr_case_int(c, 1, 3);
  *kr_case_size(c, "S") = kr_case_edge(c, index % 8 == 0 ? 1030 : 70) + 1;
  *kr_case_size(c, "C") = kr_case_edge(c, 130) + 1;
  return KRAIT_OK;
}

/* How near an activation comes to PReLU's corner, where rounding decides which slope a gradient has. */
static double distance_from_corner(const kr_view *x, const int64_t sizes[3], const kr_view *weights,
                                   const kr_view *biases, double eps) {
  double least = INFINITY;
  for (int64_t b = 0; b < sizes[0]; b++)
    for (int64_t c = 0; c < sizes[2]; c++) {
      const double n = (double)sizes[1], weight = kr_has(weights) ? kr_get(weights, kr_at1(weights, c)) : 1,
                   bias = kr_has(biases) ? kr_get(biases, kr_at1(biases, c)) : 0;
      double sum = 0, squares = 0;
      for (int64_t s = 0; s < sizes[1]; s++) sum += kr_get(x, kr_at3(x, b, s, c));
      for (int64_t s = 0; s < sizes[1]; s++) squares += pow(kr_get(x, kr_at3(x, b, s, c)) - sum / n, 2);
      const double scale = weight / sqrt(squares / n + eps);
      for (int64_t s = 0; s < sizes[1]; s++)
        least = fmin(least, fabs((kr_get(x, kr_at3(x, b, s, c)) - sum / n) * scale + bias));
    }
  return least;
}

static void choose_inorm_sizes(kr_case *c, int64_t index) {
  c->contiguous = index % 2;
  *kr_case_size(c, "B") = kr_case_int(c, 1, 3);
  *kr_case_size(c, "S") = c->is_exact ? kr_case_int(c, 3, 6) : kr_case_edge(c, index % 8 == 0 ? 1030 : 70) + 8;
  *kr_case_size(c, "C") = c->is_exact ? kr_case_int(c, 1, 3) : kr_case_edge(c, 130) + 1;
}

/* Finite differences move an activation by some hundredths, and have no slope where that crosses the corner. */
int32_t kr_instance_norm_case(kr_case *c, int64_t index) {
  const kr_instance_norm_args *a = (const kr_instance_norm_args *)c->args;
  choose_inorm_sizes(c, index);
  if (!c->is_exact) return KRAIT_OK;
  kr_case_give_rest(c);
  for (int i = 0; i < 100 && kr_has(&a->slope) &&
                  distance_from_corner(&a->x, (int64_t[]){a->B, a->S, a->C}, &a->weight, &a->bias, a->eps) < 0.03;
       i++) {
    kr_case_fill_normal(c, &a->x, 0, 1);
    if (kr_has(&a->weight)) kr_case_fill_normal(c, &a->weight, 1, 0.5);
    if (kr_has(&a->bias)) kr_case_fill_normal(c, &a->bias, 0, 1);
  }
  return KRAIT_OK;
}

int32_t kr_instance_norm_bwd_case(kr_case *c, int64_t index) {
  const kr_instance_norm_bwd_args *a = (const kr_instance_norm_bwd_args *)c->args;
  choose_inorm_sizes(c, index);
  kr_case_give_rest(c);
  for (int i = 0; i < 20 && kr_has(&a->slope) && !c->is_unfilled &&
                  distance_from_corner(&a->x, (int64_t[]){a->B, a->S, a->C}, &a->weight, &a->bias, a->eps) < 2e-6;
       i++)
    kr_case_fill_normal(c, &a->x, 0, 1);
  return KRAIT_OK;
}
int32_t kr_pool_bwd_case(kr_case *c, int64_t index) { return kr_pool_case(c, index); }

KR_OP_DEFINE(instance_norm, norm_impls, NULL, count_instance_norm, kr_instance_norm_case, 200)
KR_OP_DEFINE(instance_norm_bwd, norm_bwd_impls, NULL, count_instance_norm_bwd, kr_instance_norm_bwd_case, 200)
KR_OP_DEFINE(pool, pool_impls, NULL, count_pool, kr_pool_case, 200)
KR_OP_DEFINE(pool_bwd, pool_bwd_impls, NULL, count_pool_bwd, kr_pool_bwd_case, 200)
