/* argmax_rows_simd.c: contiguous rows of floats: threads find the maximum of each block, then the first block that
 * attains it is searched. */
#include <math.h>

#include "op_list.h"
#include "vec.h"
#include "view.h"

enum { BLOCKS = 64, LEAST = 1024 };

typedef struct row {
  const float *x;
  int64_t M, block;
  float most[BLOCKS];
} row;

static int64_t end_of(const row *r, int64_t i) { return r->M < (i + 1) * r->block ? r->M : (i + 1) * r->block; }

/* max returns its second operand if the first is NaN. */
static void find_maxima(void *user, int64_t begin, int64_t end, int worker) {
  row *r = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    kr_v most = kr_v_set1(-INFINITY);
    int64_t m = i * r->block;
    for (; m + KR_VL <= end_of(r, i); m += KR_VL) most = kr_v_max(kr_v_load(r->x + m), most);
    r->most[i] = kr_v_largest(most);
    for (; m < end_of(r, i); m++)
      if (r->x[m] > r->most[i]) r->most[i] = r->x[m];
  }
}

static int64_t find_first(const row *r, float value, int64_t m, int64_t end) {
  for (; m < end; m++)
    if (r->x[m] == value) return m;
  return 0;
}

int32_t KR_FN(kr_argmax_rows)(const krait_ctx *ctx, const void *args) {
  const kr_argmax_rows_args *a = args;
  row r = {.M = a->M, .block = (a->M + BLOCKS - 1) / BLOCKS};
  if (r.block < LEAST) r.block = LEAST;
  const int64_t n = (r.M + r.block - 1) / r.block;
  for (int64_t i = 0; i < a->R; i++) {
    r.x = (const float *)a->x.data + kr_at2(&a->x, i, 0);
    kr_parallel(ctx, n, 8, find_maxima, &r);
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
      if (r.most[k] > r.most[best]) best = k;
    const int nothing = r.most[best] == -INFINITY; /* -inf at most: it may be in any block */
    ((int32_t *)a->out.data)[kr_at1(&a->out, i)] =
        (int32_t)find_first(&r, r.most[best], nothing ? 0 : best * r.block, nothing ? r.M : end_of(&r, best));
  }
  return KRAIT_OK;
}
