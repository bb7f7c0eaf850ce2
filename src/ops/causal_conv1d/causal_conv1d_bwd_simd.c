/* causal_conv1d_bwd_simd.c: the convolution's gradient with channels across lanes, tile by tile from the end of time: a
 * window of inputs (W-1 steps of history, then the tile) and a window of g (the tile, then W-1 later steps). Work items
 * depend on the shape alone and their sums are added in a fixed order: the result does not depend on the thread count.
 * */
#include <string.h>

#include "conv_impls.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

typedef kr_causal_conv1d_bwd_args bwd_args;

enum { MAX_W = 8, TILE = 64, MOST_CHUNKS = 256 };

typedef struct run {
  const bwd_args *a;
  int64_t n_blocks, rows_per_item, n_chunks;
  float *sums; /* [chunk][block][W + 1][lane] */
} run;

typedef struct item {
  const bwd_args *a;
  int64_t b, d;
  int W, lanes, keep; /* keep = W - 1 */
  float weight[MAX_W][KR_VL], bias[KR_VL], total[MAX_W + 1][KR_VL];
  float x[(TILE + MAX_W) * KR_VL];  /* step i of the tile at row i + keep */
  float g[(TILE + MAX_W) * KR_VL];  /* step i at row i; later steps at n.. */
  float dx[TILE * KR_VL];
  kr_ahead next[2];                 /* x and dout of the next tile */
  unsigned char taps[TILE + MAX_W]; /* bit k: the input k steps earlier reaches this step */
} item;

static int64_t time_of(const bwd_args *a, int64_t i) { return a->call.flags & KRAIT_CONV1D_REVERSE ? a->L - 1 - i : i; }

static kr_plane plane_of(const item *it, const kr_view *v, int64_t i) {
  int64_t step = it->a->call.flags & KRAIT_CONV1D_REVERSE ? -1 : 1;
  return (kr_plane){v->data, v->dtype, kr_at3(v, it->b, it->d, time_of(it->a, i)), step * v->stride[2], v->stride[1]};
}

static float state_at(const item *it, const kr_view *v, int lane, int64_t k) {
  return kr_has(v) && lane < it->lanes ? (float)kr_get(v, kr_at3(v, it->b, it->d + lane, k)) : 0;
}

/* Inputs of steps i0 - keep .. i0 + n - 1. */
static void read_conv1d_bwd_inputs(item *it, int64_t i0, int n) {
  int missing = i0 < it->keep ? it->keep - (int)i0 : 0;
  for (int row = 0; row < missing; row++)
    for (int lane = 0; lane < KR_VL; lane++)
      it->x[row * KR_VL + lane] = state_at(it, &it->a->initial_states, lane, i0 + row);
  kr_plane x = plane_of(it, &it->a->x, i0 - it->keep + missing);
  kr_tile_load(it->x + missing * KR_VL, KR_VL, &x, n + it->keep - missing, it->lanes);
}

static void mark_taps(item *it, int64_t i0, int n) {
  const bwd_args *a = it->a;
  memset(it->taps, 0xff, sizeof it->taps);
  if (!kr_has(&a->seq_idx)) return;
  for (int i = 0; i < n + it->keep && i0 + i < a->L; i++) {
    int32_t here = kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, it->b, time_of(a, i0 + i)));
    int bits = 0;
    for (int k = 0; k < it->W && here >= 0; k++)
      if (i0 + i - k >= 0 && kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, it->b, time_of(a, i0 + i - k))) == here)
        bits |= 1 << k;
    it->taps[i] = (unsigned char)bits;
  }
}

