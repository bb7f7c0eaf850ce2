/* vision.h: what a film or a picture shows, by a model of classes (VideoMamba); how long SeedVR's blocks take. */
#ifndef KRAIT_VISION_H
#define KRAIT_VISION_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_classifier krait_classifier;

/* Weights as upstream publishes them (.pth) or safetensors; ctx must outlive the classifier, which belongs to one thread at a time. */
KRAIT_API int32_t krait_classifier_open(const krait_ctx *ctx, const char *weights_path, krait_classifier **classifier);
KRAIT_API void krait_classifier_close(krait_classifier **classifier);
KRAIT_API int64_t krait_classifier_n_classes(const krait_classifier *classifier); /* 0 for NULL */
KRAIT_API int64_t krait_classifier_n_frames(const krait_classifier *classifier);
/* Frames spread evenly over the file (a picture: the same one each time), shorter edge resized, the middle cut out, ImageNet's mean and deviation.
 * probabilities (n_classes); frames_at (n_frames): their indices, or NULL. FFmpeg's libavfilter must be installed. */
KRAIT_API int32_t krait_classifier_file(krait_classifier *classifier, const char *path, float *probabilities, int64_t *frames_at);

/* ---- SeedVR: a block of the transformer with the published sizes and random weights ---- */
typedef struct krait_seedvr_shape {
  uint32_t size;                   /* sizeof(krait_seedvr_shape) */
  int32_t variant;                 /* 3 or 7, as in 3B and 7B */
  int64_t n_frames, width, height; /* of the clip; 58 tokens of text */
} krait_seedvr_shape;
typedef struct krait_seedvr_timing {
  uint32_t size;                        /* sizeof(krait_seedvr_timing) */
  int32_t n_runs;
  double block_s, best_s;               /* a block: median and least of the runs, half of one with plain and one with shifted windows */
  double flops;                         /* of a block: products and attention */
  int64_t n_tokens;                     /* of the video */
  int64_t n_windows[2], longest[2];     /* plain, shifted; tokens of the longest with the text */
  uint64_t weight_bytes, work_bytes;    /* of a block; all else that a run needs */
} krait_seedvr_timing;
/* dtype: float32, or on a GPU float16 or bfloat16. Runs for about budget_s, at least once. report: NULL, or a line for each operator of both blocks, with its
 * time. */
typedef void (*krait_seedvr_report_fn)(void *user, const char *line);
KRAIT_API int32_t krait_seedvr_measure(const krait_ctx *ctx, const krait_seedvr_shape *shape, int32_t dtype, double budget_s, krait_seedvr_report_fn report, void *user,
                                       krait_seedvr_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
