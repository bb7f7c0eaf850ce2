/* split.h: pre-tokenization: the regular expressions of published tokenizers, as code. */
#ifndef KR_SPLIT_H
#define KR_SPLIT_H

#include <stddef.h>
#include <stdint.h>

enum {
  KR_SPLIT_NONE = 0,
  KR_SPLIT_GPT2,  /* GPT-2, GPT-NeoX: that of the byte-level pre-tokenizer */
  KR_SPLIT_QWEN2, /* Qwen2, Qwen3: digits alone */
  KR_SPLIT_LLAMA3, /* LLaMA-3, Falcon-H1, LFM2, Granite 4, Bamba (cl100k): digits by three */
  KR_SPLIT_QWEN35, /* Qwen3.5: marks belong to words */
  KR_SPLIT_TEKKEN, /* Mistral's tekken, Nemotron-H: words begin with capitals */
  KR_SPLIT_O200K,  /* the same with contractions, and digits by three */
};
/* The rule of a regular expression, by its exact text; KR_SPLIT_NONE: not known. Each matches everywhere. */
int32_t kr_split_find(const char *pattern);
const char *kr_split_pattern(int32_t rule); /* not of KR_SPLIT_NONE */
/* The end of the piece that starts at `from` < n. text is UTF-8. */
size_t kr_split_next(int32_t rule, const char *text, size_t n, size_t from);

#endif
