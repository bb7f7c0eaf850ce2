/* seedvr_memory.c: the choice of a plan: that which copies least between host and device in a batch, be it weights,
 * frames between levels, or convolutions' memories, which move with every frame. */
#include "seedvr_memory.h"

#include <stdio.h>
#include <string.h>

static uint64_t plan_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

void kr_plan_stage_add(kr_plan_stage *stage, const kr_plan_move *move) {
  int32_t at = 0, end;
  while (at < stage->n_moves && stage->moves[at].moved < move->moved) at++;
  if (at > 0 && stage->moves[at - 1].work <= move->work) return;
  if (at < stage->n_moves && stage->moves[at].moved == move->moved && stage->moves[at].work <= move->work) return;
  for (end = at; end < stage->n_moves && stage->moves[end].work >= move->work;) end++;
  if (end == at && stage->n_moves == KR_PLAN_MOST_MOVES) return;
  memmove(stage->moves + at + 1, stage->moves + end, (size_t)(stage->n_moves - end) * sizeof *move);
  stage->moves[at] = *move, stage->n_moves += at + 1 - end;
}

/* What a stage takes beside `beside` bytes: with the first move that fits, or, if none does, the smallest. */
static uint64_t fit_stage(const kr_plan_stage *stage, uint64_t beside, uint64_t most, kr_plan_move *move) {
  uint64_t least = beside + stage->work;
  *move = (kr_plan_move){.work = stage->work};
  for (int32_t i = 0; i < stage->n_moves && least > most; i++) {
    const uint64_t bytes = beside + stage->moves[i].work;
    if (bytes < least) least = bytes, *move = stage->moves[i];
  }
  return least;
}

static void try_plan(const kr_plan_needs *needs, int32_t weights, uint64_t most, kr_memory_use *plan) {
  uint64_t all = 0;
  *plan = (kr_memory_use){.weights = weights};
  for (int i = 0; i < KR_PLAN_STAGES; i++) all += needs->stages[i].weights;
  if (weights != KR_PLAN_RESIDENT) plan->moved_bytes = all;
  for (int i = 0; i < KR_PLAN_STAGES; i++) {
    const kr_plan_stage *stage = &needs->stages[i];
    const int is_streamed = weights == KR_PLAN_STREAMED && stage->streamed;
    plan->stage_bytes[i] = is_streamed ? stage->streamed
                                       : fit_stage(stage, weights == KR_PLAN_RESIDENT ? all : stage->weights, most,
                                                   &plan->moves[i]);
    plan->bytes = plan_max(plan->bytes, plan->stage_bytes[i]);
    plan->host_bytes = plan_max(plan->host_bytes, plan->moves[i].host);
    plan->moved_bytes += plan->moves[i].moved;
  }
}

int kr_memory_use_choose(const kr_plan_needs *needs, uint64_t most, kr_memory_use *plan) {
  int fits = 0;
  for (int32_t weights = KR_PLAN_RESIDENT; weights <= KR_PLAN_STREAMED; weights++) {
    kr_memory_use now;
    try_plan(needs, weights, most, &now);
    const int now_fits = now.bytes <= most,
              is_better = now_fits ? !fits || now.moved_bytes < plan->moved_bytes : !fits && now.bytes < plan->bytes;
    if (weights == KR_PLAN_RESIDENT || is_better) *plan = now;
    fits |= now_fits;
  }
  return fits;
}

void kr_memory_use_print(const kr_memory_use *plan, uint64_t most, char *text, size_t text_bytes) {
  static const char *const weights[] = {"all weights stay", "weights stage by stage",
                                        "the transformer's weights layer by layer"};
  const double gib = 0x1p-30;
  const int n = snprintf(text, text_bytes, "%.2f", (double)plan->bytes * gib);
  if (n < 0 || (size_t)n >= text_bytes) return;
  text += n, text_bytes -= (size_t)n;
  const int m = most < UINT64_MAX ? snprintf(text, text_bytes, " of %.2f", (double)most * gib) : 0;
  text += m, text_bytes -= (size_t)m;
  const int k = snprintf(text, text_bytes, " GiB: encoder %.2f, transformer %.2f, decoder %.2f; %s",
                         (double)plan->stage_bytes[KR_PLAN_ENCODE] * gib,
                         (double)plan->stage_bytes[KR_PLAN_SAMPLE] * gib,
                         (double)plan->stage_bytes[KR_PLAN_DECODE] * gib, weights[plan->weights]);
  if (k > 0 && (size_t)k < text_bytes && plan->host_bytes)
    snprintf(text + k, text_bytes - (size_t)k, "; %.2f GiB on the host",
             (double)plan->host_bytes * gib);
}
