/* state_update_simd.c: the step with the state dimension across lanes; float32 state with unit stride on N is the fast
 * path, everything else goes element by element through a row buffer. */
#include <math.h>

#include "op_list.h"
#include "vec_math.h"
#include "view.h"

enum { MAX_N = 512 };

typedef struct step {
  float dt, x, dt_x;
} step;

static step read_step(const krait_state_update_args *a, int64_t b, int64_t h, int64_t p) {
  float dt = (float)kr_get(&a->dt, kr_at3(&a->dt, b, h, p));
  if (kr_has(&a->dt_bias)) dt += (float)kr_get(&a->dt_bias, kr_at2(&a->dt_bias, h, p));
  if ((a->call.flags & KRAIT_UPDATE_SOFTPLUS) && dt <= 20) dt = log1pf(expf(dt));
  float x = (float)kr_get(&a->x, kr_at3(&a->x, b, h, p));
  return (step){dt, x, dt * x};
}

static float advance(float *state, const float *A, const float *B, const float *C, int64_t N, step s) {
  kr_v dt = kr_v_set1(s.dt), dt_x = kr_v_set1(s.dt_x), sum = kr_v_zero();
  int64_t n = 0;
  for (; n + KR_VL <= N; n += KR_VL) {
    kr_v decay = kr_v_exp(kr_v_mul(dt, kr_v_load(A + n)));
    kr_v value = kr_v_fma(decay, kr_v_load(state + n), kr_v_mul(dt_x, kr_v_load(B + n)));
    kr_v_store(state + n, value);
    sum = kr_v_fma(kr_v_load(C + n), value, sum);
  }
  if (n < N) {
    int rest = (int)(N - n);
    kr_v decay = kr_v_exp(kr_v_mul(dt, kr_v_loadn(A + n, rest)));
    kr_v value = kr_v_fma(decay, kr_v_loadn(state + n, rest), kr_v_mul(dt_x, kr_v_loadn(B + n, rest)));
    kr_v_storen(state + n, value, rest);
    sum = kr_v_fma(kr_v_loadn(C + n, rest), value, sum);
  }
  return kr_v_sum(sum);
}

/* A row of N floats: in place if it is one already, else gathered into buffer. */
static float *gather_row(const krait_view *v, int64_t offset, int64_t last_stride, int64_t N, float *buffer) {
  if (v->dtype == KRAIT_F32 && last_stride == 1) return (float *)v->data + offset;
  for (int64_t n = 0; n < N; n++) buffer[n] = (float)kr_get(v, offset + n * last_stride);
  return buffer;
}

static void update_channel(const krait_state_update_args *a, int64_t b, int64_t row, int64_t h, int64_t p, const float *B, const float *C) {
  float state_buffer[MAX_N], A_buffer[MAX_N];
  int64_t at = kr_at4(&a->state, row, h, p, 0);
  float *state = gather_row(&a->state, at, a->state.stride[3], a->N, state_buffer);
  const float *A = gather_row(&a->A, kr_at3(&a->A, h, p, 0), a->A.stride[2], a->N, A_buffer);
  step s = read_step(a, b, h, p);
  float y = advance(state, A, B, C, a->N, s);
  if (state == state_buffer)
    for (int64_t n = 0; n < a->N; n++) kr_put(&a->state, at + n * a->state.stride[3], state[n]);
  if (kr_has(&a->Dvec)) y += (float)kr_get(&a->Dvec, kr_at2(&a->Dvec, h, p)) * s.x;
  if (kr_has(&a->z)) {
    float z = (float)kr_get(&a->z, kr_at3(&a->z, b, h, p));
    y *= z / (1 + expf(-z));
  }
  kr_put(&a->out, kr_at3(&a->out, b, h, p), y);
}

static void update_head(const krait_state_update_args *a, int64_t b, int64_t h) {
  float B_buffer[MAX_N], C_buffer[MAX_N];
  int64_t g = h / (a->H / a->G);
  int64_t row = kr_has(&a->state_batch_indices) ? kr_get_i32(&a->state_batch_indices, kr_at1(&a->state_batch_indices, b)) : b;
  const float *B = gather_row(&a->Bmat, kr_at3(&a->Bmat, b, g, 0), a->Bmat.stride[2], a->N, B_buffer);
  const float *C = gather_row(&a->Cmat, kr_at3(&a->Cmat, b, g, 0), a->Cmat.stride[2], a->N, C_buffer);
  for (int64_t p = 0; p < a->P; p++) {
    if (row < 0) kr_put(&a->out, kr_at3(&a->out, b, h, p), 0);
    else update_channel(a, b, row, h, p, B, C);
  }
}

static void update_range(void *user, int64_t begin, int64_t end, int worker) {
  const krait_state_update_args *a = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) update_head(a, i / a->H, i % a->H);
}

int32_t KR_FN(kr_state_update)(const krait_ctx *ctx, const void *args) {
  const krait_state_update_args *a = args;
  kr_parallel(ctx, a->B * a->H, 1, update_range, (void *)args);
  return KRAIT_OK;
}
