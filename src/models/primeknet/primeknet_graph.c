/* primeknet_graph.c: PrimeKnet as calls of a graph: encoder, decoders, the whole. Biases in front of a norm that
 * measures are left out: they cancel in it, and so do their gradients. */
#include "primeknet_maker.h"

/* ---- norms with their PReLU ---- */

typedef struct norm {
  const char *place;                       /* of its keys, with what follows it: "dense_encoder.dense_conv_1.1." */
  kr_tensor before, weight, bias, slope;   /* before: the bias of the product in front */
} norm;

static kr_tensor mean_of(const maker *m, kr_tensor x) {
  const kr_dims d = kr_graph_dims(m->g, x);
  kr_tensor mean = x;
  const kr_dims steps[] = {KR_DIMS(d.size[0] * d.size[1], d.size[2], d.size[3]),
                           KR_DIMS(1, d.size[0] * d.size[1], d.size[3])};
  for (int k = 0; k < 2; k++)
    mean = kr_graph_call(m->g, "batch_mean", &kr_op_pool,
                         &(krait_pool_args){.x = view(m, reshape(m, mean, steps[k])), .out = kr_graph_ask()});
  return mean; /* (1, C) */
}

/* What running statistics are to come closer to: the mean with the bias that the product has left out, and the unbiased
 * variance. */
static void measure(const maker *m, const norm *n, kr_tensor x) {
  const kr_dims d = kr_graph_dims(m->g, x);
  const int64_t C = d.size[3], number = 0;
  const double positions = (double)(d.size[0] * d.size[1] * d.size[2]);
  const char *prefix = n->place;
  const maker measured = {.g = m->g, .c = m->c, .parameter = m->io->measured, .user = m->user};
  pk_running_p p;
  x = cast(m, "batch_floats", x, m->dtype);
  const kr_tensor mean = mean_of(m, x), apart = new_tensor(m, d);
  kr_graph_pointwise(m->g, "batch_apart", (krait_pointwise_args){.x_scale = 1, .y_scale = -1}, x,
                     kr_graph_spread(m->g, reshape(m, mean, KR_DIMS(1, 1, 1, C)), d), apart);
  const kr_tensor var = mean_of(m, multiply(m, "batch_square", apart, apart));
  m = &measured;
  KR_PK_RUNNING_KEYS(READ)
  kr_graph_pointwise(m->g, "running_mean", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     reshape(m, mean, KR_DIMS(C)), n->before, p.mean);
  kr_graph_pointwise(m->g, "running_var",
                     (krait_pointwise_args){.x_scale = (float)(positions / (positions > 1 ? positions - 1 : 1))},
                     reshape(m, var, KR_DIMS(C)), 0, p.var);
}

/* x (B, ., ., C), normalised over all positions, with norm: batch also over B, through PReLU; into out of the same
 * shape or a new tensor. */
static kr_tensor norm_and_slope(const maker *m, const norm *n, kr_tensor x, kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, x);
  const int64_t over = m->c->streams ? d.size[0] : 1;
  const kr_dims flat = KR_DIMS(d.size[0] / over, over * d.size[1] * d.size[2], d.size[3]);
  if (!out) out = new_like(m, x);
  if (m->c->streams) measure(m, n, x);
  kr_graph_call(m->g, m->c->streams ? "batch_norm" : "instance_norm", &kr_op_instance_norm,
                &(krait_instance_norm_args){.eps = (float)KR_PK_NORM_EPS,
                                            .x = view(m, reshape(m, x, flat)),
                                            .weight = view(m, n->weight),
                                            .bias = view(m, n->bias),
                                            .slope = view(m, n->slope),
                                            .out = view(m, reshape(m, out, flat))});
  return out;
}

