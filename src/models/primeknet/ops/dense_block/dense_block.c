/* dense_block.c: contract, cost, rows and random cases of a dense block: a graph of other operators
 * (dense_block_graph.c); on a GPU three launches per layer; on a CPU one position along W at a time. Error bound:
 * float32 3e-4 of the result's scale, for up to four layers with their norms; with KR_DENSE_TF32 product operands
 * are rounded to 11 significant bits: 2e-2. */
#include "check.h"
#include "dense_block/dense_block_impls.h"
#include "primeknet_ops.h"
#include "status.h"
#include "view.h"

static void count_dense_block(const void *args, kr_cost *cost) {
  const kr_dense_block_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W, C = (double)a->C, N = (double)a->N, L = (double)a->L,
               K = (double)a->K;
  *cost = (kr_cost){.flops = n * (18 * N + 2 * N * C + 8 * L * C + (kr_has(&a->lift) ? 2 * K * C : 0)),
                    .bytes = 4 * n * (K + C) + N * (40 + C * (double)krait_dtype_bytes(a->weight.dtype))};
}

static int32_t dense_block_rules(const void *args) {
  const kr_dense_block_args *a = args;
  const int n_lifts = kr_has(&a->lift) + kr_has(&a->lift_weight) + kr_has(&a->lift_bias) + kr_has(&a->lift_slope);
  KR_CHECK(a->N == a->C * a->L * (a->L + 1) / 2, KRAIT_ERR_SHAPE,
           "dense_block: N is %lld, of %lld layers of %lld channels it is %lld", (long long)a->N, (long long)a->L,
           (long long)a->C, (long long)(a->C * a->L * (a->L + 1) / 2));
  KR_CHECK(n_lifts == 0 || n_lifts == 4, KRAIT_ERR_ARGUMENT,
           "dense_block: lift, lift_weight, lift_bias and lift_slope go together");
  KR_CHECK(n_lifts || a->K == a->C, KRAIT_ERR_SHAPE, "dense_block: K is %lld, without a lift it is C, %lld",
           (long long)a->K, (long long)a->C);
  return KRAIT_OK;
}

static const char *refuse_dense_block_simd(const krait_ctx *ctx, const void *args) {
  const kr_dense_block_args *a = args;
  (void)ctx;
  if (a->C % KR_DENSE_LANES) return "channels are not a multiple of 16";
  if (a->weight.dtype != KRAIT_F32) return "16-bit weights";
  if (kr_has(&a->lift) && a->K > KR_DENSE_LIFTED) return "more than 8 channels are lifted";
  if (!kr_has(&a->lift) && a->x.stride[3] != 1) return "channels of x are not contiguous";
  return a->out.stride[3] != 1 ? "channels of out are not contiguous" : NULL;
}

static const kr_impl impls[] = {
    {"ampere_half_factors", KRAIT_CAP_CUDA_AMPERE, kr_dense_block_halves_refuse, kr_dense_block_halves,
     kr_dense_block_scratch},
    {"ampere_64_channels", KRAIT_CAP_CUDA_AMPERE, kr_dense_block_refuse, kr_dense_block_ampere, kr_dense_block_scratch},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
    {"base_64_channels", KRAIT_CAP_CUDA_BASE, kr_dense_block_refuse, kr_dense_block_base, kr_dense_block_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_dense_block_simd, kr_dense_block_##isa, kr_dense_block_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"composed", KRAIT_CAP_CPU, NULL, kr_dense_block_composed, kr_dense_block_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_dense_block_ref, kr_dense_block_ref_scratch},
};

/* Of every four cases one suits float32's launches, one those with float16 operands, and one has layouts that only the
 * vectorized rows take. */
int32_t kr_dense_block_case(kr_case *c, int64_t index) {
  kr_dense_block_args *a = (kr_dense_block_args *)c->args;
  const int kind = c->is_exact ? 0 : (int)(index % 4), is_lifted = kr_case_chance(c, 0.3);
  enum { ANY, FLOATS, HALVES, VECTORS };
  a->B = kr_case_int(c, 1, 2);
  a->H = index % 16 == 3 ? kr_case_int(c, 35, 75) : kr_case_int(c, 3, 18);
  a->W = kr_case_int(c, 3, 18);
  a->C = kind ? 16 * kr_case_int(c, 1, 4) : kr_case_edge(c, 12);
  a->L = kr_case_int(c, 1, kind == VECTORS ? 4 : 3), a->N = a->C * a->L * (a->L + 1) / 2;
  a->K = is_lifted ? kr_case_int(c, 1, 3) : a->C;
  c->contiguous = kind == FLOATS || kind == HALVES, c->anywhere = kind == VECTORS;
  if (kind) c->other = kind == HALVES ? KRAIT_F16 : KRAIT_F32;
  kr_case_give(c, "x");
  if (c->contiguous) { /* contiguous channels per tap, and contiguous outputs per input */
    kr_view *taps = kr_case_give(c, "taps");
    taps->stride[0] = 1, taps->stride[1] = 3 * a->N, taps->stride[2] = a->N;
    kr_case_give(c, "taps_bias");
    kr_view *weight = kr_case_give(c, "weight");
    if (kind == FLOATS) weight->stride[0] = 1, weight->stride[1] = a->C;
    else a->call.flags |= KR_DENSE_TF32;
  }
  static const char *const of_lift[] = {"lift", "lift_weight", "lift_bias", "lift_slope"};
  for (int i = 0; i < 4 && is_lifted; i++) kr_case_give(c, of_lift[i]);
  if (!is_lifted) kr_case_leave_out(c, "lift");
  kr_case_give_rest(c);
  if (a->call.flags & KR_DENSE_TF32 && !c->is_exact) kr_case_bound(c, &a->out, 2e-2, 2e-3);
  return c->status;
}

KR_OP_DEFINE(dense_block, impls, dense_block_rules, count_dense_block, kr_dense_block_case, 160)
