/* language.c: Mamba, Mamba-2, Mamba-3 and Qwen2 language models of random weights on a GPU beside the same on the CPU:
 * a prompt, then steps of several sequences, launched one by one at first, then as one graph of the driver. Compiled
 * twice: for a machine's GPU (skipped where there is none), and with KR_EMULATED for kernels that run on the host;
 * usage then: emulated_language LIBRARY. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <krait/language.h>
#include <krait/shared_lm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctx.h"
#ifdef KR_EMULATED
#include "emulator/emulator.h"
enum { IS_EMULATED = 1 };
#else
enum { IS_EMULATED = 0 };
#endif
#include "ctx_memory.h"
#include "half.h"
#include "lm/block_given.h"
#include "lm/block_mamba.h"
#include "lm/lm.h"
#include "lm/lm_builder.h"
#include "lm/lm_load.h"
#include "mamba_lm/mamba_lm.h"
#include "qwen2/qwen2.h"

enum {
  SLOTS = IS_EMULATED ? 10 : 40,
  PROMPT = IS_EMULATED ? 32 : 64, /* whole tiles of the scan's usual kernel */
  STEPS = IS_EMULATED ? 2 : 5,
  V = IS_EMULATED ? 75 : 2131
};

static krait_ctx *cpu, *gpu;
#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)

static int32_t open_random_mamba(const krait_ctx *ctx, const kr_mamba_lm_config *c, int32_t dtype, int64_t n_slots,
                                 kr_lm **m) {
  kr_lm_config *config;
  const int32_t status = kr_mamba_lm_describe(c, &config);
  return status < 0 ? status : kr_lm_open_random(ctx, config, dtype, n_slots, m);
}

static int32_t open_random_qwen2(const krait_ctx *ctx, const kr_qwen2_config *c, int32_t dtype, int64_t n_slots,
                                 kr_lm **m) {
  kr_lm_config *config;
  const int32_t status = kr_qwen2_describe(c, &config);
  return status < 0 ? status : kr_lm_open_random(ctx, config, dtype, n_slots, m);
}

static kr_mamba_lm_config config_of(int32_t mixer) {
  const int is_second = mixer == KR_MIXER_MAMBA2;
  const int64_t d = IS_EMULATED ? 64 : 512;
  kr_mamba_lm_config c = {.mixer = mixer,
                     .d = d,
                     .n_layers = IS_EMULATED ? 2 : 3,
                     .V = V,
                     .n_used = V - 2,
                     .Di = 2 * d,
                     .N = is_second ? 32 : 16,
                     .W = 4,
                     .eps = 1e-5f,
                     .is_rms = 1,
                     .G = 1,
                     .R = d / 32 * 8};
  c.H = is_second ? c.Di / 32 : 1;
  c.P = c.Di / c.H;
  c.mamba3 = (kr_lm_mamba3_sizes){
      .d = d, .H = 2 * d / 32, .P = 32, .N = 32, .G = 1, .R = 1, .M = 8, .is_normed = 1, .A_floor = 1e-4};
  return c;
}

static double error_of(const float *got, const float *want, int64_t n) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]);
    if (!(d <= error)) error = d;
    if (fabs(want[i]) > scale) scale = fabs(want[i]);
  }
  return error / scale;
}

static float got[SLOTS * V], want[SLOTS * V];

static void assert_close(const char *what, int64_t n, double bound, double *most) {
  const double error = error_of(got, want, n * V);
  if (!(error <= *most)) *most = error;
  if (!(error <= bound)) fail_msg("%s: %.3g of the largest, %.3g allowed", what, error, bound);
}

/* Prompts of different lengths, then steps of all B slots at once, then one of a single slot. */
static void compare(kr_lm *there, kr_lm *here, int64_t B, double bound, double *most) {
  int32_t slots[SLOTS], ids[PROMPT + SLOTS], best[SLOTS];
  for (int64_t b = 0; b < B; b++) {
    const int64_t n = 1 + (PROMPT - 1) * (b + 1) / B;
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 37 + b * 11 + 5) % V);
    slots[b] = (int32_t)((b * 3 + 1) % SLOTS);
    WORKS(kr_lm_reset(there, slots[b]));
    WORKS(kr_lm_reset(here, slots[b]));
    if (IS_EMULATED && b > 1) continue; /* begins with a step */
    for (int k = 0; k < (b == 0 ? 3 : 1); k++) { /* the third is a recording */
      WORKS(kr_lm_reset(there, slots[b]));
      WORKS(kr_lm_prefill(there, slots[b], ids, NULL, n, 0, got));
    }
    WORKS(kr_lm_prefill(here, slots[b], ids, NULL, n, 0, want));
    assert_close("a prompt", 1, bound, most);
  }
  for (int t = 0; t < STEPS; t++) {
    for (int64_t b = 0; b < B; b++) ids[b] = (int32_t)((t * 53 + b * 17 + 3) % V);
    WORKS(kr_lm_step(there, B, slots, ids, got, best));
    WORKS(kr_lm_step(here, B, slots, ids, want, NULL));
    assert_close("a step", B, bound, most);
    for (int64_t b = 0; b < B; b++) {
      const float *row = got + b * V;
      for (int64_t i = 0; i < V - 2; i++)
        if (row[i] > row[best[b]] || (row[i] == row[best[b]] && i < best[b]))
          fail_msg("sequence %lld: %lld is more likely than %d", (long long)b, (long long)i, best[b]);
    }
  }
}

static const char *name_of(int32_t dtype) { return dtype == KRAIT_Q8_0 ? "q8_0" : krait_dtype_name(dtype); }

