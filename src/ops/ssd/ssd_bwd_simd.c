/* ssd_bwd_simd.c: the gradient as four runs of the forward scan (ssd_lanes.h), one head at a time, tile by tile. With M
 * the gradient of the state, S the state, and roles exchanged as needed:
 *   forwards   y = C S with channels over lanes (only for dz); the head's dC = dy S with states over lanes
 *   backwards  M B with channels over lanes: dx; the head's dB = d x M with states over lanes
 * The gradient of d A at token t is q_t = e_t <M_t, S_{t-1}>: within a tile, the flow from the state before the tile or
 * from tokens before t, to tokens from t on or to M after the tile. Each part is a sum of terms of its own magnitude: a
 * difference of sums over all tokens would lose its digits under strong decay.
 * A group's heads are divided among teams, whose number depends on the shape alone; each accumulates dB and dC of its
 * heads in order, then the teams are reduced in order: results do not depend on the number of threads. */
#include "contract.h"
#include "op_list.h"
#include "ssd_lanes.h"
#include "ssd_impls.h"

enum { MOST_TEAMS = 16, TARGET_ITEMS = 32 };

/* Scratch layout: floats of each part. */
typedef struct layout {
  int64_t P, N;                /* P and N rounded up to whole lanes */
  int64_t row_P, row_N;        /* row pitch: from token to token of a tile */
  int64_t n_tiles, teams, heads; /* tiles of a sequence, teams of a group, heads of a group */
  int64_t share;               /* heads of a team */
  int64_t sums;                /* (B,G,teams,2,L,N): dB, dC of a team */
  int64_t per_head;            /* (B,H,P + 3): dD, dA, dA_reverse, dt_bias's gradient */
  int64_t worker;
} layout;

static int64_t lanes(int64_t n) { return ssd_row((n + SSD_WIDTH - 1) / SSD_WIDTH * SSD_WIDTH); }

static int64_t tile_floats(const layout *l) { return SSD_TILE * (5 * l->row_P + 4 * l->row_N); }
static int64_t pair_floats(const layout *l) { return SSD_TILE * (2 * SSD_TILE + (l->P > l->N ? l->P : l->N)); }

static layout ssd_bwd_simd_layout_of(const kr_ssd_bwd_args *a) {
  const int both = (a->call.flags & KRAIT_SSD_BOTH) != 0;
  layout l = {.P = lanes(a->P), .N = lanes(a->N), .n_tiles = (a->L + SSD_TILE - 1) / SSD_TILE, .heads = a->H / a->G};
  l.row_P = ssd_odd_row(l.P), l.row_N = ssd_odd_row(l.N);
  const int64_t items = a->B * a->G;
  l.teams = items ? (TARGET_ITEMS + items - 1) / items : 1;
  if (l.teams > l.heads) l.teams = l.heads;
  if (l.teams > MOST_TEAMS) l.teams = MOST_TEAMS;
  l.share = (l.heads + l.teams - 1) / l.teams;
  l.teams = (l.heads + l.share - 1) / l.share;
  l.sums = items * l.teams * 2 * a->L * l.N;
  l.per_head = a->B * a->H * (a->P + 3);
  const int64_t states = 2 * l.P * l.N, kept = l.n_tiles * l.P * l.N, dd = a->L;
  l.worker = ssd_row(tile_floats(&l) + pair_floats(&l) + states + kept + dd + (both ? 2 * a->L * l.P + a->L : 0));
  return l;
}

typedef struct item {
  const kr_ssd_bwd_args *a;
  const kr_ssd_inputs *in;
  layout l;
  float *x, *dx, *dy, *z, *y;        /* [token][P] of a tile; dx: d x (forwards: the scan's input), or M B; z:
                                        backwards, dy as the scan's input */
  float *B, *C, *dB, *dC;            /* [token][N] of a tile */
  float *by_channel, *by_state;      /* [n][P] as blocks of lanes; [p][N] likewise */
  float *pairs, *shared, *across;    /* [token][SSD_TILE], two of them; a tile's rows transposed, as blocks of lanes */
  float *kept;                       /* [tile][p][N]: S before each tile */
  float *dd;                         /* [L]: gradient of d, in scan order */
  float inputs[SSD_TILE];            /* <M_t, x_t (outer) B_t>, in backward scan order */
  float *all_y, *all_dx, *all_dd;    /* [L][P], [L][P], [L]: summed over both directions */
  float *sum_B, *sum_C;              /* [L][N] of the team */
  float *head;                       /* [P + 3] */
  float d[SSD_TILE + 16], decay[SSD_TILE + 16], raw[SSD_TILE + 16], shifted[SSD_TILE + 16];
  unsigned char marks[SSD_TILE];
  ssd_cuts cuts;
  ssd_ahead ahead;
  int adds; /* whether the team's sums already hold something */
} item;

