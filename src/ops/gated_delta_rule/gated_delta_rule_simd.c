/* gated_delta_rule_simd.c: columns of a head's state are independent: a task has some of them, in its own memory, and
 * all tokens. A token is two passes over them: what the state has for the key; then its change, and the result. */
#include <math.h>
#include <string.h>

#include "contract.h"
#include "gated_delta_rule.h"
#include "op_list.h"
#include "vec_tile.h"
#include "view.h"

enum { MOST = 256, COLUMNS = 32 }; /* COLUMNS of the state in a task: a multiple of every vector */

typedef struct token {
  float k[MOST + 16], q[MOST + 16], decay[MOST], k_decayed[MOST], v[COLUMNS], beta; /* decay: by row of the state */
} token;

/* Where a head's columns come from and go to; data NULL: zeros, nowhere. */
typedef struct task {
  const kr_gated_delta_rule_args *a;
  const kr_view *before, *after; /* (rows,H,Dk,Dv) */
  const kr_view *rows;           /* of them, by sequence; NULL: the sequence */
} task;

static float sum_squares(const float *x, int64_t n) {
  kr_v sum = kr_v_zero();
  for (int64_t i = 0; i < n; i += KR_VL) {
    const kr_v v = kr_v_load(x + i);
    sum = kr_v_fma(v, v, sum);
  }
  return kr_v_sum(sum);
}

/* A row of Dk times scale, as given or of length one; zeros follow up to a whole vector. */
static void load_unit_row(const kr_gated_delta_rule_args *a, const kr_view *v, int64_t at, float scale, float *to) {
  const int64_t n = a->Dk;
  memset(to + n / 16 * 16, 0, 16 * sizeof *to);
  kr_row_load(to, v->data, v->dtype, at, v->stride[3], n);
  const float by = a->call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? scale : scale / sqrtf(sum_squares(to, n) + a->eps);
  for (int64_t i = 0; i < n; i++) to[i] *= by;
}

static void read_decays(const kr_gated_delta_rule_args *a, int64_t b, int64_t t, int64_t h, token *to) {
  const double of_head = kr_delta_log_decay(a, b, t, h);
  const kr_view *by_key = &a->key_decay;
  const float same = (float)exp(of_head);
  for (int64_t i = 0; i < a->Dk; i++)
    to->decay[i] = kr_has(by_key) ? (float)exp(of_head + kr_get(by_key, kr_at4(by_key, b, t, h, i))) : same;
  for (int64_t i = 0; i < a->Dk; i++) to->k_decayed[i] = to->decay[i] * to->k[i];
}

static void load_token(const kr_gated_delta_rule_args *a, int64_t b, int64_t t, int64_t h, int64_t j, int64_t n,
                       token *to) {
  const int64_t head = h / (a->H / a->Hk);
  load_unit_row(a, &a->k, kr_at4(&a->k, b, t, head, 0), 1, to->k);
  load_unit_row(a, &a->q, kr_at4(&a->q, b, t, head, 0), 1 / sqrtf((float)a->Dk), to->q);
  read_decays(a, b, t, h, to);
  kr_row_load(to->v, a->v.data, a->v.dtype, kr_at4(&a->v, b, t, h, j), a->v.stride[3], n);
  to->beta = (float)kr_delta_beta(a, b, t, h);
}

/* state (Dk,COLUMNS); v becomes the result. */
KR_INLINE void advance_token(float *state, int64_t Dk, token *x) {
  enum { N = COLUMNS / KR_VL };
  const kr_v beta = kr_v_set1(x->beta);
  kr_v had[N], change[N], out[N];
  for (int c = 0; c < N; c++) had[c] = out[c] = kr_v_zero();
  for (int64_t i = 0; i < Dk; i++) {
    const kr_v k = kr_v_set1(x->k_decayed[i]);
    for (int c = 0; c < N; c++) had[c] = kr_v_fma(k, kr_v_load(state + i * COLUMNS + c * KR_VL), had[c]);
  }
  for (int c = 0; c < N; c++) change[c] = kr_v_mul(beta, kr_v_sub(kr_v_load(x->v + c * KR_VL), had[c]));
  for (int64_t i = 0; i < Dk; i++) {
    const kr_v k = kr_v_set1(x->k[i]), q = kr_v_set1(x->q[i]), decay = kr_v_set1(x->decay[i]);
    for (int c = 0; c < N; c++) {
      float *at = state + i * COLUMNS + c * KR_VL;
      const kr_v s = kr_v_fma(k, change[c], kr_v_mul(decay, kr_v_load(at)));
      kr_v_store(at, s);
      out[c] = kr_v_fma(q, s, out[c]);
    }
  }
  for (int c = 0; c < N; c++) kr_v_store(x->v + c * KR_VL, out[c]);
}

static void run_columns(const task *k, int64_t b, int64_t h, int64_t j, int64_t n) {
  const kr_gated_delta_rule_args *a = k->a;
  const int64_t row = k->rows && kr_has(k->rows) ? kr_get_i32(k->rows, kr_at1(k->rows, b)) : b;
  float state[MOST * COLUMNS];
  token x;
  memset(x.v, 0, sizeof x.v);
  memset(state, 0, (size_t)(a->Dk * COLUMNS) * sizeof *state);
  for (int64_t i = 0; i < a->Dk && k->before->data && row >= 0; i++)
    kr_row_load(state + i * COLUMNS, k->before->data, KRAIT_F32, kr_at4(k->before, row, h, i, j), k->before->stride[3],
                n);
  for (int64_t t = 0; t < a->L; t++) {
    if (row >= 0) {
      load_token(a, b, t, h, j, n, &x);
      advance_token(state, a->Dk, &x);
    }
    kr_row_store(x.v, a->out.data, a->out.dtype, kr_at4(&a->out, b, t, h, j), a->out.stride[3], n);
  }
  for (int64_t i = 0; i < a->Dk && k->after->data && row >= 0; i++)
    kr_row_store(state + i * COLUMNS, k->after->data, KRAIT_F32, kr_at4(k->after, row, h, i, j), k->after->stride[3],
                 n);
}

static void run_tasks(void *user, int64_t begin, int64_t end, int worker) {
  const task *k = user;
  const int64_t parts = (k->a->Dv + COLUMNS - 1) / COLUMNS;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t j = i % parts * COLUMNS, n = k->a->Dv - j < COLUMNS ? k->a->Dv - j : COLUMNS;
    run_columns(k, i / parts / k->a->H, i / parts % k->a->H, j, n);
  }
}

static int32_t run_delta(const krait_ctx *ctx, task *k) {
  const kr_gated_delta_rule_args *a = k->a;
  const int64_t parts = (a->Dv + COLUMNS - 1) / COLUMNS, work = a->L * a->Dk * COLUMNS;
  kr_parallel_long(ctx, a->B * a->H * parts, 1 + 8192 / (work > 0 ? work : 1), run_tasks, k);
  return KRAIT_OK;
}

int32_t KR_FN(kr_gated_delta_rule)(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_rule_args *a = args;
  return run_delta(ctx, &(task){.a = a, .before = &a->initial_states, .after = &a->final_states});
}

int32_t KR_FN(kr_gated_delta_update)(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_update_args *a = args;
  const kr_gated_delta_rule_args of = kr_delta_sequence_of(a);
  KR_TRY(kr_need_rows("gated_delta_update", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  return run_delta(ctx, &(task){.a = &of, .before = &a->state, .after = &a->state, .rows = &a->state_batch_indices});
}
