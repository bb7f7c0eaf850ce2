/* causal_conv1d_check.c: random calls of causal_conv1d: both layouts, packed sequences, states, both directions. */
#include "check.h"
#include "op_list.h"

static void choose_sequences(kr_case *c, krait_view *seq_idx, int64_t B, int64_t L) {
  kr_case_view(c, seq_idx, "seq_idx", KR_IN, KRAIT_I32, KR_SHAPE(B, L));
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0, index = 0; t < L; t++) {
      if (kr_case_chance(c, 0.1)) index = kr_case_int(c, -1, 5);
      kr_case_set_i32(c, seq_idx, b * L + t, (int32_t)index);
    }
}

static void choose_states(kr_case *c, krait_causal_conv1d_args *a, int32_t dtype) {
  if (a->W == 1) return;
  if (kr_case_chance(c, 0.5)) {
    kr_case_view(c, &a->initial_states, "initial_states", KR_IN, dtype, KR_SHAPE(a->B, a->D, a->W - 1));
    kr_case_fill_normal(c, &a->initial_states, 0, 1);
  }
  if (kr_case_chance(c, 0.5)) kr_case_view(c, &a->final_states, "final_states", KR_OUT, dtype, KR_SHAPE(a->B, a->D, a->W - 1));
}

int32_t kr_causal_conv1d_case(kr_case *c, int64_t index) {
  krait_causal_conv1d_args *a = (krait_causal_conv1d_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), weight_dtype = kr_case_chance(c, 0.5) ? dtype : KRAIT_F32;
  a->call.flags = kr_case_chance(c, 0.3) ? KRAIT_CONV1D_REVERSE : 0;
  a->B = kr_case_int(c, 1, 3);
  a->D = kr_case_edge(c, 70);
  a->L = kr_case_edge(c, 300);
  a->W = index % 10 == 0 ? kr_case_int(c, 5, 12) : kr_case_int(c, 1, 4);
  a->activation = kr_case_chance(c, 0.6) ? KRAIT_ACT_SILU : KRAIT_ACT_NONE;
  kr_case_view(c, &a->x, "x", KR_IN, dtype, KR_SHAPE(a->B, a->D, a->L));
  kr_case_fill_normal(c, &a->x, 0, 1);
  kr_case_view(c, &a->weight, "weight", KR_IN, weight_dtype, KR_SHAPE(a->D, a->W));
  kr_case_fill_normal(c, &a->weight, 0, 0.5);
  if (kr_case_chance(c, 0.6)) {
    kr_case_view(c, &a->bias, "bias", KR_IN, weight_dtype, KR_SHAPE(a->D));
    kr_case_fill_normal(c, &a->bias, 0, 0.5);
  }
  if (kr_case_chance(c, 0.3)) choose_sequences(c, &a->seq_idx, a->B, a->L);
  else choose_states(c, a, dtype);
  kr_case_view(c, &a->out, "out", KR_OUT, dtype, KR_SHAPE(a->B, a->D, a->L));
  return KRAIT_OK;
}
