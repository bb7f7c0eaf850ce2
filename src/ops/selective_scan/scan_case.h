/* scan_case.h: the inputs of a random scan call, for forward and gradient alike. */
#ifndef KR_SCAN_CASE_H
#define KR_SCAN_CASE_H

#include <krait/ops.h>

struct kr_case;

typedef struct kr_scan_case {
  krait_call *call;
  int64_t *B, *D, *L, *N, *G, *S;
  krait_view *u, *delta, *A, *Bmat, *Cmat, *Dvec, *z, *delta_bias, *initial_state, *seq_idx, *cu_seqlens, *A_reverse;
} kr_scan_case;

#define KR_SCAN_CASE(a)                                                                                                   \
  {&(a)->call, &(a)->B, &(a)->D, &(a)->L, &(a)->N, &(a)->G, &(a)->S, &(a)->u, &(a)->delta, &(a)->A, &(a)->Bmat,            \
   &(a)->Cmat, &(a)->Dvec, &(a)->z, &(a)->delta_bias, &(a)->initial_state, &(a)->seq_idx, &(a)->cu_seqlens, &(a)->A_reverse}

void kr_scan_case_inputs(struct kr_case *c, kr_scan_case *s, int64_t index);

#endif
