/* bundled.c: libkrait-ops, as in the wheel, and nothing else of krait: built-in weights, weights from a file and as
 * tensors against their recorded forward pass, streams, and errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <krait/enhance.h>

#include "../test.h"

enum { HZ = 16000, MOST_TENSORS = 512, TEXT_BYTES = 1024 };

static krait_ctx *ctx;

/* ---- safetensors of this tree, known to be valid ---- */
typedef struct file {
  char *header; /* split by zeros */
  unsigned char *bytes;
  krait_denoiser_tensor tensors[MOST_TENSORS];
  int64_t shapes[MOST_TENSORS][4], n_tensors;
  char settings[TEXT_BYTES]; /* "model=...,key=value,..." */
} file;

static void read_settings(file *f) {
  size_t n = (size_t)snprintf(f->settings, sizeof f->settings, "model=%.*s,",
                              (int)strcspn(strstr(f->header, "\"model\":\"") + 9, "\""),
                              strstr(f->header, "\"model\":\"") + 9);
  const char *at = strstr(f->header, "\"config\":\"{") + 11;
  for (; *at != '}' && n + 1 < sizeof f->settings; at++)
    if (!strchr("\\\" ", *at)) f->settings[n++] = *at == ':' ? '=' : *at;
  f->settings[n] = 0;
}

static void read_tensors(file *f) {
  char *at = strstr(f->header, "},\""); /* after the metadata */
  for (; at; at = strstr(at, "},\"")) {
    krait_denoiser_tensor *t = &f->tensors[f->n_tensors];
    int64_t *shape = f->shapes[f->n_tensors++];
    *t = (krait_denoiser_tensor){.name = at += 3, .shape = shape};
    at = strchr(at, '"'), *at++ = 0;
    char *size = strstr(at, "\"shape\":[") + 9;
    for (; *size != ']'; size += *size == ',') shape[t->n_dims++] = strtoll(size, &size, 10);
    t->data = (const float *)(const void *)(f->bytes + strtoll(strstr(size, "\"data_offsets\":[") + 16, NULL, 10));
    assert_true(f->n_tensors < MOST_TENSORS && t->n_dims <= 4);
    at = size;
  }
}

static file *read_bundled_file(const char *name) {
  char path[TEXT_BYTES];
  uint64_t n_header = 0;
  file *f = calloc(1, sizeof *f);
  snprintf(path, sizeof path, "%s/%s.safetensors", GOLDEN, name);
  FILE *from = fopen(path, "rb");
  assert_non_null(f);
  assert_non_null(from);
  assert_int_equal(fread(&n_header, sizeof n_header, 1, from), 1);
  fseek(from, 0, SEEK_END);
  const size_t n_bytes = (size_t)ftell(from) - sizeof n_header - n_header;
  fseek(from, sizeof n_header, SEEK_SET);
  f->header = calloc(1, n_header + 1), f->bytes = malloc(n_bytes);
  assert_true(f->header && f->bytes);
  assert_int_equal(fread(f->header, 1, n_header, from), n_header);
  assert_int_equal(fread(f->bytes, 1, n_bytes, from), n_bytes);
  fclose(from);
  read_settings(f);
  read_tensors(f);
  return f;
}

static void close_file(file *f) {
  free(f->header);
  free(f->bytes);
  free(f);
}

static krait_denoiser_tensor *find_bundled(file *f, const char *name) {
  for (int64_t i = 0; i < f->n_tensors; i++)
    if (strcmp(f->tensors[i].name, name) == 0) return &f->tensors[i];
  fail_msg("no tensor '%s'", name);
  return NULL;
}

static int32_t open_tensors(const file *f, const char *settings, krait_denoiser **model) {
  const krait_denoiser_options options = {.size = sizeof options, .overrides = settings};
  return krait_denoiser_open_tensors(ctx, &options, f->tensors, f->n_tensors, model);
}

/* ---- sound ---- */
static void fill_noise(float *samples, int64_t n) {
  uint32_t random = 1;
  for (int64_t i = 0; i < n; i++) {
    random = random * 1664525u + 1013904223u;
    samples[i] = (float)random * 0x1p-33f - .25f;
  }
}

