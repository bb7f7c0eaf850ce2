/* restore.h: restores films and pictures with SeedVR and SeedVR2.
 *
 *   krait_restorer_open(ctx, &(krait_restorer_options){.size = sizeof(krait_restorer_options), .path = "SeedVR2-3B"},
 *     &restorer);
 *   krait_restorer_file(restorer, "old.mp4", "new.mp4", &(krait_restore_options){.size = sizeof(krait_restore_options),
 *     .width = 1280, .height = 720}, NULL); */
#ifndef KRAIT_RESTORE_H
#define KRAIT_RESTORE_H

#include <krait/enhance.h>
#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_restorer krait_restorer;

typedef struct krait_restorer_options {
  uint32_t size;
  uint32_t precision; /* KRAIT_PRECISION_FP32: float32 also on a GPU, which otherwise (from 8.0 on) takes bfloat16 */
  const char *path; /* a folder with the transformer (seedvr*.pth or .safetensors), the autoencoder (*vae*.pth or
                       .safetensors), and pos_emb.pt and neg_emb.pt (or text.safetensors) */
  const char *dit_path, *vae_path; /* instead of those in the folder; or NULL */
  uint64_t memory_bytes; /* at most so much of the device's memory (on a CPU: of weights and work); 0: what is free */
} krait_restorer_options;

/* ctx must outlive the restorer, which belongs to one thread at a time. */
KRAIT_API int32_t krait_restorer_open(const krait_ctx *ctx, const krait_restorer_options *options,
                                      krait_restorer **restorer);
KRAIT_API void krait_restorer_close(krait_restorer **restorer);

enum { KRAIT_RESTORE_STAGES = 3 };
typedef struct krait_restore_progress {
  uint32_t size;
  int32_t stage;               /* of the current batch: 0 encode, 1 sample, 2 decode */
  double share;                /* of this stage, 0 to 1 */
  int64_t n_done, n_frames;    /* frames written; of the film, 0 if it does not say */
  const char *plan;            /* for people: how this film uses the memory */
} krait_restore_progress;

/* Zero is the default of everything. */
typedef struct krait_restore_options {
  uint32_t size;
  int32_t is_padded;           /* black borders to a multiple of 16, cut off afterwards, instead of a crop */
  int64_t width, height;       /* of the result: its area; the aspect ratio stays. Default 1280 x 720 */
  int64_t shorter, longest;    /* or the shorter side, and the longer one's limit */
  int64_t frames_per_batch;    /* rounded up to 4 n + 1; default 21, on a GPU fewer if the host needs over 4 GiB */
  int64_t overlap;             /* frames shared by two batches, blended */
  int64_t tile, tile_overlap;  /* pixels: a larger frame goes through the autoencoder in tiles; 0: whole. Default 128 */
  int64_t steps;               /* default: 1 for SeedVR2, 50 for SeedVR */
  double scale;                /* of guidance; default 1, or 6.5 */
  double rescale;
  double condition_noise;      /* default 0, or 0.1 for SeedVR */
  uint64_t seed;               /* default 666 */
  const char *colour;          /* "wavelet" (NULL), "adain", "lab" or "none" */
  int32_t quality;             /* constant rate factor of the encoder; default 14 */
  int32_t is_ten_bits, is_hevc;
  int32_t keep;                /* when ended early, the film so far is kept */
  int32_t resume;              /* finished batches are kept beside the result until it is complete, and used again */
  int32_t reserved;
  /* A status other than 0 ends the work with KRAIT_ERR_CANCELLED. */
  int32_t (*progress)(void *user, const krait_restore_progress *progress);
  void *user;
  const char *plot_path;       /* of a film or picture: PNG of the frame in the middle, before and after; or NULL */
} krait_restore_options;

typedef struct krait_restore_info {
  uint32_t size;
  int32_t n_batches;
  int64_t n_frames;                       /* written */
  int64_t from_width, from_height, width, height;
  int64_t cropped_width, cropped_height;  /* of the resized frames, not used */
  double fps;
  double stage_s[KRAIT_RESTORE_STAGES], seconds;
  uint64_t device_bytes, host_bytes;      /* planned memory: of the device; of the host, for a batch */
  int32_t n_resumed;                      /* batches that were already there */
  char note[256];                         /* what is different from the film that was read; or empty */
} krait_restore_info;

/* A film or a picture; out_path ends in .mp4, .mov or .mkv, in .png for a picture, or has a %d (frames/%05d.png).
 * FFmpeg's programs must be installed. options and info may be NULL. */
KRAIT_API int32_t krait_restorer_file(krait_restorer *restorer, const char *in_path, const char *out_path,
                                      const krait_restore_options *options, krait_restore_info *info);
/* The size of the result of frames of width x height. */
KRAIT_API int32_t krait_restorer_size(const krait_restore_options *options, int64_t width, int64_t height,
                                      int64_t *out_width, int64_t *out_height);
/* Frames in, frames out, of a film of any length: KRAIT_U8, or KRAIT_F32 in 0..1, (n,height,width,3) in and
 * (n,out_height,out_width,3) out. A stream uses its restorer; close it first. After a failure for another reason than
 * its arguments it takes no more frames. */
typedef struct krait_restore_stream krait_restore_stream;
KRAIT_API int32_t krait_restore_stream_open(krait_restorer *restorer, const krait_restore_options *options,
                                            int32_t dtype, int64_t width, int64_t height,
                                            krait_restore_stream **stream);
KRAIT_API void krait_restore_stream_close(krait_restore_stream **stream);
/* How many frames at most are inside: room for so many more than go in is always enough. */
KRAIT_API int64_t krait_restore_stream_latency(const krait_restore_stream *stream);
/* Takes n frames and returns those that are done: n_out, 0 most of the time. room: of out, in frames; if it is too
 * small, no frame is taken. */
KRAIT_API int32_t krait_restore_stream_push(krait_restore_stream *stream, const void *frames, int64_t n, void *out,
                                            int64_t room, int64_t *n_out);
/* The remaining frames. The stream can then start with another film. */
KRAIT_API int32_t krait_restore_stream_finish(krait_restore_stream *stream, void *out, int64_t room, int64_t *n_out);
/* n frames (n,height,width,3) of bytes to (n,out_height,out_width,3). */
KRAIT_API int32_t krait_restorer_frames(krait_restorer *restorer, const krait_restore_options *options, int64_t n,
                                        int64_t height, int64_t width, const uint8_t *rgb, uint8_t *out);
/* As krait_verify, with the golden file of a whole restoration (with the texts of the file), or of what stands around
 * the models, which needs none. */
KRAIT_API int32_t krait_restorer_verify(const krait_ctx *ctx, const krait_restorer_options *options,
                                        const char *golden_path, krait_verify_result *rows, int32_t n_rows,
                                        int32_t *n_filled);

#ifdef __cplusplus
}
#endif
#endif
