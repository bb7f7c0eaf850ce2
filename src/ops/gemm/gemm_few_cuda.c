/* gemm_few_cuda.c: products of up to 16 rows on a GPU, by multiply-adds and by tensor cores, also with a norm before
 * them. */
#include "overlap.h"
#include "cuda_impl.h"
#include "gemm/gemm_cuda.h"
#include "gemm/gemm_describe.h"
#include "gemm/gemm_few_base.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_m16.h"
#include "turing_impl.h"
#include "view.h"

/* ---- base -------------------------------------------------------------------------------------------------------- */

const char *kr_gemm_few_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const char *why = a->M > KR_FEW_ROWS ? "A has more than 16 rows" : kr_gemm_base_refuse(ctx, args);
  if (why) return why;
  const kr_gemm_params p = kr_gemm_describe(a);
  if ((a->A.stride[1] != 1 || a->Bmat.stride[0] != 1 || (kr_has(&a->B2) && a->B2.stride[0] != 1)) && a->K > 1)
    return "K must lie side by side in A and Bmat";
  if (kr_has(&a->B2) && a->B2.dtype != a->Bmat.dtype) return "B2 of another type than Bmat";
  return (double)p.N * p.P * gemm_ceil_div(a->M, KR_FEW_BASE_ROWS) < 2e9 ? NULL
                                                                         : "too large for 32-bit numbers of blocks";
}

/* Warps that share K, where columns alone are too few warps to keep memory busy. */
static int32_t splits_of_few(const krait_ctx *ctx, const kr_gemm_params *p, int n_chunks) {
  enum { WARPS = KR_FEW_BASE_THREADS / 32, BUSY = 24 }; /* BUSY: warps of a multiprocessor */
  const int64_t warps = (int64_t)gemm_ceil_div(p->N, KR_FEW_BASE_COLUMNS) * p->P * n_chunks,
                wanted = (int64_t)BUSY * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int32_t splits = 1;
  while (splits < WARPS && splits * warps < wanted && splits * KR_FEW_BASE_RUN < p->K) splits *= 2;
  return splits;
}

int32_t kr_gemm_few_base(const krait_ctx *ctx, const void *args) {
#define FEW_OF(type)                                                                                                \
  {{{"gemm_few_base_" type, "kr_gemm_few_1"}, {"gemm_few_base_" type, "kr_gemm_few_4"}},                            \
   {{"gemm_few_base_" type, "kr_gemm_few_gated_1"}, {"gemm_few_base_" type, "kr_gemm_few_gated_4"}}}
  static const kr_kernel kernels[3][2][2] = {FEW_OF("f32"), FEW_OF("f16"), FEW_OF("bf16")};
#undef FEW_OF
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_few_base_params f = {.params = kr_gemm_describe(a)};
  f.n_chunks = gemm_ceil_div(a->M, KR_FEW_BASE_ROWS);
  f.n_splits = splits_of_few(ctx, &f.params, f.n_chunks);
  const int columns = KR_FEW_BASE_THREADS / 32 / f.n_splits * KR_FEW_BASE_COLUMNS;
  const kr_grid grid = {.x = (uint32_t)(gemm_ceil_div(a->N, columns) * f.params.P * f.n_chunks),
                        .block = KR_FEW_BASE_THREADS,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernels[a->Bmat.dtype][kr_has(&a->B2)][a->M > 1], &grid, &f,
                        sizeof f);
}

/* ---- few rows ---------------------------------------------------------------------------------------------------- */

enum { MANY_GROUPS = 8192 }; /* of four columns: many waves of blocks */