static item begin_ssd_bwd_item(const kr_ssd_bwd_args *a, const kr_ssd_inputs *in, int worker) {
  item it = {.a = a, .in = in, .l = ssd_bwd_simd_layout_of(a)};
  const layout *l = &it.l;
  float *at = (float *)a->call.scratch + ssd_row(l->sums) + ssd_row(l->per_head) + worker * l->worker;
  memset(at, 0, (size_t)tile_floats(l) * sizeof(float)); /* lanes beyond the channels stay 0 */
  float **const of_P[] = {&it.x, &it.dx, &it.dy, &it.z, &it.y}, **const of_N[] = {&it.B, &it.C, &it.dB, &it.dC};
  for (int k = 0; k < 5; k++) *of_P[k] = at, at += SSD_TILE * l->row_P;
  for (int k = 0; k < 4; k++) *of_N[k] = at, at += SSD_TILE * l->row_N;
  it.pairs = at, at += SSD_TILE * SSD_TILE;
  it.shared = at, at += SSD_TILE * SSD_TILE;
  it.across = at, at += pair_floats(l) - 2 * SSD_TILE * SSD_TILE;
  it.by_channel = at, at += l->P * l->N;
  it.by_state = at, at += l->P * l->N;
  it.kept = at, at += l->n_tiles * l->P * l->N;
  it.dd = at, at += a->L;
  it.all_y = at, it.all_dx = at + a->L * l->P, it.all_dd = at + 2 * a->L * l->P;
  return it;
}

static int is_both_for_ssd_bwd_simd(const item *it) { return (it->in->flags & KRAIT_SSD_BOTH) != 0; }

static void load_rows(float *matrix, const ssd_walk *w, const kr_view *v, int64_t i, int n) {
  ssd_load_rows(matrix, ssd_odd_row(lanes(w->in->P)), w, v, i, n, w->h, w->in->P);
}

static void store_rows(const float *matrix, int64_t pitch, const ssd_walk *w, const kr_view *v, int64_t i, int n,
                       int64_t columns) {
  const int64_t step = w->reverse ? -v->stride[1] : v->stride[1];
  const kr_plane plane = {v->data, v->dtype, kr_at4(v, w->b, ssd_token(w, i), w->h, 0), step, v->stride[3]};
  kr_matrix_store(matrix, pitch, &plane, n, columns);
}

/* x, dy (times the gate), B, C, d and decays of a tile, in scan order; z is kept for dz. */
static void read_ssd_bwd_tile(item *it, const ssd_walk *w, int64_t i, int n) {
  const kr_ssd_inputs *in = it->in;
  const int64_t P = it->l.row_P, N = it->l.row_N;
  ssd_steps(w, i, n, it->d, it->decay, it->raw);
  ssd_marks(w, i, n, it->marks);
  ssd_load_shared(it->B, N, w, in->Bmat, i, n);
  ssd_load_shared(it->C, N, w, in->Cmat, i, n);
  load_rows(it->x, w, in->x, i, n);
  load_rows(it->dy, w, &it->a->dout, i, n);
  if (kr_has(in->z)) load_rows(it->z, w, in->z, i, n);
  for (int t = 0; t < n; t++) {
    float *x = it->x + t * P, *dy = it->dy + t * P;
    if (it->marks[t] & SSD_PADDING) {
      it->d[t] = 0;
      memset(x, 0, (size_t)P * sizeof(float));
      memset(dy, 0, (size_t)P * sizeof(float));
      continue;
    }
    for (int64_t p = 0; kr_has(in->z) && p < it->l.P; p += KR_VL)
      kr_v_store(dy + p, kr_v_mul(kr_v_load(dy + p), kr_v_silu_fast(kr_v_load(it->z + t * P + p))));
  }
}

/* to[t] = factor[t] times second[t] (if given) times rows[t]. */
static void scale_rows(const item *it, float *to, const float *rows, const float *factor, const float *second, int n) {
  for (int t = 0; t < n; t++)
    for (int64_t p = 0; p < it->l.P; p += KR_VL) {
      const kr_v by = kr_v_set1(second ? factor[t] * second[t] : factor[t]);
      kr_v_store(to + t * it->l.row_P + p, kr_v_mul(by, kr_v_load(rows + t * it->l.row_P + p)));
    }
}

/* One side of a scan: a vector per token, and how many of its floats are valid. */
typedef struct side {
  float *rows;
  int64_t pitch, n;
} side;

/* Scans a tile's runs over states of y.n lanes by coef.n rows, cut as in it->cuts; a new sequence starts from 0,
 * padding is skipped. in and y share a layout, as do coef and out_coef. y is still to be multiplied by cuts.kept. */
