/* attention_params.h: kernel parameters of attention and its gradient, one struct for host and device. */
#ifndef KR_ATTENTION_PARAMS_H
#define KR_ATTENTION_PARAMS_H

#include <stdint.h>

#include "rows.h"

enum { KR_ATTENTION_BASE_THREADS = 128 };
/* Rows per block of the delta kernel on packs, by lanes per row. */
#define KR_ATTENTION_DELTA_ROWS(LANES) (4 * KR_ATTENTION_BASE_THREADS / (LANES))
/* Base tier: rows, or keys, per warp by head size, 32 K channels. */
#define KR_ATTENTION_BASE_ROWS(K) ((K) > 4 ? 2 : 4)
/* Words per row of such a tile; the gradient of the largest heads takes all of 48 KiB, the limit per block before
 * Volta. */
#define KR_ATTENTION_BASE_PITCH(K) (32 * (K) + ((K) > 4 ? 0 : 1))
#define KR_ATTENTION_BASE_SHARED(K, factors) \
  ((uint32_t)(32 * KR_ATTENTION_BASE_PITCH(K) + (factors) * 4 * KR_ATTENTION_BASE_ROWS(K) * 32 * (K)) * 4)

/* (batch or cache block, token, head, channel): strides in elements. Packed sequences: batch 0 only. */
typedef struct kr_attention_tensor {
  void *data; /* NULL: absent */
  int64_t b, t, h, d;
  int32_t dtype, reserved;
} kr_attention_tensor;

typedef struct kr_attention_index {
  const int32_t *data; /* NULL: absent */
  int64_t step;
} kr_attention_index;

typedef struct kr_attention_params {
  kr_attention_tensor q, k, v, out;         /* with pages, t is the stride within a page */
  kr_attention_tensor lse;
  int32_t B, H, heads, D, Dv;               /* heads: query heads per key head */
  int32_t Lq, Lk, rows_q, rows_k; /* Lq, Lk: of q and k in memory, per page if paged; rows: of the longest sequence */
  int32_t Bk, n_pages;
  kr_attention_index cu_q, cu_k, used_q, used_k, leftpad, cache_row, rng;
  kr_attention_index table;                 /* pages; table_b: stride per sequence */
  int64_t table_b;
  int32_t left, right;                      /* the window; -1: unlimited */
  float scale, softcap, scale_by_cap;       /* softcap 0: none; scale_by_cap: scale / softcap */
  int32_t keep_below; /* dropout, if rng is present: an element is kept if its random byte is below this */
  float keep_scale;
  int32_t sinks_dtype;
  const float *slopes;                      /* ALiBi: (batch, head) */
  const void *sinks;                        /* one more logit per head */
  int64_t slopes_b, slopes_h, sinks_h;
  int32_t n_q_tiles, n_splits, split_keys; /* the gradient on warpgroups: split_keys parts of the heads of a key head */
  int32_t n_units,
      section; /* tiles of rows by heads by batches; section: (head, batch) pairs run together, for the L2 cache */
  float *partial;                           /* partial results over parts of the keys */
  /* the gradient */
  kr_attention_tensor dout, dq, dk, dv, dlse, dsinks;
  float *delta;                             /* (head, row of q): sum of dout out, less dlse */
  int64_t delta_h;
  int32_t *next_unit; /* hopper forward kernel: counter of blocks' tiles taken; or none */
} kr_attention_params;

/* Tiles of 64 M rows by N keys; two of keys and one of values in shared memory; turing: one of each. */
enum { KR_ATTENTION_AMPERE_THREADS = 128 };
#define KR_AMPERE_M(D) ((D) > 128 ? 1 : 2)
#define KR_AMPERE_KEYS(D, TURING) ((D) > ((TURING) ? 64 : 128) ? 32 : 64)
#define KR_ATTENTION_AMPERE_SHARED(D, TURING) \
  ((uint32_t)((64 * KR_AMPERE_M(D) + ((TURING) ? 2 : 3) * KR_AMPERE_KEYS(D, TURING)) * (D) * 2))

