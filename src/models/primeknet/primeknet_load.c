/* primeknet_load.c: from a state_dict to packed weights: tensors of primeknet_weights.h folded with their neighbours; a
 * tensor of the file that nothing asked for is an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "half.h"
#include "linear_map.h"
#include "primeknet_device.h"
#include "primeknet_graph.h"
#include "primeknet_load.h"
#include "primeknet_weights.h"
#include "status.h"

enum { MAX_PREFIX = 96 };

typedef struct loader {
  pk_builder builder;
  kr_primeknet *model;
  const kr_pk_config *config;
  pk_parameters *parameters;
} loader;

static int32_t take(loader *l, const char *prefix, const char *key, int64_t number, kr_dims dims, const float **data) {
  char name[KR_PK_MAX_NAME];
  return pk_parameters_take(l->parameters, pk_key(name, prefix, key, l->config->causal, number), dims, data);
}

/* Each scope of the table becomes a struct of pointers and its reader; `number` is what '#' stands for. */
#define FIELD(field, key, ...) const float *field;
#define READ(field, key, ...) KR_TRY(take(l, prefix, key, number, KR_DIMS(__VA_ARGS__), &raw.field));

typedef struct raw_encoder { KR_PK_ENCODER_KEYS(FIELD) } raw_encoder;
typedef struct raw_dense { KR_PK_DENSE_KEYS(FIELD) } raw_dense;
typedef struct raw_block { KR_PK_BLOCK_KEYS(FIELD) } raw_block;
typedef struct raw_attention { KR_PK_ATTENTION_KEYS(FIELD) } raw_attention;
typedef struct raw_wrap { KR_PK_WRAP_KEYS(FIELD) } raw_wrap;
typedef struct raw_mamba { KR_PK_MAMBA_KEYS(FIELD) } raw_mamba;
typedef struct raw_recurrent { KR_PK_RECURRENT_KEYS(FIELD) } raw_recurrent;
typedef struct raw_prime { KR_PK_PRIME_KEYS(FIELD) } raw_prime;
typedef struct raw_mask { KR_PK_MASK_KEYS(FIELD) } raw_mask;
typedef struct raw_phase { KR_PK_PHASE_KEYS(FIELD) } raw_phase;

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
  const int64_t C = l->config->C, I = (i + 1) * C, number = 0;
  raw_dense raw;
  KR_PK_DENSE_KEYS(READ)
  for (int64_t s = 0; s <= i; s++) {
    out->taps[s] = turn_taps(l, raw.taps + s * C * 9, C, 9, C);
    out->taps_bias[s] = padded(l, raw.taps_b + s * C, C);
  }
  out->mix = pk_pack(&l->builder, pk_linear_read(&l->builder, C, I, raw.w, I, 1, raw.b), C, C, 0);
  out->norm = take_norm(l, raw.norm_w, raw.norm_b, raw.slope);
  return l->builder.status;
}

/* A row of a matrix in float16, of outputs side by side, inputs `step` apart. */
static void half_row(uint16_t *to, const float *from, int64_t K, int64_t step) {
  for (int64_t k = 0; k < K; k++) to[k] = kr_float_to_f16(from[k * step]);
}

#define TAKE(type, n) pk_storage_take(&l->builder, (size_t)(n) * sizeof(type))
static int32_t load_dense_rows(loader *l, const char *owner, pk_dense_rows *out) {
  const int64_t C = l->config->C, Cp = l->model->Cp, L = l->config->depth, N = Cp * L * (L + 1) / 2, number = 0;
  float *taps = TAKE(float, 9 * N), *taps_bias = TAKE(float, N), *weight = TAKE(float, N * Cp),
        *norm = TAKE(float, 3 * L * Cp);
  uint16_t *halves = TAKE(uint16_t, Cp * N);
  KR_TRY(l->builder.status);
  for (int64_t i = 0, first = 0; i < L; first += ++i * Cp) {
    const int64_t I = (i + 1) * C;
    char prefix[MAX_PREFIX];
    raw_dense raw;
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", owner, (long long)i);
    KR_PK_DENSE_KEYS(READ)
    for (int64_t from = 0; from < I; from++) {
      const int64_t to = first + from / C * Cp + from % C;
      for (int64_t k = 0; k < 9; k++) taps[k * N + to] = raw.taps[from * 9 + k];
      for (int64_t c = 0; c < C; c++) weight[to * Cp + c] = raw.w[c * I + from];
      taps_bias[to] = raw.taps_b[from];
    }
    memcpy(norm + i * Cp, raw.norm_w, (size_t)C * sizeof *norm);
    memcpy(norm + (L + i) * Cp, raw.norm_b, (size_t)C * sizeof *norm);
    memcpy(norm + (2 * L + i) * Cp, raw.slope, (size_t)C * sizeof *norm);
  }
  for (int64_t c = 0; c < Cp; c++) half_row(halves + c * N, weight + c, N, Cp);
  *out = (pk_dense_rows){taps, taps_bias, weight, halves, norm, norm + L * Cp, norm + 2 * L * Cp};
  return KRAIT_OK;
}

