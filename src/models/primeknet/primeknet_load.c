/* primeknet_load.c: from a state_dict to packed weights: every tensor of primeknet_weights.def is read once by name,
 * checked, and folded with its neighbours; a tensor of the file that nothing asked for is an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "half.h"
#include "linear_map.h"
#include "primeknet_device.h"
#include "primeknet_graph.h"
#include "primeknet_stream.h"
#include "status.h"

enum { MAX_PREFIX = 96, MAX_NAME = 192 };

typedef struct loader {
  pk_builder builder;
  kr_primeknet *model;
  const kr_pk_config *config;
  const kr_weights *weights;
  const kr_weight **seen;
  int64_t n_seen, n_most;
  char why[256]; /* a parameter of a block cannot be kept */
} loader;

static void compose_name(char *name, const char *prefix, const char *key, int causal, int64_t number) {
  size_t used = (size_t)snprintf(name, MAX_NAME, "%s", prefix);
  for (; *key && used + 24 < MAX_NAME; key++) {
    if (*key == '@') used += (size_t)snprintf(name + used, MAX_NAME - used, "%s", causal ? ".conv" : "");
    else if (*key == '#') used += (size_t)snprintf(name + used, MAX_NAME - used, "%lld", (long long)number);
    else name[used++] = *key;
  }
  name[used] = 0;
}

static int32_t take(loader *l, const char *prefix, const char *key, int64_t number, int32_t n_dims,
                    const int64_t *shape, const float **data) {
  char name[MAX_NAME];
  compose_name(name, prefix, key, l->config->causal, number);
  KR_TRY(kr_weights_take_f32(l->weights, name, n_dims, shape, data));
  if (l->n_seen < l->n_most) l->seen[l->n_seen++] = kr_weights_find(l->weights, name);
  return KRAIT_OK;
}

static int was_seen(const loader *l, const kr_weight *item) {
  for (int64_t i = 0; i < l->n_seen; i++)
    if (l->seen[i] == item) return 1;
  return 0;
}

static int32_t check_nothing_left(const loader *l) {
  for (int64_t i = 0; i < kr_weights_count(l->weights); i++) {
    const kr_weight *item = kr_weights_at(l->weights, i);
    char shape[96];
    KR_CHECK(was_seen(l, item), KRAIT_ERR_WEIGHTS,
             "the weights hold a tensor that this configuration does not have: %s, shape %s", item->name,
             kr_shape_format(item->n_dims, item->shape, shape, sizeof shape));
  }
  return KRAIT_OK;
}

/* Each scope of the list becomes a struct of pointers and its reader; `number` is what '#' stands for. */
#define N_DIMS(...) (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define FIELD(field, key, ...) const float *field;
#define READ(field, key, ...) \
  KR_TRY(take(l, prefix, key, number, N_DIMS(__VA_ARGS__), (int64_t[]){__VA_ARGS__}, &raw->field));

#define KR_TENSOR FIELD
typedef struct raw_encoder {
#define KR_SCOPE_encoder
#include "primeknet_weights.def"
#undef KR_SCOPE_encoder
} raw_encoder;
typedef struct raw_dense {
#define KR_SCOPE_dense
#include "primeknet_weights.def"
#undef KR_SCOPE_dense
} raw_dense;
typedef struct raw_block {
#define KR_SCOPE_block
#include "primeknet_weights.def"
#undef KR_SCOPE_block
} raw_block;
typedef struct raw_attention {
#define KR_SCOPE_attention
#include "primeknet_weights.def"
#undef KR_SCOPE_attention
} raw_attention;
typedef struct raw_wrap {
#define KR_SCOPE_wrap
#include "primeknet_weights.def"
#undef KR_SCOPE_wrap
} raw_wrap;
typedef struct raw_mamba {
#define KR_SCOPE_mamba
#include "primeknet_weights.def"
#undef KR_SCOPE_mamba
} raw_mamba;
typedef struct raw_recurrent {
#define KR_SCOPE_recurrent
#include "primeknet_weights.def"
#undef KR_SCOPE_recurrent
} raw_recurrent;
typedef struct raw_prime {
#define KR_SCOPE_prime
#include "primeknet_weights.def"
#undef KR_SCOPE_prime
} raw_prime;
typedef struct raw_mask {
#define KR_SCOPE_mask
#include "primeknet_weights.def"
#undef KR_SCOPE_mask
} raw_mask;
typedef struct raw_phase {
#define KR_SCOPE_phase
#include "primeknet_weights.def"
#undef KR_SCOPE_phase
} raw_phase;
#undef KR_TENSOR