static void config_is_that_of_the_cpu(const kr_mamba_lm_config *c, int32_t dtype, int narrow, double bound) {
  static const int64_t batches[] = {3, SLOTS, 1, 2};
  kr_lm *here, *there;
  double most = 0;
  WORKS(open_random_mamba(cpu, c, dtype, SLOTS, &here));
  WORKS(open_random_mamba(gpu, c, dtype, SLOTS, &there));
  if (narrow) WORKS(kr_lm_narrow_states(there));
  for (int i = 0; i < (IS_EMULATED ? 2 : 4); i++) compare(there, here, batches[i], bound, &most);
  printf("Mamba-%d %s%s: %.2e\n", 1 + c->mixer, name_of(dtype), narrow ? ", states too" : "", most);
  kr_lm_close(&here);
  kr_lm_close(&there);
}

static void model_is_that_of_the_cpu(int32_t mixer, int32_t dtype, int narrow, double bound) {
  const kr_mamba_lm_config c = config_of(mixer);
  config_is_that_of_the_cpu(&c, dtype, narrow, bound);
}

static void mamba_float32(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_F32, 0, 2e-5); }
static void mamba_float16(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_F16, 0, 1e-3); }
static void mamba_bfloat16(void **state) {
  (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_BF16, 0, 1e-2);
}
static void mamba2_float32(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_F32, 0, 2e-5); }
static void mamba2_float16(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_F16, 0, 1e-3); }
static void mamba2_bfloat16(void **state) {
  (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_BF16, 0, 1e-2);
}

static void mamba_narrow_states(void **state) {
  (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_F16, 1, 1e-3);
}
static void mamba2_narrow_states(void **state) {
  (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_F16, 1, 1e-3);
}

static void mamba3_float32(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_F32, 0, 2e-5); }
static void mamba3_float16(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_F16, 0, 2e-3); }
static void mamba3_bfloat16(void **state) {
  (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_BF16, 0, 2e-2);
}
static void mamba3_q8(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_Q8_0, 0, 4e-3); }
/* Without a norm behind the scan a step is one kernel between its products, in which two blocks share a head of this
 * size. */
static void raw_steps_are_those_of_the_cpu(int32_t dtype, int narrow, double bound) {
  kr_mamba_lm_config c = config_of(KR_MIXER_MAMBA3);
  c.mamba3.is_normed = 0, c.mamba3.N = 128, c.mamba3.M = 32;
  config_is_that_of_the_cpu(&c, dtype, narrow, bound);
}
static void mamba3_raw_float32(void **state) { (void)state, raw_steps_are_those_of_the_cpu(KRAIT_F32, 0, 2e-5); }
static void mamba3_raw_float16(void **state) { (void)state, raw_steps_are_those_of_the_cpu(KRAIT_F16, 0, 2e-3); }
static void mamba3_raw_narrow(void **state) { (void)state, raw_steps_are_those_of_the_cpu(KRAIT_F16, 1, 2e-3); }
static void mamba_q8(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_Q8_0, 0, 2e-3); }
static void mamba2_q8(void **state) { (void)state, model_is_that_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_Q8_0, 0, 2e-3); }

/* ---- the width of 2.8b and 2.7b, whose steps of one sequence Hopper's row of mamba_decode takes ---- */

/* Emulated, that row needs a device of its own: its blocks wait for each other, and must be many. */
static krait_ctx *open_wide(void) {
#ifdef KR_EMULATED
  setenv("KR_FAKE_CUDA", "capability=90,shared=232448,multiprocessors=108,together=1,record=1", 1);
#endif
  krait_ctx *ctx = NULL;
  WORKS(krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CUDA(0)}, &ctx));
  return ctx;
}

static kr_mamba_lm_config wide_config(int32_t mixer) {
  const int is_second = mixer == KR_MIXER_MAMBA2;
  kr_mamba_lm_config c = config_of(mixer);
  c.d = 2560, c.Di = 5120, c.N = is_second ? 128 : 16, c.R = 160;
  c.H = is_second ? 80 : 1, c.P = c.Di / c.H;
  c.mamba3 = (kr_lm_mamba3_sizes){.d = c.d, .H = 80, .P = 64, .N = 128, .G = 1, .R = 1, .M = 32, .A_floor = 1e-4};
  if (IS_EMULATED) c.n_layers = 2;
  return c;
}

/* The states of the last slot: random layers change the logits by little, these by all that they do. */
enum { FEW_SLOTS = 4, MOST_STATES = 3 * 5120 * (128 + 4) };
typedef struct states {
  float *at;
  int64_t n, ends[16]; /* of each */
  int n_states;
} states;

static int32_t take_states(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  states *to = user;
  int64_t n = 1;
  (void)name;
  for (int32_t i = 0; i < n_dims; i++) n *= shape[i];
  assert_true(to->n + n <= MOST_STATES && to->n_states < 16);
  memcpy(to->at + to->n, data, (size_t)n * sizeof *data);
  to->ends[to->n_states++] = to->n += n;
  return KRAIT_OK;
}

/* Of the largest of all; apart: the worst state's, of its largest (Mamba-3's angles are larger than its other states;
 * Mamba's u are rounded to 16 bits, as calls do it). */
