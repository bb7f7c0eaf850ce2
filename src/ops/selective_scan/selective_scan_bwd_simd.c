/* selective_scan_bwd_simd.c: the scan's gradient with channels across lanes (scan_block.h). An item walks its sequences
 * once forwards, keeping the states at the start of every stretch, a tile or a half of one; then stretch by stretch backwards,
 * where each is replayed with all its states and decays kept in the first cache, and swept from its end. dB and dC gather per lane over the blocks of an item and are added
 * across lanes once per tile. Items are cut by the shape alone, partial sums are added in one order: the result does
 * not depend on threads. */
#include "contract.h"
#include "op_list.h"
#include "scan_block.h"

typedef krait_selective_scan_bwd_args bwd_args;

enum { MOST_CHUNKS = 256, WANTED_ITEMS = 16, KEPT_VALUES = 256, MOST_CHECKPOINTS = 4096, LONGEST_TILE = 256 };
static const float ln_2 = 0.69314718f;

/* Scratch: [sums of parameter gradients][dB by range][dC by range][a work area per thread]. */
typedef struct run {
  scan_plan p;
  const bwd_args *a;
  int64_t rows_per_item, n_chunks; /* sequences of an item, items along sequences */
  int64_t blocks;                  /* of a whole range */
  int64_t record, n_records;       /* floats of a block's sums; chunks x blocks */
  int64_t shared;                  /* floats of dB (and of dC) by range; 0 where items write them themselves */
  int64_t stretch;                 /* steps that are replayed at once; divides a tile */
  int64_t n_stretches, work;       /* of the longest sequence; floats of a work area */
  float *sums, *shared_B, *shared_C, *works;
} run;

static int has_flag(const run *r, uint32_t flag) { return (r->p.in.flags & flag) != 0; }

/* A record: [n][lane] each for dA, dA_reverse, constant dB, constant dC (where they exist), then [lane] for dD and dbias. */
enum { SUM_A, SUM_A_REVERSE, SUM_B, SUM_C, SUM_D, SUM_BIAS };

static int64_t sum_offset(const run *r, int which) {
  const uint32_t exists[] = {1, r->p.in.flags & KRAIT_SCAN_BOTH, r->p.in.flags & KRAIT_SCAN_B_CONSTANT, r->p.in.flags & KRAIT_SCAN_C_CONSTANT};
  int64_t offset = 0;
  for (int i = 0; i < 4 && i < which; i++) offset += exists[i] ? r->p.in.N * KR_VL : 0;
  return offset + (which > SUM_D ? (which - SUM_D) * KR_VL : 0);
}

static int64_t work_floats(const run *r) {
  int64_t N = r->p.in.N, tile = r->p.tile, stretch = r->stretch, states = whole_lines(r->blocks * N * KR_VL);
  int64_t constants = has_flag(r, KRAIT_SCAN_B_CONSTANT) + has_flag(r, KRAIT_SCAN_C_CONSTANT);
  int64_t kept = whole_lines((stretch + 1) * N * KR_VL) + whole_lines(stretch * N * KR_VL) + whole_lines(tile * N * KR_VL) * 2 + whole_lines(N * KR_VL);
  int64_t both = has_flag(r, KRAIT_SCAN_BOTH) ? 3 * whole_lines(r->blocks * KR_VL * r->p.in.L) : 0;
  return states * (3 + constants) + whole_lines(r->n_stretches * r->blocks * N * KR_VL) + kept + both + 2 * whole_lines(r->blocks * KR_VL) +
         whole_lines(r->blocks) + 2 * whole_lines(tile * r->p.pitch) + 9 * whole_lines(tile * KR_VL) + whole_lines(tile);
}

static void plan_items(run *r, const kr_scan_inputs *in) {
  int64_t rows = kr_has(in->cu_seqlens) ? in->S : in->B, range = 128;
  r->rows_per_item = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
  if (r->rows_per_item < 1) r->rows_per_item = 1;
  r->n_chunks = (rows + r->rows_per_item - 1) / r->rows_per_item;
  r->p = plan_scan(in, range);
  while (range > KR_VL && r->n_chunks * in->G * r->p.n_ranges < WANTED_ITEMS) r->p = plan_scan(in, range /= 2);
  int64_t tile = KEPT_VALUES / in->N / KR_VL * KR_VL;
  tile = tile < KR_VL ? KR_VL : tile > MAX_TILE ? MAX_TILE : tile;
  while (tile < LONGEST_TILE && in->L / tile > MOST_CHECKPOINTS) tile *= 2;
  r->p.tile = (int)tile;
}

