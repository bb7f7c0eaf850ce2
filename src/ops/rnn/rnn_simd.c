/* rnn_simd.c: a task steps KR_RNN_TILE sequences through time; weights are loaded once for all of them. Gates are rows
 * of full vectors; weights are laid out (k, gate, unit), and for the gradient (gate, unit, k) as well. */
#include <string.h>

#include "op_list.h"
#include "rnn/rnn_impls.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { TILE = KR_RNN_TILE };
/* Vectors of gates whose accumulators for a tile fit the register file of 32 or 16. */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { WIDE = 4 };
#else
enum { WIDE = 2 };
#endif

typedef struct rnn {
  const kr_view *x, *weight, *bias, *out, *cells, *dout, *dx;
  int64_t B, L, H, W, G; /* W: H padded to whole vectors; G gates */
  int is_lstm;
  float *forward, *gate_bias, *back, *work, *sums; /* [H][G W], [G W], [G H][W] */
  int64_t work_floats;
} rnn;

static void lay_weights(const rnn *p) {
  memset(p->forward, 0, (size_t)(p->G * p->W * (p->H + 1)) * sizeof(float));
  if (p->back) memset(p->back, 0, (size_t)(p->G * p->H * p->W) * sizeof(float));
  for (int64_t g = 0; g < p->G; g++) {
    const kr_plane plane = {p->weight->data, KRAIT_F32, kr_at2(p->weight, g * p->H, 0), p->weight->stride[1],
                            p->weight->stride[0]};
    kr_matrix_load(p->forward + g * p->W, p->G * p->W, &plane, (int)p->H, p->H);
    for (int64_t u = 0; u < p->H; u++) {
      if (kr_has(p->bias)) p->gate_bias[g * p->W + u] = ((const float *)p->bias->data)[kr_at1(p->bias, g * p->H + u)];
      for (int64_t k = 0; k < p->H && p->back; k++)
        p->back[(g * p->H + u) * p->W + k] = p->forward[k * p->G * p->W + g * p->W + u];
    }
  }
}

/* Columns from j, `vectors` of them, of to[TILE][n] = start + sum over k < K of from[TILE][from_pitch][k] rows[k][n];
 * vectors is a constant after inlining. */
KR_INLINE void multiply_columns(const int vectors, int64_t j, float *to, int64_t n, const float *start, int start_pitch,
                                const float *from, int64_t from_pitch, const float *rows, int64_t K) {
  kr_v sum[TILE][WIDE];
  for (int s = 0; s < TILE; s++)
    for (int v = 0; v < vectors; v++) sum[s][v] = kr_v_load(start + s * start_pitch + j + v * KR_VL);
  for (int64_t k = 0; k < K; k++) {
    kr_v row[WIDE];
    for (int v = 0; v < vectors; v++) row[v] = kr_v_load(rows + k * n + j + v * KR_VL);
    for (int s = 0; s < TILE; s++) {
      const kr_v f = kr_v_set1(from[s * from_pitch + k]);
      for (int v = 0; v < vectors; v++) sum[s][v] = kr_v_fma(f, row[v], sum[s][v]);
    }
  }
  for (int s = 0; s < TILE; s++)
    for (int v = 0; v < vectors; v++) kr_v_store(to + s * n + j + v * KR_VL, sum[s][v]);
}

/* n is a multiple of two vectors. */
static void multiply_rnn(float *to, int64_t n, const float *start, int start_pitch, const float *from,
                         int64_t from_pitch, const float *rows, int64_t K) {
  int64_t j = 0;
  for (; j + WIDE * KR_VL <= n; j += WIDE * KR_VL)
    multiply_columns(WIDE, j, to, n, start, start_pitch, from, from_pitch, rows, K);
  if (j < n) multiply_columns(2, j, to, n, start, start_pitch, from, from_pitch, rows, K);
}

static void load_rnn_row(float *to, const kr_view *v, int64_t b, int64_t t, int64_t first, int64_t n,
                         int64_t whole) {
  const float *from = (const float *)v->data + kr_at3(v, b, t, first);
  if (v->stride[2] == 1) memcpy(to, from, (size_t)n * sizeof *to);
  else
    for (int64_t k = 0; k < n; k++) to[k] = from[k * v->stride[2]];
  memset(to + n, 0, (size_t)(whole - n) * sizeof *to);
}
static void store_row(const float *from, const kr_view *v, int64_t b, int64_t t, int64_t first, int64_t n) {
  float *to = (float *)v->data + kr_at3(v, b, t, first);
  if (v->stride[2] == 1) memcpy(to, from, (size_t)n * sizeof *to);
  else
    for (int64_t k = 0; k < n; k++) to[k * v->stride[2]] = from[k];
}