static double error_of_states(kr_lm *there, kr_lm *here, int apart) {
  states a = {.at = calloc(MOST_STATES, sizeof(float))}, b = {.at = calloc(MOST_STATES, sizeof(float))};
  assert_true(a.at && b.at);
  WORKS(kr_lm_states_out(there, FEW_SLOTS - 1, take_states, &a));
  WORKS(kr_lm_states_out(here, FEW_SLOTS - 1, take_states, &b));
  assert_true(a.n == b.n && a.n > 0 && a.n_states == b.n_states);
  double worst = apart ? 0 : error_of(a.at, b.at, a.n);
  for (int i = 0; i < a.n_states && apart; i++) {
    const int64_t from = i ? a.ends[i - 1] : 0;
    const double error = error_of(a.at + from, b.at + from, a.ends[i] - from);
    if (!(error <= worst)) worst = error;
  }
  free(a.at), free(b.at);
  return worst;
}

static void wide_steps_are_those_of_the_cpu(int32_t mixer, int32_t dtype, double bound) {
  const kr_mamba_lm_config c = wide_config(mixer);
  krait_ctx *wide = open_wide();
  kr_lm *here, *there;
  double most = 0;
  WORKS(open_random_mamba(cpu, &c, dtype, FEW_SLOTS, &here));
  WORKS(open_random_mamba(wide, &c, dtype, FEW_SLOTS, &there));
  for (int t = 0; t < 4; t++) { /* a recording in the end */
    const int32_t slots[1] = {FEW_SLOTS - 1}, ids[1] = {(t * 53 + 3) % V};
    int32_t best[1];
    WORKS(kr_lm_step(there, 1, slots, ids, got, best));
    WORKS(kr_lm_step(here, 1, slots, ids, want, NULL));
    assert_close("a step", 1, 1e-3, &most);
  }
  if (wide->caps & KRAIT_CAP_CUDA_HOPPER) assert_true(kr_lm_was_fused(there));
  const double of_states = error_of_states(there, here, mixer == KR_MIXER_MAMBA3);
  printf("Mamba-%d %s, 2560 wide: %.2e, states %.2e\n", 1 + mixer, name_of(dtype), most, of_states);
  assert_true(of_states <= bound);
  kr_lm_close(&here);
  kr_lm_close(&there);
  krait_ctx_close(&wide);
}

static void wide_mamba(void **state) { (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_F16, 1e-4); }
static void wide_mamba2(void **state) {
  (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_F16, 1e-4);
}
static void wide_bfloat16(void **state) {
  (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_BF16, 1e-4);
}
static void wide2_bfloat16(void **state) {
  (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_BF16, 1e-4);
}
static void wide3_float16(void **state) {
  (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_F16, 1e-4);
}
static void wide3_bfloat16(void **state) {
  (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA3, KRAIT_BF16, 1e-4);
}
static void wide_q8(void **state) { (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA1, KRAIT_Q8_0, 1e-4); }
static void wide2_q8(void **state) { (void)state, wide_steps_are_those_of_the_cpu(KR_MIXER_MAMBA2, KRAIT_Q8_0, 1e-4); }

/* ---- Qwen2: prompts and steps of several slots, then of fewer; each kind of step often enough to be recorded ---- */

static void compare_qwen2(kr_lm *there, kr_lm *here, int64_t B, double bound, double *most) {
  int32_t slots[SLOTS], ids[SLOTS], best[SLOTS];
  for (int t = 0; t < 2 + STEPS / 2; t++) {
    for (int64_t b = 0; b < B; b++)
      slots[b] = (int32_t)((b * 3 + 1) % SLOTS), ids[b] = (int32_t)((t * 53 + b * 17 + 3) % V);
    WORKS(kr_lm_step(there, B, slots, ids, got, best));
    WORKS(kr_lm_step(here, B, slots, ids, want, NULL));
    assert_close("a step", B, bound, most);
    for (int64_t b = 0; b < B; b++)
      for (int64_t i = 0; i < V - 2; i++)
        if (got[b * V + i] > got[b * V + best[b]]) fail_msg("%lld is more likely than %d", (long long)i, best[b]);
  }
}

static void qwen2_is_that_of_the_cpu(int32_t dtype, double bound) {
  const int64_t d = IS_EMULATED ? 64 : 512;
  const kr_qwen2_config c = {.d = d,
                             .n_layers = IS_EMULATED ? 1 : 3,
                             .V = V,
                             .n_used = V - 2,
                             .H = IS_EMULATED ? 2 : 8,
                             .Hk = IS_EMULATED ? 1 : 2,
                             .D = IS_EMULATED ? 32 : 64,
                             .F = 3 * d,
                             .eps = 1e-6f,
                             .base = 1e6};
  kr_lm *here, *there;
  double most = 0;
  WORKS(open_random_qwen2(cpu, &c, dtype, SLOTS, &here));
  WORKS(open_random_qwen2(gpu, &c, dtype, SLOTS, &there));
  for (int64_t b = 0; b < 3; b++) {
    int32_t ids[PROMPT];
    for (int i = 0; i < 3 + b; i++) ids[i] = (int32_t)((i * 37 + b * 11 + 5) % V);
    WORKS(kr_lm_prefill(there, (b * 3 + 1) % SLOTS, ids, NULL, 3 + b, 0, got));
    WORKS(kr_lm_prefill(here, (b * 3 + 1) % SLOTS, ids, NULL, 3 + b, 0, want));
    assert_close("a prompt", 1, bound, &most);
  }
  for (int64_t B = 3; B >= 1; B--) compare_qwen2(there, here, B, bound, &most);
  printf("Qwen2 %s: %.2e\n", krait_dtype_name(dtype), most);
  kr_lm_close(&here);
  kr_lm_close(&there);
}

static void qwen2_float32(void **state) { (void)state, qwen2_is_that_of_the_cpu(KRAIT_F32, 1e-5); }
static void qwen2_float16(void **state) { (void)state, qwen2_is_that_of_the_cpu(KRAIT_F16, 4e-3); }
static void qwen2_bfloat16(void **state) { (void)state, qwen2_is_that_of_the_cpu(KRAIT_BF16, 3e-2); }

