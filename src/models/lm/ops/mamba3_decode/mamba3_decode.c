/* mamba3_decode.c: cost and implementations of a decoding step through the layers of a Mamba-3 model; lm_op_args.h has
 * the equation. models/lm records it in place of the layers' own calls where a GPU's implementation takes them. */
#include "mamba3_decode/mamba3_decode.h"
#include "lm_ops.h"
#include "view.h"

static void count_mamba3_decode(const void *args, kr_cost *cost) {
  const kr_mamba3_decode_args *a = args;
  const double Y = (double)a->Y, B = (double)a->B, E = (double)(a->H * a->P), states = E * (double)a->N,
               weights = ((double)kr_mamba3_decode_rows(a) + E) * (double)a->D;
  cost->flops = Y * B * (2 * weights + 7 * states);
  cost->exps = Y * B * (E + (double)a->H * (5 + 3 * (double)a->M));
  cost->bytes = Y * (weights * (double)krait_dtype_bytes(a->in_proj.dtype) +
                     2 * B * states * (double)krait_dtype_bytes(a->ssm_state.dtype));
}

static const kr_impl impls[] = {
    {"hopper_streamed", KRAIT_CAP_CUDA_HOPPER, kr_mamba3_decode_streamed_refuse, kr_mamba3_decode_streamed,
     kr_mamba3_decode_streamed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_decode_ref, kr_mamba3_decode_ref_scratch},
};

KR_OP_DEFINE(mamba3_decode, impls, NULL, count_mamba3_decode, kr_mamba3_decode_case, 63)
