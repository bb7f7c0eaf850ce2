/* primeknet_stream.c: see primeknet_stream.h. The graph is the one of training, with norms by their running statistics
 * and with states. */
#include "primeknet_stream.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "primeknet_model.h"
#include "status.h"

/* ---- memory where graphs compute ---- */

static int32_t get_floats(const krait_ctx *ctx, int64_t n, float **to) {
  const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof **to;
  if (ctx->cuda) return kr_cuda_alloc(ctx->cuda, bytes, (void **)to);
  *to = kr_alloc(bytes);
  KR_CHECK(*to, KRAIT_ERR_NO_MEMORY, "no memory for a model that streams: %zu bytes", bytes);
  return KRAIT_OK;
}
static void free_floats(const krait_ctx *ctx, float *block) {
  if (!block) return;
  if (ctx->cuda) kr_cuda_free(ctx->cuda, block);
  else kr_free(block);
}

/* ---- chunks ---- */

struct pk_chunks {
  const krait_ctx *ctx;
  int64_t chunk, F;
  kr_graph *g;
  kr_runner *runner;
  float *memory, *host;       /* where the graph computes, and the same on the host: one on a CPU */
  float *com_in, *mag, *pha;  /* of the host's: (F,chunk,2), (F,chunk) each */
};

static int32_t open_parts(const kr_primeknet *m, pk_chunks *c) {
  const int64_t plane = c->F * c->chunk;
  kr_tensor io[KR_PK_TENSORS];
  KR_TRY(kr_graph_open(&c->g));
  KR_TRY(pk_model_record(m, pk_parameter_of, 1, c->chunk, KR_PK_MAG | KR_PK_PHA, c->g, io));
  KR_TRY(kr_graph_plan(c->g, c->ctx, KR_PLAN_CONSTANT | (m->is_exact ? 0 : KR_PLAN_TF32)));
  KR_TRY(kr_runner_open(c->g, &c->runner));
  KR_TRY(get_floats(c->ctx, 4 * plane, &c->memory));
  c->host = c->ctx->cuda ? kr_alloc_array((size_t)plane, 4 * sizeof *c->host) : c->memory;
  KR_CHECK(c->host, KRAIT_ERR_NO_MEMORY, "no memory for chunks of %lld frames", (long long)c->chunk);
  c->com_in = c->host, c->mag = c->host + 2 * plane, c->pha = c->host + 3 * plane;
  KR_TRY(kr_runner_bind(c->runner, io[0], c->memory));
  KR_TRY(kr_runner_bind(c->runner, io[1], c->memory + 2 * plane));
  return kr_runner_bind(c->runner, io[2], c->memory + 3 * plane);
}

int32_t pk_chunks_open(const kr_primeknet *model, int64_t chunk, pk_chunks **chunks) {
  pk_chunks *c = *chunks = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  c->ctx = model->ctx, c->chunk = chunk, c->F = model->config.F;
  const int32_t status = open_parts(model, c);
  if (status < 0) pk_chunks_close(chunks);
  return status;
}

void pk_chunks_close(pk_chunks **chunks) {
  pk_chunks *c = *chunks;
  if (!c) return;
  kr_runner_close(&c->runner), kr_graph_close(&c->g);
  if (c->host != c->memory) kr_free(c->host);
  free_floats(c->ctx, c->memory);
  kr_free(c);
  *chunks = NULL;
}

int64_t pk_chunks_size(const pk_chunks *c) { return c->chunk; }

const kr_graph *pk_chunks_graph(const pk_chunks *c) { return c->g; }

int32_t pk_chunks_reset(void *chunks) { return kr_runner_reset(((pk_chunks *)chunks)->runner, NULL); }

int32_t pk_chunks_run(void *chunks, const float *com_in, int64_t T, int64_t first, int64_t n, float *mag, float *pha) {
  pk_chunks *c = chunks;
  const int64_t plane = c->F * c->chunk;
  const kr_cuda *cuda = c->ctx->cuda;
  if (n < c->chunk) memset(c->com_in, 0, (size_t)(2 * plane) * sizeof *c->com_in);
  for (int64_t f = 0; f < c->F; f++)
    memcpy(c->com_in + 2 * f * c->chunk, com_in + 2 * (f * T + first), (size_t)(2 * n) * sizeof *com_in);
  if (cuda) KR_TRY(kr_cuda_copy_in(cuda, c->memory, c->host, (size_t)(2 * plane) * sizeof *c->host, NULL));
  KR_TRY(kr_runner_run(c->runner, NULL));
  if (cuda) {
    KR_TRY(kr_cuda_copy_out(cuda, c->mag, c->memory + 2 * plane, (size_t)(2 * plane) * sizeof *c->host, NULL));
    KR_TRY(kr_cuda_wait(cuda, NULL));
  }
  for (int64_t f = 0; f < c->F; f++) {
    if (mag) memcpy(mag + f * T + first, c->mag + f * c->chunk, (size_t)n * sizeof *mag);
    if (pha) memcpy(pha + f * T + first, c->pha + f * c->chunk, (size_t)n * sizeof *pha);
  }
  return KRAIT_OK;
}
