/* attention_check.c: random calls of attention, its gradient, rotary embedding and the cache: tile edges, unequal
 * lengths, packed sequences (some empty), pages, masks; hard ones: few keys, rows that see one, large scores, values at
 * their type's ends. The gradient takes the forward call's results from the reference. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "attention_inputs.h"
#include "attention_impls.h"
#include "check.h"
#include "op_list.h"
#include "status.h"

/* Hard values meet all kernels of tensor cores: 16 bits, no option that they lack. */
static int is_plain_for_attention(const kr_case *c, int64_t index) { return c->is_hard && index % 3 == 0; }

static void choose_plain(kr_case *c) {
  static const char *const given[] = {"q", "k", "v", "dq", "dk", "dv"};
  c->dtype = kr_case_pick(c, 3, (int64_t[]){KRAIT_F16, KRAIT_F16, KRAIT_BF16});
  kr_case_leave_out(c, "alibi_slopes");
  if (c->sig->forward && kr_case_chance(c, 0.5)) ((kr_call *)c->args)->flags |= KRAIT_ATTENTION_ANY_ORDER;
  for (int i = 0; i < (c->sig->forward ? 6 : 3); i++) kr_case_give(c, given[i]);
}

static void choose_attention_sizes(kr_case *c, int64_t index) {
  const int usual =
      index % 3 == 0 && !c->is_exact; /* for the kernels of common sizes: aligned tensors, whole vectors */
  const int64_t Hk = kr_case_int(c, 1, 2);
  int64_t *D = kr_case_size(c, "D"), *Lq = kr_case_size(c, "Lq"), *Lk = kr_case_size(c, "Lk");
  c->contiguous = usual;
  c->anywhere = !usual && index % 5 == 2; /* as the few-query implementations need the keys */
  *kr_case_size(c, "B") = *kr_case_size(c, "Bk") = kr_case_int(c, 1, 2);
  *kr_case_size(c, "Hk") = Hk, *kr_case_size(c, "H") = Hk * (kr_case_chance(c, 0.5) ? 1 : kr_case_int(c, 2, 3));
  *D = c->is_exact       ? kr_case_int(c, 1, 5)
       : usual           ? kr_case_pick(c, 6, (int64_t[]){32, 64, 64, 96, 128, 128})
       : index % 20 == 4 ? kr_case_edge(c, 256)
                         : kr_case_edge(c, 70);
  if (usual && index % 15 == 0) *D = kr_case_pick(c, 5, (int64_t[]){8, 80, 192, 256, 512});
  *kr_case_size(c, "Dv") = !usual && kr_case_chance(c, 0.3) ? kr_case_edge(c, 40) : *D;
  const int64_t most = *D > 128 ? 100 : index % 8 == 1 ? 300 : 150;
  if (index % 40 == 7 && !c->is_exact)
    *Lq = kr_case_int(c, 1, 9),
    *Lk = kr_case_int(c, 500, 1300); /* more keys than one chunk of the few-query implementations */
  else
    *Lq = index % 5 == 2 ? kr_case_int(c, 1, 3) : kr_case_edge(c, most),
    *Lk = kr_case_chance(c, 0.4) ? *Lq : kr_case_edge(c, index % 5 == 2 ? 2 * most : most);
}

/* Few keys, down to one, or few queries; and rows that see only one. */
static void choose_few(kr_case *c) {
  kr_attention_args *a = (kr_attention_args *)c->args;
  if (!c->is_hard) return;
  if (kr_case_chance(c, 0.5)) *kr_case_size(c, "Lk") = kr_case_int(c, 1, 5);
  else if (kr_case_chance(c, 0.3)) *kr_case_size(c, "Lq") = kr_case_int(c, 1, 2);
  if (kr_case_chance(c, 0.15)) a->call.flags |= KRAIT_ATTENTION_WINDOW, a->window_left = a->window_right = 0;
}

/* Values in 0..most, one per sequence. */
static void give_counts(kr_case *c, const char *name, int64_t low, int64_t most) {
  kr_view *view = kr_case_give(c, name);
  for (int64_t b = 0; b < *kr_case_size(c, "B"); b++) kr_case_set_i32(c, view, b, (int32_t)kr_case_int(c, low, most));
}