#define KR_TENSOR READ
static int32_t read_encoder(loader *l, const char *prefix, raw_encoder *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_encoder
#include "primeknet_weights.def"
#undef KR_SCOPE_encoder
  return KRAIT_OK;
}
static int32_t read_dense(loader *l, const char *prefix, int64_t I, raw_dense *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_dense
#include "primeknet_weights.def"
#undef KR_SCOPE_dense
  return KRAIT_OK;
}
static int32_t read_block(loader *l, const char *prefix, raw_block *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_block
#include "primeknet_weights.def"
#undef KR_SCOPE_block
  return KRAIT_OK;
}
static int32_t read_attention(loader *l, const char *prefix, int64_t K, raw_attention *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_attention
#include "primeknet_weights.def"
#undef KR_SCOPE_attention
  return KRAIT_OK;
}
static int32_t read_wrap(loader *l, const char *prefix, int64_t H, raw_wrap *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_wrap
#include "primeknet_weights.def"
#undef KR_SCOPE_wrap
  return KRAIT_OK;
}
static int32_t read_mamba(loader *l, const char *prefix, raw_mamba *raw) {
  const kr_pk_config *c = l->config;
  const int64_t H = c->hidden, E = c->d_inner, R = c->dt_rank, N = c->d_state, W = c->d_conv, number = 0;
#define KR_SCOPE_mamba
#include "primeknet_weights.def"
#undef KR_SCOPE_mamba
  return KRAIT_OK;
}
static int32_t read_recurrent(loader *l, const char *prefix, int64_t number, raw_recurrent *raw) {
  const int64_t H = l->config->hidden, G = l->config->stage == KR_PK_GRU ? 3 : 4;
#define KR_SCOPE_recurrent
#include "primeknet_weights.def"
#undef KR_SCOPE_recurrent
  return KRAIT_OK;
}
static int32_t read_prime(loader *l, const char *prefix, int64_t K, raw_prime *raw) {
  const int64_t C = l->config->C, number = K;
#define KR_SCOPE_prime
#include "primeknet_weights.def"
#undef KR_SCOPE_prime
  return KRAIT_OK;
}
static int32_t read_mask(loader *l, const char *prefix, raw_mask *raw) {
  const int64_t C = l->config->C, F = l->config->F, number = 0;
#define KR_SCOPE_mask
#include "primeknet_weights.def"
#undef KR_SCOPE_mask
  return KRAIT_OK;
}
static int32_t read_phase(loader *l, const char *prefix, raw_phase *raw) {
  const int64_t C = l->config->C, number = 0;
#define KR_SCOPE_phase
#include "primeknet_weights.def"
#undef KR_SCOPE_phase
  return KRAIT_OK;
}
#undef KR_TENSOR

/* (channels, k) as stored -> (k, width) rows of padded channels, `half` channels at a time: channel c goes to column
 * c / half * padded(half) + c % half. */
static const float *turn_taps(loader *l, const float *w, int64_t channels, int64_t k, int64_t half) {
  int64_t unit = kr_padded(l->builder.layers, half), width = channels / half * unit;
  float *taps = pk_storage_take(&l->builder, (size_t)(k * width) * sizeof *taps);
  for (int64_t c = 0; taps && c < channels; c++)
    for (int64_t t = 0; t < k; t++) taps[t * width + c / half * unit + c % half] = w[c * k + t];
  return taps;
}

static const float *padded(loader *l, const float *from, int64_t n) { return pk_padded_copy(&l->builder, from, n); }

static pk_norm take_norm(loader *l, const float *weight, const float *bias, const float *slope) {
  const int64_t C = l->config->C;
  return (pk_norm){padded(l, weight, C), padded(l, bias, C), padded(l, slope, C)};
}

