/* primeknet_stream.c: a streaming PrimeKnet: batch norms in training against recorded outputs, statistics and
 * gradients; whole windows with running statistics; chunks of any size and live sound, equal to the whole. */
#include "test.h"

#include <krait/enhance.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "primeknet/primeknet_graph.h"

static const char *pair; /* of the golden files */
enum { MOST = 512 };

typedef struct problem {
  krait_ctx *ctx;
  kr_weights *weights, *golden;
  kr_config *config;
  kr_pk_config c;
  const float *com_in;
  int64_t B, F, T;
  /* of the training graph */
  kr_graph *g;
  kr_tensor tensors[MOST], gradients[MOST];
  char names[MOST][192], norms[MOST][192];
  float *measured[MOST];
  int64_t measured_n[MOST];
  int n, n_measured;
} problem;

static const char *file_of_pair(char path[512], const char *end) {
  snprintf(path, 512, "%s/%s.%s.safetensors", GOLDEN, pair, end);
  return path;
}

static void must(int32_t status) {
  if (status < 0) fail_msg("%s", krait_error_detail());
}

static const kr_weight *pk_stream_item(const kr_weights *file, const char *prefix, const char *name) {
  char key[256];
  snprintf(key, sizeof key, "%s%s", prefix, name);
  const kr_weight *w = kr_weights_find(file, key);
  if (!w) fail_msg("no tensor %s", key);
  return w;
}

static double pk_stream_distance(const float *got, const float *want, int64_t n) {
  double sum = 0, all = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = (double)got[i] - (double)want[i];
    sum += d * d, all += (double)want[i] * (double)want[i];
  }
  return all > 0 ? sqrt(sum / all) : sqrt(sum);
}

static void open_problem(problem *p) {
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  char path[512];
  *p = (problem){0};
  must(krait_ctx_open(&options, &p->ctx));
  must(kr_weights_open(file_of_pair(path, "weights"), &p->weights));
  must(kr_weights_open(file_of_pair(path, "golden"), &p->golden));
  must(kr_config_open(p->weights, NULL, NULL, &p->config));
  must(kr_pk_config_read(kr_config_model(p->config), p->config, &p->c));
  assert_int_equal(p->c.streams, 1);
  const kr_weight *in = pk_stream_item(p->golden, "golden.", "input_com");
  p->com_in = in->data, p->B = in->shape[0], p->F = in->shape[1], p->T = in->shape[2];
}

static void close_problem(problem *p) {
  for (int i = 0; i < p->n_measured; i++) kr_free(p->measured[i]);
  kr_graph_close(&p->g);
  kr_config_close(&p->config), kr_weights_close(&p->golden), kr_weights_close(&p->weights), krait_ctx_close(&p->ctx);
}

/* ---- as in training ---- */

static kr_tensor pk_stream_parameter(void *user, kr_graph *g, const char *name, kr_dims dims) {
  problem *p = user;
  const float *data = NULL;
  must(kr_weights_take_f32(p->weights, name, dims.n, dims.size, &data));
  assert_true(p->n < MOST);
  snprintf(p->names[p->n], sizeof p->names[0], "%s", name);
  return p->tensors[p->n++] = kr_graph_weight(g, name, KRAIT_F32, dims, data);
}

static kr_tensor measured(void *user, kr_graph *g, const char *name, kr_dims dims) {
  problem *p = user;
  const int k = p->n_measured++;
  assert_true(k < MOST && dims.n == 1);
  snprintf(p->norms[k], sizeof p->norms[0], "%s", name);
  p->measured_n[k] = dims.size[0], p->measured[k] = kr_alloc((size_t)dims.size[0] * sizeof(float));
  const kr_view layout = {.data = p->measured[k], .dtype = KRAIT_F32, .stride = {1}};
  return kr_graph_output_like(g, name, &layout, dims);
}

