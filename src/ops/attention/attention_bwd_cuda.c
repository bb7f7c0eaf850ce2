/* attention_bwd_cuda.c: the gradient of attention on a GPU. */
#include <string.h>

#include "attention_cuda.h"
#include "attention_f32_bwd.h"
#include "attention_sums.h"
#include "cuda_impl.h"
#include "op_list.h"
#include "turing_impl.h"
#include "status.h"
#include "view.h"

static kr_attention_tensor attention_bwd_tensor(const kr_view *v) {
  return (kr_attention_tensor){
      .data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .d = v->stride[3], .dtype = v->dtype};
}

kr_attention_params kr_attention_bwd_params_of(const kr_attention_bwd_args *b) {
  kr_attention_args a = {.call = b->call,
                            .B = b->B,
                            .Lq = b->Lq,
                            .Lk = b->Lk,
                            .H = b->H,
                            .Hk = b->Hk,
                            .D = b->D,
                            .Dv = b->Dv,
                            .Bk = b->Bk,
                            .n_pages = b->n_pages,
                            .max_q = b->max_q,
                            .max_k = b->max_k,
                            .window_left = b->window_left,
                            .window_right = b->window_right,
                            .scale = b->scale,
                            .softcap = b->softcap,
                            .dropout = b->dropout,
                            .q = b->q,
                            .k = b->k,
                            .v = b->v,
                            .cu_seqlens_q = b->cu_seqlens_q,
                            .cu_seqlens_k = b->cu_seqlens_k,
                            .seqused_q = b->seqused_q,
                            .seqused_k = b->seqused_k,
                            .alibi_slopes = b->alibi_slopes,
                            .sinks = b->sinks,
                            .rng = b->rng,
                            .out = b->out,
                            .lse = b->lse};
  kr_attention_params p = kr_attention_params_of(&a);
  p.dout = attention_bwd_tensor(&b->dout), p.dq = attention_bwd_tensor(&b->dq), p.dk = attention_bwd_tensor(&b->dk),
  p.dv = attention_bwd_tensor(&b->dv);
  p.dlse = (kr_attention_tensor){.data = b->dlse.data,
                                 .b = b->dlse.stride[0],
                                 .h = b->dlse.stride[1],
                                 .t = b->dlse.stride[2],
                                 .dtype = b->dlse.dtype};
  p.dsinks = (kr_attention_tensor){.data = b->dsinks.data, .h = b->dsinks.stride[0], .dtype = b->dsinks.dtype};
  p.delta = b->call.scratch;
  p.delta_h = (kr_has(&b->cu_seqlens_q) ? 1 : b->B) * b->Lq;
  return p;
}

const char *kr_attention_bwd_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_bwd_params_of(args);
  (void)ctx;
  return kr_attention_refuse_sizes(&p);
}

uint64_t kr_attention_bwd_base_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  (void)ctx;
  return (uint64_t)(kr_has(&a->cu_seqlens_q) ? 1 : a->B) * (uint64_t)a->Lq * (uint64_t)a->H * sizeof(float);
}

static int delta_takes_packs(const kr_attention_params *p) {
  const int bytes = (int)krait_dtype_bytes(p->out.dtype);
  return p->Dv <= 128 && p->Dv % 8 == 0 && bytes == 2 && p->dout.dtype == p->out.dtype &&
         kr_attention_rows_take_packs(&p->out) && kr_attention_rows_take_packs(&p->dout);
}

/* Launches that every row starts with. */
static void add_delta(kr_chain *chain, const kr_attention_params *p, void *stream) {
  static const kr_kernel delta = {"attention_base_bwd", "kr_attention_delta"},
                         packs[] = {{"attention_base_bwd", "kr_attention_delta_64"},
                                    {"attention_base_bwd", "kr_attention_delta_128"}},
                         dsinks = {"attention_base_bwd", "kr_attention_dsinks"};
  const int takes_packs = delta_takes_packs(p), wide = p->Dv > 64,
            own = takes_packs ? KR_ATTENTION_DELTA_ROWS(wide ? 16 : 8) : 4;
  const kr_grid rows = {.x = (uint32_t)((p->rows_q + own - 1) / own) * (uint32_t)(p->B * p->H),
                        .block = KR_ATTENTION_BASE_THREADS,
                        .stream = stream};
  const kr_grid heads = {.x = (uint32_t)p->H, .block = KR_ATTENTION_BASE_THREADS, .stream = stream};
  kr_chain_add(chain, takes_packs ? &packs[wide] : &delta, &rows, p);
  if (p->dsinks.data) kr_chain_add(chain, &dsinks, &heads, p);
}

