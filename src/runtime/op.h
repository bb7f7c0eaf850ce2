/* op.h: an operator as data: its contract and its rows, best first, the reference last. The walker that checks rows,
 * the benchmark and `krait info` read the same arrays. */
#ifndef KR_OP_H
#define KR_OP_H

#include <krait/ops.h>

#include "ctx.h"
#include "sig.h"

struct kr_case;

/* One implementation. args is the op's args struct, complete and already checked. */
typedef struct kr_row {
  const char *name; /* "ref", "simd_avx2", "cuda_base"; a GPU's without "cuda_" takes some calls only: that a lower tier
                       runs others is no fallback */
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
  int32_t n_rows;
  const kr_row *rows;
  int32_t (*rules)(const void *args); /* of the contract, what the signature cannot say; NULL: nothing */
  void (*cost)(const void *args, kr_cost *cost);
  int32_t (*make_case)(struct kr_case *c, int64_t index); /* <op>_check.c */
  int64_t n_cases;
} kr_op;

/* The contract: a status and a sentence that names op and argument. */
int32_t kr_op_check(const kr_op *op, const void *args);
/* The tensors that a call reads and writes; uses->args is given. */
void kr_op_views(const kr_op *op, kr_view_uses *uses);

enum { KR_MOST_ARGS_BYTES = 4096 };

/* Checks the contract, takes the first willing row and runs it. */
int32_t kr_op_run(const kr_op *op, const krait_ctx *ctx, const void *args);
int32_t kr_op_scratch_bytes(const kr_op *op, const krait_ctx *ctx, const void *args, uint64_t *bytes);
/* The row that kr_op_run would take; NULL with a status in *status (may be NULL) that quotes every refusal. */
const kr_row *kr_op_resolve(const kr_op *op, const krait_ctx *ctx, const void *args, int32_t *status);

/* The two steps of kr_op_run, for plans. Completes the args (in buffer, of args_bytes, where they are an older
 * caller's), checks them, finds the row: the named one, or where name is NULL the best; *row is NULL where the call
 * goes through the host. */
int32_t kr_op_prepare(const kr_op *op, const krait_ctx *ctx, const void *args, const char *name, void *buffer,
                      const void **complete, const kr_row **row);
/* Of a call that is complete and checked; scratch_bytes: what the row needs. */
int32_t kr_op_run_row(const kr_op *op, const kr_row *row, const krait_ctx *ctx, const void *args,
                      uint64_t scratch_bytes);

/* The op of <op>.sig and of krait_<op>_args: its table and its two public functions. */
#define KR_OP_DEFINE(op, its_rows, its_rules, its_cost, its_maker, its_cases)                                \
  const kr_op kr_op_##op = {.name = #op,                                                                     \
                            .args_bytes = sizeof(krait_##op##_args),                                         \
                            .sig = &kr_sig_##op,                                                             \
                            .rows = its_rows,                                                                \
                            .n_rows = (int32_t)(sizeof its_rows / sizeof *its_rows),                         \
                            .rules = its_rules,                                                              \
                            .cost = its_cost,                                                                \
                            .make_case = its_maker,                                                          \
                            .n_cases = its_cases};                                                           \
  int32_t krait_##op(const krait_ctx *ctx, const krait_##op##_args *args) {                                  \
    return kr_op_run(&kr_op_##op, ctx, args);                                                                \
  }                                                                                                          \
  int32_t krait_##op##_scratch_bytes(const krait_ctx *ctx, const krait_##op##_args *args, uint64_t *bytes) { \
    return kr_op_scratch_bytes(&kr_op_##op, ctx, args, bytes);                                               \
  }

#endif
