/* spectral.c: see spectral.h. */
#include "spectral.h"

#include <math.h>

#include "alloc.h"
#include "op_list.h"
#include "status.h"

static const double pi = 3.14159265358979323846;

static void lay_out_spectral(kr_spectral *s, float *block) {
  const int64_t F = s->n_fft / 2 + 1, half = s->n_fft / 2;
  s->forward = block, s->inverse = block + 2 * F * s->n_fft, s->mirror = s->inverse + 2 * F * s->n_fft,
  s->envelope = s->mirror + half * half;
}

/* Moves what was computed on the host to the device. */
static int32_t move_in(kr_spectral *s, size_t bytes) {
  float *const host = s->forward, *block = NULL;
  if (!s->cuda) return KRAIT_OK;
  int32_t status = kr_cuda_alloc(s->cuda, bytes, (void **)&block);
  if (status >= 0) status = kr_cuda_copy_in(s->cuda, block, host, bytes, NULL);
  if (status >= 0) status = kr_cuda_wait(s->cuda, NULL);
  kr_free(host);
  lay_out_spectral(s, block);
  return status;
}

static double angle_of(const kr_spectral *s, int64_t step) { return 2 * pi * (double)step / (double)s->n_fft; }
static double window_at(const kr_spectral *s, int64_t n) { return 0.5 - 0.5 * cos(angle_of(s, n)); }

/* Bins that are real for every frame get exactly zero imaginary parts, without rounding noise. */
static void fill_matrices(kr_spectral *s) {
  const int64_t n_fft = s->n_fft, F = n_fft / 2 + 1;
  for (int64_t n = 0; n < n_fft; n++) {
    const double window = window_at(s, n);
    for (int64_t f = 0; f < F; f++) {
      const int is_real = f == 0 || 2 * f == n_fft;
      const double angle = angle_of(s, n * f % n_fft), times = (is_real ? 1 : 2) / (double)n_fft;
      s->forward[n * 2 * F + f] = (float)(window * cos(angle));
      s->forward[n * 2 * F + F + f] = (float)(is_real ? 0 : -window * sin(angle));
      s->inverse[f * n_fft + n] = (float)(window * times * cos(angle));
      s->inverse[(F + f) * n_fft + n] = (float)(is_real ? 0 : -window * times * sin(angle));
    }
  }
}

/* Four frames overlap at a sample; in the first hop the earlier ones are missing, in the last the later ones. */
static void fill_envelope(kr_spectral *s) {
  const int64_t hop = s->n_fft / 4;
  for (int64_t part = 0; part < 3; part++)
    for (int64_t i = 0; i < hop; i++) {
      double sum = 0;
      for (int64_t k = part == 0 ? 2 : 3; k >= (part == 2 ? 1 : 0); k--)
        sum += window_at(s, i + k * hop) * window_at(s, i + k * hop);
      s->envelope[part * hop + i] = (float)(1 / sum);
    }
}

int32_t kr_spectral_open(const kr_cuda *cuda, int64_t n_fft, kr_spectral *s) {
  const int64_t F = n_fft / 2 + 1, half = n_fft / 2;
  *s = (kr_spectral){.n_fft = n_fft, .cuda = cuda};
  const size_t n_floats = (size_t)(4 * F * n_fft + half * half + 3 * n_fft / 4);
  float *const block = kr_alloc_array(n_floats, sizeof(float));
  KR_CHECK(block, KRAIT_ERR_NO_MEMORY, "no memory for a transform");
  lay_out_spectral(s, block);
  fill_matrices(s);
  for (int64_t i = 0; i < half; i++) s->mirror[i * half + half - 1 - i] = 1;
  fill_envelope(s);
  return move_in(s, n_floats * sizeof(float));
}

void kr_spectral_close(kr_spectral *s) {
  if (s->cuda) kr_cuda_free(s->cuda, s->forward);
  else kr_free(s->forward);
  *s = (kr_spectral){0};
}

/* Real or imaginary parts of rows (B T, 2F) as (B,F,T). */
static kr_view part(kr_graph *g, kr_tensor rows, kr_dims plane, int imaginary) {
  const int64_t B = plane.size[0], F = plane.size[1], T = plane.size[2];
  return kr_graph_view(
      g, kr_graph_permute(
             g, kr_graph_slice(g, kr_graph_reshape(g, rows, KR_DIMS(B, T, 2 * F)), 2, imaginary ? F : 0, F),
             (int[]){0, 2, 1}));
}

/* Samples of the overlap-add, from half a frame on, divided by the window sum: hops (B,T-1,hop) at a time. */
static void divide(kr_graph *g, const kr_spectral *s, kr_tensor sum, kr_tensor wav) {
  static const char *const names[] = {"wav_begin", "wav", "wav_end"};
  const kr_dims dims = kr_graph_dims(g, wav);
  const int64_t B = dims.size[0], N = dims.size[1], hop = s->n_fft / 4, n = N / hop;
  const int64_t from[] = {0, 1, n - 1, n};
  const kr_tensor envelope = kr_graph_weight(g, "envelope", KRAIT_F32, KR_DIMS(3, 1, hop), s->envelope),
                  x = kr_graph_reshape(g, kr_graph_slice(g, sum, 1, s->n_fft / 2, N), KR_DIMS(B, n, hop)),
                  out = kr_graph_reshape(g, wav, KR_DIMS(B, n, hop));
  for (int k = 0; k < 3; k++) {
    const int64_t some = from[k + 1] - from[k];
    kr_graph_pointwise(g, names[k], (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1},
                       kr_graph_slice(g, x, 1, from[k], some),
                       kr_graph_expand(g, kr_graph_slice(g, envelope, 0, k, 1), KR_DIMS(B, some, hop)),
                       kr_graph_slice(g, out, 1, from[k], some));
  }
}

