/* selective_scan_check.c: random calls of the scan and its gradient: sizes, packed sequences, directions, complex A. */
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "contract.h"
#include "op_list.h"
#include "scan_impls.h"
#include "status.h"

/* Flags and sequences; returns whether sequences are packed. */
static int choose_scan_mode(kr_case *c) {
  kr_call *call = (kr_call *)c->args;
  const int64_t mode = kr_case_int(c, 0, 9);
  if (mode == 0) {
    *kr_case_size(c, "B") = 1;
    *kr_case_size(c, "S") = kr_case_int(c, 1, 4);
    kr_case_give(c, "cu_seqlens");
  } else if (mode == 1) {
    kr_case_give(c, "seq_idx");
  } else if (mode <= 3) {
    call->flags |= KRAIT_SCAN_BOTH;
  }
  if (mode > 3 && kr_case_chance(c, 0.3)) call->flags |= KRAIT_SCAN_REVERSE;
  return mode <= 1;
}

static void set_sizes(kr_case *c, int64_t B, int64_t G, int64_t channels_of_group, int64_t N, int64_t L) {
  *kr_case_size(c, "B") = B, *kr_case_size(c, "G") = G, *kr_case_size(c, "D") = G * channels_of_group;
  *kr_case_size(c, "N") = N, *kr_case_size(c, "L") = L;
}

static int is_whole(const kr_case *c, int64_t index) { return index % 20 == 6 && !c->is_complex && !c->is_exact; }

static void give_all(kr_case *c) {
  static const char *const of_forward[] = {"z", "delta_bias", NULL},
                          *const of_gradient[] = {"z", "delta_bias", "dout", "du", "ddelta", "dz", NULL};
  ((kr_call *)c->args)->flags |= KRAIT_SCAN_SOFTPLUS;
  for (const char *const *name = c->sig->forward ? of_gradient : of_forward; *name; name++) kr_case_give(c, *name);
}

/* Mostly short and few; occasionally sized for a particular kernel family. */
static void choose_scan_sizes(kr_case *c, int64_t index) {
  const int wide = index % 25 == 0;
  const int64_t G = kr_case_chance(c, 0.3) ? kr_case_int(c, 2, 3) : 1;
  set_sizes(c, kr_case_int(c, 1, 2), G, kr_case_edge(c, wide ? 9 : 40),
            wide ? kr_case_int(c, 129, 512) : kr_case_edge(c, 33), kr_case_edge(c, wide ? 40 : 200));
  if (c->is_exact) return;
  if (index % 50 == 7)
    set_sizes(c, 1, 1, kr_case_int(c, 1, 8), kr_case_int(c, 1, 5),
              kr_case_int(c, 4090, 5000)); /* chunked in time */
  if (index % 150 == 57)
    set_sizes(c, 1, 1, kr_case_int(c, 1, 3), kr_case_int(c, 1, 2),
              kr_case_int(c, 32769, 33500)); /* fewer states kept by the gradient */
  if (index % 5 == 2) { /* aligned tensors; some with few channels, for one block per channel */
    int64_t *L = kr_case_size(c, "L");
    c->contiguous = 1;
    *L = index % 50 == 32 ? kr_case_int(c, 128, 600) * 4 : (*L + 7) / 8 * 8;
    if (index % 50 == 32) *kr_case_size(c, "D") = G * kr_case_int(c, 1, 5);
  }
  if (index % 50 == 22) /* aligned tensors of the common sizes */
    set_sizes(c, 2, 1, kr_case_int(c, 140, 160),
              kr_case_chance(c, 0.6) ? kr_case_int(c, 5, 16) : kr_case_int(c, 17, 48), kr_case_int(c, 17, 52) * 8);
  if (index % 50 == 47) { /* and with few states: enough for a device of one multiprocessor */
    const int64_t groups = kr_case_int(c, 1, 3);
    set_sizes(c, kr_case_int(c, 1, 2), groups, groups == 1 ? kr_case_int(c, 129, 150) : kr_case_int(c, 40, 80),
              kr_case_int(c, 1, 4), kr_case_int(c, 66, 72) * 8);
    c->dtype = kr_case_chance(c, 0.5) ? KRAIT_BF16 : KRAIT_F16;
  }
  if (index % 25 == 24) { /* unaligned rows; mostly ones that meet the other conditions of those kernels */
    c->dtype = (int32_t[]){KRAIT_F16, KRAIT_F32, KRAIT_BF16}[index / 25 % 3];
    c->anywhere = 1;
    set_sizes(c, 4, 1, kr_case_int(c, 65, 70), kr_case_int(c, 5, 16), kr_case_int(c, 129, 300));
  } else if (index % 5 == 1 && !c->is_complex &&
             !c->is_exact) { /* channels-last rows of the common sizes, aligned or not */
    c->channels_last = 1, c->contiguous = kr_case_chance(c, 0.4),
    c->anywhere = !c->contiguous && kr_case_chance(c, 0.5);
    set_sizes(c, kr_case_int(c, 1, 2), G, c->contiguous ? kr_case_int(c, 1, 9) * 8 : kr_case_int(c, 8, 70),
              kr_case_chance(c, 0.7) ? kr_case_edge(c, 16) : kr_case_int(c, 17, 64), kr_case_int(c, 9, 140));
    if (is_whole(c, index)) { /* the common-case kernels: whole tiles, all tensors present */
      c->contiguous = 1, c->anywhere = 0;
      set_sizes(c, kr_case_int(c, 1, 2), G, kr_case_int(c, 1, 2) * 32, 16, kr_case_int(c, 1, 4) * 32);
    }
  }
}

