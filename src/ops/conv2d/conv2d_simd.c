/* conv2d_simd.c: channels-last convolutions with channels as lanes: up to four vectors of accumulators in registers,
 * over all taps. The weight gradient is split into chunks of rows, whose sums are added in order. */
#include <string.h>

#include "conv2d/conv2d_impls.h"
#include "op_list.h"
#include "vec.h"
#include "view.h"

enum { BLOCK = 4 * KR_VL };

static inline kr_v load_conv2d_some(const float *p, int64_t n) {
  return n >= KR_VL ? kr_v_load(p) : n > 0 ? kr_v_loadn(p, (int)n) : kr_v_zero();
}
static inline void store_conv2d_some(float *p, kr_v v, int64_t n) {
  if (n >= KR_VL) kr_v_store(p, v);
  else if (n > 0) kr_v_storen(p, v, (int)n);
}
static const float *at_row(const kr_view *v, int64_t b, int64_t h) {
  return (const float *)v->data + kr_at4(v, b, h, 0, 0);
}

/* out = bias + taps over x; sign: +1 from an output's position to its taps, -1 for the gradient. */
typedef struct conv {
  int64_t H, W, C, KH, KW, DH, DW, PH, PW;
  int sign;
  const kr_view *x, *out;
  const float *taps, *bias; /* [KH KW][lanes], [lanes] or NULL */
} conv;

static int64_t least_tap(int64_t at, int64_t step, int64_t K) { /* the first tap k with at + k step >= 0 */
  const int64_t k = at >= 0 ? 0 : (-at + step - 1) / step;
  return k < K ? k : K;
}
static int64_t end_tap(int64_t at, int64_t step, int64_t size,
                       int64_t K) { /* one past the last with at + k step < size */
  const int64_t k = at >= size ? 0 : (size - 1 - at) / step + 1;
  return k < K ? k : K;
}
/* The taps within bounds, for position `at` along a dimension. */
static void tap_range(int sign, int64_t at, int64_t P, int64_t step, int64_t size, int64_t K, int64_t *from,
                      int64_t *to) {
  const int64_t first = sign > 0 ? at - P : size - 1 - (at + P); /* mirrored for the gradient */
  *from = least_tap(first, step, K), *to = end_tap(first, step, size, K);
}

KR_INLINE void conv_position(const conv *p, const float *x, int64_t x_row, int64_t x_step, float *out, int64_t lanes,
                             int64_t h, int64_t w, int64_t c, int n_vectors) {
  kr_v sum[4];
  int64_t i0, i1, j0, j1;
  tap_range(p->sign, h, p->PH, p->DH, p->H, p->KH, &i0, &i1);
  tap_range(p->sign, w, p->PW, p->DW, p->W, p->KW, &j0, &j1);
  for (int k = 0; k < n_vectors; k++) sum[k] = p->bias ? kr_v_load(p->bias + c + k * KR_VL) : kr_v_zero();
  for (int64_t i = i0; i < i1; i++)
    for (int64_t j = j0; j < j1; j++) {
      const float *tap = p->taps + (i * p->KW + j) * lanes + c;
      const float *from =
          x + (h + p->sign * (i * p->DH - p->PH)) * x_row + (w + p->sign * (j * p->DW - p->PW)) * x_step + c;
      for (int k = 0; k < n_vectors; k++)
        sum[k] = kr_v_fma(load_conv2d_some(from + k * KR_VL, p->C - c - k * KR_VL), kr_v_load(tap + k * KR_VL), sum[k]);
    }
  for (int k = 0; k < n_vectors; k++) store_conv2d_some(out + c + k * KR_VL, sum[k], p->C - c - k * KR_VL);
}

/* ROWS rows by COLUMNS positions of one vector of channels, if every position's taps along the row are in bounds: a tap
 * is loaded for all COLUMNS, an input for all ROWS. DH is 1. */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { ROWS = 5, COLUMNS = 4 };
#else
enum { ROWS = 2, COLUMNS = 4 };
#endif

