/* ssd_cuda.c: the SSD on a GPU. Chunked on tensor cores for aligned rows of 16 bits or of float32; if there are too few
 * heads to fill the device, time is split into segments: their end states from zero, state passing over these, then
 * every segment from its true start state. Chunks by multiply-adds take what these refuse, and older GPUs. Everything
 * else runs token by token, and so do heads in which chunks met NaN or infinity. */
#include "cuda_impl.h"
#include "op_list.h"
#include "ssd_halves.h"
#include "ssd_host.h"
#include "ssd_impls.h"
#include "status.h"
#include "turing_impl.h"
#include "view.h"

static const kr_kernel walk_s4 = {"ssd", "kr_ssd_walk_s4"}, walk_s16 = {"ssd", "kr_ssd_walk_s16"},
                       ranks_s4 = {"ssd", "kr_ssd_ranks_s4"}, ranks_s16 = {"ssd", "kr_ssd_ranks_s16"},
                       clear_empty = {"ssd", "kr_ssd_clear_empty"};
/* By the type of x, then the turing tier's, of float16. */
enum { OF_TURING = 3, N_TYPES };
#define CHUNKS(name) {{NULL, NULL}, {"ssd_chunks_f16", name}, {"ssd_chunks_bf16", name}, {"ssd_turing_f16", name}}
static const kr_kernel chunks[3][N_TYPES] = {CHUNKS("kr_ssd_chunks_n64"), CHUNKS("kr_ssd_chunks_n128"),
                                       CHUNKS("kr_ssd_chunks_n256")};
static const kr_kernel passed[3][N_TYPES] = {CHUNKS("kr_ssd_passed_n64"), CHUNKS("kr_ssd_passed_n128"),
                                       CHUNKS("kr_ssd_passed_n256")};
static const kr_kernel ends[3][N_TYPES] = {CHUNKS("kr_ssd_ends_n64"), CHUNKS("kr_ssd_ends_n128"),
                                           CHUNKS("kr_ssd_ends_n256")};
static const kr_kernel join[N_TYPES] = {{"ssd_chunks_f16", "kr_ssd_join"}, /* of float32 states, whatever x is */
                                        {"ssd_chunks_f16", "kr_ssd_join"},
                                        {"ssd_chunks_bf16", "kr_ssd_join"},
                                        {"ssd_turing_f16", "kr_ssd_join"}},
                       steps_kernel[N_TYPES] = {{"ssd_chunks_f32", "kr_ssd_steps"},
                                                {"ssd_chunks_f16", "kr_ssd_steps"},
                                                {"ssd_chunks_bf16", "kr_ssd_steps"},
                                                {"ssd_turing_f16", "kr_ssd_steps"}};

static kr_ssd_params ssd_plan_of(const kr_ssd_args *a, int reverse) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  kr_ssd_params p = kr_ssd_params_of(&in, reverse);
  p.out = kr_ssd_sequence(&a->out, reverse, a->L);
  p.final = kr_ssd_states(&a->final_states), p.varlen = kr_ssd_states(&a->varlen_states);
  p.S = (int32_t)a->S, p.offsets = a->cu_seqlens.data, p.offsets_step = a->cu_seqlens.stride[0];
  return p;
}

static const char *refuse_ssd_sizes(const kr_ssd_args *a) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  return kr_ssd_refuse_sizes(&in);
}

const char *kr_ssd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return refuse_ssd_sizes(args);
}

/* Scratch of the token-by-token row: y of the other direction. */
uint64_t kr_ssd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  (void)ctx;
  return a->call.flags & KRAIT_SSD_BOTH ? (uint64_t)(a->B * a->L * a->H * a->P) * sizeof(float) : 0;
}

static int32_t launch_walk(const krait_ctx *ctx, uint64_t tier, const kr_ssd_params *p, void *stream) {
  const kr_grid grid = {.x = (uint32_t)(p->H * ((p->P + 15) / 16)),
                        .y = 1,
                        .z = (uint32_t)p->B,
                        .block = KR_SSD_THREADS,
                        .stream = stream};
  const kr_kernel *const few = p->last_rank ? &ranks_s4 : &walk_s4, *const many = p->last_rank ? &ranks_s16 : &walk_s16;
  if (!p->B) return KRAIT_OK;
  return kr_cuda_launch(ctx->cuda, tier, p->N <= 128 ? few : many, &grid, p, sizeof *p);
}

