/* selective_scan_check.c: random calls of the scan: every option, both layouts, packed sequences, directions, complex A. */
#include "check.h"
#include "op_list.h"
#include "scan_case.h"
#include "scan_rows.h"

static void choose_mode(kr_case *c, kr_scan_case *s) {
  int64_t mode = kr_case_int(c, 0, 9);
  if (mode == 0) {
    *s->B = 1;
    *s->S = kr_case_int(c, 1, 4);
    kr_case_offsets(c, s->cu_seqlens, *s->S, *s->L);
  } else if (mode == 1) {
    kr_case_sequences(c, s->seq_idx, *s->B, *s->L);
  } else if (mode <= 3) {
    s->call->flags |= KRAIT_SCAN_BOTH;
  }
  if (mode > 3 && kr_case_chance(c, 0.3)) s->call->flags |= KRAIT_SCAN_REVERSE;
}

static void parameter(kr_case *c, kr_scan_case *s, krait_view *v, const char *name, uint32_t constant, int is_complex, int32_t dtype) {
  if (!c->anywhere && kr_case_chance(c, 0.15)) s->call->flags |= constant;
  if (s->call->flags & constant) kr_case_view(c, v, name, KR_IN, is_complex ? KRAIT_C64 : KRAIT_F32, KR_SHAPE(*s->D, *s->N));
  else kr_case_view(c, v, name, KR_IN, dtype, KR_SHAPE(*s->B, *s->G, *s->N, *s->L * (is_complex ? 2 : 1)));
  kr_case_fill_normal(c, v, 0, 1);
}

static void optional(kr_case *c, krait_view *v, const char *name, int32_t dtype, size_t n_dims, const int64_t *shape) {
  if (!kr_case_chance(c, 0.5)) return;
  kr_case_view(c, v, name, KR_IN, dtype, (int)n_dims, shape);
  kr_case_fill_normal(c, v, 0, 1);
}

