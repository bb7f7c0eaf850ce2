/* contracts.c: every rule of the operators' contracts: a call that violates one gives its status and a message naming
 * op and argument. A table per op: the invalid field, how, and the expected result. */
#include <stdio.h>

#include "../test.h"
#include "contract.h"
#include "all_ops.h"

enum { SIZE, TYPE, ABSENT, PRESENT, FLAGS, ACTIVATION };

typedef struct rule {
  const char *op;
  size_t offset;
  int how;
  int64_t value; /* SIZE, FLAGS, ACTIVATION: the value; TYPE, PRESENT: the type */
  int32_t status;
  const char *says;
  uint32_t flags; /* set before */
} rule;

static float storage[4096];

#define AT(type, field) offsetof(kr_##type##_args, field)

/* All sizes 2 (or what is valid), with all required views. */
static void fill(const char *op, unsigned char *args) {
  const kr_op *o = kr_op_find(op);
  assert_non_null(o);
  memset(args, 0, 4096);
  ((kr_call *)args)->size = o->args_bytes;
  const kr_view view = {.data = storage, .stride = {8, 4, 2, 1}, .dtype = KRAIT_F32};
#define GIVE(type, ...)                                                                           \
  do {                                                                                            \
    kr_##type##_args *a = (kr_##type##_args *)args;                                         \
    kr_view *const views[] = {__VA_ARGS__};                                                    \
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) *views[i] = view, views[i]->data = storage + 64 * i; \
  } while (0)
  if (!strcmp(op, "causal_conv1d")) {
    GIVE(causal_conv1d, &a->x, &a->weight, &a->out);
    kr_causal_conv1d_args *a = (kr_causal_conv1d_args *)args;
    a->B = a->D = a->L = a->W = 2;
  } else if (!strcmp(op, "causal_conv1d_bwd")) {
    GIVE(causal_conv1d_bwd, &a->x, &a->weight, &a->dout, &a->dx);
    kr_causal_conv1d_bwd_args *a = (kr_causal_conv1d_bwd_args *)args;
    a->B = a->D = a->L = a->W = 2;
  } else if (!strcmp(op, "causal_conv1d_update")) {
    GIVE(causal_conv1d_update, &a->x, &a->conv_state, &a->weight, &a->out);
    kr_causal_conv1d_update_args *a = (kr_causal_conv1d_update_args *)args;
    a->B = a->D = a->L = a->W = a->S = a->n_states = 2;
  } else if (!strcmp(op, "causal_conv1d_varlen_states")) {
    GIVE(causal_conv1d_varlen_states, &a->x, &a->cu_seqlens, &a->states);
    kr_causal_conv1d_varlen_states_args *a = (kr_causal_conv1d_varlen_states_args *)args;
    a->S = a->D = a->total = a->state_len = 2;
    a->cu_seqlens.dtype = KRAIT_I32;
  } else if (!strcmp(op, "selective_scan")) {
    GIVE(selective_scan, &a->u, &a->delta, &a->A, &a->Bmat, &a->Cmat, &a->out);
    kr_selective_scan_args *a = (kr_selective_scan_args *)args;
    a->B = a->D = a->L = a->N = a->G = 2;
  } else if (!strcmp(op, "selective_scan_bwd")) {
    GIVE(selective_scan_bwd, &a->u, &a->delta, &a->A, &a->Bmat, &a->Cmat, &a->dout, &a->du);
    kr_selective_scan_bwd_args *a = (kr_selective_scan_bwd_args *)args;
    a->B = a->D = a->L = a->N = 2, a->G = 1;
  } else if (!strcmp(op, "ssd")) {
    GIVE(ssd, &a->x, &a->dt, &a->A, &a->Bmat, &a->Cmat, &a->out);
    kr_ssd_args *a = (kr_ssd_args *)args;
    a->B = a->L = a->H = a->P = a->N = a->G = 2;
#define MAMBA3(type, ...)                                                                                              \
  } else if (!strcmp(op, #type)) {                                                                                     \
    GIVE(type, &a->x, &a->log_decay, &a->dt, &a->trap, &a->Bmat, &a->Cmat, &a->B_bias, &a->C_bias, &a->angles,         \
         __VA_ARGS__);                                                                                                 \
    kr_##type##_args *a = (kr_##type##_args *)args;                                                                    \
    a->B = a->H = a->P = a->N = a->G = 2, a->R = a->M = 1;
  MAMBA3(mamba3, &a->out)
  MAMBA3(mamba3_bwd, &a->dx)
  MAMBA3(mamba3_step, &a->angle_state, &a->state, &a->B_state, &a->x_state, &a->out)
    a->n_states = 2;
  } else if (!strcmp(op, "ssd_bwd")) {
    GIVE(ssd_bwd, &a->x, &a->dt, &a->A, &a->Bmat, &a->Cmat, &a->dout, &a->dx);
    kr_ssd_bwd_args *a = (kr_ssd_bwd_args *)args;
    a->B = a->L = a->H = a->P = a->N = a->G = 2;
  } else if (!strcmp(op, "attention")) {
    GIVE(attention, &a->q, &a->k, &a->v, &a->out);
    kr_attention_args *a = (kr_attention_args *)args;
    a->B = a->Bk = a->Lq = a->Lk = a->H = a->Hk = a->D = a->Dv = 2;
  } else if (!strcmp(op, "attention_bwd")) {
    GIVE(attention_bwd, &a->q, &a->k, &a->v, &a->out, &a->lse, &a->dout, &a->dq, &a->dk, &a->dv);
    kr_attention_bwd_args *a = (kr_attention_bwd_args *)args;
    a->B = a->Bk = a->Lq = a->Lk = a->H = a->Hk = a->D = a->Dv = 2;
  } else if (!strcmp(op, "attention_append")) {
    GIVE(attention_append, &a->k, &a->v, &a->k_cache, &a->v_cache);
    kr_attention_append_args *a = (kr_attention_append_args *)args;
    a->B = a->Bk = a->L = a->Lk = a->Hk = a->D = a->Dv = 2;
  } else if (!strcmp(op, "rotary")) {
    GIVE(rotary, &a->x, &a->cos, &a->sin, &a->out);
    kr_rotary_args *a = (kr_rotary_args *)args;
    a->B = a->L = a->H = a->D = a->T = 2, a->R = 1;
  } else if (!strcmp(op, "rotary_append")) {
    GIVE(rotary_append, &a->q, &a->k, &a->v, &a->cos, &a->sin, &a->k_cache, &a->v_cache, &a->out);
    kr_rotary_append_args *a = (kr_rotary_append_args *)args;
    a->B = a->Bk = a->L = a->H = a->Hk = a->Lk = a->D = a->Dv = a->T = 2, a->R = 1;
  } else if (!strcmp(op, "attention_step")) {
    GIVE(attention_step, &a->q, &a->k, &a->v, &a->cos, &a->sin, &a->cache_seqlens, &a->k_cache, &a->v_cache, &a->out);
    kr_attention_step_args *a = (kr_attention_step_args *)args;
    a->B = a->Bk = a->H = a->Hk = a->Lk = a->D = a->T = 2, a->R = 1, a->cache_seqlens.dtype = KRAIT_I32;
  } else if (!strcmp(op, "gather_rows")) {
    GIVE(gather_rows, &a->table, &a->index, &a->out);
    kr_gather_rows_args *a = (kr_gather_rows_args *)args;
    a->R = a->M = a->V = 2, a->index.dtype = KRAIT_I32;
  } else if (!strcmp(op, "state_update")) {
    GIVE(state_update, &a->state, &a->x, &a->dt, &a->A, &a->Bmat, &a->Cmat, &a->out);
    kr_state_update_args *a = (kr_state_update_args *)args;
    a->B = a->H = a->P = a->N = a->n_states = a->G = 2;
  } else if (!strcmp(op, "add_norm")) {
    GIVE(add_norm, &a->x, &a->out);
    ((kr_add_norm_args *)args)->R = ((kr_add_norm_args *)args)->M = 2;
  } else if (!strcmp(op, "add_norm_bwd")) {
    GIVE(add_norm_bwd, &a->v, &a->dout, &a->dx);
    ((kr_add_norm_bwd_args *)args)->R = ((kr_add_norm_bwd_args *)args)->M = 2;
  } else if (!strcmp(op, "gated_norm")) {
    GIVE(gated_norm, &a->x, &a->weight, &a->out);
    kr_gated_norm_args *a = (kr_gated_norm_args *)args;
    a->R = a->M = a->group_size = 2;
  } else if (!strcmp(op, "mamba_decode")) {
    GIVE(mamba_decode, &a->dt_proj, &a->x, &a->norm_weight, &a->in_proj, &a->conv_weight, &a->x_proj, &a->dt_bias,
         &a->A, &a->Dvec, &a->out_proj, &a->conv_state, &a->ssm_state, &a->out);
    kr_mamba_decode_args *a = (kr_mamba_decode_args *)args;
    a->B = a->Y = a->D = a->E = a->N = a->W = a->R = a->n_states = 2, a->H = a->G = 1;
  } else if (!strcmp(op, "norm_gemm")) {
    GIVE(norm_gemm, &a->x, &a->weight, &a->Bmat, &a->out);
    kr_norm_gemm_args *a = (kr_norm_gemm_args *)args;
    a->M = a->N = a->K = 2;
  } else if (!strcmp(op, "dt_state_update")) {
    GIVE(dt_state_update, &a->state, &a->x, &a->r, &a->dt_weight, &a->A, &a->Bmat, &a->Cmat, &a->out);
    kr_dt_state_update_args *a = (kr_dt_state_update_args *)args;
    a->B = a->D = a->N = a->R = a->n_states = 2;
  } else if (!strcmp(op, "mamba_inner")) {
    GIVE(mamba_inner, &a->xz, &a->conv_weight, &a->x_proj_weight, &a->dt_proj_weight, &a->out_proj_weight, &a->A,
         &a->out);
    kr_mamba_inner_args *a = (kr_mamba_inner_args *)args;
    a->B = a->D = a->L = a->N = a->W = a->R = a->M = 2;
  } else if (!strcmp(op, "projected_scan")) {
    GIVE(projected_scan, &a->u, &a->proj, &a->dt_weight, &a->dt_bias, &a->A, &a->Dvec, &a->z, &a->out);
    kr_projected_scan_args *a = (kr_projected_scan_args *)args;
    a->B = a->L = a->D = a->N = a->R = 2, a->X = 6;
  } else if (!strcmp(op, "dense_block")) {
    GIVE(dense_block, &a->x, &a->taps, &a->taps_bias, &a->weight, &a->norm_weight, &a->norm_bias, &a->slope, &a->out);
    kr_dense_block_args *a = (kr_dense_block_args *)args;
    a->B = a->H = a->W = a->C = a->L = a->N = a->K = 1;
  } else if (!strcmp(op, "map_product")) {
    GIVE(map_product, &a->x, &a->weight, &a->out);
    kr_map_product_args *a = (kr_map_product_args *)args;
    a->B = a->H = a->W = a->C = a->N = a->M = 1;
  } else if (!strcmp(op, "conv_norm")) {
    GIVE(conv_norm, &a->x, &a->weight, &a->norm_weight, &a->norm_bias, &a->slope, &a->out);
    kr_conv_norm_args *a = (kr_conv_norm_args *)args;
    a->B = a->H = a->W = a->C = a->N = a->K = a->S = a->OH = 1;
  } else if (!strcmp(op, "filter_bank")) {
    GIVE(filter_bank, &a->x, &a->taps, &a->taps_bias, &a->gate_taps, &a->gate_bias, &a->weight, &a->weight_bias,
         &a->out_weight, &a->out_bias, &a->residual, &a->out);
    kr_filter_bank_args *a = (kr_filter_bank_args *)args;
    a->B = a->H = a->W = a->C = a->J = a->K = a->K1 = 1;
  } else if (!strcmp(op, "mamba_inner_bwd")) {
    GIVE(mamba_inner_bwd, &a->xz, &a->conv_weight, &a->x_proj_weight, &a->dt_proj_weight, &a->out_proj_weight, &a->A,
         &a->dout);
    kr_mamba_inner_bwd_args *a = (kr_mamba_inner_bwd_args *)args;
    a->B = a->D = a->L = a->N = a->W = a->R = a->M = 2;
  } else if (!strcmp(op, "gated_norm_bwd")) {
    GIVE(gated_norm_bwd, &a->x, &a->weight, &a->dout, &a->dx);
    kr_gated_norm_bwd_args *a = (kr_gated_norm_bwd_args *)args;
    a->R = a->M = a->group_size = 2;
  } else if (!strcmp(op, "expert_route")) {
    kr_expert_route_args *a = (kr_expert_route_args *)args;
    a->x = a->index = a->weights = view, a->index.dtype = KRAIT_I32, a->T = a->E = a->K = 2;
    a->n_groups = a->best_groups = 1;
  } else if (!strcmp(op, "expert_gemm")) {
    kr_expert_gemm_args *a = (kr_expert_gemm_args *)args;
    a->A = a->index = a->Bmat = a->out = view, a->index.dtype = KRAIT_I32;
    a->T = a->J = a->S = a->E = a->N = a->K = 2;
  } else { /* by its signature: what must be given */
    const kr_sig *sig = o->sig;
    for (int i = 0; i < sig->n_sizes; i++)
      kr_sig_set_size(sig, args, i,
                      sig->sizes[i].name[0] == 'K' && !sig->sizes[i].name[1] && strstr(op, "fold") ? 8 : 2);
    for (int i = 0, n = 0; i < sig->n_tensors; i++)
      if (!sig->tensors[i].is_optional) {
        kr_view *v = kr_sig_view(sig, args, i);
        *v = view, v->data = storage + 128 * n++;
        if (sig->tensors[i].tensor_class == KR_CLASS_INDEX) v->dtype = KRAIT_I32;
      }
    if (!strcmp(op, "mamba3_raw_step")) ((kr_mamba3_raw_step_args *)args)->M = 1; /* pairs */
    if (!strcmp(op, "mamba3_decode")) ((kr_mamba3_decode_args *)args)->M = 1;
    kr_mamba3_inner_args *const block = (kr_mamba3_inner_args *)args; /* its gradient's have the same prefix */
    if (!strncmp(op, "mamba3_inner", 12)) block->M = block->R = 1, block->S = 0;
  }
}

