/* selective_scan_bwd_ref.c: the scan's gradient, written to be read (specs: selective_scan_fn, gradients). With
 * g = dout silu(z), h_t = exp(dt A) x_{t-1}, bars for conjugates (none when A is real, and k = 2 when complex, else 1):
 *   dx_t = k conj(C_t) g_t + conj(exp(dt_{t+1} A)) dx_{t+1}     (dlast_state at the last step)
 *   dC_t = k g_t conj(x_t), dB_t = dt u dx_t                     summed over the channels of a group
 *   du_t = D g_t + dt sum_n Re(conj(B_t) dx_t)
 *   ddt_t = sum_n Re(conj(B_t u_t + A h_t) dx_t),  dA = sum_t dt conj(h_t) dx_t
 *   ddelta = ddt sigmoid(delta + bias) with softplus below 20, else ddt;  ddelta_bias = sum ddelta
 *   dD = sum g u,  dz = dout y silu'(z),  dinitial = conj(exp(dt_0 A)) dx_0
 * A complex gradient is dLoss/dRe + i dLoss/dIm. */
#include <string.h>

#include "contract.h"
#include "op_list.h"
#include "scan_ref.h"
#include "scan_impls.h"

enum { MAX_N = 512 };

typedef kr_selective_scan_bwd_args bwd_args;

typedef struct sums {
  number *x;               /* [L][N] states of a channel and direction */
  number *dB, *dC;         /* [N][L] of a group */
  number *dA, *dA_reverse, *constant_dB, *constant_dC; /* [D][N] */
  double *dD, *dbias;      /* [D] */
  double *y, *g, *du, *ddt;/* [L] of a channel */
} sums;

static int has_flag_in_scan_bwd_ref(const bwd_args *a, uint32_t flag) { return (a->call.flags & flag) != 0; }

static double raw_step(const bwd_args *a, int64_t b, int64_t d, int64_t t) {
  double value = kr_get(&a->delta, kr_at3(&a->delta, b, d, t));
  return kr_has(&a->delta_bias) ? value + kr_get(&a->delta_bias, kr_at1(&a->delta_bias, d)) : value;
}
static double scan_bwd_step_size(const bwd_args *a, int64_t b, int64_t d, int64_t t) {
  double raw = raw_step(a, b, d, t);
  return has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_SOFTPLUS) ? softplus(raw) : raw;
}
static double scan_bwd_at(const kr_view *v, int64_t b, int64_t d, int64_t t) {
  return kr_get(v, kr_at3(v, b, d, t));
}

static int32_t scan_bwd_sequence(const bwd_args *a, const walk *w, int64_t i) {
  return kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w->b, time_of(w, i)));
}
static int restarts(const bwd_args *a, const walk *w, int64_t i) {
  return kr_has(&a->seq_idx) && i > 0 && scan_bwd_sequence(a, w, i) != scan_bwd_sequence(a, w, i - 1);
}

static number initial_state(const bwd_args *a, const walk *w, int64_t d, int64_t n) {
  return kr_has(&a->initial_state) ? get_number(&a->initial_state, kr_at3(&a->initial_state, w->state_row, d, n))
                                   : number_of(0);
}
static number B_of(const bwd_args *a, int64_t b, int64_t d, int64_t n, int64_t t) {
  return get_parameter(&a->Bmat, has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_B_CONSTANT), a->A.dtype == KRAIT_C64, b,
                       d / (a->D / a->G), d, n, t);
}
static number C_of(const bwd_args *a, int64_t b, int64_t d, int64_t n, int64_t t) {
  return get_parameter(&a->Cmat, has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_C_CONSTANT), a->A.dtype == KRAIT_C64, b,
                       d / (a->D / a->G), d, n, t);
}

/* Stores the state of every step in s->x and adds the sums over n to y. */
static void replay(const bwd_args *a, const walk *w, int64_t d, const kr_view *A, const sums *s, int64_t begin) {
  double k = A->dtype == KRAIT_C64 ? 2 : 1;
  for (int64_t i = 0; i < w->n; i++) {
    int64_t t = time_of(w, i);
    double dt = scan_bwd_step_size(a, w->b, d, t), u = scan_bwd_at(&a->u, w->b, d, t);
    for (int64_t n = 0; n < a->N; n++) {
      number before = restarts(a, w, i) ? number_of(0) : i ? s->x[(i - 1) * a->N + n] : initial_state(a, w, d, n);
      number decay = exponential(scale(dt, get_number(A, kr_at2(A, d, n))));
      number x = add(times(decay, before), scale(dt * u, B_of(a, w->b, d, n, t)));
      s->x[i * a->N + n] = x;
      s->y[t - begin] += k * times(C_of(a, w->b, d, n, t), x).re;
    }
  }
}

static void add_to(number *sum, number value) { *sum = add(*sum, value); }

