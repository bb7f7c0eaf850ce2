/* gemm_cuda.c: products on a GPU: kernel selection, tiling, split-K, tensor maps, launches. gemm_few_cuda.c has those
 * of few rows. */
#include <math.h>
#include <string.h>

#include "overlap.h"
#include "cuda_impl.h"
#include "gemm/gemm_cuda.h"
#include "gemm/gemm_describe.h"
#include "gemm/gemm_split.h"
#include "gemm/gemm_ampere.h"
#include "gemm/gemm_hopper.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_m64.h"
#include "gemm/gemm_long_k.h"
#include "turing_impl.h"
#include "status.h"
#include "view.h"

/* ---- classifying a call ------------------------------------------------------------------------------------------ */

static int is_half_for_gemm_cuda(int32_t dtype) { return dtype == KRAIT_F16 || dtype == KRAIT_BF16; }

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A tile of 128 x bn; at_once: tiles resident per multiprocessor. Times, measured on an H200, are in units of 64 k of a
 * 128 x 256 tile of hopper's 16-bit products, 0.7 us: rate: per 64 k; beside: fixed cost per tile. */
typedef struct tile_cost {
  int bn, at_once;
  double rate, beside;
} tile_cost;

/* Includes the split-K reduction. */
static double gemm_cost_of(const kr_gemm_params *p, const tile_cost *t, int n_splits, int stage_k,
                           int n_multiprocessors) {
  const int width = p->B2.data ? t->bn / 2 : t->bn, n_at_once = t->at_once * n_multiprocessors;
  const double steps = gemm_ceil_div(gemm_ceil_div(p->K, n_splits), stage_k);
  const int64_t units = (int64_t)gemm_ceil_div(p->M, 128) * gemm_ceil_div(p->N, width) * p->P * n_splits;
  const double sums = n_splits > 1 ? 4 + 3e-6 * (double)n_splits * p->M * p->N * p->P : 0;
  return (double)((units + n_at_once - 1) / n_at_once) * (steps * stage_k / 64 * t->rate + t->beside) + sums;
}

/* Few tiles of a long K: the weight gradient of a small layer. */
enum {
  MOST_SPLITS = 512,
  MOST_SPLIT_UNITS = 4096
};

/* The cheapest tile (the list ends with bn 0) and number of K splits. */
static int choose_tiles(const krait_ctx *ctx, kr_gemm_params *p, const tile_cost *tiles, int stage_k) {
  const int n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int best_bn = tiles->bn, best_splits = 1;
  double best = 1e300;
  for (const tile_cost *t = tiles; t->bn; t++) {
    const double n_tiles = (double)gemm_ceil_div(p->M, 128) * gemm_ceil_div(p->N, t->bn) * p->P;
    const int most =
        p->B2.data || p->K < 512 || n_tiles > MOST_SPLIT_UNITS ? 1 : (int)fmin(MOST_SPLITS, MOST_SPLIT_UNITS / n_tiles);
    for (int s = 1; s <= most && gemm_ceil_div(p->K, s) >= 256 + (s == 1) * -256; s++) {
      const double cost = gemm_cost_of(p, t, s, stage_k, n_multiprocessors);
      if (cost < best * 0.999) best = cost, best_bn = t->bn, best_splits = s;
    }
  }
  p->n_m = gemm_ceil_div(p->M, 128);
  p->n_n = gemm_ceil_div(p->N, p->B2.data ? best_bn / 2 : best_bn);
  p->group = 16;
  p->k_split = gemm_ceil_div(gemm_ceil_div(p->K, best_splits), stage_k) * stage_k;
  p->n_splits = gemm_ceil_div(p->K, p->k_split);
  if (p->n_splits == 1) p->k_split = p->K;
  p->sum_lanes = p->n_splits >= 64 ? 32 : p->n_splits >= 16 ? 4 : 1;
  p->partial_row = (p->N + 7) / 8 * 8;
  p->by_tiles = kr_divisor_of((int64_t)p->n_m * p->n_n), p->by_P = kr_divisor_of(p->P),
  p->by_group = kr_divisor_of((int64_t)p->group * p->n_n);
  p->by_rows = kr_divisor_of(p->group), p->by_last_rows = kr_divisor_of((p->n_m - 1) % p->group + 1);
  return best_bn;
}

static uint64_t gemm_partial_bytes(const kr_gemm_params *p) {
  return p->n_splits > 1
             ? kr_scratch_round((uint64_t)p->n_splits * (uint64_t)p->P * (uint64_t)p->M * (uint64_t)p->partial_row * 4)
             : 0;
}

/* Launches the product and, for split-K, the reduction, which then also runs the epilogue. */
static int32_t launch_all(const krait_ctx *ctx, uint64_t tier, const kr_kernel *kernel, const kr_grid *grid,
                          const void *params, const kr_gemm_params *p) {
  static const kr_kernel sum = {"gemm_base", "kr_gemm_sum"};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, kernel, grid, params, 0));
  if (p->n_splits == 1) return KRAIT_OK;
  const int64_t runs = (int64_t)p->P * p->M * (p->partial_row / 8) * p->sum_lanes;
  const uint32_t n_blocks = (uint32_t)((runs + KR_SUM_THREADS - 1) / KR_SUM_THREADS);
  const kr_grid sums = {.x = n_blocks,
                        .block = KR_SUM_THREADS,
                        .shared_bytes = grid->is_pdl ? kr_cuda_even_bytes(ctx->cuda, n_blocks) : 0,
                        .is_pdl = grid->is_pdl,
                        .stream = grid->stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &sum, &sums, p, sizeof *p);
}

enum { MOST_SIZE = 1 << 30 };
static int fits(const kr_gemm_args *a) {
  const double tiles = (double)(a->M / 128 + 1) * (double)(a->N / 64 + 1) * (double)kr_gemm_products(a);
  return a->M < MOST_SIZE && a->N < MOST_SIZE && a->K < MOST_SIZE && tiles < 2e9;
}
static const char too_large[] = "too large for 32-bit numbers of tiles";

/* ---- base -------------------------------------------------------------------------------------------------------- */

static void plan_base(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{KR_BASE_BN, 2, 18, 12}, {0}};
  choose_tiles(ctx, p, tiles, KR_BASE_BK);
}

const char *kr_gemm_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const kr_view *const views[] = {&a->Bmat, &a->bias, &a->bias2, &a->row_scale};
  (void)ctx;
  for (int i = 0; i < 4; i++)
    if (kr_has(views[i]) && views[i]->dtype == KRAIT_F64) return "no float64 on a GPU";
  if (kr_has(&a->factor)) return "no factor on a GPU";
  return fits(a) ? NULL : too_large;
}