#define ARG KRAIT_ERR_ARGUMENT
#define SHAPE KRAIT_ERR_SHAPE
#define DTYPE KRAIT_ERR_DTYPE
#define VIEW(type, field, required)                                                                     \
  {#type,     AT(type, field),        required ? ABSENT : PRESENT,                                      \
   KRAIT_I64, required ? ARG : DTYPE, required ? #field " must be given" : #field " is int64, must be", \
   0},                                                                                                  \
      {#type, AT(type, field), PRESENT, KRAIT_I64, DTYPE, #field " is int64, must be", 0}
#define LEAST(type, field, least) {#type, AT(type, field), SIZE, (least) - 1, SHAPE, #field " is ", 0}
#define MODE(type, field, types, f, text) {#type, AT(type, field), PRESENT, types, ARG, text, f}

static const rule rules[] = {
    LEAST(causal_conv1d, B, 0), LEAST(causal_conv1d, D, 0), LEAST(causal_conv1d, L, 0), LEAST(causal_conv1d, W, 1),
    VIEW(causal_conv1d, x, 1), VIEW(causal_conv1d, weight, 1),
    VIEW(causal_conv1d, out, 1), VIEW(causal_conv1d, bias, 0), VIEW(causal_conv1d, seq_idx, 0),
    VIEW(causal_conv1d, initial_states, 0), VIEW(causal_conv1d, final_states, 0),
    {"causal_conv1d", 0, FLAGS, 8, ARG, "unknown flags 0x8", 0},
    {"expert_route", AT(expert_route, K), SIZE, 3, SHAPE, "K is 3, more than the 2 experts", 0},
    {"expert_route", AT(expert_route, bias), PRESENT, KRAIT_F32, ARG, "supported only with KR_ROUTE_SIGMOID", 0},
    {"expert_gemm", AT(expert_gemm, Bmat), ABSENT, 0, ARG, "neither Bmat nor qweight", 0},
    {"expert_gemm", AT(expert_gemm, J), SIZE, 3, SHAPE, "not 1 or J", 0},
    {"expert_step", AT(expert_step, K), SIZE, 3, SHAPE, "K is 3 of 2 experts", 0},
    {"expert_step", AT(expert_step, shared_up), PRESENT, KRAIT_F32, ARG, "must be given together", 0},
    {"causal_conv1d", AT(causal_conv1d, activation), ACTIVATION, 7, ARG, "activation is 7", 0},
    {"causal_conv1d", AT(causal_conv1d, out), TYPE, KRAIT_F16, DTYPE, "out is float16 but x is float32", 0},
    LEAST(causal_conv1d_bwd, B, 0), LEAST(causal_conv1d_bwd, W, 1),
    VIEW(causal_conv1d_bwd, x, 1), VIEW(causal_conv1d_bwd, weight, 1),
    VIEW(causal_conv1d_bwd, dout, 0), VIEW(causal_conv1d_bwd, dx, 0), VIEW(causal_conv1d_bwd, dweight, 0),
    VIEW(causal_conv1d_bwd, dbias, 0), VIEW(causal_conv1d_bwd, dfinal_states, 0),
    VIEW(causal_conv1d_bwd, dinitial_states, 0),
    {"causal_conv1d_bwd", 0, FLAGS, 2, ARG, "unknown flags", 0},
    LEAST(causal_conv1d_update, B, 0), LEAST(causal_conv1d_update, D, 0),
    LEAST(causal_conv1d_update, L, 0), LEAST(causal_conv1d_update, W, 1),
    LEAST(causal_conv1d_update, S, 1), LEAST(causal_conv1d_update, n_states, 2),
    VIEW(causal_conv1d_update, x, 1), VIEW(causal_conv1d_update, conv_state, 1),
    VIEW(causal_conv1d_update, weight, 1), VIEW(causal_conv1d_update, bias, 0),
    VIEW(causal_conv1d_update, cache_seqlens, 0), VIEW(causal_conv1d_update, conv_state_indices, 0),
    VIEW(causal_conv1d_update, out, 1),
    {"causal_conv1d_update", AT(causal_conv1d_update, activation), ACTIVATION, -1, ARG, "activation is -1", 0},
    LEAST(causal_conv1d_varlen_states, S, 0), LEAST(causal_conv1d_varlen_states, D, 0),
    LEAST(causal_conv1d_varlen_states, total, 0), LEAST(causal_conv1d_varlen_states, state_len, 0),
    VIEW(causal_conv1d_varlen_states, x, 1), VIEW(causal_conv1d_varlen_states, cu_seqlens, 1),
    VIEW(causal_conv1d_varlen_states, states, 1),
    {"causal_conv1d_varlen_states", AT(causal_conv1d_varlen_states, states), TYPE, KRAIT_BF16, DTYPE,
     "states is bfloat16 but x is float32", 0},
    LEAST(selective_scan, B, 0), LEAST(selective_scan, D, 1),
    LEAST(selective_scan, L, 0), LEAST(selective_scan, N, 1),
    LEAST(selective_scan, G, 1),
    {"selective_scan", AT(selective_scan, N), SIZE, 513, SHAPE, "N is 513, must be at most 512", 0},
    {"selective_scan", AT(selective_scan, D), SIZE, 3, SHAPE, "D 3 is not a multiple of G 2", 0},
    {"selective_scan", AT(selective_scan, S), SIZE, 1, SHAPE, "S without cu_seqlens is 1", 0},
    {"selective_scan", AT(selective_scan, cu_seqlens), PRESENT, KRAIT_I32, SHAPE, "B is 2, must be 1 with cu_seqlens",
     0},
    {"selective_scan", AT(selective_scan, G), SIZE, 3, SHAPE, "G is 3, must be at most 2", 0},
    VIEW(selective_scan, u, 1), VIEW(selective_scan, delta, 1), VIEW(selective_scan, A, 1),
    VIEW(selective_scan, Bmat, 1), VIEW(selective_scan, Cmat, 1), VIEW(selective_scan, out, 1),
    VIEW(selective_scan, Dvec, 0), VIEW(selective_scan, z, 0), VIEW(selective_scan, delta_bias, 0),
    VIEW(selective_scan, initial_state, 0), VIEW(selective_scan, seq_idx, 0), VIEW(selective_scan, last_state, 0),
    {"selective_scan", 0, FLAGS, 64, ARG, "unknown flags 0x40", 0},
    VIEW(mamba3_raw_step, B_norm, 1),
    VIEW(mamba3_decay_bwd, ddt, 1), LEAST(mamba3_inner, M, 1), VIEW(mamba3_inner_bwd, dout, 1),
    {"mamba3_inner", AT(mamba3_inner, V), SIZE, 3, SHAPE, "V is 3, must be R G = 2", 0},
    {"mamba3_inner", AT(mamba3_inner, R), SIZE, 2, ARG, "R is 2 without mimo_o, must be 1", 0},
    {"mamba3_inner", AT(mamba3_inner, S), SIZE, 1, SHAPE, "S without cu_seqlens is 1", 0},
    {"mamba3_inner_bwd", AT(mamba3_inner_bwd, initial_x), PRESENT, KRAIT_F32, ARG, "must be given together", 0},
    LEAST(mamba3, B, 0), LEAST(mamba3, H, 1), LEAST(mamba3, R, 1), LEAST(mamba3_step, P, 1),
    {"mamba3", AT(mamba3, R), SIZE, 65, SHAPE, "R is 65, must be at most 64", 0},
    {"mamba3", AT(mamba3, M), SIZE, 2, SHAPE, "N is 2, must be at least 4", 0},
    {"mamba3", AT(mamba3, n_kept), SIZE, 2, SHAPE, "n_kept without kept is 2", 0},
    {"mamba3_bwd", AT(mamba3_bwd, kept), PRESENT, KRAIT_F32, SHAPE, "n_kept is 0, must be", 0},
    {"mamba3", AT(mamba3, N), SIZE, 5, SHAPE, "N is 5, must be even", 0},
    {"mamba3_bwd", AT(mamba3_bwd, N), SIZE, 3, SHAPE, "N is 3, must be even", 0},
    {"mamba3_step", AT(mamba3_step, N), SIZE, 3, SHAPE, "N is 3, must be even", 0},
    LEAST(ssd, B, 0), LEAST(ssd, L, 0),
    LEAST(ssd, H, 1), LEAST(ssd, P, 1),
    LEAST(ssd, N, 1), LEAST(ssd, G, 1),
    {"ssd", AT(ssd, P), SIZE, 257, SHAPE, "P is 257, must be at most 256", 0},
    {"ssd", AT(ssd, N), SIZE, 513, SHAPE, "N is 513, must be at most 512", 0},
    {"ssd", AT(ssd, H), SIZE, 3, SHAPE, "H 3 is not a multiple of G 2", 0},
    {"ssd", AT(ssd, G), SIZE, 3, SHAPE, "G is 3, must be at most 2", 0},
    {"ssd", AT(ssd, S), SIZE, 1, SHAPE, "S without cu_seqlens is 1", 0},
    {"ssd", AT(ssd, varlen_states), PRESENT, KRAIT_F32, ARG, "varlen_states cannot be given without cu_seqlens", 0},
    {"ssd", AT(ssd, cu_seqlens), PRESENT, KRAIT_I32, ARG, "varlen_states must be given", 0},
    {"ssd", AT(ssd, dt_min), SIZE, 0x3f0000003f800000, ARG, "dt_min 1 is above dt_max 0.5", 0},
    VIEW(ssd, x, 1), VIEW(ssd, dt, 1), VIEW(ssd, A, 1), VIEW(ssd, Bmat, 1), VIEW(ssd, Cmat, 1), VIEW(ssd, out, 1),
    VIEW(ssd, Dvec, 0), VIEW(ssd, z, 0), VIEW(ssd, dt_bias, 0), VIEW(ssd, initial_states, 0), VIEW(ssd, seq_idx, 0),
    VIEW(ssd, final_states, 0),
    {"ssd", AT(ssd, out), TYPE, KRAIT_F16, DTYPE, "out is float16 but x is float32", 0},
    {"ssd", 0, FLAGS, 64, ARG, "unknown flags 0x40", 0},
    {"ssd", 0, FLAGS, KRAIT_SSD_BOTH | KRAIT_SSD_REVERSE, ARG, "KRAIT_SSD_REVERSE cannot be set with KRAIT_SSD_BOTH",
     0},
    {"ssd", 0, FLAGS, KRAIT_SSD_BOTH, ARG, "A_reverse must be given", 0},
    LEAST(attention, B, 0), LEAST(attention, Lq, 0),
    LEAST(attention, Lk, 0), LEAST(attention, H, 1),
    LEAST(attention, Hk, 1), LEAST(attention, D, 1),
    LEAST(attention, Dv, 1),
    LEAST(attention, window_left, -1),
    LEAST(attention, window_right, -1),
    LEAST(attention, max_q, 0),
    {"attention", AT(attention, D), SIZE, 520, SHAPE, "D is 520, must be at most 512", 0},
    {"attention", AT(attention, Dv), SIZE, 513, SHAPE, "Dv is 513, must be at most 512", 0},
    {"attention", AT(attention, H), SIZE, 3, SHAPE, "H 3 is not a multiple of Hk 2", 0},
    {"attention", AT(attention, Bk), SIZE, 3, SHAPE, "k has Bk 3 rows, must have B 2", 0},
    {"attention", AT(attention, cu_seqlens_k), PRESENT, KRAIT_I32, SHAPE, "Bk is 2, must be at most 1", 0},
    {"attention", AT(attention, n_pages), SIZE, 1, SHAPE, "n_pages without block_table is 1", 0},
    {"attention", AT(attention, rng), PRESENT, KRAIT_I32, ARG, "rng cannot be given without dropout", 0},
    {"attention", AT(attention, scale), SIZE, 0x7f800000, ARG, "scale is not finite", 0},
    {"attention", AT(attention, softcap), SIZE, 0x3dcccccd41200000, ARG, "softcap cannot be set with dropout",
     0}, /* 10; dropout 0.1 */
    {"attention", AT(attention, softcap), SIZE, 0xbf800000, ARG, "softcap is -1", 0},
    {"attention", AT(attention, softcap), SIZE, 0x3f80000000000000, ARG, "dropout is 1, must be at least 0 and below 1",
     0},
    {"attention", AT(attention, softcap), SIZE, 0x3f00000000000000, ARG, "rng must be given", 0},
    VIEW(attention, q, 1),
    VIEW(attention, k, 1),
    VIEW(attention, v, 1),
    VIEW(attention, out, 1),
    VIEW(attention, lse, 0),
    VIEW(attention, cu_seqlens_q, 0),
    VIEW(attention, seqused_q, 0),
    VIEW(attention, seqused_k, 0),
    VIEW(attention, leftpad_k, 0),
    VIEW(attention, cache_batch_idx, 0),
    VIEW(attention, block_table, 0),
    VIEW(attention, alibi_slopes, 0),
    VIEW(attention, sinks, 0),
    {"attention", AT(attention, v), TYPE, KRAIT_F16, DTYPE, "v is float16 but k is float32", 0},
    {"attention", 0, FLAGS, 8, ARG, "unknown flags 0x8", 0},
    VIEW(attention_bwd, q, 1),
    VIEW(attention_bwd, out, 1),
    VIEW(attention_bwd, dout, 1),
    VIEW(attention_bwd, dq, 0),
    VIEW(attention_bwd, dk, 0),
    VIEW(attention_bwd, dv, 0),
    {"attention_bwd", AT(attention_bwd, lse), ABSENT, 0, ARG, "lse must be given", 0},
    {"attention_bwd", AT(attention_bwd, n_pages), SIZE, 1, SHAPE, "n_pages without block_table is 1", 0},
    {"attention_bwd", AT(attention_bwd, dsinks), PRESENT, KRAIT_F32, ARG, "dsinks cannot be given without sinks", 0},
    LEAST(rotary, L, 0), LEAST(rotary, H, 1),
    LEAST(rotary, D, 2),
    VIEW(rotary, x, 1), VIEW(rotary, out, 1),
    {"rotary", 0, FLAGS, 8, ARG, "unknown flags 0x8", 0},
    LEAST(attention_append, L, 0), LEAST(attention_append, Hk, 1),
    VIEW(attention_append, k, 1),
    VIEW(attention_append, k_cache, 1),
    {"attention_append", AT(attention_append, Bk), SIZE, 3, SHAPE, "Bk without cache_batch_idx and block_table is 3",
     0},
    {"attention_append", AT(attention_append, sin), PRESENT, KRAIT_F32, ARG, "sin cannot be given without cos", 0},
    {"attention_append", AT(attention_append, cos), PRESENT, KRAIT_F32, ARG, "sin must be given", 0},
    VIEW(ssd_bwd, x, 1),
    VIEW(ssd_bwd, dout, 1),
    VIEW(ssd_bwd, dx, 0),
    VIEW(ssd_bwd, ddt, 0),
    VIEW(ssd_bwd, dA, 0),
    VIEW(ssd_bwd, dB, 0),
    VIEW(ssd_bwd, dC, 0),
    {"ssd_bwd", AT(ssd_bwd, S), SIZE, 1, SHAPE, "S is 1, must be at most 0", 0},
    {"ssd_bwd", AT(ssd_bwd, dz), PRESENT, KRAIT_F32, ARG, "dz cannot be given without z", 0},
    {"ssd_bwd", AT(ssd_bwd, dDvec), PRESENT, KRAIT_F32, ARG, "dDvec cannot be given without Dvec", 0},
    {"selective_scan", 0, FLAGS, KRAIT_SCAN_BOTH | KRAIT_SCAN_REVERSE, ARG,
     "KRAIT_SCAN_REVERSE cannot be set with KRAIT_SCAN_BOTH", 0},
    {"selective_scan", 0, FLAGS, KRAIT_SCAN_BOTH, ARG, "A_reverse must be given", 0},
    MODE(selective_scan, A_reverse, KRAIT_F32, 0, "A_reverse cannot be given without KRAIT_SCAN_BOTH"),
    MODE(selective_scan, initial_state, KRAIT_F32, KRAIT_SCAN_BOTH,
         "initial_state cannot be given with KRAIT_SCAN_BOTH"),
    {"selective_scan", AT(selective_scan, out), TYPE, KRAIT_F16, DTYPE, "out is float16 but u is float32", 0},
    {"selective_scan", AT(selective_scan, Dvec), PRESENT, KRAIT_F16, DTYPE, "Dvec is float16, must be float32", 0},
    LEAST(selective_scan_bwd, D, 1), LEAST(selective_scan_bwd, N, 1),
    VIEW(selective_scan_bwd, u, 1),
    VIEW(selective_scan_bwd, A, 1),
    VIEW(selective_scan_bwd, dout, 0),
    VIEW(selective_scan_bwd, dlast_state, 0),
    VIEW(selective_scan_bwd, du, 0),
    VIEW(selective_scan_bwd, ddelta, 0),
    VIEW(selective_scan_bwd, dA, 0),
    VIEW(selective_scan_bwd, dB, 0),
    VIEW(selective_scan_bwd, dC, 0),
    VIEW(selective_scan_bwd, dDvec, 0),
    VIEW(selective_scan_bwd, ddelta_bias, 0),
    VIEW(selective_scan_bwd, dinitial_state, 0),
    MODE(selective_scan_bwd, dz, KRAIT_F32, 0, "dz cannot be given without z"),
    MODE(selective_scan_bwd, dA_reverse, KRAIT_F32, 0, "dA_reverse cannot be given without KRAIT_SCAN_BOTH"),
    LEAST(state_update, B, 0), LEAST(state_update, H, 1),
    LEAST(state_update, P, 1), LEAST(state_update, N, 1),
    LEAST(state_update, G, 1), LEAST(state_update, n_states, 2),
    VIEW(state_update, state, 1),
    VIEW(state_update, x, 1),
    VIEW(state_update, dt, 1),
    VIEW(state_update, A, 1),
    VIEW(state_update, Bmat, 1),
    VIEW(state_update, Cmat, 1),
    VIEW(state_update, out, 1),
    VIEW(state_update, Dvec, 0),
    VIEW(state_update, dt_bias, 0),
    VIEW(state_update, z, 0),
    VIEW(state_update, state_batch_indices, 0),
    {"state_update", 0, FLAGS, 4, ARG, "unknown flags", 0},
    {"state_update", AT(state_update, H), SIZE, 3, SHAPE, "H 3 is not a multiple of G 2", 0},
    LEAST(add_norm, R, 0), LEAST(add_norm, M, 1),
    VIEW(add_norm, x, 1), VIEW(add_norm, out, 1), VIEW(add_norm, x1, 0), VIEW(add_norm, residual, 0),
    VIEW(add_norm, rowscale, 0), VIEW(add_norm, weight, 0), VIEW(add_norm, bias, 0), VIEW(add_norm, weight1, 0),
    VIEW(add_norm, residual_out, 0),
    MODE(add_norm, out1, KRAIT_F32, 0, "out1 cannot be given without weight1"),
    MODE(add_norm, bias1, KRAIT_F32, 0, "bias1 cannot be given without weight1"),
    LEAST(add_norm_bwd, R, 0), LEAST(add_norm_bwd, M, 1),
    VIEW(add_norm_bwd, v, 1),
    VIEW(add_norm_bwd, dout, 0),
    VIEW(add_norm_bwd, dx, 0),
    VIEW(add_norm_bwd, dweight, 0),
    VIEW(add_norm_bwd, dbias, 0),
    MODE(add_norm_bwd, dout1, KRAIT_F32, 0, "dout1 cannot be given without weight1"),
    LEAST(gated_norm, R, 0), LEAST(gated_norm, M, 1),
    LEAST(gated_norm, group_size, 1),
    VIEW(gated_norm, x, 1), VIEW(gated_norm, out, 1), VIEW(gated_norm, z, 0), VIEW(gated_norm, bias, 0),
    {"gated_norm", AT(gated_norm, M), SIZE, 3, SHAPE, "M 3 is not a multiple of group_size 2", 0},
    VIEW(gated_norm_bwd, x, 1),
    VIEW(gated_norm_bwd, dout, 1),
    VIEW(gated_norm_bwd, dx, 0),
    VIEW(gated_norm_bwd, dweight, 0),
    VIEW(gated_norm_bwd, dbias, 0),
    MODE(gated_norm_bwd, dz, KRAIT_F32, 0, "dz cannot be given without z"),
    LEAST(gated_filter, K, 1), LEAST(gated_filter, P, 0),
    VIEW(gated_filter, x, 1), VIEW(gated_filter, bias, 0),
    LEAST(dense_block, B, 0), LEAST(dense_block, H, 1),
    {"dense_block", AT(dense_block, L), SIZE, 17, SHAPE, "L is 17, must be at most 16", 0},
    {"dense_block", AT(dense_block, N), SIZE, 5, SHAPE, "N is 5, of 1 layers of 1 channels it is 1", 0},
    {"dense_block", AT(dense_block, K), SIZE, 2, SHAPE, "K is 2, without a lift it is C, 1", 0},
    VIEW(dense_block, taps, 1), VIEW(dense_block, slope, 1),
    LEAST(map_product, B, 0), LEAST(map_product, K, 0), VIEW(map_product, x, 1), VIEW(map_product, bias, 0),
    {"map_product", AT(map_product, M), SIZE, 5, SHAPE, "N is 1, M 5", 0},
    {"map_product", AT(map_product, K), SIZE, 2, ARG, "conv_weight, conv_bias, conv_out and K go together", 0},
    {"map_product", AT(map_product, silu_from), SIZE, 1, ARG, "silu_from is 1, of 1 columns, without", 0},
    LEAST(conv_norm, B, 0), LEAST(conv_norm, K, 1), VIEW(conv_norm, x, 1), VIEW(conv_norm, slope, 1),
    {"conv_norm", AT(conv_norm, OH), SIZE, 3, SHAPE, "OH is 3, it must be 1", 0},
    {"conv_norm", AT(conv_norm, K), SIZE, 2, SHAPE, "H is 1, of 2 taps", 0},
    {"conv_norm", AT(conv_norm, S), SIZE, 17, SHAPE, "S is 17, must be at most 16", 0},
    LEAST(filter_bank, B, 0), LEAST(filter_bank, K, 1),
    {"filter_bank", AT(filter_bank, J), SIZE, 9, SHAPE, "J is 9, must be at most 8", 0},
    {"filter_bank", AT(filter_bank, K2), SIZE, 5, SHAPE, "K2 is 5, with J 1", 0},
    VIEW(filter_bank, gate_taps, 1), VIEW(filter_bank, out_weight, 1), VIEW(filter_bank, skip, 0),
    LEAST(mean_product, S, 1), LEAST(mean_product, J, 0),
    VIEW(mean_product, x, 1), VIEW(mean_product, bias, 0),
    LEAST(rnn_pair, H, 1),
    VIEW(rnn_pair, weight2, 1), VIEW(rnn_pair, in_bias2, 0),
    LEAST(projected_scan, B, 0), LEAST(projected_scan, R, 1),
    {"projected_scan", AT(projected_scan, X), SIZE, 5, SHAPE, "X is 5", 0},
    VIEW(projected_scan, proj, 1), VIEW(projected_scan, z, 1),
    LEAST(mamba_inner, B, 0), LEAST(mamba_inner, D, 1),
    LEAST(mamba_inner, L, 0), LEAST(mamba_inner, N, 1),
    LEAST(mamba_inner, W, 1),
    LEAST(mamba_inner, R, 1),
    LEAST(mamba_inner, M, 0),
    {"mamba_inner", AT(mamba_inner, N), SIZE, 513, SHAPE, "N is 513, must be at most 512", 0},
    VIEW(mamba_inner, xz, 1),
    VIEW(mamba_inner, conv_weight, 1),
    VIEW(mamba_inner, x_proj_weight, 1),
    VIEW(mamba_inner, dt_proj_weight, 1),
    VIEW(mamba_inner, out_proj_weight, 1),
    VIEW(mamba_inner, A, 1),
    VIEW(mamba_inner, out, 1),
    VIEW(mamba_inner, conv_bias, 0),
    VIEW(mamba_inner, out_proj_bias, 0),
    VIEW(mamba_inner, Bmat, 0),
    VIEW(mamba_inner, Cmat, 0),
    VIEW(mamba_inner, Dvec, 0),
    VIEW(mamba_inner, delta_bias, 0),
    VIEW(mamba_inner, B_proj_bias, 0),
    VIEW(mamba_inner, C_proj_bias, 0),
    VIEW(mamba_inner, dt_norm_weight, 0),
    VIEW(mamba_inner, B_norm_weight, 0),
    VIEW(mamba_inner, C_norm_weight, 0),
    {"mamba_inner", 0, FLAGS, 32, ARG, "unknown flags 0x20", 0},
    {"mamba_inner", 0, FLAGS, KRAIT_SCAN_BOTH | KRAIT_SCAN_REVERSE, ARG,
     "KRAIT_SCAN_REVERSE cannot be set with KRAIT_SCAN_BOTH", 0},
    {"mamba_inner", 0, FLAGS, KRAIT_SCAN_BOTH, ARG, "A_reverse must be given", 0},
    MODE(mamba_inner, A_reverse, KRAIT_F32, 0, "A_reverse cannot be given without KRAIT_SCAN_BOTH"),
    {"mamba_inner", 0, FLAGS, KRAIT_SCAN_B_CONSTANT, ARG, "Bmat must be given where it is constant", 0},
    {"mamba_inner", 0, FLAGS, KRAIT_SCAN_C_CONSTANT, ARG, "Cmat must be given where it is constant", 0},
    {"mamba_inner", AT(mamba_inner, M), SIZE, 0, ARG, "out_proj_weight cannot be given with M == 0", 0},
    {"mamba_inner", AT(mamba_inner, Dvec), PRESENT, KRAIT_BF16, DTYPE, "Dvec is bfloat16, must be float32", 0},
    LEAST(mamba_inner_bwd, D, 1),
    LEAST(mamba_inner_bwd, R, 1),
    VIEW(mamba_inner_bwd, xz, 1),
    VIEW(mamba_inner_bwd, A, 1),
    VIEW(mamba_inner_bwd, dout, 1),
    VIEW(mamba_inner_bwd, dxz, 0),
    VIEW(mamba_inner_bwd, dconv_weight, 0),
    VIEW(mamba_inner_bwd, dconv_bias, 0),
    VIEW(mamba_inner_bwd, dx_proj_weight, 0),
    VIEW(mamba_inner_bwd, ddt_proj_weight, 0),
    VIEW(mamba_inner_bwd, dout_proj_weight, 0),
    VIEW(mamba_inner_bwd, dout_proj_bias, 0),
    VIEW(mamba_inner_bwd, dA, 0),
    VIEW(mamba_inner_bwd, dDvec, 0),
    VIEW(mamba_inner_bwd, ddelta_bias, 0),
    VIEW(mamba_inner_bwd, dB_proj_bias, 0),
    VIEW(mamba_inner_bwd, dC_proj_bias, 0),
    MODE(mamba_inner_bwd, dA_reverse, KRAIT_F32, 0, "dA_reverse cannot be given without KRAIT_SCAN_BOTH"),
    MODE(mamba_inner_bwd, dB, KRAIT_F32, 0, "dB cannot be given without Bmat"),
    MODE(mamba_inner_bwd, dC, KRAIT_F32, 0, "dC cannot be given without Cmat"),
    MODE(mamba_inner_bwd, ddt_norm_weight, KRAIT_F32, 0, "ddt_norm_weight cannot be given without dt_norm_weight"),
    MODE(mamba_inner_bwd, dB_norm_weight, KRAIT_F32, 0, "dB_norm_weight cannot be given without B_norm_weight"),
    MODE(mamba_inner_bwd, dC_norm_weight, KRAIT_F32, 0, "dC_norm_weight cannot be given without C_norm_weight"),
    LEAST(norm_gemm, N, 1), VIEW(norm_gemm, x, 1),
    {"norm_gemm", AT(norm_gemm, conv_weight), PRESENT, KRAIT_F32, ARG,
     "conv_weight, conv_state and conv_out must be given together", 0},
    {"norm_gemm", AT(norm_gemm, qweight), PRESENT, KRAIT_I32, ARG, "Bmat cannot be given with qweight", 0},
    LEAST(rotary_append, H, 1), VIEW(rotary_append, q, 1), LEAST(attention_step, D, 1), VIEW(attention_step, q, 1),
    MODE(rotary_append, k_norm, KRAIT_F32, 0, "k_norm cannot be given without q_norm"),
    {"rotary_append", AT(rotary_append, Bk), SIZE, 3, SHAPE, "Bk without cache_batch_idx", 0},
    MODE(attention_step, q_norm, KRAIT_F32, 0, "q_norm and k_norm must be given together"),
    {"attention_step", AT(attention_step, Bk), SIZE, 3, SHAPE, "Bk without cache_batch_idx", 0},
    LEAST(dt_state_update, R, 1), VIEW(dt_state_update, r, 1),
    {"dt_state_update", 0, FLAGS, 8, ARG, "unknown flags 0x8", 0},
    LEAST(mamba2_inner, B, 0), LEAST(mamba2_inner, H, 1), LEAST(mamba2_inner, P, 1), LEAST(mamba2_inner, N, 1),
    LEAST(mamba2_inner, G, 1), LEAST(mamba2_inner, F, 0),
    {"mamba2_inner", AT(mamba2_inner, H), SIZE, 3, SHAPE, "H 3 is not a multiple of G 2", 0},
    {"mamba2_inner", AT(mamba2_inner, P), SIZE, 257, SHAPE, "P is 257, must be at most 256", 0},
    {"mamba2_inner", AT(mamba2_inner, K), SIZE, 0, ARG, "in_proj_weight cannot be given with K == 0", 0},
    {"mamba2_inner", AT(mamba2_inner, M), SIZE, 0, ARG, "out_proj_weight cannot be given with M == 0", 0},
    {"mamba2_inner", AT(mamba2_inner, activation), ACTIVATION, KRAIT_ACT_GELU, ARG, "activation", 0},
    {"mamba2_inner", 0, FLAGS, 8, ARG, "unknown flags 0x8", 0},
    VIEW(mamba2_inner, x, 1),
    VIEW(mamba2_inner, in_proj_weight, 1),
    VIEW(mamba2_inner, conv_weight, 1),
    VIEW(mamba2_inner, A, 1),
    VIEW(mamba2_inner, out_proj_weight, 1),
    VIEW(mamba2_inner, out, 1),
    VIEW(mamba2_inner, Dvec, 0),
    VIEW(mamba2_inner, dt_bias, 0),
    VIEW(mamba2_inner, norm_weight, 0),
    VIEW(mamba2_inner, initial_states, 0),
    MODE(mamba2_inner, y, KRAIT_F32, 0, "y cannot be given without norm_weight"),
    VIEW(mamba2_inner_bwd, x, 1),
    VIEW(mamba2_inner_bwd, dout, 1),
    VIEW(mamba2_inner_bwd, din_proj_weight, 0),
    VIEW(mamba2_inner_bwd, ddt_bias, 0),
    VIEW(mamba2_inner_bwd, dA, 0),
    MODE(mamba2_inner_bwd, dnorm_weight, KRAIT_F32, 0, "dnorm_weight cannot be given without norm_weight"),
    {"mamba2_inner_bwd", AT(mamba2_inner_bwd, zxbcdt), PRESENT, KRAIT_BF16, DTYPE,
     "zxbcdt is bfloat16 but x is float32", 0},
};

static void spoil(unsigned char *args, const rule *r) {
  kr_call *call = (kr_call *)args;
  kr_view *view = (kr_view *)(args + r->offset);
  call->flags = r->flags;
  if (r->flags & KRAIT_SCAN_BOTH && !strcmp(r->op, "selective_scan"))
    ((kr_selective_scan_args *)args)->A_reverse = ((kr_selective_scan_args *)args)->A;
  if (r->how == SIZE) memcpy(args + r->offset, &r->value, sizeof r->value);
  if (r->how == TYPE) view->dtype = (int32_t)r->value;
  if (r->how == ABSENT) view->data = NULL;
  if (r->how == PRESENT)
    *view = (kr_view){.data = storage + 2048, .stride = {8, 4, 2, 1}, .dtype = (int32_t)r->value};
  if (r->how == FLAGS) call->flags = (uint32_t)r->value;
  if (r->how == ACTIVATION) memcpy(args + r->offset, &(int32_t){(int32_t)r->value}, sizeof(int32_t));
}

static void every_rule_names_what_broke_it(void **state) {
  (void)state;
  static unsigned char args[4096];
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    const rule *r = &rules[i];
    fill(r->op, args);
    assert_int_equal(kr_op_check(kr_op_find(r->op), args), KRAIT_OK);
    spoil(args, r);
    int32_t status = kr_op_check(kr_op_find(r->op), args);
    if (status != r->status)
      fail_msg("%s, rule %zu (%s): %s, expected %s", r->op, i, r->says, krait_status_name(status),
               krait_status_name(r->status));
    if (status == KRAIT_OK) continue;
    const char *detail = krait_error_detail();
    if (!strstr(detail, r->says) || strncmp(detail, r->op, strlen(r->op)) != 0)
      fail_msg("%s: the detail is '%s', without '%s'", r->op, detail, r->says);
  }
}

