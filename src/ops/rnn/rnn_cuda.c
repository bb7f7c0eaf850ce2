/* rnn_cuda.c: plans and launches of GRU and LSTM layers on a GPU. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "rnn/rnn_params.h"
#include "rnn/rnn_impls.h"
#include "view.h"

static const kr_kernel turn = {"rnn", "kr_rnn_turn"}, layer = {"rnn", "kr_rnn"}, back = {"rnn", "kr_rnn_back"},
                       products = {"rnn", "kr_rnn_products"}, sums = {"rnn", "kr_rnn_sums"},
                       back_64[] = {{"rnn_64_back", "kr_rnn_64_back_gru"}, {"rnn_64_back", "kr_rnn_64_back_lstm"}},
                       weights_64 = {"rnn_64_back", "kr_rnn_64_weights"};

static const char *refuse_rnn_sizes(int64_t B, int64_t L, int64_t H) {
  if (H > KR_RNN_MOST_UNITS) return "more than 160 units";
  return (double)B * (double)L >= 2147483648.0 - KR_RNN_SUM_DEPTH ? "2^31 steps or more" : NULL;
}

static kr_rnn_params rnn_plan_of(uint32_t flags, int64_t B, int64_t L, int64_t H) {
  kr_rnn_params p = {.B = B,
                   .L = L,
                   .H = H,
                   .is_lstm = (flags & KRAIT_RNN_LSTM) != 0,
                   .gates = flags & KRAIT_RNN_LSTM ? 4 : 3,
                   .steps = kr_divisor_of(L)};
  const int64_t n = B * L, parts = (n + 255) / 256;
  p.n_parts = (int32_t)(parts < KR_RNN_SUM_PARTS ? parts : KR_RNN_SUM_PARTS),
  p.rows = p.n_parts ? (n + p.n_parts - 1) / p.n_parts : 0;
  return p;
}

static float *cut(float *scratch, int64_t *at, int64_t n) {
  float *const part = scratch ? scratch + *at : NULL;
  *at += n;
  return part;
}

/* The layout the kernels need: units outermost, contiguous. */
static int is_transposed_for_rnn(const kr_rnn_params *p) {
  return p->weight.stride[0] == 1 && p->weight.stride[1] == p->gates * p->H;
}

static void add_turn(kr_chain *chain, const kr_rnn_params *p, void *stream) {
  if (!is_transposed_for_rnn(p))
    kr_chain_add(
        chain, &turn,
        &(kr_grid){
            .x = kr_blocks_of(p->gates * p->H * p->H, KR_RNN_THREADS), .block = KR_RNN_THREADS, .stream = stream},
        p);
}

/* Carves the scratch of a call; only counts if scratch is NULL. */
static uint64_t lay_out_rnn(kr_rnn_params *p, float *scratch, int backwards) {
  const int64_t all = p->gates * p->H, steps = p->B * p->L;
  int64_t at = 0;
  if (is_transposed_for_rnn(p)) p->turned = p->weight.data;
  else p->turned = cut(scratch, &at, all * p->H);
  if (backwards) {
    p->partial = cut(scratch, &at, p->n_parts * all * (p->H + 1));
    if (!p->is_lstm) p->scaled = cut(scratch, &at, steps * p->H);
    if (!kr_has(&p->dx))
      p->dx = (kr_view){.data = cut(scratch, &at, steps * all), .stride = {p->L * all, all, 1}, .dtype = KRAIT_F32};
  }
  return kr_scratch_round((uint64_t)at * sizeof(float));
}

const char *kr_rnn_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  return (void)ctx, refuse_rnn_sizes(a->B, a->L, a->H);
}
const char *kr_rnn_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  return (void)ctx, refuse_rnn_sizes(a->B, a->L, a->H);
}
uint64_t kr_rnn_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  kr_rnn_params p = rnn_plan_of(a->call.flags, a->B, a->L, a->H);
  p.weight = a->weight;
  return (void)ctx, lay_out_rnn(&p, NULL, 0);
}
uint64_t kr_rnn_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  kr_rnn_params p = rnn_plan_of(a->call.flags, a->B, a->L, a->H);
  p.dx = a->dx, p.weight = a->weight;
  return (void)ctx, lay_out_rnn(&p, NULL, 1);
}

