/* sampler.c: candidates are thinned out rule by rule; of equal logits the smaller token comes first, so that the same
 * seed gives the same text. */
#include "sampler.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

static int32_t check_rules(const krait_lm_sampling *r) {
  KR_CHECK(r->temperature >= 0 && r->temperature < 1e6f, KRAIT_ERR_ARGUMENT, "temperature is %g, must be 0 or more",
           (double)r->temperature);
  KR_CHECK(r->top_k >= 0, KRAIT_ERR_ARGUMENT, "top_k is %d, must be 0 or more", r->top_k);
  KR_CHECK(r->top_p >= 0 && r->top_p <= 1, KRAIT_ERR_ARGUMENT, "top_p is %g, must be from 0 to 1", (double)r->top_p);
  KR_CHECK(r->min_p >= 0 && r->min_p <= 1, KRAIT_ERR_ARGUMENT, "min_p is %g, must be from 0 to 1", (double)r->min_p);
  KR_CHECK(r->repetition_penalty >= 0 && r->repetition_penalty < 1e6f, KRAIT_ERR_ARGUMENT,
           "repetition_penalty is %g, must be 0 (none) or more", (double)r->repetition_penalty);
  KR_CHECK(!(r->flags & ~(KRAIT_LM_SPECIAL | KRAIT_LM_LOGITS)), KRAIT_ERR_ARGUMENT, "sampling.flags are 0x%x",
           r->flags);
  return KRAIT_OK;
}

int32_t kr_sampler_open(kr_sampler *s, const krait_lm_sampling *rules, int64_t n_tokens) {
  *s = (kr_sampler){.rules = *rules, .state = rules->seed, .n = n_tokens};
  KR_TRY(check_rules(rules));
  s->candidates = kr_alloc_array((size_t)n_tokens, sizeof *s->candidates);
  s->seen = kr_alloc_array((size_t)n_tokens, 1);
  if (s->candidates && s->seen) return KRAIT_OK;
  kr_sampler_close(s);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to choose from %lld tokens", (long long)n_tokens);
}

void kr_sampler_close(kr_sampler *s) {
  kr_free(s->candidates);
  kr_free(s->seen);
  *s = (kr_sampler){0};
}

void kr_sampler_reset(kr_sampler *s) {
  s->state = s->rules.seed;
  memset(s->seen, 0, (size_t)s->n);
}

void kr_sampler_see(kr_sampler *s, int32_t id) {
  if (id >= 0 && id < s->n) s->seen[id] = 1;
}

