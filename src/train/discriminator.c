/* discriminator.c: see discriminator.h. The image is (B, frequency, time, channels). */
#include "discriminator.h"

#include <stdio.h>

#include "op_list.h"

const int kr_disc_layers[KR_DISC_NORMS] = {0, 3, 6, 9, 14, 17};
static const int64_t outputs[KR_DISC_NORMS] = {16, 32, 64, 128, KR_DISC_WIDTH, 1},
                     inputs[KR_DISC_NORMS] = {2 * 16, 16 * 16, 32 * 16, 64 * 16, 128, KR_DISC_WIDTH};
int64_t kr_disc_outputs(int norm) { return outputs[norm]; }
int64_t kr_disc_inputs(int norm) { return inputs[norm]; }

typedef struct maker {
  kr_graph *g;
  kr_disc_parameter_fn *parameter;
  void *user;
  kr_disc *d;
} maker;

static kr_view view(const maker *m, kr_tensor t) { return kr_graph_view(m->g, t); }
static kr_tensor new_tensor(const maker *m, kr_dims dims) { return kr_graph_temp(m->g, KRAIT_F32, dims); }
static kr_tensor turned(const maker *m, kr_tensor t) { return kr_graph_permute(m->g, t, (int[]){1, 0}); }

static kr_tensor take_discriminator(const maker *m, int layer, const char *what, kr_dims dims) {
  char name[64];
  snprintf(name, sizeof name, "layers.%d.%s", layer, what);
  return m->parameter(m->user, m->g, name, dims);
}

static kr_tensor pointwise(const maker *m, const char *name, kr_pointwise_args args, kr_tensor x, kr_tensor y) {
  const kr_tensor out = new_tensor(m, kr_graph_dims(m->g, x));
  kr_graph_pointwise(m->g, name, args, x, y, out);
  return out;
}

/* weight_orig (O,K) over its spectral norm; u goes one step on. */
static kr_tensor normed(const maker *m, int norm, kr_tensor weight) {
  kr_disc *d = m->d;
  const kr_tensor out =
      kr_graph_call(m->g, "spectral_norm", &kr_op_spectral_norm,
                    &(kr_spectral_norm_args){.weight = view(m, weight),
                                                .u = view(m, d->u[norm]),
                                                .out = kr_graph_auto(),
                                                .u_out = kr_graph_auto(),
                                                .v_out = d->v[norm] ? view(m, d->v[norm]) : kr_graph_auto(),
                                                .sigma = d->sigma[norm] ? view(m, d->sigma[norm]) : kr_graph_auto()});
  d->u[norm] = kr_graph_result(m->g, "u_out"), d->v[norm] = kr_graph_result(m->g, "v_out"),
  d->sigma[norm] = kr_graph_result(m->g, "sigma");
  return out;
}

/* 4 x 4, stride 2, one zero around; instance norm; PReLU. */
static kr_tensor convolution(const maker *m, int norm, kr_tensor x) {
  const kr_dims in = kr_graph_dims(m->g, x);
  const int layer = kr_disc_layers[norm];
  const int64_t C = in.size[3], O = outputs[norm], H = (in.size[1] - 2) / 2 + 1, W = (in.size[2] - 2) / 2 + 1;
  const kr_tensor weight = normed(
      m, norm,
      kr_graph_reshape(m->g, take_discriminator(m, layer, "weight_orig", KR_DIMS(O, C, 4, 4)), KR_DIMS(O, 16 * C)));
  const kr_tensor by_tap = new_tensor(m, KR_DIMS(O, 16, C)), windows = new_tensor(m, KR_DIMS(in.size[0], H, W, 16 * C)),
                  sums = new_tensor(m, KR_DIMS(in.size[0] * H * W, O));
  kr_graph_pointwise(m->g, "conv_weight", (kr_pointwise_args){.x_scale = 1},
                     kr_graph_permute(m->g, kr_graph_reshape(m->g, weight, KR_DIMS(O, C, 16)), (int[]){0, 2, 1}), 0,
                     by_tap);
  kr_graph_call(m->g, "windows", &kr_op_unfold,
                &(kr_unfold_args){
                    .KH = 4, .KW = 4, .SH = 2, .SW = 2, .PH = 1, .PW = 1, .x = view(m, x), .out = view(m, windows)});
  kr_graph_call(m->g, "conv", &kr_op_gemm,
                &(kr_gemm_args){.A = view(m, kr_graph_reshape(m->g, windows, KR_DIMS(in.size[0] * H * W, 16 * C))),
                                   .Bmat = view(m, turned(m, kr_graph_reshape(m->g, by_tap, KR_DIMS(O, 16 * C)))),
                                   .out = view(m, sums)});
  const kr_tensor y = kr_graph_call(
      m->g, "instance_norm", &kr_op_instance_norm,
      &(kr_instance_norm_args){.eps = 1e-5f,
                                  .x = view(m, kr_graph_reshape(m->g, sums, KR_DIMS(in.size[0], H * W, O))),
                                  .weight = view(m, take_discriminator(m, layer + 1, "weight", KR_DIMS(O))),
                                  .bias = view(m, take_discriminator(m, layer + 1, "bias", KR_DIMS(O))),
                                  .slope = view(m, take_discriminator(m, layer + 2, "weight", KR_DIMS(O))),
                                  .out = kr_graph_auto()});
  return kr_graph_reshape(m->g, y, KR_DIMS(in.size[0], H, W, O));
}