static void in_place(const char *op, const char *says, size_t out, size_t in) {
  static unsigned char args[4096];
  fill(op, args);
  kr_view *to = (kr_view *)(args + out), *from = (kr_view *)(args + in);
  if (!kr_has(from)) *from = (kr_view){.data = storage + 2048, .stride = {8, 4, 2, 1}, .dtype = KRAIT_F32};
  *to = *from;
  assert_int_equal(kr_op_check(kr_op_find(op), args), KRAIT_OK);
  to->stride[1] = 3;
  assert_int_equal(kr_op_check(kr_op_find(op), args), KRAIT_ERR_ARGUMENT);
  if (!strstr(krait_error_detail(), says))
    fail_msg("%s: the detail is '%s', without '%s'", op, krait_error_detail(), says);
}

static void assert_refused(const kr_op *op, const void *args, int32_t status, const char *words) {
  assert_int_equal(kr_op_check(op, args), status);
  assert_non_null(strstr(krait_error_detail(), words));
}

static void strides_in_place(void **state) {
  (void)state;
  in_place("causal_conv1d", "out is x in place but their strides differ", AT(causal_conv1d, out), AT(causal_conv1d, x));
  in_place("causal_conv1d_update", "out is x in place but their strides differ", AT(causal_conv1d_update, out),
           AT(causal_conv1d_update, x));
  in_place("selective_scan", "out is u in place but their strides differ", AT(selective_scan, out),
           AT(selective_scan, u));
  in_place("selective_scan", "out is z in place but their strides differ", AT(selective_scan, out),
           AT(selective_scan, z));
  in_place("add_norm", "out is x in place but their strides differ", AT(add_norm, out), AT(add_norm, x));
  in_place("add_norm", "residual_out is residual in place but their strides differ", AT(add_norm, residual_out),
           AT(add_norm, residual));
  in_place("gated_norm", "out is x in place but their strides differ", AT(gated_norm, out), AT(gated_norm, x));
  static unsigned char args[4096];
  kr_selective_scan_args *a = (kr_selective_scan_args *)args;
  fill("selective_scan", args);
  a->z = a->out;
  a->z.dtype = KRAIT_F16;
  assert_refused(&kr_op_selective_scan, a, KRAIT_ERR_DTYPE, "out is float32 but z is float16");
}