const char *kr_gemm_m16_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const int is_float = a->A.dtype == KRAIT_F32 && a->Bmat.dtype == KRAIT_F32;
  const char *why = a->M > KR_FEW_ROWS ? "A has more than 16 rows"
                    : is_float         ? kr_gemm_base_refuse(ctx, args)
                                       : kr_gemm_ampere_refuse(ctx, args);
  if (why) return why;
  if (is_float && a->M > KR_FEW_LANES_ROWS) return "more than two rows of float32";
  if (is_float && kr_has(&a->B2) && a->B2.dtype != KRAIT_F32) return "B2 of another type than Bmat";
  const kr_gemm_params p = kr_gemm_describe(a);
  if (kr_gemm_order_of(&p) != KR_ORDER_KK || !p.A.packs || !p.B.packs || (p.B2.data && !p.B2.packs) || p.K % 8 != 0)
    return "K must be a multiple of eight, side by side and aligned to 16 bytes in A and Bmat";
  return p.P < 65536 ? NULL : "more than 65535 products";
}

int kr_gemm_is_bare_sum(const kr_gemm_params *p) {
  const kr_gemm_matrix *added = &p->residual;
  return !p->bias.data && !p->bias2.data && !p->row_scale.data && p->out.packs && p->N % KR_FEW_GROUP == 0 &&
         p->P == 1 && (p->out.dtype == KRAIT_F32 || p->out.dtype == p->A.dtype) &&
         (!added->data || (added->dtype == KRAIT_F32 && added->packs));
}

int kr_groups_of_block(const krait_ctx *ctx, int64_t n_groups, int n_warps, int most_warps) {
  const int n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int64_t best = 0, least = INT64_MAX;
  for (int64_t n = most_warps / n_warps; n >= 1; n--) {
    const int64_t blocks = (n_groups + n - 1) / n, most = (blocks + n_multiprocessors - 1) / n_multiprocessors * n;
    if (most < least) least = most, best = n;
  }
  return (int)best;
}

static kr_gemm_m16_params describe_lanes(const krait_ctx *ctx, const kr_gemm_params *p, int splits, int fours) {
  const int64_t groups = (int64_t)gemm_ceil_div(p->N, KR_FEW_GROUP * fours) * p->P;
  return (kr_gemm_m16_params){.A = p->A.data,
                       .B = p->B.data,
                       .B2 = p->B2.data,
                       .out = p->out.data,
                       .A_row = p->A.row,
                       .B_column = p->B.column,
                       .B2_column = p->B2.column,
                       .out_row = p->out.row,
                       .added = kr_gemm_is_bare_sum(p) ? p->residual.data : NULL,
                       .added_row = p->residual.row,
                       .M = p->M,
                       .N = p->N,
                       .K = p->K,
                       .P = p->P,
                       .n_splits = splits,
                       .n_groups = kr_groups_of_block(ctx, groups, splits, KR_FEW_MOST_WARPS),
                       .n_fours = fours,
                       .activation = p->activation,
                       .is_plain = kr_gemm_is_bare_sum(p),
                       .scale = p->scale,
                       .out_dtype = p->out.dtype,
                       .params = *p};
}

/* How warps share K: one run of 256 k each for up to five runs, else two, more if warps run out. */
static kr_gemm_m16_params plan_lanes(const krait_ctx *ctx, const kr_gemm_params *p) {
  const int runs = gemm_ceil_div(p->K, KR_FEW_RUN), units = p->B2.data || p->A.dtype == KRAIT_F32 ? 1 : 2,
            most = KR_FEW_MOST_WARPS;
  int splits = runs <= 5 && gemm_ceil_div(p->N, KR_FEW_GROUP) < MANY_GROUPS ? runs : gemm_ceil_div(runs, units);
  if (splits > most) splits = gemm_ceil_div(splits, gemm_ceil_div(splits, most));
  return describe_lanes(ctx, p, splits, 1);
}

static int32_t launch_lanes(const krait_ctx *ctx, const kr_gemm_args *a, const kr_gemm_m16_params *f,
                            const kr_kernel *kernels, uint64_t tier) {
  const kr_grid grid = {.x = (uint32_t)gemm_ceil_div(f->N, KR_FEW_GROUP * f->n_fours * f->n_groups),
                        .y = (uint32_t)f->P,
                        .block = (uint32_t)(32 * f->n_splits * f->n_groups),
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernels[f->params.B.dtype], &grid, f, sizeof *f);
}

