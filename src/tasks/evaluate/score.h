/* score.h: scores a noisy and an enhanced file against a clean recording. */
#ifndef KR_SCORE_H
#define KR_SCORE_H

#include <krait/enhance.h>

/* Means over n_channels channels; a mono reference serves every channel. Lengths may differ by 0.1 s, the rest is not
 * compared. */
int32_t kr_score_files(const char *clean_path, const char *noisy_path, const char *enhanced_path, int32_t n_channels,
                       krait_scores *noisy, krait_scores *enhanced);
/* Checks before the work starts whether clean_path can serve as the reference for this file. */
int32_t kr_score_check_reference(const char *clean_path, double audio_s, int32_t n_channels);

#endif
