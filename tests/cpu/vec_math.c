/* vec_math.c: the functions of vec_math.h against double libm, in ulp. Built once per ISA.
 * By default one float32 in 1021; KR_VEC_MATH_STEP=1 walks all of them (half an hour, or with KR_VEC_MATH_PART=0 to 15
 * a sixteenth). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../test.h"
#include "probe.h"
#include "vec_math.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

typedef struct function {
  const char *name;
  kr_v (*vector)(kr_v);
  double (*exact)(double);
  double bound_ulp, floor; /* floor: absolute error that is always allowed */
} function;

static double exact_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double exact_silu(double x) { return x * exact_sigmoid(x); }
static double exact_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static kr_v vector_exp2_any(kr_v x) { return kr_v_exp2_any(x, kr_v_set1(1.0f)); }
static kr_v vector_exp2_near(kr_v x) {
  return kr_v_exp2_product(kr_v_min(kr_v_set1(126.0f), kr_v_max(kr_v_set1(-126.0f), x)), kr_v_set1(1.0f));
}
static double exact_exp2_near(double x) { return exp2(x > 126 ? 126 : x < -126 ? -126 : x); }

#ifdef KR_ISA_scalar
enum { HAS_FMA = 0 };
#else
enum { HAS_FMA = 1 };
#endif

