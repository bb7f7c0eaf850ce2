/* ssd_simd.c: the recurrence with channels over lanes. Tokens come in tiles: a tile's B and C are converted to float
 * once for several heads of their group, then rows of states of two channel vectors stay in registers for the whole
 * tile, two multiply-adds per state and token: fewer operations than chunked products of 64 tokens, and only one
 * exponential per token. Items are adjacent blocks of channels; a block's result depends neither on its neighbours nor
 * on the number of threads. */
#include "contract.h"
#include "op_list.h"
#include "ssd_lanes.h"
#include "ssd_impls.h"

enum { MOST_BLOCKS = 8, ITEMS_EACH = 4 }; /* per item; items per thread */

/* Work partition: blocks of SSD_WIDTH channels per head, per group's heads, and per item. */
typedef struct cut {
  const kr_ssd_args *a;
  int64_t of_head, of_group, each, items; /* items per group */
} cut;

static cut cut_of(const krait_ctx *ctx, const kr_ssd_args *a) {
  cut c = {.a = a, .of_head = (a->P + SSD_WIDTH - 1) / SSD_WIDTH};
  c.of_group = a->H / a->G * c.of_head;
  c.each = a->B * a->G * c.of_group / (ITEMS_EACH * krait_ctx_n_threads(ctx));
  if (c.each > c.of_group) c.each = c.of_group;
  c.each = c.each < 1 ? 1 : c.each > MOST_BLOCKS ? MOST_BLOCKS : c.each;
  c.items = (c.of_group + c.each - 1) / c.each;
  return c;
}

typedef struct item {
  const kr_ssd_args *a;
  const kr_ssd_inputs *in;
  float *B, *C, *x, *dx, *y;
  float *states[MOST_BLOCKS], *other[MOST_BLOCKS]; /* other: y of the reverse direction, for all tokens */
  ssd_walk walks[MOST_BLOCKS];
  int n_blocks;
  int64_t pitch;
  float d[SSD_TILE + 16], decay[SSD_TILE + 16];
  unsigned char marks[SSD_TILE];
  ssd_cuts cuts;
  ssd_ahead ahead;
} item;

static int64_t other_floats(const kr_ssd_args *a) {
  return a->call.flags & KRAIT_SSD_BOTH ? a->L * SSD_WIDTH : 0;
}

static int64_t ssd_worker_floats(const cut *c) {
  const kr_ssd_args *a = c->a;
  return c->each * (a->N * SSD_WIDTH + other_floats(a)) + 2 * SSD_TILE * ssd_odd_row(a->N) + 3 * SSD_TILE * SSD_WIDTH;
}

static item begin_ssd_item(const cut *c, const kr_ssd_inputs *in, int worker) {
  const kr_ssd_args *a = c->a;
  item it = {.a = a, .in = in, .pitch = ssd_odd_row(a->N)};
  float *at = (float *)a->call.scratch + worker * ssd_row(ssd_worker_floats(c));
  it.B = at, at += SSD_TILE * it.pitch;
  it.C = at, at += SSD_TILE * it.pitch;
  it.x = at, at += SSD_TILE * SSD_WIDTH;
  it.dx = at, at += SSD_TILE * SSD_WIDTH;
  it.y = at, at += SSD_TILE * SSD_WIDTH;
  for (int64_t k = 0; k < c->each; k++) {
    it.states[k] = at, at += a->N * SSD_WIDTH;
    it.other[k] = at, at += other_floats(a);
  }
  return it;
}

/* What a group's heads share. */
static void read_ssd_tile(item *it, int64_t i, int n) {
  const ssd_walk *w = it->walks;
  ssd_marks(w, i, n, it->marks);
  ssd_load_shared(it->B, it->pitch, w, it->in->Bmat, i, n);
  ssd_load_shared(it->C, it->pitch, w, it->in->Cmat, i, n);
  for (int64_t s = 0; kr_has(&it->a->varlen_states) && s < it->a->S; s++) {
    const int64_t end = kr_get_i32(&it->a->cu_seqlens, kr_at1(&it->a->cu_seqlens, s + 1));
    if (end > i && end <= i + n) it->marks[end - 1 - i] |= SSD_ENDS;
  }
}

