/* mamba3_host.h: host code shared by Mamba 3's scan and its gradient on a GPU: the implementations of the SSD that they
 * run, and what surrounds these. */
#ifndef KR_MAMBA3_HOST_H
#define KR_MAMBA3_HOST_H

#include "cuda_impl.h"
#include "mamba3_inputs.h"
#include "mamba3_params.h"
#include "mamba3_walk_params.h"
#include "ssd/ssd_host.h"

/* An implementation of the SSD and one of its gradient; rows in scratch are of the call's type, or (takes_any)
 * float32. */
typedef struct kr_mamba3_core {
  uint64_t tier; /* of the surrounding kernels */
  uint32_t flag; /* of the SSD */
  int takes_any, takes_direct;
  kr_impl ssd, ssd_bwd;
  int32_t (*ssd_bwd_made)(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_maker *maker); /* or absent */
} kr_mamba3_core;

/* A kernel of mamba3_ranks.cu, by whether ranks are four instead of two, and type. */
#define KR_MAMBA3_BY_RANKS(name) {KR_BY_TYPE("mamba3_ranks", name "_2"), KR_BY_TYPE("mamba3_ranks", name "_4")}

/* turing: of the scan alone */
enum {
  KR_MAMBA3_TURING,
  KR_MAMBA3_HOPPER,
  KR_MAMBA3_CHUNKS,
  KR_MAMBA3_CHUNKS_TF32,
  KR_MAMBA3_PARTS,
  KR_MAMBA3_TILES,
  KR_MAMBA3_TOKENS
};
const kr_mamba3_core *kr_mamba3_core_of(int which);

/* Why the kernels around the SSD take no such call, or NULL. */
const char *kr_mamba3_refuse(const kr_mamba3_core *core, const kr_mamba3_inputs *in);
int kr_mamba3_row_type(const kr_mamba3_core *core, const kr_mamba3_inputs *in);
/* Params of a call, without its outputs. has_ends: whether a block follows a sequence's last token. */
kr_mamba3_params kr_mamba3_params_of(const kr_mamba3_inputs *in, int has_ends);
/* Whether v has rows of this type in aligned vectors of eight, or is absent. */
int kr_mamba3_takes_vectors(const kr_view *v, int type);
/* Takes mamba3_plain.cu or mamba3_ranks.cu, if the inputs allow it. */
void kr_mamba3_be_plain(kr_mamba3_params *p, int type);
/* Of a plain call's gradient: makes it direct, if the SSD takes that. */
void kr_mamba3_be_direct(const kr_mamba3_core *core, kr_mamba3_params *p);
/* A value of each token and head in scratch, (B,H,L), as (B,L,H). */
kr_view kr_mamba3_values_of(const kr_mamba3_params *p, void *data);
/* Sets the addresses in scratch, of rows of this type; returns the offset behind them. */
uint64_t kr_mamba3_place(kr_mamba3_params *p, char *scratch, int type);
/* Takes n elements of scratch at offset *at, which is advanced. */
void *kr_mamba3_take(char *scratch, uint64_t *at, int64_t n, uint64_t bytes);
/* Where a layout begins of which only the size or the alignment is asked for. */
static inline char *kr_mamba3_nowhere(void) { return (char *)(uintptr_t)4096; }
/* Rows in scratch as (B,n_rows,H,columns). */
kr_view kr_mamba3_rows_of(const kr_mamba3_params *p, void *data, int64_t columns, int32_t dtype);
/* The SSD of the rows, without what it writes; not to be run if there are none. */
kr_ssd_args kr_mamba3_ssd(const kr_mamba3_core *core, const kr_mamba3_inputs *in, const kr_mamba3_params *p,
                          const kr_call *call, void *scratch);
/* Whether warpgroups turn keys and queries as they read B and C, so that a scan needs no rows (mamba3_walk_cuda.c); if
 * it has no states after sequences, and its output takes vectors. */
int kr_mamba3_walks(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in);
/* Whether such a call, if it is walked, leaves in `kept` what its gradient takes instead of a walk of its own. */
int kr_mamba3_keeps(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in);
/* Of such a call: where in `kept` is what the walk leaves; of its gradient: where it is. */
void kr_mamba3_use_kept(kr_mamba3_walk_params *w, const kr_view *kept);
/* The walk of a call whose params are f, and its scratch from *at on, which is advanced. */
kr_mamba3_walk_params kr_mamba3_walk_of(const krait_ctx *ctx, const kr_mamba3_params *f, char *scratch, uint64_t *at);
/* Its packets (has_sums: of chunks' turns, are there); then the walk itself; dout: of the gradient, else absent. */
int32_t kr_mamba3_launch_packets(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_walk_params *w,
                                 int has_sums, int type, void *stream);
int32_t kr_mamba3_launch_walk(const krait_ctx *ctx, kr_mamba3_walk_params *w, const kr_view *dout, int type,
                              void *stream);
/* The gradients of the states after chunks, of the gradient's walk: to S. w->f.x: dy; with w->y dout, and dy and w->dz
 * are left. */
int32_t kr_mamba3_launch_walk_back(const krait_ctx *ctx, kr_mamba3_walk_params *w, const kr_view *dy, int type,
                                   void *stream);
/* Scans heads that met NaN or infinity again. */
int32_t kr_mamba3_walk_again(const krait_ctx *ctx, const kr_mamba3_walk_params *w, void *stream);
/* Fills the rows. */
int32_t kr_mamba3_run_rows(const krait_ctx *ctx, uint64_t tier, int type, const kr_mamba3_params *p, void *stream);
kr_grid kr_mamba3_grid(int64_t blocks, int64_t batch, void *stream);
int32_t kr_mamba3_launch(const krait_ctx *ctx, uint64_t tier, const kr_kernel kernels[3], int type, const kr_grid *grid,
                         const void *params, size_t bytes);

#endif
