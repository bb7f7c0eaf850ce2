/* seedvr_vae_graph.c: a segment of the encoder or decoder, one level, as calls of a graph, for some frames. Maps are
 * (T,H,W,C). Each causal convolution over time keeps its last frames; those of frames that follow begin with them. */
#include <math.h>
#include <stdio.h>

#include "alloc.h"
#include "ops/seedvr_ops.h"
#include "seedvr_vae.h"
#include "status.h"

typedef char key_text[128];
#define KEY(...) (snprintf(b->key, sizeof b->key, __VA_ARGS__), b->key)

typedef struct builder {
  const kr_vae_config *c;
  kr_vae_weight_fn find;
  void *user;
  kr_vae_graph *to;
  kr_graph *g;
  const char *side; /* "encoder" or "decoder" */
  key_text key;
} builder;

enum { MOST_MEMORIES = 256 };

/* ---- weights ---- */

static kr_tensor take_weight(builder *b, const char *key, const char *end, int32_t dtype, kr_sizes want, kr_dims kept) {
  key_text full;
  const void *at = NULL;
  snprintf(full, sizeof full, "%s.%s", key, end);
  const int32_t status = b->find(b->user, full, want, &at);
  if (status < 0) {
    kr_graph_set_error(b->g, status);
    return 0;
  }
  return kr_graph_weight(b->g, full, dtype, kept, at);
}
static kr_tensor take_filter(builder *b, const char *key, kr_sizes want, kr_dims kept) {
  return take_weight(b, key, "weight", b->to->dtype, want, kept);
}
static kr_tensor take_vector(builder *b, const char *key, const char *end, int64_t n) {
  return take_weight(b, key, end, KRAIT_F32, KR_SIZES(n), KR_DIMS(n));
}
/* Whether there are frames before. */
static int follows(const builder *b) { return b->to->part >= KR_VAE_SECOND; }
static kr_view vae_view(const builder *b, kr_tensor t) { return t ? kr_graph_view(b->g, t) : (kr_view){0}; }
static kr_tensor new_map(const builder *b, int64_t T, int64_t H, int64_t W, int64_t C) {
  return kr_graph_temp(b->g, b->to->dtype, KR_DIMS(T, H, W, C));
}

