/* checkpoint.h: a training run on disk: all that the next step depends on, in one safetensors file that appears whole
 * or not at all; and its model alone. */
#ifndef KR_CHECKPOINT_H
#define KR_CHECKPOINT_H

#include "saver.h"
#include "trainer.h"

typedef struct kr_progress_state { /* of a run, beyond what the trainer holds */
  int64_t step;           /* batches so far: the position in the data */
  double epoch_loss, epoch_steps; /* sum over this epoch */
  double best_loss;       /* INFINITY: none yet */
  char recordings[200];   /* what it was trained and validated on (kr_data_fingerprint) */
} kr_progress_state;

typedef struct kr_checkpoint_text {
  const char *model, *config, *recipe; /* "primeknet_mamba"; its arguments and the whole configuration as JSON */
} kr_checkpoint_text;

/* To the saver's next save. */
int32_t kr_checkpoint_add(kr_saver *saver, const char *path, kr_trainer *trainer, const kr_progress_state *state,
                          const kr_checkpoint_text *text);
/* Into a trainer of the same model. */
int32_t kr_checkpoint_read(const char *path, kr_trainer *trainer, kr_progress_state *state);
/* What `krait enhance --weights` takes: the values, or their moving average. */
int32_t kr_checkpoint_add_model(kr_saver *saver, const char *path, kr_trainer *trainer, int average,
                                const kr_checkpoint_text *text);

#endif
