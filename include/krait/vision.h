/* vision.h: videos and images: classification with VideoMamba and Vim, questions with Mobile-VideoGPT. */
#ifndef KRAIT_VISION_H
#define KRAIT_VISION_H

#include <krait/krait.h>
#include <krait/language.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_classifier krait_classifier;

/* Weights as upstream publishes them (.pth) or safetensors; ctx must outlive the classifier, which belongs to one
 * thread at a time. model: of an image's model, whose tensors do not tell it, "vim", "videomamba", or upstream's name
 * of one of their sizes ("vim_tiny_patch16_224_bimambav2_..."); NULL: the name in the file (`args` of a training
 * checkpoint, `model` in the metadata of safetensors). */
KRAIT_API int32_t krait_classifier_open(const krait_ctx *ctx, const char *weights_path, const char *model,
                                        krait_classifier **classifier);
KRAIT_API void krait_classifier_close(krait_classifier **classifier);
KRAIT_API int64_t krait_classifier_n_classes(const krait_classifier *classifier); /* 0 for NULL */
KRAIT_API int64_t krait_classifier_n_frames(const krait_classifier *classifier);
/* Frames spread evenly over the file (an image is repeated), shorter edge resized, center crop (of Vim: 7/8 of it),
 * ImageNet's mean and deviation. probabilities (n_classes); frames_at (n_frames): their indices, or NULL. FFmpeg's
 * programs must be installed. */
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
 * be installed. film may be NULL. After an error there is no video: krait_describer_ask and _contact_sheet refuse until
 * one has been read, which may be the same. */
KRAIT_API int32_t krait_describer_load(krait_describer *describer, const char *path, krait_video_info *film);
/* A contact sheet of the frames as PNG; those that the video tower saw have a border. */
KRAIT_API int32_t krait_describer_contact_sheet(const krait_describer *describer, const char *png_path);
/* Reads video and question; krait_lm_step then generates the answer. A describer has one session at a time, which must
 * be closed before it. sampling may be NULL: greedy decoding. After an error there is no session, and the video is
 * still known: the call may be repeated. For the session what language.h says holds, but after krait_lm_reset it is an
 * empty one, without the video: ask again instead. */
KRAIT_API int32_t krait_describer_ask(krait_describer *describer, const char *question,
                                      const krait_lm_sampling *sampling, krait_lm_session **session);

#ifdef __cplusplus
}
#endif
#endif