static void give_delta(kr_case *c) {
  const int32_t dtype = c->dtype;
  const double longest = c->is_complex ? 8 : 400; /* rounding of a step rotates a complex state by dt A 2^-24 */
  if (!c->anywhere && kr_case_chance(c, 0.2)) c->dtype = KRAIT_F32;
  kr_view *delta = kr_case_give(c, "delta");
  c->dtype = dtype;
  if (!c->is_exact && kr_case_chance(c, 0.1)) kr_case_fill_uniform(c, delta, 0, longest);
}

/* Wider bounds: long sums, many states, complex A. */
static void set_scan_bounds(kr_case *c) {
  const int64_t N = *kr_case_size(c, "N"), L = *kr_case_size(c, "L");
  for (int i = 0; i < c->sig->n_tensors; i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    const int is_forward = !c->sig->forward, is_out = c->sig->tensors[i].tensor_class == KR_CLASS_ACTIVATION;
    if (!(c->sig->tensors[i].role & KR_OUT) || !view->data || (view->dtype != KRAIT_F32 && view->dtype != KRAIT_C64))
      continue;
    if (c->is_complex) kr_case_bound(c, view, 1e-4, 1e-30);
    else if (is_forward && is_out && N > 128) kr_case_bound(c, view, 4e-5, 1e-30);
    else if (is_forward && L > 4000) kr_case_bound(c, view, 2e-5, 1e-30);
  }
}

/* States as the forward call leaves them. */
static int32_t leave_states(const kr_selective_scan_bwd_args *b) {
  kr_selective_scan_args a = {.call = {.size = sizeof a, .flags = b->call.flags}};
  memcpy(&a.B, &b->B, offsetof(kr_selective_scan_args, out) - offsetof(kr_selective_scan_args, B));
  a.states = b->states, a.n_kept = b->n_kept;
  a.out = b->u; /* same type and shape */
  a.call.scratch = kr_alloc(kr_selective_scan_ref_scratch(NULL, &a) + 1);
  a.out.data = kr_alloc((size_t)(a.B * a.D * a.L) * 4 + 1);
  a.out.stride[0] = a.D * a.L, a.out.stride[1] = a.L, a.out.stride[2] = 1;
  int32_t status = KRAIT_OK;
  if (a.call.scratch && a.out.data) status = kr_selective_scan_ref(NULL, &a);
  else status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
  kr_free(a.call.scratch);
  kr_free(a.out.data);
  return status;
}

int32_t kr_scan_bwd_case(kr_case *c, int64_t index) {
  KR_TRY(kr_scan_case(c, index));
  KR_TRY(c->status);
  const kr_selective_scan_bwd_args *a = (const kr_selective_scan_bwd_args *)c->args;
  return kr_has(&a->states) && !c->is_unfilled ? leave_states(a) : KRAIT_OK;
}

int32_t kr_scan_case(kr_case *c, int64_t index) {
  kr_call *call = (kr_call *)c->args;
  c->is_complex = index % 12 == 5;
  choose_scan_sizes(c, index);
  if (c->is_hard && !is_whole(c, index) && kr_case_chance(c, 0.3)) *kr_case_size(c, "L") = kr_case_int(c, 1, 2);
  const char *const ends[] = {"u", "Bmat", "Cmat", "z", "delta", "dout"};
  if (!c->is_complex) kr_case_hard(c, c->sig->forward ? 6 : 5, ends, KR_MOST_CUBED);
  const int plain = c->anywhere || c->channels_last;
  int is_packed = 0;
  if (!plain || index / 25 % 4 == 3) is_packed = choose_scan_mode(c);
  else if (c->channels_last && kr_case_chance(c, 0.3)) call->flags |= KRAIT_SCAN_REVERSE;
  if (!plain && kr_case_chance(c, 0.15)) call->flags |= KRAIT_SCAN_B_CONSTANT;
  if (!plain && kr_case_chance(c, 0.15)) call->flags |= KRAIT_SCAN_C_CONSTANT;
  give_delta(c);
  kr_case_give(c, "A"); /* states take its type */
  if (is_whole(c, index)) give_all(c);
  if (c->anywhere && !(call->flags & KRAIT_SCAN_BOTH)) kr_case_give(c, c->sig->forward ? "dlast_state" : "last_state");
  if (!is_packed && !(call->flags & KRAIT_SCAN_BOTH) && !c->is_exact && kr_case_chance(c, 0.25)) {
    *kr_case_size(c, "n_kept") = (*kr_case_size(c, "L") + 7) / 8;
    kr_case_give(c, "states");
  }
  kr_case_give_rest(c);
  set_scan_bounds(c);
  return KRAIT_OK;
}
