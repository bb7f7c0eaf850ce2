/* mamba3_rows.cuh: shared by the kernels of Mamba 3's scan and its gradient: tokens, their rows in scratch, step sizes,
 * sums of angles. */
#ifndef KR_MAMBA3_ROWS_CUH
#define KR_MAMBA3_ROWS_CUH

#include "element.cuh"

#include "mamba3_params.h"
#include "mamba3_views.cuh"

enum { CHUNK = KR_MAMBA3_CHUNK, SPAN = KR_MAMBA3_SPAN, PAIRS = KR_MAMBA3_PAIRS };
enum { THREADS = KR_MAMBA3_THREADS, WARPS = THREADS / 32 };

/* Two neighbours of a row in scratch, `at` even. */
KR_DEV kr_float2 row_two(const void *rows, int64_t at) {
#if KR_DTYPE == 0
  return *(const kr_float2 *)((const float *)rows + at);
#else
  const uint32_t two = *(const uint32_t *)((const uint16_t *)rows + at);
  return kr_float2{{kr_unpack(two, 0, KR_DTYPE), kr_unpack(two, 1, KR_DTYPE)}};
#endif
}
KR_DEV void put_row_two(void *rows, int64_t at, float first, float second) {
#if KR_DTYPE == 0
  *(kr_float2 *)((float *)rows + at) = kr_float2{{first, second}};
#else
  *(uint32_t *)((uint16_t *)rows + at) = kr_pack(first, second, KR_DTYPE);
#endif
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* block: of rows. row: of the states. start: its sequence's first token. */
typedef struct token {
  int64_t t, block, start;
  int row, begins, ends; /* its sequence */
} token;

KR_DEV int64_t offset_at(const kr_mamba3_params &p, int i) {
  const int64_t at = ((const int32_t *)p.cu_seqlens.data)[i * p.cu_seqlens.stride[0]];
  return at < 0 ? 0 : at > p.L ? p.L : at; /* the host cannot check */
}
/* Blocks of a pack's sequence besides its tokens'. */
KR_DEV int64_t extra_blocks(const kr_mamba3_params &p) { return p.before + p.has_ends + p.after; }
/* The first block of packed sequence i that has a token. */
KR_DEV int64_t first_block(const kr_mamba3_params &p, int i, int64_t begin) {
  return begin + i * extra_blocks(p) + p.before;
}

KR_DEV token token_at(const kr_mamba3_params &p, int b, int64_t t) {
  if (!p.cu_seqlens.data) return token{t, t, 0, b, t == 0, t == p.L - 1};
  int low = 0, high = p.S - 1; /* the last sequence that begins at t or before */
  while (low < high) {
    const int middle = (low + high + 1) >> 1;
    if (offset_at(p, middle) <= t)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t begin = offset_at(p, low), end = offset_at(p, low + 1);
  return token{t, first_block(p, low, begin) + t - begin, begin, low, t == begin, t == end - 1};
}

/* token_at, of a pack or (a constant) not. */
template <int IS_PACK>
KR_DEV token token_of(const kr_mamba3_params &p, int b, int64_t t) {
  if (IS_PACK) return token_at(p, b, t);
  return token{t, t, 0, b, t == 0, t == p.L - 1};
}

KR_DEV int64_t unit_of(const kr_mamba3_params &p, int b, int h) { return (int64_t)b * p.H + h; }
/* The row of a block's rank. */
KR_DEV int64_t row_of(const kr_mamba3_params &p, int b, int h, int64_t block, int r) {
  return unit_of(p, b, h) * p.n_rows + block * p.ranks + r;
}
/* Whether the block behind a token exists, which has the token's key and input. */
KR_DEV int has_next(const kr_mamba3_params &p, const token &at) { return !at.ends || p.has_ends; }

KR_DEV float *dots_of(float *dots, const kr_mamba3_params &p, int b, int h, int64_t t) {
  return dots + (unit_of(p, b, h) * p.L + t) * p.R * p.R;
}

/* ---- step sizes -------------------------------------------------------------------------------------------------- */

typedef struct steps {
  float d, lambda, rest, decay; /* rest: 1 - lambda; decay: its logarithm */
} steps;

KR_DEV steps steps_at(const kr_mamba3_params &p, int b, int h, int64_t t) {
  const float trap = get(p.trap, at3(p.trap, b, t, h));
  return steps{get(p.dt, at3(p.dt, b, t, h)), kr_sigmoid(trap), kr_sigmoid(-trap),
               get(p.log_decay, at3(p.log_decay, b, t, h))};
}
/* Of the key of the token before `at`, without the decay. */
KR_DEV float weight_before(const kr_mamba3_params &p, int b, int h, const token &at, const steps &now) {
  float own = 0;
  if (!at.begins) {
    const steps last = steps_at(p, b, h, at.t - 1);
    own = last.lambda * last.d;
  }
  return kr_fma(now.rest, now.d, own);
}

/* Weights and decays of a token's rows, and of those behind a sequence's last. */
KR_DEV void put_weights(const kr_mamba3_params &p, int b, int h, const token &at) {
  const steps now = steps_at(p, b, h, at.t);
  const float weight = kr_exp(now.decay) * weight_before(p, b, h, at, now);
  p.gamma[unit_of(p, b, h) * p.L + at.t] = now.lambda * now.d;
  for (int r = 0; r < p.ranks; r++) {
    const int64_t row = row_of(p, b, h, at.block, r), behind = row_of(p, b, h, at.block + 1, r);
    p.weight[row] = weight, p.decay[row] = r ? 0.0f : now.decay;
    if (at.ends && p.has_ends) p.weight[behind] = now.lambda * now.d, p.decay[behind] = 0;
  }
}

/* ---- angles ------------------------------------------------------------------------------------------------------ */

/* The angle before a sequence's first token. */
KR_DEV uint32_t turn_before(const kr_mamba3_params &p, int row, int h, int m) {
  if (!p.initial_angles.data) return 0;
  return turn_of_angle(get(p.initial_angles, at3(p.initial_angles, row, h, m)));
}

KR_DEV int64_t span_of(const kr_mamba3_params &p, int64_t unit, int64_t span) {
  return (unit * p.n_spans + span) * p.M;
}

/* A token's angle about pair m. */
KR_DEV uint32_t angle_at(const kr_mamba3_params &p, int b, int h, const token &at, int m) {
  const int64_t unit = unit_of(p, b, h), span = at.t / SPAN;
  const uint32_t within = p.angles_within[(unit * p.L + at.t) * p.M + m];
  return at.start < span * SPAN ? add_turns(p.angles_before[span_of(p, unit, span) + m], within) : within;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Two pairs of a row of N from pair `first` (even) on: of entries i and i + N/2, or of neighbours 2 i and 2 i + 1. */
typedef struct pairs {
  kr_float2 a, b; /* pair k: a.v[k] and b.v[k] */
} pairs;

/* Where the two runs of two entries are that hold two pairs, and how many entries of each exist. */
typedef struct runs {
  int first, gap, left, left_behind, are_halves;
} runs;

KR_DEV runs runs_of(const kr_mamba3_params &p, int first) {
  const int left = p.N - 2 * first;
  if (p.flags & KRAIT_MAMBA3_HALVES) return runs{first, p.N / 2, left / 2, left / 2, 1};
  return runs{2 * first, 2, left, left - 2, 0};
}

KR_DEV pairs load_pairs(const runs &at, const kr_view &v, int64_t row, int64_t stride) {
  const kr_float2 low = get_two(v, row + at.first * stride, stride, at.left),
                  high = get_two(v, row + (at.first + at.gap) * stride, stride, at.left_behind);
  return pairs{kr_float2{{low.v[0], at.are_halves ? low.v[1] : high.v[0]}},
               kr_float2{{at.are_halves ? high.v[0] : low.v[1], high.v[1]}}};
}

KR_DEV void store_pairs(const runs &at, const kr_view &v, int64_t row, int64_t stride, const pairs &d) {
  put_two(v, row + at.first * stride, stride, at.left, kr_float2{{d.a.v[0], at.are_halves ? d.a.v[1] : d.b.v[0]}});
  put_two(v, row + (at.first + at.gap) * stride, stride, at.left_behind,
          kr_float2{{at.are_halves ? d.b.v[0] : d.a.v[1], d.b.v[1]}});
}

/* A row in scratch as a tensor. */
KR_DEV kr_view row_view(void *rows) {
  kr_view v = {};
  v.data = rows, v.dtype = KR_DTYPE;
  return v;
}

/* Of pairs from p.M on nothing turns, not even by what is not finite. */
KR_DEV pairs turned(const pairs &u, const rotation (&by)[2], int n, float sign) {
  pairs d = u;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float c = by[k].cosine, s = sign * by[k].sine;
    if (k < n) d.a.v[k] = kr_fma(c, u.a.v[k], -(s * u.b.v[k])), d.b.v[k] = kr_fma(s, u.a.v[k], c * u.b.v[k]);
  }
  return d;
}

KR_DEV pairs plus(const pairs &x, const pairs &y) {
  return pairs{kr_float2{{x.a.v[0] + y.a.v[0], x.a.v[1] + y.a.v[1]}},
               kr_float2{{x.b.v[0] + y.b.v[0], x.b.v[1] + y.b.v[1]}}};
}
KR_DEV pairs plus_times(float by, const pairs &x, const pairs &y) {
  return pairs{kr_float2{{kr_fma(by, x.a.v[0], y.a.v[0]), kr_fma(by, x.a.v[1], y.a.v[1])}},
               kr_float2{{kr_fma(by, x.b.v[0], y.b.v[0]), kr_fma(by, x.b.v[1], y.b.v[1])}}};
}
KR_DEV float dot(const pairs &x, const pairs &y) {
  return kr_fma(x.a.v[0], y.a.v[0], kr_fma(x.a.v[1], y.a.v[1], kr_fma(x.b.v[0], y.b.v[0], x.b.v[1] * y.b.v[1])));
}

/* Two pairs of a rank's query or key, with the bias, turned. */
KR_DEV pairs read_rank(const kr_mamba3_params &p, const runs &at, const kr_view &v, const kr_view &bias, int b, int h,
                       int64_t t, int r, const rotation (&by)[2], int n) {
  const int g = h / (p.H / p.G);
  return turned(plus(load_pairs(at, v, at4(v, b, t, r * p.G + g, 0), v.stride[3]),
                     load_pairs(at, bias, at3(bias, h, r, 0), bias.stride[2])),
                by, n, 1.0f);
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* Two channels of a rank's y. weight: lambda dt. */
KR_DEV kr_float2 complete(const kr_mamba3_params &p, int b, int h, const token &at, int r, int c, float weight,
                          const kr_float2 &x, float D) {
  kr_float2 own = {{0, 0}};
  const float *const dots = dots_of(p.dots, p, b, h, at.t) + r * p.R;
  const kr_float2 y = row_two(p.y, row_of(p, b, h, at.block, r) * p.row_P + c);
  for (int s = 0; s < p.R; s++) {
    const float by = kr_fma(weight, dots[s], s == r ? D : 0.0f);
    kr_float2 factor = {{1, 1}};
    if (p.mimo_x.data) factor = get_two(p.mimo_x, at3(p.mimo_x, h, s, c), p.mimo_x.stride[2], p.P - c);
    own.v[0] = kr_fma(by, factor.v[0], own.v[0]), own.v[1] = kr_fma(by, factor.v[1], own.v[1]);
  }
  return kr_float2{{kr_fma(own.v[0], x.v[0], y.v[0]), kr_fma(own.v[1], x.v[1], y.v[1])}};
}

/* A warp's row of P, two channels of each 64 by a lane. */
template <int TWOS>
KR_DEV void load_twos(const kr_mamba3_params &p, const kr_view &v, int64_t row, int64_t stride, kr_float2 (&to)[TWOS]) {
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    const int c = 64 * i + 2 * (kr_thread() & 31);
    to[i] = c < p.P ? get_two(v, row + c * stride, stride, p.P - c) : kr_float2{{0, 0}};
  }
}

template <int TWOS>
KR_DEV float norm_scale(const kr_mamba3_params &p, const kr_float2 (&y)[TWOS]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < TWOS; i++) squares = kr_fma(y[i].v[0], y[i].v[0], kr_fma(y[i].v[1], y[i].v[1], squares));
  return kr_rsqrt(add_warp(squares) / (float)p.P + p.eps);
}

#endif
