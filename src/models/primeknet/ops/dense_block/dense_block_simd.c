/* dense_block_simd.c: a dense block, one position along W (a frame) at a time: a tile of its positions along H goes
 * through the filters into a small matrix and through one product. Norms use per-frame moments, merged in order in
 * double. Channels are lanes. */
#include <string.h>

#include "ctx.h"
#include "dense_block/dense_block_impls.h"
#include "gemm/gemm_kernel.h"
#include "instance_norm/moments.h"
#include "primeknet_ops.h"
#include "vec.h"
#include "view.h"

enum { TILE = 36, WIDE = 4 }; /* positions per tile of filters and product; per filter step */

/* ---- a frame's arithmetic ---- */

/* Three frames, from a position on, and their position strides. */
typedef struct rows3 {
  const float *at[3];
  int64_t step[3];
} rows3;

/* n positions from p, by taps `low` to `high` along H: each load serves all outputs it reaches. */
KR_INLINE void filter_some(const int n, const rows3 *r, int64_t p, int64_t c, const kr_v *w, kr_v bias, int low,
                           int high, float *out, int64_t next) {
  kr_v sum[WIDE];
  for (int q = 0; q < n; q++) sum[q] = bias;
#pragma GCC unroll 3
  for (int i = 0; i < 3; i++) {
    const float *from = r->at[i] + (p + low - 1) * r->step[i] + c;
#pragma GCC unroll 6
    for (int j = low; j < n + high; j++, from += r->step[i]) {
      const kr_v v = kr_v_load(from);
#pragma GCC unroll 4
      for (int q = 0; q < n; q++)
        if (j - q >= low && j - q <= high) sum[q] = kr_v_fma(v, w[3 * i + j - q], sum[q]);
    }
  }
  for (int q = 0; q < n; q++) kr_v_store(out + (p + q) * next + c, sum[q]);
}

/* n positions; begins, ends: nothing before the first, after the last. taps (3,3,C). */
static void filter_dense_block_rows(const rows3 *r, int64_t n, int begins, int ends, int64_t C, const float *taps,
                        const float *bias, float *out, int64_t next) {
  const int64_t last = n - ends;
  for (int64_t c = 0; c < C; c += KR_VL) {
    kr_v w[9];
    const kr_v b = kr_v_load(bias + c);
    for (int i = 0; i < 9; i++) w[i] = kr_v_load(taps + i * C + c);
    int64_t p = begins;
    if (begins) filter_some(1, r, 0, c, w, b, 1, n == 1 && ends ? 1 : 2, out, next);
    for (; p + WIDE <= last; p += WIDE) filter_some(WIDE, r, p, c, w, b, 0, 2, out, next);
    for (; p < last; p++) filter_some(1, r, p, c, w, b, 0, 2, out, next);
    if (ends && p < n) filter_some(1, r, p, c, w, b, 0, 1, out, next);
  }
}

/* Projects K numbers of each position to C channels by weights (K,C), which include the norm's scale. */
KR_INLINE void lift_rows(const int K, const float *x, int64_t step, int64_t next, int64_t n, int64_t C,
                         const float *weights, const kr_affine *by, float *out) {
  for (int64_t c = 0; c < C; c += KR_VL) {
    const kr_v shift = kr_v_load(by->shift + c), slope = kr_v_load(by->slope + c);
    kr_v w[KR_DENSE_LIFTED];
    for (int k = 0; k < K; k++) w[k] = kr_v_load(weights + k * C + c);
    for (int64_t p = 0; p < n; p++) {
      kr_v v = shift;
      for (int k = K - 1; k >= 0; k--) v = kr_v_fma(kr_v_set1(x[p * step + k * next]), w[k], v);
      kr_v_store(out + p * C + c, kr_prelu(v, slope));
    }
  }
}

/* ---- the call ---- */

/* Frames of (H,C), the first one `ahead` frames after data; those from n_here on are in tail, contiguous. */
typedef struct map {
  float *data, *tail;
  int64_t frame, step, ahead, n_here; /* strides of frames and positions, in floats; frames */
} map;

/* A frame and its position stride. */
typedef struct frame {
  float *at;
  int64_t step;
} frame;

typedef struct worker {
  float *mixed, *mixed_first, *lifted[3], *row; /* (TILE, L C), (TILE, C), (TILE + 2, C) each, (H, C) */
  float *ring[2][3]; /* (H, C): the latest computed source frames, and their indices */
  int64_t ring_frame[2][3];
} worker;

enum { LIFTED, FIRST }; /* with a lift, x0 and x1 are recomputed rather than stored */