/* 2 sigmoid(2 x) - 1: a small absolute error, which suffices for a gate. */
static inline kr_v tanh_gate(kr_v x) {
  const kr_v two = kr_v_set1(2);
  return kr_v_sub(kr_v_mul(two, kr_v_sigmoid(kr_v_mul(two, x))), kr_v_set1(1));
}

/* The gates of one sequence: U (G W) in, h and c (W) updated. x is buffered unless it has full contiguous vectors. */
static void step_sequence(const rnn *p, int64_t b, int64_t t, const float *U, float *h, float *c) {
  const int64_t W = p->W, lies = p->x->stride[2] == 1 && p->H % KR_VL == 0;
  float rows[4 * 64];
  for (int64_t from = 0; from < p->H; from += 64) {
    const int64_t n = p->H - from < 64 ? p->H - from : 64, gate = lies ? p->H : 64;
    const float *x = lies ? (const float *)p->x->data + kr_at3(p->x, b, t, from) : rows;
    for (int64_t g = 0; g < p->G && !lies; g++) load_rnn_row(rows + g * 64, p->x, b, t, g * p->H + from, n, 64);
    for (int64_t j = 0; j < n; j += KR_VL) {
      const float *u = U + from + j;
      float *hj = h + from + j, *cj = c + from + j;
      const kr_v first = kr_v_sigmoid(kr_v_add(kr_v_load(x + j), kr_v_load(u))),
                 second = kr_v_sigmoid(kr_v_add(kr_v_load(x + gate + j), kr_v_load(u + W)));
      if (p->is_lstm) {
        const kr_v g = tanh_gate(kr_v_add(kr_v_load(x + 2 * gate + j), kr_v_load(u + 2 * W))),
                   o = kr_v_sigmoid(kr_v_add(kr_v_load(x + 3 * gate + j), kr_v_load(u + 3 * W)));
        const kr_v cell = kr_v_fma(second, kr_v_load(cj), kr_v_mul(first, g));
        kr_v_store(cj, cell);
        kr_v_store(hj, kr_v_mul(o, tanh_gate(cell)));
      } else {
        const kr_v n_gate = tanh_gate(kr_v_fma(first, kr_v_load(u + 2 * W), kr_v_load(x + 2 * gate + j)));
        kr_v_store(hj, kr_v_fma(second, kr_v_sub(kr_v_load(hj), n_gate), n_gate));
      }
    }
  }
}

static void run_rnn_tiles(void *user, int64_t begin, int64_t end, int worker) {
  const rnn *p = user;
  const int64_t GW = p->G * p->W;
  float *U = p->work + worker * p->work_floats, *h = U + TILE * GW, *c = h + TILE * p->W;
  for (int64_t tile = begin; tile < end; tile++) {
    const int64_t b = tile * TILE, n = p->B - b < TILE ? p->B - b : TILE;
    memset(h, 0, (size_t)(2 * TILE * p->W) * sizeof *h);
    for (int64_t t = 0; t < p->L; t++) {
      multiply_rnn(U, GW, p->gate_bias, 0, h, p->W, p->forward, p->H);
      for (int64_t s = 0; s < n; s++) {
        step_sequence(p, b + s, t, U + s * GW, h + s * p->W, c + s * p->W);
        store_row(h + s * p->W, p->out, b + s, t, 0, p->H);
        if (kr_has(p->cells)) store_row(c + s * p->W, p->cells, b + s, t, 0, p->H);
      }
    }
  }
}

int32_t KR_FN(kr_rnn)(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  rnn p = {.x = &a->x,
           .weight = &a->weight,
           .bias = &a->bias,
           .out = &a->out,
           .cells = &a->cells,
           .B = a->B,
           .L = a->L,
           .H = a->H,
           .W = kr_rnn_whole(a->H)};
  p.is_lstm = (a->call.flags & KRAIT_RNN_LSTM) != 0, p.G = p.is_lstm ? 4 : 3;
  p.forward = a->call.scratch, p.gate_bias = p.forward + p.G * p.W * p.H, p.work = p.gate_bias + p.G * p.W,
  p.work_floats = TILE * p.W * (p.G + 2);
  lay_weights(&p);
  kr_parallel(ctx, (a->B + TILE - 1) / TILE, 1, run_rnn_tiles, &p);
  return KRAIT_OK;
}

/* ---- the gradient ---- */