static void walk_tile(item *it, float *states, const float *in, side y, side coef, const float *out_coef, int n) {
  const ssd_stretch *s = it->cuts.stretches, *end;
  for (int t = 0; t < n; t++) memset(y.rows + t * y.pitch, 0, (size_t)y.n * sizeof(float));
  for (int t = 0, run; t < n; t += run, s = end) {
    run = ssd_run(it->marks, t, n);
    end = ssd_past(s, run);
    if (it->marks[t] & SSD_BEGINS) memset(states, 0, (size_t)(it->l.P * it->l.N) * sizeof(float));
    if (it->marks[t] & SSD_PADDING) continue;
    for (int64_t first = 0; first < y.n; first += SSD_WIDTH)
      ssd_scan(states + first * coef.n, coef.n, in + t * y.pitch + first, y.rows + t * y.pitch + first, y.pitch,
               coef.rows + t * coef.pitch, out_coef + t * coef.pitch, coef.pitch, s, end, &it->ahead);
  }
}

static side of_channels(const item *it, float *rows) { return (side){rows, it->l.row_P, it->l.P}; }
static side of_states(const item *it, float *rows) { return (side){rows, it->l.row_N, it->l.N}; }
/* As coefficients: only as many as exist. */
static side ssd_bwd_channels_of(const item *it, float *rows) { return (side){rows, it->l.row_P, it->in->P}; }
static side states_of(const item *it, float *rows) { return (side){rows, it->l.row_N, it->in->N}; }

/* A view (B,H,P,N) as blocks of lanes: [block of channels][n][lane], and [block of states][p][lane]; zeros if it is
 * absent. */
static void load_states(item *it, const ssd_walk *w, const kr_view *v) {
  const int64_t P = it->in->P, N = it->in->N, bytes = it->l.P * it->l.N * (int64_t)sizeof(float);
  memset(it->by_channel, 0, (size_t)bytes);
  memset(it->by_state, 0, (size_t)bytes);
  for (int64_t p = 0; kr_has(v) && p < P; p++)
    for (int64_t n = 0; n < N; n++) {
      const float value = kr_scalar_load(v->data, kr_at4(v, w->b, w->h, p, n), v->dtype);
      it->by_channel[(p / SSD_WIDTH * N + n) * SSD_WIDTH + p % SSD_WIDTH] = value;
      it->by_state[(n / SSD_WIDTH * P + p) * SSD_WIDTH + n % SSD_WIDTH] = value;
    }
}

static float dot_vectors(const float *a, const float *b, int64_t n) {
  kr_v sum = kr_v_zero();
  for (int64_t i = 0; i < n; i += KR_VL) sum = kr_v_fma(kr_v_load(a + i), kr_v_load(b + i), sum);
  return kr_v_sum(sum);
}

static void add_ssd_bwd_rows(float *sum, const float *rows, int64_t n) {
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(sum + i, kr_v_add(kr_v_load(sum + i), kr_v_load(rows + i)));
}

/* Adds the scan's rows of dB or dC to the team's sums. */
static void add_tile(const item *it, const ssd_walk *w, float *sums, const float *rows, int64_t i, int n) {
  for (int t = 0; t < n; t++) {
    float *sum = sums + ssd_token(w, i + t) * it->l.N;
    const kr_v kept = kr_v_set1(it->cuts.kept[t]);
    for (int64_t k = 0; k < it->l.N; k += KR_VL) {
      const kr_v row = kr_v_load(rows + t * it->l.row_N + k);
      kr_v_store(sum + k, it->adds ? kr_v_fma(kept, row, kr_v_load(sum + k)) : kr_v_mul(kept, row));
    }
  }
}

enum { MOST_P = 256 };

/* D of a head, zeros beyond its channels. */
static void load_skip(const item *it, int64_t h, float *skip) {
  const kr_view *D = it->in->Dvec;
  memset(skip, 0, (MOST_P + SSD_WIDTH) * sizeof(float));
  for (int64_t p = 0; kr_has(D) && p < it->in->P; p++) skip[p] = kr_scalar_load(D->data, kr_at2(D, h, p), D->dtype);
}

/* dz of a tile, from y of this direction and of the other. */
static void write_dz(item *it, const ssd_walk *w, int64_t i, int n) {
  const int64_t P = it->l.row_P;
  float skip[MOST_P + SSD_WIDTH];
  load_skip(it, w->h, skip);
  load_rows(it->dx, w, &it->a->dout, i, n);
  for (int t = 0; t < n; t++)
    for (int64_t p = 0; p < it->l.P; p += KR_VL) {
      float *dout = it->dx + t * P + p;
      kr_v y = kr_v_load(it->y + t * P + p), slope;
      kr_v_silu_and_slope(kr_v_load(it->z + t * P + p), &slope);
      if (is_both_for_ssd_bwd_simd(it)) y = kr_v_add(y, kr_v_load(it->all_y + ssd_token(w, i + t) * it->l.P + p));
      y = kr_v_fma(kr_v_load(skip + p), kr_v_load(it->x + t * P + p), y);
      kr_v_store(dout, it->marks[t] & SSD_PADDING ? kr_v_zero() : kr_v_mul(kr_v_load(dout), kr_v_mul(y, slope)));
    }
  store_rows(it->dx, P, w, &it->a->dz, i, n, it->in->P);
}

