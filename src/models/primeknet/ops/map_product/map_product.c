/* map_product.c: contract, cost, rows and random cases of a product at every position of a map: a graph of other
 * operators (map_product_graph.c) or, on a GPU, one launch. Error bound: float32 1e-4 of the result's scale; with
 * KR_MAP_TF32 product operands are rounded to 11 significant bits: 4e-3. */
#include "check.h"
#include "map_product/map_product_impls.h"
#include "primeknet_ops.h"
#include "status.h"

static void count_map_product(const void *args, kr_cost *cost) {
  const kr_map_product_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W, C = (double)a->C, N = (double)a->N, M = (double)a->M;
  *cost = (kr_cost){.flops = n * (2 * C * N + 2 * C * (double)a->K),
                    .bytes = 4 * n * (C * (a->conv_weight.data ? 2 : 1) +
                                      M * (1 + (a->residual.data != NULL) + (a->skip.data != NULL))) +
                             C * N * (double)krait_dtype_bytes(a->weight.dtype)};
}

static int32_t map_product_rules(const void *args) {
  const kr_map_product_args *a = args;
  const int is_gated = (a->call.flags & KR_MAP_GATE) != 0, has_norm = (a->call.flags & KR_MAP_NORM) != 0;
  KR_CHECK(a->N == (is_gated ? 2 * a->M : a->M), KRAIT_ERR_SHAPE, "map_product: N is %lld, M %lld%s", (long long)a->N,
           (long long)a->M, is_gated ? ", with KR_MAP_GATE" : "");
  KR_CHECK(a->call.flags & KR_MAP_SILU ? a->silu_from < a->N : a->silu_from == 0, KRAIT_ERR_ARGUMENT,
           "map_product: silu_from is %lld, of %lld columns, with%s KR_MAP_SILU", (long long)a->silu_from,
           (long long)a->N, a->call.flags & KR_MAP_SILU ? "" : "out");
  KR_CHECK(has_norm + (a->factors.data != NULL) + (a->conv_weight.data != NULL) <= 1, KRAIT_ERR_ARGUMENT,
           "map_product: KR_MAP_NORM, factors and conv_weight exclude each other");
  KR_CHECK(!a->conv_weight.data == !a->conv_bias.data && !a->conv_weight.data == !a->conv_out.data &&
               !a->conv_weight.data == !a->K,
           KRAIT_ERR_ARGUMENT, "map_product: conv_weight, conv_bias, conv_out and K go together");
  KR_CHECK(!a->skip.data == !a->skip_scale.data, KRAIT_ERR_ARGUMENT, "map_product: skip and skip_scale go together");
  return KRAIT_OK;
}

static const kr_impl impls[] = {
    {"ampere_few_outputs", KRAIT_CAP_CUDA_AMPERE, kr_map_product_few_refuse, kr_map_product_few_ampere, NULL},
    {"ampere_half_factors", KRAIT_CAP_CUDA_AMPERE, kr_map_product_halves_refuse, kr_map_product_halves, NULL},
    {"ampere_aligned_rows", KRAIT_CAP_CUDA_AMPERE, kr_map_product_refuse, kr_map_product_ampere, NULL},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_map_product_composed, kr_map_product_composed_scratch},
    {"base_few_outputs", KRAIT_CAP_CUDA_BASE, kr_map_product_few_refuse, kr_map_product_few_base, NULL},
    {"base_aligned_rows", KRAIT_CAP_CUDA_BASE, kr_map_product_refuse, kr_map_product_base, NULL},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_map_product_composed, kr_map_product_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_map_product_composed, kr_map_product_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_map_product_ref, kr_map_product_ref_scratch},
};

/* Of every three cases one suits float32's launch, and one that with float16 operands; some of the others have few
 * outputs. */
int32_t kr_map_product_case(kr_case *c, int64_t index) {
  kr_map_product_args *a = (kr_map_product_args *)c->args;
  const int is_fast = index % 3 && !c->is_exact, is_half = is_fast && index % 3 == 2,
            is_few = index % 3 == 0 && !c->is_exact && kr_case_chance(c, 0.5);
  const int64_t way = is_few ? 0 : kr_case_int(c, 0, 3); /* plain, norm, factors, convolution */
  uint32_t *flags = &a->call.flags;
  a->B = kr_case_int(c, 1, 2), a->H = kr_case_edge(c, 9), a->W = kr_case_edge(c, 20);
  a->C = is_fast ? 16 * kr_case_int(c, 1, way == 0 || way == 3 ? 9 : 4) : kr_case_edge(c, 12);
  a->N = is_fast ? 4 * kr_case_int(c, 1, 40) : 2 * kr_case_edge(c, 12);
  if (is_few) {
    a->C = 4 * kr_case_int(c, 1, 16), a->N = kr_case_int(c, 1, 4), *flags &= KR_MAP_TF32;
    kr_case_leave_out(c, "residual"), kr_case_leave_out(c, "skip");
  }
  *flags &= ~(uint32_t)KR_MAP_NORM;
  if (way == 1) *flags |= KR_MAP_NORM;
  if (is_fast && way != 1) *flags &= ~(uint32_t)KR_MAP_GATE;
  a->M = *flags & KR_MAP_GATE ? a->N / 2 : a->N;
  if (is_fast && *flags & KR_MAP_GATE) *flags &= ~(uint32_t)KR_MAP_SILU;
  a->silu_from = *flags & KR_MAP_SILU ? is_fast ? a->N / 8 * 4 : kr_case_int(c, 0, a->N - 1) : 0;
  a->K = way == 3 ? kr_case_int(c, 1, 6) : 0;
  c->contiguous = is_fast || is_few;
  kr_case_give(c, "x");
  if (way == 2) kr_case_give(c, "factors");
  else kr_case_leave_out(c, "factors");
  if (way == 3) kr_case_give(c, "conv_weight"), kr_case_give(c, "conv_bias");
  if (is_fast) {
    c->other = is_half ? KRAIT_F16 : KRAIT_F32;
    kr_view *weight = kr_case_give(c, "weight");
    if (!is_half) weight->stride[0] = 1, weight->stride[1] = a->N; /* contiguous outputs per input */
    if (is_half) *flags |= KR_MAP_TF32;
    const int has_addends = (way == 0 || way == 2) && !(*flags & KR_MAP_SILU);
    if (!has_addends || kr_case_chance(c, 0.3)) kr_case_leave_out(c, "residual"), kr_case_leave_out(c, "skip");
    else kr_case_give(c, "residual");
  }
  kr_case_give_rest(c);
  if (a->skip.data && !a->skip_scale.data) kr_case_give(c, "skip_scale");
  if (way == 3 && !a->conv_out.data) kr_case_give(c, "conv_out");
  if (*flags & KR_MAP_TF32 && !c->is_exact) kr_case_bound(c, &a->out, 4e-3, 4e-4);
  return c->status;
}

KR_OP_DEFINE(map_product, impls, map_product_rules, count_map_product, kr_map_product_case, 240)
