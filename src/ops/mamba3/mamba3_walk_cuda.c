/* mamba3_walk_cuda.c: Mamba 3's scan on warpgroups without rows in memory: which calls it takes, its work partition,
 * its launches. */
#include "mamba3_host.h"
#include "mamba3_walk_params.h"
#include "ssd/ssd_hopper_host.h"
#include "status.h"

static const kr_kernel carry_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_carry"),
                       chunk_turns_kernel = {"mamba3_packets", "kr_mamba3_chunk_turns"},
                       packets_kernel = {"mamba3_packets", "kr_mamba3_packets"},
                       again_kernel = {"mamba3_packets", "kr_mamba3_walk_again"},
                       walk_kernel[3] = {
                           {NULL, NULL}, {"mamba3_walk_f16", "kr_mamba3_walk"}, {"mamba3_walk_bf16", "kr_mamba3_walk"}};

static int is_any_of(const kr_view *const *views) {
  for (; *views; views++)
    if (kr_has(*views)) return 1;
  return 0;
}

static uint32_t shared_bytes_of(int64_t M) { return 1024 + KR_MAMBA3_WALK_BESIDE + (uint32_t)KR_MAMBA3_TURNS_BYTES(M); }

/* Fewer heads than this of a device's multiprocessors leave too many of them idle: the SSD cuts time instead. */
#define LEAST_SHARE 0.3

int kr_mamba3_walks(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_args *a) {
  const kr_view *const others[] = {
      &a->mimo_x,       &a->mimo_z,    &a->mimo_o,         &a->norm_weight,  &a->cu_seqlens, &a->initial_angles,
      &a->initial_B,    &a->initial_x, &a->initial_states, &a->final_angles, &a->final_B,    &a->final_x,
      &a->final_states, NULL};
  const int64_t units = a->B * a->H, chunks = (a->L + KR_MAMBA3_CHUNK - 1) / KR_MAMBA3_CHUNK;
  if (!core->takes_direct || a->R != 1 || a->call.flags & (KRAIT_MAMBA3_HALVES | KRAIT_MAMBA3_REVERSE) ||
      is_any_of(others) || a->P > KR_SSD_P || a->P % 8 || a->N > KR_MAMBA3_WALK_N || a->N % 8 || units == 0 ||
      chunks == 0 || units * chunks > INT32_MAX / 2)
    return 0;
  const kr_device_info *const device = kr_cuda_info(ctx->cuda);
  if ((double)units < LEAST_SHARE * device->n_multiprocessors || device->shared_bytes < shared_bytes_of(a->M)) return 0;
  return a->x.dtype == a->Bmat.dtype && a->x.dtype == a->Cmat.dtype && kr_ssd_boxes_take(&a->x, a->B, a->L, a->H) &&
         kr_ssd_boxes_take(&a->Bmat, a->B, a->L, a->G) && kr_ssd_boxes_take(&a->Cmat, a->B, a->L, a->G) &&
         (!kr_has(&a->z) || (a->z.dtype == a->x.dtype && kr_ssd_boxes_take(&a->z, a->B, a->L, a->H))) &&
         kr_mamba3_takes_vectors(&a->out, a->x.dtype);
}

/* Two blocks a multiprocessor if there are as many heads; between one and two heads for each, one block, which hands
 * over a state, is as fast as some multiprocessors with two. */
static void cut_walk(kr_mamba3_walk_params *w, int n_multiprocessors) {
  const int64_t units = (int64_t)w->f.B * w->f.H, chunks = units * w->f.n_chunks;
  w->n_blocks = (int32_t)(units >= 2 * n_multiprocessors ? 2 * n_multiprocessors
                          : units < n_multiprocessors    ? units
                                                         : n_multiprocessors);
  w->per_block = (int32_t)(chunks / w->n_blocks), w->longer = (int32_t)(chunks % w->n_blocks);
}