#define BY_SIZE(name) \
  {{"attention_base_bwd", name "_k2"}, {"attention_base_bwd", name "_k4"}, {"attention_base_bwd", name "_k8"}}

int32_t kr_attention_bwd_base(const krait_ctx *ctx, const void *args) {
  static const kr_kernel dq[] = BY_SIZE("kr_attention_dq"), dkv[] = BY_SIZE("kr_attention_dkv");
  const kr_attention_bwd_args *a = args;
  kr_attention_params p = kr_attention_bwd_params_of(a);
  const int widest = p.D > p.Dv ? p.D : p.Dv, which = widest > 128 ? 2 : widest > 64, K = 2 << which,
            rows = 4 * KR_ATTENTION_BASE_ROWS(K), all = p.B * p.H;
  p.n_q_tiles = (p.rows_q + rows - 1) / rows;
  kr_grid grid = {.x = (uint32_t)p.n_q_tiles * (uint32_t)all,
                  .block = KR_ATTENTION_BASE_THREADS,
                  .shared_bytes = KR_ATTENTION_BASE_SHARED(K, 2),
                  .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  add_delta(&chain, &p, a->call.stream);
  if (p.dq.data) kr_chain_add(&chain, &dq[which], &grid, &p);
  grid.x = (uint32_t)((p.rows_k + rows - 1) / rows) * (uint32_t)(all / p.heads);
  if (p.dk.data || p.dv.data) kr_chain_add(&chain, &dkv[which], &grid, &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &chain);
}

/* How many key heads, in blocks of 128 keys per multiprocessor, run at the same time; no more than fit, with rows and
 * sums, in half of the L2 cache. */
static int32_t keys_together(const krait_ctx *ctx, const kr_attention_params *p, int64_t D) {
  const kr_device_info *info = kr_cuda_info(ctx->cuda);
  const int64_t bytes = (int64_t)p->rows_q * p->heads * D * 8 + (int64_t)p->rows_k * D * 4 + 1,
                fit = info->l2_bytes / 2 / bytes, n_keys = p->rows_k > 0 ? p->rows_k : 1,
                run = ((int64_t)info->n_multiprocessors * 128 + n_keys / 2) / n_keys, most = fit < run ? fit : run,
                all = (int64_t)p->B * p->H / p->heads;
  return (int32_t)(most < 1 ? 1 : most < all ? most : all);
}

/* ---- ampere ------------------------------------------------------------------------------------------------------ */

/* Of the kernels on warp-level tensor cores. */
static const char *refuse_bwd_mma(const krait_ctx *ctx, const kr_attention_bwd_args *a, uint32_t shared_bytes) {
  const kr_attention_params p = kr_attention_bwd_params_of(a);
  const char *why = kr_attention_refuse_sizes(&p);
  if (why) return why;
  if (p.lse.dtype != KRAIT_F32) return "lse is not float32";
  if (p.dout.dtype != p.q.dtype || (p.dq.data && p.dq.dtype != p.q.dtype) || (p.dk.data && p.dk.dtype != p.q.dtype) ||
      (p.dv.data && p.dv.dtype != p.q.dtype))
    return "a gradient differs in type from q";
  if (p.D != p.Dv || p.D % 8 != 0 || p.D > 128)
    return "head size above 128, not a multiple of eight, or different in v";
  if (!(p.scale > 0)) return "a scale that is not positive";
  if (a->Lq == 0 || a->Lk == 0 || a->B == 0 || a->Bk == 0) return "nothing to do";
  const kr_attention_tensor *const all[] = {&p.q, &p.k, &p.v, &p.dout, &p.dq, &p.dk, &p.dv};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]->data && !kr_attention_rows_take_packs(all[i])) return "rows not 16-byte aligned";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_bytes ? "too little shared memory" : NULL;
}

const char *kr_attention_bwd_ampere_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  if (a->q.dtype == KRAIT_F32) return "float32";
  return refuse_bwd_mma(ctx, a, a->D > 64 ? KR_ATTENTION_DKV_SHARED(128, 1, 0) : KR_ATTENTION_DKV_SHARED(64, 1, 0));
}

