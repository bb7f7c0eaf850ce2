/* case.c: random sizes, strides and values for one call of an op; and the storage with its guard bytes. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "case.h"
#include "status.h"
#include "view.h"

/* 0xffff... is not a number in every float type. */
enum {
  MOST_EXACT = 5,
  GUARD_ELEMENTS = 32,
  POISON_BYTE = 0xff
};

static uint64_t next_random(kr_case *c) { /* splitmix64 */
  uint64_t z = (c->random += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

double kr_case_uniform(kr_case *c, double low, double high) {
  return low + (high - low) * (double)(next_random(c) >> 11) * 0x1p-53;
}

/* Two at a time, from a point of the unit circle (Marsaglia's polar method): one logarithm and no cosine. */
double kr_case_normal(kr_case *c) {
  double x, y, square;
  if (c->has_normal) return c->has_normal = 0, c->normal;
  do {
    const uint64_t bits = next_random(c);
    x = (double)(int32_t)(uint32_t)bits * 0x1p-31, y = (double)(int32_t)(uint32_t)(bits >> 32) * 0x1p-31;
    square = x * x + y * y;
  } while (square >= 1 || square == 0);
  const double scale = sqrt(-2 * log(square) / square);
  c->normal = y * scale, c->has_normal = 1;
  return x * scale;
}

uint64_t kr_case_begin_values(kr_case *c) {
  const uint64_t begun = next_random(c);
  c->has_normal = 0;
  return begun;
}

void kr_case_end_values(kr_case *c, uint64_t begun) { c->random = begun; }

int64_t kr_case_int(kr_case *c, int64_t low, int64_t high) {
  return low + (int64_t)(next_random(c) % (uint64_t)(high - low + 1));
}
int64_t kr_case_pick(kr_case *c, int n, const int64_t *choices) { return choices[kr_case_int(c, 0, n - 1)]; }
int kr_case_chance(kr_case *c, double p) { return kr_case_uniform(c, 0, 1) < p; }

int64_t kr_case_edge(kr_case *c, int64_t most) {
  if (c->is_exact && most > MOST_EXACT) most = MOST_EXACT;
  static const int64_t edges[] = {1,  2,  3,  4,   5,   7,   8,   9,   15,  16,  17,   31,   32,   33,
                                  63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 1023, 1025, 2047, 2049};
  int n = 0;
  while (n < (int)(sizeof edges / sizeof *edges) && edges[n] <= most) n++;
  return kr_case_chance(c, 0.7) ? kr_case_pick(c, n, edges) : kr_case_int(c, 1, most);
}

int32_t kr_case_activation_dtype(kr_case *c) {
  return (int32_t)kr_case_pick(c, 4, (int64_t[]){KRAIT_F32, KRAIT_F32, KRAIT_F16, KRAIT_BF16});
}

static void default_bound(kr_case_tensor *t, int32_t dtype) {
  t->rtol = dtype == KRAIT_F16                         ? 2e-3
            : dtype == KRAIT_BF16                      ? 1.6e-2
            : dtype == KRAIT_F32 || dtype == KRAIT_C64 ? 1e-5
                                                       : 0;
  t->atol = 1e-30;
}

/* Random memory order of dimensions, random padding; half the time the last dimension has stride 1. */
static int64_t choose_strides(kr_case *c, kr_view *view, int n_dims, const int64_t *shape) {
  int order[4] = {0, 1, 2, 3};
  if (c->channels_last && n_dims > 2) { /* time after the batch */
    for (int i = 1; i < n_dims; i++) order[i] = i == 1 ? n_dims - 1 : i - 1;
  } else if (!c->contiguous && !c->anywhere && kr_case_chance(c, 0.5))
    for (int i = n_dims - 1; i > 0; i--) {
      int j = (int)kr_case_int(c, 0, i), swap = order[i];
      order[i] = order[j];
      order[j] = swap;
    }
  int64_t stride =
      !c->contiguous && !c->anywhere && !c->channels_last && kr_case_chance(c, 0.15) ? kr_case_int(c, 2, 3) : 1;
  for (int i = n_dims - 1; i >= 0; i--) {
    view->stride[order[i]] = stride;
    stride *= shape[order[i]] > 0 ? shape[order[i]] : 1;
    if (!c->contiguous && kr_case_chance(c, 0.25)) stride += kr_case_int(c, 1, 9);
  }
  return stride;
}

void kr_case_view(kr_case *c, kr_view *view, const char *name, int role, int32_t dtype, int n_dims,
                  const int64_t *shape) {
  if (c->status < 0 || c->n_tensors == KR_CASE_MAX_VIEWS) return;
  kr_case_tensor *t = &c->tensors[c->n_tensors++];
  *t = (kr_case_tensor){
      .view_offset = (size_t)((unsigned char *)view - c->args), .name = name, .role = role, .n_dims = n_dims};
  memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
  *view = (kr_view){.dtype = dtype};
  t->n_storage = choose_strides(c, view, n_dims, shape) + 2 * GUARD_ELEMENTS;
  size_t bytes = (size_t)t->n_storage * krait_dtype_bytes(dtype);
  t->storage = kr_alloc(bytes);
  t->initial = kr_alloc(bytes);
  t->expected = kr_alloc(bytes);
  if (!t->storage || !t->initial || !t->expected) {
    c->status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
    return;
  }
  if (!c->is_unfilled) memset(t->storage, POISON_BYTE, bytes);
  view->data =
      t->storage + (size_t)(GUARD_ELEMENTS - (c->anywhere ? kr_case_int(c, 0, 7) : 0)) * krait_dtype_bytes(dtype);
  default_bound(t, dtype);
}

static kr_case_tensor *tensor_of(kr_case *c, const kr_view *view) {
  size_t offset = (size_t)((const unsigned char *)view - c->args);
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].view_offset == offset) return &c->tensors[i];
  return NULL;
}

