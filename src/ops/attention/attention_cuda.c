/* attention_cuda.c: attention on a GPU. */
#include "attention_cuda.h"
#include "attention_base.h"
#include "attention_hopper.h"
#include "attention_join.h"

#include <math.h>

#include "overlap.h"
#include "cuda_impl.h"
#include "op_list.h"
#include "turing_impl.h"
#include "status.h"
#include "view.h"

/* (B,L,H,D) */
static kr_attention_tensor attention_tensor(const kr_view *v) {
  return (kr_attention_tensor){
      .data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .d = v->stride[3], .dtype = v->dtype};
}
/* (B,H,L) */
static kr_attention_tensor rows_tensor(const kr_view *v) {
  return (kr_attention_tensor){
      .data = v->data, .b = v->stride[0], .h = v->stride[1], .t = v->stride[2], .dtype = v->dtype};
}
static kr_attention_index attention_indices(const kr_view *v) { return (kr_attention_index){v->data, v->stride[0]}; }

/* No window need exceed the longest sequence. */
static int32_t window(int64_t keys) { return keys < 0 || keys > INT32_MAX / 4 ? -1 : (int32_t)keys; }
static int32_t clamp_size(int64_t n) { return n > INT32_MAX / 4 ? INT32_MAX / 4 : (int32_t)n; }

kr_attention_params kr_attention_params_of(const kr_attention_args *a) {
  const int windowed = (a->call.flags & KRAIT_ATTENTION_WINDOW) != 0, packed_q = kr_has(&a->cu_seqlens_q),
            packed_k = kr_has(&a->cu_seqlens_k);
  kr_attention_params p = {.B = (int32_t)a->B,
                         .H = (int32_t)a->H,
                         .heads = (int32_t)(a->H / a->Hk),
                         .D = (int32_t)a->D,
                         .Dv = (int32_t)a->Dv,
                         .Bk = (int32_t)a->Bk,
                         .n_pages = (int32_t)a->n_pages};
  p.q = attention_tensor(&a->q), p.k = attention_tensor(&a->k), p.v = attention_tensor(&a->v),
  p.out = attention_tensor(&a->out), p.lse = rows_tensor(&a->lse);
  p.Lq = clamp_size(a->Lq), p.Lk = clamp_size(a->Lk);
  p.rows_q = packed_q && a->max_q > 0 && a->max_q < a->Lq ? (int32_t)a->max_q : p.Lq;
  p.rows_k = kr_has(&a->block_table)                        ? clamp_size(a->Lk * a->n_pages)
             : packed_k && a->max_k > 0 && a->max_k < a->Lk ? (int32_t)a->max_k
                                                            : p.Lk;
  p.cu_q = attention_indices(&a->cu_seqlens_q), p.cu_k = attention_indices(&a->cu_seqlens_k),
  p.used_q = attention_indices(&a->seqused_q), p.used_k = attention_indices(&a->seqused_k);
  p.leftpad = attention_indices(&a->leftpad_k), p.cache_row = attention_indices(&a->cache_batch_idx),
  p.rng = attention_indices(&a->rng);
  p.table = (kr_attention_index){a->block_table.data, a->block_table.stride[1]}, p.table_b = a->block_table.stride[0];
  p.left = windowed ? window(a->window_left) : -1, p.right = a->call.flags & KRAIT_ATTENTION_CAUSAL ? 0
                                                             : windowed ? window(a->window_right)
                                                                        : -1;
  p.scale = a->scale != 0 ? a->scale : (float)(1 / sqrt((double)a->D)), p.softcap = a->softcap,
  p.scale_by_cap = a->softcap > 0 ? p.scale / a->softcap : 0;
  p.keep_below = (int32_t)(256 * (1 - a->dropout) + 0.5f), p.keep_scale = 1 / (1 - a->dropout);
  p.slopes = a->alibi_slopes.data, p.slopes_b = a->alibi_slopes.stride[0], p.slopes_h = a->alibi_slopes.stride[1];
  p.sinks = a->sinks.data, p.sinks_h = a->sinks.stride[0], p.sinks_dtype = a->sinks.dtype;
  return p;
}