/* A model stored in float32, loaded as float16 and bfloat16; the CPU keeps it as it is. */
static void weights_converted_on_load(void **state) {
  static const double bounds[] = {1e-5, 4e-3, 3e-2};
  const int32_t ids[] = {3, 7, 1, 12};
  kr_model_folder *folder;
  kr_lm *here, *there;
  (void)state;
  if (kr_model_folder_open(GOLDEN "/mamba_lm/mamba1", &folder) < 0) fail_msg("%s", krait_error_detail());
  WORKS(kr_lm_open_as(cpu, folder, KRAIT_F16, 1, 0, &here));
  assert_int_equal(kr_lm_dtype(here), KRAIT_F32);
  const int64_t n = kr_lm_config_of(here)->V;
  float *converted = malloc((size_t)n * sizeof *converted), *stored = malloc((size_t)n * sizeof *stored);
  WORKS(kr_lm_prefill(here, 0, ids, NULL, 4, 0, stored));
  for (int32_t dtype = KRAIT_F32; dtype <= KRAIT_BF16; dtype++) {
    WORKS(kr_lm_open_as(gpu, folder, dtype, 1, 0, &there));
    assert_int_equal(kr_lm_dtype(there), dtype);
    assert_int_equal(kr_lm_bytes(there) < kr_lm_bytes(here) * 3 / 4, dtype != KRAIT_F32);
    WORKS(kr_lm_prefill(there, 0, ids, NULL, 4, 0, converted));
    const double error = error_of(converted, stored, n);
    if (!(error <= bounds[dtype]) || (dtype != KRAIT_F32 && error < 1e-6))
      fail_msg("%s: %.2e", krait_dtype_name(dtype), error);
    kr_lm_close(&there);
  }
  free(converted), free(stored);
  kr_lm_close(&here);
  kr_model_folder_close(&folder);
}

/* ---- a model on the caller's weights and states (krait/shared_lm.h): bit for bit the one that owns them ---- */

enum { SHARED_SLOTS = 3 };

/* The lists and results of its calls, in the context's memory. */
typedef struct shared_memory {
  int32_t *slots, *ids, *best;
  float *logits;
  char *states;
} shared_memory;

static void get_shared_memory(const krait_ctx *ctx, int64_t state_bytes, shared_memory *memory) {
  WORKS(kr_mem_get(ctx, "states", (uint64_t)state_bytes, &memory->states));
  WORKS(kr_mem_get(ctx, "slots", 4 * SLOTS, &memory->slots));
  WORKS(kr_mem_get(ctx, "ids", 4 * (PROMPT + SLOTS), &memory->ids));
  WORKS(kr_mem_get(ctx, "best", 4 * SLOTS, &memory->best));
  WORKS(kr_mem_get(ctx, "logits", sizeof got, &memory->logits));
}

static krait_shared_lm *open_shared_lm(const krait_ctx *ctx, kr_lm *own, const kr_mamba_lm_config *c, int32_t dtype,
                                       int narrow, shared_memory *memory) {
  const kr_lm_config *config = kr_lm_config_of(own);
  const int is_second = c->mixer == KR_MIXER_MAMBA2;
  const int64_t C = is_second ? c->Di + 2 * c->G * c->N : c->Di;
  const int64_t bytes =
      c->n_layers * SHARED_SLOTS * (C * (c->W - 1) * 4 + c->Di * c->N * (narrow && dtype != KRAIT_F32 ? 2 : 4));
  krait_shared_lm_layer layers[4];
  krait_shared_lm *lm;
  for (int64_t i = 0; i < c->n_layers; i++) {
    const kr_lm_mamba_weights *w = config->blocks[i].weights;
    layers[i] = (krait_shared_lm_layer){.norm = config->blocks[i].norm_weight.data,
                                        .in_proj = w->in_proj.data,
                                        .conv = w->conv.data,
                                        .conv_bias = w->conv_bias.data,
                                        .x_proj = w->x_proj.data,
                                        .dt_proj = w->dt_proj.data,
                                        .A = w->A.data,
                                        .D = w->D.data,
                                        .dt_bias = w->dt_bias.data,
                                        .gate_norm = w->gate_norm.data,
                                        .out_proj = w->out_proj.data};
  }
  get_shared_memory(ctx, bytes, memory);
  const kr_lm_weights *w = kr_lm_weights_of(own);
  const krait_shared_lm_options options = {.size = sizeof options,
                                           .flags = narrow ? KRAIT_SHARED_LM_NARROW : 0,
                                           .dtype = dtype,
                                           .eps = c->eps,
                                           .n_layers = c->n_layers,
                                           .n_slots = SHARED_SLOTS,
                                           .D = c->d,
                                           .V = c->V,
                                           .E = c->Di,
                                           .N = c->N,
                                           .W = c->W,
                                           .R = is_second ? 0 : c->R,
                                           .H = c->H,
                                           .G = c->G,
                                           .embedding = w->embedding.data,
                                           .head = w->head.data,
                                           .norm_f = w->norm_f.data,
                                           .states = memory->states};
  krait_shared_lm_options wrong = options;
  wrong.n_slots = 0;
  assert_int_equal(krait_shared_lm_open(ctx, &wrong, layers, &lm), KRAIT_ERR_ARGUMENT);
  layers[1].A = NULL;
  assert_int_equal(krait_shared_lm_open(ctx, &options, layers, &lm), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "layers[1].A must not be NULL");
  layers[1].A = ((const kr_lm_mamba_weights *)config->blocks[1].weights)->A.data;
  WORKS(krait_shared_lm_open(ctx, &options, layers, &lm));
  return lm;
}