uint64_t kr_gemm_base_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  plan_base(ctx, &p);
  return gemm_partial_bytes(&p);
}

int32_t kr_gemm_base(const krait_ctx *ctx, const void *args) {
  static const kr_kernel plain = {"gemm_base", "kr_gemm_base"}, gated = {"gemm_base", "kr_gemm_base_gated"};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_params p = kr_gemm_describe(a);
  plan_base(ctx, &p);
  p.partial = a->call.scratch;
  const kr_grid grid = {
      .x = (uint32_t)(p.n_m * p.n_n * p.P * p.n_splits), .block = KR_BASE_THREADS, .stream = a->call.stream};
  return launch_all(ctx, KRAIT_CAP_CUDA_BASE, p.B2.data ? &gated : &plain, &grid, &p, &p);
}

/* ---- ampere, and turing of 16 bits ------------------------------------------------------------------------------- */

#define BY_ORDER(tier, type, suffix, name)                                                    \
  {                                                                                           \
    {"gemm_" tier "_" type "_kk" suffix, name}, {"gemm_" tier "_" type "_kn" suffix, name}, { \
      "gemm_" tier "_" type "_mn" suffix, name                                                \
    }                                                                                         \
  }
#define BY_HALF(tier, suffix, name) {BY_ORDER(tier, "f16", suffix, name), BY_ORDER(tier, "bf16", suffix, name)}

/* An order that has kernels. */
static const char *refuse_gemm_order(const kr_gemm_args *a) {
  if (!fits(a)) return too_large;
  const kr_gemm_params p = kr_gemm_describe(a);
  const int order = kr_gemm_order_of(&p);
  if (order == KR_NO_ORDER || (p.B2.data && order != KR_ORDER_KK))
    return "the columns of A lie side by side but not the rows of Bmat, or a gated product's weights are not stored "
           "(N,K)";
  return NULL;
}

static const char *refuse_halves(const kr_gemm_args *a) {
  if (!is_half_for_gemm_cuda(a->A.dtype) || a->Bmat.dtype != a->A.dtype)
    return "A and Bmat must both be float16 or bfloat16";
  return refuse_gemm_order(a);
}

const char *kr_gemm_ampere_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = refuse_halves(args);
  return why ? why : kr_gemm_base_refuse(ctx, args);
}

const char *kr_gemm_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(((const kr_gemm_args *)args)->A.dtype);
  return why ? why : kr_gemm_ampere_refuse(ctx, args);
}

static int plan_halves(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost of_kk[] = {{256, 1, 2, 5.6}, {192, 1, 1.9, 5}, {128, 2, 2.06, 4.4}, {0}},
                         of_others[] = {{256, 1, 2, 5.6}, {128, 2, 2.06, 4.4}, {0}}, *const narrow = of_others + 1,
                         gated[] = {{256, 1, 2, 5.6}, {0}};
  const tile_cost *tiles = kr_gemm_order_of(p) == KR_ORDER_KK ? of_kk : of_others;
  return choose_tiles(ctx, p, p->B2.data ? gated : p->N <= 128 ? narrow : tiles, KR_AMPERE_K_BYTES / 2);
}

uint64_t kr_gemm_ampere_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  plan_halves(ctx, &p);
  return gemm_partial_bytes(&p);
}

static kr_grid mma_grid(const kr_gemm_args *a, const kr_gemm_params *p, int bn, int n_stages) {
  return (kr_grid){.x = (uint32_t)(p->n_m * p->n_n * p->P * p->n_splits),
                   .block = (uint32_t)(bn == 192 ? 256 : bn),
                   .shared_bytes = KR_AMPERE_SHARED_BYTES(bn, n_stages),
                   .stream = a->call.stream};
}

static int32_t launch_mma(const krait_ctx *ctx, const kr_gemm_args *a, kr_gemm_params *p, const kr_kernel *kernel,
                          int bn) {
  const kr_grid grid = mma_grid(a, p, bn, KR_AMPERE_STAGES);
  p->partial = a->call.scratch;
  return launch_all(ctx, KRAIT_CAP_CUDA_AMPERE, kernel, &grid, p, p);
}

/* type: 0 float16, 1 bfloat16, 2 the turing tier's. */
static const kr_kernel *kernel_of_halves(const kr_gemm_params *p, int bn, int type) {
#define OF_TIERS(name) {BY_ORDER("ampere", "f16", "", name), BY_ORDER("ampere", "bf16", "", name), \
                        BY_ORDER("turing", "f16", "", name)}
  static const kr_kernel wide[3][KR_GEMM_ORDERS] = OF_TIERS("kr_gemm_ampere_256"),
                         middle[3][KR_GEMM_ORDERS] = OF_TIERS("kr_gemm_ampere_192"), /* of the first order alone */
                         narrow[3][KR_GEMM_ORDERS] = OF_TIERS("kr_gemm_ampere_128"),
                         gated[3][KR_GEMM_ORDERS] = OF_TIERS("kr_gemm_ampere_gated");
#undef OF_TIERS
  const int order = kr_gemm_order_of(p);
  return p->B2.data  ? &gated[type][order]
         : bn == 256 ? &wide[type][order]
         : bn == 192 ? &middle[type][order]
                     : &narrow[type][order];
}

int32_t kr_gemm_ampere(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_params p = kr_gemm_describe(a);
  const int bn = plan_halves(ctx, &p);
  return launch_mma(ctx, a, &p, kernel_of_halves(&p, bn, a->A.dtype == KRAIT_BF16), bn);
}

/* Its own plan of the product and, unless they are float16, scaled factors. */
static int32_t launch_turing(const krait_ctx *ctx, const kr_gemm_args *a, const kr_gemm_halves_params *h, int bn) {
  const kr_grid grid = mma_grid(a, &h->params, bn, KR_TURING_STAGES);
  return launch_all(ctx, KRAIT_CAP_CUDA_TURING, kernel_of_halves(&h->params, bn, 2), &grid, h, &h->params);
}

int32_t kr_gemm_turing(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_halves_params h = {.params = kr_gemm_describe(a)};
  const int bn = plan_halves(ctx, &h.params);
  h.A = h.params.A, h.B = h.params.B, h.B2 = h.params.B2;
  h.params.partial = a->call.scratch;
  return launch_turing(ctx, a, &h, bn);
}

/* ---- ampere, float32 factors rounded to tf32 --------------------------------------------------------------------- */

static const char *refuse_floats(const krait_ctx *ctx, const kr_gemm_args *a) {
  if (a->A.dtype != KRAIT_F32 || a->Bmat.dtype != KRAIT_F32) return "A and Bmat must both be float32";
  const char *why = refuse_gemm_order(a);
  return why ? why : kr_gemm_base_refuse(ctx, a);
}