static void read_ssd_steps(item *it, const ssd_walk *w, int64_t i, int n) {
  ssd_steps(w, i, n, it->d, it->decay, NULL);
  for (int t = 0; t < n; t++)
    if (it->marks[t] & SSD_BEGINS) it->decay[t] = 0; /* even if NaN: nothing crosses sequences */
  ssd_cut(&it->cuts, it->marks, it->decay, n);
}

static void read_block(item *it, const ssd_walk *w, int64_t i, int n) {
  ssd_load_channels(it->x, w, it->in->x, i, n);
  for (int t = 0; t < n; t++) {
    const kr_v d = kr_v_set1(it->d[t] * it->cuts.inverse[t]);
    for (int part = 0; part < SSD_WIDTH; part += KR_VL)
      kr_v_store(it->dx + t * SSD_WIDTH + part, kr_v_mul(d, kr_v_load(it->x + t * SSD_WIDTH + part)));
  }
}

/* Stores the state after token t for every sequence that ends there. */
static void keep_ssd_simd_varlen(const item *it, const float *states, const ssd_walk *w, int64_t t) {
  const kr_view *offsets = &it->a->cu_seqlens;
  for (int64_t s = 0; s < it->a->S; s++) {
    const int64_t begin = kr_get_i32(offsets, kr_at1(offsets, s)), end = kr_get_i32(offsets, kr_at1(offsets, s + 1));
    if (end == t + 1 && begin < end) ssd_store_states(states, w, &it->a->varlen_states, s);
  }
}

static void scan_ssd_tile(item *it, float *states, const ssd_walk *w, int64_t i, int n) {
  const ssd_stretch *first = it->cuts.stretches, *end;
  memset(it->y, 0, (size_t)(n * SSD_WIDTH) * sizeof(float));
  for (int t = 0, run; t < n; t += run, first = end) {
    run = ssd_run(it->marks, t, n);
    end = ssd_past(first, run);
    if (it->marks[t] & SSD_BEGINS) memset(states, 0, (size_t)(it->in->N * SSD_WIDTH) * sizeof(float));
    if (!(it->marks[t] & SSD_PADDING))
      ssd_scan(states, it->in->N, it->dx + t * SSD_WIDTH, it->y + t * SSD_WIDTH, SSD_WIDTH, it->B + t * it->pitch,
               it->C + t * it->pitch, it->pitch, first, end, &it->ahead);
    if (it->marks[t + run - 1] & SSD_ENDS) keep_ssd_simd_varlen(it, states, w, i + t + run - 1);
  }
  for (int t = 0; t < n; t++)
    for (int part = 0; part < SSD_WIDTH; part += KR_VL) {
      float *y = it->y + t * SSD_WIDTH + part;
      kr_v_store(y, kr_v_mul(kr_v_set1(it->cuts.kept[t]), kr_v_load(y)));
    }
}

/* y + other + D x, gated; 0 at padding. */
static void finish_ssd_tile(item *it, const float *other, const ssd_walk *w, int64_t i, int n) {
  float skip[SSD_WIDTH] = {0};
  const kr_view *D = it->in->Dvec;
  const int both = (it->in->flags & KRAIT_SSD_BOTH) != 0;
  for (int lane = 0; kr_has(D) && lane < w->n_lanes; lane++)
    skip[lane] = kr_scalar_load(D->data, kr_at2(D, w->h, w->p0 + lane), D->dtype);
  if (kr_has(it->in->z)) ssd_load_channels(it->dx, w, it->in->z, i, n);
  for (int t = 0; t < n; t++)
    for (int part = 0; part < SSD_WIDTH; part += KR_VL) {
      float *at = it->y + t * SSD_WIDTH + part;
      kr_v y = kr_v_load(at);
      if (both) y = kr_v_add(y, kr_v_load(other + ssd_token(w, i + t) * SSD_WIDTH + part));
      if (kr_has(D)) y = kr_v_fma(kr_v_load(skip + part), kr_v_load(it->x + t * SSD_WIDTH + part), y);
      if (kr_has(it->in->z)) y = kr_v_mul(y, kr_v_silu_fast(kr_v_load(it->dx + t * SSD_WIDTH + part)));
      kr_v_store(at, it->marks[t] & SSD_PADDING ? kr_v_zero() : y);
    }
  ssd_store_channels(it->y, w, &it->a->out, i, n);
}