static void check_cleaned(const float *in, const float *out, int64_t n) {
  double change = 0, level = 0;
  for (int64_t i = 0; i < n; i++) {
    assert_true(isfinite(out[i]));
    change += fabs((double)out[i] - in[i]), level += fabs((double)out[i]);
  }
  assert_true(change > .01 * (double)n && level > 0);
}

static krait_denoiser_session *open_inside(krait_denoiser **model) {
  krait_denoiser_session *session = NULL;
  assert_int_equal(krait_denoiser_open(ctx, NULL, model), KRAIT_OK);
  assert_int_equal(krait_denoiser_session_open(*model, &session), KRAIT_OK);
  return session;
}

static void the_model_inside_cleans(void **state) {
  (void)state;
  enum { N = HZ / 4 };
  static float in[N], out[2][N];
  fill_noise(in, N);
  for (int round = 0; round < 2; round++) { /* and again after a close */
    krait_denoiser *model = NULL;
    krait_denoiser_session *session = open_inside(&model);
    assert_non_null(strstr(krait_denoiser_json(model), "\"model\":\"primeknet_mamba\""));
    assert_int_equal(krait_enhance_samples(session, in, out[round], N, NULL, NULL), KRAIT_OK);
    check_cleaned(in, out[round], N);
    krait_denoiser_session_close(&session);
    krait_denoiser_close(&model);
    assert_true(!session && !model);
  }
  assert_memory_equal(out[0], out[1], sizeof *out);
}

/* As many samples out as in, each at most the latency late. */
static void the_model_inside_streams(void **state) {
  (void)state;
  enum { N = HZ * 3 / 8, PIECE = 1603 };
  static float in[N], out[N + HZ];
  fill_noise(in, N);
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = open_inside(&model);
  krait_denoiser_stream *stream = NULL;
  int64_t n = 0, n_out = 0;
  assert_int_equal(krait_denoiser_stream_open(session, &stream), KRAIT_OK);
  const int64_t latency = krait_denoiser_stream_latency(stream);
  assert_true(latency > 0 && latency < HZ);
  for (int64_t i = 0; i < N; i += PIECE, n += n_out) {
    const int64_t heard = N - i < PIECE ? N - i : PIECE;
    assert_int_equal(krait_denoiser_stream_push(stream, in + i, heard, out + n, heard + latency, &n_out), KRAIT_OK);
    assert_in_range(i + heard - n - n_out, 0, latency);
  }
  assert_int_equal(krait_denoiser_stream_finish(stream, out + n, latency, &n_out), KRAIT_OK);
  assert_int_equal(n + n_out, N);
  check_cleaned(in, out, N);
  krait_denoiser_stream_close(&stream);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
}

static void tensors_give_what_was_recorded(void **state) {
  char name[TEXT_BYTES];
  snprintf(name, sizeof name, "%s.weights", (const char *)*state);
  file *weights = read_bundled_file(name);
  snprintf(name, sizeof name, "%s.golden", (const char *)*state);
  file *golden = read_bundled_file(name);
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  assert_int_equal(open_tensors(weights, weights->settings, &model), KRAIT_OK);
  close_file(weights); /* they are not kept */
  assert_int_equal(krait_denoiser_session_open(model, &session), KRAIT_OK);
  const krait_denoiser_tensor *in = find_bundled(golden, "golden.input_com"),
                              *want = find_bundled(golden, "golden.com");
  const int64_t n = in->shape[0] * in->shape[1] * in->shape[2] * in->shape[3];
  float *got = malloc((size_t)n * sizeof *got);
  assert_non_null(got);
  assert_int_equal(krait_primeknet_forward(session, in->shape[0], in->shape[2], in->data, NULL, NULL, got), KRAIT_OK);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    error += ((double)got[i] - want->data[i]) * ((double)got[i] - want->data[i]);
    norm += (double)want->data[i] * want->data[i];
  }
  assert_true(norm > 0 && sqrt(error) < 1e-5 * sqrt(norm));
  free(got);
  close_file(golden);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
}

static void check_refused(int32_t status, int32_t want, const krait_denoiser *model, const char *words) {
  if (status != want || !strstr(krait_error_detail(), words))
    fail_msg("status %d, not %d, or '%s' lacks '%s'", status, want, krait_error_detail(), words);
  assert_null(model);
}