kr_tensor kr_spectral_inverse(kr_graph *g, const kr_spectral *s, double power, kr_tensor mag, kr_tensor pha,
                              kr_tensor wav) {
  const kr_dims plane = kr_graph_dims(g, mag);
  const int64_t B = plane.size[0], F = plane.size[1], T = plane.size[2], hop = s->n_fft / 4, N = (T - 1) * hop,
                all = N + s->n_fft;
  const kr_tensor rows = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * T, 2 * F)),
                  frames = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * T, s->n_fft)),
                  sum = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, 1, all, 1));
  const kr_tensor matrix = kr_graph_weight(g, "inverse_transform", KRAIT_F32, KR_DIMS(2 * F, s->n_fft), s->inverse);
  kr_graph_call(g, "uncompress", &kr_op_from_polar,
                &(kr_from_polar_args){.power = (float)(1 / power),
                                         .mag = kr_graph_view(g, mag),
                                         .pha = kr_graph_view(g, pha),
                                         .re = part(g, rows, plane, 0),
                                         .im = part(g, rows, plane, 1)});
  kr_graph_call(g, "inverse", &kr_op_transform,
                &(kr_transform_args){
                    .x = kr_graph_view(g, rows), .matrix = kr_graph_view(g, matrix), .out = kr_graph_view(g, frames)});
  kr_graph_call(g, "overlap", &kr_op_fold,
                &(kr_fold_args){.KH = 1,
                                   .KW = s->n_fft,
                                   .SH = 1,
                                   .SW = hop,
                                   .x = kr_graph_view(g, kr_graph_reshape(g, frames, KR_DIMS(B, 1, T, s->n_fft))),
                                   .out = kr_graph_view(g, sum)});
  if (!wav) wav = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, N));
  divide(g, s, kr_graph_reshape(g, sum, KR_DIMS(B, all)), wav);
  return wav;
}

void kr_spectral_forward(kr_graph *g, const kr_spectral *s, double power, kr_tensor wav, kr_tensor first, kr_tensor mag,
                         kr_tensor pha) {
  const kr_dims plane = kr_graph_dims(g, mag);
  const int64_t B = plane.size[0], F = plane.size[1], T = plane.size[2], N = kr_graph_dims(g, wav).size[1],
                half = s->n_fft / 2;
  const kr_tensor padded = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, N + s->n_fft)),
                  frames = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, 1, T, s->n_fft)),
                  rows = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B * T, 2 * F));
  const kr_tensor matrix = kr_graph_weight(g, "transform", KRAIT_F32, KR_DIMS(s->n_fft, 2 * F), s->forward),
                  mirror = kr_graph_weight(g, "mirror", KRAIT_F32, KR_DIMS(half, half), s->mirror);
  kr_graph_pointwise(g, "middle", (kr_pointwise_args){.x_scale = 1}, wav, 0, kr_graph_slice(g, padded, 1, half, N));
  const int64_t from[] = {1, N - 1 - half}, to[] = {0, half + N};
  for (int k = 0; k < 2; k++)
    kr_graph_call(g, "reflect", &kr_op_transform,
                  &(kr_transform_args){.x = kr_graph_view(g, kr_graph_slice(g, wav, 1, from[k], half)),
                                          .matrix = kr_graph_view(g, mirror),
                                          .out = kr_graph_view(g, kr_graph_slice(g, padded, 1, to[k], half))});
  kr_graph_call(g, "frames", &kr_op_unfold,
                &(kr_unfold_args){.KH = 1,
                                     .KW = s->n_fft,
                                     .SH = 1,
                                     .SW = s->n_fft / 4,
                                     .x = kr_graph_view(g, kr_graph_reshape(g, padded, KR_DIMS(B, 1, N + s->n_fft, 1))),
                                     .out = kr_graph_view(g, frames)});
  kr_graph_call(g, "transform", &kr_op_transform,
                &(kr_transform_args){.x = kr_graph_view(g, kr_graph_reshape(g, frames, KR_DIMS(B * T, s->n_fft))),
                                        .matrix = kr_graph_view(g, matrix),
                                        .out = kr_graph_view(g, rows)});
  if (first)
    kr_graph_pointwise(g, "first_frame", (kr_pointwise_args){.x_scale = 1}, first, 0,
                       kr_graph_reshape(g, kr_graph_slice(g, kr_graph_reshape(g, rows, KR_DIMS(B, T, 2 * F)), 1, 0, 1),
                                        KR_DIMS(B, 2 * F)));
  kr_graph_call(g, "compress", &kr_op_to_polar,
                &(kr_to_polar_args){.eps = 1e-9f,
                                       .power = (float)power,
                                       .re_add = 1e-5f,
                                       .im_add = 1e-10f,
                                       .re = part(g, rows, plane, 0),
                                       .im = part(g, rows, plane, 1),
                                       .mag = kr_graph_view(g, mag),
                                       .pha = kr_graph_view(g, pha)});
}

void kr_spectral_parts(kr_graph *g, const char *name, kr_tensor mag, kr_tensor pha, kr_tensor com) {
  const kr_dims plane = kr_graph_dims(g, mag);
#define PART(k) kr_graph_view(g, kr_graph_reshape(g, kr_graph_slice(g, com, 3, k, 1), plane))
  kr_graph_call(g, name, &kr_op_from_polar,
                &(kr_from_polar_args){.power = 1,
                                         .mag = kr_graph_view(g, mag),
                                         .pha = kr_graph_view(g, pha),
                                         .re = PART(0),
                                         .im = PART(1)});
#undef PART
}
