/* vec_tile.h: a float tile of n_rows x KR_VL lanes, loaded from or stored to any strides and float type. Rows are
 * usually time steps and lanes channels; lanes beyond n_lanes read as zero and are not written. Unit stride on lanes is
 * a plain load, unit stride (either sign) on rows a transposed block, everything else element by element. pitch: floats
 * per row of the tile, at least KR_VL. */
#ifndef KR_VEC_TILE_H
#define KR_VEC_TILE_H

#include <krait/krait.h>

#include "vec.h"

typedef struct kr_plane {
  void *data;
  int32_t dtype; /* KRAIT_F32, _F16 or _BF16 */
  int64_t offset, row_stride, lane_stride; /* elements */
} kr_plane;

KR_INLINE float kr_scalar_load(const void *p, int64_t i, int32_t dtype) {
  if (dtype == KRAIT_F32) return ((const float *)p)[i];
  uint16_t h = ((const uint16_t *)p)[i];
  return dtype == KRAIT_F16 ? kr_f16_to_float(h) : kr_bf16_to_float(h);
}
KR_INLINE void kr_scalar_store(void *p, int64_t i, int32_t dtype, float x) {
  if (dtype == KRAIT_F32) ((float *)p)[i] = x;
  else ((uint16_t *)p)[i] = dtype == KRAIT_F16 ? kr_float_to_f16(x) : kr_float_to_bf16(x);
}

/* n == KR_VL is a full vector. */
KR_INLINE kr_v kr_v_load_as(const void *p, int64_t i, int n, int32_t dtype) {
  const uint16_t *half = (const uint16_t *)p + i;
  if (dtype == KRAIT_F32) return n == KR_VL ? kr_v_load((const float *)p + i) : kr_v_loadn((const float *)p + i, n);
  if (dtype == KRAIT_F16) return n == KR_VL ? kr_v_load_h(half) : kr_v_loadn_h(half, n);
  return n == KR_VL ? kr_v_load_b(half) : kr_v_loadn_b(half, n);
}
KR_INLINE void kr_v_store_as(void *p, int64_t i, int n, int32_t dtype, kr_v v) {
  uint16_t *half = (uint16_t *)p + i;
  if (dtype == KRAIT_F32) {
    if (n == KR_VL) kr_v_store((float *)p + i, v);
    else kr_v_storen((float *)p + i, v, n);
  } else if (dtype == KRAIT_F16) {
    if (n == KR_VL) kr_v_store_h(half, v);
    else kr_v_storen_h(half, v, n);
  } else {
    if (n == KR_VL) kr_v_store_b(half, v);
    else kr_v_storen_b(half, v, n);
  }
}

enum { KR_FEW_ROWS = 3 }; /* fewer are not worth a transpose */

KR_INLINE void kr_tile_load_as(float *tile, int64_t pitch, const kr_plane *p, int n_rows, int n_lanes, int32_t dtype) {
  int64_t at = p->offset, step = p->row_stride;
  int row = 0;
  if (p->lane_stride == 1) {
    for (; row < n_rows; row++) kr_v_store(tile + row * pitch, kr_v_load_as(p->data, at + row * step, n_lanes, dtype));
    return;
  }
  if (step == 1 || step == -1)
    for (; row + KR_VL <= n_rows; row += KR_VL) {
      kr_v block[KR_VL];
      int64_t first = at + row * step - (step < 0 ? KR_VL - 1 : 0);
      for (int lane = 0; lane < KR_VL; lane++)
        block[lane] = lane < n_lanes ? kr_v_load_as(p->data, first + lane * p->lane_stride, KR_VL, dtype) : kr_v_zero();
      kr_v_transpose(block);
      for (int i = 0; i < KR_VL; i++) kr_v_store(tile + (row + (step < 0 ? KR_VL - 1 - i : i)) * pitch, block[i]);
    }
  if (step == 1 && n_rows - row >= KR_FEW_ROWS) {
    kr_v block[KR_VL];
    for (int lane = 0; lane < KR_VL; lane++)
      block[lane] =
          lane < n_lanes ? kr_v_load_as(p->data, at + row + lane * p->lane_stride, n_rows - row, dtype) : kr_v_zero();
    kr_v_transpose(block);
    for (int i = 0; row < n_rows; i++, row++) kr_v_store(tile + row * pitch, block[i]);
  }
  for (; row < n_rows; row++)
    for (int lane = 0; lane < KR_VL; lane++)
      tile[row * pitch + lane] =
          lane < n_lanes ? kr_scalar_load(p->data, at + row * step + lane * p->lane_stride, dtype) : 0;
}