/* Prefetches the tile at token i of a scan while the current one is computed. */
static void look_ahead_ssd_bwd(item *it, const ssd_walk *w, int64_t i, int walks, const kr_view *written) {
  const int64_t P = it->in->P;
  it->ahead = ssd_ahead_of(w, i, 1 + walks * (int)(it->l.N / SSD_WIDTH * P / SSD_ROWS));
  ssd_ahead_add(&it->ahead, w, it->in->x, i, P);
  ssd_ahead_add(&it->ahead, w, &it->a->dout, i, P);
  ssd_ahead_add(&it->ahead, w, it->in->z, i, P);
  if (written) ssd_ahead_add(&it->ahead, w, written, i, P);
}

enum { ONLY_Y, GRADIENT }; /* ONLY_Y: y of the other direction, for dz */

static void walk_ssd_bwd_forwards(item *it, const ssd_walk *w, int what) {
  const int64_t L = it->in->L, P = it->l.P, N = it->l.N, with_dz = kr_has(&it->a->dz) && kr_has(it->in->z);
  load_states(it, w, it->in->initial_states);
  for (int64_t i = 0, tile = 0; i < L; i += SSD_TILE, tile++) {
    const int n = L - i < SSD_TILE ? (int)(L - i) : SSD_TILE;
    read_ssd_bwd_tile(it, w, i, n);
    for (int t = 0; t < n; t++)
      if (it->marks[t] & SSD_BEGINS) it->decay[t] = 0; /* even if NaN: nothing crosses sequences */
    ssd_cut(&it->cuts, it->marks, it->decay, n);
    scale_rows(it, it->dx, it->x, it->d, it->cuts.inverse, n);
    look_ahead_ssd_bwd(it, w, i + SSD_TILE, 1 + with_dz, with_dz ? &it->a->dz : NULL);
    if (with_dz) {
      walk_tile(it, it->by_channel, it->dx, of_channels(it, it->y), states_of(it, it->B), it->C, n);
      scale_rows(it, it->y, it->y, it->cuts.kept, NULL, n);
    }
    if (what == ONLY_Y) {
      for (int t = 0; t < n; t++)
        memcpy(it->all_y + ssd_token(w, i + t) * P, it->y + t * it->l.row_P, (size_t)P * sizeof(float));
      continue;
    }
    memcpy(it->kept + tile * P * N, it->by_state, (size_t)(P * N) * sizeof(float));
    walk_tile(it, it->by_state, it->B, of_states(it, it->dC), ssd_bwd_channels_of(it, it->dx), it->dy, n);
    add_tile(it, w, it->sum_C, it->dC, i, n);
    if (with_dz && !(is_both_for_ssd_bwd_simd(it) && w->reverse)) write_dz(it, w, i, n);
  }
}

/* Marks for a backward scan over w's tokens: a sequence begins with its last token; the very last token takes
 * dfinal_states unless it is padding. */
static void marks_back(item *it, const ssd_walk *back, int64_t j, int n) {
  ssd_marks(back, j, n, it->marks);
  if (j == 0) it->marks[0] = it->marks[0] & SSD_PADDING ? SSD_BEGINS | SSD_PADDING : 0;
}

/* dx of a tile: d M B + D dy, and <M, x (outer) B> of each token; dD of the head. */
static void finish_dx(item *it, const ssd_walk *back, int n, int add_skip) {
  const int64_t P = it->l.row_P;
  float skip[MOST_P + SSD_WIDTH], sums[MOST_P + SSD_WIDTH] = {0};
  load_skip(it, back->h, skip);
  scale_rows(it, it->y, it->y, it->cuts.kept, NULL, n);
  for (int t = 0; t < n; t++) {
    it->inputs[t] = dot_vectors(it->x + t * P, it->y + t * P, it->l.P);
    for (int64_t p = 0; p < it->l.P; p += KR_VL) {
      kr_v dx = kr_v_mul(kr_v_set1(it->d[t]), kr_v_load(it->y + t * P + p)), dy = kr_v_load(it->dy + t * P + p);
      if (add_skip && kr_has(it->in->Dvec)) dx = kr_v_fma(kr_v_load(skip + p), dy, dx);
      kr_v_store(it->y + t * P + p, dx);
      kr_v_store(sums + p, kr_v_fma(dy, kr_v_load(it->x + t * P + p), kr_v_load(sums + p)));
    }
  }
  for (int64_t p = 0; add_skip && p < it->in->P; p++) it->head[p] += sums[p];
}

