/* mamba3_simd.c: the scan as the SSD of the tokens' ranks (mamba3_lanes.h), piece by piece: several units, and as many
 * tokens at a time as stay in a cache. A unit's result depends neither on the others of its piece nor on the number of
 * threads. */
#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_lanes.h"
#include "op_list.h"
#include "ssd/ssd_impls.h"

enum { ROWS = 1024, MOST_UNITS = 64 }; /* rows of a piece's unit; units of a piece */

/* Scratch of a piece, in floats: each part for all of its units; k and x with a token more, the one before. */
typedef struct piece {
  const kr_mamba3_args *a;
  const kr_mamba3_inputs *in;
  const kr_view *out;
  m3_units units;
  int64_t first_unit, n_units, most, tokens; /* most: units that scratch is for; tokens: that it is for */
  int64_t first, n;                          /* tokens */
  float *q, *k, *x, *y, *weight, *decay, *dt, *lambda, *rest, *alpha, *states[2], *heads;
  double *phases;
  float *ssd; /* scratch of the SSD */
} piece;

static int64_t tokens_of(const kr_mamba3_inputs *in) {
  const int64_t tokens = in->R > ROWS / 64 ? 64 : ROWS / in->R;
  return tokens < in->L ? tokens : in->L;
}

static int64_t units_of(const krait_ctx *ctx, const kr_mamba3_inputs *in) {
  const int64_t units = m3_units_of(in, 0).n, aim = 2 * krait_ctx_n_threads(ctx);
  return units < aim ? units : aim < MOST_UNITS ? aim : MOST_UNITS;
}

static kr_ssd_args ssd_of_piece(const piece *p) {
  const kr_mamba3_inputs *in = p->in;
  const int64_t rows = p->tokens * in->R, keys = rows + in->R, N = m3_row_N(in), P = m3_row_P(in);
  kr_ssd_args s = {.B = p->n_units, .L = p->n * in->R, .H = 1, .P = in->P, .N = in->N, .G = 1};
  s.call.size = sizeof s, s.call.scratch = p->ssd;
  s.x = m3_batch(p->x, keys * P, P), s.out = m3_batch(p->y, rows * P, P);
  s.Bmat = m3_batch(p->k, keys * N, N), s.Cmat = m3_batch(p->q, rows * N, N);
  s.dt = m3_batch(p->weight, rows, 1), s.log_decay = m3_batch(p->decay, rows, 1);
  s.initial_states = m3_batch(p->states[0], in->P * in->N, in->N);
  s.final_states = m3_batch(p->states[1], in->P * in->N, in->N);
  return s;
}

/* Returns the floats that it takes. */
static int64_t place_piece(const krait_ctx *ctx, piece *p, float *at) {
  const kr_mamba3_inputs *in = p->in;
  const int64_t N = m3_row_N(in), P = m3_row_P(in), M = m3_row_M(in);
  p->tokens = tokens_of(in), p->most = p->n_units = units_of(ctx, in), p->n = p->tokens;
  const int64_t units = p->most, rows = units * p->tokens * in->R, tokens = units * p->tokens,
                keys = rows + units * in->R;
  float *const begin = at;
  p->phases = (double *)at, at += m3_whole(2 * units * M, 16);
  p->q = at, at += rows * N, p->k = at, at += keys * N;
  p->x = at, at += keys * P, p->y = at, at += rows * P;
  p->weight = at, at += rows, p->decay = at, at += rows;
  p->dt = at, at += tokens, p->lambda = at, at += tokens, p->rest = at, at += tokens, p->alpha = at, at += tokens;
  for (int i = 0; i < 2; i++) p->states[i] = at, at += units * in->P * in->N;
  p->heads = at, at += units * m3_head_floats(in);
  p->ssd = begin + m3_whole(at - begin, 16);
  const kr_ssd_args ssd = ssd_of_piece(p);
  return p->ssd - begin + (int64_t)(KR_FN(kr_ssd_scratch)(ctx, &ssd) / sizeof(float));
}

static m3_rows rows_of_unit(const piece *p, int64_t u) {
  const int64_t rows = u * p->tokens * p->in->R, N = m3_row_N(p->in), P = m3_row_P(p->in), tokens = u * p->tokens;
  const int64_t keys = rows + (u + 1) * p->in->R;
  return (m3_rows){p->q + rows * N, p->k + keys * N,    p->x + keys * P,  p->weight + rows, p->decay + rows,
                   p->dt + tokens,  p->lambda + tokens, p->rest + tokens, p->alpha + tokens};
}

static void read_units(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  (void)worker;
  for (int64_t u = begin; u < end; u++) {
    const kr_mamba3_sequence s = m3_sequence_of(&p->units, p->first_unit + u);
    const int64_t h = (p->first_unit + u) % p->in->H, state = p->in->P * p->in->N;
    const m3_head head = m3_load_head(p->in, h, p->heads + u * m3_head_floats(p->in));
    const m3_rows rows = rows_of_unit(p, u);
    double *const phases = p->phases + u * m3_row_M(p->in);
    if (p->first == 0) {
      m3_begin_state(p->in, s, h, p->states[0] + u * state);
      m3_read_before(p->in, &head, s, h, &rows);
      m3_begin_phases(p->in, s, h, phases);
    } else { /* the last piece was full */
      const int64_t each = p->in->R, last = (p->tokens - 1) * each, N = m3_row_N(p->in), P = m3_row_P(p->in);
      memcpy(rows.k - each * N, rows.k + last * N, (size_t)(each * N) * sizeof(float));
      memcpy(rows.x - each * P, rows.x + last * P, (size_t)(each * P) * sizeof(float));
    }
    m3_read_rows(p->in, &head, s, h, p->first, p->n, phases, NULL, &rows);
  }
}

