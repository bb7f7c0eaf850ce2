/* graph_rules.h: the functions for gradient rules of ops (graph_backward.c does the bookkeeping). A rule records the
 * calls that compute the gradients of a node's inputs from those of its outputs. */
#ifndef KR_GRAPH_RULES_H
#define KR_GRAPH_RULES_H

#include "graph_parts.h"

typedef struct kr_back kr_back;

kr_graph *kr_back_graph(kr_back *b);
/* A tensor of the forward call at this offset of its args; 0: absent. */
kr_tensor kr_back_tensor(const kr_node *node, size_t offset);
/* The tensor's value when the node ran: stored, or recomputed. */
kr_tensor kr_back_value(kr_back *b, kr_tensor t);
/* The gradient of an output; 0: none. */
kr_tensor kr_back_gradient(kr_back *b, kr_tensor t);

/* Where to write the gradient of an input: begin sets `at`, 0 if it is not needed; the call that writes it comes
 * between begin and end. */
typedef struct kr_back_target {
  kr_tensor of, at;
  kr_tensor home; /* the destination of `at` if it is a temp; 0: it is the destination itself */
  int32_t add;    /* it is added to earlier contributions there */
  int32_t adding; /* kr_back_begin_adding: `at` is a sum already, the call must read it and add */
} kr_back_target;
kr_tensor kr_back_begin(kr_back *b, kr_tensor t, kr_back_target *target);
kr_tensor kr_back_begin_adding(kr_back *b, kr_tensor t,
                               kr_back_target *target); /* for calls that can add by themselves */
kr_tensor kr_back_begin_sums(kr_back *b, kr_tensor t,
                             kr_back_target *target); /* for calls that sum over expanded dimensions by themselves */
void kr_back_end(kr_back *b, const kr_back_target *target);
/* The gradient of `to` is that of `from`, of whose calls this is the last. */
void kr_back_pass(kr_back *b, kr_tensor from, kr_tensor to);

typedef void kr_rule(kr_back *b, const kr_node *node);
kr_rule *kr_rule_of(const kr_op *op); /* NULL: it has none */
/* Whether the op has a gradient for the tensor at this offset of its args. */
int kr_rule_reaches(const kr_op *op, size_t offset);
/* "conv.what": a name for a call of the current rule. */
const char *kr_back_name(kr_back *b, const char *what);

#endif
