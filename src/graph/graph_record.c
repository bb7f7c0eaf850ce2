/* graph_record.c: records tensors, their views and calls. Instead of an address, a view in recorded args has the number
 * of its storage in the upper bits and the offset in the lower ones: checks that compare addresses then work as with
 * real ones. */
#include <stdio.h>
#include <string.h>

#include "graph_parts.h"
#include "op_list.h"
#include "status.h"

enum { OFFSET_BITS = 40 };

/* ---- failures ---- */

int32_t kr_graph_set_error(kr_graph *g, int32_t status) {
  if (g->status >= 0) {
    const char *detail = krait_error_detail();
    g->status = status;
    g->failure = kr_arena_copy(g->arena, detail, strlen(detail));
  }
  return g->status;
}

int32_t kr_graph_status(const kr_graph *g) {
  if (g->status < 0) return kr_fail(g->status, "%s", g->failure);
  KR_CHECK(!kr_arena_failed(g->arena), KRAIT_ERR_NO_MEMORY, "graph: out of memory after %zu nodes", g->nodes.n);
  return KRAIT_OK;
}

/* Whether recording is possible: nothing failed, and there is no plan yet. */
static int is_open(kr_graph *g) {
  if (g->status >= 0 && g->planned)
    kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: it is planned, nothing more can be recorded");
  return kr_graph_status(g) >= 0;
}

int32_t kr_graph_open(kr_graph **graph) {
  *graph = NULL;
  kr_arena *arena = kr_arena_open();
  kr_graph *g = arena ? kr_arena_alloc(arena, sizeof *g) : NULL;
  if (!g || kr_arena_failed(arena)) {
    kr_arena_close(&arena);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  }
  *g = (kr_graph){.arena = arena,
                  .storages = KR_LIST(kr_storage),
                  .parts = KR_LIST(kr_part),
                  .nodes = KR_LIST(kr_node),
                  .rewrites_off = KR_LIST(const char *),
                  .slices = KR_LIST(kr_graph *)};
  kr_list_push(arena, &g->parts);
  *graph = g;
  return KRAIT_OK;
}

void kr_graph_close(kr_graph **graph) {
  if (!graph || !*graph) return;
  kr_arena *arena = (*graph)->arena; /* the graph is allocated in it */
  kr_graph_close_slices(*graph);
  if ((*graph)->moved) kr_cuda_free((*graph)->moved_on, (*graph)->moved);
  *graph = NULL;
  kr_arena_close(&arena);
}

void kr_graph_lane(kr_graph *g, int32_t lane) { g->lane = lane; }

/* ---- sizes ---- */

kr_dims kr_dims_of(int n, const int64_t *size) {
  kr_dims d = {.n = n};
  for (int i = 0; i < n; i++) d.size[i] = size[i];
  return d;
}

int64_t kr_dims_elements(kr_dims d) {
  int64_t n = 1;
  for (int i = 0; i < d.n; i++) n *= d.size[i];
  return n;
}

const char *kr_dims_text(kr_dims d, char *text) {
  size_t used = (size_t)snprintf(text, 96, "(");
  for (int i = 0; i < d.n; i++)
    used += (size_t)snprintf(text + used, 96 - used, "%s%lld", i ? "," : "", (long long)d.size[i]);
  snprintf(text + used, 96 - used, ")");
  return text;
}

int kr_dims_same(kr_dims a, kr_dims b) {
  int same = a.n == b.n;
  for (int i = 0; same && i < a.n; i++) same = a.size[i] == b.size[i];
  return same;
}