static int32_t load_dense_block(loader *l, const char *owner, pk_dense **layers, pk_dense_rows *rows) {
  if (l->builder.layers == &kr_layers_device) return load_dense_rows(l, owner, rows);
  *layers = TAKE(**layers, l->config->depth + 1);
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
  const int64_t C = l->config->C, number = 0;
  const char *prefix = "dense_encoder.";
  raw_encoder raw;
  KR_PK_ENCODER_KEYS(READ)
  out->lift_norm = take_norm(l, raw.lift_norm_w, raw.lift_norm_b, raw.lift_slope);
  float *w0 = pk_storage_take(&l->builder, (size_t)l->model->Cp * sizeof *w0),
        *w1 = pk_storage_take(&l->builder, (size_t)l->model->Cp * sizeof *w1);
  for (int64_t c = 0; w0 && w1 && c < C; c++) w0[c] = raw.lift_w[2 * c], w1[c] = raw.lift_w[2 * c + 1];
  out->lift_w0 = w0, out->lift_w1 = w1;
    out->lift = pk_pack(&l->builder, pk_linear_read(&l->builder, C, 2, raw.lift_w, 2, 1, NULL), 0, C, 0);
  out->down =
      pk_pack(&l->builder, read_taps_map(l, raw.down_w, 3 * C, 3, raw.down_b, 3, (const int[]){0, 1, 2}), C, C, 0);
  out->down_norm = take_norm(l, raw.down_norm_w, raw.down_norm_b, raw.down_slope);
  return load_dense_block(l, "dense_encoder", &out->dense, &out->rows);
}

static int32_t load_attention(loader *l, const char *prefix, int64_t K, pk_attention *out) {
  const int64_t C = l->config->C, number = 0;
  pk_builder *b = &l->builder;
  raw_attention raw;
  KR_PK_ATTENTION_KEYS(READ)
  pk_linear gate = pk_linear_read(b, 2 * C, C, raw.gate_w, C, 1, raw.gate_b),
            last = pk_linear_read(b, C, C, raw.out_w, C, 1, raw.out_b);
  pk_linear_fold_input(&gate, raw.norm_w, raw.norm_b);
  pk_linear_fold_output(&last, raw.beta, NULL);
  out->k = K;
  if (K == 1) {
    pk_linear_fold_output(&gate, raw.taps, raw.taps_b);
    out->gate = pk_pack(b, gate, 0, 2 * C, 1);
  } else {
    out->gate = pk_pack(b, gate, 0, C, 0);
    out->taps = turn_taps(l, raw.taps, 2 * C, K, C);
    out->taps_bias = turn_taps(l, raw.taps_b, 2 * C, 1, C);
  }
  out->attn = pk_pack(b, pk_linear_read(b, C, C, raw.attn_w, C, 1, raw.attn_b), 0, C, 0);
  out->out = pk_pack(b, last, 0, C, 0);
  return b->status;
}