/* At most the sequence's length. */
static void give_used(kr_case *c, const char *name, const kr_view *cu_seqlens, int64_t length) {
  kr_view *view = kr_case_give(c, name);
  for (int64_t b = 0; b < *kr_case_size(c, "B"); b++) {
    if (kr_has(cu_seqlens))
      length = kr_get_i32(cu_seqlens, kr_at1(cu_seqlens, b + 1)) - kr_get_i32(cu_seqlens, kr_at1(cu_seqlens, b));
    kr_case_set_i32(c, view, b, (int32_t)kr_case_int(c, 0, length));
  }
}

static kr_view *attention_view_of(kr_case *c, const char *name) {
  return kr_sig_view(c->sig, c->args, kr_sig_find(c->sig, name));
}

static void choose_lengths(kr_case *c) {
  const int64_t mode = kr_case_int(c, 0, 9);
  int64_t *B = kr_case_size(c, "B"), *Bk = kr_case_size(c, "Bk"), *Lq = kr_case_size(c, "Lq"),
          *Lk = kr_case_size(c, "Lk");
  if (mode <= 2) { /* packed */
    *B = kr_case_int(c, 1, 4);
    kr_case_give(c, "cu_seqlens_q");
    *Bk = mode < 2 ? 1 : *B;
    if (mode < 2) kr_case_give(c, "cu_seqlens_k");
    if (kr_case_chance(c, 0.3)) *kr_case_size(c, "max_q") = *Lq;
  }
  if (kr_case_chance(c, 0.2)) give_used(c, "seqused_q", attention_view_of(c, "cu_seqlens_q"), *Lq);
  if (kr_case_chance(c, 0.3)) give_used(c, "seqused_k", attention_view_of(c, "cu_seqlens_k"), *Lk);
}

/* Pages in random order; entries past the last used one are out of range. */
static void give_pages(kr_case *c) {
  kr_attention_args *a = (kr_attention_args *)c->args;
  const int64_t total = a->Lk, page = kr_case_pick(c, 5, (int64_t[]){1, 3, 16, 64, 16}), spare = kr_case_int(c, 0, 2);
  a->Lk = page, a->n_pages = (total + page - 1) / page, a->Bk = a->B * a->n_pages + spare;
  kr_view *table = kr_case_give(c, "block_table"), *used = kr_case_give(c, "seqused_k");
  for (int64_t b = 0; b < a->B; b++) {
    const int64_t n = kr_case_int(c, 0, a->n_pages * page);
    kr_case_set_i32(c, used, b, (int32_t)n);
    for (int64_t p = 0; p < a->n_pages; p++)
      kr_case_set_i32(c, table, b * a->n_pages + p,
                      p * page < n ? (int32_t)((p * a->B + b + spare) % a->Bk)
                      : p % 2      ? -1
                                   : INT32_MAX);
  }
}

static void choose_cache(kr_case *c) {
  kr_attention_args *a = (kr_attention_args *)c->args;
  if (kr_has(&a->cu_seqlens_k) || !kr_case_chance(c, 0.4)) return;
  if (kr_case_chance(c, 0.5) && !kr_has(&a->seqused_k)) {
    give_pages(c);
    return;
  }
  if (kr_case_chance(c, 0.6)) {
    a->Bk = kr_case_int(c, 1, 3);
    kr_view *rows = kr_case_give(c, "cache_batch_idx");
    for (int64_t b = 0; b < a->B; b++)
      kr_case_set_i32(c, rows, b, (int32_t)kr_case_int(c, kr_case_chance(c, 0.8) ? 0 : -1, a->Bk - 1));
  }
  if (!kr_has(&a->seqused_k) && kr_case_chance(c, 0.5)) give_counts(c, "leftpad_k", 0, a->Lk);
}

/* Both structs have these fields at the same offsets. */
static void choose_masks(kr_case *c, int plain) {
  kr_attention_args *a = (kr_attention_args *)c->args;
  if (kr_case_chance(c, 0.45)) a->call.flags |= KRAIT_ATTENTION_CAUSAL;
  if (kr_case_chance(c, 0.25)) a->call.flags |= KRAIT_ATTENTION_WINDOW;
  if (c->sig->forward && kr_case_chance(c, 0.4)) a->call.flags |= KRAIT_ATTENTION_ANY_ORDER;
  if (!c->is_hard || kr_case_chance(c, 0.8))
    a->window_left = kr_case_int(c, -1, kr_case_chance(c, 0.5) ? 5 : 100),
    a->window_right = kr_case_int(c, -1, kr_case_chance(c, 0.5) ? 5 : 100);
  a->scale = kr_case_chance(c, 0.3) ? (float)kr_case_uniform(c, 0.02, 0.5) : 0;
  a->softcap = a->dropout = 0;
  if (plain) return;
  if (kr_case_chance(c, 0.15)) a->softcap = (float)kr_case_uniform(c, 0.5, 5);
  else if (kr_case_chance(c, 0.15)) a->dropout = (float)kr_case_uniform(c, 0.1, 0.9), kr_case_give(c, "rng");
}

