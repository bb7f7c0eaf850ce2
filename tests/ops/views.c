/* views.c: the tensors that an op says it reads and writes (op_views.c), against those that the walker draws for it. */
#include "../test.h"

#include "case.h"
#include "op_list.h"

static const kr_view_use *find(const kr_view_uses *uses, size_t offset) {
  for (int i = 0; i < uses->n; i++)
    if (uses->list[i].offset == offset) return &uses->list[i];
  return NULL;
}

static void check_tensor(const kr_op *op, const kr_case *c, const kr_case_tensor *t, const kr_view_uses *uses) {
  const kr_view_use *use = find(uses, t->view_offset);
  if (!((const krait_view *)(c->args + t->view_offset))->data) return;
  if (!use) fail_msg("%s: %s is not listed", op->name, t->name);
  if (use->role != t->role) fail_msg("%s: %s has role %d, the walker says %d", op->name, t->name, use->role, t->role);
  int64_t listed = 1, drawn = 1;
  for (int d = 0; d < use->n_dims; d++) listed *= use->shape[d];
  for (int d = 0; d < t->n_dims; d++) drawn *= t->shape[d];
  int same = use->n_dims == t->n_dims && listed == drawn;
  for (int d = 0; same && d < t->n_dims; d++) same = use->shape[d] == t->shape[d];
  if (!same) fail_msg("%s: %s has other sizes than the walker's (%lld elements, not %lld)", op->name, t->name, (long long)listed, (long long)drawn);
}

static void every_tensor_is_listed_with_its_sizes(void **state) {
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++)
    for (int64_t k = 0; k < 200; k++) {
      kr_case c;
      kr_view_uses uses = {.args = c.args};
      assert_int_equal(kr_case_open(&c, kr_ops[i], 7, k), KRAIT_OK);
      kr_ops[i]->views(&uses);
      assert_true(uses.n <= KR_MOST_VIEWS);
      for (int t = 0; t < c.n_tensors; t++) check_tensor(kr_ops[i], &c, &c.tensors[t], &uses);
      if (uses.n > c.n_tensors) fail_msg("%s: lists %d tensors, the walker drew %d", kr_ops[i]->name, uses.n, c.n_tensors);
      kr_case_close(&c);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_tensor_is_listed_with_its_sizes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
