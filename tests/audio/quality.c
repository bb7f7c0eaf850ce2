/* quality.c: all measures of the demo recording, unchanged, mixed, delayed, with a lost part and with gaps, against
 * independent programs (tests/golden/metrics/demo.tsv, by its make.py). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../test.h"
#include "disturbance.h"
#include "intelligibility.h"
#include "metrics.h"
#include "pesq.h"
#include "quality.h"
#include "scorer.h"
#include "status.h"
#include "track.h"

static float *clean, *noisy, *other;
static int64_t n;

static float *read_demo(const char *path) {
  kr_track *track = NULL;
  if (kr_track_open(path, 0, 16000, &track) < 0) return NULL;
  n = kr_track_length(track);
  float *samples = calloc((size_t)n, sizeof *samples);
  int64_t n_read = 0;
  if (samples && kr_track_read(track, samples, n, &n_read) < 0) n_read = 0;
  kr_track_close(&track);
  return n_read == n ? samples : NULL;
}

static int open_demo(void **state) {
  (void)state;
  clean = read_demo("demo/clean.flac");
  noisy = read_demo("demo/noisy.flac");
  other = calloc((size_t)n, sizeof *other);
  return clean && noisy && other ? 0 : -1;
}

static int close_demo(void **state) {
  (void)state;
  free(clean);
  free(noisy);
  free(other);
  return 0;
}

static void make_variant(const char *name) {
  enum { LATE = 600, LOST = 4000, GAP = 1500 };
  const int is_noisy = strcmp(name, "noisy") == 0, is_late = strcmp(name, "late") == 0,
            is_lost = strcmp(name, "lost") == 0;
  for (int64_t i = 0; i < n; i++) {
    const int64_t from = is_late ? i - LATE : is_lost && i >= n / 2 ? i + LOST : i;
    other[i] = from < 0 || from >= n ? 0 : is_noisy ? noisy[from] : 0.5f * clean[from] + 0.5f * noisy[from];
  }
  for (int64_t i = 10000; strcmp(name, "gone") == 0 && i < n - GAP; i += 20000)
    memset(other + i, 0, GAP * sizeof *other);
}

static void as_independent_programs(void **state) {
  (void)state;
  FILE *file = fopen("tests/golden/metrics/demo.tsv", "r");
  assert_non_null(file);
  char line[512], name[32];
  int n_rows = 0;
  assert_non_null(fgets(line, sizeof line, file));
  assert_non_null(strstr(line, "pesq\tpesq_nb\tcsig\tcbak\tcovl\tsegsnr_db\tsi_sdr_db\tstoi\tllr\twss"));
  for (double v[10]; fgets(line, sizeof line, file); n_rows++) {
    kr_quality q;
    double narrow;
    assert_int_equal(sscanf(line, "%31s%lf%lf%lf%lf%lf%lf%lf%lf%lf%lf", name, v, v + 1, v + 2, v + 3, v + 4, v + 5,
                            v + 6, v + 7, v + 8, v + 9),
                     11);
    make_variant(name);
    assert_int_equal(kr_quality_of(clean, other, n, &q), KRAIT_OK);
    assert_int_equal(kr_pesq(clean, other, n, KR_PESQ_NARROW, &narrow), KRAIT_OK);
    const double found[] = {q.pesq, narrow, q.csig, q.cbak, q.covl, q.segsnr_db, q.si_sdr_db, q.stoi, q.llr, q.wss};
    const double bounds[] = {1e-3, 1e-3, 2e-3, 2e-3, 2e-3, 1e-3, 1e-3, 1e-3, 1e-3, 2e-2};
    for (int i = 0; i < 10; i++) {
      if (!(fabs(found[i] - v[i]) <= bounds[i]))
        print_message("%s, column %d: %.6f instead of %.6f\n", name, i + 1, found[i], v[i]);
      assert_true(fabs(found[i] - v[i]) <= bounds[i]);
    }
  }
  fclose(file);
  assert_int_equal(n_rows, 5);
}

static void the_same_is_best(void **state) {
  (void)state;
  kr_quality q;
  assert_int_equal(kr_quality_of(clean, clean, n, &q), KRAIT_OK);
  assert_float_equal(q.pesq, 4.644, 1e-3); /* the mapping's value at 4.5 */
  assert_float_equal(q.segsnr_db, 35, 0.01);
  assert_float_equal(q.stoi, 1, 1e-6);
  assert_float_equal(q.llr, 0, 1e-9);
  assert_float_equal(q.wss, 0, 1e-9);
  assert_true(q.csig == 5 && q.covl == 5);
}