static const function functions[] = {
    {"exp", kr_v_exp, exp, 1.1, 0},
    {"log1p", kr_v_log1p, log1p, 1, 0},
    {"sigmoid", kr_v_sigmoid, exact_sigmoid, 2, 0},
    {"silu", kr_v_silu, exact_silu, HAS_FMA ? 2 : 2.2, 0},
    {"silu_fast", kr_v_silu_fast, exact_silu, 2.5, 32 * 0x1p-126},
    {"softplus", kr_v_softplus, exact_softplus, 2, 0},
    {"softplus_fast", kr_v_softplus_fast, exact_softplus, 3, 0x1p-126},
    {"tanh", kr_v_tanh, tanh, 1.5, 0},
    {"exp2_any", vector_exp2_any, exp2, 2.2, 0},
    {"exp2_product", vector_exp2_near, exact_exp2_near, 2.2, 0},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

/* The distance between floats at |value|. */
static double ulp_at(double value) {
  double size = fabs(value);
  if (size < 0x1p-126) return 0x1p-149;
  int exponent;
  frexp(size, &exponent);
  return ldexp(1, exponent - 24);
}

/* Fewer steps under sanitizers, which find little in arithmetic. Odd, for the angles. */
static int sparser(void) { return getenv("KR_CHECK_PERCENT") ? 11 : 1; }

static double error_in_ulps(const function *f, float x, float got) {
  double want = f->exact(x);
  if (isnan(want)) return isnan(got) ? 0 : INFINITY;
  if (fabs(want) > 0x1.ffffffp127) return isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
  if (isinf(got) || isnan(got)) return fabs(want) > 0x1.fffffcp127 && isinf(got) ? 0 : INFINITY;
  double error = fabs((double)got - want);
  return error <= f->floor ? 0 : error / ulp_at(want);
}

static double worst_error(const function *f, uint64_t step, float *where) {
  double worst = 0;
  const char *given = getenv("KR_VEC_MATH_PART");
  const uint64_t part = given ? strtoull(given, NULL, 10) & 15 : 0, begin = part << 28,
                 end = given ? (part + 1) << 28 : 1ull << 32;
  for (uint64_t bits = begin; bits < end; bits += step * KR_VL) {
    float x[KR_VL], got[KR_VL];
    for (int i = 0; i < KR_VL; i++) x[i] = kr_bits_float((uint32_t)(bits + (uint64_t)i * step));
    kr_v_store(got, f->vector(kr_v_load(x)));
    for (int i = 0; i < KR_VL; i++) {
      if (isnan(x[i]) && f->vector == vector_exp2_near) continue;
      double error = error_in_ulps(f, x[i], got[i]);
      if (error > worst) worst = error, *where = x[i];
    }
  }
  return worst;
}

static void functions_keep_their_bounds(void **state) {
  (void)state;
  const char *given = getenv("KR_VEC_MATH_STEP");
  uint64_t step = given ? strtoull(given, NULL, 10) : 1021 * (uint64_t)sparser();
  int failed = 0;
  for (int i = 0; i < N_FUNCTIONS; i++) {
    float where = 0;
    double worst = worst_error(&functions[i], step ? step : 1, &where);
    print_message("%-8s %-13s %.3f ulp at %.9g, bound %.1f\n", TEXT(KR_ISA_NAME), functions[i].name, worst,
                  (double)where, functions[i].bound_ulp);
    failed |= !(worst <= functions[i].bound_ulp);
  }
  assert_false(failed);
}

static void special_values(void **state) {
  (void)state;
  static const float specials[] = {0.0f,       -0.0f,     1.0f,       -1.0f,           INFINITY,         -INFINITY,
                                   NAN,        0x1p-149f, -0x1p-149f, 0x1.fffffep127f, -0x1.fffffep127f, 20.0f,
                                   88.722839f, 88.7229f,  -87.3365f,  -103.97f,        -104.0f,          0.625f,
                                   0x1p24f};
  for (int i = 0; i < N_FUNCTIONS; i++)
    for (size_t k = 0; k < sizeof specials / sizeof *specials; k++) {
      if (isnan(specials[k]) && functions[i].vector == vector_exp2_near) continue;
      float got[KR_VL];
      kr_v_store(got, functions[i].vector(kr_v_set1(specials[k])));
      double error = error_in_ulps(&functions[i], specials[k], got[0]);
      if (error > functions[i].bound_ulp)
        fail_msg("%s(%g) is %.9g", functions[i].name, (double)specials[k], (double)got[0]);
    }
}

/* cos and sin of products, absolute: from tiny angles to KR_MOST_ANGLE, and beyond lane by lane. */
static void angles(void **state) {
  (void)state;
  double worst = 0, worst_any = 0;
  for (int k = 0; k < 400000; k += sparser()) {
    const float a = ldexpf(1 + (float)(k % 997) / 997, k % 24 - 12),
                b = (k & 1 ? -1 : 1) * (1 + (float)(k % 1009) / 1009);
    const double exact = (double)a * (double)b;
    float cosine[KR_VL], sine[KR_VL];
    kr_v s, c = kr_v_cos_sin_any(kr_v_set1(a), kr_v_set1(b), &s);
    kr_v_store(cosine, c), kr_v_store(sine, s);
    worst_any = fmax(worst_any, fmax(fabs(cosine[0] - cos(exact)), fabs(sine[0] - sin(exact))));
    if (fabs(exact) > (double)KR_MOST_ANGLE) continue;
    c = kr_v_cos_sin_near(kr_v_set1(a), kr_v_set1(b), &s);
    kr_v_store(cosine, c), kr_v_store(sine, s);
    worst = fmax(worst, fmax(fabs(cosine[0] - cos(exact)), fabs(sine[0] - sin(exact))));
  }
  print_message("%-8s cos, sin %.2g, lane by lane %.2g\n", TEXT(KR_ISA_NAME), worst, worst_any);
  assert_true(worst <= 2.5e-7 && worst_any <= 6.1e-8);
}

static void transpose_and_split(void **state) {
  (void)state;
  kr_v rows[KR_VL];
  float lane[KR_VL];
  for (int i = 0; i < KR_VL; i++) {
    for (int j = 0; j < KR_VL; j++) lane[j] = (float)(100 * i + j);
    rows[i] = kr_v_load(lane);
  }
  kr_v_store(lane, kr_v_sum_each(rows));
  for (int i = 0; i < KR_VL; i++) assert_true(lane[i] == (float)(100 * i * KR_VL + KR_VL * (KR_VL - 1) / 2));
  kr_v_transpose(rows);
  for (int i = 0; i < KR_VL; i++) {
    kr_v_store(lane, rows[i]);
    for (int j = 0; j < KR_VL; j++) assert_int_equal((int)lane[j], 100 * j + i);
  }
  for (float x = 1e-30f; x < 1e30f; x *= 1.37f) {
    kr_v e, m = kr_v_split(kr_v_set1(x), &e);
    float mantissa[KR_VL], exponent[KR_VL];
    kr_v_store(mantissa, m);
    kr_v_store(exponent, e);
    assert_true(mantissa[0] >= 0.7071067f && mantissa[0] <= 1.4142137f);
    assert_true(ldexpf(mantissa[0], (int)exponent[0]) == x);
  }
}

static void partial_loads_and_stores(void **state) {
  (void)state;
  for (int n = 1; n < KR_VL; n++) {
    float in[KR_VL], out[KR_VL];
    uint16_t half[KR_VL], half_out[KR_VL];
    for (int i = 0; i < KR_VL; i++)
      in[i] = (float)(i + 1), out[i] = -1, half[i] = kr_float_to_f16((float)(i + 1)), half_out[i] = 7;
    kr_v v = kr_v_loadn(in, n), h = kr_v_loadn_h(half, n);
    assert_true(kr_v_sum(v) == (float)(n * (n + 1) / 2) && kr_v_sum(h) == (float)(n * (n + 1) / 2));
    kr_v_storen(out, v, n);
    kr_v_storen_b(half_out, v, n);
    for (int i = 0; i < KR_VL; i++) {
      assert_true(out[i] == (i < n ? (float)(i + 1) : -1));
      assert_int_equal(half_out[i], i < n ? kr_float_to_bf16((float)(i + 1)) : 7);
    }
  }
}

int main(void) {
  uint64_t needs = 0;
#define KR_ISA(isa, cap) needs = strcmp(#isa, TEXT(KR_ISA_NAME)) == 0 ? (cap) : needs;
#include "isa.def"
#undef KR_ISA
  if ((kr_cpu_probe() & needs) != needs) {
    printf("skipped: this CPU has no %s\n", TEXT(KR_ISA_NAME));
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(functions_keep_their_bounds), cmocka_unit_test(special_values),
                                     cmocka_unit_test(angles), cmocka_unit_test(transpose_and_split),
                                     cmocka_unit_test(partial_loads_and_stores)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