static run plan_run(const bwd_args *a) {
  const kr_scan_inputs in = KR_SCAN_INPUTS(a);
  run r = {.a = a};
  plan_items(&r, &in);
  r.blocks = r.p.range / KR_VL;
  r.n_records = r.n_chunks * in.G * r.p.n_ranges * r.blocks;
  r.record = whole_lines(sum_offset(&r, SUM_BIAS) + KR_VL);
  r.stretch = r.p.tile == KR_VL && KR_VL > 8 ? KR_VL / 2 : r.p.tile; /* whole vectors of steps are read, half of them fit the first cache */
  r.n_stretches = (in.L + r.stretch - 1) / r.stretch;
  if (r.p.n_ranges > 1 || has_flag(&r, KRAIT_SCAN_BOTH)) r.shared = whole_lines(in.B * in.G * r.p.n_ranges * in.L * r.p.pitch);
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
  run r = plan_run(&a);
  return (uint64_t)(r.n_records * r.record + 2 * r.shared + r.work * krait_ctx_n_threads(ctx)) * sizeof(float);
}

/* ---- the work of an item ---- */

typedef struct item {
  const run *r;
  scan_walk w;
  int64_t row, g, range_index, d0, n_channels, n_blocks;
  float *A, *B, *C, *carry, *x, *checkpoints; /* [block][n][lane]; B, C where constant; checkpoints: one such set per stretch */
  float *bias, *skip, *size;                  /* [block][lane], [block][lane], [block] */
  float *states, *decays, *gather_B, *gather_C, *tile_dA; /* [step + 1][n][lane], [step][n][lane] three times, [n][lane] */
  float *matrix_B, *matrix_C;                 /* [step][pitch] */
  float *dt, *du, *u, *slope, *g_out, *gate, *y, *q, *rest; /* [step][lane] */
  float *both_u, *both_dt, *both_y;           /* [block][time][lane], the first of two directions */
  unsigned char *marks;
  float *records;                             /* [block] */
} item;

static void cut_work(item *it, float *scratch) {
  const run *r = it->r;
  int64_t N = r->p.in.N, tile = r->p.tile, states = r->blocks * N * KR_VL, steps = tile * KR_VL;
  it->A = cut(&scratch, states);
  it->carry = cut(&scratch, states);
  it->x = cut(&scratch, states);
  it->B = has_flag(r, KRAIT_SCAN_B_CONSTANT) ? cut(&scratch, states) : NULL;
  it->C = has_flag(r, KRAIT_SCAN_C_CONSTANT) ? cut(&scratch, states) : NULL;
  it->checkpoints = cut(&scratch, r->n_stretches * states);
  it->states = cut(&scratch, (r->stretch + 1) * N * KR_VL);
  it->decays = cut(&scratch, r->stretch * N * KR_VL);
  it->gather_B = cut(&scratch, steps * N);
  it->gather_C = cut(&scratch, steps * N);
  it->tile_dA = cut(&scratch, N * KR_VL);
  it->bias = cut(&scratch, r->blocks * KR_VL);
  it->skip = cut(&scratch, r->blocks * KR_VL);
  it->size = cut(&scratch, r->blocks);
  it->matrix_B = cut(&scratch, tile * r->p.pitch);
  it->matrix_C = cut(&scratch, tile * r->p.pitch);
  float **const arrays[] = {&it->dt, &it->du, &it->u, &it->slope, &it->g_out, &it->gate, &it->y, &it->q, &it->rest};
  for (int i = 0; i < 9; i++) *arrays[i] = cut(&scratch, steps);
  it->marks = (unsigned char *)cut(&scratch, tile);
  if (!has_flag(r, KRAIT_SCAN_BOTH)) return;
  it->both_u = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
  it->both_dt = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
  it->both_y = cut(&scratch, r->blocks * KR_VL * r->p.in.L);
}

static int lanes_of(const item *it, int64_t block) {
  int64_t left = it->n_channels - block * KR_VL;
  return (int)(left < KR_VL ? left : KR_VL);
}
static int64_t part_of(const item *it, int64_t block) { return block * it->r->p.in.N * KR_VL; }
static float *sum_of(const item *it, int64_t block, int which) { return it->records + block * it->r->record + sum_offset(it->r, which); }

