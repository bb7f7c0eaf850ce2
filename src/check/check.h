/* check.h: compares every implementation of every op with the reference, on random cases around all limits. Used by the
 * tests (tests/checkop.c) and by `krait selftest`. A case is one random call by the op's signature; <op>_check.c
 * chooses sizes and what is special about a case. Storage has random strides (permuted, padded) and guard bytes;
 * outputs are poisoned; an implementation that writes outside its elements, or leaves one unwritten, fails; a CPU's
 * implementation that reads beyond an input's end or before its beginning ends the test (host_case.c). */
#ifndef KR_CHECK_H
#define KR_CHECK_H

#include "op.h"
#include "op_args.h"

enum { KR_CASE_MAX_VIEWS = 48 };

typedef struct kr_case_tensor {
  size_t view_offset; /* of the kr_view inside the args */
  const char *name;
  int role, n_dims;
  int64_t shape[4];
  int64_t n_storage; /* elements, guards included */
  unsigned char *storage, *initial, *expected;
  double rtol, atol; /* |got - want| <= atol + rtol * max(|want|, rms of want), or what rounding the
                        inputs would explain (conditioning.c) */
  double *moved; /* [element][part]: how far the reference changes with its inputs' last places; NULL: not computed */
} kr_case_tensor;

typedef struct kr_case {
  uint64_t random; /* state of the generator */
  double normal;   /* drawn with the last one, if has_normal */
  int has_normal;
  _Alignas(16) unsigned char args[4096];
  kr_case_tensor tensors[KR_CASE_MAX_VIEWS];
  int n_tensors;
  const kr_sig *sig;
  int32_t dtype, other; /* of activations and states; of parameters: the same or float32 */
  uint64_t decided;     /* tensors of the signature that are declared, or left out, already */
  int is_complex;       /* tensors that may be complex are */
  int is_exact;         /* all float64, small, every output given: for finite differences */
  int is_unfilled;      /* only its sizes and tensors are asked for */
  int is_hard;          /* the op may draw large values, few elements, a type's ends; counted by itself */
  uint64_t at_ends;     /* tensors of the signature drawn from their type's ends */
  double most;          /* at most this far */
  int contiguous; /* views declared from now on are implementation-major without gaps, aligned to 64 bytes */
  int anywhere;   /* ... have the last dimension contiguous, and start at any element (unaligned) */
  int channels_last; /* ... of three or more dimensions have time, the last one, right after the first in memory
                        (channels-last) */
  char label[160]; /* what is special about this case, for the error line */
  int32_t status;  /* first failure while creating it */
} kr_case;

/* ---- for <op>_check.c: types, flags and fields are drawn before it runs, and everything that it did not decide after
 * it ---- */
int64_t *kr_case_size(kr_case *c, const char *name);                 /* a size of the args, to be set */
void kr_case_leave_out(kr_case *c, const char *name);
/* Declares and fills a tensor according to the signature, whatever its chance. */
kr_view *kr_case_give(kr_case *c, const char *name);
/* The same for all undecided tensors, in order: optional ones by chance; not forbidden and empty ones. */
void kr_case_give_rest(kr_case *c);
int64_t kr_case_int(kr_case *c, int64_t low, int64_t high);          /* inclusive */
int64_t kr_case_pick(kr_case *c, int n, const int64_t *choices);
int kr_case_chance(kr_case *c, double p);
double kr_case_uniform(kr_case *c, double low, double high);
double kr_case_normal(kr_case *c);
int64_t kr_case_edge(kr_case *c, int64_t most); /* 0, 1, 2, vector widths +-1, ..., at most `most`, at least 1 */
/* Values are drawn between them: what is drawn after them is the same whether they were, or the case is unfilled. */
uint64_t kr_case_begin_values(kr_case *c);
void kr_case_end_values(kr_case *c, uint64_t begun);
int32_t kr_case_activation_dtype(kr_case *c);                        /* float32, float16 or bfloat16 */
/* Declares storage for a view of the args (a pointer into c->args), with random strides; half the time the last stride
 * is 1. */
void kr_case_view(kr_case *c, kr_view *view, const char *name, int role, int32_t dtype, int n_dims,
                  const int64_t *shape);
#define KR_SHAPE(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}
void kr_case_fill_normal(kr_case *c, const kr_view *view, double mean, double deviation);
void kr_case_fill_uniform(kr_case *c, const kr_view *view, double low, double high);
/* The ends of its type, at most `most`: largest, smallest and zero elements among usual ones; none below `low`. */
void kr_case_fill_ends(kr_case *c, const kr_view *view, double most, double low);
/* In a hard case, mostly: one of the named tensors of the signature will be drawn from the ends of its type; returns
 * its name, or NULL. */
const char *kr_case_hard(kr_case *c, int n, const char *const *names, double most);
#define KR_NAMES(...) (sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__}
/* Sums of a few thousand products with values up to here stay within float32; of their squares and cubes. */
#define KR_MOST_LINEAR 0x1p100
#define KR_MOST_CUBED 0x1p40
void kr_case_set_i32(kr_case *c, const kr_view *view, int64_t flat_index,
                     int32_t value); /* implementation-major index */
/* A (B,L) int32 view, declared and filled: runs of equal indices, some negative. */
void kr_case_sequences(kr_case *c, kr_view *seq_idx, int64_t B, int64_t L);
/* S+1 offsets of packed sequences over total steps, some of them empty. */
void kr_case_offsets(kr_case *c, kr_view *cu_seqlens, int64_t S, int64_t total);
/* Memory that nobody wrote: not a number where reached, of the first dimension's size times this one's, is 0. */
void kr_case_spoil(kr_case *c, const kr_view *view, int dimension, const unsigned char *reached);
/* In half of the calls with seq_idx, the tokens of these tensors at negative indices, in dimension `tokens` (-1: the
 * last): padding, where nothing is read. Call it last: a gradient's other inputs may be the results of these. */
int32_t kr_case_spoil_padding(kr_case *c, int n, const char *const *names, int tokens);
void kr_case_bound(kr_case *c, const kr_view *view, double rtol, double atol); /* else from the view's dtype */

/* ---- for callers ---- */
typedef struct kr_check_options {
  uint64_t seed;
  int64_t n_cases;       /* 0: the op's own number */
  int64_t first_case;    /* cases are first_case, first_case + 1, ... */
  const char *impl;       /* NULL: all; "cuda_ampere": of that tier */
  void (*report)(void *user, const char *line); /* each failure; may be NULL */
  void *user;
  struct kr_check_result *by_impl; /* NULL, or one for each of the op's implementations, initially zero: counts */
  int32_t (*run_device)(const krait_ctx *ctx, kr_case *c,
                        const kr_impl *impl); /* runs a GPU implementation; NULL: on copies in device memory */
} kr_check_options;

typedef struct kr_check_result {
  int64_t n_cases, n_runs, n_refused, n_failures;
  int64_t n_hard; /* runs of hard cases */
  double worst;             /* largest error relative to its bound */
  char first_failure[1024]; /* its line, or empty */
} kr_check_result;

/* Compares every implementation of op that ctx may run, except "ref", with "ref". Failures are in result; the status
 * only says whether it could run. */
int32_t kr_check_op(const krait_ctx *ctx, const kr_op *op, const kr_check_options *options, kr_check_result *result);

#endif