/* max(x, 0) + slope min(x, 0) by channels. */
static kr_tensor slope_below(const maker *m, kr_tensor x, kr_tensor slope, kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, x), channels = KR_DIMS(1, 1, 1, d.size[3]);
  const kr_tensor below = new_like(m, x), less = new_tensor(m, kr_graph_dims(m->g, slope));
  if (!out) out = new_like(m, x);
  kr_graph_pointwise(m->g, "slope_less", (krait_pointwise_args){.x_scale = -1, .y_scale = 1}, 0, slope, less);
  kr_graph_pointwise(m->g, "below",
                     (krait_pointwise_args){.activation = KRAIT_ACT_RELU, .x_scale = -1, .y_scale = 1}, x, x, below);
  const kr_tensor factors = kr_graph_spread(m->g, reshape(m, less, channels), d);
  kr_graph_pointwise(m->g, "sloped", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     multiply(m, "below_slope", below, factors), x, out);
  return out;
}

/* The norm with running statistics: a factor and a summand for each channel, which is its bias then. */
static kr_tensor fixed_scale(const maker *m, const norm *n, kr_tensor *bias) {
  const maker fixed = {.g = m->g, .c = m->c, .parameter = m->io->fixed, .user = m->user};
  const kr_dims d = kr_graph_dims(m->g, n->weight);
  const kr_tensor scale = take(&fixed, n->place, "scale", 0, d), shift = take(&fixed, n->place, "shift", 0, d);
  *bias = add(m, "norm_bias", multiply(m, "norm_bias", n->before, scale), shift);
  return scale;
}

/* Rows times a weight (outputs, inputs) through a norm, as positions of these dimensions. */
static kr_tensor product_and_norm(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, const norm *n,
                                  kr_dims dims, kr_tensor out) {
  if (!m->io->fixed) return norm_and_slope(m, n, reshape(m, product(m, name, rows, weight, 0, 0, 0), dims), out);
  kr_tensor bias;
  const kr_dims w = kr_graph_dims(m->g, weight);
  const kr_tensor scale = fixed_scale(m, n, &bias),
                  factors = kr_graph_spread(m->g, reshape(m, scale, KR_DIMS(w.size[0], 1)), w);
  const kr_tensor x = product(m, name, rows, multiply(m, "norm_weight", weight, factors), bias, 0, 0);
  return slope_below(m, reshape(m, x, dims), n->slope, out);
}

/* The same of a map (B, ., ., C) that is there. */
static kr_tensor norm_of(const maker *m, const norm *n, kr_tensor x) {
  if (!m->io->fixed) return norm_and_slope(m, n, x, 0);
  kr_tensor bias;
  const kr_dims d = kr_graph_dims(m->g, x), channels = KR_DIMS(1, 1, 1, d.size[3]);
  const kr_tensor factors = kr_graph_spread(m->g, reshape(m, fixed_scale(m, n, &bias), channels), d),
                  summands = kr_graph_spread(m->g, reshape(m, bias, channels), d);
  return slope_below(m, add(m, "norm_shift", multiply(m, "norm_scale", x, factors), summands), n->slope, 0);
}

/* ---- encoder and decoders ---- */

static int64_t dense_past(const maker *m) { return m->c->depth ? (int64_t)1 << m->c->depth : 0; }

/* A dense block's filter over x, which its past stands before: a filter along frequency for each tap in time. */
static kr_tensor filter_with_past(const maker *m, kr_tensor x, kr_tensor taps, kr_tensor bias, int64_t time_dilation) {
  const int64_t I = kr_graph_dims(m->g, taps).size[0], before = kr_graph_dims(m->g, x).size[2] - m->T;
  if (!m->io->has_past) return filter(m, "dense_filter", x, taps, bias, time_dilation);
  kr_tensor sum = 0;
  for (int64_t k = 0; k < 3; k++) {
    const kr_tensor part = filter(
        m, "dense_filter", kr_graph_slice(m->g, x, 2, before - (2 - k) * time_dilation, m->T),
        kr_graph_slice(m->g, reshape(m, taps, KR_DIMS(I, 1, 3, 3)), 2, k, 1), k ? 0 : bias, time_dilation);
    sum = sum ? add(m, "dense_filter", sum, part) : part;
  }
  return sum;
}

