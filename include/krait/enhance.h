/* enhance.h: the speech denoiser. A krait_denoiser is loaded weights (immutable, shared freely); a
 * krait_denoiser_session is one sequence of runs on it (scratch, counters), used by one thread at a time. The context
 * must outlive the denoiser, the denoiser its sessions. Files are float PCM or whatever libsndfile reads; samples given
 * in memory are float32, mono, 16 kHz. libkrait-ops has what works on samples in memory; files need libkrait. */
#ifndef KRAIT_ENHANCE_H
#define KRAIT_ENHANCE_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_denoiser krait_denoiser;
typedef struct krait_denoiser_session krait_denoiser_session;

/* Precision of matrix products on a GPU. TF32: factors are rounded to a 10-bit mantissa for tensor cores (about 3e-4
 * relative), as in PyTorch's convolutions, but pass through float16, whose range ends at 65504. GPUs before Ampere and
 * CPUs always compute in float32. */
enum {
  KRAIT_PRECISION_DEFAULT = 0, /* TF32 if the GPU has it */
  KRAIT_PRECISION_FP32 = 1,
  KRAIT_PRECISION_TF32 = 2
};

typedef struct krait_denoiser_options {
  uint32_t size;
  uint32_t precision;       /* KRAIT_PRECISION_* */
  const char *weights_path; /* .safetensors, .th or .pt; NULL or "builtin": the embedded denoiser; "streaming": the
                               embedded streaming model. A file of such a name is ./builtin */
  const char *config_path;  /* YAML (plain or .hydra/config.yaml), or NULL: from the weights' metadata */
  const char *overrides;    /* "causal=true,dense_depth=3": overrides both; or NULL */
} krait_denoiser_options;

/* options may be NULL for the embedded denoiser. */
KRAIT_API int32_t krait_denoiser_open(const krait_ctx *ctx, const krait_denoiser_options *options,
                                      krait_denoiser **denoiser);
KRAIT_API void krait_denoiser_close(krait_denoiser **denoiser);

typedef struct krait_denoiser_tensor {
  const char *name;
  const int64_t *shape; /* n_dims */
  const float *data;    /* row-major */
  int32_t n_dims, reserved;
} krait_denoiser_tensor;
/* A model from tensors in memory, which are copied, for programs that read files themselves; in libkrait-ops
 * too. options->overrides specifies the model, "model=primeknet_mamba,dense_channel=64,..."; weights_path is
 * NULL. */
KRAIT_API int32_t krait_denoiser_open_tensors(const krait_ctx *ctx, const krait_denoiser_options *options,
                                              const krait_denoiser_tensor *tensors, int64_t n_tensors,
                                              krait_denoiser **denoiser);
/* JSON: {"model", "config", "n_params", "n_tensors", "tensors": [{"name","dtype","shape"}], "metadata"}; valid until
 * the denoiser is closed. */
KRAIT_API const char *krait_denoiser_json(const krait_denoiser *denoiser);

/* The same for a weights file, a language model's folder, or "builtin" or "streaming", without loading it into a model
 * (krait info FILE). Free with krait_text_free. */
KRAIT_API int32_t krait_weights_describe(const char *weights_path, char **json);
/* Converts any weights file that krait reads to safetensors, with metadata from config_path and overrides if given. An
 * out_path that ends in .th, .pt or .pth gets the layout of upstream's best.th, for torch.load, without metadata. */
KRAIT_API int32_t krait_weights_convert(const char *in_path, const char *out_path, const char *config_path,
                                        const char *overrides);
KRAIT_API void krait_text_free(char **text);

/* A session keeps nothing from one call to the next but memory: after an error the same call may be repeated. */
KRAIT_API int32_t krait_denoiser_session_open(const krait_denoiser *denoiser, krait_denoiser_session **session);
KRAIT_API void krait_denoiser_session_close(krait_denoiser_session **session);

/* ---- PrimeKnet: one forward pass, sizes F = fft_len/2+1 bins, T frames ---------------------------------------------
 * com_in (B,F,T,2) compressed spectrum; any output may be NULL: mag (B,F,T), pha (B,F,T), com (B,F,T,2). Contiguous
 * float32. */
KRAIT_API int32_t krait_primeknet_forward(krait_denoiser_session *session, int64_t B, int64_t T, const float *com_in,
                                          float *mag, float *pha, float *com);

/* ---- enhance ---------------------------------------------------------------------------------------------------- */
/* Called from time to time; done and total in samples of the input file. A non-zero return requests a stop:
 * KRAIT_ERR_CANCELLED. */
typedef int32_t (*krait_progress_fn)(void *user, int64_t done, int64_t total);