void kr_case_bound(kr_case *c, const kr_view *view, double rtol, double atol) {
  kr_case_tensor *t = tensor_of(c, view);
  if (!t) return;
  t->rtol = rtol;
  t->atol = atol;
}

int64_t kr_tensor_elements(const kr_case_tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
  return n;
}

int64_t kr_tensor_offset(const kr_case_tensor *t, const kr_view *view, int64_t flat) {
  int64_t offset = 0;
  for (int i = t->n_dims - 1; i >= 0; i--) {
    offset += flat % t->shape[i] * view->stride[i];
    flat /= t->shape[i];
  }
  return offset;
}

double kr_tensor_part(const kr_view *view, int64_t offset, int part) {
  if (view->dtype == KRAIT_C64) return ((const float *)view->data)[2 * offset + part];
  if (view->dtype == KRAIT_I32) return ((const int32_t *)view->data)[offset];
  return kr_get(view, offset);
}

static void put_element(const kr_view *view, int64_t offset, double re, double im) {
  if (view->dtype == KRAIT_C64) {
    ((float *)view->data)[2 * offset] = (float)re;
    ((float *)view->data)[2 * offset + 1] = (float)im;
  } else {
    kr_put(view, offset, re);
  }
}

/* Large tensors repeat their first elements, for drawing them would take most of a call's time: after a prime number of
 * them, so that no two rows of a usual length are the same, and a wrong offset finds another value. */
enum { PERIOD = 65537 };

static void copy_element(const kr_view *view, int64_t to, int64_t from) {
  const size_t bytes = krait_dtype_bytes(view->dtype);
  unsigned char *const data = view->data;
  memcpy(data + (size_t)to * bytes, data + (size_t)from * bytes, bytes);
}

static void fill_with(kr_case *c, const kr_view *view, double (*draw)(kr_case *, double, double), double a, double b,
                      double imaginary_a, double imaginary_b) {
  const kr_case_tensor *t = tensor_of(c, view);
  const uint64_t begun = kr_case_begin_values(c);
  const int is_complex = view->dtype == KRAIT_C64;
  if (!t || c->is_unfilled) {
    kr_case_end_values(c, begun);
    return;
  }
  kr_tensor_walk at = {.n_left = kr_tensor_elements(t)}, before = at;
  for (int64_t i = 0; at.n_left; i++, kr_tensor_step(&at, t, view)) {
    if (i < PERIOD) {
      const double re = draw(c, a, b);
      put_element(view, at.offset, re, is_complex ? draw(c, imaginary_a, imaginary_b) : 0);
    } else {
      copy_element(view, at.offset, before.offset);
      kr_tensor_step(&before, t, view);
    }
  }
  kr_case_end_values(c, begun);
}

static double draw_normal(kr_case *c, double mean, double deviation) { return mean + deviation * kr_case_normal(c); }

void kr_case_fill_normal(kr_case *c, const kr_view *view, double mean, double deviation) {
  fill_with(c, view, draw_normal, mean, deviation, 0, deviation);
}

