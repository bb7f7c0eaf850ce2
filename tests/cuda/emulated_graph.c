/* emulated_graph.c: a planned graph on an emulated GPU: the same results as on the CPU, launched one by one at first,
 * then as one CUDA graph; new addresses, states, lanes, constants, a stream captured by its owner, operators that are
 * graphs. Usage: emulated_graph LIBRARY. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "cuda.h"
#include "emulator/emulator.h"
#include "graph_kernel_cache.h"
#include "graph_parts.h"
#include "graph_runner.h"
#include "half.h"
#include "op_list.h"

enum { B = 3, D = 24, W = 4, N = B * D };

static uint32_t random_state;
static float draw_emulated(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return ((float)(random_state >> 8) * 0x1p-24f - 0.5f) * 2;
}

typedef struct model {
  krait_ctx *ctx;
  kr_graph *g;
  kr_tensor x, y;
  kr_runner *r;
} model;

/* One step of a convolution with its state; then a norm, a gate and the step itself again. Host memory is device memory
 * here. */
static model open_model(int32_t device, const float *weight) {
  model m = {0};
  assert_int_equal(
      krait_ctx_open(
          &(krait_ctx_options){
              .size = sizeof(krait_ctx_options), .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER},
          &m.ctx),
      KRAIT_OK);
  assert_int_equal(kr_graph_open(&m.g), KRAIT_OK);
  kr_graph *g = m.g;
  const kr_dims rows = KR_DIMS(B, D);
  m.x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(B, D, 1));
  m.y = kr_graph_output(g, "y", KRAIT_F32, rows);
  const kr_tensor w = kr_graph_weight(g, "w", KRAIT_F32, KR_DIMS(D, W), weight),
                  past = kr_graph_state(g, "past", KRAIT_F32, KR_DIMS(B, D, W));
  const kr_tensor stepped = kr_graph_call(g, "step", &kr_op_causal_conv1d_update,
                                          &(kr_causal_conv1d_update_args){.activation = KRAIT_ACT_SILU,
                                                                             .x = kr_graph_view(g, m.x),
                                                                             .conv_state = kr_graph_view(g, past),
                                                                             .weight = kr_graph_view(g, w),
                                                                             .out = kr_graph_auto()});
  const kr_tensor flat = kr_graph_reshape(g, stepped, rows), gated = kr_graph_temp(g, KRAIT_F32, rows);
  const kr_tensor normed = kr_graph_call(
      g, "norm", &kr_op_add_norm,
      &(kr_add_norm_args){
          .call.flags = KRAIT_NORM_RMS, .eps = 1e-3f, .x = kr_graph_view(g, flat), .out = kr_graph_auto()});
  kr_graph_pointwise(
      g, "gate",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1}, normed,
      kr_graph_reshape(g, m.x, rows), gated);
  kr_graph_pointwise(g, "around", (kr_pointwise_args){.x_scale = 1, .y_scale = 0.5f}, gated, flat, m.y);
  if (kr_graph_plan(g, m.ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_graph_check_plan(g), KRAIT_OK);
  assert_int_equal(kr_runner_open(g, &m.r), KRAIT_OK);
  return m;
}

static void close_model(model *m) {
  kr_runner_close(&m->r);
  kr_graph_close(&m->g);
  krait_ctx_close(&m->ctx);
}

static void run_emulated(model *m, const float *x, float *y, void *stream) {
  memset(y, 0xfb, N * sizeof *y);
  assert_int_equal(kr_runner_bind(m->r, m->x, (void *)x), KRAIT_OK);
  assert_int_equal(kr_runner_bind(m->r, m->y, y), KRAIT_OK);
  if (kr_runner_run(m->r, stream) < 0) fail_msg("%s", krait_error_detail());
}