static void begin_direction(item *it, const krait_view *A) {
  const kr_scan_inputs *in = &it->r->p.in;
  for (int64_t k = 0; k < it->n_blocks; k++) {
    int64_t d = it->d0 + k * KR_VL, part = part_of(it, k);
    int lanes = lanes_of(it, k);
    it->size[k] = read_parameters(it->A + part, A, d, lanes, in->N, log2_e);
    if (it->B) read_parameters(it->B + part, in->Bmat, d, lanes, in->N, 1);
    if (it->C) read_parameters(it->C + part, in->Cmat, d, lanes, in->N, 1);
    read_states(it->x + part, in->initial_state, it->row, d, lanes, in->N);
    read_states(it->carry + part, &it->r->a->dlast_state, it->row, d, lanes, in->N);
    read_channels(it->bias + k * KR_VL, in->delta_bias, d, lanes);
    read_channels(it->skip + k * KR_VL, in->Dvec, d, lanes);
  }
}

/* dt, its slope, u and dt u of a tile; returns whether the short exponential will do. */
static int read_steps(item *it, int64_t block, int64_t i0, int n) {
  const kr_scan_inputs *in = &it->r->p.in;
  float *dt = it->dt, *du = it->du, *u = it->u, *slope = it->slope;
  int64_t d = it->d0 + block * KR_VL;
  kr_plane delta = plane_of(in->delta, &it->w, d, i0), input = plane_of(in->u, &it->w, d, i0);
  kr_tile_load(dt, KR_VL, &delta, n, lanes_of(it, block));
  kr_tile_load(u, KR_VL, &input, n, lanes_of(it, block));
  kr_v bias = kr_v_load(it->bias + block * KR_VL), largest = kr_v_zero(), one = kr_v_set1(1.0f);
  const int softplus = has_flag(it->r, KRAIT_SCAN_SOFTPLUS);
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v value = kr_v_add(kr_v_load(dt + i), bias), steep = one;
    if (softplus) value = kr_v_softplus_and_slope(value, &steep);
    kr_v_store(slope + i, steep);
    kr_v_store(dt + i, value);
    kr_v_store(du + i, kr_v_mul(value, kr_v_load(u + i)));
    largest = kr_v_max(kr_v_abs(value), largest);
  }
  return kr_v_largest(largest) * it->size[block] <= 126.0f;
}

static void prefetch_views(const item *it, int64_t block, int64_t i0, int n, int all) {
  const kr_scan_inputs *in = &it->r->p.in;
  const krait_view *const views[] = {in->delta, in->u, in->z, &it->r->a->dout};
  if (block >= it->n_blocks) return;
  for (int i = 0; i < (all ? 4 : 2); i++) prefetch_view(views[i], &it->w, it->d0 + block * KR_VL, i0, n, lanes_of(it, block));
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
  kr_tile_load(g, KR_VL, &dout, n, lanes_of(it, block));
  for (int i = 0; i < n; i++)
    if (it->marks[i] & STEP_IS_SILENT) kr_v_store(g + i * KR_VL, kr_v_zero());
  if (!kr_has(in->z)) return;
  kr_plane z = plane_of(in->z, &it->w, it->d0 + block * KR_VL, i0);
  kr_tile_load(gate, KR_VL, &z, n, lanes_of(it, block));
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v steep, silu = kr_v_silu_and_slope(kr_v_load(gate + i), &steep), incoming = kr_v_load(g + i);
    kr_v_store(g + i, kr_v_mul(incoming, silu));
    kr_v_store(gate + i, kr_v_mul(incoming, steep));
  }
}

/* ---- replay: states forwards ---- */

typedef struct core {
  const float *dt, *du, *g, *A, *B, *C; /* [step][lane] three times, [n][lane]; B, C: [step][n] or [n][lane] */
  int64_t B_pitch, C_pitch, N;
  float *x;                             /* [n][lane], advanced in place where states are not kept */
  float *states, *decays, *y;           /* [step + 1][n][lane], [step][n][lane], [step][lane] */
  float *carry, *dA, *gather_B, *gather_C, *q, *rest;
  int64_t gather_B_pitch, gather_C_pitch;
} core;

