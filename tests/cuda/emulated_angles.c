/* emulated_angles.c: gradients of Mamba 3's angles and step sizes in bfloat16 on the emulator, by every way that the
 * gradients of keys and queries take: each is a sum over a thousand later tokens, of shares that largely cancel.
 * Usage: emulated_angles LIBCUDA. */
#define _GNU_SOURCE
#include "../test.h"

#include "cuda.h"
#include "emulated_impls.h"
#include "emulator/emulator.h"
#include "half.h"

enum { L = 1000, HEADS = 2, P = 16, N = 128, M = 12, R = 4, S = 3, ROWS = L * HEADS * P, STATES = L * R * N };

/* A kind of call. has_ends: gradients of final states; has_begins: states before; is_pack: three sequences. */
typedef struct kind {
  const char *row, *device;
  uint64_t tier;
  int N, R, has_z, has_ends, has_begins, is_pack;
  uint32_t flags;
} kind;

#define HOPPER "cuda_hopper", "capability=90,shared=232448,multiprocessors=16", KRAIT_CAP_CUDA_HOPPER
#define FEW                                                                                                 \
  "cuda_hopper", "capability=90,shared=232448,multiprocessors=4", KRAIT_CAP_CUDA_HOPPER /* heads are walked \
                                                                                         */
#define AMPERE "cuda_ampere_chunks", "capability=80,shared=166912,multiprocessors=16", KRAIT_CAP_CUDA_AMPERE
#define BASE "base_chunks", "capability=75,shared=65536,multiprocessors=16", KRAIT_CAP_CUDA_BASE

static const kind kinds[] = {{FEW, 128, 1, 1, 0, 0, 0, 0},
                             {FEW, 64, 1, 1, 0, 0, 0, 0},
                             {HOPPER, 128, 1, 1, 0, 0, 0, 0},
                             {HOPPER, 128, 1, 1, 1, 0, 0, 0},
                             {HOPPER, 128, 1, 0, 0, 0, 0, 0},
                             {HOPPER, 64, 1, 1, 0, 0, 0, 0},
                             {HOPPER, 48, 1, 0, 1, 0, 0, 0},
                             {HOPPER, 64, 1, 1, 0, 1, 0, 0},
                             {HOPPER, 64, 2, 0, 1, 0, 0, 0},
                             {HOPPER, 64, 4, 1, 0, 0, 0, KRAIT_MAMBA3_HALVES},
                             {HOPPER, 64, 1, 1, 0, 0, 0, KRAIT_MAMBA3_HALVES},
                             {HOPPER, 64, 1, 1, 0, 0, 1, 0},
                             {HOPPER, 64, 1, 0, 0, 1, 1, 0},
                             {AMPERE, 128, 1, 1, 0, 0, 0, 0},
                             {AMPERE, 128, 1, 1, 1, 0, 0, 0},
                             {AMPERE, 40, 1, 0, 0, 0, 0, KRAIT_MAMBA3_HALVES},
                             {AMPERE, 64, 4, 0, 0, 0, 0, 0},
                             {AMPERE, 64, 2, 1, 1, 1, 0, KRAIT_MAMBA3_HALVES},
                             {AMPERE, 64, 1, 1, 1, 1, 1, 0},
                             {BASE, 64, 1, 1, 0, 0, 0, 0},
                             {BASE, 64, 1, 0, 1, 0, 0, 0}};

static uint16_t x[ROWS] __attribute__((aligned(64))), z[ROWS] __attribute__((aligned(64))),
    dout[ROWS * R] __attribute__((aligned(64))), B[STATES] __attribute__((aligned(64))),
    C[STATES] __attribute__((aligned(64))), outs[2][2 * ROWS + 2 * STATES] __attribute__((aligned(64)));
static float steps_of[3][L * HEADS], angles[L * HEADS * M], bias[HEADS * R * N], ends[S * HEADS * P * N],
    begins[S * HEADS * P * N], values[2][L * HEADS * (M + 1)], biases[2][2 * HEADS * R * N], wide[2][2 * STATES];
static int32_t offsets[S + 1] = {0, 20, 21, L};

/* Numbers from -1 to 1, of a period that no row has. */
static void fill(uint16_t *to, int n, int step, int period) {
  for (int i = 0; i < n; i++) to[i] = kr_float_to_bf16((float)(i * step % period) / ((float)period / 2) - 1);
}

static void fill_all(void) {
  fill(B, STATES, 29, 97), fill(C, STATES, 31, 89), fill(z, ROWS, 41, 83), fill(dout, ROWS * R, 43, 79);
  fill(x, ROWS, 37, 101), fill_random(ends, S * HEADS * P * N), fill_random(begins, S * HEADS * P * N);
  fill_random(steps_of[2], L * HEADS), fill_random(angles, L * HEADS * M), fill_random(bias, HEADS * R * N);
  for (int i = 0; i < S * HEADS * P * N; i++) ends[i] *= 0.05f; /* else they are most of what angles get */
  for (int i = 0; i < L * HEADS; i++)
    steps_of[0][i] = 0.02f + 0.1f * (float)(i % 7), steps_of[1][i] = -0.05f * (float)(i % 9);
}