static void steps_are_those_of_the_cpu(void **state) {
  static float weight[D * W], x[2][N], y[2][N], want[N];
  (void)state;
  random_state = 9;
  for (int i = 0; i < D * W; i++) weight[i] = draw_emulated();
  model cpu = open_model(KRAIT_DEVICE_CPU, weight), gpu = open_model(KRAIT_DEVICE_CUDA(0), weight);
  int n_recorded = 0;
  for (int t = 0; t < 12;
       t++) { /* the addresses change after six steps, the states continue; then everything restarts */
    const int at = t >= 6;
    for (int i = 0; i < N; i++) x[at][i] = draw_emulated();
    if (t == 10)
      assert_int_equal(kr_runner_reset(cpu.r, NULL), KRAIT_OK),
          assert_int_equal(kr_runner_reset(gpu.r, NULL), KRAIT_OK);
    run_emulated(&cpu, x[at], want, NULL);
    run_emulated(&gpu, x[at], y[at], NULL);
    for (int i = 0; i < N; i++)
      if (!(fabsf(y[at][i] - want[i]) <= 1e-5f * (1 + fabsf(want[i]))))
        fail_msg("step %d, element %d: %g on the GPU, %g on the CPU", t, i, (double)y[at][i], (double)want[i]);
    n_recorded += gpu.r->recordings[0].recorded != NULL;
  }
  assert_int_equal(n_recorded, 10); /* all but the first run per pair of addresses */
  assert_int_equal(kr_emulated_pdl(), 4 * n_recorded); /* all that are recorded: step, norm, gate, "around" */
  close_model(&cpu);
  close_model(&gpu);
}

static void a_recorded_stream_gets_the_launches(void **state) {
  static float weight[D * W], x[N], y[N], want[N];
  void *stream = NULL, *graph = NULL;
  (void)state;
  random_state = 4;
  for (int i = 0; i < D * W; i++) weight[i] = draw_emulated();
  for (int i = 0; i < N; i++) x[i] = draw_emulated();
  model cpu = open_model(KRAIT_DEVICE_CPU, weight), gpu = open_model(KRAIT_DEVICE_CUDA(0), weight);
  run_emulated(&gpu, x, y, NULL);
  assert_int_equal(kr_runner_reset(gpu.r, NULL), KRAIT_OK);
  assert_int_equal(kr_cuda_stream_open(gpu.ctx->cuda, &stream), KRAIT_OK);
  assert_int_equal(kr_cuda_graph_begin(gpu.ctx->cuda, stream), KRAIT_OK);
  run_emulated(&gpu, x, y, stream);
  assert_int_equal(kr_cuda_graph_end(gpu.ctx->cuda, stream, &graph), KRAIT_OK);
  assert_null(gpu.r->recordings[0].recorded);
  for (int t = 0; t < 3; t++) {
    run_emulated(&cpu, x, want, NULL);
    assert_int_equal(kr_cuda_graph_launch(gpu.ctx->cuda, graph, stream), KRAIT_OK);
    for (int i = 0; i < N; i++) assert_float_equal(y[i], want[i], 1e-5f);
  }
  kr_cuda_graph_close(gpu.ctx->cuda, &graph);
  kr_cuda_stream_close(gpu.ctx->cuda, &stream);
  close_model(&cpu);
  close_model(&gpu);
}

/* x through two parts of two calls each, in lanes; with `meets` the second part reads the first part's output. The
 * first factor is a constant of the plan. */
