/* weights_io.h: a weights file as text, for people and for krait info. */
#ifndef KR_WEIGHTS_IO_H
#define KR_WEIGHTS_IO_H

#include "config.h"
#include "weights.h"

/* {"format", "model", "config", "n_params", "n_tensors", "tensors": [{"name","dtype","shape"}], "metadata"}; free with
 * kr_free. */
int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json);

/* A training run's checkpoint has the model's tensors under other names, among many more. */
int32_t kr_weights_refuse_checkpoint(const kr_weights *weights);

#endif
