/* public_calls.c: operators as their callers see them (krait/ops.h): the sizes of random calls come back from their
 * tensors' shapes; every op with each of its tensors one element short, transposed, of the wrong type or missing is
 * refused by name, and what is not refused writes nothing past its tensors; scratch that the context lends. */
#include "../test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <krait/plan.h>

#include "case.h"
#include "all_ops.h"

enum { N_CALLS = 60, N_FAULTY = 6, GUARD = 64, MOST = KR_MOST_VIEWS };

static krait_ctx *ctx;

static krait_tensor *tensor_of(const kr_public_op *p, void *given, int i) {
  return (krait_tensor *)((char *)given + p->tensors[i]);
}

static const char *name_of(const kr_public_op *p, int i) { return p->op->sig->tensors[i].name; }

/* ---- sizes ---- */

/* Sizes that no given tensor has may be anything. */
static uint32_t sizes_of_given(const kr_sig *sig, const void *args) {
  const uint32_t facts = kr_sig_facts(sig, args);
  uint32_t sizes = 0;
  for (int i = 0; i < sig->n_tensors; i++) {
    const kr_sig_dims *dims = sig->tensors[i].dims;
    if (!kr_sig_view(sig, args, i)->data) continue;
    sizes |= kr_sig_holds(facts, dims[0].when) ? dims[0].sizes : dims[1].sizes;
  }
  return sizes;
}

static void check_same_call(const kr_public_op *p, int64_t k, const void *args, const void *back) {
  const kr_sig *sig = p->op->sig;
  const uint32_t sizes = sizes_of_given(sig, args);
  for (int s = 0; s < sig->n_sizes; s++)
    if (sizes >> s & 1 && kr_sig_get_size(sig, args, s) != kr_sig_get_size(sig, back, s))
      fail_msg("%s, call %ld: %s was %ld and is %ld", sig->name, (long)k, sig->sizes[s].name,
               (long)kr_sig_get_size(sig, args, s), (long)kr_sig_get_size(sig, back, s));
  for (int i = 0; i < sig->n_tensors; i++) {
    const kr_view *was = kr_sig_view(sig, args, i), *is = kr_sig_view(sig, back, i);
    const int n = kr_sig_shape(sig, args, kr_sig_facts(sig, args), i).n_dims;
    assert_ptr_equal(was->data, is->data);
    if (was->data && (was->dtype != is->dtype || memcmp(was->stride, is->stride, (size_t)n * sizeof *is->stride) != 0))
      fail_msg("%s, call %ld: %s has another type or strides", sig->name, (long)k, name_of(p, i));
  }
}

static void sizes_come_back_from_shapes(void **state) {
  (void)state;
  static _Alignas(16) unsigned char given[KR_MOST_PUBLIC_BYTES], back[KR_MOST_ARGS_BYTES];
  for (int32_t o = 0; o < kr_n_public_ops; o++)
    for (int64_t k = 0; k < N_CALLS; k++) {
      const kr_public_op *p = kr_public_ops[o];
      kr_case c;
      assert_int_equal(kr_case_open(&c, p->op, 11, k, KR_CASE_UNFILLED), KRAIT_OK);
      kr_public_give(p, c.args, given);
      if (kr_public_take(p, given, back) < 0)
        fail_msg("%s, call %ld: %s", p->op->name, (long)k, krait_error_detail());
      check_same_call(p, k, c.args, back);
      kr_case_close(&c);
    }
}

/* ---- faulty calls ---- */

/* A call on dense tensors of its own memory, each with guards behind it. */
typedef struct call {
  const kr_public_op *p;
  _Alignas(16) unsigned char args[KR_MOST_PUBLIC_BYTES];
  unsigned char *memory[MOST];
  size_t bytes[MOST];
} call;

static size_t bytes_of(const krait_tensor *t) {
  size_t n = krait_dtype_bytes(t->dtype);
  for (int d = 0; d < t->n_dims; d++) n *= (size_t)t->size[d];
  return n;
}