/* PESQ ignores levels; unmeasurable input gives NaN and a message. */
static void levels_and_nothing(void **state) {
  (void)state;
  double loud, soft, mos;
  for (int64_t i = 0; i < n; i++) other[i] = 0.01f * noisy[i];
  assert_int_equal(kr_pesq(clean, noisy, n, KR_PESQ_WIDE, &loud), KRAIT_OK);
  assert_int_equal(kr_pesq(clean, other, n, KR_PESQ_WIDE, &soft), KRAIT_OK);
  assert_float_equal(loud, soft, 1e-4);
  memset(other, 0, (size_t)n * sizeof *other);
  assert_true(kr_pesq(clean, other, n, KR_PESQ_WIDE, &mos) < 0 && isnan(mos) && strstr(krait_error_detail(), "silent"));
  assert_true(kr_pesq(other, clean, n, KR_PESQ_WIDE, &mos) < 0 && isnan(mos));
  assert_true(kr_pesq(clean, noisy, 3999, KR_PESQ_WIDE, &mos) < 0 && strstr(krait_error_detail(), "0.25 s"));
  kr_quality q;
  assert_int_equal(kr_quality_of(clean, noisy, 100, &q), KRAIT_OK);
  assert_true(isnan(q.pesq) && isnan(q.stoi) && isnan(q.llr) && isnan(q.csig) && isfinite(q.si_sdr_db));
  assert_int_equal(kr_quality_of(other, clean, n, &q), KRAIT_OK);
  assert_true(isnan(q.pesq) && isnan(q.si_sdr_db));
}

/* A batch in parallel with other work: the same scores as one by one, for any number of threads. */
static void batches(void **state) {
  (void)state;
  enum { BATCH = 5, N = 16000 };
  double want[BATCH], found[BATCH];
  int64_t n_failed;
  for (int i = 0; i < BATCH; i++) kr_pesq(clean + i * N, i == 3 ? other : noisy + i * N, N, KR_PESQ_WIDE, &want[i]);
  float *x = malloc(2 * BATCH * N * sizeof *x);
  memcpy(x, clean, BATCH * N * sizeof *x);
  memcpy(x + BATCH * N, noisy, BATCH * N * sizeof *x);
  memset(x + (BATCH + 3) * N, 0, N * sizeof *x); /* silent: fails */
  for (int n_threads = 1; n_threads < 8; n_threads += 3) {
    kr_scorer *scorer = NULL;
    assert_int_equal(kr_scorer_open(n_threads, &scorer), KRAIT_OK);
    for (int turn = 0; turn < 6; turn++) {
      const int64_t batch = BATCH - turn % 3;
      if (turn >= 3)
        assert_int_equal(kr_scorer_expect(scorer, x + BATCH * N, BATCH, N), KRAIT_OK); /* replaced by the next */
      assert_int_equal(kr_scorer_expect(scorer, x, batch, N), KRAIT_OK);
      assert_true(kr_scorer_begin(scorer, x + BATCH * N, batch + 1, N) < 0);
      assert_int_equal(kr_scorer_begin(scorer, x + BATCH * N, batch, N), KRAIT_OK);
      assert_true(turn > 0 || kr_scorer_expect(scorer, x, 1, N) < 0);
      assert_true(turn > 0 || kr_scorer_begin(scorer, x, 1, N) < 0);
      assert_int_equal(kr_scorer_end(scorer, found, &n_failed), KRAIT_OK);
      assert_int_equal(n_failed, turn % 3 < 2);
      for (int i = 0; i < batch; i++) assert_true(i == 3 ? isnan(found[i]) : found[i] == want[i]);
    }
    kr_scorer_close(&scorer);
  }
  free(x);
}

