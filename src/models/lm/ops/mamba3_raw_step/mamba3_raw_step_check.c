/* mamba3_raw_step_check.c: random calls of Mamba 3's step from in_proj's columns, two thirds of them of sizes that the
 * GPU's kernels accept, a few with more heads than multiprocessors take at once. */
#include "check.h"
#include "lm_ops.h"

enum { MANY_HEADS = 199 };

int32_t kr_mamba3_raw_step_case(kr_case *c, int64_t index) {
  kr_mamba3_raw_step_args *a = (kr_mamba3_raw_step_args *)c->args;
  a->G = kr_case_chance(c, 0.3) ? 2 : 1, a->H = a->G * kr_case_int(c, 1, 3), a->B = kr_case_int(c, 1, 4);
  a->P = kr_case_edge(c, 33), a->N = kr_case_edge(c, 40), a->M = kr_case_int(c, 0, a->N / 2);
  if (index % 3) {
    c->contiguous = 1;
    c->dtype = c->other = (int32_t[]){KRAIT_F32, KRAIT_F16, KRAIT_BF16}[kr_case_int(c, 0, 2)];
    a->P = 4 * kr_case_int(c, 1, kr_case_chance(c, 0.2) ? 64 : 20), a->N = 16LL << kr_case_int(c, 0, 3);
    a->M = kr_case_chance(c, 0.5) ? a->N / 4 : kr_case_int(c, 0, a->N / 2);
    if (index == MANY_HEADS) a->B = 150, a->H = 2 * a->G, a->P = 32, a->N = 16, a->M = 4;
  }
  a->n_states = a->B + kr_case_int(c, 0, 3);
  a->eps = (float)kr_case_uniform(c, 0.01, 1), a->A_floor = kr_case_chance(c, 0.7) ? 1e-4f : 0.87f;
  const int32_t weights = c->other;
  if (kr_case_chance(c, 0.6)) c->other = KRAIT_F32; /* float32 states, as models keep them */
  kr_case_give(c, "state");
  c->other = weights;
  return KRAIT_OK;
}
