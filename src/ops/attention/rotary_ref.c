/* rotary_ref.c: rotary embedding (Su et al. 2021), written to be read. Double arithmetic. */
#include "contract.h"
#include "op_list.h"
#include "rotary_turn.h"

int32_t kr_rotary_check_indices(const kr_rotary_args *a) {
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("rotary", "cu_seqlens", &a->cu_seqlens, a->B, a->L));
  for (int64_t b = 0; b < a->B; b++) {
    const kr_rotary_span s = kr_rotary_span_at(a, b);
    const int64_t last = s.position + (a->call.flags & KRAIT_ROTARY_STILL ? 0 : s.n - 1);
    KR_CHECK(s.n == 0 || (s.position >= 0 && last < a->T), KRAIT_ERR_ARGUMENT,
             "rotary: sequence %lld takes positions %lld to %lld, cos and sin have 0..%lld", (long long)b,
             (long long)s.position, (long long)last, (long long)a->T - 1);
  }
  return KRAIT_OK;
}

static void turn_head(const kr_rotary_args *a, int64_t x, int64_t out, int64_t position) {
  const double sign = a->call.flags & KRAIT_ROTARY_INVERSE ? -1 : 1;
  for (int64_t r = 0; r < a->R; r++) {
    const int64_t d1 = kr_rotary_first(a->call.flags, r), d2 = kr_rotary_second(a->call.flags, r, a->R);
    const double c = kr_get(&a->cos, kr_at2(&a->cos, position, r)),
                 s = sign * kr_get(&a->sin, kr_at2(&a->sin, position, r));
    const double x1 = kr_get(&a->x, x + d1 * a->x.stride[3]), x2 = kr_get(&a->x, x + d2 * a->x.stride[3]);
    kr_put(&a->out, out + d1 * a->out.stride[3], x1 * c - x2 * s);
    kr_put(&a->out, out + d2 * a->out.stride[3], x1 * s + x2 * c);
  }
  for (int64_t d = 2 * a->R; d < a->D; d++)
    kr_put(&a->out, out + d * a->out.stride[3], kr_get(&a->x, x + d * a->x.stride[3]));
}

int32_t kr_rotary_ref(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args *a = args;
  (void)ctx;
  KR_TRY(kr_rotary_check_indices(a));
  for (int64_t b = 0; b < a->B; b++) {
    const kr_rotary_span s = kr_rotary_span_at(a, b);
    for (int64_t i = 0; i < s.n; i++)
      for (int64_t h = 0; h < a->H; h++)
        turn_head(a, kr_at3(&a->x, s.row, s.first + i, h), kr_at3(&a->out, s.row, s.first + i, h),
                  a->call.flags & KRAIT_ROTARY_STILL ? s.position : s.position + i);
  }
  return KRAIT_OK;
}
