/* primeknet_packed.h: PrimeKnet's weights as the forward pass wants them: neighbouring linear maps multiplied together,
 * affine parts of norms and the block's beta folded in, matrices packed, per-channel vectors padded to Cp (Ep, Hp for
 * the inner widths). "(k, Cp)" means k rows of padded channels. */
#ifndef KR_PRIMEKNET_PACKED_H
#define KR_PRIMEKNET_PACKED_H

#include "primeknet_parameters.h"

enum { KR_PK_MAX_DEPTH = 16 };

typedef struct pk_norm { /* instance norm and PReLU */
  const float *weight, *bias, *slope; /* (Cp) */
} pk_norm;

typedef struct pk_dense { /* layer i of a dense block: I = (i + 1) C inputs, newest first */
  const float *taps[KR_PK_MAX_DEPTH], *taps_bias[KR_PK_MAX_DEPTH]; /* per source: (9, Cp), (Cp) */
  kr_panels mix;                                                   /* (i + 1) Cp -> C */
  pk_norm norm;
} pk_dense;

typedef struct pk_dense_rows { /* the whole block for devices, dense_block's tensors: N = Cp depth (depth + 1) / 2 */
  const float *taps, *taps_bias, *weight;     /* (9, N), (N), (N, Cp) */
  const uint16_t *halves;                     /* the weight as rows of inputs in float16: (Cp, N) */
  const float *norm_weight, *norm_bias, *slope; /* (depth, Cp) */
} pk_dense_rows;

typedef struct pk_attention { /* channel attention block */
  kr_panels gate;                /* C -> 2C; gate form with the taps folded in when k is 1 */
  const float *taps, *taps_bias; /* (k, 2Cp), (2Cp); NULL when k is 1 */
  kr_panels attn, out;           /* C -> C */
  int64_t k;
} pk_attention;

typedef struct pk_mamba {
  kr_panels in;                  /* C -> x and z: columns 0..E-1 and Ep..Ep+E-1 */
  const float *conv_w, *conv_b;  /* (Ep, W) and (Ep) */
  kr_panels x_proj;              /* E -> R + 2N */
  kr_panels dt_proj;             /* R -> E */
  const float *dt_bias, *A, *D;  /* (Ep), (Ep, N), (Ep) */
  kr_panels out;                 /* E -> C */
} pk_mamba;

typedef struct pk_recurrent {
  kr_panels *input, *hidden; /* per layer: C or H -> G Hp; H -> G Hp */
  const uint16_t *halves[4]; /* for devices, of the first two layers' maps: rows (G Hp) of inputs in float16, if the
                                launch of both takes them */
  kr_panels out;             /* H -> C */
} pk_recurrent;

typedef struct pk_prime { /* group prime kernel FFN of J chunks: their first products, then filter_bank's tensors */
  kr_panels *in;                                      /* J: C -> C */
  int64_t n_taps;                                     /* of all chunks */
  const float *taps, *taps_bias, *gate_taps, *gate_bias; /* (n_taps, Cp), (J, Cp) */
  const float *weight, *weight_bias;                  /* (Cp inputs, J, Cp), (J, Cp) */
  const float *out_weight, *out_bias;                 /* (J, Cp inputs, Cp), (Cp) */
  const uint16_t *weight_halves, *out_halves;         /* rows of inputs in float16: (J, Cp, Cp), (Cp, J, Cp) */
} pk_prime;

typedef struct pk_time {
  pk_attention attention;
  pk_mamba mamba;
  pk_recurrent recurrent;
} pk_time;

typedef struct pk_freq {
  pk_attention attention;
  pk_prime prime;
} pk_freq;

typedef struct pk_block {
  const float *beta_t, *beta_f; /* (Cp) */
  pk_time *time;
  pk_freq *freq;
} pk_block;

typedef struct pk_encoder {
  kr_panels lift; /* 2 -> C: for devices, the same as the next two; its bias cancels in the norm */
  const float *lift_w0, *lift_w1; /* (Cp): the columns for magnitude and phase; the bias cancels in the norm */
  pk_norm lift_norm;
  pk_dense *dense;
  pk_dense_rows rows;
  kr_panels down; /* 3 Cp -> C */
  pk_norm down_norm;
} pk_encoder;

typedef struct pk_mask {
  pk_dense *dense;
  pk_dense_rows rows;
  const float *even_w,
      *odd_w; /* (2 Cp) over columns f-1, f; (Cp): the transposed conv and the merge to one channel in one */
  float bias, norm_weight, norm_bias, slope, last_weight, last_bias;
  const float *sigmoid_slope; /* (F) */
} pk_mask;

typedef struct pk_phase {
  pk_dense *dense;
  pk_dense_rows rows;
  kr_panels even, odd; /* 2 Cp -> C, C -> C */
  pk_norm norm;
  const float *real_w, *imag_w; /* (Cp) */
  float real_b, imag_b;
} pk_phase;

struct kr_primeknet {
  const krait_ctx *ctx;
  const kr_layers *layers;
  kr_pk_config config;
  int is_exact; /* products keep all bits of their factors */
  int64_t Cp, Ep, Hp, Xp; /* padded C, d_inner, hidden, R + 2N */
  pk_encoder encoder;
  pk_block *blocks;         /* for devices only */
  pk_parameters parameters; /* as they are published: for graphs */
  pk_mask mask;
  pk_phase phase;
  struct pk_chunk *storage; /* all of the above */
  struct pk_device *device; /* its copy on a GPU; NULL: the graph runs */
};

#endif
