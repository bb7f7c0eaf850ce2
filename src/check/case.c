/* case.c: random sizes, strides and values for one call of an op; and the storage with its guards. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "case.h"
#include "status.h"
#include "view.h"

enum { GUARD_ELEMENTS = 32, POISON_BYTE = 0xfb }; /* 0xfbfb... reads as a huge negative number in every float type */

static uint64_t next_random(kr_case *c) { /* splitmix64 */
  uint64_t z = (c->random += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

double kr_case_uniform(kr_case *c, double low, double high) {
  return low + (high - low) * (double)(next_random(c) >> 11) * 0x1p-53;
}

double kr_case_normal(kr_case *c) {
  double radius = sqrt(-2 * log(kr_case_uniform(c, 0x1p-60, 1)));
  return radius * cos(6.283185307179586 * kr_case_uniform(c, 0, 1));
}

int64_t kr_case_int(kr_case *c, int64_t low, int64_t high) { return low + (int64_t)(next_random(c) % (uint64_t)(high - low + 1)); }
int64_t kr_case_pick(kr_case *c, int n, const int64_t *choices) { return choices[kr_case_int(c, 0, n - 1)]; }
int kr_case_chance(kr_case *c, double p) { return kr_case_uniform(c, 0, 1) < p; }

int64_t kr_case_edge(kr_case *c, int64_t most) {
  static const int64_t edges[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 1023, 1025, 2047, 2049};
  int n = 0;
  while (n < (int)(sizeof edges / sizeof *edges) && edges[n] <= most) n++;
  return kr_case_chance(c, 0.7) ? kr_case_pick(c, n, edges) : kr_case_int(c, 1, most);
}

int32_t kr_case_activation_dtype(kr_case *c) {
  return (int32_t)kr_case_pick(c, 4, (int64_t[]){KRAIT_F32, KRAIT_F32, KRAIT_F16, KRAIT_BF16});
}

static void default_bound(kr_case_tensor *t, int32_t dtype) {
  t->rtol = dtype == KRAIT_F16 ? 2e-3 : dtype == KRAIT_BF16 ? 1.6e-2 : dtype == KRAIT_F32 || dtype == KRAIT_C64 ? 1e-5 : 0;
  t->atol = 1e-30;
}

/* Random order of dimensions in memory, random padding; the last dimension innermost half the time. */
static int64_t choose_strides(kr_case *c, krait_view *view, int n_dims, const int64_t *shape) {
  int order[4] = {0, 1, 2, 3};
  if (!c->contiguous && !c->anywhere && kr_case_chance(c, 0.5))
    for (int i = n_dims - 1; i > 0; i--) {
      int j = (int)kr_case_int(c, 0, i), swap = order[i];
      order[i] = order[j];
      order[j] = swap;
    }
  int64_t stride = !c->contiguous && !c->anywhere && kr_case_chance(c, 0.15) ? kr_case_int(c, 2, 3) : 1;
  for (int i = n_dims - 1; i >= 0; i--) {
    view->stride[order[i]] = stride;
    stride *= shape[order[i]] > 0 ? shape[order[i]] : 1;
    if (!c->contiguous && kr_case_chance(c, 0.25)) stride += kr_case_int(c, 1, 9);
  }
  return stride;
}

void kr_case_view(kr_case *c, krait_view *view, const char *name, int role, int32_t dtype, int n_dims, const int64_t *shape) {
  if (c->status < 0 || c->n_tensors == KR_CASE_MAX_VIEWS) return;
  kr_case_tensor *t = &c->tensors[c->n_tensors++];
  *t = (kr_case_tensor){.view_offset = (size_t)((unsigned char *)view - c->args), .name = name, .role = role, .n_dims = n_dims};
  memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
  *view = (krait_view){.dtype = dtype};
  t->n_storage = choose_strides(c, view, n_dims, shape) + 2 * GUARD_ELEMENTS;
  size_t bytes = (size_t)t->n_storage * krait_dtype_bytes(dtype);
  t->storage = kr_alloc(bytes);
  t->initial = kr_alloc(bytes);
  t->expected = kr_alloc(bytes);
  if (!t->storage || !t->initial || !t->expected) {
    c->status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
    return;
  }
  memset(t->storage, POISON_BYTE, bytes);
  view->data = t->storage + (size_t)(GUARD_ELEMENTS - (c->anywhere ? kr_case_int(c, 0, 7) : 0)) * krait_dtype_bytes(dtype);
  default_bound(t, dtype);
}

static kr_case_tensor *tensor_of(kr_case *c, const krait_view *view) {
  size_t offset = (size_t)((const unsigned char *)view - c->args);
  for (int i = 0; i < c->n_tensors; i++)
    if (c->tensors[i].view_offset == offset) return &c->tensors[i];
  return NULL;
}

void kr_case_bound(kr_case *c, const krait_view *view, double rtol, double atol) {
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

int64_t kr_tensor_offset(const kr_case_tensor *t, const krait_view *view, int64_t flat) {
  int64_t offset = 0;
  for (int i = t->n_dims - 1; i >= 0; i--) {
    offset += flat % t->shape[i] * view->stride[i];
    flat /= t->shape[i];
  }
  return offset;
}

double kr_tensor_part(const krait_view *view, int64_t offset, int part) {
  if (view->dtype == KRAIT_C64) return ((const float *)view->data)[2 * offset + part];
  if (view->dtype == KRAIT_I32) return ((const int32_t *)view->data)[offset];
  return kr_get(view, offset);
}

static void put_element(const krait_view *view, int64_t offset, double re, double im) {
  if (view->dtype == KRAIT_C64) {
    ((float *)view->data)[2 * offset] = (float)re;
    ((float *)view->data)[2 * offset + 1] = (float)im;
  } else {
    kr_put(view, offset, re);
  }
}

void kr_case_fill_normal(kr_case *c, const krait_view *view, double mean, double deviation) {
  kr_case_tensor *t = tensor_of(c, view);
  for (int64_t i = 0, n = t ? kr_tensor_elements(t) : 0; i < n; i++) {
    double re = mean + deviation * kr_case_normal(c), im = deviation * kr_case_normal(c);
    put_element(view, kr_tensor_offset(t, view, i), re, im);
  }
}

void kr_case_fill_uniform(kr_case *c, const krait_view *view, double low, double high) {
  kr_case_tensor *t = tensor_of(c, view);
  for (int64_t i = 0, n = t ? kr_tensor_elements(t) : 0; i < n; i++) {
    double re = kr_case_uniform(c, low, high), im = kr_case_uniform(c, -1, 1);
    put_element(view, kr_tensor_offset(t, view, i), re, im);
  }
}

void kr_case_set_i32(kr_case *c, const krait_view *view, int64_t flat_index, int32_t value) {
  kr_case_tensor *t = tensor_of(c, view);
  if (t) ((int32_t *)view->data)[kr_tensor_offset(t, view, flat_index)] = value;
}

void kr_case_sequences(kr_case *c, krait_view *seq_idx, int64_t B, int64_t L) {
  kr_case_view(c, seq_idx, "seq_idx", KR_IN, KRAIT_I32, KR_SHAPE(B, L));
  for (int64_t b = 0; b < B; b++)
    for (int64_t t = 0, index = 0; t < L; t++) {
      if (kr_case_chance(c, 0.1)) index = kr_case_int(c, -1, 5);
      kr_case_set_i32(c, seq_idx, b * L + t, (int32_t)index);
    }
}

void kr_case_offsets(kr_case *c, krait_view *cu_seqlens, int64_t S, int64_t total) {
  kr_case_view(c, cu_seqlens, "cu_seqlens", KR_IN, KRAIT_I32, KR_SHAPE(S + 1));
  int64_t at = 0;
  for (int64_t s = 0; s <= S; s++) {
    kr_case_set_i32(c, cu_seqlens, s, (int32_t)(s == S ? total : at));
    if (kr_case_chance(c, 0.8)) at = kr_case_int(c, at, total);
  }
}

int32_t kr_case_open(kr_case *c, const kr_op *op, uint64_t seed, int64_t index) {
  memset(c, 0, sizeof *c);
  c->random = seed * 0x2545f4914f6cdd1dull + (uint64_t)index * 0x9e3779b97f4a7c15ull + 1;
  ((krait_call *)c->args)->size = op->args_bytes;
  int32_t status = op->make_case(c, index);
  if (status >= 0) status = c->status;
  for (int i = 0; status >= 0 && i < c->n_tensors; i++) {
    kr_case_tensor *t = &c->tensors[i];
    const krait_view *view = (const krait_view *)(c->args + t->view_offset);
    memcpy(t->initial, t->storage, (size_t)t->n_storage * krait_dtype_bytes(view->dtype));
  }
  if (status < 0) kr_case_close(c);
  return status;
}

void kr_case_reset(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    kr_case_tensor *t = &c->tensors[i];
    const krait_view *view = (const krait_view *)(c->args + t->view_offset);
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