static void write_units(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  const int64_t P = m3_row_P(p->in), R = p->in->R;
  (void)worker;
  for (int64_t u = begin; u < end; u++) {
    const kr_mamba3_sequence s = m3_sequence_of(&p->units, p->first_unit + u);
    const int64_t h = (p->first_unit + u) % p->in->H;
    const m3_head head = m3_load_head(p->in, h, p->heads + u * m3_head_floats(p->in));
    const m3_rows rows = rows_of_unit(p, u);
    float *const y = p->y + u * p->tokens * R * P;
    m3_clear_beyond(y, p->n * R, p->in->P, P);
    for (int64_t t = 0; t < p->n; t++) {
      m3_complete(p->in, &head, &rows, t, y + t * R * P);
      m3_write_token(p->in, &head, p->out, s, h, s.begin + p->first + t, y + t * R * P);
    }
  }
}

/* States after a sequence: those of its last token, or if it has none those before it. */
static void write_ends(const piece *p, int64_t u) {
  const kr_mamba3_args *a = p->a;
  const kr_mamba3_inputs *in = p->in;
  const kr_mamba3_sequence s = m3_sequence_of(&p->units, p->first_unit + u);
  const int64_t h = (p->first_unit + u) % in->H, N = m3_row_N(in), last = s.n ? p->n - 1 : 0;
  const m3_rows rows = rows_of_unit(p, u);
  float *const state = p->states[s.n ? 1 : 0] + u * in->P * in->N;
  const int keeps = s.n == 0 && kr_has(&in->initial_states);
  if (s.n && kr_has(&a->final_states)) m3_add_inputs(in, &rows, last * in->R, rows.lambda[last] * rows.dt[last], state);
  for (int64_t m = 0; kr_has(&a->final_angles) && m < in->M; m++) {
    const double turn = p->phases[u * m3_row_M(in) + m];
    const float angle = (float)((turn < 0 ? turn + 1 : turn) * 6.283185307179586);
    ((float *)a->final_angles.data)[kr_at3(&a->final_angles, s.row, h, m)] = angle;
  }
  for (int64_t i = 0; kr_has(&a->final_states) && i < in->P * in->N; i++)
    ((float *)a->final_states.data)[kr_at4(&a->final_states, s.row, h, i / in->N, i % in->N)] = state[i];
  for (int64_t i = 0; kr_has(&a->final_B) && i < in->R * in->N; i++) {
    const int64_t r = i / in->N, n = i % in->N;
    const float k = s.n ? rows.k[(last * in->R + r) * N + n]
                        : keeps ? kr_scalar_load(in->initial_B.data, kr_at4(&in->initial_B, s.row, r, h, n),
                                                 in->initial_B.dtype) : 0;
    kr_scalar_store(a->final_B.data, kr_at4(&a->final_B, s.row, r, h, n), a->final_B.dtype, k);
  }
  for (int64_t c = 0; kr_has(&a->final_x) && c < in->P; c++) {
    const kr_view *const x = s.n ? &in->x : &in->initial_x;
    const int64_t at = s.n ? kr_at4(x, s.b, s.begin + s.n - 1, h, c) : kr_at3(x, s.row, h, c);
    kr_scalar_store(a->final_x.data, kr_at3(&a->final_x, s.row, h, c), a->final_x.dtype,
                    s.n || keeps ? kr_scalar_load(x->data, at, x->dtype) : 0);
  }
}

static int32_t run_mamba3_piece(const krait_ctx *ctx, piece *p) {
  const int64_t length = m3_sequence_of(&p->units, p->first_unit).n;
  p->first = 0;
  do {
    p->n = length - p->first < p->tokens ? length - p->first : p->tokens;
    const kr_ssd_args ssd = ssd_of_piece(p);
    kr_parallel(ctx, p->n_units, 1, read_units, p);
    if (p->n) KR_TRY(KR_FN(kr_ssd)(ctx, &ssd));
    kr_parallel(ctx, p->n_units, 1, write_units, p);
    p->first += p->n;
    if (p->first == length) break;
    memcpy(p->states[0], p->states[1], (size_t)(p->n_units * p->in->P * p->in->N) * sizeof(float));
  } while (1);
  for (int64_t u = 0; u < p->n_units; u++) write_ends(p, u);
  return KRAIT_OK;
}

uint64_t KR_FN(kr_mamba3_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  piece p = {.a = a, .in = &in};
  return (uint64_t)place_piece(ctx, &p, m3_nowhere()) * sizeof(float);
}

int32_t KR_FN(kr_mamba3)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  const kr_view out = KR_MAMBA3_TIME(a, out);
  piece p = {.a = a, .in = &in, .out = &out};
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("mamba3", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  place_piece(ctx, &p, a->call.scratch);
  for (int64_t i = 0; i < m3_n_units(&in); i++) {
    p.units = m3_units_of(&in, i);
    for (p.first_unit = 0; p.first_unit < p.units.n; p.first_unit += p.most) {
      p.n_units = p.units.n - p.first_unit < p.most ? p.units.n - p.first_unit : p.most;
      KR_TRY(run_mamba3_piece(ctx, &p));
    }
  }
  return KRAIT_OK;
}