static model open_lanes(int32_t device, float *weight, int meets) {
  model m = {0};
  const krait_ctx_options options = {
      .size = sizeof options, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  const kr_dims rows = KR_DIMS(B, D);
  kr_tensor t[6];
  assert_int_equal(krait_ctx_open(&options, &m.ctx), KRAIT_OK);
  assert_int_equal(kr_graph_open(&m.g), KRAIT_OK);
  m.x = kr_graph_input(m.g, "x", KRAIT_F32, rows), m.y = kr_graph_output(m.g, "y", KRAIT_F32, rows);
  for (int i = 0; i < 6; i++) t[i] = kr_graph_temp(m.g, KRAIT_F32, rows);
#define CALL(name, flag, x, y, out) \
  kr_graph_pointwise(m.g, name, (kr_pointwise_args){.call.flags = flag, .x_scale = 2, .y_scale = 1}, x, y, out)
  CALL("factor", 0, kr_graph_weight(m.g, "w", KRAIT_F32, rows, weight), 0, t[0]);
  CALL("begin", KRAIT_POINTWISE_PRODUCT, m.x, t[0], t[1]);
  kr_graph_lane(m.g, 1);
  CALL("left", KRAIT_POINTWISE_PRODUCT, t[1], t[1], t[2]);
  CALL("left", 0, t[2], m.x, t[3]);
  kr_graph_lane(m.g, 2);
  CALL("right", 0, t[1], meets ? t[2] : m.x, t[4]);
  CALL("right", KRAIT_POINTWISE_PRODUCT, t[4], t[1], t[5]);
  kr_graph_lane(m.g, 0);
  CALL("end", 0, t[3], t[5], m.y);
#undef CALL
  if (kr_graph_plan(m.g, m.ctx, KR_PLAN_CONSTANT) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_graph_check_plan(m.g), KRAIT_OK);
  assert_int_equal(kr_runner_open(m.g, &m.r), KRAIT_OK);
  return m;
}

/* The lanes' memory is disjoint: of consecutive calls the second would reuse the first one's. */
static void share_nothing(const kr_graph *g) {
  for (size_t a = g->lanes_from; a < g->lanes_to; a++)
    for (size_t b = g->lanes_from; b < g->lanes_to; b++) {
      const kr_node *one = KR_NODE(g, a), *other = KR_NODE(g, b);
      const kr_storage *s = KR_STORAGE(g, KR_PART(g, one->uses[one->n_uses - 1].tensor)->storage),
                       *t = KR_STORAGE(g, KR_PART(g, other->uses[other->n_uses - 1].tensor)->storage);
      if (one->lane != other->lane) assert_true(s->at + s->bytes <= t->at || t->at + t->bytes <= s->at);
    }
}

static void lanes_run_side_by_side(void **state) {
  static float weight[N], x[N], y[N], want[N];
  (void)state;
  random_state = 5;
  for (int meets = 0; meets < 2; meets++) {
    for (int i = 0; i < N; i++) weight[i] = draw_emulated(), x[i] = draw_emulated();
    model cpu = open_lanes(KRAIT_DEVICE_CPU, weight, meets), gpu = open_lanes(KRAIT_DEVICE_CUDA(0), weight, meets);
    assert_int_equal(gpu.g->lanes_to - gpu.g->lanes_from, meets ? 0 : 4);
    assert_int_equal(gpu.g->nodes.n, 6); /* the constant is not among them */
    share_nothing(gpu.g);
    for (int i = 0; i < N; i++) weight[i] = NAN; /* and no longer reads the weight */
    for (int t = 0; t < 4; t++) {
      run_emulated(&cpu, x, want, NULL);
      run_emulated(&gpu, x, y, NULL);
      for (int i = 0; i < N; i++) assert_float_equal(y[i], want[i], 1e-5f);
    }
    assert_non_null(gpu.r->recordings[0].recorded);
    assert_int_equal(gpu.r->beside != NULL, !meets);
    close_model(&cpu), close_model(&gpu);
  }
}

/* ---- norms of heads, rotary embedding, append and attention, of a step or a prompt's TOKENS ---- */

enum { HEADS = 6, KV_HEADS = 2, CHANNELS = 64, ROOM = 600, TOKENS = 9 };
enum { N_HEADS = HEADS + KV_HEADS, N_QK = B * TOKENS * N_HEADS * CHANNELS, N_Q = B * TOKENS * HEADS * CHANNELS };
enum { N_KV = B * KV_HEADS * CHANNELS, N_V = N_KV * TOKENS };
typedef struct step {
  krait_ctx *ctx;
  kr_graph *g;
  kr_runner *r;
  kr_tensor qk, weight, v, cos, sin, lengths, keys, values, out;
} step;

/* Rows of queries and keys, normed into memory of their own. */
static kr_tensor norm_rows(kr_graph *g, kr_tensor rows, kr_tensor weight) {
  const kr_tensor out = kr_graph_temp(g, KRAIT_F16, kr_graph_dims(g, rows));
  kr_graph_call(g, "norm", &kr_op_gated_norm,
                &(kr_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS,
                                      .group_size = CHANNELS,
                                      .eps = 1e-5f,
                                      .x = kr_graph_view(g, rows),
                                      .weight = kr_graph_view(g, weight),
                                      .out = kr_graph_view(g, out)});
  return out;
}
static kr_tensor heads_of(kr_graph *g, kr_tensor rows, int64_t tokens, int64_t from, int64_t n) {
  return kr_graph_reshape(g, kr_graph_slice(g, rows, 1, from * CHANNELS, n * CHANNELS),
                          KR_DIMS(B, tokens, n, CHANNELS));
}

static step open_step(int is_fused, int64_t tokens, int is_normed) {
  step m = {0};
  const krait_ctx_options options = {.size = sizeof options,
                                     .device = KRAIT_DEVICE_CUDA(0),
                                     .n_threads = 1,
                                     .fallback = KRAIT_FALLBACK_NEVER};
  assert_int_equal(krait_ctx_open(&options, &m.ctx), KRAIT_OK);
  assert_int_equal(kr_graph_open(&m.g), KRAIT_OK);
  kr_graph *g = m.g;
  if (!is_fused) kr_graph_rewrite_off(g, "all");
  m.qk = kr_graph_input(g, "qk", KRAIT_F16, KR_DIMS(B * tokens, N_HEADS * CHANNELS));
  m.v = kr_graph_input(g, "v", KRAIT_F16, KR_DIMS(B, tokens, KV_HEADS, CHANNELS));
  if (is_normed) m.weight = kr_graph_input(g, "weight", KRAIT_F32, KR_DIMS(N_HEADS * CHANNELS));
  m.cos = kr_graph_input(g, "cos", KRAIT_F32, KR_DIMS(ROOM, CHANNELS / 2));
  m.sin = kr_graph_input(g, "sin", KRAIT_F32, KR_DIMS(ROOM, CHANNELS / 2));
  m.lengths = kr_graph_input(g, "lengths", KRAIT_I32, KR_DIMS(B));
  m.keys = kr_graph_output(g, "keys", KRAIT_F16, KR_DIMS(B, ROOM, KV_HEADS, CHANNELS));
  m.values = kr_graph_output(g, "values", KRAIT_F16, KR_DIMS(B, ROOM, KV_HEADS, CHANNELS));
  m.out = kr_graph_output(g, "out", KRAIT_F16, KR_DIMS(B, tokens, HEADS, CHANNELS));
  const kr_tensor rows = is_normed ? norm_rows(g, m.qk, m.weight) : m.qk, q = heads_of(g, rows, tokens, 0, HEADS),
                  k = heads_of(g, rows, tokens, HEADS, KV_HEADS),
                  turned = kr_graph_temp(g, KRAIT_F16, KR_DIMS(B, tokens, HEADS, CHANNELS)),
                  used = kr_graph_temp(g, KRAIT_I32, KR_DIMS(B));
#define VIEW(t) kr_graph_view(g, t)
  kr_graph_call(
      g, "rotary", &kr_op_rotary,
      &(kr_rotary_args){
          .x = VIEW(q), .cos = VIEW(m.cos), .sin = VIEW(m.sin), .offsets = VIEW(m.lengths), .out = VIEW(turned)});
  kr_graph_call(g, "append", &kr_op_attention_append,
                &(kr_attention_append_args){.k = VIEW(k),
                                            .v = VIEW(m.v),
                                            .cos = VIEW(m.cos),
                                            .sin = VIEW(m.sin),
                                            .cache_seqlens = VIEW(m.lengths),
                                            .k_cache = VIEW(m.keys),
                                            .v_cache = VIEW(m.values),
                                            .seqused = VIEW(used)});
  kr_graph_call(g, "attention", &kr_op_attention,
                &(kr_attention_args){.call.flags = KRAIT_ATTENTION_CAUSAL,
                                        .q = VIEW(turned),
                                        .k = VIEW(m.keys),
                                        .v = VIEW(m.values),
                                        .seqused_k = VIEW(used),
                                        .out = VIEW(m.out)});
#undef VIEW
  if (kr_graph_plan(g, m.ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_graph_check_plan(g), KRAIT_OK);
  assert_int_equal(kr_runner_open(g, &m.r), KRAIT_OK);
  return m;
}

static float turns[2 * ROOM * CHANNELS / 2], head_weights[N_HEADS * CHANNELS];

static void run_step(const step *m, uint16_t *qk, uint16_t *v, int32_t *lengths, uint16_t *cache, uint16_t *out) {
  const struct {
    kr_tensor t;
    void *at;
  } all[] = {{m->qk, qk},
             {m->weight, head_weights},
             {m->v, v},
             {m->cos, turns},
             {m->lengths, lengths},
             {m->sin, turns + ROOM * CHANNELS / 2},
             {m->keys, cache},
             {m->values, cache + N_KV * ROOM},
             {m->out, out}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].t) assert_int_equal(kr_runner_bind(m->r, all[i].t, all[i].at), KRAIT_OK);
  if (kr_runner_run(m->r, NULL) < 0) fail_msg("%s", krait_error_detail());
}

static void draw_halves(uint16_t *to, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] = kr_float_to_f16(2 * draw_emulated());
}

