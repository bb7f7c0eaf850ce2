/* properties.c: what holds beyond single calls: results that do not depend on threads or repeats, eight threads on one context,
 * work in place, offsets beyond 2^31 elements, and NaN that stays in its own sequence. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../test.h"
#include "case.h"
#include "op_list.h"
#include "view.h"

static krait_ctx *open_ctx(int n_threads) {
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = n_threads};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

/* Runs the op on a case's args with its own scratch. */
static void run_case(const kr_op *op, const krait_ctx *ctx, kr_case *c) {
  krait_call *call = (krait_call *)c->args;
  assert_int_equal(kr_op_scratch_bytes(op, ctx, call, &call->scratch_bytes), KRAIT_OK);
  call->scratch = aligned_alloc(64, (call->scratch_bytes / 64 + 1) * 64);
  memset(call->scratch, 0xfb, call->scratch_bytes);
  assert_int_equal(kr_op_run(op, ctx, call), KRAIT_OK);
  free(call->scratch);
}

static const char *const op_names[] = {"causal_conv1d", "causal_conv1d_bwd", "causal_conv1d_update", "selective_scan", "selective_scan_bwd", "state_update", "add_norm", "add_norm_bwd", "gated_norm", "gated_norm_bwd", "mamba_inner", "mamba_inner_bwd"};
enum { N_OPS = sizeof op_names / sizeof *op_names };