const char *kr_gemm_tf32_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  return a->call.flags & KRAIT_GEMM_TF32 ? refuse_floats(ctx, a) : "the call does not allow tf32";
}

static int plan_tf32(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{256, 1, 6, 8.4}, {128, 1, 4.1, 6.6}, {64, 1, 2.7, 5.7}, {0}},
                         gated[] = {{256, 1, 6, 8.4}, {0}};
  return choose_tiles(ctx, p, p->B2.data ? gated : tiles, KR_AMPERE_K_BYTES / 4);
}

uint64_t kr_gemm_tf32_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  plan_tf32(ctx, &p);
  return gemm_partial_bytes(&p);
}

int32_t kr_gemm_tf32(const krait_ctx *ctx, const void *args) {
  static const kr_kernel wide[KR_GEMM_ORDERS] = BY_ORDER("ampere", "tf32", "", "kr_gemm_ampere_256"),
                         narrow[KR_GEMM_ORDERS] = BY_ORDER("ampere", "tf32", "", "kr_gemm_ampere_128"),
                         narrowest[KR_GEMM_ORDERS] = BY_ORDER("ampere", "tf32", "", "kr_gemm_ampere_64"),
                         gated = {"gemm_ampere_tf32_kk", "kr_gemm_ampere_gated"};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_params p = kr_gemm_describe(a);
  const int bn = plan_tf32(ctx, &p), order = kr_gemm_order_of(&p);
  return launch_mma(ctx, a, &p,
                    p.B2.data   ? &gated
                    : bn == 256 ? &wide[order]
                    : bn == 128 ? &narrow[order]
                                : &narrowest[order],
                    bn);
}

/* ---- hopper ------------------------------------------------------------------------------------------------------ */

/* Whether bulk copies accept the matrix: 16-byte aligned, non-overlapping rows (`along` long, contiguous). */
static int boxes_take(const kr_gemm_matrix *m, int64_t along, int64_t P) {
  const int64_t across = m->column == 1 ? m->row : m->column;
  return m->packs && across >= along && across < (int64_t)1 << 30 &&
         (P == 1 || (m->batch > 0 && m->batch < (int64_t)1 << 38));
}

static int pairs_take(const kr_gemm_matrix *m) {
  const uintptr_t bytes = m->dtype == KRAIT_F32 ? 8 : 4;
  return m->column == 1 && m->row % 2 == 0 && m->batch % 2 == 0 && (uintptr_t)m->data % bytes == 0;
}

const char *kr_gemm_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const char *why = refuse_halves(a);
  if (!why) why = kr_gemm_base_refuse(ctx, args);
  if (why) return why;
  const kr_gemm_params p = kr_gemm_describe(a);
  const int order = kr_gemm_order_of(&p);
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (!boxes_take(&p.A, order == KR_ORDER_MN ? p.M : p.K, p.P) ||
      !boxes_take(&p.B, order == KR_ORDER_KK ? p.K : p.N, p.P) || (p.B2.data && !boxes_take(&p.B2, p.K, p.P)))
    return "the rows of A and Bmat must be aligned to 16 bytes";
  if (p.N % 2 != 0 || (p.residual.data && !pairs_take(&p.residual)) ||
      (p.out.dtype == KRAIT_F32 && !pairs_take(&p.out)))
    return "N must be even, and rows of residual and out aligned to pairs";
  if (p.out.dtype != KRAIT_F32 && (p.out.column != 1 || !boxes_take(&p.out, p.N, p.P)))
    return "the rows of out must be aligned to 16 bytes";
  return NULL;
}

/* The narrowest only where K lies along both factors. */
static const tile_cost hopper_tiles[] = {{64, 1, 0.34, 1.2},
                                         {256, 1, 1, 1.4},
                                         {192, 1, 0.8, 1.25},
                                         {128, 1, 0.68, 1.1},
                                         {0}},
                       hopper_gated[] = {{256, 1, 1, 1.4}, {192, 1, 0.8, 1.25}, {0}};

static int plan_hopper(const krait_ctx *ctx, kr_gemm_params *p) {
  const int is_kk = kr_gemm_order_of(p) == KR_ORDER_KK;
  return choose_tiles(ctx, p, p->B2.data ? hopper_gated : hopper_tiles + !is_kk, KR_HOPPER_BK);
}

uint64_t kr_gemm_hopper_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  plan_hopper(ctx, &p);
  return gemm_partial_bytes(&p);
}

/* Boxes of `wide` (64, or 32) along the contiguous dimension by `rows` across, swizzled. */
static int32_t make_map(const krait_ctx *ctx, kr_gemm_map *map, const kr_gemm_matrix *m, int64_t along, int64_t across,
                        int64_t P, int wide, int rows) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t sizes[3] = {(uint64_t)along, (uint64_t)across, (uint64_t)P},
                 line = (uint64_t)(m->column == 1 ? m->row : m->column) * 2;
  const uint64_t strides[2] = {line, P > 1 ? (uint64_t)m->batch * 2 : line * (uint64_t)across};
  const uint32_t box[3] = {(uint32_t)wide, (uint32_t)rows, 1}, steps[3] = {1, 1, 1};
  const int type = m->dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver,
            TensorMapEncodeTiled(map, type, 3, m->data, sizes, strides, box, steps, 0,
                                 wide == 64 ? KR_CU_MAP_SWIZZLE_128 : KR_CU_MAP_SWIZZLE_64, KR_CU_MAP_PROMOTE_256, 0),
            "describing a tensor");
  return KRAIT_OK;
}

static int32_t make_gemm_maps(const krait_ctx *ctx, kr_gemm_hopper_params *h, int order, int bn) {
  const kr_gemm_params *p = &h->params;
  const int b_rows = p->B2.data ? bn / 2 : bn;
  if (order == KR_ORDER_MN) KR_TRY(make_map(ctx, &h->A, &p->A, p->M, p->K, p->P, 64, 64));
  else KR_TRY(make_map(ctx, &h->A, &p->A, p->K, p->M, p->P, 64, KR_HOPPER_BM));
  if (order == KR_ORDER_KK) KR_TRY(make_map(ctx, &h->B, &p->B, p->K, p->N, p->P, 64, b_rows));
  else KR_TRY(make_map(ctx, &h->B, &p->B, p->N, p->K, p->P, 64, 64));
  if (p->B2.data) KR_TRY(make_map(ctx, &h->B2, &p->B2, p->K, p->N, p->P, 64, b_rows));
  if (p->out.dtype == KRAIT_F32) return KRAIT_OK;
  return make_map(ctx, &h->out, &p->out, p->N, p->M, p->P, KR_HOPPER_BOX(b_rows), 64);
}