typedef struct block {
  const kr_dense_block_args *a;
  int64_t b, i, dilation, segment; /* the item; the layer, and frames of it per thread */
  int keep, in_place, waits; /* waits: the newest source is normalised by its first reader */
  kr_panels mix[KR_DENSE_LAYERS];
  float *taps, *bias;                     /* by source and layer: (9,C), (C) */
  float *mean, *m2, *lift_weights, *zeros; /* (W,C), (W,C), (K,C), (C) */
  kr_affine norm, first, lift;
  float *kept[KR_DENSE_LAYERS]; /* (W,H,C) */
  float *tail;                  /* the last source's: as many frames as the last layer looks back */
  map sources[KR_DENSE_LAYERS], out; /* newest first, without the recomputed ones */
  int64_t n_maps;
  worker *workers;
} block;

static int is_lifted(const kr_dense_block_args *a) { return kr_has(&a->lift); }
static int64_t before(const kr_dense_block_args *a) { return a->call.flags & KR_DENSE_ONE_SIDED ? 2 : 1; }
/* The last output overwrites its newest source, delayed by as much as it looks back. */
static int last_in_place(const kr_dense_block_args *a) { return a->L - 1 > is_lifted(a); }
static int64_t tail_frames(const kr_dense_block_args *a) {
  const int64_t back = before(a) << (a->L - 1);
  return !last_in_place(a) ? 0 : back < a->W ? back : a->W;
}

static frame dense_block_frame_of(const kr_dense_block_args *a, const map *m, int64_t t) {
  if (t < m->n_here) return (frame){m->data + (t + m->ahead) * m->frame, m->step};
  return (frame){m->tail + (t - m->n_here) * a->H * a->C, a->C};
}

/* Memory of a call; base NULL: only counted. */
typedef struct capacity {
  float *base;
  int64_t used;
} capacity;
static float *take_dense_block(capacity *r, int64_t n) {
  float *at = r->base ? r->base + r->used : NULL;
  r->used += (n + 63) / 64 * 64;
  return at;
}

static void lay_out_dense_block(const kr_dense_block_args *a, int n_threads, capacity *r, block *k,
                                worker *workers) {
  const int64_t C = a->C, map_floats = a->W * a->H * C;
  for (int64_t i = 0; i < a->L; i++)
    k->mix[i].data = take_dense_block(r, KR_FN(kr_panels_floats)((i + 1) * C, C));
  k->taps = take_dense_block(r, 9 * a->N), k->bias = take_dense_block(r, a->N);
  k->mean = take_dense_block(r, a->W * C), k->m2 = take_dense_block(r, a->W * C);
  k->lift_weights = take_dense_block(r, is_lifted(a) ? a->K * C : 0), k->zeros = take_dense_block(r, C);
  kr_affine *const all[] = {&k->norm, &k->first, &k->lift};
  for (int i = 0; i < 3; i++)
    all[i]->scale = take_dense_block(r, C), all[i]->shift = take_dense_block(r, C),
    all[i]->slope = take_dense_block(r, C);
  for (int64_t i = is_lifted(a); i < a->L - 2; i++) k->kept[i] = take_dense_block(r, map_floats);
  k->tail = take_dense_block(r, tail_frames(a) * a->H * C);
  for (int i = 0; i < n_threads; i++) {
    worker own = {.mixed = take_dense_block(r, TILE * a->L * C),
                  .mixed_first = take_dense_block(r, TILE * C),
                  .row = take_dense_block(r, a->H * C)};
    for (int j = 0; j < 3; j++) own.lifted[j] = take_dense_block(r, (TILE + 2) * C);
    for (int j = 0; j < 6; j++) own.ring[j / 3][j % 3] = take_dense_block(r, is_lifted(a) ? a->H * C : 0);
    if (workers) workers[i] = own;
  }
}

static capacity whole_capacity(const kr_dense_block_args *a, int n_threads) {
  capacity r = {0};
  block k = {0};
  lay_out_dense_block(a, n_threads, &r, &k, NULL);
  return r;
}

static int64_t dense_block_worker_floats(int n_threads) {
  return (int64_t)(((size_t)n_threads * sizeof(worker) + 255) / 256 * 64);
}

uint64_t KR_FN(kr_dense_block_scratch)(const krait_ctx *ctx, const void *args) {
  const int n_threads = krait_ctx_n_threads(ctx);
  return (uint64_t)(whole_capacity(args, n_threads).used + dense_block_worker_floats(n_threads)) * sizeof(float);
}

/* ---- parameters ---- */

