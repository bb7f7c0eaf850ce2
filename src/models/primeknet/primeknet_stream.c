/* primeknet_stream.c: see primeknet_stream.h. The graph is the one of training, with norms by their running statistics
 * and with states. */
#include "primeknet_stream.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "primeknet_graph.h"
#include "status.h"

typedef struct item {
  char name[192];
  kr_dims dims;
  int64_t at, n; /* floats; each begins at a multiple of 16 */
  int is_taken;
} item;

struct pk_streaming {
  const krait_ctx *ctx;
  kr_pk_config config;
  int is_exact;  /* products keep all bits of their factors */
  item *items;
  int64_t n_items, n;
  float *values; /* where graphs compute */
  int32_t status; /* first failure while a graph is recorded */
};

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

/* ---- weights ---- */

static int ends(const char *name, const char *with) {
  const size_t n = strlen(name), m = strlen(with);
  return n >= m && strcmp(name + n - m, with) == 0;
}

static item *find_item(const pk_streaming *s, const char *name) {
  for (int64_t i = 0; i < s->n_items; i++)
    if (strcmp(s->items[i].name, name) == 0) return &s->items[i];
  return NULL;
}

static item *add_item(pk_streaming *s, const char *name, kr_dims dims) {
  item *to = &s->items[s->n_items++];
  *to = (item){.dims = dims, .at = s->n, .n = 1};
  snprintf(to->name, sizeof to->name, "%s", name);
  for (int i = 0; i < dims.n; i++) to->n *= dims.size[i];
  s->n += (to->n + 15) / 16 * 16;
  return to;
}

/* The norm whose running_mean this is, as a factor and a summand; NULL values: only their place. */
static int32_t fold_norm(pk_streaming *s, const kr_weights *weights, const kr_weight *mean_item, float *values) {
  const char *const parts[] = {"running_mean", "running_var", "weight", "bias"};
  const int place = (int)(strlen(mean_item->name) - strlen(parts[0]));
  const int64_t C = mean_item->n_dims == 1 ? mean_item->shape[0] : 0;
  const float *of[4];
  char name[192];
  for (int k = 0; k < 4; k++) {
    snprintf(name, sizeof name, "%.*s%s", place, mean_item->name, parts[k]);
    KR_TRY(kr_weights_take_f32(weights, name, 1, &C, &of[k]));
    for (item *seen = k < 2 ? find_item(s, name) : NULL; seen; seen = NULL) seen->is_taken = 1;
  }
  for (int k = 0; k < 2; k++) {
    snprintf(name, sizeof name, "%.*s%s", place, mean_item->name, k ? "shift" : "scale");
    const item *to = values ? find_item(s, name) : add_item(s, name, KR_DIMS(C));
    for (int64_t c = 0; c < C && values; c++) {
      KR_CHECK(of[1][c] >= 0, KRAIT_ERR_WEIGHTS, "tensor '%.*srunning_var' is negative at element %lld", place,
               mean_item->name, (long long)c);
      const double scale = of[2][c] / sqrt((double)of[1][c] + KR_PK_NORM_EPS);
      values[to->at + c] = (float)(k ? of[3][c] - of[0][c] * scale : scale);
    }
  }
  return KRAIT_OK;
}

static int32_t list_items(pk_streaming *s, const kr_weights *weights) {
  const int64_t n = kr_weights_count(weights);
  s->items = kr_alloc_array((size_t)(3 * n + 1), sizeof *s->items);
  KR_CHECK(s->items, KRAIT_ERR_NO_MEMORY, "no memory for a list of weights");
  for (int64_t i = 0; i < n; i++) {
    const kr_weight *w = kr_weights_at(weights, i);
    kr_dims dims = {.n = w->n_dims};
    if (ends(w->name, ".num_batches_tracked")) continue; /* which PyTorch counts and nothing reads */
    KR_CHECK(w->n_dims <= 4 && w->dtype == KRAIT_F32 && strlen(w->name) < sizeof s->items->name, KRAIT_ERR_WEIGHTS,
             "the weights hold a tensor that this configuration does not have: %s", w->name);
    memcpy(dims.size, w->shape, (size_t)w->n_dims * sizeof *w->shape);
    add_item(s, w->name, dims);
  }
  for (int64_t i = 0; i < n; i++)
    if (ends(kr_weights_at(weights, i)->name, ".running_mean"))
      KR_TRY(fold_norm(s, weights, kr_weights_at(weights, i), NULL));
  return KRAIT_OK;
}