static kr_mamba3_bwd_args args_of(const kind *k) {
  kr_mamba3_bwd_args a = {.call = {.size = sizeof a, .flags = k->flags}, .B = 1, .L = L, .H = HEADS, .P = P};
  const kr_view steps = {NULL, {L * HEADS, HEADS, 1}, KRAIT_F32, 0};
  a.N = k->N, a.G = 1, a.R = k->R, a.M = M;
  a.x = (kr_view){x, {ROWS, HEADS * P, P, 1}, KRAIT_BF16, 0};
  a.dout = (kr_view){dout, {ROWS * k->R, k->R * HEADS * P, P, 1}, KRAIT_BF16, 0};
  if (k->has_z) a.z = a.dz = a.x, a.z.data = z;
  a.Bmat = a.Cmat = (kr_view){B, {STATES, k->R * k->N, k->N, 1}, KRAIT_BF16, 0}, a.Cmat.data = C;
  a.dt = a.log_decay = a.trap = steps, a.dt.data = steps_of[0], a.log_decay.data = steps_of[1];
  a.trap.data = steps_of[2];
  a.B_bias = a.C_bias = (kr_view){bias, {k->R * k->N, k->N, 1}, KRAIT_F32, 0};
  a.angles = (kr_view){angles, {L * HEADS * M, HEADS * M, M, 1}, KRAIT_F32, 0};
  if (k->is_pack) a.S = S, a.cu_seqlens = (kr_view){offsets, {1}, KRAIT_I32, 0};
  if (k->has_ends) a.dfinal_states = (kr_view){ends, {HEADS * P * k->N, P * k->N, k->N, 1}, KRAIT_F32, 0};
  if (k->has_begins) {
    a.initial_states = (kr_view){begins, {HEADS * P * k->N, P * k->N, k->N, 1}, KRAIT_F32, 0};
    a.initial_angles = (kr_view){begins, {HEADS * M, M, 1}, KRAIT_F32, 0};
    a.initial_B = (kr_view){begins, {k->R * HEADS * k->N, HEADS * k->N, k->N, 1}, KRAIT_F32, 0};
    a.initial_x = (kr_view){x, {HEADS * P, P, 1}, KRAIT_BF16, 0};
  }
  a.dx = a.x, a.dB = a.dC = a.Bmat, a.ddt = steps, a.dangles = a.angles, a.dB_bias = a.dC_bias = a.B_bias;
  return a;
}

/* The norm of the difference, as a share of the wanted one's. */
static double apart(const float *got, const float *want, int n) {
  double difference = 0, all = 0;
  for (int i = 0; i < n; i++)
    difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]), all += (double)want[i] * want[i];
  return sqrt(difference / all);
}

static void gradients_of_angles_are_close(void **state) {
  (void)state;
  fill_all();
  kr_emulated_blocks_in_order(1);
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const kind *const k = &kinds[i];
    if (!(kr_cuda_built_tiers() & k->tier)) continue;
    krait_ctx *ctx = NULL;
    const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1};
    setenv("KR_FAKE_CUDA", k->device, 1);
    assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
    kr_emulated_order((int)i % KR_N_ORDERS);
    kr_mamba3_bwd_args a = args_of(k);
    const int states = L * k->R * k->N, of_biases = HEADS * k->R * k->N;
    for (int n = 0; n < 2; n++) {
      a.dangles.data = values[n], a.ddt.data = values[n] + L * HEADS * M;
      a.dB_bias.data = biases[n], a.dC_bias.data = biases[n] + of_biases;
      a.dx.data = outs[n], a.dB.data = outs[n] + 2 * ROWS, a.dC.data = outs[n] + 2 * ROWS + states;
      if (k->has_z) a.dz.data = outs[n] + ROWS;
      run_row(ctx, "mamba3_bwd", n ? k->row : "ref", &a);
      for (int j = 0; j < 2 * states; j++) wide[n][j] = kr_bf16_to_float(outs[n][2 * ROWS + j]);
    }
    const double angle = apart(values[1], values[0], L * HEADS * M),
                 step = apart(values[1] + L * HEADS * M, values[0] + L * HEADS * M, L * HEADS);
    const double most = k->tier == KRAIT_CAP_CUDA_BASE ? 1e-5 : k->R > 1 || k == kinds ? 0.0065 : 0.0052;
    const double matrix = apart(wide[1], wide[0], 2 * states), own = apart(biases[1], biases[0], 2 * of_biases);
    if (!(matrix < 0.006 && own < 0.015))
      fail_msg("%s, kind %zu: gradients of B and C are %g apart, of biases %g", k->row, i, matrix, own);
    if (!(angle < most && step < 0.004))
      fail_msg("%s, kind %zu: angles' gradients are %g apart, steps' %g", k->row, i, angle, step);
    krait_ctx_close(&ctx);
  }
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_of_angles_are_close)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