/* Derivatives of one sequence at one step: U in, dx out (G W); U becomes dU; dh and dc are updated, dh without its
 * product. before: h of the previous step. */
static void slopes(const rnn *p, int64_t b, int64_t t, float *U, float *dx, float *dh, float *dc, const float *before) {
  const int64_t W = p->W;
  const kr_v one = kr_v_set1(1);
  float x[4 * 64], d[64], c_before[64], c[64];
  for (int64_t from = 0; from < p->H; from += 64) {
    const int64_t n = p->H - from < 64 ? p->H - from : 64;
    for (int64_t g = 0; g < p->G; g++) load_rnn_row(x + g * 64, p->x, b, t, g * p->H + from, n, 64);
    load_rnn_row(d, p->dout, b, t, from, n, 64);
    memset(c_before, 0, sizeof c_before);
    if (p->is_lstm) load_rnn_row(c, p->cells, b, t, from, n, 64);
    if (p->is_lstm && t > 0) load_rnn_row(c_before, p->cells, b, t - 1, from, n, 64);
    for (int64_t j = 0; j < n; j += KR_VL) {
      float *u = U + from + j, *to = dx + from + j;
      const kr_v reached = kr_v_add(kr_v_load(dh + from + j), kr_v_load(d + j));
      const kr_v first = kr_v_sigmoid(kr_v_add(kr_v_load(x + j), kr_v_load(u))),
                 second = kr_v_sigmoid(kr_v_add(kr_v_load(x + 64 + j), kr_v_load(u + W)));
      const kr_v first_slope = kr_v_mul(first, kr_v_sub(one, first)),
                 second_slope = kr_v_mul(second, kr_v_sub(one, second));
      kr_v dx4[4] = {kr_v_zero(), kr_v_zero(), kr_v_zero(), kr_v_zero()}, third;
      if (p->is_lstm) {
        const kr_v g = kr_v_tanh(kr_v_add(kr_v_load(x + 128 + j), kr_v_load(u + 2 * W))),
                   o = kr_v_sigmoid(kr_v_add(kr_v_load(x + 192 + j), kr_v_load(u + 3 * W)));
        const kr_v squashed = kr_v_tanh(kr_v_load(c + j));
        const kr_v cell = kr_v_fma(kr_v_mul(reached, o), kr_v_fnma(squashed, squashed, one), kr_v_load(dc + from + j));
        dx4[0] = kr_v_mul(kr_v_mul(cell, g), first_slope),
        dx4[1] = kr_v_mul(kr_v_mul(cell, kr_v_load(c_before + j)), second_slope);
        dx4[2] = third = kr_v_mul(kr_v_mul(cell, first), kr_v_fnma(g, g, one)),
        dx4[3] = kr_v_mul(kr_v_mul(reached, squashed), kr_v_mul(o, kr_v_sub(one, o)));
        kr_v_store(dc + from + j, kr_v_mul(cell, second));
        kr_v_store(dh + from + j, kr_v_zero());
      } else {
        const kr_v hidden = kr_v_load(u + 2 * W), n_gate = kr_v_tanh(kr_v_fma(first, hidden, kr_v_load(x + 128 + j)));
        dx4[2] = kr_v_mul(kr_v_mul(reached, kr_v_sub(one, second)), kr_v_fnma(n_gate, n_gate, one));
        dx4[0] = kr_v_mul(kr_v_mul(dx4[2], hidden), first_slope),
        dx4[1] = kr_v_mul(kr_v_mul(reached, kr_v_sub(kr_v_load(before + from + j), n_gate)), second_slope);
        third = kr_v_mul(dx4[2], first);
        kr_v_store(dh + from + j, kr_v_mul(reached, second));
      }
      for (int64_t g = 0; g < p->G; g++) kr_v_store(to + g * W, dx4[g]), kr_v_store(u + g * W, g == 2 ? third : dx4[g]);
    }
  }
}

/* sums[k][G W] += h[k] dU, over a tile; and for the biases. Sequences beyond n have dU 0. */
static void add_outer(const rnn *p, float *sums, const float *dU, const float *h, int with_h) {
  const int64_t GW = p->G * p->W;
  float *bias = sums + p->H * GW;
  for (int64_t j = 0; j < GW; j += KR_VL) {
    kr_v d[TILE], all = kr_v_load(bias + j);
    for (int s = 0; s < TILE; s++) d[s] = kr_v_load(dU + s * GW + j), all = kr_v_add(all, d[s]);
    kr_v_store(bias + j, all);
    for (int64_t k = 0; k < p->H && with_h; k++) {
      kr_v sum = kr_v_load(sums + k * GW + j);
      for (int s = 0; s < TILE; s++) sum = kr_v_fma(kr_v_set1(h[s * p->W + k]), d[s], sum);
      kr_v_store(sums + k * GW + j, sum);
    }
  }
}

