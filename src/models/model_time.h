/* model_time.h: how long models and their parts take, for `krait bench` and `krait info`. Most have random weights of
 * published sizes, which change no time. */
#ifndef KR_MODEL_TIME_H
#define KR_MODEL_TIME_H

#include <krait/enhance.h>

/* ---- language models ---- */

/* Random weights of a published model's sizes, for krait bench generate. */
typedef struct kr_lm_timing {
  uint32_t size;
  int32_t narrow_states; /* input: states in the weights' type, as in mamba-ssm, instead of float32 (on a GPU) */
  uint64_t token_bytes;  /* of weights that a step must read: of mixtures the chosen experts */
  double open_s;         /* creating the weights */
  double prompt_s;       /* prefill, the best of three */
  double token_s;        /* a step of the batch, with argmax on the host, median */
  double step_s;         /* a step without that, averaged over many in a row */
} kr_lm_timing;
typedef void (*kr_lm_profile_fn)(void *user, const char *run, const char *name, const char *op, const char *impl,
                                 int64_t n_calls, double seconds);
/* The calls of prefill and of a decode step: for each name and implementation the number of calls, and the time of all
 * of them in a row. */
int32_t kr_lm_measure_kernels(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch, int64_t n_prompt,
                              int32_t narrow_states, kr_lm_profile_fn kind, void *user);
/* model: "mamba-130m", "mamba2-2.7b" and the like, or a folder with a config.json, of whose tensors only the shapes
 * are read; dtype: KRAIT_F32, KRAIT_F16, KRAIT_BF16, KRAIT_Q8_0, KRAIT_Q4_K. */
int32_t kr_lm_measure(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch, int64_t n_prompt,
                      int64_t n_tokens, kr_lm_timing *timing);

/* ---- Mobile-VideoGPT ---- */

/* Random weights of Mobile-VideoGPT-0.5B's sizes, for krait bench describe. */
typedef struct kr_describer_timing {
  uint32_t size;
  int32_t n_prompt; /* tokens and rows */
  double open_s;
  double encode_s;  /* from 16 decoded and resized frames to the video's rows: both towers, frame selection, projectors;
                     the best of three */
  double prefill_s; /* the prompt, with its logits on the host; the best of three */
  double token_s;   /* a token, with argmax on the host, median */
  uint64_t bytes;   /* of weights */
} kr_describer_timing;
/* dtype: KRAIT_F32, KRAIT_F16 or KRAIT_BF16. */
int32_t kr_describer_measure(const krait_ctx *ctx, int32_t dtype, int64_t n_tokens, kr_describer_timing *timing);

/* ---- a single tower with random weights of the published sizes, for krait bench videomamba and clip ---- */
typedef struct kr_tower_timing {
  uint32_t size; /* sizeof(kr_tower_timing) */
  int32_t n_runs;
  int64_t n_tokens; /* of all images or frames */
  double open_s;
  double run_s, best_s; /* median and best: from pixels in host memory to VideoMamba's classes in host memory, or to
                           CLIP's features on the context's device */
  double cpu_s;         /* least processor time of a run, summed over threads, which other load on the machine disturbs
                           less */
  double flops, bytes;  /* the minimum that the operators of a run must do */
  double product_flops_per_s, product_flops_per_cpu_s; /* of one large matrix product, alternating with the runs; the
                                                          second per processor time, 0 on a GPU */
  uint64_t weight_bytes, work_bytes;
} kr_tower_timing;
typedef void (*kr_tower_report_fn)(void *user, const char *line);
/* name: videomamba-t16, -s16 or -m16, with 400 classes and a clip of n frames; or clip-vit-base-patch32, -base-patch16,
 * -large-patch14 or -large-patch14-336, with n images and all layers. dtype of the weights: KRAIT_F32, KRAIT_F16 or
 * KRAIT_BF16. report: NULL, or called with a line for each operator and its time. */
int32_t kr_tower_measure(const krait_ctx *ctx, const char *name, int32_t dtype, int64_t n, int32_t n_runs,
                         kr_tower_report_fn report, void *user, kr_tower_timing *timing);

