/* op.h: an operator as data: its contract and its rows, best first, the reference last. The walker that checks rows,
 * the benchmark and `krait info` read the same arrays. */
#ifndef KR_OP_H
#define KR_OP_H

#include <krait/ops.h>

#include "ctx.h"

struct kr_case;

/* One implementation. args is the op's args struct, complete and already checked. */
typedef struct kr_row {
  const char *name;                                              /* "ref", "simd_avx2", "cuda_base" */
  uint64_t needs;                                                /* all of these capabilities */
  const char *(*refuse)(const krait_ctx *ctx, const void *args); /* NULL or why not, one static clause; may be NULL */
  int32_t (*run)(const krait_ctx *ctx, const void *args);
  uint64_t (*scratch_bytes)(const krait_ctx *ctx, const void *args); /* NULL: none */
} kr_row;

/* What one call must do at least: the two numbers, for the benchmark. */
typedef struct kr_cost {
  double flops; /* multiply and add count as two */
  double bytes; /* each input read once, each output written once */
  double exps;  /* exponentials */
} kr_cost;

/* The tensors of one call: which view of the args, whether it is read (1) or written (2), its sizes. Absent ones are not listed. */
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
  int32_t n_rows;
  const kr_row *rows;
  int32_t (*check)(const void *args);              /* the contract: a status and a sentence that names the argument */
  void (*cost)(const void *args, kr_cost *cost);
  int32_t (*make_case)(struct kr_case *c, int64_t index); /* <op>_check.c */
  int64_t n_cases;
  void (*views)(kr_view_uses *uses);               /* uses->args is given */
} kr_op;

#define KR_ROWS(array) (int32_t)(sizeof(array) / sizeof *(array)), (array)

/* Checks the contract, takes the first willing row and runs it. */
int32_t kr_op_run(const kr_op *op, const krait_ctx *ctx, const void *args);
int32_t kr_op_scratch_bytes(const kr_op *op, const krait_ctx *ctx, const void *args, uint64_t *bytes);
/* The row that kr_op_run would take; NULL with a status in *status (may be NULL) that quotes every refusal. */
const kr_row *kr_op_resolve(const kr_op *op, const krait_ctx *ctx, const void *args, int32_t *status);

/* The two public functions of an op whose args type is krait_<op>_args. */
#define KR_OP_FUNCTIONS(op)                                                                                        \
  int32_t krait_##op(const krait_ctx *ctx, const krait_##op##_args *args) { return kr_op_run(&kr_op_##op, ctx, args); } \
  int32_t krait_##op##_scratch_bytes(const krait_ctx *ctx, const krait_##op##_args *args, uint64_t *bytes) {        \
    return kr_op_scratch_bytes(&kr_op_##op, ctx, args, bytes);                                                      \
  }

#endif
