/* patches.h: pictures as rows of patches, for models whose first layer is a convolution that steps by its own size. */
#ifndef KR_PATCHES_H
#define KR_PATCHES_H

#include <stdint.h>

/* Each patch's pixels side by side, colour by colour, as the convolution's weight has them: n pictures of side x side,
 * `picture` floats apart, colours `colour` apart; patches (n (side/patch)^2, 3 patch patch). */
void kr_patches_cut(const float *pictures, int64_t n, int64_t picture, int64_t colour, int64_t side, int64_t patch,
                    float *patches);

#endif
