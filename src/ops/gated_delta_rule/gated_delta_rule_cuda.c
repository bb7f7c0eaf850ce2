/* gated_delta_rule_cuda.c: the launches: a block for some columns of a head's state. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "gated_delta_rule.h"
#include "gated_delta_rule_params.h"
#include "op_list.h"
#include "overlap.h"
#include "status.h"

enum { COLUMNS, STAGED };

static int32_t launch_delta(const krait_ctx *ctx, kr_delta_params *p, uint64_t tier, int which) {
  static const kr_kernel columns[] = {{"gated_delta_rule", "kr_gated_delta_columns_128"},
                                      {"gated_delta_rule", "kr_gated_delta_columns_256"}},
                         staged[] = {{"gated_delta_staged", "kr_gated_delta_64"},
                                     {"gated_delta_staged", "kr_gated_delta_128"}};
  const kr_gated_delta_rule_args *a = &p->a;
  const kr_kernel *kernel = which == STAGED ? &staged[a->Dk / 128] : &columns[a->Dk > 128];
  p->parts = (int32_t)kr_blocks_of(a->Dv, which == STAGED ? KR_DELTA_STAGED_COLUMNS : KR_DELTA_COLUMNS);
  const kr_grid grid = {.x = (uint32_t)(a->B * a->H * p->parts),
                        .block = which == STAGED ? KR_DELTA_STAGED_THREADS : KR_DELTA_THREADS,
                        .stream = a->call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, p, sizeof *p) : KRAIT_OK;
}

static int32_t run_delta_rule(const krait_ctx *ctx, const void *args, uint64_t tier, int which) {
  const kr_gated_delta_rule_args *a = args;
  return launch_delta(ctx, &(kr_delta_params){.a = *a, .before = a->initial_states, .after = a->final_states}, tier,
                      which);
}

/* One token's, of 64 or 128 key features: four neighbours of a row of the state in one access. */
static int has_lines(const kr_gated_delta_update_args *a) {
  const kr_view *s = &a->state;
  return (a->Dk == 64 || a->Dk == 128) && a->Dv % 4 == 0 && s->stride[3] == 1 && s->stride[0] % 4 == 0 &&
         s->stride[1] % 4 == 0 && s->stride[2] % 4 == 0 && kr_is_aligned(s);
}

static int32_t launch_delta_step(const krait_ctx *ctx, kr_delta_params *p, uint64_t tier) {
  static const kr_kernel kernels[] = {{"gated_delta_step", "kr_gated_delta_step_64"},
                                      {"gated_delta_step", "kr_gated_delta_step_128"}};
  p->parts = (int32_t)kr_blocks_of(p->a.Dv, KR_DELTA_STEP_COLUMNS);
  const kr_grid grid = {.x = (uint32_t)(p->a.B * p->a.H * p->parts),
                        .block = KR_DELTA_STEP_THREADS,
                        .is_pdl = (p->a.call.flags & KR_CALL_PDL) != 0,
                        .stream = p->a.call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, &kernels[p->a.Dk / 128], &grid, p, sizeof *p) : KRAIT_OK;
}

static int32_t run_delta_update(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_gated_delta_update_args *a = args;
  kr_delta_params p = {
      .a = kr_delta_sequence_of(a), .before = a->state, .after = a->state, .rows = a->state_batch_indices};
  return has_lines(a) ? launch_delta_step(ctx, &p, tier) : launch_delta(ctx, &p, tier, COLUMNS);
}

static const char *refuse_blocks(double blocks) { return blocks >= 2147483648.0 ? "2^31 blocks or more" : NULL; }

static int has_packed_heads(const kr_view *v) {
  const int64_t per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  return v->stride[3] == 1 && v->stride[0] % per_pack == 0 && v->stride[1] % per_pack == 0 &&
         v->stride[2] % per_pack == 0 && kr_is_aligned(v);
}

