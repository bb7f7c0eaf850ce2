/* causal_conv1d_simd.c: three implementations. Unit stride in time: a row at a time, lanes are time steps, taps are
 * shifted loads from a float window that keeps the last W-1 inputs. Contiguous channels, not in place: lanes are
 * channels, four steps at once from memory to memory, split over time and channels. Otherwise lanes are channels and a
 * ring of W float rows holds the taps. The first and the last read every input before the output overwrites it. */
#include <string.h>

#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { MAX_W = 8, WINDOW = 512, RANGE = 128, AHEAD = 8 };
_Static_assert(RANGE % KR_VL == 0 && WINDOW % KR_VL == 0, "whole vectors");

typedef struct run {
  const kr_causal_conv1d_args *a;
  int64_t range, n_ranges; /* channels per item, items per batch entry */
} run;

static int is_reverse(const kr_causal_conv1d_args *a) { return (a->call.flags & KRAIT_CONV1D_REVERSE) != 0; }

static float conv1d_bias_of(const kr_causal_conv1d_args *a, int64_t d) {
  return kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, d)) : 0;
}

/* The W-1 inputs before the first step, in the direction's order. */
static float initial_input(const kr_causal_conv1d_args *a, int64_t b, int64_t d, int64_t k) {
  return kr_has(&a->initial_states) ? (float)kr_get(&a->initial_states, kr_at3(&a->initial_states, b, d, k)) : 0;
}

/* ---- lanes are time steps ---- */

KR_INLINE kr_v filter_vector(const float *from, const kr_v *tap, kr_v start, int W) {
  kr_v sum = start;
  for (int k = 0; k < W; k++) sum = kr_v_fma(tap[k], kr_v_load(from + k), sum);
  return sum;
}

/* n vectors of outputs, at most two, at steps at[0] and at[1]; they may overlap. */
KR_INLINE void filter_vectors(const float *from, float *out, const int64_t *at, int n, const kr_v *tap, kr_v start,
                              int W, int silu) {
  kr_v sum[2];
  for (int k = 0; k < n; k++) sum[k] = filter_vector(from + at[k], tap, start, W);
  if (silu) kr_v_silu_fast_each(sum, n);
  for (int k = 0; k < n; k++) kr_v_store(out + at[k], sum[k]);
}

/* Outputs i..n-1, where n - i or i is at least a vector: two vectors at a time, the last of which may overlap the one
 * before. Inputs are prefetched `ahead` floats early. */
KR_INLINE void filter_pairs(const float *from, float *out, int64_t i, int64_t n, const kr_v *tap, kr_v start, int W,
                            int silu, int ahead) {
  for (; i + KR_VL < n; i += 2 * KR_VL) {
    const int64_t second = i + 2 * KR_VL <= n ? i + KR_VL : n - KR_VL;
    for (int k = 0; k < 2 * KR_VL && ahead; k += 16) __builtin_prefetch(from + i + ahead + k);
    filter_vectors(from, out, (const int64_t[]){i, second}, 2, tap, start, W, silu);
  }
  if (i < n) filter_vectors(from, out, (const int64_t[]){n - KR_VL}, 1, tap, start, W, silu);
}

/* taps[k] multiplies from[i + k]. Below a vector's length, whole vectors are still read and written. */
KR_INLINE void filter_window(const float *from, float *out, int64_t n, const float *taps, float bias, int W, int silu) {
  kr_v tap[MAX_W];
  for (int k = 0; k < W; k++) tap[k] = kr_v_set1(taps[k]);
  filter_pairs(from, out, 0, n < KR_VL ? KR_VL : n, tap, kr_v_set1(bias), W, silu, 0);
}

static void filter_any(const float *window, float *out, int64_t n, const float *taps, float bias, int W, int silu) {
  if (W == 4 && silu) filter_window(window, out, n, taps, bias, 4, 1);
  else if (W == 4) filter_window(window, out, n, taps, bias, 4, 0);
  else if (W == 3) filter_window(window, out, n, taps, bias, 3, silu);
  else if (W == 2) filter_window(window, out, n, taps, bias, 2, silu);
  else filter_window(window, out, n, taps, bias, W, silu);
}

KR_INLINE void copy_in(float *to, const kr_view *x, int64_t at, int n, int32_t dtype) {
  for (int i = 0; i < n; i += KR_VL) {
    int some = n - i < KR_VL ? n - i : KR_VL;
    kr_v_store(to + i, kr_v_load_as(x->data, at + i, some, dtype));
  }
}

