/* tiles.c: matrix unit products without the unit, also of quantized weights: the row's source with loops instead of the
 * unit, checked like any row, and the unit itself if this machine has one, including small products, which the operator
 * leaves to other rows. Then the splitting of factors: values near both ends of float32, infinities, NaN; and any
 * number of threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../test.h"
#include "check.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_q4k_impls.h"
#include "gemm/gemm_q8_impls.h"
#include "probe.h"
#include "op_list.h"
#include "view.h"

static const char *refuse_f64(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const kr_view *const views[] = {&a->A,  &a->Bmat,  &a->bias,      &a->residual, &a->out,
                                     &a->B2, &a->bias2, &a->row_scale, &a->factor};
  (void)ctx;
  for (size_t i = 0; i < sizeof views / sizeof *views; i++)
    if (kr_has(views[i]) && views[i]->dtype == KRAIT_F64) return "no float64";
  return NULL;
}

static const kr_impl impls[] = {
    {"tiles_loops", KRAIT_CAP_CPU, refuse_f64, kr_gemm_tiles_scalar, kr_gemm_tiles_scratch_scalar},
#ifdef KR_BUILD_amx
    {"simd_amx_tiles", KRAIT_CAP_CPU | KRAIT_CAP_AVX512 | KRAIT_CAP_AMX, refuse_f64, kr_gemm_tiles_avx512,
     kr_gemm_tiles_scratch_avx512},
#endif
    {"ref", KRAIT_CAP_CPU, NULL, kr_gemm_ref, NULL},
};
enum { N_IMPLS = sizeof impls / sizeof *impls };

static const char *refuse_q8(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  (void)ctx;
  return a->A.dtype == KRAIT_F32 && a->out.dtype == KRAIT_F32 && a->A.stride[1] == 1 && a->qweight.stride[1] == 1
             ? NULL
             : "not rows of float32";
}
static const char *refuse_q4k(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  (void)ctx;
  return a->A.dtype == KRAIT_F32 && a->out.dtype == KRAIT_F32 && a->A.stride[1] == 1 && a->qweight.stride[1] == 1
             ? NULL
             : "not rows of float32";
}

/* In the order of `rows`. */
#define QUANTIZED(op, impls, refuse)                                                                                  \
  static const kr_impl impls[] = {                                                                                     \
      {"tiles_loops", KRAIT_CAP_CPU, refuse, kr_##op##_tiles_scalar, kr_##op##_tiles_scratch_scalar},                \
      QUANTIZED_AMX(op, refuse){"ref", KRAIT_CAP_CPU, NULL, kr_##op##_ref, NULL},                                    \
  }
#ifdef KR_BUILD_amx
#define QUANTIZED_AMX(op, refuse) \
  {"simd_amx_tiles", KRAIT_CAP_CPU | KRAIT_CAP_AVX512 | KRAIT_CAP_AMX, refuse, kr_##op##_tiles_avx512, \
   kr_##op##_tiles_scratch_avx512},
#else
#define QUANTIZED_AMX(op, refuse)
#endif
QUANTIZED(gemm_q8, impls_q8, refuse_q8);
QUANTIZED(gemm_q4k, impls_q4k, refuse_q4k);

static krait_ctx *open_tiles_ctx(int n_threads) {
  krait_ctx *ctx;
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = n_threads};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static void print_line(void *user, const char *line) {
  (void)user;
  print_error("  %s\n", line);
}

static void walk(kr_op op, const kr_impl *own_rows) {
  const char *const percent = getenv("KR_CHECK_PERCENT"), *const seed = getenv("KR_CHECK_SEED");
  op.impls = own_rows, op.n_impls = N_IMPLS;
  const int64_t n = 80 * (percent ? atoi(percent) : 100) / 100;
  const kr_check_options check = {
      .seed = seed ? strtoull(seed, NULL, 10) : 7, .n_cases = n > 30 ? n : 30, .report = print_line};
  kr_check_result result;
  krait_ctx *ctx = open_tiles_ctx(2);
  assert_int_equal(kr_check_op(ctx, &op, &check, &result), KRAIT_OK);
  print_message("  %lld runs, worst %.2f of the bound\n", (long long)result.n_runs, result.worst);
  assert_int_equal(result.n_failures, 0);
  assert_true(result.n_runs > check.n_cases / 4);
  krait_ctx_close(&ctx);
}

static void random_products_are_the_references(void **state) {
  (void)state;
  walk(kr_op_gemm, impls);
  walk(kr_op_gemm_q8, impls_q8);
  walk(kr_op_gemm_q4k, impls_q4k);
}

enum { M = 70, N = 75, K = 200 };

typedef struct numbers {
  float A[M * K], B[K * N], out[M * N], want[M * N];
} numbers;

static void fill_one(float *to, int n, uint32_t random, float size) {
  for (int i = 0; i < n; i++) {
    random = random * 1664525 + 1013904223;
    to[i] = ((float)(random >> 8) - 0x1p23f) * 0x1p-23f * size;
  }
}
static void fill_tiles(numbers *x, float rows_size, float columns_size) {
  fill_one(x->A, M * K, 1, rows_size);
  fill_one(x->B, K * N, 2, columns_size);
}

static void run_tiles(const kr_impl *impl, int n_threads, numbers *x, float *out) {
  krait_ctx *ctx = open_tiles_ctx(n_threads);
  kr_gemm_args a = {.call = {.size = sizeof a}, .M = M, .N = N, .K = K};
  a.A = (kr_view){.data = x->A, .stride = {K, 1}};
  a.Bmat = (kr_view){.data = x->B, .stride = {N, 1}};
  a.out = (kr_view){.data = out, .stride = {N, 1}};
  a.call.scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, &a) : 0;
  a.call.scratch = malloc(a.call.scratch_bytes + 1);
  assert_non_null(a.call.scratch);
  for (int i = 0; i < M * N; i++) out[i] = NAN;
  assert_int_equal(impl->run(ctx, &a), KRAIT_OK);
  free(a.call.scratch);
  krait_ctx_close(&ctx);
}

static int may_run(const kr_impl *impl) { return (impl->needs & krait_cpu_caps()) == impl->needs; }

static void compare_tiles(const kr_impl *impl, const numbers *x, double scale) {
  for (int i = 0; i < M * N; i++) {
    const double got = (double)x->out[i], want = (double)x->want[i];
    if (isfinite(want) ? !(fabs(got - want) <= 3e-6 * scale) : isnan(want) ? !isnan(got) : got != want)
      fail_msg("%s: (%d,%d) is %g, not %g", impl->name, i / N, i % N, got, want);
  }
}

/* Parts of small numbers would be denormal, which the unit treats as 0, and large ones have sums beyond float32. */
static void sizes_do_not_matter(void **state) {
  (void)state;
  static const float sizes[][2] = {{1, 1},
                                   {0x1p-100f, 0x1p100f},
                                   {0x1p-140f, 0x1p126f},
                                   {0x1p-120f, 0x1p10f},
                                   {0x1p126f, 0x1p-130f},
                                   {0x1p60f, 0x1p55f},
                                   {0x1p-60f, 0x1p-60f},
                                   {0x1p100f, 0x1p20f}};
  numbers *const x = malloc(sizeof *x);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int r = 0; r < N_IMPLS - 1; r++) {
      if (!may_run(&impls[r])) continue;
      fill_tiles(x, sizes[i][0], sizes[i][1]);
      for (int k = 0; k < K; k++) x->A[20 * K + k] *= 0x1p-20f, x->B[k * N + 70] = 0;
      run_tiles(&impls[N_IMPLS - 1], 1, x, x->want);
      run_tiles(&impls[r], 1, x, x->out);
      compare_tiles(&impls[r], x, (double)sizes[i][0] * (double)sizes[i][1] * sqrt(K));
    }
  free(x);
}

static void non_finite_values_stay_in_their_row_and_column(void **state) {
  (void)state;
  numbers *const x = malloc(sizeof *x);
  for (int r = 0; r < N_IMPLS - 1; r++) {
    if (!may_run(&impls[r])) continue;
    fill_tiles(x, 1, 1);
    x->A[3 * K + 5] = INFINITY, x->A[37 * K + 199] = -INFINITY, x->A[69 * K + 100] = NAN;
    x->B[7 * N + 2] = -INFINITY, x->B[150 * N + 74] = NAN, x->B[5 * N + 40] = 0;
    run_tiles(&impls[N_IMPLS - 1], 1, x, x->want);
    run_tiles(&impls[r], 1, x, x->out);
    compare_tiles(&impls[r], x, sqrt(K));
  }
  free(x);
}

/* Quantized weights of 8 or 4 bits. */
enum { SUPERS = 2, TERMS = 256 * SUPERS };
typedef struct quantized {
  float A[M * TERMS], scales[N * TERMS / 32], out[M * N], want[M * N];
  int32_t words[N * TERMS / 4];
} quantized;

static void fill_quantized(quantized *x, int is_q4k, float size) {
  uint32_t random = 5;
  fill_one(x->A, M * TERMS, 3, size);
  fill_one(x->scales, N * TERMS / 32, 4, 0.01f);
  for (int i = 0; i < N * TERMS / 4; i++) random = random * 1664525 + 1013904223, x->words[i] = (int32_t)random;
  for (int i = 0; is_q4k && i < N * SUPERS; i++) x->words[36 * i] = 0x1c002000; /* of float16, 2^-7 and 2^-8 */
}

static void run_quantized(const kr_impl *impl, int n_threads, quantized *x, float *out) {
  krait_ctx *ctx = open_tiles_ctx(n_threads);
  const kr_view A = {.data = x->A, .stride = {TERMS, 1}}, to = {.data = out, .stride = {N, 1}};
  kr_gemm_q8_args a = {.call = {.size = sizeof a}, .M = M, .N = N, .S = TERMS / 32, .A = A, .out = to};
  kr_gemm_q4k_args b = {.call = {.size = sizeof b}, .M = M, .N = N, .S = SUPERS, .A = A, .out = to};
  a.qweight = (kr_view){.data = x->words, .dtype = KRAIT_I32, .stride = {TERMS / 4, 1}};
  a.scales = (kr_view){.data = x->scales, .stride = {TERMS / 32, 1}};
  b.qweight = (kr_view){.data = x->words, .dtype = KRAIT_I32, .stride = {36 * SUPERS, 1}};
  const int is_q4k = impl >= impls_q4k && impl < impls_q4k + N_IMPLS;
  const void *args = is_q4k ? (const void *)&b : &a;
  const uint64_t bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0;
  a.call.scratch_bytes = b.call.scratch_bytes = bytes;
  a.call.scratch = b.call.scratch = malloc(bytes + 1);
  assert_non_null(a.call.scratch);
  for (int i = 0; i < M * N; i++) out[i] = NAN;
  assert_int_equal(impl->run(ctx, args), KRAIT_OK);
  free(a.call.scratch);
  krait_ctx_close(&ctx);
}

static void compare_quantized(const kr_impl *impl, const quantized *x, double scale) {
  for (int i = 0; i < M * N; i++) {
    const double got = (double)x->out[i], want = (double)x->want[i];
    if (isfinite(want) ? !(fabs(got - want) <= 1e-5 * scale + 0x1p-147) : isnan(want) ? !isnan(got) : got != want)
      fail_msg("%s: (%d,%d) is %g, not %g", impl->name, i / N, i % N, got, want);
  }
}

/* Rows of all magnitudes, non-finite rows, and any number of threads. */
static void quantized_products_are_as_robust(void **state) {
  (void)state;
  static const float sizes[] = {1, 0x1p-100f, 0x1p-140f, 0x1p100f, 0x1p-60f};
  quantized *const x = malloc(sizeof *x);
  for (int is_q4k = 0; is_q4k < 2; is_q4k++)
    for (int r = 0; r < N_IMPLS - 1; r++) {
      const kr_impl *all = is_q4k ? impls_q4k : impls_q8;
      if (!may_run(&all[r])) continue;
      for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill_quantized(x, is_q4k, sizes[i]);
        for (int k = 0; k < TERMS; k++) x->A[20 * TERMS + k] *= 0x1p-20f;
        if (i == 0) x->A[3 * TERMS + 5] = INFINITY, x->A[37 * TERMS + 199] = -INFINITY, x->A[69 * TERMS + 100] = NAN;
        run_quantized(&all[N_IMPLS - 1], 1, x, x->want);
        run_quantized(&all[r], 1, x, x->out);
        compare_quantized(&all[r], x, (double)sizes[i] * sqrt(TERMS) * 0.5);
        if (i) continue;
        memcpy(x->want, x->out, sizeof x->want);
        for (int n_threads = 2; n_threads < 6; n_threads++) {
          run_quantized(&all[r], n_threads, x, x->out);
          assert_memory_equal(x->out, x->want, sizeof x->out);
        }
      }
    }
  free(x);
}