/* The columns [from, from + n) of a product. */
static kr_gemm_args gemm_columns_of(const kr_gemm_args *a, int64_t from, int64_t n) {
  kr_gemm_args part = *a;
  kr_view *const by_column[] = {&part.Bmat, &part.residual, &part.out, &part.bias};
  part.N = n;
  for (int i = 0; i < 4; i++) {
    kr_view *v = by_column[i];
    const int64_t step = v == &part.bias ? v->stride[0] : v->stride[1];
    if (v->data) v->data = (char *)v->data + from * step * (int64_t)krait_dtype_bytes(v->dtype);
  }
  return part;
}

/* Time of one launch; negative: K is split. */
static double cost_of_hopper(const krait_ctx *ctx, const kr_gemm_args *a) {
  kr_gemm_params p = kr_gemm_describe(a);
  const tile_cost *tile = hopper_tiles;
  for (const int bn = plan_hopper(ctx, &p); tile->bn != bn;) tile++;
  return p.n_splits > 1 ? -1 : gemm_cost_of(&p, tile, 1, KR_HOPPER_BK, kr_cuda_info(ctx->cuda)->n_multiprocessors);
}

/* Columns of the first of two launches, for when the last wave of tiles would leave many multiprocessors idle: whole
 * waves of the widest tile, then the remainder with its own tile. */
static int64_t first_columns(const krait_ctx *ctx, const kr_gemm_args *a) {
  enum { WIDEST = 256, LAUNCH = 3, MOST_TURNS = 8 };
  const int64_t n_m = gemm_ceil_div(a->M, 128), n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors,
                turns = n_m * gemm_ceil_div(a->N, WIDEST) / n_multiprocessors,
                n = turns * n_multiprocessors / n_m * WIDEST;
  if (turns > MOST_TURNS || n == 0 || n >= a->N || kr_has(&a->B2) || kr_gemm_products(a) > 1) return a->N;
  const kr_gemm_args first = gemm_columns_of(a, 0, n), second = gemm_columns_of(a, n, a->N - n);
  const double whole = cost_of_hopper(ctx, a), one = cost_of_hopper(ctx, &first), two = cost_of_hopper(ctx, &second);
  return one > 0 && two > 0 && one + two + LAUNCH < whole ? n : a->N;
}

static int32_t run_hopper(const krait_ctx *ctx, const kr_gemm_args *a) {
#define BY_WIDTH(name) \
  {BY_HALF("hopper", "_64", name), BY_HALF("hopper", "_128", name), BY_HALF("hopper", "_192", name), \
   BY_HALF("hopper", "_256", name)}
  static const kr_kernel kernels[2][4][2][KR_GEMM_ORDERS] = {BY_WIDTH("kr_gemm_hopper"),
                                                             BY_WIDTH("kr_gemm_hopper_active")};
  static const kr_kernel gated[2][2] = {
      {{"gemm_hopper_f16_gated_192", "kr_gemm_hopper_active"}, {"gemm_hopper_bf16_gated_192", "kr_gemm_hopper_active"}},
      {{"gemm_hopper_f16_gated", "kr_gemm_hopper_active"}, {"gemm_hopper_bf16_gated", "kr_gemm_hopper_active"}}};
  kr_gemm_hopper_params h = {.params = kr_gemm_describe(a)};
  const int bn = plan_hopper(ctx, &h.params), type = a->A.dtype == KRAIT_BF16, order = kr_gemm_order_of(&h.params),
            is_active = h.params.activation != KRAIT_ACT_NONE,
            n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  const int64_t units = (int64_t)h.params.n_m * h.params.n_n * h.params.P * h.params.n_splits;
  h.params.partial = a->call.scratch;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only for the current context */
  const int32_t status = make_gemm_maps(ctx, &h, order, bn);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  const kr_grid grid = {.x = (uint32_t)(units < n_multiprocessors ? units : n_multiprocessors),
                        .block = KR_HOPPER_THREADS,
                        .shared_bytes = (uint32_t)KR_HOPPER_SHARED_BYTES(bn),
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const kr_kernel *const kernel =
      h.params.B2.data ? &gated[bn == 256][type] : &kernels[is_active][bn / 64 - 1][type][order];
  return launch_all(ctx, KRAIT_CAP_CUDA_HOPPER, kernel, &grid, &h, &h.params);
}

int32_t kr_gemm_hopper(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  const int64_t n = first_columns(ctx, a);
  const kr_gemm_args first = gemm_columns_of(a, 0, n), second = gemm_columns_of(a, n, a->N - n);
  KR_TRY(run_hopper(ctx, &first));
  return second.N ? run_hopper(ctx, &second) : KRAIT_OK;
}

/* ---- hopper, float32 factors in two float16 parts ---------------------------------------------------------------- */

/* A factor's parts, as gemm_split.cu lays them out from `to`. */
static kr_split_params split_of(const kr_gemm_matrix *m, int64_t rows, int64_t columns, int64_t P, int n_parts) {
  const int is_turned = m->column != 1;
  const int64_t along = is_turned ? rows : columns, across = is_turned ? columns : rows;
  return (kr_split_params){.from = m->data,
                           .from_across = is_turned ? m->column : m->row,
                           .from_along = is_turned ? m->row : m->column,
                           .from_batch = m->batch,
                           .line = (along + 7) / 8 * 8,
                           .n_along = (int32_t)along,
                           .n_across = (int32_t)across,
                           .P = (int32_t)P,
                           .packs = m->packs,
                           .n_parts = n_parts,
                           .dtype = m->dtype};
}
static uint64_t split_bytes(const kr_split_params *s) {
  return kr_scratch_round((uint64_t)s->n_parts * 2 * (uint64_t)s->P * (uint64_t)s->n_across * (uint64_t)s->line);
}

/* Both factors' parts; where K lies across their rows, each column's largest number is found first, by runs of rows:
 * enough blocks for every multiprocessor, and few enough to be compared by all. */
static kr_split_factors describe_splits(const krait_ctx *ctx, const kr_gemm_params *p, int n_parts) {
  enum { BLOCKS = 4, LEAST_RUN = 32, MOST_RUNS = 64, OF_WARP = 256 * KR_SPLIT_PIECES };
  const int is_across[2] = {p->A.column != 1, p->B.column == 1};
  kr_split_factors f = {.of = {{.split = split_of(&p->A, p->M, p->K, p->P, n_parts)},
                               {.split = split_of(&p->B, p->K, p->N, p->P, n_parts)}}};
  for (int i = 0; i < 2; i++) {
    const kr_split_params *s = &f.of[i].split;
    while (KR_SPLIT_THREADS >> f.of[i].log_warps > 32 && OF_WARP << f.of[i].log_warps < s->n_along) f.of[i].log_warps++;
    if (!is_across[i]) continue;
    const int32_t strips = gemm_ceil_div(s->n_along, KR_SPLIT_COLUMNS) * s->P,
                  wanted = gemm_ceil_div(BLOCKS * kr_cuda_info(ctx->cuda)->n_multiprocessors, strips),
                  run = gemm_ceil_div(s->n_across, wanted < MOST_RUNS ? wanted : MOST_RUNS);
    f.of[i].run = run < LEAST_RUN ? LEAST_RUN : run;
    f.of[i].n_runs = gemm_ceil_div(s->n_across, f.of[i].run);
  }
  return f;
}

/* Gives both factors their places in the scratch (NULL: nowhere): parts, scales, and what these are found by. Returns
 * their bytes. */
static uint64_t place_splits(kr_split_factors *f, char *scratch) {
  uint64_t bytes = 0;
  for (int i = 0; i < 2; i++) {
    kr_split_params *s = &f->of[i].split;
    const uint64_t n = (uint64_t)(f->of[i].n_runs ? s->n_along : s->n_across), scales = bytes + split_bytes(s),
                   largest = scales + kr_scratch_round((uint64_t)s->P * n * sizeof(float));
    if (scratch) {
      s->to = (uint16_t *)(scratch + bytes);
      s->unscale = (float *)(scratch + scales);
      f->of[i].largest = (uint32_t *)(scratch + largest);
    }
    bytes =
        largest + kr_scratch_round((uint64_t)s->P * (uint64_t)f->of[i].n_runs * (uint64_t)s->line * sizeof(uint32_t));
  }
  return bytes;
}

/* Blocks that split a factor, or that find the largest numbers of its columns. */
static int32_t blocks_of_split(const kr_split_factor *f, int finds_largest) {
  const kr_split_params *s = &f->split;
  if (f->n_runs) return gemm_ceil_div(s->n_along, KR_SPLIT_COLUMNS) * f->n_runs * s->P;
  return finds_largest ? 0 : gemm_ceil_div((int64_t)s->n_across * s->P, (KR_SPLIT_THREADS / 32) >> f->log_warps);
}

static int32_t launch_splits(const krait_ctx *ctx, uint64_t tier, kr_split_factors *f, const kr_call *call) {
  static const kr_kernel kernels[2][2] = {
      {{"gemm_split", "kr_gemm_split"}, {"gemm_split", "kr_gemm_split_largest"}},
      {{"gemm_split_bf16", "kr_gemm_split"}, {"gemm_split_bf16", "kr_gemm_split_largest"}}};
  const int takes_pdl = tier == KRAIT_CAP_CUDA_HOPPER; /* others start behind their predecessor */
  int is_pdl = takes_pdl && (call->flags & KR_CALL_PDL) != 0;
  for (int largest = 1; largest >= 0; largest--) {
    f->n_first = blocks_of_split(&f->of[0], largest);
    const kr_grid grid = {.x = (uint32_t)(f->n_first + blocks_of_split(&f->of[1], largest)),
                          .block = KR_SPLIT_THREADS,
                          .is_pdl = is_pdl,
                          .stream = call->stream};
    if (!grid.x) continue;
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, &kernels[f->of[0].split.dtype == KRAIT_BF16][largest], &grid, f, sizeof *f));
    is_pdl = takes_pdl;
  }
  return KRAIT_OK;
}

