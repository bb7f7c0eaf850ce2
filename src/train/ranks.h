/* ranks.h: the processes that train together, one per GPU. Rank 0 waits for the others on a port; they stay connected,
 * so that each notices immediately when another is lost. Gradients are summed by NCCL on the GPUs, a step's few scalars
 * over the connections. Every function accepts NULL for a single process. */
#ifndef KR_RANKS_H
#define KR_RANKS_H

#include <krait/train.h>

#include "ctx.h"

typedef struct kr_ranks kr_ranks;

/* Returns when all are connected. */
int32_t kr_ranks_open(const krait_train_launcher *place, kr_ranks **ranks);
/* Initialises NCCL, and does one sum, so that problems show here. */
int32_t kr_ranks_join(kr_ranks *r, const krait_ctx *ctx);
void kr_ranks_close(kr_ranks **ranks);
int kr_ranks_rank(const kr_ranks *r);
int kr_ranks_n(const kr_ranks *r);

/* Means over all ranks, summed in rank order: bit-identical on all ranks. */
int32_t kr_ranks_mean(kr_ranks *r, double *values, int n);
/* Fails if a rank's value differs from the others'; what names it. */
int32_t kr_ranks_agree(kr_ranks *r, uint32_t value, const char *what);
/* n floats of the GPU become their sums over all ranks, of up to KR_ORDERED_RANKS in rank order, as one GPU adds the
 * parts of a batch: enqueued on the default stream. The results are invalid if kr_ranks_check fails after the next
 * wait. */
enum { KR_ORDERED_RANKS = 8 };
int32_t kr_ranks_sum(kr_ranks *r, float *at, int64_t n);
/* Fails if one of the others is lost. */
int32_t kr_ranks_check(kr_ranks *r);

/* Ends a run with this status: the others are told about a failure. Returns the status, or KRAIT_ERR_CANCELLED if
 * another rank reports it. */
int32_t kr_ranks_end(kr_ranks *r, int32_t status);
/* Whether another rank failed or disappeared. The error then says which, and why. */
int kr_ranks_blame(kr_ranks *r);

#endif
