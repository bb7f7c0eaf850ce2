/* scan_block.h: work split of the vectorized scan rows, forward and gradient. Lanes are channels of one group; a block
 * is KR_VL channels; an item is one sequence (or batch entry) and a range of blocks, processed in tiles of time steps.
 * A block's share of a tile is loaded into small float arrays [step][lane], whatever its type and strides; B and C are
 * common to all lanes and are read in place where they are float32 with unit stride on N. */
#ifndef KR_SCAN_BLOCK_H
#define KR_SCAN_BLOCK_H

#include <string.h>

#include "scan_impls.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { MAX_TILE = 64, TILE_VALUES = 512 };
static const float log2_e = 1.44269504f;

typedef struct scan_plan {
  kr_scan_inputs in;
  int64_t n_rows;   /* sequences: B, or S with cu_seqlens */
  int64_t group;    /* channels of a group */
  int64_t range;    /* channels of an item, a multiple of the block */
  int64_t n_ranges; /* ranges per group */
  int64_t pitch;    /* N rounded up to whole vectors */
  int64_t width;    /* floats per number: 2 with complex A. What is [n][lane] below is then [part][n][lane] */
  int64_t values;   /* floats of a channel's state: N * width */
  int tile;         /* time steps */
} scan_plan;

/* One sequence in one direction: step i is at time first + i * step. */
typedef struct scan_walk {
  int64_t b, first, n;
  int step;
} scan_walk;

typedef struct scan_shared { /* B or C of a tile: data[step * pitch + n] (gradient: [n * pitch + step]); imaginary parts
                              * at offset `imaginary` */
  const float *data;
  int64_t pitch, imaginary;
} scan_shared;

static inline scan_plan plan_scan(const kr_scan_inputs *in, int64_t range) {
  scan_plan p = {.in = *in, .n_rows = kr_has(in->cu_seqlens) ? in->S : in->B, .group = in->D / in->G};
  int64_t whole = (p.group + KR_VL - 1) / KR_VL * KR_VL;
  p.range = range < whole ? range : whole;
  p.n_ranges = (p.group + p.range - 1) / p.range;
  p.pitch = (in->N + KR_VL - 1) / KR_VL * KR_VL;
  p.width = in->A->dtype == KRAIT_C64 ? 2 : 1;
  p.values = in->N * p.width;
  int64_t steps = TILE_VALUES / in->N / KR_VL * KR_VL;
  p.tile = (int)(steps > MAX_TILE ? MAX_TILE : steps < KR_VL ? KR_VL : steps);
  return p;
}

static inline int64_t n_items(const scan_plan *p) { return p->n_rows * p->in.G * p->n_ranges; }

static inline scan_walk walk_row(const kr_scan_inputs *in, int64_t row, int reverse) {
  int64_t begin = 0, end = in->L;
  if (kr_has(in->cu_seqlens)) {
    begin = kr_get_i32(in->cu_seqlens, kr_at1(in->cu_seqlens, row));
    end = kr_get_i32(in->cu_seqlens, kr_at1(in->cu_seqlens, row + 1));
  }
  return (scan_walk){kr_has(in->cu_seqlens) ? 0 : row, reverse ? end - 1 : begin, end - begin, reverse ? -1 : 1};
}

/* Steps of a (B,D,L) view from step i, lanes from channel d. */
static inline kr_plane plane_of(const kr_view *v, const scan_walk *w, int64_t d, int64_t i) {
  return (kr_plane){v->data, v->dtype, kr_at3(v, w->b, d, w->first + i * w->step), w->step * v->stride[2],
                    v->stride[1]};
}

/* Software prefetch of the next block's inputs, interleaved with the arithmetic. */
enum { MOST_AHEAD = 4 };
typedef struct scan_ahead {
  kr_ahead views[MOST_AHEAD];
  int n;
} scan_ahead;

static inline void look_ahead(scan_ahead *ahead, const kr_view *v, const scan_walk *w, int64_t d, int64_t i,
                              int64_t n, int n_lanes, int slots) {
  if (!kr_has(v) || n <= 0) return;
  const kr_plane plane = plane_of(v, w, d, i);
  ahead->views[ahead->n++] = kr_tile_ahead(&plane, (int)n, n_lanes, slots);
}

