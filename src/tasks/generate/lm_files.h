/* lm_files.h: what a model's folder says about text, beside config.json and the weights: tokenizer.json,
 * tokenizer_config.json, the chat template, generation_config.json. */
#ifndef KR_LM_FILES_H
#define KR_LM_FILES_H

#include <krait/language.h>

#include "chat.h"
#include "model_folder.h"

enum { KR_MOST_ENDS = 32 };

typedef struct kr_lm_files {
  kr_tokenizer *tokenizer; /* NULL: options.no_tokenizer */
  kr_chat chat;
  int64_t bos;             /* begins a text without a prompt; -1: none */
  int64_t ends[KR_MOST_ENDS];
  int32_t n_ends, has_ends;   /* of generation_config.json, if it has some */
  krait_lm_sampling sampling; /* what it says: 0 where it says nothing */
  int64_t n_tokens;           /* max_new_tokens; 0: it says nothing */
} kr_lm_files;

int32_t kr_lm_files_open(const krait_lm_options *options, const kr_model_folder *folder, kr_lm_files *files);
void kr_lm_files_close(kr_lm_files *files);

#endif
