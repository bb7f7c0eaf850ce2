/* conv3d_check.c: random causal convolutions: windows of models and others, parts with and without states, frames
 * around the edges of tiles. */
#include "check.h"
#include "op_list.h"

typedef struct window {
  int64_t KT, KH, KW, ST, SH, SW, PH, PW;
} window;

static const window windows[] = {{3, 3, 3, 1, 1, 1, 1, 1}, {1, 3, 3, 1, 2, 2, 0, 0}, {3, 3, 3, 2, 2, 2, 0, 0},
                                 {1, 1, 1, 1, 1, 1, 0, 0}, {1, 3, 3, 1, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 1, 1, 0}};

int32_t kr_conv3d_case(kr_case *c, int64_t index) {
  kr_conv3d_args *a = (kr_conv3d_args *)c->args;
  const window *w = &windows[kr_case_int(c, 0, 5)];
  const int has_states = w->KT > w->ST;
  c->contiguous = index % 2;
  if (!c->is_exact && kr_case_chance(c, 0.7)) c->anywhere = !c->contiguous;
  a->KT = w->KT, a->KH = w->KH, a->KW = w->KW, a->ST = w->ST, a->SH = w->SH, a->SW = w->SW, a->PH = w->PH,
  a->PW = w->PW, a->TAPS = a->KT * a->KH * a->KW;
  a->C = kr_case_int(c, 1, index % 8 == 0 ? 70 : 9), a->K = kr_case_edge(c, index % 8 == 1 ? 130 : 20);
  a->T = kr_case_int(c, 1, 4), a->H = kr_case_int(c, 1, 7), a->W = kr_case_int(c, 1, index % 16 == 3 ? 230 : 17);
  if (index % 4 == 1) /* whole packs of channels, as tensor cores and bulk copies take them */
    a->C = 8 * kr_case_int(c, 1, 9), a->K = 8 * kr_case_int(c, 1, index % 8 == 1 ? 34 : 4), c->contiguous = 1,
    c->anywhere = 0;
  a->OH = (a->H + 2 * a->PH) / a->SH, a->OW = (a->W + 2 * a->PW) / a->SW;
  a->OH = a->OH < 1 ? 1 : a->OH, a->OW = a->OW < 1 ? 1 : a->OW;
  a->past = has_states ? a->KT - a->ST : 0;
  const int follows = has_states && kr_case_chance(c, 0.5);
  const int64_t front = follows ? a->past : a->KT - 1;
  if (a->T + front < a->KT) a->T = a->KT - front;
  a->OT = (a->T + front - a->KT) / a->ST + 1;
  kr_case_give(c, "x"); /* before what has its type */
  if (follows) kr_case_give(c, "initial_states");
  else kr_case_leave_out(c, "initial_states");
  if (!has_states) kr_case_leave_out(c, "final_states");
  return KRAIT_OK;
}
