/* causal_conv1d_update_check.c: random calls of the running convolution (shifting and ring states, indices with skipped rows)
 * and of the states of packed sequences. */
#include "check.h"
#include "op_list.h"

static void choose_indices(kr_case *c, krait_causal_conv1d_update_args *a) {
  if (!kr_case_chance(c, 0.3)) return;
  a->n_states = a->B + kr_case_int(c, 0, 3);
  kr_case_view(c, &a->conv_state_indices, "conv_state_indices", KR_IN, KRAIT_I32, KR_SHAPE(a->B));
  for (int64_t b = 0; b < a->B; b++) kr_case_set_i32(c, &a->conv_state_indices, b, kr_case_chance(c, 0.2) ? -1 : (int32_t)(a->n_states - 1 - b));
}

int32_t kr_causal_conv1d_update_case(kr_case *c, int64_t index) {
  krait_causal_conv1d_update_args *a = (krait_causal_conv1d_update_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), other = kr_case_chance(c, 0.5) ? dtype : KRAIT_F32;
  a->B = kr_case_int(c, 1, 3);
  a->n_states = a->B;
  a->D = kr_case_edge(c, 70);
  a->L = kr_case_chance(c, 0.5) ? 1 : kr_case_edge(c, index % 15 == 0 ? 70 : 9);
  a->W = index % 10 == 0 ? kr_case_int(c, 5, 12) : kr_case_int(c, 1, 4);
  a->S = a->W - (a->W > 1 && kr_case_chance(c, 0.4)) + (kr_case_chance(c, 0.5) ? kr_case_int(c, 0, index % 15 == 1 ? 60 : 6) : 0);
  a->activation = kr_case_chance(c, 0.6) ? KRAIT_ACT_SILU : KRAIT_ACT_NONE;
  choose_indices(c, a);
  kr_case_view(c, &a->x, "x", KR_IN, dtype, KR_SHAPE(a->B, a->D, a->L));
  kr_case_fill_normal(c, &a->x, 0, 1);
  kr_case_view(c, &a->conv_state, "conv_state", KR_INOUT, dtype, KR_SHAPE(a->n_states, a->D, a->S));
  kr_case_fill_normal(c, &a->conv_state, 0, 1);
  kr_case_bound(c, &a->conv_state, 0, 0);
  kr_case_view(c, &a->weight, "weight", KR_IN, other, KR_SHAPE(a->D, a->W));
  kr_case_fill_normal(c, &a->weight, 0, 0.5);
  if (kr_case_chance(c, 0.6)) {
    kr_case_view(c, &a->bias, "bias", KR_IN, other, KR_SHAPE(a->D));
    kr_case_fill_normal(c, &a->bias, 0, 0.5);
  }
  if (kr_case_chance(c, 0.4)) {
    kr_case_view(c, &a->cache_seqlens, "cache_seqlens", KR_IN, KRAIT_I32, KR_SHAPE(a->B));
    for (int64_t b = 0; b < a->B; b++) kr_case_set_i32(c, &a->cache_seqlens, b, (int32_t)kr_case_int(c, 0, 1000));
  }
  kr_case_view(c, &a->out, "out", KR_OUT, dtype, KR_SHAPE(a->B, a->D, a->L));
  return KRAIT_OK;
}

int32_t kr_causal_conv1d_varlen_states_case(kr_case *c, int64_t index) {
  krait_causal_conv1d_varlen_states_args *a = (krait_causal_conv1d_varlen_states_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c);
  (void)index;
  a->S = kr_case_int(c, 1, 5);
  a->D = kr_case_edge(c, 70);
  a->total = kr_case_edge(c, 40);
  a->state_len = kr_case_int(c, 1, 6);
  kr_case_view(c, &a->x, "x", KR_IN, dtype, KR_SHAPE(a->total, a->D));
  kr_case_fill_normal(c, &a->x, 0, 1);
  kr_case_offsets(c, &a->cu_seqlens, a->S, a->total);
  kr_case_view(c, &a->states, "states", KR_OUT, dtype, KR_SHAPE(a->S, a->D, a->state_len));
  kr_case_bound(c, &a->states, 0, 0);
  return KRAIT_OK;
}