/* all (B,F,T,depth C) has the block's input in its last C columns; what its layers give stands before it, newest first.
 * Returns the last output. */
static kr_tensor dense_block(const maker *m, const char *place, kr_tensor all) {
  const int64_t C = m->c->C, depth = m->c->depth;
  const kr_dims d = kr_graph_dims(m->g, all);
  kr_tensor last = all;
  for (int64_t i = 0; i < depth; i++) {
    char prefix[MAX_PREFIX];
    const int64_t I = (i + 1) * C, number = 0;
    pk_dense_p p;
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", place, (long long)i);
    KR_PK_DENSE_KEYS(READ)
    const kr_tensor x = kr_graph_slice(m->g, all, 3, (depth - 1 - i) * C, I);
    const kr_tensor filtered = not_kept(m, filter_with_past(m, x, p.taps, p.taps_b, (int64_t)1 << i));
    const kr_tensor to = i + 1 < depth ? newest(m, kr_graph_slice(m->g, all, 3, (depth - 2 - i) * C, C)) : 0;
    snprintf(prefix + strlen(prefix), sizeof prefix - strlen(prefix), "2.");
    last = product_and_norm(m, "dense_mix", reshape(m, filtered, KR_DIMS(d.size[0] * d.size[1] * m->T, I)),
                            matrix(m, p.w), &(norm){prefix, p.b, p.norm_w, p.norm_b, p.slope},
                            KR_DIMS(d.size[0], d.size[1], m->T, C), to);
  }
  keep_past(m, all, dense_past(m));
  return depth ? last : newest(m, all);
}

/* Room for a dense block over F bins; the last C columns are where its input goes. */
static kr_tensor dense_room(const maker *m, int64_t F, kr_tensor *input) {
  const int64_t n = m->c->depth > 0 ? m->c->depth : 1;
  const kr_tensor all = room_with_past(m, "dense", KR_DIMS(m->B, F, m->T, n * m->c->C), dense_past(m));
  *input = newest(m, kr_graph_slice(m->g, all, 3, (n - 1) * m->c->C, m->c->C));
  return all;
}

/* (output, input, 1, 3), or of transposed convolutions (input, output, 1, 3), with the taps in the middle. */
static kr_tensor taps_in_middle(const maker *m, kr_tensor weight) {
  const int64_t C = m->c->C;
  const kr_tensor by_tap = new_tensor(m, KR_DIMS(C, 3, C));
  copy(m, "by_tap", kr_graph_permute(m->g, reshape(m, weight, KR_DIMS(C, C, 3)), (int[]){0, 2, 1}), by_tap);
  return by_tap;
}

/* ---- inference: dense blocks, and convolutions with their norms, as calls ---- */

static int in_calls(const maker *m) { return m->io->in_slices || m->io->fused; }