KR_INLINE kr_v decay_of(kr_v dt, kr_v A, int near) { return near ? kr_v_exp2_product(dt, A) : kr_v_exp2_any(dt, A); }
KR_INLINE kr_v shared_of(const float *p, int64_t n, int constant) { return constant ? kr_v_load(p + n * KR_VL) : kr_v_set1(p[n]); }

/* Only the states at the end: the walk forwards. */
KR_INLINE void advance_step(const core *c, int i, int near, int constant_B) {
  const float *A = c->A, *B = constant_B ? c->B : c->B + i * c->B_pitch;
  float *x = c->x;
  const int64_t N = c->N;
  kr_v dt = kr_v_load(c->dt + i * KR_VL), du = kr_v_load(c->du + i * KR_VL);
  for (int64_t n = 0; n < N; n++) {
    kr_v decay = decay_of(dt, kr_v_load(A + n * KR_VL), near);
    kr_v_store(x + n * KR_VL, kr_v_fma(decay, kr_v_load(x + n * KR_VL), kr_v_mul(du, shared_of(B, n, constant_B))));
  }
}

/* States and decays of the step kept, y summed. */
KR_INLINE void replay_step(const core *c, int i, int near, int constant_B, int constant_C, int with_y) {
  const float *A = c->A, *B = constant_B ? c->B : c->B + i * c->B_pitch, *C = constant_C ? c->C : c->C + i * c->C_pitch;
  const int64_t N = c->N, row = N * KR_VL;
  const float *before = c->states + i * row;
  float *after = c->states + (i + 1) * row, *decays = c->decays + i * row;
  kr_v dt = kr_v_load(c->dt + i * KR_VL), du = kr_v_load(c->du + i * KR_VL), y = kr_v_zero();
  for (int64_t n = 0; n < N; n++) {
    kr_v decay = decay_of(dt, kr_v_load(A + n * KR_VL), near);
    kr_v x = kr_v_fma(decay, kr_v_load(before + n * KR_VL), kr_v_mul(du, shared_of(B, n, constant_B)));
    kr_v_store(decays + n * KR_VL, decay);
    kr_v_store(after + n * KR_VL, x);
    if (with_y) y = kr_v_fma(shared_of(C, n, constant_C), x, y);
  }
  if (with_y) kr_v_store(c->y + i * KR_VL, y);
}

/* A step that starts anew: no state before it. Its kept decay is not used. */
static void restart_step(const core *c, int i, int keep, int constant_B, int constant_C) {
  const int64_t row = c->N * KR_VL;
  float *after = keep ? c->states + (i + 1) * row : c->x;
  kr_v du = kr_v_load(c->du + i * KR_VL), y = kr_v_zero();
  for (int64_t n = 0; n < c->N; n++) {
    kr_v x = kr_v_mul(du, constant_B ? shared_of(c->B, n, 1) : shared_of(c->B + i * c->B_pitch, n, 0));
    kr_v_store(after + n * KR_VL, x);
    y = kr_v_fma(constant_C ? shared_of(c->C, n, 1) : shared_of(c->C + i * c->C_pitch, n, 0), x, y);
  }
  if (keep) kr_v_store(c->y + i * KR_VL, y);
}

static void advance_steps(const core *c, int from, int to, int near, int constant_B) {
  if (near && !constant_B)
    for (int i = from; i < to; i++) advance_step(c, i, 1, 0);
  else if (constant_B)
    for (int i = from; i < to; i++) advance_step(c, i, 0, 1);
  else
    for (int i = from; i < to; i++) advance_step(c, i, 0, 0);
}

static void replay_steps(const core *c, int from, int to, int near, int constant_B, int constant_C, int with_y) {
  if (constant_B || constant_C)
    for (int i = from; i < to; i++) replay_step(c, i, 0, constant_B, constant_C, 1);
  else if (near && with_y)
    for (int i = from; i < to; i++) replay_step(c, i, 1, 0, 0, 1);
  else if (near)
    for (int i = from; i < to; i++) replay_step(c, i, 1, 0, 0, 0);
  else
    for (int i = from; i < to; i++) replay_step(c, i, 0, 0, 0, 1);
}

/* ---- sweep: gradients backwards ---- */

