/* data.h: pairs of noisy and clean speech for training and evaluation: quality scores, and making the pairs. Samples
 * are float32, one channel, 16 kHz. */
#ifndef KRAIT_DATA_H
#define KRAIT_DATA_H

#include <krait/enhance.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quality ------------------------------------------------------------------------------------------------------
 * docs/METRICS.md defines each; undefined measures (too short, silent, no speech found) are NaN. */
typedef struct krait_quality {
  uint32_t size;
  uint32_t reserved;
  double pesq, csig, cbak, covl; /* opinion scores from 1 to 5: wide-band PESQ, speech, background, overall */
  double segmental_snr_db, si_sdr_db, stoi;
  double llr, wss;               /* distances: lower is better */
} krait_quality;

KRAIT_API int32_t krait_quality_samples(const float *clean, const float *other, int64_t n_samples,
                                        krait_quality *quality);

/* ---- items of training and evaluation (docs/TRAIN.md) ------------------------------------------------------------ */
typedef struct krait_data krait_data;
typedef void (*krait_report_fn)(void *user, const char *line); /* reports each bad recording once; called by one thread
                                                                  at a time */

/* config_path (YAML, a run's folder, or NULL) and settings ("dset.speech_dir=speech", "train_noise.snr_range=[-5,20]")
 * override the built-in defaults. split: "train", "valid" or "test". */
KRAIT_API int32_t krait_data_open(const char *config_path, const char *const *settings, int32_t n_settings,
                                  const char *split, krait_report_fn report, void *user, krait_data **data);
KRAIT_API void krait_data_close(krait_data **data);
KRAIT_API int64_t krait_data_n_items(const krait_data *data); /* of an epoch */
KRAIT_API int64_t krait_data_n_steps(const krait_data *data);
KRAIT_API int64_t krait_data_batch(const krait_data *data);
/* Per item; of the longest item if items are whole recordings. */
KRAIT_API int64_t krait_data_samples(const krait_data *data);
/* May be called from any thread; noisy and clean have krait_data_samples samples. Always the same for the same (seed,
 * epoch, index). */
KRAIT_API int32_t krait_data_item(krait_data *data, int64_t epoch, int64_t index, float *noisy, float *clean,
                                  int64_t *n_samples);
KRAIT_API const char *krait_data_item_name(const krait_data *data, int64_t index);
/* begin: worker threads prefetch from this step on; next: one step, (batch, krait_data_samples) for each output;
 * waited_s: seconds spent waiting for the workers since begin. */
KRAIT_API int32_t krait_data_begin(krait_data *data, int64_t step);
KRAIT_API int32_t krait_data_next(krait_data *data, float *noisy, float *clean);
KRAIT_API double krait_data_waited_s(const krait_data *data);

/* ---- evaluation -------------------------------------------------------------------------------------------------- */
typedef struct krait_evaluation {
  uint32_t size;
  int32_t has_enhanced;
  double audio_s, compute_s;      /* compute_s: in the model */
  krait_quality noisy, enhanced;  /* enhanced only with a session */
} krait_evaluation;

/* Two recordings of the same speech, cut to the shorter one, averaged over channels. With a session, the other one is
 * also enhanced and scored. */
KRAIT_API int32_t krait_evaluate_files(krait_denoiser_session *session, const char *clean_path, const char *other_path,
                                       krait_evaluation *evaluation);
/* The same for an item, mixed according to the configuration. */
KRAIT_API int32_t krait_evaluate_item(krait_denoiser_session *session, krait_data *data, int64_t index,
                                      krait_evaluation *evaluation);

/* A picture of the scores of several recordings, before and after, one line each. */
typedef struct krait_score_rows {
  uint32_t size;      /* sizeof this struct */
  int32_t n_measures; /* one to four, side by side; sorted by the first */
  int64_t n_rows;
  const char *title;
  const char *const *measures; /* their names */
  const char *const *names;    /* of the recordings */
  const double *before, *after; /* (n_rows, n_measures); NAN: none. after may be NULL */
} krait_score_rows;
KRAIT_API int32_t krait_scores_plot(const krait_score_rows *rows, const char *png_path);

/* Writes a text to a file that appears under its name only when complete. */
KRAIT_API int32_t krait_text_write(const char *path, const char *text);

#ifdef __cplusplus
}
#endif
#endif