int32_t kr_ssd_walk_nonfinite(const krait_ctx *ctx, const kr_ssd_params *p, void *stream) {
  return launch_walk(ctx, KRAIT_CAP_CUDA_BASE, p, stream);
}

static int32_t run_ssd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_ssd_args *a = args;
  kr_ssd_params p = ssd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  (void)tier; /* one module serves all tiers */
  if (p.offsets) {
    const kr_grid grid = {.x = (uint32_t)((a->H * a->P * a->N + KR_SSD_THREADS - 1) / KR_SSD_THREADS),
                          .y = (uint32_t)a->S,
                          .z = 1,
                          .block = KR_SSD_THREADS,
                          .stream = a->call.stream};
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &clear_empty, &grid, &p, sizeof p));
  }
  if (a->call.flags & KRAIT_SSD_BOTH) {
    kr_ssd_params back = ssd_plan_of(a, 1);
    back.A = kr_ssd_heads(&a->A_reverse, 0);
    back.add = p.add = a->call.scratch, back.keep_y = 1;
    KR_TRY(launch_walk(ctx, KRAIT_CAP_CUDA_BASE, &back, a->call.stream));
  }
  return launch_walk(ctx, KRAIT_CAP_CUDA_BASE, &p, a->call.stream);
}

/* ---- chunks ---- */

static int ssd_width_of(int64_t N) { return N <= 64 ? 0 : N <= 128 ? 1 : 2; }

static int is_of_turing(uint64_t tier) { return tier == KRAIT_CAP_CUDA_TURING; }
static int type_of_kernel(uint64_t tier, const kr_ssd_params *p) { return is_of_turing(tier) ? OF_TURING : p->x.dtype; }

static uint32_t chunk_shared_bytes(int64_t N, uint64_t tier) {
  const uint32_t columns = N <= 64    ? 64
                           : N <= 128 ? 128
                                      : 256,
                 stage = KR_SSD_CHUNK * KR_SSD_P * 2 + 2 * KR_SSD_CHUNK * columns * 2;
  return (is_of_turing(tier) ? 1 : 2) * stage + KR_SSD_P * columns * 2 + 2 * KR_SSD_STEPS_BYTES + KR_SSD_P * 4;
}

int kr_ssd_states_at_once(const krait_ctx *ctx) {
  const int64_t needed = chunk_shared_bytes(KR_SSD_MOST_STATES, KRAIT_CAP_CUDA_AMPERE);
  return kr_cuda_info(ctx->cuda)->shared_bytes >= needed ? KR_SSD_MOST_STATES : KR_SSD_MOST_STATES / 2;
}

static int states_at_once(const krait_ctx *ctx, uint64_t tier) {
  return is_of_turing(tier) ? KR_SSD_MOST_STATES / 2 : kr_ssd_states_at_once(ctx);
}

/* What no chunked implementation takes. */
static const char *refuse_modes(const kr_ssd_args *a) {
  if (refuse_ssd_sizes(a)) return refuse_ssd_sizes(a);
  if (a->dt_min < 0) return "a negative dt_min";
  if (KR_SSD_LAST_RANK(a->call.flags) >= KR_SSD_MOST_RANKS) return "more than eight ranks";
  if (a->call.flags & KRAIT_SSD_BOTH) return "both directions";
  if (kr_has(&a->cu_seqlens)) return "varlen states";
  if (a->out.data == a->x.data || a->out.data == a->z.data)
    return "an output in place of an input, which a second walk may need";
  if (a->L == 0 || a->B == 0) return "nothing to do";
  return a->H > 65535 ? "more than 65535 heads" : NULL;
}

static const char *refuse_options(const kr_ssd_args *a) {
  if (a->Bmat.dtype != a->x.dtype || a->Cmat.dtype != a->x.dtype || (kr_has(&a->z) && a->z.dtype != a->x.dtype))
    return "z, B or C of another type than x";
  if (!kr_ssd_is_aligned(&a->x) || !kr_ssd_is_aligned(&a->out) || !kr_ssd_is_aligned(&a->z) ||
      !kr_ssd_is_aligned(&a->Bmat) || !kr_ssd_is_aligned(&a->Cmat))
    return "rows that are not aligned to 16 bytes";
  return refuse_modes(a);
}

const char *kr_ssd_chunks_refuse_tensors(const kr_ssd_args *a) {
  return a->x.dtype == KRAIT_F32 ? "float32" : refuse_options(a);
}

