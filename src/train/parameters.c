/* parameters.c: lists and arrays of parameters. */
#include "parameters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

kr_tensor kr_parameters_note(void *parameters, kr_graph *g, const char *name, kr_dims dims) {
  kr_parameters *p = parameters;
  if (p->n_items == p->capacity) {
    const int64_t capacity = p->capacity ? 2 * p->capacity : 256;
    kr_parameter *items = kr_realloc(p->items, (size_t)p->capacity * sizeof *items, (size_t)capacity * sizeof *items);
    if (!items) return 0; /* the graph then fails */
    p->items = items, p->capacity = capacity;
  }
  kr_parameter *item = &p->items[p->n_items++];
  *item = (kr_parameter){.dims = dims, .at = p->n, .n = 1};
  snprintf(item->name, sizeof item->name, "%s", name);
  for (int i = 0; i < dims.n; i++) item->n *= dims.size[i];
  p->n += (item->n + 15) / 16 * 16;
  return kr_graph_weight(g, name, KRAIT_F32, dims, NULL);
}

int32_t kr_parameters_allocate(const krait_ctx *ctx, kr_parameters *p) {
  p->value = kr_alloc_array((size_t)p->n, 5 * sizeof(float));
  KR_CHECK(p->value, KRAIT_ERR_NO_MEMORY, "no memory for %lld parameters", (long long)p->n);
  p->gradient = p->value + p->n, p->m = p->gradient + p->n, p->v = p->m + p->n, p->average = p->v + p->n;
  p->cuda = p->n ? ctx->cuda : NULL;
  if (!p->cuda) return KRAIT_OK;
  KR_TRY(kr_cuda_alloc(p->cuda, (size_t)p->n * 5 * sizeof(float), (void **)&p->device));
  return kr_parameters_push(p);
}

int32_t kr_parameters_push(const kr_parameters *p) {
  return p->device ? kr_cuda_copy_in(p->cuda, p->device, p->value, (size_t)p->n * 5 * sizeof(float), NULL) : KRAIT_OK;
}

int32_t kr_parameters_pull(const kr_parameters *p) {
  if (!p->device) return KRAIT_OK;
  KR_TRY(kr_cuda_copy_out(p->cuda, p->value, p->device, (size_t)p->n * 5 * sizeof(float), NULL));
  return kr_cuda_wait(p->cuda, NULL);
}

float *kr_parameters_at(const kr_parameters *p, float *host) {
  return p->device ? p->device + (host - p->value) : host;
}

void kr_parameters_free(kr_parameters *p) {
  if (p->device) kr_cuda_free(p->cuda, p->device);
  kr_free(p->items);
  kr_free(p->value);
  *p = (kr_parameters){0};
}

kr_parameter *kr_parameters_find(const kr_parameters *p, const char *name) {
  for (int64_t i = 0; i < p->n_items; i++)
    if (strcmp(p->items[i].name, name) == 0) return &p->items[i];
  return NULL;
}

kr_tensor kr_parameters_tensor(void *parameters, kr_graph *g, const char *name, kr_dims dims) {
  const kr_parameters *p = parameters;
  kr_parameter *item = kr_parameters_find(p, name);
  if (!item) return 0;
  if (item->graph != g)
    item->graph = g, item->tensor = kr_graph_weight(g, name, KRAIT_F32, dims, kr_parameters_at(p, p->value + item->at));
  return item->tensor;
}

int32_t kr_parameters_read(const kr_parameters *p, const kr_weights *weights, const char *prefix, float *to) {
  for (int64_t i = 0; i < p->n_items; i++) {
    const kr_parameter *item = &p->items[i];
    char name[256];
    const float *data = NULL;
    snprintf(name, sizeof name, "%s%s", prefix, item->name);
    KR_TRY(kr_weights_take_f32(weights, name, item->dims.n, item->dims.size, &data));
    memcpy(to + item->at, data, (size_t)item->n * sizeof *to);
  }
  return KRAIT_OK;
}

void kr_parameters_items(const kr_parameters *p, const char *prefix, const float *from, char *text, kr_weight *items) {
  for (int64_t i = 0; i < p->n_items; i++) {
    const kr_parameter *item = &p->items[i];
    snprintf(text + 224 * i, 224, "%s%s", prefix, item->name);
    items[i] = (kr_weight){.name = text + 224 * i,
                           .dtype = KRAIT_F32,
                           .n_dims = item->dims.n,
                           .data = from + item->at,
                           .bytes = (uint64_t)item->n * sizeof *from};
    memcpy(items[i].shape, item->dims.size, (size_t)item->dims.n * sizeof(int64_t));
  }
}

const char *kr_parameters_not_finite(const kr_parameters *p, const float *array) {
  for (int64_t i = 0; i < p->n_items; i++)
    for (int64_t k = 0; k < p->items[i].n; k++)
      if (!isfinite(array[p->items[i].at + k])) return p->items[i].name;
  return NULL;
}