const char *kr_attention_refuse_sizes(const kr_attention_params *p) {
  if (p->D > 256 || p->Dv > 256) return "heads of more than 256 channels";
  if (p->rows_q >= INT32_MAX / 4 || p->rows_k >= INT32_MAX / 4) return "more than 2^29 rows";
  if ((int64_t)p->B * p->H * (p->rows_q / 8 + 1) > INT32_MAX || (int64_t)p->B * p->H * (p->rows_k / 8 + 1) > INT32_MAX)
    return "more than 2^31 tiles";
  return NULL;
}

/* ---- base -------------------------------------------------------------------------------------------------------- */

const char *kr_attention_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  (void)ctx;
  return kr_attention_refuse_sizes(&p);
}

uint64_t kr_attention_base_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

int32_t kr_attention_base(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[] = {{"attention_base", "kr_attention_k2"},
                                      {"attention_base", "kr_attention_k4"},
                                      {"attention_base", "kr_attention_k8"}};
  const kr_attention_args *a = args;
  kr_attention_params p = kr_attention_params_of(a);
  const int widest = p.D > p.Dv ? p.D : p.Dv, which = widest > 128 ? 2 : widest > 64, K = 2 << which,
            rows = 4 * KR_ATTENTION_BASE_ROWS(K);
  p.n_q_tiles = (p.rows_q + rows - 1) / rows;
  const kr_grid grid = {.x = (uint32_t)p.n_q_tiles * (uint32_t)(p.B * p.H),
                        .block = KR_ATTENTION_BASE_THREADS,
                        .shared_bytes = KR_ATTENTION_BASE_SHARED(K, 1),
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernels[which], &grid, &p, sizeof p);
}

/* ---- base, tiles ------------------------------------------------------------------------------------------------- */

enum { FEWEST_TILE_ROWS = 17 };

/* Contiguous channels of at most two groups, in packs. */
static const char *refuse_wide_reads(const kr_attention_args *a, const kr_attention_params *p, int most_channels) {
  if (p->D > most_channels || p->D != p->Dv || p->D % 8 != 0)
    return "head size too large, not a multiple of eight, or different in v";
  if (p->rng.data) return "dropout";
  if (a->Lq == 0 || a->Lk == 0 || a->B == 0 || a->Bk == 0) return "nothing to do";
  if (p->out.d != 1 || !kr_attention_rows_take_packs(&p->q) || !kr_attention_rows_take_packs(&p->k) ||
      !kr_attention_rows_take_packs(&p->v))
    return "rows not 16-byte aligned";
  return p->k.dtype == p->q.dtype ? NULL : "q, k and v of several types";
}

const char *kr_attention_base_tiles_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  const char *why = kr_attention_base_refuse(ctx, args);
  if (why) return why;
  return p.rows_q < FEWEST_TILE_ROWS ? "fewer than 17 rows" : refuse_wide_reads(args, &p, 128);
}

uint64_t kr_attention_base_tiles_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

int32_t kr_attention_base_tiles(const krait_ctx *ctx, const void *args) {
#define TILES(name) \
  {{"attention_base_tiles_f32", name}, {"attention_base_tiles_f16", name}, {"attention_base_tiles_bf16", name}}
  static const kr_kernel kernels[2][3] = {TILES("kr_attention_tiles_64"), TILES("kr_attention_tiles_128")};
#undef TILES
  const kr_attention_args *a = args;
  kr_attention_params p = kr_attention_params_of(a);
  p.n_q_tiles = (p.rows_q + KR_ATTENTION_TILE_ROWS - 1) / KR_ATTENTION_TILE_ROWS;
  const kr_grid grid = {.x = (uint32_t)p.n_q_tiles * (uint32_t)(p.B * p.H),
                        .block = KR_ATTENTION_BASE_THREADS,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernels[p.D > 64][p.q.dtype], &grid, &p, sizeof p);
}