static krait_shared_lm *open_shared_mamba3(const krait_ctx *ctx, kr_lm *own, const kr_mamba_lm_config *c,
                                           int32_t dtype, int narrow, shared_memory *memory) {
  const kr_lm_config *config = kr_lm_config_of(own);
  const kr_lm_mamba3_sizes *s = &c->mamba3;
  const int64_t bytes = c->n_layers * SHARED_SLOTS * s->H *
                        ((s->M + s->R * s->N + s->P) * 4 + s->P * s->N * (narrow && dtype != KRAIT_F32 ? 2 : 4));
  krait_shared_lm_mamba3_layer layers[4];
  krait_shared_lm *lm;
  for (int64_t i = 0; i < c->n_layers; i++) {
    const kr_lm_block *blocks = &config->blocks[c->F ? 2 * i : i];
    const kr_lm_given_mamba3 *w = blocks->weights;
    kr_lm_mlp_matrices mlp = {.F = 0};
    assert_true(!c->F || kr_lm_mlp_has_matrices(&blocks[1], &mlp));
    layers[i] = (krait_shared_lm_mamba3_layer){.norm = blocks->norm_weight.data,
                                               .in_proj = w->in_proj.data,
                                               .dt_bias = w->dt_bias.data,
                                               .Dvec = w->D.data,
                                               .BC_norm = w->BC_norm.data,
                                               .B_bias = w->B_bias.data,
                                               .C_bias = w->C_bias.data,
                                               .mimo_x = w->mimo_x.data,
                                               .mimo_z = w->mimo_z.data,
                                               .mimo_o = w->mimo_o.data,
                                               .gate_norm = w->gate_norm.data,
                                               .out_proj = w->out_proj.data,
                                               .norm2 = c->F ? blocks[1].norm_weight.data : NULL,
                                               .gate = mlp.gate.data,
                                               .up = mlp.up.data,
                                               .down = mlp.down.data};
  }
  get_shared_memory(ctx, bytes, memory);
  const kr_lm_weights *w = kr_lm_weights_of(own);
  const krait_shared_lm_mamba3_options options = {
      .size = sizeof options,
      .flags = (narrow ? KRAIT_SHARED_LM_NARROW : 0) | (s->is_A_softplus ? KRAIT_SHARED_LM_SOFTPLUS_A : 0),
      .dtype = dtype,
      .eps = c->eps,
      .A_floor = (float)s->A_floor,
      .n_layers = c->n_layers,
      .n_slots = SHARED_SLOTS,
      .D = c->d,
      .V = c->V,
      .H = s->H,
      .P = s->P,
      .N = s->N,
      .G = s->G,
      .R = s->R,
      .M = s->M,
      .F = c->F,
      .embedding = w->embedding.data,
      .head = w->head.data,
      .norm_f = w->norm_f.data,
      .states = memory->states};
  krait_shared_lm_mamba3_options wrong = options;
  wrong.M = s->N / 2 + 1;
  assert_int_equal(krait_shared_lm_open_mamba3(ctx, &wrong, layers, &lm), KRAIT_ERR_ARGUMENT);
  const float *const bias = layers[1].B_bias;
  layers[1].B_bias = NULL;
  assert_int_equal(krait_shared_lm_open_mamba3(ctx, &options, layers, &lm), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "layers[1].B_bias must not be NULL");
  layers[1].B_bias = bias;
  WORKS(krait_shared_lm_open_mamba3(ctx, &options, layers, &lm));
  return lm;
}

static void close_shared_memory(const krait_ctx *ctx, shared_memory *memory) {
  void *const all[] = {memory->states, memory->slots, memory->ids, memory->best, memory->logits};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) kr_mem_free(ctx, all[i]);
}

static void assert_same_logits(const krait_ctx *ctx, const shared_memory *memory, int64_t n) {
  WORKS(kr_mem_read(ctx, got, memory->logits, (uint64_t)(n * V) * sizeof *got));
  assert_memory_equal(got, want, (size_t)(n * V) * sizeof *got);
}

/* Often enough to be recorded; the likeliest tokens of a step are those of the next, where they lie. */
static void shared_is_its_owner(const krait_ctx *ctx, const kr_mamba_lm_config *c, int32_t dtype, int narrow) {
  shared_memory memory;
  kr_lm *own;
  int32_t ids[PROMPT], next[SHARED_SLOTS] = {3, 1, 2}, slots[] = {2, 0, 1};
  WORKS(open_random_mamba(ctx, c, dtype, SHARED_SLOTS, &own));
  if (narrow) WORKS(kr_lm_narrow_states(own));
  krait_shared_lm *lm = c->mixer == KR_MIXER_MAMBA3 ? open_shared_mamba3(ctx, own, c, dtype, narrow, &memory)
                                                    : open_shared_lm(ctx, own, c, dtype, narrow, &memory);
  for (int64_t slot = 0; slot < SHARED_SLOTS; slot++) {
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)((i * 37 + slot * 11 + 5) % V);
    WORKS(kr_mem_put(ctx, memory.ids, ids, sizeof ids));
    WORKS(kr_lm_prefill(own, slot, ids, NULL, PROMPT, 0, want));
    WORKS(krait_shared_lm_prefill(lm, slot, memory.ids, PROMPT, memory.logits, NULL));
    assert_same_logits(ctx, &memory, 1);
  }
  WORKS(kr_mem_put(ctx, memory.slots, slots, sizeof slots));
  WORKS(kr_mem_put(ctx, memory.best, next, sizeof next));
  for (int t = 0; t < 4; t++) {
    WORKS(krait_shared_lm_step(lm, SHARED_SLOTS, memory.slots, memory.best, memory.logits, memory.best, NULL));
    WORKS(kr_lm_step(own, SHARED_SLOTS, slots, next, want, NULL));
    assert_same_logits(ctx, &memory, SHARED_SLOTS);
    WORKS(kr_mem_read(ctx, next, memory.best, sizeof next));
  }
  assert_int_equal(
      krait_shared_lm_step(lm, SHARED_SLOTS + 1, memory.slots, memory.best, memory.logits, memory.best, NULL),
      KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_shared_lm_prefill(lm, SHARED_SLOTS, memory.ids, 1, memory.logits, NULL), KRAIT_ERR_ARGUMENT);
  krait_shared_lm_close(&lm);
  close_shared_memory(ctx, &memory);
  kr_lm_close(&own);
}