const char *kr_attention_bwd_turing_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const uint32_t needed = a->D > 64 ? KR_ATTENTION_DQ_SHARED(128, 1) : KR_ATTENTION_DKV_SHARED(64, 0, 1);
  const char *why = kr_turing_refuse(a->q.dtype);
  return why ? why : refuse_bwd_mma(ctx, a, needed);
}

uint64_t kr_attention_bwd_ampere_scratch(const krait_ctx *ctx, const void *args) {
  return kr_attention_bwd_base_scratch(ctx, args);
}
uint64_t kr_attention_bwd_turing_scratch(const krait_ctx *ctx, const void *args) {
  return kr_attention_bwd_base_scratch(ctx, args);
}

#define MMA(name) \
  {{"attention_ampere_bwd_f16", name}, {"attention_ampere_bwd_bf16", name}, {"attention_turing_bwd_f16", name}}
#define MMA_SIZES(name) {{MMA(name "_64"), MMA(name "_128")}, {MMA(name "_64_any"), MMA(name "_128_any")}}

static int32_t run_bwd_mma(const krait_ctx *ctx, const kr_attention_bwd_args *a, uint64_t tier) {
  static const kr_kernel dq[2][2][3] = MMA_SIZES("kr_attention_dq"), dkv[2][2][3] = MMA_SIZES("kr_attention_dkv");
  kr_attention_params p = kr_attention_bwd_params_of(a);
  const int any = p.softcap > 0 || p.slopes || p.rng.data, wide = p.D > 64, D = wide ? 128 : 64,
            is_turing = tier == KRAIT_CAP_CUDA_TURING, type = is_turing ? 2 : p.q.dtype == KRAIT_BF16, all = p.B * p.H,
            tile = 64 * KR_AMPERE_DQ_M(D, is_turing);
  p.n_q_tiles = (p.rows_q + tile - 1) / tile, p.section = kr_attention_heads_together(ctx, &p);
  kr_attention_params by_keys = p;
  by_keys.section = keys_together(ctx, &p, D);
  kr_chain first = {.n = 0}, rest = {.n = 0};
  add_delta(&first, &p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  const kr_grid rows = {.x = (uint32_t)p.n_q_tiles * (uint32_t)all,
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = KR_ATTENTION_DQ_SHARED(D, is_turing),
                        .stream = a->call.stream};
  const int own = KR_AMPERE_DKV_KEYS(D, any);
  const kr_grid keys = {.x = (uint32_t)((p.rows_k + own - 1) / own) * (uint32_t)(all / p.heads),
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = KR_ATTENTION_DKV_SHARED(D, any, is_turing),
                        .stream = a->call.stream};
  if (p.dq.data) kr_chain_add(&rest, &dq[any][wide][type], &rows, &p);
  if (p.dk.data || p.dv.data) kr_chain_add(&rest, &dkv[any][wide][type], &keys, &by_keys);
  return kr_cuda_launch_chain(ctx->cuda, tier, &rest);
}

int32_t kr_attention_bwd_ampere(const krait_ctx *ctx, const void *args) {
  return run_bwd_mma(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_attention_bwd_turing(const krait_ctx *ctx, const void *args) {
  return run_bwd_mma(ctx, args, KRAIT_CAP_CUDA_TURING);
}

/* ---- ampere, float32 --------------------------------------------------------------------------------------------- */

static uint32_t floats_shared_bytes(int wide, int of_rows) {
  if (!of_rows)
    return wide ? KR_FLOATS_BWD_SHARED(128, KR_FLOATS_BWD_ROWS) : KR_FLOATS_BWD_SHARED(64, KR_FLOATS_BWD_ROWS);
  return wide ? KR_FLOATS_BWD_SHARED(128, KR_FLOATS_BWD_KEYS(128)) : KR_FLOATS_BWD_SHARED(64, KR_FLOATS_BWD_KEYS(64));
}

const char *kr_attention_bwd_parts_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  if (a->q.dtype != KRAIT_F32) return "not float32";
  return refuse_bwd_mma(ctx, a, floats_shared_bytes(a->D > 64, 1));
}

uint64_t kr_attention_bwd_parts_scratch(const krait_ctx *ctx, const void *args) {
  return kr_attention_bwd_base_scratch(ctx, args);
}

/* Kernels without and with softcap, slopes or dropout. */
#define FLOATS(name) {{"attention_ampere_bwd_f32", name}, {"attention_ampere_bwd_f32", name "_any"}}

int32_t kr_attention_bwd_parts(const krait_ctx *ctx, const void *args) {
  static const kr_kernel dq[2][2] = {FLOATS("kr_attention_floats_dq_64"), FLOATS("kr_attention_floats_dq_128")},
                         dkv[2] = FLOATS("kr_attention_floats_dkv_64"), dk[2] = FLOATS("kr_attention_floats_dk_128"),
                         dv[2] = FLOATS("kr_attention_floats_dv_128");
  const kr_attention_bwd_args *a = args;
  kr_attention_params p = kr_attention_bwd_params_of(a);
  const int any = p.softcap > 0 || p.slopes || p.rng.data, wide = p.D > 64, own = KR_FLOATS_BWD_OWN;
  p.n_q_tiles = (p.rows_q + own - 1) / own, p.section = kr_attention_heads_together(ctx, &p);
  kr_attention_params by_keys = p;
  by_keys.section = keys_together(ctx, &p, wide ? 256 : 128); /* in bytes as much as that many channels of 16 bits */
  kr_chain first = {.n = 0}, rest = {.n = 0};
  add_delta(&first, &p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  const kr_grid rows = {.x = (uint32_t)p.n_q_tiles * (uint32_t)(p.B * p.H),
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = floats_shared_bytes(wide, 1),
                        .stream = a->call.stream};
  const kr_grid keys = {.x = (uint32_t)((p.rows_k + own - 1) / own) * (uint32_t)(p.B * p.H / p.heads),
                        .block = KR_ATTENTION_AMPERE_THREADS,
                        .shared_bytes = floats_shared_bytes(wide, 0),
                        .stream = a->call.stream};
  if (p.dq.data) kr_chain_add(&rest, &dq[wide][any], &rows, &p);
  if (wide && p.dk.data) kr_chain_add(&rest, &dk[any], &keys, &by_keys);
  if (wide && p.dv.data) kr_chain_add(&rest, &dv[any], &keys, &by_keys);
  if (!wide && (p.dk.data || p.dv.data)) kr_chain_add(&rest, &dkv[any], &keys, &by_keys);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &rest);
}

/* ---- ampere, float32 in float16 parts ---------------------------------------------------------------------------- */

static uint32_t halves_dq_shared(int wide) {
  return wide ? KR_HALVES_BWD_SHARED(KR_HALVES_DQ_ROWS(128), 128) : KR_HALVES_BWD_SHARED(KR_HALVES_DQ_ROWS(64), 64);
}
static uint32_t halves_dkv_shared(int wide) {
  return wide ? KR_HALVES_BWD_SHARED(KR_HALVES_DKV_KEYS, 128) : KR_HALVES_BWD_SHARED(KR_HALVES_DKV_KEYS, 64);
}

const char *kr_attention_bwd_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_bwd_params_of(args);
  const char *why = kr_attention_refuse_halves(&p);
  return why ? why : refuse_bwd_mma(ctx, args, halves_dq_shared(p.D > 64));
}

/* How many blocks of 64 rows, or two of 128 as one, and of 64 keys a multiprocessor has at a time. */
static kr_halves_groups bwd_halves_groups(const krait_ctx *ctx, const kr_attention_params *p) {
  return p->D > 64 ? kr_attention_group_halves(ctx, p, 2, 2) : kr_attention_group_halves(ctx, p, 4, 3);
}

uint64_t kr_attention_bwd_halves_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_bwd_params_of(args);
  return kr_scratch_round(kr_attention_bwd_base_scratch(ctx, args)) + bwd_halves_groups(ctx, &p).bytes;
}