/* ---- ampere ------------------------------------------------------------------------------------------------------ */

int kr_attention_rows_take_packs(const kr_attention_tensor *t) {
  return t->d == 1 && t->t % 8 == 0 && t->h % 8 == 0 && t->b % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

int32_t kr_attention_heads_together(const krait_ctx *ctx, const kr_attention_params *p) {
  const int64_t bytes = (int64_t)p->rows_k * (p->D + p->Dv) * (int64_t)krait_dtype_bytes(p->k.dtype) / p->heads + 1,
                most = kr_cuda_info(ctx->cuda)->l2_bytes / 2 / bytes, all = (int64_t)p->B * p->H;
  const int64_t whole = most < p->heads ? p->heads : most / p->heads * p->heads, group = whole < all ? whole : all;
  const int64_t n = (all + group - 1) / group, each = (all + n - 1) / n; /* sections of equal size: in a smaller last
                                                                          * one the longest rows would start late */
  return (int32_t)((each + p->heads - 1) / p->heads * p->heads);
}

static int ampere_size(const kr_attention_params *p) { return p->D > 128 ? 2 : p->D > 64; }

const char *kr_attention_refuse_mma(const krait_ctx *ctx, const kr_attention_args *a, uint32_t shared_bytes) {
  const kr_attention_params p = kr_attention_params_of(a);
  const char *why = kr_attention_refuse_sizes(&p);
  if (why) return why;
  if (p.k.dtype != p.q.dtype) return "q and k of two types";
  if (p.D != p.Dv || p.D % 8 != 0) return "head size not a multiple of eight, or different in v";
  if (!(p.scale > 0)) return "a scale that is not positive";
  if (p.k.dtype != p.q.dtype) return "q, k and v of several types";
  if (a->Lq == 0 || a->Lk == 0 || a->B == 0 || a->Bk == 0) return "nothing to do";
  if (!kr_attention_rows_take_packs(&p.q) || !kr_attention_rows_take_packs(&p.k) ||
      !kr_attention_rows_take_packs(&p.v) || !kr_attention_rows_take_packs(&p.out))
    return "rows not 16-byte aligned";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_bytes ? "too little shared memory" : NULL;
}

const char *kr_attention_ampere_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  if (p.q.dtype == KRAIT_F32) return "float32";
  return kr_attention_refuse_mma(ctx, args, KR_ATTENTION_AMPERE_SHARED(64 << ampere_size(&p), 0));
}

uint64_t kr_attention_ampere_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_attention_parts_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

#define MMA(name) {{"attention_ampere_f16", name}, {"attention_ampere_bf16", name}, {"attention_turing_f16", name}}

kr_attention_mma kr_attention_plan_mma(const krait_ctx *ctx, kr_attention_params *p, int is_turing) {
  static const kr_kernel kernels[2][3][3] = {
      {MMA("kr_attention_ampere_64"), MMA("kr_attention_ampere_128"), MMA("kr_attention_ampere_256")},
      {MMA("kr_attention_ampere_64_any"), MMA("kr_attention_ampere_128_any"), MMA("kr_attention_ampere_256_any")}};
  const int which = ampere_size(p), D = 64 << which, rows = 64 * KR_AMPERE_M(D),
            any = p->softcap > 0 || p->slopes || p->rng.data;
  p->n_q_tiles = (p->rows_q + rows - 1) / rows, p->n_units = p->n_q_tiles * p->B * p->H,
  p->section = kr_attention_heads_together(ctx, p);
  return (kr_attention_mma){.kernel = &kernels[any][which][is_turing ? 2 : p->q.dtype == KRAIT_BF16],
                            .n_blocks = (uint32_t)p->n_units,
                            .shared_bytes = KR_ATTENTION_AMPERE_SHARED(D, is_turing)};
}
#undef MMA

