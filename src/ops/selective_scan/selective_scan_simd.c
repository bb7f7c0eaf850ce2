/* selective_scan_simd.c: the scan with channels across lanes (scan_block.h). Each step and state costs one exponential
 * (base 2, log2 e folded into A once), three multiply-adds, and broadcasts of B and C; states and A stay in L1. A tile
 * whose products dt A all lie within 2^+-126 uses the fast exponential, else the full one. Complex states are pairs of
 * vectors and need cosine and sine beside the exponential. */
#include "contract.h"
#include "op_list.h"
#include "scan_block.h"

typedef struct core {
  const float *dt, *du, *A, *B, *C; /* [step][lane], [step][lane], [n][lane]; B, C: [step][n] or [n][lane] */
  float *y, *x;                     /* [step][lane], [n][lane] */
  int64_t B_pitch, C_pitch, N;
  int64_t B_imaginary, C_imaginary; /* from real to imaginary parts; for A and x the offset is N vectors */
  scan_ahead *ahead;
} core;

KR_INLINE kr_v advance_state(const core *c, kr_v dt, kr_v du, const float *B, const float *C, int64_t n, kr_v y,
                             int near, int constant_B, int constant_C) {
  kr_v A = kr_v_load(c->A + n * KR_VL), x = kr_v_load(c->x + n * KR_VL);
  x = kr_v_fma(decay_of(dt, A, near), x, kr_v_mul(du, shared_of(B, n, constant_B)));
  kr_v_store(c->x + n * KR_VL, x);
  return kr_v_fma(shared_of(C, n, constant_C), x, y);
}

KR_INLINE void advance_steps(const core *c, int from, int to, int near, int constant_B, int constant_C) {
  for (int i = from; i < to; i++) {
    const float *B = constant_B ? c->B : c->B + i * c->B_pitch, *C = constant_C ? c->C : c->C + i * c->C_pitch;
    kr_v dt = kr_v_load(c->dt + i * KR_VL), du = kr_v_load(c->du + i * KR_VL), even = kr_v_zero(), odd = kr_v_zero();
    int64_t n = 0;
    ask_ahead(c->ahead);
    for (; n + 2 <= c->N; n += 2) {
      even = advance_state(c, dt, du, B, C, n, even, near, constant_B, constant_C);
      odd = advance_state(c, dt, du, B, C, n + 1, odd, near, constant_B, constant_C);
    }
    if (n < c->N) even = advance_state(c, dt, du, B, C, n, even, near, constant_B, constant_C);
    kr_v_store(c->y + i * KR_VL, kr_v_add(even, odd));
  }
}

static void advance_any(const core *c, int from, int to, int near, int constant_B, int constant_C) {
  if (constant_B && constant_C) advance_steps(c, from, to, near, 1, 1);
  else if (constant_B) advance_steps(c, from, to, near, 1, 0);
  else if (constant_C) advance_steps(c, from, to, near, 0, 1);
  else if (near) advance_steps(c, from, to, 1, 0, 0);
  else advance_steps(c, from, to, 0, 0, 0);
}

/* Steps of complex states; y is twice the real part of the sum. */
static void advance_scan_complex(const core *c, int from, int to, int near, int constant_B, int constant_C) {
  const int64_t imaginary = c->N * KR_VL;
  for (int i = from; i < to; i++) {
    const float *B = constant_B ? c->B : c->B + i * c->B_pitch, *C = constant_C ? c->C : c->C + i * c->C_pitch;
    kr_v dt = kr_v_load(c->dt + i * KR_VL), du = kr_v_load(c->du + i * KR_VL), y = kr_v_zero();
    for (int64_t n = 0; n < c->N; n++) {
      float *x = c->x + n * KR_VL;
      const float *A = c->A + n * KR_VL;
      kr_v re = kr_v_load(x), im = kr_v_load(x + imaginary), decay_im,
           decay = complex_decay(dt, kr_v_load(A), kr_v_load(A + imaginary), near, &decay_im);
      kr_v new_re = kr_v_fma(decay, re, kr_v_fnma(decay_im, im, kr_v_mul(du, shared_of(B, n, constant_B))));
      kr_v new_im =
          kr_v_fma(decay, im, kr_v_fma(decay_im, re, kr_v_mul(du, shared_of(B + c->B_imaginary, n, constant_B))));
      kr_v_store(x, new_re);
      kr_v_store(x + imaginary, new_im);
      y = kr_v_fnma(shared_of(C + c->C_imaginary, n, constant_C), new_im,
                    kr_v_fma(shared_of(C, n, constant_C), new_re, y));
    }
    kr_v_store(c->y + i * KR_VL, kr_v_add(y, y));
  }
}

