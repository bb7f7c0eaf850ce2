/* attention_step_check.c: random calls; two thirds in the form that the GPU's implementation accepts: 16-bit heads of
 * 64 or 128 channels, all of them rotated, some behind more keys than its rings hold. */
#include <math.h>

#include "alloc.h"
#include "attention/attention_step_impls.h"
#include "check.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static void choose_attention_step_as_gpu(kr_case *c, kr_attention_step_args *a, int64_t index) {
  c->contiguous = 1, c->dtype = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16, c->other = KRAIT_F32;
  a->call.flags = 0, a->D = kr_case_chance(c, 0.6) ? 64 : 128, a->R = a->D / 2;
  a->H = a->Hk * kr_case_pick(c, 8, (int64_t[]){1, 2, 6, 7, 8, 9, 12, 16});
  a->Lk = index % 12 == 1 ? kr_case_int(c, 900, 4200) : kr_case_edge(c, 600);
}

static void choose_hard_step(kr_case *c, kr_attention_step_args *a) {
  kr_case_fill_normal(c, &a->q, 0, 5), kr_case_fill_normal(c, &a->k, 0, 3), kr_case_fill_normal(c, &a->v, 0, 3);
  kr_case_fill_normal(c, &a->k_cache, 0, 3);
  if (kr_case_chance(c, 0.5)) kr_case_fill_ends(c, &a->v_cache, KR_MOST_LINEAR, -INFINITY);
}

/* Beyond each sequence's new token, and rows of the cache that are nobody's. */
static int32_t spoil_cache(kr_case *c, const kr_attention_step_args *a) {
  const kr_view *rows = &a->cache_batch_idx;
  unsigned char *const reached = kr_zalloc((size_t)(a->Bk * a->Lk + 1));
  KR_CHECK(reached, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  for (int64_t b = 0; b < a->B; b++) {
    const int64_t row = kr_has(rows) ? kr_get_i32(rows, kr_at1(rows, b)) : b,
                  last = kr_get_i32(&a->cache_seqlens, kr_at1(&a->cache_seqlens, b));
    for (int64_t t = 0; row >= 0 && t <= last; t++) reached[row * a->Lk + t] = 1;
  }
  kr_case_spoil(c, &a->k_cache, 1, reached), kr_case_spoil(c, &a->v_cache, 1, reached);
  kr_free(reached);
  return KRAIT_OK;
}

int32_t kr_attention_step_case(kr_case *c, int64_t index) {
  kr_attention_step_args *a = (kr_attention_step_args *)c->args;
  const int is_gpu = index % 3 != 0 && !c->is_exact, is_spoiled = kr_case_chance(c, 0.5);
  a->B = kr_case_int(c, 1, 3), a->Hk = kr_case_int(c, 1, 2), a->H = a->Hk * kr_case_int(c, 1, 3);
  a->R = kr_case_edge(c, 20), a->D = 2 * a->R + (kr_case_chance(c, 0.5) && a->R ? 0 : kr_case_int(c, 1, 9));
  a->Lk = kr_case_edge(c, 90);
  if (is_gpu) choose_attention_step_as_gpu(c, a, index);
  if (a->Lk < 1) a->Lk = 1;
  a->Bk = a->B, a->T = a->Lk + kr_case_int(c, 0, 5);
  if (is_gpu) { /* the weights of norms are float32 */
    const int32_t angles = c->other;
    if (kr_case_chance(c, 0.5))
      kr_case_give(c, "q_norm"), kr_case_give(c, "k_norm");
    else
      kr_case_leave_out(c, "q_norm");
    c->other = angles;
  }
  kr_view *lengths = kr_case_give(c, "cache_seqlens");
  const int64_t most = c->is_hard && kr_case_chance(c, 0.5) ? (a->Lk - 1 < 2 ? a->Lk - 1 : 2) : a->Lk - 1;
  for (int64_t b = 0; b < a->B; b++)
    kr_case_set_i32(c, lengths, b, (int32_t)(kr_case_chance(c, 0.2) ? most : kr_case_int(c, 0, most)));
  kr_case_give_rest(c);
  if (c->is_hard) choose_hard_step(c, a);
  return c->status < 0 || c->is_unfilled || c->is_exact || !is_spoiled ? c->status : spoil_cache(c, a);
}
