/* model.h: whole models. A krait_model is loaded weights (immutable, shared freely); a krait_session is one timeline
 * on it (scratch, counters), used by one thread at a time. The context must outlive the model, the model its sessions.
 * Files are float PCM or whatever libsndfile reads; samples given in memory are float32, mono, 16 kHz. */
#ifndef KRAIT_MODEL_H
#define KRAIT_MODEL_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_model krait_model;
typedef struct krait_session krait_session;

/* Of products on a GPU. TF32: factors are rounded to its 10 bits of mantissa for tensor cores (about 3e-4 relative), as PyTorch's convolutions
 * do, but go through float16, whose range ends at 65504. GPUs before Ampere and CPUs compute in float32 in any case. */
enum { KRAIT_PRECISION_DEFAULT = 0, /* TF32 where the GPU has it */ KRAIT_PRECISION_FP32 = 1, KRAIT_PRECISION_TF32 = 2 };

typedef struct krait_model_options {
  uint32_t size;
  uint32_t precision;       /* KRAIT_PRECISION_* */
  const char *weights_path; /* .safetensors, .th or .pt; NULL: the weights embedded in the library */
  const char *config_path;  /* YAML (plain or .hydra/config.yaml), or NULL: from the weights' metadata */
  const char *overrides;    /* "causal=true,dense_depth=3": flags win over both, or NULL */
} krait_model_options;

/* options may be NULL for the embedded denoiser. */
KRAIT_API int32_t krait_model_open(const krait_ctx *ctx, const krait_model_options *options, krait_model **model);
KRAIT_API void krait_model_close(krait_model **model);
/* JSON: {"model", "config", "n_params", "n_tensors", "tensors": [{"name","dtype","shape"}], "metadata"}; lives with the model. */
KRAIT_API const char *krait_model_json(const krait_model *model);

/* The same for a weights file that is only read, not loaded into a model (krait info FILE). Free with krait_text_free. */
KRAIT_API int32_t krait_weights_describe(const char *weights_path, char **json);
/* Any weights file that krait reads to safetensors; metadata from config_path and overrides where given. */
KRAIT_API int32_t krait_weights_convert(const char *in_path, const char *out_path, const char *config_path, const char *overrides);
KRAIT_API void krait_text_free(char **text);

KRAIT_API int32_t krait_session_open(const krait_model *model, krait_session **session);
KRAIT_API void krait_session_close(krait_session **session);

/* ---- PrimeKnet: one forward pass, sizes F = fft_len/2+1 bins, T frames ---------------------------------------------
 * com_in (B,F,T,2) compressed spectrum; any output may be NULL: mag (B,F,T), pha (B,F,T), com (B,F,T,2). Contiguous float32. */
KRAIT_API int32_t krait_primeknet_forward(krait_session *session, int64_t B, int64_t T, const float *com_in,
                                          float *mag, float *pha, float *com);

/* Seconds that the GPU computed in the session's last forward pass, copies not counted; 0 on the CPU. */
KRAIT_API double krait_primeknet_device_s(const krait_session *session);

/* A forward pass with the GPU's kernels timed one by one, called once per kind of kernel: how often it ran, seconds in all (each includes
 * a few microseconds of its launch), and of products the operations and the bytes that they cannot do without. */
typedef void (*krait_kernel_fn)(void *user, const char *kernel, int64_t n_launches, double seconds, double flops, double bytes);
KRAIT_API int32_t krait_primeknet_kernels(krait_session *session, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user);

/* ---- enhance ---------------------------------------------------------------------------------------------------- */
/* Called now and then; done and total in samples of the input file. Non-zero return asks to stop: KRAIT_ERR_CANCELLED. */
typedef int32_t (*krait_progress_fn)(void *user, int64_t done, int64_t total);

/* Mono 16 kHz samples in memory, any length; in and out may be the same. Windows overlap and cross-fade for long input. */
KRAIT_API int32_t krait_enhance_samples(krait_session *session, const float *in, float *out, int64_t n_samples,
                                        krait_progress_fn progress, void *user);

typedef struct krait_enhance_options {
  uint32_t size;
  uint32_t reserved;
  const char *in_path;        /* "-" for standard input */
  const char *out_path;       /* "-" for standard output */
  const char *plot_path;      /* PNG with spectrograms before and after, or NULL */
  const char *reference_path; /* clean twin for scores, or NULL */
  krait_progress_fn progress; /* or NULL */
  void *user;
} krait_enhance_options;

typedef struct krait_scores {
  double si_sdr_db, segmental_snr_db, stoi;
} krait_scores;

/* What describes the input (up to audio_s) is there before the first call of progress. */
typedef struct krait_enhance_result {
  uint32_t size;
  int32_t n_channels;
  int64_t n_samples;      /* per channel, at the file's rate */
  int32_t sample_rate_hz;
  int32_t has_scores;
  double audio_s;
  double compute_s, total_s; /* in the model; from opening the input to the output's final name */
  krait_scores noisy, enhanced; /* only with has_scores; means over channels */
} krait_enhance_result;

/* The output keeps rate, length, channels and format of the input. It appears under its name only when complete. */
KRAIT_API int32_t krait_enhance_file(krait_session *session, const krait_enhance_options *options, krait_enhance_result *result);

/* Seconds of sound in a recording, all channels added up, as its header says. INFINITY for standard input and pipes: they say it only
 * when they have been read. */
KRAIT_API int32_t krait_audio_length(const char *path, double *audio_s);

/* For signal handlers (async-signal-safe), before the process ends: removes every output that is not complete. */
KRAIT_API void krait_outputs_abandon(void);

/* ---- verify: a recorded input against recorded outputs (docs/GOLDEN.md) ------------------------------------------ */
typedef struct krait_verify_result {
  char name[32];        /* "com", "mag", "wav" */
  double rel_l2, max_abs;
} krait_verify_result;
/* Fills up to n_rows rows; n_filled receives how many the file holds. */
KRAIT_API int32_t krait_verify(krait_session *session, const char *golden_path, krait_verify_result *rows, int32_t n_rows, int32_t *n_filled);

#ifdef __cplusplus
}
#endif
#endif
