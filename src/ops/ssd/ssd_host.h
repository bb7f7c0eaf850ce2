/* ssd_host.h: inputs of the SSD and its gradient in the form that their kernels take. */
#ifndef KR_SSD_HOST_H
#define KR_SSD_HOST_H

#include <math.h>

#include "cuda_impl.h"
#include "ssd_bwd_params.h"
#include "ssd_inputs.h"
#include "view.h"

static inline int kr_ssd_is_aligned(const kr_view *v) {
  return !kr_has(v) ||
         (v->stride[3] == 1 && (v->stride[0] | v->stride[1] | v->stride[2]) % 8 == 0 && (uintptr_t)v->data % 16 == 0);
}

/* (B,L,H,..) in scan order of either direction. */
static inline kr_ssd_tensor kr_ssd_sequence(const kr_view *v, int reverse, int64_t L) {
  kr_ssd_tensor t = {.data = v->data,
                     .b = v->stride[0],
                     .t = v->stride[1],
                     .h = v->stride[2],
                     .n = v->stride[3],
                     .dtype = v->dtype,
                     .packs = kr_ssd_is_aligned(v)};
  if (!v->data || !reverse) return t;
  t.data = (char *)v->data + (L - 1) * t.t * (int64_t)krait_dtype_bytes(v->dtype);
  t.t = -t.t;
  return t;
}

/* (rows,H,P,N). */
static inline kr_ssd_tensor kr_ssd_states(const kr_view *v) {
  return (kr_ssd_tensor){
      .data = v->data, .b = v->stride[0], .h = v->stride[1], .t = v->stride[2], .n = v->stride[3], .dtype = v->dtype};
}

static inline kr_ssd_tensor kr_ssd_heads(const kr_view *v, int has_channels) {
  return (kr_ssd_tensor){.data = v->data, .h = v->stride[0], .n = has_channels ? v->stride[1] : 0, .dtype = v->dtype};
}

/* D or its gradient: (H,P), or (B,L,H) with KR_SSD_TOKEN_D. */
static inline kr_ssd_tensor kr_ssd_skips(const kr_view *v, uint32_t flags) {
  if (!(flags & KR_SSD_TOKEN_D)) return kr_ssd_heads(v, 1);
  return (kr_ssd_tensor){.data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .dtype = v->dtype};
}

static inline kr_ssd_params kr_ssd_params_of(const kr_ssd_inputs *in, int reverse) {
  kr_ssd_params p = {.L = in->L,
                   .B = (int32_t)in->B,
                   .H = (int32_t)in->H,
                   .P = (int32_t)in->P,
                   .N = (int32_t)in->N,
                   .heads = (int32_t)(in->H / in->G)};
  p.softplus = (in->flags & KRAIT_SSD_SOFTPLUS) != 0, p.last_rank = KR_SSD_LAST_RANK(in->flags);
  p.dt_min = in->dt_min, p.dt_max = in->dt_max == 0 ? INFINITY : in->dt_max;
  p.x = kr_ssd_sequence(in->x, reverse, in->L), p.z = kr_ssd_sequence(in->z, reverse, in->L),
  p.dt = kr_ssd_sequence(in->dt, reverse, in->L);
  p.Bmat = kr_ssd_sequence(in->Bmat, reverse, in->L), p.Cmat = kr_ssd_sequence(in->Cmat, reverse, in->L);
  p.log_decay = kr_ssd_sequence(in->log_decay, reverse, in->L);
  p.A = kr_ssd_heads(in->A, 0), p.bias = kr_ssd_heads(in->dt_bias, 0);
  p.has_token_D = (in->flags & KR_SSD_TOKEN_D) != 0, p.D = kr_ssd_skips(in->Dvec, in->flags);
  p.initial = kr_ssd_states(in->initial_states);
  p.blocks_per_head = (int32_t)((in->P + KR_SSD_P - 1) / KR_SSD_P);
  p.n_segments = 1, p.segment = in->L;
  if (!kr_has(in->seq_idx)) return p;
  p.seq_b = in->seq_idx->stride[0], p.seq_t = reverse ? -in->seq_idx->stride[1] : in->seq_idx->stride[1];
  p.seq_idx = (const int32_t *)in->seq_idx->data + (reverse ? (in->L - 1) * in->seq_idx->stride[1] : 0);
  return p;
}

