/* lm_describe.h: what a model's folder holds, without opening the model. */
#ifndef KR_LM_DESCRIBE_H
#define KR_LM_DESCRIBE_H

#include <krait/krait.h>

#include <jansson.h>

/* *json: architecture, parameters, bytes of weights, of a session's states and of a token's keys and values (both as on
 * a CPU), tokenizer and chat format; to be released with json_decref. */
int32_t kr_lm_describe(const char *path, json_t **json);
/* How many of `most` sessions of n_tokens each fit into half of the memory that the weights leave. */
int32_t kr_lm_count_places(const krait_ctx *ctx, const char *path, int64_t n_tokens, int64_t most, int64_t *n);

#endif