static void bits_do_not_depend_on_threads(void **state) {
  (void)state;
  krait_ctx *const contexts[] = {open_ctx(1), open_ctx(2), open_ctx(7), open_ctx(2)};
  kr_case *c = malloc(sizeof *c);
  for (int i = 0; i < N_OPS; i++)
    for (int64_t index = 0; index < 25; index++) {
      const kr_op *op = kr_op_find(op_names[i]);
      assert_int_equal(kr_case_open(c, op, 99, index), KRAIT_OK);
      for (int k = 0; k < 4; k++) {
        kr_case_reset(c);
        run_case(op, contexts[k], c);
        for (int t = 0; t < c->n_tensors; t++) {
          kr_case_tensor *tensor = &c->tensors[t];
          size_t bytes = (size_t)tensor->n_storage * krait_dtype_bytes(((krait_view *)(c->args + tensor->view_offset))->dtype);
          if (k == 0) memcpy(tensor->expected, tensor->storage, bytes);
          else if (memcmp(tensor->expected, tensor->storage, bytes) != 0) fail_msg("%s, case %d: %s depends on the threads", op->name, (int)index, tensor->name);
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
      assert_int_equal(kr_case_open(c, kr_op_find(op_names[i]), 5, index), KRAIT_OK);
      run_case(kr_op_find(op_names[i]), ctx, c);
      kr_case_close(c);
    }
  free(c);
  return NULL;
}

static void eight_threads_share_a_context(void **state) {
  (void)state;
  pthread_t threads[8];
  krait_ctx *ctx = open_ctx(3);
  for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_all, ctx), 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  krait_ctx_close(&ctx);
}

static void scan_and_convolution_in_place(void **state) {
  (void)state;
  krait_ctx *ctx = open_ctx(2);
  kr_case *c = malloc(sizeof *c);
  for (int i = 0; i < 2; i++)
    for (int64_t index = 0; index < 80; index++) {
      const kr_op *op = kr_op_find(i ? "selective_scan" : "causal_conv1d");
      assert_int_equal(kr_case_open(c, op, 3, index), KRAIT_OK);
      run_case(op, ctx, c);
      krait_view *x = i ? &((krait_selective_scan_args *)c->args)->u : &((krait_causal_conv1d_args *)c->args)->x;
      krait_view *out = i ? &((krait_selective_scan_args *)c->args)->out : &((krait_causal_conv1d_args *)c->args)->out;
      krait_view apart = *out;
      int64_t shape[3] = {0};
      for (int t = 0; t < c->n_tensors; t++)
        if (strcmp(c->tensors[t].name, i ? "u" : "x") == 0) memcpy(shape, c->tensors[t].shape, sizeof shape);
      *out = *x;
      run_case(op, ctx, c);
      for (int64_t n = 0; n < shape[0] * shape[1] * shape[2]; n++) {
        int64_t b = n / shape[2] / shape[1], d = n / shape[2] % shape[1], t = n % shape[2];
        double want = kr_get(&apart, kr_at3(&apart, b, d, t)), got = kr_get(x, kr_at3(x, b, d, t));
        if (want != got && !(isnan(want) && isnan(got))) fail_msg("%s, case %d: in place %g, apart %g", op->name, (int)index, got, want);
      }
      kr_case_close(c);
    }
  free(c);
  krait_ctx_close(&ctx);
}

/* Two channels 2^31 elements apart in memory that is reserved but hardly touched. */
static void offsets_beyond_two_gigaelements(void **state) {
  (void)state;
  const int64_t far = (1ll << 31) + 1000, L = 40, N = 3;
  const size_t bytes = (size_t)(far + L + 64) * sizeof(float);
  float *u = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  float *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (u == MAP_FAILED || out == MAP_FAILED) skip();
  float near_u[80], near_out[80], shared[120], scratch[1 << 15], A[6] = {-1, -2, -3, -1, -2, -3};
  for (int i = 0; i < 80; i++) near_u[i] = sinf((float)i);
  for (int i = 0; i < 120; i++) shared[i] = cosf((float)i);
  memcpy(u, near_u, 40 * sizeof *u);
  memcpy(u + far, near_u + 40, 40 * sizeof *u);
  krait_ctx *ctx = open_ctx(1);
  krait_selective_scan_args a = {.call = {.size = sizeof a, .flags = KRAIT_SCAN_SOFTPLUS, .scratch = scratch, .scratch_bytes = sizeof scratch}, .B = 1, .D = 2, .L = L, .N = N, .G = 1};
  krait_causal_conv1d_args c = {.call.size = sizeof c, .B = 1, .D = 2, .L = L, .W = 3, .activation = KRAIT_ACT_SILU};
  a.A = (krait_view){.data = A, .stride = {3, 1}};
  a.Bmat = a.Cmat = (krait_view){.data = shared, .stride = {0, 0, L, 1}};
  c.weight = (krait_view){.data = shared, .stride = {3, 1}};
  for (int distant = 0; distant < 2; distant++) {
    a.u = a.delta = (krait_view){.data = distant ? u : near_u, .stride = {0, distant ? far : 40, 1}};
    a.out = (krait_view){.data = distant ? out : near_out, .stride = {0, distant ? far : 40, 1}};
    c.x = a.u, c.out = a.out;
    assert_int_equal(krait_selective_scan(ctx, &a), KRAIT_OK);
    if (distant) assert_memory_equal(out + far, near_out + 40, 40 * sizeof *out);
  }
  c.x.data = near_u, c.x.stride[1] = 40, c.out.data = near_out, c.out.stride[1] = 40;
  assert_int_equal(krait_causal_conv1d(ctx, &c), KRAIT_OK);
  c.x.data = u, c.x.stride[1] = far, c.out.data = out, c.out.stride[1] = far;
  assert_int_equal(krait_causal_conv1d(ctx, &c), KRAIT_OK);
  assert_memory_equal(out, near_out, 40 * sizeof *out);
  assert_memory_equal(out + far, near_out + 40, 40 * sizeof *out);
  krait_ctx_close(&ctx);
  munmap(u, bytes);
  munmap(out, bytes);
}

static void nan_stays_in_its_sequence(void **state) {
  (void)state;
  enum { L = 24, D = 9, N = 5 };
  float u[D * L], delta[D * L], B[N * L], A[D * N], out[D * L], scratch[1 << 15];
  int32_t indices[L];
  for (int i = 0; i < D * L; i++) u[i] = sinf((float)i), delta[i] = 0.3f;
  for (int i = 0; i < N * L; i++) B[i] = cosf((float)i);
  for (int i = 0; i < D * N; i++) A[i] = -1;
  for (int t = 0; t < L; t++) indices[t] = t / 8;
  u[2 * L + 9] = NAN;       /* channel 2, sequence 1 */
  u[3 * L + 10] = INFINITY; /* channel 3, sequence 1 */
  krait_ctx *ctx = open_ctx(1);
  krait_selective_scan_args a = {.call = {.size = sizeof a, .scratch = scratch, .scratch_bytes = sizeof scratch}, .B = 1, .D = D, .L = L, .N = N, .G = 1};
  a.u = (krait_view){.data = u, .stride = {0, L, 1}};
  a.delta = (krait_view){.data = delta, .stride = {0, L, 1}};
  a.out = (krait_view){.data = out, .stride = {0, L, 1}};
  a.A = (krait_view){.data = A, .stride = {N, 1}};
  a.Bmat = a.Cmat = (krait_view){.data = B, .stride = {0, 0, L, 1}};
  a.seq_idx = (krait_view){.data = indices, .stride = {0, 1}, .dtype = KRAIT_I32};
  assert_int_equal(krait_selective_scan(ctx, &a), KRAIT_OK);
  for (int d = 0; d < D; d++)
    for (int t = 0; t < L; t++) {
      int touched = (d == 2 && t >= 9 && t < 16) || (d == 3 && t >= 10 && t < 16);
      if (touched != !isfinite(out[d * L + t])) fail_msg("out[%d][%d] is %g", d, t, (double)out[d * L + t]);
    }
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  const struct CMUnitTest threaded[] = {cmocka_unit_test(eight_threads_share_a_context)};
  if (argc > 1 && strcmp(argv[1], "threads") == 0) return cmocka_run_group_tests(threaded, NULL, NULL);
  const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_threads), cmocka_unit_test(scan_and_convolution_in_place),
                                     cmocka_unit_test(offsets_beyond_two_gigaelements), cmocka_unit_test(nan_stays_in_its_sequence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
