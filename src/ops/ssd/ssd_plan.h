/* ssd_plan.h: what the host tells the SSD's kernels: every tensor as strides in the order of the walk (a reversed walk
 * is a base at the far end and a negative stride), and how time is cut. */
#ifndef KR_SSD_PLAN_H
#define KR_SSD_PLAN_H

#include <stdint.h>

#define KR_SSD_CHUNK 64   /* tokens that kernels on tensor cores take together */
#define KR_SSD_P 64       /* channels of a head that such a block takes */
#define KR_SSD_MOST_STATES 256 /* that kernels by chunks take at once */
#define KR_SSD_THREADS 128
#define KR_SSD_CHUNK_THREADS 256
#define KR_SSD_STEPS_BYTES (16 * KR_SSD_CHUNK + 16) /* what kernels on tensor cores keep of a chunk's step sizes */

/* (batch, token, head or group, channel or state) */
typedef struct kr_ssd_tensor {
  void *data;
  int64_t b, t, h, n;
  int32_t dtype, reserved;
} kr_ssd_tensor;

typedef struct kr_ssd_plan {
  int64_t L;
  int32_t B, H, P, N, heads; /* heads of a group */
  int32_t softplus;
  float dt_min, dt_max;      /* dt_max is infinity where there is no limit */
  kr_ssd_tensor x, z, out, dt, Bmat, Cmat;
  kr_ssd_tensor D;           /* h, n: strides of (H,P) */
  kr_ssd_tensor A, bias;     /* h */
  kr_ssd_tensor initial, final; /* (b, h, t: channel, n) */
  kr_ssd_tensor varlen;      /* (b: sequence, h, t: channel, n) */
  const int32_t *seq_idx;    /* (batch, token) or absent */
  int64_t seq_b, seq_t;
  const int32_t *offsets;    /* cu_seqlens, or absent */
  int64_t offsets_step;
  int32_t S;
  int32_t blocks_per_head;   /* of KR_SSD_P channels */
  int32_t adds, reserved; /* kernels by chunks: adds to what the output holds, of more states than they take at once */
  float *add;                /* (B,L,H,P) y of the other direction, by true time, or absent */
  int32_t keep_y;            /* write y alone to add */
  kr_ssd_tensor dout, dz;    /* of the gradient's walk: dz, or absent, instead of out */
  void *kept;                /* (B,H,chunks,P,N) of the gradient's walk: states before each chunk, or absent */
  int32_t kept_dtype, none;
  int32_t *spoilt; /* (B,H): whether chunks met NaN or infinity; the base tier then does those heads again (of the
                      gradient: their groups). Or absent */
  void *steps;               /* (B,H,chunks) of KR_SSD_STEPS_BYTES */
  int32_t n_segments;        /* pieces of time that blocks walk on their own */
  int64_t segment;           /* tokens of one, a multiple of KR_SSD_CHUNK */
  float *segment_state;      /* (B,H,n_segments,P,N): end state from zero, then start state */
  float *segment_decay; /* (B,H,n_segments): what is left of a start state at the end, log2; 1 where a sequence begins
                           in between */
} kr_ssd_plan;

#endif
