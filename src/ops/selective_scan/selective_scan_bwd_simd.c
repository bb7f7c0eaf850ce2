/* selective_scan_bwd_simd.c: the scan's gradient with channels across lanes (scan_block.h). An item sweeps its
 * sequences forward once, checkpointing the state before every stretch of 8 steps (in a long sequence: before every
 * tile; those within a tile are recomputed); then it goes backward stretch by stretch: for each state, the stretch's
 * states and decays are recomputed into registers and swept from the end. dB and dC accumulate per lane over the item's
 * blocks and are reduced across lanes once per tile. Items depend on the shape alone and partial sums are added in a
 * fixed order: the result does not depend on the thread count. */
#include "contract.h"
#include "op_list.h"
#include "scan_block.h"

typedef kr_selective_scan_bwd_args bwd_args;

enum {
  MOST_CHUNKS = 256,
  WANTED_ITEMS = 16,
  KEPT_VALUES = 256,
  MOST_CHECKPOINTS = 4096,
  LONGEST_TILE = 256,
  STRETCH = 8
};
static const float ln_2 = 0.69314718f;

/* Scratch: [parameter-gradient sums][dB per range][dC per range][one work area per thread]. */
typedef struct run {
  scan_plan p;
  const bwd_args *a;
  int64_t rows_per_item, n_chunks; /* sequences per item, items along sequences */
  int64_t blocks;                  /* blocks in a full range */
  int64_t record, n_records;       /* floats of one block's sums; chunks x blocks */
  int64_t shared, shared_row; /* floats of dB (and of dC) per range, 0 if items write them directly; floats of one
                               * state's steps, in whole vectors */
  int64_t interval;                /* steps between checkpoints: a stretch or a tile */
  int64_t n_kept, work;            /* checkpoints of the longest sequence; floats of a work area */
  float *sums, *shared_B, *shared_C, *works;
} run;

static int has_flag_in_scan_bwd_simd(const run *r, uint32_t flag) { return (r->p.in.flags & flag) != 0; }

/* A record: [n][lane] each for dA, dA_reverse, constant dB, constant dC (if present), then [lane] for dD and dbias. */
enum { SUM_A, SUM_A_REVERSE, SUM_B, SUM_C, SUM_D, SUM_BIAS };

static int64_t sum_offset(const run *r, int which) {
  const uint32_t exists[] = {1, r->p.in.flags & KRAIT_SCAN_BOTH, r->p.in.flags & KRAIT_SCAN_B_CONSTANT,
                             r->p.in.flags & KRAIT_SCAN_C_CONSTANT};
  int64_t offset = 0;
  for (int i = 0; i < 4 && i < which; i++) offset += exists[i] ? r->p.values * KR_VL : 0;
  return offset + (which > SUM_D ? (which - SUM_D) * KR_VL : 0);
}

static int64_t work_floats(const run *r) {
  int64_t values = r->p.values, tile = r->p.tile, states = whole_lines(r->blocks * values * KR_VL);
  int64_t constants =
      has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_B_CONSTANT) + has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_C_CONSTANT);
  int64_t of_tile = 2 * whole_lines(tile * values * KR_VL) + whole_lines(tile / STRETCH * values * KR_VL) +
                    whole_lines(values * KR_VL);
  int64_t both = has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_BOTH) ? 3 * whole_lines(r->blocks * KR_VL * r->p.in.L) : 0;
  return states * (2 + constants) + whole_lines(r->n_kept * r->blocks * values * KR_VL) + of_tile + both +
         2 * whole_lines(r->blocks * KR_VL) + whole_lines(r->blocks) + 2 * whole_lines(tile * values) +
         9 * whole_lines(tile * KR_VL) + whole_lines(tile);
}

static void plan_items(run *r, const kr_scan_inputs *in) {
  int64_t rows = kr_has(in->cu_seqlens) ? in->S : in->B, range = 128;
  r->rows_per_item = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
  if (r->rows_per_item < 1) r->rows_per_item = 1;
  r->n_chunks = (rows + r->rows_per_item - 1) / r->rows_per_item;
  r->p = plan_scan(in, range);
  while (range > KR_VL && r->n_chunks * in->G * r->p.n_ranges < WANTED_ITEMS) r->p = plan_scan(in, range /= 2);
  const int64_t least = KR_VL < STRETCH ? STRETCH : KR_VL; /* whole vectors and stretches */
  int64_t tile = KEPT_VALUES / in->N / least * least;
  tile = tile < least ? least : tile > MAX_TILE ? MAX_TILE : tile;
  while (tile < LONGEST_TILE && in->L / tile > MOST_CHECKPOINTS) tile *= 2;
  r->p.tile = (int)tile;
}

static run plan_scan_bwd_run(const bwd_args *a) {
  const kr_scan_inputs in = KR_SCAN_INPUTS(a);
  run r = {.a = a};
  plan_items(&r, &in);
  r.blocks = r.p.range / KR_VL;
  r.n_records = r.n_chunks * in.G * r.p.n_ranges * r.blocks;
  r.record = whole_lines(sum_offset(&r, SUM_BIAS) + KR_VL);
  r.interval = in.L / STRETCH > MOST_CHECKPOINTS ? r.p.tile : STRETCH;
  r.n_kept = (in.L + r.interval - 1) / r.interval;
  r.shared_row = whole_lines(in.L);
  if (r.p.n_ranges > 1 || has_flag_in_scan_bwd_simd(&r, KRAIT_SCAN_BOTH))
    r.shared = in.B * in.G * r.p.n_ranges * r.p.values * r.shared_row;
  r.work = work_floats(&r);
  float *scratch = a->call.scratch;
  r.sums = scratch;
  r.shared_B = r.sums + r.n_records * r.record;
  r.shared_C = r.shared_B + r.shared;
  r.works = r.shared_C + r.shared;
  return r;
}

