/* rank_group.c: opens and closes groups of ranks, and moves their messages. */
#include "public_names.h"

#include "rank_group.h"

#include <string.h>

#include "alloc.h"
#include "sized.h"
#include "status.h"

_Static_assert(sizeof(krait_ranks_id) == sizeof(kr_nccl_id), "krait_ranks_id is not NCCL's");

int32_t krait_ranks_new_id(krait_ranks_id *id) {
  const kr_nccl *nccl;
  kr_nccl_id made;
  KR_CHECK(id, KRAIT_ERR_ARGUMENT, "id must not be NULL");
  KR_TRY(kr_nccl_load(&nccl));
  KR_NCCL_TRY(nccl, GetUniqueId(&made), "making an id");
  memcpy(id, &made, sizeof *id);
  return KRAIT_OK;
}

static int32_t alloc_group(const krait_ctx *ctx, int32_t rank, int32_t n, krait_ranks **ranks) {
  KR_CHECK(ranks, KRAIT_ERR_ARGUMENT, "ranks must not be NULL");
  *ranks = NULL;
  KR_CHECK(ctx, KRAIT_ERR_ARGUMENT, "ctx must not be NULL");
  KR_CHECK(n >= 1 && rank >= 0 && rank < n, KRAIT_ERR_ARGUMENT, "rank %d of %d ranks: rank must be in 0..n-1", rank, n);
  krait_ranks *made = kr_zalloc(sizeof *made);
  KR_CHECK(made, KRAIT_ERR_NO_MEMORY, "no memory for a group of ranks");
  made->ctx = ctx, made->rank = rank, made->n = n;
  *ranks = made;
  return KRAIT_OK;
}

static int32_t check_gpu(const krait_ctx *ctx) {
  KR_CHECK(ctx, KRAIT_ERR_ARGUMENT, "ctx must not be NULL");
  KR_CHECK(ctx->cuda, KRAIT_ERR_ARGUMENT,
           "NCCL joins GPUs, and this context is a CPU's: krait_ranks_of_transport takes messages of your own");
  return KRAIT_OK;
}

static int32_t join_group(krait_ranks *made, const krait_ranks_id *id) {
  kr_nccl_id its;
  memcpy(&its, id, sizeof its);
  KR_TRY(kr_nccl_load(&made->nccl));
  KR_TRY(kr_cuda_begin(made->ctx->cuda));
  const int result = made->nccl->CommInitRank(&made->comm, made->n, its, made->rank);
  kr_cuda_end(made->ctx->cuda);
  if (result) return made->comm = NULL, kr_nccl_fail(made->nccl, result, "joining the ranks");
  made->is_ours = 1;
  return KRAIT_OK;
}

int32_t krait_ranks_open(const krait_ctx *ctx, const krait_ranks_id *id, int32_t rank, int32_t n, krait_ranks **ranks) {
  KR_TRY(alloc_group(ctx, rank, n, ranks));
  if (n == 1) return KRAIT_OK;
  int32_t status = check_gpu(ctx);
  if (status >= 0 && !id)
    status = kr_fail(KRAIT_ERR_ARGUMENT, "id must not be NULL: krait_ranks_new_id makes it on one rank");
  if (status >= 0) status = join_group(*ranks, id);
  if (status < 0) krait_ranks_close(ranks);
  return status;
}

static int32_t ask_communicator(const kr_nccl *nccl, const void *communicator, int *rank, int *n) {
  KR_NCCL_TRY(nccl, CommCount(communicator, n), "asking your communicator's size");
  KR_NCCL_TRY(nccl, CommUserRank(communicator, rank), "asking your communicator's rank");
  return KRAIT_OK;
}

int32_t krait_ranks_of_nccl(const krait_ctx *ctx, void *communicator, krait_ranks **ranks) {
  const kr_nccl *nccl;
  int rank, n;
  KR_CHECK(ranks, KRAIT_ERR_ARGUMENT, "ranks must not be NULL");
  *ranks = NULL;
  KR_TRY(check_gpu(ctx));
  KR_CHECK(communicator, KRAIT_ERR_ARGUMENT, "communicator must not be NULL");
  KR_TRY(kr_nccl_load(&nccl));
  KR_TRY(ask_communicator(nccl, communicator, &rank, &n));
  KR_TRY(alloc_group(ctx, rank, n, ranks));
  (*ranks)->nccl = nccl, (*ranks)->comm = communicator;
  return KRAIT_OK;
}

