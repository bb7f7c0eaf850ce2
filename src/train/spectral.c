/* spectral.c: see spectral.h. */
#include "spectral.h"

#include <math.h>

#include "alloc.h"
#include "op_list.h"
#include "status.h"

static const double pi = 3.14159265358979323846;

static void lay_out(kr_spectral *s, float *block) {
  const int64_t F = s->n_fft / 2 + 1, half = s->n_fft / 2;
  s->forward = block, s->inverse = block + 2 * F * s->n_fft, s->mirror = s->inverse + 2 * F * s->n_fft,
  s->envelope = s->mirror + half * half;
}

/* What has been computed on the host goes to the device. */
static int32_t move_in(const krait_ctx *ctx, kr_spectral *s, size_t bytes) {
  float *const host = s->forward, *block = NULL;
  s->cuda = ctx->cuda;
  if (!s->cuda) return KRAIT_OK;
  int32_t status = kr_cuda_alloc(s->cuda, bytes, (void **)&block);
  if (status >= 0) status = kr_cuda_copy_in(s->cuda, block, host, bytes, NULL);
  if (status >= 0) status = kr_cuda_wait(s->cuda, NULL);
  kr_free(host);
  lay_out(s, block);
  return status;
}

int32_t kr_spectral_open(const krait_ctx *ctx, int64_t n_fft, int64_t hop, int64_t T, kr_spectral *s) {
  const int64_t F = n_fft / 2 + 1, N = (T - 1) * hop, half = n_fft / 2;
  *s = (kr_spectral){.n_fft = n_fft, .hop = hop, .T = T};
  const size_t n_floats = (size_t)(4 * F * n_fft + half * half + N);
  float *const block = kr_alloc_array(n_floats, sizeof(float));
  KR_CHECK(block, KRAIT_ERR_NO_MEMORY, "no memory for a transform");
  lay_out(s, block);
  for (int64_t n = 0; n < n_fft; n++) {
    const double window = 0.5 - 0.5 * cos(2 * pi * (double)n / (double)n_fft);
    for (int64_t f = 0; f < F; f++) {
      const double angle = 2 * pi * (double)(n * f % n_fft) / (double)n_fft,
                   times = (f == 0 || 2 * f == n_fft ? 1 : 2) / (double)n_fft;
      s->forward[n * 2 * F + f] = (float)(window * cos(angle));
      s->forward[n * 2 * F + F + f] = (float)(-window * sin(angle));
      s->inverse[f * n_fft + n] = (float)(window * times * cos(angle));
      s->inverse[(F + f) * n_fft + n] = (float)(f == 0 || 2 * f == n_fft ? 0 : -window * times * sin(angle));
    }
  }
  for (int64_t i = 0; i < half; i++) s->mirror[i * half + half - 1 - i] = 1;
  for (int64_t i = 0; i < N; i++) {
    double sum = 0;
    for (int64_t t = 0; t < T; t++) {
      const int64_t n = i + half - t * hop;
      const double window = n < 0 || n >= n_fft ? 0 : 0.5 - 0.5 * cos(2 * pi * (double)n / (double)n_fft);
      sum += window * window;
    }
    s->envelope[i] = (float)(1 / sum);
  }
  return move_in(ctx, s, n_floats * sizeof(float));
}

void kr_spectral_close(kr_spectral *s) {
  if (s->cuda) kr_cuda_free(s->cuda, s->forward);
  else kr_free(s->forward);
  *s = (kr_spectral){0};
}

/* Real and imaginary parts of rows (B T, 2F) as (B,F,T). */
static krait_view part(kr_graph *g, const kr_spectral *s, kr_tensor rows, int64_t B, int imaginary) {
  const int64_t F = s->n_fft / 2 + 1;
  return kr_graph_view(
      g, kr_graph_permute(
             g, kr_graph_slice(g, kr_graph_reshape(g, rows, KR_DIMS(B, s->T, 2 * F)), 2, imaginary ? F : 0, F),
             (int[]){0, 2, 1}));
}