KR_INLINE void sweep_step(const core *c, int i, int constant_B, int constant_C, int fresh) {
  const int64_t N = c->N, row = N * KR_VL;
  const float *A = c->A, *B = constant_B ? c->B : c->B + i * c->B_pitch, *C = constant_C ? c->C : c->C + i * c->C_pitch;
  const float *before = c->states + i * row, *after = before + row, *decays = c->decays + i * row;
  float *carry = c->carry, *dA = c->dA, *gather_B = c->gather_B + i * c->gather_B_pitch, *gather_C = c->gather_C + i * c->gather_C_pitch;
  kr_v g = kr_v_load(c->g + i * KR_VL), dt = kr_v_load(c->dt + i * KR_VL), du = kr_v_load(c->du + i * KR_VL);
  kr_v q = kr_v_zero(), rest = kr_v_zero();
  for (int64_t n = 0; n < N; n++) {
    const int64_t at = n * KR_VL;
    kr_v dx = kr_v_fma(shared_of(C, n, constant_C), g, kr_v_load(carry + at));
    kr_v_store(gather_C + at, kr_v_fma(g, kr_v_load(after + at), kr_v_load(gather_C + at)));
    kr_v_store(gather_B + at, kr_v_fma(dx, du, kr_v_load(gather_B + at)));
    q = kr_v_fma(dx, shared_of(B, n, constant_B), q);
    if (fresh) {
      kr_v_store(carry + at, kr_v_zero());
      continue;
    }
    kr_v decay = kr_v_load(decays + at), part = kr_v_mul(dx, kr_v_mul(decay, kr_v_load(before + at)));
    kr_v_store(dA + at, kr_v_fma(dt, part, kr_v_load(dA + at)));
    rest = kr_v_fma(kr_v_load(A + at), part, rest);
    kr_v_store(carry + at, kr_v_mul(decay, dx));
  }
  kr_v_store(c->q + i * KR_VL, q);
  kr_v_store(c->rest + i * KR_VL, rest);
}

KR_INLINE void sweep_all(const core *c, const unsigned char *marks, int n, int constant_B, int constant_C) {
  for (int i = n - 1; i >= 0; i--) {
    if (marks[i] & STEP_RESTARTS) sweep_step(c, i, constant_B, constant_C, 1);
    else sweep_step(c, i, constant_B, constant_C, 0);
  }
}

static void sweep(const core *c, const unsigned char *marks, int n, int constant_B, int constant_C) {
  if (constant_B && constant_C) sweep_all(c, marks, n, 1, 1);
  else if (constant_B) sweep_all(c, marks, n, 1, 0);
  else if (constant_C) sweep_all(c, marks, n, 0, 1);
  else sweep_all(c, marks, n, 0, 0);
}

/* ---- a block's tile ---- */

/* Steps `at` and after of the tile. */
static core core_of(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int at) {
  const int64_t part = part_of(it, block), N = it->r->p.in.N, from = at * KR_VL;
  return (core){.dt = it->dt + from, .du = it->du + from, .g = it->g_out + from, .A = it->A + part, .B = it->B ? it->B + part : B->data + at * B->pitch,
                .C = it->C ? it->C + part : C->data + at * C->pitch, .B_pitch = B->pitch, .C_pitch = C->pitch, .N = N, .x = it->x + part,
                .states = it->states, .decays = it->decays, .y = it->y + from, .carry = it->carry + part, .dA = it->tile_dA, .q = it->q + from, .rest = it->rest + from,
                .gather_B = it->B ? sum_of(it, block, SUM_B) : it->gather_B + from * N, .gather_B_pitch = it->B ? 0 : N * KR_VL,
                .gather_C = it->C ? sum_of(it, block, SUM_C) : it->gather_C + from * N, .gather_C_pitch = it->C ? 0 : N * KR_VL};
}

static void walk_steps(const core *c, const item *it, const unsigned char *marks, int n, int near, int keep, int with_y) {
  const int constant_B = it->B != NULL, constant_C = it->C != NULL;
  for (int i = 0; i < n;) {
    int end = next_restart(marks, i, n), from = i;
    if (marks[i] & STEP_RESTARTS) restart_step(c, from++, keep, constant_B, constant_C);
    if (keep) replay_steps(c, from, end, near, constant_B, constant_C, with_y);
    else advance_steps(c, from, end, near, constant_B);
    i = end;
  }
}