KR_INLINE void ask_ahead(scan_ahead *ahead) {
  for (int i = 0; i < ahead->n; i++) kr_ahead_step(&ahead->views[i]);
}

/* Steps of a (B,G,N,L) view; lanes are states. Complex numbers interleave real and imaginary parts along L. */
static inline kr_plane shared_plane_of(const scan_plan *p, const kr_view *v, const scan_walk *w, int64_t g,
                                       int64_t i, int part) {
  const int64_t at = (w->first + i * w->step) * p->width + part;
  return (kr_plane){v->data, v->dtype, kr_at4(v, w->b, g, 0, at), w->step * p->width * v->stride[3], v->stride[2]};
}

/* The transposed plane: rows and lanes exchanged. */
static inline kr_plane turned(const kr_plane *p) {
  return (kr_plane){p->data, p->dtype, p->offset, p->lane_stride, p->row_stride};
}

static inline scan_shared read_shared(const scan_plan *p, const kr_view *v, const scan_walk *w, int64_t g, int64_t i,
                                      int n, float *buffer) {
  kr_plane plane = shared_plane_of(p, v, w, g, i, 0);
  if (plane.dtype == KRAIT_F32 && plane.lane_stride == 1)
    return (scan_shared){(const float *)plane.data + plane.offset, plane.row_stride, v->stride[3]};
  for (int part = 0; part < p->width; part++) {
    plane = shared_plane_of(p, v, w, g, i, part);
    kr_matrix_load(buffer + part * p->pitch, p->pitch * p->width, &plane, n, p->in.N);
  }
  return (scan_shared){buffer, p->pitch * p->width, p->pitch};
}

/* Rows are states n, lanes are channels; of complex numbers, one part. */
static inline kr_plane numbers_of(const kr_view *v, int64_t at, int64_t lane_stride, int64_t n_stride, int part) {
  if (v->dtype == KRAIT_C64) return (kr_plane){v->data, KRAIT_F32, 2 * at + part, 2 * n_stride, 2 * lane_stride};
  return (kr_plane){v->data, v->dtype, at, n_stride, lane_stride};
}

/* values[n * KR_VL + lane] of a (D,N) view times factor, zero beyond n_lanes. Returns the largest magnitude (of the
 * imaginary parts if complex), infinity for NaN. */
static inline float read_parameters(float *values, const kr_view *v, int64_t d, int n_lanes, int64_t N,
                                    float factor) {
  const kr_v scale = kr_v_set1(factor), infinity = kr_v_set1(kr_bits_float(0x7f800000u));
  kr_v largest = kr_v_zero();
  for (int part = 0; part < (v->dtype == KRAIT_C64 ? 2 : 1); part++, values += N * KR_VL) {
    const kr_plane plane = numbers_of(v, kr_at2(v, d, 0), v->stride[0], v->stride[1], part);
    kr_tile_load(values, KR_VL, &plane, (int)N, n_lanes);
    largest = kr_v_zero();
    for (int64_t i = 0; i < N * KR_VL; i += KR_VL) {
      const kr_v value = kr_v_mul(scale, kr_v_load(values + i));
      kr_v_store(values + i, value);
      largest = kr_v_select(kr_v_isnan(value), infinity, kr_v_max(kr_v_abs(value), largest));
    }
  }
  return kr_v_largest(largest);
}

static inline void read_channels(float *values, const kr_view *v, int64_t d, int n_lanes) {
  for (int lane = 0; lane < KR_VL; lane++)
    values[lane] = kr_has(v) && lane < n_lanes ? (float)kr_get(v, kr_at1(v, d + lane)) : 0;
}