/* The training loss is close to PESQ, and its gradient by the samples is its derivative: along itself, and along the
 * difference of the signals. */
static void disturbance_follows_pesq(void **state) {
  (void)state;
  enum { N = 48000 };
  kr_disturbance *d = NULL;
  float *gradient = calloc(N, sizeof *gradient), *moved = calloc(N, sizeof *moved);
  assert_non_null(gradient);
  assert_non_null(moved);
  assert_true(n >= N);
  assert_int_equal(kr_disturbance_open(N, &d), KRAIT_OK);
  static const char *const names[] = {"noisy", "mixed"};
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    make_variant(names[k]);
    double mos, square = 0, along = 0;
    assert_int_equal(kr_pesq(clean, other, N, KR_PESQ_WIDE, &mos), KRAIT_OK);
    const double raw = (3.8224 - log(4 / (mos - 0.999) - 1)) / 1.3669,
                 value = kr_disturbance_run(d, clean, other, gradient);
    print_message("%s: %.3f below the best, %.3f by PESQ\n", names[k], value, 4.5 - raw);
    assert_true(fabs(value - (4.5 - raw)) < 0.25);
    for (int i = 0; i < N; i++) square += (double)gradient[i] * gradient[i];
    for (int way = 0; way < 2; way++) {
      double far[2];
      for (int side = 0; side < 2; side++) {
        const double step = (side ? 1 : -1) * (way ? 2e-4 : 2e-4 / square);
        for (int i = 0; i < N; i++)
          moved[i] = other[i] + (float)(step * (way ? (double)clean[i] - other[i] : (double)gradient[i]));
        far[side] = kr_disturbance_run(d, clean, moved, NULL);
      }
      along = 0;
      for (int i = 0; i < N; i++) along += (double)gradient[i] * ((double)clean[i] - other[i]);
      const double want = way ? along : 1, got = (far[1] - far[0]) / 4e-4;
      print_message("  slope %.6g, by differences %.6g\n", want, got);
      assert_true(fabs(got / want - 1) < 0.01);
    }
  }
  assert_true(kr_disturbance_run(d, clean, clean, NULL) < 1e-6);
  memset(moved, 0, N * sizeof *moved);
  assert_true(kr_disturbance_run(d, moved, clean, gradient) == 0 && gradient[N / 2] == 0);
  kr_disturbance_close(&d);
  free(gradient);
  free(moved);
}

/* A loss of `other` by its samples: its gradient against finite differences along the gradient and along the
 * difference of the signals. */
typedef double loss_fn(const float *made, double scale, float *gradient);
enum { LOSS_N = 32000 };
static void slopes_are(loss_fn *loss, double step_of_it) {
  static float gradient[LOSS_N], moved[LOSS_N], unused[LOSS_N];
  double square = 0, along = 0;
  assert_true(n >= LOSS_N);
  loss(other, 2, gradient);
  for (int i = 0; i < LOSS_N; i++)
    square += (double)gradient[i] * gradient[i], along += (double)gradient[i] * ((double)clean[i] - other[i]);
  for (int way = 0; way < 2; way++) {
    double far[2];
    for (int side = 0; side < 2; side++) {
      const double step = (side ? 1 : -1) * (way ? 1e-3 : step_of_it / square);
      for (int i = 0; i < LOSS_N; i++)
        moved[i] = other[i] + (float)(step * (way ? (double)clean[i] - other[i] : (double)gradient[i]));
      far[side] = loss(moved, 1, unused);
    }
    const double want = way ? along : 1, got = (far[1] - far[0]) / (way ? 1e-3 : step_of_it);
    print_message("  slope %.6g, by differences %.6g\n", want, got);
    assert_true(fabs(got / want - 1) < 2e-3);
  }
}

