/* attention_inputs.c: the rules of attention's contract, and the layout of its sequences. */
#include "attention_inputs.h"

#include <math.h>

#include "contract.h"

static const int64_t FAR = (int64_t)1 << 60;
static const kr_view none = {0};

#define COMMON(a)                                                                                                  \
  .flags = (a)->call.flags, .B = (a)->B, .Lq = (a)->Lq, .Lk = (a)->Lk, .H = (a)->H, .Hk = (a)->Hk, .D = (a)->D,    \
  .Dv = (a)->Dv, .Bk = (a)->Bk, .n_pages = (a)->n_pages, .max_q = (a)->max_q, .max_k = (a)->max_k,                 \
  .scale = (a)->scale, .softcap = (a)->softcap, .dropout = (a)->dropout, .q = &(a)->q, .k = &(a)->k, .v = &(a)->v, \
  .cu_seqlens_q = &(a)->cu_seqlens_q, .cu_seqlens_k = &(a)->cu_seqlens_k, .seqused_q = &(a)->seqused_q,            \
  .seqused_k = &(a)->seqused_k, .alibi_slopes = &(a)->alibi_slopes, .sinks = &(a)->sinks, .rng = &(a)->rng

static int64_t limit(int64_t window) { return window < 0 || window > FAR ? FAR : window; }

static void finish_attention_inputs(kr_attention_inputs *in, int64_t window_left, int64_t window_right) {
  const int has_window = (in->flags & KRAIT_ATTENTION_WINDOW) != 0;
  in->left = has_window ? limit(window_left) : FAR;
  in->right = in->flags & KRAIT_ATTENTION_CAUSAL ? 0 : has_window ? limit(window_right) : FAR;
  if (in->scale == 0) in->scale = (float)(1 / sqrt((double)in->D));
}

kr_attention_inputs kr_attention_inputs_of(const kr_attention_args *a) {
  kr_attention_inputs in = {.op = "attention",
                            COMMON(a),
                            .takes_narrow_keys = 1,
                            .leftpad_k = &a->leftpad_k,
                            .cache_batch_idx = &a->cache_batch_idx,
                            .block_table = &a->block_table};
  finish_attention_inputs(&in, a->window_left, a->window_right);
  return in;
}

kr_attention_inputs kr_attention_bwd_inputs_of(const kr_attention_bwd_args *a) {
  kr_attention_inputs in = {
      .op = "attention_bwd", COMMON(a), .leftpad_k = &none, .cache_batch_idx = &none, .block_table = &none};
  finish_attention_inputs(&in, a->window_left, a->window_right);
  return in;
}

/* A cache of 16 bits may stand beside queries of float32; a gradient has one type. */
static int32_t check_key_type(const kr_attention_inputs *in) {
  if (in->takes_narrow_keys && in->q->dtype == KRAIT_F32) return KRAIT_OK;
  return kr_need_same_type(in->op, "k", in->k, "q", in->q);
}

int32_t kr_attention_check_rules(const kr_attention_inputs *in) {
  const char *op = in->op;
  KR_TRY(check_key_type(in));
  KR_CHECK(isfinite(in->scale), KRAIT_ERR_ARGUMENT, "%s: scale is not finite", op);
  KR_CHECK(isfinite(in->softcap) && in->softcap >= 0, KRAIT_ERR_ARGUMENT, "%s: softcap is %g, must be 0 (none) or more",
           op, (double)in->softcap);
  KR_CHECK(in->dropout >= 0 && in->dropout < 1, KRAIT_ERR_ARGUMENT, "%s: dropout is %g, must be at least 0 and below 1",
           op, (double)in->dropout);
  KR_CHECK(in->softcap == 0 || in->dropout == 0, KRAIT_ERR_ARGUMENT, "%s: softcap cannot be set with dropout", op);
  if (in->dropout == 0)
    KR_TRY(kr_need_absent(op, "rng", in->rng, "without dropout"));
  else
    KR_TRY(kr_need(op, "rng", in->rng, KR_TYPE_I32));
  if (kr_has(in->block_table)) {
    KR_TRY(kr_need_size(op, "Lk with block_table", in->Lk, 1, INT32_MAX));
    KR_CHECK(in->n_pages <= INT32_MAX / in->Lk, KRAIT_ERR_SHAPE,
             "%s: n_pages %lld of Lk %lld keys are more than an int32 counts", op, (long long)in->n_pages,
             (long long)in->Lk);
    return KRAIT_OK;
  }
  KR_TRY(kr_need_size(op, "n_pages without block_table", in->n_pages, 0, 0));
  if (kr_has(in->cu_seqlens_k) || kr_has(in->cache_batch_idx)) return KRAIT_OK;
  KR_CHECK(in->Bk == in->B, KRAIT_ERR_SHAPE,
           "%s: k has Bk %lld rows, must have B %lld without cu_seqlens_k, cache_batch_idx and block_table", op,
           (long long)in->Bk, (long long)in->B);
  return KRAIT_OK;
}

/* ---- sequences ---- */

static int64_t entry(const kr_view *view, int64_t i) { return kr_get_i32(view, kr_at1(view, i)); }

/* Queries or keys of sequence b before seqused and leftpad, and the index of the first. */
static int64_t attention_inputs_length_of(const kr_view *cu_seqlens, int64_t b, int64_t length, int64_t *first) {
  *first = kr_has(cu_seqlens) ? entry(cu_seqlens, b) : 0;
  return kr_has(cu_seqlens) ? entry(cu_seqlens, b + 1) - *first : length;
}

int64_t kr_attention_most_keys(const kr_attention_inputs *in) {
  return kr_has(in->block_table) ? in->n_pages * in->Lk : in->Lk;
}