/* Steps of a tile, one vector of lanes each: in place, or loaded into an array. */
typedef struct rows {
  float *at;
  int64_t pitch;
} rows;

/* One work item: a sequence and some blocks of channels. Arrays hold one part per block. */
typedef struct item {
  const scan_plan *p;
  const kr_selective_scan_args *a;
  int64_t row, g, d0, n_channels, n_blocks;
  float *A, *x, *B, *C;      /* [block][n][lane]; B and C only if constant */
  float *bias, *skip, *size; /* [block][lane], [block][lane], [block]: largest |A| */
  float *shared_B, *shared_C;
  float *dt, *du, *u, *y;    /* [step][lane] */
  rows input;                /* u of the tile */
  float *sum;                /* [block][time][lane]: the other direction's sums */
  unsigned char marks[MAX_TILE];
  scan_ahead ahead;
  const float *state;        /* [n][lane] before the first step, if not initial_state; one block */
  float *total; /* [2][lane]: the sum of dt; then 0 in every lane if the state restarted, else 1; may be NULL */
} item;

static int is_set(const item *it, uint32_t flag) { return (it->p->in.flags & flag) != 0; }
static int scan_lanes_of(const item *it, int64_t block) {
  int64_t left = it->n_channels - block * KR_VL;
  return (int)(left < KR_VL ? left : KR_VL);
}

static int64_t scan_worker_floats(const scan_plan *p) {
  int64_t blocks = p->range / KR_VL, states = whole_lines(blocks * p->values * KR_VL);
  int64_t constants = ((p->in.flags & KRAIT_SCAN_B_CONSTANT) != 0) + ((p->in.flags & KRAIT_SCAN_C_CONSTANT) != 0);
  int64_t sums = p->in.flags & KRAIT_SCAN_BOTH ? whole_lines(blocks * KR_VL * p->in.L) : 0;
  return states * (2 + constants) + 2 * whole_lines(blocks * KR_VL) + whole_lines(blocks) +
         2 * whole_lines(p->tile * p->pitch * p->width) + 4 * whole_lines(p->tile * KR_VL) + sums;
}

static void cut_scan_scratch(item *it, float *scratch) {
  const scan_plan *p = it->p;
  int64_t blocks = p->range / KR_VL, states = blocks * p->values * KR_VL;
  it->A = cut(&scratch, states);
  it->x = cut(&scratch, states);
  it->B = is_set(it, KRAIT_SCAN_B_CONSTANT) ? cut(&scratch, states) : NULL;
  it->C = is_set(it, KRAIT_SCAN_C_CONSTANT) ? cut(&scratch, states) : NULL;
  it->bias = cut(&scratch, blocks * KR_VL);
  it->skip = cut(&scratch, blocks * KR_VL);
  it->size = cut(&scratch, blocks);
  it->shared_B = cut(&scratch, p->tile * p->pitch * p->width);
  it->shared_C = cut(&scratch, p->tile * p->pitch * p->width);
  it->dt = cut(&scratch, p->tile * KR_VL);
  it->du = cut(&scratch, p->tile * KR_VL);
  it->u = cut(&scratch, p->tile * KR_VL);
  it->y = cut(&scratch, p->tile * KR_VL);
  it->sum = is_set(it, KRAIT_SCAN_BOTH) ? cut(&scratch, blocks * KR_VL * p->in.L) : NULL;
}