static float *checkpoint_of(const item *it, int64_t block, int64_t step) {
  const int64_t row = it->r->p.in.N * KR_VL;
  return it->checkpoints + (step / it->r->stretch * it->r->blocks + block) * row;
}

static void put_tile(const item *it, const float *tile, const krait_view *v, int64_t block, int64_t i0, int n) {
  if (!kr_has(v)) return;
  kr_plane plane = plane_of(v, &it->w, it->d0 + block * KR_VL, i0);
  kr_tile_store(tile, KR_VL, &plane, n, lanes_of(it, block));
}

/* dt q, u q + ln2 rest and y in place of q, rest and y: what one direction adds to du, ddt and the output. */
static void direction_terms(item *it, int n) {
  float *q = it->q, *rest = it->rest;
  const float *dt = it->dt, *u = it->u;
  const kr_v ln2 = kr_v_set1(ln_2);
  for (int i = 0; i < n * KR_VL; i += KR_VL) {
    kr_v dq = kr_v_load(q + i);
    kr_v_store(rest + i, kr_v_fma(kr_v_load(u + i), dq, kr_v_mul(ln2, kr_v_load(rest + i))));
    kr_v_store(q + i, kr_v_mul(kr_v_load(dt + i), dq));
  }
}

/* The first of two directions keeps its terms by time, the second adds them to its own. */
static void exchange_terms(item *it, int64_t block, int64_t i0, int n, int is_first) {
  float *const kept[] = {it->both_u, it->both_dt, it->both_y}, *const own[] = {it->q, it->rest, it->y};
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < n; i++) {
      float *place = kept[k] + (block * it->r->p.in.L + it->w.first + (i0 + i) * it->w.step) * KR_VL, *mine = own[k] + i * KR_VL;
      if (is_first) kr_v_store(place, kr_v_load(mine));
      else kr_v_store(mine, kr_v_add(kr_v_load(mine), kr_v_load(place)));
    }
}