static void limits_of_time_steps(void **state) {
  (void)state;
  static unsigned char args[4096];
  kr_mamba2_inner_args *a = (kr_mamba2_inner_args *)args;
  fill("mamba2_inner", args);
  a->dt_min = 2, a->dt_max = 1;
  assert_refused(&kr_op_mamba2_inner, a, KRAIT_ERR_ARGUMENT, "mamba2_inner: dt_min 2 is above dt_max 1");
}

static void offsets_are_read_before_they_are_used(void **state) {
  (void)state;
  static const struct { int32_t offsets[3]; const char *says;
  } cases[] = {{{1, 1, 2}, "begins with 1"},
               {{0, 2, 1}, "decreases at 2"},
               {{0, 1, 3}, "ends with 3, must end with "},
               {{0, -1, 2}, "decreases at 1"}};
  static unsigned char args[4096];
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fill("causal_conv1d_varlen_states", args);
    ((kr_causal_conv1d_varlen_states_args *)args)->cu_seqlens =
        (kr_view){.data = (void *)cases[i].offsets, .stride = {1}, .dtype = KRAIT_I32};
    assert_int_equal(kr_op_run(&kr_op_causal_conv1d_varlen_states, ctx, args), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), cases[i].says));
    static float scratch[1 << 18]; /* wide vector implementations need more */
    fill("selective_scan", args);
    kr_selective_scan_args *a = (kr_selective_scan_args *)args;
    a->B = 1, a->S = 2;
    a->cu_seqlens = (kr_view){.data = (void *)cases[i].offsets, .stride = {1}, .dtype = KRAIT_I32};
    a->call.scratch = scratch, a->call.scratch_bytes = sizeof scratch;
    assert_int_equal(kr_op_run(&kr_op_selective_scan, ctx, a), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), cases[i].says));
    fill("ssd", args);
    kr_ssd_args *ssd = (kr_ssd_args *)args;
    ssd->B = 1, ssd->S = 2;
    ssd->cu_seqlens = (kr_view){.data = (void *)cases[i].offsets, .stride = {1}, .dtype = KRAIT_I32};
    ssd->varlen_states = (kr_view){.data = storage + 512, .stride = {8, 4, 2, 1}, .dtype = KRAIT_F32};
    ssd->call.scratch = scratch, ssd->call.scratch_bytes = sizeof scratch;
    assert_int_equal(kr_op_run(&kr_op_ssd, ctx, ssd), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), cases[i].says));
  }
  krait_ctx_close(&ctx);
}

