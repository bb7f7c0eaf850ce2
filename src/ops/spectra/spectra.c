/* spectra.c: costs, rows and random cases of spectra in polar form, losses and spectral norm; spectra_ref.c has the
 * equations. Spectral norm is always small: its reference is its CPU implementation. */
#include "check.h"
#include "op_list.h"
#include "spectra/spectra_impls.h"
#include "view.h"

static void count_polar(const void *args, kr_cost *cost) {
  const kr_to_polar_args *a = args;
  const double n = (double)a->I * (double)a->J * (double)a->K;
  *cost = (kr_cost){.flops = n * 20, .bytes = n * 16};
}
static void count_polar_bwd(const void *args, kr_cost *cost) {
  const kr_to_polar_bwd_args *a = args;
  const double n = (double)a->I * (double)a->J * (double)a->K;
  *cost = (kr_cost){.flops = n * 40, .bytes = n * 24};
}
static void count_loss(const void *args, kr_cost *cost) {
  const kr_loss_args *a = args;
  const double n = (double)a->I * (double)a->J * (double)a->K * (double)a->N;
  *cost = (kr_cost){.flops = n * 3, .bytes = n * 8};
}
static void count_loss_bwd(const void *args, kr_cost *cost) {
  const kr_loss_bwd_args *a = args;
  const double n = (double)a->I * (double)a->J * (double)a->K * (double)a->N;
  *cost = (kr_cost){.flops = n * 3, .bytes = n * 12};
}
static void count_spectral_norm(const void *args, kr_cost *cost) {
  const kr_spectral_norm_args *a = args;
  const double n = (double)a->O * (double)a->K;
  *cost = (kr_cost){.flops = n * 5, .bytes = n * 8};
}
static void count_spectral_norm_bwd(const void *args, kr_cost *cost) {
  const kr_spectral_norm_bwd_args *a = args;
  const double n = (double)a->O * (double)a->K;
  *cost = (kr_cost){.flops = n * 5, .bytes = n * 12};
}

uint64_t kr_loss_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return KR_LOSS_CHUNKS * sizeof(double);
}

static const kr_impl to_polar_impls[] = {
    KR_CUDA_IMPLS(to_polar)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_to_polar_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_to_polar_ref, NULL},
};
static const kr_impl to_polar_bwd_impls[] = {
    KR_CUDA_IMPLS(to_polar_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_to_polar_bwd_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_to_polar_bwd_ref, NULL},
};
static const kr_impl from_polar_impls[] = {
    KR_CUDA_IMPLS(from_polar)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_from_polar_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_from_polar_ref, NULL},
};
static const kr_impl from_polar_bwd_impls[] = {
    KR_CUDA_IMPLS(from_polar_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_from_polar_bwd_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_from_polar_bwd_ref, NULL},
};
static const kr_impl loss_impls[] = {
    KR_CUDA_IMPLS(loss)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_loss_##isa, kr_loss_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_loss_ref, NULL},
};
static const kr_impl loss_bwd_impls[] = {
    KR_CUDA_IMPLS(loss_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_loss_bwd_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_loss_bwd_ref, NULL},
};
static uint64_t transform_scratch(const krait_ctx *ctx, const void *args) {
  const kr_transform_args *a = args;
  (void)ctx;
  return (uint64_t)(a->K * a->N) * sizeof(float);
}
static void count_transform(const void *args, kr_cost *cost) {
  const kr_transform_args *a = args;
  *cost = (kr_cost){.flops = 2 * (double)a->R * (double)a->K * (double)a->N,
                    .bytes = 4 * ((double)a->R * (double)(a->K + a->N) + (double)a->K * (double)a->N)};
}
static const kr_impl transform_impls[] = {
    KR_CUDA_IMPLS(transform)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_transform_##isa, transform_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_transform_ref, NULL},
};
static const kr_impl spectral_norm_impls[] = {
    KR_CUDA_IMPLS(spectral_norm)
    {"ref", KRAIT_CAP_CPU, NULL, kr_spectral_norm_ref, kr_spectral_norm_scratch},
};
static const kr_impl spectral_norm_bwd_impls[] = {
    KR_CUDA_IMPLS(spectral_norm_bwd)
    {"ref", KRAIT_CAP_CPU, NULL, kr_spectral_norm_bwd_ref, NULL},
};

static void draw_float(kr_case *c, float *field, double low, double high) {
  *field = kr_case_chance(c, 0.5) ? (float)kr_case_uniform(c, low, high) : 1;
}

