/* attention_ref.c: softmax attention as its equation (Vaswani et al. 2017), written to be read; krait/ops.h has the
 * masks and layouts. s_ij = scale q_i . k_j, capped, with the linear bias;  lse_i = log(sum over visible j of exp(s_ij)
 * + exp(sink));  out_i = sum_j exp(s_ij - lse_i) keep_ij / (1 - dropout) v_j.  Double accumulation. */
#include "attention_ref.h"

#include "attention_impls.h"
#include "op_list.h"
#include "status.h"

static void put_row(const kr_attention_args *a, const kr_attention_sequence *s, int64_t h, int64_t i, double lse,
                    const double *out) {
  const int64_t at = kr_attention_query(s, &a->out, i) + h * a->out.stride[2];
  for (int64_t d = 0; d < a->Dv; d++) kr_put(&a->out, at + d * a->out.stride[3], out ? out[d] : 0);
  if (kr_has(&a->lse)) kr_put(&a->lse, kr_attention_lse(s, &a->lse, h, i), lse);
}

static void run_attention_query(const kr_attention_args *a, const kr_attention_inputs *in,
                                const kr_attention_sequence *s, int64_t h, int64_t i) {
  const kr_attention_dropout dropout = kr_attention_dropout_of(in);
  const int64_t first = kr_attention_first(in, s, i), end = kr_attention_end(in, s, i);
  double *score = a->call.scratch, out[KR_ATTENTION_MOST_D] = {0},
         most = kr_has(in->sinks) ? kr_get(in->sinks, kr_at1(in->sinks, h)) : -INFINITY, sum, slope;
  if (i >= s->nq || end <= first) {
    put_row(a, s, h, i, INFINITY, NULL);
    return;
  }
  const double sink = most;
  for (int64_t j = first; j < end; j++) {
    score[j] = attention_score(in, s, h, i, j, &slope);
    if (!(score[j] <= most)) most = score[j]; /* propagates NaN */
  }
  sum = kr_has(in->sinks) ? exp(sink - most) : 0;
  for (int64_t j = first; j < end; j++) sum += exp(score[j] - most);
  for (int64_t j = first; j < end; j++) {
    const double p = exp(score[j] - most) / sum * attention_keep(in, &dropout, s, h, i, j);
    for (int64_t d = 0; d < a->Dv; d++) out[d] += p * attention_value(in, s, h, j, d);
  }
  put_row(a, s, h, i, most + log(sum), out);
}

uint64_t kr_attention_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_inputs in = kr_attention_inputs_of(args);
  (void)ctx;
  return (uint64_t)kr_attention_most_keys(&in) * sizeof(double);
}

int32_t kr_attention_ref(const krait_ctx *ctx, const void *args) {
  const kr_attention_args *a = args;
  const kr_attention_inputs in = kr_attention_inputs_of(a);
  (void)ctx;
  KR_TRY(kr_attention_check_indices(&in));
  for (int64_t b = 0; b < a->B; b++) {
    const kr_attention_sequence s = kr_attention_sequence_at(&in, b);
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t i = 0; i < s.n_rows; i++) run_attention_query(a, &in, &s, h, i);
  }
  return KRAIT_OK;
}