KR_INLINE void copy_out(const kr_view *out, int64_t at, const float *from, int n, int32_t dtype) {
  for (int i = 0; i < n; i += KR_VL) {
    int some = n - i < KR_VL ? n - i : KR_VL;
    kr_v_store_as(out->data, at + i, some, dtype, kr_v_load(from + i));
  }
}

static void read_piece(float *to, const kr_view *x, int64_t at, int n) {
  if (x->dtype == KRAIT_F32) copy_in(to, x, at, n, KRAIT_F32);
  else if (x->dtype == KRAIT_F16) copy_in(to, x, at, n, KRAIT_F16);
  else copy_in(to, x, at, n, KRAIT_BF16);
}

static void write_piece(const kr_view *out, int64_t at, const float *from, int n) {
  if (out->dtype == KRAIT_F32) copy_out(out, at, from, n, KRAIT_F32);
  else if (out->dtype == KRAIT_F16) copy_out(out, at, from, n, KRAIT_F16);
  else copy_out(out, at, from, n, KRAIT_BF16);
}

typedef struct row {
  const kr_causal_conv1d_args *a;
  int64_t b, d;
  int W, reverse;
  float taps[MAX_W], history[MAX_W], bias; /* in memory order: taps and history are mirrored in reverse */
} row;

static row begin_row(const kr_causal_conv1d_args *a, int64_t b, int64_t d) {
  row r = {.a = a, .b = b, .d = d, .W = (int)a->W, .reverse = is_reverse(a), .bias = conv1d_bias_of(a, d)};
  const int keep = r.W - 1;
  for (int k = 0; k <= keep; k++)
    r.taps[k] = kr_scalar_load(a->weight.data, kr_at2(&a->weight, d, r.reverse ? keep - k : k), a->weight.dtype);
  for (int k = 0; k < keep; k++) r.history[r.reverse ? keep - 1 - k : k] = initial_input(a, b, d, k);
  return r;
}

/* Steps first..first+n-1 through a window: [history, piece] forward, [piece, history] in reverse. Short copies are
 * loops: a call to memcpy costs more than a vector of the filter. */
static void filter_piece(row *r, int64_t first, int n) {
  float window[WINDOW + MAX_W + 2 * KR_VL], out[WINDOW];
  const int keep = r->W - 1;
  for (int i = 0; i < 2 * KR_VL; i += KR_VL)
    kr_v_store(window + n + i, kr_v_zero()); /* what whole vectors read past the piece */
  read_piece(r->reverse ? window : window + keep, &r->a->x, kr_at3(&r->a->x, r->b, r->d, first), n);
  float *past = r->reverse ? window + n : window, *next = r->reverse ? window : window + n;
  for (int k = 0; k < keep; k++) past[k] = r->history[k]; /* after the whole-vector stores */
  for (int k = 0; k < keep; k++) r->history[k] = next[k];
  filter_any(window, out, n, r->taps, r->bias, r->W, r->a->activation);
  write_piece(&r->a->out, kr_at3(&r->a->out, r->b, r->d, first), out, n);
}

/* The same from memory to memory, for float32 not in place: first the steps that do not need the history, then the
 * others through a window. */
static void filter_direct(row *r, const float *x, float *out, int64_t L) {
  const int keep = r->W - 1, silu = r->a->activation;
  const int64_t head = keep <= KR_VL ? KR_VL : 2 * KR_VL, n = L - head;
  filter_any(r->reverse ? x : x + head - keep, r->reverse ? out : out + head, n, r->taps, r->bias, r->W, silu);
  filter_piece(r, r->reverse ? n : 0, (int)head);
  for (int k = 0; k < keep; k++) r->history[k] = x[r->reverse ? k : L - keep + k];
}

static void filter_row(const kr_causal_conv1d_args *a, int64_t b, int64_t d) {
  row r = begin_row(a, b, d);
  if (a->x.dtype == KRAIT_F32 && a->x.data != a->out.data && a->L >= 3 * KR_VL)
    filter_direct(&r, (const float *)a->x.data + kr_at3(&a->x, b, d, 0),
                  (float *)a->out.data + kr_at3(&a->out, b, d, 0), a->L);
  else
    for (int64_t done = 0, n; done < a->L; done += n) {
      n = a->L - done < WINDOW ? a->L - done : WINDOW;
      filter_piece(&r, r.reverse ? a->L - done - n : done, (int)n);
    }
  for (int k = 0; kr_has(&a->final_states) && k < r.W - 1; k++)
    kr_put(&a->final_states, kr_at3(&a->final_states, b, d, k), r.history[r.reverse ? r.W - 2 - k : k]);
}