/* Adds row y of the input to the sums; is_all: every row has a tap there. */
KR_INLINE void add_input_row(const conv *p, const float *from, const float *taps, int64_t next_tap, int64_t first_tap,
                             int64_t left, const int sign, const int is_all, kr_v *sum) {
  const int64_t x_step = p->x->stride[2];
  kr_v in[COLUMNS];
#pragma GCC unroll 4
  for (int q = 0; q < COLUMNS; q++) in[q] = load_conv2d_some(from + q * x_step, left);
#pragma GCC unroll 5
  for (int r = 0; r < ROWS; r++) {
    const int64_t tap = first_tap - sign * r;
    if (!is_all && (tap < 0 || tap >= p->KH)) continue;
    const kr_v t = kr_v_load(taps + tap * next_tap);
#pragma GCC unroll 4
    for (int q = 0; q < COLUMNS; q++) sum[r * COLUMNS + q] = kr_v_fma(in[q], t, sum[r * COLUMNS + q]);
  }
}

KR_INLINE void conv_block(const conv *p, const float *x, float *out, int64_t lanes, int64_t h, int64_t w, int64_t c,
                          const int sign) {
  const int64_t x_row = p->x->stride[1], x_step = p->x->stride[2], left = p->C - c,
                first = sign > 0 ? h - p->PH : h + p->PH - (p->KH - 1), last = first + ROWS - 1 + p->KH - 1,
                end = last < p->H ? last + 1 : p->H;
  kr_v sum[ROWS * COLUMNS];
#pragma GCC unroll 20
  for (int k = 0; k < ROWS * COLUMNS; k++) sum[k] = p->bias ? kr_v_load(p->bias + c) : kr_v_zero();
  for (int64_t j = 0; j < p->KW; j++) {
    const float *taps = p->taps + j * lanes + c, *column = x + (w + sign * (j * p->DW - p->PW)) * x_step + c;
    const int64_t next = p->KW * lanes;
    for (int64_t y = first > 0 ? first : 0; y < end; y++) {
      const int64_t tap = sign > 0 ? y - h + p->PH : h + p->PH - y;
      if (y >= first + ROWS - 1 && y < first + p->KH)
        add_input_row(p, column + y * x_row, taps, next, tap, left, sign, 1, sum);
      else add_input_row(p, column + y * x_row, taps, next, tap, left, sign, 0, sum);
    }
  }
#pragma GCC unroll 20
  for (int k = 0; k < ROWS * COLUMNS; k++)
    store_conv2d_some(out + (h + k / COLUMNS) * p->out->stride[1] + (w + k % COLUMNS) * p->out->stride[2] + c, sum[k],
                      left);
}

/* TALL positions of a sequence (W is 1), of one full vector of channels: a tap is loaded for all of them. is_inside:
 * all taps are in bounds. */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { TALL = 12 };
#else
enum { TALL = 6 };
#endif

KR_INLINE void conv_tall(const conv *p, const float *x, float *out, int64_t lanes, int64_t h, int64_t c,
                         const int is_inside) {
  const int64_t x_row = p->x->stride[1], out_row = p->out->stride[1];
  kr_v sum[TALL];
#pragma GCC unroll 12
  for (int r = 0; r < TALL; r++) sum[r] = p->bias ? kr_v_load(p->bias + c) : kr_v_zero();
  for (int64_t i = 0; i < p->KH; i++) {
    const int64_t y = h + p->sign * (i * p->DH - p->PH);
    const kr_v tap = kr_v_load(p->taps + i * lanes + c);
    const float *from = x + y * x_row + c;
#pragma GCC unroll 12
    for (int r = 0; r < TALL; r++)
      if (is_inside || (y + r >= 0 && y + r < p->H)) sum[r] = kr_v_fma(kr_v_load(from + r * x_row), tap, sum[r]);
  }
#pragma GCC unroll 12
  for (int r = 0; r < TALL; r++) kr_v_store(out + (h + r) * out_row + c, sum[r]);
}

static int is_sequence(const conv *p) { return p->W == 1 && p->KW == 1 && p->PW == 0 && p->H >= TALL; }