static int32_t read_wrap(loader *l, const char *prefix, int64_t H, raw_wrap *to) {
  const int64_t C = l->config->C, number = 0;
  raw_wrap raw;
  KR_PK_WRAP_KEYS(READ)
  *to = raw;
  return KRAIT_OK;
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

static int32_t load_mamba(loader *l, const char *prefix, pk_linear *in, pk_linear *last, pk_mamba *out) {
  const kr_pk_config *c = l->config;
  const int64_t H = c->hidden, E = c->d_inner, R = c->dt_rank, N = c->d_state, W = c->d_conv, number = 0;
  pk_builder *b = &l->builder;
  raw_mamba raw;
  KR_PK_MAMBA_KEYS(READ)
  out->in = pk_pack(b, pk_linear_chain(b, pk_linear_read(b, 2 * E, H, raw.in_w, H, 1, NULL), *in), 0, E, 0);
  out->x_proj = pk_pack(b, pk_linear_read(b, R + 2 * N, E, raw.x_w, E, 1, NULL), 0, R + 2 * N, 0);
  out->dt_proj = pk_pack(b, pk_linear_read(b, E, R, raw.dt_w, R, 1, NULL), 0, E, 0);
  out->out = pk_pack(b, pk_linear_chain(b, *last, pk_linear_read(b, H, E, raw.out_w, E, 1, NULL)), 0, c->C, 0);
  in->w = last->w = NULL;
  out->conv_w = pk_padded_copy(b, raw.conv_w, E * W);
  out->conv_b = padded(l, raw.conv_b, E);
  out->dt_bias = padded(l, raw.dt_b, E);
  out->D = padded(l, raw.D, E);
  out->A = negated_exponentials(l, raw.A_log, E * N);
  return b->status;
}

/* (N, padded K) in float16, of a map as devices have it. */
static const uint16_t *half_rows(loader *l, const kr_panels *w) {
  const int64_t K = kr_padded(l->builder.layers, w->K), N = pk_panel_columns(w);
  uint16_t *rows = pk_storage_take(&l->builder, (size_t)(K * N) * sizeof *rows);
  for (int64_t n = 0; rows && w->data && n < N; n++) half_row(rows + n * K, w->data + n, K, N);
  return rows;
}

static int32_t load_recurrent(loader *l, const char *prefix, pk_linear *in, pk_linear *last, pk_recurrent *out) {
  const int64_t H = l->config->hidden, G = l->config->stage == KR_PK_GRU ? 3 : 4, layers = l->config->layers;
  pk_builder *b = &l->builder;
  out->input = pk_storage_take(b, sizeof *out->input * (size_t)layers);
  out->hidden = pk_storage_take(b, sizeof *out->hidden * (size_t)layers);
  for (int64_t i = 0; out->input && out->hidden && i < layers; i++) {
    const int64_t number = i;
    raw_recurrent raw;
    KR_PK_RECURRENT_KEYS(READ)
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
  char name[MAX_PREFIX + 8];
  pk_linear in, last;
  KR_TRY(load_wrap(l, prefix, l->config->hidden, &in, &last));
  snprintf(name, sizeof name, "%.90s%s.", prefix, nets[l->config->stage]);
  const int32_t status = l->config->stage == KR_PK_MAMBA ? load_mamba(l, name, &in, &last, &out->mamba)
                                                         : load_recurrent(l, name, &in, &last, &out->recurrent);
  if (status < 0) kr_free(in.w), kr_free(last.w);
  return status;
}

static int32_t load_prime(loader *l, const char *prefix, pk_prime *out) {
  const int64_t C = l->config->C, Cp = l->model->Cp, J = l->config->n_kernels, H = J * C;
  pk_builder *b = &l->builder;
  raw_wrap wrap;
  KR_TRY(read_wrap(l, prefix, H, &wrap));
  for (int64_t j = 0; j < J; j++) out->n_taps += l->config->kernels[j];
  float *taps = TAKE(float, out->n_taps * Cp), *gate_taps = TAKE(float, out->n_taps * Cp),
        *taps_bias = TAKE(float, J * Cp), *gate_bias = TAKE(float, J * Cp), *weight = TAKE(float, Cp * J * Cp),
        *weight_bias = TAKE(float, J * Cp), *out_weight = TAKE(float, J * Cp * Cp), *out_bias = TAKE(float, Cp);
  uint16_t *weight_halves = TAKE(uint16_t, J * Cp * Cp), *out_halves = TAKE(uint16_t, Cp * J * Cp);
  out->in = TAKE(kr_panels, J);
  KR_TRY(b->status);
  for (int64_t j = 0, first = 0; j < J; first += l->config->kernels[j++]) {
    const int64_t K = l->config->kernels[j], number = K;
    raw_prime raw;
    KR_PK_PRIME_KEYS(READ)
    pk_linear in = pk_linear_read(b, C, C, wrap.in_w + j * C * C, C, 1, wrap.in_b + j * C);
    pk_linear_fold_input(&in, wrap.norm_w, wrap.norm_b);
    out->in[j] = pk_pack(b, in, 0, C, 0);
    for (int64_t c = 0; c < C; c++) {
      const double beta = wrap.beta[c];
      for (int64_t k = 0; k < K; k++) {
        taps[(first + k) * Cp + c] = raw.attn_taps[c * K + k];
        gate_taps[(first + k) * Cp + c] = raw.conv_taps[c * K + k];
      }
      taps_bias[j * Cp + c] = raw.attn_taps_b[c], gate_bias[j * Cp + c] = raw.conv_taps_b[c];
      weight_bias[j * Cp + c] = raw.attn_b[c], out_bias[c] = (float)(beta * wrap.out_b[c]);
      for (int64_t k = 0; k < C; k++) {
        weight[(k * J + j) * Cp + c] = raw.attn_w[c * C + k];
        out_weight[(j * Cp + k) * Cp + c] = (float)(beta * wrap.out_w[c * H + j * C + k]);
      }
    }
  }
  for (int64_t i = 0; i < J * Cp; i++) half_row(weight_halves + i * Cp, weight + i, Cp, J * Cp);
  for (int64_t c = 0; c < Cp; c++) half_row(out_halves + c * J * Cp, out_weight + c, J * Cp, Cp);
  out->taps = taps, out->taps_bias = taps_bias, out->gate_taps = gate_taps, out->gate_bias = gate_bias;
  out->weight = weight, out->weight_bias = weight_bias, out->out_weight = out_weight, out->out_bias = out_bias;
  out->weight_halves = weight_halves, out->out_halves = out_halves;
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
    KR_TRY(load_prime(l, prefix, &out->freq[n].prime));
  }
  return KRAIT_OK;
}

static int32_t load_block(loader *l, int64_t b, pk_block *out) {
  const int64_t C = l->config->C, number = 0;
  char prefix[MAX_PREFIX];
  raw_block raw;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.", (long long)b);
  KR_PK_BLOCK_KEYS(READ)
  out->beta_t = padded(l, raw.beta_t, l->config->C);
  out->beta_f = padded(l, raw.beta_f, l->config->C);
  out->time = pk_storage_take(&l->builder, sizeof(pk_time) * (size_t)l->config->n_time);
  out->freq = pk_storage_take(&l->builder, sizeof(pk_freq) * (size_t)l->config->n_freq);
  KR_TRY(l->builder.status);
  KR_TRY(load_time_stage(l, prefix, out));
  return load_freq_stage(l, prefix, out);
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
  const int64_t C = l->config->C, Cp = l->model->Cp, F = l->config->F, number = 0;
  const char *prefix = "mask_decoder.";
  raw_mask raw;
  KR_PK_MASK_KEYS(READ)
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
                   .sigmoid_slope = padded(l, raw.sigmoid_slope, F)};
  return load_dense_block(l, "mask_decoder", &out->dense, &out->rows);
}

