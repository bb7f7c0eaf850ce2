/* videomamba_parts.h: shared by the files of this folder: parameters in the context's memory, and the graph that uses
 * them. */
#ifndef KR_VIDEOMAMBA_PARTS_H
#define KR_VIDEOMAMBA_PARTS_H

#include "graph.h"
#include "videomamba.h"

/* One direction of a mixer. */
typedef struct kr_vm_scan {
  kr_weight_ref A, Dvec, conv, conv_bias, x_proj, dt_proj,
      dt_bias; /* A: -exp(A_log); it, Dvec and dt_bias are float32 */
} kr_vm_scan;

typedef struct kr_vm_layer {
  kr_weight_ref norm, in_proj, out_proj;
  kr_vm_scan scan[2]; /* forwards, backwards */
} kr_vm_layer;

typedef struct kr_vm_parameters {
  kr_weight_ref embed, embed_bias; /* (D, 3 patch patch), (D) */
  kr_weight_ref pos_embed;            /* (tokens, D) float32: added to each token; the first one consists only of it */
  kr_weight_ref norm, head, head_bias;
  kr_vm_layer *layers;
  int32_t dtype; /* of activations: float32 on a CPU, the weights' type on a GPU */
} kr_vm_parameters;

typedef struct kr_vm_graph {
  kr_graph *g;
  kr_tensor patches, logits,
      tokens; /* (T patches, 3 patch patch); (1, n_classes) or 0; (1 + T patches, D); float32 all */
} kr_vm_graph;

int32_t kr_vm_graph_record(const krait_ctx *ctx, const kr_videomamba_config *c, const kr_vm_parameters *p,
                           kr_vm_graph *to);

#endif
