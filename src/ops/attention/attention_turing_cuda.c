/* attention_turing_cuda.c: attention on the turing tier's tensor cores, of float16, and of bfloat16 by float16 copies
 * of q, k and v that are scaled by powers of two, one for each head. attention_cuda.c has that of float32. */
#include "attention_cuda.h"
#include "attention_turing.h"
#include "cuda_impl.h"
#include "turing_impl.h"
#include "status.h"

static uint32_t turing_shared(const kr_attention_params *p) {
  return p->D > 128  ? KR_ATTENTION_AMPERE_SHARED(256, 1)
         : p->D > 64 ? KR_ATTENTION_AMPERE_SHARED(128, 1)
                     : KR_ATTENTION_AMPERE_SHARED(64, 1);
}

static int32_t launch_turing_tiles(const krait_ctx *ctx, kr_attention_turing_params *t, void *stream) {
  const kr_attention_mma m = kr_attention_plan_mma(ctx, &t->params, 1);
  const kr_grid grid = {
      .x = m.n_blocks, .block = KR_ATTENTION_AMPERE_THREADS, .shared_bytes = m.shared_bytes, .stream = stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_TURING, m.kernel, &grid, t, sizeof *t);
}

/* ---- float16 ----------------------------------------------------------------------------------------------------- */

const char *kr_attention_turing_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  const char *why = kr_turing_refuse(p.q.dtype);
  return why ? why : kr_attention_refuse_mma(ctx, args, turing_shared(&p));
}

uint64_t kr_attention_turing_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

int32_t kr_attention_turing(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  kr_attention_turing_params t = {.params = kr_attention_params_of(a)};
  return launch_turing_tiles(ctx, &t, a->call.stream);
}

/* ---- bfloat16 ---------------------------------------------------------------------------------------------------- */

/* With fewer, the copies of keys would cost more than faster products save. */
enum { FEWEST_SCALED_ROWS = 64 };

const char *kr_attention_turing_scaled_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_params p = kr_attention_params_of(args);
  if (p.q.dtype != KRAIT_BF16) return "not bfloat16";
  if (p.softcap > 0 || p.slopes || p.rng.data) return "softcap, alibi_slopes or dropout";
  if (p.table.data || p.cache_row.data) return "keys in pages or chosen rows of a cache";
  if (p.used_q.data || p.used_k.data || p.leftpad.data) return "tokens that do not count, which may be of any size";
  if (p.rows_q < FEWEST_SCALED_ROWS) return "fewer than 64 rows";
  const char *why = kr_turing_refuse_device(kr_cuda_info(ctx->cuda));
  return why ? why : kr_attention_refuse_mma(ctx, args, turing_shared(&p));
}

/* Tensor t becomes a copy at byte `at` of the scratch (NULL: nowhere), of which the blocks follow those before; returns
 * the byte that follows it. */
static uint64_t place_scaled_copy(const krait_ctx *ctx, kr_attention_scaled *to, kr_attention_tensor *t,
                                  int64_t n_batches, int32_t L, int32_t H, int32_t D, int32_t first_block,
                                  char *scratch, uint64_t at) {
  enum { BLOCKS = 2, LEAST_RUN = 32, MOST_RUNS = 64 }; /* BLOCKS: of a multiprocessor, for each tensor */
  const int64_t heads = n_batches * H, wanted = BLOCKS * kr_cuda_info(ctx->cuda)->n_multiprocessors / heads + 1;
  const int32_t n = (int32_t)(wanted < MOST_RUNS ? wanted : MOST_RUNS), run = (L + n - 1) / n;
  const uint64_t up = at + kr_scratch_round((uint64_t)heads * (uint64_t)L * (uint64_t)D * 2),
                 largest = up + kr_scratch_round((uint64_t)heads * sizeof(int32_t));
  *to = (kr_attention_scaled){.from = *t,
                              .to = scratch ? (uint16_t *)(scratch + at) : NULL,
                              .up = scratch ? (int32_t *)(scratch + up) : NULL,
                              .largest = scratch ? (uint32_t *)(scratch + largest) : NULL,
                              .L = L,
                              .H = H,
                              .run = run < LEAST_RUN ? LEAST_RUN : run,
                              .first_block = first_block};
  to->n_runs = (L + to->run - 1) / to->run;
  *t = (kr_attention_tensor){
      .data = to->to, .b = (int64_t)H * L * D, .h = (int64_t)L * D, .t = D, .d = 1, .dtype = KRAIT_F16};
  return largest + kr_scratch_round((uint64_t)heads * (uint64_t)to->n_runs * sizeof(uint32_t));
}

static int32_t blocks_of_scaled(const kr_attention_scaled *s, int64_t n_batches) {
  return (int32_t)(n_batches * s->H * s->n_runs);
}

/* Places the copies of q, k and v in the scratch (NULL: nowhere), and makes them the call's tensors. Returns their
 * bytes; n_blocks: those that make them. */
static uint64_t place_scaled_copies(const krait_ctx *ctx, kr_attention_turing_params *t, kr_attention_scale_params *s,
                                    int32_t *n_blocks, char *scratch) {
  kr_attention_params *p = &t->params;
  const int32_t Hk = p->H / p->heads;
  const int64_t of_q = p->cu_q.data ? 1 : p->B, of_k = p->cu_k.data ? 1 : p->Bk;
  *s = (kr_attention_scale_params){.D = p->D, .log_lanes = p->D > 128 ? 5 : p->D > 64 ? 4 : 3};
  uint64_t at = place_scaled_copy(ctx, &s->of[0], &p->q, of_q, p->Lq, p->H, p->D, 0, scratch, 0);
  const int32_t after_q = blocks_of_scaled(&s->of[0], of_q);
  at = place_scaled_copy(ctx, &s->of[1], &p->k, of_k, p->Lk, Hk, p->D, after_q, scratch, at);
  const int32_t of_keys = blocks_of_scaled(&s->of[1], of_k);
  at = place_scaled_copy(ctx, &s->of[2], &p->v, of_k, p->Lk, Hk, p->D, after_q + of_keys, scratch, at);
  t->up_q = s->of[0].up, t->up_k = s->of[1].up, t->up_v = s->of[2].up;
  *n_blocks = after_q + 2 * of_keys;
  return at;
}

uint64_t kr_attention_turing_scaled_scratch(const krait_ctx *ctx, const void *args) {
  kr_attention_turing_params t = {.params = kr_attention_params_of(args)};
  kr_attention_scale_params s;
  int32_t n_blocks;
  return place_scaled_copies(ctx, &t, &s, &n_blocks, NULL);
}

int32_t kr_attention_turing_scaled(const krait_ctx *ctx, const void *args) {
  static const kr_kernel largest = {"attention_scale", "kr_attention_largest"},
                         scale = {"attention_scale", "kr_attention_scale"};
  const kr_attention_args *a = args;
  kr_attention_turing_params t = {.params = kr_attention_params_of(a)};
  kr_attention_scale_params s;
  int32_t n_blocks;
  place_scaled_copies(ctx, &t, &s, &n_blocks, a->call.scratch);
  const kr_grid grid = {.x = (uint32_t)n_blocks, .block = KR_ATTENTION_SCALE_THREADS, .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_TURING, &largest, &grid, &s, sizeof s));
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_TURING, &scale, &grid, &s, sizeof s));
  return launch_turing_tiles(ctx, &t, a->call.stream);
}