/* A dense block; lift: its input is the encoder's. */
static kr_tensor dense_call(const maker *m, const char *place, kr_tensor x, const pk_encoder_p *lift) {
  const int64_t C = m->c->C, L = m->c->depth, N = C * L * (L + 1) / 2, number = 0;
  const int by_tap = m->io->fused != KR_PK_APART;
  const kr_tensor out = by_tap ? new_like(m, x) : new_frames(m, kr_graph_dims(m->g, x).size[1], C),
                  taps = by_tap ? kr_graph_permute(m->g, new_tensor(m, KR_DIMS(3, 3, N)), (int[]){2, 0, 1})
                                : new_tensor(m, KR_DIMS(N, 3, 3)),
                  taps_b = new_tensor(m, KR_DIMS(N)), weight = new_tensor(m, KR_DIMS(C, N)),
                  norm_w = new_tensor(m, KR_DIMS(L, C)), norm_b = new_tensor(m, KR_DIMS(L, C)),
                  slope = new_tensor(m, KR_DIMS(L, C));
  for (int64_t i = 0; i < L; i++) {
    char prefix[MAX_PREFIX];
    const int64_t I = (i + 1) * C, first = C * i * (i + 1) / 2;
    pk_dense_p p;
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", place, (long long)i);
    KR_PK_DENSE_KEYS(READ)
#define PUT(from, dims, to, dim, at, n) copy(m, "dense", reshape(m, from, dims), kr_graph_slice(m->g, to, dim, at, n))
    PUT(p.taps, KR_DIMS(I, 3, 3), taps, 0, first, I);
    PUT(p.taps_b, KR_DIMS(I), taps_b, 0, first, I);
    PUT(p.w, KR_DIMS(C, I), weight, 1, first, I);
    PUT(p.norm_w, KR_DIMS(1, C), norm_w, 0, i, 1);
    PUT(p.norm_b, KR_DIMS(1, C), norm_b, 0, i, 1);
    PUT(p.slope, KR_DIMS(1, C), slope, 0, i, 1);
#undef PUT
  }
  return kr_graph_call(m->g, "dense", &kr_op_dense_block,
                       &(krait_dense_block_args){.call.flags =
                                                     (m->one_sided ? KRAIT_DENSE_ONE_SIDED : 0) |
                                                     (m->io->fused == KR_PK_HALF_FACTORS ? KRAIT_DENSE_TF32 : 0),
                                                 .eps = (float)KR_PK_NORM_EPS,
                                                 .x = view(m, x),
                                                 .taps = view(m, taps),
                                                 .taps_bias = view(m, taps_b),
                                                 .weight = view(m, by_tap ? laid_out(m, weight) : weight),
                                                 .norm_weight = view(m, norm_w),
                                                 .norm_bias = view(m, norm_b),
                                                 .slope = view(m, slope),
                                                 .lift = view(m, lift ? matrix(m, lift->lift_w) : 0),
                                                 .lift_weight = view(m, lift ? lift->lift_norm_w : 0),
                                                 .lift_bias = view(m, lift ? lift->lift_norm_b : 0),
                                                 .lift_slope = view(m, lift ? lift->lift_slope : 0),
                                                 .out = view(m, out)});
}

/* A convolution along frequency, or its transpose, with its norm: weight (outputs, taps, inputs) in any strides. */
static kr_tensor conv_norm(const maker *m, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                           kr_tensor weight, const norm *n) {
  const kr_dims d = kr_graph_dims(m->g, x), w = kr_graph_dims(m->g, weight);
  const int64_t F = flags & KRAIT_CONV_NORM_TRANSPOSED ? (d.size[1] - 1) * step + w.size[1]
                                                       : (d.size[1] - w.size[1]) / step + 1;
  const kr_tensor by_tap = kr_graph_permute(m->g, new_tensor(m, KR_DIMS(w.size[1], w.size[2], w.size[0])),
                                            (int[]){2, 0, 1}),
                  out = m->io->in_slices ? new_frames(m, F, w.size[0])
                                         : new_tensor(m, KR_DIMS(m->B, F, m->T, w.size[0]));
  copy(m, "taps", weight, by_tap);
  return kr_graph_call(m->g, name, &kr_op_conv_norm,
                       &(krait_conv_norm_args){.call.flags = flags,
                                               .S = step,
                                               .eps = (float)KR_PK_NORM_EPS,
                                               .x = view(m, x),
                                               .weight = view(m, by_tap),
                                               .norm_weight = view(m, n->weight),
                                               .norm_bias = view(m, n->bias),
                                               .slope = view(m, n->slope),
                                               .out = view(m, out)});
}

