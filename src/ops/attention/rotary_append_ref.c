/* rotary_append_ref.c: with q_norm and k_norm each head x of q and k is x / sqrt(mean x^2 + eps) weight, in double;
 * then attention_append, then rotary (their _ref.c have the equations). */
#include <math.h>

#include "attention/rotary_append_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

uint64_t kr_rotary_append_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_rotary_append_args *a = args;
  (void)ctx;
  return kr_has(&a->q_norm) ? (uint64_t)(a->B * a->L * (a->H + a->Hk) * a->D) * sizeof(double) : 0;
}

/* Normed heads, in double; x is then there. */
static void norm_heads_of_append(const kr_rotary_append_args *a, kr_view *x, const kr_view *weight, int64_t H,
                                 double *to) {
  const int64_t D = a->D;
  const kr_view rows = {.data = to, .dtype = KRAIT_F64, .stride = {a->L * H * D, H * D, D, 1}};
  for (int64_t i = 0; i < a->B * a->L * H; i++) {
    const int64_t b = i / H / a->L, t = i / H % a->L, h = i % H;
    double square = 0;
    for (int64_t d = 0; d < D; d++) square += pow(kr_get(x, kr_at4(x, b, t, h, d)), 2) / (double)D;
    for (int64_t d = 0; d < D; d++)
      kr_put(&rows, kr_at4(&rows, b, t, h, d),
             kr_get(x, kr_at4(x, b, t, h, d)) / sqrt(square + (double)a->eps) * kr_get(weight, kr_at2(weight, h, d)));
  }
  *x = rows;
}

int32_t kr_rotary_append_ref(const krait_ctx *ctx, const void *args) {
  kr_rotary_append_args a = *(const kr_rotary_append_args *)args;
  if (kr_has(&a.q_norm)) {
    double *const normed = a.call.scratch;
    norm_heads_of_append(&a, &a.q, &a.q_norm, a.H, normed);
    norm_heads_of_append(&a, &a.k, &a.k_norm, a.Hk, normed + a.B * a.L * a.H * a.D);
  }
  const kr_rotary_args rotary = kr_rotary_of(&a);
  const kr_attention_append_args append = kr_append_of(&a);
  KR_TRY(kr_attention_append_ref(ctx, &append));
  return kr_rotary_ref(ctx, &rotary);
}
