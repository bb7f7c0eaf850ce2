/* ssd_simd.c: the recurrence with channels over lanes. Tokens come in tiles: step sizes, decays, B and C of a tile are
 * made floats once, then four states of two vectors of channels stay in registers while they walk over it. Two
 * multiply-adds and a product per state and token: no more operations than the chunked products of 64 tokens would
 * take, and no exponentials but one per token. Items are (batch, head, 2 vectors of channels); nothing depends on the
 * number of threads. */
#include "contract.h"
#include "op_list.h"
#include "ssd_lanes.h"
#include "ssd_rows.h"

typedef struct item {
  const krait_ssd_args *a;
  const kr_ssd_inputs *in;
  float *states, *B, *C, *x, *dx, *y, *other; /* other: y of the reverse direction, for all tokens */
  int64_t pitch;
  float d[SSD_TILE + 16], decay[SSD_TILE + 16];
  unsigned char marks[SSD_TILE];
} item;

static int64_t worker_floats(const krait_ssd_args *a) {
  const int64_t pitch = ssd_row(a->N), other = a->call.flags & KRAIT_SSD_BOTH ? a->L * SSD_WIDTH : 0;
  return ssd_row(a->N * SSD_WIDTH) + 2 * SSD_TILE * pitch + 3 * SSD_TILE * SSD_WIDTH + other;
}

static item begin_item(const krait_ssd_args *a, const kr_ssd_inputs *in, int worker) {
  item it = {.a = a, .in = in, .pitch = ssd_row(a->N)};
  float *at = (float *)a->call.scratch + worker * worker_floats(a);
  it.states = at, at += ssd_row(a->N * SSD_WIDTH);
  it.B = at, at += SSD_TILE * it.pitch;
  it.C = at, at += SSD_TILE * it.pitch;
  it.x = at, at += SSD_TILE * SSD_WIDTH;
  it.dx = at, at += SSD_TILE * SSD_WIDTH;
  it.y = at, at += SSD_TILE * SSD_WIDTH;
  it.other = at;
  return it;
}

static void read_tile(item *it, const ssd_walk *w, int64_t i, int n) {
  ssd_steps(w, i, n, it->d, it->decay, NULL);
  ssd_marks(w, i, n, it->marks);
  ssd_load_shared(it->B, it->pitch, w, it->in->Bmat, i, n);
  ssd_load_shared(it->C, it->pitch, w, it->in->Cmat, i, n);
  ssd_load_channels(it->x, w, it->in->x, i, n);
  for (int t = 0; t < n; t++) {
    if (it->marks[t] & SSD_BEGINS) it->decay[t] = 0; /* whatever it is, nothing of another sequence passes */
    for (int part = 0; part < SSD_WIDTH; part += KR_VL)
      kr_v_store(it->dx + t * SSD_WIDTH + part, kr_v_mul(kr_v_set1(it->d[t]), kr_v_load(it->x + t * SSD_WIDTH + part)));
  }
  for (int64_t s = 0; kr_has(&it->a->varlen_states) && s < it->a->S; s++) {
    const int64_t end = kr_get_i32(&it->a->cu_seqlens, kr_at1(&it->a->cu_seqlens, s + 1));
    if (end > i && end <= i + n) it->marks[end - 1 - i] |= SSD_ENDS;
  }
}

/* The state after token t, to every sequence that ends with it. */
static void keep_varlen(const item *it, const ssd_walk *w, int64_t t) {
  const krait_view *offsets = &it->a->cu_seqlens;
  for (int64_t s = 0; s < it->a->S; s++) {
    const int64_t begin = kr_get_i32(offsets, kr_at1(offsets, s)), end = kr_get_i32(offsets, kr_at1(offsets, s + 1));
    if (end == t + 1 && begin < end) ssd_store_states(it->states, w, &it->a->varlen_states, s);
  }
}

static void scan_tile(item *it, const ssd_walk *w, int64_t i, int n) {
  const int64_t state_bytes = it->in->N * SSD_WIDTH * (int64_t)sizeof(float);
  memset(it->y, 0, (size_t)(n * SSD_WIDTH) * sizeof(float));
  for (int t = 0, run; t < n; t += run) {
    run = ssd_run(it->marks, t, n);
    if (it->marks[t] & SSD_BEGINS) memset(it->states, 0, (size_t)state_bytes);
    if (!(it->marks[t] & SSD_PADDING))
      ssd_scan(it->states, it->in->N, it->dx + t * SSD_WIDTH, it->y + t * SSD_WIDTH, SSD_WIDTH, it->B + t * it->pitch,
               it->C + t * it->pitch, it->pitch, it->decay + t, run);
    if (it->marks[t + run - 1] & SSD_ENDS) keep_varlen(it, w, i + t + run - 1);
  }
}