/* One step back: carry is conj(exp(dt_{t+1} A)) dx_{t+1} on entry and the same for this step on return. */
static void scan_bwd_step_back(const bwd_args *a, const walk *w, int64_t i, int64_t d, const kr_view *A, number *dA,
                      const sums *s, int64_t begin, number *carry) {
  int64_t t = time_of(w, i);
  double dt = scan_bwd_step_size(a, w->b, d, t), u = scan_bwd_at(&a->u, w->b, d, t), g = s->g[t - begin],
         k = A->dtype == KRAIT_C64 ? 2 : 1;
  int fresh = restarts(a, w, i);
  for (int64_t n = 0; n < a->N; n++) {
    number B = B_of(a, w->b, d, n, t), C = C_of(a, w->b, d, n, t), An = get_number(A, kr_at2(A, d, n));
    number before = fresh ? number_of(0) : i ? s->x[(i - 1) * a->N + n] : initial_state(a, w, d, n);
    number decay = exponential(scale(dt, An)), h = times(decay, before);
    number dx = add(scale(k * g, conjugate(C)), carry[n]);
    add_to(has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_C_CONSTANT) ? &s->constant_dC[d * a->N + n] : &s->dC[n * a->L + t],
           scale(k * g, conjugate(s->x[i * a->N + n])));
    add_to(has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_B_CONSTANT) ? &s->constant_dB[d * a->N + n] : &s->dB[n * a->L + t],
           scale(dt * u, dx));
    add_to(&dA[d * a->N + n], scale(dt, times(conjugate(h), dx)));
    s->du[t - begin] += dt * times(conjugate(B), dx).re;
    s->ddt[t - begin] += u * times(conjugate(B), dx).re + times(conjugate(times(An, h)), dx).re;
    carry[n] = fresh ? number_of(0) : times(conjugate(decay), dx);
  }
}

static void scan_bwd_walk_back(const bwd_args *a, const walk *w, int64_t d, const kr_view *A, number *dA,
                               const sums *s, int64_t begin) {
  number carry[MAX_N];
  for (int64_t n = 0; n < a->N; n++)
    carry[n] = kr_has(&a->dlast_state) ? get_number(&a->dlast_state, kr_at3(&a->dlast_state, w->state_row, d, n))
                                       : number_of(0);
  for (int64_t i = w->n - 1; i >= 0; i--) scan_bwd_step_back(a, w, i, d, A, dA, s, begin, carry);
  for (int64_t n = 0; kr_has(&a->dinitial_state) && n < a->N; n++)
    put_number(&a->dinitial_state, kr_at3(&a->dinitial_state, w->state_row, d, n), carry[n]);
}

static void begin_channel(const bwd_args *a, const walk *w, int64_t d, const sums *s, int64_t begin) {
  for (int64_t i = 0; i < w->n; i++) {
    int64_t t = begin + i;
    int silent = kr_has(&a->seq_idx) && kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w->b, t)) < 0;
    double z = kr_has(&a->z) ? scan_bwd_at(&a->z, w->b, d, t) : 0;
    s->g[i] =
        silent || !kr_has(&a->dout) ? 0 : scan_bwd_at(&a->dout, w->b, d, t) * (kr_has(&a->z) ? z * sigmoid(z) : 1);
    s->y[i] = s->du[i] = s->ddt[i] = 0;
  }
}

static void finish_step(const bwd_args *a, const walk *w, int64_t d, const sums *s, int64_t i, int64_t t) {
  double u = scan_bwd_at(&a->u, w->b, d, t), D = kr_has(&a->Dvec) ? kr_get(&a->Dvec, kr_at1(&a->Dvec, d)) : 0,
         raw = raw_step(a, w->b, d, t);
  double ddelta = has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_SOFTPLUS) && raw <= 20 ? s->ddt[i] * sigmoid(raw) : s->ddt[i];
  s->dD[d] += s->g[i] * u;
  s->dbias[d] += ddelta;
  if (kr_has(&a->du)) kr_put(&a->du, kr_at3(&a->du, w->b, d, t), s->du[i] + D * s->g[i]);
  if (kr_has(&a->ddelta)) kr_put(&a->ddelta, kr_at3(&a->ddelta, w->b, d, t), ddelta);
  if (!kr_has(&a->dz)) return;
  int silent = kr_has(&a->seq_idx) && kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w->b, t)) < 0;
  double z = scan_bwd_at(&a->z, w->b, d, t), gate = sigmoid(z) * (1 + z * sigmoid(-z));
  kr_put(&a->dz, kr_at3(&a->dz, w->b, d, t),
         silent || !kr_has(&a->dout) ? 0 : scan_bwd_at(&a->dout, w->b, d, t) * (s->y[i] + D * u) * gate);
}

