/* copy_simd.c: rows through a float tile, so that each side has its own type and order in memory. */
#include "copy.h"
#include "vec_tile.h"
#include "view.h"

enum { TILE_ROWS = 64 };

void KR_FN(kr_copy_rows)(const krait_view *from, int64_t from_at, const krait_view *to, int64_t to_at, int64_t n_i, int64_t n_j) {
  float tile[TILE_ROWS * KR_VL];
  for (int64_t i = 0; i < n_i; i += TILE_ROWS)
    for (int64_t j = 0; j < n_j; j += KR_VL) {
      int rows = (int)(n_i - i < TILE_ROWS ? n_i - i : TILE_ROWS), lanes = (int)(n_j - j < KR_VL ? n_j - j : KR_VL);
      kr_plane source = {from->data, from->dtype, from_at + i * from->stride[1] + j * from->stride[2], from->stride[1], from->stride[2]};
      kr_plane target = {to->data, to->dtype, to_at + i * to->stride[1] + j * to->stride[2], to->stride[1], to->stride[2]};
      kr_tile_load(tile, KR_VL, &source, rows, lanes);
      kr_tile_store(tile, KR_VL, &target, rows, lanes);
    }
}