/* A weight made of the file's. */
static kr_tensor take_derived(builder *b, const char *key, const char *end, int32_t dtype, kr_dims dims) {
  kr_sizes want = {.n = dims.n};
  for (int i = 0; i < dims.n; i++) want.size[i] = dims.size[i];
  return take_weight(b, key, end, dtype, want, dims);
}
static void copy_map(const builder *b, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, "copy", (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}
/* The segment's result. */
static kr_tensor vae_output(const builder *b, int32_t dtype, int64_t T, int64_t H, int64_t W, int64_t C) {
  kr_vae_graph *to = b->to;
  to->out_size[0] = T, to->out_size[1] = H, to->out_size[2] = W;
  return to->out = kr_graph_output(b->g, "out", dtype, KR_DIMS(T, H, W, C));
}

/* ---- a convolution ---- */

typedef struct window {
  int64_t KT, K, ST, S; /* over time, over rows and columns; steps */
} window;

/* What a part of the film keeps for the next one: 0: nothing. *was: what the part before it kept, or 0. */
static kr_tensor record_memory(builder *b, kr_dims dims, kr_tensor *was) {
  kr_vae_graph *to = b->to;
  char name[32];
  *was = 0;
  if (to->part == KR_VAE_WHOLE || to->n_memories == MOST_MEMORIES) return 0;
  kr_vae_memory *memory = &to->memories[to->n_memories];
  memory->bytes = krait_dtype_bytes(to->dtype);
  for (int i = 0; i < dims.n; i++) memory->bytes *= (uint64_t)dims.size[i];
  memory->is_on_host = memory->bytes > to->host_above && memory->bytes <= to->host_to;
  snprintf(name, sizeof name, "memory%lld", (long long)to->n_memories++);
  memory->is = kr_graph_output(b->g, name, to->dtype, dims);
  if (!follows(b)) return memory->is;
  snprintf(name, sizeof name, "memory%lld_was", (long long)(to->n_memories - 1));
  *was = memory->was = kr_graph_input(b->g, name, to->dtype, dims);
  if (memory->is_on_host) copy_map(b, memory->was, *was = kr_graph_temp(b->g, to->dtype, dims));
  return memory->is;
}

/* Of so many terms for each value of out. */
static void count_product(const builder *b, kr_tensor out, int64_t terms) {
  const kr_dims d = kr_graph_dims(b->g, out);
  double n = 1;
  for (int i = 0; i < d.n; i++) n *= (double)d.size[i];
  b->to->flops += 2 * n * (double)terms;
}

/* Without a step, zeros on all sides; with one only below and on the right. */
static kr_tensor conv(builder *b, const char *key, kr_tensor x, int64_t Co, window w, kr_tensor residual,
                      kr_tensor out) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const int64_t C = d.size[3], front = follows(b) && w.KT > w.ST ? w.KT - w.ST : w.KT - 1;
  kr_conv3d_args a = {.T = d.size[0], .H = d.size[1], .W = d.size[2], .C = C, .TAPS = w.KT * w.K * w.K,
                      .KT = w.KT, .KH = w.K, .KW = w.K, .ST = w.ST, .SH = w.S, .SW = w.S,
                      .PH = w.S == 1 ? w.K / 2 : 0, .PW = w.S == 1 ? w.K / 2 : 0};
  if (!out) out = new_map(b, (a.T + front - w.KT) / w.ST + 1, a.H / w.S, a.W / w.S, Co);
  const kr_tensor weight = take_filter(b, key, KR_SIZES(Co, C, w.KT, w.K, w.K), KR_DIMS(Co, a.TAPS, C));
  a.x = vae_view(b, x), a.weight = vae_view(b, weight), a.bias = vae_view(b, take_vector(b, key, "bias", Co));
  a.residual = vae_view(b, residual), a.out = vae_view(b, out);
  if (w.KT > w.ST && b->to->part != KR_VAE_WHOLE) {
    kr_tensor was;
    a.past = w.KT - w.ST;
    a.final_states = vae_view(b, record_memory(b, KR_DIMS(a.past, a.H, a.W, C), &was));
    a.initial_states = vae_view(b, was);
  }
  count_product(b, out, a.TAPS * C);
  kr_graph_call(b->g, key, &kr_op_conv3d, &a);
  return out;
}
static const window same_window = {3, 3, 1, 1};

/* Positions as rows. */
static kr_tensor as_rows(const builder *b, kr_tensor x) {
  const kr_dims d = kr_graph_dims(b->g, x);
  return kr_graph_reshape(b->g, x, KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]));
}

/* A product for each position. want: the weight's shape in the file, (Co,C) or (Co,C,1,1,1). */
static kr_tensor product(builder *b, const char *key, kr_tensor x, int64_t Co, int n_dims, kr_tensor residual) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const int64_t C = d.size[3];
  const kr_tensor out = new_map(b, d.size[0], d.size[1], d.size[2], Co),
                  weight = take_filter(b, key, (kr_sizes){n_dims, {Co, C, 1, 1, 1}}, KR_DIMS(Co, C));
  if (!weight) return out;
  count_product(b, out, C);
  kr_graph_call(b->g, key, &kr_op_gemm,
                &(kr_gemm_args){.A = vae_view(b, as_rows(b, x)),
                                .Bmat = vae_view(b, kr_graph_permute(b->g, weight, (int[]){1, 0})),
                                .bias = vae_view(b, take_vector(b, key, "bias", Co)),
                                .residual = vae_view(b, residual ? as_rows(b, residual) : 0),
                                .out = vae_view(b, as_rows(b, out))});
  return out;
}