static void check_pk_stream_gradients(const problem *p, float *const *memory) {
  double all = 0, worst = 0;
  int n = 0;
  const char *of = "";
  for (int i = 0; i < p->n; i++) {
    const kr_weight *want = pk_stream_item(p->golden, "golden.grad.", p->names[i]);
    for (uint64_t k = 0; k < want->bytes / 4; k++) all = fmax(all, fabs(((const float *)want->data)[k]));
  }
  for (int i = 0; i < p->n; i++) {
    const kr_weight *want = pk_stream_item(p->golden, "golden.grad.", p->names[i]);
    double largest = 0;
    for (uint64_t k = 0; k < want->bytes / 4; k++) largest = fmax(largest, fabs(((const float *)want->data)[k]));
    if (largest < 1e-5 * all) continue; /* a bias before a norm: rounding error only */
    const double d = pk_stream_distance(memory[i], want->data, (int64_t)(want->bytes / 4));
    n++;
    if (!(d <= worst)) worst = d, of = p->names[i];
  }
  print_message("%d gradients of %d, worst %.1e (%s)\n", n, p->n, worst, of);
  assert_true(n > p->n / 2);
  if (!(worst <= 1e-4)) fail_msg("the gradient of %s is off by %.2e", of, worst);
}

/* Batch norms: outputs, targets of the running statistics, and gradients. */
static void trains_as_recorded(void **state) {
  (void)state;
  static problem p;
  kr_runner *r = NULL;
  float *memory[MOST];
  kr_gradient wanted[MOST];
  open_problem(&p);
  const int64_t n = p.B * p.F * p.T;
  must(kr_graph_open(&p.g));
  kr_pk_graph io = {.com_in = kr_graph_input(p.g, "com_in", KRAIT_F32, KR_DIMS(p.B, p.F, p.T, 2)),
                    .mag = kr_graph_output(p.g, "mag", KRAIT_F32, KR_DIMS(p.B, p.F, p.T)),
                    .com = kr_graph_output(p.g, "com", KRAIT_F32, KR_DIMS(p.B, p.F, p.T, 2)),
                    .measured = measured,
                    .recompute = 1};
  kr_pk_graph_record(p.g, &p.c, pk_stream_parameter, &p, &io);
  must(kr_graph_status(p.g));
  assert_int_equal(p.n + p.n_measured, kr_weights_count(p.weights));
  const kr_tensor dmag = kr_graph_input(p.g, "dmag", KRAIT_F32, KR_DIMS(p.B, p.F, p.T)),
                  dcom = kr_graph_input(p.g, "dcom", KRAIT_F32, KR_DIMS(p.B, p.F, p.T, 2));
  for (int i = 0; i < p.n; i++)
    wanted[i] =
        (kr_gradient){p.tensors[i], kr_graph_output(p.g, p.names[i], KRAIT_F32, kr_graph_dims(p.g, p.tensors[i]))};
  must(kr_graph_backward(p.g, (kr_gradient[]){{io.mag, dmag}, {io.com, dcom}}, 2, wanted, p.n));
  must(kr_graph_plan(p.g, p.ctx, 0));
  must(kr_runner_open(p.g, &r));
  float *out = kr_alloc_array((size_t)n, 6 * sizeof *out), *seeds = out + 3 * n;
  for (int64_t i = 0; i < n; i++)
    seeds[i] = ((const float *)pk_stream_item(p.golden, "golden.", "loss_w_mag")->data)[i] / (float)n;
  for (int64_t i = 0; i < 2 * n; i++)
    seeds[n + i] = ((const float *)pk_stream_item(p.golden, "golden.", "loss_w_com")->data)[i] / (float)(2 * n);
  kr_runner_bind(r, io.com_in, (void *)p.com_in), kr_runner_bind(r, io.mag, out), kr_runner_bind(r, io.com, out + n);
  kr_runner_bind(r, dmag, seeds), kr_runner_bind(r, dcom, seeds + n);
  for (int i = 0; i < p.n; i++)
    kr_runner_bind(r, wanted[i].at, memory[i] = kr_alloc(pk_stream_item(p.weights, "", p.names[i])->bytes));
  must(kr_runner_run(r, NULL));
  const double mag = pk_stream_distance(out, pk_stream_item(p.golden, "golden.", "train_mag")->data, n),
               com = pk_stream_distance(out + n, pk_stream_item(p.golden, "golden.", "train_com")->data, 2 * n);
  double worst = 0;
  for (int i = 0; i < p.n_measured; i++)
    worst = fmax(worst, pk_stream_distance(p.measured[i], pk_stream_item(p.golden, "golden.batch.", p.norms[i])->data,
                                           p.measured_n[i]));
  print_message("mag %.1e, com %.1e, %d statistics %.1e\n", mag, com, p.n_measured, worst);
  assert_true(p.n_measured >= 2 * 8 && mag <= 1e-5 && com <= 1e-5 && worst <= 1e-5);
  check_pk_stream_gradients(&p, memory);
  for (int i = 0; i < p.n; i++) kr_free(memory[i]);
  kr_free(out), kr_runner_close(&r), close_problem(&p);
}

