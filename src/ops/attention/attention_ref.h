/* attention_ref.h: one query's row of scores, for the reference implementations of attention and its gradient. */
#ifndef KR_ATTENTION_REF_H
#define KR_ATTENTION_REF_H

#include <math.h>

#include "attention_inputs.h"

/* s_ij before masks; *slope: softcap's derivative, 1 without. */
static inline double attention_score(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t h,
                                     int64_t i, int64_t j, double *slope) {
  const int64_t q = kr_attention_query(s, in->q, i) + h * in->q->stride[2],
                k = kr_attention_key(in, s, in->k, j) + h / (in->H / in->Hk) * in->k->stride[2];
  double sum = 0;
  for (int64_t d = 0; d < in->D; d++)
    sum += kr_get(in->q, q + d * in->q->stride[3]) * kr_get(in->k, k + d * in->k->stride[3]);
  sum *= (double)in->scale;
  *slope = 1;
  if (in->softcap > 0) {
    const double t = tanh(sum / (double)in->softcap);
    sum = (double)in->softcap * t, *slope = 1 - t * t;
  }
  if (kr_has(in->alibi_slopes))
    sum -= kr_get(in->alibi_slopes, kr_at2(in->alibi_slopes, s->b, h)) * fabs((double)(i + s->nk - s->nq - j));
  return sum;
}

static inline double attention_keep(const kr_attention_inputs *in, const kr_attention_dropout *d,
                                    const kr_attention_sequence *s, int64_t h, int64_t i, int64_t j) {
  if (in->dropout == 0) return 1;
  return kr_attention_keeps(d, s->b * in->H + h, i, j) ? 1 / (1 - (double)in->dropout) : 0;
}

static inline double attention_value(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t h,
                                     int64_t j, int64_t d) {
  return kr_get(in->v,
                kr_attention_key(in, s, in->v, j) + h / (in->H / in->Hk) * in->v->stride[2] + d * in->v->stride[3]);
}

#endif