/* Rank, no negative size, and bytes that fit the offset of a view. */
static int32_t check_dims(kr_graph *g, const char *name, int32_t dtype, kr_dims dims) {
  char text[96];
  if (dims.n < 1 || dims.n > 4)
    return kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: tensor %s has %d dimensions, must have 1 to 4", name, dims.n);
  if (!krait_dtype_bytes(dtype))
    return kr_graph_fail(g, KRAIT_ERR_DTYPE, "graph: tensor %s has the unknown type %d", name, dtype);
  double bytes = (double)krait_dtype_bytes(dtype);
  for (int i = 0; i < dims.n; i++) bytes *= dims.size[i] < 0 ? -1 : (double)dims.size[i];
  if (bytes < 0 || bytes >= (double)(1ll << OFFSET_BITS))
    return kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: tensor %s is %s: a size is negative, or the tensor too large",
                         name, kr_dims_text(dims, text));
  return KRAIT_OK;
}

static void fill_strides(kr_dims dims, int64_t *stride) {
  int64_t next = 1;
  for (int i = dims.n - 1; i >= 0; i--) {
    stride[i] = next;
    next *= dims.size[i] > 0 ? dims.size[i] : 1;
  }
}

static uint64_t span_bytes(int32_t dtype, kr_dims dims, const int64_t *stride) {
  int64_t last = 0;
  for (int i = 0; i < dims.n; i++) {
    if (dims.size[i] == 0) return 0;
    last += (dims.size[i] - 1) * stride[i];
  }
  return (uint64_t)(last + 1) * krait_dtype_bytes(dtype);
}

/* ---- tensors ---- */

kr_tensor kr_graph_part(kr_graph *g, const kr_part *part) {
  if (!is_open(g)) return 0;
  kr_part *p = kr_list_push(g->arena, &g->parts);
  *p = *part;
  return (kr_tensor)(g->parts.n - 1);
}

kr_tensor kr_graph_whole(kr_graph *g, int32_t storage) {
  const kr_storage *s = KR_STORAGE(g, storage);
  kr_part p = {.storage = storage, .dtype = s->dtype, .dims = s->dims};
  memcpy(p.stride, s->stride, sizeof p.stride);
  return kr_graph_part(g, &p);
}

static kr_tensor add_storage(kr_graph *g, int32_t home, const char *name, int32_t dtype, kr_dims dims,
                             const int64_t *stride, void *data) {
  if (!is_open(g) || check_dims(g, name, dtype, dims) < 0) return 0;
  kr_storage *s = kr_list_push(g->arena, &g->storages);
  *s = (kr_storage){.home = home, .dtype = dtype, .dims = dims, .data = data, .source = -1};
  s->name = kr_arena_copy(g->arena, name, strlen(name));
  if (stride) memcpy(s->stride, stride, (size_t)dims.n * sizeof *stride);
  else fill_strides(dims, s->stride);
  s->bytes = span_bytes(dtype, dims, s->stride);
  return kr_graph_whole(g, (int32_t)g->storages.n - 1);
}

kr_tensor kr_graph_input(kr_graph *g, const char *name, int32_t dtype, kr_dims dims) {
  return add_storage(g, KR_HOME_INPUT, name, dtype, dims, NULL, NULL);
}
kr_tensor kr_graph_output(kr_graph *g, const char *name, int32_t dtype, kr_dims dims) {
  return add_storage(g, KR_HOME_OUTPUT, name, dtype, dims, NULL, NULL);
}
kr_tensor kr_graph_state(kr_graph *g, const char *name, int32_t dtype, kr_dims dims) {
  return add_storage(g, KR_HOME_STATE, name, dtype, dims, NULL, NULL);
}
kr_tensor kr_graph_temp(kr_graph *g, int32_t dtype, kr_dims dims) {
  return add_storage(g, KR_HOME_TEMP, "", dtype, dims, NULL, NULL);
}
kr_tensor kr_graph_weight(kr_graph *g, const char *name, int32_t dtype, kr_dims dims, const void *data) {
  return add_storage(g, KR_HOME_WEIGHT, name, dtype, dims, NULL, (void *)data);
}
kr_tensor kr_graph_input_like(kr_graph *g, const char *name, const kr_view *layout, kr_dims dims) {
  return add_storage(g, KR_HOME_INPUT, name, layout->dtype, dims, layout->stride, layout->data);
}
kr_tensor kr_graph_output_like(kr_graph *g, const char *name, const kr_view *layout, kr_dims dims) {
  return add_storage(g, KR_HOME_OUTPUT, name, layout->dtype, dims, layout->stride, layout->data);
}

