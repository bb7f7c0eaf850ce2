/* mamba3_lanes.h: shared code of the SIMD implementations of Mamba 3's scan and its gradient, which the SSD computes.
 * With the tokens' ranks as rows of one sequence, each with its query, but with the key and input of the token before
 * (of the first: those of the initial states), whose weights w_t = alpha_t ((1 - lambda_t) dt_t + lambda_{t-1}
 * dt_{t-1}) and decays alpha_t at a token's first rank, 1 at others, the state of S = decay S + w_t x_{t-1,r} (outer)
 * k_{t-1,r} is h_t - lambda_t dt_t sum_r x_{t,r} (outer) k_{t,r} after a token's last rank; so y_{t,r} = S q_{t,r} +
 * lambda_t dt_t sum_s (q_{t,r} k_{t,s}) x_{t,s} + w_t sum_{s>r} (q_{t,r} k_{t-1,s}) x_{t-1,s}
 *             + D x_{t,r}
 * with S after the row. No term is the difference of two others, and none has what is of a later token.
 * A unit is a head of a sequence. Several units of one length are a piece: a batch of the SSD. */
#ifndef KR_MAMBA3_LANES_H
#define KR_MAMBA3_LANES_H

#include <string.h>

#include "mamba3_inputs.h"
#include "vec_math.h"
#include "vec_tile.h"

/* Called from several places, too long to inline. */
#define M3_APART static __attribute__((noinline, unused))

/* LINE: floats that kr_row_load stores at least. */
enum { M3_LINE = 16, M3_PAIR = 2 * KR_VL > M3_LINE ? 2 * KR_VL : M3_LINE };

/* Rows of N, P and M, whole vectors, zeros beyond. */
static inline int64_t m3_whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
static inline int64_t m3_row_N(const kr_mamba3_inputs *in) { return m3_whole(in->N, M3_PAIR); }
static inline int64_t m3_row_P(const kr_mamba3_inputs *in) { return m3_whole(in->P, M3_LINE); }
static inline int64_t m3_row_M(const kr_mamba3_inputs *in) { return m3_whole(in->M, M3_LINE); }

static inline float m3_dot(const float *a, const float *b, int64_t n) {
  kr_v sum = kr_v_zero();
  for (int64_t i = 0; i < n; i += KR_VL) sum = kr_v_fma(kr_v_load(a + i), kr_v_load(b + i), sum);
  return kr_v_sum(sum);
}
/* to += by from. */
static inline void m3_add(float *to, const float *from, float by, int64_t n) {
  const kr_v v = kr_v_set1(by);
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(to + i, kr_v_fma(v, kr_v_load(from + i), kr_v_load(to + i)));
}
/* n columns of a view from `at`, as a row of `whole` floats. */
static inline void m3_load_row(float *to, const kr_view *v, int64_t at, int64_t stride, int64_t n, int64_t whole) {
  kr_row_load(to, v->data, v->dtype, at, stride, n);
  for (int64_t i = n; i < whole; i++) to[i] = 0;
}
static inline void m3_clear_beyond(float *rows, int64_t n_rows, int64_t n, int64_t whole) {
  for (int64_t r = 0; n < whole && r < n_rows; r++)
    memset(rows + r * whole + n, 0, (size_t)(whole - n) * sizeof(float));
}

/* A unit's tokens: rows are [token][rank]. Before the first row of k and x are the ranks of the token before. */
typedef struct m3_rows {
  float *q, *k;                      /* [row][row_N], rotated */
  float *x;                          /* [row][row_P], with mimo_x */
  float *weight, *decay;             /* [row]: w_t, and the logarithm of the decay */
  float *dt, *lambda, *rest, *alpha; /* [token]; rest: 1 - lambda, which that difference would not give */
} m3_rows;

/* A head's parameters. */
typedef struct m3_head {
  float *C_bias, *B_bias;          /* [R][row_N] */
  float *mimo_x, *mimo_z, *mimo_o; /* [R][row_P], ones where absent */
  float *norm;                     /* [row_P] */
  float D;
} m3_head;

