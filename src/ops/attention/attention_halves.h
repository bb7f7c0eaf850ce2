/* attention_halves.h: parameters of attention of float32 in float16 parts, for host and device. */
#ifndef KR_ATTENTION_HALVES_H
#define KR_ATTENTION_HALVES_H

#include "attention_params.h"

/* A tensor as kr_attention_halve leaves it: rows (batch in memory, head, token) of 64 or 128 channels, zeros beyond the
 * head's, each scaled by a power of two of its own and cut in two parts. */
typedef struct kr_halves {
  uint16_t *parts;  /* [2][rows][channels] */
  int32_t *up;      /* [rows]: log2 of the scale */
  int64_t n_rows;
} kr_halves;

/* Those without rows are not made: a kernel whose blocks take rows reads parts of k and v and makes those of its own
 * rows itself, one whose blocks take keys the other way round. */
enum { KR_HALVES_Q, KR_HALVES_K, KR_HALVES_V, KR_HALVES_DOUT, KR_N_HALVES_TENSORS };

typedef struct kr_attention_halves_params {
  kr_attention_params params;
  kr_halves of[KR_N_HALVES_TENSORS];
} kr_attention_halves_params;

enum { KR_HALVE_THREADS = 256 };
/* Rows that a block of kr_attention_halve takes. */
#define KR_HALVE_ROWS(D) (KR_HALVE_THREADS / ((D) / 8))

/* A row's scale brings its largest number to 2^14 to 2^15; of values by no more than this, so that the sums of weights
 * and those of weights times values fit one exponent. */
enum { KR_HALVES_MOST_UP = 64 };

/* Keys of a tile; a block's rows, two tiles of keys (turing: one) with three numbers each, and one of values. */
#define KR_HALVES_KEYS(D, TURING) (((D) > 64 ? 32 : 64) >> (TURING))
#define KR_HALVES_SHARED(ROWS, D, TURING)                                         \
  ((uint32_t)(4 * ((ROWS) + (3 - (TURING)) * KR_HALVES_KEYS(D, TURING)) * (D) + \
              2 * 3 * 4 * KR_HALVES_KEYS(D, TURING)))

/* The gradient: a block's rows, or keys; keys of a tile, or rows of one; as many tiles of both factors as shared memory
 * holds for two blocks of a multiprocessor, each with four numbers of every key or row. */
#define KR_HALVES_DQ_ROWS(D) ((D) > 64 ? 64 : 128)
enum { KR_HALVES_DKV_KEYS = 64 };
#define KR_HALVES_BWD_STAGES(D) ((D) > 64 ? 1 : 2)
enum { KR_HALVES_BWD_TILE = 32 };
#define KR_HALVES_BWD_SHARED(OWN, D) \
  ((uint32_t)(8 * (OWN) * (D) + KR_HALVES_BWD_STAGES(D) * KR_HALVES_BWD_TILE * (8 * (D) + 16)))

#endif