/* Parts of k and v are no longer needed when those of q and dout take their place. */
static int32_t run_bwd_halves_group(const krait_ctx *ctx, const kr_attention_params *group, void *scratch,
                                    void *stream) {
  static const kr_kernel dq[2] = {{"attention_ampere_bwd_halves", "kr_attention_halves_dq_64"},
                                  {"attention_ampere_bwd_halves", "kr_attention_halves_dq_128"}},
                         dkv[2] = {{"attention_ampere_bwd_halves", "kr_attention_halves_dkv_64"},
                                   {"attention_ampere_bwd_halves", "kr_attention_halves_dkv_128"}};
  kr_attention_halves_params h = {.params = *group};
  kr_attention_params *p = &h.params;
  const int wide = p->D > 64, rows = wide ? KR_HALVES_DQ_ROWS(128) : KR_HALVES_DQ_ROWS(64);
  p->n_q_tiles = (p->rows_q + rows - 1) / rows, p->section = kr_attention_heads_together(ctx, p);
  kr_grid grid = {.x = (uint32_t)p->n_q_tiles * (uint32_t)(p->B * p->H),
                  .block = KR_ATTENTION_AMPERE_THREADS,
                  .shared_bytes = halves_dq_shared(wide),
                  .stream = stream};
  if (p->dq.data) {
    KR_TRY(kr_attention_halve(ctx, &h, KR_HALVES_K, KR_HALVES_V, scratch, stream, KRAIT_CAP_CUDA_AMPERE));
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &dq[wide], &grid, &h, sizeof h));
  }
  if (!p->dk.data && !p->dv.data) return KRAIT_OK;
  p->section = keys_together(ctx, p, wide ? 256 : 128); /* as of float32 in parts */
  grid.x = (uint32_t)((p->rows_k + KR_HALVES_DKV_KEYS - 1) / KR_HALVES_DKV_KEYS) * (uint32_t)(p->B * p->H / p->heads);
  grid.shared_bytes = halves_dkv_shared(wide);
  KR_TRY(kr_attention_halve(ctx, &h, KR_HALVES_Q, KR_HALVES_DOUT, scratch, stream, KRAIT_CAP_CUDA_AMPERE));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &dkv[wide], &grid, &h, sizeof h);
}