/* Without gaps, with the memory order of dimensions of these strides, the largest first. */
static kr_tensor temp_in_order(kr_graph *g, int32_t dtype, kr_dims dims, const int64_t *like) {
  int order[4] = {0, 1, 2, 3};
  int64_t stride[4] = {0}, next = 1;
  for (int i = 1; i < dims.n; i++)
    for (int k = i; k > 0 && like[order[k - 1]] < like[order[k]]; k--) {
      int swap = order[k];
      order[k] = order[k - 1], order[k - 1] = swap;
    }
  for (int i = dims.n - 1; i >= 0; i--) {
    stride[order[i]] = next;
    next *= dims.size[order[i]] > 0 ? dims.size[order[i]] : 1;
  }
  return add_storage(g, KR_HOME_TEMP, "", dtype, dims, stride, NULL);
}

kr_tensor kr_graph_temp_as(kr_graph *g, int32_t dtype, int32_t storage) {
  const kr_storage like = *KR_STORAGE(g, storage);
  return temp_in_order(g, dtype, like.dims, like.stride);
}
kr_tensor kr_graph_temp_like(kr_graph *g, int32_t storage) {
  return kr_graph_temp_as(g, KR_STORAGE(g, storage)->dtype, storage);
}

static kr_part *part_of(kr_graph *g, kr_tensor t) {
  if (!is_open(g)) return NULL;
  if (t > 0 && (size_t)t < g->parts.n) return KR_PART(g, t);
  kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: %d is not a tensor of this graph", t);
  return NULL;
}

const char *kr_graph_name(const kr_graph *g, kr_tensor t) {
  const kr_storage *s = KR_STORAGE(g, KR_PART(g, t)->storage);
  if (*s->name) return s->name;
  for (size_t i = 0; i < g->nodes.n; i++) /* a temp is named after its first writer */
    for (int32_t k = 0; k < KR_NODE(g, i)->n_uses; k++) {
      const kr_use *u = &KR_NODE(g, i)->uses[k];
      if (u->role & KR_WRITE && KR_PART(g, u->tensor)->storage == KR_PART(g, t)->storage) return KR_NODE(g, i)->name;
    }
  return "?";
}

/* ---- views ---- */

kr_tensor kr_graph_slice(kr_graph *g, kr_tensor t, int dim, int64_t from, int64_t n) {
  char text[96];
  const kr_part *old = part_of(g, t);
  if (!old) return 0;
  kr_part p = *old;
  if (dim < 0 || dim >= p.dims.n || from < 0 || n < 0 || from + n > p.dims.size[dim]) {
    kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: slice of %s %s: %lld from %lld of dimension %d", kr_graph_name(g, t),
                  kr_dims_text(p.dims, text), (long long)n, (long long)from, dim);
    return 0;
  }
  p.at_bytes += from * p.stride[dim] * (int64_t)krait_dtype_bytes(p.dtype);
  p.dims.size[dim] = n;
  return kr_graph_part(g, &p);
}

kr_tensor kr_graph_permute(kr_graph *g, kr_tensor t, const int *order) {
  const kr_part *old = part_of(g, t);
  if (!old) return 0;
  kr_part p = *old;
  for (int i = 0, seen = 0; i < p.dims.n; i++) {
    if (order[i] < 0 || order[i] >= p.dims.n || seen >> order[i] & 1) {
      kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: permutation of %s: not an order of %d dimensions", kr_graph_name(g, t),
                    p.dims.n);
      return 0;
    }
    seen |= 1 << order[i];
    p.dims.size[i] = old->dims.size[order[i]];
    p.stride[i] = old->stride[order[i]];
  }
  return kr_graph_part(g, &p);
}