uint64_t KR_FN(kr_selective_scan_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  bwd_args a = *(const bwd_args *)args;
  a.call.scratch = NULL;
  run r = plan_scan_bwd_run(&a);
  return (uint64_t)(r.n_records * r.record + 2 * r.shared + r.work * krait_ctx_n_threads(ctx)) * sizeof(float);
}

/* ---- the work of an item ---- */

typedef struct item {
  const run *r;
  scan_walk w;
  int64_t row, g, range_index, d0, n_channels, n_blocks;
  float *A, *B, *C, *carry,
      *checkpoints; /* [block][n][lane]; B, C if constant; checkpoints: one such set per interval */
  float *bias, *skip, *size;                  /* [block][lane], [block][lane], [block] */
  float *gather_B, *gather_C, *within, *tile_dA; /* [n][step][lane] twice, [stretch of the tile][n][lane], [n][lane] */
  float *matrix_B, *matrix_C;                 /* [n][step of the tile] */
  float *dt, *du, *u, *slope, *g_out, *gate, *y, *q, *rest; /* [step][lane] */
  float *both_u, *both_dt, *both_y;           /* [block][time][lane]: first of two directions */
  unsigned char *marks;
  float *records;                             /* [block] */
  scan_ahead ahead;
} item;

static void cut_scan_bwd_work(item *it, float *scratch) {
  const run *r = it->r;
  int64_t values = r->p.values, tile = r->p.tile, states = r->blocks * values * KR_VL, steps = tile * KR_VL;
  it->A = cut(&scratch, states);
  it->carry = cut(&scratch, states);
  it->B = has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_B_CONSTANT) ? cut(&scratch, states) : NULL;
  it->C = has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_C_CONSTANT) ? cut(&scratch, states) : NULL;
  it->checkpoints = cut(&scratch, r->n_kept * states);
  it->gather_B = cut(&scratch, steps * values);
  it->gather_C = cut(&scratch, steps * values);
  it->within = cut(&scratch, tile / STRETCH * values * KR_VL);
  it->tile_dA = cut(&scratch, values * KR_VL);
  it->bias = cut(&scratch, r->blocks * KR_VL);
  it->skip = cut(&scratch, r->blocks * KR_VL);
  it->size = cut(&scratch, r->blocks);
  it->matrix_B = cut(&scratch, tile * values);
  it->matrix_C = cut(&scratch, tile * values);
  float **const arrays[] = {&it->dt, &it->du, &it->u, &it->slope, &it->g_out, &it->gate, &it->y, &it->q, &it->rest};
  for (int i = 0; i < 9; i++) *arrays[i] = cut(&scratch, steps);
  it->marks = (unsigned char *)cut(&scratch, tile);
  if (!has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_BOTH)) return;
  it->both_u = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
  it->both_dt = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
  it->both_y = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
}

static int scan_bwd_lanes_of(const item *it, int64_t block) {
  int64_t left = it->n_channels - block * KR_VL;
  return (int)(left < KR_VL ? left : KR_VL);
}
static int64_t scan_bwd_part_of(const item *it, int64_t block) { return block * it->r->p.values * KR_VL; }
static float *checkpoint_of(const item *it, int64_t block, int64_t step) {
  return it->checkpoints + (step / it->r->interval * it->r->blocks + block) * it->r->p.values * KR_VL;
}
static float *sum_of(const item *it, int64_t block, int which) {
  return it->records + block * it->r->record + sum_offset(it->r, which);
}

static void begin_scan_bwd_direction(item *it, const kr_view *A) {
  const kr_scan_inputs *in = &it->r->p.in;
  for (int64_t k = 0; k < it->n_blocks; k++) {
    int64_t d = it->d0 + k * KR_VL, part = scan_bwd_part_of(it, k);
    int lanes = scan_bwd_lanes_of(it, k);
    it->size[k] = read_parameters(it->A + part, A, d, lanes, in->N, scale_of_A(&it->r->p));
    if (it->B) read_parameters(it->B + part, in->Bmat, d, lanes, in->N, 1);
    if (it->C) read_parameters(it->C + part, in->Cmat, d, lanes, in->N, 1);
    read_states(&it->r->p, checkpoint_of(it, k, 0), in->initial_state, it->row, d, lanes);
    read_states(&it->r->p, it->carry + part, &it->r->a->dlast_state, it->row, d, lanes);
    read_channels(it->bias + k * KR_VL, in->delta_bias, d, lanes);
    read_channels(it->skip + k * KR_VL, in->Dvec, d, lanes);
  }
}

/* dt, u and dt u of a tile and, on request, the softplus slope; returns whether fast decays are valid. */
static int read_scan_bwd_steps(item *it, int64_t block, int64_t i0, int n, int with_slope) {
  const kr_scan_inputs *in = &it->r->p.in;
  float *dt = it->dt, *du = it->du, *u = it->u, *slope = it->slope;
  int64_t d = it->d0 + block * KR_VL;
  kr_plane delta = plane_of(in->delta, &it->w, d, i0), input = plane_of(in->u, &it->w, d, i0);
  kr_tile_load(dt, KR_VL, &delta, n, scan_bwd_lanes_of(it, block));
  kr_tile_load(u, KR_VL, &input, n, scan_bwd_lanes_of(it, block));
  kr_v bias = kr_v_load(it->bias + block * KR_VL), largest = kr_v_zero(), steep = kr_v_set1(1.0f);
  if (!with_slope || !has_flag_in_scan_bwd_simd(it->r, KRAIT_SCAN_SOFTPLUS)) {
    for (int i = 0; with_slope && i < n * KR_VL; i += KR_VL) kr_v_store(slope + i, steep);
    const float size = finish_steps(dt, n, bias, has_flag_in_scan_bwd_simd(it->r, KRAIT_SCAN_SOFTPLUS));
    for (int i = 0; i < n * KR_VL; i += KR_VL) kr_v_store(du + i, kr_v_mul(kr_v_load(dt + i), kr_v_load(u + i)));
    return is_near(&it->r->p, size * it->size[block]);
  }
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v value = kr_v_softplus_and_slope(kr_v_add(kr_v_load(dt + i), bias), &steep);
    kr_v_store(slope + i, steep);
    kr_v_store(dt + i, value);
    kr_v_store(du + i, kr_v_mul(value, kr_v_load(u + i)));
    largest = kr_v_max(kr_v_abs(value), largest);
  }
  return is_near(&it->r->p, kr_v_largest(largest) * it->size[block]);
}