/* For attention, its gradient and the cache: offsets, lengths, pages and positions. */
static void keys_are_found_in_any_layout(void **state) {
  (void)state;
  static int32_t values[4];
  static const kr_view view = {.data = values, .stride = {1, 1}, .dtype = KRAIT_I32};
  static const struct {
    const char *op;
    size_t at;
    int32_t values[3];
    int64_t B, Bk, n_pages;
    const char *says;
  } cases[] = {
      {"attention", AT(attention, cu_seqlens_q), {0, 2, 1}, 2, 2, 0, "cu_seqlens_q decreases at 2"},
      {"attention", AT(attention, cu_seqlens_q), {0, 1, 3}, 2, 2, 0, "cu_seqlens_q ends with 3, must end with 2"},
      {"attention", AT(attention, cu_seqlens_k), {1, 2, 2}, 2, 1, 0, "cu_seqlens_k begins with 1"},
      {"attention", AT(attention, seqused_k), {2, 3}, 2, 2, 0, "seqused_k[1] is 3, must be in 0..2"},
      {"attention", AT(attention, seqused_q), {-1, 0}, 2, 2, 0, "seqused_q[0] is -1, must be in 0..2"},
      {"attention", AT(attention, leftpad_k), {0, 3}, 2, 2, 0, "leftpad_k[1] is 3, must be in 0..2"},
      {"attention", AT(attention, cache_batch_idx), {0, 7}, 2, 2, 0, "cache_batch_idx[1] is 7, must be below 2"},
      {"attention", AT(attention, block_table), {0, 5}, 2, 2, 1, "block_table[1,0] is 5, must be in 0..1"},
      {"attention", AT(attention, block_table), {0, -1}, 2, 2, 1, "block_table[1,0] is -1, must be in 0..1"},
      {"attention_bwd",
       AT(attention_bwd, cu_seqlens_q),
       {0, 1, 1},
       2,
       2,
       0,
       "cu_seqlens_q ends with 1, must end with 2"},
      {"attention_bwd", AT(attention_bwd, seqused_k), {0, 3}, 2, 2, 0, "seqused_k[1] is 3"},
      {"attention_append",
       AT(attention_append, cache_seqlens),
       {0, 1},
       2,
       2,
       0,
       "cache_seqlens[1] is 1: with L 2 more there is room for 2"},
      {"attention_append",
       AT(attention_append, block_table),
       {0, 9},
       2,
       2,
       1,
       "block_table[1,0] is 9, must be in 0..1"},
      {"rotary",
       AT(rotary, offsets),
       {0, 1},
       2,
       2,
       0,
       "rotary: sequence 1 takes positions 1 to 2, cos and sin have 0..1"}};
  static unsigned char args[4096];
  static float scratch[1 << 22];
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const kr_op *op = kr_op_find(cases[i].op);
    fill(cases[i].op, args);
    memcpy(values, cases[i].values, sizeof cases[i].values);
    *(kr_view *)(args + cases[i].at) = view;
    if (kr_sig_find_size(op->sig, "Bk") >= 0)
      kr_sig_set_size(op->sig, args, kr_sig_find_size(op->sig, "Bk"), cases[i].Bk);
    if (kr_sig_find_size(op->sig, "n_pages") >= 0)
      kr_sig_set_size(op->sig, args, kr_sig_find_size(op->sig, "n_pages"), cases[i].n_pages);
    for (int r = 0; r < op->n_impls; r++) {
      const kr_impl *impl = &op->impls[r];
      if (!(impl->needs & KRAIT_CAP_CPU) || (impl->needs & krait_ctx_caps(ctx)) != impl->needs ||
          (impl->refuse && impl->refuse(ctx, args)))
        continue;
      assert_int_equal(kr_op_check(op, args), KRAIT_OK);
      ((kr_call *)args)->scratch = scratch;
      assert_true(!impl->scratch_bytes || impl->scratch_bytes(ctx, args) <= sizeof scratch);
      assert_int_equal(impl->run(ctx, args), KRAIT_ERR_ARGUMENT);
      if (!strstr(krait_error_detail(), cases[i].says))
        fail_msg("%s, implementation %s says '%s', not '%s'", op->name, impl->name, krait_error_detail(),
                 cases[i].says);
    }
  }
  krait_ctx_close(&ctx);
}

