/* ssd_lanes.h: shared code of the SIMD rows of the SSD and its gradient: a head's channels over lanes, a tile of tokens
 * as floats, and its sequence boundaries. Tokens are numbered in scan order. */
#ifndef KR_SSD_LANES_H
#define KR_SSD_LANES_H

#include <string.h>

#include "ssd_inputs.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { SSD_TILE = 64, SSD_WIDTH = 2 * KR_VL }; /* tokens per tile; channels per block */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { SSD_ROWS = 8 }; /* out of 32 registers */
#else
enum { SSD_ROWS = 4 };
#endif

enum { SSD_BEGINS = 1, SSD_PADDING = 2, SSD_ENDS = 4 }; /* ENDS: a varlen state is stored after the token */

/* Called from several places in a scan, too long to inline. */
#define SSD_APART static __attribute__((noinline, unused))

/* One direction of one head of one batch entry, for SSD_WIDTH of its channels. */
typedef struct ssd_walk {
  const kr_ssd_inputs *in;
  const kr_view *A;
  int reverse;
  int64_t b, h, g, p0;
  int n_lanes;
} ssd_walk;

static inline int64_t ssd_row(int64_t floats) { return (floats + 15) / 16 * 16; }

/* The same, but an odd number of cache lines, so that a tile's rows do not collide in a few cache sets. */
static inline int64_t ssd_odd_row(int64_t floats) { return ssd_row(floats) | 16; }

static inline int64_t ssd_token(const ssd_walk *w, int64_t i) { return w->reverse ? w->in->L - 1 - i : i; }

/* (token, channel) of a view (B,L,H,P), from the scan's token i on. */
static inline kr_plane ssd_channels(const ssd_walk *w, const kr_view *v, int64_t i) {
  const int64_t step = w->reverse ? -v->stride[1] : v->stride[1];
  return (kr_plane){v->data, v->dtype, kr_at4(v, w->b, ssd_token(w, i), w->h, w->p0), step, v->stride[3]};
}

static inline int ssd_lanes_of(const ssd_walk *w, int part) {
  const int left = w->n_lanes - part * KR_VL;
  return left < 0 ? 0 : left < KR_VL ? left : KR_VL;
}

/* tile[token][SSD_WIDTH], zeros beyond the channels. */
SSD_APART void ssd_load_channels(float *tile, const ssd_walk *w, const kr_view *v, int64_t i, int n) {
  for (int part = 0; part < 2; part++) {
    kr_plane plane = ssd_channels(w, v, i);
    plane.offset += part * KR_VL * plane.lane_stride;
    if (ssd_lanes_of(w, part)) kr_tile_load(tile + part * KR_VL, SSD_WIDTH, &plane, n, ssd_lanes_of(w, part));
    else for (int t = 0; t < n; t++) kr_v_store(tile + t * SSD_WIDTH + KR_VL, kr_v_zero());
  }
}

SSD_APART void ssd_store_channels(const float *tile, const ssd_walk *w, const kr_view *v, int64_t i, int n) {
  for (int part = 0; part < 2; part++) {
    kr_plane plane = ssd_channels(w, v, i);
    plane.offset += part * KR_VL * plane.lane_stride;
    if (ssd_lanes_of(w, part)) kr_tile_store(tile + part * KR_VL, SSD_WIDTH, &plane, n, ssd_lanes_of(w, part));
  }
}

/* matrix[token][pitch] of a head's or a group's columns. If contiguous: token by token, which suits the hardware
 * prefetcher. */
SSD_APART void ssd_load_rows(float *matrix, int64_t pitch, const ssd_walk *w, const kr_view *v, int64_t i, int n,
                             int64_t head, int64_t columns) {
  const int64_t step = w->reverse ? -v->stride[1] : v->stride[1], at = kr_at4(v, w->b, ssd_token(w, i), head, 0);
  const kr_plane plane = {v->data, v->dtype, at, step, v->stride[3]};
  if (plane.lane_stride != 1) kr_matrix_load(matrix, pitch, &plane, n, columns);
  else for (int t = 0; t < n; t++) kr_row_load(matrix + t * pitch, v->data, v->dtype, at + t * step, 1, columns);
}