void kr_case_fill_uniform(kr_case *c, const kr_view *view, double low, double high) {
  fill_with(c, view, kr_case_uniform, low, high, -1, 1);
}

static double largest(int32_t dtype) { return dtype == KRAIT_F16 ? 65504 : dtype == KRAIT_BF16 ? 0x1.fep127 : FLT_MAX; }
static double smallest(int32_t dtype) { return dtype == KRAIT_F16 ? 0x1p-24 : 0x1p-126; }

static double draw_end(kr_case *c, double most, double least) {
  const double kind = kr_case_uniform(c, 0, 1), sign = kr_case_chance(c, 0.5) ? 1 : -1;
  return kind < 0.15 ? sign * most : kind < 0.25 ? sign * least : kind < 0.35 ? 0 : kr_case_normal(c);
}

void kr_case_fill_ends(kr_case *c, const kr_view *view, double most, double low) {
  fill_with(c, view, draw_end, fmin(most, largest(view->dtype)), smallest(view->dtype), 0, 0);
  const kr_case_tensor *t = tensor_of(c, view);
  if (!t || c->is_unfilled || low < 0) return;
  for (kr_tensor_walk at = {.n_left = kr_tensor_elements(t)}; at.n_left; kr_tensor_step(&at, t, view))
    kr_put(view, at.offset, fmax(fabs(kr_get(view, at.offset)), low));
}

void kr_case_spoil(kr_case *c, const kr_view *view, int dimension, const unsigned char *reached) {
  const kr_case_tensor *t = tensor_of(c, view);
  if (!t || c->is_unfilled) return;
  for (kr_tensor_walk at = {.n_left = kr_tensor_elements(t)}; at.n_left; kr_tensor_step(&at, t, view))
    if (!reached[at.index[0] * t->shape[dimension] + at.index[dimension]]) kr_put(view, at.offset, NAN);
}

const char *kr_case_hard(kr_case *c, int n, const char *const *names, double most) {
  if (!c->is_hard || !kr_case_chance(c, 0.7)) return NULL;
  const char *name = names[kr_case_int(c, 0, n - 1)];
  const int i = kr_sig_find(c->sig, name);
  if (i < 0) return NULL;
  c->at_ends |= 1ull << i, c->most = most;
  return name;
}

void kr_case_set_i32(kr_case *c, const kr_view *view, int64_t flat_index, int32_t value) {
  kr_case_tensor *t = tensor_of(c, view);
  if (t) ((int32_t *)view->data)[kr_tensor_offset(t, view, flat_index)] = value;
}

void kr_case_sequences(kr_case *c, kr_view *seq_idx, int64_t B, int64_t L) {
  kr_case_view(c, seq_idx, "seq_idx", KR_IN, KRAIT_I32, KR_SHAPE(B, L));
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0, index = 0; t < L; t++) {
      if (kr_case_chance(c, 0.1)) index = kr_case_int(c, -1, 5);
      kr_case_set_i32(c, seq_idx, b * L + t, (int32_t)index);
    }
}

void kr_case_offsets(kr_case *c, kr_view *cu_seqlens, int64_t S, int64_t total) {
  kr_case_view(c, cu_seqlens, "cu_seqlens", KR_IN, KRAIT_I32, KR_SHAPE(S + 1));
  int64_t at = 0;
  for (int64_t s = 0; s <= S; s++) {
    kr_case_set_i32(c, cu_seqlens, s, (int32_t)(s == S ? total : at));
    if (kr_case_chance(c, 0.8)) at = kr_case_int(c, at, total);
  }
}

int32_t kr_case_spoil_padding(kr_case *c, int n, const char *const *names, int tokens) {
  const kr_view *indices = kr_sig_view(c->sig, c->args, kr_sig_find(c->sig, "seq_idx"));
  const kr_case_tensor *t = tensor_of(c, indices);
  const int wanted = kr_case_chance(c, 0.5) && !c->is_exact && !c->is_unfilled && c->status >= 0;
  unsigned char *const reached = wanted && t ? kr_alloc((size_t)kr_tensor_elements(t) + 1) : NULL;
  if (!wanted || !t) return c->status;
  KR_CHECK(reached, KRAIT_ERR_NO_MEMORY, "no memory for a case");
  for (int64_t i = 0; i < kr_tensor_elements(t); i++)
    reached[i] = kr_get_i32(indices, kr_tensor_offset(t, indices, i)) >= 0;
  for (int i = 0; i < n; i++) {
    const int which = kr_sig_find(c->sig, names[i]);
    const kr_view *view = which < 0 ? NULL : kr_sig_view(c->sig, c->args, which);
    const kr_case_tensor *of = view ? tensor_of(c, view) : NULL;
    const int dimension = of && tokens < 0 ? of->n_dims - 1 : tokens;
    if (of && of->shape[0] == t->shape[0] && of->shape[dimension] == t->shape[1])
      kr_case_spoil(c, view, dimension, reached);
  }
  kr_free(reached);
  return c->status;
}