/* splitmix64, as a number from 0 to below 1. */
static double next_random(kr_sampler *s) {
  uint64_t z = s->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static float logit_of(const kr_sampler *s, const float *logits, int64_t id) {
  const float logit = logits[id], penalty = s->rules.repetition_penalty;
  if (penalty == 0 || !s->seen[id]) return logit;
  return logit < 0 ? logit * penalty : logit / penalty;
}

static int comes_before(const kr_candidate *a, const kr_candidate *b) {
  return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static int32_t likeliest(const kr_sampler *s, const float *logits) {
  kr_candidate best = {-INFINITY, KR_NO_CANDIDATE};
  for (int64_t id = 0; id < s->n; id++) {
    const float logit = logit_of(s, logits, id);
    if (logit > best.logit) best = (kr_candidate){logit, (int32_t)id};
  }
  return best.logit < INFINITY ? best.id : KR_NO_CANDIDATE;
}

/* The k first, in any order, at the front: a heap whose root is the last of them. */
static void select_first(kr_candidate *c, int64_t n, int64_t k) {
  for (int64_t i = 0; i < n; i++) {
    int64_t at = i;
    kr_candidate one = c[i];
    if (i >= k) {
      if (!comes_before(&one, &c[0])) continue;
      at = 0;
      for (int64_t child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && comes_before(&c[child], &c[child + 1])) child++;
        if (!comes_before(&one, &c[child])) break;
        c[at] = c[child];
      }
    } else {
      for (; at > 0 && comes_before(&c[(at - 1) / 2], &one); at = (at - 1) / 2) c[at] = c[(at - 1) / 2];
    }
    c[at] = one;
  }
}

static void swap(kr_candidate *a, kr_candidate *b) {
  const kr_candidate one = *a;
  *a = *b, *b = one;
}

static const kr_candidate *middle_of(const kr_candidate *a, const kr_candidate *b, const kr_candidate *c) {
  if (comes_before(b, a) == comes_before(a, c)) return a;
  return comes_before(a, b) == comes_before(b, c) ? b : c;
}

/* Of candidates with weights, the fewest first ones whose sum reaches `least`, in any order, at the front: what comes
 * before one of them is parted from the rest until the last is found. */
static int64_t select_sum(kr_candidate *c, int64_t n, double least, double *sum) {
  int64_t from = 0, to = n; /* the last is among these */
  *sum = 0;
  while (from < to) {
    const kr_candidate pivot = *middle_of(&c[from], &c[(from + to) / 2], &c[to - 1]);
    int64_t at = from;
    double part = 0;
    for (int64_t i = from; i < to; i++) {
      if (comes_before(&pivot, &c[i])) continue;
      if (c[i].id != pivot.id) part += c[i].logit;
      swap(&c[i], &c[at++]);
    }
    if (*sum + part >= least) { /* without the pivot, which is among those in front */
      for (int64_t i = from; i < at; i++)
        if (c[i].id == pivot.id) swap(&c[i], &c[--at]);
      to = at;
      continue;
    }
    *sum += part + pivot.logit, from = at;
    if (*sum >= least) return at;
  }
  return from;
}

/* Those that a token of probability below min_p of the likeliest's leaves; the sums below need no order for it. */
static int64_t drop_unlikely(kr_candidate *c, int64_t n, float least) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++)
    if (c[i].logit >= least) c[kept++] = c[i];
  return kept;
}

int kr_sampler_is_greedy(const kr_sampler *s) {
  const krait_lm_sampling *r = &s->rules;
  return (r->temperature == 0 || r->top_k == 1) && (r->repetition_penalty == 0 || r->repetition_penalty == 1);
}

/* Some may be -infinity: what can never come. */
static int are_numbers(const float *logits, int64_t n) {
  int n_wrong = 0, n_possible = 0;
  for (int64_t i = 0; i < n; i++) n_wrong += !(logits[i] < INFINITY), n_possible += logits[i] > -INFINITY;
  return !n_wrong && n_possible;
}

int32_t kr_sampler_draw(kr_sampler *s, const float *logits) {
  const krait_lm_sampling *r = &s->rules;
  kr_candidate *c = s->candidates;
  if (!are_numbers(logits, s->n)) return KR_NOT_FINITE;
  if (r->temperature == 0 || r->top_k == 1) return likeliest(s, logits);
  int64_t n = 0;
  float most = -INFINITY;
  for (int64_t id = 0; id < s->n; id++) {
    const float logit = logit_of(s, logits, id);
    if (logit == -INFINITY) continue;
    c[n++] = (kr_candidate){logit, (int32_t)id};
    if (logit > most) most = logit;
  }
  if (!n || !(most < INFINITY)) return KR_NO_CANDIDATE; /* the penalty has left the range of float32 */
  if (r->top_k > 0 && r->top_k < n) select_first(c, n, r->top_k), n = r->top_k;
  /* what is less likely than the likeliest by 2^-60 does not count in any sum */
  n = drop_unlikely(c, n, most + r->temperature * (r->min_p > 0 ? logf(r->min_p) : -41.5f));
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += c[i].logit = expf((c[i].logit - most) / r->temperature); /* a weight now */
  if (r->top_p > 0 && r->top_p < 1) n = select_sum(c, n, r->top_p * sum, &sum);
  double left = next_random(s) * sum;
  for (int64_t i = 0; i + 1 < n; i++)
    if ((left -= c[i].logit) < 0) return c[i].id;
  return c[n - 1].id;
}
