/* causal_conv1d_ref.c: the short causal convolution, written to be read (specs: causal_conv1d_fn).
 *   out[b,d,t] = act(bias[d] + sum_{w<W} weight[d,w] X[b,d,t-(W-1)+w]),  X = x for t >= 0, else initial_states or 0
 * With seq_idx, taps in another sequence are dropped, and positions of a negative sequence give 0.
 * Reverse: as if x, seq_idx and out were flipped in time; the states stay in the direction's own order.
 * Time t below counts in the direction. Double accumulation; goes backward from the last step, so that out may be x. */
#include <math.h>

#include "op_list.h"
#include "view.h"

static int64_t conv1d_position(const kr_causal_conv1d_args *a, int64_t t) {
  return a->call.flags & KRAIT_CONV1D_REVERSE ? a->L - 1 - t : t;
}

static double conv1d_input(const kr_causal_conv1d_args *a, int64_t b, int64_t d, int64_t t) {
  if (t >= 0) return kr_get(&a->x, kr_at3(&a->x, b, d, conv1d_position(a, t)));
  return kr_has(&a->initial_states) ? kr_get(&a->initial_states, kr_at3(&a->initial_states, b, d, t + a->W - 1)) : 0;
}

static int32_t conv1d_sequence(const kr_causal_conv1d_args *a, int64_t b, int64_t t) {
  return kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, b, conv1d_position(a, t)));
}

static double conv1d_output(const kr_causal_conv1d_args *a, int64_t b, int64_t d, int64_t t) {
  if (kr_has(&a->seq_idx) && conv1d_sequence(a, b, t) < 0) return 0;
  double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, d)) : 0;
  for (int64_t w = 0; w < a->W; w++) {
    int64_t from = t - (a->W - 1) + w;
    if (kr_has(&a->seq_idx) && (from < 0 || conv1d_sequence(a, b, from) != conv1d_sequence(a, b, t))) continue;
    sum += kr_get(&a->weight, kr_at2(&a->weight, d, w)) * conv1d_input(a, b, d, from);
  }
  return a->activation == KRAIT_ACT_SILU ? sum / (1 + exp(-sum)) : sum;
}

int32_t kr_causal_conv1d_ref(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_args *a = args;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t d = 0; d < a->D; d++) {
      for (int64_t k = 0; kr_has(&a->final_states) && k < a->W - 1; k++)
        kr_put(&a->final_states, kr_at3(&a->final_states, b, d, k), conv1d_input(a, b, d, a->L - (a->W - 1) + k));
      for (int64_t t = a->L - 1; t >= 0; t--)
        kr_put(&a->out, kr_at3(&a->out, b, d, conv1d_position(a, t)), conv1d_output(a, b, d, t));
    }
  return KRAIT_OK;
}