kr_attention_sequence kr_attention_sequence_at(const kr_attention_inputs *in, int64_t b) {
  kr_attention_sequence s = {
      .b = b, .q_row = kr_has(in->cu_seqlens_q) ? 0 : b, .k_row = kr_has(in->cu_seqlens_k) ? 0 : b};
  s.n_rows = s.nq = attention_inputs_length_of(in->cu_seqlens_q, b, in->Lq, &s.q_first);
  s.n_key_rows = s.nk = attention_inputs_length_of(in->cu_seqlens_k, b, kr_attention_most_keys(in), &s.k_first);
  if (kr_has(in->seqused_q)) s.nq = entry(in->seqused_q, b);
  if (kr_has(in->seqused_k)) s.nk = entry(in->seqused_k, b);
  if (kr_has(in->leftpad_k)) s.k_first += entry(in->leftpad_k, b), s.nk -= entry(in->leftpad_k, b);
  if (kr_has(in->cache_batch_idx)) s.k_row = entry(in->cache_batch_idx, b);
  if (s.k_row < 0) s.k_row = 0, s.nk = 0;
  return s;
}

static int32_t check_count(const char *op, const char *name, const kr_view *view, int64_t b, int64_t most) {
  if (!kr_has(view)) return KRAIT_OK;
  const int64_t count = entry(view, b);
  KR_CHECK(count >= 0 && count <= most, KRAIT_ERR_ARGUMENT, "%s: %s[%lld] is %lld, must be in 0..%lld", op, name,
           (long long)b, (long long)count, (long long)most);
  return KRAIT_OK;
}

static int32_t check_limit(const char *op, const char *name, const kr_view *cu_seqlens, int64_t b, int64_t length,
                           int64_t most) {
  if (!kr_has(cu_seqlens) || most == 0) return KRAIT_OK;
  KR_CHECK(length <= most, KRAIT_ERR_ARGUMENT, "%s: sequence %lld has %lld tokens, more than %s %lld", op, (long long)b,
           (long long)length, name, (long long)most);
  return KRAIT_OK;
}

static int32_t check_attention_inputs_sequence(const kr_attention_inputs *in, int64_t b) {
  int64_t first;
  const int64_t nq = attention_inputs_length_of(in->cu_seqlens_q, b, in->Lq, &first),
                nk = attention_inputs_length_of(in->cu_seqlens_k, b, kr_attention_most_keys(in), &first);
  KR_TRY(check_limit(in->op, "max_q", in->cu_seqlens_q, b, nq, in->max_q));
  KR_TRY(check_limit(in->op, "max_k", in->cu_seqlens_k, b, nk, in->max_k));
  KR_TRY(check_count(in->op, "seqused_q", in->seqused_q, b, nq));
  KR_TRY(check_count(in->op, "seqused_k", in->seqused_k, b, nk));
  const int64_t used = kr_has(in->seqused_k) ? entry(in->seqused_k, b) : nk;
  KR_TRY(check_count(in->op, "leftpad_k", in->leftpad_k, b, used));
  for (int64_t page = 0; kr_has(in->block_table) && page * in->Lk < used; page++) {
    const int64_t row = kr_get_i32(in->block_table, kr_at2(in->block_table, b, page));
    KR_CHECK(row >= 0 && row < in->Bk, KRAIT_ERR_ARGUMENT, "%s: block_table[%lld,%lld] is %lld, must be in 0..%lld",
             in->op, (long long)b, (long long)page, (long long)row, (long long)in->Bk - 1);
  }
  return KRAIT_OK;
}

int32_t kr_attention_check_indices(const kr_attention_inputs *in) {
  if (kr_has(in->cu_seqlens_q)) KR_TRY(kr_need_offsets(in->op, "cu_seqlens_q", in->cu_seqlens_q, in->B, in->Lq));
  if (kr_has(in->cu_seqlens_k)) KR_TRY(kr_need_offsets(in->op, "cu_seqlens_k", in->cu_seqlens_k, in->B, in->Lk));
  KR_TRY(kr_need_rows(in->op, "cache_batch_idx", in->cache_batch_idx, in->B, in->Bk));
  for (int64_t b = 0; b < in->B; b++) KR_TRY(check_attention_inputs_sequence(in, b));
  return KRAIT_OK;
}

/* ---- dropout: Philox-4x32-10 (Salmon et al. 2011) ---- */

void kr_attention_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0, c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1, c3 = (uint32_t)a;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

kr_attention_dropout kr_attention_dropout_of(const kr_attention_inputs *in) {
  kr_attention_dropout d = {.threshold = (uint32_t)(256 * (1 - in->dropout) + 0.5f), .scale = 1 / (1 - in->dropout)};
  if (!kr_has(in->rng)) return d;
  d.key[0] = (uint32_t)entry(in->rng, 0);
  d.key[1] = (uint32_t)entry(in->rng, 1) ^ (uint32_t)entry(in->rng, 3);
  d.stream = (uint32_t)entry(in->rng, 2);
  return d;
}

int kr_attention_keeps(const kr_attention_dropout *d, int64_t b_head, int64_t i, int64_t j) {
  const uint32_t counter[4] = {(uint32_t)(j / 32 * 4 + j % 8 / 2), (uint32_t)(i / 16 * 8 + i % 8), (uint32_t)b_head,
                               d->stream};
  const int64_t byte = j % 32 / 8 * 4 + i % 16 / 8 * 2 + j % 2;
  uint32_t words[4];
  kr_attention_philox(d->key, counter, words);
  return (words[byte / 4] >> byte % 4 * 8 & 0xff) < d->threshold;
}