static void read_vector(float *to, const kr_view *v, int64_t row, int64_t C) {
  for (int64_t c = 0; c < C; c++) to[c] = ((const float *)v->data)[row * v->stride[0] + c * v->stride[1]];
}

static void read_parameters(const kr_dense_block_args *a, block *k) {
  const int64_t C = a->C;
  const float *taps = a->taps.data, *weight = a->weight.data;
  for (int64_t i = 0; i < a->L; i++)
    KR_FN(kr_panels_pack)(&k->mix[i], k->mix[i].data, (i + 1) * C, C,
                          weight + kr_at2(&a->weight, 0, C * i * (i + 1) / 2), a->weight.stride[1],
                          a->weight.stride[0], NULL);
  for (int64_t source = 0; source < a->N / C; source++)
    for (int64_t j = 0; j < 9; j++)
      for (int64_t c = 0; c < C; c++)
        k->taps[(source * 9 + j) * C + c] = taps[kr_at3(&a->taps, source * C + c, j / 3, j % 3)];
  for (int64_t n = 0; n < a->N; n++) k->bias[n] = ((const float *)a->taps_bias.data)[kr_at1(&a->taps_bias, n)];
  memset(k->zeros, 0, (size_t)C * sizeof *k->zeros);
}

/* ---- norms ---- */

static void finish_norm(const block *k, const kr_affine *to) {
  const kr_dense_block_args *a = k->a;
  for (int64_t c = 0; c < a->C; c++) {
    double mean, variance;
    kr_moments_merge(k->mean, k->m2, a->H, a->H * a->W, a->C, c, &mean, &variance);
    kr_affine_set(to, c, (double)((const float *)a->norm_weight.data)[kr_at2(&a->norm_weight, k->i, c)],
                  (double)((const float *)a->norm_bias.data)[kr_at2(&a->norm_bias, k->i, c)], mean, variance, a->eps);
  }
  read_vector(to->slope, &a->slope, k->i, a->C);
}

static const float *input_at(const block *k, int64_t t, int64_t h) {
  return (const float *)k->a->x.data + kr_at4(&k->a->x, k->b, h, t, 0);
}

/* The norm after the lift, from the moments of the lift's input, as the lift is linear; its scale is folded into the
 * weights. */
static void finish_lift(const block *k) {
  const kr_dense_block_args *a = k->a;
  const int64_t K = a->K, C = a->C, next = a->x.stride[3];
  const double n = (double)a->W * (double)a->H;
  double mean[KR_DENSE_LIFTED] = {0}, products[KR_DENSE_LIFTED][KR_DENSE_LIFTED] = {{0}};
  for (int64_t t = 0; t < a->W; t++)
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t j = 0; j < K; j++) mean[j] += (double)input_at(k, t, h)[j * next];
  for (int64_t j = 0; j < K; j++) mean[j] /= n;
  for (int64_t t = 0; t < a->W; t++)
    for (int64_t h = 0; h < a->H; h++) {
      const float *x = input_at(k, t, h);
      for (int64_t j = 0; j < K; j++)
        for (int64_t l = 0; l <= j; l++)
          products[j][l] += ((double)x[j * next] - mean[j]) * ((double)x[l * next] - mean[l]);
    }
  for (int64_t c = 0; c < C; c++) {
    double level = 0, variance = 0, weights[KR_DENSE_LIFTED] = {0};
    for (int64_t j = 0; j < K; j++) {
      weights[j] = (double)((const float *)a->lift.data)[kr_at2(&a->lift, c, j)];
      level += weights[j] * mean[j];
      for (int64_t l = 0; l <= j; l++) variance += (l < j ? 2 : 1) * weights[j] * weights[l] * products[j][l] / n;
    }
    kr_affine_set(&k->lift, c, (double)((const float *)a->lift_weight.data)[kr_at1(&a->lift_weight, c)],
                  (double)((const float *)a->lift_bias.data)[kr_at1(&a->lift_bias, c)], level,
                  variance > 0 ? variance : 0, a->eps);
    for (int64_t j = 0; j < K; j++) k->lift_weights[j * C + c] = (float)weights[j] * k->lift.scale[c];
    k->lift.slope[c] = ((const float *)a->lift_slope.data)[kr_at1(&a->lift_slope, c)];
  }
}

static void normalise_frame(const block *k, const map *m, int64_t t) {
  const frame own = dense_block_frame_of(k->a, m, t);
  kr_affine_rows(own.at, own.step, k->a->H, k->a->C, &k->norm, own.at, own.step);
}

static void normalise_range(void *user, int64_t begin, int64_t end, int thread) {
  const block *k = user;
  (void)thread;
  for (int64_t t = begin; t < end; t++) normalise_frame(k, &k->sources[0], t);
}