static int32_t load_dense_layer(loader *l, const char *prefix, int64_t i, pk_dense *out) {
  const int64_t C = l->config->C, I = (i + 1) * C;
  raw_dense raw;
  KR_TRY(read_dense(l, prefix, I, &raw));
  for (int64_t s = 0; s <= i; s++) {
    out->taps[s] = turn_taps(l, raw.taps + s * C * 9, C, 9, C);
    out->taps_bias[s] = padded(l, raw.taps_b + s * C, C);
  }
  out->mix = pk_pack(&l->builder, pk_linear_read(&l->builder, C, I, raw.w, I, 1, raw.b), C, C, 0);
  out->norm = take_norm(l, raw.norm_w, raw.norm_b, raw.slope);
  return l->builder.status;
}

static int32_t load_dense_block(loader *l, const char *owner, pk_dense **layers) {
  *layers = pk_storage_take(&l->builder, sizeof **layers * (size_t)(l->config->depth + 1));
  for (int64_t i = 0; *layers && i < l->config->depth; i++) {
    char prefix[MAX_PREFIX];
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", owner, (long long)i);
    KR_TRY(load_dense_layer(l, prefix, i, &(*layers)[i]));
  }
  return l->builder.status;
}

/* (a, b, 1, 3) weights: map k-th tap of input channel c to inputs of a product over `n_taps` neighbouring positions. */
static pk_linear read_taps_map(loader *l, const float *w, int64_t stride_out, int64_t stride_in, const float *bias,
                               int n_taps, const int *taps) {
  const int64_t C = l->config->C;
  pk_linear map = pk_linear_read(&l->builder, C, n_taps * C, w, 0, 0, bias);
  for (int64_t n = 0; n < map.N; n++)
    for (int t = 0; t < n_taps; t++)
      for (int64_t c = 0; c < C; c++) map.w[n * map.K + t * C + c] = w[n * stride_out + c * stride_in + taps[t]];
  return map;
}

static int32_t load_encoder(loader *l, pk_encoder *out) {
  const int64_t C = l->config->C;
  raw_encoder raw;
  KR_TRY(read_encoder(l, "dense_encoder.", &raw));
  out->lift_norm = take_norm(l, raw.lift_norm_w, raw.lift_norm_b, raw.lift_slope);
  float *w0 = pk_storage_take(&l->builder, (size_t)l->model->Cp * sizeof *w0),
        *w1 = pk_storage_take(&l->builder, (size_t)l->model->Cp * sizeof *w1);
  for (int64_t c = 0; w0 && w1 && c < C; c++) w0[c] = raw.lift_w[2 * c], w1[c] = raw.lift_w[2 * c + 1];
  out->lift_w0 = w0, out->lift_w1 = w1;
  if (l->builder.layers == &kr_layers_device)
    out->lift = pk_pack(&l->builder, pk_linear_read(&l->builder, C, 2, raw.lift_w, 2, 1, NULL), 0, C, 0);
  out->down =
      pk_pack(&l->builder, read_taps_map(l, raw.down_w, 3 * C, 3, raw.down_b, 3, (const int[]){0, 1, 2}), C, C, 0);
  out->down_norm = take_norm(l, raw.down_norm_w, raw.down_norm_b, raw.down_slope);
  return load_dense_block(l, "dense_encoder", &out->dense);
}

static int32_t load_attention(loader *l, const char *prefix, int64_t k, pk_attention *out) {
  const int64_t C = l->config->C;
  pk_builder *b = &l->builder;
  raw_attention raw;
  KR_TRY(read_attention(l, prefix, k, &raw));
  pk_linear gate = pk_linear_read(b, 2 * C, C, raw.gate_w, C, 1, raw.gate_b),
            last = pk_linear_read(b, C, C, raw.out_w, C, 1, raw.out_b);
  pk_linear_fold_input(&gate, raw.norm_w, raw.norm_b);
  pk_linear_fold_output(&last, raw.beta, NULL);
  out->k = k;
  if (k == 1) {
    pk_linear_fold_output(&gate, raw.taps, raw.taps_b);
    out->gate = pk_pack(b, gate, 0, 2 * C, 1);
  } else {
    out->gate = pk_pack(b, gate, 0, C, 0);
    out->taps = turn_taps(l, raw.taps, 2 * C, k, C);
    out->taps_bias = turn_taps(l, raw.taps_b, 2 * C, 1, C);
  }
  out->attn = pk_pack(b, pk_linear_read(b, C, C, raw.attn_w, C, 1, raw.attn_b), 0, C, 0);
  out->out = pk_pack(b, last, 0, C, 0);
  return b->status;
}

