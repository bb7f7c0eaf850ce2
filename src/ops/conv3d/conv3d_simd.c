/* conv3d_simd.c: the causal convolution as products of strips of output positions with packed weights (gemm_kernel.h).
 * A tap's row of a strip is a contiguous piece of a frame's row, copied once as float32 with its border; the positions
 * of a window overlap in it, so that nothing is unfolded. A task is a strip; its sums stay in the L2 cache. */
#include <string.h>

#include "conv3d/conv3d_impls.h"
#include "gemm/gemm_kernel.h"
#include "vec_tile.h"

enum { NR = 2 * KR_VL, POSITIONS = 192, COLUMNS = 512, TERMS = 256, LINE = 16 };

typedef struct conv {
  const kr_conv3d_args *a;
  kr_panels panels;
  float *threads;
  int64_t thread_floats, line_floats;      /* of a thread; of a copied row */
  int64_t n_columns, n_rows, n_across, n_down; /* output columns and rows of a strip; strips across and down */
} conv;

typedef struct strip {
  int64_t t, h, w, rows, columns; /* first position; rows and columns of it */
  float *lines, *sums;            /* (rows, line_floats); (panel, rows columns, NR) */
} strip;

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t whole_lines(int64_t n) { return (n + LINE - 1) / LINE * LINE; }
static int64_t count_panels(int64_t columns) { return (columns + NR - 1) / NR; }
static int64_t packed_floats(const kr_conv3d_args *a) {
  return whole_lines(KR_FN(kr_panels_floats)(a->TAPS * a->C, a->K)) + whole_lines(a->K);
}
static int is_packable(const kr_conv3d_args *a) {
  return a->weight.dtype == KRAIT_F32 && (a->weight.stride[2] == 1 || a->C == 1) &&
         (a->weight.stride[1] == a->C || a->TAPS == 1);
}

static conv plan_conv3d(const kr_conv3d_args *a) {
  conv p = {.a = a, .n_columns = least_of(a->OW, POSITIONS)};
  p.n_rows = least_of(POSITIONS / p.n_columns, a->OH);
  p.n_across = (a->OW + p.n_columns - 1) / p.n_columns, p.n_down = (a->OH + p.n_rows - 1) / p.n_rows;
  p.line_floats = whole_lines(((p.n_columns - 1) * a->SW + a->KW) * a->C) + LINE; /* kr_row_load writes whole lines */
  p.thread_floats =
      p.n_rows * p.line_floats + p.n_rows * p.n_columns * NR * count_panels(least_of(a->K, COLUMNS)) + LINE;
  return p;
}

uint64_t KR_FN(kr_conv3d_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  const conv p = plan_conv3d(a);
  const int64_t widened = is_packable(a) ? 0 : a->K * a->TAPS * a->C;
  return (uint64_t)(packed_floats(a) + widened + krait_ctx_n_threads(ctx) * p.thread_floats) * sizeof(float);
}

/* ---- weights ---- */

static void pack_conv3d(conv *p, float *memory) {
  const kr_conv3d_args *a = p->a;
  const int64_t terms = a->TAPS * a->C;
  float *bias = memory + packed_floats(a) - whole_lines(a->K), *widened = memory + packed_floats(a);
  const float *weights = a->weight.data;
  int64_t step = a->weight.stride[0];
  for (int64_t k = 0; k < a->K && kr_has(&a->bias); k++)
    bias[k] = kr_scalar_load(a->bias.data, kr_at1(&a->bias, k), a->bias.dtype);
  p->threads = widened;
  if (!is_packable(a)) {
    for (int64_t i = 0; i < a->K * a->TAPS; i++)
      kr_row_load(widened + i * a->C, a->weight.data, a->weight.dtype,
                  kr_at3(&a->weight, i / a->TAPS, i % a->TAPS, 0), a->weight.stride[2], a->C);
    weights = widened, step = terms, p->threads += a->K * terms;
  }
  KR_FN(kr_panels_pack)(&p->panels, memory, terms, a->K, weights, 1, step, kr_has(&a->bias) ? bias : NULL);
}

/* ---- a strip ---- */

/* The part of frame row y that the strip's columns read, as float32, zeros outside. */
static void copy_line(const conv *p, const strip *s, const kr_view *from, int64_t frame, int64_t y, float *to) {
  const kr_conv3d_args *a = p->a;
  const int64_t first = s->w * a->SW - a->PW, n = (s->columns - 1) * a->SW + a->KW,
                begin = first < 0 ? -first : 0, end = least_of(n, a->W - first);
  if (begin > 0) memset(to, 0, (size_t)(least_of(begin, n) * a->C) * sizeof *to);
  if (end < n) {
    const int64_t at = end < 0 ? 0 : end;
    memset(to + at * a->C, 0, (size_t)((n - at) * a->C) * sizeof *to);
  }
  if (from->stride[2] == a->C && begin < end) {
    kr_row_load(to + begin * a->C, from->data, from->dtype, kr_at4(from, frame, y, first + begin, 0), 1,
                (end - begin) * a->C);
    return;
  }
  for (int64_t i = begin; i < end; i++)
    kr_row_load(to + i * a->C, from->data, from->dtype, kr_at4(from, frame, y, first + i, 0), 1, a->C);
}

