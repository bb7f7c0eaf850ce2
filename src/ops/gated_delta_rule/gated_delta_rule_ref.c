/* gated_delta_rule_ref.c: the recurrence of the gated delta rule, token by token, in double (krait/ops.h has the
 * equation). */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "contract.h"
#include "gated_delta_rule.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

enum { MOST = 256 };

typedef struct token {
  double k[MOST], q[MOST], decay[MOST], beta; /* decay: by row of the state */
} token;

/* A row of n times scale; as given or of length one. */
static void read_row(const kr_gated_delta_rule_args *a, const kr_view *v, int64_t at, double scale, double *to) {
  double sum = (double)a->eps;
  for (int64_t i = 0; i < a->Dk; i++) {
    to[i] = kr_get(v, at + i * v->stride[3]);
    sum += to[i] * to[i];
  }
  const double by = a->call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? scale : scale / sqrt(sum);
  for (int64_t i = 0; i < a->Dk; i++) to[i] *= by;
}

static void read_token(const kr_gated_delta_rule_args *a, int64_t b, int64_t t, int64_t h, token *to) {
  const int64_t head = h / (a->H / a->Hk);
  read_row(a, &a->k, kr_at4(&a->k, b, t, head, 0), 1, to->k);
  read_row(a, &a->q, kr_at4(&a->q, b, t, head, 0), 1 / sqrt((double)a->Dk), to->q);
  const double of_head = kr_delta_log_decay(a, b, t, h);
  const kr_view *by_key = &a->key_decay;
  for (int64_t i = 0; i < a->Dk; i++)
    to->decay[i] = exp(of_head + (kr_has(by_key) ? kr_get(by_key, kr_at4(by_key, b, t, h, i)) : 0));
  to->beta = kr_delta_beta(a, b, t, h);
}

/* Column j of a head's state, which is independent of the others. */
static double advance_column(const kr_gated_delta_rule_args *a, const token *x, double v, double *state, int64_t j) {
  double had = 0, out = 0;
  for (int64_t i = 0; i < a->Dk; i++) had += x->decay[i] * state[i * a->Dv + j] * x->k[i];
  for (int64_t i = 0; i < a->Dk; i++) {
    double *s = &state[i * a->Dv + j];
    *s = x->decay[i] * *s + x->k[i] * x->beta * (v - had);
    out += *s * x->q[i];
  }
  return out;
}

/* All tokens of a head; state (Dk,Dv). */
static void run_delta_head(const kr_gated_delta_rule_args *a, int64_t b, int64_t h, double *state) {
  token x;
  for (int64_t t = 0; t < a->L; t++) {
    read_token(a, b, t, h, &x);
    for (int64_t j = 0; j < a->Dv; j++)
      kr_put(&a->out, kr_at4(&a->out, b, t, h, j),
             advance_column(a, &x, kr_get(&a->v, kr_at4(&a->v, b, t, h, j)), state, j));
  }
}

static void move_state(const kr_view *v, int64_t b, int64_t h, const kr_gated_delta_rule_args *a, double *state,
                       int is_out) {
  for (int64_t i = 0; i < a->Dk; i++)
    for (int64_t j = 0; j < a->Dv; j++) {
      const int64_t at = kr_at4(v, b, h, i, j);
      if (is_out)
        kr_put(v, at, state[i * a->Dv + j]);
      else
        state[i * a->Dv + j] = kr_get(v, at);
    }
}

int32_t kr_gated_delta_rule_ref(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_rule_args *a = args;
  const size_t bytes = (size_t)(a->Dk * a->Dv) * sizeof(double);
  double *state = kr_alloc(bytes);
  (void)ctx;
  KR_CHECK(state, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t h = 0; h < a->H; h++) {
      memset(state, 0, bytes);
      if (kr_has(&a->initial_states)) move_state(&a->initial_states, b, h, a, state, 0);
      run_delta_head(a, b, h, state);
      if (kr_has(&a->final_states)) move_state(&a->final_states, b, h, a, state, 1);
    }
  kr_free(state);
  return KRAIT_OK;
}

static void skip_row(const kr_gated_delta_update_args *a, int64_t b) {
  for (int64_t h = 0; h < a->H; h++)
    for (int64_t j = 0; j < a->Dv; j++) kr_put(&a->out, kr_at3(&a->out, b, h, j), 0);
}

int32_t kr_gated_delta_update_ref(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_update_args *a = args;
  const kr_gated_delta_rule_args of = kr_delta_sequence_of(a);
  KR_TRY(kr_need_rows("gated_delta_update", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  double *state = kr_alloc((size_t)(a->Dk * a->Dv) * sizeof *state);
  (void)ctx;
  KR_CHECK(state, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  for (int64_t b = 0; b < a->B; b++) {
    const kr_view *rows = &a->state_batch_indices;
    const int64_t row = kr_has(rows) ? kr_get_i32(rows, kr_at1(rows, b)) : b;
    if (row < 0) skip_row(a, b);
    for (int64_t h = 0; h < a->H && row >= 0; h++) {
      move_state(&a->state, row, h, &of, state, 0);
      run_delta_head(&of, b, h, state);
      move_state(&a->state, row, h, &of, state, 1);
    }
  }
  kr_free(state);
  return KRAIT_OK;
}