static kr_tensor encoder(const maker *m, kr_tensor features) {
  const int64_t C = m->c->C, F = m->c->F, F2 = m->c->F2, number = 0, rows = m->B * F * m->T;
  const char *prefix = "dense_encoder.";
  pk_encoder_p p;
  kr_tensor input;
  KR_PK_ENCODER_KEYS(READ)
  const norm lift_norm = {"dense_encoder.dense_conv_1.1.", p.lift_b, p.lift_norm_w, p.lift_norm_b, p.lift_slope},
             down_norm = {"dense_encoder.dense_conv_2.1.", p.down_b, p.down_norm_w, p.down_norm_b, p.down_slope};
  if (in_calls(m)) {
    const kr_tensor down_w = kr_graph_permute(m->g, reshape(m, p.down_w, KR_DIMS(C, C, 3)), (int[]){0, 2, 1});
    kr_tensor x = features;
    if (m->io->fused || !m->c->depth)
      x = conv_norm(m, "lift", 0, 1, x, reshape(m, p.lift_w, KR_DIMS(C, 1, 2)), &lift_norm);
    if (m->c->depth) x = dense_call(m, "dense_encoder", x, m->io->fused ? NULL : &p);
    return conv_norm(m, "down", 0, 2, x, down_w, &down_norm);
  }
  const kr_tensor all = dense_room(m, F, &input);
  const int is_cast = m->rows_dtype != m->dtype; /* of two features only: the norm is of what is not rounded */
  const kr_tensor lifted = product_and_norm(m, "lift", reshape(m, features, KR_DIMS(rows, 2)), matrix(m, p.lift_w),
                                            &lift_norm, KR_DIMS(m->B, F, m->T, C), is_cast ? 0 : input);
  if (is_cast) copy(m, "lift", lifted, input);
  const kr_tensor dense = dense_block(m, "dense_encoder", all);
  /* every other frequency with its two neighbours above: (tap, input) by output */
  const kr_tensor windows = new_rows(m, KR_DIMS(m->B, F2, m->T, 3 * C));
  kr_graph_call(m->g, "down_windows", &kr_op_unfold,
                &(krait_unfold_args){.KH = 3, .KW = 1, .SH = 2, .SW = 1, .x = view(m, dense), .out = view(m, windows)});
  not_kept(m, windows);
  return product_and_norm(m, "down", reshape(m, windows, KR_DIMS(m->B * F2 * m->T, 3 * C)),
                          reshape(m, taps_in_middle(m, p.down_w), KR_DIMS(C, 3 * C)), &down_norm,
                          KR_DIMS(m->B, F2, m->T, C), 0);
}

/* The way back to F bins: (B,F2,T,3n), a tap after the other, added where they belong. */
static kr_tensor fold_up(const maker *m, kr_tensor x, int64_t n) {
  const kr_tensor out = new_rows(m, KR_DIMS(m->B, m->c->F, m->T, n));
  return kr_graph_call(m->g, "up_fold", &kr_op_fold,
                       &(krait_fold_args){.KH = 3, .KW = 1, .SH = 2, .SW = 1, .x = view(m, x), .out = view(m, out)});
}

/* The rows (positions,C) of a map in the order in which it lies; and a map of such rows, as `like` lies. */
static kr_tensor rows_of(const maker *m, kr_tensor map) {
  const kr_dims d = kr_graph_dims(m->g, map), rows = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  return reshape(m, kr_graph_can_reshape(m->g, map, rows) ? map : framewise(m, map), rows);
}
static kr_tensor map_of(const maker *m, kr_tensor rows, kr_tensor like) {
  const kr_dims d = kr_graph_dims(m->g, like), all = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  const int64_t n = kr_graph_dims(m->g, rows).size[1];
  if (kr_graph_can_reshape(m->g, like, all)) return reshape(m, rows, KR_DIMS(d.size[0], d.size[1], d.size[2], n));
  return framewise(m, reshape(m, rows, KR_DIMS(d.size[0], d.size[2], d.size[1], n)));
}