/* ---- inference ---- */

static void chunks_equal_the_whole(void **state) {
  static const int64_t sizes[] = {1, 3, 8, 64};
  (void)state;
  static problem p;
  kr_primeknet *s = NULL;
  open_problem(&p);
  const int64_t plane = p.F * p.T;
  must(kr_primeknet_open(p.ctx, &p.c, p.weights, KRAIT_PRECISION_DEFAULT, &s));
  float *mag = kr_alloc_array((size_t)plane, 2 * sizeof *mag), *pha = mag + plane,
        *com = kr_alloc_array((size_t)plane, 2 * sizeof *com);
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    kr_pk_session *c = NULL;
    must(kr_pk_session_open(s, sizes[k], &c));
    for (int64_t b = 0; b < p.B; b++) { /* the second starts fresh */
      must(kr_pk_begin(c));
      for (int64_t t = 0; t < p.T; t += sizes[k]) {
        const int64_t n = p.T - t < sizes[k] ? p.T - t : sizes[k];
        must(kr_pk_take(c, p.com_in + 2 * b * plane, p.T, t, n));
        for (int part = 0; part < t % 4; part++) must(kr_pk_work(c, part * 0.3));
        must(kr_pk_give(c, p.T, t, n, mag, pha));
      }
      for (int64_t i = 0; i < plane; i++) com[2 * i] = mag[i] * cosf(pha[i]), com[2 * i + 1] = mag[i] * sinf(pha[i]);
      const double d_mag = pk_stream_distance(
                       mag, (const float *)pk_stream_item(p.golden, "golden.", "mag")->data + b * plane, plane),
                   d_com = pk_stream_distance(
                       com, (const float *)pk_stream_item(p.golden, "golden.", "com")->data + 2 * b * plane, 2 * plane);
      print_message("chunks of %lld: mag %.1e, com %.1e\n", (long long)sizes[k], d_mag, d_com);
      assert_true(d_mag <= 1e-5 && d_com <= 1e-5);
    }
    kr_pk_session_close(&c);
  }
  kr_free(mag), kr_free(com), kr_primeknet_close(&s), close_problem(&p);
}

static void open_pk_stream_model(const char *overrides, krait_ctx **ctx, krait_denoiser **model,
                                 krait_denoiser_session **session) {
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  char path[512];
  const krait_denoiser_options how = {
      .size = sizeof how, .weights_path = file_of_pair(path, "weights"), .overrides = overrides};
  must(krait_ctx_open(&options, ctx));
  must(krait_denoiser_open(*ctx, &how, model));
  must(krait_denoiser_session_open(*model, session));
}

static void windows_as_recorded(void **state) {
  (void)state;
  static problem p;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  open_problem(&p);
  open_pk_stream_model(NULL, &ctx, &model, &session);
  const int64_t n = p.B * p.F * p.T;
  float *out = kr_alloc_array((size_t)n, 4 * sizeof *out);
  must(krait_primeknet_forward(session, p.B, p.T, p.com_in, out, out + n, out + 2 * n));
  assert_true(pk_stream_distance(out, pk_stream_item(p.golden, "golden.", "mag")->data, n) <= 1e-5);
  assert_true(pk_stream_distance(out + 2 * n, pk_stream_item(p.golden, "golden.", "com")->data, 2 * n) <= 1e-5);
  kr_free(out), krait_denoiser_session_close(&session), krait_denoiser_close(&model), krait_ctx_close(&ctx),
      close_problem(&p);
}

