/* gated_norm_check.c: random calls of the gated norm and of its gradient. */
#include "check.h"
#include "op_list.h"

static void sizes(kr_case *c, int64_t index, krait_call *call, int64_t *R, int64_t *M, int64_t *group_size) {
  if (kr_case_chance(c, 0.5)) call->flags |= KRAIT_GATED_NORM_RMS;
  if (kr_case_chance(c, 0.5)) call->flags |= KRAIT_GATED_NORM_GATE_FIRST;
  *R = kr_case_edge(c, 130);
  *group_size = kr_case_edge(c, 130) + 1;
  c->contiguous = index % 2;
  if (index % 32 == 31) *R = 3, *group_size = 2056;
  else if (c->contiguous && kr_case_chance(c, 0.7)) *group_size = (*group_size + 7) / 8 * 8; /* what the fast rows like */
  *M = *group_size * kr_case_int(c, 1, 3);
}

static void input(kr_case *c, krait_view *v, const char *name, double chance, int32_t dtype, size_t n_dims, const int64_t *shape) {
  if (!kr_case_chance(c, chance)) return;
  kr_case_view(c, v, name, KR_IN, dtype, (int)n_dims, shape);
  kr_case_fill_normal(c, v, 0, 1);
}

static void output(kr_case *c, krait_view *v, const char *name, int32_t dtype, size_t n_dims, const int64_t *shape, int is_sum) {
  if (kr_case_chance(c, 0.1)) return;
  kr_case_view(c, v, name, KR_OUT, dtype, (int)n_dims, shape);
  if (dtype == KRAIT_F32) kr_case_bound(c, v, is_sum ? 1e-4 : 5e-5, 1e-6);
}

int32_t kr_gated_norm_case(kr_case *c, int64_t index) {
  krait_gated_norm_args *a = (krait_gated_norm_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), other = kr_case_chance(c, 0.5) ? KRAIT_F32 : dtype;
  sizes(c, index, &a->call, &a->R, &a->M, &a->group_size);
  a->eps = 1e-3f;
  input(c, &a->x, "x", 1, dtype, KR_SHAPE(a->R, a->M));
  input(c, &a->z, "z", 0.7, dtype, KR_SHAPE(a->R, a->M));
  input(c, &a->weight, "weight", 0.9, other, KR_SHAPE(a->M));
  input(c, &a->bias, "bias", 0.4, other, KR_SHAPE(a->M));
  kr_case_view(c, &a->out, "out", KR_OUT, dtype, KR_SHAPE(a->R, a->M));
  if (dtype == KRAIT_F32) kr_case_bound(c, &a->out, 2e-5, 1e-6);
  return KRAIT_OK;
}

int32_t kr_gated_norm_bwd_case(kr_case *c, int64_t index) {
  krait_gated_norm_bwd_args *a = (krait_gated_norm_bwd_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), other = kr_case_chance(c, 0.5) ? KRAIT_F32 : dtype;
  sizes(c, index, &a->call, &a->R, &a->M, &a->group_size);
  a->eps = 1e-3f;
  input(c, &a->x, "x", 1, dtype, KR_SHAPE(a->R, a->M));
  input(c, &a->z, "z", 0.7, dtype, KR_SHAPE(a->R, a->M));
  input(c, &a->weight, "weight", 0.9, other, KR_SHAPE(a->M));
  input(c, &a->bias, "bias", 0.4, other, KR_SHAPE(a->M));
  input(c, &a->dout, "dout", 1, dtype, KR_SHAPE(a->R, a->M));
  output(c, &a->dx, "dx", dtype, KR_SHAPE(a->R, a->M), 0);
  if (a->z.data) output(c, &a->dz, "dz", dtype, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->dweight, "dweight", other, KR_SHAPE(a->M), 1);
  output(c, &a->dbias, "dbias", other, KR_SHAPE(a->M), 1);
  return KRAIT_OK;
}