/* ---- by the signature ---- */

int64_t *kr_case_size(kr_case *c, const char *name) {
  const int size = kr_sig_find_size(c->sig, name);
  return size < 0 ? NULL : (int64_t *)(void *)(c->args + c->sig->sizes[size].offset);
}

void kr_case_leave_out(kr_case *c, const char *name) {
  const int i = kr_sig_find(c->sig, name);
  if (i >= 0) c->decided |= 1ull << i;
}

static void fill(kr_case *c, kr_view *view, const kr_sig_draw *draw, const kr_shape *shape) {
  const int64_t n = draw->rows < 0 ? 0 : kr_sig_get_size(c->sig, c->args, draw->rows);
  switch (draw->kind) {
    case KR_DRAW_UNIFORM: kr_case_fill_uniform(c, view, draw->a, draw->b); break;
    case KR_DRAW_ROWS: /* every row once at most; some are none */
      for (int64_t i = 0; i < shape->size[0]; i++)
        kr_case_set_i32(c, view, i, kr_case_chance(c, 0.2) ? -1 : (int32_t)(n - 1 - i));
      break;
    case KR_DRAW_COUNTS:
      for (int64_t i = 0; i < shape->size[0]; i++)
        kr_case_set_i32(c, view, i, (int32_t)kr_case_int(c, (int64_t)draw->a, (int64_t)draw->b));
      break;
    default: kr_case_fill_normal(c, view, draw->a, draw->b);
  }
}

/* Steps must not be negative. */
static double lowest(const kr_sig_draw *draw) {
  return draw->kind == KR_DRAW_UNIFORM && draw->a >= 0 ? (double)draw->a : -INFINITY;
}

static int32_t draw_type(kr_case *c, int i, uint32_t facts) {
  const kr_sig_tensor *t = &c->sig->tensors[i];
  const uint32_t types = kr_sig_types_of(c->sig, c->args, facts, i);
  if (t->same >= 0) return kr_sig_view(c->sig, c->args, t->same)->dtype;
  if (c->is_complex && types >> KRAIT_C64 & 1) return KRAIT_C64;
  if (c->is_exact && types >> KRAIT_F32 & 1) return KRAIT_F64;
  if (!(types & (types - 1))) return (int32_t)__builtin_ctz(types);
  if (!(types >> KRAIT_F16 & 1)) return KRAIT_F32;
  if (t->draw.is_mixed) return c->other;
  if (t->gradient_of >= 0) return kr_sig_output_type(c->sig, c->args, facts, i);
  return t->tensor_class == KR_CLASS_PARAMETER ? c->other : c->dtype;
}

static void give(kr_case *c, int i, uint32_t facts) {
  const kr_sig_tensor *t = &c->sig->tensors[i];
  const kr_shape shape = kr_sig_shape(c->sig, c->args, facts, i);
  kr_view *view = kr_sig_view(c->sig, c->args, i);
  c->decided |= 1ull << i;
  if (t->draw.kind == KR_DRAW_SEQUENCES) {
    kr_case_sequences(c, view, shape.size[0], shape.size[1]);
    return;
  }
  if (t->draw.kind == KR_DRAW_OFFSETS) {
    kr_case_offsets(c, view, shape.size[0] - 1, kr_sig_get_size(c->sig, c->args, t->draw.rows));
    return;
  }
  kr_case_view(c, view, t->name, t->role, draw_type(c, i, facts), shape.n_dims, shape.size);
  if (t->role & KR_IN && c->at_ends >> i & 1) kr_case_fill_ends(c, view, c->most, lowest(&t->draw));
  else if (t->role & KR_IN) fill(c, view, &t->draw, &shape);
  if (t->draw.rtol < 0) kr_case_bound(c, view, 0, 0);
  else if (t->draw.rtol > 0 && (view->dtype == KRAIT_F32 || view->dtype == KRAIT_C64))
    kr_case_bound(c, view, t->draw.rtol, t->draw.atol);
}

