/* trainer.h: PrimeKnet's training, a step at a time: the discriminator's update, then the generator's, with the losses
 * of the published solver; or the other way round, so that nothing waits for the judge's scores. Every step's result
 * depends only on its inputs and the state, not on threads or timing. */
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
  KR_TERM_DISTURBANCE, /* this and the next three: perceptual_loss.h, on the host's threads */
  KR_TERM_PESQ,
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
  int64_t discriminator_first; /* initial steps in which only the discriminator learns: an untrained one would degrade
                                  an already trained generator */
  int generator_first;         /* of a step's two updates, both from the same output: then the generator's gradient is
                           from the discriminator of the step before, and the judge has the time of computing it */
  int64_t accumulate;       /* batches whose gradients are accumulated for one step */
  int recompute;            /* recompute: less memory, more time; see kr_pk_graph */
  int64_t micro_batch; /* items that the models process at a time, a divisor of the batch; 0: all. Less memory; with a
                      discriminator that is updated first, one more forward pass */
  int32_t halves;           /* KRAIT_F16 or _BF16: the generator's activations and their gradients between operators;
                               0: float32 */
  int tf32;                 /* products on a GPU may round their factors to 11 significant bits */
  uint64_t seed;
  kr_ranks *ranks;          /* each of which has B items of every batch, in order; NULL: a single process */
} kr_train_options;
extern const kr_train_options kr_train_defaults; /* the published solver's */

typedef struct kr_batch {
  const float *com_in, *mag, *pha, *com; /* (B,F,T,2); of the clean signal (B,F,T), (B,F,T), (B,F,T,2) */
  const float
      *wav; /* clean (B,(T-1) hop): for the time term and those of perceptual_loss.h; NULL where their weights are 0 */
  const float *dropout;                  /* (3,B,64) factors; NULL: drawn from the seed and the step */
} kr_batch;

typedef struct kr_trainer kr_trainer;
/* Scores the model's output for a batch. Ask and answer alternate; if either fails, the batch has no score. */
typedef struct kr_judge {
  void *user;
  int32_t (*ask)(void *user, const float *wav);      /* called within the batch's step; wav is valid until it returns */
  int32_t (*answer)(void *user, float *quality);     /* quality[B] in 0..1 */
} kr_judge;

int32_t kr_trainer_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_train_options *options, int64_t B,
                        int64_t T, kr_trainer **trainer);
void kr_trainer_close(kr_trainer **trainer);

/* From the seed, initialised like the published modules. */
int32_t kr_trainer_draw_weights(kr_trainer *t);
/* These return host memory. Steps on a GPU change the device's copy: pull before reading, push after a change. */
kr_parameters *kr_trainer_generator(kr_trainer *t);
kr_parameters *kr_trainer_discriminator(kr_trainer *t);
kr_parameters *kr_trainer_statistics(kr_trainer *t); /* running statistics of a streaming model; else empty */
float *kr_trainer_u(kr_trainer *t, int norm); /* the state of the power iterations, (outputs) */
float *kr_trainer_v(kr_trainer *t, int norm);
int32_t kr_trainer_push(kr_trainer *t);
int32_t kr_trainer_pull(kr_trainer *t);
void kr_trainer_set_steps(kr_trainer *t, int64_t steps, int64_t updates);
int64_t kr_trainer_updates(const kr_trainer *t);
/* What a loss is multiplied by while gradients are computed in float16 (1 otherwise), and for how many updates. */
float kr_trainer_scale(const kr_trainer *t, int64_t *n_finite);
int32_t kr_trainer_set_scale(kr_trainer *t, float scale, int64_t n_finite);

/* Of both graphs, which share it unless the discriminator runs between the generator's halves. */
uint64_t kr_trainer_bytes(const kr_trainer *t);

typedef struct kr_step {
  double terms[KR_TERMS], phase, total; /* before the update */
  double gradient_norm;                 /* of the generator, before clipping */
  float scores[3 * 64],
      sigma[3 * KR_DISC_NORMS]; /* the discriminator's, in the order of its calls; B at most 64 are kept */
  int updated, alone; /* alone: only the discriminator learnt, and there are no generator terms */
} kr_step;
/* Terms are means over all ranks; scores and sigma are this one's. A step that fails because another rank is lost
 * changes nothing. With lr 0 nothing changes except the power iterations, so that gradients can be inspected.
 * KRAIT_ERR_WEIGHTS names a loss that is not finite, and the tensor. */
int32_t kr_trainer_step(kr_trainer *t, const kr_batch *batch, double lr, const kr_judge *judge, kr_step *step);
/* Losses without an update, power iteration or dropout. wav (B,(T-1) hop) may be NULL: else what the model made. */
int32_t kr_trainer_validate(kr_trainer *t, const kr_batch *batch, kr_step *step, float *wav);
/* Both graphs node by node, each timed by itself. */
int32_t kr_trainer_profile(kr_trainer *t,
                           void (*each)(void *user, const char *node, const char *op, const char *row, double seconds),
                           void *user);

#endif