static int32_t run_rnn_layer(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_rnn_args *a = args;
  kr_rnn_params p = rnn_plan_of(a->call.flags, a->B, a->L, a->H);
  p.x = a->x, p.weight = a->weight, p.bias = a->bias, p.out = a->out, p.cells = a->cells;
  lay_out_rnn(&p, a->call.scratch, 0);
  kr_chain chain = {.n = 0};
  add_turn(&chain, &p, a->call.stream);
  kr_chain_add(&chain, &layer,
               &(kr_grid){.x = kr_blocks_of(p.B, KR_RNN_SEQUENCES),
                          .block = KR_RNN_THREADS,
                          .shared_bytes = (uint32_t)((2 + p.gates) * p.H * KR_RNN_SEQUENCES) * sizeof(float),
                          .stream = a->call.stream},
               &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static kr_rnn_params back_plan(const kr_rnn_bwd_args *a) {
  kr_rnn_params p = rnn_plan_of(a->call.flags, a->B, a->L, a->H);
  p.x = a->x, p.weight = a->weight, p.bias = a->bias, p.out = a->out, p.cells = a->cells, p.dout = a->dout,
  p.dx = a->dx, p.dweight = a->dweight, p.dbias = a->dbias;
  lay_out_rnn(&p, a->call.scratch, 1);
  return p;
}

static void add_rnn_sums(kr_chain *chain, const kr_rnn_params *p, void *stream) {
  kr_chain_add(chain, &sums,
               &(kr_grid){.x = kr_blocks_of(p->gates * p->H * (p->H + 1), KR_RNN_THREADS),
                          .block = KR_RNN_THREADS,
                          .stream = stream},
               p);
}

static int32_t launch_rnn_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_rnn_bwd_args *a = args;
  const kr_rnn_params p = back_plan(a);
  kr_chain chain = {.n = 0};
  add_turn(&chain, &p, a->call.stream);
  kr_chain_add(
      &chain, &back,
      &(kr_grid){.x = kr_blocks_of(p.B, KR_RNN_SEQUENCES),
                 .block = KR_RNN_THREADS,
                 .shared_bytes = (uint32_t)(((4 + p.gates) * p.H + KR_RNN_THREADS) * KR_RNN_SEQUENCES) * sizeof(float),
                 .stream = a->call.stream},
      &p);
  if (kr_has(&a->dweight) || kr_has(&a->dbias)) {
    if (p.n_parts)
      kr_chain_add(&chain, &products,
                   &(kr_grid){.x = kr_blocks_of(p.gates * p.H, KR_RNN_SUM_TILE),
                              .y = kr_blocks_of(p.H, KR_RNN_SUM_TILE),
                              .z = (uint32_t)p.n_parts,
                              .block = KR_RNN_THREADS,
                              .stream = a->call.stream},
                   &p);
    add_rnn_sums(&chain, &p, a->call.stream);
  }
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

/* ---- 64 units, on tensor cores ----------------------------------------------------------------------------------- */

static int is_in_fours_for_rnn(const kr_view *v) {
  return v->stride[2] == 1 && v->stride[0] % 4 == 0 && v->stride[1] % 4 == 0 && (uintptr_t)v->data % 16 == 0;
}
static uint32_t bytes_of_back(int is_lstm) { return is_lstm ? KR_RNN_BACK_BYTES_LSTM : KR_RNN_BACK_BYTES_GRU; }
const char *kr_rnn_bwd_64_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  if (a->H != 64) return "not 64 units";
  if (a->dout.stride[2] != 1) return "a step's units are not contiguous";
  if (!is_in_fours_for_rnn(&a->x) || !is_in_fours_for_rnn(&a->out) ||
      (kr_has(&a->cells) && !is_in_fours_for_rnn(&a->cells)) || (kr_has(&a->dx) && !is_in_fours_for_rnn(&a->dx)))
    return "unaligned steps of x, out, cells or dx";
  if (kr_cuda_info(ctx->cuda)->shared_bytes < bytes_of_back(a->call.flags & KRAIT_RNN_LSTM))
    return "too little shared memory";
  return kr_rnn_bwd_cuda_refuse(ctx, args);
}

int32_t kr_rnn_bwd_64(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  const kr_rnn_params p = back_plan(a);
  kr_chain chain = {.n = 0};
  if (p.n_parts)
    kr_chain_add(&chain, &back_64[p.is_lstm],
                 &(kr_grid){.x = kr_blocks_of(p.B, KR_RNN_BACK_SEQUENCES),
                            .block = 2 * KR_RNN_THREADS,
                            .shared_bytes = bytes_of_back(p.is_lstm),
                            .stream = a->call.stream},
                 &p);
  if (kr_has(&a->dweight) || kr_has(&a->dbias)) {
    if (p.n_parts)
      kr_chain_add(&chain, &weights_64,
                   &(kr_grid){.x = (uint32_t)p.gates,
                              .y = (uint32_t)p.n_parts,
                              .block = KR_RNN_THREADS,
                              .stream = a->call.stream},
                   &p);
    add_rnn_sums(&chain, &p, a->call.stream);
  }
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &chain);
}

KR_CUDA_TIERS(rnn, run_rnn_layer)
KR_CUDA_TIERS(rnn_bwd, launch_rnn_bwd)
