/* primeknet.c: PrimeKnet's interface: its kr_model_kind, the public forward pass, windows of samples, verification. */
#include "public_names.h"

#include "primeknet.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "model_kind.h"
#include "status.h"
#include "stft.h"
#include "stft_live.h"

/* Windows in flight: their data, and the padded samples, which are replaced by the output. */
typedef struct pk_batch {
  int64_t n, n_samples, padded;
  size_t capacity; /* floats of block: the maximum so far */
  float *block, *wav, *out[KR_WINDOWS_AT_ONCE];
} pk_batch;

/* A session with the front end around it. */
typedef struct pk_timeline {
  const kr_primeknet *net;
  kr_pk_session *session;
  kr_stft *stft;
  kr_pk_session *chunks; /* of a streaming model, once its stream is requested */
  kr_stft_live *live;
  pk_batch batches[2]; /* by turns */
  pk_batch *due;       /* the window in the model; NULL: none */
} pk_timeline;

static int is_pk(const kr_model_source *s) { return s->model && strncmp(s->model, "primeknet_", 10) == 0; }

static void close_pk_model(void **handle) {
  kr_primeknet *net = *handle;
  *handle = NULL;
  kr_primeknet_close(&net);
}

static int32_t open_pk_model(const krait_ctx *ctx, const char *model, const kr_config *config,
                             const kr_weights *weights, int32_t precision, void **handle) {
  kr_pk_config read;
  kr_primeknet *net = NULL;
  KR_TRY(kr_pk_config_read(model, config, &read));
  const int32_t status = kr_primeknet_open(ctx, &read, weights, precision, &net);
  *handle = net;
  return status;
}

static void close_timeline(void **handle) {
  pk_timeline *line = *handle;
  *handle = NULL;
  kr_pk_session_close(&line->session);
  kr_stft_close(&line->stft);
  kr_stft_live_close(&line->live);
  kr_pk_session_close(&line->chunks);
  for (int i = 0; i < 2; i++) kr_free(line->batches[i].block);
  kr_free(line);
}