int32_t kr_attention_ampere(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  kr_attention_params p = kr_attention_params_of(a);
  const kr_attention_mma m = kr_attention_plan_mma(ctx, &p, 0);
  const kr_grid grid = {.x = m.n_blocks,
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = m.shared_bytes,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, m.kernel, &grid, &p, sizeof p);
}

/* ---- ampere, float32 --------------------------------------------------------------------------------------------- */

const char *kr_attention_parts_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  if (p.q.dtype != KRAIT_F32) return "not float32";
  if (p.D > 128) return "head size above 128";
  return kr_attention_refuse_mma(ctx, args,
                                 p.D > 64 ? KR_ATTENTION_FLOATS_SHARED(128) : KR_ATTENTION_FLOATS_SHARED(64));
}

int32_t kr_attention_parts(const krait_ctx *ctx, const void *args) {
#define FLOATS(name) {"attention_ampere_f32", name}
  static const kr_kernel kernels[2][2] = {
      {FLOATS("kr_attention_floats_64"), FLOATS("kr_attention_floats_128")},
      {FLOATS("kr_attention_floats_64_any"), FLOATS("kr_attention_floats_128_any")}};
#undef FLOATS
  const kr_attention_args *a = args;
  kr_attention_params p = kr_attention_params_of(a);
  const int wide = p.D > 64, any = p.softcap > 0 || p.slopes || p.rng.data;
  p.n_q_tiles = (p.rows_q + KR_ATTENTION_FLOATS_ROWS - 1) / KR_ATTENTION_FLOATS_ROWS;
  p.n_units = p.n_q_tiles * p.B * p.H, p.section = kr_attention_heads_together(ctx, &p);
  const kr_grid grid = {.x = (uint32_t)p.n_units,
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = wide ? KR_ATTENTION_FLOATS_SHARED(128) : KR_ATTENTION_FLOATS_SHARED(64),
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels[any][wide], &grid, &p, sizeof p);
}

/* ---- ampere and turing, float32 in float16 parts ----------------------------------------------------------------- */

static uint32_t halves_shared(int wide, int rows, int is_turing) {
  return wide ? KR_HALVES_SHARED(rows, 128, is_turing) : KR_HALVES_SHARED(rows, 64, is_turing);
}

const char *kr_attention_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  const char *why = kr_attention_refuse_halves(&p);
  return why ? why : kr_attention_refuse_mma(ctx, args, halves_shared(p.D > 64, 128, 0));
}

/* Three products for one, as in gemm_cuda.c: not where multiply-adds are nearly as fast. */
const char *kr_attention_turing_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  const char *why = kr_turing_refuse_parts(kr_cuda_info(ctx->cuda));
  if (!why) why = kr_attention_refuse_halves(&p);
  return why ? why : kr_attention_refuse_mma(ctx, args, halves_shared(p.D > 64, p.D > 64 ? 64 : 128, 1));
}

/* Blocks of 128 rows, or 64 that are half as long, two at a time. */
static kr_halves_groups halves_groups(const krait_ctx *ctx, const kr_attention_params *p) {
  return kr_attention_group_halves(ctx, p, 4, 0);
}

uint64_t kr_attention_halves_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  return halves_groups(ctx, &p).bytes;
}
uint64_t kr_attention_turing_halves_scratch(const krait_ctx *ctx, const void *args) {
  return kr_attention_halves_scratch(ctx, args);
}

/* Rows of a block: 64 where blocks of 128 would leave multiprocessors without work or, if they see unlike numbers of
 * keys, so few turns that the longest block decides. */
static int rows_of_halves(const krait_ctx *ctx, const kr_attention_params *p) {
  enum { AT_ONCE = 2, TURNS = 4 };
  const int64_t blocks = (int64_t)((p->rows_q + 127) / 128) * p->B * p->H,
                n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  const int is_unequal = p->left >= 0 || p->right >= 0;
  return blocks < (is_unequal ? AT_ONCE * TURNS * n : n) ? 64 : 128;
}

