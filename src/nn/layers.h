/* layers.h: the float32 layers of channels-last networks, one table of functions per instruction set. Rows are
 * positions, columns are channels padded to a multiple of vl with zeros; every row stride (ld) is in floats and every
 * function may read and write whole vectors up to the padded width Cp. Parameters are padded the same way. All run on
 * the caller's thread; the caller splits rows among threads. */
#ifndef KR_LAYERS_H
#define KR_LAYERS_H

#include <krait/ops.h>

#include "ctx.h"
#include "gemm/gemm_kernel.h"

typedef struct kr_layers {
  const char *isa;
  int64_t vl; /* floats per vector */
  int64_t (*panels_floats)(int64_t K, int64_t N, int gate);
  void (*panels_pack)(kr_panels *p, float *storage, int64_t K, int64_t N, int gate, const float *B, int64_t stride_k,
                      int64_t stride_n, const float *bias);
  void (*gemm_rows)(const kr_gemm_rows_call *c);
  /* rows[r] points at position 0 of one of three rows, of which positions -1 and n are readable; taps are (3, 3, Cp) */
  void (*depthwise_3x3)(const float *const rows[3], int64_t ldx, int64_t n, int64_t Cp, const float *taps,
                        const float *bias, float *out, int64_t ldo);
  /* per channel over n rows: mean, and sum of squared deviations from it */
  void (*moments)(const float *x, int64_t ldx, int64_t n, int64_t Cp, float *mean, float *m2);
  /* x = prelu(scale x + shift), in place */
  void (*affine_prelu)(float *x, int64_t ldx, int64_t n, int64_t Cp, const float *scale, const float *shift,
                       const float *slope);
  /* out[p] = prelu(wa a[p] + wb b[p] + shift): two numbers per position to Cp channels */
  void (*lift_pair)(const float *a, const float *b, int64_t n, int64_t Cp, const float *wa, const float *wb,
                    const float *shift, const float *slope, float *out, int64_t ldo);
  /* out[p * ldo] = bias + w . x[p], K a multiple of vl */
  void (*dot_rows)(const float *x, int64_t ldx, int64_t n, int64_t K, const float *w, float bias, float *out,
                   int64_t ldo);
} kr_layers;

/* The table for the best instruction set that ctx may use. */
const kr_layers *kr_layers_of(const krait_ctx *ctx);

/* n rounded up to whole vectors. */
static inline int64_t kr_padded(const kr_layers *l, int64_t n) { return (n + l->vl - 1) / l->vl * l->vl; }

#endif