int32_t kr_attention_bwd_halves(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const kr_attention_params p = kr_attention_bwd_params_of(a);
  const kr_halves_groups groups = bwd_halves_groups(ctx, &p);
  char *const parts = (char *)a->call.scratch + kr_scratch_round(kr_attention_bwd_base_scratch(ctx, a));
  kr_chain first = {.n = 0};
  add_delta(&first, &p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  for (int32_t i = 0; i < groups.n; i++) {
    const kr_attention_params group = kr_attention_group_of(&p, &groups, i);
    KR_TRY(run_bwd_halves_group(ctx, &group, parts, a->call.stream));
  }
  return KRAIT_OK;
}

/* ---- hopper ------------------------------------------------------------------------------------------------------ */

/* In how many parts, each a block of its own, the heads that share keys are walked: so many that the blocks of the
 * kernels by keys are several turns, of which the longest is not the last; 1 where they are as they are, or where rows
 * are too few for their work to be worth writing the sums: where every multiprocessor has a block anyway, short ones.
 */
static int32_t parts_of_heads(const krait_ctx *ctx, const kr_attention_params *p) {
  const int64_t places = kr_cuda_info(ctx->cuda)->n_multiprocessors,
                blocks =
                    (int64_t)((p->rows_k + KR_HOPPER_BWD_ROWS - 1) / KR_HOPPER_BWD_ROWS) * p->B * (p->H / p->heads),
                turns = (blocks + places - 1) / places, edged = p->left >= 0 || p->right >= 0;
  if (p->heads == 1 || blocks == 0 || p->rows_q < (blocks < places ? 64 : 2048) || blocks >= 4 * places) return 1;
  if (!edged && 10 * blocks >= 9 * turns * places) return 1;
  const int64_t parts = (8 * places + blocks - 1) / blocks;
  return (int32_t)(parts < p->heads ? parts : p->heads);
}
static uint64_t head_parts_bytes(const krait_ctx *ctx, const kr_attention_params *p) {
  const int64_t parts = parts_of_heads(ctx, p), tiles = (p->rows_k + KR_HOPPER_BWD_ROWS - 1) / KR_HOPPER_BWD_ROWS,
                sums = 2 * KR_HOPPER_BWD_ROWS * (p->D > 64 ? 128 : 64);
  return parts > 1 ? (uint64_t)(parts * tiles * p->B * (p->H / p->heads) * sums) * sizeof(float) : 0;
}
static kr_grid join_grid(const kr_attention_params *p, void *stream) {
  const int32_t tiles = (p->rows_k + KR_HOPPER_BWD_ROWS - 1) / KR_HOPPER_BWD_ROWS;
  return (kr_grid){.x = (uint32_t)tiles * (uint32_t)(p->B * p->H / p->heads), .block = 256, .stream = stream};
}

const char *kr_attention_bwd_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const kr_attention_params p = kr_attention_bwd_params_of(a);
  const char *why = kr_attention_bwd_ampere_refuse(ctx, args);
  if (why) return why;
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (p.softcap > 0 || p.slopes || p.rng.data) return "softcap, alibi_slopes or dropout";
  const int64_t Bq = kr_has(&a->cu_seqlens_q) ? 1 : a->B;
  if (!kr_attention_boxes_take(&p.q, a->Lq, a->H, Bq) || !kr_attention_boxes_take(&p.dout, a->Lq, a->H, Bq) ||
      !kr_attention_boxes_take(&p.k, a->Lk, a->Hk, a->Bk) || !kr_attention_boxes_take(&p.v, a->Lk, a->Hk, a->Bk))
    return "rows not 16-byte aligned";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)KR_HOPPER_BWD_SHARED(128, KR_HOPPER_DQ_KEYS)
             ? "too little shared memory"
             : NULL;
}