/* The first elements of the case's tensor, in its order, or zeros: small indices, increasing offsets. */
static void fill(unsigned char *to, size_t bytes, const kr_case *c, const char *name) {
  memset(to, 0, bytes);
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    const kr_view *view = (const kr_view *)(c->args + t->view_offset);
    const size_t element = krait_dtype_bytes(view->dtype);
    if (strcmp(t->name, name) != 0 || !(t->role & 1)) continue;
    for (int64_t k = 0; k < kr_tensor_elements(t) && (size_t)(k + 1) * element <= bytes; k++)
      memcpy(to + (size_t)k * element, (const char *)view->data + (size_t)kr_tensor_offset(t, view, k) * element,
             element);
  }
}

/* Memory for the tensors as the args say now. */
static void lay_out_tensors(call *m, const kr_case *c) {
  for (int i = 0; i < m->p->op->sig->n_tensors; i++) {
    krait_tensor *t = tensor_of(m->p, m->args, i);
    free(m->memory[i]);
    m->memory[i] = NULL;
    if (!t->data) continue;
    m->bytes[i] = bytes_of(t);
    m->memory[i] = malloc(m->bytes[i] + GUARD);
    fill(m->memory[i], m->bytes[i], c, name_of(m->p, i));
    memset(m->memory[i] + m->bytes[i], 0xa5, GUARD);
    t->data = m->memory[i];
  }
}

static void open_call(call *m, const kr_public_op *p, const kr_case *c) {
  *m = (call){.p = p};
  kr_public_give(p, c->args, m->args);
  for (int i = 0; i < p->op->sig->n_tensors; i++) {
    krait_tensor *t = tensor_of(p, m->args, i);
    t->flags = 0;
    memset(t->stride, 0, sizeof t->stride);
  }
  lay_out_tensors(m, c);
}

static void close_call(call *m) {
  for (int i = 0; i < MOST; i++) free(m->memory[i]);
}

static int32_t run_call(const call *m, const char *what) {
  const int32_t status = kr_public_run(m->p, ctx, m->args);
  for (int i = 0; i < m->p->op->sig->n_tensors; i++)
    for (int g = 0; m->memory[i] && g < GUARD; g++)
      if (m->memory[i][m->bytes[i] + (size_t)g] != 0xa5)
        fail_msg("%s, %s: wrote past %s", m->p->op->name, what, name_of(m->p, i));
  return status;
}

/* The last error begins with the op and names the tensor, or with any another that disagrees with it. */
static void expect_named(const call *m, int32_t status, int tensor, int any, const char *what) {
  const char *said = krait_error_detail();
  const size_t head = strlen(m->p->op->name);
  int is_named = 0;
  if (status >= 0) fail_msg("%s: %s %s is not refused", m->p->op->name, name_of(m->p, tensor), what);
  if (strncmp(said, m->p->op->name, head) != 0 || said[head] != ':')
    fail_msg("%s: %s %s: the error does not begin with the op: %s", m->p->op->name, name_of(m->p, tensor), what, said);
  for (int i = 0; i < m->p->op->sig->n_tensors; i++)
    is_named |= (any || i == tensor) && strstr(said + head, name_of(m->p, i)) != NULL;
  for (int s = 0; any && s < m->p->op->sig->n_sizes; s++)
    is_named |= strstr(said + head, m->p->op->sig->sizes[s].name) != NULL;
  if (!is_named) fail_msg("%s: %s %s: not named in: %s", m->p->op->name, name_of(m->p, tensor), what, said);
}

/* Shortens every dimension in turn. A call whose other tensors do not have that size is another call, and runs. */
static int64_t try_short(call *m, const kr_case *c, int i) {
  int64_t n_refused = 0;
  for (int d = 0; d < tensor_of(m->p, m->args, i)->n_dims; d++) {
    krait_tensor *t = tensor_of(m->p, m->args, i);
    if (t->size[d] < 1) continue;
    t->size[d]--;
    lay_out_tensors(m, c);
    const int32_t status = run_call(m, "one short");
    if (status < 0) expect_named(m, status, i, 1, "one short");
    n_refused += status == KRAIT_ERR_SHAPE;
    tensor_of(m->p, m->args, i)->size[d]++;
  }
  lay_out_tensors(m, c);
  return n_refused;
}

