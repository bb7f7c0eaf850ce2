/* primeknet_config.c: the constructor's arguments with their defaults (MODEL.md lists them), checked. */
#include <string.h>

#include "primeknet.h"
#include "status.h"

static const char *const known_keys[] = {
    "fft_len",         "dense_channel",  "sigmoid_beta",     "dense_depth",
    "num_tsblock",     "time_block_num", "freq_block_num",   "mamba_hidden_size",
    "mamba_d_state",   "mamba_d_conv",   "mamba_expand",     "gru_layers",
    "gru_hidden_size", "lstm_layers",    "lstm_hidden_size", "freq_block_kernel",
    "infer_type",      "causal",         "hop_len",          "hop_length",
    "win_len",         "win_length",     "compress_factor",  "norm",
    "channel_attention", "freq_stride",   "position_bias",
};

static int32_t read_stage(const char *model, int32_t *stage) {
  static const char *const names[] = {"primeknet_mamba", "primeknet_gru", "primeknet_lstm"};
  KR_CHECK(model, KRAIT_ERR_WEIGHTS,
           "it is unknown which model the weights belong to; give model=primeknet_mamba (or _gru, _lstm)");
  for (*stage = KR_PK_MAMBA; *stage <= KR_PK_LSTM; ++*stage)
    if (strcmp(model, names[*stage]) == 0) return KRAIT_OK;
  return kr_fail(KRAIT_ERR_WEIGHTS, "unknown model '%s'", model);
}

static int32_t read_time_network(const kr_config *config, kr_pk_config *out) {
  static const char *const hidden_keys[] = {"mamba_hidden_size", "gru_hidden_size", "lstm_hidden_size"};
  static const char *const layer_keys[] = {NULL, "gru_layers", "lstm_layers"};
  int64_t expand = 0;
  KR_TRY(kr_config_int(config, hidden_keys[out->stage], 64, 1, 4096, &out->hidden));
  if (out->stage != KR_PK_MAMBA) return kr_config_int(config, layer_keys[out->stage], 2, 1, 64, &out->layers);
  KR_TRY(kr_config_int(config, "mamba_d_state", 16, 1, 512, &out->d_state));
  KR_TRY(kr_config_int(config, "mamba_d_conv", 4, 1, 64, &out->d_conv));
  KR_TRY(kr_config_int(config, "mamba_expand", 2, 1, 64, &expand));
  out->d_inner = expand * out->hidden;
  out->dt_rank = (out->hidden + 15) / 16;
  return KRAIT_OK;
}

static int32_t read_kernels(const kr_config *config, kr_pk_config *out) {
  const int64_t usual[] = {3, 11, 23, 31};
  out->n_kernels = 4;
  memcpy(out->kernels, usual, sizeof usual);
  KR_TRY(kr_config_ints(config, "freq_block_kernel", 1, 255, KR_PK_MAX_KERNELS, out->kernels, &out->n_kernels));
  KR_CHECK(out->n_kernels >= 1, KRAIT_ERR_WEIGHTS, "freq_block_kernel is empty");
  for (int32_t j = 0; j < out->n_kernels; j++)
    KR_CHECK(out->kernels[j] % 2 == 1, KRAIT_ERR_WEIGHTS,
             "freq_block_kernel has %lld, but even kernels change the number of bins", (long long)out->kernels[j]);
  return KRAIT_OK;
}

/* A model streams in all its parts, or not at all. */
static int32_t read_streaming(const kr_config *config, kr_pk_config *out) {
  const char *norm, *attention;
  KR_TRY(kr_config_text(config, "norm", "instance", &norm));
  KR_TRY(kr_config_text(config, "channel_attention", "mean", &attention));
  KR_CHECK(strcmp(norm, "instance") == 0 || strcmp(norm, "batch") == 0, KRAIT_ERR_WEIGHTS,
           "norm is '%s', not instance or batch", norm);
  KR_CHECK(strcmp(attention, "mean") == 0 || strcmp(attention, "moving") == 0, KRAIT_ERR_WEIGHTS,
           "channel_attention is '%s', not mean or moving", attention);
  out->streams = strcmp(norm, "batch") == 0;
  KR_CHECK(out->streams == (strcmp(attention, "moving") == 0), KRAIT_ERR_WEIGHTS,
           "norm: batch and channel_attention: moving must be used together");
  KR_CHECK(!out->streams || (out->causal && out->stage == KR_PK_MAMBA), KRAIT_ERR_WEIGHTS,
           "norm: batch needs causal: true and model primeknet_mamba");
  return KRAIT_OK;
}

/* Where positions become fewer than bins: after the encoder's dense block, by 2; or before it, by freq_stride. */
static int32_t read_positions(const kr_config *config, kr_pk_config *out) {
  KR_TRY(kr_config_int(config, "fft_len", 400, 8, 65536, &out->fft_len));
  KR_CHECK(out->fft_len % 4 == 0, KRAIT_ERR_WEIGHTS,
           "fft_len is %lld, must be a multiple of 4: the decoders cannot reproduce an even number of bins",
           (long long)out->fft_len);
  KR_TRY(kr_config_int(config, "freq_stride", 1, 1, 64, &out->stride));
  KR_CHECK(out->stride == 1 || out->streams, KRAIT_ERR_WEIGHTS, "freq_stride needs norm: batch");
  KR_CHECK(out->fft_len / 2 % out->stride == 0, KRAIT_ERR_WEIGHTS,
           "freq_stride is %lld, must divide fft_len / 2, which is %lld", (long long)out->stride,
           (long long)out->fft_len / 2);
  KR_TRY(kr_config_bool(config, "position_bias", 0, &out->has_position_bias));
  KR_CHECK(!out->has_position_bias || out->streams, KRAIT_ERR_WEIGHTS, "position_bias needs norm: batch");
  out->F = out->fft_len / 2 + 1;
  out->down = out->stride > 1 ? 1 : 2, out->up = out->stride * out->down;
  out->F2 = (out->F - 1) / out->up;
  return KRAIT_OK;
}

int32_t kr_pk_config_read(const char *model, const kr_config *config, kr_pk_config *out) {
  memset(out, 0, sizeof *out);
  KR_TRY(read_stage(model, &out->stage));
  KR_TRY(kr_config_check_keys(config, known_keys, sizeof known_keys / sizeof *known_keys));
  KR_TRY(kr_config_int(config, "dense_channel", 64, 1, 4096, &out->C));
  KR_TRY(kr_config_int(config, "dense_depth", 4, 0, KR_PK_MAX_DEPTH, &out->depth));
  KR_TRY(kr_config_int(config, "num_tsblock", 4, 0, 1024, &out->n_blocks));
  KR_TRY(kr_config_int(config, "time_block_num", 2, 0, 1024, &out->n_time));
  KR_TRY(kr_config_int(config, "freq_block_num", 2, 0, 1024, &out->n_freq));
  KR_TRY(kr_config_float(config, "sigmoid_beta", 1, -1e6, 1e6, &out->sigmoid_beta));
  KR_TRY(kr_config_bool(config, "causal", 0, &out->causal));
  KR_TRY(read_streaming(config, out));
  KR_TRY(read_positions(config, out));
  KR_TRY(read_time_network(config, out));
  return read_kernels(config, out);
}