int32_t kr_to_polar_case(kr_case *c, int64_t index) {
  kr_to_polar_args *a = (kr_to_polar_args *)c->args; /* the gradient's args start alike */
  c->contiguous = index % 2;
  a->I = kr_case_int(c, 1, 3), a->J = kr_case_int(c, 1, 9), a->K = kr_case_edge(c, c->is_exact ? 5 : 130) + 1;
  a->eps = 1e-3f, a->re_add = 1e-3f, a->im_add = 1e-5f;
  draw_float(c, &a->power, 0.2, 2);
  return KRAIT_OK;
}
int32_t kr_from_polar_case(kr_case *c, int64_t index) {
  kr_from_polar_args *a = (kr_from_polar_args *)c->args;
  c->contiguous = index % 2;
  a->I = kr_case_int(c, 1, 3), a->J = kr_case_int(c, 1, 9), a->K = kr_case_edge(c, c->is_exact ? 5 : 130) + 1;
  draw_float(c, &a->power, 0.2, 3.5);
  return KRAIT_OK;
}
int32_t kr_loss_case(kr_case *c, int64_t index) {
  kr_loss_args *a = (kr_loss_args *)c->args;
  c->contiguous = index % 2;
  a->I = kr_case_int(c, 1, 3), a->J = kr_case_int(c, 1, 3), a->K = kr_case_int(c, 1, 9),
  a->N = kr_case_edge(c, c->is_exact ? 3 : 130) + 1;
  draw_float(c, &a->scale, 0.01, 2);
  if (c->is_exact && a->call.flags & KRAIT_LOSS_ANGLE) { /* keeps finite differences off the kinks: 0.2 < x - y < 2.2 */
    kr_case_fill_uniform(c, kr_case_give(c, "x"), 0.2, 1.2);
    kr_case_fill_uniform(c, kr_case_give(c, "y"), -1, 0);
  }
  return KRAIT_OK;
}
int32_t kr_spectral_norm_case(kr_case *c, int64_t index) {
  c->contiguous = index % 2;
  *kr_case_size(c, "O") = kr_case_edge(c, 40) + 1;
  *kr_case_size(c, "K") = kr_case_edge(c, 70) + 1;
  return KRAIT_OK;
}
int32_t kr_transform_case(kr_case *c, int64_t index) {
  c->contiguous = index % 2;
  *kr_case_size(c, "R") = kr_case_int(c, 1, 20);
  *kr_case_size(c, "K") = kr_case_edge(c, 130) + 1;
  *kr_case_size(c, "N") = kr_case_edge(c, 130) + 1;
  return KRAIT_OK;
}
int32_t kr_to_polar_bwd_case(kr_case *c, int64_t index) { return kr_to_polar_case(c, index); }
int32_t kr_from_polar_bwd_case(kr_case *c, int64_t index) { return kr_from_polar_case(c, index); }
int32_t kr_loss_bwd_case(kr_case *c, int64_t index) { return kr_loss_case(c, index); }
int32_t kr_spectral_norm_bwd_case(kr_case *c, int64_t index) { return kr_spectral_norm_case(c, index); }

KR_OP_DEFINE(to_polar, to_polar_impls, NULL, count_polar, kr_to_polar_case, 100)
KR_OP_DEFINE(to_polar_bwd, to_polar_bwd_impls, NULL, count_polar_bwd, kr_to_polar_bwd_case, 100)
KR_OP_DEFINE(from_polar, from_polar_impls, NULL, count_polar, kr_from_polar_case, 100)
KR_OP_DEFINE(from_polar_bwd, from_polar_bwd_impls, NULL, count_polar_bwd, kr_from_polar_bwd_case, 100)
KR_OP_DEFINE(loss, loss_impls, NULL, count_loss, kr_loss_case, 200)
KR_OP_DEFINE(loss_bwd, loss_bwd_impls, NULL, count_loss_bwd, kr_loss_bwd_case, 200)
KR_OP_DEFINE(transform, transform_impls, NULL, count_transform, kr_transform_case, 100)
KR_OP_DEFINE(spectral_norm, spectral_norm_impls, NULL, count_spectral_norm, kr_spectral_norm_case, 50)
KR_OP_DEFINE(spectral_norm_bwd, spectral_norm_bwd_impls, NULL, count_spectral_norm_bwd, kr_spectral_norm_bwd_case, 50)
