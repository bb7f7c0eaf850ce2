/* attention_append.c: contract, cost and implementations of appending keys and values to a cache. Error bound: float32
 * 1e-5, 16-bit storage: one rounding. */
#include "attention_impls.h"
#include "contract.h"
#include "op_list.h"
#include "rotary_impls.h"

static int32_t check_attention_append_rules(const void *args) {
  const kr_attention_append_args *a = args;
  if (kr_has(&a->block_table)) return kr_need_size("attention_append", "Lk with block_table", a->Lk, 1, INT32_MAX);
  KR_TRY(kr_need_size("attention_append", "n_pages without block_table", a->n_pages, 0, 0));
  return kr_has(&a->cache_batch_idx)
             ? KRAIT_OK
             : kr_need_size("attention_append", "Bk without cache_batch_idx and block_table", a->Bk, a->B, a->B);
}

static void count_attention_append_cost(const void *args, kr_cost *cost) {
  const kr_attention_append_args *a = args;
  const double n = (double)a->B * (double)a->L * (double)a->Hk * ((double)a->D + (double)a->Dv);
  cost->flops = 2 * n;
  cost->bytes = 2 * n * (double)krait_dtype_bytes(a->k.dtype);
  cost->exps = 0;
}

static const kr_impl impls[] = {
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_attention_append_cuda_refuse, kr_attention_append_cuda, NULL},
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, kr_attention_append_refuse_##isa, kr_attention_append_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_attention_append_ref, NULL},
};

KR_OP_DEFINE(attention_append, impls, check_attention_append_rules, count_attention_append_cost,
             kr_attention_append_case, 200, .takes_pdl = 1)