uint64_t kr_attention_bwd_hopper_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_bwd_params_of(args);
  return kr_scratch_round(kr_attention_bwd_base_scratch(ctx, args)) + head_parts_bytes(ctx, &p);
}

static int32_t make_attention_bwd_maps(const krait_ctx *ctx, kr_attention_hopper_params *h,
                                       const kr_attention_bwd_args *a, int rows, int keys) {
  const int64_t Bq = kr_has(&a->cu_seqlens_q) ? 1 : a->B;
  KR_TRY(kr_attention_make_map(ctx, &h->q, &h->params.q, a->D, a->Lq, a->H, Bq, rows));
  KR_TRY(kr_attention_make_map(ctx, &h->dout, &h->params.dout, a->D, a->Lq, a->H, Bq, rows));
  KR_TRY(kr_attention_make_map(ctx, &h->k, &h->params.k, a->D, a->Lk, a->Hk, a->Bk, keys));
  return kr_attention_make_map(ctx, &h->v, &h->params.v, a->D, a->Lk, a->Hk, a->Bk, keys);
}

#define HOPPER(name)                                                                  \
  {{"attention_hopper_bwd_f16_64", name}, {"attention_hopper_bwd_bf16_64", name}}, {  \
    {"attention_hopper_bwd_f16_128", name}, { "attention_hopper_bwd_bf16_128", name } \
  }

int32_t kr_attention_bwd_hopper(const krait_ctx *ctx, const void *args) {
  static const kr_kernel dq[2][2][2] = {{HOPPER("kr_attention_hopper_dq")}, {HOPPER("kr_attention_hopper_dq_edged")}},
                         dkv[2][2][2] = {{HOPPER("kr_attention_hopper_dkv")},
                                         {HOPPER("kr_attention_hopper_dkv_edged")}},
                         join[2][2] = {HOPPER("kr_attention_hopper_join")};
  const kr_attention_bwd_args *a = args;
  kr_attention_hopper_params rows = {.params = kr_attention_bwd_params_of(a)}, keys;
  kr_attention_params *p = &rows.params;
  const int wide = p->D > 64, D = wide ? 128 : 64, edged = p->left >= 0 || p->right >= 0,
            bf16 = p->q.dtype == KRAIT_BF16, own = KR_HOPPER_BWD_ROWS;
  p->n_q_tiles = (p->rows_q + own - 1) / own, p->section = kr_attention_heads_together(ctx, p);
  keys = rows, keys.params.section = keys_together(ctx, p, D), keys.params.split_keys = parts_of_heads(ctx, p);
  keys.params.partial = (float *)((char *)a->call.scratch + kr_scratch_round(kr_attention_bwd_base_scratch(ctx, a)));
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* tensor maps need a current context */
  int32_t status = make_attention_bwd_maps(ctx, &rows, a, own, KR_HOPPER_DQ_KEYS);
  if (status >= 0) status = make_attention_bwd_maps(ctx, &keys, a, KR_HOPPER_DKV_ROWS, own);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  kr_chain first = {.n = 0}, rest = {.n = 0};
  add_delta(&first, p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  const kr_grid by_rows = {.x = (uint32_t)p->n_q_tiles * (uint32_t)(p->B * p->H),
                           .block = KR_HOPPER_BWD_THREADS,
                           .shared_bytes = KR_HOPPER_BWD_SHARED(D, KR_HOPPER_DQ_KEYS),
                           .stream = a->call.stream};
  const kr_grid joined = join_grid(p, a->call.stream);
  const kr_grid by_keys = {.x = joined.x * (uint32_t)keys.params.split_keys,
                           .block = KR_HOPPER_BWD_THREADS,
                           .shared_bytes = KR_HOPPER_BWD_SHARED(D, KR_HOPPER_DKV_ROWS),
                           .stream = a->call.stream};
  if (p->dq.data) kr_chain_add(&rest, &dq[edged][wide][bf16], &by_rows, &rows);
  if (p->dk.data || p->dv.data) {
    kr_chain_add(&rest, &dkv[edged][wide][bf16], &by_keys, &keys);
    if (keys.params.split_keys > 1) kr_chain_add(&rest, &join[wide][bf16], &joined, &keys);
  }
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &rest);
}

