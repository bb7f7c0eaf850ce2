/* norm_check.c: sizes of random calls of the norms and their gradients. */
#include "check.h"
#include "op_list.h"

/* Without their mean two numbers are a sign times half their distance, so that a layer norm's gradient is epsilon's
 * part of terms that cancel: 3e-5 of them in a case whose float32 result was off by 1.2e-4 of itself, 5e-9 of the
 * terms. */
static int64_t least_of_gradient(const kr_case *c, uint32_t is_rms, int64_t n) {
  return c->sig->forward && !(((const kr_call *)c->args)->flags & is_rms) && n == 2 ? 3 : n;
}

/* A language model's: 16-bit rows and weight, a float32 stream. */
static void stream_case(kr_case *c) {
  static const char *const others[] = {"x1", "rowscale", "bias", "weight1", "bias1", "out1"};
  ((kr_call *)c->args)->flags |= KRAIT_NORM_RMS;
  c->contiguous = 1, c->dtype = kr_case_pick(c, 2, (int64_t[]){KRAIT_F16, KRAIT_BF16}), c->other = c->dtype;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) kr_case_leave_out(c, others[i]);
  kr_case_give(c, "weight");
  c->other = KRAIT_F32;
  kr_case_give(c, "residual_out");
}

/* Mostly short rows; now and then one near or beyond the longest that a GPU implementation keeps in registers. */
int32_t kr_add_norm_case(kr_case *c, int64_t index) {
  static const int64_t long_rows[] = {2040, 2048, 2056, 3001, 4104, 8192, 8200};
  const int is_long = index % 16 == 15;
  c->contiguous = index % 2;
  int64_t M =
      is_long ? kr_case_pick(c, (int)(sizeof long_rows / sizeof *long_rows), long_rows) : kr_case_edge(c, 300) + 1;
  if (c->contiguous && kr_case_chance(c, 0.7)) M = (M + 7) / 8 * 8; /* for the aligned fast paths */
  *kr_case_size(c, "R") = kr_case_edge(c, is_long ? 5 : 130);
  if (index % 8 == 5 && !c->is_exact) { /* short rows without other tensors */
    static const char *const others[] = {"x1",           "residual", "rowscale",      "weight1",
                                         "residual_out", "dout1",    "dresidual_out", "dx1",
                                         "dresidual",    "dweight1", "dbias1"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) kr_case_leave_out(c, others[i]);
    M = kr_case_pick(c, 4, (int64_t[]){16, 32, 64, 128}), c->contiguous = 1, c->dtype = KRAIT_F32;
    *kr_case_size(c, "R") = kr_case_int(c, 1, 300);
  }
  const int is_stream = index % 8 == 3 && !c->sig->forward && !c->is_exact;
  if (is_stream) *kr_case_size(c, "R") = kr_case_int(c, 1, 200);
  M = least_of_gradient(c, KRAIT_NORM_RMS, M);
  *kr_case_size(c, "M") = is_stream ? kr_case_pick(c, 6, (int64_t[]){136, 768, 2056, 2560, 3080, 4096}) : M;
  if (c->sig->forward) kr_case_hard(c, KR_NAMES("v", "weight", "dout"), KR_MOST_CUBED);
  else kr_case_hard(c, KR_NAMES("x", "residual", "weight", "bias"), KR_MOST_CUBED);
  if (is_stream) stream_case(c);
  return KRAIT_OK;
}

int32_t kr_gated_norm_case(kr_case *c, int64_t index) {
  const int is_long = index % 32 == 31;
  c->contiguous = index % 2;
  int64_t group_size = is_long ? 2056 : kr_case_edge(c, 130) + 1;
  if (c->contiguous && kr_case_chance(c, 0.7)) group_size = (group_size + 7) / 8 * 8;
  *kr_case_size(c, "R") = is_long ? 3 : kr_case_edge(c, 130);
  if (index % 16 == 7) { /* rows for the prefetching gradient kernel */
    group_size = kr_case_pick(c, 6, (int64_t[]){264, 512, 1000, 1536, 2560, 5120});
    *kr_case_size(c, "R") = kr_case_int(c, 4, 40);
    if (c->dtype == KRAIT_F32) c->dtype = kr_case_pick(c, 2, (int64_t[]){KRAIT_F16, KRAIT_BF16});
    ((kr_call *)c->args)->flags |= KRAIT_GATED_NORM_RMS;
    kr_case_leave_out(c, "bias"), kr_case_leave_out(c, "dbias");
  }
  group_size = least_of_gradient(c, KRAIT_GATED_NORM_RMS, group_size);
  *kr_case_size(c, "group_size") = group_size;
  *kr_case_size(c, "M") = group_size * kr_case_int(c, 1, 3);
  /* Beside a dominant x whose gate is nearly shut, its gradient is the rounding of terms that cancel; and so is it
   * where the gate comes first and one z opens it alone. */
  const int gates_first = (((kr_call *)c->args)->flags & KRAIT_GATED_NORM_GATE_FIRST) != 0;
  if (c->sig->forward && gates_first) kr_case_hard(c, KR_NAMES("weight", "dout"), KR_MOST_CUBED);
  else if (c->sig->forward) kr_case_hard(c, KR_NAMES("z", "weight", "dout"), KR_MOST_CUBED);
  else kr_case_hard(c, KR_NAMES("x", "z", "weight"), KR_MOST_CUBED);
  if (index % 16 == 7) kr_case_give(c, "z");
  return KRAIT_OK;
}