/* The maps into and out of a time network, with norm and beta folded in. */
static int32_t load_wrap(loader *l, const char *prefix, int64_t H, pk_linear *in, pk_linear *out) {
  const int64_t C = l->config->C;
  raw_wrap raw;
  KR_TRY(read_wrap(l, prefix, H, &raw));
  *in = pk_linear_read(&l->builder, H, C, raw.in_w, C, 1, raw.in_b);
  *out = pk_linear_read(&l->builder, C, H, raw.out_w, H, 1, raw.out_b);
  pk_linear_fold_input(in, raw.norm_w, raw.norm_b);
  pk_linear_fold_output(out, raw.beta, NULL);
  return KRAIT_OK; /* memory errors stick in the builder */
}

/* (E,N), with zeros up to Ep. */
static const float *negated_exponentials(loader *l, const float *A_log, int64_t n) {
  float *A = pk_storage_take(&l->builder, (size_t)(l->model->Ep * l->config->d_state) * sizeof *A);
  for (int64_t i = 0; A && i < n; i++) A[i] = -(float)exp((double)A_log[i]);
  return A;
}

static int32_t pack_mamba(loader *l, const raw_mamba *raw, pk_linear *in, pk_linear *last, pk_mamba *out) {
  const kr_pk_config *c = l->config;
  const int64_t H = c->hidden, E = c->d_inner, R = c->dt_rank, N = c->d_state;
  pk_builder *b = &l->builder;
  out->in = pk_pack(b, pk_linear_chain(b, pk_linear_read(b, 2 * E, H, raw->in_w, H, 1, NULL), *in), 0, E, 0);
  out->x_proj = pk_pack(b, pk_linear_read(b, R + 2 * N, E, raw->x_w, E, 1, NULL), 0, R + 2 * N, 0);
  out->dt_proj = pk_pack(b, pk_linear_read(b, E, R, raw->dt_w, R, 1, NULL), 0, E, 0);
  out->out = pk_pack(b, pk_linear_chain(b, *last, pk_linear_read(b, H, E, raw->out_w, E, 1, NULL)), 0, c->C, 0);
  out->conv_w = pk_padded_copy(b, raw->conv_w, E * c->d_conv);
  out->conv_b = padded(l, raw->conv_b, E);
  out->dt_bias = padded(l, raw->dt_b, E);
  out->D = padded(l, raw->D, E);
  out->A = negated_exponentials(l, raw->A_log, E * N);
  return b->status;
}

/* (N, padded K) in float16, of a map as devices have it. */
static const uint16_t *half_rows(loader *l, const kr_panels *w) {
  const int64_t K = kr_padded(l->builder.layers, w->K), N = pk_panel_columns(w);
  uint16_t *rows = pk_storage_take(&l->builder, (size_t)(K * N) * sizeof *rows);
  for (int64_t i = 0; rows && w->data && i < K * N; i++) rows[i] = kr_float_to_f16(w->data[i % K * N + i / K]);
  return rows;
}

static int32_t load_recurrent(loader *l, const char *prefix, pk_linear *in, pk_linear *last, pk_recurrent *out) {
  const int64_t H = l->config->hidden, G = l->config->stage == KR_PK_GRU ? 3 : 4, layers = l->config->layers;
  pk_builder *b = &l->builder;
  out->input = pk_storage_take(b, sizeof *out->input * (size_t)layers);
  out->hidden = pk_storage_take(b, sizeof *out->hidden * (size_t)layers);
  for (int64_t i = 0; out->input && out->hidden && i < layers; i++) {
    raw_recurrent raw;
    KR_TRY(read_recurrent(l, prefix, i, &raw));
    pk_linear input = pk_linear_read(b, G * H, H, raw.ih_w, H, 1, raw.ih_b);
    if (i == 0) input = pk_linear_chain(b, input, *in);
    if (i == 0) in->w = NULL;
    out->input[i] = pk_pack(b, input, 0, H, 0);
    out->hidden[i] = pk_pack(b, pk_linear_read(b, G * H, H, raw.hh_w, H, 1, raw.hh_b), 0, H, 0);
  }
  if (b->layers == &kr_layers_device && b->status >= 0 && l->model->Hp == 64 && layers >= 2 && l->config->C % 4 == 0)
    for (int i = 0; i < 4; i++) out->halves[i] = half_rows(l, &(i % 2 ? out->hidden : out->input)[i / 2]);
  out->out = pk_pack(b, *last, 0, l->config->C, 0);
  last->w = NULL;
  return b->status;
}

