/* state_update_simd.c: the step vectorised over the state dimension. Channels are processed in chunks, whose step
 * sizes, gates and outputs are vectorised over channels; an A shared by all states of a channel (Mamba 2) takes one
 * exponential per channel. */
#include <string.h>

#include "contract.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { MAX_N = 512, CHUNK = 64, LINE = 16, AHEAD = 32, KEPT = 4096 }; /* LINE, KEPT: floats; AHEAD: channels */
static const float log2_e = 1.44269504f;

typedef kr_state_update_args update_args;

typedef struct chunk {
  int64_t b, row, h, g, p0;
  int n;
  float dt[CHUNK], dt_x[CHUNK], x[CHUNK], decay[CHUNK], y[CHUNK], z[CHUNK];
  float B[MAX_N], C[MAX_N];
} chunk;

static void read_channels(float *to, const kr_view *v, int64_t at, int64_t stride, int n) {
  if (kr_has(v)) kr_row_load(to, v->data, v->dtype, at, stride, n);
  else memset(to, 0, CHUNK * sizeof *to);
}

static void read_state_update_steps(const update_args *a, chunk *c) {
  float bias[CHUNK];
  read_channels(c->dt, &a->dt, kr_at3(&a->dt, c->b, c->h, c->p0), a->dt.stride[2], c->n);
  read_channels(bias, &a->dt_bias, kr_at2(&a->dt_bias, c->h, c->p0), a->dt_bias.stride[1], c->n);
  read_channels(c->x, &a->x, kr_at3(&a->x, c->b, c->h, c->p0), a->x.stride[2], c->n);
  for (int i = 0; i < c->n; i += KR_VL) {
    kr_v dt = kr_v_add(kr_v_load(c->dt + i), kr_v_load(bias + i));
    if (a->call.flags & KRAIT_UPDATE_SOFTPLUS) dt = kr_v_softplus_fast(dt);
    kr_v_store(c->dt_x + i, kr_v_mul(dt, kr_v_load(c->x + i)));
    kr_v_store(c->dt + i, kr_v_mul(dt, kr_v_set1(log2_e)));
  }
  if (a->A.stride[2] != 0) return;
  read_channels(c->decay, &a->A, kr_at3(&a->A, c->h, c->p0, 0), a->A.stride[1], c->n);
  for (int i = 0; i < c->n; i += KR_VL)
    kr_v_store(c->decay + i, kr_v_exp2_any(kr_v_load(c->dt + i), kr_v_load(c->decay + i)));
}

/* Advances one channel's state; A is NULL where all n share one decay. Returns partial sums of sum_n C state. */
KR_INLINE kr_v advance_state_row(float *state, const float *A, const chunk *c, int i, int64_t N) {
  const kr_v dt = kr_v_set1(c->dt[i]), dt_x = kr_v_set1(c->dt_x[i]), same = kr_v_set1(c->decay[i]);
  const float *B = c->B, *C = c->C;
  kr_v sum = kr_v_zero();
  int64_t n = 0;
  for (; n + KR_VL <= N; n += KR_VL) {
    kr_v decay = A ? kr_v_exp2_any(dt, kr_v_load(A + n)) : same;
    kr_v value = kr_v_fma(decay, kr_v_load(state + n), kr_v_mul(dt_x, kr_v_load(B + n)));
    kr_v_store(state + n, value);
    sum = kr_v_fma(kr_v_load(C + n), value, sum);
  }
  if (n < N) {
    int rest = (int)(N - n);
    kr_v decay = A ? kr_v_exp2_any(dt, kr_v_loadn(A + n, rest)) : same;
    kr_v value = kr_v_fma(decay, kr_v_loadn(state + n, rest), kr_v_mul(dt_x, kr_v_loadn(B + n, rest)));
    kr_v_storen(state + n, value, rest);
    sum = kr_v_fma(kr_v_loadn(C + n, rest), value, sum);
  }
  return sum;
}

/* A row of N floats: in place if already contiguous float32, else copied to buffer. */
static const float *row_of(const kr_view *v, int64_t at, int64_t stride, int64_t N, float *buffer) {
  if (v->dtype == KRAIT_F32 && stride == 1) return (const float *)v->data + at;
  kr_row_load(buffer, v->data, v->dtype, at, stride, N);
  return buffer;
}

static void update_channel(const update_args *a, chunk *c, int i) {
  float state_buffer[MAX_N], A_buffer[MAX_N];
  const int64_t at = kr_at4(&a->state, c->row, c->h, c->p0 + i, 0), N = a->N;
  const int in_place = a->state.dtype == KRAIT_F32 && a->state.stride[3] == 1;
  float *state = in_place ? (float *)a->state.data + at : state_buffer;
  if (!in_place) kr_row_load(state_buffer, a->state.data, a->state.dtype, at, a->state.stride[3], N);
  c->y[i] = kr_v_sum(
      a->A.stride[2] == 0
          ? advance_state_row(state, NULL, c, i, N)
          : advance_state_row(state, row_of(&a->A, kr_at3(&a->A, c->h, c->p0 + i, 0), a->A.stride[2], N, A_buffer), c,
                              i, N));
  if (!in_place) kr_row_store(state_buffer, a->state.data, a->state.dtype, at, a->state.stride[3], N);
}

/* Whether states, and A per state, are float rows: taken a vector of channels at a time, later rows prefetched. */
static int is_rows(const update_args *a) {
  const int is_same = a->A.stride[2] == 0;
  return a->state.dtype == KRAIT_F32 && a->state.stride[3] == 1 &&
         (is_same || (a->A.dtype == KRAIT_F32 && a->A.stride[2] == 1));
}