/* Items of a batch of sequences; if TALL does not divide H, the last tile overlaps the one before. */
static void conv_sequences(void *user, int64_t begin, int64_t end, int worker) {
  const conv *p = user;
  const int64_t lanes = kr_whole_lanes(p->C), reach = (p->KH - 1) * p->DH,
                n = (p->H + TALL - 1) / TALL, n_vectors = p->C / KR_VL;
  (void)worker;
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / n_vectors, c = item % n_vectors * KR_VL;
    const float *x = at_row(p->x, b, 0);
    float *out = (float *)p->out->data + kr_at4(p->out, b, 0, 0, 0);
    for (int64_t k = 0; k < n; k++) {
      const int64_t h = k + 1 < n ? k * TALL : p->H - TALL, first = p->sign > 0 ? h - p->PH : h + p->PH - reach;
      if (first >= 0 && first + reach + TALL <= p->H) conv_tall(p, x, out, lanes, h, c, 1);
      else conv_tall(p, x, out, lanes, h, c, 0);
    }
    for (int64_t h = 0; c + 2 * KR_VL > p->C && c + KR_VL < p->C && h < p->H; h++)
      conv_position(p, x, p->x->stride[1], p->x->stride[2], out + h * p->out->stride[1], lanes, h, 0, c + KR_VL, 1);
  }
}

static void conv_columns(const conv *p, const float *x, float *out, int64_t h, int64_t from, int64_t to) {
  const int64_t lanes = kr_whole_lanes(p->C), x_row = p->x->stride[1], x_step = p->x->stride[2];
  for (int64_t w = from; w < to; w++)
    for (int64_t c = 0; c < p->C; c += BLOCK) {
      const int64_t left = (p->C - c + KR_VL - 1) / KR_VL;
      float *at = out + h * p->out->stride[1] + w * p->out->stride[2];
      if (left >= 4) conv_position(p, x, x_row, x_step, at, lanes, h, w, c, 4);
      else if (left == 2) conv_position(p, x, x_row, x_step, at, lanes, h, w, c, 2);
      else if (left == 1) conv_position(p, x, x_row, x_step, at, lanes, h, w, c, 1);
      else conv_position(p, x, x_row, x_step, at, lanes, h, w, c, 3);
    }
}

/* Rows h to h + ROWS; positions from w0 to w1 have all their taps in bounds. */
static void conv_band(const conv *p, const float *x, float *out, int64_t h, int64_t w0, int64_t w1) {
  const int64_t lanes = kr_whole_lanes(p->C), whole = w0 + (w1 - w0) / COLUMNS * COLUMNS;
  for (int64_t w = w0; w < whole; w += COLUMNS)
    for (int64_t c = 0; c < p->C; c += KR_VL)
      if (p->sign > 0) conv_block(p, x, out, lanes, h, w, c, 1);
      else conv_block(p, x, out, lanes, h, w, c, -1);
  for (int r = 0; r < ROWS; r++) conv_columns(p, x, out, h + r, 0, w0), conv_columns(p, x, out, h + r, whole, p->W);
}

static void conv_bands(void *user, int64_t begin, int64_t end, int worker) {
  const conv *p = user;
  const int64_t n_bands = (p->H + ROWS - 1) / ROWS,
                back = (p->KW - 1) * p->DW - p->PW; /* reach of the taps on the other side */
  const int64_t before = p->sign > 0 ? p->PW : back, behind = p->sign > 0 ? back : p->PW;
  int64_t w0 = before > 0 ? before : 0, w1 = p->W - (behind > 0 ? behind : 0);
  if (p->DH != 1 || w1 < w0) w0 = w1 = 0;
  (void)worker;
  for (int64_t band = begin; band < end; band++) {
    const int64_t b = band / n_bands, h = band % n_bands * ROWS;
    const float *x = at_row(p->x, b, 0);
    float *out = (float *)p->out->data + kr_at4(p->out, b, 0, 0, 0);
    if (h + ROWS <= p->H) conv_band(p, x, out, h, w0, w1);
    for (int64_t k = h; k < p->H && h + ROWS > p->H; k++) conv_columns(p, x, out, k, 0, p->W);
  }
}