/* The slice of `most` states that `part` selects: the first part's output includes D x, the last applies
 * the gate. */
static inline kr_ssd_params kr_ssd_part_of(const kr_ssd_params *whole, int part, int most) {
  kr_ssd_params p = *whole;
  const int64_t first = (int64_t)most * part, left = whole->N - first;
  kr_ssd_tensor *const tensors[] = {&p.Bmat, &p.Cmat, &p.initial, &p.final};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
    if (tensors[i]->data)
      tensors[i]->data =
          (char *)tensors[i]->data + first * tensors[i]->n * (int64_t)krait_dtype_bytes(tensors[i]->dtype);
  p.N = (int32_t)(left < most ? left : most), p.adds = part > 0;
  if (part) p.D.data = NULL;
  if (left > most) p.z.data = NULL;
  return p;
}

static inline const char *kr_ssd_refuse_sizes(const kr_ssd_inputs *in) {
  if (in->B > 65535 || in->S > 65535) return "more than 65535 sequences";
  if (in->H > INT32_MAX / 256) return "more than 2^23 heads";
  if (in->B * in->H > INT32_MAX) return "more than 2^31 heads of all sequences"; /* index of spoilt */
  return NULL;
}

/* Whether D is on the diagonal of P, in its 16 bits (the kernels named `passed`): one D for all channels of a head. In
 * float16 a D beyond 65504 would be infinite there. */
static inline int kr_ssd_passes_D(const kr_ssd_params *p) { return p->D.data && p->D.n == 0; }

/* Who has a part in a gradient. run, or absent: makes, for a call on warpgroups and before step sizes and D are read,
 * S, the states before chunks in shared-memory layout, and of a gated call dy before the gate as forward's output and
 * dz, of another one dout. spoilt: as kr_ssd_params.spoilt, of its own. run_inner, or absent: in place of the walk back
 * and of the kernel that takes chunk by chunk; it may give p groups of heads, with dB, dC and the memory of splits'
 * sums as these have them. take_states, or absent: reads p's S, M and spoilt, behind these kernels. */
typedef struct kr_ssd_maker {
  int32_t (*run)(const krait_ctx *ctx, const void *user, const kr_ssd_params *forward, void *S);
  const void *user;
  const int32_t *spoilt;
  void *S; /* or absent: where the states are already, only to be read */
  int32_t (*run_inner)(const krait_ctx *ctx, const void *user, kr_ssd_bwd_params *p);
  int32_t (*take_states)(const krait_ctx *ctx, const void *user, const kr_ssd_bwd_params *p);
} kr_ssd_maker;
int32_t kr_ssd_bwd_hopper_made(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_maker *maker);
int32_t kr_ssd_bwd_chunks_made(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_maker *maker);

/* Why the chunked rows take no such tensors or options, or NULL. */
const char *kr_ssd_chunks_refuse_tensors(const kr_ssd_args *a);
/* Recomputes the heads flagged in p->spoilt token by token. */
int32_t kr_ssd_walk_nonfinite(const krait_ctx *ctx, const kr_ssd_params *p, void *stream);
/* Prerequisite of the chunked rows: p->steps. */
int32_t kr_ssd_launch_steps(const krait_ctx *ctx, const kr_ssd_params *p, void *stream);
/* States that the chunked 16-bit rows take at once: KR_SSD_MOST_STATES, or half where shared memory is small. */
int kr_ssd_states_at_once(const krait_ctx *ctx);
/* Output of the chunked 16-bit rows, for a params of at most kr_ssd_states_at_once whose time is not split or whose
 * segments' start states are known. */
int32_t kr_ssd_launch_chunks(const krait_ctx *ctx, const kr_ssd_params *p, void *stream);
/* Of float32, for at most KR_SSD_FLOAT_STATES: C B^T to p->products, and the shared memory that this takes. */
int32_t kr_ssd_launch_products(const krait_ctx *ctx, const kr_ssd_params *p, int is_tf32, void *stream);
uint32_t kr_ssd_float_shared_bytes(int64_t N);
/* Step sizes and C B^T for chunks by multiply-adds: to f->steps and f->products. */
int32_t kr_ssd_prepare_tiles(const krait_ctx *ctx, const kr_ssd_params *f, void *stream);

#endif