static inline int64_t m3_head_floats(const kr_mamba3_inputs *in) {
  return 2 * in->R * m3_row_N(in) + (3 * in->R + 1) * m3_row_P(in);
}

static inline void m3_load_ranks(float *to, const kr_view *v, int64_t h, int64_t R, int64_t n, int64_t whole) {
  for (int64_t r = 0; r < R; r++)
    if (kr_has(v)) m3_load_row(to + r * whole, v, kr_at3(v, h, r, 0), v->stride[2], n, whole);
    else for (int64_t i = 0; i < whole; i++) to[r * whole + i] = i < n ? 1.0f : 0.0f;
}

M3_APART m3_head m3_load_head(const kr_mamba3_inputs *in, int64_t h, float *at) {
  const int64_t N = m3_row_N(in), P = m3_row_P(in), R = in->R;
  m3_head p = {.C_bias = at, .B_bias = at + R * N, .mimo_x = at + 2 * R * N};
  p.mimo_z = p.mimo_x + R * P, p.mimo_o = p.mimo_z + R * P, p.norm = p.mimo_o + R * P;
  m3_load_ranks(p.C_bias, &in->C_bias, h, R, in->N, N), m3_load_ranks(p.B_bias, &in->B_bias, h, R, in->N, N);
  m3_load_ranks(p.mimo_x, &in->mimo_x, h, R, in->P, P), m3_load_ranks(p.mimo_z, &in->mimo_z, h, R, in->P, P);
  m3_load_ranks(p.mimo_o, &in->mimo_o, h, R, in->P, P);
  if (kr_has(&in->norm_weight))
    m3_load_row(p.norm, &in->norm_weight, kr_at2(&in->norm_weight, h, 0), in->norm_weight.stride[1], in->P, P);
  p.D = kr_has(&in->Dvec) ? kr_scalar_load(in->Dvec.data, kr_at1(&in->Dvec, h), in->Dvec.dtype) : 0;
  return p;
}

static inline float m3_token(const kr_view *v, int64_t b, int64_t t, int64_t h) {
  return kr_scalar_load(v->data, kr_at3(v, b, t, h), v->dtype);
}
static inline float m3_sigmoid(float x) {
  float lanes[KR_VL];
  kr_v_store(lanes, kr_v_sigmoid(kr_v_set1(x)));
  return lanes[0];
}

/* dt, lambda, weights and decays of the sequence's tokens from `first` on, of head h. */
M3_APART void m3_read_steps(const kr_mamba3_inputs *in, kr_mamba3_sequence s, int64_t h, int64_t first, int64_t n,
                            const m3_rows *to) {
  float before = 0; /* lambda dt of the token before */
  if (first > 0)
    before =
        m3_sigmoid(m3_token(&in->trap, s.b, s.begin + first - 1, h)) * m3_token(&in->dt, s.b, s.begin + first - 1, h);
  for (int64_t t = 0; t < n; t++) {
    const int64_t token = s.begin + first + t;
    const float trap = m3_token(&in->trap, s.b, token, h), decay = m3_token(&in->log_decay, s.b, token, h);
    to->dt[t] = m3_token(&in->dt, s.b, token, h), to->lambda[t] = m3_sigmoid(trap), to->rest[t] = m3_sigmoid(-trap);
    float lanes[KR_VL];
    kr_v_store(lanes, kr_v_exp2_any(kr_v_set1(decay), kr_v_set1(1.44269504f)));
    to->alpha[t] = lanes[0];
    for (int64_t r = 0; r < in->R; r++) {
      to->decay[t * in->R + r] = r ? 0 : decay;
      to->weight[t * in->R + r] = to->alpha[t] * (to->rest[t] * to->dt[t] + before);
    }
    before = to->lambda[t] * to->dt[t];
  }
}