/* in_place: nothing else reads x. */
static kr_tensor norm(builder *b, const char *key, kr_tensor x, int32_t activation, int in_place) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const kr_dims frames = KR_DIMS(d.size[0], d.size[1] * d.size[2], d.size[3]);
  const kr_tensor out = in_place && x != b->to->in ? x : new_map(b, d.size[0], d.size[1], d.size[2], d.size[3]);
  kr_graph_call(b->g, key, &kr_op_group_norm,
                &(kr_group_norm_args){.G = b->c->n_groups,
                                      .activation = activation,
                                      .eps = b->c->eps,
                                      .x = vae_view(b, kr_graph_reshape(b->g, x, frames)),
                                      .weight = vae_view(b, take_vector(b, key, "weight", d.size[3])),
                                      .bias = vae_view(b, take_vector(b, key, "bias", d.size[3])),
                                      .out = vae_view(b, kr_graph_reshape(b->g, out, frames))});
  return out;
}

/* ---- blocks ---- */

/* out: the result, or 0: a new map. */
static kr_tensor record_residual(builder *b, const char *name, kr_tensor x, int64_t Co, kr_tensor out) {
  const int64_t C = kr_graph_dims(b->g, x).size[3];
  kr_tensor kept = x;
  if (C != Co) kept = product(b, KEY("%s.%s.conv_shortcut", b->side, name), x, Co, 5, 0);
  x = norm(b, KEY("%s.%s.norm1", b->side, name), x, KRAIT_ACT_SILU, kept != x);
  x = conv(b, KEY("%s.%s.conv1", b->side, name), x, Co, same_window, 0, 0);
  x = norm(b, KEY("%s.%s.norm2", b->side, name), x, KRAIT_ACT_SILU, 1);
  return conv(b, KEY("%s.%s.conv2", b->side, name), x, Co, same_window, kept, out);
}

static kr_view as_head(const builder *b, kr_tensor x) {
  const kr_dims d = kr_graph_dims(b->g, x);
  return vae_view(b, kr_graph_reshape(b->g, x, KR_DIMS(d.size[0], d.size[1] * d.size[2], 1, d.size[3])));
}

/* n rows of y: of q they attend to k and v of their frame, of N rows. in: q, k and v as rows. */
static void attend_strip(builder *b, const kr_tensor in[3], int64_t N, int64_t from, int64_t n, kr_tensor y) {
  const int64_t first = from / N * N, C = kr_graph_dims(b->g, y).size[1];
  const kr_tensor q = kr_graph_slice(b->g, in[0], 0, from, n), k = kr_graph_slice(b->g, in[1], 0, first, N),
                  v = kr_graph_slice(b->g, in[2], 0, first, N),
                  scores = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(n, N)),
                  shares = kr_graph_temp(b->g, b->to->dtype, KR_DIMS(n, N));
  kr_graph_call(b->g, "scores", &kr_op_gemm,
                &(kr_gemm_args){.scale = 1 / sqrtf((float)C), .A = vae_view(b, q),
                                .Bmat = vae_view(b, kr_graph_permute(b->g, k, (int[]){1, 0})),
                                .out = vae_view(b, scores)});
  kr_graph_call(b->g, "softmax", &kr_op_softmax,
                &(kr_softmax_args){.x = vae_view(b, scores), .out = vae_view(b, shares)});
  kr_graph_call(b->g, "values", &kr_op_gemm,
                &(kr_gemm_args){.A = vae_view(b, shares), .Bmat = vae_view(b, v),
                                .out = vae_view(b, kr_graph_slice(b->g, y, 0, from, n))});
}

/* As products, in strips whose scores fit into memory. */
static void attend_by_products(builder *b, const kr_tensor in[3], kr_tensor y) {
  enum { MOST_SCORES = 1 << 26 };
  const kr_dims d = kr_graph_dims(b->g, y);
  const int64_t T = d.size[0], N = d.size[1] * d.size[2], n_strips = (N * N + MOST_SCORES - 1) / MOST_SCORES,
                rows = (N + n_strips - 1) / n_strips;
  const kr_tensor flat[3] = {as_rows(b, in[0]), as_rows(b, in[1]), as_rows(b, in[2])};
  for (int64_t t = 0; t < T; t++)
    for (int64_t i = 0; i < N; i += rows)
      attend_strip(b, flat, N, t * N + i, N - i < rows ? N - i : rows, as_rows(b, y));
}