#define FEW(name) {{"gemm_few_f16", name}, {"gemm_few_bf16", name}}
#define LANES(name) {{"gemm_few_f32", name}, {"gemm_few_f16", name}, {"gemm_few_bf16", name}}
/* Measured on an H200: columns from which a warp takes eight; weights from which the norm of two rows is not fused. */
enum { FEWEST_WIDE = 4096, MANY_WEIGHTS = 1 << 23 };

/* One row, with that many runs of K per warp. */
static int is_at_once_by(const kr_gemm_params *p, int runs) {
  return p->M == 1 && gemm_ceil_div(p->K, KR_FEW_RUN) <= runs * KR_FEW_MOST_WARPS;
}
static int is_at_once(const kr_gemm_params *p) { return is_at_once_by(p, 1); }

const char *kr_gemm_normed_refuse(const krait_ctx *ctx, const kr_gemm_args *a, int with_conv) {
  const char *why = a->M > KR_FEW_LANES_ROWS ? "more than two rows" : kr_gemm_m16_refuse(ctx, a);
  if (why) return why;
  const kr_gemm_params p = kr_gemm_describe(a);
  const int is_large = (double)p.N * p.K >= MANY_WEIGHTS;
  if (gemm_ceil_div(p.N, KR_FEW_GROUP) >= MANY_GROUPS) return "more columns than the row may be normed for";
  if (is_large && p.M > 1) return "2^23 weights or more for two rows";
  if (p.M == 1 && !is_at_once_by(&p, 2)) return "more than 5120 inputs";
  if (p.N >= FEWEST_WIDE && is_large && !is_at_once(&p)) return "more than 2560 inputs of 4096 columns or more";
  if (p.B2.data && (p.M > 1 || p.K > KR_FEW_GATED_WARPS * KR_FEW_RUN))
    return "a gate of two rows, or of more than 2048 inputs";
  return with_conv && !kr_gemm_is_bare_sum(&p) ? "a convolution behind a bias, or columns that are not aligned fours"
                                               : NULL;
}

/* A gated product of one row whose blocks, a run a warp, are all on the device at once: with two runs a warp they take
 * three quarters of the registers, which leaves the next kernel's blocks room before this one ends. */
static int is_gated_deep(const krait_ctx *ctx, const kr_gemm_params *p) {
  enum { WARPS_AT_ONCE = 32 }; /* of a multiprocessor */
  const int64_t runs = gemm_ceil_div(p->K, KR_FEW_RUN);
  return p->B.dtype != KRAIT_F32 && runs % 2 == 0 && runs <= 2 * KR_FEW_GATED_DEEP_WARPS &&
         gemm_ceil_div(p->N, KR_FEW_GROUP) * runs <= WARPS_AT_ONCE * kr_cuda_info(ctx->cuda)->n_multiprocessors;
}

static int32_t launch_gated_norm(const krait_ctx *ctx, const kr_gemm_args *a, kr_gemm_m16_params *f, uint64_t tier) {
  static const kr_kernel kernels[2][3] = {
      LANES("kr_norm_gemm_one_gated"),
      {{0}, {"gemm_few_f16", "kr_norm_gemm_one_gated_deep"}, {"gemm_few_bf16", "kr_norm_gemm_one_gated_deep"}}};
  const int is_deep = is_gated_deep(ctx, &f->params);
  if (is_deep) f->n_splits /= 2;
  f->n_groups = kr_groups_of_block(ctx, gemm_ceil_div(f->N, KR_FEW_GROUP), f->n_splits,
                                   is_deep ? KR_FEW_GATED_DEEP_WARPS : KR_FEW_GATED_WARPS);
  return launch_lanes(ctx, a, f, kernels[is_deep], tier);
}