static void expect_near(const uint16_t *got, const uint16_t *want, int64_t n, float bound) {
  for (int64_t i = 0; i < n; i++) assert_float_equal(kr_f16_to_float(got[i]), kr_f16_to_float(want[i]), bound);
}

/* Calls that are merged, recorded from the second run on: the same cache, or nearly if a norm's result is no longer
 * rounded, and nearly the same rows. */
static void take_what_precedes(int64_t tokens, int is_normed, const kr_op *last, size_t n_calls) {
  static _Alignas(16) uint16_t cache[2][2 * N_KV * ROOM], out[2][N_Q], qk[N_QK], v[N_V];
  random_state = 6;
  for (int i = 0; i < ROOM * CHANNELS / 2; i++) {
    const float angle = 7 * draw_emulated();
    turns[i] = cosf(angle), turns[ROOM * CHANNELS / 2 + i] = sinf(angle);
  }
  for (int i = 0; i < N_HEADS * CHANNELS; i++) head_weights[i] = 1 + draw_emulated();
  draw_halves(cache[0], 2 * N_KV * ROOM);
  memcpy(cache[1], cache[0], sizeof *cache);
  step m[2] = {open_step(0, tokens, is_normed), open_step(1, tokens, is_normed)};
  assert_int_equal(m[0].g->nodes.n, is_normed ? 4 : 3);
  assert_int_equal(m[1].g->nodes.n, n_calls);
  assert_ptr_equal(KR_NODE(m[1].g, 0)->op, last);
  for (int t = 0; t < 3; t++) {
    int32_t lengths[B] = {3 + t, 0, ROOM - TOKENS - 4 + t};
    draw_halves(qk, N_QK), draw_halves(v, N_V);
    for (int i = 0; i < 2; i++) run_step(&m[i], qk, v, lengths, cache[i], out[i]);
    if (is_normed)
      expect_near(cache[1], cache[0], 2 * N_KV * ROOM, 4e-3f);
    else
      assert_memory_equal(cache[0], cache[1], sizeof *cache);
    expect_near(out[1], out[0], B * tokens * HEADS * CHANNELS, is_normed ? 8e-3f : 2e-3f);
  }
  assert_non_null(m[1].r->recordings[0].recorded);
  for (int i = 0; i < 2; i++) kr_runner_close(&m[i].r), kr_graph_close(&m[i].g), krait_ctx_close(&m[i].ctx);
}