/* B or C. */
static inline void ssd_load_shared(float *matrix, int64_t pitch, const ssd_walk *w, const kr_view *v, int64_t i,
                                   int n) {
  ssd_load_rows(matrix, pitch, w, v, i, n, w->g, w->in->N);
}

/* exp(log_decay) of a tile's tokens. */
static inline void ssd_own_decays(const ssd_walk *w, int64_t i, int n, float *decay) {
  const kr_view *v = w->in->log_decay;
  kr_row_load(decay, v->data, v->dtype, kr_at3(v, w->b, ssd_token(w, i), w->h),
              w->reverse ? -v->stride[1] : v->stride[1], n);
  for (int t = 0; t < n; t += KR_VL)
    kr_v_store(decay + t, kr_v_exp2_any(kr_v_load(decay + t), kr_v_set1(1.44269504f)));
}

/* d and exp(d A) of a tile's tokens; d before the clamp and dt + dt_bias to raw, if given. */
SSD_APART void ssd_steps(const ssd_walk *w, int64_t i, int n, float *d, float *decay, float *raw) {
  const kr_ssd_inputs *in = w->in;
  const int64_t step = w->reverse ? -in->dt->stride[1] : in->dt->stride[1];
  const float bias = kr_has(in->dt_bias) ? (float)kr_get(in->dt_bias, kr_at1(in->dt_bias, w->h)) : 0;
  const int own = kr_has(in->log_decay);
  const float A = own ? 0 : ((const float *)w->A->data)[kr_at1(w->A, w->h)] * 1.44269504f;
  const kr_v low = kr_v_set1(in->dt_min), high = kr_v_set1(in->dt_max == 0 ? INFINITY : in->dt_max);
  kr_row_load(d, in->dt->data, in->dt->dtype, kr_at3(in->dt, w->b, ssd_token(w, i), w->h), step, n);
  for (int t = 0; t < n; t += KR_VL) {
    kr_v value = kr_v_add(kr_v_load(d + t), kr_v_set1(bias));
    if (raw) kr_v_store(raw + t, value);
    if (in->flags & KRAIT_SSD_SOFTPLUS) value = kr_v_softplus(value);
    value = kr_v_min(high, kr_v_max(low, value)); /* second operand: NaN passes */
    kr_v_store(d + t, value);
    if (!own) kr_v_store(decay + t, kr_v_exp2_any(value, kr_v_set1(A)));
  }
  if (own) ssd_own_decays(w, i, n, decay);
}

/* Marks each token from seq_idx. */
static inline void ssd_marks(const ssd_walk *w, int64_t i, int n, unsigned char *marks) {
  const kr_view *v = w->in->seq_idx;
  memset(marks, 0, (size_t)n);
  if (!kr_has(v)) return;
  int32_t before = i ? kr_get_i32(v, kr_at2(v, w->b, ssd_token(w, i - 1))) : 0;
  for (int t = 0; t < n; t++) {
    const int32_t now = kr_get_i32(v, kr_at2(v, w->b, ssd_token(w, i + t)));
    marks[t] = (unsigned char)((now != before ? SSD_BEGINS : 0) | (now < 0 ? SSD_PADDING : 0));
    before = now;
  }
}

/* Number of tokens from t on that are processed together: up to the next sequence start, or past the next end. */
static inline int ssd_run(const unsigned char *marks, int t, int n) {
  int end = t + 1;
  while (end < n && !(marks[end] & SSD_BEGINS) && !(marks[end - 1] & SSD_ENDS)) end++;
  return end - t;
}