static kr_mamba3_walk_params walk_of(const krait_ctx *ctx, const kr_mamba3_args *a, char *scratch, uint64_t *bytes) {
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  kr_mamba3_walk_params w = {.f = kr_mamba3_params_of(&in, 0)};
  const int64_t units = a->B * a->H, chunks = units * w.f.n_chunks;
  uint64_t at = 0;
  w.f.out = a->out, w.f.n_spans = w.f.n_chunks;
  w.packet_bytes = KR_MAMBA3_STEPS_BYTES + KR_MAMBA3_TURNS_BYTES(w.f.M);
  w.packet_heads = a->angles.stride[2] ? 1 : KR_MAMBA3_PACKET_HEADS; /* heads that share angles share their tangents */
  cut_walk(&w, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  w.packets = kr_mamba3_take(scratch, &at, chunks, (uint64_t)w.packet_bytes);
  w.f.angles_before = kr_mamba3_take(scratch, &at, chunks * w.f.M, sizeof(uint32_t));
  w.states = kr_mamba3_take(scratch, &at, (int64_t)w.n_blocks * KR_SSD_P * KR_MAMBA3_WALK_N, sizeof(float));
  w.ready = kr_mamba3_take(scratch, &at, w.n_blocks, sizeof(int32_t));
  w.spoilt = kr_mamba3_take(scratch, &at, units, sizeof(int32_t));
  *bytes = at;
  return w;
}

uint64_t kr_mamba3_walk_scratch(const krait_ctx *ctx, const kr_mamba3_args *a) {
  uint64_t bytes;
  walk_of(ctx, a, kr_mamba3_nowhere(), &bytes);
  return bytes;
}

static int32_t make_walk_maps(const krait_ctx *ctx, kr_mamba3_walk_params *w) {
  const kr_mamba3_params *const p = &w->f;
  const kr_ssd_tensor x = kr_ssd_sequence(&p->x, 0, p->L), z = kr_ssd_sequence(&p->z, 0, p->L),
                      B = kr_ssd_sequence(&p->Bmat, 0, p->L), C = kr_ssd_sequence(&p->Cmat, 0, p->L);
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only in its current context */
  int32_t status = kr_ssd_hopper_map(ctx, &w->x, &x, p->B, p->L, p->H, p->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &w->Bmat, &B, p->B, p->L, p->G, p->N);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &w->Cmat, &C, p->B, p->L, p->G, p->N);
  if (status == KRAIT_OK && z.data) status = kr_ssd_hopper_map(ctx, &w->z, &z, p->B, p->L, p->H, p->P);
  kr_cuda_end(ctx->cuda);
  return status;
}

int32_t kr_mamba3_run_walk(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_args *a) {
  uint64_t bytes;
  kr_mamba3_walk_params w = walk_of(ctx, a, a->call.scratch, &bytes);
  const kr_mamba3_params *const p = &w.f;
  void *const stream = a->call.stream;
  const uint64_t tier = KRAIT_CAP_CUDA_HOPPER;
  const int64_t groups = (p->H + w.packet_heads - 1) / w.packet_heads;
  const kr_grid packets = {.x = (uint32_t)(p->n_chunks * groups),
                           .y = 1,
                           .z = (uint32_t)p->B,
                           .block = KR_MAMBA3_PACKET_THREADS,
                           .stream = stream},
                heads = kr_mamba3_grid((int64_t)p->B * p->H, 1, stream),
                walk = {.x = (uint32_t)w.n_blocks,
                        .y = 1,
                        .z = 1,
                        .block = KR_MAMBA3_WALK_THREADS,
                        .shared_bytes = shared_bytes_of(p->M),
                        .stream = stream},
                again = {.x = (uint32_t)(p->H * ((p->P + 15) / 16)),
                         .y = 1,
                         .z = (uint32_t)p->B,
                         .block = KR_MAMBA3_PACKET_THREADS,
                         .stream = stream};
  KR_TRY(make_walk_maps(ctx, &w));
  if (p->M) {
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, &chunk_turns_kernel, &packets, &w, sizeof w));
    KR_TRY(kr_mamba3_launch(ctx, core->tier, carry_kernel, a->x.dtype, &heads, p, sizeof *p));
  }
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &packets_kernel, &packets, &w, sizeof w));
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &walk_kernel[a->x.dtype], &walk, &w, sizeof w));
  return kr_cuda_launch(ctx->cuda, tier, &again_kernel, &again, &w, sizeof w);
}
