/* lm_parts.h: what models that are built on a language model see of a krait_lm. */
#ifndef KR_LM_PARTS_H
#define KR_LM_PARTS_H

#include <krait/language.h>

#include "lm/lm.h"
#include "tokenizer.h"

const kr_model_folder *kr_lm_folder(const krait_lm *lm);
const kr_tokenizer *kr_lm_tokenizer(const krait_lm *lm);
kr_lm *kr_lm_model(const krait_lm *lm);
/* krait_lm_prefill with tokens, some of which are -1: rows (kr_lm_prefill) stand there. */
int32_t kr_lm_prefill_rows(krait_lm_session *session, const int32_t *ids, const void *rows, int64_t n);

#endif