static void run_scan_bwd_channel(const bwd_args *a, int64_t row, int64_t d, const sums *s) {
  walk ahead = walk_of(row, a->L, &a->cu_seqlens, has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_REVERSE)),
       back = walk_of(row, a->L, &a->cu_seqlens, 1);
  int64_t begin = walk_of(row, a->L, &a->cu_seqlens, 0).first;
  begin_channel(a, &ahead, d, s, begin);
  replay(a, &ahead, d, &a->A, s, begin);
  scan_bwd_walk_back(a, &ahead, d, &a->A, s->dA, s, begin);
  if (has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_BOTH)) {
    replay(a, &back, d, &a->A_reverse, s, begin);
    scan_bwd_walk_back(a, &back, d, &a->A_reverse, s->dA_reverse, s, begin);
  }
  for (int64_t i = 0; i < ahead.n; i++) finish_step(a, &ahead, d, s, i, begin + i);
}

static void write_scan_bwd_ref_shared(const bwd_args *a, const kr_view *v, const number *sum, int64_t b, int64_t g) {
  int is_complex = a->A.dtype == KRAIT_C64;
  for (int64_t n = 0; kr_has(v) && n < a->N; n++)
    for (int64_t t = 0; t < a->L; t++) {
      kr_put(v, kr_at4(v, b, g, n, is_complex ? 2 * t : t), sum[n * a->L + t].re);
      if (is_complex) kr_put(v, kr_at4(v, b, g, n, 2 * t + 1), sum[n * a->L + t].im);
    }
}

static void write_channels(const bwd_args *a, const kr_view *v, const number *sum) {
  for (int64_t d = 0; kr_has(v) && d < a->D; d++)
    for (int64_t n = 0; n < a->N; n++) put_number(v, kr_at2(v, d, n), sum[d * a->N + n]);
}

static uint64_t n_numbers(const bwd_args *a) { return (uint64_t)(3 * a->L * a->N + 4 * a->D * a->N); }
static uint64_t n_doubles(const bwd_args *a) { return (uint64_t)(2 * a->D + 4 * a->L); }

uint64_t kr_selective_scan_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return n_numbers(args) * sizeof(number) + n_doubles(args) * sizeof(double);
}

static sums cut_scan_bwd_scratch(const bwd_args *a) {
  memset(a->call.scratch, 0, (size_t)kr_selective_scan_bwd_ref_scratch(NULL, a));
  number *p = a->call.scratch;
  int64_t LN = a->L * a->N, DN = a->D * a->N;
  double *q = (double *)(p + n_numbers(a));
  return (sums){p, p + LN, p + 2 * LN, p + 3 * LN, p + 3 * LN + DN, p + 3 * LN + 2 * DN, p + 3 * LN + 3 * DN,
                q, q + a->D, q + 2 * a->D, q + 2 * a->D + a->L, q + 2 * a->D + 2 * a->L, q + 2 * a->D + 3 * a->L};
}

/* All sequences of a batch entry share its dB and dC: rows is S with cu_seqlens, else 1. */
static void run_scan_bwd_group(const bwd_args *a, int64_t first_row, int64_t rows, int64_t b, int64_t g,
                               const sums *s) {
  int64_t group = a->D / a->G;
  memset(s->dB, 0, (size_t)(a->L * a->N) * sizeof *s->dB);
  memset(s->dC, 0, (size_t)(a->L * a->N) * sizeof *s->dC);
  for (int64_t row = first_row; row < first_row + rows; row++)
    for (int64_t d = g * group; d < (g + 1) * group; d++) run_scan_bwd_channel(a, row, d, s);
  if (!has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_B_CONSTANT)) write_scan_bwd_ref_shared(a, &a->dB, s->dB, b, g);
  if (!has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_C_CONSTANT)) write_scan_bwd_ref_shared(a, &a->dC, s->dC, b, g);
}

int32_t kr_selective_scan_bwd_ref(const krait_ctx *ctx, const void *args) {
  const bwd_args *a = args;
  (void)ctx;
  int packed = kr_has(&a->cu_seqlens);
  if (packed) KR_TRY(kr_need_offsets("selective_scan_bwd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  sums s = cut_scan_bwd_scratch(a);
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t g = 0; g < a->G; g++) run_scan_bwd_group(a, packed ? 0 : b, packed ? a->S : 1, b, g, &s);
  write_channels(a, &a->dA, s.dA);
  write_channels(a, &a->dA_reverse, s.dA_reverse);
  if (has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_B_CONSTANT)) write_channels(a, &a->dB, s.constant_dB);
  if (has_flag_in_scan_bwd_ref(a, KRAIT_SCAN_C_CONSTANT)) write_channels(a, &a->dC, s.constant_dC);
  for (int64_t d = 0; d < a->D; d++) {
    if (kr_has(&a->dDvec)) kr_put(&a->dDvec, kr_at1(&a->dDvec, d), s.dD[d]);
    if (kr_has(&a->ddelta_bias)) kr_put(&a->ddelta_bias, kr_at1(&a->ddelta_bias, d), s.dbias[d]);
  }
  return KRAIT_OK;
}
