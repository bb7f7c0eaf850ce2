/* dense_block.c: contract, cost, rows and random cases of a dense block: a graph of other operators (src/fuse) or, on a
 * GPU, three launches a layer. Bound: float32 3e-4 of the result's scale, of up to three layers with their norms; with
 * KRAIT_DENSE_TF32 the factors of products lose all but 11 significant bits: 2e-2. */
#include "check.h"
#include "dense_block/dense_block_rows.h"
#include "op_list.h"
#include "status.h"

static void count(const void *args, kr_cost *cost) {
  const krait_dense_block_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W, C = (double)a->C, N = (double)a->N, L = (double)a->L;
  *cost = (kr_cost){.flops = n * (18 * N + 2 * N * C + 8 * L * C),
                    .bytes = 4 * n * (N + 3 * L * C) + N * (40 + C * (double)krait_dtype_bytes(a->weight.dtype))};
}

static int32_t rules(const void *args) {
  const krait_dense_block_args *a = args;
  KR_CHECK(a->N == a->C * a->L * (a->L + 1) / 2, KRAIT_ERR_SHAPE,
           "dense_block: N is %lld, of %lld layers of %lld channels it is %lld", (long long)a->N, (long long)a->L,
           (long long)a->C, (long long)(a->C * a->L * (a->L + 1) / 2));
  return KRAIT_OK;
}

static const kr_row rows[] = {
    {"ampere_half_factors", KRAIT_CAP_CUDA_AMPERE, kr_dense_block_halves_refuse, kr_dense_block_halves,
     kr_dense_block_scratch},
    {"ampere_64_channels", KRAIT_CAP_CUDA_AMPERE, kr_dense_block_refuse, kr_dense_block_ampere, kr_dense_block_scratch},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
    {"base_64_channels", KRAIT_CAP_CUDA_BASE, kr_dense_block_refuse, kr_dense_block_base, kr_dense_block_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_dense_block_ref, kr_dense_block_ref_scratch},
};

/* Of three cases one is such that float32's launches take it, and one that of float16's factors. */
int32_t kr_dense_block_case(kr_case *c, int64_t index) {
  krait_dense_block_args *a = (krait_dense_block_args *)c->args;
  const int is_fast = index % 3 && !c->is_exact, is_half = is_fast && index % 3 == 2;
  a->B = kr_case_int(c, 1, 2);
  a->H = kr_case_int(c, 3, 18), a->W = kr_case_int(c, 3, 18);
  a->C = is_fast ? 16 * kr_case_int(c, 1, 4) : kr_case_edge(c, 12);
  a->L = kr_case_int(c, 1, 3), a->N = a->C * a->L * (a->L + 1) / 2;
  c->contiguous = is_fast;
  if (is_fast) { /* channels of a tap side by side, and outputs of an input */
    kr_case_give(c, "x");
    krait_view *taps = kr_case_give(c, "taps");
    taps->stride[0] = 1, taps->stride[1] = 3 * a->N, taps->stride[2] = a->N;
    kr_case_give(c, "taps_bias");
    c->other = is_half ? KRAIT_F16 : KRAIT_F32;
    krait_view *weight = kr_case_give(c, "weight");
    if (!is_half) weight->stride[0] = 1, weight->stride[1] = a->C;
    if (is_half) a->call.flags |= KRAIT_DENSE_TF32;
  }
  kr_case_give_rest(c);
  if (a->call.flags & KRAIT_DENSE_TF32 && !c->is_exact) kr_case_bound(c, &a->out, 2e-2, 2e-3);
  return c->status;
}

KR_OP_DEFINE(dense_block, rows, rules, count, kr_dense_block_case, 120)