static void run_conv2d_simd_conv(const krait_ctx *ctx, conv *p, int64_t B) {
  if (is_sequence(p) && p->C >= KR_VL) {
    kr_parallel(ctx, B * (p->C / KR_VL), 1 + 16384 / (p->H * KR_VL), conv_sequences, p);
    return;
  }
  kr_parallel(ctx, B * ((p->H + ROWS - 1) / ROWS), 1 + 16384 / (ROWS * p->W * p->C + 1), conv_bands, p);
}

/* Whether taps already lie as lay_taps would lay them. */
static int is_laid(const kr_view *weight, int64_t C, int64_t KH, int64_t KW) {
  return weight->stride[0] == 1 && C == kr_whole_lanes(C) && (KW == 1 || weight->stride[2] == C) &&
         (KH == 1 || weight->stride[1] == KW * C);
}

static void lay_taps(float *to, const kr_view *weight, int64_t C, int64_t KH, int64_t KW) {
  const int64_t lanes = kr_whole_lanes(C), next = weight->stride[0];
  for (int64_t i = 0; i < KH; i++)
    for (int64_t j = 0; j < KW; j++, to += lanes) {
      const float *from = (const float *)weight->data + kr_at3(weight, 0, i, j);
      if (next == 1) memcpy(to, from, (size_t)C * sizeof *to);
      else
        for (int64_t c = 0; c < C; c++) to[c] = from[c * next];
      memset(to + C, 0, (size_t)(lanes - C) * sizeof *to);
    }
}

int32_t KR_FN(kr_depthwise_conv)(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_args *a = args;
  const int64_t lanes = kr_whole_lanes(a->C);
  float *laid = a->call.scratch, *bias = laid + a->KH * a->KW * lanes;
  const float *taps = laid, *summand = kr_has(&a->bias) ? bias : NULL;
  if (is_laid(&a->weight, a->C, a->KH, a->KW)) taps = a->weight.data;
  else lay_taps(laid, &a->weight, a->C, a->KH, a->KW);
  for (int64_t c = 0; summand && c < lanes; c++)
    bias[c] = c < a->C ? ((const float *)a->bias.data)[kr_at1(&a->bias, c)] : 0;
  conv p = {a->H, a->W, a->C, a->KH, a->KW, a->DH, a->DW, a->PH, a->PW, 1, &a->x, &a->out, taps, summand};
  run_conv2d_simd_conv(ctx, &p, a->B);
  return KRAIT_OK;
}

/* ---- the gradient ---- */

typedef struct taps_run {
  const kr_depthwise_conv_bwd_args *a;
  float *sums; /* [chunk][KH KW + 1][lanes] */
  int64_t n_chunks, lanes;
} taps_run;

/* sum += over a row of d x, or of d only; n positions. */
KR_INLINE void add_tap_row(float *sum, const float *d, int64_t d_step, const float *x, int64_t x_step, int64_t n,
                       int64_t left) {
  const int whole = left >= 2 * KR_VL;
  kr_v s0 = kr_v_zero(), s1 = s0, t0 = s0, t1 = s0;
  int64_t i = 0;
  for (; whole && i + 1 < n; i += 2) {
    const float *d0 = d + i * d_step, *d1 = d0 + d_step, *x0 = x ? x + i * x_step : NULL, *x1 = x ? x0 + x_step : NULL;
    s0 = x ? kr_v_fma(kr_v_load(d0), kr_v_load(x0), s0) : kr_v_add(s0, kr_v_load(d0));
    s1 = x ? kr_v_fma(kr_v_load(d0 + KR_VL), kr_v_load(x0 + KR_VL), s1) : kr_v_add(s1, kr_v_load(d0 + KR_VL));
    t0 = x ? kr_v_fma(kr_v_load(d1), kr_v_load(x1), t0) : kr_v_add(t0, kr_v_load(d1));
    t1 = x ? kr_v_fma(kr_v_load(d1 + KR_VL), kr_v_load(x1 + KR_VL), t1) : kr_v_add(t1, kr_v_load(d1 + KR_VL));
  }
  for (; i < n; i++) {
    const kr_v a = load_conv2d_some(d + i * d_step, left), b = load_conv2d_some(d + i * d_step + KR_VL, left - KR_VL);
    s0 = x ? kr_v_fma(a, load_conv2d_some(x + i * x_step, left), s0) : kr_v_add(s0, a);
    s1 = x ? kr_v_fma(b, load_conv2d_some(x + i * x_step + KR_VL, left - KR_VL), s1) : kr_v_add(s1, b);
  }
  kr_v_store(sum, kr_v_add(kr_v_load(sum), kr_v_add(s0, t0)));
  kr_v_store(sum + KR_VL, kr_v_add(kr_v_load(sum + KR_VL), kr_v_add(s1, t1)));
}