/* Each frame attends to itself, with one head. */
static kr_tensor record_frame_attention(builder *b, const char *name, kr_tensor x) {
  const int64_t C = kr_graph_dims(b->g, x).size[3];
  static const char *const factors[] = {"to_q", "to_k", "to_v"};
  kr_tensor y = norm(b, KEY("%s.%s.group_norm", b->side, name), x, KRAIT_ACT_NONE, 0), in[3];
  for (int i = 0; i < 3; i++) in[i] = product(b, KEY("%s.%s.%s", b->side, name, factors[i]), y, C, 2, 0);
  const kr_dims d = kr_graph_dims(b->g, x);
  y = new_map(b, d.size[0], d.size[1], d.size[2], C);
  count_product(b, y, 2 * d.size[1] * d.size[2]);
  if (b->to->by_products)
    attend_by_products(b, in, y);
  else
    kr_graph_call(b->g, "attention", &kr_op_attention,
                  &(kr_attention_args){.q = as_head(b, in[0]), .k = as_head(b, in[1]), .v = as_head(b, in[2]),
                                       .out = as_head(b, y)});
  return product(b, KEY("%s.%s.to_out.0", b->side, name), y, C, 2, x);
}

static kr_tensor record_middle(builder *b, kr_tensor x) {
  const int64_t C = kr_graph_dims(b->g, x).size[3];
  x = record_residual(b, "mid_block.resnets.0", x, C, 0);
  x = record_frame_attention(b, "mid_block.attentions.0", x);
  return record_residual(b, "mid_block.resnets.1", x, C, 0);
}

/* ---- between levels ---- */

static kr_tensor record_down(builder *b, int64_t level, kr_tensor x, int with_time, kr_tensor out) {
  const window w = with_time ? (window){3, 3, 2, 2} : (window){1, 3, 1, 2};
  return conv(b, KEY("encoder.down_blocks.%lld.downsamplers.0.conv", (long long)level), x,
              kr_graph_dims(b->g, x).size[3], w, 0, out);
}

/* One place of each cell of a large map: of n cells from frame `at` on, of r frames each. */
static kr_tensor place_of(const builder *b, kr_tensor large, int64_t at, int64_t n, int64_t r, int64_t place) {
  const kr_dims d = kr_graph_dims(b->g, large);
  const int64_t H = d.size[1] / 2, W = d.size[2] / 2, C = d.size[3];
  const kr_tensor frames = kr_graph_reshape(b->g, kr_graph_slice(b->g, large, 0, at, n * r),
                                            KR_DIMS(n, r, 4 * H * W * C)),
                  rows = kr_graph_reshape(b->g, kr_graph_slice(b->g, frames, 1, place % r, 1),
                                          KR_DIMS(n, H, 2, 2 * W * C)),
                  columns = kr_graph_reshape(b->g, kr_graph_slice(b->g, rows, 2, place / r / 2, 1),
                                             KR_DIMS(n, H, W, 2 * C));
  return kr_graph_slice(b->g, columns, 3, place / r % 2 * C, C);
}

/* Adds vector i of the bias to a part of a map. */
static void correct_edge(const builder *b, kr_tensor bias, int64_t i, kr_tensor part) {
  const kr_dims d = kr_graph_dims(b->g, part);
  const kr_tensor vector = kr_graph_reshape(b->g, kr_graph_slice(b->g, bias, 0, i * d.size[3], d.size[3]),
                                            KR_DIMS(1, 1, 1, d.size[3]));
  kr_graph_pointwise(b->g, "edge", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, part,
                     kr_graph_expand(b->g, vector, d), part);
}

/* x with what was before it (0: its first frame), and where its last frames stay (0: nowhere). */
typedef struct small_map {
  kr_tensor x, was, is;
} small_map;

