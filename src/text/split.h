/* split.h: where a tokenizer cuts text before it merges: the regular expressions that published tokenizers have, as
 * code. */
#ifndef KR_SPLIT_H
#define KR_SPLIT_H

#include <stddef.h>
#include <stdint.h>

enum {
  KR_SPLIT_NONE = 0,
  KR_SPLIT_GPT2,  /* GPT-2, GPT-NeoX: the byte-level pre-tokeniser's own */
  KR_SPLIT_QWEN2, /* Qwen2 */
};
int32_t kr_split_find(
    const char *pattern); /* the rule of a regular expression, by its exact text; KR_SPLIT_NONE: it is none of ours */
/* Where the piece that begins at `from` < n ends. text is UTF-8. */
size_t kr_split_next(int32_t rule, const char *text, size_t n, size_t from);

#endif
