/* properties.c: properties beyond single calls: results independent of threads and repeats, and eight threads on one
 * context. */
#include <pthread.h>
#include <stdlib.h>

#include "../test.h"
#include "case.h"
#include "all_ops.h"

static krait_ctx *open_properties_ctx(int n_threads) {
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = n_threads};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

/* Runs the op on a case's args with separate scratch. */
static void run_case(const kr_op *op, const krait_ctx *ctx, kr_case *c) {
  kr_call *call = (kr_call *)c->args;
  assert_int_equal(kr_op_scratch_bytes(op, ctx, call, &call->scratch_bytes), KRAIT_OK);
  call->scratch = aligned_alloc(64, (call->scratch_bytes / 64 + 1) * 64);
  memset(call->scratch, 0xfb, call->scratch_bytes);
  assert_int_equal(kr_op_run(op, ctx, call), KRAIT_OK);
  free(call->scratch);
}

static const char *const op_names[] = {"causal_conv1d",   "causal_conv1d_bwd",  "causal_conv1d_update",
                                       "selective_scan",  "selective_scan_bwd", "ssd",
                                       "ssd_bwd",         "attention",          "attention_bwd",
                                       "state_update",    "add_norm",           "add_norm_bwd",
                                       "gated_norm",      "gated_norm_bwd",     "mamba_inner",
                                       "mamba_inner_bwd", "mamba2_inner",       "mamba2_inner_bwd"};
enum { N_OPS = sizeof op_names / sizeof *op_names };

static void bits_do_not_depend_on_threads(void **state) {
  (void)state;
  krait_ctx *const contexts[] = {open_properties_ctx(1), open_properties_ctx(2), open_properties_ctx(7),
                                 open_properties_ctx(2)};
  kr_case *c = malloc(sizeof *c);
  for (int i = 0; i < N_OPS; i++)
    for (int64_t index = 0; index < 25; index++) {
      const kr_op *op = kr_op_find(op_names[i]);
      assert_int_equal(kr_case_open(c, op, 99, index, KR_CASE_USUAL), KRAIT_OK);
      for (int k = 0; k < 4; k++) {
        kr_case_reset(c);
        run_case(op, contexts[k], c);
        for (int t = 0; t < c->n_tensors; t++) {
          kr_case_tensor *tensor = &c->tensors[t];
          size_t bytes =
              (size_t)tensor->n_storage * krait_dtype_bytes(((kr_view *)(c->args + tensor->view_offset))->dtype);
          if (k == 0) memcpy(tensor->expected, tensor->storage, bytes);
          else if (memcmp(tensor->expected, tensor->storage, bytes) != 0)
            fail_msg("%s, case %d: %s depends on the threads", op->name, (int)index, tensor->name);
        }
      }
      kr_case_close(c);
    }
  free(c);
  for (int k = 0; k < 4; k++) krait_ctx_close((krait_ctx **)&contexts[k]);
}

static void *run_all(void *user) {
  const krait_ctx *ctx = user;
  kr_case *c = malloc(sizeof *c);
  for (int64_t index = 0; index < 6; index++)
    for (int i = 0; i < N_OPS; i++) {
      assert_int_equal(kr_case_open(c, kr_op_find(op_names[i]), 5, index, KR_CASE_USUAL), KRAIT_OK);
      run_case(kr_op_find(op_names[i]), ctx, c);
      kr_case_close(c);
    }
  free(c);
  return NULL;
}

static void eight_threads_share_a_context(void **state) {
  (void)state;
  pthread_t threads[8];
  krait_ctx *ctx = open_properties_ctx(3);
  for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_all, ctx), 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  krait_ctx_close(&ctx);
}