static int32_t run_halves_group(const krait_ctx *ctx, const kr_attention_params *group, void *scratch, void *stream,
                                uint64_t tier) {
#define HALVES(module, name) {{module, name "_small"}, {module, name}}
  static const kr_kernel kernels[2][2][2] = {{HALVES("attention_ampere_halves", "kr_attention_halves_64"),
                                              HALVES("attention_ampere_halves", "kr_attention_halves_128")},
                                             {HALVES("attention_turing_halves", "kr_attention_halves_64"),
                                              HALVES("attention_turing_halves", "kr_attention_halves_128")}};
#undef HALVES
  kr_attention_halves_params h = {.params = *group};
  kr_attention_params *p = &h.params;
  const int wide = p->D > 64, is_turing = tier == KRAIT_CAP_CUDA_TURING,
            rows = wide && is_turing ? 64 : rows_of_halves(ctx, p);
  p->n_q_tiles = (p->rows_q + rows - 1) / rows;
  p->n_units = p->n_q_tiles * p->B * p->H, p->section = kr_attention_heads_together(ctx, p);
  KR_TRY(kr_attention_halve(ctx, &h, KR_HALVES_K, KR_HALVES_V, scratch, stream, tier));
  const kr_grid grid = {.x = (uint32_t)p->n_units,
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = halves_shared(wide, rows, is_turing),
                        .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernels[is_turing][wide][rows == 128], &grid, &h, sizeof h);
}

static int32_t run_attention_halves(const krait_ctx *ctx, const kr_attention_args *a, uint64_t tier) {
  const kr_attention_params p = kr_attention_params_of(a);
  const kr_halves_groups groups = halves_groups(ctx, &p);
  for (int32_t i = 0; i < groups.n; i++) {
    const kr_attention_params group = kr_attention_group_of(&p, &groups, i);
    KR_TRY(run_halves_group(ctx, &group, a->call.scratch, a->call.stream, tier));
  }
  return KRAIT_OK;
}

int32_t kr_attention_halves(const krait_ctx *ctx, const void *args) {
  return run_attention_halves(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_attention_turing_halves(const krait_ctx *ctx, const void *args) {
  return run_attention_halves(ctx, args, KRAIT_CAP_CUDA_TURING);
}

/* ---- few rows, many keys (split over keys) ----------------------------------------------------------------------- */

enum { MOST_ROWS = 64, MOST_SPLITS = 128, KEYS_OF_A_SPLIT = 128, KEYS_OF_A_FEW_SPLIT = 32 };

const char *kr_attention_keys_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  if ((int64_t)p.rows_q * p.heads > MOST_ROWS) return "more than 64 rows per key head";
  if (p.D > 128) return "head size above 128";
  if (p.rng.data) return "dropout";
  if (p.out.dtype == KRAIT_F32) return "float32";
  return kr_attention_ampere_refuse(ctx, args);
}

/* Enough parts to fill the device, none of fewer than `keys`. rows: of a block; at_once: blocks of a multiprocessor. */
static void plan_keys(const krait_ctx *ctx, kr_attention_params *p, int rows, int at_once, int keys) {
  const int64_t slots = (int64_t)at_once * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  p->n_q_tiles = (p->rows_q * p->heads + rows - 1) / rows;
  const int64_t blocks = (int64_t)p->n_q_tiles * p->B * (p->H / p->heads),
                most = p->rows_k / keys < MOST_SPLITS ? p->rows_k / keys : MOST_SPLITS;
  double best = 0;
  p->n_splits = 1;
  for (int64_t n = 1; n <= most; n++) {
    const int64_t all = blocks * n, waves = (all + slots - 1) / slots;
    const double use = (double)all / (double)(waves * slots);
    if (use > best + 0.05) best = use, p->n_splits = (int32_t)n;
  }
}

static kr_attention_params keys_params_of(const krait_ctx *ctx, const void *args) {
  kr_attention_params p = kr_attention_params_of(args);
  plan_keys(ctx, &p, 16, 2, KEYS_OF_A_SPLIT);
  return p;
}

static uint64_t parts_bytes(const kr_attention_params *p) {
  return p->n_splits == 1 ? 0
                          : (uint64_t)p->n_splits * (uint64_t)p->B * (uint64_t)p->H * (uint64_t)p->rows_q *
                                (uint64_t)(p->D + 1) * sizeof(float);
}

uint64_t kr_attention_keys_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = keys_params_of(ctx, args);
  return parts_bytes(&p);
}

