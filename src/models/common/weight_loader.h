/* weight_loader.h: a model's tensors and buffers in its context's memory: on a CPU the file's own bytes, on a GPU
 * copies of them in one block; converted only from q8_0 to float16 on a GPU, and there to the type asked for. */
#ifndef KR_WEIGHT_LOADER_H
#define KR_WEIGHT_LOADER_H

#include <krait/krait.h>

#include "arena.h"
#include "ctx_memory.h"
#include "model_folder.h"

typedef struct kr_weight_ref {
  const void *data;   /* NULL: absent */
  int32_t dtype;      /* KRAIT_I32: words of q8_0 or q4_k (quantize.h) */
  const void *scales; /* of q8_0, float16; else NULL */
  const void *qweight, *qscales; /* on a GPU, if the loader keeps them: q8_0, for steps of few rows; data are float16 */
} kr_weight_ref;

typedef struct kr_sizes {
  int32_t n;
  int64_t size[5];
} kr_sizes;
#define KR_SIZES(...) ((kr_sizes){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

/* A matrix's rows from `first` on, of K values each. */
kr_weight_ref kr_weight_rows(const kr_weight_ref *w, int64_t first, int64_t K);

typedef struct kr_loader {
  const krait_ctx *ctx;
  const kr_model_folder *folder; /* or */
  const kr_weights *weights;     /* whose memory ends after loading, or whose data are in its file (in parts); or
                                  * neither: random values, for timing */
  const char *prefix;            /* prepended to every name */
  int32_t random_type;           /* of random values */
  int32_t random_blocks;         /* of the next random matrix, where its sizes allow it: KRAIT_Q8_0, KRAIT_Q4_K */
  int32_t keeps_q8;              /* on a GPU: kr_weight_ref.qweight */
  int32_t as;                    /* on a GPU: KRAIT_F16, KRAIT_BF16: what kr_load takes gets this type; 0: none */
  uint64_t bytes; /* of everything taken */
  uint8_t *is_read; /* by number of the folder's or the weights' tensor; until kr_loader_check_read */
  /* its own */
  kr_arena *arena; /* on a CPU: new tensors */
  char *device;    /* on a GPU; NULL: only count */
  struct kr_staging *staging;
  uint64_t used;
  struct kr_loader_room {
    void *data;
    uint64_t bytes;
  } parts[2]; /* the tensor that is being placed, of a file whose data stay there; q8_0's scales, or what it becomes */
  struct kr_random_values {
    void *data;
    uint64_t bytes;
  } random, random_scales, random_supers; /* of random_type; of q8_0's scales; of q4_k's super-blocks */
} kr_loader;

typedef int32_t (*kr_take_fn)(kr_loader *p, void *user); /* the same calls each time */
/* Calls take; on a GPU once to count and once to copy. Placed tensors live until kr_loader_close. */
int32_t kr_loader_run(kr_loader *p, kr_take_fn take, void *user);
/* The two parts: after the first, addresses on a GPU only say that there is a tensor, and p->used is what the second
 * takes. It may follow kr_loader_drop, which gives the GPU's memory back. With p->device and p->staging given, that
 * memory and those pieces are used. */
int32_t kr_loader_count(kr_loader *p, kr_take_fn take, void *user);
int32_t kr_loader_copy(kr_loader *p, kr_take_fn take, void *user);
void kr_loader_drop(kr_loader *p);
void kr_loader_close(kr_loader *p);
const char *kr_loader_label(const kr_loader *p);

/* A tensor of this shape, as stored; an optional one may be missing. */
int32_t kr_load(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight_ref *to);
/* Matrices (vectors) of one type, on a GPU concatenated in the order given, so that to[0] contains all of them. */
int32_t kr_load_rows(kr_loader *p, int n, const char *const *names, int is_needed, const kr_sizes *want,
                      kr_weight_ref *to);
/* Converted to float32 from any type; f, if not NULL, is applied to each value. */
int32_t kr_load_f32(kr_loader *p, const char *name, kr_sizes want, double (*f)(double), kr_weight_ref *to);
/* The same, n of one shape concatenated. */
int32_t kr_load_f32_rows(kr_loader *p, int n, const char *const *names, kr_sizes want, kr_weight_ref *to);
/* The tensor, of this shape, in host memory; its data is NULL if it is optional and missing. */
int32_t kr_loader_find(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight *found);
const kr_weight *kr_loader_peek(const kr_loader *p,
                                const char *name); /* of any shape; NULL: missing, or values are random */
int kr_loader_has(const kr_loader *p, const char *name); /* in some form: also q8_0, q4_k; not of random values */
/* Tensors with the loader's prefix that nothing has taken are an error that names the first, unless they are on the
 * list: of names after the prefix ('*' and '#' are numbers) or, ending with '.', their beginnings; NULL ends it, or is
 * an empty one. */
int32_t kr_loader_check_read(kr_loader *p, const char *const *unused);
/* Whether a name fits such a pattern; whether it is on such a list. */
int kr_name_fits(const char *pattern, const char *name);
int kr_name_is_listed(const char *const *list, const char *name);
/* n matrices of one shape and type as one, in the order given. */
int32_t kr_load_stacked(kr_loader *p, int64_t n, const char *const *names, kr_sizes want, kr_weight_ref *to);
/* A matrix with its rows in another order: row i is the file's row_of(user, i). */
int32_t kr_load_reordered(kr_loader *p, const char *name, kr_sizes want, int64_t (*row_of)(const void *user, int64_t i),
                          const void *user, kr_weight_ref *to);
/* A tensor's values as float32, through f if that is not NULL. */
int32_t kr_load_values(kr_loader *p, const char *name, kr_sizes want, double (*f)(double), float *values);
/* A tensor made by the caller; copied. */
int32_t kr_load_buffer(kr_loader *p, const void *data, uint64_t bytes, int32_t dtype, kr_weight_ref *to);
#endif