/* Mono 16 kHz samples in memory, any length; in and out may be the same. Long input is processed in overlapping windows
 * with a cross-fade. */
KRAIT_API int32_t krait_enhance_samples(krait_denoiser_session *session, const float *in, float *out, int64_t n_samples,
                                        krait_progress_fn progress, void *user);

/* Streaming, 16 kHz: every input sample comes out cleaned, at most krait_denoiser_stream_latency samples later, plus
 * the time to compute. A stream has exclusive use of its session until it is closed: meanwhile every other use of the
 * session, also a second stream, is KRAIT_ERR_ARGUMENT. It is used by one thread at a time. Close it before its
 * session; a stream whose session is closed first refuses everything but krait_denoiser_stream_close. */
typedef struct krait_denoiser_stream krait_denoiser_stream;
KRAIT_API int32_t krait_denoiser_stream_open(krait_denoiser_session *session, krait_denoiser_stream **stream);
KRAIT_API void krait_denoiser_stream_close(krait_denoiser_stream **stream);
KRAIT_API int64_t krait_denoiser_stream_latency(const krait_denoiser_stream *stream);
/* Takes any number of samples and returns those that are due: n_out, 0 for most short pushes. room: size of out, which
 * may not overlap in; n_samples + krait_denoiser_stream_latency is always enough; if it is too small, no input is
 * taken. After a push that failed for another reason than its arguments only krait_denoiser_stream_finish may follow;
 * pushes are refused. */
KRAIT_API int32_t krait_denoiser_stream_push(krait_denoiser_stream *stream, const float *in, int64_t n_samples,
                                             float *out, int64_t room, int64_t *n_out);
/* The remaining samples: room for krait_denoiser_stream_latency is enough. The stream can then start again, also after
 * an error; with a streaming model the remaining samples are then lost. */
KRAIT_API int32_t krait_denoiser_stream_finish(krait_denoiser_stream *stream, float *out, int64_t room, int64_t *n_out);

/* One channel of speech, live, at any rate from 8 to 192 kHz, with as many samples out as in, krait_voice_latency
 * samples late: silence comes first. Like a stream, it has exclusive use of its session until it is closed. It is for
 * audio threads: with a streaming model on a CPU context of one thread, krait_voice_process allocates, locks and prints
 * nothing, and spreads its work evenly over the samples. What lies above the model's band, 8 kHz, is kept, with a gain
 * that follows the model's. */
typedef struct krait_voice krait_voice;
enum {
  KRAIT_VOICE_NARROW = 1,    /* flags: drop what lies above 8 kHz */
  KRAIT_VOICE_LOOKS_BACK = 2 /* the gate opens 30 ms before speech is recognised, for 30 ms more latency */
};
typedef struct krait_voice_options {
  uint32_t size;
  uint32_t flags; /* KRAIT_VOICE_* */
  int32_t rate_hz;
  int32_t reserved;
} krait_voice_options;
typedef struct krait_voice_controls {
  uint32_t size;
  int32_t reserved;
  double mix;      /* 1 (at first): clean, 0: dry, delayed */
  double limit_db; /* attenuate by at most this; INFINITY (at first): no limit */
  double gate;     /* silence while speech is less probable than this; 0 (at first): never */
} krait_voice_controls;
KRAIT_API int32_t krait_voice_open(krait_denoiser_session *session, const krait_voice_options *options,
                                   krait_voice **voice);
KRAIT_API void krait_voice_close(krait_voice **voice);
KRAIT_API int64_t krait_voice_latency(const krait_voice *voice); /* in samples at rate_hz */
/* These two, which audio threads call, leave the thread's error detail of an earlier call as it is if they succeed. */
KRAIT_API int32_t krait_voice_set(krait_voice *voice, const krait_voice_controls *controls);
/* in and out may be the same. What is not a finite number counts as 0. After a failure, a status below 0, the rest
 * of out is silent, and the voice starts again. */
KRAIT_API int32_t krait_voice_process(krait_voice *voice, const float *in, float *out, int64_t n_samples);
/* Instead of krait_voice_process, for what has an end: takes any number of samples and returns those that are due, at
 * most krait_voice_latency later; and the rest, after which the voice can start again. room: size of out, which may not
 * overlap in; n_samples + krait_voice_latency is always enough. */
KRAIT_API int32_t krait_voice_push(krait_voice *voice, const float *in, int64_t n_samples, float *out, int64_t room,
                                   int64_t *n_out);