static int32_t load_time_network(loader *l, const char *prefix, pk_time *out) {
  static const char *const nets[] = {"mamba", "gru", "lstm"};
  char name[MAX_NAME];
  pk_linear in, last;
  KR_TRY(load_wrap(l, prefix, l->config->hidden, &in, &last));
  snprintf(name, sizeof name, "%.90s%s.", prefix, nets[l->config->stage]);
  int32_t status;
  if (l->config->stage == KR_PK_MAMBA) {
    raw_mamba raw;
    status = read_mamba(l, name, &raw);
    if (status >= 0) return pack_mamba(l, &raw, &in, &last, &out->mamba);
  } else {
    status = load_recurrent(l, name, &in, &last, &out->recurrent);
  }
  if (status < 0) kr_free(in.w), kr_free(last.w);
  return status;
}

static int32_t load_prime(loader *l, const char *prefix, pk_prime *chunks) {
  const int64_t C = l->config->C, J = l->config->n_kernels, H = J * C;
  pk_builder *b = &l->builder;
  raw_wrap wrap;
  KR_TRY(read_wrap(l, prefix, H, &wrap));
  for (int64_t j = 0; j < J; j++) {
    pk_prime *out = &chunks[j];
    raw_prime raw;
    out->k = l->config->kernels[j];
    KR_TRY(read_prime(l, prefix, out->k, &raw));
    pk_linear in = pk_linear_read(b, C, C, wrap.in_w + j * C * C, C, 1, wrap.in_b + j * C);
    pk_linear last = pk_linear_read(b, C, C, wrap.out_w + j * C, H, 1, j == 0 ? wrap.out_b : NULL);
    pk_linear_fold_input(&in, wrap.norm_w, wrap.norm_b);
    pk_linear_fold_output(&last, wrap.beta, NULL);
    out->in = pk_pack(b, in, 0, C, 0);
    out->out = pk_pack(b, last, 0, C, 0);
    out->attn = pk_pack(b, pk_linear_read(b, C, C, raw.attn_w, C, 1, raw.attn_b), 0, C, 0);
    out->attn_taps = turn_taps(l, raw.attn_taps, C, out->k, C);
    out->conv_taps = turn_taps(l, raw.conv_taps, C, out->k, C);
    out->attn_taps_bias = padded(l, raw.attn_taps_b, C);
    out->conv_taps_bias = padded(l, raw.conv_taps_b, C);
  }
  return b->status;
}

static int32_t load_time_stage(loader *l, const char *block, pk_block *out) {
  for (int64_t n = 0; n < l->config->n_time; n++) {
    char prefix[MAX_PREFIX];
    snprintf(prefix, sizeof prefix, "%.40stime_stage.%lld.0.", block, (long long)n);
    KR_TRY(load_attention(l, prefix, 1, &out->time[n].attention));
    snprintf(prefix, sizeof prefix, "%.40stime_stage.%lld.1.", block, (long long)n);
    KR_TRY(load_time_network(l, prefix, &out->time[n]));
  }
  return KRAIT_OK;
}

static int32_t load_freq_stage(loader *l, const char *block, pk_block *out) {
  for (int64_t n = 0; n < l->config->n_freq; n++) {
    char prefix[MAX_PREFIX];
    snprintf(prefix, sizeof prefix, "%.40sfreq_stage.%lld.0.", block, (long long)n);
    KR_TRY(load_attention(l, prefix, 3, &out->freq[n].attention));
    snprintf(prefix, sizeof prefix, "%.40sfreq_stage.%lld.1.", block, (long long)n);
    out->freq[n].prime = pk_storage_take(&l->builder, sizeof(pk_prime) * (size_t)l->config->n_kernels);
    KR_TRY(l->builder.status);
    KR_TRY(load_prime(l, prefix, out->freq[n].prime));
  }
  return KRAIT_OK;
}

