/* mamba3_check.c: random calls of Mamba 3's scan, its gradient and its step: one input and output or several ranks, odd
 * sizes and those of the fast implementations, packed sequences, states. */
#include <string.h>

#include "check.h"
#include "op_list.h"
#include "view.h"

static void choose_mamba3_sizes(kr_case *c, int64_t index) {
  const int usual = index % 5 == 3; /* what the fast kernels require: whole vectors */
  const int64_t G = kr_case_chance(c, 0.3) ? 2 : 1;
  int64_t *const P = kr_case_size(c, "P"), *const N = kr_case_size(c, "N"), *const R = kr_case_size(c, "R");
  c->contiguous = usual;
  *kr_case_size(c, "G") = G, *kr_case_size(c, "H") = G * kr_case_int(c, 1, 3);
  *R = kr_case_chance(c, 0.5) ? 1 : kr_case_int(c, 1, 5);
  *P = usual ? kr_case_int(c, 1, 9) * 8 : kr_case_edge(c, 33);
  *N = usual ? kr_case_int(c, 1, 16) * 8 : 2 * kr_case_edge(c, index % 40 == 12 ? 130 : 17);
  const int is_plain = usual && index % 10 == 3, is_ranked = usual && index % 10 == 8;
  if (is_plain || is_ranked) { /* what the kernels of vectors have */
    *R = is_plain ? 1 : 2LL << kr_case_int(c, 0, 1), *P = 8LL << kr_case_int(c, is_plain ? 0 : 2, 4);
    *N = 16LL << kr_case_int(c, 0, 3);
    if (is_ranked) ((kr_call *)c->args)->flags |= KRAIT_MAMBA3_HALVES;
  }
  *kr_case_size(c, "M") = usual ? *N / (kr_case_chance(c, 0.5) ? 2 : 4) : kr_case_int(c, 0, *N / 2);
}

static void set_exact_mamba3_sizes(kr_case *c) {
  *kr_case_size(c, "B") = *kr_case_size(c, "G") = *kr_case_size(c, "P") = 2;
  *kr_case_size(c, "H") = 4, *kr_case_size(c, "N") = 6, *kr_case_size(c, "M") = kr_case_int(c, 1, 3);
  *kr_case_size(c, "R") = kr_case_int(c, 1, 2), *kr_case_size(c, "L") = kr_case_int(c, 1, 5);
}

/* The norm of a few values near zero multiplies their errors by 1 / sqrt(eps), and bends too much for differences. */
static void choose_mamba3_eps(kr_case *c) {
  float *const eps = c->sig->forward ? &((kr_mamba3_bwd_args *)c->args)->eps : &((kr_mamba3_args *)c->args)->eps;
  *eps = c->is_exact ? 0.5f : (float)kr_case_uniform(c, 0.05, 1);
}

/* usual: a call of a model that is trained: whole sequences without states, neighbours turn, rows of at most 64
 * channels. */
static void choose_mamba3_tensors(kr_case *c, int usual) {
  static const char *const states[] = {"initial_angles", "initial_states", "initial_B", "initial_x"},
                    *const factors[] = {"norm_weight", "mimo_x", "mimo_z", "mimo_o"},
                    *const ends[2][4] = {{"final_angles", "final_states", "final_B", "final_x"},
                                         {"dfinal_angles", "dfinal_states", "dfinal_B", "dfinal_x"}};
  uint32_t *const flags = &((kr_call *)c->args)->flags;
  if (usual) {
    *flags &= ~(uint32_t)(KRAIT_MAMBA3_HALVES | KRAIT_MAMBA3_REVERSE);
    if (*kr_case_size(c, "P") > 64) *kr_case_size(c, "P") = 64;
    if (*kr_case_size(c, "L") == 1) *kr_case_size(c, "L") = 2; /* one angle alone has no gradient to compare with */
    if (kr_case_chance(c, 0.3)) { /* as many heads as walk on a large GPU */
      *kr_case_size(c, "B") = 2, *kr_case_size(c, "H") = 24, *kr_case_size(c, "P") = 8, *kr_case_size(c, "N") = 16;
      *kr_case_size(c, "M") = kr_case_int(c, 1, 2) * 4;
    } else if (kr_case_chance(c, 0.6)) { /* what mamba3_inner.cu takes */
      *kr_case_size(c, "N") = 128, *kr_case_size(c, "M") = kr_case_int(c, 1, 8) * 4;
    }
    for (int i = 0; i < 4; i++)
      kr_case_leave_out(c, factors[i]), kr_case_leave_out(c, ends[c->sig->forward != NULL][i]);
  }
  const int is_packed = !usual && !(*flags & KRAIT_MAMBA3_REVERSE) && kr_case_chance(c, 0.3),
            has_states = !usual && kr_case_chance(c, 0.5);
  if (is_packed) {
    *kr_case_size(c, "B") = 1, *kr_case_size(c, "S") = kr_case_int(c, 1, 4);
    kr_case_give(c, "cu_seqlens");
  }
  for (int i = 0; i < 4; i++) {
    if (has_states) kr_case_give(c, states[i]);
    else kr_case_leave_out(c, states[i]);
  }
  if (*kr_case_size(c, "R") == 1 && kr_case_chance(c, 0.8)) { /* SISO */
    kr_case_leave_out(c, "mimo_x"), kr_case_leave_out(c, "mimo_z"), kr_case_leave_out(c, "mimo_o");
  }
}

