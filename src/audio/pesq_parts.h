/* pesq_parts.h: shared by the parts of PESQ: geometry, the pair of signals, utterances and their delays; aligner and
 * model, which keep the memory for pairs of one length. */
#ifndef KR_PESQ_PARTS_H
#define KR_PESQ_PARTS_H

#include <stdint.h>

enum {
  KR_PESQ_HZ = 16000,
  KR_PESQ_STEP = 64,                     /* samples: delays are first looked for in steps of 4 ms */
  KR_PESQ_MARGIN_STEPS = 75,             /* silence on both sides, for shifted signals */
  KR_PESQ_MARGIN = KR_PESQ_MARGIN_STEPS * KR_PESQ_STEP,
  KR_PESQ_TAIL = 320 * KR_PESQ_HZ / 1000, /* additional silence after the second margin */
  KR_PESQ_MOST_UTTERANCES = 50,
  KR_PESQ_FRAME = 512, /* samples that are heard at once */
  KR_PESQ_BANDS = 49,
};

/* Of second order: out = b0 z + b1 z1 + b2 z2, z = in - a1 z1 - a2 z2. */
typedef struct kr_pesq_section {
  double b0, b1, b2, a1, a2;
} kr_pesq_section;
static const kr_pesq_section kr_pesq_wide_input = {2.740826, -5.4816519, 2.740826, -1.9444777, 0.94597794};

typedef struct kr_pesq_band {
  int n_bins;
  double width_bark;
  double correction;   /* of the bins' power to that of the band's true width */
  double threshold_db; /* of hearing */
} kr_pesq_band;
extern const kr_pesq_band kr_pesq_bands[KR_PESQ_BANDS];
static const double kr_pesq_power_scale = 6.910853e-6;

typedef struct kr_pesq_ear {
  double threshold[KR_PESQ_BANDS], exponent[KR_PESQ_BANDS], scale[KR_PESQ_BANDS];
} kr_pesq_ear;
void kr_pesq_open_ear(kr_pesq_ear *ear);
/* Of a band's power, and its derivative. */
double kr_pesq_loudness(const kr_pesq_ear *ear, int band, double power);
double kr_pesq_loudness_slope(const kr_pesq_ear *ear, int band, double power);

typedef struct kr_pesq_signal {
  float *samples;       /* margin, signal, margin, tail */
  float *aligned_by;    /* the same after the band-pass used for finding delays */
  float *level, *logs;  /* per step: power of speech, 0 in pauses; logarithm of its ratio to the threshold */
} kr_pesq_signal;

typedef struct kr_pesq_utterance {
  int64_t start, end;           /* steps */
  int64_t crude_delay, delay;   /* samples by which the other signal is late */
  double confidence;
} kr_pesq_utterance;

typedef struct kr_pesq_pair {
  int64_t n;                    /* samples with both margins, without the tail */
  kr_pesq_signal clean, other;
  kr_pesq_utterance utterances[KR_PESQ_MOST_UTTERANCES];
  int n_utterances;
} kr_pesq_pair;

typedef struct kr_pesq_aligner kr_pesq_aligner;
int32_t kr_pesq_aligner_open(kr_pesq_pair *pair, kr_pesq_aligner **aligner);
void kr_pesq_aligner_close(kr_pesq_aligner **aligner);
/* Fills level and logs of a signal of the pair. */
void kr_pesq_find_speech(kr_pesq_aligner *aligner, kr_pesq_signal *signal);
/* Fills the utterances. KRAIT_ERR_UNSUPPORTED: there is no speech. */
int32_t kr_pesq_align(kr_pesq_aligner *aligner);

typedef struct kr_pesq_model kr_pesq_model;
int32_t kr_pesq_model_open(const kr_pesq_pair *pair, kr_pesq_model **model);
void kr_pesq_model_close(kr_pesq_model **model);
void kr_pesq_hear_clean_side(kr_pesq_model *model);
/* The raw score, 4.5 at best, of an aligned pair whose clean side has been heard. */
int32_t kr_pesq_compare(kr_pesq_model *model, double *score);

#endif
