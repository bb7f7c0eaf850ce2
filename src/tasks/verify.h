/* verify.h: recorded results of language models, VideoMamba and Mobile-VideoGPT (docs/GOLDEN.md). */
#ifndef KR_VERIFY_H
#define KR_VERIFY_H

#include <krait/enhance.h>

/* *is_known: golden is of such a model; if not, nothing has been done. model: a folder, a weights file or a GGUF
 * file. */
int32_t kr_verify_model(const krait_ctx *ctx, const char *model, const char *golden_path, krait_verify_result *rows,
                        int32_t n_rows, int32_t *n_filled, int *is_known);

#endif