/* g of the tile from dout, and the sums for dweight and dbias. */
KR_INLINE void gradient_steps(item *it, int n, int W, int silu, int packed) {
  kr_v weight[MAX_W], total[MAX_W + 1];
  const kr_v bias = kr_v_load(it->bias);
  const float *x = it->x;
  float *g = it->g;
  for (int k = 0; k < W; k++) weight[k] = kr_v_load(it->weight[k]);
  for (int k = 0; k <= W; k++) total[k] = kr_v_load(it->total[k]);
  for (int i = 0; i < n; i++) {
    kr_v p = bias, gi = kr_v_load(g + i * KR_VL);
    kr_ahead_step(&it->next[0]), kr_ahead_step(&it->next[1]);
    if (packed && !it->taps[i]) gi = kr_v_zero();
    for (int k = 0; silu && k < W; k++)
      if (!packed || it->taps[i] >> (W - 1 - k) & 1) p = kr_v_fma(weight[k], kr_v_load(x + (i + k) * KR_VL), p);
    if (silu) {
      kr_v slope;
      kr_v_silu_and_slope(p, &slope);
      gi = kr_v_mul(gi, slope);
    }
    kr_v_store(g + i * KR_VL, gi);
    for (int k = 0; k < W; k++)
      if (!packed || it->taps[i] >> (W - 1 - k) & 1) total[k] = kr_v_fma(gi, kr_v_load(x + (i + k) * KR_VL), total[k]);
    total[W] = kr_v_add(total[W], gi);
  }
  for (int k = 0; k <= W; k++) kr_v_store(it->total[k], total[k]);
}

/* dx[i] = sum_k weight[W-1-k] g[i+k]; row is the first row of g. */
KR_INLINE void input_steps(item *it, int n, int W, int packed) {
  kr_v weight[MAX_W];
  const float *g = it->g;
  float *dx = it->dx;
  for (int k = 0; k < W; k++) weight[k] = kr_v_load(it->weight[W - 1 - k]);
  for (int i = 0; i < n; i++) {
    kr_v sum = kr_v_zero();
    for (int k = 0; k < W; k++)
      if (!packed || it->taps[i + k] >> k & 1) sum = kr_v_fma(weight[k], kr_v_load(g + (i + k) * KR_VL), sum);
    kr_v_store(dx + i * KR_VL, sum);
  }
}

/* A step's channels are a cache line or two from the next step's: no hardware prefetcher follows that stride. */
static void prefetch_next(item *it, int64_t i0) {
  memset(it->next, 0, sizeof it->next);
  if (i0 < TILE + it->keep) return;
  const kr_plane x = plane_of(it, &it->a->x, i0 - TILE - it->keep), dout = plane_of(it, &it->a->dout, i0 - TILE);
  it->next[0] = kr_tile_ahead(&x, TILE, it->lanes, TILE);
  if (kr_has(&it->a->dout)) it->next[1] = kr_tile_ahead(&dout, TILE, it->lanes, TILE);
}

static void run_conv1d_bwd_tile(item *it, int64_t i0, int n) {
  const bwd_args *a = it->a;
  prefetch_next(it, i0);
  const int silu = a->activation == KRAIT_ACT_SILU;
  read_conv1d_bwd_inputs(it, i0, n);
  if (kr_has(&a->dout)) {
    kr_plane dout = plane_of(it, &a->dout, i0);
    kr_tile_load(it->g, KR_VL, &dout, n, it->lanes);
  } else {
    memset(it->g, 0, (size_t)(n * KR_VL) * sizeof *it->g);
  }
  if (kr_has(&a->seq_idx)) {
    mark_taps(it, i0, n);
    gradient_steps(it, n, it->W, silu, 1);
    input_steps(it, n, it->W, 1);
  } else if (it->W == 4) {
    gradient_steps(it, n, 4, silu, 0);
    input_steps(it, n, 4, 0);
  } else {
    gradient_steps(it, n, it->W, silu, 0);
    input_steps(it, n, it->W, 0);
  }
}

/* dfinal_states reach the last inputs: steps i0.. of dx, or the initial states for negative steps. */
static void add_final_states(const item *it, float *rows, int64_t i0, int n) {
  for (int i = 0; kr_has(&it->a->dfinal_states) && i < n; i++) {
    int64_t k = i0 + i - (it->a->L - it->keep);
    for (int lane = 0; k >= 0 && k < it->keep && lane < it->lanes; lane++)
      rows[i * KR_VL + lane] += state_at(it, &it->a->dfinal_states, lane, k);
  }
}

/* dX of steps -keep..-1 from the first g; n_known of those exist. */
static void write_initial_states(const item *it, int n_known) {
  const kr_view *v = &it->a->dinitial_states;
  float rows[MAX_W * KR_VL] = {0};
  for (int row = 0; row < it->keep; row++)
    for (int i = 0; i <= row && i < n_known; i++) {
      kr_v sum = kr_v_load(rows + row * KR_VL);
      kr_v_store(rows + row * KR_VL, kr_v_fma(kr_v_load(it->weight[row - i]), kr_v_load(it->g + i * KR_VL), sum));
    }
  add_final_states(it, rows, -it->keep, it->keep);
  for (int row = 0; row < it->keep; row++)
    for (int lane = 0; lane < it->lanes; lane++)
      kr_put(v, kr_at3(v, it->b, it->d + lane, row), rows[row * KR_VL + lane]);
}

