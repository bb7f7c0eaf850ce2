/* emulated_walk.c: Mamba 3's scan and its gradient on warpgroups on the emulator, in calls that random ones do not
 * cover: states that blocks hand on, shares of a group's heads, NaN of one token. Usage: emulated_walk LIBCUDA. */
#define _GNU_SOURCE
#include "../test.h"

#include "cuda.h"
#include "emulated_impls.h"
#include "emulator/emulator.h"
#include "half.h"

static int is_f16; /* else bfloat16 */
static uint16_t narrow(float v) { return is_f16 ? kr_float_to_f16(v) : kr_float_to_bf16(v); }

/* Numbers from -1 to 1, of a period that no row has. */
static void fill(uint16_t *to, int n, int step, int period) {
  for (int i = 0; i < n; i++) to[i] = narrow((float)(i * step % period) / ((float)period / 2) - 1);
}

/* On three multiprocessors four heads are three blocks' and seven six blocks', which hand states on; and NaN of a
 * head's token reaches that head's later tokens alone. */
static void heads_are_scanned_without_rows(void **state) {
  enum { L = 200, HEADS = 7, P = 16, N = 16, M = 6, BAD = 77 };
  static _Alignas(64) uint16_t x[L * HEADS * P], B[L * N], C[L * N], out[2][L * HEADS * P];
  static float dt[L * HEADS], decay[L * HEADS], trap[L * HEADS], angles[L * M], bias[HEADS * N];
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
  (void)state;
  if (!(kr_cuda_built_tiers() & KRAIT_CAP_CUDA_HOPPER)) skip();
  setenv("KR_FAKE_CUDA", "capability=90,shared=232448,multiprocessors=3", 1);
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  kr_emulated_blocks_in_order(1); /* they hand states on */
  fill(B, L * N, 29, 97), fill(C, L * N, 31, 89);
  fill_random(trap, L * HEADS), fill_random(angles, L * M), fill_random(bias, HEADS * N);
  for (int i = 0; i < L * HEADS; i++) dt[i] = 0.02f + 0.1f * (float)(i % 7), decay[i] = -0.05f * (float)(i % 9);
  for (int i = 0; i < 4; i++) {
    kr_emulated_order(i % KR_N_ORDERS);
    const int heads = i & 1 ? HEADS : 4;
    kr_mamba3_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = heads, .P = P, .N = N, .G = 1, .R = 1, .M = M};
    const kr_view steps = {NULL, {L * heads, heads, 1}, KRAIT_F32, 0};
    fill(x, L * HEADS * P, 37, 101);
    if (i > 1) x[(BAD * heads + 2) * P + 3] = 0x7fc0;
    a.x = a.z = a.out = (kr_view){x, {L * heads * P, heads * P, P, 1}, KRAIT_BF16, 0};
    a.Bmat = a.Cmat = (kr_view){B, {L * N, N, N, 1}, KRAIT_BF16, 0}, a.Cmat.data = C;
    a.dt = a.log_decay = a.trap = steps, a.dt.data = dt, a.log_decay.data = decay, a.trap.data = trap;
    a.B_bias = a.C_bias = (kr_view){bias, {N, N, 1}, KRAIT_F32, 0};
    a.angles = (kr_view){angles, {L * M, M, 0, 1}, KRAIT_F32, 0};
    a.out.data = out[0], run_row(ctx, "mamba3", "ref", &a);
    const int64_t before = kr_emulated_launches();
    a.out.data = out[1], run_row(ctx, "mamba3", "cuda_hopper", &a);
    assert_int_equal(kr_emulated_launches() - before, 5); /* no rows */
    for (int k = 0; k < L * heads * P; k++) {
      const float g = kr_bf16_to_float(out[1][k]), w = kr_bf16_to_float(out[0][k]);
      if (!(fabsf(g - w) <= 0.05f * (1 + fabsf(w))) && !(isnan(g) && isnan(w)))
        fail_msg("%d heads: number %d is %g, not %g", heads, k, (double)g, (double)w);
    }
  }
  krait_ctx_close(&ctx);
}

/* Of one array: numbers as far apart as 16 bits make them, NaN in the same places. */
static void compare_gradients(const char *what, const float *got, const float *want, int n) {
  double squares = 0;
  int n_finite = 0;
  for (int i = 0; i < n; i++)
    if (isfinite(want[i])) squares += (double)want[i] * want[i], n_finite++;
  const double rms = sqrt(squares / (n_finite ? n_finite : 1));
  for (int i = 0; i < n; i++)
    if (!(fabs((double)got[i] - want[i]) <= 0.06 * (rms + fabs((double)want[i]))) && !(isnan(got[i]) && isnan(want[i])))
      fail_msg("%s: number %d is %g, not %g", what, i, (double)got[i], (double)want[i]);
}

