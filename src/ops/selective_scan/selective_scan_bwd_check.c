/* selective_scan_bwd_check.c: random calls of the scan's gradient; any output may be absent. */
#include "check.h"
#include "op_list.h"
#include "scan_case.h"

static void output(kr_case *c, krait_view *v, const char *name, int32_t dtype, size_t n_dims, const int64_t *shape, int is_sum) {
  if (kr_case_chance(c, 0.1)) return;
  kr_case_view(c, v, name, KR_OUT, dtype, (int)n_dims, shape);
  const int is_complex = ((const krait_selective_scan_bwd_args *)c->args)->A.dtype == KRAIT_C64;
  if (dtype == KRAIT_F32 || dtype == KRAIT_C64) kr_case_bound(c, v, is_sum || is_complex ? 1e-4 : 2e-5, 1e-30);
}

static void like(kr_case *c, krait_view *v, const char *name, const krait_selective_scan_bwd_args *a, const krait_view *input, uint32_t constant) {
  int wide = a->A.dtype == KRAIT_C64 ? 2 : 1;
  if (a->call.flags & constant) output(c, v, name, input->dtype, KR_SHAPE(a->D, a->N), 1);
  else output(c, v, name, input->dtype, KR_SHAPE(a->B, a->G, a->N, a->L * wide), 0);
}

int32_t kr_selective_scan_bwd_case(kr_case *c, int64_t index) {
  krait_selective_scan_bwd_args *a = (krait_selective_scan_bwd_args *)c->args;
  kr_scan_case s = KR_SCAN_CASE(a);
  kr_scan_case_inputs(c, &s, index);
  int both = (a->call.flags & KRAIT_SCAN_BOTH) != 0;
  int64_t rows = a->S ? a->S : a->B;
  if (!kr_case_chance(c, 0.03)) {
    kr_case_view(c, &a->dout, "dout", KR_IN, a->u.dtype, KR_SHAPE(a->B, a->D, a->L));
    kr_case_fill_normal(c, &a->dout, 0, 1);
  }
  if (!both && (c->anywhere || kr_case_chance(c, 0.5))) {
    kr_case_view(c, &a->dlast_state, "dlast_state", KR_IN, a->A.dtype, KR_SHAPE(rows, a->D, a->N));
    kr_case_fill_normal(c, &a->dlast_state, 0, 1);
  }
  output(c, &a->du, "du", a->u.dtype, KR_SHAPE(a->B, a->D, a->L), 0);
  output(c, &a->ddelta, "ddelta", a->u.dtype, KR_SHAPE(a->B, a->D, a->L), 0);
  output(c, &a->dA, "dA", a->A.dtype, KR_SHAPE(a->D, a->N), 1);
  like(c, &a->dB, "dB", a, &a->Bmat, KRAIT_SCAN_B_CONSTANT);
  like(c, &a->dC, "dC", a, &a->Cmat, KRAIT_SCAN_C_CONSTANT);
  output(c, &a->dDvec, "dDvec", KRAIT_F32, KR_SHAPE(a->D), 1);
  output(c, &a->ddelta_bias, "ddelta_bias", KRAIT_F32, KR_SHAPE(a->D), 1);
  if (a->z.data) output(c, &a->dz, "dz", a->z.dtype, KR_SHAPE(a->B, a->D, a->L), 0);
  if (!both) output(c, &a->dinitial_state, "dinitial_state", a->A.dtype, KR_SHAPE(rows, a->D, a->N), 0);
  if (both) output(c, &a->dA_reverse, "dA_reverse", a->A.dtype, KR_SHAPE(a->D, a->N), 1);
  return KRAIT_OK;
}
