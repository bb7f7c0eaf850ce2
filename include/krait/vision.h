/* vision.h: videos and images: classification with VideoMamba, questions with Mobile-VideoGPT; timing of the towers and
 * of SeedVR's blocks. */
#ifndef KRAIT_VISION_H
#define KRAIT_VISION_H

#include <krait/krait.h>
#include <krait/language.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_classifier krait_classifier;

/* Weights as upstream publishes them (.pth) or safetensors; ctx must outlive the classifier, which belongs to one
 * thread at a time. */
KRAIT_API int32_t krait_classifier_open(const krait_ctx *ctx, const char *weights_path, krait_classifier **classifier);
KRAIT_API void krait_classifier_close(krait_classifier **classifier);
KRAIT_API int64_t krait_classifier_n_classes(const krait_classifier *classifier); /* 0 for NULL */
KRAIT_API int64_t krait_classifier_n_frames(const krait_classifier *classifier);
/* Frames spread evenly over the file (an image is repeated), shorter edge resized, center crop, ImageNet's mean and
 * deviation. probabilities (n_classes); frames_at (n_frames): their indices, or NULL. FFmpeg's programs must be
 * installed. */
KRAIT_API int32_t krait_classifier_file(krait_classifier *classifier, const char *path, float *probabilities,
                                        int64_t *frames_at);

/* ---- questions about a video ----
 *   krait_describer_open(ctx, &(krait_describer_options){.size = sizeof(krait_describer_options), .path =
 *     "Mobile-VideoGPT-0.5B"}, &describer);
 *   krait_describer_load(describer, "film.mp4", &film);
 *   krait_describer_ask(describer, "What happens?", NULL, &session);
 *   while (!krait_lm_is_done(session)) krait_lm_step(&session, 1), text = krait_lm_text(session, &n_bytes);  */
typedef struct krait_describer krait_describer;

typedef struct krait_describer_options {
  uint32_t size;
  int32_t reserved;
  const char *path; /* the model's folder. Towers missing from its weights may be in it as clip-vit-base-patch16/ and
                       videomamba_m16_25M_f8_res224.pth */
  const char *tokenizer_path; /* tokenizer.json; NULL: the one beside the weights */
} krait_describer_options;

/* The part of a video that the model saw. */
#define KRAIT_FILM_FRAMES 16
#define KRAIT_FILM_CHOSEN 8
typedef struct krait_video_info {
  uint32_t size;
  int32_t n; /* frames used; fewer than 16 if the video has fewer: the rest are black, the model's own padding */
  int64_t n_frames;                  /* of the video */
  double fps;                        /* 0: unknown */
  int64_t at[KRAIT_FILM_FRAMES];     /* their indices */
  double score[KRAIT_FILM_FRAMES];   /* the attention that it receives from the frames of its half */
  int32_t chosen[KRAIT_FILM_CHOSEN]; /* those of the 16 that the video tower saw */
  double decode_s, encode_s;            /* decoding; towers and projectors */
} krait_video_info;

/* ctx must outlive the describer, which belongs to one thread at a time. */
KRAIT_API int32_t krait_describer_open(const krait_ctx *ctx, const krait_describer_options *options,
                                       krait_describer **describer);
KRAIT_API void krait_describer_close(krait_describer **describer);
/* One frame per second, at most 16, spread evenly; all later questions are about this video. FFmpeg's programs must
 * be installed. film may be NULL. After an error there is no video: krait_describer_ask and _sheet refuse until one has
 * been read, which may be the same. */
KRAIT_API int32_t krait_describer_load(krait_describer *describer, const char *path, krait_video_info *film);
/* A contact sheet of the frames as PNG; those that the video tower saw have a border. */
KRAIT_API int32_t krait_describer_contact_sheet(const krait_describer *describer, const char *png_path);
/* Reads video and question; krait_lm_step then generates the answer. A describer has one session at a time, which must
 * be closed before it. sampling may be NULL: greedy decoding. After an error there is no session, and the video is
 * still known: the call may be repeated. For the session what language.h says holds, but after krait_lm_reset it is an
 * empty one, without the video: ask again instead. */
