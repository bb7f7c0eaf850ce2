/* restorer.h: the parts of a restoration: models found in a folder, batches of frames, films, finished batches beside
 * the result. */
#ifndef KR_RESTORER_H
#define KR_RESTORER_H

#include <krait/restore.h>

#include "seedvr/seedvr_frames.h"
#include "seedvr/seedvr_restore.h"

static const uint64_t KR_HOST_MOST = (uint64_t)4 << 30;
enum { KR_FRAMES_PER_BATCH = 21 }; /* at most, where no number is given */

struct krait_restorer {
  const krait_ctx *ctx;
  kr_restore_models models;
  int is_v1; /* SeedVR: many steps with guidance */
  kr_weights *dit; /* a GPU's weights are copied when they are needed */
  uint64_t memory_bytes; /* as given */
  uint64_t host_most;    /* where batches may be shorter so that the host needs no more: KR_HOST_MOST */
  char plan[320];
};

/* ---- options with every default filled in (restorer.c) ---- */
typedef struct kr_restore_choices {
  krait_restore_options o;
  int is_batch_free; /* no number of frames was given */
  kr_restore_settings settings;
  kr_frame_rule rule;
  int32_t colour;
} kr_restore_choices;
int32_t kr_restore_choose(const krait_restorer *r, const krait_restore_options *given, kr_restore_choices *plan);
/* Plans the memory of batches of this size: r->plan, r->models.plan. On a GPU a free batch becomes shorter if the host
 * needs less than r->host_most then, or if a longer one does not fit. */
int32_t kr_restore_plan_batches(krait_restorer *r, kr_restore_choices *plan, const kr_frame_size *size);
/* Of the host, for a batch: frames, the autoencoder's weights on their way to a GPU, and what the plan puts there. */
uint64_t kr_restore_host_bytes(const krait_restorer *r, const kr_restore_choices *plan, const kr_frame_size *size);

/* ---- batches (restore_batches.c): frames go in one by one, and come out restored in order ---- */
/* rgb: (out_h,out_w,3) of the samples asked for; before: what it was made of, (H,W,3) in -1..1. */
typedef int32_t (*kr_frame_out_fn)(void *user, const kr_frame_size *size, const void *rgb, const float *before);
typedef struct kr_batches kr_batches;
typedef struct kr_batch_part { /* a finished batch: its frames as samples, and the end that the next one blends with */
  int64_t n_frames, n_tail;
  uint8_t *rgb;
  float *tail;
} kr_batch_part;
typedef struct kr_batches_use {
  krait_restorer *r;
  kr_restore_choices *plan; /* kr_batches_open chooses the number of frames, where it is free */
  int samples; /* KR_SAMPLES_8 and so on: of what comes out */
  kr_frame_out_fn out;
  int32_t (*known)(void *user, kr_batch_part *part, int *found); /* the next batch, if it is already there; or NULL */
  int32_t (*finished)(void *user, const kr_batch_part *part);    /* before its frames go out; or NULL */
  int32_t (*progress)(void *user, int stage, double share);   /* or NULL */
  void *user;
} kr_batches_use;
int32_t kr_batches_open(const kr_batches_use *use, int64_t h, int64_t w, kr_batches **batches);
void kr_batches_close(kr_batches **batches);
const kr_frame_size *kr_batches_size(const kr_batches *batches);
int32_t kr_batches_add(kr_batches *batches, const uint8_t *rgb);
int32_t kr_batches_add_floats(kr_batches *batches, const float *rgb); /* 0..1 */
/* How many frames come out while so many more go in. */
int64_t kr_batches_due(const kr_batches *batches, int64_t n_more);
int64_t kr_batches_held(const kr_batches *batches); /* those that kr_batches_end gives out */
int32_t kr_batches_end(kr_batches *batches); /* after the last frame */
/* Batches, those that were already there, seconds in each stage. */
void kr_batches_report(const kr_batches *batches, krait_restore_info *info);

/* ---- verifying (restore_verify.c, restore_verify_parts.c) ---- */
typedef struct kr_verify_sink { /* where compared outputs go */
  const krait_ctx *ctx;
  krait_verify_result *rows;
  int32_t n_rows, *n_filled;
} kr_verify_sink;
/* What stands around the models: recorded frames, resized; colours; joins; the sampler's times and guidance. */
int32_t kr_restore_verify_parts(const kr_verify_sink *to, const kr_weights *golden);
/* Without texts, which golden files have themselves. */
int32_t kr_restorer_open_models(const krait_ctx *ctx, const krait_restorer_options *options,
                                krait_restorer **restorer);

/* ---- finished batches in a file (restore_parts.c) ---- */
typedef struct kr_parts kr_parts;
/* Beside the result; what another film or other options left there is not used. key: what they depend on. */
int32_t kr_parts_open(const char *out_path, const char *key, const kr_frame_size *size, int samples, kr_parts **parts);
/* The next finished batch, valid until the next call; *found 0: there is none. */
int32_t kr_parts_next(kr_parts *parts, kr_batch_part *part, int *found);
int32_t kr_parts_add(kr_parts *parts, const kr_batch_part *part);
void kr_parts_close(kr_parts **parts, int is_complete); /* complete: the file is removed */

#endif
