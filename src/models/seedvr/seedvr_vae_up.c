/* seedvr_vae_up.c: weights for the decoder's upsampling as small convolutions. Upstream, a position becomes a cell of
 * 2 x 2 positions (and of two frames) by a product, and a 3 x 3 x 3 convolution follows, with nothing between them: so
 * each place of a cell is a convolution of the small map, 2 x 2 over rows and columns and 2 (3 without time) over
 * frames, whose weights are products of both. Where a tap lies outside of the frame there is nothing, not even the
 * product's bias: three vectors correct the bias at a row, a column and a corner. */
#include <string.h>

#include "alloc.h"
#include "ctx_memory.h"
#include "op_list.h"
#include "seedvr_vae.h"
#include "status.h"

/* Kernels over rows and columns: one for each kernel frame, and sums of frames: 0 and 1; all. */
enum { AREA = 9, SUM_OF_TWO = 27, SUM_OF_ALL = 36, N_KERNELS = 45, MOST_GROUPS = 3 };

/* What one kernel frame, or a sum of them, reads: a frame of the small map, at a place of its cell. */
typedef struct group {
  int kernel, frame, place;
} group;

/* The first frame comes alone, so that cells after it begin a frame later, and the ones before the second cell are that
 * frame. Returns the number of groups. */
static int list_groups(int set, int e, group groups[MOST_GROUPS]) {
  int n = 0;
  if (set == KR_VAE_UP_FIRST) groups[n++] = (group){SUM_OF_ALL, 0, 0};
  else if (set == KR_VAE_UP_SECOND && e == 0)
    groups[n++] = (group){SUM_OF_TWO, 0, 0}, groups[n++] = (group){2 * AREA, 1, 0};
  else
    for (int i = 0; i < 3; i++) {
      const int at = e + i - 2; /* of the cell's frames; those of the one before are negative */
      if (set == KR_VAE_UP_FRAMES) groups[n++] = (group){i * AREA, i, 0};
      else if (at < 0) groups[n++] = (group){i * AREA, 0, set == KR_VAE_UP_SECOND ? 0 : at & 1};
      else groups[n++] = (group){i * AREA, 1, at & 1};
    }
  return n;
}

int64_t kr_vae_up_frames(int set) {
  return set == KR_VAE_UP_FIRST ? 1 : set == KR_VAE_UP_FRAMES ? 3 : 2;
}

/* Where line j of a kernel reads for place a of a cell: *place of a cell, 0 or 1 of the two that the small convolution
 * sees. */
static int small_tap(int a, int j, int *place) {
  const int at = a + j - 1; /* of the cell's lines */
  *place = at & 1;
  return (at < 0 ? -1 : at / 2) + (a == 0);
}

typedef struct making {
  const kr_vae_up *up;
  int set, a, b, e;
} making;

/* Each product of a kernel with the weights of a place. */
static void each_product(const making *m, void (*fn)(void *user, int kernel, int tap, int place, int outside),
                         void *user) {
  group groups[MOST_GROUPS];
  const int n = list_groups(m->set, m->e, groups), r = m->up->r;
  for (int g = 0; g < n; g++)
    for (int j = 0; j < AREA; j++) {
      int row, column;
      const int y = small_tap(m->a, j / 3, &row), x = small_tap(m->b, j % 3, &column);
      fn(user, groups[g].kernel + j, (groups[g].frame * 2 + y) * 2 + x, (row * 2 + column) * r + groups[g].place,
         (y == m->a) | (x == m->b) << 1);
    }
}

/* ---- weights, as products on the context ---- */

typedef struct recording {
  kr_graph *g;
  kr_tensor kernels, places, out; /* (N_KERNELS,C,C), (4 r,C,C), (C,taps,C) */
  int64_t C;
  uint32_t written; /* a bit for each tap */
} recording;

static void record_product(void *user, int kernel, int tap, int place, int outside) {
  recording *r = user;
  const kr_dims square = KR_DIMS(r->C, r->C);
  const kr_tensor w = kr_graph_reshape(r->g, kr_graph_slice(r->g, r->kernels, 0, kernel, 1), square),
                  p = kr_graph_reshape(r->g, kr_graph_slice(r->g, r->places, 0, place, 1), square),
                  out = kr_graph_reshape(r->g, kr_graph_slice(r->g, r->out, 1, tap, 1), square);
  const kr_view none = {0};
  (void)outside;
  kr_graph_call(r->g, "small", &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(r->g, w), .Bmat = kr_graph_view(r->g, p),
                                .residual = r->written >> tap & 1 ? kr_graph_view(r->g, out) : none,
                                .out = kr_graph_view(r->g, out)});
  r->written |= 1u << tap;
}