/* ---- lanes are time steps, common case: float32 forward from zeros, not in place; a row stays in registers ---- */

enum { AHEAD_FLOATS = 256 };

static int is_plain_for_conv1d(const kr_causal_conv1d_args *a) {
  const int float32 =
      a->x.dtype == KRAIT_F32 && a->weight.dtype == KRAIT_F32 && (!kr_has(&a->bias) || a->bias.dtype == KRAIT_F32);
  return float32 && a->W >= 2 && a->W <= 4 && a->L >= 2 * KR_VL && a->x.data != a->out.data && !is_reverse(a) &&
         !kr_has(&a->initial_states) && !kr_has(&a->final_states);
}

KR_INLINE void plain_row(const float *x, float *out, int64_t L, const float *weight, int64_t weight_stride, float bias,
                         int W, int silu) {
  const int keep = W - 1;
  kr_v tap[MAX_W];
  const kr_v start = kr_v_set1(bias);
  kr_v sum = start;
  for (int k = 0; k < W; k++) tap[k] = kr_v_set1(weight[k * weight_stride]);
  for (int k = 0; k < keep; k++) sum = kr_v_fma(tap[k], kr_v_load_from(x + k - keep, keep - k), sum);
  sum = kr_v_fma(tap[keep], kr_v_load(x), sum);
  kr_v_store(out, silu ? kr_v_silu_fast(sum) : sum);
  filter_pairs(x - keep, out, KR_VL, L, tap, start, W, silu, AHEAD_FLOATS);
}

KR_INLINE void plain_rows(const kr_causal_conv1d_args *a, int64_t begin, int64_t end, int W, int silu) {
  const float *weight = a->weight.data, *bias = a->bias.data, *x = a->x.data;
  const int64_t D = a->D;
  float *out = a->out.data;
  for (int64_t i = begin, b = begin / D, d = begin % D; i < end; i++) {
    plain_row(x + kr_at3(&a->x, b, d, 0), out + kr_at3(&a->out, b, d, 0), a->L, weight + kr_at2(&a->weight, d, 0),
              a->weight.stride[1], bias ? bias[kr_at1(&a->bias, d)] : 0, W, silu);
    if (++d == D) d = 0, b++;
  }
}

static void filter_conv1d_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_causal_conv1d_args *a = ((run *)user)->a;
  const int silu = a->activation == KRAIT_ACT_SILU;
  (void)worker;
  if (!is_plain_for_conv1d(a))
    for (int64_t i = begin; i < end; i++) filter_row(a, i / a->D, i % a->D);
  else if (a->W == 4 && silu) plain_rows(a, begin, end, 4, 1);
  else if (a->W == 4) plain_rows(a, begin, end, 4, 0);
  else if (a->W == 3) plain_rows(a, begin, end, 3, silu);
  else plain_rows(a, begin, end, 2, silu);
}

/* ---- lanes are channels ---- */

typedef struct lanes {
  float ring[MAX_W][RANGE], weight[MAX_W][RANGE], bias[RANGE];
  float *tap[MAX_W]; /* ring rows, oldest first; the last is the current input */
  int dropped[MAX_W];
  int n; /* channels */
} lanes;

static void begin_lanes(lanes *l, const kr_causal_conv1d_args *a, int64_t b, int64_t d0, int n) {
  memset(l->ring, 0, sizeof l->ring);
  l->n = n;
  for (int k = 0; k < (int)a->W; k++) {
    l->tap[k] = l->ring[k];
    l->dropped[k] = 0;
    for (int i = 0; i < n; i++) {
      l->weight[k][i] = (float)kr_get(&a->weight, kr_at2(&a->weight, d0 + i, k));
      if (k) l->ring[k][i] = initial_input(a, b, d0 + i, k - 1); /* the ring advances by one before the first step */
    }
  }
  for (int i = 0; i < n; i++) l->bias[i] = conv1d_bias_of(a, d0 + i);
}