/* Place (row, column) of the cells of a map; which: the place's weights. */
static void up_place(builder *b, int64_t level, int set, int64_t which, const int64_t at[2], const small_map *map,
                     kr_tensor out) {
  const kr_dims d = kr_graph_dims(b->g, map->x);
  const int64_t H = d.size[1], W = d.size[2], C = d.size[3], KT = kr_vae_up_frames(set);
  char name[112];
  snprintf(name, sizeof name, "decoder.up_blocks.%lld.upsamplers.0.%d.%lld", (long long)level, set, (long long)which);
  const kr_tensor weight = take_derived(b, name, "small", b->to->dtype, KR_DIMS(C, 4 * KT, C)),
                  bias = take_derived(b, name, "small_bias", KRAIT_F32, KR_DIMS(4 * C));
  if (!bias) return;
  kr_graph_call(b->g, name, &kr_op_conv3d,
                &(kr_conv3d_args){.T = d.size[0], .H = H, .W = W, .C = C, .TAPS = 4 * KT, .KT = KT, .KH = 2, .KW = 2,
                                  .ST = 1, .SH = 1, .SW = 1, .PH = !at[0], .PW = !at[1],
                                  .past = map->was || map->is ? KT - 1 : 0, .x = vae_view(b, map->x),
                                  .initial_states = vae_view(b, map->was), .final_states = vae_view(b, map->is),
                                  .weight = vae_view(b, weight),
                                  .bias = vae_view(b, kr_graph_slice(b->g, bias, 0, 0, C)), .out = vae_view(b, out)});
  count_product(b, out, 4 * KT * C);
  const kr_tensor row = kr_graph_slice(b->g, out, 1, at[0] * (H - 1), 1);
  correct_edge(b, bias, 1, row);
  correct_edge(b, bias, 2, kr_graph_slice(b->g, out, 2, at[1] * (W - 1), 1));
  correct_edge(b, bias, 3, kr_graph_slice(b->g, row, 2, at[1] * (W - 1), 1));
}

/* All places of the cells of a map, of r frames each, from frame `from` of out on. */
static void up_cells(builder *b, int64_t level, int set, int64_t r, small_map map, kr_tensor out, int64_t from) {
  const int64_t n = kr_graph_dims(b->g, map.x).size[0], frames = set == KR_VAE_UP_FIRST ? 1 : r;
  const kr_tensor is = map.is;
  for (int64_t i = 0; i < 4 * frames; i++) {
    const int64_t place = i / frames, frame = i % frames;
    map.is = i == 4 * frames - 1 ? is : 0;
    up_place(b, level, set, place * r + frame, (int64_t[]){place / 2, place % 2}, &map,
             place_of(b, out, from, n, frames, i));
  }
}

/* Of the film's first frame only one comes. */
static kr_tensor up_with_time(builder *b, int64_t level, kr_tensor x) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const int64_t T = d.size[0];
  const kr_tensor out = new_map(b, 2 * T - !follows(b), 2 * d.size[1], 2 * d.size[2], d.size[3]);
  small_map all = {.x = x};
  all.is = record_memory(b, KR_DIMS(1, d.size[1], d.size[2], d.size[3]), &all.was);
  if (follows(b)) {
    up_cells(b, level, b->to->part == KR_VAE_SECOND ? KR_VAE_UP_SECOND : KR_VAE_UP_LATER, 2, all, out, 0);
    return out;
  }
  const kr_tensor first = kr_graph_slice(b->g, x, 0, 0, 1), second = T > 1 ? kr_graph_slice(b->g, x, 0, 1, 1) : 0;
  up_cells(b, level, KR_VAE_UP_FIRST, 2, (small_map){.x = first}, out, 0);
  if (second) up_cells(b, level, KR_VAE_UP_SECOND, 2, (small_map){second, first, 0}, out, 1);
  if (T > 2)
    up_cells(b, level, KR_VAE_UP_LATER, 2, (small_map){kr_graph_slice(b->g, x, 0, 2, T - 2), second, 0}, out, 3);
  if (all.is) copy_map(b, kr_graph_slice(b->g, x, 0, T - 1, 1), all.is);
  return out;
}

