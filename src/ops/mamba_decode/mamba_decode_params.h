/* mamba_decode_params.h: parameters of the mamba_decode kernel; host and device share the struct. */
#ifndef KR_MAMBA_DECODE_PARAMS_H
#define KR_MAMBA_DECODE_PARAMS_H

#include <stdint.h>

enum {
  KR_DECODE_THREADS = 512,
  KR_DECODE_WARPS = KR_DECODE_THREADS / 32,
  KR_DECODE_MOST_TOKENS = 8,
  KR_DECODE_UNIT_BYTES = 1024,
  KR_DECODE_SCALE_BYTES = 256,
  KR_DECODE_TILE_BYTES = 288,
  KR_DECODE_KEPT_BYTES = 48, /* per unit */
  KR_DECODE_MOST_KEPT = KR_DECODE_THREADS - 32
};

/* Phases of a layer, separated by grid-wide waits; Mamba-2 has no COLUMNS. */
enum { KR_DECODE_IN, KR_DECODE_COLUMNS, KR_DECODE_SCAN, KR_DECODE_OUT };

/* A weight of all layers, contiguous along the inputs; strides of data in bytes, of scales in elements. With scales,
 * data are 8-bit. */
typedef struct kr_decode_matrix {
  const unsigned char *data;
  int64_t layer, row;
  const uint16_t *scales; /* NULL: 16-bit data */
  int64_t scales_layer, scales_row;
} kr_decode_matrix;
typedef struct kr_decode_halves {
  const uint16_t *data; /* NULL: absent */
  int64_t layer, row;
} kr_decode_halves;
typedef struct kr_decode_floats {
  const float *data;
  int64_t layer, row;
} kr_decode_floats;
typedef struct kr_decode_state {
  void *data;
  int64_t layer, slot, channel, last; /* last: taps, or states */
  int32_t is_float, reserved;
} kr_decode_state;

typedef struct kr_decode_params {
  kr_decode_matrix in_proj, x_proj, dt_proj, out_proj;
  kr_decode_halves norm, conv, conv_bias, gate_norm;
  kr_decode_floats dt_bias, A, D;
  kr_decode_state conv_state, ssm_state;
  const uint16_t *x;
  float *out;
  const int32_t *slots;
  int64_t x_row, out_row, slots_stride;
  /* Data passed between phases. */
  uint16_t *u;    /* (tokens, E): convolution output; Mamba's products read it */
  float *z, *y;   /* (tokens, E); in Mamba y holds halves */
  float *columns; /* (tokens, n_columns): Mamba r, B, C; Mamba-2 B, C, then dt */
  int32_t *done;  /* phases completed, summed over all blocks */
  float eps;
  int32_t n_tokens, n_layers, n_slots, width, inner, N, W, R, H, n_columns, is_second;
  int32_t phase_from, phase_to; /* over all layers */
  int32_t act_pitch, act_bytes,
      result_rows; /* bytes of a token's inputs; of all; most rows of a block's part of a product */
  int32_t lane_bits, head_width;   /* log2 of lanes per channel's states; Mamba-2: channels per head */
  int32_t n_tiles, tiles_at;       /* most tiles of a block's share of a layer; byte offset of their descriptors */
  int32_t kept_units, kept_at;     /* units of a phase with operands kept in shared memory; byte offset of those */
} kr_decode_params;

#endif