/* Final angles are modulo 2 pi: differences must not meet the jump. */
static void stay_below_a_turn(kr_case *c) {
  kr_case_fill_uniform(c, kr_case_give(c, "angles"), 0.05, 0.3);
  kr_view *const initial = &((kr_mamba3_args *)c->args)->initial_angles;
  if (!c->sig->forward && kr_has(initial)) kr_case_fill_uniform(c, initial, 0.1, 2.5);
}

/* Angles that all heads share. */
static void share_mamba3_angles(kr_case *c) {
  if (c->is_exact || !kr_case_chance(c, 0.4)) return;
  kr_case_give(c, "angles")->stride[2] = 0;
  if (c->sig->forward && kr_case_chance(c, 0.8)) kr_case_give(c, "dangles")->stride[2] = 0;
}

/* Factors of the SSD's products are rounded to 16 bits, or to tf32, by implementations on tensor cores: its bounds
 * (ssd_check.c), for all but the states that no product makes. Gradients of keys and queries are stored once more, and
 * those of angles are sums of their differences over all later tokens. A turn of all queries and keys alike changes
 * nothing but how they meet the initial states: at the first token, and before it, the sums cancel to that, their
 * rounding does not. */
static void set_mamba3_bounds(kr_case *c) {
  static const char *const exact[] = {"final_angles", "final_B", "final_x"};
  const int is_tf32 = c->dtype == KRAIT_F32 && ((kr_call *)c->args)->flags & KRAIT_MAMBA3_TF32;
  const double rtol = is_tf32 || c->dtype == KRAIT_F16 ? 8e-3 : 6e-2, atol = c->dtype == KRAIT_F16 ? 1.2e-7 : 1e-30;
  for (int i = 0; i < c->sig->n_tensors && (c->dtype != KRAIT_F32 || is_tf32); i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    int is_product = c->sig->tensors[i].role & KR_OUT && view->data;
    for (int k = 0; k < 3; k++) is_product = is_product && strcmp(c->sig->tensors[i].name, exact[k]) != 0;
    const char *const name = c->sig->tensors[i].name;
    const double share = strstr(name, "angles") ? 8 : c->sig->forward ? 2 : 1.5;
    if (is_product) kr_case_bound(c, view, share * rtol, atol);
  }
}

static int32_t draw_mamba3(kr_case *c, int64_t index) {
  if (c->is_exact) {
    set_exact_mamba3_sizes(c);
  } else {
    choose_mamba3_sizes(c, index);
    *kr_case_size(c, "B") = kr_case_int(c, 1, 2);
    *kr_case_size(c, "L") = kr_case_edge(c, *kr_case_size(c, "P") * *kr_case_size(c, "N") > 4000 ? 70 : 140);
  }
  choose_mamba3_eps(c);
  choose_mamba3_tensors(c, !c->is_exact && index % 20 == 13);
  if (c->is_exact) stay_below_a_turn(c);
  share_mamba3_angles(c);
  kr_case_give_rest(c);
  set_mamba3_bounds(c);
  return KRAIT_OK;
}

int32_t kr_mamba3_case(kr_case *c, int64_t index) { return draw_mamba3(c, index); }
int32_t kr_mamba3_bwd_case(kr_case *c, int64_t index) { return draw_mamba3(c, index); }

int32_t kr_mamba3_step_case(kr_case *c, int64_t index) {
  choose_mamba3_sizes(c, index);
  *kr_case_size(c, "B") = kr_case_int(c, 1, 4);
  *kr_case_size(c, "n_states") = *kr_case_size(c, "B") + kr_case_int(c, 0, 3);
  return KRAIT_OK;
}
