/* copy.h: copies a tensor between float types and layouts: what compositions of operators put between two of them. */
#ifndef KR_COPY_H
#define KR_COPY_H

#include <krait/ops.h>

/* to[b][i][j] = from[b][i][j] for all of n_b x n_i x n_j; float types. ctx NULL: on this thread, element by element. */
void kr_copy_view(const krait_ctx *ctx, const krait_view *from, const krait_view *to, int64_t n_b, int64_t n_i, int64_t n_j);

/* n_i rows of one b; i and j as above. Storage types float32, float16, bfloat16. */
typedef void kr_copy_rows_fn(const krait_view *from, int64_t from_at, const krait_view *to, int64_t to_at, int64_t n_i, int64_t n_j);
kr_copy_rows_fn kr_copy_rows_avx512, kr_copy_rows_avx2, kr_copy_rows_neon, kr_copy_rows_scalar;

#endif