/* ---- single pass: dq is accumulated in memory -------------------------------------------------------------------- */

/* Tiles of 64 rows of a head. */
static int64_t sums_tiles(const kr_attention_bwd_args *a) {
  return kr_has(&a->cu_seqlens_q) ? 2 * ((a->Lq + KR_SUMS_ROWS * a->B) / KR_SUMS_ROWS + 1)
                                  : 2 * a->B * ((a->Lq + KR_SUMS_ROWS - 1) / KR_SUMS_ROWS);
}

static const char *refuse_attention_bwd_order(const kr_attention_bwd_args *a) {
  if (!(a->call.flags & KRAIT_ATTENTION_ANY_ORDER)) return "no KRAIT_ATTENTION_ANY_ORDER";
  if (!kr_has(&a->dq) || !kr_has(&a->dk) || !kr_has(&a->dv)) return "not all gradients are requested";
  return (double)sums_tiles(a) * (double)a->H > INT32_MAX ? "too many rows" : NULL;
}

static int64_t sums_channels(const kr_attention_bwd_args *a) { return a->D > 64 ? 128 : 64; }

static uint64_t sums_scratch(const krait_ctx *ctx, const kr_attention_bwd_args *a) {
  return kr_scratch_round(kr_attention_bwd_base_scratch(ctx, a)) +
         (uint64_t)(sums_tiles(a) * 64 * sums_channels(a) * a->H) * sizeof(float);
}

static kr_attention_params sums_plan_of(const krait_ctx *ctx, const kr_attention_bwd_args *a) {
  kr_attention_params p = kr_attention_bwd_params_of(a);
  p.partial = (float *)((char *)a->call.scratch + kr_scratch_round(kr_attention_bwd_base_scratch(ctx, a))),
  p.n_splits = (int32_t)sums_tiles(a);
  p.section = keys_together(ctx, &p, sums_channels(a));
  return p;
}

static kr_grid sums_clear_grid(const krait_ctx *ctx, void *stream) {
  return (kr_grid){.x = (uint32_t)kr_cuda_info(ctx->cuda)->n_multiprocessors * 4, .block = 256, .stream = stream};
}
static kr_grid sums_end_grid(const kr_attention_params *p, void *stream) {
  return (kr_grid){.x = (uint32_t)((p->rows_q + 63) / 64) * (uint32_t)(p->B * p->H), .block = 128, .stream = stream};
}

const char *kr_attention_bwd_hopper_sums_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = refuse_attention_bwd_order(args);
  if (!why) why = kr_attention_bwd_hopper_refuse(ctx, args);
  return why                                                                           ? why
         : kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)KR_HOPPER_SUMS_SHARED(128) ? "too little shared memory"
                                                                                       : NULL;
}

uint64_t kr_attention_bwd_hopper_sums_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_bwd_params_of(args);
  return sums_scratch(ctx, args) + head_parts_bytes(ctx, &p);
}

#define SUMS(name)                                                                      \
  {{"attention_hopper_sums_f16_64", name}, {"attention_hopper_sums_bf16_64", name}}, {  \
    {"attention_hopper_sums_f16_128", name}, { "attention_hopper_sums_bf16_128", name } \
  }

