/* mamba3_walk_cuda.c: Mamba 3's scan on warpgroups without rows in memory: which calls it takes, its work partition,
 * its launches. */
#include "mamba3_host.h"
#include "mamba3_inner_params.h"
#include "ssd/ssd_hopper_host.h"
#include "status.h"

static const kr_kernel carry_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_carry"),
                       turn_sums_kernel = {"mamba3_packets", "kr_mamba3_turn_sums"},
                       packets_kernel = {"mamba3_packets", "kr_mamba3_packets"},
                       again_kernel = {"mamba3_packets", "kr_mamba3_walk_again"},
                       walk_kernel[3] = {{NULL, NULL},
                                         {"mamba3_walk_f16", "kr_mamba3_walk"},
                                         {"mamba3_walk_bf16", "kr_mamba3_walk"}},
                       back_kernel[3] = {{NULL, NULL},
                                         {"mamba3_walk_f16", "kr_mamba3_walk_back"},
                                         {"mamba3_walk_bf16", "kr_mamba3_walk_back"}};

static int is_any_given(const kr_view *const *views) {
  for (; *views; views++)
    if (kr_has(*views)) return 1;
  return 0;
}

static uint32_t shared_bytes_of(int64_t M) { return 1024 + KR_MAMBA3_WALK_BESIDE + (uint32_t)KR_MAMBA3_TURNS_BYTES(M); }

/* Fewer heads than this share of a device's multiprocessors leave too many of them idle: the SSD cuts time instead. */
#define LEAST_SHARE 0.3

int kr_mamba3_walks(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in) {
  const kr_view *const others[] = {
      &in->mimo_x,         &in->mimo_z,    &in->mimo_o,    &in->norm_weight,    &in->cu_seqlens,
      &in->initial_angles, &in->initial_B, &in->initial_x, &in->initial_states, NULL};
  const int64_t units = in->B * in->H, chunks = (in->L + KR_MAMBA3_CHUNK - 1) / KR_MAMBA3_CHUNK;
  const kr_device_info *const device = kr_cuda_info(ctx->cuda);
  if (!core->takes_direct || in->R != 1 || in->flags & (KRAIT_MAMBA3_HALVES | KRAIT_MAMBA3_REVERSE) ||
      is_any_given(others) || in->P > KR_SSD_P || in->P % 8 || in->N > KR_MAMBA3_WALK_N || in->N % 8 || units == 0 ||
      chunks == 0 || units * chunks > INT32_MAX / 2)
    return 0;
  if ((double)units < LEAST_SHARE * device->n_multiprocessors || device->shared_bytes < shared_bytes_of(in->M))
    return 0;
  return in->x.dtype == in->Bmat.dtype && in->x.dtype == in->Cmat.dtype && in->x.dtype != KRAIT_F32 &&
         kr_ssd_boxes_take(&in->x, in->B, in->L, in->H) && kr_ssd_boxes_take(&in->Bmat, in->B, in->L, in->G) &&
         kr_ssd_boxes_take(&in->Cmat, in->B, in->L, in->G) &&
         (!kr_has(&in->z) || (in->z.dtype == in->x.dtype && kr_ssd_boxes_take(&in->z, in->B, in->L, in->H)));
}

int kr_mamba3_keeps(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in) {
  kr_mamba3_params p = kr_mamba3_params_of(in, 0);
  kr_mamba3_be_plain(&p, in->x.dtype), kr_mamba3_be_direct(core, &p);
  return p.is_direct && kr_has(&in->z) && in->N > 64 && in->M > 0 && in->M <= KR_MAMBA3_INNER_M &&
         kr_cuda_info(ctx->cuda)->shared_bytes >= KR_MAMBA3_INNER_SHARED && kr_mamba3_walks(ctx, core, in);
}

void kr_mamba3_use_kept(kr_mamba3_walk_params *w, const kr_view *kept) {
  const int64_t units = (int64_t)w->f.B * w->f.H, chunks = units * w->f.n_chunks;
  w->S = kept->data, w->S_bytes = 2 * KR_SSD_HOPPER_TILE;
  w->y = (unsigned char *)w->S + chunks * w->S_bytes;
  w->f.dots = (float *)(w->y + chunks * KR_SSD_HOPPER_TILE);
  w->f.angles_before = (uint32_t *)(w->f.dots + chunks * KR_MAMBA3_CHUNK);
  w->spoilt = (int32_t *)(w->f.angles_before + chunks * w->f.M);
}

/* A multiprocessor's two blocks take four thirds of the time that one takes: so one block each, which hands a state on,
 * unless heads are more than that. */
static void cut_walk(kr_mamba3_walk_params *w, int64_t n_multiprocessors) {
  const int64_t units = (int64_t)w->f.B * w->f.H, chunks = units * w->f.n_chunks,
                most = 3 * units > 4 * n_multiprocessors ? 2 * n_multiprocessors : n_multiprocessors;
  w->n_blocks = (int32_t)(units < most ? units : most);
  w->per_block = (int32_t)(chunks / w->n_blocks), w->longer = (int32_t)(chunks % w->n_blocks);
}

