/* patches.h: images as rows of patches, for models whose first layer is a convolution without padding. */
#ifndef KR_PATCHES_H
#define KR_PATCHES_H

#include <stdint.h>

typedef struct kr_patch_grid {
  int64_t side, patch, stride; /* pixels: of an image, of a patch, and from a patch to the next one */
} kr_patch_grid;
static inline int64_t kr_patch_grid_edge(const kr_patch_grid *g) { return (g->side - g->patch) / g->stride + 1; }

/* Each patch's pixels contiguous, colour by colour, in the order of the convolution's weight: n images, `picture`
 * floats apart, colours `colour` apart; patches (n edge edge, 3 patch patch). */
void kr_patches_cut(const float *pictures, int64_t n, int64_t picture, int64_t colour, const kr_patch_grid *grid,
                    float *patches);

#endif