/* Noise at -25 dBFS, not affected by level rules. */
static void draw_pk_stream(float *wav, int64_t n) {
  uint32_t state = 7;
  for (int64_t i = 0; i < n; i++)
    state = state * 1664525u + 1013904223u, wav[i] = ((float)(state >> 8) * 0x1p-24f - 0.5f) * 0.195f;
}

/* Through krait_stream_* in pieces of `piece` samples (0: all sizes): equal to the whole, and never late. */
static void check_stream(krait_denoiser_session *session, const float *in, const float *want, int64_t n,
                         int64_t piece) {
  krait_denoiser_stream *stream = NULL;
  uint32_t random = 5;
  float *out = kr_alloc_array((size_t)n + 4096, sizeof *out);
  must(krait_denoiser_stream_open(session, &stream));
  const int64_t latency = krait_denoiser_stream_latency(stream);
  for (int again = 0; again < 2; again++) { /* a stream restarts */
    int64_t heard = 0, said = 0, n_out;
    while (heard < n) {
      random = random * 1664525u + 1013904223u;
      int64_t some = piece ? piece : 1 + (random >> 16) % 1700;
      if (some > n - heard) some = n - heard;
      must(krait_denoiser_stream_push(stream, in + heard, some, out + said, some + latency, &n_out));
      heard += some, said += n_out;
      if (heard - said > latency)
        fail_msg("%lld samples behind, the latency is %lld", (long long)(heard - said), (long long)latency);
    }
    must(krait_denoiser_stream_finish(stream, out + said, latency, &n_out));
    assert_int_equal(said + n_out, n);
    const double d = pk_stream_distance(out, want, n);
    if (!(d <= 1e-5))
      fail_msg("%lld samples in pieces of %lld: %.2e from the whole", (long long)n, (long long)piece, d);
  }
  krait_denoiser_stream_close(&stream), kr_free(out);
}

static void live_sound_equals_the_whole(void **state) {
  static const int64_t lengths[] = {1, 199, 201, 300, 400, 500, 701, 1100, 8000, 8037},
                       pieces[] = {100, 160, 1, 5000, 0};
  enum { N = 8037 };
  (void)state;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  float in[N], want[N];
  open_pk_stream_model(NULL, &ctx, &model, &session);
  draw_pk_stream(in, N);
  for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
    must(krait_enhance_samples(session, in, want, lengths[k], NULL, NULL));
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) check_stream(session, in, want, lengths[k], pieces[i]);
  }
  krait_denoiser_session_close(&session), krait_denoiser_close(&model), krait_ctx_close(&ctx);
}

/* A push with too little room consumes nothing; due samples come. */
static void says_what_is_due(void **state) {
  (void)state;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_denoiser_stream *stream = NULL;
  float in[4000], out[8000];
  int64_t n_out;
  open_pk_stream_model(NULL, &ctx, &model, &session);
  draw_pk_stream(in, 4000);
  must(krait_denoiser_stream_open(session, &stream));
  assert_int_equal(krait_denoiser_stream_latency(stream), (3 + 2 * KR_PK_LIVE_CHUNK) * 100);
  assert_int_equal(krait_denoiser_stream_push(stream, in, 4000, out, 3000, &n_out), KRAIT_ERR_ARGUMENT);
  assert_int_equal(n_out, 0);
  must(krait_denoiser_stream_push(stream, in, 4000, out, 8000, &n_out));
  assert_true(n_out > 4000 - krait_denoiser_stream_latency(stream) && n_out <= 3700);
  krait_denoiser_stream_close(&stream); /* in the middle: the session's next stream is unaffected */
  float again[8000];
  int64_t n_again;
  must(krait_denoiser_stream_open(session, &stream));
  must(krait_denoiser_stream_push(stream, in, 4000, again, 8000, &n_again));
  assert_int_equal(n_again, n_out);
  assert_memory_equal(again, out, (size_t)n_out * sizeof *out);
  must(krait_denoiser_stream_finish(stream, out + n_out, 4000, &n_out));
  krait_denoiser_stream_close(&stream), krait_denoiser_session_close(&session), krait_denoiser_close(&model),
      krait_ctx_close(&ctx);
}