#ifdef KR_BUILD_vnni
/* Likewise of 16-bit integers, in whose rounding a row depends on no other. */
static void words_are_as_robust(void **state) {
  (void)state;
  static const float sizes[] = {1, 0x1p-100f, 0x1p98f, 0x1p-60f};
  const kr_impl words = {.name = "simd_avx512_words",
                         .run = kr_gemm_q8_words_avx512,
                         .scratch_bytes = kr_gemm_q8_words_scratch_avx512};
  if (!(krait_cpu_caps() & KRAIT_CAP_AVX512) || !kr_cpu_has_vnni()) skip();
  quantized *const x = malloc(sizeof *x);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    fill_quantized(x, 0, sizes[i]);
    for (int k = 0; k < TERMS; k++) x->A[20 * TERMS + k] = 0;
    if (i == 0)
      x->A[3 * TERMS + 5] = INFINITY, x->A[37 * TERMS + 199] = -INFINITY, x->A[69 * TERMS + 100] = NAN,
      x->A[40 * TERMS + 64] = 1e36f, x->A[41 * TERMS + 64] = 1e-38f;
    run_quantized(&impls_q8[N_IMPLS - 1], 1, x, x->want);
    run_quantized(&words, 1, x, x->out);
    for (int n = 0; n < N; n++) assert_true(x->out[20 * N + n] == 0);
    for (int n = 0; i == 0 && n < N; n++) { /* of values beyond the others' scale */
      const double got = (double)x->out[40 * N + n], want = (double)x->want[40 * N + n];
      if (!(fabs(got - want) <= 1e-5 * fabs(want) + 1e-3)) fail_msg("row 40: %g, not %g", got, want);
      x->want[40 * N + n] = x->out[40 * N + n];
    }
    compare_quantized(&words, x, 10 * (double)sizes[i] * sqrt(TERMS) * 0.5);
    memcpy(x->want, x->out, sizeof x->want);
    run_quantized(&words, 3, x, x->out);
    assert_memory_equal(x->out, x->want, sizeof x->out);
  }
  free(x);
}
#endif

