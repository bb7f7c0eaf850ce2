/* primeknet_graph.h: PrimeKnet as calls of a graph: the model of MODEL.md section 3, for training, for windows on a CPU
 * or GPU, and for streaming; kr_pk_graph selects which. Tensors are (B, F, T, C): positions of a frequency are
 * adjacent, with KR_BY_FRAMES those of a frame. */
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
  kr_tensor com_in;        /* (B,F,T,2): to be given */
  kr_tensor mag, pha, com; /* (B,F,T), (B,F,T), (B,F,T,2): given to be written, or 0: created. com may stay 0 */
  /* Of a model that streams, in training: norms are over the batch, and its own mean and variance are written to what
   * this returns by the names of running_mean and running_var. NULL: frames follow those of the run before, and these
   * are parameters, folded: running_var is scale = weight / sqrt(running_var + eps), running_mean bias - running_mean
   * scale. */
  kr_pk_parameter_fn *measured;
  int how;        /* KR_APART, or inference of a model that does not stream: of one window on a CPU KR_BY_FRAMES, what
                     lies between dense blocks a frame, or a frequency's sequence, at a time; of a GPU KR_FUSED,
                     KR_HALF_FACTORS */
  int32_t halves; /* KRAIT_F16 or _BF16: what lies between operators of encoder, blocks and decoders, and gradients of
                     it. Parameters, their gradients and spectra stay as they are; 0: so does everything */
  int recompute;  /* gradients keep what lies between the parts of a block, and run these again: a third of the memory
                     for a third more time */
} kr_pk_graph;

/* Failures are stored in the graph. */
void kr_pk_graph_record(kr_graph *g, const kr_pk_config *config, kr_pk_parameter_fn *parameter, void *user,
                        kr_pk_graph *io);

#endif
