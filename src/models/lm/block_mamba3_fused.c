/* block_mamba3_fused.c: all layers of a step of Mamba-3 as one call of the operator mamba3_decode: where they are of
 * one rank and group, without MLPs, and their weights at equal distances. */
#include <stddef.h>
#include <string.h>

#include "block_given.h"
#include "block_mamba.h"
#include "ctx.h"
#include "lm_ops.h"
#include "lm_slots.h"

/* Whether the operator has everything that the layers have. */
static int are_plain_mamba3(const kr_lm_config *c) {
  int plain = c->is_rms;
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_lm_block *block = &c->blocks[i];
    const kr_lm_mamba3_sizes *s = block->sizes;
    plain = plain && memcmp(s, c->blocks[0].sizes, sizeof *s) == 0 && s->R == 1 && s->G == 1 && s->M > 0 &&
            !s->is_mimo && !s->is_normed && !block->norm_bias.data && block->in_scale == 0 && block->out_scale == 0;
  }
  return plain;
}

/* The call, with addresses if known. 0: the layers are not of its kind. */
static int describe_mamba3_decode(const kr_lm_builder *b, kr_mamba3_decode_args *a) {
  static float aligned[4] __attribute__((aligned(256)));
  const kr_lm_config *c = b->c;
  const kr_lm_block *block = &c->blocks[0];
  const kr_lm_mamba3_sizes *s = block->sizes;
  const int64_t E = s->H * s->P, rows = 2 * E + 2 * s->N + 3 * s->H + s->M;
  const int32_t state_dtype = kr_lm_state_dtype(b, &block->states[KR_MAMBA3_SSM]);
  int fits = are_plain_mamba3(c) && (state_dtype == KRAIT_F32 || b->slots->n * E * s->N % 2 == 0);
  if (!fits) return 0;
#define LAYERED3(name, ...) \
  kr_lm_layered(c, offsetof(kr_lm_given_mamba3, name), KR_LAYERED_DATA, KR_DIMS(__VA_ARGS__), &fits)
  *a = (kr_mamba3_decode_args){.call.flags = s->is_A_softplus ? KRAIT_MAMBA3_SOFTPLUS_A : 0,
                               .B = b->run.B,
                               .Y = c->n_blocks,
                               .D = s->d,
                               .H = s->H,
                               .P = s->P,
                               .N = s->N,
                               .M = s->M,
                               .n_states = b->slots->n,
                               .eps = c->eps,
                               .A_floor = (float)s->A_floor,
                               .x = {.data = aligned, .dtype = b->rows.dtype, .stride = {s->d, 1}},
                               .norm_weight = kr_lm_layered(c, KR_LAYERED_NORM, KR_LAYERED_DATA, KR_DIMS(s->d), &fits),
                               .in_proj = LAYERED3(in_proj, rows, s->d),
                               .BC_norm = LAYERED3(BC_norm, 2 * s->N),
                               .B_bias = LAYERED3(B_bias, s->H, s->N),
                               .C_bias = LAYERED3(C_bias, s->H, s->N),
                               .dt_bias = LAYERED3(dt_bias, s->H),
                               .Dvec = LAYERED3(D, s->H),
                               .out_proj = LAYERED3(out_proj, s->d, E),
                               .angle_state = kr_lm_states_layout(b, block, KR_MAMBA3_ANGLE),
                               .ssm_state = kr_lm_states_layout(b, block, KR_MAMBA3_SSM),
                               .B_state = kr_lm_states_layout(b, block, KR_MAMBA3_KEY),
                               .x_state = kr_lm_states_layout(b, block, KR_MAMBA3_VALUE),
                               .state_batch_indices = {.data = aligned, .dtype = KRAIT_I32, .stride = {1}},
                               .out = {.data = aligned, .dtype = KRAIT_F32, .stride = {s->d, 1}}};
  return fits && a->norm_weight.data && a->in_proj.data && a->out_proj.data; /* of 8 bits they are absent */
}

/* As of Mamba-2's layers (block_mamba_fused.c): where Hopper's implementation streams the weights. */
int kr_mamba3_can_fuse(const kr_lm_builder *b) {
  kr_mamba3_decode_args a;
  int32_t status = KRAIT_OK;
  if (!describe_mamba3_decode(b, &a)) return 0;
  if (b->run.fused) return 1;
  const krait_ctx *ctx = b->rows.ctx;
  const kr_impl *impl = ctx->cuda ? kr_op_resolve(&kr_op_mamba3_decode, ctx, &a, &status) : NULL;
  return impl && impl->needs & KRAIT_CAP_CUDA_HOPPER;
}

/* x: rows of the embedding; returns the residual stream after all layers. */
kr_tensor kr_mamba3_record_fused(kr_lm_builder *b, kr_tensor x) {
  const kr_token_builder *r = &b->rows;
  const kr_lm_block *block = &b->c->blocks[0];
  const kr_lm_mamba3_sizes *s = block->sizes;
  const int64_t Y = b->c->n_blocks, E = s->H * s->P;
  kr_tensor states[4];
  kr_mamba3_decode_args of, a;
  if (!describe_mamba3_decode(b, &of)) return 0;
  a = of;
  const kr_tensor out = kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->d));
  for (int k = 0; k < 4; k++) states[k] = kr_lm_record_all_states(b, block, k, b->slots->n);
#define STACKED3(field, ...) a.field = kr_lm_record_layered(r, #field, &of.field, KR_DIMS(Y, __VA_ARGS__))
  STACKED3(norm_weight, s->d), STACKED3(in_proj, 2 * E + 2 * s->N + 3 * s->H + s->M, s->d), STACKED3(BC_norm, 2 * s->N);
  STACKED3(B_bias, s->H, s->N), STACKED3(C_bias, s->H, s->N), STACKED3(dt_bias, s->H), STACKED3(Dvec, s->H);
  STACKED3(out_proj, s->d, E);
  a.angle_state = view(r, states[KR_MAMBA3_ANGLE]), a.ssm_state = view(r, states[KR_MAMBA3_SSM]);
  a.B_state = view(r, states[KR_MAMBA3_KEY]), a.x_state = view(r, states[KR_MAMBA3_VALUE]);
  a.x = view(r, x), a.state_batch_indices = view(r, b->to->slots), a.out = view(r, out);
  kr_graph_call(r->g, "layers", &kr_op_mamba3_decode, &a);
  return out;
}
