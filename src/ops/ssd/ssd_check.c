/* ssd_check.c: random calls of the SSD and its gradient: odd sizes and those of the fast implementations, packed
 * sequences, directions, limits. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "op_list.h"

static void choose_ssd_sizes(kr_case *c, int64_t index) {
  const int usual = index % 5 == 3; /* what the fast kernels require: aligned tensors, whole vectors */
  const int64_t G = kr_case_chance(c, 0.3) ? 2 : 1;
  int64_t *P = kr_case_size(c, "P"), *N = kr_case_size(c, "N");
  c->contiguous = usual;
  *kr_case_size(c, "B") = kr_case_int(c, 1, 2);
  *kr_case_size(c, "G") = G, *kr_case_size(c, "H") = G * kr_case_int(c, 1, 3);
  *P = usual ? kr_case_int(c, 1, 9) * 8 : kr_case_edge(c, index % 40 == 11 ? 256 : 33);
  *N = usual ? kr_case_int(c, 1, index % 20 == 13 ? 64 : 16) * 8 : kr_case_edge(c, index % 40 == 12 ? 512 : 33);
  *kr_case_size(c, "L") = kr_case_edge(c, *P * *N > 4000 ? 150 : 200);
  if (usual && index % 25 == 3)
    *kr_case_size(c, "L") = kr_case_int(c, 400, 700), *P = 8; /* long enough to be split over time */
}

static void set_exact_sizes(kr_case *c) {
  *kr_case_size(c, "B") = *kr_case_size(c, "G") = *kr_case_size(c, "P") = 2;
  *kr_case_size(c, "H") = 4, *kr_case_size(c, "N") = 3, *kr_case_size(c, "L") = kr_case_int(c, 1, 7);
}

static void choose_ssd_mode(kr_case *c) {
  kr_call *call = (kr_call *)c->args;
  const int64_t mode = kr_case_int(c, 0, 9);
  if (mode <= 1) call->flags |= KRAIT_SSD_BOTH;
  else if (mode <= 3) call->flags |= KRAIT_SSD_REVERSE;
  else if (mode >= 7) kr_case_give(c, "seq_idx");
  if (mode == 5 && !c->sig->forward && *kr_case_size(c, "B") == 1) {
    *kr_case_size(c, "S") = kr_case_int(c, 1, 4);
    kr_case_give(c, "cu_seqlens");
    kr_case_give(c, "varlen_states");
  }
}

/* Some calls have decays of their own in place of A. */
static int draw_log_decay(kr_case *c) {
  const int gives = !(((kr_call *)c->args)->flags & KRAIT_SSD_BOTH) && kr_case_chance(c, 0.2);
  if (!gives) {
    kr_case_leave_out(c, "log_decay");
    return 0;
  }
  kr_view *log_decay = kr_case_give(c, "log_decay");
  kr_case_leave_out(c, "A");
  if (!c->is_exact && kr_case_chance(c, 0.2)) kr_case_fill_uniform(c, log_decay, -60, 0);
  return 1;
}

/* Fields are drawn at random, which seldom gives meaningful limits or decays of every magnitude. */
static void choose_ssd_steps(kr_case *c, int has_A) {
  float *limits = c->sig->forward ? &((kr_ssd_bwd_args *)c->args)->dt_min : &((kr_ssd_args *)c->args)->dt_min;
  limits[0] = limits[1] = 0;
  if (kr_case_chance(c, 0.3)) {
    limits[0] = (float)kr_case_uniform(c, 0, 0.3);
    if (kr_case_chance(c, 0.7)) limits[1] = limits[0] + (float)kr_case_uniform(c, 0, 0.5);
  }
  kr_view *dt = kr_case_give(c, "dt");
  if (!c->is_hard && kr_case_chance(c, 0.3)) kr_case_fill_uniform(c, dt, -0.5, kr_case_chance(c, 0.3) ? 20 : 0.8);
  if (!has_A) return;
  kr_view *A = kr_case_give(c, "A");
  if (kr_case_chance(c, 0.2)) kr_case_fill_uniform(c, A, -60, -0.01);
  else if (*kr_case_size(c, "L") >= 400) kr_case_fill_uniform(c, A, -12, -0.5); /* some die out within a segment */
}