kr_view *kr_case_give(kr_case *c, const char *name) {
  const int i = kr_sig_find(c->sig, name);
  if (i < 0) return NULL;
  give(c, i, kr_sig_facts(c->sig, c->args));
  return kr_sig_view(c->sig, c->args, i);
}

static int is_empty(const kr_shape *shape) {
  for (int d = 0; d < shape->n_dims; d++)
    if (shape->size[d] == 0) return 1;
  return 0;
}

static int is_wanted(kr_case *c, int i, uint32_t facts) {
  const kr_sig_tensor *t = &c->sig->tensors[i];
  const kr_shape shape = kr_sig_shape(c->sig, c->args, facts, i);
  if (kr_sig_forbids(c->sig, facts, i)) return 0;
  if (!t->is_optional) return 1;
  return !is_empty(&shape) && ((c->is_exact && t->role == KR_OUT) || kr_case_chance(c, t->draw.chance));
}

void kr_case_give_rest(kr_case *c) {
  for (int i = 0; i < c->sig->n_tensors; i++) {
    const uint32_t facts = kr_sig_facts(c->sig, c->args); /* of those given so far */
    if (c->decided >> i & 1) continue;
    if (is_wanted(c, i, facts)) give(c, i, facts);
    c->decided |= 1ull << i;
  }
}

static void draw_fields(kr_case *c) {
  for (int i = 0; i < c->sig->n_flags; i++)
    if (kr_case_chance(c, c->sig->flag_list[i].chance)) ((kr_call *)c->args)->flags |= c->sig->flag_list[i].bit;
  for (int i = 0; i < c->sig->n_fields; i++) {
    const kr_sig_field *f = &c->sig->fields[i];
    int32_t choice;
    const float value = c->is_exact ? 50 * f->usual : f->usual; /* the step of finite differences must be small compared
                                                                   with it */
    do choice = (int32_t)kr_case_int(c, 0, 31);
    while (f->kind == KR_FIELD_CHOICE && !(f->choices >> choice & 1));
    if (f->kind == KR_FIELD_CHOICE) memcpy(c->args + f->offset, &choice, sizeof choice);
    else memcpy(c->args + f->offset, &value, sizeof value);
  }
}

static int32_t make(kr_case *c, const kr_op *op, int64_t index) {
  c->sig = op->sig;
  c->dtype = kr_case_activation_dtype(c), c->other = kr_case_chance(c, 0.5) ? c->dtype : KRAIT_F32;
  ((kr_call *)c->args)->size = op->args_bytes;
  draw_fields(c);
  KR_TRY(op->make_case(c, index));
  kr_case_give_rest(c);
  return c->status;
}

int32_t kr_case_open(kr_case *c, const kr_op *op, uint64_t seed, int64_t index, int kind) {
  memset(c, 0, sizeof *c);
  c->random = seed * 0x2545f4914f6cdd1dull + (uint64_t)index * 0x9e3779b97f4a7c15ull + 1;
  c->is_exact = kind == KR_CASE_EXACT, c->is_unfilled = kind == KR_CASE_UNFILLED || kind == KR_CASE_ASKED;
  c->is_hard = (kind == KR_CASE_CHECKED || kind == KR_CASE_ASKED) && kr_case_chance(c, 0.2);
  const int32_t status = make(c, op, index);
  for (int i = 0; status >= 0 && i < c->n_tensors && !c->is_unfilled; i++) {
    kr_case_tensor *t = &c->tensors[i];
    const kr_view *view = (const kr_view *)(c->args + t->view_offset);
    memcpy(t->initial, t->storage, (size_t)t->n_storage * krait_dtype_bytes(view->dtype));
  }
  if (status < 0) kr_case_close(c);
  return status;
}

void kr_case_reset(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    kr_case_tensor *t = &c->tensors[i];
    const kr_view *view = (const kr_view *)(c->args + t->view_offset);
    memcpy(t->storage, t->initial, (size_t)t->n_storage * krait_dtype_bytes(view->dtype));
  }
}

void kr_case_close(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    kr_free(c->tensors[i].storage);
    kr_free(c->tensors[i].initial);
    kr_free(c->tensors[i].expected);
    kr_free(c->tensors[i].moved);
  }
  c->n_tensors = 0;
}