static kr_tensor decoder_block(const maker *m, const char *place, kr_tensor x) {
  kr_tensor input;
  if (in_calls(m)) return m->c->depth ? dense_call(m, place, x, NULL) : x;
  const kr_tensor all = dense_room(m, m->c->F2, &input);
  copy(m, "decoder_input", x, input);
  return dense_block(m, place, all);
}

/* A few numbers for each of the rows, in float32: what angles are made of. */
static kr_tensor few_products(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                              kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, rows);
  if (!m->io->fused) return product(m, name, rows, weight, bias, 0, out);
  const int64_t n = d.size[0], N = kr_graph_dims(m->g, weight).size[0];
  if (!out) out = new_tensor(m, KR_DIMS(n, N));
  kr_graph_call(m->g, name, &kr_op_map_product,
                &(krait_map_product_args){.eps = 1e-6f,
                                          .x = view(m, reshape(m, rows, KR_DIMS(1, 1, n, d.size[1]))),
                                          .weight = view(m, weight),
                                          .bias = view(m, bias),
                                          .out = view(m, reshape(m, out, KR_DIMS(1, 1, n, N)))});
  return out;
}

/* (B,F,T) as (B,T,F): what belongs to a frequency is then spread over dimensions side by side. */
static kr_tensor by_frame(const maker *m, kr_tensor plane) {
  return kr_graph_permute(m->g, plane, (int[]){0, 2, 1});
}

/* slope (last_w u + last_b), by frame: u has one number for each bin. */
static kr_tensor sloped(const maker *m, const pk_mask_p *p, kr_tensor u) {
  const int64_t F = m->c->F;
  const kr_dims plane = KR_DIMS(m->B, F, m->T), frames = KR_DIMS(m->B, m->T, F), bins = KR_DIMS(F);
#define SPREAD(t) kr_graph_spread(m->g, reshape(m, t, KR_DIMS(1, 1, F)), frames)
  const kr_tensor slope = reshape(m, p->sigmoid_slope, bins);
  if (!in_calls(m)) {
    const kr_tensor last = product(m, "last", reshape(m, u, KR_DIMS(m->B * F * m->T, 1)), matrix(m, p->last_w),
                                   p->last_b, 0, 0);
    return multiply(m, "slope", by_frame(m, reshape(m, last, plane)), SPREAD(slope));
  }
  const kr_tensor one[] = {reshape(m, p->last_w, KR_DIMS(1)), p->last_b};
  const kr_tensor factor = multiply(m, "slope", slope, kr_graph_spread(m->g, one[0], bins)),
                  summand = multiply(m, "slope", slope, kr_graph_spread(m->g, one[1], bins));
  return add(m, "slope", multiply(m, "slope", by_frame(m, reshape(m, u, plane)), SPREAD(factor)), SPREAD(summand));
#undef SPREAD
}

static void mask_decoder(const maker *m, kr_tensor x, kr_tensor mag_in, kr_tensor mag) {
  const kr_tensor dense = decoder_block(m, "mask_decoder", x);
  const int64_t C = m->c->C, F = m->c->F, number = 0;
  const char *prefix = "mask_decoder.";
  pk_mask_p p;
  KR_PK_MASK_KEYS(READ)
  /* the product behind the transposed convolution goes into its weights: (input, tap) */
  const kr_tensor taps = product(m, "merge", reshape(m, taps_in_middle(m, p.up_w), KR_DIMS(3 * C, C)),
                                 matrix(m, p.merge_w), 0, 0, 0),
                  rows = few_products(m, "up", rows_of(m, dense), turned(m, reshape(m, taps, KR_DIMS(C, 3))), 0, 0),
                  up = cast(m, "up", fold_up(m, map_of(m, rows, dense), 1), m->dtype);
  const kr_tensor before = reshape(m, product(m, "up_bias", reshape(m, p.up_b, KR_DIMS(1, C)),
                                              matrix(m, p.merge_w), p.merge_b, 0, 0), KR_DIMS(1));
  const kr_tensor u = norm_of(m, &(norm){"mask_decoder.mask_conv.2.", before, p.norm_w, p.norm_b, p.slope}, up);
  kr_graph_pointwise(
      m->g, "mask",
      (krait_pointwise_args){
          .call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SIGMOID, .x_scale = (float)m->c->sigmoid_beta},
      sloped(m, &p, u), by_frame(m, mag_in), by_frame(m, mag));
}