/* Whether the second kernel is launched while the first runs: that costs two launches instead of one chain, so only
 * where there is much to read. */
static int joins_ahead(const krait_ctx *ctx, const kr_attention_params *p, const kr_grid *grid) {
  const int64_t bytes = (int64_t)p->rows_k * p->B * (p->H / p->heads) * (p->D + p->Dv) * 2;
  return p->n_splits > 1 && !grid->is_pdl && bytes >= (int64_t)32 << 20 && kr_cuda_has_pdl(ctx->cuda);
}

int32_t kr_attention_keys(const krait_ctx *ctx, const void *args) {
  static const kr_kernel parts[2][2] = {
      {{"attention_keys_f16", "kr_attention_keys_64"}, {"attention_keys_bf16", "kr_attention_keys_64"}},
      {{"attention_keys_f16", "kr_attention_keys_128"}, {"attention_keys_bf16", "kr_attention_keys_128"}}};
  static const kr_kernel joins[2] = {{"attention_keys_f16", "kr_attention_join"},
                                     {"attention_keys_bf16", "kr_attention_join"}};
  const kr_attention_args *a = args;
  kr_attention_params p = keys_params_of(ctx, a);
  p.partial = a->call.scratch;
  const int wide = p.D > 64, bf16 = p.q.dtype == KRAIT_BF16;
  const kr_grid grid = {.x = (uint32_t)(p.n_q_tiles * p.B * (p.H / p.heads) * p.n_splits),
                        .block = KR_ATTENTION_KEYS_THREADS,
                        .shared_bytes = KR_ATTENTION_KEYS_SHARED(wide ? 128 : 64),
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const kr_grid rows = {.x = (uint32_t)(p.B * p.H * p.rows_q * KR_ATTENTION_JOIN_CHUNKS(p.D)),
                        .block = KR_ATTENTION_KEYS_THREADS,
                        .is_pdl = grid.is_pdl,
                        .stream = a->call.stream};
  if (joins_ahead(ctx, &p, &grid)) {
    kr_grid ahead = rows;
    ahead.is_pdl = 1;
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &parts[wide][bf16], &grid, &p, sizeof p));
    return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &joins[bf16], &ahead, &p, sizeof p);
  }
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &parts[wide][bf16], &grid, &p);
  if (p.n_splits > 1) kr_chain_add(&chain, &joins[bf16], &rows, &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &chain);
}

/* ---- the same by multiply-adds, for every GPU and type ----------------------------------------------------------- */

enum { MOST_FEW_ROWS = 16, FEWEST_FEW_KEYS = 32 };

const char *kr_attention_few_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  const kr_attention_params p = kr_attention_params_of(a);
  const char *why = kr_attention_base_refuse(ctx, args);
  if (why) return why;
  if ((int64_t)p.rows_q * p.heads > MOST_FEW_ROWS) return "more than 16 rows per key head";
  return p.rows_k < FEWEST_FEW_KEYS ? "fewer than 32 keys" : refuse_wide_reads(a, &p, 256);
}

static kr_attention_params few_params_of(const krait_ctx *ctx, const void *args) {
  kr_attention_params p = kr_attention_params_of(args);
  plan_keys(ctx, &p, KR_ATTENTION_FEW_ROWS, 4, KEYS_OF_A_FEW_SPLIT);
  return p;
}

uint64_t kr_attention_few_base_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = few_params_of(ctx, args);
  return parts_bytes(&p);
}