static void add_position_row(const taps_run *r, float *sums, int64_t b, int64_t h) {
  const kr_depthwise_conv_bwd_args *a = r->a;
  const float *d = at_row(&a->dout, b, h);
  const int64_t d_step = a->dout.stride[2], x_step = a->x.stride[2];
  for (int64_t c = 0; c < a->C; c += 2 * KR_VL) {
    for (int64_t i = 0; i < a->KH && kr_has(&a->dweight); i++) {
      const int64_t y = h + i * a->DH - a->PH;
      if (y < 0 || y >= a->H) continue;
      const float *x = at_row(&a->x, b, y);
      for (int64_t j = 0; j < a->KW; j++) {
        const int64_t move = j * a->DW - a->PW, from = move < 0 ? -move : 0, to = move > 0 ? a->W - move : a->W;
        if (from < to)
          add_tap_row(sums + (i * a->KW + j) * r->lanes + c, d + from * d_step + c, d_step,
                      x + (from + move) * x_step + c, x_step, to - from, a->C - c);
      }
    }
    if (kr_has(&a->dbias)) add_tap_row(sums + a->KH * a->KW * r->lanes + c, d + c, d_step, NULL, 0, a->W, a->C - c);
  }
}

static void add_conv2d_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const taps_run *r = user;
  const kr_depthwise_conv_bwd_args *a = r->a;
  const int64_t rows = a->B * a->H, size = (a->KH * a->KW + 1) * r->lanes;
  (void)worker;
  for (int64_t chunk = begin; chunk < end; chunk++) {
    memset(r->sums + chunk * size, 0, (size_t)size * sizeof(float));
    for (int64_t row = chunk * rows / r->n_chunks; row < (chunk + 1) * rows / r->n_chunks; row++)
      add_position_row(r, r->sums + chunk * size, row / a->H, row % a->H);
  }
}

static void write_taps(const taps_run *r) {
  const kr_depthwise_conv_bwd_args *a = r->a;
  const int64_t taps = a->KH * a->KW, size = (taps + 1) * r->lanes;
  for (int64_t c = 0; c < a->C; c++)
    for (int64_t k = 0; k <= taps; k++) {
      float sum = 0;
      for (int64_t chunk = 0; chunk < r->n_chunks; chunk++) sum += r->sums[chunk * size + k * r->lanes + c];
      if (k < taps && kr_has(&a->dweight))
        ((float *)a->dweight.data)[kr_at3(&a->dweight, c, k / a->KW, k % a->KW)] = sum;
      if (k == taps && kr_has(&a->dbias)) ((float *)a->dbias.data)[kr_at1(&a->dbias, c)] = sum;
    }
}

