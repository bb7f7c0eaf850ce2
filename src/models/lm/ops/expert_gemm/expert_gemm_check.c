/* expert_gemm_check.c: random calls: few and many rows, also of sizes for tiles; a third with 8- and 4-bit words. */
#include "check.h"
#include "half.h"
#include "lm_ops.h"

static void fill_expert_words(kr_case *c, const kr_view *v, const kr_expert_gemm_args *a, int is_q4k) {
  for (int64_t e = 0; e < a->E; e++)
    for (int64_t n = 0; n < a->N; n++)
      for (int64_t i = 0; i < a->Q; i++) {
        uint32_t word = (uint32_t)kr_case_int(c, 0, 65535) << 16 | (uint32_t)kr_case_int(c, 0, 65535);
        if (is_q4k && i % 36 == 0) {
          const uint32_t half = kr_float_to_f16((float)kr_case_int(c, 0, 1000) * 5e-7f);
          word = half | half << 16;
        }
        ((int32_t *)v->data)[e * v->stride[0] + n * v->stride[1] + i * v->stride[2]] = (int32_t)word;
      }
}

static void choose_words(kr_case *c, kr_expert_gemm_args *a, int is_q4k) {
  a->K = is_q4k ? 256 * kr_case_int(c, 1, 2) : 32 * kr_case_int(c, 1, 5);
  a->Q = is_q4k ? a->K / 256 * 36 : a->K / 4;
  a->U = is_q4k ? 0 : a->K / 32;
  a->activation = KRAIT_ACT_NONE;
  kr_case_leave_out(c, "Bmat");
  kr_case_leave_out(c, "B2");
  const kr_view *words = kr_case_give(c, "qweight");
  if (words && words->data) fill_expert_words(c, words, a, is_q4k);
  if (!is_q4k) kr_case_give(c, "scales");
}

/* Many aligned rows of one 16-bit type. */
static void choose_tiles(kr_case *c, kr_expert_gemm_args *a) {
  a->T = kr_case_int(c, 8, 150), a->N = 8 * kr_case_int(c, 1, 30), a->K = 8 * kr_case_int(c, 1, 30);
  c->dtype = c->other = kr_case_chance(c, 0.6) ? KRAIT_F16 : KRAIT_BF16;
}

int32_t kr_expert_gemm_case(kr_case *c, int64_t index) {
  kr_expert_gemm_args *a = (kr_expert_gemm_args *)c->args;
  a->T = index % 3 ? kr_case_edge(c, 6) : kr_case_edge(c, 40);
  a->J = kr_case_int(c, 1, 4), a->E = kr_case_edge(c, 9);
  a->S = kr_case_chance(c, 0.5) ? a->J : 1;
  a->N = kr_case_edge(c, 40), a->K = kr_case_edge(c, index % 5 == 0 ? 300 : 70), a->Q = a->U = 0;
  c->contiguous = index % 4 != 3;
  if (index % 2) c->dtype = KRAIT_F32, c->other = kr_case_activation_dtype(c);
  if (index % 4 == 1) choose_tiles(c, a);
  if (index % 3 == 2) {
    choose_words(c, a, index % 6 == 2);
    return KRAIT_OK;
  }
  kr_case_leave_out(c, "qweight");
  kr_case_leave_out(c, "scales");
  kr_case_give(c, "Bmat");
  return KRAIT_OK;
}