/* A signal unrelated to speech gives no gradient. */
static void nothing_is_lacking(double value, const float *gradient) {
  assert_true(value == 0);
  for (int i = 0; i < LOSS_N; i++) assert_true(gradient[i] == 0);
}

static double lack_of_si_sdr(const float *made, double scale, float *gradient) {
  return kr_si_sdr_lack(clean, made, LOSS_N, scale, gradient);
}

/* The loss is the decibels short of 30. */
static void si_sdr_as_a_loss(void **state) {
  (void)state;
  static float gradient[LOSS_N], nothing[LOSS_N];
  make_variant("noisy");
  kr_si_sdr sums = {0};
  kr_si_sdr_push(&sums, clean, other, LOSS_N);
  const double db = kr_si_sdr_db(&sums), value = lack_of_si_sdr(other, 2, gradient);
  print_message("SI-SDR %.3f dB, %.3f below 30\n", db, value);
  assert_true(db < 20 && value > 30 - db && value < 30 - db + 0.5);
  slopes_are(lack_of_si_sdr, 1e-3);
  assert_true(lack_of_si_sdr(clean, 1, gradient) < 1e-6);
  nothing_is_lacking(lack_of_si_sdr(nothing, 1, gradient), gradient);
  nothing_is_lacking(kr_si_sdr_lack(nothing, clean, LOSS_N, 1, gradient), gradient);
}

static kr_intelligibility *intelligibility;
static double lack_of_stoi(const float *made, double scale, float *gradient) {
  if (gradient) memset(gradient, 0, LOSS_N * sizeof *gradient);
  return kr_intelligibility_lack(intelligibility, clean, made, scale, gradient);
}

/* The score is the measured STOI, at any level. */
static void stoi_as_a_loss(void **state) {
  (void)state;
  static float gradient[LOSS_N], nothing[LOSS_N], louder[LOSS_N];
  static const char *const names[] = {"noisy", "mixed"};
  assert_int_equal(kr_intelligibility_open(399, &intelligibility), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_intelligibility_open(LOSS_N, &intelligibility), KRAIT_OK);
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    kr_quality q;
    make_variant(names[k]);
    assert_int_equal(kr_quality_of(clean, other, LOSS_N, &q), KRAIT_OK);
    const double value = lack_of_stoi(other, 2, gradient);
    print_message("%s: %.4f below 1, %.4f by STOI\n", names[k], value, 1 - q.stoi);
    assert_true(fabs(value - (1 - q.stoi)) < 0.02);
    for (int i = 0; i < LOSS_N; i++) louder[i] = 3 * other[i];
    assert_true(fabs(lack_of_stoi(louder, 2, gradient) - value) < 1e-5);
    assert_true(lack_of_stoi(other, 2, NULL) == value);
    slopes_are(lack_of_stoi, 1e-5);
  }
  assert_true(lack_of_stoi(clean, 1, gradient) < 1e-6);
  nothing_is_lacking(lack_of_stoi(nothing, 1, gradient) - 1, gradient); /* no band is alike */
  nothing_is_lacking(kr_intelligibility_lack(intelligibility, nothing, clean, 1, gradient), gradient);
  gradient[7] = 3;
  kr_intelligibility_lack(intelligibility, nothing, clean, 1, gradient);
  assert_true(gradient[7] == 3);
  kr_intelligibility_close(&intelligibility);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(batches), cmocka_unit_test(as_independent_programs),
                                     cmocka_unit_test(the_same_is_best), cmocka_unit_test(levels_and_nothing),
                                     cmocka_unit_test(disturbance_follows_pesq), cmocka_unit_test(si_sdr_as_a_loss),
                                     cmocka_unit_test(stoi_as_a_loss)};
  return cmocka_run_group_tests(tests, open_demo, close_demo);
}