int32_t KR_FN(kr_depthwise_conv_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  const int64_t lanes = kr_whole_lanes(a->C);
  float *taps = a->call.scratch;
  taps_run r = {a, taps + (a->KH * a->KW + 1) * lanes, kr_conv_chunks(a->B * a->H), lanes};
  if (kr_has(&a->dx)) {
    lay_taps(taps, &a->weight, a->C, a->KH, a->KW);
    conv p = {a->H, a->W, a->C, a->KH, a->KW, a->DH, a->DW, a->PH, a->PW, -1, &a->dout, &a->dx, taps, NULL};
    run_conv2d_simd_conv(ctx, &p, a->B);
  }
  if (!kr_has(&a->dweight) && !kr_has(&a->dbias)) return KRAIT_OK;
  kr_parallel(ctx, r.n_chunks, 1, add_conv2d_chunks, &r);
  write_taps(&r);
  return KRAIT_OK;
}

/* ---- unfold ---- */

static void copy_lanes(float *to, const float *from, int64_t n) {
  if (from) memcpy(to, from, (size_t)n * sizeof *to);
  else memset(to, 0, (size_t)n * sizeof *to);
}

static void unfold_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_unfold_args *a = user;
  const int together = a->x.stride[2] == a->C; /* positions of a row are contiguous: a window's row is one copy */
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t b = row / a->OH / a->OW, i = row / a->OW % a->OH, j = row % a->OW, x0 = j * a->SW - a->PW;
    float *out = (float *)a->out.data + kr_at4(&a->out, b, i, j, 0);
    for (int64_t k = 0; k < a->KH; k++) {
      const int64_t y = i * a->SH + k - a->PH;
      const float *x = y >= 0 && y < a->H ? at_row(&a->x, b, y) : NULL;
      if (x && together && x0 >= 0 && x0 + a->KW <= a->W)
        copy_lanes(out + k * a->KW * a->C, x + x0 * a->C, a->KW * a->C);
      else
        for (int64_t l = 0; l < a->KW; l++)
          copy_lanes(out + (k * a->KW + l) * a->C,
                     x && x0 + l >= 0 && x0 + l < a->W ? x + (x0 + l) * a->x.stride[2] : NULL, a->C);
    }
  }
}

int32_t KR_FN(kr_unfold)(const krait_ctx *ctx, const void *args) {
  const kr_unfold_args *a = args;
  kr_parallel(ctx, a->B * a->OH * a->OW, 1 + 16384 / a->K, unfold_rows, (void *)args);
  return KRAIT_OK;
}

static void add_lanes(float *to, const float *from, int64_t n) {
  int64_t c = 0;
  for (; c + KR_VL <= n; c += KR_VL) kr_v_store(to + c, kr_v_add(kr_v_load(to + c), kr_v_load(from + c)));
  for (; c < n; c++) to[c] += from[c];
}

static void fold_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_fold_args *a = user;
  const int together = a->out.stride[2] == a->C;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    const int64_t b = row / a->H, h = row % a->H;
    float *out = (float *)a->out.data + kr_at4(&a->out, b, h, 0, 0);
    if (together) memset(out, 0, (size_t)(a->W * a->C) * sizeof *out);
    for (int64_t w = 0; !together && w < a->W; w++) memset(out + w * a->out.stride[2], 0, (size_t)a->C * sizeof *out);
    const int64_t from = h + a->PH;
    for (int64_t k = from % a->SH, y = from / a->SH; k < a->KH && y >= 0; k += a->SH, y--) {
      for (int64_t j = 0; j < a->OW && y < a->OH; j++) {
        const float *x = (const float *)a->x.data + kr_at4(&a->x, b, y, j, k * a->KW * a->C);
        const int64_t x0 = j * a->SW - a->PW;
        if (together && x0 >= 0 && x0 + a->KW <= a->W) add_lanes(out + x0 * a->C, x, a->KW * a->C);
        else
          for (int64_t l = 0; l < a->KW; l++)
            if (x0 + l >= 0 && x0 + l < a->W) add_lanes(out + (x0 + l) * a->out.stride[2], x + l * a->C, a->C);
      }
    }
  }
}

int32_t KR_FN(kr_fold)(const krait_ctx *ctx, const void *args) {
  const kr_fold_args *a = args;
  kr_parallel(ctx, a->B * a->H, 1 + 16384 / (a->W * a->C + 1), fold_rows, (void *)args);
  return KRAIT_OK;
}