static int32_t fill_items(pk_streaming *s, const kr_weights *weights, float *values) {
  for (int64_t i = 0; i < kr_weights_count(weights); i++) {
    const kr_weight *w = kr_weights_at(weights, i);
    const item *to = find_item(s, w->name);
    if (to) memcpy(values + to->at, w->data, (size_t)to->n * sizeof *values);
    if (ends(w->name, ".running_mean")) KR_TRY(fold_norm(s, weights, w, values));
  }
  if (!s->ctx->cuda) return KRAIT_OK;
  KR_TRY(kr_cuda_copy_in(s->ctx->cuda, s->values, values, (size_t)s->n * sizeof *values, NULL));
  return kr_cuda_wait(s->ctx->cuda, NULL);
}

static int32_t place_items(pk_streaming *s, const kr_weights *weights) {
  KR_TRY(list_items(s, weights));
  KR_TRY(get_floats(s->ctx, s->n, &s->values));
  float *const values = s->ctx->cuda ? kr_alloc_array((size_t)s->n + 1, sizeof *values) : s->values;
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a copy of the weights");
  const int32_t status = fill_items(s, weights, values);
  if (values != s->values) kr_free(values);
  return status;
}

/* While a graph is recorded: a weight by its name. */
static kr_tensor weight_of(void *streaming, kr_graph *g, const char *name, kr_dims dims) {
  pk_streaming *s = streaming;
  item *it = find_item(s, name);
  char want[96], has[96];
  int same = it && it->dims.n == dims.n;
  for (int i = 0; same && i < dims.n; i++) same = it->dims.size[i] == dims.size[i];
  if (s->status >= 0 && !it)
    s->status = kr_fail(KRAIT_ERR_WEIGHTS, "tensor '%s' of shape %s is missing", name,
                        kr_shape_format(dims.n, dims.size, want, sizeof want));
  else if (s->status >= 0 && !same)
    s->status = kr_fail(KRAIT_ERR_WEIGHTS, "tensor '%s' has shape %s, the configuration wants %s", name,
                        kr_shape_format(it->dims.n, it->dims.size, has, sizeof has),
                        kr_shape_format(dims.n, dims.size, want, sizeof want));
  if (it) it->is_taken = 1;
  return kr_graph_weight(g, name, KRAIT_F32, dims, it ? s->values + it->at : NULL);
}

/* A graph of so many frames, not planned yet; io names its tensors. */
static int32_t record(pk_streaming *s, int64_t chunk, kr_graph **g, kr_pk_graph *io) {
  KR_TRY(kr_graph_open(g));
  const int64_t F = s->config.F;
  *io = (kr_pk_graph){.com_in = kr_graph_input(*g, "com_in", KRAIT_F32, KR_DIMS(1, F, chunk, 2)),
                      .mag = kr_graph_output(*g, "mag", KRAIT_F32, KR_DIMS(1, F, chunk)),
                      .pha = kr_graph_output(*g, "pha", KRAIT_F32, KR_DIMS(1, F, chunk)),
                      .fixed = weight_of,
                      .has_past = 1};
  s->status = KRAIT_OK;
  kr_pk_graph_record(*g, &s->config, weight_of, s, io);
  KR_TRY(s->status);
  return kr_graph_status(*g);
}

