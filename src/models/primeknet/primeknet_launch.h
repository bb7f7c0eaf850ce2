/* primeknet_launch.h: between the files of the device's forward pass: weights and working memory on the device, and the
 * steps that the stages share. Errors stick in the session: after one, nothing more is launched. */
#ifndef KR_PRIMEKNET_LAUNCH_H
#define KR_PRIMEKNET_LAUNCH_H

#include <krait/blocks.h>

#include "cuda.h"
#include "cuda_row.h"
#include "op_list.h"
#include "primeknet_device.h"
#include "primeknet_plan.h"

typedef struct pk_device_block {
  const void *host;
  void *device;
  size_t bytes;
} pk_device_block;

struct pk_device {
  kr_cuda *cuda;
  uint64_t tier;
  int halves; /* factors of products in float16 */
  pk_device_block *blocks;
  size_t n_blocks;
};

enum { KR_PK_N_GRAPHS = 8, KR_PK_N_TIMED = 64 };

/* What a pass took, by kind of kernel, while it is being watched. */
typedef struct pk_timed {
  char name[48];
  int64_t n_launches;
  double seconds, flops, bytes;
} pk_timed;

typedef struct pk_recorded {
  int64_t n_items, T, n_runs;
  void *graph;
} pk_recorded;

/* Where dense blocks work: each decoder has one of its own, so that both run at once where neither fills the device. */
typedef struct pk_lane {
  void *stream;
  float *dense, *dense_scratch;   /* a decoder's block */
  float *partial, *scale, *shift; /* of the norm being measured: (n_items, Cp) */
} pk_lane;

struct pk_device_session {
  const kr_primeknet *model;
  const pk_device *device;
  pk_lane lanes[2], *lane; /* the second one for the mask decoder; the one that is launched into */
  kr_cuda_timer timer, fork;
  char *memory;
  size_t memory_bytes;
  int64_t n_items, T; /* what the memory below is laid out for */
  int32_t status;
  pk_recorded recorded[KR_PK_N_GRAPHS];
  pk_timed *timed; /* KR_PK_N_TIMED, or NULL: not watched */
  float *com_in, *mag, *pha, *com, *polar, *mask, *phase; /* (n_items, F, T) with 2, 1, 1, 2, 2, 1, 1 values */
  float *x, *zeros;                         /* (n_items, F2, T, Cp); four zeros */
  float *lift, *dense, *dense_scratch;      /* encoder, of full width: its block's input and output */
  float *wide;                              /* phase decoder, of full width */
  float *y, *g, *factors;                   /* stages; y and g like x */
  float *xz, *xc, *dbl;                     /* Mamba */
  float *gates, *steps;                     /* recurrent */
  float *pair, *chunks;                     /* frequency: 2 Cp wide, n_kernels Cp wide */
  float *mask_scale, *mask_shift;           /* (n_items) */
};

/* The device's copy of a weight. */
const float *pk_on_device(const pk_device *d, const float *host);
int64_t pk_panel_fragments(const kr_panels *w); /* floats from the rows to the fragments */

static inline const float *pk_weight(const pk_device_session *s, const float *host) {
  return pk_on_device(s->device, host);
}
static inline int64_t pk_rows(const pk_device_session *s, int64_t width) { return width * s->T; } /* of one item */

void pk_launch(pk_device_session *s, const kr_kernel *kernel, kr_grid grid, const void *plan, size_t plan_bytes);
/* An operator's call, complete. */
void pk_run_op(pk_device_session *s, const kr_op *op, const void *args);
static inline krait_view pk_view(const float *data, int64_t a, int64_t b, int64_t c) {
  return (krait_view){.data = (void *)data, .stride = {a, b, c}, .dtype = KRAIT_F32};
}
/* A map of `width` frequencies and rows of so many channels; rows of float16. */
static inline krait_view pk_map_view(const pk_device_session *s, int64_t width, const float *data, int64_t row) {
  return (krait_view){.data = (void *)data, .stride = {width * s->T * row, s->T * row, row, 1}, .dtype = KRAIT_F32};
}
static inline krait_view pk_half_view(const pk_device_session *s, const uint16_t *rows, int64_t row) {
  return (krait_view){.data = (void *)pk_weight(s, (const float *)rows), .stride = {row, 1}, .dtype = KRAIT_F16};
}
/* The whole of one map as one item, nothing set but what every product needs. */
pk_product pk_product_of(const pk_device_session *s, const kr_panels *w, int kind, const float *A, int64_t lda,
                         int64_t K, float *out, int64_t ldo);
void pk_launch_product(pk_device_session *s, const pk_product *p);
void pk_device_time_stage(pk_device_session *s, const pk_block *block);
void pk_device_freq_stage(pk_device_session *s, const pk_block *block);
void pk_device_encode(pk_device_session *s);
void pk_device_decode(pk_device_session *s);

#endif