static const char *refuse_delta_rule(const krait_ctx *ctx, const void *args, int which) {
  const kr_gated_delta_rule_args *a = args;
  (void)ctx;
  if (which == STAGED && a->L < KR_DELTA_TOKENS / 2) return "fewer than 8 tokens";
  if (which == STAGED && a->Dk != 64 && a->Dk != 128) return "keys not of 64 or 128 features";
  if (which == STAGED && kr_has(&a->key_decay)) return "decays of keys";
  if (which == STAGED && (!has_packed_heads(&a->q) || !has_packed_heads(&a->k)))
    return "keys or queries with gaps, or not aligned to 16 bytes";
  return refuse_blocks((double)a->B * (double)a->H * kr_blocks_of(a->Dv, KR_DELTA_STAGED_COLUMNS));
}

/* ---- chunks ---- */

const char *kr_gated_delta_chunks_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_rule_args *a = args;
  if (a->q.dtype == KRAIT_F32) return "float32";
  if (a->L < 2 * KR_DELTA_CHUNK) return "fewer than 64 tokens";
  if (a->Dk != KR_DELTA_CHUNK_DK) return "keys not of 128 features";
  if (kr_cuda_info(ctx->cuda)->shared_bytes < KR_DELTA_WALK_BYTES) return "too little shared memory";
  if ((double)a->B * (double)a->H * (double)a->L >= 2147483648.0) return "2^31 tokens of heads or more";
  if (kr_gated_delta_chunks_scratch(ctx, args) > (uint64_t)1 << 31) return "more than 2 GiB of chunks";
  return refuse_delta_rule(ctx, args, STAGED);
}

static kr_delta_chunk_params describe_chunks(const kr_gated_delta_rule_args *a) {
  kr_delta_chunk_params p = {.of = {.a = *a, .before = a->initial_states, .after = a->final_states}};
  p.of.parts = (int32_t)kr_blocks_of(a->Dv, KR_DELTA_WALK_COLUMNS);
  p.n_chunks = (int32_t)kr_blocks_of(a->L, KR_DELTA_CHUNK), p.n_columns = p.of.parts * KR_DELTA_WALK_COLUMNS;
  p.made_floats = (int64_t)(sizeof(kr_delta_made) / sizeof(float)) + KR_DELTA_CHUNK * p.n_columns;
  p.made = a->call.scratch;
  return p;
}

uint64_t kr_gated_delta_chunks_scratch(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_rule_args *a = args;
  const kr_delta_chunk_params p = describe_chunks(a);
  (void)ctx;
  return (uint64_t)(a->B * a->H * p.n_chunks * p.made_floats) * sizeof(float);
}

int32_t kr_gated_delta_chunks(const krait_ctx *ctx, const void *args) {
  static const kr_kernel prepare = {"gated_delta_chunks", "kr_gated_delta_prepare"},
                         walk = {"gated_delta_chunks", "kr_gated_delta_walk"};
  const kr_gated_delta_rule_args *a = args;
  const kr_delta_chunk_params p = describe_chunks(a);
  const uint32_t heads = (uint32_t)(a->B * a->H);
  const kr_grid each = {.x = heads * (uint32_t)p.n_chunks, .block = KR_DELTA_CHUNK_THREADS, .stream = a->call.stream},
                blocks = {.x = heads * (uint32_t)p.of.parts,
                          .block = KR_DELTA_CHUNK_THREADS,
                          .shared_bytes = KR_DELTA_WALK_BYTES,
                          .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &prepare, &each, &p, sizeof p));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &walk, &blocks, &p, sizeof p);
}

const char *kr_gated_delta_update_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_update_args *a = args;
  (void)ctx;
  return refuse_blocks((double)a->B * (double)a->H * kr_blocks_of(a->Dv, KR_DELTA_COLUMNS));
}

static uint64_t delta_scratch(const krait_ctx *ctx, const void *args, int which) {
  return (void)ctx, (void)args, (void)which, 0;
}
uint64_t kr_gated_delta_update_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_FAMILY(gated_delta_rule, staged, STAGED, run_delta_rule, refuse_delta_rule, delta_scratch)
KR_CUDA_FAMILY(gated_delta_rule, columns, COLUMNS, run_delta_rule, refuse_delta_rule, delta_scratch)
KR_CUDA_TIERS(gated_delta_update, run_delta_update)
