/* primeknet_model.h: PrimeKnet inside its folder: a model's parameters, its graph, and what runs it. */
#ifndef KR_PRIMEKNET_MODEL_H
#define KR_PRIMEKNET_MODEL_H

#include "ctx.h"
#include "primeknet_graph.h"
#include "primeknet_parameters.h"

struct kr_primeknet {
  const krait_ctx *ctx;
  kr_pk_config config;
  int is_exact; /* products keep all bits of their factors */
  pk_parameters parameters; /* as they are published, on the host: a plan folds them and copies the rest to a GPU */
};

enum { KR_PK_MAG = 1, KR_PK_PHA = 2, KR_PK_COM = 4, KR_PK_TENSORS = 4 };

/* B windows (on a CPU: one) of T frames, or T frames as they come; tensors: com_in, and these outputs where they are
 * asked for: mag, pha, com. */
int32_t pk_model_record(const kr_primeknet *m, kr_pk_parameter_fn *parameter, int64_t B, int64_t T,
                        uint32_t outputs, kr_graph *g, kr_tensor *tensors);

#endif