static int32_t load_phase(loader *l, pk_phase *out) {
  const int64_t C = l->config->C, number = 0;
  const char *prefix = "phase_decoder.";
  raw_phase raw;
  KR_PK_PHASE_KEYS(READ)
  out->even = pk_pack(&l->builder, read_taps_map(l, raw.up_w, 3, 3 * C, raw.up_b, 2, (const int[]){2, 0}), C, C, 0);
  out->odd = pk_pack(&l->builder, read_taps_map(l, raw.up_w, 3, 3 * C, raw.up_b, 1, (const int[]){1}), 0, C, 0);
  out->norm = take_norm(l, raw.norm_w, raw.norm_b, raw.slope);
  out->real_w = padded(l, raw.real_w, C);
  out->imag_w = padded(l, raw.imag_w, C);
  out->real_b = raw.real_b[0];
  out->imag_b = raw.imag_b[0];
  return load_dense_block(l, "phase_decoder", &out->dense, &out->rows);
}

static int32_t load_all(loader *l) {
  kr_primeknet *m = l->model;
  KR_TRY(load_encoder(l, &m->encoder));
  m->blocks = pk_storage_take(&l->builder, sizeof *m->blocks * (size_t)(l->config->n_blocks + 1));
  KR_TRY(l->builder.status);
  for (int64_t b = 0; b < l->config->n_blocks; b++) KR_TRY(load_block(l, b, &m->blocks[b]));
  KR_TRY(load_mask(l, &m->mask));
  return load_phase(l, &m->phase);
}

int32_t pk_load_packed(kr_primeknet *m) {
  m->layers = &kr_layers_device;
  m->Cp = kr_padded(m->layers, m->config.C);
  m->Ep = kr_padded(m->layers, m->config.d_inner);
  m->Hp = kr_padded(m->layers, m->config.hidden);
  m->Xp = kr_padded(m->layers, m->config.dt_rank + 2 * m->config.d_state);
  loader l = {.builder = {.layers = m->layers}, .model = m, .config = &m->config, .parameters = &m->parameters};
  const int32_t status = load_all(&l);
  m->storage = l.builder.storage;
  return status;
}
