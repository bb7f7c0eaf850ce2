/* split.h: pre-tokenization: the regular expressions of published tokenizers, as code. */
#ifndef KR_SPLIT_H
#define KR_SPLIT_H

#include <stddef.h>
#include <stdint.h>

enum {
  KR_SPLIT_NONE = 0,
  KR_SPLIT_GPT2,  /* GPT-2, GPT-NeoX: that of the byte-level pre-tokenizer */
  KR_SPLIT_QWEN2, /* Qwen2 */
};
int32_t kr_split_find(
    const char *pattern); /* the rule of a regular expression, by its exact text; KR_SPLIT_NONE: not supported */
/* The end of the piece that starts at `from` < n. text is UTF-8. */
size_t kr_split_next(int32_t rule, const char *text, size_t n, size_t from);

#endif
