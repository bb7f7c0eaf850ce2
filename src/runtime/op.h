/* op.h: an operator as data: its contract and its implementations, best first, the reference last. The implementation
 * checker, the benchmark and `krait info` read the same arrays. */
#ifndef KR_OP_H
#define KR_OP_H

#include "ctx.h"
#include "op_args.h"
#include "sig.h"

struct kr_case;
struct kr_op_rewrite;

/* One implementation. args is the op's args struct, complete and already checked. */
typedef struct kr_impl {
  const char *name; /* "ref", "simd_avx2", "cuda_base"; a GPU implementation without "cuda_" accepts only some calls:
                       running others on a lower tier is not a fallback */
  uint64_t needs;                                                /* all of these capabilities */
  const char *(*refuse)(const krait_ctx *ctx, const void *args); /* returns NULL or the reason, one static clause; may
                                                                    be NULL */
  int32_t (*run)(const krait_ctx *ctx, const void *args);
  uint64_t (*scratch_bytes)(const krait_ctx *ctx, const void *args); /* NULL: none */
} kr_impl;

/* The minimum work of one call, for the benchmark. */
typedef struct kr_cost {
  double flops; /* a multiply-add counts as two */
  double bytes; /* each input read once, each output written once */
  double exps;  /* exponentials */
} kr_cost;

/* The tensors of one call: which view of the args, whether it is read (1) or written (2), its sizes. Absent ones are
 * not listed. */
enum { KR_MOST_VIEWS = 48 };
typedef struct kr_view_use {
  size_t offset;
  int role, n_dims;
  int64_t shape[4];
} kr_view_use;
typedef struct kr_view_uses {
  const void *args;
  int n;
  kr_view_use list[KR_MOST_VIEWS];
} kr_view_uses;

typedef struct kr_op {
  const char *name;
  uint32_t args_bytes;
  const kr_sig *sig;
  int32_t n_impls;
  const kr_impl *impls;
  int32_t (*rules)(const void *args); /* the part of the contract that the signature cannot express; NULL: none */
  void (*cost)(const void *args, kr_cost *cost);
  int32_t (*make_case)(struct kr_case *c, int64_t index); /* <op>_check.c */
  int64_t n_cases;
  int32_t takes_pdl; /* its GPU implementations heed KR_CALL_PDL and KR_CALL_STATE_PDL (overlap.h) */
  const struct kr_op_rewrite *rewrites; /* by which other calls become this op (rewrite.h); NULL: none */
} kr_op;

/* The contract: a status and a sentence that names op and argument. */
int32_t kr_op_check(const kr_op *op, const void *args);
/* The tensors that a call reads and writes; uses->args is given. */
void kr_op_views(const kr_op *op, kr_view_uses *uses);

enum { KR_MOST_ARGS_BYTES = 4096 };

/* Checks the contract, and runs the first implementation that accepts the call: in one step what public calls, plans
 * and graphs do in two. */
int32_t kr_op_run(const kr_op *op, const krait_ctx *ctx, const void *args);
int32_t kr_op_scratch_bytes(const kr_op *op, const krait_ctx *ctx, const void *args, uint64_t *bytes);
/* The implementation that kr_op_run would choose; NULL with a status in *status (may be NULL) and every refusal in the
 * error detail. */
const kr_impl *kr_op_resolve(const kr_op *op, const krait_ctx *ctx, const void *args, int32_t *status);

/* The two steps of kr_op_run, for plans. Checks the args and finds the implementation: the named one, or the best if
 * name is NULL; *impl is NULL if the call runs on the host. */
int32_t kr_op_prepare(const kr_op *op, const krait_ctx *ctx, const void *args, const char *name, const kr_impl **impl);
/* For a call that is complete and checked; scratch_bytes: the implementation's requirement. */
int32_t kr_op_run_impl(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args,
                      uint64_t scratch_bytes);
/* Runs this implementation; with KRAIT_VERBOSE it prints a line about the call. */
int32_t kr_op_run_logged(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args);

/* The op of <op>.sig and of kr_<op>_args. Last the number of random cases, then fields that few ops have:
 * KR_OP_DEFINE(gemm, ..., 500, .takes_pdl = 1). */
#define KR_OP_DEFINE(op, its_impls, its_rules, its_cost, its_maker, ...)                                     \
  const kr_op kr_op_##op = {.name = #op,                                                                     \
                            .args_bytes = sizeof(kr_##op##_args),                                         \
                            .sig = &kr_sig_##op,                                                             \
                            .impls = its_impls,                                                              \
                            .n_impls = (int32_t)(sizeof its_impls / sizeof *its_impls),                      \
                            .rules = its_rules,                                                              \
                            .cost = its_cost,                                                                \
                            .make_case = its_maker,                                                          \
                            .n_cases = __VA_ARGS__};

#endif
