/* sig.h: an operator's signature as data: its sizes, fields and tensors, their constraints, and which gradient belongs
 * to which input. Written once, in <op>.sig of its folder; tools/make_sigs.py converts it into the tables kr_sig_<op>.
 * The contract check, views, their transfer between host and device, and graphs use them. */
#ifndef KR_SIG_H
#define KR_SIG_H

#include "op_args.h"
#include <stddef.h>

enum { KR_IN = 1, KR_OUT = 2, KR_INOUT = 3 };
typedef enum kr_class {
  KR_CLASS_ACTIVATION, /* flows between operators */
  KR_CLASS_PARAMETER,  /* is trained */
  KR_CLASS_STATE,      /* persists from call to call */
  KR_CLASS_INDEX       /* int32: sequences, offsets, rows */
} kr_class;

/* Conditions on a call; bit i of its facts is sig->facts[i]. */
enum { KR_FACT_FLAG, KR_FACT_GIVEN, KR_FACT_COMPLEX, KR_FACT_ZERO };
typedef struct kr_sig_fact {
  uint32_t kind, which; /* flag bits; tensor; tensor; size */
} kr_sig_fact;
typedef struct kr_sig_when { /* all of these facts and none of those */
  uint32_t all, none;
} kr_sig_when;

/* times * size[0] * size[1], if its condition holds; a size below 0 means 1. */
typedef struct kr_sig_term {
  int64_t times;
  int8_t size[2];
  kr_sig_when when;
} kr_sig_term;
typedef struct kr_sig_sum { /* n terms from `first` of sig->terms */
  uint16_t first, n;
} kr_sig_sum;

typedef struct kr_sig_size {
  const char *name;
  uint32_t offset; /* of an int64_t in the args */
} kr_sig_size;

/* low <= size <= high (no terms: no bound); a second size: this one must be a multiple of it. */
typedef struct kr_sig_limit {
  int8_t size, multiple_of;
  kr_sig_sum low, high;
  kr_sig_when when;
} kr_sig_limit;

enum { KR_FIELD_CHOICE, KR_FIELD_FLOAT };
typedef struct kr_sig_field {
  const char *name, *kind_name; /* KIND_NAME_*: quoted in the error */
  uint32_t offset, kind, choices; /* choices: a bit for each value */
  float usual;                    /* its value in a timed call */
} kr_sig_field;

typedef struct kr_sig_dims { /* the last alternative of a tensor has an empty `when` */
  kr_sig_when when;
  const char *text; /* "(B,D,L)" */
  uint8_t n_dims;
  int8_t only[4]; /* a dimension that is one size and nothing else: that size; others -1 */
  kr_sig_sum dims[4];
  uint32_t sizes; /* bits of all sizes that occur */
} kr_sig_dims;

typedef struct kr_sig_types { /* bits 1 << KRAIT_*; like >= 0: the type of that tensor instead */
  kr_sig_when when;
  uint32_t types;
  int8_t like;
} kr_sig_types;

typedef struct kr_sig_absent { /* must not be given there; reason: "with seq_idx" */
  kr_sig_when when;
  const char *reason;
} kr_sig_absent;

enum { KR_USUAL = 1, KR_USUAL_F32 };
/* Typical and random calls: the values, and how often an optional tensor is given. */
enum { KR_DRAW_NORMAL, KR_DRAW_UNIFORM, KR_DRAW_SEQUENCES, KR_DRAW_OFFSETS, KR_DRAW_ROWS, KR_DRAW_COUNTS };
typedef struct kr_sig_draw {
  uint8_t kind, is_usual,
      is_mixed; /* is_usual: given in timed calls, KR_USUAL*; mixed: has the parameters' type */
  int8_t rows;                      /* KR_DRAW_ROWS, _OFFSETS: their upper limit, a size */
  float a, b, chance, rtol, atol;   /* rtol 0: from the type; below 0: exact */
} kr_sig_draw;

enum { KR_SIG_MOST_DIMS = 2, KR_SIG_MOST_TYPES = 2, KR_SIG_MOST_ABSENT = 3, KR_SIG_MOST_PLACES = 2 };
typedef struct kr_sig_tensor {
  const char *name;
  uint16_t offset;          /* of a kr_view in the args */
  uint8_t role, tensor_class, is_optional;
  int8_t same;              /* the tensor whose type it must have, or -1; named in the error */
  int8_t in_place[KR_SIG_MOST_PLACES]; /* inputs whose memory it may share (in place), or -1 */
  int8_t gradient, reread;  /* tensors of the gradient op: this one's gradient; itself, read again; or -1 */
  int8_t gradient_of, rereads[2]; /* of a gradient op, tensors of the forward op: whose gradient it is; what it is (the
                                     first that is given); or -1 */
  kr_sig_types types[KR_SIG_MOST_TYPES];
  kr_sig_dims dims[KR_SIG_MOST_DIMS];
  kr_sig_absent absent[KR_SIG_MOST_ABSENT];
  kr_sig_draw draw;
} kr_sig_tensor;

