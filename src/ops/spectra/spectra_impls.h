/* spectra_impls.h: scratch of spectral norm, and the split of loss sums: chunks of implementations (i, j, k) that
 * depend on the shape alone. */
#ifndef KR_SPECTRA_IMPLS_H
#define KR_SPECTRA_IMPLS_H

#include "op_args.h"

enum { KR_LOSS_CHUNKS = 64 };

uint64_t kr_spectral_norm_scratch(const krait_ctx *ctx, const void *args);
uint64_t kr_loss_scratch(const krait_ctx *ctx, const void *args);

#endif
