/* ranks.h: the processes that train together, a GPU each. Rank 0 waits for the others at a port; they stay connected,
 * so that each knows at once when another is gone. Gradients are summed by NCCL on the GPUs, a step's few scalars
 * through the connections. Every function takes NULL for a process that is alone. */
#ifndef KR_RANKS_H
#define KR_RANKS_H

#include <krait/train.h>

#include "ctx.h"

typedef struct kr_ranks kr_ranks;

/* Returns when all have come. */
int32_t kr_ranks_open(const krait_train_place *place, kr_ranks **ranks);
/* NCCL's part, with one sum so that what is missing shows here. */
int32_t kr_ranks_join(kr_ranks *r, const krait_ctx *ctx);
void kr_ranks_close(kr_ranks **ranks);
int kr_ranks_rank(const kr_ranks *r);
int kr_ranks_n(const kr_ranks *r);

/* Means over all ranks, summed in their order: the same bits everywhere. */
int32_t kr_ranks_mean(kr_ranks *r, double *values, int n);
/* Fails where a rank has another value than the rest; what names it. */
int32_t kr_ranks_agree(kr_ranks *r, uint32_t value, const char *what);
/* n floats of the GPU become their sums over all ranks: enqueued on the default stream. Results are none if
 * kr_ranks_check fails after the next wait. */
int32_t kr_ranks_sum(kr_ranks *r, float *at, int64_t n);
/* A failure as long as one of the others is gone. */
int32_t kr_ranks_check(kr_ranks *r);

/* The end of a run with this status, for better or worse: the others hear of a failure. Returns the status, or
 * KRAIT_ERR_CANCELLED where another rank says it. */
int32_t kr_ranks_end(kr_ranks *r, int32_t status);
/* Whether it was another rank that failed or vanished. Then the sentence says which, and why. */
int kr_ranks_blame(kr_ranks *r);

#endif
