/* sampler.c: which tokens each rule keeps, by counting draws. */
#include "../test.h"

#include <math.h>

#include "generate/sampler.h"

enum { N = 60, DRAWS = 4000 };

/* Pairs of equal logits, the most likely neither first nor last. */
static float logit_of(int id) { return -0.15f * (float)(id * 7 % N / 2); }

/* Rank by likelihood; of equals the smaller token first. */
static int rank_of(int id) {
  int before = 0;
  for (int k = 0; k < N; k++) before += logit_of(k) > logit_of(id) || (logit_of(k) == logit_of(id) && k < id);
  return before;
}

static double weight_of_rank(int rank, float temperature) {
  for (int id = 0; id < N; id++)
    if (rank_of(id) == rank) return exp((double)logit_of(id) / (double)temperature);
  return 0;
}

/* How many of the first have this share of the total weight. */
static int n_of_share(double share, float temperature) {
  double sum = 0, reached = 0;
  int n = 0;
  for (int rank = 0; rank < N; rank++) sum += weight_of_rank(rank, temperature);
  while (n < N && reached < share * sum) reached += weight_of_rank(n++, temperature);
  return n;
}

/* The first n are drawn with the right frequency, others never. */
static void assert_draws(krait_lm_sampling rules, int n) {
  static float logits[N];
  int count[N] = {0};
  double sum = 0;
  kr_sampler s;
  rules.size = sizeof rules;
  assert_int_equal(kr_sampler_open(&s, &rules, N), KRAIT_OK);
  for (int id = 0; id < N; id++) logits[id] = logit_of(id);
  for (int k = 0; k < DRAWS; k++) {
    const int32_t id = kr_sampler_draw(&s, logits);
    assert_in_range(id, 0, N - 1);
    count[rank_of(id)]++;
  }
  for (int rank = 0; rank < n; rank++) sum += weight_of_rank(rank, rules.temperature);
  for (int rank = 0; rank < N; rank++) {
    const double want = rank < n ? DRAWS * weight_of_rank(rank, rules.temperature) / sum : 0;
    if (fabs(count[rank] - want) > 6 * sqrt(want))
      fail_msg("rank %d of %d: %d draws for %g", rank, n, count[rank], want);
  }
  kr_sampler_close(&s);
}

static void each_rule(void **state) {
  (void)state;
  assert_draws((krait_lm_sampling){.temperature = 1}, N);
  assert_draws((krait_lm_sampling){.temperature = 0.5f, .seed = 3}, N);
  assert_draws((krait_lm_sampling){.temperature = 1, .top_k = 7}, 7);
  assert_draws((krait_lm_sampling){.temperature = 1, .min_p = 0.5f}, 10); /* e^-0.6 is above it, e^-0.75 below */
  for (float share = 0.03f; share < 1; share += 0.07f) {
    assert_draws((krait_lm_sampling){.temperature = 1, .top_p = share}, n_of_share((double)share, 1));
    assert_draws((krait_lm_sampling){.temperature = 3, .top_p = share}, n_of_share((double)share, 3));
  }
}

/* A penalty that takes every logit out of float32's range leaves no token, by each rule; one that takes some out leaves
 * the others. */
static void penalties(void **state) {
  static const struct {
    float logit, penalty;
    int wanted;
  } cases[] = {{-3.4e38f, 1.1f, KR_NO_CANDIDATE}, {3.4e38f, 0.5f, KR_NO_CANDIDATE}, {-1, 1.1f, 0}, {1, 0.5f, 0},
               {NAN, 1.1f, KR_NOT_FINITE},        {INFINITY, 1, KR_NOT_FINITE},     {-INFINITY, 1, KR_NOT_FINITE}};
  static const krait_lm_sampling rules[] = {{.temperature = 0}, {.temperature = 1}, {.temperature = 1, .top_k = 3},
                                            {.temperature = 1, .top_p = 0.5f}, {.temperature = 1, .min_p = 0.1f}};
  static float logits[N];
  (void)state;
  for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
      kr_sampler s;
      krait_lm_sampling own = rules[r];
      own.size = sizeof own, own.repetition_penalty = cases[k].penalty;
      assert_int_equal(kr_sampler_open(&s, &own, N), KRAIT_OK);
      for (int id = 0; id < N; id++) logits[id] = cases[k].logit, kr_sampler_see(&s, id);
      const int32_t id = kr_sampler_draw(&s, logits);
      if (cases[k].wanted < 0) assert_int_equal(id, cases[k].wanted);
      else assert_in_range(id, 0, N - 1);
      s.seen[7] = 0; /* not penalised: of the lowest logits it is the only one that is left */
      if (cases[k].logit < -3e38f && cases[k].logit > -INFINITY) assert_int_equal(kr_sampler_draw(&s, logits), 7);
      kr_sampler_close(&s);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_rule), cmocka_unit_test(penalties)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