static kr_v gather_lanes(const kr_plane *x, int i, int n) {
  float lane[KR_VL] = {0};
  for (int k = 0; k < n; k++) lane[k] = kr_scalar_load(x->data, x->offset + (i + k) * x->lane_stride, x->dtype);
  return kr_v_load(lane);
}

static void scatter_lanes(const kr_plane *out, int i, int n, kr_v v) {
  float lane[KR_VL];
  kr_v_store(lane, v);
  for (int k = 0; k < n; k++) kr_scalar_store(out->data, out->offset + (i + k) * out->lane_stride, out->dtype, lane[k]);
}

/* `some` lanes from channel i on; plain: unit stride and this dtype on both sides. */
KR_INLINE void step_block(lanes *l, const float *const *tap, float *newest, const kr_plane *x, const kr_plane *out,
                          int i, int some, int W, int silu, int packed, int plain, int32_t dtype) {
  kr_v sum = kr_v_load(l->bias + i);
  kr_v input = plain ? kr_v_load_as(x->data, x->offset + i, some, dtype) : gather_lanes(x, i, some);
  kr_v_store(newest + i, input);
  for (int k = 0; k < W; k++)
    if (!packed || !l->dropped[k])
      sum = kr_v_fma(kr_v_load(l->weight[k] + i), k == W - 1 ? input : kr_v_load(tap[k] + i), sum);
  if (silu) sum = kr_v_silu_fast(sum);
  if (plain) kr_v_store_as(out->data, out->offset + i, some, dtype, sum);
  else scatter_lanes(out, i, some, sum);
}

KR_INLINE void step_lanes(lanes *l, const kr_plane *x, const kr_plane *out, int W, int silu, int packed, int plain,
                          int32_t dtype) {
  const float *tap[MAX_W];
  const kr_plane from = *x, to = *out;
  float *newest = l->tap[W - 1];
  const int n = l->n;
  int i = 0;
  for (int k = 0; k < W; k++) tap[k] = l->tap[k];
  for (; i + KR_VL <= n; i += KR_VL) step_block(l, tap, newest, &from, &to, i, KR_VL, W, silu, packed, plain, dtype);
  if (i < n) step_block(l, tap, newest, &from, &to, i, n - i, W, silu, packed, plain, dtype);
}

/* Common cases are specialised; the others share one body per type. */
static void step_any(lanes *l, const kr_plane *x, const kr_plane *out, int W, int silu, int packed) {
  const int plain = x->lane_stride == 1 && out->lane_stride == 1;
  if (!plain || packed) {
    if (plain && x->dtype == KRAIT_F32) step_lanes(l, x, out, W, silu, packed, 1, KRAIT_F32);
    else step_lanes(l, x, out, W, silu, packed, 0, 0);
  } else if (x->dtype == KRAIT_F32) {
    if (W == 4 && silu) step_lanes(l, x, out, 4, 1, 0, 1, KRAIT_F32);
    else if (W == 4) step_lanes(l, x, out, 4, 0, 0, 1, KRAIT_F32);
    else if (W == 3) step_lanes(l, x, out, 3, silu, 0, 1, KRAIT_F32);
    else if (W == 2) step_lanes(l, x, out, 2, silu, 0, 1, KRAIT_F32);
    else step_lanes(l, x, out, W, silu, 0, 1, KRAIT_F32);
  } else if (x->dtype == KRAIT_F16) {
    if (W == 4) step_lanes(l, x, out, 4, silu, 0, 1, KRAIT_F16);
    else step_lanes(l, x, out, W, silu, 0, 1, KRAIT_F16);
  } else {
    if (W == 4) step_lanes(l, x, out, 4, silu, 0, 1, KRAIT_BF16);
    else step_lanes(l, x, out, W, silu, 0, 1, KRAIT_BF16);
  }
}

/* Marks taps that reach into another sequence; returns whether the output is 0. */
static int drop_taps(lanes *l, const kr_causal_conv1d_args *a, int64_t b, int64_t t) {
  int64_t base = kr_at2(&a->seq_idx, b, 0), stride = a->seq_idx.stride[1];
  int reverse = is_reverse(a);
  int32_t here = kr_get_i32(&a->seq_idx, base + (reverse ? a->L - 1 - t : t) * stride);
  for (int k = 0; k < (int)a->W; k++) {
    int64_t from = t - (a->W - 1) + k;
    l->dropped[k] = from < 0 || kr_get_i32(&a->seq_idx, base + (reverse ? a->L - 1 - from : from) * stride) != here;
  }
  return here < 0;
}

