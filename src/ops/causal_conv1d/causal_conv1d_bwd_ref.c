/* causal_conv1d_bwd_ref.c: the convolution's gradient, written to be read. With p the sum before the activation and
 * g = dout act'(p), act'(p) = s (1 + p (1 - s)), s = sigmoid(p), g = 0 outside 0..L-1 and at negative sequences:
 *   dX[t] = sum_w weight[w] g[t+W-1-w] (+ dfinal_states for the last W-1 inputs)   X: x, and initial_states before it
 *   dweight[w] = sum_{b,t} g[t] X[t-(W-1)+w],  dbias = sum_{b,t} g[t]
 * Terms whose two ends lie in different sequences are dropped. Time counts in the direction. Double accumulation. */
#include <math.h>

#include "conv_impls.h"
#include "op_list.h"
#include "view.h"

typedef kr_causal_conv1d_bwd_args bwd_args;

static int64_t conv1d_bwd_position(const bwd_args *a, int64_t t) {
  return a->call.flags & KRAIT_CONV1D_REVERSE ? a->L - 1 - t : t;
}
static int32_t conv1d_bwd_sequence(const bwd_args *a, int64_t b, int64_t t) {
  return kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, b, conv1d_bwd_position(a, t)));
}

static double conv1d_bwd_input(const bwd_args *a, int64_t b, int64_t d, int64_t t) {
  if (t >= 0) return kr_get(&a->x, kr_at3(&a->x, b, d, conv1d_bwd_position(a, t)));
  return kr_has(&a->initial_states) ? kr_get(&a->initial_states, kr_at3(&a->initial_states, b, d, t + a->W - 1)) : 0;
}

/* Whether the input at time `from` reaches the output at t: outputs of a negative sequence are 0 whatever the inputs.
 * */
static int connected(const bwd_args *a, int64_t b, int64_t from, int64_t t) {
  return !kr_has(&a->seq_idx) || (from >= 0 && conv1d_bwd_sequence(a, b, t) >= 0 &&
                                  conv1d_bwd_sequence(a, b, from) == conv1d_bwd_sequence(a, b, t));
}

static double before_activation(const bwd_args *a, int64_t b, int64_t d, int64_t t) {
  double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, d)) : 0;
  for (int64_t w = 0; w < a->W; w++)
    if (connected(a, b, t - (a->W - 1) + w, t))
      sum += kr_get(&a->weight, kr_at2(&a->weight, d, w)) * conv1d_bwd_input(a, b, d, t - (a->W - 1) + w);
  return sum;
}

static double gradient_before_activation(const bwd_args *a, int64_t b, int64_t d, int64_t t) {
  if (!kr_has(&a->dout) || (kr_has(&a->seq_idx) && conv1d_bwd_sequence(a, b, t) < 0)) return 0;
  double dout = kr_get(&a->dout, kr_at3(&a->dout, b, d, conv1d_bwd_position(a, t)));
  if (a->activation != KRAIT_ACT_SILU) return dout;
  double p = before_activation(a, b, d, t), s = 1 / (1 + exp(-p));
  return dout * s * (1 + p / (1 + exp(p)));
}

static double input_gradient(const bwd_args *a, int64_t b, int64_t d, int64_t t, const double *g) {
  double sum = 0;
  for (int64_t w = 0; w < a->W; w++) {
    int64_t to = t + a->W - 1 - w;
    if (to >= 0 && to < a->L && connected(a, b, t, to)) sum += kr_get(&a->weight, kr_at2(&a->weight, d, w)) * g[to];
  }
  int64_t k = t - (a->L - (a->W - 1));
  return k >= 0 && kr_has(&a->dfinal_states) ? sum + kr_get(&a->dfinal_states, kr_at3(&a->dfinal_states, b, d, k))
                                             : sum;
}

/* sums: W weights, then the bias. */
static void differentiate_row(const bwd_args *a, int64_t b, int64_t d, double *g, double *sums) {
  for (int64_t t = 0; t < a->L; t++) {
    g[t] = gradient_before_activation(a, b, d, t);
    sums[a->W] += g[t];
    for (int64_t w = 0; w < a->W; w++)
      if (connected(a, b, t - (a->W - 1) + w, t)) sums[w] += g[t] * conv1d_bwd_input(a, b, d, t - (a->W - 1) + w);
  }
  for (int64_t t = 0; kr_has(&a->dx) && t < a->L; t++)
    kr_put(&a->dx, kr_at3(&a->dx, b, d, conv1d_bwd_position(a, t)), input_gradient(a, b, d, t, g));
  for (int64_t k = 0; kr_has(&a->dinitial_states) && k < a->W - 1; k++)
    kr_put(&a->dinitial_states, kr_at3(&a->dinitial_states, b, d, k), input_gradient(a, b, d, k - (a->W - 1), g));
}

uint64_t kr_causal_conv1d_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  const bwd_args *a = args;
  (void)ctx;
  return (uint64_t)(a->L + a->W + 1) * sizeof(double);
}

int32_t kr_causal_conv1d_bwd_ref(const krait_ctx *ctx, const void *args) {
  const bwd_args *a = args;
  double *sums = a->call.scratch, *g = sums + a->W + 1;
  (void)ctx;
  for (int64_t d = 0; d < a->D; d++) {
    for (int64_t w = 0; w <= a->W; w++) sums[w] = 0;
    for (int64_t b = 0; b < a->B; b++) differentiate_row(a, b, d, g, sums);
    for (int64_t w = 0; kr_has(&a->dweight) && w < a->W; w++) kr_put(&a->dweight, kr_at2(&a->dweight, d, w), sums[w]);
    if (kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, d), sums[a->W]);
  }
  return KRAIT_OK;
}