/* dU without the padding between gates, for the product with the weights (gate, unit). */
static void pack_gates(const rnn *p, float *to, const float *dU) {
  for (int s = 0; s < TILE; s++)
    for (int64_t g = 0; g < p->G; g++)
      memmove(to + s * p->G * p->W + g * p->H, dU + s * p->G * p->W + g * p->W, (size_t)p->H * sizeof *to);
}

static void tile_back(const rnn *p, int64_t tile, float *work, float *sums) {
  const int64_t GW = p->G * p->W, b = tile * TILE, n = p->B - b < TILE ? p->B - b : TILE;
  float *U = work, *dx = U + TILE * GW, *dh = dx + TILE * GW, *dc = dh + TILE * p->W, *h = dc + TILE * p->W;
  memset(work, 0, (size_t)p->work_floats * sizeof *work);
  for (int64_t t = p->L - 1; t >= 0; t--) {
    for (int64_t s = 0; s < n; s++) {
      if (t > 0) load_rnn_row(h + s * p->W, p->out, b + s, t - 1, 0, p->H, p->W);
      else memset(h + s * p->W, 0, (size_t)p->W * sizeof *h);
    }
    multiply_rnn(U, GW, p->gate_bias, 0, h, p->W, p->forward, p->H);
    for (int64_t s = 0; s < n; s++) {
      slopes(p, b + s, t, U + s * GW, dx + s * GW, dh + s * p->W, dc + s * p->W, h + s * p->W);
      for (int64_t g = 0; g < p->G && kr_has(p->dx); g++)
        store_row(dx + s * GW + g * p->W, p->dx, b + s, t, g * p->H, p->H);
    }
    for (int64_t s = n; s < TILE; s++) memset(U + s * GW, 0, (size_t)GW * sizeof *U);
    add_outer(p, sums, U, h, t > 0);
    pack_gates(p, dx, U);
    multiply_rnn(dh, p->W, dh, (int)p->W, dx, GW, p->back, p->G * p->H);
  }
}

static void rnn_chunks_back(void *user, int64_t begin, int64_t end, int worker) {
  const rnn *p = user;
  const int64_t n_tiles = (p->B + TILE - 1) / TILE, size = p->G * p->W * (p->H + 1);
  for (int64_t chunk = begin; chunk < end; chunk++) {
    float *sums = p->sums + chunk * size;
    memset(sums, 0, (size_t)size * sizeof *sums);
    for (int64_t tile = chunk * n_tiles / KR_RNN_CHUNKS; tile < (chunk + 1) * n_tiles / KR_RNN_CHUNKS; tile++)
      tile_back(p, tile, p->work + worker * p->work_floats, sums);
  }
}

int32_t KR_FN(kr_rnn_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  rnn p = {.x = &a->x,
           .weight = &a->weight,
           .bias = &a->bias,
           .out = &a->out,
           .cells = &a->cells,
           .dout = &a->dout,
           .dx = &a->dx,
           .B = a->B,
           .L = a->L,
           .H = a->H,
           .W = kr_rnn_whole(a->H)};
  p.is_lstm = (a->call.flags & KRAIT_RNN_LSTM) != 0, p.G = p.is_lstm ? 4 : 3;
  const int64_t GW = p.G * p.W, size = GW * (p.H + 1);
  p.forward = a->call.scratch, p.gate_bias = p.forward + GW * p.H, p.back = p.gate_bias + GW,
  p.sums = p.back + p.G * p.H * p.W;
  p.work = p.sums + KR_RNN_CHUNKS * size, p.work_floats = TILE * p.W * (2 * p.G + 3);
  lay_weights(&p);
  kr_parallel(ctx, KR_RNN_CHUNKS, 1, rnn_chunks_back, &p);
  for (int64_t i = 0; i < p.G * p.H; i++)
    for (int64_t k = 0; k <= p.H; k++) {
      const kr_view *to = k < p.H ? &a->dweight : &a->dbias;
      float sum = 0;
      for (int64_t chunk = 0; chunk < KR_RNN_CHUNKS && kr_has(to); chunk++)
        sum += p.sums[chunk * size + k * GW + i / p.H * p.W + i % p.H];
      if (kr_has(to)) ((float *)to->data)[k < p.H ? kr_at2(to, i, k) : kr_at1(to, i)] = sum;
    }
  return KRAIT_OK;
}
