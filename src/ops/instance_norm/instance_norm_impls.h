/* instance_norm_impls.h: shared by the vectorized implementations of instance norm and their table. */
#ifndef KR_INSTANCE_NORM_IMPLS_H
#define KR_INSTANCE_NORM_IMPLS_H

#include <stdint.h>

/* Positions per chunk, from the shape alone: about 32 kB. */
static inline int64_t kr_norm_chunk(int64_t C) { return C >= 512 ? 16 : 8192 / C; }
static inline int64_t kr_norm_chunks(int64_t S, int64_t C) { return (S + kr_norm_chunk(C) - 1) / kr_norm_chunk(C); }

#endif
