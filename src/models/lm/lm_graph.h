/* lm_graph.h: a model's graph for one run's sizes. */
#ifndef KR_LM_GRAPH_H
#define KR_LM_GRAPH_H

#include "lm_builder.h"
#include "lm_load.h"
#include "lm_slots.h"

int32_t kr_lm_graph_open(const kr_lm_config *c, const kr_lm_weights *w, const kr_lm_slots *slots, const kr_lm_run *run,
                         kr_lm_graph *graph);
void kr_lm_graph_close(kr_lm_graph *graph);
/* Binds states to those of a slot, in a step of slot 0, which the others follow. */
int32_t kr_lm_graph_bind_states(const kr_lm_graph *graph, const kr_lm_slots *slots, int64_t slot);

#endif