KR_INLINE void kr_tile_store_as(const float *tile, int64_t pitch, const kr_plane *p, int n_rows, int n_lanes,
                                int32_t dtype) {
  int64_t at = p->offset, step = p->row_stride;
  int row = 0;
  if (p->lane_stride == 1) {
    for (; row < n_rows; row++) kr_v_store_as(p->data, at + row * step, n_lanes, dtype, kr_v_load(tile + row * pitch));
    return;
  }
  if (step == 1 || step == -1)
    for (; row + KR_VL <= n_rows; row += KR_VL) {
      kr_v block[KR_VL];
      int64_t first = at + row * step - (step < 0 ? KR_VL - 1 : 0);
      for (int i = 0; i < KR_VL; i++) block[i] = kr_v_load(tile + (row + (step < 0 ? KR_VL - 1 - i : i)) * pitch);
      kr_v_transpose(block);
      for (int lane = 0; lane < n_lanes; lane++)
        kr_v_store_as(p->data, first + lane * p->lane_stride, KR_VL, dtype, block[lane]);
    }
  if (step == 1 && n_rows - row >= KR_FEW_ROWS) {
    kr_v block[KR_VL];
    for (int i = 0; i < KR_VL; i++) block[i] = row + i < n_rows ? kr_v_load(tile + (row + i) * pitch) : kr_v_zero();
    kr_v_transpose(block);
    for (int lane = 0; lane < n_lanes; lane++)
      kr_v_store_as(p->data, at + row + lane * p->lane_stride, n_rows - row, dtype, block[lane]);
    return;
  }
  for (; row < n_rows; row++)
    for (int lane = 0; lane < n_lanes; lane++)
      kr_scalar_store(p->data, at + row * step + lane * p->lane_stride, dtype, tile[row * pitch + lane]);
}

static inline void kr_tile_load(float *tile, int64_t pitch, const kr_plane *p, int n_rows, int n_lanes) {
  if (p->dtype == KRAIT_F32) kr_tile_load_as(tile, pitch, p, n_rows, n_lanes, KRAIT_F32);
  else if (p->dtype == KRAIT_F16) kr_tile_load_as(tile, pitch, p, n_rows, n_lanes, KRAIT_F16);
  else kr_tile_load_as(tile, pitch, p, n_rows, n_lanes, KRAIT_BF16);
}

static inline void kr_tile_store(const float *tile, int64_t pitch, const kr_plane *p, int n_rows, int n_lanes) {
  if (p->dtype == KRAIT_F32) kr_tile_store_as(tile, pitch, p, n_rows, n_lanes, KRAIT_F32);
  else if (p->dtype == KRAIT_F16) kr_tile_store_as(tile, pitch, p, n_rows, n_lanes, KRAIT_F16);
  else kr_tile_store_as(tile, pitch, p, n_rows, n_lanes, KRAIT_BF16);
}