static int32_t run_products(const making *m, void *kernels, void *places, void *out, float *weights) {
  const int64_t C = m->up->C, taps = 4 * kr_vae_up_frames(m->set);
  const krait_ctx *ctx = m->up->ctx;
  kr_runner *runner = NULL;
  recording r = {.C = C};
  KR_TRY(kr_graph_open(&r.g));
  r.kernels = kr_graph_weight(r.g, "kernels", KRAIT_F32, KR_DIMS(N_KERNELS, C, C), kernels);
  r.places = kr_graph_weight(r.g, "places", KRAIT_F32, KR_DIMS(4 * m->up->r, C, C), places);
  r.out = kr_graph_output(r.g, "out", KRAIT_F32, KR_DIMS(C, taps, C));
  each_product(m, record_product, &r);
  int32_t status = kr_graph_plan(r.g, ctx, 0);
  if (status >= 0) status = kr_runner_open(r.g, &runner);
  if (status >= 0) status = kr_runner_bind(runner, r.out, out);
  if (status >= 0) status = kr_runner_run(runner, NULL);
  if (status >= 0) status = kr_mem_read(ctx, weights, out, (uint64_t)(C * taps * C) * sizeof *weights);
  kr_runner_close(&runner);
  kr_graph_close(&r.g);
  return status;
}

/* ---- biases ---- */

typedef struct adding {
  const kr_vae_up *up;
  const float *kernels;
  float *to; /* four vectors: everywhere, and what a first or last row, column and corner have more */
} adding;

static void add_bias(void *user, int kernel, int tap, int place, int outside) {
  const adding *a = user;
  const int64_t C = a->up->C;
  const float *w = a->kernels + kernel * C * C, *bias = a->up->place_bias + place * C;
  (void)tap;
  for (int64_t k = 0; k < C; k++) {
    double sum = 0;
    for (int64_t c = 0; c < C; c++) sum += (double)w[k * C + c] * (double)bias[c];
    a->to[k] += (float)sum;
    if (outside & 1) a->to[C + k] -= (float)sum;
    if (outside & 2) a->to[2 * C + k] -= (float)sum;
    if (outside == 3) a->to[3 * C + k] += (float)sum;
  }
}

/* ---- all of them ---- */

/* (C,27,C) as kernels, one after another, with their sums over frames. */
static void turn_kernels(const kr_vae_up *up, float *to) {
  const int64_t C = up->C, area = C * C;
  for (int64_t i = 0; i < 3 * AREA; i++)
    for (int64_t k = 0; k < C; k++)
      memcpy(to + i * area + k * C, up->conv + (k * 3 * AREA + i) * C, (size_t)C * sizeof *to);
  for (int64_t i = 0; i < AREA * area; i++) {
    to[SUM_OF_TWO * area + i] = to[i] + to[AREA * area + i];
    to[SUM_OF_ALL * area + i] = to[SUM_OF_TWO * area + i] + to[2 * AREA * area + i];
  }
}

static int32_t make_place(const making *m, const float *kernels, void *const on_device[3], float *weights,
                          float *bias) {
  const int64_t C = m->up->C;
  const int place = (m->a * 2 + m->b) * m->up->r + m->e;
  memset(bias, 0, (size_t)(4 * C) * sizeof *bias);
  memcpy(bias, m->up->conv_bias, (size_t)C * sizeof *bias);
  each_product(m, add_bias, &(adding){m->up, kernels, bias});
  KR_TRY(run_products(m, on_device[0], on_device[1], on_device[2], weights));
  return m->up->keep(m->up->user, m->set, place, weights, bias);
}

static int32_t make_places(const kr_vae_up *up, const float *kernels, void *const on_device[3], float *weights,
                           float *bias) {
  for (int set = 0; set < KR_VAE_UP_SETS; set++) {
    const int n_frames = set == KR_VAE_UP_FIRST ? 1 : up->r;
    if ((set == KR_VAE_UP_FRAMES) != (up->r == 1)) continue;
    for (int i = 0; i < 4 * n_frames; i++)
      KR_TRY(make_place(&(making){up, set, i / 2 % 2, i % 2, i / 4}, kernels, on_device, weights, bias));
  }
  return KRAIT_OK;
}

int32_t kr_vae_up_make(const kr_vae_up *up) {
  enum { MOST_TAPS = 12 };
  const int64_t C = up->C, area = C * C, counts[3] = {N_KERNELS * area, 4 * up->r * area, MOST_TAPS * area};
  float *kernels = kr_alloc_array((size_t)counts[0], sizeof *kernels),
        *weights = kr_alloc_array((size_t)counts[2], sizeof *weights),
        *bias = kr_alloc_array((size_t)(4 * C), sizeof *bias);
  void *on_device[3] = {NULL};
  int32_t status = kernels && weights && bias ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for upsampling");
  if (status >= 0) turn_kernels(up, kernels);
  for (int i = 0; i < 3 && status >= 0; i++)
    status = kr_mem_get(up->ctx, "upsampling", (uint64_t)counts[i] * sizeof(float), &on_device[i]);
  if (status >= 0) status = kr_mem_put(up->ctx, on_device[0], kernels, (uint64_t)counts[0] * sizeof(float));
  if (status >= 0) status = kr_mem_put(up->ctx, on_device[1], up->places, (uint64_t)counts[1] * sizeof(float));
  if (status >= 0) status = make_places(up, kernels, on_device, weights, bias);
  for (int i = 0; i < 3; i++) kr_mem_free(up->ctx, on_device[i]);
  kr_free(kernels);
  kr_free(weights);
  kr_free(bias);
  return status;
}