_Static_assert(offsetof(kr_attention_args, reserved) == offsetof(kr_attention_bwd_args, reserved),
               "sizes and fields of both");

/* P and, on tensor cores, dS are rounded to the storage type before the product: errors as large as a row's terms. dP -
 * delta is a difference of sums with terms about 1, and zero where a query sees one key. */
static void set_attention_bounds(kr_case *c) {
  for (int i = 0; i < c->sig->n_tensors && c->dtype != KRAIT_F32 && !c->is_exact; i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    if (c->sig->tensors[i].role & KR_OUT && view->data)
      kr_case_bound(c, view, c->dtype == KRAIT_F16 ? 8e-3 : 6e-2,
                    c->sig->forward            ? 1e-4
                    : view->dtype == KRAIT_F16 ? 1.2e-7
                                               : 1e-30);
  }
}

/* A score's last places are an exponential's error. */
static void widen_bounds(kr_case *c, double score) {
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].role & KR_OUT) c->tensors[i].rtol += score * 0x1p-21;
}

/* The distances of linear biases are part of the scores: of a query that sees far keys only, the nearest one's. Each
 * key's score is rounded at that size, and out, by each P, by as much. */
static void widen_for_bias(kr_case *c, const kr_attention_inputs *in) {
  static const double most_slope = 0.5; /* attention.sig */
  int64_t far = 0;
  if (!kr_has(in->alibi_slopes) || c->is_unfilled || c->is_exact) return;
  for (int64_t b = 0; b < in->B; b++) {
    const kr_attention_sequence s = kr_attention_sequence_at(in, b);
    const int64_t nearest = s.nq - s.nk < in->right ? s.nq - s.nk : in->right;
    if (s.nk > 0 && nearest > far) far = nearest;
  }
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].role & KR_OUT && strcmp(c->tensors[i].name, "lse"))
      c->tensors[i].rtol += most_slope * (double)far * 0x1p-21;
}

/* ---- hard values ---- */

static void refill(kr_case *c, const char *name, double deviation) {
  kr_view *view = attention_view_of(c, name);
  if (view->data) kr_case_fill_normal(c, view, 0, deviation);
}

/* Scores with this standard deviation, half of the factor in each of q and k. */
static void spread_scores(kr_case *c, double deviation) {
  const kr_attention_args *a = (const kr_attention_args *)c->args;
  const double scale = a->scale > 0 ? (double)a->scale : 1 / sqrt((double)a->D),
               each = sqrt(deviation / scale / sqrt((double)a->D));
  refill(c, "q", each), refill(c, "k", each);
}

/* One tensor at the ends of its type: the others are such that scores stay moderate and, in float16, so does dS, which
 * tensor cores take in that type. */
static void give_attention_ends(kr_case *c) {
  const kr_attention_args *a = (const kr_attention_args *)c->args;
  const int n = c->sig->forward ? 4 : 3, which = (int)kr_case_int(c, 0, n - 1);
  static const char *const names[] = {"q", "k", "v", "dout"}, *const partners[] = {"k", "q", "dout", "v"};
  kr_view *view = attention_view_of(c, names[which]);
  const double kept = 1 - (double)a->dropout, /* out is finite, also where a value is rounded up */
               most = (c->dtype == KRAIT_F16 ? 65504 : KR_MOST_LINEAR) * (kept < 1 ? 0.999 * kept : 1);
  kr_case_fill_ends(c, view, most, -INFINITY);
  if (which < 2) refill(c, partners[which], 20 / most);
  else if (c->sig->forward && c->dtype == KRAIT_F16) refill(c, partners[which], 1 / (16 * (double)a->Dv));
}

static void choose_values(kr_case *c) {
  kr_attention_args *a = (kr_attention_args *)c->args;
  const int64_t kind = kr_case_int(c, 0, 5);
  double score = 30; /* q of 5 and k of 3: 15, with the usual scale */
  if (!c->is_hard || c->status < 0) return;
  if (kind <= 2) {
    refill(c, "q", 5), refill(c, "k", 3), refill(c, "v", 3);
    if (a->scale > 0) score = 15 * (double)a->scale * sqrt((double)a->D);
  } else if (kind == 3) {
    score = exp(kr_case_uniform(c, 2.3, 5.7));
    spread_scores(c, score);
  } else {
    give_attention_ends(c);
  }
  if (a->softcap > 0) /* far beyond it, only rounding is left of its slope */
    a->softcap = (float)(score * kr_case_uniform(c, 0.5, 2));
  if (kr_case_chance(c, 0.3)) refill(c, "sinks", 10);
  widen_bounds(c, 5 * score);
}

