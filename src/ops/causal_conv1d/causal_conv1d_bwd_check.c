/* causal_conv1d_bwd_check.c: random calls of the convolution's gradient; any output may be absent. */
#include "check.h"
#include "conv_rows.h"
#include "op_list.h"

static void output(kr_case *c, krait_view *v, const char *name, int32_t dtype, size_t n_dims, const int64_t *shape, int is_sum) {
  if (kr_case_chance(c, 0.1)) return;
  kr_case_view(c, v, name, KR_OUT, dtype, (int)n_dims, shape);
  if (dtype == KRAIT_F32) kr_case_bound(c, v, is_sum ? 1e-4 : 1e-5, 1e-30);
}

int32_t kr_causal_conv1d_bwd_case(kr_case *c, int64_t index) {
  krait_causal_conv1d_bwd_args *a = (krait_causal_conv1d_bwd_args *)c->args;
  kr_conv_case s = KR_CONV_CASE(a);
  kr_conv_case_inputs(c, &s, index);
  const int32_t dtype = a->x.dtype;
  if (!kr_case_chance(c, 0.05)) {
    kr_case_view(c, &a->dout, "dout", KR_IN, dtype, KR_SHAPE(a->B, a->D, a->L));
    kr_case_fill_normal(c, &a->dout, 0, 1);
  }
  if (!a->seq_idx.data && a->W > 1) {
    if (kr_case_chance(c, 0.5)) {
      kr_case_view(c, &a->dfinal_states, "dfinal_states", KR_IN, dtype, KR_SHAPE(a->B, a->D, a->W - 1));
      kr_case_fill_normal(c, &a->dfinal_states, 0, 1);
    }
    output(c, &a->dinitial_states, "dinitial_states", dtype, KR_SHAPE(a->B, a->D, a->W - 1), 0);
  }
  output(c, &a->dx, "dx", dtype, KR_SHAPE(a->B, a->D, a->L), 0);
  output(c, &a->dweight, "dweight", a->weight.dtype, KR_SHAPE(a->D, a->W), 1);
  output(c, &a->dbias, "dbias", a->weight.dtype, KR_SHAPE(a->D), 1);
  return KRAIT_OK;
}