/* On every CPU implementation, before anything is written. */
static void missing_rows_are_refused(void **state) {
  (void)state;
  static int32_t indices[2] = {0, 77};
  static const kr_view rows = {.data = indices, .stride = {1}, .dtype = KRAIT_I32};
  static unsigned char args[4096];
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  const kr_op *const ops[] = {&kr_op_causal_conv1d_update, &kr_op_state_update};
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < ops[i]->n_impls; k++) {
      if ((ops[i]->impls[k].needs & ctx->caps) != ops[i]->impls[k].needs) continue;
      fill(ops[i]->name, args);
      if (i) ((kr_state_update_args *)args)->state_batch_indices = rows;
      else ((kr_causal_conv1d_update_args *)args)->conv_state_indices = rows;
      assert_int_equal(ops[i]->impls[k].run(ctx, args), KRAIT_ERR_ARGUMENT);
      assert_non_null(strstr(krait_error_detail(), i ? "state_batch_indices[1] is 77" : "conv_state_indices[1] is 77"));
    }
  krait_ctx_close(&ctx);
}

static void scratch_too_small(void **state) {
  (void)state;
  static unsigned char args[4096];
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  fill("selective_scan", args);
  assert_int_equal(kr_op_run(&kr_op_selective_scan, ctx, (kr_selective_scan_args *)args), KRAIT_ERR_SCRATCH);
  assert_non_null(strstr(krait_error_detail(), "0 bytes of scratch given"));
  krait_ctx_close(&ctx);
}