/* Both shapes are traversed from the last dimension; each new one must be within a run of contiguous old ones. */
static int restride(const kr_part *old, kr_dims dims, int64_t *stride) {
  int k = old->dims.n - 1;
  int64_t left = 1, step = 1;
  for (int i = dims.n - 1; i >= 0; i--) {
    while (left == 1 && k >= 0) left = old->dims.size[k], step = old->stride[k], k--;
    while (left < dims.size[i] && k >= 0 && left && old->stride[k] == step * left) left *= old->dims.size[k], k--;
    if (dims.size[i] == 0 || left % dims.size[i]) return 0;
    stride[i] = step;
    step *= dims.size[i], left /= dims.size[i];
  }
  return 1;
}

kr_tensor kr_graph_reshape(kr_graph *g, kr_tensor t, kr_dims dims) {
  char from[96], to[96];
  const kr_part *old = part_of(g, t);
  if (!old || check_dims(g, kr_graph_name(g, t), old->dtype, dims) < 0) return 0;
  kr_part p = *old;
  p.dims = dims;
  const int64_t n = kr_dims_elements(dims);
  int fits = n == kr_dims_elements(old->dims);
  if (fits && n) fits = restride(old, dims, p.stride);
  else fill_strides(dims, p.stride);
  if (!fits) {
    kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: %s %s cannot be reshaped to %s without a copy", kr_graph_name(g, t),
                  kr_dims_text(old->dims, from), kr_dims_text(dims, to));
    return 0;
  }
  return kr_graph_part(g, &p);
}

int kr_graph_can_reshape(const kr_graph *g, kr_tensor t, kr_dims dims) {
  int64_t stride[4];
  const int64_t n = kr_dims_elements(dims);
  if (t <= 0 || (size_t)t >= g->parts.n || n != kr_dims_elements(KR_PART(g, t)->dims)) return 0;
  return n == 0 || restride(KR_PART(g, t), dims, stride);
}

kr_tensor kr_graph_expand(kr_graph *g, kr_tensor t, kr_dims dims) {
  char from[96], to[96];
  const kr_part *old = part_of(g, t);
  if (!old || check_dims(g, kr_graph_name(g, t), old->dtype, dims) < 0) return 0;
  kr_part p = *old;
  int fits = dims.n == p.dims.n;
  for (int i = 0; fits && i < dims.n; i++) {
    if (p.dims.size[i] == 1 && dims.size[i] != 1) p.stride[i] = 0, p.dims.size[i] = dims.size[i];
    fits = p.dims.size[i] == dims.size[i];
  }
  if (!fits) {
    kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: %s %s cannot be expanded to %s", kr_graph_name(g, t),
                  kr_dims_text(old->dims, from), kr_dims_text(dims, to));
    return 0;
  }
  return kr_graph_part(g, &p);
}

kr_tensor kr_graph_windows(kr_graph *g, kr_tensor t, int dim, int64_t size, int64_t step) {
  char text[96];
  const kr_part *old = part_of(g, t);
  if (!old) return 0;
  kr_part p = *old;
  if (dim < 0 || dim >= p.dims.n || p.dims.n > 3 || size < 1 || step < 1 || size > p.dims.size[dim]) {
    kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: windows of %s %s: %lld of dimension %d", kr_graph_name(g, t),
                  kr_dims_text(p.dims, text), (long long)size, dim);
    return 0;
  }
  for (int i = p.dims.n++; i > dim; i--) p.dims.size[i] = p.dims.size[i - 1], p.stride[i] = p.stride[i - 1];
  p.dims.size[dim] = (old->dims.size[dim] - size) / step + 1;
  p.dims.size[dim + 1] = size;
  p.stride[dim] *= step;
  return kr_graph_part(g, &p);
}

kr_dims kr_graph_dims(const kr_graph *g, kr_tensor t) {
  return t > 0 && (size_t)t < g->parts.n ? KR_PART(g, t)->dims : (kr_dims){0};
}
int32_t kr_graph_dtype(const kr_graph *g, kr_tensor t) {
  return t > 0 && (size_t)t < g->parts.n ? KR_PART(g, t)->dtype : -1;
}