int32_t kr_attention_bwd_hopper_sums(const krait_ctx *ctx, const void *args) {
  static const kr_kernel clear[2][2] = {SUMS("kr_attention_sums_clear")}, end[2][2] = {SUMS("kr_attention_sums_end")},
                         walk[2][2] = {SUMS("kr_attention_hopper_sums")},
                         join[2][2] = {HOPPER("kr_attention_hopper_join")};
  const kr_attention_bwd_args *a = args;
  kr_attention_hopper_params h = {.params = sums_plan_of(ctx, a)};
  h.params.split_keys = parts_of_heads(ctx, &h.params);
  const kr_attention_params *p = &h.params;
  const int wide = p->D > 64, D = wide ? 128 : 64, bf16 = p->q.dtype == KRAIT_BF16, own = KR_HOPPER_BWD_ROWS;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* tensor maps need a current context */
  const int32_t status = make_attention_bwd_maps(ctx, &h, a, KR_HOPPER_SUMS_ROWS(D), own);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  kr_chain first = {.n = 0}, rest = {.n = 0};
  add_delta(&first, p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  const kr_grid all = sums_clear_grid(ctx, a->call.stream), by_rows = sums_end_grid(p, a->call.stream),
                joined = join_grid(p, a->call.stream);
  const kr_grid by_keys = {.x = joined.x * (uint32_t)p->split_keys,
                           .block = KR_HOPPER_BWD_THREADS,
                           .shared_bytes = KR_HOPPER_SUMS_SHARED(D),
                           .stream = a->call.stream};
  kr_chain_add(&rest, &clear[wide][bf16], &all, &h);
  kr_chain_add(&rest, &walk[wide][bf16], &by_keys, &h);
  if (p->split_keys > 1) kr_chain_add(&rest, &join[wide][bf16], &joined, &h);
  kr_chain_add(&rest, &end[wide][bf16], &by_rows, &h);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &rest);
}

/* Keys per block, rows per tile. */
typedef struct sums_shape {
  int32_t keys, rows;
  uint32_t shared_bytes;
  kr_kernel kernels[2];
} sums_shape;
#define AMPERE_SUMS(name) {{"attention_ampere_sums_f16", name}, {"attention_ampere_sums_bf16", name}}
#define SUMS_SHAPE(D, KEYS, ROWS, name) {KEYS, ROWS, KR_AMPERE_SUMS_SHARED(D, KEYS, ROWS), AMPERE_SUMS(name)}
/* Smaller tiles for devices with less shared memory. */
static const sums_shape *sums_shape_of(const krait_ctx *ctx, const kr_attention_bwd_args *a) {
  static const sums_shape shapes[2][2] = {
      {SUMS_SHAPE(64, 64, 64, "kr_attention_sums_64"), SUMS_SHAPE(64, 64, 32, "kr_attention_sums_64_small")},
      {SUMS_SHAPE(128, 128, 64, "kr_attention_sums_128"), SUMS_SHAPE(128, 64, 32, "kr_attention_sums_128_small")}};
  return &shapes[a->D > 64][kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shapes[1][0].shared_bytes];
}

const char *kr_attention_bwd_ampere_sums_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const char *why = refuse_attention_bwd_order(a);
  if (!why) why = kr_attention_bwd_ampere_refuse(ctx, args);
  if (why) return why;
  if (a->softcap > 0 || kr_has(&a->alibi_slopes) || kr_has(&a->rng)) return "softcap, alibi_slopes or dropout";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)sums_shape_of(ctx, a)->shared_bytes
             ? "too little shared memory"
             : NULL;
}

uint64_t kr_attention_bwd_ampere_sums_scratch(const krait_ctx *ctx, const void *args) {
  return sums_scratch(ctx, args);
}

int32_t kr_attention_bwd_ampere_sums(const krait_ctx *ctx, const void *args) {
  static const kr_kernel clear[2][2] = {AMPERE_SUMS("kr_attention_sums_clear_64"),
                                        AMPERE_SUMS("kr_attention_sums_clear_128")},
                         end[2][2] = {AMPERE_SUMS("kr_attention_sums_end_64"),
                                      AMPERE_SUMS("kr_attention_sums_end_128")};
  const kr_attention_bwd_args *a = args;
  const kr_attention_params p = sums_plan_of(ctx, a);
  const int bf16 = p.q.dtype == KRAIT_BF16, wide = p.D > 64;
  const sums_shape *shape = sums_shape_of(ctx, a);
  kr_chain first = {.n = 0}, rest = {.n = 0};
  add_delta(&first, &p, a->call.stream);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &first));
  const kr_grid all = sums_clear_grid(ctx, a->call.stream), by_rows = sums_end_grid(&p, a->call.stream);
  const kr_grid by_keys = {
      .x = (uint32_t)((p.rows_k + shape->keys - 1) / shape->keys) * (uint32_t)(p.B * p.H / p.heads),
      .block = 2 * (uint32_t)shape->keys,
      .shared_bytes = shape->shared_bytes,
      .stream = a->call.stream};
  kr_chain_add(&rest, &clear[wide][bf16], &all, &p);
  kr_chain_add(&rest, &shape->kernels[bf16], &by_keys, &p);
  kr_chain_add(&rest, &end[wide][bf16], &by_rows, &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &rest);
}