static void begin_scan_direction(item *it, const kr_view *A) {
  const kr_scan_inputs *in = &it->p->in;
  for (int64_t k = 0; k < it->n_blocks; k++) {
    int64_t d = it->d0 + k * KR_VL, part = k * it->p->values * KR_VL;
    int lanes = scan_lanes_of(it, k);
    it->size[k] = read_parameters(it->A + part, A, d, lanes, in->N, scale_of_A(it->p));
    if (it->B) read_parameters(it->B + part, in->Bmat, d, lanes, in->N, 1);
    if (it->C) read_parameters(it->C + part, in->Cmat, d, lanes, in->N, 1);
    if (it->state) memcpy(it->x, it->state, (size_t)(in->N * KR_VL) * sizeof *it->x);
    else read_states(it->p, it->x + part, in->initial_state, it->row, d, lanes);
    read_channels(it->bias + k * KR_VL, in->delta_bias, d, lanes);
    read_channels(it->skip + k * KR_VL, in->Dvec, d, lanes);
  }
}

/* Prefetches the tile's next block, or the next tile's first one. */
static void plan_scan_ahead(item *it, const scan_walk *w, int64_t block, int64_t i0, int n, int64_t end) {
  const kr_scan_inputs *in = &it->p->in;
  const kr_view *const views[MOST_AHEAD] = {in->delta, in->u, in->z, &it->a->out};
  const int last = block + 1 == it->n_blocks;
  const int64_t next = last ? 0 : block + 1, from = last ? i0 + n : i0, left = end - from;
  it->ahead.n = 0;
  for (int i = 0; i < MOST_AHEAD; i++)
    look_ahead(&it->ahead, views[i], w, it->d0 + next * KR_VL, from, left < n ? left : n, scan_lanes_of(it, next), n);
}

static int is_in_place_for_scan(const kr_plane *p, int lanes) {
  return p->dtype == KRAIT_F32 && p->lane_stride == 1 && lanes == KR_VL;
}
static rows rows_in_place(const kr_plane *p) { return (rows){(float *)p->data + p->offset, p->row_stride}; }

static rows read_rows(const kr_plane *p, int n, int lanes, float *buffer) {
  if (is_in_place_for_scan(p, lanes)) return rows_in_place(p);
  kr_tile_load(buffer, KR_VL, p, n, lanes);
  return (rows){buffer, KR_VL};
}

/* dt and du from delta and u; returns the largest dt (NaNs are ignored). */
KR_INLINE float begin_steps(const item *it, rows delta, kr_v bias, int n, int softplus) {
  const rows u = it->input;
  float *dt = it->dt, *du = it->du;
  kr_v largest = kr_v_zero();
  for (int i = 0; i < n; i++) {
    kr_v value = kr_v_add(kr_v_load(delta.at + i * delta.pitch), bias);
    if (softplus) value = kr_v_softplus_fast(value);
    kr_v_store(dt + i * KR_VL, value);
    kr_v_store(du + i * KR_VL, kr_v_mul(value, kr_v_load(u.at + i * u.pitch)));
    largest = kr_v_max(kr_v_abs(value), largest);
  }
  return kr_v_largest(largest);
}

/* dt, du and u of a tile; returns whether the fast exponential is valid. */
static int read_scan_tile(item *it, const scan_walk *w, int64_t block, int64_t i0, int n) {
  const kr_scan_inputs *in = &it->p->in;
  const int64_t d = it->d0 + block * KR_VL;
  const kr_plane delta = plane_of(in->delta, w, d, i0), input = plane_of(in->u, w, d, i0);
  const kr_v bias = kr_v_load(it->bias + block * KR_VL);
  const rows steps = read_rows(&delta, n, scan_lanes_of(it, block), it->dt);
  it->input = read_rows(&input, n, scan_lanes_of(it, block), it->u);
  const float largest =
      is_set(it, KRAIT_SCAN_SOFTPLUS) ? begin_steps(it, steps, bias, n, 1) : begin_steps(it, steps, bias, n, 0);
  return is_near(it->p, largest * it->size[block]);
}

