/* ranks.h: one long sequence over several ranks, each with its part of the tokens, in order of rank: the scans of
 * Mamba 1, 2 and 3 and the short convolution continue where the rank before ended, and gradients go back the same way.
 * A rank is a process or a thread with a context of its own.
 *
 * Every rank calls the same operators in the same order, with the args of its own part (ops.h), which has a token at
 * least; lengths may differ, whatever is not along L has the same sizes everywhere. The states are the caller's memory,
 * float32 (complex64 where the operator's are) and dense:
 *   forward    initial states are written: what the rank before left (on the first rank they are the caller's input, or
 *              absent); final states go to the next rank (on the last one they are the caller's, or absent)
 *   gradient   initial states are those of the forward call; gradients of final states are written: they come from the
 *              next rank (on the last one they are the caller's, or absent); gradients of initial states go to the rank
 *              before (on the first one they are the caller's, or absent)
 * In reverse the order of ranks is the opposite one. Results have the bits of one device that runs the same parts one
 * after the other. What is summed over tokens, such as gradients of parameters, is that of the own part: add them up.
 * Packed sequences (seq_idx, cu_seqlens) and both directions in one call are refused, unless n is 1: that is the plain
 * operator. Arguments are checked before anything is sent. Calls are enqueued on the args' stream and do not wait for
 * the device; a part waits for its neighbour's message. After an error that only some ranks have, close the group on
 * all of them: the others would wait for its messages.
 *
 *   krait_ranks_open(ctx, &id, rank, n, &ranks);          // id: rank 0's krait_ranks_new_id, brought here by you
 *   krait_ranks_causal_conv1d(ranks, &conv);
 *   krait_ranks_mamba3(ranks, &scan);                     // scan.initial_states and so on: kept for the gradient
 *   krait_ranks_mamba3_bwd(ranks, &gradient); */
#ifndef KRAIT_RANKS_H
#define KRAIT_RANKS_H

#include <krait/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's connection with its neighbours. One thread at a time uses it; the context must outlive it. */
typedef struct krait_ranks krait_ranks;

typedef struct krait_ranks_id {
  char bytes[128];
} krait_ranks_id;

/* Made on one rank, for krait_ranks_open on all. NCCL 2.7 or later is loaded at run time: KRAIT_LIBNCCL, else
 * libnccl.so.2. */
KRAIT_API int32_t krait_ranks_new_id(krait_ranks_id *id);
/* Returns when all n ranks have come. ctx is a GPU's, another one on each rank. With n 1 any context will do, and id
 * may be NULL. */
KRAIT_API int32_t krait_ranks_open(const krait_ctx *ctx, const krait_ranks_id *id, int32_t rank, int32_t n,
                                   krait_ranks **ranks);
/* Over a communicator of yours (an ncclComm_t of the libnccl.so.2 that is loaded here) on the context's GPU, which must
 * outlive the group. */
KRAIT_API int32_t krait_ranks_of_nccl(const krait_ctx *ctx, void *communicator, krait_ranks **ranks);

/* Messages of your own, such as MPI's: for CPU contexts, or GPUs that NCCL does not join. Both functions return 0, or
 * another number on failure, which the error quotes. send may return before the message has arrived, but not before
 * the memory may change; receive fills it. With a stream (of a GPU context, whose memory it is) both happen in the
 * stream's order. Messages from one rank to another arrive in the order in which they were sent. */
typedef struct krait_ranks_transport {
  uint32_t size, reserved; /* sizeof this struct */
  void *user;
  int32_t (*send)(void *user, int32_t to_rank, const void *data, uint64_t bytes, void *stream);
  int32_t (*receive)(void *user, int32_t from_rank, void *data, uint64_t bytes, void *stream);
} krait_ranks_transport;
KRAIT_API int32_t krait_ranks_of_transport(const krait_ctx *ctx, const krait_ranks_transport *transport, int32_t rank,
                                           int32_t n, krait_ranks **ranks);

/* Whether NCCL has lost a rank of the group (KRAIT_ERR_DEVICE_LOST) since; every call asks it first, too. */
KRAIT_API int32_t krait_ranks_check(const krait_ranks *ranks);
/* Ends calls that still wait for a message: synchronise the stream before, unless a rank was lost. */
KRAIT_API void krait_ranks_close(krait_ranks **ranks);

/* krait_causal_conv1d and so on, of this rank's part. The convolution sends its last inputs before it waits, unless the
 * part is shorter than they are, or out is x. */
KRAIT_API int32_t krait_ranks_causal_conv1d(krait_ranks *ranks, const krait_causal_conv1d_args *args);
KRAIT_API int32_t krait_ranks_causal_conv1d_bwd(krait_ranks *ranks, const krait_causal_conv1d_bwd_args *args);
KRAIT_API int32_t krait_ranks_selective_scan(krait_ranks *ranks, const krait_selective_scan_args *args);
KRAIT_API int32_t krait_ranks_selective_scan_bwd(krait_ranks *ranks, const krait_selective_scan_bwd_args *args);
KRAIT_API int32_t krait_ranks_ssd(krait_ranks *ranks, const krait_ssd_args *args);
KRAIT_API int32_t krait_ranks_ssd_bwd(krait_ranks *ranks, const krait_ssd_bwd_args *args);
KRAIT_API int32_t krait_ranks_mamba3(krait_ranks *ranks, const krait_mamba3_args *args);
KRAIT_API int32_t krait_ranks_mamba3_bwd(krait_ranks *ranks, const krait_mamba3_bwd_args *args);

#ifdef __cplusplus
}
#endif
#endif
