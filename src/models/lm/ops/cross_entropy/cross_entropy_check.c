/* cross_entropy_check.c: random losses: rows around what a block of threads takes at once, of any alignment; some rows
 * without a label. A gradient's largest values and sums are those of its logits. */
#include "check.h"
#include "lm_ops.h"
#include "status.h"

static void choose_cross_entropy(kr_case *c, int64_t index, float *smoothing, float *scale) {
  c->contiguous = index % 3 == 0, c->anywhere = index % 3 == 1;
  *kr_case_size(c, "R") = kr_case_edge(c, c->is_exact ? 5 : 20);
  *kr_case_size(c, "V") = kr_case_edge(c, c->is_exact ? 9 : index % 4 == 0 ? 4200 : 300) + 1;
  *smoothing = kr_case_chance(c, 0.4) ? (float)kr_case_uniform(c, 0, 1) : 0.0f;
  *scale = kr_case_chance(c, 0.4) ? (float)kr_case_uniform(c, -1, 2) : 1.0f;
}

int32_t kr_cross_entropy_case(kr_case *c, int64_t index) {
  kr_cross_entropy_args *a = (kr_cross_entropy_args *)c->args;
  choose_cross_entropy(c, index, &a->label_smoothing, &a->logit_scale);
  return KRAIT_OK;
}

int32_t kr_cross_entropy_bwd_case(kr_case *c, int64_t index) {
  kr_cross_entropy_bwd_args *b = (kr_cross_entropy_bwd_args *)c->args;
  choose_cross_entropy(c, index, &b->label_smoothing, &b->logit_scale);
  kr_case_give_rest(c);
  KR_TRY(c->status);
  if (c->is_unfilled) return KRAIT_OK;
  kr_cross_entropy_args a = {
      .R = b->R, .V = b->V, .label_smoothing = b->label_smoothing, .logit_scale = b->logit_scale};
  a.logits = b->logits, a.labels = b->labels, a.top = b->top, a.log_sum = b->log_sum;
  return kr_cross_entropy_ref(NULL, &a);
}
