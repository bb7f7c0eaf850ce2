/* public_op.h: an operator as callers see it (krait/ops.h): tensors that know their shapes. From its args struct to the
 * library's own (op_args.h): options are copied, sizes derived from the shapes by the op's signature. The tables and
 * the public functions are made by tools/make_sigs.py from krait/ops.h and the .sig files. */
#ifndef KR_PUBLIC_OP_H
#define KR_PUBLIC_OP_H

#include "op.h"

typedef struct kr_public_option {
  uint16_t from, to; /* offsets in the public and in the internal args */
  uint8_t bytes;
  int8_t size;  /* the size that it sets, or -1 */
  uint8_t open; /* a size that shapes may say too: 0 leaves it to them */
} kr_public_option;

typedef struct kr_public_op {
  const kr_op *op;
  uint32_t args_bytes; /* of the public struct */
  int32_t n_options;
  const kr_public_option *options;
  const uint16_t *tensors; /* offsets of its krait_tensors, in the order of op->sig->tensors */
} kr_public_op;

/* args (KR_MOST_ARGS_BYTES) become the op's internal args: complete, their sizes derived and shapes checked. */
int32_t kr_public_take(const kr_public_op *p, const void *given, void *args);
/* Runs such args with the implementation of kr_op_prepare; the context lends scratch if they have none. */
int32_t kr_taken_run(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, void *args);
/* The public function of an op. */
int32_t kr_public_run(const kr_public_op *p, const krait_ctx *ctx, const void *given);
/* krait_shapes_check. */
int32_t kr_public_check_shapes(const kr_public_op *p, const void *given);
/* The other way round: the public args (KR_MOST_PUBLIC_BYTES) of a complete internal call. */
void kr_public_give(const kr_public_op *p, const void *args, void *made);
enum { KR_MOST_PUBLIC_BYTES = 8192 };

#endif
