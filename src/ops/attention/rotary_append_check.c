/* rotary_append_check.c: random calls: few tokens of a few heads, caches with free slots; some in the form that whole
 * heads of many tokens have: 16-bit heads of 64 or 128 channels, all of them rotated. */
#include "check.h"
#include "op_list.h"
#include "attention/rotary_append_impls.h"

static void choose_whole_heads(kr_case *c, kr_rotary_append_args *a) {
  c->contiguous = 1, c->dtype = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16, c->other = KRAIT_F32;
  a->call.flags = 0, a->L = kr_case_int(c, 8, 20);
  a->D = a->Dv = kr_case_chance(c, 0.5) ? 64 : 128, a->R = a->D / 2;
}

int32_t kr_rotary_append_case(kr_case *c, int64_t index) {
  kr_rotary_append_args *a = (kr_rotary_append_args *)c->args;
  c->contiguous = index % 3 == 0;
  a->B = kr_case_int(c, 1, 3), a->L = kr_case_chance(c, 0.5) ? 1 : kr_case_edge(c, 9);
  a->Hk = kr_case_int(c, 1, 3), a->H = a->Hk * kr_case_int(c, 1, 3), a->R = kr_case_edge(c, 40);
  a->D = 2 * a->R + (kr_case_chance(c, 0.5) ? 0 : kr_case_int(c, 0, 9));
  a->Dv = kr_case_chance(c, 0.5) ? a->D : kr_case_edge(c, 40);
  if (index % 3 == 1 && !c->is_exact) choose_whole_heads(c, a);
  a->Lk = a->L + kr_case_int(c, 0, 20), a->Bk = a->B, a->T = a->Lk + kr_case_int(c, 0, 5);
  const int is_normed = kr_case_chance(c, 0.4);
  if (is_normed)
    kr_case_give(c, "q_norm");
  else
    kr_case_leave_out(c, "q_norm");
  kr_case_hard(c, KR_NAMES("q", "k", "v"), is_normed ? KR_MOST_CUBED : KR_MOST_LINEAR);
  if (!kr_case_chance(c, 0.8)) return KRAIT_OK;
  kr_view *lengths = kr_case_give(c, "cache_seqlens");
  for (int64_t b = 0; b < a->B; b++) kr_case_set_i32(c, lengths, b, (int32_t)kr_case_int(c, 0, a->Lk - a->L));
  return KRAIT_OK;
}