static void run_sequence(item *it) {
  const bwd_args *a = it->a;
  int64_t i0 = a->L > 0 ? (a->L - 1) / TILE * TILE : 0;
  int n = (int)(a->L - i0), known = 0;
  memset(it->g, 0, sizeof it->g);
  for (; a->L > 0 && i0 >= 0; i0 -= TILE, n = TILE) {
    run_conv1d_bwd_tile(it, i0, n);
    add_final_states(it, it->dx, i0, n);
    if (kr_has(&a->dx)) {
      kr_plane dx = plane_of(it, &a->dx, i0);
      kr_tile_store(it->dx, KR_VL, &dx, n, it->lanes);
    }
    known = a->L < it->keep ? (int)a->L : it->keep;
    if (i0 > 0) memmove(it->g + TILE * KR_VL, it->g, (size_t)(it->keep * KR_VL) * sizeof *it->g);
  }
  if (kr_has(&a->dinitial_states)) write_initial_states(it, known);
}

static void run_conv1d_bwd_item(const run *r, int64_t index) {
  const bwd_args *a = r->a;
  int64_t block = index % r->n_blocks, chunk = index / r->n_blocks, left = a->D - block * KR_VL;
  item it = {
      .a = a, .d = block * KR_VL, .W = (int)a->W, .keep = (int)a->W - 1, .lanes = (int)(left < KR_VL ? left : KR_VL)};
  for (int lane = 0; lane < it.lanes; lane++) {
    for (int k = 0; k < it.W; k++) it.weight[k][lane] = (float)kr_get(&a->weight, kr_at2(&a->weight, it.d + lane, k));
    if (kr_has(&a->bias)) it.bias[lane] = (float)kr_get(&a->bias, kr_at1(&a->bias, it.d + lane));
  }
  int64_t end = (chunk + 1) * r->rows_per_item;
  for (it.b = chunk * r->rows_per_item; it.b < end && it.b < a->B; it.b++) run_sequence(&it);
  memcpy(r->sums + index * (a->W + 1) * KR_VL, it.total, (size_t)((a->W + 1) * KR_VL) * sizeof(float));
}

static void run_conv1d_bwd_items(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t i = begin; i < end; i++) run_conv1d_bwd_item(user, i);
}

static run plan_conv1d_bwd_run(const bwd_args *a) {
  run r = {.a = a,
           .n_blocks = (a->D + KR_VL - 1) / KR_VL,
           .rows_per_item = (a->B + MOST_CHUNKS - 1) / MOST_CHUNKS,
           .sums = a->call.scratch};
  if (r.rows_per_item < 1) r.rows_per_item = 1;
  r.n_chunks = (a->B + r.rows_per_item - 1) / r.rows_per_item;
  return r;
}

uint64_t KR_FN(kr_causal_conv1d_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  run r = plan_conv1d_bwd_run(args);
  (void)ctx;
  return (uint64_t)(r.n_chunks * r.n_blocks * (r.a->W + 1) * KR_VL) * sizeof(float);
}

static void finish_channels(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  const bwd_args *a = r->a;
  (void)worker;
  for (int64_t d = begin; d < end; d++)
    for (int64_t k = 0; k <= a->W; k++) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < r->n_chunks; chunk++)
        sum += r->sums[((chunk * r->n_blocks + d / KR_VL) * (a->W + 1) + k) * KR_VL + d % KR_VL];
      if (k == a->W && kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, d), sum);
      if (k < a->W && kr_has(&a->dweight)) kr_put(&a->dweight, kr_at2(&a->dweight, d, k), sum);
    }
}

int32_t KR_FN(kr_causal_conv1d_bwd)(const krait_ctx *ctx, const void *args) {
  run r = plan_conv1d_bwd_run(args);
  kr_parallel(ctx, r.n_chunks * r.n_blocks, 4, run_conv1d_bwd_items, &r);
  kr_parallel(ctx, r.a->D, 64, finish_channels, &r);
  return KRAIT_OK;
}