static int64_t try_transposed(call *m, int i) {
  krait_tensor *t = tensor_of(m->p, m->args, i);
  const krait_tensor whole = *t;
  int is_same = 1;
  int64_t stride = 1;
  for (int d = 0; d < t->n_dims; d++) is_same &= t->size[d] == t->size[t->n_dims - 1 - d];
  if (is_same) return 0;
  for (int d = 0; d < whole.n_dims; d++) { /* the same elements, the last dimension outermost */
    t->size[d] = whole.size[whole.n_dims - 1 - d];
    t->stride[d] = stride;
    stride *= t->size[d];
  }
  for (int d = 0; d < t->n_dims; d++) t->stride[d] = t->stride[d] ? t->stride[d] : 1;
  const int32_t status = run_call(m, "transposed");
  if (status < 0) expect_named(m, status, i, 1, "transposed");
  *t = whole;
  return status == KRAIT_ERR_SHAPE;
}

static void try_wrong_type(call *m, int i) {
  krait_tensor *t = tensor_of(m->p, m->args, i);
  const int32_t dtype = t->dtype;
  t->dtype = KRAIT_I64;
  expect_named(m, run_call(m, "int64"), i, 0, "of int64");
  t->dtype = 99;
  expect_named(m, run_call(m, "no type"), i, 0, "of type 99");
  t->dtype = dtype;
}

/* The optional ones may be left out, if nothing else needs them. */
static void try_missing(call *m, int i) {
  krait_tensor *t = tensor_of(m->p, m->args, i);
  void *data = t->data;
  t->data = NULL;
  const int32_t status = run_call(m, "missing");
  if (!m->p->op->sig->tensors[i].is_optional) expect_named(m, status, i, 1, "missing");
  else if (status < 0) expect_named(m, status, i, 1, "left out");
  t->data = data;
}

static void try_odd_shapes(call *m, int i) {
  krait_tensor *t = tensor_of(m->p, m->args, i);
  const krait_tensor whole = *t;
  t->n_dims = 5;
  expect_named(m, run_call(m, "5 dimensions"), i, 0, "of 5 dimensions");
  t->n_dims = 0;
  expect_named(m, run_call(m, "no dimensions"), i, 0, "without dimensions");
  *t = whole, t->size[0] = -2;
  expect_named(m, run_call(m, "a negative size"), i, 0, "of a negative size");
  *t = whole, t->flags = 2;
  expect_named(m, run_call(m, "flags"), i, 0, "with unknown flags");
  *t = whole;
}

/* Of every tensor of every op some of these were refused for their shape: otherwise the test tested nothing. */
static void faulty_tensors_are_refused_by_name(void **state) {
  (void)state;
  static kr_case c;
  static call m;
  for (int32_t o = 0; o < kr_n_public_ops; o++) {
    const kr_public_op *p = kr_public_ops[o];
    int64_t n_ran = 0, n_refused = 0;
    for (int64_t k = 0; k < N_FAULTY; k++) {
      assert_int_equal(kr_case_open(&c, p->op, 12, k, KR_CASE_USUAL), KRAIT_OK);
      open_call(&m, p, &c);
      n_ran += run_call(&m, "as it is") >= 0;
      for (int i = 0; i < p->op->sig->n_tensors; i++) {
        if (!tensor_of(p, m.args, i)->data) continue;
        n_refused += try_short(&m, &c, i) + try_transposed(&m, i);
        try_wrong_type(&m, i), try_missing(&m, i), try_odd_shapes(&m, i);
      }
      close_call(&m);
      kr_case_close(&c);
    }
    if (!n_ran || n_refused < p->op->sig->n_tensors)
      fail_msg("%s: %ld calls ran, %ld were refused for a shape", p->op->name, (long)n_ran, (long)n_refused);
  }
}

/* ---- one op by hand ---- */

enum { L = 8, H = 1, P = 4, N = 2 };
static float x[L * H * P], dt[L * H], A[H], B[L * N], C[L * N], out[L * H * P], D[H];