/* A row of n values of any stride, in groups of 16 floats (whole vectors on every ISA), zero beyond n. */
KR_INLINE void kr_row_load_as(float *to, const void *data, int32_t dtype, int64_t at, int64_t stride, int64_t n) {
  int64_t i = 0;
  for (; stride == 1 && i < n; i += KR_VL)
    kr_v_store(to + i, kr_v_load_as(data, at + i, n - i < KR_VL ? (int)(n - i) : KR_VL, dtype));
  for (; i < n; i++) to[i] = kr_scalar_load(data, at + i * stride, dtype);
  for (; i % 16; i++) to[i] = 0;
}
KR_INLINE void kr_row_store_as(const float *from, void *data, int32_t dtype, int64_t at, int64_t stride, int64_t n) {
  int64_t i = 0;
  for (; stride == 1 && i < n; i += KR_VL)
    kr_v_store_as(data, at + i, n - i < KR_VL ? (int)(n - i) : KR_VL, dtype,
                  n - i < KR_VL ? kr_v_loadn(from + i, (int)(n - i)) : kr_v_load(from + i));
  for (; i < n; i++) kr_scalar_store(data, at + i * stride, dtype, from[i]);
}
static inline void kr_row_load(float *to, const void *data, int32_t dtype, int64_t at, int64_t stride, int64_t n) {
  if (dtype == KRAIT_F32) kr_row_load_as(to, data, KRAIT_F32, at, stride, n);
  else if (dtype == KRAIT_F16) kr_row_load_as(to, data, KRAIT_F16, at, stride, n);
  else kr_row_load_as(to, data, KRAIT_BF16, at, stride, n);
}
static inline void kr_row_store(const float *from, void *data, int32_t dtype, int64_t at, int64_t stride, int64_t n) {
  if (dtype == KRAIT_F32) kr_row_store_as(from, data, KRAIT_F32, at, stride, n);
  else if (dtype == KRAIT_F16) kr_row_store_as(from, data, KRAIT_F16, at, stride, n);
  else kr_row_store_as(from, data, KRAIT_BF16, at, stride, n);
}

/* Software prefetch of the next tile's lines, a few at a time between other work: short pieces of many rows exceed what
 * hardware prefetchers track, and requesting all at once stalls on line buffers. */
typedef struct kr_ahead {
  const char *line;
  int64_t step, jump;          /* bytes to the next line; extra bytes after every run of lines */
  int left, each, run, in_run; /* lines left, lines requested at a time */
  int is_plain;                /* one line per call, evenly spaced; requesting too many is harmless */
} kr_ahead;

/* slots: how often kr_ahead_step will be called. */
static inline kr_ahead kr_tile_ahead(const kr_plane *p, int n_rows, int n_lanes, int slots) {
  const int64_t bytes = p->dtype == KRAIT_F32 ? 4 : 2, row_bytes = p->row_stride * bytes,
                lane_bytes = p->lane_stride * bytes;
  const char *first = (const char *)p->data + p->offset * bytes;
  kr_ahead a = {.line = first, .step = row_bytes, .left = n_rows, .run = n_rows};
  if (p->lane_stride != 1) {
    if (p->row_stride != 1 && p->row_stride != -1) return (kr_ahead){0};
    a.run = (int)((n_rows * bytes + 63) / 64) + (((uintptr_t)first | (uint64_t)lane_bytes) % 64 != 0);
    a.step = p->row_stride * 64;
    a.jump = lane_bytes - a.run * a.step;
    a.left = n_lanes * a.run;
  }
  a.each = (a.left + slots - 1) / slots;
  a.is_plain = a.each == 1 && a.run == a.left;
  return a;
}

KR_INLINE void kr_ahead_step(kr_ahead *a) {
  if (a->is_plain) {
    __builtin_prefetch(a->line, 0, 2);
    a->line = (const char *)((uintptr_t)a->line + (uintptr_t)a->step);
    return;
  }
  for (int i = 0; i < a->each && a->left; i++, a->left--) {
    __builtin_prefetch(a->line, 0, 2);
    a->line += a->step;
    if (++a->in_run == a->run) a->in_run = 0, a->line += a->jump;
  }
}

/* Loads a float matrix [n_rows][pitch], n_columns used, from any strides: shared by all lanes. pitch: whole vectors. */
static inline void kr_matrix_load(float *matrix, int64_t pitch, const kr_plane *p, int n_rows, int64_t n_columns) {
  for (int64_t column = 0; column < n_columns; column += KR_VL) {
    kr_plane part = *p;
    part.offset += column * p->lane_stride;
    kr_tile_load(matrix + column, pitch, &part, n_rows, (int)(n_columns - column < KR_VL ? n_columns - column : KR_VL));
  }
}

static inline void kr_matrix_store(const float *matrix, int64_t pitch, const kr_plane *p, int n_rows,
                                   int64_t n_columns) {
  for (int64_t column = 0; column < n_columns; column += KR_VL) {
    kr_plane part = *p;
    part.offset += column * p->lane_stride;
    kr_tile_store(matrix + column, pitch, &part, n_rows,
                  (int)(n_columns - column < KR_VL ? n_columns - column : KR_VL));
  }
}

#endif