/* ---- layers. Layer i filters frames t - d, t and t + d, d = 2^i. Frames of different residues modulo d never
 * interact, so a thread processes one residue in order: what it computed for a frame serves the next two, and the last
 * output can overwrite the newest source. ---- */

static void lift_positions(const block *k, int64_t t, int64_t h, int64_t n, float *to) {
  const kr_dense_block_args *a = k->a;
  const float *x = input_at(k, t, h);
  if (a->K == 2) lift_rows(2, x, a->x.stride[1], a->x.stride[3], n, a->C, k->lift_weights, &k->lift, to);
  else lift_rows((int)a->K, x, a->x.stride[1], a->x.stride[3], n, a->C, k->lift_weights, &k->lift, to);
}

static int is_there(const block *k, int64_t t) { return t >= 0 && t < k->a->W; }

/* The taps of a source of a layer. */
static int64_t dense_block_taps_of(const block *k, int64_t layer, int64_t source) {
  return (layer * (layer + 1) / 2 + source) * k->a->C;
}

static void multiply_dense_block(const kr_panels *w, const float *A, int64_t lda, int64_t n, float *out, int64_t ldo) {
  KR_FN(kr_gemm_rows)(&(kr_gemm_rows_call){w, A, lda, n, out, ldo, w->N});
}

/* Frame t of x1: recomputes the first layer and its norm. x0: the same frame of that. */
static void compute_first(const block *k, int64_t t, const float *x0, float *row, worker *w) {
  const int64_t C = k->a->C, H = k->a->H;
  for (int64_t h = 0; h < H; h += TILE) {
    const int64_t n = H - h < TILE ? H - h : TILE, from = h > 0 ? h - 1 : 0, to = h + n < H ? h + n + 1 : H;
    rows3 r;
    for (int j = 0; j < 3; j++) {
      const int64_t at = t - before(k->a) + j;
      r.at[j] = !is_there(k, at) ? k->zeros : at == t ? x0 + h * C : w->lifted[j] + (h - from) * C;
      r.step[j] = is_there(k, at) ? C : 0;
      if (is_there(k, at) && at != t) lift_positions(k, at, from, to - from, w->lifted[j]);
    }
    filter_dense_block_rows(&r, n, h == 0, h + n == H, C, k->taps, k->bias, w->mixed_first, C);
    multiply_dense_block(&k->mix[0], w->mixed_first, C, n, row + h * C, C);
  }
  kr_affine_rows(row, C, H, C, &k->first, row, C);
}

/* Frame t of a recomputed source, cached as long as this residue needs it. */
static float *computed_row(const block *k, int kind, int64_t t, worker *w) {
  const int64_t slot = t / k->dilation % 3;
  float *row = w->ring[kind][slot];
  if (w->ring_frame[kind][slot] == t) return row;
  w->ring_frame[kind][slot] = t;
  if (kind == FIRST) compute_first(k, t, computed_row(k, LIFTED, t, w), row, w);
  else lift_positions(k, t, 0, k->a->H, row);
  return row;
}

static void filter_source(const block *k, int64_t source, int64_t t, int64_t h, int64_t n, worker *w) {
  const kr_dense_block_args *a = k->a;
  const int64_t C = a->C, at_taps = dense_block_taps_of(k, k->i, source);
  rows3 r;
  for (int j = 0; j < 3; j++) {
    const int64_t at = t + (j - before(a)) * k->dilation;
    frame f = {k->zeros, 0};
    if (is_there(k, at) && source < k->n_maps) f = dense_block_frame_of(a, &k->sources[source], at);
    else if (is_there(k, at)) f = (frame){computed_row(k, source == k->i ? LIFTED : FIRST, at, w), C};
    r.at[j] = f.at + h * f.step, r.step[j] = f.step;
  }
  filter_dense_block_rows(&r, n, h == 0, h + n == a->H, C, k->taps + 9 * at_taps, k->bias + at_taps,
                          w->mixed + source * C, (k->i + 1) * C);
}

/* Through a row buffer: writing in place must not touch positions that the next tile still reads. */
static void layer_frame(const block *k, int64_t t, worker *w) {
  const int64_t C = k->a->C, H = k->a->H, I = (k->i + 1) * C;
  for (int64_t h = 0; h < H; h += TILE) {
    const int64_t n = H - h < TILE ? H - h : TILE;
    for (int64_t source = 0; source <= k->i; source++) filter_source(k, source, t, h, n, w);
    multiply_dense_block(&k->mix[k->i], w->mixed, I, n, w->row + h * C, C);
  }
  kr_moments(w->row, C, H, C, k->mean + t * C, k->m2 + t * C);
  if (!k->keep) return;
  const frame to = dense_block_frame_of(k->a, &k->out, t);
  if (to.step == C) memcpy(to.at, w->row, (size_t)(H * C) * sizeof *w->row);
  else
    for (int64_t h = 0; h < H; h++) memcpy(to.at + h * to.step, w->row + h * C, (size_t)C * sizeof *w->row);
}

