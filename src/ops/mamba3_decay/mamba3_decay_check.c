/* mamba3_decay_check.c: random calls of Mamba 3's time steps and decays and of their gradient: heads around a vector's
 * ends, floors below and among the rates. */
#include "check.h"
#include "op_list.h"

int32_t kr_mamba3_decay_case(kr_case *c, int64_t index) {
  kr_mamba3_decay_args *a = (kr_mamba3_decay_args *)c->args; /* the gradient's args have the same prefix */
  a->R = kr_case_edge(c, c->is_exact      ? 5
                         : index % 8 == 0 ? 700
                                          : 70),
  a->H = kr_case_edge(c, c->is_exact      ? 3
                         : index % 8 == 1 ? 300
                                          : 70);
  a->A_floor = c->is_exact || kr_case_chance(c, 0.7) ? 1e-4f : 0.87f;
  return KRAIT_OK;
}
