/* patches.c: images as rows of patches. */
#include "patches.h"

#include <string.h>

void kr_patches_cut(const float *pictures, int64_t n, int64_t picture, int64_t colour, int64_t side, int64_t patch,
                    float *patches) {
  const int64_t edge = side / patch, area = patch * patch;
  for (int64_t i = 0; i < n * edge * edge; i++) {
    const int64_t t = i / (edge * edge), top = i / edge % edge * patch, left = i % edge * patch;
    for (int64_t k = 0; k < 3 * patch; k++)
      memcpy(patches + i * 3 * area + k * patch,
             pictures + t * picture + k / patch * colour + (top + k % patch) * side + left,
             (size_t)patch * sizeof *patches);
  }
}
