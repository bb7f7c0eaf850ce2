/* empty.c: calls without rows, tokens or sequences, for every operator and size that may be 0: no implementation fails,
 * results are the reference's, and gradients of parameters are 0. KR_EMULATED: on the emulator's GPU: empty LIBCUDA. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "all_ops.h"
#include "case.h"
#include "host_case.h"
#include "view.h"

enum { SEED = 3, N_CASES = 10 };

static krait_ctx *open_empty_ctx(void) {
  krait_ctx *ctx;
#ifdef KR_EMULATED
  const int32_t device = KRAIT_DEVICE_CUDA(0);
#else
  const int32_t device = KRAIT_DEVICE_CPU;
#endif
  krait_ctx_options options = {.size = sizeof options, .device = device, .n_threads = 1};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static kr_view *empty_view_of(kr_case *c, const kr_case_tensor *t) { return (kr_view *)(c->args + t->view_offset); }

static int which_of(kr_case *c, const kr_case_tensor *t) {
  int i = 0;
  while (kr_sig_view(c->sig, c->args, i) != empty_view_of(c, t)) i++;
  return i;
}

static int is_given(kr_case *c, const char *name) {
  const int i = kr_sig_find(c->sig, name);
  return i >= 0 && kr_sig_view(c->sig, c->args, i)->data;
}

/* The drawn call with this size 0, and offsets, lengths and positions that fit. */
static void make_empty(kr_case *c, int size) {
  *(int64_t *)(void *)(c->args + c->sig->sizes[size].offset) = 0;
  const int has_no_sequences = strcmp(c->sig->sizes[size].name, "B") == 0;
  if (has_no_sequences && kr_case_size(c, "Bk") && !is_given(c, "cu_seqlens_k")) *kr_case_size(c, "Bk") = 0;
  if (has_no_sequences && is_given(c, "cu_seqlens_q")) *kr_case_size(c, "Lq") = 0;
  if (has_no_sequences && is_given(c, "cu_seqlens_k")) *kr_case_size(c, "Lk") = 0;
  if (has_no_sequences && is_given(c, "cu_seqlens") && !kr_case_size(c, "S")) *kr_case_size(c, "L") = 0;
  for (int i = 0; i < c->n_tensors; i++) {
    kr_case_tensor *t = &c->tensors[i];
    const kr_view *view = empty_view_of(c, t);
    const kr_shape shape = kr_sig_shape(c->sig, c->args, kr_sig_facts(c->sig, c->args), which_of(c, t));
    if (shape.n_dims == t->n_dims) memcpy(t->shape, shape.size, sizeof *t->shape * (size_t)t->n_dims);
    const kr_sig_draw *draw = &c->sig->tensors[which_of(c, t)].draw;
    const int is_to_clear = view->dtype == KRAIT_I32 && strchr("BL", c->sig->sizes[size].name[0]) &&
                            (draw->kind != KR_DRAW_OFFSETS || draw->rows == size || has_no_sequences);
    for (int64_t k = 0; is_to_clear && k < kr_tensor_elements(t); k++) kr_case_set_i32(c, view, k, 0);
    kr_tensor_walk w = {.n_left = t->role & KR_IN && strcmp(t->name, "lse") == 0 ? kr_tensor_elements(t) : 0};
    for (; w.n_left; kr_tensor_step(&w, t, view)) kr_put(view, w.offset, INFINITY); /* that of rows without keys */
    memcpy(t->initial, t->storage, (size_t)t->n_storage * krait_dtype_bytes(view->dtype));
  }
}

static int has_no_elements(kr_case *c, const char *name) {
  const int i = kr_sig_find(c->sig, name);
  const kr_case_tensor *t = c->tensors;
  while (i >= 0 && t < c->tensors + c->n_tensors && which_of(c, t) != i) t++;
  return i >= 0 && t < c->tensors + c->n_tensors && kr_tensor_elements(t) == 0;
}

