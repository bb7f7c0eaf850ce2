/* vision.h: what a film or a picture shows, by a model of classes (VideoMamba). */
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

#ifdef __cplusplus
}
#endif
#endif
