/* primeknet_parameters.h: the tensors of a file of weights by name, copied: for whoever folds them on the host, and for
 * graphs where these compute. */
#ifndef KR_PRIMEKNET_PARAMETERS_H
#define KR_PRIMEKNET_PARAMETERS_H

#include "graph.h"
#include "primeknet.h"

enum { KR_PK_MAX_NAME = 192 };

typedef struct pk_parameter {
  char name[KR_PK_MAX_NAME];
  kr_dims dims;
  int32_t dtype; /* only float32 has values */
  int64_t at, n; /* floats; each begins at a multiple of 16 */
  int is_taken;
} pk_parameter;

typedef struct pk_parameters {
  pk_parameter *items;
  int64_t n_items, n;
  float *values;
  int32_t status;             /* the first failure of pk_parameter_taken */
  char why[256];
} pk_parameters;

/* prefix and a key of primeknet_weights.h: '@' is ".conv" or nothing, '#' the number. Returns name. */
const char *pk_key(char name[KR_PK_MAX_NAME], const char *prefix, const char *key, int has_conv, int64_t number);

/* On the host. has_running: beside each running_mean stand NORM.scale and NORM.shift, the norm with its running
 * statistics. */
int32_t pk_parameters_open(const kr_weights *weights, int has_running, pk_parameters *p);
void pk_parameters_close(pk_parameters *p);
/* What is asked for while a model opens is marked: one of this shape on the host, or a graph's (kr_pk_parameter_fn). */
int32_t pk_parameters_take(pk_parameters *p, const char *name, kr_dims dims, const float **data);
kr_tensor pk_parameter_taken(void *parameters, kr_graph *g, const char *name, kr_dims dims);
/* The first failure of those, or a tensor that nobody asked for. */
int32_t pk_parameters_check(const pk_parameters *p);
/* Afterwards, for graphs of several sessions (kr_pk_parameter_fn). */
kr_tensor pk_parameter_of(void *parameters, kr_graph *g, const char *name, kr_dims dims);

#endif
