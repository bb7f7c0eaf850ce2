/* sampler.h: from logits to a token, by the rules of krait_lm_sampling. */
#ifndef KR_SAMPLER_H
#define KR_SAMPLER_H

#include <krait/language.h>

typedef struct kr_candidate {
  float logit;
  int32_t id;
} kr_candidate;

typedef struct kr_sampler {
  krait_lm_sampling rules;
  uint64_t state; /* of the random number generator */
  kr_candidate *candidates;
  uint8_t *seen; /* per token: it has occurred before */
  int64_t n;     /* tokens */
} kr_sampler;

int32_t kr_sampler_open(kr_sampler *sampler, const krait_lm_sampling *rules, int64_t n_tokens);
void kr_sampler_close(kr_sampler *sampler);
void kr_sampler_see(kr_sampler *sampler, int32_t id);
int kr_sampler_is_greedy(const kr_sampler *sampler); /* always the most likely token, whatever occurred before */
void kr_sampler_reset(kr_sampler *sampler); /* as after kr_sampler_open */
/* The token, or one of these. */
enum {
  KR_NOT_FINITE = -1,   /* the logits are not numbers, or all are -infinity */
  KR_NO_CANDIDATE = -2  /* they were, before the repetition penalty */
};
int32_t kr_sampler_draw(kr_sampler *sampler, const float *logits);

#endif
