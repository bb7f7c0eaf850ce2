/* expert_route.h: the choice of a row's experts, in double, for reference and CPU alike. */
#ifndef KR_EXPERT_ROUTE_H
#define KR_EXPERT_ROUTE_H

#include "lm_op_args.h"
#include "op.h"

enum { KR_ROUTE_MOST_EXPERTS = 1024, KR_ROUTE_MOST_GROUPS = 64 };

/* Chooses a row's experts and writes them with their weights. */
void kr_expert_route_row(const kr_expert_route_args *a, int64_t t);
int32_t kr_expert_route_rows(const krait_ctx *ctx, const void *args);
const char *kr_expert_route_rows_refuse(const krait_ctx *ctx, const void *args);

#endif
