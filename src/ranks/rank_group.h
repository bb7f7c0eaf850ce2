/* rank_group.h: a rank's messages to its neighbours: through NCCL, or the caller's own. */
#ifndef KR_RANK_GROUP_H
#define KR_RANK_GROUP_H

#include <krait/ranks.h>

#include "ctx.h"
#include "nccl.h"

struct krait_ranks {
  const krait_ctx *ctx;
  int32_t rank, n;
  krait_ranks_transport own; /* without NCCL */
  const kr_nccl *nccl;       /* NULL: without */
  void *comm;
  int is_ours; /* comm */
};

/* Messages between begin and end do not wait for each other. */
int32_t kr_messages_begin(const krait_ranks *ranks);
int32_t kr_messages_end(const krait_ranks *ranks);
/* bytes: a multiple of 4; empty messages are not sent. */
int32_t kr_message_send(const krait_ranks *ranks, int32_t to_rank, const void *data, uint64_t bytes, void *stream);
int32_t kr_message_receive(const krait_ranks *ranks, int32_t from_rank, void *data, uint64_t bytes, void *stream);

#endif
