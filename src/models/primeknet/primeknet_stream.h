/* primeknet_stream.h: a PrimeKnet that streams (MODEL.md section 6): chunks of frames with states between them. */
#ifndef KR_PRIMEKNET_STREAM_H
#define KR_PRIMEKNET_STREAM_H

#include "graph.h"
#include "primeknet.h"

/* Frames at a time: of sound as it comes, of whole windows on a CPU (its caches hold them) and on a GPU. */
enum { KR_PK_LIVE_CHUNK = 2, KR_PK_WINDOW_CHUNK = 8, KR_PK_WINDOW_CHUNK_GPU = 64 };

/* One timeline, `chunk` frames at a time. */
typedef struct pk_chunks pk_chunks;
int32_t pk_chunks_open(const kr_primeknet *model, int64_t chunk, pk_chunks **chunks);
void pk_chunks_close(pk_chunks **chunks);
int64_t pk_chunks_size(const pk_chunks *c);
const kr_graph *pk_chunks_graph(const pk_chunks *c);
int32_t pk_chunks_reset(void *chunks); /* what comes next is the beginning */
/* The next n <= chunk frames, from number `first` of (F,T,2) to the same of mag and pha (F,T); either may be NULL.
 * Behind fewer than a chunk only a reset may follow. */
int32_t pk_chunks_run(void *chunks, const float *com_in, int64_t T, int64_t first, int64_t n, float *mag, float *pha);

#endif
