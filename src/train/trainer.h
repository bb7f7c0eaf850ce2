/* trainer.h: PrimeKnet's training, a step at a time: the discriminator's update, then the generator's, with the losses
 * of the published solver; or with a late judge the other way round, so that nothing waits for its word. Every step's
 * result depends on its inputs and the state alone: not on threads, not on time. */
#ifndef KR_TRAINER_H
#define KR_TRAINER_H

#include "discriminator.h"
#include "parameters.h"
#include "primeknet/primeknet.h"
#include "ranks.h"

enum {
  KR_TERM_MAGNITUDE,
  KR_TERM_PHASE_IP,
  KR_TERM_PHASE_GD,
  KR_TERM_PHASE_IAF,
  KR_TERM_COMPLEX,
  KR_TERM_CONSISTENCY,
  KR_TERM_METRIC,
  KR_TERM_TIME,
  KR_TERM_DISTURBANCE, /* this and the next three: ears.h, by the host's threads */
  KR_TERM_OPINION,
  KR_TERM_SI_SDR,
  KR_TERM_STOI,
  KR_TERM_DISC_R,
  KR_TERM_DISC_G,
  KR_TERMS
};
extern const char *const kr_term_names[KR_TERMS];

typedef struct kr_train_options {
  double lr, beta1, beta2, eps, weight_decay;
  double clip;              /* largest norm of all gradients; 0: none */
  double average_decay;     /* of the exponential moving average of the weights; 0: none */
  double weights[KR_TERMS]; /* of the terms in the total; the discriminator's are not read */
  int discriminator;        /* 0: without the metric term */
  int64_t discriminator_first; /* steps at the beginning in which the discriminator learns alone: a young one pushes a
                                  generator that has learnt already */
  int judge_late;           /* the discriminator learns behind the generator's half of a step, from what was made in the
                               step before: the judge has had a whole step, and signals need no pass of their own */
  int64_t accumulate;       /* batches whose gradients make one step */
  int recompute;            /* less memory, more time: kr_pk_graph */
  int64_t at_once; /* items that the models take at once, a divisor of the batch; 0: all. Less memory; with a
                      discriminator and no late judge one more forward pass */
  int32_t halves;           /* KRAIT_F16 or _BF16: the generator's activations and their gradients between operators;
                               0: float32 */
  int tf32;                 /* products on a GPU may round their factors to 11 significant bits */
  uint64_t seed;
  kr_ranks *ranks;          /* of which each has B items of every batch, in order; NULL: alone */
} kr_train_options;
extern const kr_train_options kr_train_defaults; /* the published solver's */

typedef struct kr_batch {
  const float *com_in, *mag, *pha, *com; /* (B,F,T,2); of the clean signal (B,F,T), (B,F,T), (B,F,T,2) */
  const float *wav; /* clean (B,(T-1) hop): for the time term and those of ears.h; NULL where their weights are 0 */
  const float *dropout;                  /* (3,B,64) factors; NULL: drawn from the seed and the step */
} kr_batch;

typedef struct kr_trainer kr_trainer;
/* Says how good what the model made of a batch is. Asked and answering by turns; a failure of either: no word on this
 * batch. */
typedef struct kr_judge {
  void *user;
  int32_t (*ask)(void *user, const float *wav);      /* within the step of the batch; wav is its until the return */
  int32_t (*answer)(void *user, float *quality);     /* quality[B] in 0..1 */
} kr_judge;

int32_t kr_trainer_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_train_options *options, int64_t B,
                        int64_t T, kr_trainer **trainer);
void kr_trainer_close(kr_trainer **trainer);

/* From the seed, as the published modules begin. */
int32_t kr_trainer_draw_weights(kr_trainer *t);
/* What these give lies on the host. Steps on a GPU change it there: pull before reading, push behind a change. */
kr_parameters *kr_trainer_generator(kr_trainer *t);
kr_parameters *kr_trainer_discriminator(kr_trainer *t);
kr_parameters *kr_trainer_statistics(kr_trainer *t); /* running ones of a model that streams; else empty */
float *kr_trainer_u(kr_trainer *t, int norm); /* what power iterations have reached, (outputs) */
float *kr_trainer_v(kr_trainer *t, int norm);
int32_t kr_trainer_push(kr_trainer *t);
int32_t kr_trainer_pull(kr_trainer *t);
void kr_trainer_set_steps(kr_trainer *t, int64_t steps, int64_t updates);
int64_t kr_trainer_updates(const kr_trainer *t);

/* What the discriminator learns from in the next step, of the B items of all ranks: of a late judge alone. */
typedef struct kr_judged {
  int64_t B, F, T;              /* B 0: there is none */
  const float *mag, *mag_con, *quality; /* (B,F,T) clean and made, (B) */
} kr_judged;
/* Waits for the judge; every rank calls it. What it gives lasts until the next call or step. */
int32_t kr_trainer_gather(kr_trainer *t);
const kr_judged *kr_trainer_gathered(const kr_trainer *t);
/* Takes this rank's part of it; nothing where the shapes are others. */
int32_t kr_trainer_take_judged(kr_trainer *t, const kr_judged *judged);

uint64_t kr_trainer_bytes(
    const kr_trainer *t); /* of both graphs, which share it where the generator does not take a batch at once */

typedef struct kr_step {
  double terms[KR_TERMS], phase, total; /* before the update */
  double gradient_norm;                 /* of the generator, before clipping */
  float scores[3 * 64],
      sigma[3 * KR_DISC_NORMS]; /* the discriminator's, in the order of its calls; B at most 64 are kept */
  int updated, alone; /* alone: the discriminator learnt by itself, and the generator's terms are none */
} kr_step;
/* Terms are means over all ranks; scores and sigma are this one's. A step that fails because another rank is gone
 * leaves all as it was before. With lr 0 nothing moves but the power iterations: gradients can be looked at.
 * KRAIT_ERR_WEIGHTS names a loss that is no number, and the tensor. */
int32_t kr_trainer_step(kr_trainer *t, const kr_batch *batch, double lr, const kr_judge *judge, kr_step *step);
/* Losses without an update, power iteration or dropout. wav (B,(T-1) hop) may be NULL: else what the model made. */
int32_t kr_trainer_validate(kr_trainer *t, const kr_batch *batch, kr_step *step, float *wav);
/* Both graphs node by node, each timed by itself. */
int32_t kr_trainer_profile(kr_trainer *t,
                           void (*each)(void *user, const char *node, const char *op, const char *row, double seconds),
                           void *user);

#endif
