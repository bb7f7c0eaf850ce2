/* state_update_check.c: random calls of state_update: with and without heads, indices with skipped rows, expanded inputs. */
#include "check.h"
#include "op_list.h"

static void expand(kr_case *c, krait_view *view) {
  if (kr_case_chance(c, 0.2)) view->stride[0] = 0;
  if (kr_case_chance(c, 0.15)) view->stride[1] = view->stride[2] = 0; /* as Mamba 2 passes A and dt */
}

static void choose_indices(kr_case *c, krait_state_update_args *a) {
  if (!kr_case_chance(c, 0.3)) return;
  a->n_states = a->B + kr_case_int(c, 0, 3);
  kr_case_view(c, &a->state_batch_indices, "state_batch_indices", KR_IN, KRAIT_I32, KR_SHAPE(a->B));
  for (int64_t b = 0; b < a->B; b++) kr_case_set_i32(c, &a->state_batch_indices, b, kr_case_chance(c, 0.2) ? -1 : (int32_t)(a->n_states - 1 - b));
}

int32_t kr_state_update_case(kr_case *c, int64_t index) {
  krait_state_update_args *a = (krait_state_update_args *)c->args;
  int32_t dtype = kr_case_activation_dtype(c);
  a->call.flags = kr_case_chance(c, 0.5) ? KRAIT_UPDATE_SOFTPLUS : 0;
  a->B = kr_case_int(c, 1, 3);
  a->H = kr_case_chance(c, 0.5) ? 1 : kr_case_pick(c, 3, (int64_t[]){2, 4, 6});
  a->G = a->H % 2 == 0 && kr_case_chance(c, 0.5) ? 2 : 1;
  a->P = kr_case_edge(c, 40);
  a->N = index % 16 == 0 ? kr_case_int(c, 257, 520) : kr_case_edge(c, 130);
  a->n_states = a->B;
  choose_indices(c, a);
  kr_case_view(c, &a->state, "state", KR_INOUT, kr_case_chance(c, 0.5) ? dtype : KRAIT_F32, KR_SHAPE(a->n_states, a->H, a->P, a->N));
  kr_case_view(c, &a->x, "x", KR_IN, dtype, KR_SHAPE(a->B, a->H, a->P));
  kr_case_view(c, &a->dt, "dt", KR_IN, dtype, KR_SHAPE(a->B, a->H, a->P));
  kr_case_view(c, &a->A, "A", KR_IN, KRAIT_F32, KR_SHAPE(a->H, a->P, a->N));
  kr_case_view(c, &a->Bmat, "Bmat", KR_IN, dtype, KR_SHAPE(a->B, a->G, a->N));
  kr_case_view(c, &a->Cmat, "Cmat", KR_IN, dtype, KR_SHAPE(a->B, a->G, a->N));
  kr_case_view(c, &a->out, "out", KR_OUT, dtype, KR_SHAPE(a->B, a->H, a->P));
  kr_case_fill_normal(c, &a->state, 0, 1);
  kr_case_fill_normal(c, &a->x, 0, 1);
  kr_case_fill_uniform(c, &a->dt, 0, 0.5);
  kr_case_fill_uniform(c, &a->A, -1, -0.01);
  kr_case_fill_normal(c, &a->Bmat, 0, 1);
  kr_case_fill_normal(c, &a->Cmat, 0, 1);
  expand(c, &a->A);
  if (kr_case_chance(c, 0.2)) a->A.stride[2] = 0;
  expand(c, &a->dt);
  krait_view *const options[] = {&a->Dvec, &a->dt_bias};
  for (int i = 0; i < 2; i++) {
    if (!kr_case_chance(c, 0.6)) continue;
    kr_case_view(c, options[i], i ? "dt_bias" : "Dvec", KR_IN, KRAIT_F32, KR_SHAPE(a->H, a->P));
    kr_case_fill_uniform(c, options[i], 0, 0.5);
  }
  if (kr_case_chance(c, 0.5)) {
    kr_case_view(c, &a->z, "z", KR_IN, dtype, KR_SHAPE(a->B, a->H, a->P));
    kr_case_fill_normal(c, &a->z, 0, 1);
  }
  return KRAIT_OK;
}