static int32_t open_timeline(const void *model, void **handle) {
  pk_timeline *line = *handle = kr_zalloc(sizeof *line);
  KR_CHECK(line, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  line->net = model;
  const int64_t n_fft = line->net->config.fft_len;
  int32_t status = kr_pk_session_open(line->net, 0, &line->session);
  if (status >= 0) status = kr_stft_open(n_fft, n_fft / 4, line->net->ctx->pool, &line->stft);
  if (status < 0) close_timeline(handle);
  return status;
}

/* Whole frames, and at least one transform. */
static int64_t padded_of(const pk_timeline *line, int64_t n_samples) {
  const int64_t n_fft = line->net->config.fft_len, hop = n_fft / 4, padded = (n_samples + hop - 1) / hop * hop;
  return padded < n_fft ? n_fft : padded;
}

/* n windows padded with silence, and n_floats of data for each. */
static int32_t prepare_pk(pk_batch *b, int64_t n, const float *const *in, float *const *out, int64_t n_samples,
                       int64_t padded, int64_t n_floats) {
  const size_t wanted = (size_t)(n * (n_floats + padded));
  if (wanted > b->capacity) {
    kr_free(b->block);
    b->block = kr_alloc_array(wanted, sizeof *b->block);
    b->capacity = b->block ? wanted : 0;
  }
  KR_CHECK(b->block, KRAIT_ERR_NO_MEMORY, "no memory for %lld windows of %lld samples", (long long)n,
           (long long)n_samples);
  b->n = n, b->n_samples = n_samples, b->padded = padded, b->wav = b->block + n * n_floats;
  for (int64_t i = 0; i < n; i++) {
    memcpy(b->wav + i * padded, in[i], (size_t)n_samples * sizeof **in);
    memset(b->wav + i * padded + n_samples, 0, (size_t)(padded - n_samples) * sizeof **in);
    b->out[i] = out[i];
  }
  return KRAIT_OK;
}

static void hand_out(const pk_batch *b) {
  for (int64_t i = 0; i < b->n; i++) memcpy(b->out[i], b->wav + i * b->padded, (size_t)b->n_samples * sizeof *b->wav);
}

/* With the host's transform: n_samples > fft_len / 2; out has n_samples / hop * hop samples and may be in; spectra:
 * buffer for com (F,T,2), mag and pha (F,T). */
static int32_t clean_window(const pk_timeline *line, const float *in, int64_t n_samples, float *spectra, float *out) {
  const int64_t T = kr_stft_n_frames(line->stft, n_samples), n = line->net->config.F * T;
  KR_TRY(kr_stft_forward(line->stft, in, n_samples, KR_PK_POWER, spectra));
  KR_TRY(kr_pk_forward(line->session, 1, T, spectra, spectra + 2 * n, spectra + 3 * n, NULL));
  return kr_stft_inverse(line->stft, spectra + 2 * n, spectra + 3 * n, T, KR_PK_POWER, out);
}

/* Finishes the earlier windows after the model's next call. */
static int32_t finish_due(pk_timeline *line, int32_t status, pk_batch *next) {
  const pk_batch *before = line->due;
  line->due = status < 0 ? NULL : next;
  if (status >= 0 && before) hand_out(before);
  return status;
}
static int32_t finish_denoiser(void *user) {
  pk_timeline *line = user;
  return finish_due(line, kr_pk_finish(line->session), NULL);
}

/* The transform runs on the model's device, except for the first frames of windows: the rounding error of their
 * imaginary parts matters (MODEL.md). */
static int32_t run_denoiser(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples) {
  pk_timeline *line = user;
  const int there = line->net->takes_samples;
  const int64_t padded = padded_of(line, n_samples), T = kr_stft_n_frames(line->stft, padded),
                F = line->net->config.F, n_floats = there ? 2 * F : 4 * F * T;
  pk_batch *b = &line->batches[line->due == line->batches];
  KR_TRY(prepare_pk(b, n, in, out, n_samples, padded, n_floats));
  for (int64_t i = 0; i < n; i++) {
    float *const wav = b->wav + i * padded, *const spectra = b->block + i * n_floats;
    if (there) KR_TRY(kr_stft_frame(line->stft, wav, padded, 0, spectra, spectra + F));
    else KR_TRY(clean_window(line, wav, padded, spectra, wav));
  }
  if (there) return finish_due(line, kr_pk_samples(line->session, n, T, b->wav, b->block, b->wav), b);
  return hand_out(b), KRAIT_OK;
}

static int32_t windows_at_once(void *user, int64_t n_windows, int64_t n_samples, int64_t *n) {
  pk_timeline *line = user;
  KR_TRY(finish_denoiser(line));
  return kr_pk_at_once(line->session, n_windows, kr_stft_n_frames(line->stft, padded_of(line, n_samples)), n);
}

static int32_t open_live(void *user, kr_stft_live **live) {
  pk_timeline *line = user;
  if (!line->chunks) KR_TRY(kr_pk_session_open(line->net, KR_PK_LIVE_CHUNK, &line->chunks));
  KR_TRY(kr_pk_prepare(line->chunks));
  if (!line->live)
    KR_TRY(kr_stft_live_open(&(kr_stft_live_options){.n_fft = line->net->config.fft_len,
                                                     .chunk = KR_PK_LIVE_CHUNK,
                                                     .power = KR_PK_POWER,
                                                     .pool = line->net->ctx->pool,
                                                     .user = line->chunks,
                                                     .begin = kr_pk_begin,
                                                     .take = kr_pk_take,
                                                     .work = kr_pk_work,
                                                     .give = kr_pk_give},
                             &line->live));
  *live = line->live;
  return kr_stft_live_begin(*live), KRAIT_OK;
}

/* A streaming model's states go through a window, whose memory grows with its length: a minute. */
enum { LONGEST_LIVE = 60 * 16000 };

static int32_t fill_denoiser(void *timeline, kr_denoiser *denoiser) {
  const pk_timeline *line = timeline;
  const int there = line->net->takes_samples;
  *denoiser = (kr_denoiser){.run = run_denoiser,
                            .finish = there ? finish_denoiser : NULL,
                            .at_once = there ? windows_at_once : NULL,
                            .user = timeline,
                            .level = line->net->unit_rms ? KR_LEVEL_UNIT_RMS : KR_LEVEL_AS_IS,
                            .window_samples = line->net->config.streams ? LONGEST_LIVE : 0,
                            .live = line->net->config.streams ? open_live : NULL};
  return KRAIT_OK;
}

int32_t krait_primeknet_forward(krait_denoiser_session *session, int64_t B, int64_t T, const float *com_in, float *mag,
                                float *pha, float *com) {
  pk_timeline *line = kr_session_timeline(session, &kr_model_primeknet);
  KR_CHECK(line, KRAIT_ERR_ARGUMENT, "krait_primeknet_forward: the session is NULL or of another model");
  KR_TRY(kr_session_check_free(session));
  return kr_pk_forward(line->session, B, T, com_in, mag, pha, com);
}

double kr_primeknet_device_s(const krait_denoiser_session *session) {
  const pk_timeline *line = kr_session_timeline(session, &kr_model_primeknet);
  return line ? kr_pk_device_seconds(line->session) : 0;
}

int32_t kr_primeknet_kernels(krait_denoiser_session *session, int64_t B, int64_t T, const float *com_in,
                                kr_kernel_fn report, void *user) {
  pk_timeline *line = kr_session_timeline(session, &kr_model_primeknet);
  KR_CHECK(line && com_in && report, KRAIT_ERR_ARGUMENT,
           "kr_primeknet_kernels: the session is NULL or of another model, or com_in or report is NULL");
  KR_TRY(kr_session_check_free(session));
  return kr_pk_kernels(line->session, B, T, com_in, report, user);
}

static int32_t verify_spectra(pk_timeline *line, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                              int32_t *n_filled) {
  const kr_weight *input = kr_weights_find(golden, "golden.input_com");
  const int64_t F = line->net->config.F;
  KR_CHECK(input && input->n_dims == 4 && input->shape[0] >= 1 && input->shape[1] == F && input->shape[2] >= 1,
           KRAIT_ERR_WEIGHTS, "the golden file has no golden.input_com of shape (B, %lld, T, 2)", (long long)F);
  const int64_t B = input->shape[0], T = input->shape[2], n = B * F * T;
  const float *in, *com, *mag;
  KR_TRY(kr_weights_take_f32(golden, "golden.input_com", 4, (int64_t[]){B, F, T, 2}, &in));
  KR_TRY(kr_weights_take_f32(golden, "golden.com", 4, (int64_t[]){B, F, T, 2}, &com));
  KR_TRY(kr_weights_take_f32(golden, "golden.mag", 3, (int64_t[]){B, F, T}, &mag));
  float *got = kr_alloc_array((size_t)n, 3 * sizeof *got);
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for the outputs");
  int32_t status = kr_pk_forward(line->session, B, T, in, got + 2 * n, NULL, got);
  if (status >= 0) kr_verify_add("com", got, com, 2 * n, rows, n_rows, n_filled);
  if (status >= 0) kr_verify_add("mag", got + 2 * n, mag, n, rows, n_rows, n_filled);
  kr_free(got);
  return status;
}

static int32_t verify_wav(pk_timeline *line, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                          int32_t *n_filled) {
  const kr_weight *input = kr_weights_find(golden, "golden.wav_in");
  if (!input) return KRAIT_OK;
  const int64_t hop = line->net->config.fft_len / 4, n = input->n_dims == 1 ? input->shape[0] : 0,
                n_out = n / hop * hop;
  const float *in, *out;
  KR_TRY(kr_weights_take_f32(golden, "golden.wav_in", 1, &n, &in));
  KR_TRY(kr_weights_take_f32(golden, "golden.wav_out", 1, &n_out, &out));
  float *got = kr_alloc_array((size_t)(n_out + 4 * line->net->config.F * (n / hop + 1)), sizeof *got);
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for the outputs");
  int32_t status;
  if (n != n_out || n < 4 * hop)
    status = clean_window(line, in, n, got + n_out, got); /* unchanged, without padding */
  else if ((status = run_denoiser(line, 1, &in, &got, n)) >= 0 && line->due) status = finish_denoiser(line);
  if (status >= 0) kr_verify_add("wav", got, out, n_out, rows, n_rows, n_filled);
  kr_free(got);
  return status;
}

static int32_t verify_pk(void *timeline, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                      int32_t *n_filled) {
  KR_TRY(verify_spectra(timeline, golden, rows, n_rows, n_filled));
  return verify_wav(timeline, golden, rows, n_rows, n_filled);
}

/* As its weights run: a window of a second, or streaming frames. */
static int32_t graphs_of_pk(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  enum { FRAMES = 100 };
  char title[96];
  kr_pk_config c;
  kr_primeknet *net = NULL;
  kr_graph *g = NULL;
  kr_tensor tensors[KR_PK_TENSORS];
  KR_TRY(kr_pk_config_read(s->model, s->config, &c));
  const int64_t T = c.streams ? KR_PK_LIVE_CHUNK : FRAMES;
  snprintf(title, sizeof title, "PrimeKnet, %d frames%s", (int)T, c.streams ? ", streaming" : " at once");
  int32_t status = kr_primeknet_open(ctx, &c, s->weights, KRAIT_PRECISION_FP32, &net);
  if (status >= 0) status = kr_graph_open(&g);
  if (status >= 0) status = kr_primeknet_record(net, (int64_t[]){1, T, KR_PK_MAG | KR_PK_PHA}, g, tensors);
  if (status >= 0) status = kr_graph_plan(g, ctx, kr_primeknet_plan_flags(net));
  if (status >= 0) status = fn(user, title, g);
  kr_graph_close(&g);
  kr_primeknet_close(&net);
  return status == KRAIT_ERR_WEIGHTS ? kr_fail(status, "%s: %s", s->path, krait_error_detail()) : status;
}

const kr_model_kind kr_model_primeknet = {.name = "primeknet",
                                          .detect = is_pk,
                                          .graphs = graphs_of_pk,
                                          .open = open_pk_model,
                                          .close = close_pk_model,
                                          .session_open = open_timeline,
                                          .session_close = close_timeline,
                                          .denoiser = fill_denoiser,
                                          .verify = verify_pk};