static void phase_decoder(const maker *m, kr_tensor x, kr_tensor pha) {
  const int64_t C = m->c->C, F = m->c->F, n = m->B * F * m->T, number = 0;
  const char *prefix = "phase_decoder.";
  pk_phase_p p;
  kr_tensor u;
  const kr_tensor dense = decoder_block(m, "phase_decoder", x);
  KR_PK_PHASE_KEYS(READ)
  const norm own = {"phase_decoder.phase_conv.1.", p.up_b, p.norm_w, p.norm_b, p.slope};
  if (in_calls(m))
    u = conv_norm(m, "phase_up", KRAIT_CONV_NORM_TRANSPOSED, 2, dense,
                  kr_graph_permute(m->g, reshape(m, p.up_w, KR_DIMS(C, C, 3)), (int[]){1, 2, 0}), &own);
  else {
    const kr_tensor taps = turned(m, reshape(m, taps_in_middle(m, p.up_w), KR_DIMS(C, 3 * C)));
    u = norm_of(m, &own, fold_up(m, map_of(m, product(m, "up", rows_of(m, dense), taps, 0, 0, 0), dense), C));
  }
  const kr_tensor weight = new_tensor(m, KR_DIMS(2, C)), bias = new_tensor(m, KR_DIMS(2)),
                  weights[] = {matrix(m, p.real_w), matrix(m, p.imag_w)}, biases[] = {p.real_b, p.imag_b};
  for (int i = 0; i < 2; i++) {
    copy(m, "phase_weight", weights[i], kr_graph_slice(m->g, weight, 0, i, 1));
    copy(m, "phase_bias", biases[i], kr_graph_slice(m->g, bias, 0, i, 1));
  }
  const kr_tensor aligned = columns(m, new_rows(m, KR_DIMS(n, m->rows_dtype == m->dtype ? 2 : 8)), 0, 2),
                  parts = cast(m, "phase_parts", few_products(m, "phase_parts", rows_of(m, u), weight, bias, aligned),
                               m->dtype);
#define PART(k) view(m, reshape(m, map_of(m, columns(m, parts, k, 1), u), KR_DIMS(m->B, F, m->T)))
  kr_graph_call(m->g, "phase", &kr_op_to_polar,
                &(krait_to_polar_args){.power = 1, .re = PART(0), .im = PART(1), .pha = view(m, pha)});
#undef PART
}

/* ---- the blocks ---- */

static pk_block_p skips(const maker *m, int64_t b) {
  const int64_t C = m->c->C, number = 0;
  char prefix[MAX_PREFIX];
  pk_block_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.", (long long)b);
  KR_PK_BLOCK_KEYS(READ)
  return p;
}

typedef struct stage_part {
  const maker *m;
  int64_t block;
  int along_time;
} stage_part;

static void stage_slice(void *user, kr_graph *g, kr_tensor x, kr_tensor out) {
  const stage_part *part = user;
  const kr_dims dims = kr_graph_dims(g, x), rows = KR_DIMS(dims.size[0] * dims.size[1], dims.size[2]);
  kr_pk_config piece = *part->m->c;
  maker own = *part->m;
  own.g = g, own.is_piece = 1, own.c = &piece, own.T = dims.size[1], piece.F2 = dims.size[0];
  const kr_tensor copied = new_tensor(&own, dims);
  copy(&own, "piece", x, copied); /* out is x */
  const pk_block_p p = skips(&own, part->block);
  pk_stage(&own, part->block, part->along_time, part->along_time ? p.beta_t : p.beta_f,
           reshape(&own, copied, rows), out);
}