/* The norm of the difference, as a share of the wanted one's. */
static double apart(const float *got, const float *want, int n) {
  double difference = 0, all = 0;
  for (int i = 0; i < n; i++)
    difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]), all += (double)want[i] * want[i];
  return sqrt(difference / all);
}

/* The gradient of a call, given what the forward call keeps for it. */
static void run_kept(const krait_ctx *ctx, const kr_mamba3_bwd_args *of, uint16_t *out, float *kept, int64_t n) {
  kr_mamba3_args forward = {.call.size = sizeof forward};
  kr_mamba3_bwd_args a = *of;
  memcpy((char *)&forward + sizeof(kr_call), (const char *)of + sizeof(kr_call),
         offsetof(kr_mamba3_args, out) - sizeof(kr_call));
  assert_true(a.H * (a.n_kept = (a.L + 63) / 64 * (6208 + a.M) + 1) == n);
  forward.n_kept = a.n_kept, forward.out = a.x, forward.out.data = out;
  forward.kept = a.kept = (kr_view){kept, {a.H * a.n_kept, a.n_kept, 1}, KRAIT_F32, 0};
  memset(kept, 0xff, (size_t)n * sizeof *kept);
  run_row(ctx, "mamba3", "cuda_hopper", &forward);
  float *const before = malloc((size_t)n * sizeof *kept);
  memcpy(before, kept, (size_t)n * sizeof *kept);
  run_row(ctx, "mamba3_bwd", "cuda_hopper", &a);
  assert_memory_equal(kept, before, (size_t)n * sizeof *kept); /* a second gradient may follow */
  free(before);
}

/* Gradients of which dB and dC are summed over heads where they are made: shares of heads to a block, tokens that fill
 * no chunk; of a head with NaN, which is computed again, only what the equations send it to; with a gradient of the
 * last keys; and of a head whose states, or their gradients, leave float16's range, which no result does. All of this
 * also with what the forward call kept. */