/* ---- SeedVR: a block of the transformer with the published sizes and random weights ---- */
typedef struct kr_seedvr_shape {
  uint32_t size;                   /* sizeof(kr_seedvr_shape) */
  int32_t variant;                 /* 3 or 7, as in 3B and 7B */
  int64_t n_frames, width, height; /* of the clip; 58 tokens of text */
} kr_seedvr_shape;
typedef struct kr_seedvr_timing {
  uint32_t size; /* sizeof(kr_seedvr_timing) */
  int32_t n_runs;
  double block_s, best_s; /* one block: median and best of the runs; half of a pair with plain and shifted windows */
  double flops;           /* per block: products and attention */
  int64_t n_tokens;       /* of the video */
  int64_t n_windows[2], longest[2];  /* plain, shifted; tokens of the longest window including the text */
  uint64_t weight_bytes, work_bytes; /* of a block; everything else that a run needs */
} kr_seedvr_timing;
/* dtype: float32, or on a GPU float16 or bfloat16. Runs for about budget_s, at least once. report: NULL, or called with
 * a line for each operator of both blocks and its time. */
typedef void (*kr_seedvr_report_fn)(void *user, const char *line);
int32_t kr_seedvr_measure(const krait_ctx *ctx, const kr_seedvr_shape *shape, int32_t dtype, double budget_s,
                          kr_seedvr_report_fn report, void *user, kr_seedvr_timing *timing);

/* ---- SeedVR whole: a batch of frames, with the published sizes and random weights ---- */
typedef struct kr_restore_timing {
  uint32_t size; /* sizeof(kr_restore_timing) */
  int32_t reserved;
  /* The best of the runs, each from and to host memory: frames of half the sides to those that the encoder reads, the
   * models' stages, colours, and values to bytes. */
  double resize_s, encode_s, sample_s, decode_s, colour_s, round_s;
  double encode_flops, decode_flops;             /* products */
  /* Of encoder, transformer, decoder: as planned; on a GPU what the device has less in that stage than before, of any
   * program. */
  uint64_t planned_bytes[3], measured_bytes[3], host_bytes; /* host: what the plan puts there */
  uint64_t moved_bytes; /* between host and device in a batch, by plan */
  char plan[256];
} kr_restore_timing;
/* dtype: float32, or on a GPU bfloat16. memory_bytes: as of krait_restorer_options. report: NULL, or called with a line
 * for each operator of the last frames. */
int32_t kr_restore_measure(const krait_ctx *ctx, const kr_seedvr_shape *shape, int32_t dtype, uint64_t memory_bytes,
                           int32_t n_runs, kr_seedvr_report_fn report, void *user, kr_restore_timing *timing);

/* ---- PrimeKnet ---- */

/* Seconds of GPU time in the session's last forward pass, without copies; 0 on the CPU. */
double kr_primeknet_device_s(const krait_denoiser_session *session);

/* A forward pass with the GPU's kernels timed one by one. report is called once per kind of kernel: number of launches,
 * total seconds (each launch includes a few microseconds of overhead), and for products the minimum operations and
 * bytes. */
typedef void (*kr_kernel_fn)(void *user, const char *kernel, int64_t n_launches, double seconds, double flops,
                             double bytes);
int32_t kr_primeknet_kernels(krait_denoiser_session *session, int64_t B, int64_t T, const float *com_in,
                             kr_kernel_fn report, void *user);

/* ---- graphs: the operators of a model ---------------------------------------------------------------------------- */
typedef void (*kr_graph_line_fn)(void *user, const char *line);
#define KR_GRAPHS_PROFILE 1u /* run each graph on zeros, node by node, and time each node */
/* The graphs of a model as ctx would run them, for a typical size: for each a heading, then one line per node (its
 * name, operator, implementation, time, bytes read and written, its outputs and their place in the graph's memory),
 * then the memory. options->weights_path: a weights file, or the folder of a language model, of CLIP or of
 * Mobile-VideoGPT. For PrimeKnet it is the graph used in training; for enhancement it has its own kernels. */
int32_t kr_model_graphs(const krait_ctx *ctx, const krait_denoiser_options *options, uint32_t flags,
                        kr_graph_line_fn line, void *user);

#endif
