/* mamba3_ref.h: shared code of the reference implementations of Mamba 3's scan and its gradient: one head of one
 * sequence, token by token, in double. */
#ifndef KR_MAMBA3_REF_H
#define KR_MAMBA3_REF_H

#include <math.h>

#include "mamba3_inputs.h"

/* Token 0 is what came before the sequence; its own are tokens 1 to n. */
typedef struct kr_mamba3_head {
  const kr_mamba3_inputs *in;
  kr_mamba3_sequence at;
  int64_t h, g, kept; /* kept: states in memory, one for each token or two */
  double *theta;      /* [n+1][M] */
  double *q, *k;      /* [n+1][R][N], rotated */
  double *v;          /* [n+1][P]: x before its ranks */
  double *y;          /* [n+1][R][P], D x included */
  double *states;     /* [kept][P][N] */
  double *input;      /* [2][P][N]: of the last token and of this one, the sum over ranks of x (outer) k */
} kr_mamba3_head;

/* Doubles of a head of a sequence of n tokens. */
int64_t kr_mamba3_head_doubles(const kr_mamba3_inputs *in, int64_t n, int keep_states);
kr_mamba3_head kr_mamba3_begin_head(const kr_mamba3_inputs *in, int64_t n, int keep_states, double *at);
/* Runs head h of a sequence. */
void kr_mamba3_run_head(kr_mamba3_head *head, kr_mamba3_sequence sequence, int64_t h);

/* A value of a (B,L,H) tensor at the sequence's token t, 1 to n. */
static inline double kr_mamba3_token(const kr_mamba3_head *c, const kr_view *v, int64_t t) {
  return kr_get(v, kr_at3(v, c->at.b, c->at.begin + t - 1, c->h));
}
static inline double kr_mamba3_lambda(const kr_mamba3_head *c, int64_t t) {
  return 1 / (1 + exp(-kr_mamba3_token(c, &c->in->trap, t)));
}
/* mimo_x, mimo_z or mimo_o; 1 if it is absent. */
static inline double kr_mamba3_factor(const kr_mamba3_head *c, const kr_view *v, int64_t r, int64_t p) {
  return kr_has(v) ? kr_get(v, kr_at3(v, c->h, r, p)) : 1;
}
static inline double *kr_mamba3_state(const kr_mamba3_head *c, int64_t t) {
  return c->states + t % c->kept * c->in->P * c->in->N;
}
static inline double kr_mamba3_x(const kr_mamba3_head *c, int64_t t, int64_t r, int64_t p) {
  return c->v[t * c->in->P + p] * kr_mamba3_factor(c, &c->in->mimo_x, r, p);
}
static inline double kr_mamba3_D(const kr_mamba3_head *c) {
  return kr_has(&c->in->Dvec) ? kr_get(&c->in->Dvec, kr_at1(&c->in->Dvec, c->h)) : 0;
}

#endif