/* While a stream is open nothing else uses its session, and what is refused does not change its sound; whichever of the
 * two is closed first. */
static void has_its_session_alone(void **state) {
  enum { N = 12000 };
  static float in[N], want[N], got[N], other[N];
  (void)state;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_denoiser_stream *stream = NULL, *second = NULL;
  krait_verify_result rows[4];
  int32_t n_rows;
  char path[512];
  int64_t n = 0, k;
  open_pk_stream_model(NULL, &ctx, &model, &session);
  draw_pk_stream(in, N);
  must(krait_enhance_samples(session, in, want, N, NULL, NULL));
  must(krait_denoiser_stream_open(session, &stream));
  for (int at = 0; at < N; at += 2000) {
    must(krait_denoiser_stream_push(stream, in + at, 2000, got + n, N - n, &k)), n += k;
    assert_int_equal(krait_denoiser_stream_open(session, &second), KRAIT_ERR_ARGUMENT);
    assert_non_null(strstr(krait_error_detail(), "has an open stream"));
    assert_null(second);
    assert_int_equal(krait_enhance_samples(session, in, other, N, NULL, NULL), KRAIT_ERR_ARGUMENT);
    assert_int_equal(krait_primeknet_forward(session, 1, 8, in, other, NULL, NULL), KRAIT_ERR_ARGUMENT);
    assert_int_equal(krait_verify(session, file_of_pair(path, "golden"), rows, 4, &n_rows), KRAIT_ERR_ARGUMENT);
  }
  must(krait_denoiser_stream_finish(stream, got + n, N - n, &k));
  assert_int_equal(n + k, N);
  assert_true(pk_stream_distance(got, want, N) <= 1e-5);
  krait_denoiser_stream_close(&stream);
  must(krait_enhance_samples(session, in, other, N, NULL, NULL));
  assert_memory_equal(other, want, sizeof want);
  must(krait_denoiser_stream_open(session, &stream));
  krait_denoiser_session_close(&session);
  assert_int_equal(krait_denoiser_stream_push(stream, in, 100, got, N, &k), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_denoiser_stream_finish(stream, got, N, &k), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_denoiser_stream_latency(stream), 0);
  krait_denoiser_stream_close(&stream), krait_denoiser_close(&model), krait_ctx_close(&ctx);
}

/* Every allocation of a stream fails in turn: the push is right when it is repeated, or the stream refuses until
 * krait_denoiser_stream_finish, after which it starts again. */
static void failed_pushes(void **state) {
  enum { N = 3000, LATE = 4000 };
  static float in[N], want[N + LATE], got[N + LATE];
  (void)state;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_denoiser_stream *stream = NULL;
  int64_t n, k;
  int n_failed = 0;
  open_pk_stream_model(NULL, &ctx, &model, &session);
  draw_pk_stream(in, N);
  must(krait_enhance_samples(session, in, want, N, NULL, NULL));
  krait_denoiser_session_close(&session);
  for (long fail = 1, n_without = 0; n_without < 3; fail++) {
    must(krait_denoiser_session_open(model, &session));
    kr_alloc_fail_after(fail);
    int32_t status = krait_denoiser_stream_open(session, &stream);
    if (status >= 0) status = krait_denoiser_stream_push(stream, in, N, got, N + LATE, &n);
    kr_alloc_fail_after(0);
    n_failed += status < 0, n_without = status < 0 ? 0 : n_without + 1;
    if (!stream) must(krait_denoiser_stream_open(session, &stream));
    if (status < 0 && krait_denoiser_stream_push(stream, in, N, got, N + LATE, &n) < 0) {
      assert_non_null(strstr(krait_error_detail(), "krait_denoiser_stream_finish"));
      must(krait_denoiser_stream_finish(stream, got, N + LATE, &k));
      must(krait_denoiser_stream_push(stream, in, N, got, N + LATE, &n));
    }
    must(krait_denoiser_stream_finish(stream, got + n, N + LATE - n, &k));
    assert_int_equal(n + k, N);
    if (!(pk_stream_distance(got, want, N) <= 1e-5)) fail_msg("allocation %ld: another sound", fail);
    krait_denoiser_stream_close(&stream), krait_denoiser_session_close(&session);
  }
  print_message("%d allocations failed\n", n_failed);
  assert_true(n_failed > 0);
  krait_denoiser_close(&model), krait_ctx_close(&ctx);
}