KRAIT_API int32_t krait_voice_finish(krait_voice *voice, float *out, int64_t room, int64_t *n_out);
/* How probable speech is, 0 to 1, around the sample that was returned last. */
KRAIT_API double krait_voice_speech(const krait_voice *voice);
KRAIT_API int32_t krait_voice_reset(krait_voice *voice); /* forgets what it has heard, not the controls */

/* krait_enhance_samples at any rate from 1 to 768 kHz, with the voice's options; controls may be NULL (as at first):
 * out[i] is in[i], cleaned; in and out may be the same. progress, which may be NULL, counts samples at 16 kHz. */
KRAIT_API int32_t krait_enhance_channel(krait_denoiser_session *session, const krait_voice_options *options,
                                        const krait_voice_controls *controls, const float *in, float *out,
                                        int64_t n_samples, krait_progress_fn progress, void *user);

enum { KRAIT_ENHANCE_KEEP = 1 }; /* flags: an existing output or plot is an error, not replaced */

typedef struct krait_enhance_options {
  uint32_t size;
  uint32_t flags;             /* KRAIT_ENHANCE_* */
  const char *in_path;        /* "-" for standard input */
  const char *out_path;       /* "-" for standard output */
  const char *plot_path;      /* PNG with spectrograms before and after, or NULL */
  const char *reference_path; /* clean version for scores, or NULL */
  krait_progress_fn progress; /* or NULL */
  void *user;
  double limit_db; /* with has_limit: attenuate by at most this; 0 leaves the recording unchanged */
  int32_t has_limit;
  int32_t reserved;
  const char *noise_path, *rir_path; /* applied first: noise, looped, at snr_db; a room impulse response; or NULL. Not
                                        with plot_path or reference_path */
  const char *mixed_path;            /* write the resulting mixture here, or NULL */
  double snr_db;
  double dry;  /* share of the recording itself in the output, 0 to 1 */
  double gate; /* silence while speech is less probable than this, from 30 ms before it; 0: never. Not with is_narrow */
  int32_t is_narrow; /* drop what lies above 8 kHz; else it is kept, with a gain that follows the model's */
  int32_t reserved_too;
} krait_enhance_options;

typedef struct krait_scores {
  double si_sdr_db, segmental_snr_db, stoi;
} krait_scores;

/* The fields up to audio_s, which describe the input, are set before the first call of progress. */
typedef struct krait_enhance_result {
  uint32_t size;
  int32_t n_channels;
  int64_t n_samples; /* per channel, at the file's rate */
  int32_t sample_rate_hz;
  int32_t has_scores;
  double audio_s;
  double compute_s, total_s;    /* in the model; from opening the input until the output has its final name */
  krait_scores noisy, enhanced; /* only with has_scores; means over channels */
  char note[160];               /* if the input's format cannot be written: which one the output has; else "" */
} krait_enhance_result;

/* The output keeps the sample rate, length, channels and, if it can be written, the format of the input. It appears
 * under its name only when it is complete and has been read back. result may be NULL; else set its size first. */
KRAIT_API int32_t krait_enhance_file(krait_denoiser_session *session, const krait_enhance_options *options,
                                     krait_enhance_result *result);

/* Seconds of audio in a recording, summed over channels, according to its header. INFINITY for standard input and
 * pipes, whose length is unknown before they are read. */
KRAIT_API int32_t krait_audio_length(const char *path, double *audio_s);

/* The extension ("wav") that an output beside in_path must have because the input's format cannot be written; "" if it
 * can. */
KRAIT_API int32_t krait_audio_extension(const char *in_path, char *extension, size_t extension_bytes);

/* Before long work: KRAIT_ERR_FILE_WRITE if path cannot be written. With keep, the next output of this process under
 * that name, by any function of this library, is an error and replaces nothing if a file has appeared there by then: of
 * two processes that write the same output one loses. */
KRAIT_API int32_t krait_output_claim(const char *path, int32_t keep);

/* For signal handlers (async-signal-safe), before the process ends: removes every incomplete output. None appears
 * afterwards: threads that are about to finish one get KRAIT_ERR_CANCELLED. */
KRAIT_API void krait_outputs_abandon(void);

/* ---- verify: a recorded input against recorded outputs (docs/GOLDEN.md) ------------------------------------------ */
typedef struct krait_verify_result {
  char name[32]; /* "com", "mag", "wav" */
  double rel_l2, max_abs;
} krait_verify_result;
/* Fills up to n_rows rows; n_filled receives the number of outputs in the file. A file without any output is
 * KRAIT_ERR_FILE_FORMAT. */
KRAIT_API int32_t krait_verify(krait_denoiser_session *session, const char *golden_path, krait_verify_result *rows,
                               int32_t n_rows, int32_t *n_filled);

#ifdef __cplusplus
}
#endif
#endif
