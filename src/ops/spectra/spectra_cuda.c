/* spectra_cuda.c: plans and launches of spectra in polar form, losses, transforms and spectral norm on a GPU. */
#include "cuda_impl.h"
#include "op_list.h"
#include "spectra/spectra_params.h"
#include "view.h"

static const kr_kernel to_polar = {"spectra", "kr_to_polar"}, to_polar_back = {"spectra", "kr_to_polar_back"},
                       from_polar = {"spectra", "kr_from_polar"}, from_polar_back = {"spectra", "kr_from_polar_back"},
                       loss_parts = {"spectra", "kr_loss_parts"}, loss_sum = {"spectra", "kr_loss_sum"},
                       loss_back = {"spectra", "kr_loss_back"}, transform = {"spectra", "kr_transform"},
                       norm = {"spectra", "kr_spectral_norm"}, norm_back = {"spectra", "kr_spectral_norm_back"};
static const char *const too_many = "2^31 elements or more";

/* ---- polar form ---- */

static const char *refuse_polar(int64_t I, int64_t J, int64_t K) {
  return (double)I * (double)J * (double)K >= 2147483648.0 - KR_POLAR_THREADS ? too_many : NULL;
}

static int32_t launch_polar(const krait_ctx *ctx, uint64_t tier, const kr_kernel *kernel, const kr_call *call,
                            int64_t I, int64_t J, int64_t K, kr_polar_params *p) {
  p->n = (uint32_t)(I * J * K), p->K = kr_divisor_of(K), p->J = kr_divisor_of(J);
  return kr_cuda_launch(
      ctx->cuda, tier, kernel,
      &(kr_grid){
          .x = (p->n + KR_POLAR_THREADS - 1) / KR_POLAR_THREADS, .block = KR_POLAR_THREADS, .stream = call->stream},
      p, sizeof *p);
}

static int32_t run_to_polar(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_to_polar_args *a = args;
  return launch_polar(ctx, tier, &to_polar, &a->call, a->I, a->J, a->K,
                      &(kr_polar_params){.a = a->re,
                                       .b = a->im,
                                       .c = a->mag,
                                       .d = a->pha,
                                       .eps = a->eps,
                                       .power = a->power,
                                       .re_add = a->re_add,
                                       .im_add = a->im_add});
}
static int32_t run_to_polar_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_to_polar_bwd_args *a = args;
  return launch_polar(ctx, tier, &to_polar_back, &a->call, a->I, a->J, a->K,
                      &(kr_polar_params){.a = a->re,
                                       .b = a->im,
                                       .da = a->dmag,
                                       .db = a->dpha,
                                       .c = a->dre,
                                       .d = a->dim,
                                       .eps = a->eps,
                                       .power = a->power,
                                       .re_add = a->re_add,
                                       .im_add = a->im_add});
}
static int32_t run_from_polar(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_from_polar_args *a = args;
  return launch_polar(ctx, tier, &from_polar, &a->call, a->I, a->J, a->K,
                      &(kr_polar_params){.a = a->mag, .b = a->pha, .c = a->re, .d = a->im, .power = a->power});
}
static int32_t run_from_polar_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_from_polar_bwd_args *a = args;
  return launch_polar(
      ctx, tier, &from_polar_back, &a->call, a->I, a->J, a->K,
      &(kr_polar_params){
          .a = a->mag, .b = a->pha, .da = a->dre, .db = a->dim, .c = a->dmag, .d = a->dpha, .power = a->power});
}

#define POLAR(op) /* common to all of them */                                                                     \
  const char *kr_##op##_cuda_refuse(const krait_ctx *ctx, const void *args) {                    \
    const kr_##op##_args *a = args;                                                           \
    return (void)ctx, refuse_polar(a->I, a->J, a->K);                                            \
  }                                                                                              \
  uint64_t kr_##op##_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; } \
  KR_CUDA_TIERS(op, run_##op)
POLAR(to_polar)
POLAR(to_polar_bwd)
POLAR(from_polar)
POLAR(from_polar_bwd)

/* ---- losses ---- */

static const char *refuse_loss(int64_t I, int64_t J, int64_t K, int64_t N) {
  return (double)I * (double)J * (double)K * (double)N >= 2147483648.0 - KR_LOSS_PARTS * KR_LOSS_THREADS ? too_many
                                                                                                         : NULL;
}

const char *kr_loss_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_loss_args *a = args;
  return (void)ctx, refuse_loss(a->I, a->J, a->K, a->N);
}
const char *kr_loss_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_loss_bwd_args *a = args;
  return (void)ctx, refuse_loss(a->I, a->J, a->K, a->N);
}
uint64_t kr_loss_cuda_scratch(const krait_ctx *ctx, const void *args) {
  return (void)ctx, (void)args, KR_LOSS_PARTS * sizeof(double);
}
uint64_t kr_loss_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static kr_loss_params plan_loss(uint32_t flags, int64_t I, int64_t J, int64_t K, int64_t N) {
  return (kr_loss_params){.N = kr_divisor_of(N),
                        .K = kr_divisor_of(K),
                        .J = kr_divisor_of(J),
                        .n = (uint32_t)(I * J * K * N),
                        .angle = (flags & KRAIT_LOSS_ANGLE) != 0};
}