/* Adds the products with row `row` of the window, which is frame row / KH and line row % KH of it. */
static void add_window_row(const conv *p, const strip *s, int64_t row, int64_t first, int64_t n_panels) {
  const kr_conv3d_args *a = p->a;
  const int64_t n_terms = a->KW * a->C, y = s->h * a->SH + row % a->KH - a->PH;
  int64_t frame;
  const kr_view *from = kr_conv3d_frame(a, s->t * a->ST + row / a->KH, &frame);
  for (int64_t r = 0; r < s->rows; r++)
    if (y + r * a->SH >= 0 && y + r * a->SH < a->H)
      copy_line(p, s, from, frame, y + r * a->SH, s->lines + r * p->line_floats);
  kr_panel_call call = {.weights = &p->panels, .lda = a->SW * a->C, .M = s->columns};
  for (int64_t k = 0; k < n_terms; k += TERMS)
    for (int64_t panel = 0; panel < n_panels; panel++)
      for (int64_t r = 0; r < s->rows; r++) {
        if (y + r * a->SH < 0 || y + r * a->SH >= a->H) continue;
        call.first = first + panel * NR, call.k = row * n_terms + k, call.n = least_of(TERMS, n_terms - k);
        call.A = s->lines + r * p->line_floats + k;
        call.sums = s->sums + (panel * s->rows + r) * s->columns * NR;
        KR_FN(kr_panel_add)(&call);
      }
}

static void finish_strip(const conv *p, const strip *s, int64_t first, int64_t n_panels) {
  const kr_conv3d_args *a = p->a;
  for (int64_t panel = 0; panel < n_panels; panel++)
    for (int64_t m = 0; m < s->rows * s->columns; m++)
      for (int v = 0; v < 2; v++) {
        const int64_t k = first + panel * NR + v * KR_VL, h = s->h + m / s->columns, w = s->w + m % s->columns;
        const int lanes = (int)least_of(KR_VL, a->K - k);
        if (lanes <= 0) continue;
        kr_v sum = kr_v_load(s->sums + (panel * s->rows * s->columns + m) * NR + v * KR_VL);
        if (kr_has(&a->residual))
          sum = kr_v_add(sum, kr_v_load_as(a->residual.data, kr_at4(&a->residual, s->t, h, w, k), lanes,
                                           a->residual.dtype));
        kr_v_store_as(a->out.data, kr_at4(&a->out, s->t, h, w, k), lanes, a->out.dtype, sum);
      }
}

static void sum_strip(const conv *p, const strip *s) {
  const kr_conv3d_args *a = p->a;
  for (int64_t first = 0; first < a->K; first += COLUMNS) {
    const int64_t n_panels = count_panels(least_of(COLUMNS, a->K - first));
    for (int64_t panel = 0; panel < n_panels; panel++) {
      const float *bias = p->panels.bias + first + panel * NR;
      const int is_wide = first + panel * NR + KR_VL < a->K;
      for (int64_t m = 0; m < s->rows * s->columns; m++) {
        float *sums = s->sums + (panel * s->rows * s->columns + m) * NR;
        kr_v_store(sums, kr_v_load(bias));
        kr_v_store(sums + KR_VL, is_wide ? kr_v_load(bias + KR_VL) : kr_v_zero());
      }
    }
    for (int64_t row = 0; row < a->KT * a->KH; row++) add_window_row(p, s, row, first, n_panels);
    finish_strip(p, s, first, n_panels);
  }
}

static void run_strips(void *user, int64_t begin, int64_t end, int worker) {
  const conv *p = user;
  float *memory = p->threads + worker * p->thread_floats;
  for (int64_t i = begin; i < end; i++) {
    const int64_t down = i / p->n_across % p->n_down;
    strip s = {.t = i / p->n_across / p->n_down,
               .h = down * p->n_rows,
               .w = i % p->n_across * p->n_columns,
               .lines = memory,
               .sums = memory + p->n_rows * p->line_floats};
    s.rows = least_of(p->n_rows, p->a->OH - s.h), s.columns = least_of(p->n_columns, p->a->OW - s.w);
    sum_strip(p, &s);
  }
}

/* ---- states: frame m comes from frame m or a later one, so that they may be the same memory ---- */

static void keep_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_conv3d_args *a = user;
  const kr_view *to = &a->final_states;
  const size_t bytes = krait_dtype_bytes(to->dtype);
  (void)worker;
  for (int64_t y = begin; y < end; y++)
    for (int64_t m = 0; m < a->past; m++) {
      int64_t frame;
      const kr_view *from = kr_conv3d_frame(a, kr_conv3d_front(a) + a->T - a->past + m, &frame);
      for (int64_t x = 0; x < a->W; x++) {
        const int64_t is_at = kr_at4(to, m, y, x, 0), was_at = kr_at4(from, frame, y, x, 0);
        memmove((char *)to->data + (size_t)is_at * bytes, (const char *)from->data + (size_t)was_at * bytes,
                (size_t)a->C * bytes);
      }
    }
}

int32_t KR_FN(kr_conv3d)(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  conv p = plan_conv3d(a);
  pack_conv3d(&p, a->call.scratch);
  kr_parallel(ctx, a->OT * p.n_down * p.n_across, 1, run_strips, &p);
  if (kr_has(&a->final_states)) kr_parallel(ctx, a->H, 1, keep_rows, (void *)a);
  return KRAIT_OK;
}