static void attention_takes_what_precedes_it(void **state) {
  (void)state;
  for (int is_normed = 0; is_normed < 2; is_normed++) take_what_precedes(1, is_normed, &kr_op_attention_step, 1);
}
static void appending_takes_norm_and_rotary(void **state) {
  (void)state;
  for (int is_normed = 0; is_normed < 2; is_normed++) take_what_precedes(TOKENS, is_normed, &kr_op_rotary_append, 2);
}

/* ---- what a language model's prompt is made of besides its products: convolution, scan, norm ---- */

enum { L = 32, E = 32, STATES = 16, WIDE = 2056, TAPS = 4 };

typedef struct prompt {
  uint16_t rows[L * 3 * E], bc[L * 2 * STATES], h[L * WIDE], taps[E * TAPS], bias[E], weight[WIDE], y[L * E],
      normed[L * WIDE];
  float past[E * (TAPS - 1)], A[E * STATES], D[E], dt_bias[E], before[E * STATES], stream[L * WIDE];
  float last[E * (TAPS - 1)], after[E * STATES], sum[L * WIDE];
} prompt;

static void draw_floats(float *to, int n, float shift) {
  for (int i = 0; i < n; i++) to[i] = draw_emulated() + shift;
}

static void draw_prompt(prompt *p) {
  uint16_t *const halves[] = {p->rows, p->bc, p->h, p->taps, p->bias, p->weight};
  const int n_halves[] = {L * 3 * E, L * 2 * STATES, L * WIDE, E * TAPS, E, WIDE};
  for (int i = 0; i < 6; i++) draw_halves(halves[i], n_halves[i]);
  float *const floats[] = {p->past, p->D, p->dt_bias, p->before, p->stream, p->A};
  const int n_floats[] = {E * (TAPS - 1), E, E, E * STATES, L * WIDE, E * STATES};
  for (int i = 0; i < 6; i++) draw_floats(floats[i], n_floats[i], i == 5 ? -2.0f : 0.0f);
}

/* Columns of rows, as (1,E,L) or, with groups, (1,1,N,L). */
static kr_view columns(kr_graph *g, kr_tensor rows, int64_t from, int64_t n) {
  const kr_tensor part = kr_graph_reshape(g, kr_graph_slice(g, rows, 1, from, n), KR_DIMS(1, L, n));
  return kr_graph_view(g, kr_graph_permute(g, part, (int[]){0, 2, 1}));
}
static kr_view group(kr_graph *g, kr_tensor rows, int64_t from) {
  const kr_tensor part = kr_graph_reshape(g, kr_graph_slice(g, rows, 1, from, STATES), KR_DIMS(1, L, 1, STATES));
  return kr_graph_view(g, kr_graph_permute(g, part, (int[]){0, 2, 3, 1}));
}