#ifdef KR_BUILD_amx
static int has_tiles_in_use(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return low >> 18 & 1;
}

/* A context switch would save and restore them. */
static void a_thread_keeps_no_tiles(void **state) {
  (void)state;
  const kr_impl *impl = &impls[1];
  if (!may_run(impl)) skip();
  numbers *const x = malloc(sizeof *x);
  fill_tiles(x, 1, 1);
  run_tiles(impl, 1, x, x->out);
  assert_false(has_tiles_in_use());
  free(x);
}
#endif

static void threads_do_not_matter(void **state) {
  (void)state;
  numbers *const x = malloc(sizeof *x);
  for (int r = 0; r < N_IMPLS - 1; r++) {
    if (!may_run(&impls[r])) continue;
    fill_tiles(x, 1, 1);
    run_tiles(&impls[r], 1, x, x->want);
    for (int n_threads = 2; n_threads < 6; n_threads++) {
      run_tiles(&impls[r], n_threads, x, x->out);
      assert_memory_equal(x->out, x->want, sizeof x->out);
    }
  }
  free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_products_are_the_references),
      cmocka_unit_test(sizes_do_not_matter),
      cmocka_unit_test(non_finite_values_stay_in_their_row_and_column),
      cmocka_unit_test(threads_do_not_matter),
      cmocka_unit_test(quantized_products_are_as_robust),
#ifdef KR_BUILD_vnni
      cmocka_unit_test(words_are_as_robust),
#endif
#ifdef KR_BUILD_amx
      cmocka_unit_test(a_thread_keeps_no_tiles),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