/* Prefetches the tile's next block, or the next tile's first one; in the forward sweep, delta and u only. */
static void plan_scan_bwd_ahead(item *it, int64_t block, int64_t i0, int n, int forwards) {
  const kr_scan_inputs *in = &it->r->p.in;
  const kr_view *const views[MOST_AHEAD] = {in->delta, in->u, in->z, &it->r->a->dout};
  const int last = block + 1 == it->n_blocks, tile = it->r->p.tile, slots = (n + STRETCH - 1) / STRETCH * (int)in->N;
  const int64_t next = last ? 0 : block + 1,
                from = !last      ? i0
                       : forwards ? i0 + tile
                                  : i0 - tile,
                left = it->w.n - from;
  it->ahead.n = 0;
  for (int i = 0; from >= 0 && i < (forwards ? 2 : MOST_AHEAD); i++)
    look_ahead(&it->ahead, views[i], &it->w, it->d0 + next * KR_VL, from, left < tile ? left : tile,
               scan_bwd_lanes_of(it, next), slots);
}

/* g = dout silu(z), and dout silu'(z). */
static void read_gradients(item *it, int64_t block, int64_t i0, int n) {
  const kr_scan_inputs *in = &it->r->p.in;
  float *g = it->g_out, *gate = it->gate;
  if (!kr_has(&it->r->a->dout)) {
    memset(g, 0, (size_t)(n * KR_VL) * sizeof *g);
    memset(gate, 0, (size_t)(n * KR_VL) * sizeof *gate);
    return;
  }
  kr_plane dout = plane_of(&it->r->a->dout, &it->w, it->d0 + block * KR_VL, i0);
  kr_tile_load(g, KR_VL, &dout, n, scan_bwd_lanes_of(it, block));
  for (int i = 0; i < n; i++)
    if (it->marks[i] & STEP_IS_SILENT) kr_v_store(g + i * KR_VL, kr_v_zero());
  if (!kr_has(in->z)) return;
  kr_plane z = plane_of(in->z, &it->w, it->d0 + block * KR_VL, i0);
  kr_tile_load(gate, KR_VL, &z, n, scan_bwd_lanes_of(it, block));
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v steep, silu = kr_v_silu_and_slope(kr_v_load(gate + i), &steep), incoming = kr_v_load(g + i);
    kr_v_store(g + i, kr_v_mul(incoming, silu));
    kr_v_store(gate + i, kr_v_mul(incoming, steep));
  }
}

/* ---- a stretch ---- */

typedef struct core {
  const float *dt, *du, *g, *A, *B,
      *C; /* [step][lane] three times, [n][lane]; B, C: [n][step], or if constant [n][lane] */
  int64_t B_pitch, C_pitch, N;          /* stride over n */
  int constant_B, constant_C, is_complex, restarts; /* restarts: at any step of the tile */
  const unsigned char *marks;
  const float *before;                  /* [n][lane]: states before the stretch */
  float *after;                         /* [n][lane]: states after it, from the forward sweep */
  float *carry, *dA, *gather_B, *gather_C, *y, *q,
      *rest; /* [n][lane] twice; [n][step][lane], or if constant [n][lane], twice; [step][lane] */
  int64_t gather_B_pitch, gather_C_pitch; /* stride over n */
  scan_ahead *ahead;
} core;

/* B or C of a state at step i; p is the state's row. */
KR_INLINE kr_v shared_at(const float *p, int i, int constant) { return constant ? kr_v_load(p) : kr_v_set1(p[i]); }
KR_INLINE int is_fresh(const unsigned char *marks, int i, int restarts) { return restarts && marks[i] & STEP_RESTARTS; }

/* Forward sweep: one state over a stretch, in a register. */
KR_INLINE void carry_state(const core *c, int64_t n, int steps, int near, int constant_B, int restarts) {
  const float *dt = c->dt, *du = c->du, *B = c->B + n * c->B_pitch;
  const unsigned char *marks = c->marks;
  const kr_v A = kr_v_load(c->A + n * KR_VL);
  kr_v x = kr_v_load(c->before + n * KR_VL);
#pragma GCC unroll 8
  for (int i = 0; i < steps; i++) {
    const kr_v input = kr_v_mul(kr_v_load(du + i * KR_VL), shared_at(B, i, constant_B));
    x = is_fresh(marks, i, restarts) ? input : kr_v_fma(decay_of(kr_v_load(dt + i * KR_VL), A, near), x, input);
  }
  kr_v_store(c->after + n * KR_VL, x);
}