/* Rules on several fields: the fields set first, then the one that violates the rule. */
typedef struct step {
  size_t offset;
  int how;
  int64_t value;
} step;

enum { MOST_STEPS = 4 };
typedef struct joint_rule {
  const char *op;
  uint32_t flags;
  step steps[MOST_STEPS]; /* terminated by offset 0 */
  int32_t status;
  const char *says;
} joint_rule;

#define TO(type, field, how, value) {AT(type, field), how, value}
#define PACKED(type) TO(type, B, SIZE, 1), TO(type, cu_seqlens, PRESENT, KRAIT_I32)

static const joint_rule joint_rules[] = {
    {"causal_conv1d",
     0,
     {TO(causal_conv1d, seq_idx, PRESENT, KRAIT_I32), TO(causal_conv1d, initial_states, PRESENT, KRAIT_F32)},
     ARG,
     "initial_states cannot be given with seq_idx"},
    {"causal_conv1d",
     0,
     {TO(causal_conv1d, seq_idx, PRESENT, KRAIT_I32), TO(causal_conv1d, final_states, PRESENT, KRAIT_F32)},
     ARG,
     "final_states cannot be given with seq_idx"},
    {"causal_conv1d_bwd",
     0,
     {TO(causal_conv1d_bwd, seq_idx, PRESENT, KRAIT_I32), TO(causal_conv1d_bwd, initial_states, PRESENT, KRAIT_F32)},
     ARG,
     "initial_states cannot be given with seq_idx"},
    {"causal_conv1d_bwd",
     0,
     {TO(causal_conv1d_bwd, seq_idx, PRESENT, KRAIT_I32), TO(causal_conv1d_bwd, dfinal_states, PRESENT, KRAIT_F32)},
     ARG,
     "dfinal_states cannot be given with seq_idx"},
    {"causal_conv1d_bwd",
     0,
     {TO(causal_conv1d_bwd, seq_idx, PRESENT, KRAIT_I32), TO(causal_conv1d_bwd, dinitial_states, PRESENT, KRAIT_F32)},
     ARG,
     "dinitial_states cannot be given with seq_idx"},
    {"causal_conv1d_update",
     0,
     {TO(causal_conv1d_update, W, SIZE, 4), TO(causal_conv1d_update, S, SIZE, 2)},
     SHAPE,
     "S is 2, must be at least 3"},
    {"causal_conv1d_update",
     0,
     {TO(causal_conv1d_update, n_states, SIZE, 1), TO(causal_conv1d_update, B, SIZE, 2)},
     SHAPE,
     "n_states is 1, must be at least 2"},
    {"selective_scan",
     0,
     {PACKED(selective_scan), TO(selective_scan, S, SIZE, 0)},
     SHAPE,
     "S is 0, must be at least 1"},
    {"selective_scan",
     0,
     {PACKED(selective_scan), TO(selective_scan, S, SIZE, 2), TO(selective_scan, seq_idx, PRESENT, KRAIT_I32)},
     ARG,
     "seq_idx cannot be given with cu_seqlens"},
    {"selective_scan",
     KRAIT_SCAN_BOTH,
     {TO(selective_scan, seq_idx, PRESENT, KRAIT_I32)},
     ARG,
     "seq_idx cannot be given with KRAIT_SCAN_BOTH"},
    {"selective_scan",
     KRAIT_SCAN_BOTH,
     {PACKED(selective_scan), TO(selective_scan, S, SIZE, 2)},
     ARG,
     "cu_seqlens cannot be given with KRAIT_SCAN_BOTH"},
    {"selective_scan",
     KRAIT_SCAN_BOTH,
     {TO(selective_scan, last_state, PRESENT, KRAIT_F32)},
     ARG,
     "last_state cannot be given with KRAIT_SCAN_BOTH"},
    {"selective_scan",
     KRAIT_SCAN_BOTH,
     {TO(selective_scan, A_reverse, PRESENT, KRAIT_C64)},
     DTYPE,
     "A_reverse is complex64 but A is float32"},
    {"selective_scan",
     KRAIT_SCAN_B_CONSTANT,
     {TO(selective_scan, A, TYPE, KRAIT_C64)},
     DTYPE,
     "Bmat is float32, must be complex64"},
    {"selective_scan",
     KRAIT_SCAN_C_CONSTANT,
     {TO(selective_scan, A, TYPE, KRAIT_C64)},
     DTYPE,
     "Cmat is float32, must be complex64"},
    {"selective_scan",
     0,
     {TO(selective_scan, A, TYPE, KRAIT_C64), TO(selective_scan, Bmat, TYPE, KRAIT_C64)},
     DTYPE,
     "Bmat is complex64, must be float32"},
    {"selective_scan",
     0,
     {TO(selective_scan, A, TYPE, KRAIT_C64), TO(selective_scan, initial_state, PRESENT, KRAIT_F32)},
     DTYPE,
     "initial_state is float32, must be complex64"},
    {"selective_scan",
     0,
     {TO(selective_scan, A, TYPE, KRAIT_C64), TO(selective_scan, last_state, PRESENT, KRAIT_F32)},
     DTYPE,
     "last_state is float32, must be complex64"},
    {"selective_scan_bwd",
     KRAIT_SCAN_BOTH,
     {TO(selective_scan_bwd, A_reverse, PRESENT, KRAIT_F32), TO(selective_scan_bwd, dlast_state, PRESENT, KRAIT_F32)},
     ARG,
     "dlast_state cannot be given with KRAIT_SCAN_BOTH"},
    {"selective_scan_bwd",
     KRAIT_SCAN_BOTH,
     {TO(selective_scan_bwd, A_reverse, PRESENT, KRAIT_F32),
      TO(selective_scan_bwd, dinitial_state, PRESENT, KRAIT_F32)},
     ARG,
     "dinitial_state cannot be given with KRAIT_SCAN_BOTH"},
    {"selective_scan_bwd",
     0,
     {TO(selective_scan_bwd, A, TYPE, KRAIT_C64), TO(selective_scan_bwd, dA, PRESENT, KRAIT_F32)},
     DTYPE,
     "dA is float32, must be complex64"},
    {"selective_scan_bwd",
     KRAIT_SCAN_B_CONSTANT,
     {TO(selective_scan_bwd, A, TYPE, KRAIT_C64), TO(selective_scan_bwd, Bmat, TYPE, KRAIT_C64),
      TO(selective_scan_bwd, dB, PRESENT, KRAIT_F32)},
     DTYPE,
     "dB is float32, must be complex64"},
    {"add_norm_bwd",
     0,
     {TO(add_norm_bwd, dweight1, PRESENT, KRAIT_F32)},
     ARG,
     "dweight1 cannot be given without weight1"},
    {"add_norm_bwd", 0, {TO(add_norm_bwd, dbias1, PRESENT, KRAIT_F32)}, ARG, "dbias1 cannot be given without weight1"},
};