KRAIT_API int32_t krait_describer_ask(krait_describer *describer, const char *question,
                                      const krait_lm_sampling *sampling, krait_lm_session **session);

/* Random weights of Mobile-VideoGPT-0.5B's sizes, for krait bench describe. */
typedef struct krait_describer_timing {
  uint32_t size;
  int32_t n_prompt; /* tokens and rows */
  double open_s;
  double encode_s; /* from 16 decoded and resized frames to the video's rows: both towers, frame selection, projectors;
                    the best of three */
  double prefill_s;  /* the prompt, with its logits on the host; the best of three */
  double token_s;   /* a token, with argmax on the host, median */
  uint64_t bytes;   /* of weights */
} krait_describer_timing;
/* dtype: KRAIT_F32, KRAIT_F16 or KRAIT_BF16. */
KRAIT_API int32_t krait_describer_measure(const krait_ctx *ctx, int32_t dtype, int64_t n_tokens,
                                          krait_describer_timing *timing);

/* ---- a single tower with random weights of the published sizes, for krait bench videomamba and clip ---- */
typedef struct krait_tower_timing {
  uint32_t size;        /* sizeof(krait_tower_timing) */
  int32_t n_runs;
  int64_t n_tokens;     /* of all images or frames */
  double open_s;
  double run_s, best_s; /* median and best: from pixels in host memory to VideoMamba's classes in host memory, or to
                           CLIP's features on the context's device */
  double cpu_s;         /* least processor time of a run, summed over threads, which other load on the machine disturbs
                           less */
  double flops, bytes;  /* the minimum that the operators of a run must do */
  double product_flops_per_s, product_flops_per_cpu_s; /* of one large matrix product, alternating with the runs; the
                                                          second per processor time, 0 on a GPU */
  uint64_t weight_bytes, work_bytes;
} krait_tower_timing;
typedef void (*krait_tower_report_fn)(void *user, const char *line);
/* name: videomamba-t16, -s16 or -m16, with 400 classes and a clip of n frames; or clip-vit-base-patch32, -base-patch16,
 * -large-patch14 or -large-patch14-336, with n images and all layers. dtype of the weights: KRAIT_F32, KRAIT_F16 or
 * KRAIT_BF16. report: NULL, or called with a line for each operator and its time. */
KRAIT_API int32_t krait_tower_measure(const krait_ctx *ctx, const char *name, int32_t dtype, int64_t n, int32_t n_runs,
                                      krait_tower_report_fn report, void *user, krait_tower_timing *timing);

/* ---- SeedVR: a block of the transformer with the published sizes and random weights ---- */
typedef struct krait_seedvr_shape {
  uint32_t size;                   /* sizeof(krait_seedvr_shape) */
  int32_t variant;                 /* 3 or 7, as in 3B and 7B */
  int64_t n_frames, width, height; /* of the clip; 58 tokens of text */
} krait_seedvr_shape;
typedef struct krait_seedvr_timing {
  uint32_t size;                        /* sizeof(krait_seedvr_timing) */
  int32_t n_runs;
  double block_s, best_s; /* one block: median and best of the runs; half of a pair with plain and shifted windows */
  double flops;                         /* per block: products and attention */
  int64_t n_tokens;                     /* of the video */
  int64_t n_windows[2], longest[2];     /* plain, shifted; tokens of the longest window including the text */
  uint64_t weight_bytes, work_bytes;    /* of a block; everything else that a run needs */
} krait_seedvr_timing;
/* dtype: float32, or on a GPU float16 or bfloat16. Runs for about budget_s, at least once. report: NULL, or called with
 * a line for each operator of both blocks and its time. */
typedef void (*krait_seedvr_report_fn)(void *user, const char *line);
KRAIT_API int32_t krait_seedvr_measure(const krait_ctx *ctx, const krait_seedvr_shape *shape, int32_t dtype,
                                       double budget_s, krait_seedvr_report_fn report, void *user,
                                       krait_seedvr_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