static void shared_models_are_their_owners(void **state) {
  static const int32_t types[] = {KRAIT_F32, KRAIT_F16, KRAIT_BF16};
  (void)state;
  for (int32_t mixer = KR_MIXER_MAMBA1; mixer <= KR_MIXER_MAMBA2; mixer++)
    for (int i = 0; i < 3; i++) {
      const kr_mamba_lm_config c = config_of(mixer);
      shared_is_its_owner(cpu, &c, types[i], 0);
      if (!IS_EMULATED || i > 0) shared_is_its_owner(gpu, &c, types[i], i > 0);
    }
}

static void shared_mamba3_is_its_owner(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) { /* one kernel a step; a norm and the other form of A; ranks, and an MLP */
    kr_mamba_lm_config c = config_of(KR_MIXER_MAMBA3);
    c.mamba3.is_normed = c.mamba3.is_A_softplus = i == 1;
    if (i == 2) c.mamba3.is_mimo = 1, c.mamba3.R = 2, c.F = 96;
    shared_is_its_owner(cpu, &c, KRAIT_F32, 0);
    shared_is_its_owner(gpu, &c, i == 1 ? KRAIT_F16 : KRAIT_BF16, i == 0);
  }
}

/* ---- attention on the caller's weights: a GPU's beside the CPU's ---- */

enum { AD = IS_EMULATED ? 64 : 512, AF = 3 * AD, AH = IS_EMULATED ? 2 : 8, AHK = AH / 2, AP = IS_EMULATED ? 32 : 64 };
enum { A_LAYERS = 2, A_TOKENS = PROMPT + 9, A_QKV = (AH + 2 * AHK) * AP };

typedef struct given_attention {
  const krait_ctx *ctx;
  void *blocks[A_LAYERS * 14 + 8];
  int n;
  int32_t dtype;
  int32_t *lengths, *ids, *best, *slots;
  float *logits;
  krait_shared_lm *lm;
} given_attention;

/* The same values on every device; around `middle`. */
static void *give_values(given_attention *a, int64_t n, double size, double middle, int32_t dtype) {
  const uint64_t bytes = (uint64_t)n * krait_dtype_bytes(dtype);
  void *there, *host = malloc(bytes);
  uint32_t bits = (uint32_t)(a->n * 2654435761u + 12345u);
  for (int64_t i = 0; i < n; i++) {
    bits = bits * 1664525u + 1013904223u;
    const float value = (float)(middle + size * ((double)(bits >> 8) / (1 << 23) - 1));
    if (dtype == KRAIT_F32)
      ((float *)host)[i] = value;
    else
      ((uint16_t *)host)[i] = dtype == KRAIT_F16 ? kr_float_to_f16(value) : kr_float_to_bf16(value);
  }
  WORKS(kr_mem_get(a->ctx, "weights", bytes, &there));
  WORKS(kr_mem_put(a->ctx, there, host, bytes));
  WORKS(kr_mem_wait(a->ctx));
  free(host);
  return a->blocks[a->n++] = there;
}

static const char *rows_behind(const given_attention *a, const void *w, int64_t n) {
  return (const char *)w + (uint64_t)n * krait_dtype_bytes(a->dtype);
}

static void give_layer(given_attention *a, int has_norm, krait_shared_lm_attention_layer *l) {
  const int64_t q = AH * AP, k = AHK * AP;
  const void *qkv = give_values(a, A_QKV * AD, .1, 0, a->dtype), *bias = give_values(a, A_QKV, .3, 0, a->dtype);
  *l = (krait_shared_lm_attention_layer){.norm = give_values(a, AD, .3, 1, a->dtype),
                                         .q = qkv,
                                         .k = rows_behind(a, qkv, q * AD),
                                         .v = rows_behind(a, qkv, (q + k) * AD),
                                         .q_bias = bias,
                                         .k_bias = rows_behind(a, bias, q),
                                         .v_bias = rows_behind(a, bias, q + k),
                                         .qk_norm = has_norm ? give_values(a, (AH + AHK) * AP, .3, 1, KRAIT_F32) : NULL,
                                         .o = give_values(a, AD * q, .1, 0, a->dtype),
                                         .norm2 = give_values(a, AD, .3, 1, a->dtype),
                                         .gate = give_values(a, AF * AD, .1, 0, a->dtype),
                                         .up = give_values(a, AF * AD, .1, 0, a->dtype),
                                         .down = give_values(a, AF * AD, .1, 0, a->dtype)};
}