static int32_t run_loss(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_loss_args *a = args;
  kr_loss_params p = plan_loss(a->call.flags, a->I, a->J, a->K, a->N);
  const uint32_t blocks = (p.n + KR_LOSS_THREADS - 1) / KR_LOSS_THREADS;
  p.n_parts = blocks < KR_LOSS_PARTS ? blocks : KR_LOSS_PARTS, p.x = a->x, p.y = a->y, p.out = a->out,
  p.scale = a->scale, p.partial = a->call.scratch;
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &loss_parts, &(kr_grid){.x = p.n_parts, .block = KR_LOSS_THREADS, .stream = a->call.stream}, &p);
  kr_chain_add(&chain, &loss_sum, &(kr_grid){.x = 1, .block = KR_LOSS_THREADS, .stream = a->call.stream}, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static int32_t run_loss_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_loss_bwd_args *a = args;
  kr_loss_params p = plan_loss(a->call.flags, a->I, a->J, a->K, a->N);
  p.x = a->x, p.y = a->y, p.dout = a->dout, p.dx = a->dx, p.dy = a->dy, p.scale = a->scale;
  return kr_cuda_launch(
      ctx->cuda, tier, &loss_back,
      &(kr_grid){
          .x = (p.n + KR_LOSS_THREADS - 1) / KR_LOSS_THREADS, .block = KR_LOSS_THREADS, .stream = a->call.stream},
      &p, sizeof p);
}

KR_CUDA_TIERS(loss, run_loss)
KR_CUDA_TIERS(loss_bwd, run_loss_bwd)

/* ---- transform ---- */

const char *kr_transform_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_transform_args *a = args;
  (void)ctx;
  return a->R >= 2147483648ll || a->N > 65535ll * KR_TRANSFORM_TILE ? "2^31 rows or more, or more than 2097120 columns"
                                                                    : NULL;
}
uint64_t kr_transform_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static int32_t run_transform(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_transform_args *a = args;
  const kr_grid grid = {.x = (uint32_t)((a->R + KR_TRANSFORM_TILE - 1) / KR_TRANSFORM_TILE),
                        .y = (uint32_t)((a->N + KR_TRANSFORM_TILE - 1) / KR_TRANSFORM_TILE),
                        .block = KR_TRANSFORM_THREADS,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &transform, &grid, a, sizeof *a);
}
KR_CUDA_TIERS(transform, run_transform)

/* ---- spectral norm ---- */

const char *kr_spectral_norm_cuda_refuse(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, NULL; }
const char *kr_spectral_norm_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  return (void)ctx, (void)args, NULL;
}
uint64_t kr_spectral_norm_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_spectral_norm_args *a = args;
  (void)ctx;
  return kr_scratch_round((uint64_t)(a->O + a->K) * sizeof(float));
}
uint64_t kr_spectral_norm_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static int32_t run_spectral_norm(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_spectral_norm_args *a = args;
  return kr_cuda_launch(ctx->cuda, tier, &norm,
                        &(kr_grid){.x = 1, .block = KR_SPECTRAL_THREADS, .stream = a->call.stream}, a, sizeof *a);
}
static int32_t run_spectral_norm_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_spectral_norm_bwd_args *a = args;
  return kr_cuda_launch(ctx->cuda, tier, &norm_back,
                        &(kr_grid){.x = 1, .block = KR_SPECTRAL_THREADS, .stream = a->call.stream}, a, sizeof *a);
}
KR_CUDA_TIERS(spectral_norm, run_spectral_norm)
KR_CUDA_TIERS(spectral_norm_bwd, run_spectral_norm_bwd)
