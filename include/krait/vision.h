/* vision.h: what a film or a picture shows: classes by VideoMamba, answers in words by Mobile-VideoGPT; how long
 * the towers and SeedVR's blocks take. */
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
/* Frames spread evenly over the file (a picture: the same one each time), shorter edge resized, the middle cut out,
 * ImageNet's mean and deviation. probabilities (n_classes); frames_at (n_frames): their indices, or NULL. FFmpeg's
 * libavfilter must be installed. */
KRAIT_API int32_t krait_classifier_file(krait_classifier *classifier, const char *path, float *probabilities,
                                        int64_t *frames_at);

/* ---- questions about a film ----
 *   krait_describer_open(ctx, &(krait_describer_options){.size = sizeof(krait_describer_options), .path =
 *     "Mobile-VideoGPT-0.5B"}, &describer);
 *   krait_describer_film(describer, "film.mp4", &film);
 *   krait_describer_ask(describer, "What happens?", NULL, &session);
 *   while (!krait_lm_is_done(session)) krait_lm_step(&session, 1), text = krait_lm_text(session, &n_bytes);  */
typedef struct krait_describer krait_describer;

typedef struct krait_describer_options {
  uint32_t size;
  int32_t reserved;
  const char *path; /* the model's folder. Towers that its weights do not hold may lie in it as clip-vit-base-patch16/
                       and videomamba_m16_25M_f8_res224.pth */
  const char *tokenizer_path; /* tokenizer.json; NULL: the one beside the weights */
} krait_describer_options;

/* What of a film the model saw. */
#define KRAIT_FILM_FRAMES 16
#define KRAIT_FILM_CHOSEN 8
typedef struct krait_film {
  uint32_t size;
  int32_t n; /* frames that were looked at; fewer than 16 of a film with fewer: black ones, as the model's own padding,
                stand for the others */
  int64_t n_frames;                  /* of the film */
  double fps;                        /* 0: not known */
  int64_t at[KRAIT_FILM_FRAMES];     /* which they are */
  double score[KRAIT_FILM_FRAMES];   /* how much attention the frames of its half pay to it */
  int32_t chosen[KRAIT_FILM_CHOSEN]; /* those that the video tower saw, of the 16 */
  double read_s, look_s;             /* decoding; towers and projectors */
} krait_film;

/* ctx must outlive the describer, which belongs to one thread at a time. */
KRAIT_API int32_t krait_describer_open(const krait_ctx *ctx, const krait_describer_options *options,
                                       krait_describer **describer);
KRAIT_API void krait_describer_close(krait_describer **describer);
/* One frame a second, 16 at most, spread evenly; all questions are then about this film. FFmpeg's libavfilter must be
 * installed. film may be NULL. */
KRAIT_API int32_t krait_describer_film(krait_describer *describer, const char *path, krait_film *film);
/* The frames side by side as PNG, those that the video tower saw in a frame of their own. */
KRAIT_API int32_t krait_describer_sheet(const krait_describer *describer, const char *png_path);
/* Reads film and question; the answer is drawn by krait_lm_step. A describer has one session at a time, which must be
 * closed before it. sampling may be NULL: the likeliest token. */
KRAIT_API int32_t krait_describer_ask(krait_describer *describer, const char *question,
                                      const krait_lm_sampling *sampling, krait_lm_session **session);

/* Random weights of Mobile-VideoGPT-0.5B's sizes, for krait bench describe. */
typedef struct krait_describer_timing {
  uint32_t size;
  int32_t n_prompt; /* tokens and rows */
  double open_s;
  double look_s;    /* from 16 decoded and resized frames to the film's rows: both towers, the choice of frames,
                       projectors; the best of three */
  double read_s;    /* the prompt, with its logits on the host; the best of three */
  double token_s;   /* a token with the likeliest on the host, median */
  uint64_t bytes;   /* of weights */
} krait_describer_timing;
/* dtype: KRAIT_F32, KRAIT_F16 or KRAIT_BF16. */
KRAIT_API int32_t krait_describer_measure(const krait_ctx *ctx, int32_t dtype, int64_t n_tokens,
                                          krait_describer_timing *timing);

/* ---- a tower by itself, with random weights of the published sizes, for krait bench videomamba and clip ---- */
typedef struct krait_tower_timing {
  uint32_t size;        /* sizeof(krait_tower_timing) */
  int32_t n_runs;
  int64_t n_tokens;     /* of all pictures or frames */
  double open_s;
  double run_s, best_s; /* median and least: from pixels in host memory to VideoMamba's classes there, or to the
                           features of CLIP where the context computes */
  double cpu_s;         /* least processor time of a run, all threads together, which a busy machine disturbs less */
  double flops, bytes;  /* what the operators of a run must do at least */
  double product_flops_per_s, product_flops_per_cpu_s; /* of one large product, in turn with the runs; the second in
                                                          processor time, 0 on a GPU */
  uint64_t weight_bytes, work_bytes;
} krait_tower_timing;
typedef void (*krait_tower_report_fn)(void *user, const char *line);
/* name: videomamba-t16, -s16 or -m16, with 400 classes and n frames of a clip; or clip-vit-base-patch32, -base-patch16,
 * -large-patch14 or -large-patch14-336, with n pictures and all layers. dtype: of the weights: KRAIT_F32, KRAIT_F16 or
 * KRAIT_BF16. report: NULL, or a line for each operator, with its time. */
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
  double block_s,
      best_s; /* a block: median and least of the runs, half of one with plain and one with shifted windows */
  double flops;                         /* of a block: products and attention */
  int64_t n_tokens;                     /* of the video */
  int64_t n_windows[2], longest[2];     /* plain, shifted; tokens of the longest with the text */
  uint64_t weight_bytes, work_bytes;    /* of a block; all else that a run needs */
} krait_seedvr_timing;
/* dtype: float32, or on a GPU float16 or bfloat16. Runs for about budget_s, at least once. report: NULL, or a line for
 * each operator of both blocks, with its time. */
typedef void (*krait_seedvr_report_fn)(void *user, const char *line);
KRAIT_API int32_t krait_seedvr_measure(const krait_ctx *ctx, const krait_seedvr_shape *shape, int32_t dtype,
                                       double budget_s, krait_seedvr_report_fn report, void *user,
                                       krait_seedvr_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