static void open_given(const krait_ctx *ctx, int32_t dtype, int is_apart, given_attention *a) {
  double frequencies[AP / 2];
  krait_shared_lm_attention_layer layers[A_LAYERS];
  *a = (given_attention){.ctx = ctx, .dtype = dtype};
  for (int i = 0; i < AP / 2; i++) frequencies[i] = pow(1e4, -i / (AP / 2.0));
  for (int i = 0; i < A_LAYERS; i++) give_layer(a, is_apart, &layers[i]);
  if (is_apart) layers[1].k = give_values(a, AHK * AP * AD, .1, 0, dtype), layers[0].q_bias = NULL;
  const int64_t kept = 2 * A_LAYERS * SHARED_SLOTS * A_TOKENS * AHK * AP;
  const krait_shared_lm_attention_options options = {
      .size = sizeof options,
      .dtype = dtype,
      .eps = 1e-6f,
      .n_layers = A_LAYERS,
      .n_slots = SHARED_SLOTS,
      .n_tokens = A_TOKENS,
      .D = AD,
      .V = V,
      .H = AH,
      .Hk = AHK,
      .P = AP,
      .F = AF,
      .frequencies = frequencies,
      .embedding = give_values(a, V * AD, 1, 0, dtype),
      .head = give_values(a, V * AD, .1, 0, dtype),
      .norm_f = give_values(a, AD, .3, 1, dtype),
      .keys_values = give_values(a, kept, 0, 0, KRAIT_F32),
      .lengths = a->lengths = give_values(a, SHARED_SLOTS, 0, 0, KRAIT_F32)};
  a->ids = give_values(a, PROMPT, 0, 0, KRAIT_F32);
  a->best = give_values(a, SHARED_SLOTS, 0, 0, KRAIT_F32);
  a->slots = give_values(a, SHARED_SLOTS, 0, 0, KRAIT_F32);
  a->logits = give_values(a, SHARED_SLOTS * V, 0, 0, KRAIT_F32);
  if (is_apart) {
    assert_int_equal(krait_shared_lm_open_attention(ctx, &options, layers, &a->lm), KRAIT_ERR_ARGUMENT);
    assert_string_equal(krait_error_detail(), "layers[0] has some of q_bias, k_bias and v_bias");
    layers[0].q_bias = rows_behind(a, layers[0].k_bias, -AH * AP);
  }
  WORKS(krait_shared_lm_open_attention(ctx, &options, layers, &a->lm));
}

static void close_given(given_attention *a) {
  krait_shared_lm_close(&a->lm);
  for (int i = 0; i < a->n; i++) kr_mem_free(a->ctx, a->blocks[i]);
}

static void put_words(const given_attention *a, int32_t *to, const int32_t *words, int64_t n) {
  WORKS(kr_mem_put(a->ctx, to, words, (uint64_t)n * sizeof *words));
}

/* A prompt in two parts for each slot, then steps of all, in another order of slots. */
static void run_given(given_attention *a, int t, float *logits) {
  static const int32_t slots[] = {2, 0, 1};
  const int32_t slot = t % SHARED_SLOTS, is_second = t >= SHARED_SLOTS, n = PROMPT / 2 + slot;
  int32_t ids[PROMPT], lengths[SHARED_SLOTS] = {0}, next[SHARED_SLOTS];
  const int64_t n_logits = t < 2 * SHARED_SLOTS ? 1 : SHARED_SLOTS;
  if (n_logits == 1) {
    lengths[slot] = is_second ? n : 0;
    const int32_t n_now = is_second ? 3 : n;
    for (int i = 0; i < n_now; i++) ids[i] = (int32_t)((i * 37 + t * 11 + 5) % V);
    put_words(a, a->lengths, lengths, SHARED_SLOTS);
    put_words(a, a->ids, ids, n_now);
    WORKS(krait_shared_lm_prefill(a->lm, slot, a->ids, n_now, a->logits, NULL));
  } else {
    for (int i = 0; i < SHARED_SLOTS; i++) {
      next[i] = (int32_t)((t * 53 + i * 17 + 3) % V);
      lengths[i] = PROMPT / 2 + slots[i] + 3 + t - 2 * SHARED_SLOTS;
    }
    put_words(a, a->lengths, lengths, SHARED_SLOTS);
    put_words(a, a->best, next, SHARED_SLOTS);
    put_words(a, a->slots, slots, SHARED_SLOTS);
    WORKS(krait_shared_lm_step(a->lm, SHARED_SLOTS, a->slots, a->best, a->logits, a->best, NULL));
  }
  WORKS(kr_mem_read(a->ctx, logits, a->logits, (uint64_t)(n_logits * V) * sizeof *logits));
}

static void shared_attention_is_that_of_the_cpu(void **state) {
  static const double bounds[] = {1e-5, 4e-3, 3e-2};
  (void)state;
  for (int32_t dtype = KRAIT_F32; dtype <= KRAIT_BF16; dtype++)
    for (int is_apart = 0; is_apart < 2; is_apart++) {
      given_attention here, there;
      double most = 0;
      if (IS_EMULATED && dtype == KRAIT_BF16) continue;
      open_given(cpu, dtype, is_apart, &here);
      open_given(gpu, dtype, is_apart, &there);
      for (int t = 0; t < 2 * SHARED_SLOTS + 4; t++) {
        run_given(&here, t, want);
        run_given(&there, t, got);
        assert_close("a run", t < 2 * SHARED_SLOTS ? 1 : SHARED_SLOTS, bounds[dtype], &most);
      }
      printf("shared attention %s%s: %.2e\n", krait_dtype_name(dtype), is_apart ? ", apart, norms of heads" : "", most);
      close_given(&here);
      close_given(&there);
    }
}

