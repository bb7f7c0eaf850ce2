/* lm_graph.h: a model's graph for one run's sizes. */
#ifndef KR_LM_GRAPH_H
#define KR_LM_GRAPH_H

#include "lm_builder.h"
#include "lm_load.h"
#include "lm_slots.h"

int32_t kr_lm_graph_open(const kr_lm_config *c, const kr_lm_weights *w, const kr_lm_slots *slots, const kr_lm_run *run,
                         kr_lm_graph *graph);
void kr_lm_graph_close(kr_lm_graph *graph);
/* Those of a model: one for steps per number of sequences, and one for prompts per recent length. */
enum { KR_LM_MOST_GRAPHS = 8 };
typedef struct kr_lm_graph_list {
  kr_lm_graph list[KR_LM_MOST_GRAPHS];
  uint64_t clock; /* of kr_lm_graph.used */
} kr_lm_graph_list;
/* The graph of this run: a cached one, or a new one in place of the least recently used. */
int32_t kr_lm_graph_list_get(kr_lm_graph_list *graphs, const kr_lm_config *c, const kr_lm_weights *w,
                             const kr_lm_slots *slots, const kr_lm_run *run, kr_lm_graph **graph);
void kr_lm_graph_list_close(kr_lm_graph_list *graphs);
/* Binds states to those of a slot, in a step of slot 0, which the others follow. */
int32_t kr_lm_graph_bind_states(const kr_lm_graph *graph, const kr_lm_slots *slots, int64_t slot);

#endif
