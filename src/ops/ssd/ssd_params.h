/* ssd_params.h: parameters of the SSD's kernels: every tensor as strides in scan order (a reversed scan is a base at
 * the far end and a negative stride), and how time is split. */
#ifndef KR_SSD_PARAMS_H
#define KR_SSD_PARAMS_H

#include <stdint.h>

#define KR_SSD_CHUNK 64   /* tokens per chunk of the tensor-core kernels */
#define KR_SSD_P 64       /* channels of a head per block of these */
#define KR_SSD_MOST_STATES 256 /* that chunked kernels take at once */
#define KR_SSD_FLOAT_STATES 128 /* that chunked kernels of float32 take at once */
#define KR_SSD_THREADS 128 /* also of the chunked kernels of float32 */
#define KR_SSD_CHUNK_THREADS 256
#define KR_SSD_TILERS 64 /* threads of the chunked kernels by multiply-adds */
#define KR_SSD_LEAST_TOKENS 4 /* that these take: below it token by token is one launch instead of six */
#define KR_SSD_STEPS_BYTES (16 * KR_SSD_CHUNK + 16) /* stored per chunk by the tensor-core kernels: its step sizes */

/* (batch, token, head or group, channel or state) */
typedef struct kr_ssd_tensor {
  void *data;
  int64_t b, t, h, n;
  int32_t dtype, packs; /* packs: runs of eight channels or states are aligned to 16 bytes */
} kr_ssd_tensor;

typedef struct kr_ssd_params {
  int64_t L;
  int32_t B, H, P, N, heads; /* heads per group */
  int32_t softplus;
  float dt_min, dt_max;      /* dt_max is infinity where there is no limit */
  kr_ssd_tensor x, z, out, dt, Bmat, Cmat;
  kr_ssd_tensor D;           /* h, n: strides of (H,P); or b, t, h, of a number of each token */
  kr_ssd_tensor A, bias;     /* h; A is absent with log_decay */
  kr_ssd_tensor log_decay;   /* (b, t, h), or absent */
  kr_ssd_tensor initial, final; /* (b, h, t: channel, n) */
  kr_ssd_tensor varlen;      /* (b: sequence, h, t: channel, n) */
  const int32_t *seq_idx;    /* (batch, token) or absent */
  int64_t seq_b, seq_t;
  const int32_t *offsets;    /* cu_seqlens, or absent */
  int64_t offsets_step;
  int32_t S;
  int32_t blocks_per_head;   /* of KR_SSD_P channels */
  int32_t has_token_D;
  int32_t adds;              /* chunked kernels: accumulate into the output, for states beyond what they take at once */
  int32_t last_rank; /* a power of two less one: rows t to t | last_rank are ranks of one token and see each other */
  float *add;                /* (B,L,H,P) y of the other direction, in true time order, or absent */
  int32_t keep_y;            /* write only y, to add */
  kr_ssd_tensor dout, dz;    /* for the gradient's scan: dz, or absent, instead of out */
  void *kept;                /* (B,H,chunks,P,N) for the gradient's scan: states before each chunk, or absent */
  int32_t kept_dtype, none;
  float *kept_scale; /* (B,H,chunks,P) of float16: powers of two by which rows of kept states are divided */
  int32_t *spoilt; /* (B,H): whether chunks met NaN or infinity; the base tier then recomputes those heads (for the
                      gradient: their groups). Or absent */
  void *steps;               /* (B,H,chunks) of KR_SSD_STEPS_BYTES */
  float *products; /* float32 chunks: (B,chunks,groups,KR_SSD_CHUNK,KR_SSD_CHUNK), C B^T of every chunk */
  int32_t n_segments;        /* segments of time, each processed by its own block */
  int64_t segment;           /* tokens per segment, a multiple of KR_SSD_CHUNK */
  float *segment_state;      /* (B,H,n_segments,P,N): end state from zero, then start state */
  float *segment_decay; /* (B,H,n_segments): log2 decay from a segment's start to its end; 1 if a sequence begins in
                           between */
} kr_ssd_params;

/* Chunks by multiply-adds: consecutive chunks whose states are in memory at once. */
typedef struct kr_ssd_slice {
  float *states;  /* (B,H,n,P,N) */
  float *carried; /* (B,H,P,N) from one slice to the next */
  int32_t first, n;
} kr_ssd_slice;

typedef struct kr_ssd_tiles_params {
  kr_ssd_params f;
  kr_ssd_slice s;
} kr_ssd_tiles_params;

#endif