/* Which type would be faster depends on the GPU's tier: turing's tensor cores take float16 alone. */
static void faster_types_are_told(void **state) {
  static const struct {
    const char *tier;
    int32_t as, faster;
  } cases[] = {{"ampere", 0, KRAIT_BF16},          {"ampere", KRAIT_BF16, 0}, {"turing", 0, KRAIT_F16},
               {"turing", KRAIT_BF16, KRAIT_F16},  {"turing", KRAIT_F16, 0},  {"base", 0, 0},
               {"base", KRAIT_BF16, 0}};
  (void)state;
  for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
    const int is_cpu = i == sizeof cases / sizeof *cases;
    krait_ctx_options options = {.size = sizeof options, .device = is_cpu ? KRAIT_DEVICE_CPU : KRAIT_DEVICE_CUDA(0)};
    krait_ctx *ctx;
    krait_lm *lm;
    if (!is_cpu) WORKS(krait_tier_parse(cases[i].tier, &options.caps_mask));
    WORKS(krait_ctx_open(&options, &ctx));
    WORKS(krait_lm_open(ctx,
                        &(krait_lm_options){.size = sizeof(krait_lm_options),
                                            .path = GOLDEN "/mamba_lm/mamba1",
                                            .no_tokenizer = 1,
                                            .dtype = is_cpu ? 0 : cases[i].as},
                        &lm));
    assert_int_equal(krait_lm_faster_dtype(lm), is_cpu ? 0 : cases[i].faster);
    krait_lm_close(&lm);
    krait_ctx_close(&ctx);
  }
  assert_int_equal(krait_lm_faster_dtype(NULL), 0);
}

int main(int argc, char **argv) {
#ifdef KR_EMULATED
  if (argc < 2) return 2;
  setenv("KR_FAKE_CUDA", "capability=80,shared=232448,multiprocessors=7,record=1", 1);
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  if (!kr_cuda_built_tiers()) return 77;
#else
  (void)argc, (void)argv;
#endif
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &cpu) < 0)
    return 1;
  if (krait_ctx_open(
          &(krait_ctx_options){
              .size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CUDA(0), .fallback = KRAIT_FALLBACK_NEVER},
          &gpu) < 0) {
    printf("skipped: %s\n", krait_error_detail());
    krait_ctx_close(&cpu);
    return 77;
  }
  const struct CMUnitTest few[] = {cmocka_unit_test(mamba_float32),
                                   cmocka_unit_test(mamba_float16),
                                   cmocka_unit_test(mamba2_float16),
                                   cmocka_unit_test(mamba_q8),
                                   cmocka_unit_test(mamba2_narrow_states),
                                   cmocka_unit_test(qwen2_float32),
                                   cmocka_unit_test(qwen2_float16),
                                   cmocka_unit_test(wide_mamba),
                                   cmocka_unit_test(wide_mamba2),
                                   cmocka_unit_test(wide_bfloat16),
                                   cmocka_unit_test(wide_q8),
                                   cmocka_unit_test(wide3_float16),
                                   cmocka_unit_test(wide3_bfloat16),
                                   cmocka_unit_test(mamba3_float32),
                                   cmocka_unit_test(mamba3_float16),
                                   cmocka_unit_test(mamba3_q8),
                                   cmocka_unit_test(weights_converted_on_load),
                                   cmocka_unit_test(faster_types_are_told),
                                   cmocka_unit_test(mamba3_raw_float32),
                                   cmocka_unit_test(mamba3_raw_float16),
                                   cmocka_unit_test(shared_models_are_their_owners),
                                   cmocka_unit_test(shared_mamba3_is_its_owner),
                                   cmocka_unit_test(shared_attention_is_that_of_the_cpu)};
  const struct CMUnitTest tests[] = {cmocka_unit_test(mamba_float32),
                                     cmocka_unit_test(mamba_float16),
                                     cmocka_unit_test(mamba_bfloat16),
                                     cmocka_unit_test(mamba_narrow_states),
                                     cmocka_unit_test(mamba_q8),
                                     cmocka_unit_test(mamba2_q8),
                                     cmocka_unit_test(mamba2_narrow_states),
                                     cmocka_unit_test(mamba2_float32),
                                     cmocka_unit_test(mamba2_float16),
                                     cmocka_unit_test(mamba2_bfloat16),
                                     cmocka_unit_test(qwen2_float16),
                                     cmocka_unit_test(qwen2_bfloat16),
                                     cmocka_unit_test(wide_mamba),
                                     cmocka_unit_test(wide_mamba2),
                                     cmocka_unit_test(wide_bfloat16),
                                     cmocka_unit_test(wide2_bfloat16),
                                     cmocka_unit_test(wide_q8),
                                     cmocka_unit_test(wide2_q8),
                                     cmocka_unit_test(wide3_float16),
                                     cmocka_unit_test(wide3_bfloat16),
                                     cmocka_unit_test(qwen2_float32),
                                     cmocka_unit_test(mamba3_float32),
                                     cmocka_unit_test(mamba3_float16),
                                     cmocka_unit_test(mamba3_bfloat16),
                                     cmocka_unit_test(mamba3_q8),
                                     cmocka_unit_test(weights_converted_on_load),
                                     cmocka_unit_test(faster_types_are_told),
                                     cmocka_unit_test(mamba3_raw_float32),
                                     cmocka_unit_test(mamba3_raw_float16),
                                     cmocka_unit_test(mamba3_raw_narrow),
                                     cmocka_unit_test(shared_models_are_their_owners),
                                     cmocka_unit_test(shared_mamba3_is_its_owner),
                                     cmocka_unit_test(shared_attention_is_that_of_the_cpu)};
  const int failed = IS_EMULATED ? cmocka_run_group_tests(few, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
  krait_ctx_close(&gpu);
  krait_ctx_close(&cpu);
  return failed;
}