static void finish_tile(item *it, int64_t block, int64_t i0, int n) {
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

static void sweep_block(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int64_t i0, int n, int sum_A, int turn) {
  const int64_t row = it->r->p.in.N * KR_VL;
  int near = read_steps(it, block, i0, n);
  read_gradients(it, block, i0, n);
  prefetch_views(it, block + 1, i0, n, 1);
  memset(it->tile_dA, 0, (size_t)row * sizeof(float));
  for (int stretch = (int)it->r->stretch, at = (n - 1) / stretch * stretch; at >= 0; at -= stretch) {
    const int some = n - at < stretch ? n - at : stretch;
    core c = core_of(it, block, B, C, at);
    memcpy(it->states, checkpoint_of(it, block, i0 + at), (size_t)row * sizeof(float));
    walk_steps(&c, it, it->marks + at, some, near, 1, kr_has(&it->r->a->dz));
    sweep(&c, it->marks + at, some, it->B != NULL, it->C != NULL);
  }
  add_floats(sum_of(it, block, sum_A), it->tile_dA, row);
  direction_terms(it, n);
  if (turn) exchange_terms(it, block, i0, n, turn == 1);
  if (turn != 1) finish_tile(it, block, i0, n);
}

/* ---- dB and dC of a tile ---- */

/* matrix[step][n] = the sum of gather[step][n][...]. */
static void add_across_lanes(float *matrix, int64_t pitch, const float *gather, int n_steps, int64_t N) {
  for (int i = 0; i < n_steps; i++)
    for (int64_t n0 = 0; n0 < N; n0 += KR_VL) {
      kr_v block[KR_VL];
      for (int k = 0; k < KR_VL; k++) block[k] = n0 + k < N ? kr_v_load(gather + (i * N + n0 + k) * KR_VL) : kr_v_zero();
      kr_v_transpose(block);
      for (int width = KR_VL / 2; width; width /= 2)
        for (int k = 0; k < width; k++) block[k] = kr_v_add(block[k], block[k + width]);
      kr_v_store(matrix + i * pitch + n0, block[0]);
    }
}

static void put_shared(item *it, const krait_view *v, float *partial, const float *gather, float *matrix, int64_t i0, int n, int turn) {
  const scan_plan *p = &it->r->p;
  if (!kr_has(v)) return;
  add_across_lanes(matrix, p->pitch, gather, n, p->in.N);
  if (!it->r->shared) {
    kr_plane plane = shared_plane_of(v, &it->w, it->g, i0);
    kr_matrix_store(matrix, p->pitch, &plane, n, p->in.N);
    return;
  }
  float *base = partial + ((it->w.b * p->in.G + it->g) * p->n_ranges + it->range_index) * p->in.L * p->pitch;
  for (int i = 0; i < n; i++) {
    float *place = base + (it->w.first + (i0 + i) * it->w.step) * p->pitch;
    if (turn == 2) add_floats(place, matrix + i * p->pitch, p->pitch);
    else memcpy(place, matrix + i * p->pitch, (size_t)p->pitch * sizeof *place);
  }
}

/* ---- an item: a range of channels over some sequences ---- */

static void read_both(item *it, int64_t i0, int n, scan_shared *B, scan_shared *C) {
  const scan_plan *p = &it->r->p;
  *B = *C = (scan_shared){0};
  if (!it->B) *B = read_shared(p, p->in.Bmat, &it->w, it->g, i0, n, it->matrix_B);
  if (!it->C) *C = read_shared(p, p->in.Cmat, &it->w, it->g, i0, n, it->matrix_C);
  mark_steps(&p->in, &it->w, i0, n, it->marks);
}

/* Keeps the states before each stretch of the tile; the last stretch of the sequence is replayed at once. */
static void walk_block(item *it, int64_t block, const scan_shared *B, const scan_shared *C, int64_t i0, int n) {
  const int stretch = (int)it->r->stretch;
  const int64_t row = it->r->p.in.N * KR_VL;
  const int near = i0 + stretch < it->w.n ? read_steps(it, block, i0, n) : 0;
  prefetch_views(it, block + 1, i0, n, 0);
  for (int at = 0; at < n; at += stretch) {
    memcpy(checkpoint_of(it, block, i0 + at), it->x + part_of(it, block), (size_t)row * sizeof(float));
    if (i0 + at + stretch >= it->w.n) return;
    core c = core_of(it, block, B, C, at);
    walk_steps(&c, it, it->marks + at, stretch, near, 0, 0);
  }
}

static void walk_forwards(item *it) {
  const scan_plan *p = &it->r->p;
  for (int64_t i0 = 0; i0 < it->w.n; i0 += p->tile) {
    int n = (int)(it->w.n - i0 < p->tile ? it->w.n - i0 : p->tile);
    scan_shared B, C;
    read_both(it, i0, n, &B, &C);
    for (int64_t k = 0; k < it->n_blocks; k++) walk_block(it, k, &B, &C, i0, n);
  }
}

static void walk_backwards(item *it, int sum_A, int turn) {
  const run *r = it->r;
  const int64_t row = r->p.in.N * KR_VL, tile = r->p.tile;
  for (int64_t i0 = (it->w.n - 1) / tile * tile; i0 >= 0 && it->w.n; i0 -= tile) {
    int n = (int)(it->w.n - i0 < tile ? it->w.n - i0 : tile);
    scan_shared B, C;
    read_both(it, i0, n, &B, &C);
    if (!it->B) memset(it->gather_B, 0, (size_t)(n * row) * sizeof(float));
    if (!it->C) memset(it->gather_C, 0, (size_t)(n * row) * sizeof(float));
    for (int64_t k = 0; k < it->n_blocks; k++) sweep_block(it, k, &B, &C, i0, n, sum_A, turn);
    if (!it->B) put_shared(it, &r->a->dB, r->shared_B, it->gather_B, it->matrix_B, i0, n, turn);
    if (!it->C) put_shared(it, &r->a->dC, r->shared_C, it->gather_C, it->matrix_C, i0, n, turn);
  }
}

/* turn: 0 the only direction, 1 the first of two, 2 the second. */
static void run_direction(item *it, const krait_view *A, int reverse, int turn) {
  const kr_scan_inputs *in = &it->r->p.in;
  it->w = walk_row(in, it->row, reverse);
  begin_direction(it, A);
  walk_forwards(it);
  walk_backwards(it, turn == 1 ? SUM_A_REVERSE : SUM_A, turn);
  for (int64_t k = 0; k < it->n_blocks; k++)
    write_states(it->carry + part_of(it, k), &it->r->a->dinitial_state, it->row, it->d0 + k * KR_VL, lanes_of(it, k), in->N);
}

static void run_item(const run *r, int64_t index, float *work) {
  const scan_plan *p = &r->p;
  int64_t range = index % p->n_ranges, g = index / p->n_ranges % p->in.G, chunk = index / p->n_ranges / p->in.G;
  item it = {.r = r, .g = g, .range_index = range, .d0 = g * p->group + range * p->range};
  it.n_channels = p->group - range * p->range < p->range ? p->group - range * p->range : p->range;
  it.n_blocks = (it.n_channels + KR_VL - 1) / KR_VL;
  it.records = r->sums + index * r->blocks * r->record;
  memset(it.records, 0, (size_t)(r->blocks * r->record) * sizeof(float));
  cut_work(&it, work);
  int64_t end = (chunk + 1) * r->rows_per_item;
  for (it.row = chunk * r->rows_per_item; it.row < end && it.row < p->n_rows; it.row++) {
    int both = has_flag(r, KRAIT_SCAN_BOTH);
    if (both) run_direction(&it, p->in.A_reverse, 1, 1);
    run_direction(&it, p->in.A, has_flag(r, KRAIT_SCAN_REVERSE), both ? 2 : 0);
  }
}

static void run_items(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  for (int64_t i = begin; i < end; i++) run_item(r, i, r->works + worker * r->work);
}

/* ---- the last sums ---- */

static double sum_over_chunks(const run *r, int64_t block, int64_t offset) {
  double sum = 0;
  int64_t stride = r->p.in.G * r->p.n_ranges * r->blocks;
  for (int64_t chunk = 0; chunk < r->n_chunks; chunk++) sum += r->sums[(chunk * stride + block) * r->record + offset];
  return sum;
}

static void put_sums(const run *r, int64_t block, int64_t d, int lane, int which, const krait_view *v, int64_t N) {
  if (!kr_has(v)) return;
  for (int64_t n = 0; n < N; n++)
    kr_put(v, which < SUM_D ? kr_at2(v, d, n) : kr_at1(v, d), sum_over_chunks(r, block, sum_offset(r, which) + n * KR_VL + lane));
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
    if (has_flag(r, KRAIT_SCAN_BOTH)) put_sums(r, block, d, lane, SUM_A_REVERSE, &a->dA_reverse, N);
    if (has_flag(r, KRAIT_SCAN_B_CONSTANT)) put_sums(r, block, d, lane, SUM_B, &a->dB, N);
    if (has_flag(r, KRAIT_SCAN_C_CONSTANT)) put_sums(r, block, d, lane, SUM_C, &a->dC, N);
    put_sums(r, block, d, lane, SUM_D, &a->dDvec, 1);
    put_sums(r, block, d, lane, SUM_BIAS, &a->ddelta_bias, 1);
  }
}