static void advance_scan_bwd_complex(const core *c, int steps, int near) {
  const int64_t im = c->N * KR_VL;
  for (int64_t n = 0; n < c->N; n++) {
    const float *A = c->A + n * KR_VL, *B = c->B + n * c->B_pitch, *B_im = B + c->N * c->B_pitch;
    const float *before = c->before + n * KR_VL;
    kr_v x = kr_v_load(before), x_im = kr_v_load(before + im);
    for (int i = 0; i < steps; i++) {
      kr_v du = kr_v_load(c->du + i * KR_VL), decay_im,
           decay = complex_decay(kr_v_load(c->dt + i * KR_VL), kr_v_load(A), kr_v_load(A + im), near, &decay_im);
      if (is_fresh(c->marks, i, 1)) x = x_im = kr_v_zero();
      const kr_v old = x;
      x = kr_v_fma(decay, x, kr_v_fnma(decay_im, x_im, kr_v_mul(du, shared_at(B, i, c->constant_B))));
      x_im = kr_v_fma(decay, x_im, kr_v_fma(decay_im, old, kr_v_mul(du, shared_at(B_im, i, c->constant_B))));
    }
    kr_v_store(c->after + n * KR_VL, x);
    kr_v_store(c->after + n * KR_VL + im, x_im);
  }
}

static void advance_block(const core *c, int near) {
  const int64_t N = c->N;
  if (c->is_complex) {
    advance_scan_bwd_complex(c, STRETCH, near);
  } else if (near && !c->constant_B && !c->restarts) {
    for (int64_t n = 0; n < N; n++) {
      ask_ahead(c->ahead);
      carry_state(c, n, STRETCH, 1, 0, 0);
    }
  } else if (c->constant_B) {
    for (int64_t n = 0; n < N; n++) carry_state(c, n, STRETCH, 0, 1, 1);
  } else {
    for (int64_t n = 0; n < N; n++) carry_state(c, n, STRETCH, 0, 0, 1);
  }
}

KR_INLINE void add_product(float *sum, kr_v a, kr_v b) { kr_v_store(sum, kr_v_fma(a, b, kr_v_load(sum))); }

/* One state over a stretch: forward, keeping states and decays, then its gradients backward. */
KR_INLINE void sweep_state(const core *c, int64_t n, int steps, int near, int constant_B, int constant_C, int restarts,
                           int with_y) {
  const int64_t at = n * KR_VL, each_B = constant_B ? 0 : KR_VL, each_C = constant_C ? 0 : KR_VL;
  const float *dt = c->dt, *du = c->du, *g = c->g, *B = c->B + n * c->B_pitch, *C = c->C + n * c->C_pitch;
  float *gather_B = c->gather_B + n * c->gather_B_pitch, *gather_C = c->gather_C + n * c->gather_C_pitch, *q = c->q,
        *rest = c->rest, *y = c->y;
  const unsigned char *marks = c->marks;
  const kr_v A = kr_v_load(c->A + at);
  kr_v x[STRETCH + 1], decay[STRETCH], carry = kr_v_load(c->carry + at), dA = kr_v_load(c->dA + at);
  x[0] = kr_v_load(c->before + at);
#pragma GCC unroll 8
  for (int i = 0; i < steps; i++) {
    const kr_v input = kr_v_mul(kr_v_load(du + i * KR_VL), shared_at(B, i, constant_B));
    decay[i] = decay_of(kr_v_load(dt + i * KR_VL), A, near);
    x[i + 1] = is_fresh(marks, i, restarts) ? input : kr_v_fma(decay[i], x[i], input);
  }
#pragma GCC unroll 8
  for (int i = steps - 1; i >= 0; i--) {
    const kr_v gi = kr_v_load(g + i * KR_VL), Ci = shared_at(C, i, constant_C), dx = kr_v_fma(Ci, gi, carry);
    add_product(gather_C + i * each_C, gi, x[i + 1]);
    add_product(gather_B + i * each_B, dx, kr_v_load(du + i * KR_VL));
    add_product(q + i * KR_VL, dx, shared_at(B, i, constant_B));
    if (with_y) add_product(y + i * KR_VL, Ci, x[i + 1]);
    carry = kr_v_zero();
    if (is_fresh(marks, i, restarts)) continue;
    carry = kr_v_mul(decay[i], dx);
    const kr_v part = kr_v_mul(carry, x[i]);
    dA = kr_v_fma(kr_v_load(dt + i * KR_VL), part, dA);
    add_product(rest + i * KR_VL, A, part);
  }
  kr_v_store(c->carry + at, carry);
  kr_v_store(c->dA + at, dA);
}