static kr_tensor layer(const maker *m, int norm, kr_tensor x) {
  const int at = kr_disc_layers[norm];
  const kr_tensor weight =
                      normed(m, norm, take_discriminator(m, at, "weight_orig", KR_DIMS(outputs[norm], inputs[norm]))),
                  bias = take_discriminator(m, at, "bias", KR_DIMS(outputs[norm]));
  return kr_graph_call(
      m->g, "layer", &kr_op_gemm,
      &(kr_gemm_args){
          .A = view(m, x), .Bmat = view(m, turned(m, weight)), .bias = view(m, bias), .out = kr_graph_auto()});
}

void kr_disc_record(kr_graph *g, kr_disc_parameter_fn *parameter, void *user, kr_disc *d) {
  if (kr_graph_status(g) < 0) return;
  const maker m = {g, parameter, user, d};
  const kr_dims in = kr_graph_dims(g, d->reference);
  const int64_t B = in.size[0];
  const kr_tensor pair = new_tensor(&m, KR_DIMS(B, in.size[1], in.size[2], 2)), sources[] = {d->reference, d->judged};
  for (int k = 0; k < 2; k++)
    kr_graph_pointwise(g, "pair", (kr_pointwise_args){.x_scale = 1}, sources[k], 0,
                       kr_graph_reshape(g, kr_graph_slice(g, pair, 3, k, 1), in));
  kr_tensor x = pair;
  for (int norm = 0; norm < 4; norm++) x = convolution(&m, norm, x);
  const kr_dims image = kr_graph_dims(g, x);
  x = kr_graph_call(g, "largest", &kr_op_pool,
                    &(kr_pool_args){
                        .call.flags = KRAIT_POOL_MAX,
                        .x = view(&m, kr_graph_reshape(g, x, KR_DIMS(B, image.size[1] * image.size[2], image.size[3]))),
                        .out = kr_graph_auto()});
  x = layer(&m, 4, x);
  if (d->dropout)
    x = pointwise(&m, "dropout", (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x,
                  d->dropout);
  /* PReLU: slope x + (1 - slope) relu (x) as relu (x) + slope (x - relu (x)) */
  const kr_tensor above =
                      pointwise(&m, "above", (kr_pointwise_args){.activation = KRAIT_ACT_RELU, .x_scale = 1}, x, 0),
                  below = pointwise(&m, "below", (kr_pointwise_args){.x_scale = 1, .y_scale = -1}, x, above);
  const kr_tensor slope = kr_graph_expand(
      g, kr_graph_reshape(g, take_discriminator(&m, 16, "weight", KR_DIMS(KR_DISC_WIDTH)), KR_DIMS(1, KR_DISC_WIDTH)),
      KR_DIMS(B, KR_DISC_WIDTH));
  x = pointwise(
      &m, "prelu", (kr_pointwise_args){.x_scale = 1, .y_scale = 1},
      pointwise(&m, "below", (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, below, slope),
      above);
  x = layer(&m, 5, x);
  const kr_tensor steepness = kr_graph_expand(
      g, kr_graph_reshape(g, take_discriminator(&m, 18, "slope", KR_DIMS(1)), KR_DIMS(1, 1)), KR_DIMS(B, 1));
  x = pointwise(&m, "steepness", (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x,
                steepness);
  d->score = kr_graph_reshape(
      g, pointwise(&m, "score", (kr_pointwise_args){.activation = KRAIT_ACT_SIGMOID, .x_scale = 1}, x, 0),
      KR_DIMS(B));
}
