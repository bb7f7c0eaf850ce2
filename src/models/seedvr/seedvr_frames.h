/* seedvr_frames.h: what stands before and behind SeedVR's models: frames to its size and values, colours of the result
 * from the input, joins of batches. Films are channels-last (T,H,W,3), float32, in -1..1 where nothing else is said. */
#ifndef KR_SEEDVR_FRAMES_H
#define KR_SEEDVR_FRAMES_H

#include <krait/krait.h>

/* ---- size (seedvr_resize.c) ---- */
enum { KR_FRAME_STEP = 16 }; /* heights and widths are multiples of it */
typedef struct kr_frame_rule {
  int64_t area_h, area_w;    /* both above 0: frames of this area */
  int64_t shorter, longest;  /* else the shorter side; the longer side is at most longest if that is above 0 */
  int is_padded;             /* black below and right, and cut off the result, instead of cropped */
} kr_frame_rule;
typedef struct kr_frame_size {
  int64_t from_h, from_w, scaled_h, scaled_w; /* before and after resizing */
  int64_t top, left, H, W;                    /* the part of it that is used; or, if padded, all and more */
  int64_t out_h, out_w;                       /* of the result */
} kr_frame_size;
int32_t kr_frame_fit(const kr_frame_rule *rule, int64_t h, int64_t w, kr_frame_size *to);

/* Cubic with antialiasing, width first. */
typedef struct kr_resizer kr_resizer;
int32_t kr_resizer_open(const krait_ctx *ctx, const kr_frame_size *size, kr_resizer **resizer);
void kr_resizer_close(kr_resizer **resizer);
/* (from_h,from_w,3) bytes to (scaled_h,scaled_w,3) in 0..1, clamped; valid until the next. */
const float *kr_resizer_run(kr_resizer *resizer, const uint8_t *rgb);
const float *kr_resizer_run_floats(kr_resizer *resizer, const float *rgb); /* of 0..1 */
/* The part of that which is used, in -1..1: (H,W,3). */
void kr_frame_crop(const kr_frame_size *size, const float *scaled, float *frame);
/* What a sample of a result is; the value is its bytes. 8 and 16 bits: 0..1 as all values, floats: 0..1. */
enum { KR_SAMPLES_8 = 1, KR_SAMPLES_16 = 2, KR_SAMPLES_FLOAT = 4 };
/* Clipped, whole numbers rounded half to even: (out_h,out_w,3) of (H,W,3). */
void kr_frame_put(const kr_frame_size *size, const float *frame, int samples, void *rgb);
int64_t kr_frames_padded(int64_t n); /* 4 k + 1; of 2 to 4 frames 5 */

/* ---- colours (seedvr_colour.c) ---- */
enum { KR_COLOUR_WAVELET, KR_COLOUR_ADAIN, KR_COLOUR_LAB, KR_COLOUR_NONE };
int32_t kr_colour_of(const char *name, int32_t *colour); /* "wavelet", "adain", "lab", "none" */
/* The result in place of content; style: the input. size: T, H, W. */
int32_t kr_colour_run(const krait_ctx *ctx, int32_t colour, const int64_t size[3], float *content, const float *style);

/* k frames of a batch's end, and the next batch's first k, n values each, in place of the latter: in 0..1, and so in
 * any range. */
void kr_blend(int64_t k, int64_t n, const float *before, float *after);

#endif
