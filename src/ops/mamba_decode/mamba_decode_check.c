/* mamba_decode_check.c: random calls: both kinds of layers, sizes around the persistent row's limits, few sequences
 * from many state rows; the last three as the streaming row takes them. Values that pass through several 16-bit
 * products and norms are less exact than one rounding. */
#include "check.h"
#include "op_list.h"

static void choose_mamba_decode_sizes(kr_case *c, kr_mamba_decode_args *a, int is_first, int is_even) {
  a->B = kr_case_int(c, 1, is_even ? 8 : 10), a->Y = kr_case_int(c, 1, 3);
  a->H = a->G = 1, a->W = is_even ? 4 : kr_case_int(c, 2, 5);
  a->D = is_even ? 8 * kr_case_int(c, 1, 12) : kr_case_edge(c, 40);
  a->N = is_even ? 4 * kr_case_int(c, 1, is_first ? 4 : 32) : kr_case_int(c, 1, 20);
  if (!is_first) a->H = kr_case_pick(c, 3, (int64_t[]){2, 4, 6}), a->G = kr_case_chance(c, 0.3) ? 2 : 1;
  a->E = a->H * (is_even ? 8 * kr_case_int(c, 1, 12 / a->H + 2) : kr_case_int(c, 1, 20));
  a->R = is_first ? (is_even ? 8 : 1) * kr_case_int(c, 1, 6) : 0;
  a->n_states = a->B + kr_case_int(c, 0, 3);
}

/* As the streaming row takes them: one sequence, one width, two layers; of 8 bits, of float16, of bfloat16. The last
 * calls only: the reference takes seconds. */
enum { FIRST_WIDE = 78 };

static void widen_mamba_decode(kr_case *c, kr_mamba_decode_args *a, int is_first) {
  a->B = 1, a->Y = 2, a->W = 4, a->G = 1, a->n_states = kr_case_int(c, 1, 3);
  a->D = 2560, a->E = 5120;
  a->H = is_first ? 1 : kr_case_pick(c, 3, (int64_t[]){1, 4, 80});
  a->N = is_first ? 16 : kr_case_pick(c, 3, (int64_t[]){16, 64, 128});
}

/* Wide products' weights are small, as in models: y would leave float16's range. */
static void calm(kr_case *c, kr_mamba_decode_args *a) {
  const kr_view *const wide[] = {&a->in_proj, &a->x_proj, &a->out_proj}, *const scales[] = {&a->in_proj_scales,
                                                                                               &a->x_proj_scales,
                                                                                               &a->out_proj_scales};
  for (int i = 0; i < 3; i++) {
    if (wide[i]->data) kr_case_fill_uniform(c, wide[i], -0.035, 0.035);
    if (scales[i]->data) kr_case_fill_uniform(c, scales[i], -0.0005, 0.0005);
  }
}

/* 8-bit weights, or weights of the case's type. */
static void give_mamba_decode_weights(kr_case *c, kr_mamba_decode_args *a, int is_first, int is_q8) {
  static const char *const whole[] = {"in_proj", "out_proj", "x_proj"},
                           *const words[] = {"in_proj_qweight", "out_proj_qweight", "x_proj_qweight"},
                           *const scales[] = {"in_proj_scales", "out_proj_scales", "x_proj_scales"};
  kr_view *const at[] = {&a->in_proj_qweight, &a->out_proj_qweight, &a->x_proj_qweight};
  const int64_t rows[] = {is_first ? 2 * a->E : 2 * a->E + 2 * a->G * a->N + a->H, a->D, a->R + 2 * a->N},
                n_words[] = {8 * a->SD, 8 * a->SE, 8 * a->SE};
  if (is_first)
    kr_case_leave_out(c, "gate_norm"), kr_case_give(c, "dt_proj");
  else
    kr_case_leave_out(c, "dt_proj"), kr_case_give(c, "gate_norm");
  for (int i = 0; i < 3; i++) {
    const int is_needed = i < 2 || is_first;
    if (is_needed && !is_q8)
      kr_case_give(c, whole[i]);
    else
      kr_case_leave_out(c, whole[i]);
    if (!is_needed || !is_q8) {
      kr_case_leave_out(c, words[i]), kr_case_leave_out(c, scales[i]);
      continue;
    }
    kr_case_give(c, words[i]);
    kr_case_give(c, scales[i]);
    const uint64_t begun = kr_case_begin_values(c);
    for (int64_t k = 0; k < a->Y * rows[i] * n_words[i] && !c->is_unfilled; k++)
      kr_case_set_i32(c, at[i], k,
                      (int32_t)((uint32_t)kr_case_int(c, 0, 65535) << 16 | (uint32_t)kr_case_int(c, 0, 65535)));
    kr_case_end_values(c, begun);
  }
}

int32_t kr_mamba_decode_case(kr_case *c, int64_t index) {
  kr_mamba_decode_args *a = (kr_mamba_decode_args *)c->args;
  const int is_wide = index >= FIRST_WIDE, is_first = is_wide ? kr_case_chance(c, 0.5) : index % 2 == 0,
            is_even = index % 3 != 0 || is_wide, is_q8 = is_wide ? index == FIRST_WIDE : index % 5 == 1;
  choose_mamba_decode_sizes(c, a, is_first, is_even);
  if (is_q8) a->H = a->G = is_first ? 1 : 2, a->D = 64 * kr_case_int(c, 1, 2), a->E = 64 * kr_case_int(c, 1, 3);
  if (is_wide) widen_mamba_decode(c, a, is_first);
  if (is_q8) a->SD = a->D / 32, a->SE = a->E / 32;
  c->dtype = is_wide   ? (index == FIRST_WIDE + 2 ? KRAIT_BF16 : KRAIT_F16)
             : is_even ? (int32_t)kr_case_pick(c, 2, (int64_t[]){KRAIT_F16, KRAIT_BF16})
                       : kr_case_activation_dtype(c);
  if (is_even) c->contiguous = 1, c->other = c->dtype;
  give_mamba_decode_weights(c, a, is_first, is_q8);
  kr_case_give_rest(c);
  if (is_wide) calm(c, a);
  const double bound = a->norm_weight.dtype == KRAIT_BF16 || a->x.dtype == KRAIT_BF16 ? 6e-2
                       : a->norm_weight.dtype == KRAIT_F16 || a->x.dtype == KRAIT_F16 ? 8e-3
                                                                                      : 2e-5;
  const kr_view *const written[] = {&a->conv_state, &a->ssm_state, &a->out};
  for (int i = 0; i < 3; i++) kr_case_bound(c, written[i], bound, bound / 100);
  return KRAIT_OK;
}