/* states[n][lane] of a view (B,H,P,N). */
static inline void ssd_load_states(float *states, const ssd_walk *w, const kr_view *v) {
  if (!kr_has(v)) {
    memset(states, 0, (size_t)(w->in->N * SSD_WIDTH) * sizeof *states);
    return;
  }
  for (int64_t n = 0; n < w->in->N; n++)
    for (int lane = 0; lane < SSD_WIDTH; lane++)
      states[n * SSD_WIDTH + lane] =
          lane < w->n_lanes ? kr_scalar_load(v->data, kr_at4(v, w->b, w->h, w->p0 + lane, n), v->dtype) : 0;
}

static inline void ssd_store_states(const float *states, const ssd_walk *w, const kr_view *v, int64_t row) {
  for (int lane = 0; lane < w->n_lanes; lane++)
    for (int64_t n = 0; n < w->in->N; n++)
      kr_scalar_store(v->data, kr_at4(v, row, w->h, w->p0 + lane, n), v->dtype, states[n * SSD_WIDTH + lane]);
}

/* Rows to be read or written next, prefetched a few at a time between other work: a head's channels are short pieces of
 * many pages, more streams than hardware prefetchers follow. */
typedef struct ssd_ahead {
  struct {
    const char *at;
    int64_t step, bytes;
  } of[4];
  int n, rows, each; /* rows: remaining; each: per step */
} ssd_ahead;

/* Prefetch of n_tokens from the scan's token i on, spread over `steps` steps. */
static inline ssd_ahead ssd_ahead_of(const ssd_walk *w, int64_t i, int steps) {
  const int64_t left = w->in->L - i;
  ssd_ahead a = {.rows = left < 0 ? 0 : left < SSD_TILE ? (int)left : SSD_TILE};
  a.each = (SSD_TILE + steps - 1) / steps;
  return a;
}

SSD_APART void ssd_ahead_add(ssd_ahead *a, const ssd_walk *w, const kr_view *v, int64_t i, int64_t n_lanes) {
  const int64_t size = v->dtype == KRAIT_F32 ? 4 : 2;
  if (!kr_has(v) || a->rows == 0) return;
  const kr_plane p = ssd_channels(w, v, i);
  if (p.lane_stride != 1) return;
  a->of[a->n].at = (const char *)p.data + p.offset * size;
  a->of[a->n].step = p.row_stride * size;
  a->of[a->n++].bytes = n_lanes * size;
}

static inline void ssd_ahead_step(ssd_ahead *a) {
  for (int row = 0; row < a->each && a->rows; row++, a->rows--)
    for (int k = 0; k < a->n; k++) {
      for (int64_t byte = 0; byte < a->of[k].bytes; byte += 64) __builtin_prefetch(a->of[k].at + byte, 0, 2);
      a->of[k].at = (const char *)((uintptr_t)a->of[k].at + (uintptr_t)a->of[k].step);
    }
}

/* States are stored divided by the cumulative decay since the last cut, so a token costs two multiply-adds per state
 * and no product with the decay: inputs are divided by kept, outputs multiplied by it. Where kept would leave its
 * range, states are multiplied by it instead: a cut; likewise before the first token of a run (ssd_run). A stretch ends
 * with a cut or with its run; the last of a run has at least one token. Nothing is ever divided by a cumulative decay
 * that is 0, infinite or NaN. */
typedef struct ssd_stretch {
  int tokens;
  float after; /* factor for the states after the stretch */
} ssd_stretch;

typedef struct ssd_cuts {
  float kept[SSD_TILE + 16], inverse[SSD_TILE + 16];
  ssd_stretch stretches[2 * SSD_TILE];
} ssd_cuts;

static inline void ssd_cut(ssd_cuts *c, const unsigned char *marks, const float *decay, int n) {
  const float most = 1024, least = 1 / most;
  ssd_stretch *s = c->stretches;
  for (int t = 0, end; t < n; t = end) {
    const int begin = t;
    float kept = 1;
    int first = t;
    for (end = t + ssd_run(marks, t, n); t < end; t++) {
      const float next = kept * decay[t];
      const int passes = t > begin && next >= least && next <= most;
      if (!passes) *s++ = (ssd_stretch){t - first, next}, first = t;
      c->kept[t] = kept = passes ? next : 1;
    }
    *s++ = (ssd_stretch){end - first, kept};
  }
  for (int t = n; t % 16; t++) c->kept[t] = 1;
  for (int t = 0; t < n; t += KR_VL) kr_v_store(c->inverse + t, kr_v_div(kr_v_set1(1.0f), kr_v_load(c->kept + t)));
}

