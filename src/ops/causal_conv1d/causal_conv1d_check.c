/* causal_conv1d_check.c: sizes of random calls of the convolution and its gradient. Mostly short rows; occasionally
 * long packed rows for the GPU, and a few steps of more channels than one CPU item takes. */
#include "check.h"
#include "conv_impls.h"

/* States in float32 beside 16-bit inputs, as in a language model's prompt. */
static void give_states(kr_case *c) {
  const int32_t dtype = kr_case_pick(c, 2, (int64_t[]){KRAIT_F16, KRAIT_BF16});
  c->dtype = KRAIT_F32, c->other = kr_case_chance(c, 0.7) ? dtype : KRAIT_F32;
  kr_case_leave_out(c, "seq_idx");
  if (kr_case_chance(c, 0.7)) kr_case_give(c, "initial_states");
  kr_case_give(c, "final_states");
  c->dtype = dtype;
}

/* Where taps cancel, the rest decides about the activation, and must survive a float32 sum. */
static double most_of(const kr_case *c) { return c->dtype == KRAIT_F16 ? 65504 : 0x1p10; }

int32_t kr_conv_case(kr_case *c, int64_t index) {
  static const int64_t long_rows[] = {512, 1024, 1032, 2048, 2080, 4104};
  static const int64_t wide[] = {257, 600, 2049, 2500};
  kr_case_hard(c, c->sig->forward ? 3 : 2, (const char *[]){"x", "weight", "dout"}, most_of(c));
  const int is_long = index % 8 == 7, is_wide = index % 16 == 3;
  c->contiguous = is_long;
  *kr_case_size(c, "B") = kr_case_int(c, 1, 3);
  *kr_case_size(c, "D") = is_long   ? (index % 16 == 15 ? 24 : kr_case_int(c, 1, 5))
                          : is_wide ? kr_case_pick(c, 4, wide)
                                    : kr_case_edge(c, 70);
  *kr_case_size(c, "L") = is_long ? kr_case_pick(c, (int)(sizeof long_rows / sizeof *long_rows), long_rows)
                                  : kr_case_edge(c, is_wide ? 12 : 300);
  *kr_case_size(c, "W") = index % 10 == 0 ? kr_case_int(c, 5, 12) : kr_case_int(c, 1, 4);
  if (index % 8 == 1) { /* channels-last, as in models */
    c->contiguous = c->channels_last = 1;
    *kr_case_size(c, "D") = 4 * kr_case_int(c, 1, 40), *kr_case_size(c, "W") = kr_case_int(c, 2, 4);
    if (index % 16 == 9)
      *kr_case_size(c, "B") = 3, *kr_case_size(c, "D") = 4 * kr_case_int(c, 35, 60),
                       *kr_case_size(c, "L") = kr_case_int(c, 150, 300); /* more than fits a small device at once */
  }
  if (index % 16 == 1 && !c->sig->forward && !c->is_exact) give_states(c);
  else if (is_long || index % 8 == 1)
    kr_case_leave_out(c, "seq_idx"), kr_case_leave_out(c, "initial_states"), kr_case_leave_out(c, "dfinal_states"),
        kr_case_leave_out(c, "dinitial_states");
  kr_case_give_rest(c);
  return kr_case_spoil_padding(c, KR_NAMES("x", "dout"), -1);
}

int32_t kr_conv_update_case(kr_case *c, int64_t index) {
  kr_causal_conv1d_update_args *a = (kr_causal_conv1d_update_args *)c->args;
  kr_case_hard(c, KR_NAMES("x", "conv_state"), KR_MOST_CUBED);
  a->B = kr_case_int(c, 1, 3);
  a->n_states = a->B + kr_case_int(c, 0, 3);
  a->D = kr_case_edge(c, 70);
  a->L = kr_case_chance(c, 0.5) ? 1 : kr_case_edge(c, index % 15 == 0 ? 70 : 9);
  a->W = index % 10 == 0 ? kr_case_int(c, 5, 12) : kr_case_int(c, 1, 4);
  a->S = a->W - (a->W > 1 && kr_case_chance(c, 0.4)) +
         (kr_case_chance(c, 0.5) ? kr_case_int(c, 0, index % 15 == 1 ? 60 : 6) : 0);
  if (index % 5 == 2) { /* a decoding step, as in language models */
    a->B = kr_case_int(c, 2, 6), a->n_states = a->B + kr_case_int(c, 0, 3);
    a->L = 1, a->W = 4, a->S = 3, a->D = 4 * kr_case_edge(c, 60), a->activation = KRAIT_ACT_SILU;
    c->contiguous = 1, c->dtype = c->other = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
    kr_case_leave_out(c, "cache_seqlens");
    const int32_t dtype = c->dtype;
    c->dtype = KRAIT_F32;
    kr_case_give(c, "conv_state");
    c->dtype = dtype;
  }
  if (index % 5 == 3) { /* a frame of a stream: many taps, states with contiguous channels */
    a->L = 1, a->W = kr_case_int(c, 2, 16), a->S = a->W - 1;
    c->channels_last = 1, c->dtype = c->other = KRAIT_F32;
    kr_case_leave_out(c, "cache_seqlens");
  }
  return KRAIT_OK;
}

int32_t kr_conv_varlen_case(kr_case *c, int64_t index) {
  kr_causal_conv1d_varlen_states_args *a = (kr_causal_conv1d_varlen_states_args *)c->args;
  (void)index;
  a->S = kr_case_int(c, 1, 5);
  a->D = kr_case_edge(c, 70);
  a->total = kr_case_edge(c, 40);
  a->state_len = kr_case_int(c, 1, 6);
  return KRAIT_OK;
}