static void heads_give_gradients_without_rows(void **state) {
  enum { L = 150, HEADS = 6, G = 2, P = 16, N = 128, M = 12, BAD = 77, ROWS = L * HEADS * P, STATES = L * G * N };
  static _Alignas(64) uint16_t x[ROWS], z[ROWS], dout[ROWS], B[STATES], C[STATES], outs[3][2 * ROWS + 2 * STATES],
      ends[HEADS * N], out[ROWS];
  static float dt[L * HEADS], decay[L * HEADS], trap[L * HEADS], angles[L * M], bias[HEADS * N], D[HEADS];
  enum { PLAIN = 2, NANS = 4, ENDS = 4, STATES_OUT, GRADIENTS_OUT }; /* calls before the first two; or that one */
  enum { VALUES = 3 * L * HEADS + L * M + 2 * HEADS * N + HEADS };
  static float values[3][VALUES], wide[3][2 * ROWS + 2 * STATES];
  static _Alignas(64) float kept[HEADS * ((L + 63) / 64 * (6208 + M) + 1)];
  (void)state;
  if (!(kr_cuda_built_tiers() & KRAIT_CAP_CUDA_HOPPER)) skip();
  fill_random(trap, L * HEADS), fill_random(angles, L * M), fill_random(bias, HEADS * N), fill_random(D, HEADS);
  kr_emulated_blocks_in_order(1);
  for (int i = 0; i <= GRADIENTS_OUT; i++) {
    krait_ctx *ctx = NULL;
    is_f16 = i > ENDS;
    const int type = is_f16 ? KRAIT_F16 : KRAIT_BF16;
    fill(B, STATES, 29, 97), fill(C, STATES, 31, 89), fill(z, ROWS, 41, 83), fill(dout, ROWS, 43, 79);
    fill(ends, HEADS * N, 47, 73);
    for (int k = 0; k < L * HEADS; k++) dt[k] = 0.02f + 0.1f * (float)(k % 7), decay[k] = -0.05f * (float)(k % 9);
    const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
    setenv("KR_FAKE_CUDA",
           i & 1 ? "capability=90,shared=232448,multiprocessors=3" : "capability=90,shared=232448,multiprocessors=16",
           1);
    assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
    kr_emulated_order(i % KR_N_ORDERS);
    kr_mamba3_bwd_args a = {.call.size = sizeof a, .B = 1, .L = L, .H = HEADS, .P = P, .N = N, .G = G, .R = 1, .M = M};
    const kr_view steps = {NULL, {L * HEADS, HEADS, 1}, KRAIT_F32, 0};
    fill(x, ROWS, 37, 101);
    if (i >= PLAIN && i < NANS) x[(BAD * HEADS + 2) * P + 3] = 0x7fc0;
    for (int k = 0; is_f16 && k < L * P; k++) {
      const int row = k / P * HEADS + 2, at = row * P + k % P, is_state = i == STATES_OUT;
      x[at] = narrow(is_state ? 8000 : 1e-3f * (float)(k % 5 - 2)), dout[at] = narrow(is_state ? 0 : 2000);
      z[at] = narrow(3), dt[row] = is_state ? 0.3f : 0.001f, decay[row] = -0.001f;
    }
    a.x = a.z = a.dout = (kr_view){x, {ROWS, HEADS * P, P, 1}, type, 0}, a.z.data = z, a.dout.data = dout;
    a.Bmat = a.Cmat = (kr_view){B, {STATES, G * N, N, 1}, type, 0}, a.Cmat.data = C;
    if (i == ENDS) a.dfinal_B = (kr_view){ends, {HEADS * N, HEADS * N, N, 1}, type, 0};
    a.dt = a.log_decay = a.trap = steps, a.dt.data = dt, a.log_decay.data = decay, a.trap.data = trap;
    a.B_bias = a.C_bias = (kr_view){bias, {N, N, 1}, KRAIT_F32, 0}, a.Dvec = (kr_view){D, {1}, KRAIT_F32, 0};
    a.angles = (kr_view){angles, {L * M, M, 0, 1}, KRAIT_F32, 0};
    int64_t launches[3] = {0};
    for (int k = 0; k < 3; k++) {
      float *to = values[k];
      a.dx = a.dz = a.x, a.dB = a.dC = a.Bmat, a.ddt = a.dtrap = a.dlog_decay = steps, a.dangles = a.angles;
      a.dB_bias = a.dC_bias = a.B_bias, a.dDvec = a.Dvec;
      a.dx.data = outs[k], a.dz.data = outs[k] + ROWS, a.dB.data = outs[k] + 2 * ROWS;
      a.dC.data = outs[k] + 2 * ROWS + STATES;
      a.ddt.data = to, a.dtrap.data = to += L * HEADS, a.dlog_decay.data = to += L * HEADS;
      a.dangles.data = to += L * HEADS, a.dB_bias.data = to += L * M, a.dC_bias.data = to += HEADS * N;
      a.dDvec.data = to + HEADS * N;
      launches[k] = -kr_emulated_launches();
      if (k < 2)
        run_row(ctx, "mamba3_bwd", k ? "cuda_hopper" : "ref", &a);
      else
        run_kept(ctx, &a, out, kept, sizeof kept / sizeof *kept);
      launches[k] += kr_emulated_launches();
      for (int n = 0; n < 2 * ROWS + 2 * STATES; n++)
        wide[k][n] = is_f16 ? kr_f16_to_float(outs[k][n]) : kr_bf16_to_float(outs[k][n]);
    }
    const struct {
      const char *name;
      int n;
    } of_rows[] = {{"dx", ROWS}, {"dz", ROWS}, {"dB", STATES}, {"dC", STATES}},
      of_values[] = {{"ddt", L * HEADS},     {"dtrap", L * HEADS},   {"dlog_decay", L * HEADS}, {"dangles", L * M},
                     {"dB_bias", HEADS * N}, {"dC_bias", HEADS * N}, {"dDvec", HEADS}};
    enum { ANGLES = 3 * L * HEADS }; /* whose gradients are sums over all later tokens, which largely cancel */
    for (int way = 1; way < 3; way++) {
      for (size_t k = 0, at = 0; k < sizeof of_rows / sizeof *of_rows; at += (size_t)of_rows[k++].n)
        compare_gradients(of_rows[k].name, wide[way] + at, wide[0] + at, of_rows[k].n);
      for (size_t k = 0, at = 0; k < sizeof of_values / sizeof *of_values; at += (size_t)of_values[k++].n)
        compare_gradients(of_values[k].name, values[way] + at, values[0] + at, of_values[k].n);
      if (i < PLAIN) assert_true(apart(values[way] + ANGLES, values[0] + ANGLES, L * M) < 0.01);
    }
    const int forward = 5, saved = i == ENDS ? 0 : 3; /* sums of turns, what is before them, the walk */
    assert_int_equal(launches[2], launches[1] + forward - saved);
    krait_ctx_close(&ctx);
  }
}

