/* attention_append_ref.c: appends keys, rotated by position, and values to a cache; written to be read. Double
 * arithmetic. */
#include "contract.h"
#include "op_list.h"
#include "rotary_turn.h"

static int32_t check_attention_append_sequence(const kr_attention_append_args *a, int64_t b) {
  const int64_t position = kr_append_position(a, b), end = position + a->L,
                capacity = kr_has(&a->block_table) ? a->n_pages * a->Lk : a->Lk;
  KR_CHECK(position >= 0 && end <= capacity, KRAIT_ERR_ARGUMENT,
           "attention_append: cache_seqlens[%lld] is %lld: with L %lld more there is room for %lld", (long long)b,
           (long long)position, (long long)a->L, (long long)capacity);
  KR_CHECK(!kr_has(&a->cos) || a->L == 0 || end <= a->T, KRAIT_ERR_ARGUMENT,
           "attention_append: sequence %lld ends at position %lld, cos and sin have %lld", (long long)b, (long long)end,
           (long long)a->T);
  for (int64_t page = position / (a->Lk ? a->Lk : 1); kr_has(&a->block_table) && page * a->Lk < end; page++) {
    const int64_t row = kr_get_i32(&a->block_table, kr_at2(&a->block_table, b, page));
    KR_CHECK(row >= 0 && row < a->Bk, KRAIT_ERR_ARGUMENT,
             "attention_append: block_table[%lld,%lld] is %lld, must be in 0..%lld", (long long)b, (long long)page,
             (long long)row, (long long)a->Bk - 1);
  }
  return KRAIT_OK;
}

int32_t kr_append_check_indices(const kr_attention_append_args *a) {
  KR_TRY(kr_need_rows("attention_append", "cache_batch_idx", &a->cache_batch_idx, a->B, a->Bk));
  for (int64_t b = 0; b < a->B; b++) KR_TRY(check_attention_append_sequence(a, b));
  return KRAIT_OK;
}

static void put_key(const kr_attention_append_args *a, int64_t from, int64_t to, int64_t position) {
  const kr_view *k = &a->k, *out = &a->k_cache;
  const int64_t turned = kr_has(&a->cos) ? a->R : 0;
  for (int64_t r = 0; r < turned; r++) {
    const int64_t d1 = kr_rotary_first(a->call.flags, r), d2 = kr_rotary_second(a->call.flags, r, a->R);
    const double c = kr_get(&a->cos, kr_at2(&a->cos, position, r)), s = kr_get(&a->sin, kr_at2(&a->sin, position, r));
    const double x1 = kr_get(k, from + d1 * k->stride[3]), x2 = kr_get(k, from + d2 * k->stride[3]);
    kr_put(out, to + d1 * out->stride[3], x1 * c - x2 * s);
    kr_put(out, to + d2 * out->stride[3], x1 * s + x2 * c);
  }
  for (int64_t d = 2 * turned; d < a->D; d++) kr_put(out, to + d * out->stride[3], kr_get(k, from + d * k->stride[3]));
}

static void put_token(const kr_attention_append_args *a, int64_t b, int64_t i) {
  const int64_t position = kr_append_position(a, b) + i;
  for (int64_t h = 0; h < a->Hk; h++) {
    const int64_t v = kr_at3(&a->v, b, i, h),
                  v_to = kr_append_at(a, &a->v_cache, b, position) + h * a->v_cache.stride[2];
    put_key(a, kr_at3(&a->k, b, i, h), kr_append_at(a, &a->k_cache, b, position) + h * a->k_cache.stride[2], position);
    for (int64_t d = 0; d < a->Dv; d++)
      kr_put(&a->v_cache, v_to + d * a->v_cache.stride[3], kr_get(&a->v, v + d * a->v.stride[3]));
  }
}

int32_t kr_attention_append_ref(const krait_ctx *ctx, const void *args) {
  const kr_attention_append_args *a = args;
  (void)ctx;
  KR_TRY(kr_append_check_indices(a));
  for (int64_t b = 0; b < a->B; b++) {
    for (int64_t i = 0; i < a->L && kr_append_row(a, b) >= 0; i++) put_token(a, b, i);
    if (kr_has(&a->seqused))
      ((int32_t *)a->seqused.data)[kr_at1(&a->seqused, b)] = (int32_t)(kr_append_position(a, b) + a->L);
  }
  return KRAIT_OK;
}