static kr_tensor up_frames(builder *b, int64_t level, kr_tensor x) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const kr_tensor out = new_map(b, d.size[0], 2 * d.size[1], 2 * d.size[2], d.size[3]);
  small_map all = {.x = x};
  all.is = record_memory(b, KR_DIMS(2, d.size[1], d.size[2], d.size[3]), &all.was);
  up_cells(b, level, KR_VAE_UP_FRAMES, 1, all, out, 0);
  return out;
}

static kr_tensor record_up(builder *b, int64_t level, kr_tensor x, int with_time) {
  return with_time ? up_with_time(b, level, x) : up_frames(b, level, x);
}

/* ---- the end ---- */

/* A convolution to few channels, one kernel frame at a time: each frame's products with all of them, as channels side
 * by side, are kept and added up, instead of whole frames. */
static void end_apart(builder *b, const char *key, kr_tensor x, int64_t channels, kr_tensor out) {
  enum { TAPS = 3 };
  const kr_dims d = kr_graph_dims(b->g, x);
  const int64_t T = d.size[0], H = d.size[1], W = d.size[2], C = d.size[3], N = KR_VAE_APART;
  const kr_tensor weight = take_derived(b, key, "apart", b->to->dtype, KR_DIMS(N, 9, C)),
                  bias = take_derived(b, key, "apart_bias", KRAIT_F32, KR_DIMS(N)),
                  sums = new_map(b, TAPS - 1 + T, H, W, N), now = kr_graph_slice(b->g, sums, 0, TAPS - 1, T);
  kr_conv3d_args a = {.T = T, .H = H, .W = W, .C = C, .TAPS = 9, .KT = 1, .KH = 3, .KW = 3, .ST = 1, .SH = 1, .SW = 1,
                      .PH = 1, .PW = 1, .x = vae_view(b, x), .weight = vae_view(b, weight), .bias = vae_view(b, bias),
                      .out = vae_view(b, now)};
  kr_tensor was;
  count_product(b, now, 9 * C);
  kr_graph_call(b->g, key, &kr_op_conv3d, &a);
  const kr_tensor is = record_memory(b, KR_DIMS(TAPS - 1, H, W, N), &was);
  for (int64_t i = 0; i < TAPS - 1; i++)
    copy_map(b, kr_graph_slice(b->g, was ? was : now, 0, was ? i : 0, 1), kr_graph_slice(b->g, sums, 0, i, 1));
  if (is) copy_map(b, kr_graph_slice(b->g, sums, 0, T, TAPS - 1), is);
  for (int64_t i = TAPS - 1; i > 0; i--) {
    const kr_tensor first = kr_graph_slice(b->g, kr_graph_slice(b->g, sums, 0, i, T), 3, i * channels, channels),
                    next = kr_graph_slice(b->g, kr_graph_slice(b->g, sums, 0, i - 1, T), 3, (i - 1) * channels,
                                          channels);
    kr_graph_pointwise(b->g, "add_taps", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, i == TAPS - 1 ? first : out,
                       next, out);
  }
}

static void record_end(builder *b, kr_tensor x, int64_t channels) {
  x = norm(b, KEY("%s.conv_norm_out", b->side), x, KRAIT_ACT_SILU, 1);
  const kr_dims d = kr_graph_dims(b->g, x);
  const kr_tensor out = vae_output(b, KRAIT_F32, d.size[0], d.size[1], d.size[2], channels);
  const char *key = KEY("%s.conv_out", b->side);
  if (3 * channels <= KR_VAE_APART) {
    end_apart(b, key, x, channels, out);
  } else if (b->to->dtype == KRAIT_F32) {
    conv(b, key, x, channels, same_window, 0, out);
  } else {
    x = conv(b, key, x, channels, same_window, 0, 0);
    copy_map(b, x, out);
  }
}