/* A block passes on what its scan keeps: its gradient is the same within the rounding of the output before the gate, by
 * three launches fewer; where no warpgroups scan, such a call is refused. */
static void blocks_keep_what_scans_keep(void **state) {
  enum { L = 150, HEADS = 8, P = 16, N = 128, M = 8, WIDTH = 2 * HEADS * P + 2 * N + 3 * HEADS + M };
  enum { ROWS = L * HEADS * P, KEPT = (L + 63) / 64 * (6208 + M) + 1 };
  static _Alignas(64) uint16_t x[L * WIDTH], dx[2][L * WIDTH], out[2][ROWS], dout[ROWS], BC[L * 2 * N];
  static _Alignas(64) float steps_of[2][L * HEADS], norm[N], bias[HEADS * N], kept[HEADS * KEPT], wide[2][L * WIDTH];
  (void)state;
  if (!(kr_cuda_built_tiers() & KRAIT_CAP_CUDA_HOPPER)) skip();
  is_f16 = 0;
  fill(x, L * WIDTH, 37, 101), fill(dout, ROWS, 43, 79), fill_random(bias, HEADS * N);
  for (int i = 0; i < N; i++) norm[i] = 1 + 0.01f * (float)(i % 5);
  kr_emulated_blocks_in_order(1);
  for (int is_old = 0; is_old < 2; is_old++) {
    krait_ctx *ctx = NULL;
    const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
    setenv("KR_FAKE_CUDA",
           is_old ? "capability=80,shared=166912,multiprocessors=16" : "capability=90,shared=232448,multiprocessors=16",
           1);
    assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
    kr_mamba3_inner_bwd_args d = {.call.size = sizeof d, .B = 1, .L = L, .H = HEADS, .P = P, .N = N, .G = 1, .R = 1};
    d.V = 1, d.M = M, d.A_floor = 1e-4f, d.BC_eps = d.eps = 1e-5f;
    d.x = d.dx = (kr_view){x, {L * WIDTH, WIDTH, 1}, KRAIT_BF16, 0};
    d.B_norm = d.C_norm = (kr_view){norm, {1}, KRAIT_F32, 0};
    d.B_bias = d.C_bias = (kr_view){bias, {N, N, 1}, KRAIT_F32, 0};
    d.BC = (kr_view){BC, {L * 2 * N, 2 * N, 1}, KRAIT_BF16, 0};
    d.dt = d.log_decay = (kr_view){steps_of[0], {L * HEADS, HEADS, 1}, KRAIT_F32, 0}, d.log_decay.data = steps_of[1];
    d.dout = (kr_view){dout, {ROWS, HEADS * P, 1}, KRAIT_BF16, 0};
    int64_t launches[2];
    for (int k = 0; k < 2; k++) {
      kr_mamba3_inner_args a = {.call.size = sizeof a};
      if (k) d.n_kept = KEPT, d.kept = (kr_view){kept, {HEADS * KEPT, KEPT, 1}, KRAIT_F32, 0};
      memcpy((char *)&a + sizeof a.call, (char *)&d + sizeof a.call,
             offsetof(kr_mamba3_inner_args, out) - sizeof a.call);
      a.BC = d.BC, a.dt = d.dt, a.log_decay = d.log_decay, a.kept = d.kept, a.out = d.dout, a.out.data = out[k];
      if (k && is_old) {
        a.call.scratch = aligned_alloc(256, 1 << 24), a.call.scratch_bytes = 1 << 24;
        assert_true(row_named("mamba3_inner", "cuda_ampere_composed")->run(ctx, &a) < 0);
        free(a.call.scratch);
        break;
      }
      run_row(ctx, "mamba3_inner", "cuda_ampere_composed", &a);
      d.dx.data = dx[k], launches[k] = -kr_emulated_launches();
      run_row(ctx, "mamba3_inner_bwd", "cuda_ampere_composed", &d);
      launches[k] += kr_emulated_launches();
      for (int i = 0; i < L * WIDTH; i++) wide[k][i] = kr_bf16_to_float(dx[k][i]);
    }
    if (!is_old) {
      assert_int_equal(launches[1], launches[0] - 3);
      assert_memory_equal(out[0], out[1], sizeof out[0]);
      assert_true(apart(wide[1], wide[0], L * WIDTH) < 0.004);
    }
    krait_ctx_close(&ctx);
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(heads_are_scanned_without_rows),
                                     cmocka_unit_test(heads_give_gradients_without_rows),
                                     cmocka_unit_test(blocks_keep_what_scans_keep)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