/* Every allocation of a run fails in turn: repeated, it is right. */
static void failed_runs(void **state) {
  enum { N = 3000 };
  static float in[N], want[N], got[N];
  (void)state;
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  int n_failed = 0;
  open_pk_stream_model(NULL, &ctx, &model, &session);
  draw_pk_stream(in, N);
  must(krait_enhance_samples(session, in, want, N, NULL, NULL));
  for (long fail = 1, n_without = 0; n_without < 3; fail++) {
    krait_denoiser_session_close(&session);
    must(krait_denoiser_session_open(model, &session));
    kr_alloc_fail_after(fail);
    const int32_t status = krait_enhance_samples(session, in, got, N, NULL, NULL);
    kr_alloc_fail_after(0);
    n_failed += status < 0, n_without = status < 0 ? 0 : n_without + 1;
    must(krait_enhance_samples(session, in, got, N, NULL, NULL));
    assert_memory_equal(got, want, sizeof want);
  }
  print_message("%d allocations failed\n", n_failed);
  assert_true(n_failed > 0);
  krait_denoiser_session_close(&session), krait_denoiser_close(&model), krait_ctx_close(&ctx);
}

static void refuses_halves(void **state) {
  static const struct {
    const char *overrides, *says;
  } wrong[] = {{"channel_attention=mean", "must be used together"},
               {"norm=instance", "must be used together"},
               {"causal=false", "needs causal"},
               {"norm=layer", "not instance or batch"},
               {"channel_attention=max", "not mean or moving"},
               {"model=primeknet_gru", ""},
               {"dense_depth=2", "does not have"},
               {"freq_stride=7", "must divide fft_len / 2"},
               {"norm=instance,channel_attention=mean,freq_stride=1,position_bias=true",
                "position_bias needs norm: batch"},
               {"num_tsblock=3", "is missing"}};
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU};
  krait_ctx *ctx = NULL;
  char path[512];
  (void)state;
  must(krait_ctx_open(&options, &ctx));
  for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
    krait_denoiser *model = NULL;
    const krait_denoiser_options how = {
        .size = sizeof how, .weights_path = file_of_pair(path, "weights"), .overrides = wrong[k].overrides};
    assert_int_equal(krait_denoiser_open(ctx, &how, &model), KRAIT_ERR_WEIGHTS);
    if (!strstr(krait_error_detail(), wrong[k].says)) fail_msg("%s: %s", wrong[k].overrides, krait_error_detail());
  }
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trains_as_recorded),  cmocka_unit_test(chunks_equal_the_whole),
      cmocka_unit_test(windows_as_recorded), cmocka_unit_test(live_sound_equals_the_whole),
      cmocka_unit_test(says_what_is_due),    cmocka_unit_test(has_its_session_alone),
      cmocka_unit_test(failed_pushes),      cmocka_unit_test(failed_runs),
          cmocka_unit_test(refuses_halves)};
  int failed = 0;
  for (int k = 0; k < 2; k++) {
    pair = k ? "tiny-strided" : "tiny-streaming";
    failed |= cmocka_run_group_tests_name(pair, tests, NULL, NULL);
  }
  return failed;
}
