/* data_defaults.c: the constants of training and validation (data.h). */
#include "data.h"

void kr_data_defaults(kr_data_config *c) {
  *c = (kr_data_config){.seed = 2039,
                        .segment = 64000,
                        .stride = 32000,
                        .shift = 32000,
                        .shuffle = 1,
                        .repeats = 1,
                        .silence_s = 0.2,
                        .snr_low_db = -15,
                        .snr_high_db = 20,
                        .noise_proportion = -1,
                        .part_level_db = -25,
                        .level_db = -25,
                        .level_float_db = 10,
                        .most_noises = 1,
                        .batch = 4,
                        .n_ranks = 1};
}

void kr_data_for_validation(kr_data_config *c) {
  c->segment = 0, c->deterministic = 1, c->shuffle = 0, c->snr_low_db = -15, c->snr_high_db = 10, c->level_float_db = 0,
  c->batch = 1, c->rank = 0, c->n_ranks = 1, c->most_noises = 1;
  c->babble_proportion = c->colour_proportion = c->curve_proportion = 0;
  c->gain_proportion = c->speed_proportion = c->rumble_proportion = c->tilt_proportion = 0;
  c->band_proportion = c->clip_proportion = c->codec_proportion = 0;
}
