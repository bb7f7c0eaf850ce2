/* primeknet.h: PrimeKnet (MODEL.md) inside the library: configuration, models, and sessions that process windows, or
 * stream frames. */
#ifndef KR_PRIMEKNET_H
#define KR_PRIMEKNET_H

#include <krait/enhance.h>

#include "config.h"
#include "graph.h"
#include "model_time.h"
#include "spectral.h"

enum { KR_PK_MAX_KERNELS = 16, KR_PK_MAX_DEPTH = 16, KR_PK_MAX_LAYERS = 64, KR_PK_MOVING_FRAMES = 11 };
enum { KR_PK_MAMBA, KR_PK_GRU, KR_PK_LSTM };

typedef struct kr_pk_config {
  int32_t stage; /* KR_PK_* */
  int causal;
  int streams; /* norm: batch and channel_attention: moving: no later frame changes an output */
  int64_t fft_len, F, F2;   /* F = fft_len/2+1 bins, F2 = (F-1)/up positions after the encoder */
  int has_position_bias;    /* each block adds one to its input */
  int64_t stride, down, up; /* bins of a position: of the lift, of the convolution after the dense block, of both */
  int64_t C, depth, n_blocks, n_time, n_freq;
  int64_t hidden, layers;                     /* of the time network; layers only for GRU and LSTM */
  int64_t d_state, d_conv, d_inner, dt_rank;  /* Mamba */
  int32_t n_kernels;
  int64_t kernels[KR_PK_MAX_KERNELS];
  double sigmoid_beta;
} kr_pk_config;

/* The configuration that `model` ("primeknet_gru", ...) and `config` describe. */
int32_t kr_pk_config_read(const char *model, const kr_config *config, kr_pk_config *out);

/* ---- models ---- */

/* The magnitude compression of the published training configuration. */
#define KR_PK_POWER 0.3

typedef struct kr_primeknet {
  const krait_ctx *ctx;
  kr_pk_config config;
  int is_exact; /* products use full-precision factors */
  int unit_rms; /* it was trained on signals of root mean square 1 */
  kr_weights *weights;
  float *values; /* their contents */
  char *taken;   /* while opening, by index: requested */
  kr_spectral spectral; /* with takes_samples, on the host: graphs have their own copies */
  int takes_samples;    /* on a GPU, whole windows: the transform is part of the graph */
} kr_primeknet;
/* On ctx's device, with this precision (KRAIT_PRECISION_*) if it is a GPU. */
int32_t kr_primeknet_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                          int32_t precision, kr_primeknet **model);
void kr_primeknet_close(kr_primeknet **model);

/* Its graph (kr_shape_record_fn), by windows (on a CPU: one), frames and outputs; tensors: com_in, and mag, pha, com if
 * requested; with KR_PK_WAV, which excludes the others, wav (B, (T-1) fft_len/4), the transform of each window's first
 * frame in kr_spectral_forward's layout, and out like wav. */
enum { KR_PK_MAG = 1, KR_PK_PHA = 2, KR_PK_COM = 4, KR_PK_WAV = 8, KR_PK_TENSORS = 4 };
int32_t kr_primeknet_record(const void *model, const int64_t *key, kr_graph *g, kr_tensor *tensors);
uint32_t kr_primeknet_plan_flags(const kr_primeknet *model);

/* ---- sessions ---- */

typedef struct kr_pk_session kr_pk_session;
/* Frames per run of a streaming model: when streaming, and for whole windows (0: automatic). */
enum { KR_PK_LIVE_CHUNK = 1 };
int32_t kr_pk_session_open(const kr_primeknet *model, int64_t chunk, kr_pk_session **session);
void kr_pk_session_close(kr_pk_session **session);
/* com_in (B,F,T,2); mag, pha (B,F,T) and com (B,F,T,2) may be NULL. */
int32_t kr_pk_forward(kr_pk_session *session, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                      float *com);
/* If the model takes samples: B windows of (T-1) fft_len/4 each. They are started when this returns; out is available
 * after kr_pk_finish, or after the next call. n: the best number of windows to process together, out of B. */
int32_t kr_pk_samples(kr_pk_session *session, int64_t B, int64_t T, const float *wav, const float *first, float *out);
int32_t kr_pk_finish(kr_pk_session *session);
int32_t kr_pk_at_once(kr_pk_session *session, int64_t B, int64_t T, int64_t *n);
/* For a streaming model, as in kr_stft_live_options: plans and weighs; starts a stream; and the parts of a chunk. */
int32_t kr_pk_prepare(kr_pk_session *session);
int32_t kr_pk_begin(void *session);
int32_t kr_pk_take(void *session, const float *com_in, int64_t T, int64_t first, int64_t n);
int32_t kr_pk_work(void *session, double share);
int32_t kr_pk_give(void *session, int64_t T, int64_t first, int64_t n, float *mag, float *pha);
/* Kernel time of the last forward pass; 0 on the CPU. */
double kr_pk_device_seconds(const kr_pk_session *session);
int32_t kr_pk_kernels(kr_pk_session *session, int64_t B, int64_t T, const float *com_in, kr_kernel_fn report,
                      void *user);

#endif