/* Prefetches what follows block k of the tile at i. */
static void look_ahead_ssd(item *it, int k, int64_t i) {
  const int last = k + 1 == it->n_blocks;
  const ssd_walk *next = &it->walks[last ? 0 : k + 1];
  const kr_view *rows[] = {it->in->x, it->in->z, &it->a->out};
  if (last) i += SSD_TILE;
  it->ahead = ssd_ahead_of(next, i, (int)(it->in->N / SSD_ROWS) + 1);
  for (int v = 0; v < 3; v++) ssd_ahead_add(&it->ahead, next, rows[v], i, next->n_lanes);
}

static void walk_direction(item *it, int keep_y) {
  const int64_t L = it->in->L;
  for (int k = 0; k < it->n_blocks; k++) ssd_load_states(it->states[k], &it->walks[k], it->in->initial_states);
  for (int64_t i = 0; i < L; i += SSD_TILE) {
    const int n = L - i < SSD_TILE ? (int)(L - i) : SSD_TILE;
    read_ssd_tile(it, i, n);
    for (int k = 0; k < it->n_blocks; k++) {
      const ssd_walk *w = &it->walks[k];
      if (k == 0 || w->h != w[-1].h) read_ssd_steps(it, w, i, n);
      read_block(it, w, i, n);
      look_ahead_ssd(it, k, i);
      scan_ssd_tile(it, it->states[k], w, i, n);
      for (int t = 0; keep_y && t < n; t++)
        memcpy(it->other[k] + ssd_token(w, i + t) * SSD_WIDTH, it->y + t * SSD_WIDTH, SSD_WIDTH * sizeof(float));
      if (!keep_y) finish_ssd_tile(it, it->other[k], w, i, n);
    }
  }
  for (int k = 0; kr_has(&it->a->final_states) && k < it->n_blocks; k++)
    ssd_store_states(it->states[k], &it->walks[k], &it->a->final_states, it->walks[k].b);
}

static void clear_empty(const kr_ssd_args *a) {
  for (int64_t s = 0; kr_has(&a->varlen_states) && s < a->S; s++) {
    if (kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s)) !=
        kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s + 1)))
      continue;
    for (int64_t i = 0; i < a->H * a->P * a->N; i++)
      ((float *)a->varlen_states.data)[kr_at4(&a->varlen_states, s, i / a->N / a->P, i / a->N % a->P, i % a->N)] = 0;
  }
}

static void place_walks(item *it, const cut *c, int64_t b, int64_t g, int64_t first, int reverse) {
  const kr_ssd_args *a = it->a;
  for (int k = 0; k < it->n_blocks; k++) {
    const int64_t p0 = (first + k) % c->of_head * SSD_WIDTH, left = a->P - p0;
    it->walks[k] = (ssd_walk){it->in,
                              reverse && a->call.flags & KRAIT_SSD_BOTH ? &a->A_reverse : &a->A,
                              reverse,
                              b,
                              g * (a->H / a->G) + (first + k) / c->of_head,
                              g,
                              p0,
                              (int)(left < SSD_WIDTH ? left : SSD_WIDTH)};
  }
}

static void scan_ssd_items(void *user, int64_t begin, int64_t end, int worker) {
  const cut *c = user;
  const kr_ssd_args *a = c->a;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  item it = begin_ssd_item(c, &in, worker);
  for (int64_t k = begin; k < end; k++) {
    const int64_t first = k % c->items * c->each, g = k / c->items % a->G, b = k / c->items / a->G;
    it.n_blocks = (int)(c->of_group - first < c->each ? c->of_group - first : c->each);
    if (a->call.flags & KRAIT_SSD_BOTH) {
      place_walks(&it, c, b, g, first, 1);
      walk_direction(&it, 1);
    }
    place_walks(&it, c, b, g, first, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
    walk_direction(&it, 0);
  }
}

uint64_t KR_FN(kr_ssd_scratch)(const krait_ctx *ctx, const void *args) {
  const cut c = cut_of(ctx, args);
  return (uint64_t)(ssd_row(ssd_worker_floats(&c)) * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_ssd)(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets_within("ssd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  clear_empty(a);
  cut c = cut_of(ctx, a);
  kr_parallel(ctx, a->B * a->G * c.items, 1, scan_ssd_items, &c);
  return KRAIT_OK;
}