/* Rows of one item are too far apart for the hardware prefetcher. */
static void prefetch_lanes(const kr_plane *x, int n) {
  int64_t bytes = x->dtype == KRAIT_F32 ? 4 : 2;
  const char *lane = (const char *)x->data + x->offset * bytes;
  for (int64_t i = 0; i < n * bytes; i += 64) __builtin_prefetch(lane + i);
}

static void filter_lanes(const kr_causal_conv1d_args *a, int64_t b, int64_t d0, int n) {
  lanes l;
  const int W = (int)a->W, packed = kr_has(&a->seq_idx);
  begin_lanes(&l, a, b, d0, n);
  for (int64_t t = 0; t < a->L; t++) {
    int64_t at = is_reverse(a) ? a->L - 1 - t : t;
    kr_plane x = {a->x.data, a->x.dtype, kr_at3(&a->x, b, d0, at), 0, a->x.stride[1]};
    kr_plane out = {a->out.data, a->out.dtype, kr_at3(&a->out, b, d0, at), 0, a->out.stride[1]};
    float *oldest = l.tap[0];
    for (int k = 0; k + 1 < W; k++) l.tap[k] = l.tap[k + 1];
    l.tap[W - 1] = oldest;
    int silent = packed && drop_taps(&l, a, b, t);
    kr_plane ahead = x;
    ahead.offset += (is_reverse(a) ? -AHEAD : AHEAD) * a->x.stride[2];
    if (t + AHEAD < a->L && ahead.lane_stride == 1) prefetch_lanes(&ahead, n);
    step_any(&l, &x, &out, W, a->activation, packed);
    for (int i = 0; silent && i < n; i++) kr_scalar_store(out.data, out.offset + i * out.lane_stride, out.dtype, 0);
  }
  for (int k = 0; kr_has(&a->final_states) && k < W - 1; k++)
    for (int i = 0; i < n; i++) kr_put(&a->final_states, kr_at3(&a->final_states, b, d0 + i, k), l.tap[k + 1][i]);
}

static void filter_ranges(void *user, int64_t begin, int64_t end, int worker) {
  const run *r = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t d0 = i % r->n_ranges * r->range, left = r->a->D - d0;
    filter_lanes(r->a, i / r->n_ranges, d0, (int)(left < r->range ? left : r->range));
  }
}

/* ---- contiguous channels, from memory to memory ---- */

enum { STREAM = 2048, TAPS = STREAM + 144, HEAD = 256, STEPS = 4, LEAD = 8, CHUNK = 512, LEAST_CHUNK = 64 };

/* Whole rows if possible: sequential reads and writes suit the hardware prefetcher. */
typedef struct stream {
  const kr_causal_conv1d_args *a;
  int64_t chunk, width, n_chunks, n_blocks; /* steps and channels per item; items along time, along channels */
} stream;

/* A column per channel, passed as a pointer to the first one's; the last row is the bias. The padding keeps rows in
 * different cache sets. */
typedef float stream_taps[MAX_W + 1][TAPS];

/* Steps and element types; at: offset of the first step; step: stride. */
typedef struct stream_side {
  void *data;
  int64_t at, step;
} stream_side;

KR_INLINE void prefetch_at(const stream_side *x, int64_t at, int32_t dtype) {
  __builtin_prefetch((const char *)x->data + at * (dtype == KRAIT_F32 ? 4 : 2));
}

KR_INLINE void stream_vector(const float *taps, const stream_side *x, const stream_side *out, int i, int some, int W,
                             int steps, int silu, int32_t x_dtype, int32_t dtype) {
  kr_v input[MAX_W - 1 + STEPS], sum[STEPS];
  for (int k = 0; k < steps; k++) prefetch_at(x, x->at + (LEAD + k) * x->step + i, x_dtype);
  for (int k = 0; k < W - 1 + steps; k++)
    input[k] = kr_v_load_as(x->data, x->at + (k - (W - 1)) * x->step + i, some, x_dtype);
  for (int r = 0; r < steps; r++) sum[r] = kr_v_load(taps + MAX_W * TAPS + i);
  for (int k = 0; k < W; k++) {
    const kr_v weight = kr_v_load(taps + k * TAPS + i);
    for (int r = 0; r < steps; r++) sum[r] = kr_v_fma(weight, input[r + k], sum[r]);
  }
  for (int r = 0; r < steps; r++)
    kr_v_store_as(out->data, out->at + r * out->step + i, some, dtype, silu ? kr_v_silu_fast(sum[r]) : sum[r]);
}