/* ---- a segment ---- */

/* The input in the maps' type. */
static kr_tensor narrow(const builder *b, kr_tensor in) {
  const kr_dims d = kr_graph_dims(b->g, in);
  if (b->to->dtype == KRAIT_F32) return in;
  const kr_tensor x = new_map(b, d.size[0], d.size[1], d.size[2], d.size[3]);
  copy_map(b, in, x);
  return x;
}

/* The residual blocks of a level; the last one's result is the segment's if is_last. */
static kr_tensor record_level(builder *b, const char *blocks, int64_t n, kr_tensor x, int64_t C, int is_last) {
  char name[64];
  const kr_dims d = kr_graph_dims(b->g, x);
  for (int64_t j = 0; j < n; j++) {
    const int ends = is_last && j == n - 1;
    snprintf(name, sizeof name, "%s.%lld.resnets.%lld", blocks, (long long)b->to->segment, (long long)j);
    x = record_residual(b, name, x, C,
                        ends ? vae_output(b, b->to->dtype, d.size[0], d.size[1], d.size[2], C) : 0);
  }
  return x;
}

static void record_encoder(builder *b, kr_tensor x) {
  const kr_vae_config *c = b->c;
  const int64_t level = b->to->segment, C = c->width[level];
  if (level == 0) x = conv(b, KEY("encoder.conv_in"), narrow(b, x), C, same_window, 0, 0);
  x = record_level(b, "down_blocks", c->n_layers, x, C, 0);
  if (level == c->n_levels - 1) {
    record_end(b, record_middle(b, x), 2 * c->latent);
    return;
  }
  const kr_dims d = kr_graph_dims(b->g, x);
  const int with_time = level >= c->n_levels - c->n_time - 1;
  const int64_t T = with_time ? (d.size[0] + 1) / 2 : d.size[0];
  record_down(b, level, x, with_time, vae_output(b, b->to->dtype, T, d.size[1] / 2, d.size[2] / 2, C));
}

static void record_decoder(builder *b, kr_tensor x) {
  const kr_vae_config *c = b->c;
  const int64_t level = b->to->segment, C = c->width[c->n_levels - 1 - level];
  const int is_last = level == c->n_levels - 1;
  if (level == 0) x = record_middle(b, conv(b, KEY("decoder.conv_in"), narrow(b, x), C, same_window, 0, 0));
  else x = record_up(b, level - 1, x, level <= c->n_time);
  x = record_level(b, "up_blocks", c->n_layers + 1, x, C, !is_last);
  if (is_last) record_end(b, x, KR_VAE_COLOURS);
}

int64_t kr_vae_channels(const kr_vae_config *c, int is_decoder, int64_t segment) {
  if (segment == 0) return is_decoder ? c->latent : KR_VAE_COLOURS;
  return c->width[is_decoder ? c->n_levels - segment : segment - 1];
}

int32_t kr_vae_record(const kr_vae_config *c, kr_vae_weight_fn find, void *user, kr_vae_graph *to) {
  KR_TRY(kr_graph_open(&to->g));
  to->memories = kr_alloc_array(MOST_MEMORIES, sizeof *to->memories);
  KR_CHECK(to->memories, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  builder b = {.c = c, .find = find, .user = user, .to = to, .g = to->g,
               .side = to->is_decoder ? "decoder" : "encoder"};
  to->in = kr_graph_input(to->g, "in", to->segment ? to->dtype : KRAIT_F32,
                          KR_DIMS(to->size[0], to->size[1], to->size[2],
                                  kr_vae_channels(c, to->is_decoder, to->segment)));
  if (to->is_decoder) record_decoder(&b, to->in);
  else record_encoder(&b, to->in);
  return kr_graph_status(to->g);
}

void kr_vae_graph_close(kr_vae_graph *to) {
  if (to->runner) kr_runner_close(&to->runner);
  if (to->g) kr_graph_close(&to->g);
  kr_free(to->memories);
  *to = (kr_vae_graph){0};
}
