/* block_mamba1.c: the mixer of Mamba, and of FalconMamba with its norms of dt, B and C. Fields: in_proj, conv, x_proj,
 * dt_proj, A, D, out_proj, and biases. */
#include <math.h>

#include "block_mamba.h"
#include "status.h"

static double decay_of(double A_log) { return -exp(A_log); }

int32_t kr_mamba_load(kr_lm_loader *l, const kr_lm_block *block, int64_t n_D) {
  const kr_lm_mamba_sizes *s = block->sizes;
  kr_lm_mamba_weights *w = block->weights;
  const int64_t rows = kr_mamba_rows(block), C = kr_mamba_channels(block);
  KR_TRY(kr_lm_load(l, "in_proj", 1, KR_SIZES(rows, s->d), &w->in_proj));
  KR_TRY(kr_lm_load(l, "in_proj_bias", 0, KR_SIZES(rows), &w->in_proj_bias));
  KR_TRY(kr_lm_load(l, "conv", 1, KR_SIZES(C, 1, s->W), &w->conv));
  KR_TRY(kr_lm_load(l, "conv_bias", 0, KR_SIZES(C), &w->conv_bias));
  KR_TRY(kr_lm_load_f32(l, "A", kr_mamba_is_second(block) ? KR_SIZES(s->H) : KR_SIZES(s->Di, s->N), decay_of, &w->A));
  KR_TRY(kr_lm_load_f32(l, "D", KR_SIZES(n_D), NULL, &w->D));
  KR_TRY(kr_lm_load(l, "out_proj", 1, KR_SIZES(s->d, s->Di), &w->out_proj));
  return kr_lm_load(l, "out_proj_bias", 0, KR_SIZES(s->d), &w->out_proj_bias);
}

int32_t kr_mamba_list_states(const kr_lm_block *block, kr_lm_state *states) {
  const kr_lm_mamba_sizes *s = block->sizes;
  states[KR_MAMBA_CONV] = (kr_lm_state){.name = "conv", .n_dims = 2, .size = {kr_mamba_channels(block), s->W - 1}};
  states[KR_MAMBA_SSM] = (kr_lm_state){.name = "ssm", .is_narrowable = 1, .n_dims = 3, .size = {s->H, s->P, s->N}};
  return 2;
}

static int32_t load_mamba1(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mamba_sizes *s = block->sizes;
  kr_lm_mamba_weights *w = block->weights;
  KR_TRY(kr_mamba_load(l, block, s->Di));
  KR_TRY(kr_lm_load(l, "x_proj", 1, KR_SIZES(s->R + 2 * s->N, s->Di), &w->x_proj));
  KR_TRY(kr_lm_load(l, "dt_proj", 1, KR_SIZES(s->Di, s->R), &w->dt_proj));
  for (int i = 0; i < 3; i++) {
    static const char *const names[] = {"dt_norm", "B_norm", "C_norm"};
    if (s->dt_eps > 0) KR_TRY(kr_lm_load(l, names[i], 0, KR_SIZES(i ? s->N : s->R), &w->small_norm[i]));
  }
  return kr_lm_load_f32(l, "dt_proj_bias", KR_SIZES(s->Di), NULL, &w->dt_bias);
}

/* ---- the scan ---- */

/* What it reads and writes, as rows; z: the gate. */
typedef struct scan_rows {
  kr_tensor u, delta, B, C, z, y;
} scan_rows;

static void update_mamba1(const kr_lm_builder *b, const kr_lm_block *block, const scan_rows *t) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims rows = KR_DIMS(r->rows, 1, s->Di), states = KR_DIMS(r->rows, 1, s->N), one = KR_DIMS(1, s->Di);
  kr_graph_call(r->g, "scan", &kr_op_state_update,
                &(kr_state_update_args){.call.flags = KRAIT_UPDATE_SOFTPLUS,
                                           .state = view(r, kr_lm_state_of(b, block, KR_MAMBA_SSM)),
                                           .x = view_as(r, t->u, rows),
                                           .dt = view_as(r, t->delta, rows),
                                           .A = view_as(r, weight(r, "A", &w->A, s->Di, s->N), KR_DIMS(1, s->Di, s->N)),
                                           .Bmat = view_as(r, t->B, states),
                                           .Cmat = view_as(r, t->C, states),
                                           .Dvec = view_as(r, weight(r, "D", &w->D, s->Di), one),
                                           .dt_bias = view_as(r, weight(r, "dt_bias", &w->dt_bias, s->Di), one),
                                           .z = view_as(r, t->z, rows),
                                           .state_batch_indices = view(r, b->to->slots),
                                           .out = view_as(r, t->y, rows)});
}

