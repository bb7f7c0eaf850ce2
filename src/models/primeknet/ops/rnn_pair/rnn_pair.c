/* rnn_pair.c: contract, cost, rows and random cases of two layers of GRU or LSTM: a graph of other operators
 * (rnn_pair_graph.c) or, on a GPU, one launch. Error bound: float32 1e-4 of the result's scale; with KR_RNN_TF32
 * rows, states and weights are rounded to float16, 11 significant bits, at every step: 6e-3. */
#include "check.h"
#include "primeknet_ops.h"
#include "rnn_pair/rnn_pair_impls.h"
#include "view.h"

static void count_rnn_pair(const void *args, kr_cost *cost) {
  const kr_rnn_pair_args *a = args;
  const double steps = (double)a->B * (double)a->L, H = (double)a->H, C = (double)a->C,
               G = a->call.flags & KRAIT_RNN_LSTM ? 4 : 3, weights = G * H * (C + 3 * H);
  *cost = (kr_cost){.flops = 2 * steps * weights,
                    .bytes = steps * (C + H) * 4 + weights * (double)krait_dtype_bytes(a->weight.dtype),
                    .exps = 2 * steps * H * (G + 1)};
}

static const kr_impl impls[] = {
    {"ampere_64_units", KRAIT_CAP_CUDA_AMPERE, kr_rnn_pair_64_refuse, kr_rnn_pair_64, kr_rnn_pair_64_scratch},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_rnn_pair_composed, kr_rnn_pair_composed_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_rnn_pair_composed, kr_rnn_pair_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_rnn_pair_composed, kr_rnn_pair_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_rnn_pair_ref, kr_rnn_pair_ref_scratch},
};

/* Every other case suits the fused launch: one to three groups of each number of sequences. */
int32_t kr_rnn_pair_case(kr_case *c, int64_t index) {
  kr_rnn_pair_args *a = (kr_rnn_pair_args *)c->args;
  const int is_64 = index % 2 && !c->is_exact;
  a->B = kr_case_int(c, 1, is_64 ? 40 : 5);
  a->L = kr_case_int(c, 1, is_64 && a->B <= 8 ? 19 : 6);
  a->C = is_64 ? 4 * kr_case_int(c, 1, 16) : kr_case_edge(c, 20);
  a->H = is_64 ? 64 : kr_case_edge(c, 70);
  if (a->call.flags & KR_RNN_NORM && a->C < 3) a->C = 3; /* normalising one or two numbers gives only their sign */
  c->contiguous = is_64;
  kr_case_give(c, "x");
  if (is_64) c->other = KRAIT_F16, a->call.flags |= KR_RNN_TF32;
  kr_case_give_rest(c);
  if (a->call.flags & KR_RNN_TF32 && !c->is_exact) kr_case_bound(c, &a->out, 6e-3, 3e-4);
  return c->status;
}

KR_OP_DEFINE(rnn_pair, impls, NULL, count_rnn_pair, kr_rnn_pair_case, 120)