/* Angles in turns, -1/2 to 1/2, summed in double; tanh of the token's angles to row_M floats. */
static inline void m3_turn(const kr_mamba3_inputs *in, kr_mamba3_sequence s, int64_t h, int64_t t, float dt,
                           double *phases, float *tanhs, float *out) {
  const double magic = 6755399441055744.0; /* 1.5 2^52: rounds to an integer */
  const int64_t M = m3_row_M(in);
  const kr_view *v = &in->angles;
  m3_load_row(tanhs, v, kr_at4(v, s.b, s.begin + t, h, 0), v->stride[3], in->M, M);
  for (int64_t m = 0; m < M; m += KR_VL) kr_v_store(tanhs + m, kr_v_tanh(kr_v_load(tanhs + m)));
  for (int64_t m = 0; m < M; m++) {
    const double sum = phases[m] + 0.5 * (double)tanhs[m] * (double)dt, whole = (sum + magic) - magic;
    phases[m] = sum - whole, out[m] = (float)phases[m];
  }
}

static inline void m3_cos_sin(const float *phases, float *cosines, float *sines, int64_t M) {
  for (int64_t m = 0; m < M; m += KR_VL) {
    kr_v sine;
    kr_v_store(cosines + m, kr_v_cos_sin_near(kr_v_load(phases + m), kr_v_set1(6.28318531f), &sine));
    kr_v_store(sines + m, sine);
  }
}

