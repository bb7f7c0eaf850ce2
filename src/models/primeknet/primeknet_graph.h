/* primeknet_graph.h: PrimeKnet as calls of a graph: the model of MODEL.md section 3, for training, for windows on a CPU
 * or GPU, and for streaming; kr_pk_graph selects which. Tensors are (B, F, T, C): positions of a frequency are
 * adjacent, with KR_BUILD_PER_FRAME those of a frame. */
#ifndef KR_PRIMEKNET_GRAPH_H
#define KR_PRIMEKNET_GRAPH_H

#include "map_blocks.h"
#include "primeknet.h"

enum { KR_PK_MAX_NAME = 192 };
#define KR_PK_NORM_EPS 1e-5

/* A parameter of the state_dict, with the published shape: called once for each, in the order of the table. Returns its
 * tensor. */
typedef kr_tensor kr_pk_parameter_fn(void *user, kr_graph *g, const char *name, kr_dims dims);

typedef struct kr_pk_graph {
  kr_tensor com_in;        /* (B,F,T,2): the input, from the caller */
  kr_tensor mag, pha, com; /* (B,F,T), (B,F,T), (B,F,T,2): outputs, from the caller, or 0: created. com may stay 0 */
  /* For a streaming model, in training: norms use the batch's statistics, which are written to the tensors that this
   * returns for the names running_mean and running_var. NULL: frames continue those of the previous run, and these two
   * are parameters, folded: running_var is scale = weight / sqrt(running_var + eps), running_mean is bias -
   * running_mean scale. */
  kr_pk_parameter_fn *measured;
  int mode; /* KR_BUILD_OPS; or for inference with a model that does not stream, KR_BUILD_PER_FRAME on a CPU, for one
               window: the stages between dense blocks run one frame, or one frequency's sequence, at a time; on a GPU
               KR_BUILD_FUSED_F32, KR_BUILD_FUSED_F16 */
  int32_t halves; /* KRAIT_F16 or _BF16: the type of activations in encoder, blocks and decoders, and of their
                     gradients. Parameters, their gradients and spectra stay float32; 0: everything does */
  int recompute;  /* for gradients, only tensors between the parts of a block are kept, and the parts recomputed: a
                     third of the memory for a third more time */
} kr_pk_graph;

/* Failures are stored in the graph. */
void kr_pk_graph_record(kr_graph *g, const kr_pk_config *config, kr_pk_parameter_fn *parameter, void *user,
                        kr_pk_graph *io);

#endif