static void compare_empty(kr_case *c, const kr_op *op, const kr_impl *impl, const char *size, int64_t index) {
  const int is_gradient_of_nothing = op->sig->forward && has_no_elements(c, "dout");
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    const kr_sig_tensor *s = &c->sig->tensors[which_of(c, t)];
    const int is_parameter = is_gradient_of_nothing && s->gradient_of >= 0 &&
                             op->sig->forward->tensors[s->gradient_of].tensor_class == KR_CLASS_PARAMETER;
    kr_view got = *empty_view_of(c, t), want = got;
    want.data = t->expected + ((unsigned char *)got.data - t->storage);
    for (kr_tensor_walk w = {.n_left = t->role & KR_OUT ? kr_tensor_elements(t) : 0}; w.n_left;
         kr_tensor_step(&w, t, &got)) {
      const double g = kr_tensor_part(&got, w.offset, 0), v = kr_tensor_part(&want, w.offset, 0);
      if ((fabs(g - v) <= 0.02 * (1 + fabs(v)) || g == v || (isnan(g) && isnan(v) && t->role & KR_IN)) &&
          !(is_parameter && g != 0))
        continue;
      fail_msg("%s with %s 0, implementation %s, case %d: %s has %g, the reference %g", op->name, size, impl->name,
               (int)index, t->name, g, v);
    }
  }
}

static void run_empty(const krait_ctx *ctx, const kr_op *op, const kr_impl *impl, kr_case *c, const char *size,
                      int64_t index) {
  kr_case_reset(c);
  if (kr_case_run_on_host(ctx, c, impl) != KRAIT_OK)
    fail_msg("%s with %s 0, implementation %s, case %d: %s", op->name, size, impl->name, (int)index,
             krait_error_detail());
}

/* Returns whether there is such a call. */
static int check_empty(const krait_ctx *ctx, const kr_op *op, kr_case *c, int size, int64_t index) {
  const char *const name = op->sig->sizes[size].name;
  const kr_impl *const ref = &op->impls[op->n_impls - 1];
  assert_int_equal(kr_case_open(c, op, SEED, index, KR_CASE_USUAL), KRAIT_OK);
  make_empty(c, size);
  const int is_one = kr_op_check(op, c->args) == KRAIT_OK && !(ref->refuse && ref->refuse(ctx, c->args));
  if (is_one) {
    run_empty(ctx, op, ref, c, name, index);
    for (int i = 0; i < c->n_tensors; i++)
      memcpy(c->tensors[i].expected, c->tensors[i].storage,
             (size_t)c->tensors[i].n_storage * krait_dtype_bytes(empty_view_of(c, &c->tensors[i])->dtype));
    compare_empty(c, op, ref, name, index);
  }
  for (const kr_impl *impl = op->impls; is_one && impl < ref; impl++) {
    if ((impl->needs & ctx->caps) != impl->needs || (impl->refuse && impl->refuse(ctx, c->args))) continue;
    run_empty(ctx, op, impl, c, name, index);
    compare_empty(c, op, impl, name, index);
  }
  kr_case_close(c);
  return is_one;
}

/* The sizes of rows, tokens and sequences; others being 0, such as a table's or a cache's, contradict lengths. */
static void empty_calls_are_right(void **state) {
  static const char *const sizes[] = {"B", "L", "R", "M", "I", "J", "Lq", "Lk"};
  krait_ctx *ctx = open_empty_ctx();
  kr_case *c = malloc(sizeof *c);
  int n_ops = 0;
  (void)state;
  for (int32_t i = 0; i < kr_n_ops; i++) {
    int n = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
      const int size = kr_sig_find_size(kr_ops[i]->sig, sizes[k]);
      const int is_width = sizes[k][0] == 'M' && kr_sig_find_size(kr_ops[i]->sig, "B") >= 0; /* not rows of a product */
      const int is_cache = kr_sig_find(kr_ops[i]->sig, "k_cache") >= 0 && sizes[k][0] == 'L' && sizes[k][1] == 'k';
      for (int64_t index = 0; size >= 0 && !is_cache && !is_width && index < N_CASES; index++)
        n += check_empty(ctx, kr_ops[i], c, size, index);
    }
    n_ops += n > 0;
  }
  print_message("%d of %d operators have such calls\n", n_ops, (int)kr_n_ops);
  assert_true(n_ops > 40);
  free(c);
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(empty_calls_are_right)};
#ifdef KR_EMULATED
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
#else
  (void)argc, (void)argv;
#endif
  return cmocka_run_group_tests(tests, NULL, NULL);
}