/* The parts as one matrix of twice P products. */
static kr_gemm_matrix gemm_parts_of(const kr_split_params *s, const kr_gemm_matrix *m) {
  const int is_turned = m->column != 1;
  return (kr_gemm_matrix){.data = s->to,
                          .row = is_turned ? 1 : s->line,
                          .column = is_turned ? s->line : 1,
                          .batch = s->n_across * s->line,
                          .dtype = KRAIT_F16,
                          .packs = 1};
}

static void plan_hopper_halves(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{KR_HOPPER_HALVES_BN, 1, 1, 0.3}, {0}};
  choose_tiles(ctx, p, tiles, KR_HOPPER_BK);
}

static int lies_along(const kr_gemm_matrix *m) { return !m->data || m->row == 1 || m->column == 1; }

/* What tiles of split factors do not take. */
static const char *refuse_hopper_floats(const krait_ctx *ctx, const kr_gemm_args *a, int64_t shared_bytes) {
  const char *why = refuse_floats(ctx, a);
  if (why) return why;
  const kr_gemm_params p = kr_gemm_describe(a);
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (p.B2.data) return "a gated product";
  if (!lies_along(&p.A) || !lies_along(&p.B)) return "neither rows nor columns are contiguous";
  if (kr_cuda_info(ctx->cuda)->shared_bytes < shared_bytes) return "too little shared memory";
  const double stages = (double)gemm_ceil_div(a->M, KR_HOPPER_BM) * gemm_ceil_div(a->N, KR_HOPPER_HALVES_BN) *
                        gemm_ceil_div(a->K, KR_HOPPER_BK) * p.P;
  if (stages < kr_cuda_info(ctx->cuda)->n_multiprocessors) return "too small to split its factors first";
  if ((double)(a->M > a->N ? a->M : a->N) * (double)p.P > 1e8) return "too large for 32-bit numbers of blocks";
  return p.N % 2 != 0 || (p.residual.data && !pairs_take(&p.residual)) || !pairs_take(&p.out)
             ? "N must be even, and rows of residual and out aligned to pairs"
             : NULL;
}

const char *kr_gemm_hopper_halves_refuse(const krait_ctx *ctx, const void *args) {
  return refuse_hopper_floats(ctx, args, KR_HOPPER_HALVES_SHARED_BYTES);
}

uint64_t kr_gemm_hopper_halves_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  kr_split_factors factors = describe_splits(ctx, &p, KR_N_HALVES);
  plan_hopper_halves(ctx, &p);
  return gemm_partial_bytes(&p) + place_splits(&factors, NULL);
}

/* Splits the factors into the scratch's first bytes, from which partial sums then begin, and multiplies their parts by
 * tiles of bn columns. */