int32_t kr_gemm_normed(const krait_ctx *ctx, const kr_gemm_args *a, const kr_normed *norm, int is_gate,
                       const kr_conv_step *conv, uint64_t tier) {
  static const kr_kernel add[KR_FEW_LANES_ROWS][3] = {LANES("kr_norm_gemm_one"), LANES("kr_norm_gemm_two")},
                         wide[3] = LANES("kr_norm_gemm_one_wide"),
                         gate[KR_FEW_LANES_ROWS][3] = {LANES("kr_gate_gemm_one"), LANES("kr_gate_gemm_two")},
                         deep[2][3] = {LANES("kr_norm_gemm_one_deep"), LANES("kr_gate_gemm_one_deep")};
  const kr_gemm_params p = kr_gemm_describe(a);
  const int runs = gemm_ceil_div(p.K, KR_FEW_RUN),
            is_wide = !is_gate && !p.B2.data && is_at_once(&p) && p.N >= FEWEST_WIDE,
            splits = gemm_ceil_div(runs, gemm_ceil_div(runs, KR_FEW_MOST_WARPS));
  kr_gemm_m16_params f = describe_lanes(ctx, &p, splits, is_wide ? 2 : 1);
  f.norm = *norm, f.conv = *conv;
  f.state_ahead = (a->call.flags & KR_CALL_STATE_PDL) != 0;
  if (norm->other == a->A.data && norm->other_is_float && a->Bmat.dtype != KRAIT_F32) f.A = NULL; /* a float32 row */
  if (p.B2.data) return launch_gated_norm(ctx, a, &f, tier);
  if (p.M == 1 && !is_at_once(&p)) return launch_lanes(ctx, a, &f, deep[is_gate], tier);
  return launch_lanes(ctx, a, &f, is_wide ? wide : is_gate ? gate[p.M - 1] : add[p.M - 1], tier);
}

/* One row, or two without a norm. Heads, which have very many columns, and gated products of one row keep all of K in
 * flight at once. */
static int32_t run_lanes(const krait_ctx *ctx, const kr_gemm_args *a, const kr_gemm_params *p, uint64_t tier) {
  static const kr_kernel once[2][3] = {LANES("kr_gemm_one_wide"), LANES("kr_gemm_one_gated_once")},
                         lanes[2][KR_FEW_LANES_ROWS][3] = {{LANES("kr_gemm_one"), LANES("kr_gemm_two")},
                                                           {LANES("kr_gemm_one_gated"), LANES("kr_gemm_two_gated")}};
  const int gated = p->B2.data != NULL,
            is_once = is_at_once(p) && (gated || gemm_ceil_div(p->N, KR_FEW_GROUP) >= MANY_GROUPS);
  const kr_gemm_m16_params f =
      is_once ? describe_lanes(ctx, p, gemm_ceil_div(p->K, KR_FEW_RUN), gated ? 1 : 2) : plan_lanes(ctx, p);
  return launch_lanes(ctx, a, &f, is_once ? once[gated] : lanes[gated][p->M - 1], tier);
}

static int32_t run_m16(const krait_ctx *ctx, const kr_gemm_args *a, uint64_t tier) {
  static const kr_kernel kernels[2][2][2] = {{FEW("kr_gemm_m16_8"), FEW("kr_gemm_m16_16")},
                                             {FEW("kr_gemm_m16_8_gated"), FEW("kr_gemm_m16_16_gated")}};
  if (a->M == 0) return KRAIT_OK;
  const kr_gemm_params p = kr_gemm_describe(a);
  if (p.M <= KR_FEW_LANES_ROWS) return run_lanes(ctx, a, &p, tier);
  const kr_grid grid = {.x = (uint32_t)gemm_ceil_div(p.N, KR_FEW_COLUMNS),
                  .y = (uint32_t)p.P,
                  .block = KR_FEW_THREADS,
                  .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                  .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernels[p.B2.data != NULL][p.M > 8][a->A.dtype == KRAIT_BF16], &grid, &p,
                        sizeof p);
}

int32_t kr_gemm_m16(const krait_ctx *ctx, const void *args) { return run_m16(ctx, args, KRAIT_CAP_CUDA_AMPERE); }

const char *kr_gemm_m16_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(((const kr_gemm_args *)args)->A.dtype);
  return why ? why : kr_gemm_m16_refuse(ctx, args);
}
int32_t kr_gemm_m16_turing(const krait_ctx *ctx, const void *args) { return run_m16(ctx, args, KRAIT_CAP_CUDA_TURING); }