/* Sums of products whose factors a tensor core takes in 16 bits carry those roundings, whatever the storage type; they
 * scale with a head's terms, and heads differ widely. States also decay to magnitudes where float16 has few digits. A
 * head's parameter gradient is a sum over all tokens, whose terms may be a hundred times the result: it is held to a
 * tenth and, with few heads, one of which may come out near zero, to the possible error of that many terms of about
 * one. Factors rounded to tf32 have as many digits as float16's. */
static void set_ssd_bounds(kr_case *c) {
  const int is_tf32 = c->dtype == KRAIT_F32 && ((kr_call *)c->args)->flags & KRAIT_SSD_TF32;
  const double rtol = is_tf32 || c->dtype == KRAIT_F16 ? 8e-3 : 6e-2, atol = c->dtype == KRAIT_F16 ? 1.2e-7 : 1e-30;
  const double n_tokens = (double)(*kr_case_size(c, "B") * *kr_case_size(c, "L"));
  for (int i = 0; i < c->sig->n_tensors && (c->dtype != KRAIT_F32 || is_tf32); i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    const char *name = c->sig->tensors[i].name;
    const int is_sum = strncmp(name, "dA", 2) == 0 || strcmp(name, "ddt_bias") == 0 ||
                       (strcmp(name, "dDvec") == 0 && view->stride[1] == 0),
              is_few = is_sum && *kr_case_size(c, "H") < 4;
    if (c->sig->tensors[i].role & KR_OUT && view->data)
      kr_case_bound(c, view, is_sum ? 0.1 : rtol, is_few ? 0.03 * sqrt(n_tokens) : atol);
  }
}

/* A tensor at the ends of its type, and in float16 its partners such that the products that tensor cores take in that
 * type, C B, states, dout x and the gated dout, stay within it. */
static void give_ssd_ends(kr_case *c) {
  static const char *const ends[] = {"z", "x", "Bmat", "Cmat", "dout"},
                          *const partners[][2] = {
                              {"dout", NULL}, {"Bmat", "dout"}, {"Cmat", "x"}, {"Bmat", "dout"}, {"x", "Cmat"}};
  const int n = c->sig->forward ? 5 : 4;
  if (*kr_case_size(c, "N") > 256) return; /* a GPU adds parts of the output in its type */
  const char *const name = kr_case_hard(c, n, ends, KR_MOST_CUBED);
  for (int i = 0; name && c->dtype == KRAIT_F16 && i < n; i++)
    for (int k = 0; strcmp(name, ends[i]) == 0 && k < 2 && partners[i][k]; k++)
      if (kr_sig_find(c->sig, partners[i][k]) >= 0)
        kr_case_fill_normal(c, kr_case_give(c, partners[i][k]), 0, 0x1p-9);
}

static int32_t draw_ssd(kr_case *c, int64_t index) {
  if (c->is_exact) set_exact_sizes(c);
  else choose_ssd_sizes(c, index);
  if (c->is_hard && kr_case_chance(c, 0.3)) *kr_case_size(c, "L") = kr_case_int(c, 1, 2);
  choose_ssd_mode(c);
  const int has_A = !draw_log_decay(c);
  if (!c->is_exact) choose_ssd_steps(c, has_A);
  if (!c->is_exact && kr_case_chance(c, 0.5)) {
    kr_case_give(c, "Dvec")->stride[1] = 0; /* one D for all channels, and maybe its gradient as well */
    if (c->sig->forward && kr_case_chance(c, 0.7)) kr_case_give(c, "dDvec")->stride[1] = 0;
  }
  give_ssd_ends(c);
  kr_case_give_rest(c);
  set_ssd_bounds(c);
  return c->sig->forward ? kr_case_spoil_padding(c, KR_NAMES("x", "Bmat", "Cmat", "z", "dout"), 1)
                         : kr_case_spoil_padding(c, KR_NAMES("x", "dt", "Bmat", "Cmat", "z", "log_decay"), 1);
}

int32_t kr_ssd_case(kr_case *c, int64_t index) { return draw_ssd(c, index); }
int32_t kr_ssd_bwd_case(kr_case *c, int64_t index) { return draw_ssd(c, index); }