static void finish_shared_step(const run *r, const krait_view *v, float *partial, int64_t b, int64_t g, int64_t t) {
  const scan_plan *p = &r->p;
  float *first = partial + ((b * p->in.G + g) * p->n_ranges * p->in.L + t) * p->pitch;
  for (int64_t k = 1; k < p->n_ranges; k++) add_floats(first, first + k * p->in.L * p->pitch, p->pitch);
  kr_plane plane = {v->data, v->dtype, kr_at4(v, b, g, 0, t), v->stride[3], v->stride[2]};
  kr_matrix_store(first, p->pitch, &plane, 1, p->in.N);
}

static void finish_shared(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  const int64_t L = r->p.in.L, G = r->p.in.G;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t t = i % L, g = i / L % G, b = i / L / G;
    if (kr_has(&r->a->dB) && !has_flag(r, KRAIT_SCAN_B_CONSTANT)) finish_shared_step(r, &r->a->dB, r->shared_B, b, g, t);
    if (kr_has(&r->a->dC) && !has_flag(r, KRAIT_SCAN_C_CONSTANT)) finish_shared_step(r, &r->a->dC, r->shared_C, b, g, t);
  }
}

int32_t KR_FN(kr_selective_scan_bwd)(const krait_ctx *ctx, const void *args) {
  const bwd_args *a = args;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("selective_scan_bwd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  run r = plan_run(a);
  kr_parallel(ctx, r.n_chunks * r.p.in.G * r.p.n_ranges, 1, run_items, &r);
  kr_parallel(ctx, a->D, 16, finish_parameters, &r);
  if (r.shared) kr_parallel(ctx, a->B * a->G * a->L, 256, finish_shared, &r);
  return KRAIT_OK;
}