/* The same for a complex state: dx = 2 g conj(C) + carry, carry = conj(decay) dx, part = conj(x) carry. */
static void sweep_complex(const core *c, int64_t n, int steps, int near) {
  const int64_t at = n * KR_VL, im = c->N * KR_VL;
  const float *A = c->A + at, *B = c->B + n * c->B_pitch, *B_im = B + c->N * c->B_pitch, *C = c->C + n * c->C_pitch,
              *C_im = C + c->N * c->C_pitch;
  kr_v x[STRETCH + 1][2], decay[STRETCH][2], carry[2] = {kr_v_load(c->carry + at), kr_v_load(c->carry + at + im)};
  x[0][0] = kr_v_load(c->before + at);
  x[0][1] = kr_v_load(c->before + at + im);
  for (int i = 0; i < steps; i++) {
    const kr_v du = kr_v_load(c->du + i * KR_VL), zero = kr_v_zero(), re = is_fresh(c->marks, i, 1) ? zero : x[i][0],
               x_im = is_fresh(c->marks, i, 1) ? zero : x[i][1];
    decay[i][0] = complex_decay(kr_v_load(c->dt + i * KR_VL), kr_v_load(A), kr_v_load(A + im), near, &decay[i][1]);
    x[i + 1][0] = kr_v_fma(decay[i][0], re, kr_v_fnma(decay[i][1], x_im, kr_v_mul(du, shared_at(B, i, c->constant_B))));
    x[i + 1][1] =
        kr_v_fma(decay[i][0], x_im, kr_v_fma(decay[i][1], re, kr_v_mul(du, shared_at(B_im, i, c->constant_B))));
  }
  for (int i = steps - 1; i >= 0; i--) {
    const kr_v du = kr_v_load(c->du + i * KR_VL), dt = kr_v_load(c->dt + i * KR_VL), once = kr_v_load(c->g + i * KR_VL),
               g = kr_v_add(once, once);
    const kr_v Ci = shared_at(C, i, c->constant_C), Ci_im = shared_at(C_im, i, c->constant_C),
               dx = kr_v_fma(Ci, g, carry[0]), dx_im = kr_v_fnma(Ci_im, g, carry[1]);
    float *gather_B = c->gather_B + n * c->gather_B_pitch + (c->constant_B ? 0 : i * KR_VL),
          *gather_C = c->gather_C + n * c->gather_C_pitch + (c->constant_C ? 0 : i * KR_VL);
    float *q = c->q + i * KR_VL, *rest = c->rest + i * KR_VL, *y = c->y + i * KR_VL;
    add_product(gather_C, g, x[i + 1][0]);
    add_product(gather_C + c->N * c->gather_C_pitch, kr_v_neg(g), x[i + 1][1]);
    add_product(gather_B, dx, du);
    add_product(gather_B + c->N * c->gather_B_pitch, dx_im, du);
    add_product(q, dx, shared_at(B, i, c->constant_B));
    add_product(q, dx_im, shared_at(B_im, i, c->constant_B));
    add_product(y, kr_v_set1(2.0f), kr_v_fnma(Ci_im, x[i + 1][1], kr_v_mul(Ci, x[i + 1][0])));
    carry[0] = carry[1] = kr_v_zero();
    if (is_fresh(c->marks, i, 1)) continue;
    carry[0] = kr_v_fma(decay[i][0], dx, kr_v_mul(decay[i][1], dx_im));
    carry[1] = kr_v_fnma(decay[i][1], dx, kr_v_mul(decay[i][0], dx_im));
    const kr_v part = kr_v_fma(x[i][0], carry[0], kr_v_mul(x[i][1], carry[1])),
               part_im = kr_v_fnma(x[i][1], carry[0], kr_v_mul(x[i][0], carry[1]));
    add_product(c->dA + at, dt, part);
    add_product(c->dA + at + im, dt, part_im);
    add_product(rest, kr_v_load(A), part);
    add_product(rest, kr_v_load(A + im), part_im);
  }
  kr_v_store(c->carry + at, carry[0]);
  kr_v_store(c->carry + at + im, carry[1]);
}

KR_INLINE void sweep_states(const core *c, int steps, int near, int constant_B, int constant_C, int restarts,
                            int with_y) {
  const int64_t N = c->N;
  for (int64_t n = 0; n < N; n++) {
    ask_ahead(c->ahead);
    sweep_state(c, n, steps, near, constant_B, constant_C, restarts, with_y);
  }
}

static void sweep_scan_bwd_simd(const core *c, int steps, int near, int with_y) {
  if (c->is_complex)
    for (int64_t n = 0; n < c->N; n++) sweep_complex(c, n, steps, near);
  else if (c->constant_B && c->constant_C) sweep_states(c, steps, 0, 1, 1, 1, 1);
  else if (c->constant_B) sweep_states(c, steps, 0, 1, 0, 1, 1);
  else if (c->constant_C) sweep_states(c, steps, 0, 0, 1, 1, 1);
  else if (!near || c->restarts || steps < STRETCH) sweep_states(c, steps, 0, 0, 0, 1, 1);
  else if (with_y) sweep_states(c, STRETCH, 1, 0, 0, 0, 1);
  else sweep_states(c, STRETCH, 1, 0, 0, 0, 0);
}

/* ---- a block's tile ---- */

/* From step `at` of the tile on. */
static core core_of(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int at) {
  const int64_t part = scan_bwd_part_of(it, block), from = at * KR_VL, gathered = it->r->p.tile * KR_VL;
  return (core){.dt = it->dt + from,
                .du = it->du + from,
                .g = it->g_out + from,
                .A = it->A + part,
                .N = it->r->p.in.N,
                .B = it->B ? it->B + part : B->data + at,
                .B_pitch = it->B ? KR_VL : B->pitch,
                .constant_B = it->B != NULL,
                .C = it->C ? it->C + part : C->data + at,
                .C_pitch = it->C ? KR_VL : C->pitch,
                .constant_C = it->C != NULL,
                .is_complex = it->r->p.width == 2,
                .restarts = kr_has(it->r->p.in.seq_idx),
                .marks = it->marks + at,
                .carry = it->carry + part,
                .dA = it->tile_dA,
                .y = it->y + from,
                .q = it->q + from,
                .rest = it->rest + from,
                .gather_B = it->B ? sum_of(it, block, SUM_B) : it->gather_B + from,
                .gather_B_pitch = it->B ? KR_VL : gathered,
                .gather_C = it->C ? sum_of(it, block, SUM_C) : it->gather_C + from,
                .gather_C_pitch = it->C ? KR_VL : gathered,
                .ahead = &it->ahead};
}

static void put_tile(const item *it, const float *tile, const kr_view *v, int64_t block, int64_t i0, int n) {
  if (!kr_has(v)) return;
  kr_plane plane = plane_of(v, &it->w, it->d0 + block * KR_VL, i0);
  kr_tile_store(tile, KR_VL, &plane, n, scan_bwd_lanes_of(it, block));
}

