/* weights_io.h: describes a weights file as JSON, for krait info. */
#ifndef KR_WEIGHTS_IO_H
#define KR_WEIGHTS_IO_H

#include "config.h"
#include "weights.h"

/* {"format", "model", "config", "n_params", "n_tensors", "tensors": [{"name","dtype","shape"}], "metadata"}; free with
 * kr_free. */
int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json);

/* In a training run's checkpoint, the model's tensors have other names, among many others. */
int32_t kr_weights_refuse_checkpoint(const kr_weights *weights);

#endif
