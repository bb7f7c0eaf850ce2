/* feed.h: a training run's batches: samples and their spectra, made from recordings on a separate thread while the
 * previous step runs. */
#ifndef KR_FEED_H
#define KR_FEED_H

#include "ctx.h"
#include "data.h"
#include "stft.h"
#include "trainer.h"

/* Buffers for one batch, and its transform. */
typedef struct kr_batch_buffers {
  int64_t B, F, T, N;
  float *noisy, *clean, *com_in, *com, *mag, *pha;
  const kr_cuda *cuda; /* whose host memory the buffers are in; NULL: ordinary memory */
  kr_pool *pool;
  kr_stft *stft;
} kr_batch_buffers;
/* Spectra of F bins, hops of (F - 1) / 2 samples; pool is kept, not owned. For steps on a GPU (cuda) the buffers are
 * such as the driver copies from directly. */
int32_t kr_batch_open(const kr_cuda *cuda, int64_t B, int64_t F, int64_t N, kr_pool *pool, kr_batch_buffers *buffers);
void kr_batch_close(kr_batch_buffers *buffers);
/* From noisy and clean, (B,N): the batch points into the buffers. */
int32_t kr_batch_make(kr_batch_buffers *buffers, kr_batch *batch);

typedef struct kr_feed kr_feed;
/* Starts at the position set by kr_data_begin; the data belong to the feed until it is closed. */
int32_t kr_feed_open(const krait_ctx *ctx, kr_data *data, int64_t B, int64_t F, kr_feed **feed);
void kr_feed_close(kr_feed **feed);
/* The next step's batch, valid until the next call. Fails like kr_data_next. */
int32_t kr_feed_next(kr_feed *feed, kr_batch *batch);

#endif
