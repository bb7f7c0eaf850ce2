/* copy.c: cuts a copy into pieces of rows and picks the body for this CPU. */
#include "copy.h"

#include "ctx.h"
#include "view.h"

enum { PIECE_ROWS = 64 };

typedef struct copy {
  const krait_view *from, *to;
  int64_t n_i, n_j, n_pieces; /* pieces of a b */
  kr_copy_rows_fn *rows;
} copy;

static void copy_elements(const krait_view *from, int64_t from_at, const krait_view *to, int64_t to_at, int64_t n_i, int64_t n_j) {
  for (int64_t i = 0; i < n_i; i++)
    for (int64_t j = 0; j < n_j; j++)
      kr_put(to, to_at + i * to->stride[1] + j * to->stride[2], kr_get(from, from_at + i * from->stride[1] + j * from->stride[2]));
}

static kr_copy_rows_fn *rows_of(const krait_ctx *ctx, const krait_view *from, const krait_view *to) {
  static const struct {
    uint64_t needs;
    kr_copy_rows_fn *rows;
  } bodies[] = {
#define KR_ISA(isa, cap) {KRAIT_CAP_CPU | cap, kr_copy_rows_##isa},
#include "isa.def"
#undef KR_ISA
  };
  if (!ctx || !kr_is_activation_dtype(from->dtype) || !kr_is_activation_dtype(to->dtype)) return copy_elements;
  int k = 0;
  while ((bodies[k].needs & ctx->caps) != bodies[k].needs) k++; /* the last one needs nothing */
  return bodies[k].rows;
}

static void copy_pieces(void *user, int64_t begin, int64_t end, int worker) {
  const copy *c = user;
  (void)worker;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t b = piece / c->n_pieces, i = piece % c->n_pieces * PIECE_ROWS, left = c->n_i - i;
    c->rows(c->from, kr_at2(c->from, b, i), c->to, kr_at2(c->to, b, i), left < PIECE_ROWS ? left : PIECE_ROWS, c->n_j);
  }
}

void kr_copy_view(const krait_ctx *ctx, const krait_view *from, const krait_view *to, int64_t n_b, int64_t n_i, int64_t n_j) {
  copy c = {from, to, n_i, n_j, (n_i + PIECE_ROWS - 1) / PIECE_ROWS, rows_of(ctx, from, to)};
  if (ctx) kr_parallel(ctx, n_b * c.n_pieces, 1, copy_pieces, &c);
  else copy_pieces(&c, 0, n_b * c.n_pieces, 0);
}