static void wrong_tensors_are_named(void **state) {
  (void)state;
  krait_denoiser *model = NULL;
  file *f = read_bundled_file("tiny-gru.weights");
  krait_denoiser_tensor *t = find_bundled(f, "mask_decoder.mask_conv.0.bias"), was = *t;
  int64_t more = was.shape[0] + 1;
  const float nan[64] = {[3] = NAN};
  char settings[TEXT_BYTES + 32];
  t->shape = &more;
  check_refused(open_tensors(f, f->settings, &model), KRAIT_ERR_WEIGHTS, model, was.name);
  *t = was, t->name = "other";
  check_refused(open_tensors(f, f->settings, &model), KRAIT_ERR_WEIGHTS, model, was.name);
  *t = was, t->name = f->tensors[0].name;
  check_refused(open_tensors(f, f->settings, &model), KRAIT_ERR_FILE_FORMAT, model, "appears twice");
  *t = was, t->data = nan;
  check_refused(open_tensors(f, f->settings, &model), KRAIT_ERR_WEIGHTS, model, "has NaN at element 3");
  *t = was, t->data = NULL;
  check_refused(open_tensors(f, f->settings, &model), KRAIT_ERR_ARGUMENT, model, "no data");
  *t = was;
  snprintf(settings, sizeof settings, "%s,frobnicate=1", f->settings);
  check_refused(open_tensors(f, settings, &model), KRAIT_ERR_WEIGHTS, model, "unknown key 'frobnicate'");
  snprintf(settings, sizeof settings, "%s,dense_channel=2.5", f->settings);
  check_refused(open_tensors(f, settings, &model), KRAIT_ERR_WEIGHTS, model, "dense_channel");
  check_refused(open_tensors(f, "model=other", &model), KRAIT_ERR_WEIGHTS, model, "unknown model 'other'");
  close_file(f);
}

static void a_file_is_read(void **state) {
  (void)state;
  krait_denoiser *model = NULL;
  krait_denoiser_options options = {.size = sizeof options, .weights_path = GOLDEN "/tiny-gru.weights.safetensors"};
  assert_int_equal(krait_denoiser_open(ctx, &options, &model), KRAIT_OK);
  assert_non_null(strstr(krait_denoiser_json(model), "\"model\":\"primeknet_gru\""));
  krait_denoiser_close(&model);
  options.overrides = "dense_channel=2.5";
  check_refused(krait_denoiser_open(ctx, &options, &model), KRAIT_ERR_WEIGHTS, model, "dense_channel");
  options.overrides = "model={a: b}";
  check_refused(krait_denoiser_open(ctx, &options, &model), KRAIT_ERR_FILE_FORMAT, model, "is not JSON");
}

static void what_only_the_program_has_is_refused(void **state) {
  (void)state;
  krait_denoiser *model = NULL;
  const krait_denoiser_options named = {.size = sizeof named, .weights_path = "none.safetensors"};
  check_refused(krait_denoiser_open(ctx, &named, &model), KRAIT_ERR_FILE_OPEN, model, "none.safetensors");
  const krait_denoiser_options streaming = {.size = sizeof streaming, .weights_path = "streaming"};
  check_refused(krait_denoiser_open(ctx, &streaming, &model), KRAIT_ERR_WEIGHTS, model,
                "only the default model built in, not 'streaming'; give a weights file");
  assert_int_equal(krait_weights_convert(GOLDEN "/tiny-gru.weights.safetensors", "out.safetensors", NULL, NULL),
                   KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "cannot create out.safetensors: libkrait-ops writes no files"));
}

int main(void) {
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_model_inside_cleans),
      cmocka_unit_test(the_model_inside_streams),
      {"mamba", tensors_give_what_was_recorded, NULL, NULL, (void *)"tiny-mamba"},
      {"gru", tensors_give_what_was_recorded, NULL, NULL, (void *)"tiny-gru"},
      {"lstm", tensors_give_what_was_recorded, NULL, NULL, (void *)"tiny-lstm"},
      {"streaming", tensors_give_what_was_recorded, NULL, NULL, (void *)"tiny-streaming"},
      {"strided", tensors_give_what_was_recorded, NULL, NULL, (void *)"tiny-strided"},
      cmocka_unit_test(wrong_tensors_are_named),
      cmocka_unit_test(a_file_is_read),
      cmocka_unit_test(what_only_the_program_has_is_refused),
  };
  if (krait_ctx_open(&options, &ctx) < 0) return 1;
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  krait_ctx_close(&ctx);
  return failed;
}
