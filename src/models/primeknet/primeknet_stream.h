/* primeknet_stream.h: a PrimeKnet that streams (MODEL.md section 6): chunks of frames with states between them, and
 * sound as it comes. */
#ifndef KR_PRIMEKNET_STREAM_H
#define KR_PRIMEKNET_STREAM_H

#include "graph.h"
#include "primeknet.h"
#include "stft.h"

/* Frames at a time: of sound as it comes, of whole windows on a CPU (its caches hold them) and on a GPU. */
enum { KR_PK_LIVE_CHUNK = 2, KR_PK_WINDOW_CHUNK = 8, KR_PK_WINDOW_CHUNK_GPU = 64 };

/* One timeline, `chunk` frames at a time. */
typedef struct pk_chunks pk_chunks;
int32_t pk_chunks_open(const kr_primeknet *model, int64_t chunk, pk_chunks **chunks);
void pk_chunks_close(pk_chunks **chunks);
int64_t pk_chunks_size(const pk_chunks *c);
const kr_graph *pk_chunks_graph(const pk_chunks *c);
int32_t pk_chunks_reset(pk_chunks *c); /* what comes next is the beginning */
/* The next n <= chunk frames, from number `first` of (F,T,2) to the same of mag and pha (F,T); either may be NULL.
 * Behind fewer than a chunk only a reset may follow. */
int32_t pk_chunks_run(pk_chunks *c, const float *com_in, int64_t T, int64_t first, int64_t n, float *mag, float *pha);

/* Sound as it comes: with compressed spectra of this power. */
typedef struct pk_live pk_live;
int32_t pk_live_open(const kr_primeknet *model, kr_pool *pool, int64_t chunk, double power, pk_live **live);
void pk_live_close(pk_live **live);
void pk_live_begin(pk_live *live); /* anew, whatever it has heard */
int64_t pk_live_latency(const pk_live *live);
/* What is due when n samples have been heard since the beginning. */
int64_t pk_live_due(const pk_live *live, int64_t n);
/* out: room for all that becomes due; is_end: for all that is left. Behind that, and behind a
 * failure, it begins anew. */
int32_t pk_live_push(pk_live *live, const float *in, int64_t n, int is_end, float *out, int64_t *n_out);

#endif