/* In place: q, rest and y become dt q, u q + rest (unscaled) and y: one direction's terms of du, ddt and the output. */
static void direction_terms(item *it, int n) {
  float *q = it->q, *rest = it->rest;
  const float *dt = it->dt, *u = it->u;
  const kr_v unscaled = kr_v_set1(it->r->p.width == 1 ? ln_2 : 1.0f);
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v dq = kr_v_load(q + i);
    kr_v_store(rest + i, kr_v_fma(kr_v_load(u + i), dq, kr_v_mul(unscaled, kr_v_load(rest + i))));
    kr_v_store(q + i, kr_v_mul(kr_v_load(dt + i), dq));
  }
}

/* The first of two directions saves its terms by time; the second adds them to its own. */
static void exchange_terms(item *it, int64_t block, int64_t i0, int n, int is_first) {
  float *const kept[] = {it->both_u, it->both_dt, it->both_y}, *const own[] = {it->q, it->rest, it->y};
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < n; i++) {
      float *place = kept[k] + (block * it->r->p.in.L + it->w.first + (i0 + i) * it->w.step) * KR_VL,
            *mine = own[k] + i * KR_VL;
      if (is_first) kr_v_store(place, kr_v_load(mine));
      else kr_v_store(mine, kr_v_add(kr_v_load(mine), kr_v_load(place)));
    }
}

static void finish_scan_bwd_tile(item *it, int64_t block, int64_t i0, int n) {
  const bwd_args *a = it->r->a;
  float *q = it->q, *rest = it->rest, *y = it->y;
  const float *g = it->g_out, *u = it->u, *slope = it->slope, *gate = it->gate;
  const int gated = kr_has(&a->z) && kr_has(&a->dz);
  kr_v skip = kr_v_load(it->skip + block * KR_VL), dD = kr_v_zero(), dbias = kr_v_zero();
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v gi = kr_v_load(g + i), ui = kr_v_load(u + i), ddelta = kr_v_mul(kr_v_load(rest + i), kr_v_load(slope + i));
    kr_v_store(q + i, kr_v_fma(skip, gi, kr_v_load(q + i)));
    kr_v_store(rest + i, ddelta);
    dbias = kr_v_add(dbias, ddelta);
    dD = kr_v_fma(gi, ui, dD);
    if (gated) kr_v_store(y + i, kr_v_mul(kr_v_load(gate + i), kr_v_fma(skip, ui, kr_v_load(y + i))));
  }
  float *sum_D = sum_of(it, block, SUM_D), *sum_bias = sum_of(it, block, SUM_BIAS);
  kr_v_store(sum_D, kr_v_add(kr_v_load(sum_D), dD));
  kr_v_store(sum_bias, kr_v_add(kr_v_load(sum_bias), dbias));
  put_tile(it, q, &a->du, block, i0, n);
  put_tile(it, rest, &a->ddelta, block, i0, n);
  if (!gated) return;
  for (int i = 0; i < n; i++)
    if (it->marks[i] & STEP_IS_SILENT) kr_v_store(y + i * KR_VL, kr_v_zero());
  put_tile(it, y, &a->dz, block, i0, n);
}

static void add_floats(float *sum, const float *more, int64_t n) {
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(sum + i, kr_v_add(kr_v_load(sum + i), kr_v_load(more + i)));
}

/* The states before each stretch of a tile: checkpoints, or recomputed from the one before the tile. */
static const float *states_before(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int64_t i0,
                                  int n, int near, int at) {
  const int64_t row = it->r->p.values * KR_VL;
  if (it->r->interval == STRETCH) return checkpoint_of(it, block, i0 + at);
  for (int k = 0; at + STRETCH >= n && k < at; k += STRETCH) { /* the last stretch is requested first */
    core c = core_of(it, block, B, C, k);
    c.before = k ? it->within + k / STRETCH * row : checkpoint_of(it, block, i0);
    c.after = it->within + (k / STRETCH + 1) * row;
    advance_block(&c, near);
  }
  return at ? it->within + at / STRETCH * row : checkpoint_of(it, block, i0);
}

static void sweep_block(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int64_t i0, int n,
                        int sum_A, int turn) {
  const int64_t row = it->r->p.values * KR_VL;
  int near = read_scan_bwd_steps(it, block, i0, n, 1);
  read_gradients(it, block, i0, n);
  plan_scan_bwd_ahead(it, block, i0, n, 0);
  memset(it->tile_dA, 0, (size_t)row * sizeof(float));
  float *const sums[] = {it->y, it->q, it->rest};
  for (int k = 0; k < 3; k++) memset(sums[k], 0, (size_t)(n * KR_VL) * sizeof(float));
  for (int at = (n - 1) / STRETCH * STRETCH; at >= 0; at -= STRETCH) {
    core c = core_of(it, block, B, C, at);
    c.before = states_before(it, block, B, C, i0, n, near, at);
    sweep_scan_bwd_simd(&c, n - at < STRETCH ? n - at : STRETCH, near, kr_has(&it->r->a->dz));
  }
  add_floats(sum_of(it, block, sum_A), it->tile_dA, row);
  direction_terms(it, n);
  if (turn) exchange_terms(it, block, i0, n, turn == 1);
  if (turn != 1) finish_scan_bwd_tile(it, block, i0, n);
}

/* ---- dB and dC of a tile ---- */

/* matrix[i] = sum of gather[i][...]; n is a multiple of the vector length. */
static void add_across_lanes(float *matrix, const float *gather, int64_t n) {
  for (int64_t i = 0; i < n; i += KR_VL) {
    kr_v block[KR_VL];
    for (int k = 0; k < KR_VL; k++) block[k] = kr_v_load(gather + (i + k) * KR_VL);
    kr_v_store(matrix + i, kr_v_sum_each(block));
  }
}