/* out[r][lane] = sum over k of rows[r][k] columns[k][lane], SSD_ROWS by SSD_WIDTH. Not inlined, for register
 * allocation. */
static __attribute__((noinline)) void multiply_some(const float *rows, int64_t pitch, const float *columns, int64_t K,
                                                    float *out, int64_t out_pitch) {
  kr_v sum[2 * SSD_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < 2 * SSD_ROWS; r++) sum[r] = kr_v_zero();
  for (int64_t k = 0; k < K; k++, columns += SSD_WIDTH) {
    const kr_v a = kr_v_load(columns), b = kr_v_load(columns + KR_VL);
#pragma GCC unroll 16
    for (int r = 0; r < SSD_ROWS; r++) {
      const kr_v x = kr_v_set1(rows[r * pitch + k]);
      sum[2 * r] = kr_v_fma(x, a, sum[2 * r]), sum[2 * r + 1] = kr_v_fma(x, b, sum[2 * r + 1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < SSD_ROWS; r++)
    kr_v_store(out + r * out_pitch, sum[2 * r]), kr_v_store(out + r * out_pitch + KR_VL, sum[2 * r + 1]);
}

/* A tile's rows have room up to SSD_TILE: products take whole multiples of SSD_ROWS. */
static int whole_rows(int n) { return (n + SSD_ROWS - 1) / SSD_ROWS * SSD_ROWS; }

/* sums[t] over p and n of rows[t][p] states[p][n] columns[t][n], states as blocks of lanes. */
static void forms(const item *it, const float *rows, const float *states, const float *columns, int n, float *sums) {
  const int64_t P = it->in->P;
  for (int t = 0; t < whole_rows(n); t += SSD_ROWS) {
    float part[SSD_ROWS * SSD_WIDTH], totals[SSD_ROWS * KR_VL] = {0};
    for (int64_t first = 0; first < it->l.N; first += SSD_WIDTH) {
      multiply_some(rows + t * it->l.row_P, it->l.row_P, states + first * P, P, part, SSD_WIDTH);
      for (int r = 0; r < SSD_ROWS; r++) {
        const float *at = columns + (t + r) * it->l.row_N + first;
        kr_v sum = kr_v_fma(kr_v_load(part + r * SSD_WIDTH), kr_v_load(at), kr_v_load(totals + r * KR_VL));
        kr_v_store(totals + r * KR_VL,
                   kr_v_fma(kr_v_load(part + r * SSD_WIDTH + KR_VL), kr_v_load(at + KR_VL), sum));
      }
    }
    for (int r = 0; r < SSD_ROWS; r++) sums[t + r] = kr_v_sum(kr_v_load(totals + r * KR_VL));
  }
}

/* to[t][s] = sum over k of rows[t][k] others[s][k], at least for tokens s after t. */
static void products(const item *it, float *to, const float *rows, const float *others, int64_t pitch, int64_t K,
                     int n) {
  for (int first = 0; first < n; first += SSD_WIDTH) {
    for (int part = 0; part < SSD_WIDTH; part += KR_VL) {
      const kr_plane plane = {(void *)(uintptr_t)others, KRAIT_F32, (first + part) * pitch, 1, pitch};
      kr_tile_load(it->across + part, SSD_WIDTH, &plane, (int)K, KR_VL);
    }
    for (int t = 0; t < whole_rows(n) && t < first + SSD_WIDTH; t += SSD_ROWS)
      multiply_some(rows + t * pitch, pitch, it->across, K, to + t * SSD_TILE + first, SSD_TILE);
  }
}

/* A tile of the backward scan: its rows are tokens, last one first. */
typedef struct crossing {
  const item *it;
  int n;
  const float *before; /* S before the tile */
  const float *after;  /* M after the tile, still to be multiplied by scale; NULL: no gradient comes from there */
  double scale;
  unsigned char marks[SSD_TILE]; /* of tokens in forward order */
  double q[SSD_TILE];            /* per row */
} crossing;

/* decay v, and 0 for any v (even NaN) if the decay is 0. */
static inline kr_v times(kr_v decay, kr_v v) {
  return kr_v_select(kr_v_gt(decay, kr_v_zero()), kr_v_mul(decay, v), decay);
}

/* From row s to row r < s, tokens of one run: contributes to all rows from s - 1 to r. */
static void cross_pairs(crossing *c) {
  const item *it = c->it;
  float decay[SSD_TILE + 1] = {0}, sums[SSD_TILE] = {0};
  products(it, it->pairs, it->dy, it->dx, it->l.row_P, it->in->P, c->n);
  products(it, it->shared, it->C, it->B, it->l.row_N, it->in->N, c->n);
  for (int r = c->n - 1; r >= 0; r--) {
    const int alone = c->marks[c->n - 1 - r] & (SSD_BEGINS | SSD_PADDING);
    const kr_v own = kr_v_set1(alone ? 0 : it->decay[r]);
    float *pairs = it->pairs + r * SSD_TILE;
    if (alone) memset(decay, 0, sizeof decay);
    else if (r + 1 < c->n) decay[r + 1] = 1;
    for (int s = r / KR_VL * KR_VL; s < SSD_TILE; s += KR_VL) {
      const kr_v passes = times(kr_v_load(decay + s), own);
      const kr_v pair = kr_v_mul(kr_v_load(pairs + s), kr_v_load(it->shared + r * SSD_TILE + s));
      kr_v_store(pairs + s, times(passes, pair));
      kr_v_store(decay + s, passes);
    }
  }
  for (int r = 0; r < c->n; r++) {
    for (int s = r / KR_VL * KR_VL; s < SSD_TILE; s += KR_VL)
      kr_v_store(sums + s, kr_v_add(kr_v_load(sums + s), kr_v_load(it->pairs + r * SSD_TILE + s)));
    sums[r] = 0; /* nothing crosses this boundary to later rows */
    kr_v sum = kr_v_zero();
    for (int s = r / KR_VL * KR_VL; s < SSD_TILE; s += KR_VL) sum = kr_v_add(sum, kr_v_load(sums + s));
    c->q[r] += kr_v_sum(sum);
  }
}

/* From the state before the tile to its rows from `first` on, and through to M after the tile. */
static void cross_from_before(crossing *c, int first) {
  const item *it = c->it;
  float form[SSD_TILE];
  double decay = 1, to[SSD_TILE], sum = 0;
  forms(it, it->dy, c->before, it->C, c->n, form);
  for (int r = c->n - 1; r >= first; r--) {
    decay *= it->decay[r];
    to[r] = decay == 0 ? 0 : decay * form[r];
  }
  if (first == 0 && c->after) sum = decay * c->scale * (double)dot_vectors(c->before, c->after, it->in->P * it->l.N);
  for (int r = first; r < c->n; r++) c->q[r] += sum += to[r];
}

/* From the tile's rows before `end` to M after the tile. */
static void cross_to_after(crossing *c, int end) {
  const item *it = c->it;
  float form[SSD_TILE];
  double decay = c->scale, from[SSD_TILE], sum = 0;
  forms(it, it->dx, c->after, it->B, c->n, form);
  for (int r = 0; r < end; r++) {
    from[r] = decay == 0 ? 0 : decay * form[r];
    decay *= it->decay[r];
  }
  for (int r = end - 2; r >= 0; r--) c->q[r] += sum += from[r + 1];
}

/* q of each of a tile's rows. */
static void cross_tile(crossing *c, const ssd_walk *w, int64_t i) {
  ssd_marks(w, i, c->n, c->marks);
  memset(c->q, 0, sizeof c->q);
  for (int t = 0, run; t < c->n; t += run) {
    run = ssd_run(c->marks, t, c->n);
    if (c->marks[t] & SSD_PADDING) continue;
    if (t == 0 && !(c->marks[0] & SSD_BEGINS)) cross_from_before(c, c->n - run);
    if (t + run == c->n && c->after) cross_to_after(c, run);
  }
  cross_pairs(c);
}

/* The gradients of d and of A from q; dd in scan order. */
static void finish_steps(item *it, const ssd_walk *w, const crossing *c, int64_t i, float *dA) {
  const double A = kr_has(w->A) ? ((const float *)w->A->data)[kr_at1(w->A, w->h)] : 0;
  const kr_view *const dlog = &it->a->dlog_decay;
  double sum = 0;
  for (int t = 0; t < c->n; t++) {
    const int r = c->n - 1 - t;
    it->dd[i + t] = (float)(kr_has(w->A) ? it->inputs[r] + A * c->q[r] : it->inputs[r]);
    sum += it->d[r] * c->q[r];
    if (kr_has(dlog))
      kr_scalar_store(dlog->data, kr_at3(dlog, w->b, ssd_token(w, i + t), w->h), dlog->dtype, (float)c->q[r]);
  }
  *dA += (float)sum;
}

static void walk_ssd_bwd_backwards(item *it, const ssd_walk *w, float *dA, int add_skip) {
  const kr_ssd_inputs *in = it->in;
  const int64_t L = in->L, P = it->l.P, N = it->l.N;
  ssd_walk back = *w;
  back.reverse = !w->reverse;
  load_states(it, w, &it->a->dfinal_states);
  float carry = 1;
  for (int64_t tile = it->l.n_tiles - 1; tile >= 0; tile--) {
    const int64_t i = tile * SSD_TILE, last = L - i < SSD_TILE ? L : i + SSD_TILE, j = L - last;
    const int n = (int)(last - i);
    read_ssd_bwd_tile(it, &back, j, n);
    scale_rows(it, it->dx, it->x, it->d, NULL, n);
    marks_back(it, &back, j, n);
    crossing c = {.it = it,
                  .n = n,
                  .before = it->kept + tile * P * N,
                  .after = it->marks[0] & SSD_BEGINS ? NULL : it->by_state,
                  .scale = carry};
    cross_tile(&c, w, i);
    it->shifted[0] = carry;
    memcpy(it->shifted + 1, it->decay, (size_t)(n - 1) * sizeof(float));
    for (int t = 0; t < n; t++)
      if (it->marks[t] & SSD_BEGINS) it->shifted[t] = 0;
    carry = it->decay[n - 1];
    ssd_cut(&it->cuts, it->marks, it->shifted, n);
    scale_rows(it, it->z, it->dy, it->cuts.inverse, NULL, n);
    look_ahead_ssd_bwd(it, &back, j + n, 2, is_both_for_ssd_bwd_simd(it) ? NULL : &it->a->dx);
    walk_tile(it, it->by_channel, it->z, of_channels(it, it->y), states_of(it, it->C), it->B, n);
    walk_tile(it, it->by_state, it->C, of_states(it, it->dB), ssd_bwd_channels_of(it, it->z), it->dx, n);
    add_tile(it, &back, it->sum_B, it->dB, j, n);
    finish_dx(it, &back, n, add_skip);
    finish_steps(it, w, &c, i, dA);
    if (is_both_for_ssd_bwd_simd(it)) {
      for (int t = 0; t < n; t++) {
        const int64_t token = ssd_token(&back, j + t);
        add_ssd_bwd_rows(it->all_dx + token * P, it->y + t * it->l.row_P, P);
        it->all_dd[token] += it->dd[L - 1 - j - t];
      }
    } else if (kr_has(&it->a->dx)) {
      store_rows(it->y, it->l.row_P, &back, &it->a->dx, j, n, in->P);
    }
  }
  if (!kr_has(&it->a->dinitial_states)) return;
  const int begins =
      L && kr_has(in->seq_idx) && kr_get_i32(in->seq_idx, kr_at2(in->seq_idx, w->b, ssd_token(w, 0))) != 0;
  for (int64_t p = 0; p < in->P; p++)
    for (int64_t k = 0; k < in->N; k++)
      kr_scalar_store(it->a->dinitial_states.data, kr_at4(&it->a->dinitial_states, w->b, w->h, p, k),
                      it->a->dinitial_states.dtype,
                      begins ? 0 : carry * it->by_state[(k / SSD_WIDTH * in->P + p) * SSD_WIDTH + k % SSD_WIDTH]);
}

/* From the gradient of d to that of dt; dd in w's order. */
static void finish_dt(item *it, const ssd_walk *w, const float *dd) {
  const kr_ssd_inputs *in = it->in;
  const float high = in->dt_max == 0 ? INFINITY : in->dt_max;
  double bias = 0;
  float unclamped[SSD_TILE + 16];
  for (int64_t i = 0; i < in->L; i += SSD_TILE) {
    const int n = in->L - i < SSD_TILE ? (int)(in->L - i) : SSD_TILE;
    ssd_steps(w, i, n, it->d, it->decay, it->raw);
    for (int t = 0; t < n; t += KR_VL)
      kr_v_store(unclamped + t,
                 in->flags & KRAIT_SSD_SOFTPLUS ? kr_v_softplus(kr_v_load(it->raw + t)) : kr_v_load(it->raw + t));
    for (int t = 0; t < n; t += KR_VL) kr_v_store(it->decay + t, kr_v_sigmoid(kr_v_load(it->raw + t)));
    for (int t = 0; t < n; t++) {
      float ddt = unclamped[t] < in->dt_min || unclamped[t] > high ? 0 : dd[i + t];
      if (in->flags & KRAIT_SSD_SOFTPLUS && it->raw[t] <= 20) ddt *= it->decay[t];
      if (kr_has(&it->a->ddt))
        kr_scalar_store(it->a->ddt.data, kr_at3(&it->a->ddt, w->b, ssd_token(w, i + t), w->h), it->a->ddt.dtype, ddt);
      bias += ddt;
    }
  }
  it->head[in->P + 2] = (float)bias;
}

static void ssd_bwd_simd_both_directions(item *it, const ssd_walk *w) {
  const int64_t L = it->in->L, P = it->l.P;
  ssd_walk other = *w;
  other.A = &it->a->A_reverse, other.reverse = 1;
  memset(it->all_y, 0, (size_t)(2 * L * P + L) * sizeof(float));
  if (kr_has(&it->a->dz)) walk_ssd_bwd_forwards(it, &other, ONLY_Y);
  walk_ssd_bwd_forwards(it, w, GRADIENT);
  walk_ssd_bwd_backwards(it, w, &it->head[it->in->P], 1);
  it->adds = 1;
  walk_ssd_bwd_forwards(it, &other, GRADIENT);
  walk_ssd_bwd_backwards(it, &other, &it->head[it->in->P + 1], 0);
  for (int64_t i = 0; kr_has(&it->a->dx) && i < L; i += SSD_TILE)
    store_rows(it->all_dx + i * P, P, w, &it->a->dx, i, L - i < SSD_TILE ? (int)(L - i) : SSD_TILE, it->in->P);
  finish_dt(it, w, it->all_dd);
}

static void run_head(item *it, int64_t b, int64_t h) {
  const kr_ssd_bwd_args *a = it->a;
  const ssd_walk w = {it->in, &a->A, (a->call.flags & KRAIT_SSD_REVERSE) != 0, b, h, h / it->l.heads, 0, 0};
  it->head = (float *)a->call.scratch + ssd_row(it->l.sums) + (b * a->H + h) * (a->P + 3);
  memset(it->head, 0, (size_t)(a->P + 3) * sizeof(float));
  if (is_both_for_ssd_bwd_simd(it)) {
    ssd_bwd_simd_both_directions(it, &w);
    return;
  }
  walk_ssd_bwd_forwards(it, &w, GRADIENT);
  walk_ssd_bwd_backwards(it, &w, &it->head[a->P], 1);
  finish_dt(it, &w, it->dd);
}

static void run_ssd_bwd_items(void *user, int64_t begin, int64_t end, int worker) {
  const kr_ssd_bwd_args *a = user;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  item it = begin_ssd_bwd_item(a, &in, worker);
  const layout *l = &it.l;
  for (int64_t i = begin; i < end; i++) {
    const int64_t team = i % l->teams, g = i / l->teams % a->G, b = i / l->teams / a->G;
    it.sum_B = (float *)a->call.scratch + i * 2 * a->L * l->N;
    it.sum_C = it.sum_B + a->L * l->N;
    it.adds = 0;
    for (int64_t k = team * l->share; k < (team + 1) * l->share && k < l->heads; k++) {
      run_head(&it, b, g * l->heads + k);
      it.adds = 1;
    }
  }
}

static void add_teams(void *user, int64_t begin, int64_t end, int worker) {
  const kr_ssd_bwd_args *a = user;
  const layout l = ssd_bwd_simd_layout_of(a);
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t t = i % a->L, g = i / a->L % a->G, b = i / a->L / a->G, step = 2 * a->L * l.N;
    float *first = (float *)a->call.scratch + (b * a->G + g) * l.teams * step + t * l.N;
    for (int64_t team = 1; team < l.teams; team++) {
      add_ssd_bwd_rows(first, first + team * step, l.N);
      add_ssd_bwd_rows(first + a->L * l.N, first + team * step + a->L * l.N, l.N);
    }
    if (kr_has(&a->dB)) kr_row_store(first, a->dB.data, a->dB.dtype, kr_at4(&a->dB, b, t, g, 0), a->dB.stride[3], a->N);
    if (kr_has(&a->dC))
      kr_row_store(first + a->L * l.N, a->dC.data, a->dC.dtype, kr_at4(&a->dC, b, t, g, 0), a->dC.stride[3], a->N);
  }
}

/* Sums over the batch. */
static void add_heads(const kr_ssd_bwd_args *a) {
  const layout l = ssd_bwd_simd_layout_of(a);
  const float *part = (const float *)a->call.scratch + ssd_row(l.sums);
  for (int64_t h = 0; h < a->H; h++) {
    double own_D = 0;
    for (int64_t k = 0; k < a->P + 3; k++) {
      double sum = 0;
      for (int64_t b = 0; b < a->B; b++) sum += part[(b * a->H + h) * (a->P + 3) + k];
      if (k < a->P) {
        own_D += sum;
        if (kr_has(&a->dDvec))
          ((float *)a->dDvec.data)[kr_at2(&a->dDvec, h, k)] = (float)(a->dDvec.stride[1] ? sum : own_D);
        continue;
      }
      const kr_view *to = k == a->P ? &a->dA : k == a->P + 1 ? &a->dA_reverse : &a->ddt_bias;
      if (kr_has(to)) ((float *)to->data)[kr_at1(to, h)] = (float)sum;
    }
  }
}

uint64_t KR_FN(kr_ssd_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  const layout l = ssd_bwd_simd_layout_of(args);
  return (uint64_t)(ssd_row(l.sums) + ssd_row(l.per_head) + l.worker * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_ssd_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  const layout l = ssd_bwd_simd_layout_of(a);
  kr_parallel(ctx, a->B * a->G * l.teams, 1, run_ssd_bwd_items, (void *)args);
  kr_parallel(ctx, a->B * a->G * a->L, 64, add_teams, (void *)args);
  add_heads(a);
  return KRAIT_OK;
}