kr_tensor kr_spectral_inverse(kr_graph *g, const kr_spectral *s, double power, kr_tensor mag, kr_tensor pha,
                              kr_tensor wav) {
  const int64_t B = kr_graph_dims(g, mag).size[0], F = s->n_fft / 2 + 1, N = (s->T - 1) * s->hop, all = N + s->n_fft;
  const kr_tensor rows = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * s->T, 2 * F)),
                  frames = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * s->T, s->n_fft)),
                  sum = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, 1, all, 1));
  const kr_tensor matrix = kr_graph_weight(g, "inverse_transform", KRAIT_F32, KR_DIMS(2 * F, s->n_fft), s->inverse),
                  envelope = kr_graph_weight(g, "envelope", KRAIT_F32, KR_DIMS(1, N), s->envelope);
  kr_graph_call(g, "uncompress", &kr_op_from_polar,
                &(krait_from_polar_args){.power = (float)(1 / power),
                                         .mag = kr_graph_view(g, mag),
                                         .pha = kr_graph_view(g, pha),
                                         .re = part(g, s, rows, B, 0),
                                         .im = part(g, s, rows, B, 1)});
  kr_graph_call(g, "inverse", &kr_op_transform,
                &(krait_transform_args){
                    .x = kr_graph_view(g, rows), .matrix = kr_graph_view(g, matrix), .out = kr_graph_view(g, frames)});
  kr_graph_call(g, "overlap", &kr_op_fold,
                &(krait_fold_args){.KH = 1,
                                   .KW = s->n_fft,
                                   .SH = 1,
                                   .SW = s->hop,
                                   .x = kr_graph_view(g, kr_graph_reshape(g, frames, KR_DIMS(B, 1, s->T, s->n_fft))),
                                   .out = kr_graph_view(g, sum)});
  if (!wav) wav = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, N));
  kr_graph_pointwise(g, "wav", (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1},
                     kr_graph_slice(g, kr_graph_reshape(g, sum, KR_DIMS(B, all)), 1, s->n_fft / 2, N),
                     kr_graph_spread(g, envelope, KR_DIMS(B, N)), wav);
  return wav;
}

void kr_spectral_forward(kr_graph *g, const kr_spectral *s, double power, kr_tensor wav, kr_tensor mag, kr_tensor pha) {
  const kr_dims in = kr_graph_dims(g, wav);
  const int64_t B = in.size[0], N = in.size[1], F = s->n_fft / 2 + 1, half = s->n_fft / 2;
  const kr_tensor padded = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, N + s->n_fft)),
                  frames = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, 1, s->T, s->n_fft)),
                  rows = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * s->T, 2 * F));
  const kr_tensor matrix = kr_graph_weight(g, "transform", KRAIT_F32, KR_DIMS(s->n_fft, 2 * F), s->forward),
                  mirror = kr_graph_weight(g, "mirror", KRAIT_F32, KR_DIMS(half, half), s->mirror);
  kr_graph_pointwise(g, "middle", (krait_pointwise_args){.x_scale = 1}, wav, 0, kr_graph_slice(g, padded, 1, half, N));
  const int64_t from[] = {1, N - 1 - half}, to[] = {0, half + N};
  for (int k = 0; k < 2; k++)
    kr_graph_call(g, "reflect", &kr_op_transform,
                  &(krait_transform_args){.x = kr_graph_view(g, kr_graph_slice(g, wav, 1, from[k], half)),
                                          .matrix = kr_graph_view(g, mirror),
                                          .out = kr_graph_view(g, kr_graph_slice(g, padded, 1, to[k], half))});
  kr_graph_call(g, "frames", &kr_op_unfold,
                &(krait_unfold_args){.KH = 1,
                                     .KW = s->n_fft,
                                     .SH = 1,
                                     .SW = s->hop,
                                     .x = kr_graph_view(g, kr_graph_reshape(g, padded, KR_DIMS(B, 1, N + s->n_fft, 1))),
                                     .out = kr_graph_view(g, frames)});
  kr_graph_call(g, "transform", &kr_op_transform,
                &(krait_transform_args){.x = kr_graph_view(g, kr_graph_reshape(g, frames, KR_DIMS(B * s->T, s->n_fft))),
                                        .matrix = kr_graph_view(g, matrix),
                                        .out = kr_graph_view(g, rows)});
  kr_graph_call(g, "compress", &kr_op_to_polar,
                &(krait_to_polar_args){.eps = 1e-9f,
                                       .power = (float)power,
                                       .re_add = 1e-5f,
                                       .im_add = 1e-10f,
                                       .re = part(g, s, rows, B, 0),
                                       .im = part(g, s, rows, B, 1),
                                       .mag = kr_graph_view(g, mag),
                                       .pha = kr_graph_view(g, pha)});
}