/* Positions of a slice along time: of a recurrence as many as it takes at once. */
enum { SEQUENCES = 4 };

/* The blocks in place, x (1,F2,T,C). */
static void blocks_in_slices(const maker *m, kr_tensor x) {
  const kr_tensor map = reshape(m, x, KR_DIMS(m->c->F2, m->T, m->c->C));
  for (int64_t b = 0; b < m->c->n_blocks; b++)
    for (int along_time = 1; along_time >= 0; along_time--) {
      stage_part part = {m, b, along_time};
      const int64_t n = along_time && m->c->stage != KR_PK_MAMBA ? SEQUENCES : 1;
      kr_graph_each(m->g, along_time ? "time_stage" : "freq_stage", !along_time, n, stage_slice, &part, map, map);
    }
}

void kr_pk_graph_record(kr_graph *g, const kr_pk_config *config, kr_pk_parameter_fn *parameter, void *user,
                        kr_pk_graph *io) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims in = kr_graph_dims(g, io->com_in), plane = KR_DIMS(in.size[0], in.size[1], in.size[2]);
  const maker m = {.g = g,
                   .c = config,
                   .parameter = parameter,
                   .user = user,
                   .io = io,
                   .B = in.size[0],
                   .T = in.size[2],
                   .dtype = kr_graph_dtype(g, io->com_in),
                   .rows_dtype = io->halves ? io->halves : kr_graph_dtype(g, io->com_in),
                   .one_sided = config->causal};
#define PART(tensor, k) view(&m, reshape(&m, kr_graph_slice(g, tensor, 3, k, 1), plane))
  /* rows of two in rows of four, which are aligned */
  const kr_tensor features =
      kr_graph_slice(g, io->in_slices ? new_frames(&m, in.size[1], 4)
                                        : new_tensor(&m, KR_DIMS(in.size[0], in.size[1], in.size[2], 4)), 3, 0, 2);
  kr_graph_call(g, "features", &kr_op_to_polar,
                &(krait_to_polar_args){.power = 1,
                                       .re = PART(io->com_in, 0),
                                       .im = PART(io->com_in, 1),
                                       .mag = PART(features, 0),
                                       .pha = PART(features, 1)});
  io->mag_in = reshape(&m, kr_graph_slice(g, features, 3, 0, 1), plane);
  if (!io->mag) io->mag = new_tensor(&m, plane);
  if (!io->pha) io->pha = new_tensor(&m, plane);
  kr_tensor x = encoder(&m, features);
  if (io->in_slices) blocks_in_slices(&m, x);
  for (int64_t b = 0; b < config->n_blocks && !io->in_slices; b++) {
    const pk_block_p p = skips(&m, b);
    x = reshape(&m, x, KR_DIMS(m.B * config->F2 * m.T, config->C));
    x = pk_stage(&m, b, 0, p.beta_f, pk_stage(&m, b, 1, p.beta_t, x, 0), 0);
  }
  x = reshape(&m, x, KR_DIMS(m.B, config->F2, m.T, config->C));
  if (io->fused) kr_graph_lane(g, 2);
  mask_decoder(&m, x, io->mag_in, io->mag);
  if (io->fused) kr_graph_lane(g, 1);
  phase_decoder(&m, x, io->pha);
  kr_graph_lane(g, 0);
  if (io->com)
    kr_graph_call(g, "com", &kr_op_from_polar,
                  &(krait_from_polar_args){.power = 1,
                                           .mag = view(&m, io->mag),
                                           .pha = view(&m, io->pha),
                                           .re = PART(io->com, 0),
                                           .im = PART(io->com, 1)});
#undef PART
}
