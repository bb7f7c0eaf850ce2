/* gguf_tokenizer.h: the tokenizer in a GGUF file, as tokenizer.json. */
#ifndef KR_GGUF_TOKENIZER_H
#define KR_GGUF_TOKENIZER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* *tokenizer: for kr_tokenizer_open_tree, to be released with json_decref. */
int32_t kr_gguf_tokenizer(const unsigned char *bytes, size_t n_bytes, const char *label, json_t **tokenizer);

#endif