static krait_ssd_args ssd_call(void) {
  for (int i = 0; i < L * H * P; i++) x[i] = (float)(i % 7);
  for (int i = 0; i < L * N; i++) B[i] = C[i] = 1;
  dt[0] = 1, A[0] = -1, D[0] = 2;
  return (krait_ssd_args){.call.size = sizeof(krait_ssd_args),
                          .x = {.data = x, .n_dims = 4, .size = {1, L, H, P}},
                          .dt = krait_tensor_of(dt, KRAIT_F32, 3, (int64_t[]){1, L, H}),
                          .A = {.data = A, .n_dims = 1, .size = {H}},
                          .Bmat = {.data = B, .n_dims = 4, .size = {1, L, 1, N}},
                          .Cmat = {.data = C, .n_dims = 4, .size = {1, L, 1, N}},
                          .out = {.data = out, .n_dims = 4, .size = {1, L, H, P}}};
}

static void a_size_that_disagrees_is_named_with_both_values(void **state) {
  (void)state;
  krait_ssd_args a = ssd_call();
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_OK);
  assert_string_equal(krait_error_detail(), "");
  a.x.size[2] = 4; /* H = 4 on buffers of H = 1 */
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(),
                      "ssd: dt is (1,8,1), must be (B,L,H) = (1,8,4): its dimension H is 1, not 4");
  a = ssd_call();
  a.out.n_dims = 3;
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(), "ssd: out is (1,8,1), must be (B,L,H,P)");
  a = ssd_call();
  a.x.data = NULL;
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "ssd: x must be given");
}

/* One value for each head: stride 0, and whatever size the others say. */
static void an_expanded_dimension_may_leave_its_size_open(void **state) {
  (void)state;
  float want[L * H * P];
  krait_ssd_args a = ssd_call();
  a.Dvec = (krait_tensor){.data = D, .n_dims = 2, .size = {H, P}, .flags = KRAIT_TENSOR_STRIDED};
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_OK);
  memcpy(want, out, sizeof want);
  a.Dvec.size[1] = -1;
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_OK);
  assert_memory_equal(out, want, sizeof want);
  a.Dvec.flags = 0; /* dense */
  assert_int_equal(krait_ssd(ctx, &a), KRAIT_ERR_SHAPE);
  assert_string_equal(krait_error_detail(), "ssd: Dvec has size -1 in dimension 2, which needs stride 0");
}

static void structs_of_other_headers(void **state) {
  (void)state;
  struct {
    krait_ssd_args known;
    char tail[16];
  } newer = {.known = ssd_call()};
  newer.known.call.size = sizeof newer;
  assert_int_equal(krait_ssd(ctx, &newer.known), KRAIT_OK);
  newer.tail[0] = 1;
  assert_int_equal(krait_ssd(ctx, &newer.known), KRAIT_ERR_STRUCT_SIZE);
  assert_non_null(strstr(krait_error_detail(), "newer than this library"));
  newer.known.call.size = offsetof(krait_ssd_args, final_states); /* an older caller */
  assert_int_equal(krait_ssd(ctx, &newer.known), KRAIT_OK);
  newer.known.call.size = 4;
  assert_int_equal(krait_ssd(ctx, &newer.known), KRAIT_ERR_STRUCT_SIZE);
  assert_int_equal(krait_ssd(ctx, NULL), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "ssd: args must not be NULL");
  newer.known.call.size = sizeof newer.known;
  assert_int_equal(krait_ssd(NULL, &newer.known), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "ssd: ctx must not be NULL");
}

static void sizes_that_shapes_leave_open_are_asked_for(void **state) {
  (void)state;
  float f[64] = {0};
  const krait_tensor conv = {.data = f, .n_dims = 2, .size = {8, 2}}, head = {.data = f, .n_dims = 1, .size = {2}};
  krait_mamba2_inner_args a = {.call.size = sizeof a, .x = {.data = f, .n_dims = 3, .size = {1, 1, 14}},
                               .conv_weight = conv, .A = head, .out = {.data = f + 32, .n_dims = 3, .size = {1, 1, 4}}};
  assert_int_equal(krait_mamba2_inner(ctx, &a), KRAIT_ERR_SHAPE);
  assert_non_null(strstr(krait_error_detail(), "no tensor says what "));
  a.P = 2, a.G = 1;
  assert_int_equal(krait_mamba2_inner(ctx, &a), KRAIT_OK);
}

/* ---- scratch ---- */

typedef struct lent {
  float *out;
  int32_t status;
} lent;

