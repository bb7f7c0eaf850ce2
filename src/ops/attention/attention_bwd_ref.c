/* attention_bwd_ref.c: the gradient of attention, written to be read. With P_ij = exp(s_ij - lse_i), m = keep / (1 -
 * dropout), delta_i = dout_i . out_i: dv_j = sum_i P m dout_i;  dP = m dout_i . v_j;  dS = P (dP - delta_i + dlse_i),
 * times softcap's slope; dq_i = scale sum_j dS k_j;  dk_j = scale sum_i dS q_i;  dsink = sum_i exp(sink - lse_i)
 * (dlse_i - delta_i). Double accumulation. */
#include <string.h>

#include "attention_ref.h"
#include "attention_impls.h"
#include "op_list.h"
#include "status.h"

typedef struct sums {
  double *dk, *dv; /* (nk,D), (nk,Dv) of one key head */
} sums;

static double attention_bwd_ref_lse_of(const kr_attention_bwd_args *a, const kr_attention_sequence *s, int64_t h,
                                       int64_t i) {
  return kr_get(&a->lse, kr_attention_lse(s, &a->lse, h, i));
}

/* Returns the query's contribution to dsinks. */
static double run_attention_bwd_query(const kr_attention_bwd_args *a, const kr_attention_inputs *in,
                        const kr_attention_sequence *s, const sums *to, int64_t h, int64_t i) {
  const kr_attention_dropout dropout = kr_attention_dropout_of(in);
  const int64_t first = kr_attention_first(in, s, i), end = kr_attention_end(in, s, i), g = h / (a->H / a->Hk);
  const int64_t dout = kr_attention_query(s, &a->dout, i) + h * a->dout.stride[2],
                out = kr_attention_query(s, &a->out, i) + h * a->out.stride[2];
  const int64_t q = kr_attention_query(s, &a->q, i) + h * a->q.stride[2],
                dq_at = kr_attention_query(s, &a->dq, i) + h * a->dq.stride[2];
  double dq[KR_ATTENTION_MOST_D] = {0}, delta = 0, slope;
  if (end <= first) return 0;
  const double lse = attention_bwd_ref_lse_of(a, s, h, i),
               dlse = kr_has(&a->dlse) && isfinite(lse) ? kr_get(&a->dlse, kr_attention_lse(s, &a->dlse, h, i)) : 0;
  for (int64_t d = 0; d < a->Dv; d++)
    delta += kr_get(&a->dout, dout + d * a->dout.stride[3]) * kr_get(&a->out, out + d * a->out.stride[3]);
  for (int64_t j = first; j < end; j++) {
    const double p = exp(attention_score(in, s, h, i, j, &slope) - lse), m = attention_keep(in, &dropout, s, h, i, j);
    const int64_t k = kr_attention_key(in, s, &a->k, j) + g * a->k.stride[2];
    double dp = 0;
    for (int64_t d = 0; d < a->Dv; d++) {
      const double o = kr_get(&a->dout, dout + d * a->dout.stride[3]);
      dp += o * attention_value(in, s, h, j, d);
      to->dv[j * a->Dv + d] += p * m * o;
    }
    const double ds = p * (m * dp - delta + dlse) * slope * (double)in->scale;
    for (int64_t d = 0; d < a->D; d++) {
      dq[d] += ds * kr_get(&a->k, k + d * a->k.stride[3]);
      to->dk[j * a->D + d] += ds * kr_get(&a->q, q + d * a->q.stride[3]);
    }
  }
  for (int64_t d = 0; kr_has(&a->dq) && d < a->D; d++) kr_put(&a->dq, dq_at + d * a->dq.stride[3], dq[d]);
  return kr_has(in->sinks) ? exp(kr_get(in->sinks, kr_at1(in->sinks, h)) - lse) * (dlse - delta) : 0;
}

static void put_keys(const kr_attention_inputs *in, const kr_attention_sequence *s, const kr_view *view, int64_t g,
                     int64_t D, const double *sum) {
  for (int64_t j = 0; kr_has(view) && j < s->nk; j++)
    for (int64_t d = 0; d < D; d++)
      kr_put(view, kr_attention_key(in, s, view, j) + g * view->stride[2] + d * view->stride[3], sum[j * D + d]);
}

static void put_zeros(const kr_view *view, int64_t rows, int64_t tokens, int64_t heads, int64_t D) {
  for (int64_t n = 0; kr_has(view) && n < rows * tokens * heads; n++)
    for (int64_t d = 0; d < D; d++) kr_put(view, kr_at4(view, n / heads / tokens, n / heads % tokens, n % heads, d), 0);
}

uint64_t kr_attention_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  (void)ctx;
  return (uint64_t)(a->Lk * (a->D + a->Dv) + a->H) * sizeof(double);
}

int32_t kr_attention_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_attention_bwd_args *a = args;
  const kr_attention_inputs in = kr_attention_bwd_inputs_of(a);
  double *dsinks = a->call.scratch;
  const sums to = {dsinks + a->H, dsinks + a->H + a->Lk * a->D};
  (void)ctx;
  KR_TRY(kr_attention_check_indices(&in));
  memset(dsinks, 0, (size_t)a->H * sizeof *dsinks);
  put_zeros(&a->dq, kr_has(&a->cu_seqlens_q) ? 1 : a->B, a->Lq, a->H, a->D);
  put_zeros(&a->dk, a->Bk, a->Lk, a->Hk, a->D);
  put_zeros(&a->dv, a->Bk, a->Lk, a->Hk, a->Dv);
  for (int64_t n = 0; n < a->B * a->Hk; n++) {
    const kr_attention_sequence s = kr_attention_sequence_at(&in, n / a->Hk);
    const int64_t g = n % a->Hk, group = a->H / a->Hk;
    memset(to.dk, 0, (size_t)(s.nk * a->D) * sizeof *to.dk);
    memset(to.dv, 0, (size_t)(s.nk * a->Dv) * sizeof *to.dv);
    for (int64_t h = g * group; h < (g + 1) * group; h++)
      for (int64_t i = 0; i < s.nq; i++) dsinks[h] += run_attention_bwd_query(a, &in, &s, &to, h, i);
    put_keys(&in, &s, &a->dk, g, a->D, to.dk);
    put_keys(&in, &s, &a->dv, g, a->Dv, to.dv);
  }
  for (int64_t h = 0; kr_has(&a->dsinks) && h < a->H; h++) kr_put(&a->dsinks, kr_at1(&a->dsinks, h), dsinks[h]);
  return KRAIT_OK;
}