/* (L,N) as (1,1,N,L). */
static kr_view as_steps(const kr_token_builder *r, kr_tensor t, int64_t N) {
  return view(r, kr_graph_permute(r->g, kr_graph_reshape(r->g, t, KR_DIMS(1, r->rows, 1, N)), (int[]){0, 2, 3, 1}));
}

static void scan_mamba1(kr_lm_builder *b, const kr_lm_block *block, const scan_rows *t) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_dims one_slot = KR_DIMS(1, s->Di, s->N);
  const kr_tensor after = kr_lm_state_after(b, block, KR_MAMBA_SSM),
                  before = kr_lm_state_before(b, block, KR_MAMBA_SSM);
  kr_graph_call(r->g, "scan", &kr_op_selective_scan,
                &(kr_selective_scan_args){.call.flags = KRAIT_SCAN_SOFTPLUS,
                                             .G = 1,
                                             .u = view(r, as_channels(r, t->u)),
                                             .delta = view(r, as_channels(r, t->delta)),
                                             .A = view(r, weight(r, "A", &w->A, s->Di, s->N)),
                                             .Bmat = as_steps(r, t->B, s->N),
                                             .Cmat = as_steps(r, t->C, s->N),
                                             .Dvec = view(r, weight(r, "D", &w->D, s->Di)),
                                             .z = view(r, as_channels(r, t->z)),
                                             .delta_bias = view(r, weight(r, "dt_bias", &w->dt_bias, s->Di)),
                                             .initial_state = view_as(r, before, one_slot),
                                             .out = view(r, as_channels(r, t->y)),
                                             .last_state = view_as(r, after, one_slot)});
  kr_lm_state_keep(b, block, KR_MAMBA_SSM, after);
}

/* ---- the mixer ---- */

static kr_tensor norm_small(const kr_token_builder *r, const kr_lm_mamba_sizes *s, const char *name, kr_tensor x,
                            const kr_weight_ref *w, int64_t n) {
  return norm_of(r, name, x, NULL, .weight = weight(r, name, w, n), .eps = (float)s->dt_eps, .is_rms = 1);
}

static kr_tensor record_mamba1(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_tensor xz = linear(r, "in_proj", x, .w = &w->in_proj, .bias = &w->in_proj_bias, .N = 2 * s->Di, .K = s->d);
  const kr_tensor u = kr_lm_convolve(b, block, KR_MAMBA_CONV, columns(r, xz, 0, s->Di), &w->conv, &w->conv_bias, s->W,
                                     KRAIT_ACT_SILU),
                  y = new_rows(r, s->Di);
  const kr_tensor all = linear(r, "x_proj", u, .w = &w->x_proj, .N = s->R + 2 * s->N, .K = s->Di);
  kr_tensor dt = columns(r, all, 0, s->R), B = columns(r, all, s->R, s->N), C = columns(r, all, s->R + s->N, s->N);
  if (s->dt_eps > 0) { /* FalconMamba, Jamba */
    dt = norm_small(r, s, "dt_norm", dt, &w->small_norm[0], s->R);
    B = norm_small(r, s, "B_norm", B, &w->small_norm[1], s->N);
    C = norm_small(r, s, "C_norm", C, &w->small_norm[2], s->N);
  }
  const scan_rows t = {.u = u,
                       .delta = linear(r, "dt_proj", dt, .w = &w->dt_proj, .N = s->Di, .K = s->R),
                       .B = B,
                       .C = C,
                       .z = columns(r, xz, s->Di, s->Di),
                       .y = y};
  if (b->run.is_step)
    update_mamba1(b, block, &t);
  else
    scan_mamba1(b, block, &t);
  return kr_mamba_out(b, block, y);
}

const kr_lm_block_kind kr_lm_mamba1 = {.name = "mamba1",
                                       .sizes_bytes = sizeof(kr_lm_mamba_sizes),
                                       .weights_bytes = sizeof(kr_lm_mamba_weights),
                                       .load = load_mamba1,
                                       .list_states = kr_mamba_list_states,
                                       .record = record_mamba1,
                                       .can_fuse = kr_mamba_can_fuse,
                                       .record_fused = kr_mamba_record_fused};
