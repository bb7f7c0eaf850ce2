/* seedvr_vae_graph.c: encoder and decoder as calls of a graph, for one slice of time. Maps are (T,H,W,C). Each causal
 * convolution over time keeps its last frames; those of a slice that follows begin with them. */
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
static kr_view vae_view(const builder *b, kr_tensor t) { return t ? kr_graph_view(b->g, t) : (kr_view){0}; }
static kr_tensor new_map(const builder *b, int64_t T, int64_t H, int64_t W, int64_t C) {
  return kr_graph_temp(b->g, b->to->dtype, KR_DIMS(T, H, W, C));
}

/* ---- a convolution ---- */

typedef struct window {
  int64_t KT, K, ST, S; /* over time, over rows and columns; steps */
} window;

/* Frames that a part of the film keeps for the next one. */
static void record_memory(builder *b, kr_conv3d_args *a) {
  kr_vae_graph *to = b->to;
  char name[32];
  if (a->KT <= a->ST || to->part == KR_VAE_WHOLE || to->n_memories == MOST_MEMORIES) return;
  kr_vae_memory *memory = &to->memories[to->n_memories];
  a->past = a->KT - a->ST;
  const kr_dims dims = KR_DIMS(a->past, a->H, a->W, a->C);
  memory->bytes = (uint64_t)(a->past * a->H * a->W * a->C) * krait_dtype_bytes(to->dtype);
  snprintf(name, sizeof name, "memory%lld", (long long)to->n_memories++);
  memory->is = kr_graph_output(b->g, name, to->dtype, dims);
  a->final_states = vae_view(b, memory->is);
  if (to->part != KR_VAE_LATER) return;
  snprintf(name, sizeof name, "memory%lld_was", (long long)(to->n_memories - 1));
  memory->was = kr_graph_input(b->g, name, to->dtype, dims);
  a->initial_states = vae_view(b, memory->was);
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
  const int64_t C = d.size[3], front = b->to->part == KR_VAE_LATER && w.KT > w.ST ? w.KT - w.ST : w.KT - 1;
  kr_conv3d_args a = {.T = d.size[0], .H = d.size[1], .W = d.size[2], .C = C, .TAPS = w.KT * w.K * w.K,
                      .KT = w.KT, .KH = w.K, .KW = w.K, .ST = w.ST, .SH = w.S, .SW = w.S,
                      .PH = w.S == 1 ? w.K / 2 : 0, .PW = w.S == 1 ? w.K / 2 : 0};
  if (!out) out = new_map(b, (a.T + front - w.KT) / w.ST + 1, a.H / w.S, a.W / w.S, Co);
  const kr_tensor weight = take_filter(b, key, KR_SIZES(Co, C, w.KT, w.K, w.K), KR_DIMS(Co, a.TAPS, C));
  a.x = vae_view(b, x), a.weight = vae_view(b, weight), a.bias = vae_view(b, take_vector(b, key, "bias", Co));
  a.residual = vae_view(b, residual), a.out = vae_view(b, out);
  record_memory(b, &a);
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

static kr_tensor norm(builder *b, const char *key, kr_tensor x, int32_t activation) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const kr_dims frames = KR_DIMS(d.size[0], d.size[1] * d.size[2], d.size[3]);
  const kr_tensor out = new_map(b, d.size[0], d.size[1], d.size[2], d.size[3]);
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

static kr_tensor record_residual(builder *b, const char *name, kr_tensor x, int64_t Co) {
  const int64_t C = kr_graph_dims(b->g, x).size[3];
  kr_tensor kept = x;
  if (C != Co) kept = product(b, KEY("%s.%s.conv_shortcut", b->side, name), x, Co, 5, 0);
  x = norm(b, KEY("%s.%s.norm1", b->side, name), x, KRAIT_ACT_SILU);
  x = conv(b, KEY("%s.%s.conv1", b->side, name), x, Co, same_window, 0, 0);
  x = norm(b, KEY("%s.%s.norm2", b->side, name), x, KRAIT_ACT_SILU);
  return conv(b, KEY("%s.%s.conv2", b->side, name), x, Co, same_window, kept, 0);
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
  kr_tensor y = norm(b, KEY("%s.%s.group_norm", b->side, name), x, KRAIT_ACT_NONE), in[3];
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
  x = record_residual(b, "mid_block.resnets.0", x, C);
  x = record_frame_attention(b, "mid_block.attentions.0", x);
  return record_residual(b, "mid_block.resnets.1", x, C);
}

/* ---- between levels ---- */

static kr_tensor record_down(builder *b, int64_t level, kr_tensor x, int with_time) {
  const window w = with_time ? (window){3, 3, 2, 2} : (window){1, 3, 1, 2};
  return conv(b, KEY("encoder.down_blocks.%lld.downsamplers.0.conv", (long long)level), x,
              kr_graph_dims(b->g, x).size[3], w, 0, 0);
}

/* Frames f.. of the small map u (T,H,W,4 r C) to frames at.. of the large one, in cells of r frames, of which only
 * `frames` are written, and 2 x 2 positions: channel ((row 2 + column) r + frame) C + c. */
static void spread_cells(builder *b, kr_tensor u, int64_t f, int64_t n, int64_t r, int64_t frames, kr_tensor out,
                   int64_t at) {
  const kr_dims d = kr_graph_dims(b->g, u);
  const int64_t H = d.size[1], W = d.size[2], C = d.size[3] / 4 / r;
  if (n == 0) return;
  const kr_tensor from = kr_graph_slice(b->g, u, 0, f, n),
                  cells = kr_graph_reshape(b->g, kr_graph_slice(b->g, out, 0, at, n * frames),
                                           KR_DIMS(n, frames, 4 * H * W * C));
  for (int64_t i = 0; i < 4 * frames; i++) {
    const int64_t row = i / 2 % 2, column = i % 2, e = i / 4;
    kr_tensor to = kr_graph_reshape(b->g, kr_graph_slice(b->g, cells, 1, e, 1), KR_DIMS(n, H, 2, 2 * W * C));
    to = kr_graph_reshape(b->g, kr_graph_slice(b->g, to, 2, row, 1), KR_DIMS(n, H, W, 2 * C));
    kr_graph_pointwise(b->g, "spread", (kr_pointwise_args){.x_scale = 1},
                       kr_graph_slice(b->g, from, 3, ((row * 2 + column) * r + e) * C, C), 0,
                       kr_graph_slice(b->g, to, 3, column * C, C));
  }
}

/* Of the film's first frame only one comes. */
static kr_tensor record_up(builder *b, int64_t level, kr_tensor x, int with_time) {
  const kr_dims d = kr_graph_dims(b->g, x);
  const int64_t T = d.size[0], C = d.size[3], r = with_time ? 2 : 1,
                dropped = with_time && b->to->part != KR_VAE_LATER;
  const kr_tensor u = product(b, KEY("decoder.up_blocks.%lld.upsamplers.0.upscale_conv", (long long)level), x,
                              4 * r * C, 5, 0),
                  out = new_map(b, r * T - dropped, 2 * d.size[1], 2 * d.size[2], C);
  if (dropped) spread_cells(b, u, 0, 1, r, 1, out, 0);
  spread_cells(b, u, dropped, T - dropped, r, r, out, dropped);
  return conv(b, KEY("decoder.up_blocks.%lld.upsamplers.0.conv", (long long)level), out, C, same_window, 0, 0);
}

/* ---- the whole ---- */

static kr_tensor record_end(builder *b, kr_tensor x, int64_t channels) {
  x = norm(b, KEY("%s.conv_norm_out", b->side), x, KRAIT_ACT_SILU);
  const kr_dims d = kr_graph_dims(b->g, x);
  for (int k = 0; k < 3; k++) b->to->out_size[k] = d.size[k];
  const kr_tensor out = kr_graph_output(b->g, "out", KRAIT_F32, KR_DIMS(d.size[0], d.size[1], d.size[2], channels));
  if (b->to->dtype == KRAIT_F32) return conv(b, KEY("%s.conv_out", b->side), x, channels, same_window, 0, out);
  x = conv(b, KEY("%s.conv_out", b->side), x, channels, same_window, 0, 0);
  kr_graph_pointwise(b->g, "widen", (kr_pointwise_args){.x_scale = 1}, x, 0, out);
  return out;
}

/* The input in the maps' type. */
static kr_tensor narrow(const builder *b, kr_tensor in) {
  const kr_dims d = kr_graph_dims(b->g, in);
  if (b->to->dtype == KRAIT_F32) return in;
  const kr_tensor x = new_map(b, d.size[0], d.size[1], d.size[2], d.size[3]);
  kr_graph_pointwise(b->g, "narrow", (kr_pointwise_args){.x_scale = 1}, in, 0, x);
  return x;
}

static kr_tensor record_encoder(builder *b, kr_tensor x) {
  const kr_vae_config *c = b->c;
  char name[64];
  x = conv(b, KEY("encoder.conv_in"), x, c->width[0], same_window, 0, 0);
  for (int64_t level = 0; level < c->n_levels; level++) {
    for (int64_t j = 0; j < c->n_layers; j++) {
      snprintf(name, sizeof name, "down_blocks.%lld.resnets.%lld", (long long)level, (long long)j);
      x = record_residual(b, name, x, c->width[level]);
    }
    if (level < c->n_levels - 1) x = record_down(b, level, x, level >= c->n_levels - c->n_time - 1);
  }
  return record_end(b, record_middle(b, x), 2 * c->latent);
}

static kr_tensor record_decoder(builder *b, kr_tensor x) {
  const kr_vae_config *c = b->c;
  char name[64];
  x = conv(b, KEY("decoder.conv_in"), x, c->width[c->n_levels - 1], same_window, 0, 0);
  x = record_middle(b, x);
  for (int64_t level = 0; level < c->n_levels; level++) {
    for (int64_t j = 0; j <= c->n_layers; j++) {
      snprintf(name, sizeof name, "up_blocks.%lld.resnets.%lld", (long long)level, (long long)j);
      x = record_residual(b, name, x, c->width[c->n_levels - 1 - level]);
    }
    if (level < c->n_levels - 1) x = record_up(b, level, x, level < c->n_time);
  }
  return record_end(b, x, KR_VAE_COLOURS);
}

int32_t kr_vae_record(const kr_vae_config *c, kr_vae_weight_fn find, void *user, kr_vae_graph *to) {
  KR_TRY(kr_graph_open(&to->g));
  to->memories = kr_alloc_array(MOST_MEMORIES, sizeof *to->memories);
  KR_CHECK(to->memories, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  for (int i = 0; i < MOST_MEMORIES; i++) to->memories[i] = (kr_vae_memory){0};
  builder b = {.c = c, .find = find, .user = user, .to = to, .g = to->g,
               .side = to->is_decoder ? "decoder" : "encoder"};
  to->in = kr_graph_input(to->g, "in", KRAIT_F32,
                          KR_DIMS(to->size[0], to->size[1], to->size[2], to->is_decoder ? c->latent : KR_VAE_COLOURS));
  const kr_tensor x = narrow(&b, to->in);
  to->out = to->is_decoder ? record_decoder(&b, x) : record_encoder(&b, x);
  return kr_graph_status(to->g);
}

int32_t kr_vae_graph_prepare(const krait_ctx *ctx, kr_vae_graph *to) {
  KR_TRY(kr_graph_plan(to->g, ctx, 0));
  return kr_runner_open(to->g, &to->runner);
}

void kr_vae_graph_close(kr_vae_graph *to) {
  if (to->runner) kr_runner_close(&to->runner);
  if (to->g) kr_graph_close(&to->g);
  kr_free(to->memories);
  *to = (kr_vae_graph){0};
}