KR_INLINE void prefetch_state(const float *row, int64_t N) {
  for (int64_t n = 0; n < N; n += LINE) __builtin_prefetch(row + n);
}

/* As advance, of FEW states, whose B and C stay in registers. */
enum { FEW = 16, FEW_VECTORS = FEW / KR_VL };
KR_INLINE kr_v advance_few(float *state, const float *A, const chunk *c, int i, const kr_v *B, const kr_v *C) {
  const kr_v dt = kr_v_set1(c->dt[i]), dt_x = kr_v_set1(c->dt_x[i]);
  kr_v sum = kr_v_zero();
  for (int k = 0; k < FEW_VECTORS; k++) {
    const kr_v decay = kr_v_exp2_any(dt, kr_v_load(A + k * KR_VL)),
               value = kr_v_fma(decay, kr_v_load(state + k * KR_VL), kr_v_mul(dt_x, B[k]));
    kr_v_store(state + k * KR_VL, value);
    sum = kr_v_fma(C[k], value, sum);
  }
  return sum;
}

KR_INLINE void update_rows_of(const update_args *a, chunk *c, const int is_same, const int is_few) {
  const int64_t N = is_few ? FEW : a->N, state_step = a->state.stride[2], A_step = is_same ? 0 : a->A.stride[1];
  float *state = (float *)a->state.data + kr_at4(&a->state, c->row, c->h, c->p0, 0);
  const float *A = is_same ? NULL : (const float *)a->A.data + kr_at3(&a->A, c->h, c->p0, 0);
  const int is_far = !is_same && a->H * a->P * N > KEPT; /* A leaves the cache before the next sequence */
  kr_v B[FEW_VECTORS], C[FEW_VECTORS];
  for (int k = 0; k < FEW_VECTORS && is_few; k++)
    B[k] = kr_v_load(c->B + k * KR_VL), C[k] = kr_v_load(c->C + k * KR_VL);
  for (int i = 0; i < c->n; i += KR_VL) {
    kr_v sums[KR_VL];
    for (int lane = 0; lane < KR_VL; lane++) {
      sums[lane] = kr_v_zero();
      if (i + lane >= c->n) continue;
      prefetch_state(state + AHEAD * state_step, N);
      if (is_far) prefetch_state(A + AHEAD * A_step, N);
      if (is_few) sums[lane] = advance_few(state, A, c, i + lane, B, C);
      else sums[lane] = advance_state_row(state, A, c, i + lane, N);
      state += state_step;
      if (!is_same) A += A_step;
    }
    kr_v_store(c->y + i, kr_v_sum_each(sums));
  }
}

static void update_states(const update_args *a, chunk *c) {
  if (!is_rows(a))
    for (int i = 0; i < c->n; i++) update_channel(a, c, i);
  else if (a->A.stride[2] == 0) update_rows_of(a, c, 1, 0);
  else if (a->N == FEW) update_rows_of(a, c, 0, 1);
  else update_rows_of(a, c, 0, 0);
}

static void finish_chunk(const update_args *a, chunk *c) {
  float skip[CHUNK];
  read_channels(skip, &a->Dvec, kr_at2(&a->Dvec, c->h, c->p0), a->Dvec.stride[1], c->n);
  read_channels(c->z, &a->z, kr_at3(&a->z, c->b, c->h, c->p0), a->z.stride[2], c->n);
  for (int i = 0; i < c->n; i += KR_VL) {
    kr_v y = kr_v_fma(kr_v_load(skip + i), kr_v_load(c->x + i), kr_v_load(c->y + i));
    kr_v_store(c->y + i, kr_has(&a->z) ? kr_v_mul(y, kr_v_silu_fast(kr_v_load(c->z + i))) : y);
  }
}

static void update_chunk(const update_args *a, chunk *c) {
  memset(c->y, 0, sizeof c->y);
  c->row = kr_has(&a->state_batch_indices) ? kr_get_i32(&a->state_batch_indices, kr_at1(&a->state_batch_indices, c->b))
                                           : c->b;
  if (c->row >= 0) {
    kr_row_load(c->B, a->Bmat.data, a->Bmat.dtype, kr_at3(&a->Bmat, c->b, c->g, 0), a->Bmat.stride[2], a->N);
    kr_row_load(c->C, a->Cmat.data, a->Cmat.dtype, kr_at3(&a->Cmat, c->b, c->g, 0), a->Cmat.stride[2], a->N);
    read_state_update_steps(a, c);
    update_states(a, c);
    finish_chunk(a, c);
  }
  kr_row_store(c->y, a->out.data, a->out.dtype, kr_at3(&a->out, c->b, c->h, c->p0), a->out.stride[2], c->n);
}

static void update_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const update_args *a = user;
  const int64_t chunks = (a->P + CHUNK - 1) / CHUNK;
  chunk c;
  (void)worker;
  memset(&c, 0, sizeof c);
  for (int64_t i = begin; i < end; i++) {
    c.p0 = i % chunks * CHUNK;
    c.h = i / chunks % a->H;
    c.b = i / chunks / a->H;
    c.g = c.h / (a->H / a->G);
    c.n = (int)(a->P - c.p0 < CHUNK ? a->P - c.p0 : CHUNK);
    update_chunk(a, &c);
  }
}

int32_t KR_FN(kr_state_update)(const krait_ctx *ctx, const void *args) {
  const update_args *a = args;
  const int64_t chunks = (a->P + CHUNK - 1) / CHUNK, values = (a->P < CHUNK ? a->P : CHUNK) * a->N;
  KR_TRY(kr_need_rows("state_update", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  kr_parallel_long(ctx, a->B * a->H * chunks, 1 + 1024 / values, update_chunks, (void *)args);
  return KRAIT_OK;
}
