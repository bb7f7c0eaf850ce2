/* graph_region.c: the elements of a storage that a view covers, as a box in the storage's dimensions; and the same box
 * in another storage. */
#include <string.h>

#include "graph_parts.h"

static int fits(const kr_storage *s, int k, int64_t stride) {
  return s->dims.size[k] > 1 && s->stride[k] > 0 && stride >= s->stride[k] && stride % s->stride[k] == 0;
}

/* The dimension of the longest stride that a step of `stride` is a multiple of; -1: none. */
static int dim_of(const kr_storage *s, int64_t stride) {
  int best = -1;
  for (int k = 0; k < s->dims.n; k++)
    if (fits(s, k, stride) && (best < 0 || s->stride[k] > s->stride[best])) best = k;
  return best;
}

/* Index of the view's first element, by dividing by the largest strides first. */
static void first_index(const kr_storage *s, int64_t at, int64_t *index) {
  int64_t below = INT64_MAX;
  for (int round = 0; round < s->dims.n; round++) {
    int k = -1;
    for (int i = 0; i < s->dims.n; i++)
      if (s->dims.size[i] > 1 && s->stride[i] > 0 && s->stride[i] < below && (k < 0 || s->stride[i] > s->stride[k]))
        k = i;
    if (k < 0) return;
    index[k] = at / s->stride[k];
    at -= index[k] * s->stride[k];
    below = s->stride[k];
  }
}

static kr_box whole_box(const kr_storage *s, int exact) {
  kr_box box = {.exact = exact};
  for (int k = 0; k < s->dims.n; k++) box.to[k] = s->dims.size[k] - 1;
  return box;
}

/* n steps of a view's dimension along dimension k of the storage; smaller strides come first. Past the end of k they
 * continue in the next larger dimension, if it is contiguous with k. */
static int extend(const kr_storage *s, kr_box *box, int k, int64_t n, int64_t step) {
  while (box->to[k] + (n - 1) * step >= s->dims.size[k]) {
    const int64_t size = s->dims.size[k];
    if (step != 1 || box->from[k] || box->to[k] || n % size) return 0;
    box->to[k] = size - 1;
    const int next = dim_of(s, size * s->stride[k]);
    if (next < 0 || s->stride[next] != size * s->stride[k]) return 0;
    k = next, n /= size;
  }
  if (step != box->to[k] - box->from[k] + 1) box->exact = 0; /* it leaves gaps, or overlaps itself */
  box->to[k] += (n - 1) * step;
  return 1;
}

kr_box kr_box_of(const kr_graph *g, kr_tensor t) {
  const kr_part *p = KR_PART(g, t);
  const kr_storage *s = KR_STORAGE(g, p->storage);
  kr_box box = {.exact = 1};
  int order[4] = {0, 1, 2, 3};
  for (int i = 1; i < p->dims.n; i++) /* shortest stride first */
    for (int k = i; k > 0 && p->stride[order[k]] < p->stride[order[k - 1]]; k--) {
      const int swap = order[k];
      order[k] = order[k - 1], order[k - 1] = swap;
    }
  first_index(s, p->at_bytes / (int64_t)krait_dtype_bytes(p->dtype), box.from);
  memcpy(box.to, box.from, sizeof box.to);
  for (int i = 0; i < p->dims.n; i++) {
    const int64_t n = p->dims.size[order[i]], stride = p->stride[order[i]];
    if (n < 2 || stride == 0) continue;
    const int k = dim_of(s, stride);
    if (k < 0 || !extend(s, &box, k, n, stride / s->stride[k])) return whole_box(s, 0);
  }
  return box;
}

int kr_boxes_meet(const kr_box *a, const kr_box *b) {
  for (int k = 0; k < 4; k++)
    if (a->from[k] > b->to[k] || b->from[k] > a->to[k]) return 0;
  return 1;
}

int kr_boxes_equal(const kr_box *a, const kr_box *b) {
  return a->exact && b->exact && memcmp(a->from, b->from, sizeof a->from) == 0 &&
         memcmp(a->to, b->to, sizeof a->to) == 0;
}

/* Whether n steps along dimension k stay in it, or continue in the next larger one in both storages. */
static int runs_on(const kr_storage *from, const kr_storage *to, const int64_t *index, int k, int64_t n, int64_t step) {
  if (index[k] + (n - 1) * step < from->dims.size[k]) return 1;
  for (int64_t size = from->dims.size[k]; n > size;) {
    const int next = dim_of(from, size * from->stride[k]);
    if (step != 1 || index[k] || next < 0 || n % size || from->stride[next] != size * from->stride[k] ||
        to->stride[next] != size * to->stride[k])
      return 0;
    k = next, n /= size, size = from->dims.size[k];
  }
  return 1;
}

kr_tensor kr_graph_moved(kr_graph *g, kr_tensor t, int32_t storage) {
  kr_part p = *KR_PART(g, t);
  const kr_storage *from = KR_STORAGE(g, p.storage), *to = KR_STORAGE(g, storage);
  const int64_t element = (int64_t)krait_dtype_bytes(from->dtype), new_element = (int64_t)krait_dtype_bytes(to->dtype);
  int64_t index[4] = {0}, at = 0;
  const int is_empty = kr_dims_elements(p.dims) == 0; /* its strides may be any */
  int same = 1;
  for (int k = 0; same && k < from->dims.n; k++) same = from->dims.size[k] < 2 || from->stride[k] == to->stride[k];
  first_index(from, p.at_bytes / element, index);
  for (int k = 0; k < from->dims.n; k++) at += index[k] * to->stride[k];
  for (int i = 0; !same && !is_empty && i < p.dims.n; i++) {
    if (p.dims.size[i] < 2 || p.stride[i] == 0) continue;
    const int k = dim_of(from, p.stride[i]);
    const int64_t step = k < 0 ? 0 : p.stride[i] / from->stride[k];
    if (k < 0 || !runs_on(from, to, index, k, p.dims.size[i], step)) return 0;
    p.stride[i] = step * to->stride[k];
  }
  p.at_bytes = is_empty ? 0 : same ? p.at_bytes / element * new_element : at * new_element;
  p.storage = storage;
  p.dtype = to->dtype;
  return kr_graph_part(g, &p);
}
