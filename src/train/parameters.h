/* parameters.h: a model's parameters, their gradients and optimiser state, each as one array in host memory, and also
 * on a GPU if steps run there. */
#ifndef KR_PARAMETERS_H
#define KR_PARAMETERS_H

#include "ctx.h"
#include "graph.h"
#include "weights.h"

typedef struct kr_parameter {
  char name[192];
  kr_dims dims;
  int64_t at, n; /* elements in the arrays; each begins at a multiple of 16 */
  kr_graph *graph; /* the graph that last requested it, and its tensor there */
  kr_tensor tensor;
} kr_parameter;

typedef struct kr_parameters {
  kr_parameter *items;
  int64_t n_items, capacity, n; /* n: elements of each array, including padding, which stays 0 */
  float *value, *gradient, *m, *v, *average; /* one after the other */
  const kr_cuda *cuda; /* NULL: graphs and steps use the host's */
  float *device;       /* the same arrays on the device: valid between kr_parameters_push and kr_parameters_pull */
} kr_parameters;

/* While a model is recorded for its parameter list: adds the parameter, and returns a tensor without data. */
kr_tensor kr_parameters_note(void *parameters, kr_graph *g, const char *name, kr_dims dims);
int32_t kr_parameters_allocate(const krait_ctx *ctx, kr_parameters *p); /* after the list is complete; all zero */
void kr_parameters_free(kr_parameters *p);
int32_t kr_parameters_push(const kr_parameters *p); /* from the host's arrays to the device's; nothing to do on a CPU */
int32_t kr_parameters_pull(const kr_parameters *p); /* and back */
float *kr_parameters_at(const kr_parameters *p, float *host); /* the address that a graph uses */
/* While it is recorded for use: the tensor of the parameter's value. */
kr_tensor kr_parameters_tensor(void *parameters, kr_graph *g, const char *name, kr_dims dims);
kr_parameter *kr_parameters_find(const kr_parameters *p, const char *name);

/* Loads every parameter from a file, which must have all of them with the right shapes; prefix precedes the names
 * there. Into values, or m, v, ... */
int32_t kr_parameters_read(const kr_parameters *p, const kr_weights *weights, const char *prefix, float *to);
/* As items of a file; names live as long as text, of n_items * 224 bytes. */
void kr_parameters_items(const kr_parameters *p, const char *prefix, const float *from, char *text, kr_weight *items);

/* The first parameter with a gradient (or value) that is not finite; NULL: none. */
const char *kr_parameters_not_finite(const kr_parameters *p, const float *array);

#endif