static void record_prompt(kr_graph *g, const prompt *p, kr_tensor *t) {
#define WEIGHT(field, type, ...) kr_graph_view(g, kr_graph_weight(g, #field, type, KR_DIMS(__VA_ARGS__), p->field))
#define PUT(i, name, what, type, ...) t[i] = kr_graph_##what(g, name, type, KR_DIMS(__VA_ARGS__))
  PUT(0, "rows", input, KRAIT_F16, L, 3 * E), PUT(1, "bc", input, KRAIT_F16, L, 2 * STATES);
  PUT(2, "h", input, KRAIT_F16, L, WIDE), PUT(3, "past", input, KRAIT_F32, 1, E, TAPS - 1);
  PUT(4, "before", input, KRAIT_F32, 1, E, STATES), PUT(5, "stream", input, KRAIT_F32, L, WIDE);
  PUT(6, "y", output, KRAIT_F16, L, E), PUT(7, "normed", output, KRAIT_F16, L, WIDE);
  PUT(8, "last", output, KRAIT_F32, 1, E, TAPS - 1), PUT(9, "after", output, KRAIT_F32, 1, E, STATES);
  PUT(10, "sum", output, KRAIT_F32, L, WIDE);
  const kr_tensor u = kr_graph_temp(g, KRAIT_F16, KR_DIMS(L, E));
  kr_graph_call(g, "conv", &kr_op_causal_conv1d,
                &(kr_causal_conv1d_args){.activation = KRAIT_ACT_SILU,
                                            .x = columns(g, t[0], 0, E),
                                            .weight = WEIGHT(taps, KRAIT_F16, E, TAPS),
                                            .bias = WEIGHT(bias, KRAIT_F16, E),
                                            .initial_states = kr_graph_view(g, t[3]),
                                            .out = columns(g, u, 0, E),
                                            .final_states = kr_graph_view(g, t[8])});
  kr_graph_call(g, "scan", &kr_op_selective_scan,
                &(kr_selective_scan_args){.call.flags = KRAIT_SCAN_SOFTPLUS,
                                             .G = 1,
                                             .u = columns(g, u, 0, E),
                                             .delta = columns(g, t[0], E, E),
                                             .A = WEIGHT(A, KRAIT_F32, E, STATES),
                                             .Bmat = group(g, t[1], 0),
                                             .Cmat = group(g, t[1], STATES),
                                             .Dvec = WEIGHT(D, KRAIT_F32, E),
                                             .z = columns(g, t[0], 2 * E, E),
                                             .delta_bias = WEIGHT(dt_bias, KRAIT_F32, E),
                                             .initial_state = kr_graph_view(g, t[4]),
                                             .out = columns(g, t[6], 0, E),
                                             .last_state = kr_graph_view(g, t[9])});
  kr_graph_call(g, "norm", &kr_op_add_norm,
                &(kr_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                       .eps = 1e-5f,
                                       .x = kr_graph_view(g, t[2]),
                                       .residual = kr_graph_view(g, t[5]),
                                       .weight = WEIGHT(weight, KRAIT_F16, WIDE),
                                       .out = kr_graph_view(g, t[7]),
                                       .residual_out = kr_graph_view(g, t[10])});
}

