/* primeknet_parameters.c: see primeknet_parameters.h. */
#include "primeknet_parameters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "primeknet_graph.h"
#include "status.h"

const char *pk_key(char name[KR_PK_MAX_NAME], const char *prefix, const char *key, int has_conv, int64_t number) {
  size_t used = (size_t)snprintf(name, KR_PK_MAX_NAME, "%s", prefix);
  for (; *key && used + 24 < KR_PK_MAX_NAME; key++) {
    if (*key == '@') used += (size_t)snprintf(name + used, KR_PK_MAX_NAME - used, "%s", has_conv ? ".conv" : "");
    else if (*key == '#') used += (size_t)snprintf(name + used, KR_PK_MAX_NAME - used, "%lld", (long long)number);
    else name[used++] = *key;
  }
  name[used] = 0;
  return name;
}

static int ends(const char *name, const char *with) {
  const size_t n = strlen(name), m = strlen(with);
  return n >= m && strcmp(name + n - m, with) == 0;
}

static pk_parameter *find(const pk_parameters *p, const char *name) {
  for (int64_t i = 0; i < p->n_items; i++)
    if (strcmp(p->items[i].name, name) == 0) return &p->items[i];
  return NULL;
}

static pk_parameter *add(pk_parameters *p, const char *name, int32_t dtype, kr_dims dims) {
  pk_parameter *to = &p->items[p->n_items++];
  *to = (pk_parameter){.dims = dims, .dtype = dtype, .at = p->n, .n = dtype == KRAIT_F32};
  snprintf(to->name, sizeof to->name, "%s", name);
  for (int i = 0; i < dims.n; i++) to->n *= dims.size[i];
  p->n += (to->n + 15) / 16 * 16;
  return to;
}

static void name_of(char name[KR_PK_MAX_NAME], const pk_parameter *mean, const char *part) {
  snprintf(name, KR_PK_MAX_NAME, "%.*s%s", (int)(strlen(mean->name) - strlen("running_mean")), mean->name, part);
}

static int32_t list(pk_parameters *p, const kr_weights *weights, int has_running) {
  static const char *const parts[] = {"scale", "shift"};
  const int64_t n = kr_weights_count(weights);
  char name[KR_PK_MAX_NAME], shape[96];
  p->items = kr_alloc_array((size_t)(3 * n + 1), sizeof *p->items);
  KR_CHECK(p->items, KRAIT_ERR_NO_MEMORY, "no memory for a list of weights");
  for (int64_t i = 0; i < n; i++) {
    const kr_weight *w = kr_weights_at(weights, i);
    kr_dims dims = {.n = w->n_dims};
    if (ends(w->name, ".num_batches_tracked")) continue; /* which PyTorch counts and nothing reads */
    KR_CHECK(w->n_dims <= 4 && strlen(w->name) < sizeof p->items->name, KRAIT_ERR_WEIGHTS,
             "the weights hold a tensor that this configuration does not have: %s, shape %s", w->name,
             kr_shape_format(w->n_dims, w->shape, shape, sizeof shape));
    memcpy(dims.size, w->shape, (size_t)w->n_dims * sizeof *w->shape);
    add(p, w->name, w->dtype, dims);
  }
  for (int64_t i = 0, n_read = has_running ? p->n_items : 0; i < n_read; i++)
    for (int k = 0; k < 2 && ends(p->items[i].name, ".running_mean"); k++) {
      name_of(name, &p->items[i], parts[k]);
      add(p, name, KRAIT_F32, p->items[i].dims)->is_taken = 1;
    }
  return KRAIT_OK;
}

/* Of this shape, in float32. */
static int32_t find_as(const pk_parameters *p, const char *name, kr_dims dims, pk_parameter **found) {
  char want[96], has[96];
  pk_parameter *it = *found = find(p, name);
  kr_shape_format(dims.n, dims.size, want, sizeof want);
  KR_CHECK(it, KRAIT_ERR_WEIGHTS, "tensor '%s' of shape %s is missing", name, want);
  int same = it->dims.n == dims.n;
  for (int i = 0; same && i < dims.n; i++) same = it->dims.size[i] == dims.size[i];
  KR_CHECK(same, KRAIT_ERR_WEIGHTS, "tensor '%s' has shape %s, the configuration wants %s", name,
           kr_shape_format(it->dims.n, it->dims.size, has, sizeof has), want);
  KR_CHECK(it->dtype == KRAIT_F32, KRAIT_ERR_WEIGHTS, "tensor '%s' is %s, not float32", name,
           krait_dtype_name(it->dtype));
  return KRAIT_OK;
}