kr_view kr_graph_view(const kr_graph *g, kr_tensor t) {
  kr_view v = {0};
  if (t <= 0 || (size_t)t >= g->parts.n) return v;
  const kr_part *p = KR_PART(g, t);
  v.data = (void *)(((uintptr_t)(p->storage + 1) << OFFSET_BITS) + (uintptr_t)p->at_bytes);
  memcpy(v.stride, p->stride, sizeof v.stride);
  v.dtype = p->dtype;
  v.reserved = t;
  return v;
}

/* ---- calls ---- */

enum { ASKED = -1 };
kr_view kr_graph_auto(void) { return (kr_view){.reserved = ASKED}; }

/* Shapes of the tensors that the views name; the names are removed. */
static int32_t read_shapes(kr_graph *g, const kr_node *node, kr_shape *shapes, kr_tensor *tensors) {
  const kr_sig *sig = node->op->sig;
  for (int i = 0; i < sig->n_tensors; i++) {
    kr_view *v = kr_sig_view(sig, node->args, i);
    const kr_tensor t = tensors[i] = v->reserved;
    v->reserved = 0;
    shapes[i] = (kr_shape){.n_dims = t == ASKED ? KR_SHAPE_ASKED : KR_SHAPE_ABSENT};
    if (t == ASKED || (t == 0 && !v->data)) continue;
    if (t <= 0 || (size_t)t >= g->parts.n)
      return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: node %s (%s): %s is not a tensor of this graph", node->name,
                           sig->name, sig->tensors[i].name);
    const kr_part *p = KR_PART(g, t);
    shapes[i].n_dims = p->dims.n;
    memcpy(shapes[i].size, p->dims.size, sizeof p->dims.size);
  }
  return KRAIT_OK;
}

/* A requested output has the memory layout of the first input of the same shape. */
static kr_tensor make_output(kr_graph *g, const kr_node *node, const kr_tensor *tensors, int which,
                             const kr_shape *shape) {
  const kr_sig *sig = node->op->sig;
  const kr_dims dims = kr_dims_of(shape->n_dims, shape->size);
  const int32_t dtype = kr_sig_output_type(sig, node->args, kr_sig_facts(sig, node->args), which);
  for (int i = 0; i < sig->n_tensors; i++) {
    if (!(sig->tensors[i].role & KR_IN) || tensors[i] <= 0 || !kr_dims_same(kr_graph_dims(g, tensors[i]), dims))
      continue;
    const kr_part like = *KR_PART(g, tensors[i]);
    return temp_in_order(g, dtype, dims, like.stride);
  }
  return kr_graph_temp(g, dtype, dims);
}

/* float64 is only for reference implementations; contracts do not allow it. */
static int32_t check_call(kr_graph *g, const kr_node *node) {
  const kr_sig *sig = node->op->sig;
  unsigned char *args = kr_arena_try(g->arena, sig->args_bytes);
  if (!args) return kr_graph_status(g);
  memcpy(args, node->args, sig->args_bytes);
  for (int i = 0; i < sig->n_tensors; i++)
    if (kr_sig_view(sig, args, i)->dtype == KRAIT_F64) kr_sig_view(sig, args, i)->dtype = KRAIT_F32;
  return kr_op_check(node->op, args);
}

static int32_t blame(kr_graph *g, const kr_node *node, int32_t status) {
  const char *why = kr_arena_print(g->arena, "%s", krait_error_detail());
  return kr_graph_fail(g, status, "graph: node %s: %s", node->name, why);
}

static int32_t add_use(kr_graph *g, kr_node *node, int which, kr_tensor t) {
  const kr_sig_tensor *s = &node->op->sig->tensors[which];
  const int32_t home = KR_STORAGE(g, KR_PART(g, t)->storage)->home;
  if (s->role & KR_OUT && (home == KR_HOME_INPUT || home == KR_HOME_WEIGHT))
    return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: node %s (%s): %s is %s, which is %s", node->name,
                         node->op->name, s->name, kr_graph_name(g, t), home == KR_HOME_INPUT ? "an input" : "a weight");
  node->uses[node->n_uses++] = (kr_use){s->offset, s->role, t};
  return KRAIT_OK;
}

