/* case.h: the interface to a case for the checker, beyond that for case makers. */
#ifndef KR_CASE_H
#define KR_CASE_H
#include "check.h"
enum {
  KR_CASE_USUAL,
  KR_CASE_CHECKED, /* usual, or one in five hard: kr_case's is_hard */
  KR_CASE_EXACT,   /* for finite differences: kr_case's is_exact */
  KR_CASE_UNFILLED, /* only for its sizes and tensors: floats are not drawn, and nothing is initialized */
  KR_CASE_ASKED     /* the checked one of this seed and index, unfilled: to ask who would compute it */
};
int32_t kr_case_open(kr_case *c, const kr_op *op, uint64_t seed, int64_t index, int kind);
void kr_case_reset(kr_case *c); /* storage back to inputs and poison */
void kr_case_close(kr_case *c);
int64_t kr_tensor_elements(const kr_case_tensor *t);
double kr_tensor_part(const kr_view *view, int64_t offset, int part); /* part 1: the imaginary one */
int64_t kr_tensor_offset(const kr_case_tensor *t, const kr_view *view,
                         int64_t flat); /* row-major flat index to element offset */

/* The same for all elements in row-major order, without divisions: begin with {.n_left = kr_tensor_elements(t)}. */
typedef struct kr_tensor_walk {
  int64_t n_left, offset, index[4];
} kr_tensor_walk;

static inline void kr_tensor_step(kr_tensor_walk *w, const kr_case_tensor *t, const kr_view *view) {
  w->n_left--;
  for (int d = t->n_dims - 1; d >= 0; d--) {
    w->offset += view->stride[d];
    if (++w->index[d] < t->shape[d]) return;
    w->offset -= t->shape[d] * view->stride[d];
    w->index[d] = 0;
  }
}
#endif