static int32_t run_hopper_floats(const krait_ctx *ctx, const kr_gemm_args *a, kr_gemm_hopper_params *h,
                                 const kr_kernel kernels[2][KR_GEMM_ORDERS], int bn, int n_parts,
                                 uint32_t shared_bytes) {
  kr_gemm_params parts = h->params;
  kr_split_factors factors = describe_splits(ctx, &parts, n_parts);
  const kr_split_params *const of_A = &factors.of[0].split, *const of_B = &factors.of[1].split;
  h->params.partial = (float *)((char *)a->call.scratch + place_splits(&factors, a->call.scratch));
  h->unscale_m = of_A->unscale, h->unscale_n = of_B->unscale;
  KR_TRY(launch_splits(ctx, KRAIT_CAP_CUDA_HOPPER, &factors, &a->call));
  parts.A = gemm_parts_of(of_A, &parts.A), parts.B = gemm_parts_of(of_B, &parts.B);
  parts.P *= n_parts;
  kr_gemm_hopper_params maps = {.params = parts};
  const int order = kr_gemm_order_of(&parts), n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  const int64_t units = (int64_t)h->params.n_m * h->params.n_n * h->params.P * h->params.n_splits;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only for the current context */
  const int32_t status = make_gemm_maps(ctx, &maps, order, bn);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  h->A = maps.A, h->B = maps.B;
  const kr_grid grid = {.x = (uint32_t)(units < n_multiprocessors ? units : n_multiprocessors),
                        .block = KR_HOPPER_THREADS,
                        .shared_bytes = shared_bytes,
                        .is_pdl = 1, /* behind the splitting */
                        .stream = a->call.stream};
  return launch_all(ctx, KRAIT_CAP_CUDA_HOPPER, &kernels[h->params.activation != KRAIT_ACT_NONE][order], &grid, h,
                    &h->params);
}

int32_t kr_gemm_hopper_halves(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[2][KR_GEMM_ORDERS] = {BY_ORDER("hopper", "halves", "", "kr_gemm_hopper"),
                                                       BY_ORDER("hopper", "halves", "", "kr_gemm_hopper_active")};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_hopper_params h = {.params = kr_gemm_describe(a)};
  plan_hopper_halves(ctx, &h.params);
  return run_hopper_floats(ctx, a, &h, kernels, KR_HOPPER_HALVES_BN, KR_N_HALVES, KR_HOPPER_HALVES_SHARED_BYTES);
}

/* ---- hopper, float32 factors rounded to float16, which has as many bits as tf32 ---------------------------------- */

static void plan_hopper_tf32(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{KR_HOPPER_TF32_BN, 1, 1, 1.4}, {0}};
  choose_tiles(ctx, p, tiles, KR_HOPPER_BK);
}

/* Multiplications for each multiprocessor below which the rounding takes as long as it saves. */
static const double LEAST_OF_TF32 = 0x1p23;

const char *kr_gemm_hopper_tf32_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (!(a->call.flags & KRAIT_GEMM_TF32)) return "the call does not allow tf32";
  const double least = LEAST_OF_TF32 * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (a->N < KR_HOPPER_TF32_BN * 3 / 4 || (double)a->M * (double)a->N * (double)a->K < least)
    return "too few columns or too small to round its factors first";
  return refuse_hopper_floats(ctx, a, KR_HOPPER_SHARED_BYTES(KR_HOPPER_TF32_BN));
}

uint64_t kr_gemm_hopper_tf32_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  kr_split_factors factors = describe_splits(ctx, &p, 1);
  plan_hopper_tf32(ctx, &p);
  return gemm_partial_bytes(&p) + place_splits(&factors, NULL);
}

int32_t kr_gemm_hopper_tf32(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[2][KR_GEMM_ORDERS] = {BY_ORDER("hopper", "f16", "_256", "kr_gemm_hopper"),
                                                       BY_ORDER("hopper", "f16", "_256", "kr_gemm_hopper_active")};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_hopper_params h = {.params = kr_gemm_describe(a)};
  plan_hopper_tf32(ctx, &h.params);
  return run_hopper_floats(ctx, a, &h, kernels, KR_HOPPER_TF32_BN, 1, KR_HOPPER_SHARED_BYTES(KR_HOPPER_TF32_BN));
}

/* ---- ampere and turing, the same; turing, bfloat16 factors as one part ------------------------------------------- */

/* Returns columns of a tile. */
static int plan_ampere_halves(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{128, 2, 6, 4}, {0}}, gated[] = {{256, 1, 6, 4}, {0}};
  return choose_tiles(ctx, p, p->B2.data ? gated : tiles, KR_AMPERE_K_BYTES / 2);
}

/* Tiles of 128 columns; gated ones of 64 of each factor. */
static int plan_turing_halves(const krait_ctx *ctx, kr_gemm_params *p) {
  static const tile_cost tiles[] = {{128, 1, 5.7, 5}, {0}};
  return choose_tiles(ctx, p, tiles, KR_AMPERE_K_BYTES / 2);
}

static uint32_t halves_bytes(int bn) { return KR_N_HALVES * KR_AMPERE_SHARED_BYTES(bn, KR_AMPERE_HALVES_STAGES); }

/* Calls whose scaled factors are made first: at least that many blocks of 128 x 128 results by 64 terms for a
 * multiprocessor, or multiply-adds would be done before the factors are there. */
static const char *refuse_scaled(const krait_ctx *ctx, const kr_gemm_args *a, int32_t dtype, uint32_t shared_bytes,
                                 double least) {
  const kr_gemm_params p = kr_gemm_describe(a);
  const kr_device_info *info = kr_cuda_info(ctx->cuda);
  const double stages = (double)gemm_ceil_div(a->M, 128) * gemm_ceil_div(a->N, 128) * gemm_ceil_div(a->K, 64) * p.P;
  if (p.B2.data && p.B2.dtype != dtype) return "B2 of another type than Bmat";
  if (!lies_along(&p.A) || !lies_along(&p.B) || !lies_along(&p.B2)) return "neither rows nor columns are contiguous";
  if (info->shared_bytes < shared_bytes) return "too little shared memory";
  if (stages < least * info->n_multiprocessors) return "too small to split its factors first";
  return (double)(a->M > a->N ? a->M : a->N) * (double)p.P < 1e8 ? NULL : "too large for 32-bit numbers of blocks";
}

const char *kr_gemm_ampere_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const char *why = kr_turing_refuse_parts(kr_cuda_info(ctx->cuda));
  if (!why) why = refuse_floats(ctx, a);
  return why ? why : refuse_scaled(ctx, a, KRAIT_F32, halves_bytes(kr_has(&a->B2) ? 256 : 128), 1);
}

const char *kr_gemm_turing_halves_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse_parts(kr_cuda_info(ctx->cuda));
  if (!why) why = refuse_floats(ctx, args);
  return why ? why : refuse_scaled(ctx, args, KRAIT_F32, halves_bytes(128), 0.5);
}

const char *kr_gemm_turing_scaled_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (a->A.dtype != KRAIT_BF16) return "not bfloat16";
  const char *why = kr_turing_refuse_device(kr_cuda_info(ctx->cuda));
  if (!why) why = kr_gemm_ampere_refuse(ctx, args);
  return why ? why : refuse_scaled(ctx, a, KRAIT_BF16, KR_AMPERE_SHARED_BYTES(256, KR_TURING_STAGES), 0.25);
}