static int32_t load_block(loader *l, int64_t b, pk_block *out) {
  char prefix[MAX_PREFIX];
  raw_block raw;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.", (long long)b);
  KR_TRY(read_block(l, prefix, &raw));
  out->beta_t = padded(l, raw.beta_t, l->config->C);
  out->beta_f = padded(l, raw.beta_f, l->config->C);
  out->time = pk_storage_take(&l->builder, sizeof(pk_time) * (size_t)l->config->n_time);
  out->freq = pk_storage_take(&l->builder, sizeof(pk_freq) * (size_t)l->config->n_freq);
  KR_TRY(l->builder.status);
  KR_TRY(load_time_stage(l, prefix, out));
  return load_freq_stage(l, prefix, out);
}

/* ---- blocks for the CPU's graphs: each parameter as it is, in the model's memory ---- */

static const float *kept(const loader *l, const char *name) {
  const pk_parameter *p = l->model->parameters;
  while (p && strcmp(p->name, name) != 0) p = p->next;
  return p ? p->data : NULL;
}

static int32_t keep_parameter(loader *l, const char *name, kr_dims dims) {
  const float *data;
  if (l->builder.status < 0 || kept(l, name)) return l->builder.status;
  KR_TRY(kr_weights_take_f32(l->weights, name, dims.n, dims.size, &data));
  const kr_weight *item = kr_weights_find(l->weights, name);
  if (l->n_seen < l->n_most) l->seen[l->n_seen++] = item;
  pk_parameter *p = pk_storage_take(&l->builder, sizeof *p);
  const size_t n_name = strlen(name) + 1;
  char *own_name = pk_storage_take(&l->builder, n_name);
  float *own = pk_storage_take(&l->builder, (size_t)item->bytes);
  KR_TRY(l->builder.status);
  *p = (pk_parameter){l->model->parameters, memcpy(own_name, name, n_name), memcpy(own, data, (size_t)item->bytes)};
  l->model->parameters = p;
  return KRAIT_OK;
}

/* The first failure stays the graph's. */
static kr_tensor keep(void *user, kr_graph *g, const char *name, kr_dims dims) {
  loader *l = user;
  const int32_t status = l->builder.status < 0 ? l->builder.status : keep_parameter(l, name, dims);
  if (status < 0 && l->builder.status >= 0) {
    snprintf(l->why, sizeof l->why, "%s", krait_error_detail());
    l->builder.status = status;
  }
  return kr_graph_weight(g, name, KRAIT_F32, dims, NULL);
}

static int32_t keep_stage(loader *l, int64_t b, int along_time) {
  const kr_dims dims = KR_DIMS(l->config->F2, 1, l->config->C);
  kr_graph *g;
  KR_TRY(kr_graph_open(&g));
  kr_pk_stage_record(g, l->config, keep, l, b, along_time, kr_graph_input(g, "x", KRAIT_F32, dims),
                     kr_graph_output(g, "out", KRAIT_F32, dims));
  int32_t status = kr_graph_status(g);
  kr_graph_close(&g);
  if (l->builder.status < 0) return kr_fail(l->builder.status, "%s", l->why);
  return status;
}

/* The transposed convolution and the merge to one channel: sum over outputs o of up[c][o][tap] merge[o]. */
static void merge_taps(const loader *l, const raw_mask *raw, int tap, float *to) {
  const int64_t C = l->config->C;
  for (int64_t c = 0; c < C; c++) {
    double sum = 0;
    for (int64_t o = 0; o < C; o++) sum += (double)raw->up_w[(c * C + o) * 3 + tap] * raw->merge_w[o];
    to[c] = (float)sum;
  }
}

static int32_t load_mask(loader *l, pk_mask *out) {
  const int64_t C = l->config->C, Cp = l->model->Cp;
  raw_mask raw;
  KR_TRY(read_mask(l, "mask_decoder.", &raw));
  float *even = pk_storage_take(&l->builder, (size_t)(2 * Cp) * sizeof *even),
        *odd = pk_storage_take(&l->builder, (size_t)Cp * sizeof *odd);
  KR_TRY(l->builder.status);
  merge_taps(l, &raw, 2, even);
  merge_taps(l, &raw, 0, even + Cp);
  merge_taps(l, &raw, 1, odd);
  double bias = raw.merge_b[0];
  for (int64_t o = 0; o < C; o++) bias += (double)raw.up_b[o] * raw.merge_w[o];
  *out = (pk_mask){.even_w = even,
                   .odd_w = odd,
                   .bias = (float)bias,
                   .norm_weight = raw.norm_w[0],
                   .norm_bias = raw.norm_b[0],
                   .slope = raw.slope[0],
                   .last_weight = raw.last_w[0],
                   .last_bias = raw.last_b[0],
                   .sigmoid_slope = padded(l, raw.sigmoid_slope, l->config->F)};
  return load_dense_block(l, "mask_decoder", &out->dense);
}