kr_mamba3_walk_params kr_mamba3_walk_of(const krait_ctx *ctx, const kr_mamba3_params *f, char *scratch, uint64_t *at) {
  kr_mamba3_walk_params w = {.f = *f};
  const int64_t units = (int64_t)f->B * f->H, chunks = units * f->n_chunks;
  w.f.n_spans = f->n_chunks;
  w.f.packet_bytes = KR_MAMBA3_STEPS_BYTES + KR_MAMBA3_TURNS_BYTES(f->M);
  w.packet_heads = f->angles.stride[2] ? 1 : KR_MAMBA3_PACKET_HEADS; /* heads that share angles share their tangents */
  cut_walk(&w, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  w.f.packets = kr_mamba3_take(scratch, at, chunks, (uint64_t)w.f.packet_bytes);
  w.f.angles_before = kr_mamba3_take(scratch, at, chunks * f->M, sizeof(uint32_t));
  w.states = kr_mamba3_take(scratch, at, (int64_t)w.n_blocks * KR_SSD_P * KR_MAMBA3_WALK_N, sizeof(float));
  w.ready = kr_mamba3_take(scratch, at, w.n_blocks, sizeof(int32_t));
  w.spoilt = kr_mamba3_take(scratch, at, units, sizeof(int32_t));
  return w;
}

/* A tensor (batch, token, head, columns) as boxes; absent: nothing. */
static int32_t make_walk_map(const krait_ctx *ctx, kr_ssd_map *map, const kr_view *v, const kr_mamba3_params *p,
                             int64_t H, int64_t columns) {
  const kr_ssd_tensor t = kr_ssd_sequence(v, 0, p->L);
  return v->data ? kr_ssd_hopper_map(ctx, map, &t, p->B, p->L, H, columns) : KRAIT_OK;
}

/* Tensors that a walk has maps of besides its inputs, each or absent; q and k of some columns. */
typedef struct beside {
  kr_view q, k, dout;
  int64_t columns;
} beside;

static int32_t make_walk_maps(const krait_ctx *ctx, kr_mamba3_walk_params *w, const beside *more) {
  const kr_mamba3_params *const p = &w->f;
  const struct {
    kr_ssd_map *map;
    const kr_view *v;
    int64_t H, columns;
  } all[] = {{&w->x, &p->x, p->H, p->P},
             {&w->z, &p->z, p->H, p->P},
             {&w->Bmat, &p->Bmat, p->G, p->N},
             {&w->Cmat, &p->Cmat, p->G, p->N},
             {&w->q, &more->q, p->H, more->columns},
             {&w->k, &more->k, p->H, more->columns},
             {&w->dout, &more->dout, p->H, p->P}};
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only in its current context */
  int32_t status = KRAIT_OK;
  for (size_t i = 0; i < sizeof all / sizeof *all && status == KRAIT_OK; i++)
    status = make_walk_map(ctx, all[i].map, all[i].v, p, all[i].H, all[i].columns);
  kr_cuda_end(ctx->cuda);
  return status;
}

int32_t kr_mamba3_launch_packets(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_walk_params *w,
                                 int has_sums, int type, void *stream) {
  const kr_mamba3_params *const p = &w->f;
  const uint64_t tier = KRAIT_CAP_CUDA_HOPPER;
  const kr_grid packets = {.x = (uint32_t)p->n_chunks * (uint32_t)((p->H + w->packet_heads - 1) / w->packet_heads),
                           .y = 1,
                           .z = (uint32_t)p->B,
                           .block = KR_MAMBA3_PACKET_THREADS,
                           .stream = stream},
                heads = kr_mamba3_grid((int64_t)p->B * p->H, 1, stream);
  if (p->M && !has_sums) {
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, &turn_sums_kernel, &packets, w, sizeof *w));
    KR_TRY(kr_mamba3_launch(ctx, core->tier, carry_kernel, type, &heads, p, sizeof *p));
  }
  return kr_cuda_launch(ctx->cuda, tier, &packets_kernel, &packets, w, sizeof *w);
}

static int32_t launch_way(const krait_ctx *ctx, kr_mamba3_walk_params *w, const beside *more, int warpgroups, int type,
                          const kr_kernel kernels[3], void *stream) {
  const kr_grid walk = {.x = (uint32_t)w->n_blocks,
                        .y = 1,
                        .z = 1,
                        .block = (uint32_t)warpgroups * KR_MAMBA3_WALK_THREADS,
                        .shared_bytes = shared_bytes_of(w->f.M),
                        .stream = stream};
  KR_TRY(make_walk_maps(ctx, w, more));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &kernels[type], &walk, w, sizeof *w);
}

int32_t kr_mamba3_launch_walk(const krait_ctx *ctx, kr_mamba3_walk_params *w, const kr_view *dout, int type,
                              void *stream) {
  const kr_mamba3_params *const p = &w->f;
  const beside more = {kr_mamba3_rows_of(p, p->q, p->row_N, type), kr_mamba3_rows_of(p, p->k, p->row_N, type), *dout,
                       p->N};
  return launch_way(ctx, w, &more, 1, type, walk_kernel, stream);
}
int32_t kr_mamba3_launch_walk_back(const krait_ctx *ctx, kr_mamba3_walk_params *w, const kr_view *dy, int type,
                                   void *stream) {
  const beside more = {.q = *dy, .k = w->dz, .columns = w->f.P};
  return launch_way(ctx, w, &more, w->y ? 2 : 1, type, back_kernel, stream);
}

int32_t kr_mamba3_walk_again(const krait_ctx *ctx, const kr_mamba3_walk_params *w, void *stream) {
  const kr_grid again = {.x = (uint32_t)(w->f.H * ((w->f.P + 15) / 16)),
                         .y = 1,
                         .z = (uint32_t)w->f.B,
                         .block = KR_MAMBA3_PACKET_THREADS,
                         .stream = stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &again_kernel, &again, w, sizeof *w);
}