/* Frames of a residue per thread: few enough to occupy all threads, many since recomputed sources restart each time. */
static int64_t segment_of(const kr_dense_block_args *a, int64_t dilation, int n_threads) {
  const int64_t share = a->W / (4 * dilation * n_threads);
  return share < 16 ? 16 : share;
}

static void layer_range(void *user, int64_t begin, int64_t end, int thread) {
  const block *k = user;
  worker *w = &k->workers[thread];
  for (int64_t item = begin; item < end; item++) {
    const int64_t residue = item % k->dilation, start = item / k->dilation * k->segment;
    memset(w->ring_frame, -1, sizeof w->ring_frame);
    for (int64_t j = 0; j < k->segment; j++) {
      const int64_t t = residue + (start + j) * k->dilation;
      if (t >= k->a->W) break;
      const int64_t next = t + (2 - before(k->a)) * k->dilation; /* the latest frame it reads */
      if (k->waits && j == 0 && next != t) normalise_frame(k, &k->sources[0], t);
      if (k->waits && next < k->a->W) normalise_frame(k, &k->sources[0], next);
      layer_frame(k, t, w);
    }
  }
}

/* Where layer i writes: the last but one at the offset the last one needs to overwrite it. */
static map output_of(const block *k) {
  const kr_dense_block_args *a = k->a;
  const int64_t C = a->C, tail = tail_frames(a);
  float *out = (float *)a->out.data + k->b * a->out.stride[0];
  map to = {.data = out, .frame = a->out.stride[2], .step = a->out.stride[1], .n_here = a->W};
  if (k->i + 1 == a->L) return to;
  if (k->i + 2 < a->L) return (map){.data = k->kept[k->i], .frame = a->H * C, .step = C, .n_here = a->W};
  to.ahead = tail, to.n_here = a->W - tail, to.tail = k->tail;
  return to;
}

static void run_dense_block_item(const krait_ctx *ctx, block *k) {
  const kr_dense_block_args *a = k->a;
  const map x = {.data = (float *)a->x.data + k->b * a->x.stride[0], .frame = a->x.stride[2], .step = a->x.stride[1],
                 .n_here = a->W};
  const int n_threads = krait_ctx_n_threads(ctx);
  k->n_maps = 0, k->waits = 0;
  if (is_lifted(a)) finish_lift(k);
  else k->sources[k->n_maps++] = x;
  for (k->i = 0; k->i < a->L; k->i++) {
    const int is_last = k->i + 1 == a->L;
    k->dilation = (int64_t)1 << k->i;
    k->keep = is_last || k->i > 0 || !is_lifted(a);
    k->in_place = is_last && last_in_place(a);
    k->out = output_of(k);
    k->segment = k->in_place || k->waits ? a->W : segment_of(a, k->dilation, n_threads);
    const int64_t per_residue = (a->W + k->dilation - 1) / k->dilation;
    kr_parallel(ctx, k->dilation * ((per_residue + k->segment - 1) / k->segment), 1, layer_range, k);
    finish_norm(k, k->keep ? &k->norm : &k->first);
    if (!k->keep) continue;
    memmove(k->sources + 1, k->sources, (size_t)k->n_maps++ * sizeof *k->sources);
    k->sources[0] = k->out;
    /* a frame is read by only one residue of the next layer, which can normalise it unless the residue is split */
    k->waits = !is_last && n_threads <= 2 * k->dilation;
    if (!k->waits) kr_parallel(ctx, a->W, 8, normalise_range, k);
  }
}

int32_t KR_FN(kr_dense_block)(const krait_ctx *ctx, const void *args) {
  const kr_dense_block_args *a = args;
  const int n_threads = krait_ctx_n_threads(ctx);
  capacity r = {.base = (float *)a->call.scratch + dense_block_worker_floats(n_threads)};
  block k = {.a = a, .workers = a->call.scratch};
  lay_out_dense_block(a, n_threads, &r, &k, k.workers);
  read_parameters(a, &k);
  for (k.b = 0; k.b < a->B; k.b++) run_dense_block_item(ctx, &k);
  return KRAIT_OK;
}