/* Writes matrix[n][step], with `pitch` floats per row, to steps i0.. of a (B,G,N,L) view. */
static void write_scan_bwd_simd_shared(const scan_plan *p, const float *matrix, int64_t pitch, const kr_view *v,
                         const scan_walk *w, int64_t g, int64_t i0, int n) {
  for (int part = 0; part < p->width; part++) {
    const kr_plane steps = shared_plane_of(p, v, w, g, i0, part), states = turned(&steps);
    kr_matrix_store(matrix + part * p->in.N * pitch, pitch, &states, (int)p->in.N, n);
  }
}

/* Partial sums: [b][g][range][n][time]. */
static float *partial_of(const run *r, float *partial, int64_t b, int64_t g, int64_t range) {
  return partial + ((b * r->p.in.G + g) * r->p.n_ranges + range) * r->p.values * r->shared_row;
}

static void put_shared(item *it, const kr_view *v, float *partial, const float *gather, float *matrix, int64_t i0,
                       int n, int turn) {
  const scan_plan *p = &it->r->p;
  if (!kr_has(v)) return;
  add_across_lanes(matrix, gather, p->values * p->tile);
  if (!it->r->shared) {
    write_scan_bwd_simd_shared(p, matrix, p->tile, v, &it->w, it->g, i0, n);
    return;
  }
  float *base = partial_of(it->r, partial, it->w.b, it->g, it->range_index) + it->w.first + i0 * it->w.step;
  for (int64_t k = 0; k < p->values; k++) {
    float *place = base + k * it->r->shared_row;
    const float *sum = matrix + k * p->tile;
    if (turn == 2)
      for (int i = 0; i < n; i++) place[i * it->w.step] += sum[i];
    else
      for (int i = 0; i < n; i++) place[i * it->w.step] = sum[i];
  }
}

/* ---- an item: a range of channels over some sequences ---- */

/* B or C of a tile as data[n * pitch + step]. */
static scan_shared read_states_by_step(const scan_plan *p, const kr_view *v, const scan_walk *w, int64_t g,
                                       int64_t i0, int n, float *buffer) {
  for (int part = 0; part < p->width; part++) {
    const kr_plane steps = shared_plane_of(p, v, w, g, i0, part), states = turned(&steps);
    kr_matrix_load(buffer + part * p->in.N * p->tile, p->tile, &states, (int)p->in.N, n);
  }
  return (scan_shared){buffer, p->tile, p->in.N * p->tile};
}

static void read_both(item *it, int64_t i0, int n, scan_shared *B, scan_shared *C) {
  const scan_plan *p = &it->r->p;
  *B = *C = (scan_shared){0};
  if (!it->B) *B = read_states_by_step(p, p->in.Bmat, &it->w, it->g, i0, n, it->matrix_B);
  if (!it->C) *C = read_states_by_step(p, p->in.Cmat, &it->w, it->g, i0, n, it->matrix_C);
  mark_steps(&p->in, &it->w, i0, n, it->marks);
}

/* Checkpoints the states before each interval of the tile; steps after the last checkpoint are skipped. */
static void walk_block(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int64_t i0, int n) {
  const int64_t interval = it->r->interval, last = (it->w.n - 1) / interval * interval;
  const int near = i0 < last ? read_scan_bwd_steps(it, block, i0, n, 0) : 0;
  const float *before = checkpoint_of(it, block, i0);
  plan_scan_bwd_ahead(it, block, i0, n, 1);
  for (int at = 0; at < n && i0 + at < last; at += STRETCH) {
    core c = core_of(it, block, B, C, at);
    c.before = before;
    before = c.after = (at + STRETCH) % interval ? it->within : checkpoint_of(it, block, i0 + at + STRETCH);
    advance_block(&c, near);
  }
}

static void walk_scan_bwd_forwards(item *it) {
  const scan_plan *p = &it->r->p;
  for (int64_t i0 = 0; i0 < it->w.n; i0 += p->tile) {
    int n = (int)(it->w.n - i0 < p->tile ? it->w.n - i0 : p->tile);
    scan_shared B, C;
    read_both(it, i0, n, &B, &C);
    for (int64_t k = 0; k < it->n_blocks; k++) walk_block(it, k, &B, &C, i0, n);
  }
}

static void walk_scan_bwd_backwards(item *it, int sum_A, int turn) {
  const run *r = it->r;
  const int64_t row = r->p.values * KR_VL, tile = r->p.tile;
  for (int64_t i0 = (it->w.n - 1) / tile * tile; i0 >= 0 && it->w.n; i0 -= tile) {
    int n = (int)(it->w.n - i0 < tile ? it->w.n - i0 : tile);
    scan_shared B, C;
    read_both(it, i0, n, &B, &C);
    if (!it->B) memset(it->gather_B, 0, (size_t)(tile * row) * sizeof(float));
    if (!it->C) memset(it->gather_C, 0, (size_t)(tile * row) * sizeof(float));
    for (int64_t k = 0; k < it->n_blocks; k++) sweep_block(it, k, &B, &C, i0, n, sum_A, turn);
    if (!it->B) put_shared(it, &r->a->dB, r->shared_B, it->gather_B, it->matrix_B, i0, n, turn);
    if (!it->C) put_shared(it, &r->a->dC, r->shared_C, it->gather_C, it->matrix_C, i0, n, turn);
  }
}

/* turn: 0 the only direction, 1 the first of two, 2 the second. */
static void run_scan_bwd_direction(item *it, const kr_view *A, int reverse, int turn) {
  it->w = walk_row(&it->r->p.in, it->row, reverse);
  begin_scan_bwd_direction(it, A);
  walk_scan_bwd_forwards(it);
  walk_scan_bwd_backwards(it, turn == 1 ? SUM_A_REVERSE : SUM_A, turn);
  for (int64_t k = 0; k < it->n_blocks; k++)
    write_states(&it->r->p, it->carry + scan_bwd_part_of(it, k), &it->r->a->dinitial_state, it->row, it->d0 + k * KR_VL,
                 scan_bwd_lanes_of(it, k));
}

