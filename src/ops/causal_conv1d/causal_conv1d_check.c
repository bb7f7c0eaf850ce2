/* causal_conv1d_check.c: random calls of causal_conv1d: both layouts, packed sequences, states, both directions. */
#include "check.h"
#include "conv_rows.h"
#include "op_list.h"

/* Mostly short rows; now and then long ones of whole packs, of which GPU rows are fond, and a few steps of more channels than one item
 * of the CPU takes. */
static int choose_sizes(kr_case *c, kr_conv_case *s, int64_t index) {
  static const int64_t long_rows[] = {512, 1024, 1032, 2048, 2080, 4104};
  static const int64_t wide[] = {257, 600, 2049, 2500};
  const int is_long = index % 8 == 7, is_wide = index % 16 == 3;
  c->contiguous = is_long;
  *s->B = kr_case_int(c, 1, 3);
  *s->D = is_long ? (index % 16 == 15 ? 24 : kr_case_int(c, 1, 5)) : is_wide ? kr_case_pick(c, 4, wide) : kr_case_edge(c, 70);
  *s->L = is_long ? kr_case_pick(c, (int)(sizeof long_rows / sizeof *long_rows), long_rows) : kr_case_edge(c, is_wide ? 12 : 300);
  *s->W = index % 10 == 0 ? kr_case_int(c, 5, 12) : kr_case_int(c, 1, 4);
  return is_long;
}

void kr_conv_case_inputs(kr_case *c, kr_conv_case *s, int64_t index) {
  int32_t dtype = kr_case_activation_dtype(c), weight_dtype = kr_case_chance(c, 0.5) ? dtype : KRAIT_F32;
  s->call->flags = kr_case_chance(c, 0.3) ? KRAIT_CONV1D_REVERSE : 0;
  const int is_long = choose_sizes(c, s, index);
  *s->activation = kr_case_chance(c, 0.6) ? KRAIT_ACT_SILU : KRAIT_ACT_NONE;
  kr_case_view(c, s->x, "x", KR_IN, dtype, KR_SHAPE(*s->B, *s->D, *s->L));
  kr_case_fill_normal(c, s->x, 0, 1);
  kr_case_view(c, s->weight, "weight", KR_IN, weight_dtype, KR_SHAPE(*s->D, *s->W));
  kr_case_fill_normal(c, s->weight, 0, 0.5);
  if (kr_case_chance(c, 0.6)) {
    kr_case_view(c, s->bias, "bias", KR_IN, weight_dtype, KR_SHAPE(*s->D));
    kr_case_fill_normal(c, s->bias, 0, 0.5);
  }
  if (is_long) return;
  if (kr_case_chance(c, 0.3)) {
    kr_case_sequences(c, s->seq_idx, *s->B, *s->L);
  } else if (*s->W > 1 && kr_case_chance(c, 0.5)) {
    kr_case_view(c, s->initial_states, "initial_states", KR_IN, dtype, KR_SHAPE(*s->B, *s->D, *s->W - 1));
    kr_case_fill_normal(c, s->initial_states, 0, 1);
  }
}

int32_t kr_causal_conv1d_case(kr_case *c, int64_t index) {
  krait_causal_conv1d_args *a = (krait_causal_conv1d_args *)c->args;
  kr_conv_case s = KR_CONV_CASE(a);
  kr_conv_case_inputs(c, &s, index);
  if (!a->seq_idx.data && a->W > 1 && kr_case_chance(c, 0.5))
    kr_case_view(c, &a->final_states, "final_states", KR_OUT, a->x.dtype, KR_SHAPE(a->B, a->D, a->W - 1));
  kr_case_view(c, &a->out, "out", KR_OUT, a->x.dtype, KR_SHAPE(a->B, a->D, a->L));
  return KRAIT_OK;
}