/* Past the stretches of a run of n tokens. */
static inline const ssd_stretch *ssd_past(const ssd_stretch *s, int n) {
  while (n > 0) n -= s++->tokens;
  return s;
}

/* Scans a run's stretches over states[k][SSD_WIDTH]: state_k += in coef_k; y += sum_k out_coef_k state_k. in and y are
 * per-token vectors, lane_pitch floats apart; coefficients are a token's row, pitch apart. Channels over lanes give y
 * with in = d x, coef = B, out_coef = C; the gradient uses the same scan with roles exchanged, and with states over
 * lanes. SSD_ROWS rows of states stay in registers. */
KR_INLINE void ssd_scan_some(float *states, const float *in, float *y, int64_t lane_pitch, const float *coef,
                             const float *out_coef, int64_t pitch, const ssd_stretch *s, const ssd_stretch *end,
                             const int rows) {
  kr_v v[SSD_ROWS][2];
#pragma GCC unroll 8
  for (int k = 0; k < rows; k++)
    v[k][0] = kr_v_load(states + k * SSD_WIDTH), v[k][1] = kr_v_load(states + k * SSD_WIDTH + KR_VL);
  for (; s < end; s++) {
    for (int t = s->tokens; t; t--, in += lane_pitch, y += lane_pitch, coef += pitch, out_coef += pitch) {
      const kr_v x0 = kr_v_load(in), x1 = kr_v_load(in + KR_VL);
      kr_v sum[2][2] = {{kr_v_load(y), kr_v_load(y + KR_VL)}, {kr_v_zero(), kr_v_zero()}}; /* for even and odd rows */
#pragma GCC unroll 8
      for (int k = 0; k < rows; k++) {
        const kr_v b = kr_v_set1(coef[k]);
        v[k][0] = kr_v_fma(b, x0, v[k][0]), v[k][1] = kr_v_fma(b, x1, v[k][1]);
      }
#pragma GCC unroll 8
      for (int k = 0; k < rows; k++) {
        const kr_v c = kr_v_set1(out_coef[k]);
        sum[k % 2][0] = kr_v_fma(c, v[k][0], sum[k % 2][0]), sum[k % 2][1] = kr_v_fma(c, v[k][1], sum[k % 2][1]);
      }
      kr_v_store(y, kr_v_add(sum[0][0], sum[1][0])), kr_v_store(y + KR_VL, kr_v_add(sum[0][1], sum[1][1]));
    }
    const kr_v after = kr_v_set1(s->after);
#pragma GCC unroll 8
    for (int k = 0; k < rows; k++) v[k][0] = kr_v_mul(after, v[k][0]), v[k][1] = kr_v_mul(after, v[k][1]);
  }
#pragma GCC unroll 8
  for (int k = 0; k < rows; k++)
    kr_v_store(states + k * SSD_WIDTH, v[k][0]), kr_v_store(states + k * SSD_WIDTH + KR_VL, v[k][1]);
}

static inline void ssd_scan(float *states, int64_t n_rows, const float *in, float *y, int64_t lane_pitch,
                            const float *coef, const float *out_coef, int64_t pitch, const ssd_stretch *s,
                            const ssd_stretch *end, ssd_ahead *ahead) {
  int64_t k = 0;
  for (; k + SSD_ROWS <= n_rows; k += SSD_ROWS, ssd_ahead_step(ahead))
    ssd_scan_some(states + k * SSD_WIDTH, in, y, lane_pitch, coef + k, out_coef + k, pitch, s, end, SSD_ROWS);
  for (; k < n_rows; k++)
    ssd_scan_some(states + k * SSD_WIDTH, in, y, lane_pitch, coef + k, out_coef + k, pitch, s, end, 1);
}

#endif