static void scan_scan_tile(item *it, const scan_shared *B, const scan_shared *C, int64_t block, int n, int near) {
  const int64_t N = it->p->in.N, part = block * it->p->values * KR_VL;
  core c = {.dt = it->dt,
            .du = it->du,
            .A = it->A + part,
            .B = it->B ? it->B + part : B->data,
            .C = it->C ? it->C + part : C->data,
            .y = it->y,
            .x = it->x + part,
            .B_pitch = B->pitch,
            .C_pitch = C->pitch,
            .N = N,
            .B_imaginary = it->B ? N * KR_VL : B->imaginary,
            .C_imaginary = it->C ? N * KR_VL : C->imaginary,
            .ahead = &it->ahead};
  for (int i = 0; i < n;) {
    if (it->marks[i] & STEP_RESTARTS) memset(c.x, 0, (size_t)(it->p->values * KR_VL) * sizeof *c.x);
    int end = next_restart(it->marks, i, n);
    if (it->p->width == 1) advance_any(&c, i, end, near, it->B != NULL, it->C != NULL);
    else advance_scan_complex(&c, i, end, near, it->B != NULL, it->C != NULL);
    i = end;
  }
}

/* `to` may alias y. */
KR_INLINE void finish_rows(const item *it, rows z, const float *other, kr_v skip, int n, int gated, rows to) {
  const rows u = it->input;
  const float *y = it->y;
  for (int i = 0; i < n; i++) {
    kr_v value = kr_v_fma(skip, kr_v_load(u.at + i * u.pitch), kr_v_load(y + i * KR_VL));
    if (other) value = kr_v_add(value, kr_v_load(other + i * KR_VL));
    if (gated) value = kr_v_mul(value, kr_v_silu_fast(kr_v_load(z.at + i * z.pitch)));
    if (it->marks[i] & STEP_IS_SILENT) value = kr_v_zero();
    kr_v_store(to.at + i * to.pitch, value);
  }
}

/* y + D u, the other direction, the gate, and out. du is dead by now and holds z; without D, so is u. */
static void finish_scan_tile(item *it, const scan_walk *w, int64_t block, int64_t i0, int n) {
  const kr_scan_inputs *in = &it->p->in;
  const int64_t d = it->d0 + block * KR_VL;
  const int lanes = scan_lanes_of(it, block);
  const float *other = it->sum ? it->sum + (block * in->L + w->first + i0) * KR_VL : NULL;
  const kr_v skip = kr_v_load(it->skip + block * KR_VL);
  const kr_plane out = plane_of(&it->a->out, w, d, i0);
  const rows to = is_in_place_for_scan(&out, lanes) ? rows_in_place(&out) : (rows){it->y, KR_VL};
  if (!kr_has(in->Dvec)) {
    kr_v_store(it->u, kr_v_zero());
    it->input = (rows){it->u, 0};
  }
  if (kr_has(in->z)) {
    const kr_plane z = plane_of(in->z, w, d, i0);
    finish_rows(it, read_rows(&z, n, lanes, it->du), other, skip, n, 1, to);
  } else {
    finish_rows(it, to, other, skip, n, 0, to);
  }
  if (to.at == it->y) kr_tile_store(it->y, KR_VL, &out, n, lanes);
}

/* Saves a reverse walk's sums in time order. */
static void keep_tile(item *it, const scan_walk *w, int64_t block, int64_t i0, int n) {
  for (int i = 0; i < n; i++) {
    int64_t t = w->first + (i0 + i) * w->step;
    kr_v_store(it->sum + (block * it->p->in.L + t) * KR_VL, kr_v_load(it->y + i * KR_VL));
  }
}

static void add_to_total(item *it, int n) {
  kr_v sum = kr_v_load(it->total), kept = kr_v_load(it->total + KR_VL);
  for (int i = 0; i < n; i++) {
    sum = kr_v_add(sum, kr_v_load(it->dt + i * KR_VL));
    if (it->marks[i] & STEP_RESTARTS) kept = kr_v_zero();
  }
  kr_v_store(it->total, sum);
  kr_v_store(it->total + KR_VL, kept);
}

/* What to do with a tile's sums: write the output, save them for the other direction, or nothing (states only). */
enum { FINISH, KEEP, ADVANCE };

