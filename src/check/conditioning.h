/* conditioning.h: how a case runs on the host, and how far its outputs move with the last places of its inputs. */
#ifndef KR_CONDITIONING_H
#define KR_CONDITIONING_H
#include "check.h"
int32_t kr_case_run_on_host(const krait_ctx *ctx, kr_case *c, const kr_row *row);
/* Fills `moved` of every output from runs of the reference; storage stays as it is. */
int32_t kr_case_measure(kr_case *c, const krait_ctx *ctx, const kr_row *reference);
#endif