void kr_scan_case_inputs(kr_case *c, kr_scan_case *s, int64_t index) {
  int32_t dtype = kr_case_activation_dtype(c);
  int is_complex = index % 12 == 5, wide = index % 25 == 0;
  s->call->flags = kr_case_chance(c, 0.6) ? KRAIT_SCAN_SOFTPLUS : 0;
  *s->B = kr_case_int(c, 1, 2);
  *s->G = kr_case_chance(c, 0.3) ? kr_case_int(c, 2, 3) : 1;
  *s->D = *s->G * kr_case_edge(c, wide ? 9 : 40);
  *s->N = wide ? kr_case_int(c, 129, 512) : kr_case_edge(c, 33);
  *s->L = kr_case_edge(c, wide ? 40 : 200);
  if (index % 50 == 7) { /* few channels and a long sequence: time is cut into chunks */
    *s->B = *s->G = 1;
    *s->D = kr_case_int(c, 1, 8);
    *s->N = kr_case_int(c, 1, 5);
    *s->L = kr_case_int(c, 4090, 5000);
  }
  if (index % 150 == 57) { /* so long that the gradient keeps fewer states */
    *s->B = *s->G = 1;
    *s->D = kr_case_int(c, 1, 3);
    *s->N = kr_case_int(c, 1, 2);
    *s->L = kr_case_int(c, 32769, 33500);
  }
  if (index % 5 == 2) { /* aligned tensors; of them, some of a few channels that all lanes of a block take together */
    c->contiguous = 1;
    *s->L = index % 50 == 32 ? kr_case_int(c, 128, 600) * 4 : (*s->L + 7) / 8 * 8;
    if (index % 50 == 32) *s->D = *s->G * kr_case_int(c, 1, 5);
  }
  if (index % 50 == 22) { /* aligned tensors of the usual sizes */
    *s->B = 2, *s->G = 1;
    *s->D = kr_case_int(c, 140, 160);
    *s->N = kr_case_chance(c, 0.6) ? kr_case_int(c, 5, 16) : kr_case_int(c, 17, 48);
    *s->L = kr_case_int(c, 17, 52) * 8;
  }
  if (index % 50 == 47) { /* and of a few states: enough for a device of one multiprocessor */
    *s->B = kr_case_int(c, 1, 2), *s->G = kr_case_int(c, 1, 3);
    *s->D = *s->G * (*s->G == 1 ? kr_case_int(c, 129, 150) : kr_case_int(c, 40, 80));
    *s->N = kr_case_int(c, 1, 4);
    *s->L = kr_case_int(c, 66, 72) * 8;
    dtype = kr_case_chance(c, 0.5) ? KRAIT_BF16 : KRAIT_F16;
  }
  *s->S = 0;
  if (index % 25 == 24) { /* the same, but rows begin and end anywhere; most of them for the kernels that ask for nothing else */
    dtype = (int32_t[]){KRAIT_F16, KRAIT_F32, KRAIT_BF16}[index / 25 % 3];
    c->anywhere = 1;
    *s->B = 4, *s->G = 1;
    *s->D = kr_case_int(c, 65, 70);
    *s->N = kr_case_int(c, 5, 16);
    *s->L = kr_case_int(c, 129, 300);
  }
  if (!c->anywhere || index / 25 % 4 == 3) choose_mode(c, s);
  int64_t rows = *s->S ? *s->S : *s->B;
  int32_t state_dtype = is_complex ? KRAIT_C64 : KRAIT_F32;
  kr_case_view(c, s->u, "u", KR_IN, dtype, KR_SHAPE(*s->B, *s->D, *s->L));
  kr_case_fill_normal(c, s->u, 0, 1);
  kr_case_view(c, s->delta, "delta", KR_IN, c->anywhere || kr_case_chance(c, 0.8) ? dtype : KRAIT_F32, KR_SHAPE(*s->B, *s->D, *s->L));
  const double longest = is_complex ? 8 : 400; /* a step's own rounding turns a complex state by dt A 2^-24 */
  kr_case_fill_uniform(c, s->delta, 0, kr_case_chance(c, 0.1) ? longest : 0.5);
  kr_case_view(c, s->A, "A", KR_IN, state_dtype, KR_SHAPE(*s->D, *s->N));
  kr_case_fill_uniform(c, s->A, -1, -0.01);
  if (s->call->flags & KRAIT_SCAN_BOTH) {
    kr_case_view(c, s->A_reverse, "A_reverse", KR_IN, state_dtype, KR_SHAPE(*s->D, *s->N));
    kr_case_fill_uniform(c, s->A_reverse, -1, -0.01);
  }
  parameter(c, s, s->Bmat, "Bmat", KRAIT_SCAN_B_CONSTANT, is_complex, dtype);
  parameter(c, s, s->Cmat, "Cmat", KRAIT_SCAN_C_CONSTANT, is_complex, dtype);
  optional(c, s->Dvec, "Dvec", KRAIT_F32, KR_SHAPE(*s->D));
  optional(c, s->z, "z", dtype, KR_SHAPE(*s->B, *s->D, *s->L));
  optional(c, s->delta_bias, "delta_bias", KRAIT_F32, KR_SHAPE(*s->D));
  if (s->delta_bias->data) kr_case_fill_uniform(c, s->delta_bias, 0, 0.5); /* a negative step would let the state grow without end */
  if (!(s->call->flags & KRAIT_SCAN_BOTH)) optional(c, s->initial_state, "initial_state", state_dtype, KR_SHAPE(rows, *s->D, *s->N));
}

int32_t kr_selective_scan_case(kr_case *c, int64_t index) {
  krait_selective_scan_args *a = (krait_selective_scan_args *)c->args;
  kr_scan_case s = KR_SCAN_CASE(a);
  kr_scan_case_inputs(c, &s, index);
  kr_case_view(c, &a->out, "out", KR_OUT, a->u.dtype, KR_SHAPE(a->B, a->D, a->L));
  const int is_complex = a->A.dtype == KRAIT_C64;
  if (a->u.dtype == KRAIT_F32) kr_case_bound(c, &a->out, is_complex ? 1e-4 : a->N > 128 ? 4e-5 : a->L > 4000 ? 2e-5 : 1e-5, 1e-30);
  if (!(a->call.flags & KRAIT_SCAN_BOTH) && (c->anywhere || kr_case_chance(c, 0.5)))
    kr_case_view(c, &a->last_state, "last_state", KR_OUT, a->A.dtype, KR_SHAPE(a->S ? a->S : a->B, a->D, a->N));
  if (is_complex && a->last_state.data) kr_case_bound(c, &a->last_state, 1e-4, 1e-30);
  else if (a->L > 4000 && a->last_state.data) kr_case_bound(c, &a->last_state, 2e-5, 1e-30);
  return KRAIT_OK;
}