static void scan_steps(item *it, const scan_walk *w, const kr_view *A, int64_t begin, int64_t end, int then) {
  const kr_scan_inputs *in = &it->p->in;
  begin_scan_direction(it, A);
  for (int64_t i0 = begin; i0 < end; i0 += it->p->tile) {
    int n = (int)(end - i0 < it->p->tile ? end - i0 : it->p->tile);
    scan_shared B = {0}, C = {0};
    if (!it->B) B = read_shared(it->p, in->Bmat, w, it->g, i0, n, it->shared_B);
    if (!it->C) C = read_shared(it->p, in->Cmat, w, it->g, i0, n, it->shared_C);
    mark_steps(in, w, i0, n, it->marks);
    for (int64_t k = 0; k < it->n_blocks; k++) {
      int near = read_scan_tile(it, w, k, i0, n);
      plan_scan_ahead(it, w, k, i0, n, end);
      scan_scan_tile(it, &B, &C, k, n, near);
      if (it->total) add_to_total(it, n);
      if (then == FINISH) finish_scan_tile(it, w, k, i0, n);
      else if (then == KEEP) keep_tile(it, w, k, i0, n);
    }
  }
}

static void write_last_states(const item *it) {
  for (int64_t k = 0; k < it->n_blocks; k++)
    write_states(it->p, it->x + k * it->p->values * KR_VL, &it->a->last_state, it->row, it->d0 + k * KR_VL,
                 scan_lanes_of(it, k));
}

static void scan_direction(item *it, const scan_walk *w, const kr_view *A, int then) {
  scan_steps(it, w, A, 0, w->n, then);
  write_last_states(it);
}

typedef struct run {
  scan_plan p;
  const kr_selective_scan_args *a;
  int64_t chunk, n_chunks; /* steps per chunk; 0 and 1 without chunking */
} run;

static item begin_scan_item(const run *r, int64_t i, int worker) {
  const scan_plan *p = &r->p;
  int64_t in_group = i % p->n_ranges * p->range, g = i / p->n_ranges % p->in.G, left = p->group - in_group;
  item it = {.p = p, .a = r->a, .row = i / p->n_ranges / p->in.G, .g = g, .d0 = g * p->group + in_group};
  it.n_channels = left < p->range ? left : p->range;
  it.n_blocks = (it.n_channels + KR_VL - 1) / KR_VL;
  cut_scan_scratch(&it, (float *)r->a->call.scratch + worker * scan_worker_floats(p));
  return it;
}

static void scan_scan_items(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  for (int64_t i = begin; i < end; i++) {
    item it = begin_scan_item(r, i, worker);
    scan_walk back = walk_row(&r->p.in, it.row, 1), ahead = walk_row(&r->p.in, it.row, is_set(&it, KRAIT_SCAN_REVERSE));
    if (is_set(&it, KRAIT_SCAN_BOTH)) scan_direction(&it, &back, r->p.in.A_reverse, KEEP);
    scan_direction(&it, &ahead, r->p.in.A, FINISH);
  }
}

/* ---- few channels, long sequences: time in chunks -------------------------------------------------------------------
 * The first pass walks each chunk from a zero state and keeps its last state and sum of dt; the second, in order, finds
 * the state before each chunk (a decay over many steps is exp(A sum dt)); the third walks each chunk from there. Twice
 * the work, on as many threads as there are chunks. Chunks depend on the shape alone, and so do the results. */

enum { MAX_STATES = 512, MOST_BLOCKS = 1, SHORTEST = 4096, CHUNKS = 32, LEAST_CHUNK = 512 };

static int64_t chunk_floats(const run *r) { return (r->p.in.N + 2) * KR_VL; } /* [n][lane], then the totals */

static float *chunk_of(const run *r, int n_workers, int64_t i, int64_t chunk) {
  return (float *)r->a->call.scratch + n_workers * scan_worker_floats(&r->p) +
         (i * r->n_chunks + chunk) * chunk_floats(r);
}

typedef struct chunk_run {
  const run *r;
  int n_workers, then;
} chunk_run;

static void scan_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const chunk_run *c = user;
  const run *r = c->r;
  const int64_t states = r->p.in.N * KR_VL;
  for (int64_t k = begin; k < end; k++) {
    const int64_t i = k / r->n_chunks, chunk = k % r->n_chunks, last = chunk == r->n_chunks - 1;
    item it = begin_scan_item(r, i, worker);
    scan_walk w = walk_row(&r->p.in, it.row, is_set(&it, KRAIT_SCAN_REVERSE));
    const int64_t from = chunk * r->chunk, to = last ? w.n : from + r->chunk;
    float *place = chunk_of(r, c->n_workers, i, chunk);
    it.state = chunk ? place : NULL;
    if (c->then == ADVANCE) {
      if (last) continue;
      memset(place, 0, (size_t)(states + KR_VL) * sizeof *place);
      it.total = place + states;
      kr_v_store(it.total + KR_VL, kr_v_set1(1.0f));
    }
    scan_steps(&it, &w, r->p.in.A, from, to, c->then);
    if (c->then == ADVANCE) memcpy(place, it.x, (size_t)states * sizeof *place);
    else if (last) write_last_states(&it);
  }
}