int32_t kr_attention_few_base(const krait_ctx *ctx, const void *args) {
#define FEW(name) {{"attention_few_f32", name}, {"attention_few_f16", name}, {"attention_few_bf16", name}}
  static const kr_kernel parts[3][3] = {FEW("kr_attention_few_64"), FEW("kr_attention_few_128"),
                                        FEW("kr_attention_few_256")},
                         joins[3] = FEW("kr_attention_few_join");
#undef FEW
  const kr_attention_args *a = args;
  kr_attention_params p = few_params_of(ctx, a);
  p.partial = a->call.scratch;
  const kr_grid grid = {.x = (uint32_t)(p.n_q_tiles * p.B * (p.H / p.heads) * p.n_splits),
                        .block = KR_ATTENTION_KEYS_THREADS,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream},
                rows = {.x = (uint32_t)(p.B * p.H * p.rows_q * KR_ATTENTION_JOIN_CHUNKS(p.D)),
                        .block = KR_ATTENTION_KEYS_THREADS,
                        .is_pdl = grid.is_pdl,
                        .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &parts[ampere_size(&p)][p.q.dtype], &grid, &p);
  if (p.n_splits > 1) kr_chain_add(&chain, &joins[p.q.dtype], &rows, &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &chain);
}

/* ---- hopper ------------------------------------------------------------------------------------------------------ */

int kr_attention_boxes_take(const kr_attention_tensor *t, int64_t L, int64_t H, int64_t B) {
  const int64_t limit = (int64_t)1 << 38;
  if (t->d != 1 || (uintptr_t)t->data % 16 != 0) return 0;
  if ((L > 1 && (t->t % 8 != 0 || t->t <= 0 || t->t >= limit)) ||
      (H > 1 && (t->h % 8 != 0 || t->h <= 0 || t->h >= limit)))
    return 0;
  return B <= 1 || (t->b % 8 == 0 && t->b > 0 && t->b < limit);
}

/* Head size of the kernel to use. */
static int hopper_channels(const kr_attention_params *p) { return p->D > 128 ? 256 : p->D > 64 ? 128 : 64; }

const char *kr_attention_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  const kr_attention_params p = kr_attention_params_of(a);
  const char *why = kr_attention_refuse_sizes(&p);
  if (why) return why;
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (p.q.dtype == KRAIT_F32) return "float32";
  if (p.D != p.Dv || p.D % 8 != 0) return "head size not a multiple of eight, or different in v";
  if (p.softcap > 0 || p.slopes || p.rng.data) return "softcap, alibi_slopes or dropout";
  if (p.table.data) return "pages";
  if (!(p.scale > 0)) return "a scale that is not positive";
  if (a->Lq == 0 || a->Lk == 0 || a->B == 0 || a->Bk == 0) return "nothing to do";
  const int64_t Bq = kr_has(&a->cu_seqlens_q) ? 1 : a->B;
  if (!kr_attention_boxes_take(&p.q, a->Lq, a->H, Bq) || !kr_attention_boxes_take(&p.k, a->Lk, a->Hk, a->Bk) ||
      !kr_attention_boxes_take(&p.v, a->Lk, a->Hk, a->Bk) || !kr_attention_rows_take_packs(&p.out))
    return "rows not 16-byte aligned";
  const int D = hopper_channels(&p);
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)KR_HOPPER_SHARED(D, KR_HOPPER_KEYS(D))
             ? "too little shared memory"
             : NULL;
}

/* Whether rows may see different numbers of keys and a block gets more than one tile of them. */
static int takes_next(const krait_ctx *ctx, const kr_attention_params *p) {
  const int rows = KR_HOPPER_ROWS(hopper_channels(p));
  return (p->left >= 0 || p->right >= 0 || p->cu_q.data || p->used_q.data || p->used_k.data) &&
         (int64_t)((p->rows_q + rows - 1) / rows) * p->B * p->H > kr_cuda_info(ctx->cuda)->n_multiprocessors;
}

uint64_t kr_attention_hopper_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  return takes_next(ctx, &p) ? sizeof(int32_t) : 0;
}

