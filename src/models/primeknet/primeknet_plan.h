/* primeknet_plan.h: what PrimeKnet's kernels are told; host and device read the same structs. Activations are maps
 * (item, frequency, frame, channel), float32, channels padded to 16 with zeros, no other padding: a frequency's
 * sequence is contiguous. A "row" is one (frequency, frame) of an item; an item is one window of the batch. */
#ifndef KR_PRIMEKNET_PLAN_H
#define KR_PRIMEKNET_PLAN_H

#include <stdint.h>

#include "rows.h"
#include "tile64.h"
#include "tile_norm.h"

/* Sources of a product; bins of a decoder's last step. */
enum { KR_PK_SOURCES = 16, KR_PK_POSITIONS = 64 };

/* How the product's rows are made. */
enum {
  KR_PK_A_ROWS,   /* read */
  KR_PK_A_HELD,   /* read, at most one tile wide: rows are made once for several column tiles; nothing added */
  KR_PK_A_PAIR,   /* read, two columns only */
  KR_PK_A_NORM,   /* read and normalised over the channels */
  KR_PK_A_SCALED, /* read, times a factor per sequence and channel */
  KR_PK_A_CONV,   /* causal convolution of a sequence's channels with its silu; also written to made */
  KR_PK_A_TAPS    /* column s K + c: channel c at frequency f f_step + f_offset[s], zero outside */
};

/* out = what the epilogue makes of A W + bias */
enum {
  KR_PK_SET,
  KR_PK_ADD,  /* E + ..., and beta X too if X is given */
  KR_PK_GATE  /* neighbouring columns times each other */
};

/* Weights of a panel: row-major (K, Np) for the FMA units, then the same as float16 in the order of tensor core
 * fragments. */
typedef struct pk_product {
  int64_t rows_per_item, n_items; /* tiles do not straddle items; grid: x tiles of an item, y column tiles of all
                                     panels, z items */
  int32_t kind, epilogue;
  kr_divisor T;                   /* frames: row = frequency * T + frame */
  int32_t K, n_channels;          /* columns of one source, a multiple of 16; real channels, for the norm */
  int32_t n_sources, n_panels;    /* at most one of them above 1 */
  int32_t tiles_per_block;        /* column tiles that a block makes of its rows; above 1 only where K is one tile */
  int32_t Np;                     /* columns of a panel as packed */
  int32_t silu_from;              /* KR_PK_SET: columns from here on go through silu; Np: none */
  const float *A[KR_PK_SOURCES], *zeros; /* four zeros, read where a source has nothing */
  int64_t lda;                    /* floats between rows */
  const float *factors;           /* KR_PK_A_SCALED: (sequences, K) */
  int32_t frames_are_sequences;   /* a sequence is a (window, frame), not a (window, frequency) */
  kr_divisor window;              /* its rows */
  int32_t F, f_step, f_offset[3]; /* of the sources: frequencies; KR_PK_A_TAPS */
  const float *conv_w, *conv_b; /* KR_PK_A_CONV: (n_convolved, n_taps), (K) */
  int32_t n_convolved, n_taps;
  float *made;                    /* like A, K floats between rows */
  const float *w[KR_PK_SOURCES], *bias[KR_PK_SOURCES]; /* per panel; the rows of source s begin at s K */
  int64_t fragments;              /* floats from a panel to its fragments */
  float *out;
  const float *E, *X, *beta;
  int64_t ldo, out_panel;         /* of out and E */
  int32_t out_F, out_step, out_offset; /* step 0: rows as they are; else frequency f goes to f step + offset of out_F */
  float *partial; /* (n_items, all tiles, 3, Np): count, mean and squared deviations of a tile's columns; or NULL */
  int32_t partial_first, partial_tiles;
} pk_product;

/* The decoders' last steps, and back to a spectrum. */
typedef struct pk_planes {
  int64_t n; /* all items: F T each */
  kr_divisor T;
  int32_t F, F2, Cp, n_items;
  const float *polar; /* (n, 2): magnitude, phase */
  const float *map; /* of a decoder */
  kr_tile_affine affine;
  const float *w0, *w1; /* the mask's even and odd taps; the phase's real and imaginary part */
  float b0, b1;
  float *plane, *partial; /* mask before its norm with its moments, or phase */
  const float *mask, *mask_scale, *mask_shift, *phase, *sigmoid_slope;
  float slope, last_weight, last_bias, beta;
  float *mag, *pha, *com; /* any may be NULL */
} pk_planes;

#endif