static void rules_of_several_fields(void **state) {
  (void)state;
  static unsigned char args[4096];
  for (size_t i = 0; i < sizeof joint_rules / sizeof *joint_rules; i++) {
    const joint_rule *r = &joint_rules[i];
    fill(r->op, args);
    for (int k = 0; k < MOST_STEPS && r->steps[k].offset; k++)
      spoil(args, &(rule){.op = r->op,
                          .offset = r->steps[k].offset,
                          .how = r->steps[k].how,
                          .value = r->steps[k].value,
                          .flags = r->flags});
    int32_t status = kr_op_check(kr_op_find(r->op), args);
    if (status != r->status)
      fail_msg("%s, joint rule %zu (%s): %s, expected %s", r->op, i, r->says, krait_status_name(status),
               krait_status_name(r->status));
    const char *detail = krait_error_detail();
    if (!strstr(detail, r->says) || strncmp(detail, r->op, strlen(r->op)) != 0)
      fail_msg("%s: the detail is '%s', without '%s'", r->op, detail, r->says);
  }
}

/* Every op's call itself: no context, no result pointer. */
static void calls_of_every_op(void **state) {
  (void)state;
  static _Alignas(16) unsigned char args[4096];
  krait_ctx *ctx;
  uint64_t bytes;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  for (int32_t i = 0; i < kr_n_ops; i++) {
    const kr_op *op = kr_ops[i];
    if (strcmp(op->name, "gemm") == 0 || strcmp(op->name, "pointwise") == 0 || strcmp(op->name, "sum_rows") == 0)
      continue; /* not supported by fill */
    fill(op->name, args);
    if ((strncmp(op->name, "attention", 9) == 0 || strcmp(op->name, "rotary") == 0 ||
         strcmp(op->name, "conv3d") == 0) &&
        kr_op_check(op, args) < 0)
      continue; /* sizes with special dependencies */
    assert_int_equal(kr_op_run(op, NULL, args), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), "ctx must not be NULL"));
    assert_int_equal(kr_op_scratch_bytes(op, ctx, args, NULL), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), "bytes must not be NULL"));
    if (kr_op_scratch_bytes(op, ctx, args, &bytes) < 0) fail_msg("%s: %s", op->name, krait_error_detail());
  }
  krait_ctx_close(&ctx);
}

/* mamba_inner's rules on two arguments. */
static void projected_or_given(void **state) {
  (void)state;
  static unsigned char args[4096];
  kr_mamba_inner_args *a = (kr_mamba_inner_args *)args;
  fill("mamba_inner", args);
  a->Bmat = a->B_proj_bias = a->A;
  assert_refused(&kr_op_mamba_inner, a, KRAIT_ERR_ARGUMENT, "B_proj_bias cannot be given where that matrix is given");
  fill("mamba_inner", args);
  a->Cmat = a->C_norm_weight = a->A;
  assert_refused(&kr_op_mamba_inner, a, KRAIT_ERR_ARGUMENT, "C_norm_weight cannot be given where that matrix is given");
  fill("mamba_inner", args);
  a->B_norm_weight = a->A;
  a->A.dtype = KRAIT_C64;
  assert_refused(&kr_op_mamba_inner, a, KRAIT_ERR_ARGUMENT, "B_norm_weight cannot be given with complex A");
  fill("mamba_inner", args);
  a->call.flags = KRAIT_SCAN_BOTH;
  a->A_reverse = a->A;
  a->A_reverse.dtype = KRAIT_C64;
  assert_refused(&kr_op_mamba_inner, a, KRAIT_ERR_DTYPE, "A_reverse is complex64 but A is float32");
  kr_mamba_inner_bwd_args *g = (kr_mamba_inner_bwd_args *)args;
  fill("mamba_inner_bwd", args);
  g->Bmat = g->dB_proj_bias = g->A;
  assert_refused(&kr_op_mamba_inner_bwd, g, KRAIT_ERR_ARGUMENT, "dB_proj_bias cannot be given with Bmat");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_rule_names_what_broke_it),
                                     cmocka_unit_test(rules_of_several_fields),
                                     cmocka_unit_test(calls_of_every_op),
                                     cmocka_unit_test(projected_or_given),
                                     cmocka_unit_test(strides_in_place),
                                     cmocka_unit_test(limits_of_time_steps),
                                     cmocka_unit_test(offsets_are_read_before_they_are_used),
                                     cmocka_unit_test(keys_are_found_in_any_layout),
                                     cmocka_unit_test(missing_rows_are_refused),
                                     cmocka_unit_test(scratch_too_small)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