static const float m3_counting[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Turns a row's pairs; sign -1 turns them back. Entries beyond M stay as they are, whatever their partners. */
static inline void m3_rotate(const kr_mamba3_inputs *in, float *row, const float *cosines, const float *sines,
                             float sign) {
  const int is_halves = (in->flags & KRAIT_MAMBA3_HALVES) != 0;
  for (int64_t m = 0; m < in->M; m += KR_VL) {
    const kr_v c = kr_v_load(cosines + m), s = kr_v_mul(kr_v_set1(sign), kr_v_load(sines + m));
    const int n = in->M - m < KR_VL ? (int)(in->M - m) : KR_VL;
    float *const i = row + m, *const j = row + in->N / 2 + m;
    kr_v v[2];
    if (!is_halves) kr_v_load_apart(v, row + 2 * m, 2);
    else if (n < KR_VL) v[0] = kr_v_loadn(i, n), v[1] = kr_v_loadn(j, n);
    else v[0] = kr_v_load(i), v[1] = kr_v_load(j);
    kr_v turned[2] = {kr_v_fnma(s, v[1], kr_v_mul(c, v[0])), kr_v_fma(s, v[0], kr_v_mul(c, v[1]))};
    if (n < KR_VL) {
      const kr_vm turns = kr_v_lt(kr_v_load(m3_counting), kr_v_set1((float)n));
      turned[0] = kr_v_select(turns, turned[0], v[0]), turned[1] = kr_v_select(turns, turned[1], v[1]);
    }
    if (!is_halves) kr_v_store_apart(row + 2 * m, turned, 2);
    else if (n < KR_VL) kr_v_storen(i, turned[0], n), kr_v_storen(j, turned[1], n);
    else kr_v_store(i, turned[0]), kr_v_store(j, turned[1]);
  }
}

enum { M3_MOST_M = 256, M3_MOST_P = 256 }; /* the longest row_M and row_P */

/* Rows of a unit's tokens from `first` on; phases: summed angles before them, then after them. all_phases:
 * [token][row_M], or NULL. */
M3_APART void m3_read_rows(const kr_mamba3_inputs *in, const m3_head *p, kr_mamba3_sequence s, int64_t h, int64_t first,
                           int64_t n, double *phases, float *all_phases, const m3_rows *to) {
  const int64_t N = m3_row_N(in), P = m3_row_P(in), M = m3_row_M(in), g = h / (in->H / in->G);
  float tanhs[M3_MOST_M], now[M3_MOST_M], cosines[M3_MOST_M], sines[M3_MOST_M], x[M3_MOST_P];
  m3_read_steps(in, s, h, first, n, to);
  for (int64_t t = 0; t < n; t++) {
    const int64_t token = s.begin + first + t;
    float *const summed = all_phases ? all_phases + t * M : now;
    m3_turn(in, s, h, first + t, to->dt[t], phases, tanhs, summed);
    m3_cos_sin(summed, cosines, sines, M);
    m3_load_row(x, &in->x, kr_at4(&in->x, s.b, token, h, 0), in->x.stride[3], in->P, P);
    for (int64_t r = 0; r < in->R; r++) {
      float *const rows[] = {to->q + (t * in->R + r) * N, to->k + (t * in->R + r) * N}, *const xr =
                                                                                            to->x + (t * in->R + r) * P;
      const kr_view *const from[] = {&in->Cmat, &in->Bmat};
      const float *const bias[] = {p->C_bias + r * N, p->B_bias + r * N};
      for (int k = 0; k < 2; k++) {
        m3_load_row(rows[k], from[k], kr_at4(from[k], s.b, token, r * in->G + g, 0), from[k]->stride[3], in->N, N);
        for (int64_t i = 0; i < N; i += KR_VL)
          kr_v_store(rows[k] + i, kr_v_add(kr_v_load(rows[k] + i), kr_v_load(bias[k] + i)));
        m3_rotate(in, rows[k], cosines, sines, 1);
      }
      for (int64_t i = 0; i < P; i += KR_VL)
        kr_v_store(xr + i, kr_v_mul(kr_v_load(x + i), kr_v_load(p->mimo_x + r * P + i)));
    }
  }
}

/* The ranks of the token before the first: of the initial states, zeros if there are none. */
M3_APART void m3_read_before(const kr_mamba3_inputs *in, const m3_head *p, kr_mamba3_sequence s, int64_t h,
                             const m3_rows *to) {
  const int64_t N = m3_row_N(in), P = m3_row_P(in), R = in->R;
  float x[M3_MOST_P];
  memset(to->k - R * N, 0, (size_t)(R * N) * sizeof(float)), memset(to->x - R * P, 0, (size_t)(R * P) * sizeof(float));
  if (!kr_has(&in->initial_states)) return;
  m3_load_row(x, &in->initial_x, kr_at3(&in->initial_x, s.row, h, 0), in->initial_x.stride[2], in->P, P);
  for (int64_t r = 0; r < R; r++) {
    m3_load_row(to->k + (r - R) * N, &in->initial_B, kr_at4(&in->initial_B, s.row, r, h, 0), in->initial_B.stride[3],
                in->N, N);
    for (int64_t i = 0; i < P; i += KR_VL)
      kr_v_store(to->x + (r - R) * P + i, kr_v_mul(kr_v_load(x + i), kr_v_load(p->mimo_x + r * P + i)));
  }
}

/* y of a token's ranks from what the SSD gave. */
static inline void m3_complete(const kr_mamba3_inputs *in, const m3_head *p, const m3_rows *u, int64_t t, float *y) {
  const int64_t N = m3_row_N(in), P = m3_row_P(in), R = in->R;
  const float own = u->lambda[t] * u->dt[t];
  for (int64_t r = 0; r < R; r++) {
    const float *const q = u->q + (t * R + r) * N;
    for (int64_t s = 0; s < R; s++)
      m3_add(y + r * P, u->x + (t * R + s) * P, own * m3_dot(q, u->k + (t * R + s) * N, N) + (s == r ? p->D : 0), P);
    for (int64_t s = r + 1; s < R; s++) {
      const int64_t row = (t - 1) * R + s;
      m3_add(y + r * P, u->x + row * P, u->weight[t * R] * m3_dot(q, u->k + row * N, N), P);
    }
  }
}

/* n of a rank, in place. */
static inline void m3_norm_rank(const kr_mamba3_inputs *in, const m3_head *head, float *y) {
  const int64_t P = m3_row_P(in);
  if (!kr_has(&in->norm_weight)) return;
  const kr_v scale = kr_v_set1(1.0f / sqrtf(m3_dot(y, y, P) / (float)in->P + in->eps));
  for (int64_t i = 0; i < P; i += KR_VL)
    kr_v_store(y + i, kr_v_mul(kr_v_mul(kr_v_load(y + i), scale), kr_v_load(head->norm + i)));
}

/* out of a token from y of its ranks, which is overwritten. */
M3_APART void m3_write_token(const kr_mamba3_inputs *in, const m3_head *head, const kr_view *out, kr_mamba3_sequence s,
                             int64_t h, int64_t token, float *y) {
  const int64_t P = m3_row_P(in);
  const int sums = kr_has(&in->mimo_o);
  float z[M3_MOST_P];
  if (kr_has(&in->z)) m3_load_row(z, &in->z, kr_at4(&in->z, s.b, token, h, 0), in->z.stride[3], in->P, P);
  for (int64_t r = 0; r < in->R; r++) {
    float *const yr = y + r * P;
    m3_norm_rank(in, head, yr);
    for (int64_t i = 0; i < P; i += KR_VL) {
      kr_v v = kr_v_load(yr + i);
      if (kr_has(&in->z))
        v = kr_v_mul(v, kr_v_silu_fast(kr_v_mul(kr_v_load(z + i), kr_v_load(head->mimo_z + r * P + i))));
      if (sums) v = kr_v_mul(v, kr_v_load(head->mimo_o + r * P + i));
      if (sums && r) v = kr_v_add(v, kr_v_load(y + i));
      kr_v_store(sums ? y + i : yr + i, v);
    }
    if (!sums)
      kr_row_store(yr, out->data, out->dtype, kr_at4(out, s.b, token, r * in->H + h, 0), out->stride[3], in->P);
  }
  if (sums) kr_row_store(y, out->data, out->dtype, kr_at4(out, s.b, token, h, 0), out->stride[3], in->P);
}

/* The state before a unit's first token, to state[P][N]. */
M3_APART void m3_begin_state(const kr_mamba3_inputs *in, kr_mamba3_sequence s, int64_t h, float *state) {
  const kr_view *const v = &in->initial_states;
  for (int64_t i = 0; i < in->P * in->N; i++)
    state[i] = kr_has(v) ? kr_scalar_load(v->data, kr_at4(v, s.row, h, i / in->N, i % in->N), v->dtype) : 0;
}

/* of[P][N] += by sum_r x_r (outer) k_r of rows from `row` on. */
static inline void m3_add_inputs(const kr_mamba3_inputs *in, const m3_rows *u, int64_t row, float by, float *of) {
  const int64_t N = m3_row_N(in), P = m3_row_P(in);
  for (int64_t r = row; r < row + in->R; r++)
    for (int64_t c = 0; c < in->P; c++)
      for (int64_t n = 0; n < in->N; n++) of[c * in->N + n] += by * u->x[r * P + c] * u->k[r * N + n];
}

/* Angles before a unit's first token, in turns. */
static inline void m3_begin_phases(const kr_mamba3_inputs *in, kr_mamba3_sequence s, int64_t h, double *phases) {
  memset(phases, 0, (size_t)m3_row_M(in) * sizeof(double));
  for (int64_t m = 0; kr_has(&in->initial_angles) && m < in->M; m++) {
    const double turn = (double)m3_token(&in->initial_angles, s.row, h, m) * 0.15915494309189535;
    phases[m] = turn - floor(turn + 0.5);
  }
}

/* Where a layout begins whose size alone is asked for: an address, since offsets from NULL are undefined. */
static inline float *m3_nowhere(void) { return (float *)(uintptr_t)64; }

/* A batch of units as tensors of the SSD. */
static inline kr_view m3_batch(float *data, int64_t each, int64_t row) {
  return (kr_view){.data = data, .dtype = KRAIT_F32, .stride = {each, row, row, 1}};
}

/* Units of one length: all heads of all batch entries, or of one packed sequence. */
typedef struct m3_units {
  const kr_mamba3_inputs *in;
  int64_t first_sequence, n;
} m3_units;

static inline m3_units m3_units_of(const kr_mamba3_inputs *in, int64_t i) {
  if (kr_has(&in->cu_seqlens)) return (m3_units){in, i, in->H};
  return (m3_units){in, 0, in->B * in->H};
}
static inline int64_t m3_n_units(const kr_mamba3_inputs *in) { return kr_has(&in->cu_seqlens) ? in->S : 1; }
static inline kr_mamba3_sequence m3_sequence_of(const m3_units *u, int64_t unit) {
  return kr_mamba3_sequence_at(u->in, u->first_sequence + unit / u->in->H);
}

#endif