/* The factors' parts: of A, B and, in a gated product, B2, with the places from the scratch's first byte on (NULL:
 * nowhere). Returns their bytes. */
static uint64_t place_scaled(const krait_ctx *ctx, const kr_gemm_params *p, char *scratch,
                             kr_split_factors factors[2]) {
  kr_gemm_params second = *p;
  const int n_parts = p->A.dtype == KRAIT_BF16 ? 1 : KR_N_HALVES;
  factors[0] = describe_splits(ctx, p, n_parts);
  const uint64_t bytes = place_splits(&factors[0], scratch);
  if (!p->B2.data) return bytes;
  second.B = p->B2, second.M = 0; /* A is split already */
  factors[1] = describe_splits(ctx, &second, n_parts);
  return bytes + place_splits(&factors[1], scratch ? scratch + bytes : NULL);
}

uint64_t kr_gemm_ampere_halves_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  kr_split_factors factors[2];
  plan_ampere_halves(ctx, &p);
  return gemm_partial_bytes(&p) + place_scaled(ctx, &p, NULL, factors);
}

uint64_t kr_gemm_turing_halves_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  kr_split_factors factors[2];
  plan_turing_halves(ctx, &p);
  return gemm_partial_bytes(&p) + place_scaled(ctx, &p, NULL, factors);
}

uint64_t kr_gemm_turing_scaled_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  kr_split_factors factors[2];
  plan_halves(ctx, &p);
  return gemm_partial_bytes(&p) + place_scaled(ctx, &p, NULL, factors);
}

/* Gives a product the parts of its factors, in the scratch's first bytes, from which partial sums then begin. */
static int32_t give_scaled(const krait_ctx *ctx, const kr_call *call, kr_gemm_halves_params *h, uint64_t tier) {
  kr_gemm_params *const p = &h->params;
  kr_split_factors f[2];
  p->partial = (float *)((char *)call->scratch + place_scaled(ctx, p, call->scratch, f));
  h->A = gemm_parts_of(&f[0].of[0].split, &p->A), h->unscale_m = f[0].of[0].split.unscale;
  h->B = gemm_parts_of(&f[0].of[1].split, &p->B), h->unscale_n = f[0].of[1].split.unscale;
  KR_TRY(launch_splits(ctx, tier, &f[0], call));
  if (!p->B2.data) return KRAIT_OK;
  h->B2 = gemm_parts_of(&f[1].of[1].split, &p->B2), h->unscale_n2 = f[1].of[1].split.unscale;
  return launch_splits(ctx, tier, &f[1], call);
}

int32_t kr_gemm_ampere_halves(const krait_ctx *ctx, const void *args) {
  static const kr_kernel plain[KR_GEMM_ORDERS] = BY_ORDER("ampere", "halves", "", "kr_gemm_ampere_128"),
                         gated = {"gemm_ampere_halves_kk", "kr_gemm_ampere_gated"};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_halves_params h = {.params = kr_gemm_describe(a)};
  kr_gemm_params *const p = &h.params;
  const int bn = plan_ampere_halves(ctx, p), order = kr_gemm_order_of(p);
  KR_TRY(give_scaled(ctx, &a->call, &h, KRAIT_CAP_CUDA_AMPERE));
  const kr_grid grid = mma_grid(a, p, bn, KR_N_HALVES * KR_AMPERE_HALVES_STAGES);
  return launch_all(ctx, KRAIT_CAP_CUDA_AMPERE, p->B2.data ? &gated : &plain[order], &grid, &h, p);
}

int32_t kr_gemm_turing_halves(const krait_ctx *ctx, const void *args) {
  static const kr_kernel plain[KR_GEMM_ORDERS] = BY_ORDER("turing", "halves", "", "kr_gemm_ampere_128"),
                         gated = {"gemm_turing_halves_kk", "kr_gemm_ampere_gated"};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_halves_params h = {.params = kr_gemm_describe(a)};
  kr_gemm_params *const p = &h.params;
  const int bn = plan_turing_halves(ctx, p), order = kr_gemm_order_of(p);
  KR_TRY(give_scaled(ctx, &a->call, &h, KRAIT_CAP_CUDA_TURING));
  kr_grid grid = mma_grid(a, p, bn, KR_N_HALVES * KR_TURING_STAGES);
  grid.block = 2 * (uint32_t)bn;
  return launch_all(ctx, KRAIT_CAP_CUDA_TURING, p->B2.data ? &gated : &plain[order], &grid, &h, p);
}

int32_t kr_gemm_turing_scaled(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_halves_params h = {.params = kr_gemm_describe(a)};
  const int bn = plan_halves(ctx, &h.params);
  KR_TRY(give_scaled(ctx, &a->call, &h, KRAIT_CAP_CUDA_TURING));
  return launch_turing(ctx, a, &h, bn);
}

/* ---- some rows --------------------------------------------------------------------------------------------------- */

/* Columns per block, and blocks sharing K (splits). */
typedef struct some_shape {
  int tile, n_splits;
} some_shape;

enum { LEAST_SOME_K = 512, SPLIT_COST = 4 };

/* No epilogue, and stores in whole runs of eight columns. */
static int is_bare(const kr_gemm_params *p) {
  return kr_gemm_is_bare_sum(p) && !p->residual.data && p->N % 8 == 0 && p->scale == 1 &&
         p->activation == KRAIT_ACT_NONE;
}

/* A block's reads, in columns and boxes of 64 k, as measured on an H200; 0: the shape does not fit. Clusters with one
 * block per multiprocessor cannot occupy all of them. A block takes several tiles in turn only of the widest ones, with
 * all of K and without an epilogue. */
static int64_t cost_of_some(const kr_gemm_params *p, some_shape s, int n_multiprocessors) {
  const int n_steps = gemm_ceil_div(p->K, KR_SOME_K), n_tiles = gemm_ceil_div(p->N, s.tile),
            most = s.n_splits > 1 ? n_multiprocessors * 7 / 8 : n_multiprocessors,
            n_rope_rows =
                s.n_splits == 1 && s.tile == KR_SOME_MOST_TILE && is_bare(p) ? gemm_ceil_div(n_tiles, most) : 1;
  if ((int64_t)n_tiles * s.n_splits > (int64_t)most * n_rope_rows || s.n_splits > n_steps) return 0;
  return (int64_t)(KR_SOME_BOXES * gemm_ceil_div(n_steps, s.n_splits) * n_rope_rows + 2 +
                   (s.n_splits > 4 ? SPLIT_COST : 0)) *
         (s.tile + KR_SOME_ROWS / 2);
}