int32_t krait_ranks_of_transport(const krait_ctx *ctx, const krait_ranks_transport *transport, int32_t rank, int32_t n,
                                 krait_ranks **ranks) {
  krait_ranks_transport own;
  KR_CHECK(ranks, KRAIT_ERR_ARGUMENT, "ranks must not be NULL");
  *ranks = NULL;
  KR_CHECK(transport, KRAIT_ERR_ARGUMENT, "transport must not be NULL");
  KR_TRY(kr_struct_take("krait_ranks_transport", transport, sizeof own, &own, sizeof own));
  KR_CHECK(own.send && own.receive, KRAIT_ERR_ARGUMENT, "transport: send and receive must not be NULL");
  KR_TRY(alloc_group(ctx, rank, n, ranks));
  (*ranks)->own = own;
  return KRAIT_OK;
}

void krait_ranks_close(krait_ranks **ranks) {
  krait_ranks *r = ranks ? *ranks : NULL;
  if (!r) return;
  if (r->is_ours && kr_cuda_begin(r->ctx->cuda) >= 0) {
    r->nccl->CommAbort(r->comm); /* destroying would wait for ranks that may be lost */
    kr_cuda_end(r->ctx->cuda);
  }
  kr_free(r);
  *ranks = NULL;
}

int32_t krait_ranks_check(const krait_ranks *ranks) {
  int found = 0;
  KR_CHECK(ranks, KRAIT_ERR_ARGUMENT, "ranks must not be NULL");
  if (!ranks->comm) return KRAIT_OK;
  KR_NCCL_TRY(ranks->nccl, CommGetAsyncError(ranks->comm, &found), "asking for errors");
  KR_CHECK(!found || found == KR_NCCL_IN_PROGRESS, KRAIT_ERR_DEVICE_LOST,
           "rank %d of %d: NCCL lost a rank of the group: %s (%d); close the group on all others", ranks->rank,
           ranks->n, ranks->nccl->GetErrorString(found), found);
  return KRAIT_OK;
}

/* ---- messages ---- */

int32_t kr_messages_begin(const krait_ranks *r) {
  if (r->comm) KR_NCCL_TRY(r->nccl, GroupStart(), "beginning messages");
  return KRAIT_OK;
}

int32_t kr_messages_end(const krait_ranks *r) {
  if (!r->comm) return KRAIT_OK;
  KR_TRY(kr_cuda_begin(r->ctx->cuda)); /* the messages start here */
  const int result = r->nccl->GroupEnd();
  kr_cuda_end(r->ctx->cuda);
  return result ? kr_nccl_fail(r->nccl, result, "exchanging states") : KRAIT_OK;
}

static int32_t check_own(const krait_ranks *r, int result, const char *doing, int32_t other) {
  KR_CHECK(!result, KRAIT_ERR_DRIVER, "rank %d of %d: the transport's %s rank %d failed with %d", r->rank, r->n, doing,
           other, result);
  return KRAIT_OK;
}

int32_t kr_message_send(const krait_ranks *r, int32_t to_rank, const void *data, uint64_t bytes, void *stream) {
  if (!bytes) return KRAIT_OK;
  if (!r->comm) return check_own(r, r->own.send(r->own.user, to_rank, data, bytes, stream), "send to", to_rank);
  KR_NCCL_TRY(r->nccl, Send(data, (size_t)bytes / sizeof(float), KR_NCCL_FLOAT32, to_rank, r->comm, stream),
              "sending states");
  return KRAIT_OK;
}

int32_t kr_message_receive(const krait_ranks *r, int32_t from_rank, void *data, uint64_t bytes, void *stream) {
  if (!bytes) return KRAIT_OK;
  if (!r->comm)
    return check_own(r, r->own.receive(r->own.user, from_rank, data, bytes, stream), "receive from", from_rank);
  KR_NCCL_TRY(r->nccl, Recv(data, (size_t)bytes / sizeof(float), KR_NCCL_FLOAT32, from_rank, r->comm, stream),
              "receiving states");
  return KRAIT_OK;
}