/* y + other + D x, gated; 0 at padding. */
static void finish_tile(item *it, const ssd_walk *w, int64_t i, int n) {
  float skip[SSD_WIDTH] = {0};
  const krait_view *D = it->in->Dvec;
  const int both = (it->in->flags & KRAIT_SSD_BOTH) != 0;
  for (int lane = 0; kr_has(D) && lane < w->n_lanes; lane++)
    skip[lane] = kr_scalar_load(D->data, kr_at2(D, w->h, w->p0 + lane), D->dtype);
  if (kr_has(it->in->z)) ssd_load_channels(it->dx, w, it->in->z, i, n);
  for (int t = 0; t < n; t++)
    for (int part = 0; part < SSD_WIDTH; part += KR_VL) {
      float *at = it->y + t * SSD_WIDTH + part;
      kr_v y = kr_v_load(at);
      if (both) y = kr_v_add(y, kr_v_load(it->other + ssd_token(w, i + t) * SSD_WIDTH + part));
      if (kr_has(D)) y = kr_v_fma(kr_v_load(skip + part), kr_v_load(it->x + t * SSD_WIDTH + part), y);
      if (kr_has(it->in->z)) y = kr_v_mul(y, kr_v_silu(kr_v_load(it->dx + t * SSD_WIDTH + part)));
      kr_v_store(at, it->marks[t] & SSD_PADDING ? kr_v_zero() : y);
    }
  ssd_store_channels(it->y, w, &it->a->out, i, n);
}

static void walk_direction(item *it, const ssd_walk *w, int keep_y) {
  const int64_t L = it->in->L;
  ssd_load_states(it->states, w, it->in->initial_states);
  for (int64_t i = 0; i < L; i += SSD_TILE) {
    const int n = L - i < SSD_TILE ? (int)(L - i) : SSD_TILE;
    read_tile(it, w, i, n);
    scan_tile(it, w, i, n);
    for (int t = 0; keep_y && t < n; t++)
      memcpy(it->other + ssd_token(w, i + t) * SSD_WIDTH, it->y + t * SSD_WIDTH, SSD_WIDTH * sizeof(float));
    if (!keep_y) finish_tile(it, w, i, n);
  }
  if (kr_has(&it->a->final_states)) ssd_store_states(it->states, w, &it->a->final_states, w->b);
}

static void clear_empty(const krait_ssd_args *a) {
  for (int64_t s = 0; kr_has(&a->varlen_states) && s < a->S; s++) {
    if (kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s)) !=
        kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s + 1)))
      continue;
    for (int64_t i = 0; i < a->H * a->P * a->N; i++)
      ((float *)a->varlen_states.data)[kr_at4(&a->varlen_states, s, i / a->N / a->P, i / a->N % a->P, i % a->N)] = 0;
  }
}

static void scan_items(void *user, int64_t begin, int64_t end, int worker) {
  const krait_ssd_args *a = user;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  const int64_t blocks = (a->P + SSD_WIDTH - 1) / SSD_WIDTH;
  item it = begin_item(a, &in, worker);
  for (int64_t k = begin; k < end; k++) {
    const int64_t p0 = k % blocks * SSD_WIDTH, h = k / blocks % a->H, left = a->P - p0;
    ssd_walk w = {&in,
                  &a->A,
                  (a->call.flags & KRAIT_SSD_REVERSE) != 0,
                  k / blocks / a->H,
                  h,
                  h / (a->H / a->G),
                  p0,
                  (int)(left < SSD_WIDTH ? left : SSD_WIDTH)};
    if (a->call.flags & KRAIT_SSD_BOTH) {
      ssd_walk back = w;
      back.A = &a->A_reverse, back.reverse = 1;
      walk_direction(&it, &back, 1);
    }
    walk_direction(&it, &w, 0);
  }
}

uint64_t KR_FN(kr_ssd_scratch)(const krait_ctx *ctx, const void *args) {
  return (uint64_t)(worker_floats(args) * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_ssd)(const krait_ctx *ctx, const void *args) {
  const krait_ssd_args *a = args;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("ssd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  clear_empty(a);
  kr_parallel(ctx, a->B * a->H * ((a->P + SSD_WIDTH - 1) / SSD_WIDTH), 1, scan_items, (void *)args);
  return KRAIT_OK;
}
