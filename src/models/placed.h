/* placed.h: a model's tensors and buffers in its context's memory: on a CPU the file's own bytes, on a GPU copies of
 * them in one block; never converted to a wider type, but q8_0 to float16 on a GPU. */
#ifndef KR_PLACED_H
#define KR_PLACED_H

#include <krait/krait.h>

#include "arena.h"
#include "model_folder.h"

typedef struct kr_placed {
  const void *data;   /* NULL: absent */
  int32_t dtype;      /* KRAIT_I32: words of q8_0 or q4_k (quantize.h) */
  const void *scales; /* of q8_0, float16; else NULL */
} kr_placed;

typedef struct kr_sizes {
  int32_t n;
  int64_t size[5];
} kr_sizes;
#define KR_SIZES(...) ((kr_sizes){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

typedef struct kr_placer {
  const krait_ctx *ctx;
  const kr_model_folder *folder; /* or */
  const kr_weights *weights;     /* or neither: random values of random_type, for timing */
  const char *prefix;            /* prepended to every name */
  int32_t random_type;
  uint64_t bytes; /* of everything taken */
  /* its own */
  kr_arena *arena; /* on a CPU: new tensors */
  char *device;    /* on a GPU; NULL: only count */
  uint64_t used;
  void *random;
  uint64_t random_bytes;
} kr_placer;

typedef int32_t (*kr_take_fn)(kr_placer *p, void *user); /* the same calls each time */
/* Calls take; on a GPU once to count and once to copy. Placed tensors live until kr_placer_close. */
int32_t kr_placer_run(kr_placer *p, kr_take_fn take, void *user);
void kr_placer_close(kr_placer *p);
const char *kr_placer_label(const kr_placer *p);

/* A tensor of this shape, as stored; an optional one may be missing. */
int32_t kr_place(kr_placer *p, const char *name, int is_needed, kr_sizes want, kr_placed *to);
/* Matrices (vectors) of one type, on a GPU concatenated in the order given, so that to[0] contains all of them. */
int32_t kr_place_rows(kr_placer *p, int n, const char *const *names, int is_needed, const kr_sizes *want,
                      kr_placed *to);
/* Converted to float32 from any type; f, if not NULL, is applied to each value. */
int32_t kr_place_f32(kr_placer *p, const char *name, kr_sizes want, double (*f)(double), kr_placed *to);
/* The tensor, of this shape, in host memory; its data is NULL if it is optional and missing. */
int32_t kr_placer_find(kr_placer *p, const char *name, int is_needed, kr_sizes want, kr_weight *found);
const kr_weight *kr_placer_look(const kr_placer *p,
                                const char *name); /* of any shape; NULL: missing, or values are random */
/* A tensor made by the caller; copied. */
int32_t kr_place_made(kr_placer *p, const void *data, uint64_t bytes, int32_t dtype, kr_placed *to);

/* A matrix of q8_0 in host memory as float16, by the context's threads; free it with kr_free. */
int32_t kr_widen_q8(const krait_ctx *ctx, const kr_weight *words, const kr_weight *scales, uint16_t **halves);

/* ---- a context's memory; initially zero ---- */
int32_t kr_block_get(const krait_ctx *ctx, const char *what, uint64_t bytes, void *block);
void kr_block_free(const krait_ctx *ctx, void *block);
int32_t kr_block_put(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes);
int32_t kr_block_read(const krait_ctx *ctx, void *to, const void *from, uint64_t bytes); /* complete when it returns */

#endif