/* The stride of a dimension of one element is ignored. */
int32_t kr_attention_make_map(const krait_ctx *ctx, kr_attention_map *map, const kr_attention_tensor *t, int64_t D,
                              int64_t L, int64_t H, int64_t B, int rows) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t sizes[4] = {(uint64_t)D, (uint64_t)L, (uint64_t)H, (uint64_t)B};
  const uint64_t strides[3] = {(uint64_t)(L > 1 ? t->t : 128) * 2, (uint64_t)(H > 1 ? t->h : 128) * 2,
                               (uint64_t)(B > 1 ? t->b : 128) * 2};
  const uint32_t box[4] = {64, (uint32_t)rows, 1, 1}, steps[4] = {1, 1, 1, 1};
  const int type = t->dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver,
            TensorMapEncodeTiled(map, type, 4, t->data, sizes, strides, box, steps, 0, KR_CU_MAP_SWIZZLE_128,
                                 KR_CU_MAP_PROMOTE_256, 0),
            "describing a tensor");
  return KRAIT_OK;
}

static int32_t make_attention_maps(const krait_ctx *ctx, kr_attention_hopper_params *h, const kr_attention_args *a,
                                   int rows, int keys) {
  KR_TRY(kr_attention_make_map(ctx, &h->q, &h->params.q, a->D, a->Lq, a->H, kr_has(&a->cu_seqlens_q) ? 1 : a->B, rows));
  KR_TRY(kr_attention_make_map(ctx, &h->k, &h->params.k, a->D, a->Lk, a->Hk, a->Bk, keys));
  return kr_attention_make_map(ctx, &h->v, &h->params.v, a->D, a->Lk, a->Hk, a->Bk, keys);
}

int32_t kr_attention_hopper(const krait_ctx *ctx, const void *args) {
#define HOPPER(name, wide)                                                         \
  {{"attention_hopper_f16_64", name}, {"attention_hopper_bf16_64", name}},         \
      {{"attention_hopper_f16_128", name}, {"attention_hopper_bf16_128", name}}, { \
    {"attention_hopper_f16_256", wide}, { "attention_hopper_bf16_256", wide }      \
  }
  static const kr_kernel kernels[2][3][2] = {{HOPPER("kr_attention_hopper", "kr_attention_hopper_edged")},
                                             {HOPPER("kr_attention_hopper_edged", "kr_attention_hopper_edged")}},
                         begins[3][2] = {HOPPER("kr_attention_hopper_begin", "kr_attention_hopper_begin")};
#undef HOPPER
  const kr_attention_args *a = args;
  kr_attention_hopper_params h = {.params = kr_attention_params_of(a)};
  kr_attention_params *p = &h.params;
  const int D = hopper_channels(p), size = D / 128, rows = KR_HOPPER_ROWS(D), keys = KR_HOPPER_KEYS(D),
            edged = p->left >= 0 || p->right >= 0, bf16 = p->q.dtype == KRAIT_BF16;
  p->n_q_tiles = (p->rows_q + rows - 1) / rows, p->n_units = p->n_q_tiles * p->B * p->H,
  p->section = kr_attention_heads_together(ctx, p);
  if (takes_next(ctx, p)) p->next_unit = a->call.scratch;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* tensor maps need a current context */
  const int32_t status = make_attention_maps(ctx, &h, a, KR_HOPPER_PAIRS(*p, D) ? 64 : rows, keys),
                n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  const kr_grid grid = {.x = (uint32_t)(p->n_units < n_multiprocessors ? p->n_units : n_multiprocessors),
                        .block = (uint32_t)KR_HOPPER_THREADS_OF(D),
                        .shared_bytes = KR_HOPPER_SHARED(D, keys),
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream},
                one = {.x = 1, .block = 32, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  if (p->next_unit) kr_chain_add(&chain, &begins[size][bf16], &one, &h);
  kr_chain_add(&chain, &kernels[edged][size][bf16], &grid, &h);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &chain);
}