/* n_steps steps of n channels. */
KR_INLINE void stream_steps(const float *taps, stream_side x, stream_side out, int64_t n_steps, int n, int W, int silu,
                            int32_t x_dtype, int32_t dtype) {
  const int whole = n / KR_VL * KR_VL;
  for (; n_steps >= STEPS; n_steps -= STEPS, x.at += STEPS * x.step, out.at += STEPS * out.step) {
    for (int i = 0; i < whole; i += KR_VL) stream_vector(taps, &x, &out, i, KR_VL, W, STEPS, silu, x_dtype, dtype);
    if (whole < n) stream_vector(taps, &x, &out, whole, n - whole, W, STEPS, silu, x_dtype, dtype);
  }
  for (; n_steps > 0; n_steps--, x.at += x.step, out.at += out.step)
    for (int i = 0; i < n; i += KR_VL)
      stream_vector(taps, &x, &out, i, n - i < KR_VL ? n - i : KR_VL, W, 1, silu, x_dtype, dtype);
}

static void stream_any(const float *taps, const stream_side *x, const stream_side *out, int64_t n_steps, int n, int W,
                       int silu, int32_t dtype) {
  if (dtype == KRAIT_F32) {
    if (W == 4 && silu) stream_steps(taps, *x, *out, n_steps, n, 4, 1, KRAIT_F32, KRAIT_F32);
    else if (W == 4) stream_steps(taps, *x, *out, n_steps, n, 4, 0, KRAIT_F32, KRAIT_F32);
    else stream_steps(taps, *x, *out, n_steps, n, W, silu, KRAIT_F32, KRAIT_F32);
  } else if (dtype == KRAIT_F16) {
    if (W == 4) stream_steps(taps, *x, *out, n_steps, n, 4, silu, KRAIT_F16, KRAIT_F16);
    else stream_steps(taps, *x, *out, n_steps, n, W, silu, KRAIT_F16, KRAIT_F16);
  } else {
    if (W == 4) stream_steps(taps, *x, *out, n_steps, n, 4, silu, KRAIT_BF16, KRAIT_BF16);
    else stream_steps(taps, *x, *out, n_steps, n, W, silu, KRAIT_BF16, KRAIT_BF16);
  }
}

/* The first steps of at most HEAD channels, whose taps reach before the sequence's start: through a float copy of their
 * inputs. */
static void stream_head(const kr_causal_conv1d_args *a, const float *taps, int64_t b, int64_t d0, int n,
                        const stream_side *x, const stream_side *out, int n_steps) {
  float seen[2 * MAX_W][HEAD];
  const int keep = (int)a->W - 1, W = keep + 1, silu = a->activation;
  for (int k = 0; k < keep; k++)
    for (int i = 0; i < n; i++) seen[k][i] = initial_input(a, b, d0 + i, k);
  for (int k = 0; k < n_steps; k++) kr_row_load(seen[keep + k], x->data, a->x.dtype, x->at + k * x->step, 1, n);
  const stream_side from = {seen, keep * HEAD, HEAD};
  if (a->x.dtype == KRAIT_F32) stream_steps(taps, from, *out, n_steps, n, W, silu, KRAIT_F32, KRAIT_F32);
  else if (a->x.dtype == KRAIT_F16) stream_steps(taps, from, *out, n_steps, n, W, silu, KRAIT_F32, KRAIT_F16);
  else stream_steps(taps, from, *out, n_steps, n, W, silu, KRAIT_F32, KRAIT_BF16);
}

static void stream_final(const kr_causal_conv1d_args *a, int64_t b, int64_t d0, int n) {
  const int keep = (int)a->W - 1;
  for (int k = 0; kr_has(&a->final_states) && k < keep; k++) {
    const int64_t t = a->L - keep + k;
    for (int i = 0; i < n; i++) {
      double value = t < 0 ? initial_input(a, b, d0 + i, keep + t)
                           : kr_get(&a->x, kr_at3(&a->x, b, d0 + i, is_reverse(a) ? a->L - 1 - t : t));
      kr_put(&a->final_states, kr_at3(&a->final_states, b, d0 + i, k), value);
    }
  }
}