/* The same of float32, heads of up to 128 channels. */
enum { KR_ATTENTION_FLOATS_ROWS = 64 };
#define KR_ATTENTION_FLOATS_KEYS(D) ((D) > 64 ? 32 : 64)
#define KR_ATTENTION_FLOATS_SHARED(D) \
  ((uint32_t)((KR_ATTENTION_FLOATS_ROWS + 3 * KR_ATTENTION_FLOATS_KEYS(D)) * (D) * 4))

/* The gradient's two kernels, both double-buffered: 64 M rows by 32 keys; as many keys and rows as registers and,
 * turing, 64 KiB of shared memory hold. */
#define KR_AMPERE_DQ_M(D, TURING) ((TURING) && (D) > 64 ? 1 : 2)
#define KR_ATTENTION_DQ_SHARED(D, TURING) ((uint32_t)((2 * 64 * KR_AMPERE_DQ_M(D, TURING) + 4 * 32) * (D) * 2))
#define KR_AMPERE_DKV_KEYS(D, ANY) ((D) == 64 && !(ANY) ? 128 : 64)
#define KR_AMPERE_DKV_ROWS(D, ANY, TURING) \
  ((D) > 64 ? ((TURING) ? 16 : 64) : !(ANY) || (TURING) ? 32 : 64)
/* q, dout, and the rows' log-sum-exp and delta; a multiple of their rows' bytes, as the swizzle needs. */
#define KR_AMPERE_DKV_STAGE(D, ROWS) (4 * (ROWS) * (D) + (8 * (ROWS) + 255) / 256 * 256)
#define KR_ATTENTION_DKV_SHARED(D, ANY, TURING)    \
  ((uint32_t)(4 * KR_AMPERE_DKV_KEYS(D, ANY) * (D) + \
              2 * KR_AMPERE_DKV_STAGE(D, KR_AMPERE_DKV_ROWS(D, ANY, TURING))))

/* Few rows, many keys: a ring per each of four warps, later reused for their sums. */
enum { KR_ATTENTION_KEYS_THREADS = 128, KR_ATTENTION_KEYS_STAGES = 3 };
#define KR_ATTENTION_KEYS_SHARED(D) ((uint32_t)(4 * KR_ATTENTION_KEYS_STAGES * 2 * 16 * (D) * 2))

/* A driver tensor map: (channel, token, head, batch). */
typedef struct __attribute__((aligned(64))) kr_attention_map {
  uint64_t words[16];
} kr_attention_map;

typedef struct kr_attention_hopper_params {
  kr_attention_map q, k, v, dout;
  kr_attention_params params;
} kr_attention_hopper_params;

/* 64 rows per warpgroup; three warpgroups where heads are small enough for the registers. */
#define KR_HOPPER_GROUPS(D) ((D) == 64 ? 3 : 2)
#define KR_HOPPER_ROWS(D) (64 * KR_HOPPER_GROUPS(D))
#define KR_HOPPER_THREADS_OF(D) (128 * (KR_HOPPER_GROUPS(D) + 1))
/* Keys per tile. */
#define KR_HOPPER_KEYS(D) ((D) > 128 ? 48 : 128)
enum { KR_HOPPER_KV_STAGES = 2 };
#define KR_HOPPER_SHARED(D, N) \
  ((uint32_t)((2 * KR_HOPPER_ROWS(D) + 2 * KR_HOPPER_KV_STAGES * (N)) * (D) * 2 + 1024 + 512))

/* The gradient: a block owns 128 rows, or keys; tiles of this many keys, or rows, in a ring. */
enum {
  KR_HOPPER_BWD_ROWS = 128,
  KR_HOPPER_DQ_KEYS = 96,
  KR_HOPPER_DKV_ROWS = 64,
  KR_HOPPER_BWD_STAGES = 3,
  KR_HOPPER_BWD_THREADS = 384
};
#define KR_HOPPER_BWD_SHARED(D, N)                                                  \
  ((uint32_t)((2 * KR_HOPPER_BWD_ROWS + KR_HOPPER_BWD_STAGES * 2 * (N)) * (D) * 2 + \
              KR_HOPPER_BWD_STAGES * 2 * (N) * 4 + 1024 + 128))

#endif
