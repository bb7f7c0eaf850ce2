/* filter_bank.c: contract, cost, rows and random cases of a gated bank of filters: a graph of other operators
 * (filter_bank_graph.c) or, on a GPU, one launch. Error bound: float32 1e-4 of the result's scale; with
 * KR_FILTER_BANK_TF32 the operands of two products are rounded to 11 significant bits: 4e-3. */
#include "check.h"
#include "filter_bank/filter_bank_impls.h"
#include "primeknet_ops.h"
#include "status.h"

static void count_filter_bank(const void *args, kr_cost *cost) {
  const kr_filter_bank_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W, C = (double)a->C, J = (double)a->J;
  *cost = (kr_cost){.flops = n * C * (4 * (double)a->K + 4 * J * C + J),
                    .bytes = 4 * n * C * (J + (a->skip.data ? 3 : 2)) +
                             2 * J * C * C * (double)krait_dtype_bytes(a->weight.dtype) + 8 * C * (double)a->K};
}

static int32_t filter_bank_rules(const void *args) {
  const kr_filter_bank_args *a = args;
  int64_t sum = 0;
  for (int64_t j = 0; j < 8; j++) {
    const int64_t K = kr_filter_bank_lengths(a)[j];
    KR_CHECK((K > 0) == (j < a->J), KRAIT_ERR_SHAPE, "filter_bank: K%lld is %lld, with J %lld", (long long)j + 1,
             (long long)K, (long long)a->J);
    sum += K;
  }
  KR_CHECK(sum == a->K, KRAIT_ERR_SHAPE, "filter_bank: K is %lld, the chunks' lengths add up to %lld", (long long)a->K,
           (long long)sum);
  KR_CHECK(!a->skip.data == !a->skip_scale.data, KRAIT_ERR_ARGUMENT, "filter_bank: skip and skip_scale go together");
  return KRAIT_OK;
}

static const kr_impl impls[] = {
    {"ampere_half_factors", KRAIT_CAP_CUDA_AMPERE, kr_filter_bank_halves_refuse, kr_filter_bank_halves, NULL},
    {"ampere_64_channels", KRAIT_CAP_CUDA_AMPERE, kr_filter_bank_refuse, kr_filter_bank_ampere, NULL},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_filter_bank_composed, kr_filter_bank_composed_scratch},
    {"base_64_channels", KRAIT_CAP_CUDA_BASE, kr_filter_bank_refuse, kr_filter_bank_base, NULL},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_filter_bank_composed, kr_filter_bank_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_filter_bank_composed, kr_filter_bank_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_filter_bank_ref, kr_filter_bank_ref_scratch},
};

/* Of every three cases one suits float32's launch, and one that with float16 operands. */
int32_t kr_filter_bank_case(kr_case *c, int64_t index) {
  kr_filter_bank_args *a = (kr_filter_bank_args *)c->args;
  const int is_fast = index % 3 && !c->is_exact, is_half = is_fast && index % 3 == 2;
  a->B = kr_case_int(c, 1, 2);
  a->H = kr_case_edge(c, 20), a->W = kr_case_edge(c, 12);
  a->C = is_fast ? 16 * kr_case_int(c, 1, 4) : kr_case_edge(c, 12);
  a->J = kr_case_int(c, 1, is_fast ? 3 : 8), a->K = 0;
  for (int64_t j = 0; j < 8; j++)
    a->K += (&a->K1)[j] = j >= a->J ? 0 : kr_case_chance(c, 0.1) ? kr_case_int(c, 30, 40) : kr_case_int(c, 1, 9);
  c->contiguous = is_fast;
  if (is_fast) { /* contiguous channels per tap, and contiguous outputs per input */
    kr_case_give(c, "x");
    kr_view *taps = kr_case_give(c, "taps"), *gate_taps;
    kr_case_give(c, "taps_bias");
    gate_taps = kr_case_give(c, "gate_taps");
    taps->stride[0] = gate_taps->stride[0] = 1, taps->stride[1] = gate_taps->stride[1] = a->C;
    kr_case_give(c, "gate_bias");
    c->other = is_half ? KRAIT_F16 : KRAIT_F32;
    kr_view *weight = kr_case_give(c, "weight"), *out_weight;
    kr_case_give(c, "weight_bias");
    out_weight = kr_case_give(c, "out_weight");
    if (!is_half)
      weight->stride[0] = out_weight->stride[0] = 1, weight->stride[1] = a->J * a->C, out_weight->stride[1] = a->C;
    if (is_half) a->call.flags |= KR_FILTER_BANK_TF32;
  }
  kr_case_give_rest(c);
  if (a->skip.data && !a->skip_scale.data) kr_case_give(c, "skip_scale");
  if (a->call.flags & KR_FILTER_BANK_TF32 && !c->is_exact) kr_case_bound(c, &a->out, 4e-3, 4e-4);
  return c->status;
}

KR_OP_DEFINE(filter_bank, impls, filter_bank_rules, count_filter_bank, kr_filter_bank_case, 150)
