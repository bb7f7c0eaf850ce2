/* train.h: training of the models that krait runs, from a configuration to weights that `krait enhance --weights`
 * takes. docs/TRAIN.md. */
#ifndef KRAIT_TRAIN_H
#define KRAIT_TRAIN_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a line of progress says. */
typedef struct krait_train_report {
  int64_t step, n_steps, epoch, n_epochs; /* steps so far and of the whole run */
  double total, magnitude, phase, complex_part, consistency, metric, discriminator; /* losses of the last step */
  double gradient_norm, lr, audio_s_per_s, left_s;
  double valid;                           /* validation's loss, NAN where no epoch has ended */
  int32_t is_best, reserved;              /* valid is the lowest so far */
} krait_train_report;

/* Which of the processes of one run this is: each has a GPU of its own, and all have the same options but this. */
typedef struct krait_train_place {
  uint32_t size;                    /* sizeof this struct */
  int32_t rank, n_ranks, local_rank; /* local: among those of its machine, and so its GPU */
  char meet[300];                   /* "HOST:PORT" where rank 0 waits for the others */
} krait_train_place;
/* From the environment, as torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) or mpirun
 * (OMPI_COMM_WORLD_...) sets it; without any of it n_ranks is 1. */
KRAIT_API int32_t krait_train_place_read(krait_train_place *place);

typedef struct krait_train_options {
  uint32_t size, resume;          /* sizeof this struct; 1: from the folder's checkpoint, and with its configuration
                                     where neither config nor settings are given */
  const char *config;             /* a YAML file, a run's folder, or NULL: the shipped constants */
  const char *const *settings;    /* "+model=primeknet_mamba_masking", "batch_size=8", ... */
  int64_t n_settings;
  const char *folder;             /* made if it is not there: checkpoint.safetensors, best.safetensors, log.jsonl,
                                     .hydra/config.yaml, tensorbd */
  const char *weights;            /* to begin with, and their model's configuration; NULL: drawn from the seed */
  int64_t most_steps;             /* 0: the configuration's epochs */
  int64_t valid_batches;          /* of a validation, at most; 0: 8 */
  void (*report)(void *user, const krait_train_report *report); /* every interval; may be NULL */
  void (*note)(void *user,
               const char *line); /* a bad file, where it begins; may be NULL, may come from another thread */
  void *user;
  const char *plot_path;          /* a PNG of the losses, drawn anew at the end of every epoch; may be NULL */
  const krait_train_place *place; /* NULL: alone */
  int32_t (*progress)(void *user, int64_t done, int64_t total); /* after every step, rank 0's alone; not 0: stop with
                                                                   KRAIT_ERR_CANCELLED; may be NULL */
} krait_train_options;

/* Until all steps are done. Two runs of the same options give the same bits, whatever the number of threads; so does
 * one that was interrupted and resumed. A loss or gradient that is no number ends it: the sentence names step and
 * tensor. Of several processes rank 0 alone reports and writes files, and says why a run ended wherever the cause was;
 * the others then return KRAIT_ERR_CANCELLED. */
KRAIT_API int32_t krait_train(const krait_ctx *ctx, const krait_train_options *options);

/* What a step takes: its work is the same whatever the numbers, so these are drawn, and no recordings are needed. */
typedef struct krait_train_times {
  uint32_t size, n_steps;            /* sizeof this struct; timed, the fastest counts */
  int64_t batch, frames;
  double step_s, generator_s;        /* a whole step; one without a discriminator */
  uint64_t step_bytes, generator_bytes; /* memory between the operators of a step */
} krait_train_times;
/* config, settings and weights of options count. each, which may be NULL, is then told the time of every operator's
 * call, by itself. */
KRAIT_API int32_t krait_train_time(const krait_ctx *ctx, const krait_train_options *options, krait_train_times *times,
                                   void (*each)(void *user, const char *node, const char *op, const char *row,
                                                double seconds),
                                   void *user);

#ifdef __cplusplus
}
#endif
#endif
