/* mamba3_decay_check.c: random calls of Mamba 3's time steps and decays: heads around a vector's ends, floors below and
 * among the rates. */
#include "check.h"
#include "lm_ops.h"

int32_t kr_mamba3_decay_case(kr_case *c, int64_t index) {
  kr_mamba3_decay_args *a = (kr_mamba3_decay_args *)c->args;
  a->R = kr_case_edge(c, index % 8 == 0 ? 700 : 70), a->H = kr_case_edge(c, index % 8 == 1 ? 300 : 70);
  a->A_floor = kr_case_chance(c, 0.7) ? 1e-4f : 0.87f;
  return KRAIT_OK;
}