static int32_t check_items(pk_streaming *s) {
  kr_graph *g = NULL;
  kr_pk_graph io;
  char shape[96];
  const int32_t status = record(s, 1, &g, &io);
  kr_graph_close(&g);
  KR_TRY(status);
  for (int64_t i = 0; i < s->n_items; i++)
    KR_CHECK(s->items[i].is_taken, KRAIT_ERR_WEIGHTS,
             "the weights hold a tensor that this configuration does not have: %s, shape %s", s->items[i].name,
             kr_shape_format(s->items[i].dims.n, s->items[i].dims.size, shape, sizeof shape));
  return KRAIT_OK;
}

int32_t pk_streaming_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                          int32_t precision, pk_streaming **streaming) {
  pk_streaming *s = *streaming = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  s->ctx = ctx, s->config = *config, s->is_exact = precision == KRAIT_PRECISION_FP32;
  int32_t status = place_items(s, weights);
  if (status >= 0) status = check_items(s);
  if (status < 0) pk_streaming_close(streaming);
  return status;
}

void pk_streaming_close(pk_streaming **streaming) {
  pk_streaming *s = *streaming;
  if (!s) return;
  free_floats(s->ctx, s->values);
  kr_free(s->items);
  kr_free(s);
  *streaming = NULL;
}

const kr_pk_config *pk_streaming_config(const pk_streaming *streaming) { return &streaming->config; }

/* ---- chunks ---- */

struct pk_chunks {
  const krait_ctx *ctx;
  int64_t chunk, F;
  kr_graph *g;
  kr_runner *runner;
  float *memory, *host;       /* where the graph computes, and the same on the host: one on a CPU */
  float *com_in, *mag, *pha;  /* of the host's: (F,chunk,2), (F,chunk) each */
};

static int32_t open_parts(const pk_streaming *given, pk_chunks *c) {
  pk_streaming recorded = *given; /* a model is shared by its sessions: what recording notes is not */
  const int64_t plane = c->F * c->chunk;
  kr_pk_graph io;
  recorded.items = kr_alloc_array((size_t)given->n_items + 1, sizeof *given->items);
  KR_CHECK(recorded.items, KRAIT_ERR_NO_MEMORY, "no memory for a list of weights");
  memcpy(recorded.items, given->items, (size_t)given->n_items * sizeof *given->items);
  const int32_t status = record(&recorded, c->chunk, &c->g, &io);
  kr_free(recorded.items);
  KR_TRY(status);
  KR_TRY(kr_graph_plan(c->g, c->ctx, given->is_exact ? 0 : KR_PLAN_TF32));
  KR_TRY(kr_runner_open(c->g, &c->runner));
  KR_TRY(get_floats(c->ctx, 4 * plane, &c->memory));
  c->host = c->ctx->cuda ? kr_alloc_array((size_t)plane, 4 * sizeof *c->host) : c->memory;
  KR_CHECK(c->host, KRAIT_ERR_NO_MEMORY, "no memory for chunks of %lld frames", (long long)c->chunk);
  c->com_in = c->host, c->mag = c->host + 2 * plane, c->pha = c->host + 3 * plane;
  KR_TRY(kr_runner_bind(c->runner, io.com_in, c->memory));
  KR_TRY(kr_runner_bind(c->runner, io.mag, c->memory + 2 * plane));
  return kr_runner_bind(c->runner, io.pha, c->memory + 3 * plane);
}

int32_t pk_chunks_open(const pk_streaming *streaming, int64_t chunk, pk_chunks **chunks) {
  pk_chunks *c = *chunks = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  c->ctx = streaming->ctx, c->chunk = chunk, c->F = streaming->config.F;
  const int32_t status = open_parts(streaming, c);
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

int32_t pk_chunks_reset(pk_chunks *c) { return kr_runner_reset(c->runner, NULL); }

int32_t pk_chunks_run(pk_chunks *c, const float *com_in, int64_t T, int64_t first, int64_t n, float *mag, float *pha) {
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