enum { ROWS = 300, WIDTH = 96, N_THREADS = 4 };
static float rows[ROWS * WIDTH], weight[WIDTH * WIDTH];

static krait_gemm_args product(float *to) {
  return (krait_gemm_args){.call.size = sizeof(krait_gemm_args),
                           .A = {.data = rows, .n_dims = 2, .size = {ROWS, WIDTH}},
                           .Bmat = {.data = weight, .n_dims = 2, .size = {WIDTH, WIDTH}},
                           .out = {.data = to, .n_dims = 2, .size = {ROWS, WIDTH}}};
}

static void *multiply(void *user) {
  lent *l = user;
  const krait_gemm_args a = product(l->out);
  for (int k = 0; k < 20 && l->status >= 0; k++) l->status = krait_gemm(ctx, &a);
  return NULL;
}

static void the_context_lends_scratch_to_each_thread(void **state) {
  (void)state;
  static float outs[N_THREADS + 1][ROWS * WIDTH];
  pthread_t threads[N_THREADS];
  lent lents[N_THREADS];
  uint64_t bytes = 0;
  for (int i = 0; i < ROWS * WIDTH; i++) rows[i] = (float)(i % 13) - 6;
  for (int i = 0; i < WIDTH * WIDTH; i++) weight[i] = (float)(i % 11) - 5;
  krait_gemm_args a = product(outs[N_THREADS]);
  assert_int_equal(krait_scratch_bytes(ctx, "gemm", &a, &bytes), KRAIT_OK);
  a.call.scratch = aligned_alloc(64, (size_t)((bytes + 127) / 64 * 64)), a.call.scratch_bytes = bytes;
  assert_int_equal(krait_gemm(ctx, &a), KRAIT_OK);
  a.call.scratch_bytes = bytes ? bytes - 1 : 0;
  assert_int_equal(krait_gemm(ctx, &a), bytes ? KRAIT_ERR_SCRATCH : KRAIT_OK);
  free(a.call.scratch);
  for (int i = 0; i < N_THREADS; i++) {
    lents[i] = (lent){outs[i], KRAIT_OK};
    assert_int_equal(pthread_create(&threads[i], NULL, multiply, &lents[i]), 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(lents[i].status, KRAIT_OK);
    assert_memory_equal(outs[i], outs[N_THREADS], sizeof outs[i]);
  }
}

/* Every op without scratch of its own gives what it gives with it. */
static void lent_scratch_changes_no_result(void **state) {
  (void)state;
  static kr_case c;
  static _Alignas(16) unsigned char given[KR_MOST_PUBLIC_BYTES];
  int n_lent = 0;
  for (int32_t o = 0; o < kr_n_public_ops; o++)
    for (int64_t k = 0; k < 3; k++) {
      const kr_public_op *p = kr_public_ops[o];
      uint64_t bytes = 0;
      assert_int_equal(kr_case_open(&c, p->op, 13, k, KR_CASE_USUAL), KRAIT_OK);
      kr_public_give(p, c.args, given);
      assert_int_equal(krait_scratch_bytes(ctx, p->op->name, given, &bytes), KRAIT_OK);
      ((krait_call *)given)->scratch = NULL, ((krait_call *)given)->scratch_bytes = 0;
      n_lent += bytes > 0;
      if (kr_public_run(p, ctx, given) < 0) fail_msg("%s: %s", p->op->name, krait_error_detail());
      kr_case_close(&c);
    }
  assert_true(n_lent > 5);
}

static int open_ctx(void **state) {
  (void)state;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  return krait_ctx_open(&options, &ctx);
}

static int close_ctx(void **state) {
  (void)state;
  krait_ctx_close(&ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sizes_come_back_from_shapes),
                                     cmocka_unit_test(a_size_that_disagrees_is_named_with_both_values),
                                     cmocka_unit_test(an_expanded_dimension_may_leave_its_size_open),
                                     cmocka_unit_test(structs_of_other_headers),
                                     cmocka_unit_test(sizes_that_shapes_leave_open_are_asked_for),
                                     cmocka_unit_test(the_context_lends_scratch_to_each_thread),
                                     cmocka_unit_test(lent_scratch_changes_no_result),
                                     cmocka_unit_test(faulty_tensors_are_refused_by_name)};
  return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