static void run_prompt(int32_t device, prompt *p, int n_runs) {
  void *const data[] = {p->rows, p->bc,     p->h,    p->past,  p->before, p->stream,
                        p->y,    p->normed, p->last, p->after, p->sum};
  kr_tensor t[11];
  model m = {0};
  const krait_ctx_options options = {
      .size = sizeof options, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  assert_int_equal(krait_ctx_open(&options, &m.ctx), KRAIT_OK);
  assert_int_equal(kr_graph_open(&m.g), KRAIT_OK);
  record_prompt(m.g, p, t);
  if (kr_graph_plan(m.g, m.ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_runner_open(m.g, &m.r), KRAIT_OK);
  for (int i = 0; i < 11; i++) assert_int_equal(kr_runner_bind(m.r, t[i], data[i]), KRAIT_OK);
  for (int k = 0; k < n_runs; k++)
    if (kr_runner_run(m.r, NULL) < 0) fail_msg("%s", krait_error_detail());
  close_model(&m);
}

static void prompts_start_ahead(void **state) {
  static _Alignas(16) prompt cpu, gpu;
  (void)state;
  random_state = 77;
  draw_prompt(&cpu);
  gpu = cpu;
  run_prompt(KRAIT_DEVICE_CPU, &cpu, 1);
  const long before = (long)kr_emulated_pdl();
  run_prompt(KRAIT_DEVICE_CUDA(0), &gpu, 2);
  assert_int_equal((long)kr_emulated_pdl() - before, 3); /* each in the recording, once */
  for (int i = 0; i < L * E; i++) assert_float_equal(kr_f16_to_float(gpu.y[i]), kr_f16_to_float(cpu.y[i]), 1e-2f);
  for (int i = 0; i < L * WIDE; i++) {
    assert_float_equal(kr_f16_to_float(gpu.normed[i]), kr_f16_to_float(cpu.normed[i]), 4e-3f);
    assert_float_equal(gpu.sum[i], cpu.sum[i], 1e-6f);
  }
  for (int i = 0; i < E * (TAPS - 1); i++) assert_float_equal(gpu.last[i], cpu.last[i], 0);
  for (int i = 0; i < E * STATES; i++) assert_float_equal(gpu.after[i], cpu.after[i], 5e-3f);
}

/* ---- a convolution behind a gated product, which takes the norm before it but not this ---- */

enum { WIDTH = 64, N_TAPS = 4 };
typedef struct gated_step {
  _Alignas(16) float x[WIDTH], norm[WIDTH], first[WIDTH * WIDTH], second[WIDTH * WIDTH], taps[WIDTH * N_TAPS];
  float y[WIDTH];
} gated_step;

static kr_view turned_weight(kr_graph *g, const char *name, const float *data) {
  const kr_tensor t = kr_graph_weight(g, name, KRAIT_F32, KR_DIMS(WIDTH, WIDTH), data);
  return kr_graph_view(g, kr_graph_permute(g, t, (int[]){1, 0}));
}

/* Returns the number of calls. */
static size_t run_gated_step(int32_t device, gated_step *s) {
  model m = {0};
  const krait_ctx_options options = {
      .size = sizeof options, .device = device, .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  assert_int_equal(krait_ctx_open(&options, &m.ctx), KRAIT_OK);
  assert_int_equal(kr_graph_open(&m.g), KRAIT_OK);
  kr_graph *g = m.g;
  m.x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(1, WIDTH));
  m.y = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(1, WIDTH, 1));
  const kr_tensor norm = kr_graph_weight(g, "norm", KRAIT_F32, KR_DIMS(WIDTH), s->norm),
                  taps = kr_graph_weight(g, "taps", KRAIT_F32, KR_DIMS(WIDTH, N_TAPS), s->taps),
                  past = kr_graph_state(g, "past", KRAIT_F32, KR_DIMS(1, WIDTH, N_TAPS - 1));
  const kr_tensor normed = kr_graph_call(g, "norm", &kr_op_add_norm,
                                         &(kr_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                                             .eps = 1e-3f,
                                                             .x = kr_graph_view(g, m.x),
                                                             .weight = kr_graph_view(g, norm),
                                                             .out = kr_graph_auto()});
  const kr_tensor gated = kr_graph_call(g, "product", &kr_op_gemm,
                                        &(kr_gemm_args){.activation = KRAIT_ACT_SILU,
                                                        .A = kr_graph_view(g, normed),
                                                        .Bmat = turned_weight(g, "first", s->first),
                                                        .B2 = turned_weight(g, "second", s->second),
                                                        .out = kr_graph_auto()});
  kr_graph_call(g, "conv", &kr_op_causal_conv1d_update,
                &(kr_causal_conv1d_update_args){
                    .activation = KRAIT_ACT_SILU,
                    .x = kr_graph_view(g, kr_graph_reshape(g, gated, KR_DIMS(1, WIDTH, 1))),
                    .conv_state = kr_graph_view(g, past),
                    .weight = kr_graph_view(g, taps),
                    .out = kr_graph_view(g, m.y)});
  if (kr_graph_plan(g, m.ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  const size_t n_calls = g->nodes.n;
  assert_int_equal(kr_runner_open(g, &m.r), KRAIT_OK);
  assert_int_equal(kr_runner_bind(m.r, m.x, s->x), KRAIT_OK);
  assert_int_equal(kr_runner_bind(m.r, m.y, s->y), KRAIT_OK);
  if (kr_runner_run(m.r, NULL) < 0) fail_msg("%s", krait_error_detail());
  close_model(&m);
  return n_calls;
}

static void a_convolution_stays_behind_a_gated_product(void **state) {
  static gated_step cpu, gpu;
  (void)state;
  random_state = 12;
  for (size_t i = 0; i < offsetof(gated_step, y) / sizeof(float); i++) ((float *)&cpu)[i] = draw_emulated();
  gpu = cpu;
  run_gated_step(KRAIT_DEVICE_CPU, &cpu);
  assert_int_equal(run_gated_step(KRAIT_DEVICE_CUDA(0), &gpu), 2);
  for (int i = 0; i < WIDTH; i++) assert_float_equal(gpu.y[i], cpu.y[i], 1e-4f * (1 + fabsf(cpu.y[i])));
}

/* ---- an operator that is a graph ---- */

enum { KEPT = 40 };

/* silu(x) y + x */
static void record_kept(kr_graph *g, const void *args, int32_t dtype) {
  const kr_pointwise_args *a = args;
  (void)dtype;
  KR_GRAPH_INPUT(x, 1, 1, 1, KEPT);
  KR_GRAPH_INPUT(y, 1, 1, 1, KEPT);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(1, 1, 1, KEPT)),
                  product = kr_graph_temp(g, KRAIT_F32, KR_DIMS(1, 1, 1, KEPT));
  kr_graph_pointwise(
      g, "product",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1}, x, y,
      product);
  kr_graph_pointwise(g, "sum", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, product, x, out);
}

static void run_kept(const krait_ctx *ctx, float (*at)[KEPT], char *scratch) {
  static const kr_graph_impl impl = {&kr_op_pointwise, record_kept, 0, 0};
  kr_pointwise_args args = {.I = 1, .J = 1, .K = 1, .N = KEPT, .x_scale = 1};
  kr_view *const views[] = {&args.x, &args.y, &args.out};
  for (int i = 0; i < 3; i++) *views[i] = (kr_view){.data = at[i], .dtype = KRAIT_F32, .stride = {KEPT, KEPT, KEPT, 1}};
  for (int i = 0; i < KEPT; i++) at[0][i] = draw_emulated(), at[1][i] = draw_emulated(), at[2][i] = NAN;
  args.call.scratch_bytes = kr_graph_impl_scratch(&impl, ctx, &args);
  assert_in_range(args.call.scratch_bytes, 1, 4096);
  args.call.scratch = scratch;
  if (kr_graph_impl_run(&impl, ctx, &args) < 0) fail_msg("%s", krait_error_detail());
  for (int i = 0; i < KEPT; i++) {
    const float x = at[0][i];
    assert_float_equal(at[2][i], x / (1 + expf(-x)) * at[1][i] + x, 1e-5f);
  }
}

/* Two sets of addresses in turn are recorded; then new ones each time, also of the scratch alone, are not, and the two
 * still are. */
static void addresses_that_come_again_are_recorded(void **state) {
  static _Alignas(256) float tensors[200][3][KEPT];
  static _Alignas(256) char scratch[200][4096];
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {
      .size = sizeof options, .device = KRAIT_DEVICE_CUDA(0), .n_threads = 1, .fallback = KRAIT_FALLBACK_NEVER};
  (void)state;
  random_state = 12;
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  for (int t = 0; t < 10; t++) {
    run_kept(ctx, tensors[t % 2], scratch[t % 2]);
    assert_int_equal(ctx->n_calls, 2 * (t < 6 ? t + 1 : 6)); /* seen, bound, recorded; then replayed */
  }
  for (int t = 2; t < 190; t++) run_kept(ctx, tensors[t % 3 ? t : 0], scratch[t]);
  assert_int_equal(ctx->n_calls, 2 * (6 + 188));
  for (int t = 0; t < 4; t++) run_kept(ctx, tensors[t % 2], scratch[t % 2]);
  assert_int_equal(ctx->n_calls, 2 * (6 + 188));
  krait_ctx_close(&ctx);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  setenv("KR_FAKE_CUDA", "capability=90,shared=232448,multiprocessors=16,record=1", 1);
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  if (!kr_cuda_built_tiers()) return 77;
  const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_those_of_the_cpu),
                                     cmocka_unit_test(lanes_run_side_by_side),
                                     cmocka_unit_test(attention_takes_what_precedes_it),
                                     cmocka_unit_test(appending_takes_norm_and_rotary),
                                     cmocka_unit_test(prompts_start_ahead),
                                     cmocka_unit_test(a_convolution_stays_behind_a_gated_product),
                                     cmocka_unit_test(a_recorded_stream_gets_the_launches),
                                     cmocka_unit_test(addresses_that_come_again_are_recorded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
