/* patches.c: images as rows of patches. */
#include "patches.h"

#include <string.h>

void kr_patches_cut(const float *pictures, int64_t n, int64_t picture, int64_t colour, const kr_patch_grid *grid,
                    float *patches) {
  const int64_t edge = kr_patch_grid_edge(grid), patch = grid->patch, area = patch * patch;
  for (int64_t i = 0; i < n * edge * edge; i++) {
    const int64_t t = i / (edge * edge), top = i / edge % edge * grid->stride, left = i % edge * grid->stride;
    for (int64_t k = 0; k < 3 * patch; k++)
      memcpy(patches + i * 3 * area + k * patch,
             pictures + t * picture + k / patch * colour + (top + k % patch) * grid->side + left,
             (size_t)patch * sizeof *patches);
  }
}
