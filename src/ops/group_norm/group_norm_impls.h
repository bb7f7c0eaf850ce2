/* group_norm_impls.h: shared by the vector implementations of the norm over groups and their table. */
#ifndef KR_GROUP_NORM_IMPLS_H
#define KR_GROUP_NORM_IMPLS_H

#include "op_list.h"

/* Positions whose statistics are taken together, whatever the number of threads. */
enum { KR_GROUP_NORM_CHUNK = 256 };
static inline int64_t kr_group_norm_chunks(int64_t S) { return (S + KR_GROUP_NORM_CHUNK - 1) / KR_GROUP_NORM_CHUNK; }

#endif
