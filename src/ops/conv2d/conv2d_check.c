/* conv2d_check.c: sizes of random channels-last convolutions. */
#include "check.h"
#include "op_list.h"

int32_t kr_depthwise_conv_case(kr_case *c, int64_t index) {
  kr_depthwise_conv_args *a = (kr_depthwise_conv_args *)c->args; /* the gradient's args start alike */
  c->contiguous = index % 2;
  a->B = kr_case_int(c, 1, 3), a->H = kr_case_int(c, 1, 9), a->W = kr_case_int(c, 1, index % 8 == 0 ? 70 : 9),
  a->C = c->is_exact ? kr_case_int(c, 1, 3) : kr_case_edge(c, 130) + 1;
  a->KH = kr_case_int(c, 1, index % 4 == 0 ? 11 : 3), a->KW = kr_case_int(c, 1, 3), a->DH = kr_case_int(c, 1, 2),
  a->DW = kr_case_int(c, 1, 4);
  if (index % 4 == 1 && !c->is_exact) { /* tap sizes used by models, which have their own kernels */
    static const int64_t taps[][2] = {{3, 3}, {3, 1}, {11, 1}, {23, 1}, {31, 1}};
    const int64_t which = kr_case_int(c, 0, 4);
    a->KH = taps[which][0], a->KW = taps[which][1], a->DH = 1, a->H = kr_case_int(c, 1, 45);
    if (kr_case_chance(c, 0.3)) a->W = a->KW = 1; /* 1-D sequences */
  }
  a->PH = kr_case_int(c, 0, (a->KH - 1) * a->DH), a->PW = kr_case_int(c, 0, (a->KW - 1) * a->DW);
  return KRAIT_OK;
}

int32_t kr_unfold_case(kr_case *c, int64_t index) {
  kr_unfold_args *a = (kr_unfold_args *)c->args; /* fold has the same args */
  c->contiguous = index % 2;
  a->B = kr_case_int(c, 1, 3), a->H = kr_case_int(c, 1, 9), a->W = kr_case_int(c, 1, index % 8 == 0 ? 70 : 9),
  a->C = kr_case_edge(c, 40) + 1;
  a->KH = kr_case_int(c, 1, 4), a->KW = kr_case_int(c, 1, index % 8 == 0 ? 20 : 4), a->SH = kr_case_int(c, 1, 2),
  a->SW = kr_case_int(c, 1, 3);
  a->PH = kr_case_int(c, 0, 2), a->PW = kr_case_int(c, 0, 2), a->OH = kr_case_int(c, 1, 6),
  a->OW = kr_case_int(c, 1, 6), a->K = a->KH * a->KW * a->C;
  return KRAIT_OK;
}

int32_t kr_depthwise_conv_bwd_case(kr_case *c, int64_t index) { return kr_depthwise_conv_case(c, index); }
int32_t kr_fold_case(kr_case *c, int64_t index) { return kr_unfold_case(c, index); }