static const char *refuse_ssd_chunks(const krait_ctx *ctx, const kr_ssd_args *a, uint64_t tier) {
  if (kr_ssd_chunks_refuse_tensors(a)) return kr_ssd_chunks_refuse_tensors(a);
  const int64_t at_once = states_at_once(ctx, tier), needed = chunk_shared_bytes(a->N < at_once ? a->N : at_once, tier);
  return kr_cuda_info(ctx->cuda)->shared_bytes < needed ? "too little shared memory" : NULL;
}

const char *kr_ssd_chunks_refuse(const krait_ctx *ctx, const void *args) {
  return refuse_ssd_chunks(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}

const char *kr_ssd_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(((const kr_ssd_args *)args)->x.dtype);
  return why ? why : refuse_ssd_chunks(ctx, args, KRAIT_CAP_CUDA_TURING);
}

/* Splits time only if blocks do not fill the device; each split costs a second pass over its tokens. */
static void cut_time(kr_ssd_params *p, int64_t n_multiprocessors) {
  const int64_t blocks = (int64_t)p->B * p->H * p->blocks_per_head, n_chunks = (p->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK;
  int64_t segments = blocks ? 2 * n_multiprocessors / blocks : 1;
  if (segments > n_chunks / 2) segments = n_chunks / 2;
  if (segments > 1024) segments = 1024;
  if (segments < 3) segments = 1;
  p->segment = (n_chunks + segments - 1) / segments * KR_SSD_CHUNK;
  p->n_segments = (int32_t)((p->L + p->segment - 1) / p->segment);
}

static int64_t segment_floats(const kr_ssd_params *p) {
  return (int64_t)p->B * p->H * p->n_segments * p->P * (p->N < KR_SSD_MOST_STATES ? p->N : KR_SSD_MOST_STATES);
}

/* Byte offsets in scratch: states of segments, their decays, step sizes. */
typedef struct chunks_layout {
  uint64_t decay, steps, spoilt, end;
} chunks_layout;

static chunks_layout lay_out_ssd(const kr_ssd_params *p) {
  const int64_t pieces = p->n_segments > 1 ? (int64_t)p->B * p->H * p->n_segments : 0,
                n_chunks = (p->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK;
  chunks_layout l = {.decay = pieces ? kr_scratch_round((uint64_t)segment_floats(p) * sizeof(float)) : 0};
  l.steps = l.decay + kr_scratch_round((uint64_t)pieces * sizeof(float));
  l.spoilt = l.steps + (uint64_t)((int64_t)p->B * p->H * n_chunks) * KR_SSD_STEPS_BYTES;
  l.end = l.spoilt + (uint64_t)((int64_t)p->B * p->H) * sizeof(int32_t);
  return l;
}

static void place_scratch(kr_ssd_params *p, void *scratch) {
  const chunks_layout l = lay_out_ssd(p);
  p->steps = (char *)scratch + l.steps, p->spoilt = (int32_t *)((char *)scratch + l.spoilt);
  if (p->n_segments > 1) p->segment_state = scratch, p->segment_decay = (float *)((char *)scratch + l.decay);
}

uint64_t kr_ssd_chunks_scratch(const krait_ctx *ctx, const void *args) {
  kr_ssd_params p = ssd_plan_of(args, 0);
  cut_time(&p, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return lay_out_ssd(&p).end;
}

static int32_t launch_steps(const krait_ctx *ctx, const kr_ssd_params *p, void *stream, uint64_t tier) {
  const int64_t warps = KR_SSD_THREADS / 32, n_chunks = (p->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK;
  const kr_grid grid = {.x = (uint32_t)n_chunks,
                        .y = (uint32_t)((p->H + warps - 1) / warps),
                        .z = (uint32_t)p->B,
                        .block = KR_SSD_THREADS,
                        .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &steps_kernel[type_of_kernel(tier, p)], &grid, p, sizeof *p);
}

int32_t kr_ssd_launch_steps(const krait_ctx *ctx, const kr_ssd_params *p, void *stream) {
  return launch_steps(ctx, p, stream, KRAIT_CAP_CUDA_AMPERE);
}

static int32_t launch_ssd_chunks(const krait_ctx *ctx, const kr_ssd_params *p, void *stream, uint64_t tier) {
  const kr_grid grid = {.x = (uint32_t)(p->H * p->blocks_per_head),
                        .y = (uint32_t)p->n_segments,
                        .z = (uint32_t)p->B,
                        .block = KR_SSD_CHUNK_THREADS,
                        .shared_bytes = chunk_shared_bytes(p->N, tier),
                        .stream = stream};
  const kr_kernel(*const kernels)[N_TYPES] = kr_ssd_passes_D(p) ? passed : chunks;
  return kr_cuda_launch(ctx->cuda, tier, &kernels[ssd_width_of(p->N)][type_of_kernel(tier, p)], &grid, p, sizeof *p);
}

int32_t kr_ssd_launch_chunks(const krait_ctx *ctx, const kr_ssd_params *p, void *stream) {
  return launch_ssd_chunks(ctx, p, stream, KRAIT_CAP_CUDA_AMPERE);
}

static int32_t launch_join(const krait_ctx *ctx, const kr_ssd_params *p, void *stream, uint64_t tier) {
  const kr_grid grid = {.x = (uint32_t)((p->P * p->N + KR_SSD_THREADS - 1) / KR_SSD_THREADS),
                        .y = (uint32_t)p->H,
                        .z = (uint32_t)p->B,
                        .block = KR_SSD_THREADS,
                        .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &join[type_of_kernel(tier, p)], &grid, p, sizeof *p);
}

static int32_t run_ssd_part(const krait_ctx *ctx, const kr_ssd_params *p, void *stream, uint64_t tier) {
  const kr_grid pieces = {.x = (uint32_t)(p->H * p->blocks_per_head),
                          .y = (uint32_t)p->n_segments,
                          .z = (uint32_t)p->B,
                          .block = KR_SSD_CHUNK_THREADS,
                          .shared_bytes = chunk_shared_bytes(p->N, tier),
                          .stream = stream};
  if (p->n_segments > 1) {
    const kr_kernel *const kernel = &ends[ssd_width_of(p->N)][type_of_kernel(tier, p)];
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, kernel, &pieces, p, sizeof *p));
    KR_TRY(launch_join(ctx, p, stream, tier));
  }
  return launch_ssd_chunks(ctx, p, stream, tier);
}

static int32_t run_ssd_chunks(const krait_ctx *ctx, const kr_ssd_args *a, uint64_t tier) {
  kr_ssd_params p = ssd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  cut_time(&p, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  place_scratch(&p, a->call.scratch);
  KR_TRY(launch_steps(ctx, &p, a->call.stream, tier));
  const int at_once = states_at_once(ctx, tier);
  for (int part = 0; part * at_once < p.N; part++) {
    const kr_ssd_params some = kr_ssd_part_of(&p, part, at_once);
    KR_TRY(run_ssd_part(ctx, &some, a->call.stream, tier));
  }
  return launch_walk(ctx, KRAIT_CAP_CUDA_BASE, &p, a->call.stream);
}

int32_t kr_ssd_chunks(const krait_ctx *ctx, const void *args) {
  return run_ssd_chunks(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_ssd_turing(const krait_ctx *ctx, const void *args) {
  return run_ssd_chunks(ctx, args, KRAIT_CAP_CUDA_TURING);
}

/* ---- chunks of float32 ------------------------------------------------------------------------------------------ */

typedef struct float_kernels {
  kr_kernel products, halves, chunks, ends;
} float_kernels;

#define FLOATS(suffix)                                                                          \
  {                                                                                             \
    {"ssd_chunks_f32", "kr_ssd_products_" suffix}, {"ssd_chunks_f32", "kr_ssd_halves_" suffix}, \
        {"ssd_chunks_f32", "kr_ssd_chunks_" suffix}, {                                          \
      "ssd_chunks_f32", "kr_ssd_ends_" suffix                                                   \
    }                                                                                           \
  }

uint32_t kr_ssd_float_shared_bytes(int64_t N) { return KR_SSD_CHUNK * 2 * (N <= 64 ? 64 : 128) * 4; }
static uint32_t walk_shared_bytes(int64_t N, int is_tf32) {
  return KR_SSD_HALVES_SHARED(N <= 64 ? 64u : 128u, is_tf32 ? 1u : 2u);
}

/* Where tf32 is not several times the rate of multiply-adds, three products in place of one still pass the state on
 * many times as fast as token by token. */
const char *kr_ssd_parts_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  if (a->x.dtype != KRAIT_F32) return "not float32";
  if (refuse_options(a)) return refuse_options(a);
  const int64_t needed = walk_shared_bytes(a->N, 0);
  return kr_cuda_info(ctx->cuda)->shared_bytes < needed ? "too little shared memory" : NULL;
}

const char *kr_ssd_tf32_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  return a->call.flags & KRAIT_SSD_TF32 ? kr_ssd_parts_refuse(ctx, args) : "the call does not allow tf32";
}

/* Byte offset of C B^T in scratch, behind what chunks of 16 bits have there; parts of B and C follow. */
static uint64_t products_at(const kr_ssd_params *p) { return kr_scratch_round(lay_out_ssd(p).end); }

uint64_t kr_ssd_parts_scratch(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  kr_ssd_params p = ssd_plan_of(a, 0);
  cut_time(&p, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return products_at(&p) +
         (uint64_t)(a->B * a->G * ((a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK)) *
             (KR_SSD_CHUNK * KR_SSD_CHUNK * sizeof(float) + KR_SSD_HALVES_BYTES(a->N <= 64 ? 64 : 128, 2));
}

static const float_kernels float_kernels_of[2][2] = {{FLOATS("n64"), FLOATS("n128")},
                                                     {FLOATS("n64_tf32"), FLOATS("n128_tf32")}};

static int32_t launch_products(const krait_ctx *ctx, const kr_ssd_params *p, const kr_kernel *kernel, void *stream) {
  const kr_grid chunks_of_groups = {.x = (uint32_t)((p->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK),
                                    .y = (uint32_t)(p->H / p->heads),
                                    .z = (uint32_t)p->B,
                                    .block = KR_SSD_THREADS,
                                    .shared_bytes = kr_ssd_float_shared_bytes(p->N),
                                    .stream = stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, kernel, &chunks_of_groups, p, sizeof *p);
}

int32_t kr_ssd_launch_products(const krait_ctx *ctx, const kr_ssd_params *p, int is_tf32, void *stream) {
  return launch_products(ctx, p, &float_kernels_of[is_tf32][p->N > 64].products, stream);
}

static int32_t run_ssd_float_part(const krait_ctx *ctx, const kr_ssd_params *p, int is_tf32, void *stream) {
  const float_kernels *const kernels = &float_kernels_of[is_tf32][p->N > 64];
  const kr_grid pieces = {.x = (uint32_t)(p->H * p->blocks_per_head),
                          .y = (uint32_t)p->n_segments,
                          .z = (uint32_t)p->B,
                          .block = KR_SSD_FLOAT_WALKERS,
                          .shared_bytes = walk_shared_bytes(p->N, is_tf32),
                          .stream = stream};
  KR_TRY(launch_products(ctx, p, &kernels->halves, stream));
  if (p->n_segments > 1) {
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels->ends, &pieces, p, sizeof *p));
    KR_TRY(launch_join(ctx, p, stream, KRAIT_CAP_CUDA_AMPERE));
  }
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels->chunks, &pieces, p, sizeof *p);
}

static int32_t run_floats(const krait_ctx *ctx, const kr_ssd_args *a, int is_tf32) {
  kr_ssd_params p = ssd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  cut_time(&p, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  place_scratch(&p, a->call.scratch);
  p.products = (float *)((char *)a->call.scratch + products_at(&p));
  KR_TRY(kr_ssd_launch_steps(ctx, &p, a->call.stream));
  for (int part = 0; part * KR_SSD_FLOAT_STATES < p.N; part++) {
    const kr_ssd_params some = kr_ssd_part_of(&p, part, KR_SSD_FLOAT_STATES);
    KR_TRY(run_ssd_float_part(ctx, &some, is_tf32, a->call.stream));
  }
  return launch_walk(ctx, KRAIT_CAP_CUDA_BASE, &p, a->call.stream);
}

int32_t kr_ssd_parts(const krait_ctx *ctx, const void *args) { return run_floats(ctx, args, 0); }
int32_t kr_ssd_tf32(const krait_ctx *ctx, const void *args) { return run_floats(ctx, args, 1); }

/* ---- chunks by multiply-adds ---- */

static const kr_kernel tiles_steps = {"ssd_tiles", "kr_ssd_tiles_steps"},
                       tiles_products = {"ssd_tiles", "kr_ssd_tiles_products"},
                       tiles_additions = {"ssd_tiles", "kr_ssd_tiles_additions"},
                       tiles_states = {"ssd_tiles", "kr_ssd_tiles_states"},
                       tiles_output = {"ssd_tiles", "kr_ssd_tiles_output"};

const char *kr_ssd_tiles_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  (void)ctx;
  return a->L < KR_SSD_LEAST_TOKENS ? "too few tokens for chunks" : refuse_modes(a);
}

/* Byte offsets in scratch. */
typedef struct tiles_layout {
  uint64_t carried, products, steps, spoilt, end;
} tiles_layout;

/* As many chunks at once as 256 MB hold states of. */
static int32_t chunks_at_once(const kr_ssd_args *a) {
  const int64_t n_chunks = (a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK,
                room = ((int64_t)1 << 26) / (a->B * a->H * a->P * a->N), n = room < 1 ? 1 : room;
  return (int32_t)(n < n_chunks ? n : n_chunks);
}

static tiles_layout lay_out_tiles(const kr_ssd_args *a) {
  const int64_t n_chunks = (a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK, state = a->B * a->H * a->P * a->N;
  tiles_layout l = {.carried = kr_scratch_round((uint64_t)(state * chunks_at_once(a)) * sizeof(float))};
  l.products = l.carried + kr_scratch_round((uint64_t)state * sizeof(float));
  l.steps = l.products + (uint64_t)(a->B * a->G * n_chunks) * KR_SSD_CHUNK * KR_SSD_CHUNK * sizeof(float);
  l.spoilt = l.steps + (uint64_t)(a->B * a->H * n_chunks) * KR_SSD_STEPS_BYTES;
  l.end = l.spoilt + (uint64_t)(a->B * a->H) * sizeof(int32_t);
  return l;
}

uint64_t kr_ssd_tiles_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return lay_out_tiles(args).end;
}

static int32_t launch_tiles(const krait_ctx *ctx, const kr_kernel *kernel, const kr_ssd_tiles_params *p, int64_t x,
                            int64_t y, uint32_t threads, void *stream) {
  const kr_grid grid = {
      .x = (uint32_t)x, .y = (uint32_t)y, .z = (uint32_t)p->f.B, .block = threads, .stream = stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, kernel, &grid, p, sizeof *p);
}

int32_t kr_ssd_prepare_tiles(const krait_ctx *ctx, const kr_ssd_params *f, void *stream) {
  const kr_ssd_tiles_params p = {.f = *f};
  const int64_t n_chunks = (f->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK, warps = KR_SSD_THREADS / 32;
  KR_TRY(launch_tiles(ctx, &tiles_steps, &p, n_chunks, (f->H + warps - 1) / warps, KR_SSD_THREADS, stream));
  return launch_tiles(ctx, &tiles_products, &p, n_chunks, f->H / f->heads, KR_SSD_TILERS, stream);
}

static int32_t run_slice(const krait_ctx *ctx, const kr_ssd_tiles_params *p, int64_t n_here, void *stream) {
  const int64_t blocks = n_here * p->f.blocks_per_head;
  KR_TRY(launch_tiles(ctx, &tiles_additions, p, blocks * ((p->f.N + 63) / 64), p->f.H, KR_SSD_TILERS, stream));
  KR_TRY(launch_tiles(ctx, &tiles_states, p, (p->f.P * p->f.N + KR_SSD_THREADS - 1) / KR_SSD_THREADS, p->f.H,
                      KR_SSD_THREADS, stream));
  return launch_tiles(ctx, &tiles_output, p, blocks, p->f.H, KR_SSD_TILERS, stream);
}

int32_t kr_ssd_tiles(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  const tiles_layout l = lay_out_tiles(a);
  const int64_t n_chunks = (a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK;
  char *const scratch = a->call.scratch;
  kr_ssd_tiles_params p = {.f = ssd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0)};
  p.f.products = (float *)(scratch + l.products), p.f.steps = scratch + l.steps;
  p.f.spoilt = (int32_t *)(scratch + l.spoilt);
  p.s = (kr_ssd_slice){
      .states = (float *)scratch, .carried = (float *)(scratch + l.carried), .n = chunks_at_once(a)};
  KR_TRY(kr_ssd_prepare_tiles(ctx, &p.f, a->call.stream));
  for (; p.s.first < n_chunks; p.s.first += p.s.n) {
    const int64_t left = n_chunks - p.s.first;
    KR_TRY(run_slice(ctx, &p, left < p.s.n ? left : p.s.n, a->call.stream));
  }
  return launch_walk(ctx, KRAIT_CAP_CUDA_BASE, &p.f, a->call.stream);
}

KR_CUDA_TIERS(ssd, run_ssd)
