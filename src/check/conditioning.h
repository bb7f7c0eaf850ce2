/* conditioning.h: how far the outputs of a case change with the last places of its inputs. */
#ifndef KR_CONDITIONING_H
#define KR_CONDITIONING_H
#include "check.h"
/* Fills `moved` of every output from runs of the reference; storage is unchanged. */
int32_t kr_case_measure(kr_case *c, const krait_ctx *ctx, const kr_impl *reference);
#endif
