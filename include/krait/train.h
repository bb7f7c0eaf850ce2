/* train.h: training, from a configuration to weights for `krait enhance --weights`. See docs/TRAIN.md. */
#ifndef KRAIT_TRAIN_H
#define KRAIT_TRAIN_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One line of progress. */
typedef struct krait_train_report {
  int64_t step, n_steps, epoch, n_epochs; /* steps so far and in total */
  double total, magnitude, phase, complex_part, consistency, metric, discriminator; /* losses of the last step */
  double gradient_norm, lr, audio_s_per_s, left_s;
  double valid;                           /* validation loss, NAN if no epoch has ended */
  int32_t is_best, reserved;              /* valid is the lowest so far */
} krait_train_report;

/* The place of this process among those of a run: each has its own GPU, and all have the same options except this
 * one. */
typedef struct krait_train_launcher {
  uint32_t size;                    /* sizeof this struct */
  int32_t rank, n_ranks, local_rank; /* local_rank: among the n_local processes of its machine; selects the GPU */
  char meet[300];                   /* "HOST:PORT" where rank 0 waits for the others */
  int32_t n_local;                  /* of this machine; 0: unknown */
} krait_train_launcher;
/* Reads it from the environment variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
 * MASTER_PORT) or mpirun (OMPI_COMM_WORLD_...); without them n_ranks is 1. */
KRAIT_API int32_t krait_train_launcher_read(krait_train_launcher *place);

typedef struct krait_train_options {
  uint32_t size, resume;          /* sizeof this struct; 1: resume from the folder's checkpoint, with its configuration
                                     if neither config nor settings are given */
  const char *config;             /* a YAML file, a run's folder, or NULL: the built-in defaults */
  const char *const *settings;    /* "+model=primeknet_mamba_masking", "batch_size=8", ... */
  int64_t n_settings;
  const char *folder;             /* created if needed: checkpoint.safetensors, best.safetensors, log.jsonl,
                                     .hydra/config.yaml, tensorbd */
  const char *weights;            /* initial weights (a file, or "builtin" or "streaming", as in enhance.h), with their
                                     model's configuration; NULL: random, from the seed */
  int64_t most_steps;             /* 0: the configuration's epochs */
  int64_t valid_batches;          /* at most, per validation; 0: 8 */
  void (*report)(void *user, const krait_train_report *report); /* every interval; may be NULL */
  void (*note)(void *user, const char *line); /* a bad file, or where a run starts; may be NULL, may be called from
                                                 another thread */
  void *user;
  const char *plot_path;          /* a PNG plot of the losses, updated at the end of every epoch; may be NULL */
  const krait_train_launcher *place; /* NULL: a single process */
  int32_t (*progress)(void *user, int64_t done, int64_t total); /* after every step, on rank 0 only; a non-zero return
                                                                   stops with KRAIT_ERR_CANCELLED; may be NULL */
  uint32_t changed_data, reserved; /* 1: resume although the recordings are not those of the checkpoint */
} krait_train_options;

/* Trains until all steps are done. The folder is locked meanwhile: a second run on it is KRAIT_ERR_FILE_WRITE.
 * Runs with the same options are bit-identical, whatever the number of threads, also
 * when interrupted and resumed. A loss or gradient that is not finite ends the run: the error names step and tensor.
 * Nothing outlives a call but the folder: after an error repeat the call, with resume if there is a checkpoint.
 * With several processes only rank 0 reports and writes files, and says why a run ended, on whichever process; the
 * others then return KRAIT_ERR_CANCELLED. */
KRAIT_API int32_t krait_train(const krait_ctx *ctx, const krait_train_options *options);

#ifdef __cplusplus
}
#endif
#endif