/* The norm whose running_mean this is, as a factor and a summand. */
static int32_t fold_norm(pk_parameters *p, const pk_parameter *mean) {
  static const char *const parts[] = {"running_mean", "running_var", "weight", "bias", "scale", "shift"};
  const int64_t C = mean->dims.n == 1 ? mean->dims.size[0] : 0;
  float *of[6];
  char name[KR_PK_MAX_NAME];
  for (int k = 0; k < 6; k++) {
    pk_parameter *it;
    name_of(name, mean, parts[k]);
    KR_TRY(find_as(p, name, KR_DIMS(C), &it));
    of[k] = p->values + it->at;
    if (k < 2) it->is_taken = 1; /* weight and bias: by the model that has this norm */
  }
  for (int64_t c = 0; c < C; c++) {
    name_of(name, mean, parts[1]);
    KR_CHECK(of[1][c] >= 0, KRAIT_ERR_WEIGHTS, "tensor '%s' is negative at element %lld", name, (long long)c);
    const double scale = of[2][c] / sqrt((double)of[1][c] + KR_PK_NORM_EPS);
    of[4][c] = (float)scale, of[5][c] = (float)(of[3][c] - of[0][c] * scale);
  }
  return KRAIT_OK;
}

static int32_t copy(pk_parameters *p, const kr_weights *weights, int has_running) {
  KR_TRY(list(p, weights, has_running));
  p->values = kr_alloc_array((size_t)p->n + 1, sizeof *p->values);
  KR_CHECK(p->values, KRAIT_ERR_NO_MEMORY, "no memory for the model's weights");
  for (int64_t i = 0; i < kr_weights_count(weights); i++) {
    const kr_weight *w = kr_weights_at(weights, i);
    const pk_parameter *to = find(p, w->name);
    if (to && to->n) memcpy(p->values + to->at, w->data, (size_t)to->n * sizeof *p->values);
  }
  for (int64_t i = 0; i < p->n_items && has_running; i++)
    if (ends(p->items[i].name, ".running_mean")) KR_TRY(fold_norm(p, &p->items[i]));
  return KRAIT_OK;
}

int32_t pk_parameters_open(const kr_weights *weights, int has_running, pk_parameters *p) {
  *p = (pk_parameters){0};
  const int32_t status = copy(p, weights, has_running);
  if (status < 0) pk_parameters_close(p);
  return status;
}

void pk_parameters_close(pk_parameters *p) {
  kr_free(p->values);
  kr_free(p->items);
  *p = (pk_parameters){0};
}

int32_t pk_parameters_take(pk_parameters *p, const char *name, kr_dims dims, const float **data) {
  pk_parameter *it;
  KR_TRY(find_as(p, name, dims, &it));
  it->is_taken = 1;
  *data = p->values + it->at;
  return KRAIT_OK;
}

/* The graph has a tensor in any case, so that it goes on. */
kr_tensor pk_parameter_taken(void *parameters, kr_graph *g, const char *name, kr_dims dims) {
  pk_parameters *p = parameters;
  const float *data = NULL;
  const int32_t status = pk_parameters_take(p, name, dims, &data);
  if (status < 0 && p->status >= 0) snprintf(p->why, sizeof p->why, "%s", krait_error_detail()), p->status = status;
  return kr_graph_weight(g, name, KRAIT_F32, dims, NULL);
}

int32_t pk_parameters_check(const pk_parameters *p) {
  char shape[96];
  KR_CHECK(p->status >= 0, p->status, "%s", p->why);
  for (int64_t i = 0; i < p->n_items; i++)
    KR_CHECK(p->items[i].is_taken, KRAIT_ERR_WEIGHTS,
             "the weights hold a tensor that this configuration does not have: %s, shape %s", p->items[i].name,
             kr_shape_format(p->items[i].dims.n, p->items[i].dims.size, shape, sizeof shape));
  return KRAIT_OK;
}

kr_tensor pk_parameter_of(void *parameters, kr_graph *g, const char *name, kr_dims dims) {
  const pk_parameters *p = parameters;
  const pk_parameter *it = find(p, name);
  return it ? kr_graph_weight(g, name, KRAIT_F32, dims, p->values + it->at) : 0;
}