/* n_splits 0: none fits. */
static some_shape choose_some(const krait_ctx *ctx, const kr_gemm_params *p) {
  some_shape best = {0};
  int64_t least = 0;
  for (int tile = 64; tile <= 96; tile += 16)
    for (int n = 1; n <= KR_SOME_MOST_SPLITS; n *= 2) {
      const some_shape s = {tile, n};
      const int64_t cost = cost_of_some(p, s, kr_cuda_info(ctx->cuda)->n_multiprocessors);
      if (cost && (!best.n_splits || cost < least)) best = s, least = cost;
    }
  return best;
}

const char *kr_gemm_m64_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const char *why = a->M > KR_SOME_ROWS ? "A has more than 64 rows" : refuse_halves(a);
  if (!why) why = kr_gemm_base_refuse(ctx, args);
  if (why) return why;
  const kr_gemm_params p = kr_gemm_describe(a);
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  if (p.P > 1 || p.B2.data) return "several products, or a gated one";
  if (p.K < LEAST_SOME_K || !choose_some(ctx, &p).n_splits)
    return "less than 512 inputs, or an epilogue with more columns than blocks for them run at once";
  if (!driver->TensorMapEncodeTiled || !driver->LaunchKernelEx) return "this driver has no tensor maps or no clusters";
  return kr_gemm_order_of(&p) == KR_ORDER_KK && boxes_take(&p.A, p.K, 1) && boxes_take(&p.B, p.K, 1)
             ? NULL
             : "K must lie side by side in A and Bmat, rows aligned to 16 bytes";
}

int32_t kr_gemm_m64(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[2] = {{"gemm_some_f16", "kr_gemm_m64"}, {"gemm_some_bf16", "kr_gemm_m64"}};
  const kr_gemm_args *a = args;
  if (a->M == 0) return KRAIT_OK;
  kr_gemm_m64_params s = {.params = kr_gemm_describe(a)};
  const some_shape shape = choose_some(ctx, &s.params);
  const int n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors,
            n_tiles = gemm_ceil_div(s.params.N, shape.tile), is_in_turns = n_tiles * shape.n_splits > n_multiprocessors;
  s.tile = shape.tile, s.out = s.params.out.data, s.out_row = s.params.out.row;
  s.is_plain = is_bare(&s.params) && s.params.out.dtype == s.params.A.dtype;
  s.n_steps = gemm_ceil_div(s.params.K, KR_SOME_K), s.n_splits = shape.n_splits;
  s.is_whole = is_bare(&s.params) && s.n_splits == 1;
  s.n_stages = is_in_turns ? KR_SOME_MOST_STAGES(shape.tile) : gemm_ceil_div(s.n_steps, s.n_splits);
  if (s.n_stages > KR_SOME_MOST_STAGES(shape.tile)) s.n_stages = KR_SOME_MOST_STAGES(shape.tile);
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only for the current context */
  int32_t status = make_map(ctx, &s.weights, &s.params.B, s.params.K, s.params.N, 1, 64, shape.tile);
  if (status >= 0) status = make_map(ctx, &s.rows, &s.params.A, s.params.K, s.params.M, 1, 64, KR_SOME_ROWS);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  const kr_grid grid = {.x = (uint32_t)(is_in_turns ? n_multiprocessors : n_tiles * s.n_splits),
                        .block = KR_SOME_THREADS,
                        .shared_bytes = (uint32_t)KR_SOME_SHARED_BYTES(shape.tile, s.n_stages),
                        .cluster = (uint32_t)s.n_splits,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &kernels[a->A.dtype == KRAIT_BF16], &grid, &s, sizeof s);
}

/* ---- very many terms --------------------------------------------------------------------------------------------- */

/* The shape of result that a block's warps hold. */
static const struct {
  int M, N;
  kr_kernel kernel;
} terms_shapes[] = {
#define SHAPE(M, N) {M, N, {"gemm_long_k", "kr_gemm_long_k_" #M "x" #N}}
    SHAPE(64, 64), SHAPE(128, 64), SHAPE(64, 128), SHAPE(256, 64), SHAPE(64, 256), SHAPE(128, 128),
#undef SHAPE
};
enum { N_TERMS_SHAPES = sizeof terms_shapes / sizeof *terms_shapes, LEAST_TERMS_STAGES = 4 };

/* The shape, or -1 for none; and the K splits: a block each. */
static int plan_terms(const krait_ctx *ctx, kr_gemm_params *p) {
  const int n_blocks = 2 * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int which = 0;
  while (which < N_TERMS_SHAPES && (terms_shapes[which].M < p->M || terms_shapes[which].N < p->N)) which++;
  if (which == N_TERMS_SHAPES || p->K < LEAST_TERMS_STAGES * KR_TERMS_DEPTH * n_blocks) return -1;
  p->k_split = gemm_ceil_div(gemm_ceil_div(p->K, n_blocks), KR_TERMS_DEPTH) * KR_TERMS_DEPTH;
  p->n_splits = gemm_ceil_div(p->K, p->k_split);
  p->sum_lanes = p->n_splits >= 64 ? 32 : p->n_splits >= 16 ? 4 : 1;
  p->partial_row = (p->N + 7) / 8 * 8;
  return which;
}

const char *kr_gemm_long_k_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_gemm_tf32_refuse(ctx, args);
  if (why) return why;
  kr_gemm_params p = kr_gemm_describe(args);
  const int which = plan_terms(ctx, &p);
  if (p.P > 1 || p.B2.data) return "several products, or a gated one";
  if (p.A.row != 1 || p.B.column != 1 || !p.A.packs || !p.B.packs || p.M % 4 || p.N % 4)
    return "the columns of A and the rows of Bmat do not lie side by side in 16 bytes";
  return which >= 0 && kr_cuda_info(ctx->cuda)->shared_bytes >=
                           KR_TERMS_SHARED_BYTES(terms_shapes[which].M, terms_shapes[which].N)
             ? NULL
             : "more than 256 x 64 or 128 x 128 results, or few terms";
}

uint64_t kr_gemm_long_k_scratch(const krait_ctx *ctx, const void *args) {
  kr_gemm_params p = kr_gemm_describe(args);
  return plan_terms(ctx, &p) < 0 ? 0 : gemm_partial_bytes(&p);
}

int32_t kr_gemm_long_k(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  kr_gemm_params p = kr_gemm_describe(a);
  const int which = plan_terms(ctx, &p);
  if (a->M == 0) return KRAIT_OK;
  p.partial = a->call.scratch;
  const kr_grid grid = {
      .x = (uint32_t)p.n_splits,
      .block = KR_TERMS_THREADS,
      .shared_bytes = KR_TERMS_SHARED_BYTES(terms_shapes[which].M, terms_shapes[which].N),
      .stream = a->call.stream};
  return launch_all(ctx, KRAIT_CAP_CUDA_AMPERE, &terms_shapes[which].kernel, &grid, &p, &p);
}