static int32_t read_call(kr_graph *g, kr_node *node, kr_tensor *first) {
  const kr_sig *sig = node->op->sig;
  kr_shape shapes[KR_MOST_VIEWS];
  kr_tensor tensors[KR_MOST_VIEWS];
  KR_TRY(read_shapes(g, node, shapes, tensors));
  const int32_t status = kr_sig_infer(sig, node->args, shapes);
  if (status < 0) return blame(g, node, status);
  node->uses = kr_arena_try(g->arena, sig->n_tensors * sizeof *node->uses); /* room for rewrites, too */
  if (!node->uses) return kr_graph_status(g);
  for (int i = 0; i < sig->n_tensors; i++) {
    if (tensors[i] == ASKED) {
      tensors[i] = make_output(g, node, tensors, i, &shapes[i]);
      *kr_sig_view(sig, node->args, i) = kr_graph_view(g, tensors[i]);
      kr_sig_view(sig, node->args, i)->reserved = 0;
    }
    if (tensors[i] <= 0) continue;
    KR_TRY(add_use(g, node, i, tensors[i]));
    if (!*first && sig->tensors[i].role == KR_OUT) *first = tensors[i];
  }
  const int32_t checked = check_call(g, node);
  return checked < 0 ? blame(g, node, checked) : kr_graph_status(g);
}

kr_tensor kr_graph_call(kr_graph *g, const char *name, const kr_op *op, const void *args) {
  if (!is_open(g)) return 0;
  kr_node node = {
      .lane = g->lane,
      .name = kr_arena_copy(g->arena, name, strlen(name)), .op = op, .args = kr_arena_alloc(g->arena, op->args_bytes)};
  kr_tensor first = 0;
  if (kr_arena_failed(g->arena)) return 0;
  memcpy(node.args, args, op->args_bytes);
  ((kr_call *)node.args)->size = op->args_bytes;
  if (read_call(g, &node, &first) < 0) return 0;
  kr_node *added = kr_list_push(g->arena, &g->nodes);
  *added = node;
  return first;
}

kr_tensor kr_graph_result(const kr_graph *g, const char *tensor) {
  if (!g->nodes.n || kr_arena_failed(g->arena)) return 0;
  const kr_node *node = KR_NODE(g, g->nodes.n - 1);
  const int which = kr_sig_find(node->op->sig, tensor);
  for (int32_t i = 0; i < node->n_uses && which >= 0; i++)
    if (node->uses[i].offset == node->op->sig->tensors[which].offset) return node->uses[i].tensor;
  return 0;
}

/* ---- pointwise ---- */

static kr_dims padded(kr_dims d) {
  kr_dims p = {.n = 4, .size = {1, 1, 1, 1}};
  for (int i = 0; i < d.n; i++) p.size[4 - d.n + i] = d.size[i];
  return p;
}

static kr_view padded_view(kr_graph *g, kr_tensor t) {
  if (!t) return (kr_view){0};
  kr_part p = *KR_PART(g, t);
  const kr_dims dims = p.dims;
  int64_t stride[4] = {0};
  for (int i = 0; i < dims.n; i++) stride[4 - dims.n + i] = p.stride[i];
  p.dims = padded(dims);
  memcpy(p.stride, stride, sizeof stride);
  return kr_graph_view(g, kr_graph_part(g, &p));
}

void kr_graph_pointwise(kr_graph *g, const char *name, kr_pointwise_args args, kr_tensor x, kr_tensor y,
                        kr_tensor out) {
  if (!out) return;
  args.x = padded_view(g, x), args.y = padded_view(g, y), args.out = padded_view(g, out);
  kr_graph_call(g, name, &kr_op_pointwise, &args);
}
