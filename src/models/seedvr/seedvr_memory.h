/* seedvr_memory.h: how a restoration fits into memory: which weights stay in it, and what lies on the host. */
#ifndef KR_SEEDVR_MEMORY_H
#define KR_SEEDVR_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "seedvr_vae.h"

/* ---- what stages need; a batch goes through encoder, transformer and decoder, one after another ---- */
enum { KR_PLAN_ENCODE, KR_PLAN_SAMPLE, KR_PLAN_DECODE, KR_PLAN_STAGES, KR_PLAN_MOST_MOVES = 64 };
/* A way to save a stage's memory: then its work takes so much, and the host's memory; bytes copied in a batch. */
typedef struct kr_plan_move {
  kr_vae_saving saving;
  uint64_t work, host, moved;
} kr_plan_move;
typedef struct kr_plan_stage {
  uint64_t weights, work; /* bytes */
  uint64_t streamed;      /* weights and work if weights come from the host part by part; 0: they cannot */
  int32_t n_moves;
  kr_plan_move moves[KR_PLAN_MOST_MOVES]; /* kr_plan_stage_add's */
} kr_plan_stage;
/* Keeps a move unless another moves no more and takes no more: that which moves least is the first, and takes most. */
void kr_plan_stage_add(kr_plan_stage *stage, const kr_plan_move *move);
typedef struct kr_plan_needs {
  kr_plan_stage stages[KR_PLAN_STAGES];
} kr_plan_needs;

/* All weights stay; or a stage's weights come when it begins and go when it ends; of the transformer, part by part. */
enum { KR_PLAN_RESIDENT, KR_PLAN_BY_STAGE, KR_PLAN_STREAMED };
typedef struct kr_memory_use {
  int32_t weights; /* KR_PLAN_* */
  kr_plan_move moves[KR_PLAN_STAGES]; /* moved 0: none, or within the device */
  uint64_t stage_bytes[KR_PLAN_STAGES], bytes, host_bytes; /* at most: in each stage; in all; on the host */
  uint64_t moved_bytes; /* in a batch, weights included */
} kr_memory_use;
/* The plan that moves least between host and device, and fits into `most` bytes; returns 0 if none does: then it is
 * the smallest. A function of its arguments alone. */
int kr_memory_use_choose(const kr_plan_needs *needs, uint64_t most, kr_memory_use *plan);
/* "11.2 of 12.0 GiB: ...", for people. */
void kr_memory_use_print(const kr_memory_use *plan, uint64_t most, char *text, size_t text_bytes);

#endif