/* Turns each chunk's last state into the next chunk's first state. */
static void join_chunks(const run *r, int n_workers, int64_t i) {
  const int64_t N = r->p.in.N;
  item it = begin_scan_item(r, i, 0);
  kr_v x[MAX_STATES];
  read_parameters(it.A, r->p.in.A, it.d0, scan_lanes_of(&it, 0), N, log2_e);
  for (int64_t chunk = 0; chunk + 1 < r->n_chunks; chunk++) {
    float *place = chunk_of(r, n_workers, i, chunk), *total = place + N * KR_VL;
    const kr_v sum = kr_v_load(total);
    const kr_vm kept = kr_v_gt(kr_v_load(total + KR_VL), kr_v_set1(0.5f));
    for (int64_t n = 0; n < N; n++) {
      kr_v end = kr_v_load(place + n * KR_VL);
      if (chunk) {
        kr_v_store(place + n * KR_VL, x[n]);
        end = kr_v_select(kept, kr_v_fma(kr_v_exp2_any(sum, kr_v_load(it.A + n * KR_VL)), x[n], end), end);
      }
      x[n] = end;
    }
  }
  float *place = chunk_of(r, n_workers, i, r->n_chunks - 1);
  for (int64_t n = 0; n < N; n++) kr_v_store(place + n * KR_VL, x[n]);
}

/* As many channels per item as still leave every thread some items: they share the loads of B and C. */
static run plan_scan_run(const krait_ctx *ctx, const kr_selective_scan_args *a) {
  const kr_scan_inputs in = KR_SCAN_INPUTS(a);
  int64_t range = 128;
  run r = {plan_scan(&in, KR_VL), a, 0, 1};
  if (n_items(&r.p) <= MOST_BLOCKS && in.L >= SHORTEST && r.p.width == 1 && !kr_has(in.cu_seqlens) &&
      !(in.flags & KRAIT_SCAN_BOTH)) {
    r.chunk = (in.L / CHUNKS + MAX_TILE - 1) / MAX_TILE * MAX_TILE;
    if (r.chunk < LEAST_CHUNK) r.chunk = LEAST_CHUNK;
    r.n_chunks = (in.L + r.chunk - 1) / r.chunk;
    return r;
  }
  r.p = plan_scan(&in, range);
  while (range > KR_VL && n_items(&r.p) < 4 * krait_ctx_n_threads(ctx)) r.p = plan_scan(&in, range /= 2);
  return r;
}

uint64_t KR_FN(kr_selective_scan_scratch)(const krait_ctx *ctx, const void *args) {
  run r = plan_scan_run(ctx, args);
  int64_t chunks = r.chunk ? n_items(&r.p) * r.n_chunks * chunk_floats(&r) : 0;
  return (uint64_t)(scan_worker_floats(&r.p) * krait_ctx_n_threads(ctx) + chunks) * sizeof(float);
}

int32_t KR_FN(kr_selective_scan)(const krait_ctx *ctx, const void *args) {
  const kr_selective_scan_args *a = args;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("selective_scan", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  run r = plan_scan_run(ctx, a);
  if (!r.chunk) {
    kr_parallel(ctx, n_items(&r.p), 1, scan_scan_items, &r);
    return KRAIT_OK;
  }
  const int n_workers = krait_ctx_n_threads(ctx);
  chunk_run first = {&r, n_workers, ADVANCE}, second = {&r, n_workers, FINISH};
  kr_parallel(ctx, n_items(&r.p) * r.n_chunks, 1, scan_chunks, &first);
  for (int64_t i = 0; i < n_items(&r.p); i++) join_chunks(&r, n_workers, i);
  kr_parallel(ctx, n_items(&r.p) * r.n_chunks, 1, scan_chunks, &second);
  return KRAIT_OK;
}
