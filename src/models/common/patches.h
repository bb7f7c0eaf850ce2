/* patches.h: images as rows of patches, for models whose first layer is a convolution with a stride of its kernel
 * size. */
#ifndef KR_PATCHES_H
#define KR_PATCHES_H

#include <stdint.h>

/* Each patch's pixels contiguous, colour by colour, in the order of the convolution's weight: n images of side x side,
 * `picture` floats apart, colours `colour` apart; patches (n (side/patch)^2, 3 patch patch). */
void kr_patches_cut(const float *pictures, int64_t n, int64_t picture, int64_t colour, int64_t side, int64_t patch,
                    float *patches);

#endif