/* States of (row, d.., :) into [n][lane]; zero if the view is absent. */
static inline void read_states(const scan_plan *p, float *x, const kr_view *v, int64_t row, int64_t d, int n_lanes) {
  if (!kr_has(v)) memset(x, 0, (size_t)(p->values * KR_VL) * sizeof *x);
  for (int part = 0; kr_has(v) && part < p->width; part++) {
    const kr_plane plane = numbers_of(v, kr_at3(v, row, d, 0), v->stride[1], v->stride[2], part);
    kr_tile_load(x + part * p->in.N * KR_VL, KR_VL, &plane, (int)p->in.N, n_lanes);
  }
}

static inline void write_states(const scan_plan *p, const float *x, const kr_view *v, int64_t row, int64_t d,
                                int n_lanes) {
  for (int part = 0; kr_has(v) && part < p->width; part++) {
    const kr_plane plane = numbers_of(v, kr_at3(v, row, d, 0), v->stride[1], v->stride[2], part);
    kr_tile_store(x + part * p->in.N * KR_VL, KR_VL, &plane, (int)p->in.N, n_lanes);
  }
}

/* ---- decays ---- */

/* A is prescaled once: real A by log2 e, complex A not at all. is_near: whether the fast form of the decay is valid:
 * real products within 2^+-126, complex angles within the vector functions' range. */
static inline float scale_of_A(const scan_plan *p) { return p->width == 1 ? log2_e : 1; }
static inline int is_near(const scan_plan *p, float largest_product) {
  return largest_product <= (p->width == 1 ? 126.0f : KR_MOST_ANGLE);
}

KR_INLINE kr_v decay_of(kr_v dt, kr_v A, int near) { return near ? kr_v_exp2_product(dt, A) : kr_v_exp2_any(dt, A); }

/* exp(dt (A + i A_im)). */
KR_INLINE kr_v complex_decay(kr_v dt, kr_v A, kr_v A_im, int near, kr_v *imaginary) {
  kr_v sine, cosine = near ? kr_v_cos_sin_near(dt, A_im, &sine) : kr_v_cos_sin_any(dt, A_im, &sine),
             size = kr_v_exp(kr_v_mul(dt, A));
  *imaginary = kr_v_mul(size, sine);
  return kr_v_mul(size, cosine);
}

KR_INLINE kr_v shared_of(const float *p, int64_t n, int constant) {
  return constant ? kr_v_load(p + n * KR_VL) : kr_v_set1(p[n]);
}

/* delta to dt, in place, for a tile; returns the largest magnitude (NaNs are ignored). */
static inline float finish_steps(float *dt, int n, kr_v bias, int softplus) {
  kr_v largest = kr_v_zero();
  for (int i = 0; i < n; i++) {
    kr_v value = kr_v_add(kr_v_load(dt + i * KR_VL), bias);
    if (softplus) value = kr_v_softplus_fast(value);
    kr_v_store(dt + i * KR_VL, value);
    largest = kr_v_max(kr_v_abs(value), largest);
  }
  return kr_v_largest(largest);
}

/* Per-step marks from seq_idx: the state restarts; the output is 0. */
enum { STEP_RESTARTS = 1, STEP_IS_SILENT = 2 };

static inline void mark_steps(const kr_scan_inputs *in, const scan_walk *w, int64_t i0, int n, unsigned char *marks) {
  memset(marks, 0, (size_t)n);
  if (!kr_has(in->seq_idx)) return;
  for (int i = 0; i < n; i++) {
    int64_t at = kr_at2(in->seq_idx, w->b, w->first + (i0 + i) * w->step);
    int32_t here = kr_get_i32(in->seq_idx, at);
    if (here < 0) marks[i] |= STEP_IS_SILENT;
    if (i0 + i > 0 && kr_get_i32(in->seq_idx, at - w->step * in->seq_idx->stride[1]) != here) marks[i] |= STEP_RESTARTS;
  }
}

/* The first step after i that restarts, or n. */
static inline int next_restart(const unsigned char *marks, int i, int n) {
  for (i++; i < n && !(marks[i] & STEP_RESTARTS);) i++;
  return i;
}

/* Scratch is carved front to back in whole cache lines. */
static inline int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }
static inline float *cut(float **scratch, int64_t floats) {
  float *piece = *scratch;
  *scratch += whole_lines(floats);
  return piece;
}

#endif