static void run_scan_bwd_item(const run *r, int64_t index, float *work) {
  const scan_plan *p = &r->p;
  int64_t range = index % p->n_ranges, g = index / p->n_ranges % p->in.G, chunk = index / p->n_ranges / p->in.G;
  item it = {.r = r, .g = g, .range_index = range, .d0 = g * p->group + range * p->range};
  it.n_channels = p->group - range * p->range < p->range ? p->group - range * p->range : p->range;
  it.n_blocks = (it.n_channels + KR_VL - 1) / KR_VL;
  it.records = r->sums + index * r->blocks * r->record;
  memset(it.records, 0, (size_t)(r->blocks * r->record) * sizeof(float));
  cut_scan_bwd_work(&it, work);
  int64_t end = (chunk + 1) * r->rows_per_item;
  for (it.row = chunk * r->rows_per_item; it.row < end && it.row < p->n_rows; it.row++) {
    int both = has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_BOTH);
    if (both) run_scan_bwd_direction(&it, p->in.A_reverse, 1, 1);
    run_scan_bwd_direction(&it, p->in.A, has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_REVERSE), both ? 2 : 0);
  }
}

static void run_scan_bwd_items(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  for (int64_t i = begin; i < end; i++) run_scan_bwd_item(r, i, r->works + worker * r->work);
}

/* ---- the last sums ---- */

static double sum_over_chunks(const run *r, int64_t block, int64_t offset) {
  double sum = 0;
  int64_t stride = r->p.in.G * r->p.n_ranges * r->blocks;
  for (int64_t chunk = 0; chunk < r->n_chunks; chunk++) sum += r->sums[(chunk * stride + block) * r->record + offset];
  return sum;
}

static void put_sums(const run *r, int64_t block, int64_t d, int lane, int which, const kr_view *v, int64_t N) {
  const int64_t width = which < SUM_D ? r->p.width : 1;
  for (int64_t k = 0; kr_has(v) && k < N * width; k++) {
    const int64_t at = which < SUM_D ? kr_at2(v, d, k % N) : kr_at1(v, d);
    kr_put(v, at * width + k / N, sum_over_chunks(r, block, sum_offset(r, which) + k * KR_VL + lane));
  }
}

static void finish_parameters(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  const bwd_args *a = r->a;
  const int64_t N = r->p.in.N;
  (void)worker;
  for (int64_t d = begin; d < end; d++) {
    int64_t in_group = d % r->p.group, range = in_group / r->p.range, in_range = in_group % r->p.range;
    int64_t block = (d / r->p.group * r->p.n_ranges + range) * r->blocks + in_range / KR_VL;
    int lane = (int)(in_range % KR_VL);
    put_sums(r, block, d, lane, SUM_A, &a->dA, N);
    if (has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_BOTH)) put_sums(r, block, d, lane, SUM_A_REVERSE, &a->dA_reverse, N);
    if (has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_B_CONSTANT)) put_sums(r, block, d, lane, SUM_B, &a->dB, N);
    if (has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_C_CONSTANT)) put_sums(r, block, d, lane, SUM_C, &a->dC, N);
    put_sums(r, block, d, lane, SUM_D, &a->dDvec, 1);
    put_sums(r, block, d, lane, SUM_BIAS, &a->ddelta_bias, 1);
  }
}

enum { FINISHED_STEPS = 256 };

/* Reduces FINISHED_STEPS steps from t over the ranges and writes them. */
static void finish_shared_steps(const run *r, const kr_view *v, float *partial, int64_t b, int64_t g, int64_t t) {
  const scan_plan *p = &r->p;
  const int64_t row = r->shared_row, n = p->in.L - t < FINISHED_STEPS ? p->in.L - t : FINISHED_STEPS;
  float *first = partial_of(r, partial, b, g, 0) + t;
  for (int64_t range = 1; range < p->n_ranges; range++) {
    const float *more = partial_of(r, partial, b, g, range) + t;
    for (int64_t k = 0; k < p->values; k++)
      for (int64_t i = 0; i < n; i++) first[k * row + i] += more[k * row + i];
  }
  write_scan_bwd_simd_shared(p, first, row, v, &(scan_walk){.b = b, .first = t, .n = n, .step = 1}, g, 0, (int)n);
}

static void finish_shared(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  const int64_t pieces = (r->p.in.L + FINISHED_STEPS - 1) / FINISHED_STEPS, G = r->p.in.G;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t t = i % pieces * FINISHED_STEPS, g = i / pieces % G, b = i / pieces / G;
    if (kr_has(&r->a->dB) && !has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_B_CONSTANT))
      finish_shared_steps(r, &r->a->dB, r->shared_B, b, g, t);
    if (kr_has(&r->a->dC) && !has_flag_in_scan_bwd_simd(r, KRAIT_SCAN_C_CONSTANT))
      finish_shared_steps(r, &r->a->dC, r->shared_C, b, g, t);
  }
}

int32_t KR_FN(kr_selective_scan_bwd)(const krait_ctx *ctx, const void *args) {
  const bwd_args *a = args;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("selective_scan_bwd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  run r = plan_scan_bwd_run(a);
  kr_parallel(ctx, r.n_chunks * r.p.in.G * r.p.n_ranges, 1, run_scan_bwd_items, &r);
  kr_parallel(ctx, a->D, 16, finish_parameters, &r);
  if (r.shared) kr_parallel(ctx, a->B * a->G * ((a->L + FINISHED_STEPS - 1) / FINISHED_STEPS), 1, finish_shared, &r);
  return KRAIT_OK;
}