static void stream_item(const stream *s, int64_t b, int64_t chunk, int64_t block) {
  const kr_causal_conv1d_args *a = s->a;
  stream_taps taps;
  const int64_t d0 = block * s->width, first = chunk * s->chunk, left = a->L - first, sign = is_reverse(a) ? -1 : 1,
                start = is_reverse(a) ? a->L - 1 - first : first;
  const int n = (int)(a->D - d0 < s->width ? a->D - d0 : s->width), W = (int)a->W;
  int64_t n_steps = left < s->chunk ? left : s->chunk;
  for (int k = 0; k < W; k++)
    kr_row_load(taps[k], a->weight.data, a->weight.dtype, kr_at2(&a->weight, d0, k), a->weight.stride[0], n);
  if (kr_has(&a->bias))
    kr_row_load(taps[MAX_W], a->bias.data, a->bias.dtype, kr_at1(&a->bias, d0), a->bias.stride[0], n);
  else memset(taps[MAX_W], 0, sizeof taps[MAX_W]);
  stream_side x = {a->x.data, kr_at3(&a->x, b, d0, start), sign * a->x.stride[2]},
              out = {a->out.data, kr_at3(&a->out, b, d0, start), sign * a->out.stride[2]};
  if (chunk == 0) {
    const int head = (int)(n_steps < W - 1 ? n_steps : W - 1);
    for (int i = 0; i < n; i += HEAD) {
      const stream_side from = {x.data, x.at + i, x.step}, to = {out.data, out.at + i, out.step};
      stream_head(a, &taps[0][i], b, d0 + i, n - i < HEAD ? n - i : HEAD, &from, &to, head);
    }
    x.at += head * x.step, out.at += head * out.step, n_steps -= head;
  }
  stream_any(taps[0], &x, &out, n_steps, n, W, a->activation, a->x.dtype);
  if (chunk == s->n_chunks - 1) stream_final(a, b, d0, n);
}

static void stream_items(void *user, int64_t begin, int64_t end, int worker) {
  const stream *s = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++)
    stream_item(s, i / s->n_blocks / s->n_chunks, i / s->n_blocks % s->n_chunks, i % s->n_blocks);
}

static int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

static stream plan_stream(const krait_ctx *ctx, const kr_causal_conv1d_args *a) {
  const int64_t wanted = 4 * krait_ctx_n_threads(ctx);
  stream s = {.a = a, .chunk = CHUNK, .width = STREAM};
  while (s.chunk > LEAST_CHUNK && a->B * pieces(a->L, s.chunk) * pieces(a->D, s.width) < wanted) s.chunk /= 2;
  while (s.width > HEAD && a->B * pieces(a->L, s.chunk) * pieces(a->D, s.width) < wanted) s.width /= 2;
  s.n_chunks = pieces(a->L, s.chunk);
  s.n_blocks = pieces(a->D, s.width);
  return s;
}

int32_t KR_FN(kr_causal_conv1d)(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_args *a = args;
  run r = {a, RANGE, 0};
  int in_time = a->x.stride[2] == 1 && a->out.stride[2] == 1 && !kr_has(&a->seq_idx);
  if (in_time && !(a->x.stride[1] == 1 && a->D >= a->L)) {
    kr_parallel(ctx, a->B * a->D, a->L > 0 ? 1 + 16384 / a->L : 1, filter_conv1d_rows, &r);
    return KRAIT_OK;
  }
  if (a->x.stride[1] == 1 && a->out.stride[1] == 1 && !kr_has(&a->seq_idx) && a->x.data != a->out.data && a->L > 0) {
    stream s = plan_stream(ctx, a);
    kr_parallel(ctx, a->B * s.n_chunks * s.n_blocks, 1, stream_items, &s);
    return KRAIT_OK;
  }
  int64_t items = 2 * krait_ctx_n_threads(ctx);
  while (r.range > 32 && a->B * ((a->D + r.range - 1) / r.range) < items) r.range /= 2;
  r.n_ranges = (a->D + r.range - 1) / r.range;
  kr_parallel(ctx, a->B * r.n_ranges, 1, filter_ranges, &r);
  return KRAIT_OK;
}
