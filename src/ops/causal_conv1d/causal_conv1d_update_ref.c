/* causal_conv1d_update_ref.c: L new tokens with a running state of S inputs (specs: causal_conv1d_update).
 *   out[t] = act(bias + sum_w weight[w] X[t-(W-1)+w]), X = x for t >= 0, earlier the last inputs in the state
 *   without cache_seqlens: the state's inputs end at S-1; it shifts left by L and x is appended
 *   with it: a ring buffer; x_t goes to (cache_seqlens + t) % S, and the past inputs end just before cache_seqlens % S
 * A negative conv_state_indices entry: out 0, nothing written. Double accumulation. */
#include <math.h>

#include "contract.h"
#include "conv_impls.h"
#include "op_list.h"
#include "view.h"

typedef kr_causal_conv1d_update_args update_args;

static int64_t place_conv1d_update(const update_args *a, int64_t b, int64_t t) {
  if (!kr_has(&a->cache_seqlens)) return a->S + t;
  int64_t at = (kr_get_i32(&a->cache_seqlens, kr_at1(&a->cache_seqlens, b)) + t) % a->S;
  return at < 0 ? at + a->S : at;
}

static double conv1d_update_input(const update_args *a, int64_t b, int64_t row, int64_t d, int64_t t) {
  if (t >= 0) return kr_get(&a->x, kr_at3(&a->x, b, d, t));
  return kr_get(&a->conv_state, kr_at3(&a->conv_state, row, d, place_conv1d_update(a, b, t)));
}

static double conv1d_update_output(const update_args *a, int64_t b, int64_t row, int64_t d, int64_t t) {
  double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, d)) : 0;
  for (int64_t w = 0; w < a->W; w++)
    sum += kr_get(&a->weight, kr_at2(&a->weight, d, w)) * conv1d_update_input(a, b, row, d, t - (a->W - 1) + w);
  return a->activation == KRAIT_ACT_SILU ? sum / (1 + exp(-sum)) : sum;
}

static void store_inputs(const update_args *a, int64_t b, int64_t row, int64_t d, const double *x) {
  for (int64_t t = 0; kr_has(&a->cache_seqlens) && t < a->L; t++)
    kr_put(&a->conv_state, kr_at3(&a->conv_state, row, d, place_conv1d_update(a, b, t)), x[t]);
  for (int64_t s = 0; !kr_has(&a->cache_seqlens) && s < a->S; s++) {
    int64_t from = s + a->L;
    double value = from < a->S ? kr_get(&a->conv_state, kr_at3(&a->conv_state, row, d, from)) : x[from - a->S];
    kr_put(&a->conv_state, kr_at3(&a->conv_state, row, d, s), value);
  }
}

uint64_t kr_causal_conv1d_update_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return (uint64_t)((const update_args *)args)->L * sizeof(double);
}

int32_t kr_causal_conv1d_update_ref(const krait_ctx *ctx, const void *args) {
  const update_args *a = args;
  double *x = a->call.scratch; /* out may be x: outputs are computed backward, and x is saved for the state */
  (void)ctx;
  KR_TRY(kr_need_rows("causal_conv1d_update", "conv_state_indices", &a->conv_state_indices, a->B, a->n_states));
  for (int64_t b = 0; b < a->B; b++) {
    int64_t row =
        kr_has(&a->conv_state_indices) ? kr_get_i32(&a->conv_state_indices, kr_at1(&a->conv_state_indices, b)) : b;
    for (int64_t d = 0; d < a->D; d++) {
      for (int64_t t = 0; t < a->L; t++) x[t] = kr_get(&a->x, kr_at3(&a->x, b, d, t));
      for (int64_t t = a->L - 1; t >= 0; t--)
        kr_put(&a->out, kr_at3(&a->out, b, d, t), row < 0 ? 0 : conv1d_update_output(a, b, row, d, t));
      if (row >= 0) store_inputs(a, b, row, d, x);
    }
  }
  return KRAIT_OK;
}