/* 8 heads of 128 features in bfloat16: all tensors and the scratch of both passes. */
static double attention_bytes(krait_ctx *ctx, int64_t L) {
  static float some[1];
  const kr_view view = {.data = some, .stride = {L * 1024, 1024, 128, 1}, .dtype = KRAIT_BF16},
                   lse = {.data = some, .stride = {L * 8, L, 1}, .dtype = KRAIT_F32};
  const kr_attention_args a = {.call = {.size = sizeof a, .flags = KRAIT_ATTENTION_CAUSAL},
                                  .B = 1,
                                  .Bk = 1,
                                  .Lq = L,
                                  .Lk = L,
                                  .H = 8,
                                  .Hk = 8,
                                  .D = 128,
                                  .Dv = 128,
                                  .q = view,
                                  .k = view,
                                  .v = view,
                                  .out = view,
                                  .lse = lse};
  const kr_attention_bwd_args b = {.call = {.size = sizeof b, .flags = KRAIT_ATTENTION_CAUSAL},
                                      .B = 1,
                                      .Bk = 1,
                                      .Lq = L,
                                      .Lk = L,
                                      .H = 8,
                                      .Hk = 8,
                                      .D = 128,
                                      .Dv = 128,
                                      .q = view,
                                      .k = view,
                                      .v = view,
                                      .out = view,
                                      .lse = lse,
                                      .dout = view,
                                      .dq = view,
                                      .dk = view,
                                      .dv = view};
  uint64_t forward, backward;
  assert_int_equal(kr_op_scratch_bytes(&kr_op_attention, ctx, &a, &forward), KRAIT_OK);
  assert_int_equal(kr_op_scratch_bytes(&kr_op_attention_bwd, ctx, &b, &backward), KRAIT_OK);
  return 8.0 * 2 * 1024 * (double)L + 4.0 * 8 * (double)L + (double)(forward > backward ? forward : backward);
}

/* k and v of 16 bits are taken beside q of float32, but not by the gradient; else all have one type. */
static void types_of_attention(void **state) {
  const kr_view one = {.data = (void *)"", .dtype = KRAIT_F32}, half = {.data = (void *)"", .dtype = KRAIT_F16},
                brain = {.data = (void *)"", .dtype = KRAIT_BF16};
  kr_attention_args a = {.call.size = sizeof a, .H = 1, .Hk = 1, .D = 8, .Dv = 8};
  kr_attention_bwd_args b = {.call.size = sizeof b, .H = 1, .Hk = 1, .D = 8, .Dv = 8};
  (void)state;
  a.q = one, a.k = half, a.v = half, a.out = one;
  assert_int_equal(kr_op_check(&kr_op_attention, &a), KRAIT_OK);
  a.k = brain, a.v = brain;
  assert_int_equal(kr_op_check(&kr_op_attention, &a), KRAIT_OK);
  a.q = half, a.out = half;
  assert_int_equal(kr_op_check(&kr_op_attention, &a), KRAIT_ERR_DTYPE);
  assert_string_equal(krait_error_detail(), "attention: k is bfloat16 but q is float16");
  b.q = one, b.k = half, b.v = half, b.out = one, b.dout = one, b.lse = one, b.dq = one;
  assert_int_equal(kr_op_check(&kr_op_attention_bwd, &b), KRAIT_ERR_DTYPE);
  assert_string_equal(krait_error_detail(), "attention_bwd: k is float16 but q is float32");
}

static void attention_needs_memory_by_tokens(void **state) {
  (void)state;
  krait_ctx *ctx = open_properties_ctx(2);
  const double most = 6.0 * (1 << 30), bytes = attention_bytes(ctx, 131072);
  if (bytes > most) fail_msg("128 K tokens take %.2f GiB", bytes / (1 << 30));
  if (bytes > 2.01 * attention_bytes(ctx, 65536)) fail_msg("twice the tokens take more than twice the memory");
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  const struct CMUnitTest threaded[] = {cmocka_unit_test(eight_threads_share_a_context)};
  if (argc > 1 && strcmp(argv[1], "threads") == 0) return cmocka_run_group_tests(threaded, NULL, NULL);
  const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_threads),
                                     cmocka_unit_test(types_of_attention),
                                     cmocka_unit_test(attention_needs_memory_by_tokens)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
