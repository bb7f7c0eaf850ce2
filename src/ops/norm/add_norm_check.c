/* add_norm_check.c: random calls of add + norm and of its gradient. */
#include "check.h"
#include "op_list.h"

static void input(kr_case *c, krait_view *v, const char *name, double chance, int32_t dtype, size_t n_dims, const int64_t *shape, double mean) {
  if (!kr_case_chance(c, chance)) return;
  kr_case_view(c, v, name, KR_IN, dtype, (int)n_dims, shape);
  kr_case_fill_normal(c, v, mean, 1);
}

static void output(kr_case *c, krait_view *v, const char *name, double chance, int32_t dtype, size_t n_dims, const int64_t *shape, int is_sum) {
  if (!kr_case_chance(c, chance)) return;
  kr_case_view(c, v, name, KR_OUT, dtype, (int)n_dims, shape);
  if (dtype == KRAIT_F32) kr_case_bound(c, v, is_sum ? 1e-4 : 2e-5, 1e-6);
}

/* Mostly short rows; now and then one around the most that a GPU row keeps in registers, and beyond. */
static void sizes(kr_case *c, int64_t index, int64_t most_rows, int64_t *R, int64_t *M) {
  static const int64_t long_rows[] = {2040, 2048, 2056, 3001, 4104, 8192, 8200};
  c->contiguous = index % 2;
  *R = kr_case_edge(c, index % 16 == 15 ? 5 : most_rows);
  *M = index % 16 == 15 ? kr_case_pick(c, (int)(sizeof long_rows / sizeof *long_rows), long_rows) : kr_case_edge(c, 300) + 1;
  if (c->contiguous && kr_case_chance(c, 0.7)) *M = (*M + 7) / 8 * 8; /* what the fast rows like */
}

int32_t kr_add_norm_case(kr_case *c, int64_t index) {
  krait_add_norm_args *a = (krait_add_norm_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), other = kr_case_chance(c, 0.5) ? KRAIT_F32 : dtype;
  a->call.flags = kr_case_chance(c, 0.5) ? KRAIT_NORM_RMS : 0;
  sizes(c, index, 70, &a->R, &a->M);
  a->eps = 1e-3f;
  double mean = a->call.flags ? 0 : 1;
  input(c, &a->x, "x", 1, dtype, KR_SHAPE(a->R, a->M), mean);
  input(c, &a->x1, "x1", 0.3, dtype, KR_SHAPE(a->R, a->M), 0);
  input(c, &a->residual, "residual", 0.5, other, KR_SHAPE(a->R, a->M), 0);
  input(c, &a->rowscale, "rowscale", 0.3, other, KR_SHAPE(a->R), 1);
  input(c, &a->weight, "weight", 0.8, other, KR_SHAPE(a->M), 1);
  input(c, &a->bias, "bias", 0.4, other, KR_SHAPE(a->M), 0);
  input(c, &a->weight1, "weight1", 0.3, other, KR_SHAPE(a->M), 1);
  if (a->weight1.data) input(c, &a->bias1, "bias1", 0.5, other, KR_SHAPE(a->M), 0);
  output(c, &a->out, "out", 1, dtype, KR_SHAPE(a->R, a->M), 0);
  if (a->weight1.data) output(c, &a->out1, "out1", 0.9, dtype, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->residual_out, "residual_out", 0.6, other, KR_SHAPE(a->R, a->M), 0);
  return KRAIT_OK;
}

int32_t kr_add_norm_bwd_case(kr_case *c, int64_t index) {
  krait_add_norm_bwd_args *a = (krait_add_norm_bwd_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c), other = kr_case_chance(c, 0.5) ? KRAIT_F32 : dtype;
  a->call.flags = kr_case_chance(c, 0.5) ? KRAIT_NORM_RMS : 0;
  sizes(c, index, 130, &a->R, &a->M);
  a->M += a->M == 1;
  a->eps = 1e-3f;
  input(c, &a->v, "v", 1, dtype, KR_SHAPE(a->R, a->M), 0);
  input(c, &a->rowscale, "rowscale", 0.3, other, KR_SHAPE(a->R), 1);
  input(c, &a->weight, "weight", 0.8, other, KR_SHAPE(a->M), 1);
  input(c, &a->weight1, "weight1", 0.3, other, KR_SHAPE(a->M), 1);
  input(c, &a->dout, "dout", 0.9, dtype, KR_SHAPE(a->R, a->M), 0);
  if (a->weight1.data) input(c, &a->dout1, "dout1", 0.9, dtype, KR_SHAPE(a->R, a->M), 0);
  input(c, &a->dresidual_out, "dresidual_out", 0.5, other, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->dx, "dx", 0.9, dtype, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->dx1, "dx1", 0.3, dtype, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->dresidual, "dresidual", 0.5, other, KR_SHAPE(a->R, a->M), 0);
  output(c, &a->dweight, "dweight", 0.9, other, KR_SHAPE(a->M), 1);
  output(c, &a->dbias, "dbias", 0.5, other, KR_SHAPE(a->M), 1);
  if (a->weight1.data) output(c, &a->dweight1, "dweight1", 0.9, other, KR_SHAPE(a->M), 1);
  if (a->weight1.data) output(c, &a->dbias1, "dbias1", 0.9, other, KR_SHAPE(a->M), 1);
  return KRAIT_OK;
}