typedef struct kr_sig_flag {
  const char *name;
  uint32_t bit;
  float chance; /* of a random call */
  uint32_t excludes;
  const char *excludes_name;
} kr_sig_flag;

typedef struct kr_sig {
  const char *name;
  uint32_t args_bytes, flags; /* flags: the valid ones */
  const struct kr_op *op;                  /* whose signature it is */
  const struct kr_sig *gradient, *forward; /* the gradient op; the op whose gradient this is; or NULL */
  uint8_t n_sizes, n_limits, n_fields, n_tensors, n_facts, n_flags;
  const kr_sig_size *sizes;
  const kr_sig_limit *limits;
  const kr_sig_field *fields;
  const kr_sig_tensor *tensors;
  const kr_sig_fact *facts;
  const kr_sig_term *terms;
  const kr_sig_flag *flag_list;
  const char *bench; /* sizes of a typical call: "B=1,D=1536,S=W" */
} kr_sig;

/* The sizes of one tensor. */
enum { KR_SHAPE_ABSENT = -1, KR_SHAPE_ASKED = -2 };
typedef struct kr_shape {
  int32_t n_dims; /* or KR_SHAPE_* */
  int64_t size[4];
} kr_shape;

/* ---- of a complete call ---- */

static inline kr_view *kr_sig_view(const kr_sig *sig, const void *args, int tensor) {
  return (kr_view *)((char *)(uintptr_t)args + sig->tensors[tensor].offset);
}
uint32_t kr_sig_facts(const kr_sig *sig, const void *args);
static inline int kr_sig_holds(uint32_t facts, kr_sig_when when) {
  return (facts & when.all) == when.all && !(facts & when.none);
}
int kr_sig_find(const kr_sig *sig, const char *name);      /* a tensor; -1 for none */
int kr_sig_find_size(const kr_sig *sig, const char *name); /* a size; -1 for none */
int64_t kr_sig_get_size(const kr_sig *sig, const void *args, int size);
void kr_sig_set_size(const kr_sig *sig, void *args, int size, int64_t value);
/* A tensor's shape according to the size fields of the args, whether it is given or not. */
kr_shape kr_sig_shape(const kr_sig *sig, const void *args, uint32_t facts, int tensor);
/* The types that a tensor may have, as bits. */
uint32_t kr_sig_types_of(const kr_sig *sig, const void *args, uint32_t facts, int tensor);
/* If the facts forbid a tensor, the reason; else NULL. */
const char *kr_sig_forbids(const kr_sig *sig, uint32_t facts, int tensor);
/* Checks flags, sizes, fields, and for every tensor: presence, type, aliasing. The error names op and argument. */
int32_t kr_sig_check(const kr_sig *sig, const void *args);

/* ---- of a call that is being built ---- */

/* From the shapes of the tensors (shapes[i] of sig->tensors[i]; ABSENT or ASKED without sizes) derives the args' size
 * fields, as far as shapes determine them (others must be set before), and the shapes of the tensors that are ASKED.
 * Flags and the types of views must be set; their addresses are ignored. On a mismatch the error names the tensor and
 * both shapes. */
int32_t kr_sig_infer(const kr_sig *sig, void *args, kr_shape *shapes);
/* For a caller's tensors: the sizes of the bits `known` are set already. A size that no shape determines gets its lower
 * limit, or is an error if a given tensor has it. A size of -1 is any. */
int32_t kr_sig_derive(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known);
/* The same, and the limits of sizes, where tensors may still be missing. The error lists the shapes of all given
 * inputs. */
int32_t kr_sig_check_shapes(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known);
/* The type that an output should have, given the types of the inputs' views: the only one its contract allows, else the
 * first activation's. */
int32_t kr_sig_output_type(const kr_sig *sig, const void *args, uint32_t facts, int tensor);
/* Initialises a gradient's args from a forward call: flags, sizes, fields, and the tensors that it reads again. The
 * rest is absent. */
void kr_sig_begin_gradient(const kr_sig *forward, const void *args, void *gradient_args);

#endif