/* Keys and values of 16 bits beside queries of float32. */
static void give_narrow_keys(kr_case *c) {
  if (c->dtype != KRAIT_F32 || c->is_exact || c->is_hard || !kr_case_chance(c, 0.3)) return;
  c->dtype = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
  kr_case_give(c, "k"), kr_case_give(c, "v");
  c->dtype = KRAIT_F32;
}

/* ---- memory that nobody wrote: ends of caches and pages, padding ---- */

typedef struct reached_rows {
  unsigned char *queries, *keys; /* (B,Lq) or (1,Lq), (Bk,Lk): what some sequence reaches */
} reached_rows;

static int32_t find_reached(const kr_attention_inputs *in, reached_rows *r) {
  r->queries = kr_zalloc((size_t)(in->B * in->Lq + 1)), r->keys = kr_zalloc((size_t)(in->Bk * in->Lk + 1));
  KR_CHECK(r->queries && r->keys, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  for (int64_t b = 0; b < in->B; b++) {
    const kr_attention_sequence s = kr_attention_sequence_at(in, b);
    const kr_view rows = {.stride = {in->Lk, 1}};
    for (int64_t i = 0; i < s.nq; i++) r->queries[s.q_row * in->Lq + s.q_first + i] = 1;
    for (int64_t j = 0; j < s.nk; j++) r->keys[kr_attention_key(in, &s, &rows, j)] = 1;
  }
  return KRAIT_OK;
}

/* The gradient's inputs are spoiled in two parts: those of the forward call, and its results. */
static void spoil_attention(kr_case *c, const kr_attention_inputs *in, int results) {
  reached_rows r = {0};
  if (c->status >= 0 && !c->is_unfilled) c->status = find_reached(in, &r);
  if (c->status >= 0 && !c->is_unfilled && !results) {
    kr_case_spoil(c, in->q, 1, r.queries), kr_case_spoil(c, in->k, 1, r.keys), kr_case_spoil(c, in->v, 1, r.keys);
  } else if (c->status >= 0 && !c->is_unfilled) {
    kr_attention_bwd_args *a = (kr_attention_bwd_args *)c->args;
    kr_case_spoil(c, &a->out, 1, r.queries), kr_case_spoil(c, &a->dout, 1, r.queries);
    kr_case_spoil(c, &a->lse, 2, r.queries), kr_case_spoil(c, &a->dlse, 2, r.queries);
  }
  kr_free(r.queries), kr_free(r.keys);
}

static int is_to_spoil(kr_case *c) { return kr_case_chance(c, 0.5) && !c->is_exact; }

int32_t kr_attention_case(kr_case *c, int64_t index) {
  choose_attention_sizes(c, index);
  choose_few(c);
  choose_lengths(c);
  if (!c->is_exact) choose_cache(c); /* has no gradient */
  choose_masks(c, is_plain_for_attention(c, index));
  if (is_plain_for_attention(c, index)) choose_plain(c);
  give_narrow_keys(c);
  kr_case_give_rest(c);
  set_attention_bounds(c);
  choose_values(c);
  const kr_attention_inputs in = kr_attention_inputs_of((const kr_attention_args *)c->args);
  if (c->status >= 0) widen_for_bias(c, &in);
  if (is_to_spoil(c)) spoil_attention(c, &in, 0);
  return c->status;
}

static int32_t make_forward(const kr_attention_bwd_args *b) {
  kr_attention_args a = {.call = {.size = sizeof a, .flags = b->call.flags}};
  memcpy(&a.B, &b->B, offsetof(kr_attention_args, q) - offsetof(kr_attention_args, B));
  a.q = b->q, a.k = b->k, a.v = b->v, a.cu_seqlens_q = b->cu_seqlens_q, a.cu_seqlens_k = b->cu_seqlens_k,
  a.seqused_q = b->seqused_q, a.seqused_k = b->seqused_k;
  a.alibi_slopes = b->alibi_slopes, a.sinks = b->sinks, a.rng = b->rng, a.out = b->out, a.lse = b->lse;
  a.call.scratch = kr_alloc(kr_attention_ref_scratch(NULL, &a) + 1);
  KR_CHECK(a.call.scratch, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  const int32_t status = kr_attention_ref(NULL, &a);
  kr_free(a.call.scratch);
  return status;
}

int32_t kr_attention_bwd_case(kr_case *c, int64_t index) {
  choose_attention_sizes(c, index);
  choose_few(c);
  choose_lengths(c);
  choose_masks(c, is_plain_for_attention(c, index));
  if (is_plain_for_attention(c, index)) choose_plain(c);
  kr_case_give(c, "lse");
  kr_case_give_rest(c);
  set_attention_bounds(c);
  choose_values(c);
  KR_TRY(c->status);
  const kr_attention_inputs in = kr_attention_bwd_inputs_of((const kr_attention_bwd_args *)c->args);
  widen_for_bias(c, &in);
  const int spoiled = is_to_spoil(c);
  if (c->is_unfilled) return KRAIT_OK;
  if (spoiled) spoil_attention(c, &in, 0);
  KR_TRY(make_forward((const kr_attention_bwd_args *)c->args));
  if (spoiled) spoil_attention(c, &in, 1);
  return c->status;
}

/* ---- rotary embedding, cache ---- */

int32_t kr_rotary_case(kr_case *c, int64_t index) {
  kr_rotary_args *a = (kr_rotary_args *)c->args;
  c->contiguous = index % 3 == 0;
  a->B = kr_case_int(c, 1, 3), a->L = kr_case_edge(c, 40), a->H = kr_case_int(c, 1, 3);
  a->R = c->contiguous ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, 33);
  a->D = 2 * a->R + (kr_case_chance(c, 0.5) ? 0 : kr_case_int(c, 0, 9));
  a->T = a->L + kr_case_int(c, 0, 20);
  if (kr_case_chance(c, 0.5)) give_counts(c, "offsets", 0, a->T - a->L);
  if (kr_case_chance(c, 0.3)) kr_case_give(c, "cu_seqlens");
  kr_case_hard(c, KR_NAMES("x"), KR_MOST_LINEAR);
  return KRAIT_OK;
}

/* Every row or page at most once. */
int32_t kr_attention_append_case(kr_case *c, int64_t index) {
  kr_attention_append_args *a = (kr_attention_append_args *)c->args;
  c->contiguous = index % 3 == 0;
  a->B = kr_case_int(c, 1, 3), a->L = kr_case_edge(c, 20), a->Hk = kr_case_int(c, 1, 3);
  a->R = c->contiguous ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, 33) - kr_case_int(c, 0, 1);
  a->D = 2 * a->R + (kr_case_chance(c, 0.5) ? 0 : kr_case_int(c, 0, 9)) + (a->R == 0),
  a->Dv = kr_case_chance(c, 0.5) ? a->D : kr_case_edge(c, 40);
  if (c->contiguous && kr_case_chance(c, 0.5)) /* GPUs' packs */
    a->D = 2 * a->R + 8 * kr_case_int(c, 0, 2), a->Dv = 8 * kr_case_int(c, 1, 6);
  a->Lk = a->L + kr_case_int(c, 0, 20), a->Bk = a->B, a->n_pages = 0;
  const int64_t capacity = a->Lk;
  a->T = capacity + kr_case_int(c, 0, 5);
  if (kr_case_chance(c, 0.6) && a->R > 0) kr_case_give(c, "cos");
  else kr_case_leave_out(c, "cos"), a->R = a->T = 0;
  if (kr_case_chance(c, 0.4)) {
    a->Lk = kr_case_pick(c, 3, (int64_t[]){1, 4, 16}), a->n_pages = (capacity + a->Lk - 1) / a->Lk,
    a->Bk = a->B * a->n_pages + 1;
    kr_view *table = kr_case_give(c, "block_table");
    for (int64_t i = 0; i < a->B * a->n_pages; i++) kr_case_set_i32(c, table, i, (int32_t)(a->Bk - 1 - i));
  }
  if (kr_case_chance(c, 0.7)) give_counts(c, "cache_seqlens", 0, capacity - a->L);
  if (c->dtype == KRAIT_F32 && !c->is_exact && !c->is_hard && kr_case_chance(c, 0.3)) { /* rounded into the cache */
    c->dtype = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
    kr_case_give(c, "k_cache"), kr_case_give(c, "v_cache");
    c->dtype = KRAIT_F32;
  }
  kr_case_hard(c, KR_NAMES("k", "v"), KR_MOST_LINEAR);
  return KRAIT_OK;
}
