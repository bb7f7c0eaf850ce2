/* data.h: training data: pairs of noisy and clean speech, cut, mixed and levelled as in MODEL.md's paper (docs/TRAIN.md
 * has the steps), by threads that prefetch. An item depends only on (seed, epoch, index), never on the number of
 * threads or ranks, or on earlier calls.
 *
 *   kr_data_config c;
 *   kr_data_defaults(&c);
 *   c.speech = "train/speech", c.noise = "noise_train.txt", c.noise_dir = "noise", c.batch = 4;
 *   KR_TRY(kr_data_open(&c, &data));                    bad files are reported here or when they are met, once, and
 *                                                       skipped
 *   KR_TRY(kr_data_begin(data, first_step));            0, or where a checkpoint was written
 *   for (;;) KR_TRY(kr_data_next(data, noisy, clean));  (batch, kr_data_samples) each; step after step, epoch after
 *                                                       epoch
 */
#ifndef KR_DATA_H
#define KR_DATA_H

#include <stdint.h>

typedef struct kr_data kr_data;

/* A source of recordings is a folder (searched recursively), a list (.txt, one path per line, '#' starts a comment)
 * whose paths are relative to its *_dir (NULL: to the list's own folder), one audio file, or a .safetensors file in
 * which each one-dimensional tensor (int16, float16, float32) is a recording at 16 kHz; "FILE.safetensors:PREFIX" takes
 * only tensors whose names start with PREFIX. Recordings with a higher rate are resampled; one below 16 kHz is a bad
 * file. NULL means none. */
typedef struct kr_data_config {
  const char *speech, *speech_dir; /* clean speech: the target */
  const char *noisy, *noisy_dir;   /* the same recordings with real noise, or by a throat microphone, paired by name:
                                      nothing is mixed in then, unless noise_proportion says so */
  int32_t own_levels; /* 1: the two sides of such a pair are levelled separately (throat microphones), 0: together */
  const char *noise, *noise_dir;
  const char *rir, *rir_dir;       /* room impulse responses */

  uint64_t seed;                   /* 2039 */
  int64_t segment, stride, shift;  /* samples: a file gives a piece each stride; an item is segment - shift samples of
                                      it. 64000, 32000, 32000. segment 0: whole files (validation) */
  int32_t deterministic;           /* noise file and room by index, no shift (validation); 0 */
  int32_t shuffle;                 /* 1 */
  int32_t repeats;                 /* passes over the files per epoch (test_augment_numb); 1 */
  double silence_s;                /* gap between concatenated noises; 0.2 */
  int32_t snr_low_db, snr_high_db; /* -15, 20: whole decibels, both ends included */
  double noise_proportion; /* share of the items with noise; 1 (0 where noisy is given) as long as it is negative: -1 */
  double reverb_proportion;        /* of the items; 0 */
  double reverb_early_s; /* the target keeps this much of the room response after its peak; 0: the target is the dry
                            speech */
  double part_level_db;            /* every part before mixing, dBFS; -25 */
  int32_t level_db, level_float_db; /* noisy result: level_db +- level_float_db, whole decibels; -25, 10 */

  /* ---- more augmentation, each a share of the items from 0 (all defaults) to 1; none in deterministic mode ---- */
  int32_t most_noises;             /* maximum number of simultaneous noises, each from its own file; 1 */
  double babble_proportion;        /* noise made of 3 to 8 other voices of the speech instead of recorded noise */
  double colour_proportion;        /* stationary noise of a random colour instead of recorded noise */
  double curve_proportion; /* a random smooth equaliser on the noise, and another on both sides' speech */
  double gain_proportion;          /* slow gain changes of the noise, up to +-6 dB */
  double speed_proportion;         /* speech faster or slower by up to 10 % */
  double rumble_proportion;        /* for items with noise: additional noise below 50 Hz, as in cars and rooms; -5 to 15
                                      dB */
  double tilt_proportion;          /* noise that falls by a further 0 to 6 dB per octave above 500 Hz, as in rooms */
  double band_proportion;          /* both through a low-pass at 3.4 to 7.5 kHz */
  double clip_proportion;          /* noisy clipped at 0.25 to 0.9 of its peak */
  double codec_proportion; /* noisy through one of libsndfile's codecs: mu-law, A-law, IMA and MS ADPCM, GSM 6.10,
                              Vorbis, Opus */

  int64_t batch;                   /* items in a step of this rank; 4 */
  int32_t rank, n_ranks; /* 0, 1: a step's batch * n_ranks items are the same for all n_ranks with the same product */
  int32_t n_workers;               /* threads; 0: the usable cores minus one, at least one */
  int32_t n_ahead;                 /* prefetched steps; 0: 4 */
  void (*report)(void *user,
                 const char *line); /* called once for each bad file, with one line; may be NULL; called by one thread
                                       at a time */
  void *user;
} kr_data_config;

typedef struct kr_data_counts {
  int64_t n_files, n_noises, n_rirs; /* found; for speech the usable ones */
  int64_t n_bad;                     /* so far */
  double speech_s;
} kr_data_counts;

void kr_data_defaults(kr_data_config *config);
/* Validation and test: whole files, deterministic, SNR -15..10, no floating level, batch 1, no augmentation; keeps the
 * sources. */
void kr_data_for_validation(kr_data_config *config);

/* Strings are copied. KRAIT_ERR_ARGUMENT names the field, KRAIT_ERR_FILE_* the source without usable recordings. */
int32_t kr_data_open(const kr_data_config *config, kr_data **data);
void kr_data_close(kr_data **data);
kr_data_counts kr_data_count(kr_data *data);
/* Of the recordings: how many, their length in samples, and a hash of the single lengths in order. The same text: the
 * same items, unless somebody has changed samples only. */
typedef struct kr_data_print {
  char text[96];
} kr_data_print;
kr_data_print kr_data_fingerprint(const kr_data *data);
int64_t kr_data_n_items(const kr_data *data);   /* an epoch's */
int64_t kr_data_n_steps(const kr_data *data); /* per epoch: n_items / (batch * n_ranks), without the remainder; at least
                                                 1 (items then repeat) */
int64_t kr_data_samples(const kr_data *data);   /* per item: segment - shift; with whole files: the longest */

/* One item, on the caller's thread; may be called from several threads. noisy and clean have room for kr_data_samples;
 * *n_samples receives the item's own length, the rest is zeros. */
int32_t kr_data_item(kr_data *data, int64_t epoch, int64_t index, float *noisy, float *clean, int64_t *n_samples);
const char *kr_data_item_name(const kr_data *data, int64_t index); /* of its file, without folder and extension */
double kr_data_item_snr_db(kr_data *data, int64_t epoch, int64_t index);

/* Workers restart at this step (counted over all epochs: epoch = step / n_steps). */
int32_t kr_data_begin(kr_data *data, int64_t step);
/* The next step's (batch, kr_data_samples) of this rank. Waits for the workers if needed. An error is that of the first
 * item that could not be made: too few usable files left. */
int32_t kr_data_next(kr_data *data, float *noisy, float *clean);
/* Seconds that kr_data_next has waited since kr_data_begin: the cost of the data to the steps. */
double kr_data_waited_s(const kr_data *data);

#endif