static int32_t load_phase(loader *l, pk_phase *out) {
  const int64_t C = l->config->C;
  raw_phase raw;
  KR_TRY(read_phase(l, "phase_decoder.", &raw));
  out->even = pk_pack(&l->builder, read_taps_map(l, raw.up_w, 3, 3 * C, raw.up_b, 2, (const int[]){2, 0}), C, C, 0);
  out->odd = pk_pack(&l->builder, read_taps_map(l, raw.up_w, 3, 3 * C, raw.up_b, 1, (const int[]){1}), 0, C, 0);
  out->norm = take_norm(l, raw.norm_w, raw.norm_b, raw.slope);
  out->real_w = padded(l, raw.real_w, C);
  out->imag_w = padded(l, raw.imag_w, C);
  out->real_b = raw.real_b[0];
  out->imag_b = raw.imag_b[0];
  return load_dense_block(l, "phase_decoder", &out->dense);
}

static int32_t load_all(loader *l) {
  kr_primeknet *m = l->model;
  KR_TRY(load_encoder(l, &m->encoder));
  m->blocks = pk_storage_take(&l->builder, sizeof *m->blocks * (size_t)(l->config->n_blocks + 1));
  KR_TRY(l->builder.status);
  for (int64_t b = 0; b < l->config->n_blocks; b++) {
    if (l->builder.layers == &kr_layers_device) {
      KR_TRY(load_block(l, b, &m->blocks[b]));
    } else {
      KR_TRY(keep_stage(l, b, 1));
      KR_TRY(keep_stage(l, b, 0));
    }
  }
  KR_TRY(load_mask(l, &m->mask));
  KR_TRY(load_phase(l, &m->phase));
  return check_nothing_left(l);
}

static int32_t open_streaming(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                              int32_t precision, kr_primeknet **model) {
  kr_primeknet *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  m->ctx = ctx, m->config = *config;
  const int32_t status = pk_streaming_open(ctx, config, weights, precision, &m->streaming);
  if (status < 0) kr_primeknet_close(model);
  return status;
}

int32_t kr_primeknet_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                          int32_t precision, kr_primeknet **model) {
  *model = NULL;
  if (config->streams) return open_streaming(ctx, config, weights, precision, model);
  if (ctx->cuda) KR_TRY(pk_device_check(config));
  kr_primeknet *m = kr_zalloc(sizeof *m);
  loader l = {.builder = {.layers = ctx->cuda ? &kr_layers_device : kr_layers_of(ctx)},
              .model = m,
              .config = config,
              .weights = weights,
              .n_most = kr_weights_count(weights) * 2};
  l.seen = kr_alloc_array((size_t)l.n_most + 1, sizeof *l.seen);
  int32_t status = m && l.seen ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the model");
  if (status >= 0) {
    m->ctx = ctx;
    m->layers = l.builder.layers;
    m->config = *config;
    m->Cp = kr_padded(m->layers, config->C);
    m->Ep = kr_padded(m->layers, config->d_inner);
    m->Hp = kr_padded(m->layers, config->hidden);
    m->Xp = kr_padded(m->layers, config->dt_rank + 2 * config->d_state);
    status = load_all(&l);
    m->storage = l.builder.storage;
    if (status >= 0 && ctx->cuda) status = pk_device_open(ctx, precision, m->storage, &m->device);
  }
  kr_free(l.seen);
  if (status < 0) kr_primeknet_close(&m);
  *model = m;
  return status;
}

void kr_primeknet_close(kr_primeknet **model) {
  if (!*model) return;
  pk_device_close(&(*model)->device);
  pk_streaming_close(&(*model)->streaming);
  pk_storage_free(&(*model)->storage);
  kr_free(*model);
  *model = NULL;
}

const kr_pk_config *kr_primeknet_config(const kr_primeknet *model) { return &model->config; }

const pk_streaming *kr_primeknet_streaming(const kr_primeknet *model) { return model->streaming; }
