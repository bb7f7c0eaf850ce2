/* seedvr_vae_slices.c: a film through a side of the autoencoder, some frames at a time: each segment runs as soon as it
 * has the frames of a step, with its convolutions' memories of those before, and hands its result to the next one. So
 * no segment keeps more than a few frames, and the result is that of all frames at once. */
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "seedvr_vae.h"
#include "status.h"

enum { MEMORY_LINE = 256 };

/* Its graphs by part; steps are of one frame, or of two where time is halved. */
typedef struct segment {
  int64_t T, first, more;  /* frames in all, of the first step, of later ones */
  kr_vae_graph graphs[KR_VAE_PARTS];
  char *in, *out, *memory; /* of a step; the convolutions' memories */
  char *host_memory;
  uint64_t host_bytes;
  uint64_t in_bytes, out_bytes, memory_bytes, frame_bytes; /* frame: of what is read */
  int64_t n_in, n_done;    /* frames: waiting, read */
} segment;

typedef struct slicing {
  kr_vae *vae;
  const kr_vae_run *run;
  int is_decoder;
  int64_t n_segments;
  segment segments[KR_VAE_MOST_LEVELS];
  uint64_t arena_bytes, bytes, host_bytes; /* of the largest graph; of everything; of memories on the host */
  char *block, *host_block, *arena;
  float *to; /* where the next frames of the result go */
} slicing;

static int64_t volume(const int64_t size[3]) { return size[0] * size[1] * size[2]; }
static uint64_t whole_lines(uint64_t bytes) { return (bytes + MEMORY_LINE - 1) / MEMORY_LINE * MEMORY_LINE; }

/* ---- the plan ---- */

static void keep_most(uint64_t *most, uint64_t bytes) { *most = bytes > *most ? bytes : *most; }

/* *T: plus the frames of n such steps. */
static int32_t plan_part(slicing *s, int64_t k, int part, const int64_t size[3], int64_t n, int64_t *T) {
  segment *seg = &s->segments[k];
  kr_vae_graph *graph = &seg->graphs[part];
  *graph = (kr_vae_graph){.is_decoder = s->is_decoder, .segment = k, .part = part, .size = {size[0], size[1], size[2]},
                           .host_above = s->run->host_above, .host_to = s->run->host_to};
  KR_TRY(kr_vae_plan_graph(s->vae, graph));
  const kr_dims in = kr_graph_dims(graph->g, graph->in), out = kr_graph_dims(graph->g, graph->out);
  uint64_t memory_bytes[2] = {0};
  seg->frame_bytes = (uint64_t)(in.size[1] * in.size[2] * in.size[3]) *
                     krait_dtype_bytes(kr_graph_dtype(graph->g, graph->in));
  for (int64_t i = 0; i < graph->n_memories; i++)
    memory_bytes[graph->memories[i].is_on_host] += whole_lines(graph->memories[i].bytes);
  keep_most(&seg->in_bytes, whole_lines((uint64_t)size[0] * seg->frame_bytes));
  keep_most(&seg->out_bytes, whole_lines((uint64_t)(volume(graph->out_size) * out.size[3]) *
                                         krait_dtype_bytes(kr_graph_dtype(graph->g, graph->out))));
  keep_most(&seg->memory_bytes, memory_bytes[0]), keep_most(&seg->host_bytes, memory_bytes[1]);
  keep_most(&s->arena_bytes, kr_graph_bytes(graph->g));
  *T += n * graph->out_size[0];
  return KRAIT_OK;
}

static int halves_time(const kr_vae_config *c, int is_decoder, int64_t k) {
  return !is_decoder && k < c->n_levels - 1 && k >= c->n_levels - c->n_time - 1;
}
static int doubles_time(const kr_vae_config *c, int is_decoder, int64_t k) {
  return is_decoder && k >= 1 && k <= c->n_time;
}

/* size: of what the segment reads, then of what it writes. */
static int32_t plan_segment(slicing *s, int64_t k, int64_t size[3]) {
  const kr_vae_config *c = kr_vae_config_of(s->vae);
  segment *seg = &s->segments[k];
  const int is_whole = s->run->is_whole || size[0] == 1, has_second = doubles_time(c, s->is_decoder, k);
  int64_t T = 0;
  seg->T = size[0], seg->first = is_whole ? seg->T : 1, seg->more = halves_time(c, s->is_decoder, k) ? 2 : 1;
  const int64_t n_later = (seg->T - seg->first) / seg->more - has_second;
  const int64_t first[3] = {seg->first, size[1], size[2]}, more[3] = {seg->more, size[1], size[2]};
  KR_TRY(plan_part(s, k, is_whole ? KR_VAE_WHOLE : KR_VAE_FIRST, first, 1, &T));
  if (!is_whole && has_second) KR_TRY(plan_part(s, k, KR_VAE_SECOND, more, 1, &T));
  if (!is_whole && n_later) KR_TRY(plan_part(s, k, KR_VAE_LATER, more, n_later, &T));
  memcpy(size, seg->graphs[is_whole ? KR_VAE_WHOLE : KR_VAE_FIRST].out_size, sizeof first);
  size[0] = T;
  s->bytes += seg->in_bytes + seg->out_bytes + seg->memory_bytes, s->host_bytes += seg->host_bytes;
  return KRAIT_OK;
}

/* size: of what the side reads. */
static int32_t plan_slices(slicing *s, const int64_t size[3]) {
  int64_t of[3] = {size[0], size[1], size[2]};
  s->n_segments = kr_vae_config_of(s->vae)->n_levels;
  for (int64_t k = 0; k < s->n_segments; k++) KR_TRY(plan_segment(s, k, of));
  s->bytes += s->arena_bytes;
  return KRAIT_OK;
}

static int32_t bind_part(const slicing *s, segment *seg, kr_vae_graph *graph) {
  char *at[2] = {seg->memory, seg->host_memory};
  if (!graph->g) return KRAIT_OK;
  KR_TRY(kr_runner_open_in(graph->g, s->arena, s->arena_bytes, &graph->runner));
  KR_TRY(kr_runner_bind(graph->runner, graph->in, seg->in));
  KR_TRY(kr_runner_bind(graph->runner, graph->out, seg->out));
  for (int64_t i = 0; i < graph->n_memories; i++) {
    const kr_vae_memory *memory = &graph->memories[i];
    KR_TRY(kr_runner_bind(graph->runner, memory->is, at[memory->is_on_host]));
    if (memory->was) KR_TRY(kr_runner_bind(graph->runner, memory->was, at[memory->is_on_host]));
    at[memory->is_on_host] += whole_lines(memory->bytes);
  }
  return KRAIT_OK;
}

static char *cut_from(char **at, uint64_t bytes) {
  char *part = *at;
  if (part) *at += bytes;
  return part;
}

static int32_t take_memory(slicing *s) {
  KR_TRY(kr_mem_get(kr_vae_ctx(s->vae), "a part of a film", s->bytes, &s->block));
  if (s->host_bytes) {
    s->host_block = kr_cuda_alloc_host(kr_vae_ctx(s->vae)->cuda, (size_t)s->host_bytes);
    KR_CHECK(s->host_block, KRAIT_ERR_NO_MEMORY, "no page-locked memory of %.1f GiB on the host; give the device more",
             (double)s->host_bytes * 0x1p-30);
  }
  char *at = s->block, *on_host = s->host_block;
  s->arena = cut_from(&at, s->arena_bytes);
  for (int64_t k = 0; k < s->n_segments; k++) {
    segment *seg = &s->segments[k];
    seg->in = cut_from(&at, seg->in_bytes), seg->out = cut_from(&at, seg->out_bytes);
    seg->memory = cut_from(&at, seg->memory_bytes), seg->host_memory = cut_from(&on_host, seg->host_bytes);
    for (int i = 0; i < KR_VAE_PARTS; i++) KR_TRY(bind_part(s, seg, &seg->graphs[i]));
  }
  return KRAIT_OK;
}

/* ---- steps ---- */

static int32_t give_frames(slicing *s, int64_t k, const void *from, int64_t n);

/* Of the frames after those that are done. */
static const kr_vae_graph *next_graph(const segment *seg) {
  const int part = !seg->n_done ? KR_VAE_FIRST : seg->n_done == 1 ? KR_VAE_SECOND : KR_VAE_LATER;
  if (seg->graphs[KR_VAE_WHOLE].g) return &seg->graphs[KR_VAE_WHOLE];
  return &seg->graphs[seg->graphs[part].g ? part : KR_VAE_LATER];
}

static int32_t run_step(slicing *s, int64_t k) {
  segment *seg = &s->segments[k];
  const kr_vae_graph *graph = next_graph(seg);
  KR_TRY(kr_runner_run(graph->runner, NULL));
  seg->n_done += graph->size[0], seg->n_in = 0;
  kr_vae_add_flops(s->vae, graph->flops);
  if (k + 1 < s->n_segments) return give_frames(s, k + 1, seg->out, graph->out_size[0]);
  const int64_t n = volume(graph->out_size) * kr_graph_dims(graph->g, graph->out).size[3];
  s->to += n;
  return kr_mem_read(kr_vae_ctx(s->vae), s->to - n, seg->out, (uint64_t)n * sizeof *s->to);
}

/* n frames for segment k: of host memory for the first one, else of the one before. */
static int32_t give_frames(slicing *s, int64_t k, const void *from, int64_t n) {
  segment *seg = &s->segments[k];
  const krait_ctx *ctx = kr_vae_ctx(s->vae);
  for (const char *at = from; n > 0;) {
    const int64_t step = seg->n_done ? seg->more : seg->first, left = step - seg->n_in, now = n < left ? n : left;
    const uint64_t bytes = (uint64_t)now * seg->frame_bytes;
    char *to = seg->in + (uint64_t)seg->n_in * seg->frame_bytes;
    KR_TRY(k ? kr_mem_copy(ctx, to, at, bytes) : kr_mem_put(ctx, to, at, bytes));
    at += bytes, n -= now, seg->n_in += now;
    if (now == left) KR_TRY(run_step(s, k));
  }
  return KRAIT_OK;
}

static int32_t run_all_frames(slicing *s, const float *from, float *to) {
  const segment *seg = &s->segments[0];
  s->to = to;
  for (int64_t t = 0, n; t < seg->T; t += n) {
    n = t ? seg->more : seg->first;
    KR_TRY(give_frames(s, 0, (const char *)from + (uint64_t)t * seg->frame_bytes, n));
    if (s->run->progress) KR_TRY(s->run->progress(s->run->user, (double)(t + n) / (double)seg->T));
  }
  return KRAIT_OK;
}

static int32_t print_segments(const slicing *s) {
  for (int64_t k = 0; s->run->line && k < s->n_segments; k++) {
    const kr_vae_graph *graph = next_graph(&s->segments[k]);
    if (!graph->g) continue;
    KR_TRY(kr_runner_profile(graph->runner, NULL));
    KR_TRY(kr_graph_print(graph->g, graph->runner, s->run->line, s->run->user));
  }
  return KRAIT_OK;
}

static void end_slices(slicing *s) {
  for (int64_t k = 0; k < s->n_segments; k++)
    for (int i = 0; i < KR_VAE_PARTS; i++) kr_vae_graph_close(&s->segments[k].graphs[i]);
  kr_mem_free(kr_vae_ctx(s->vae), s->block);
  if (s->host_block) kr_cuda_free_host(kr_vae_ctx(s->vae)->cuda, s->host_block);
}

/* ---- a film ---- */

static int32_t check_film(const kr_vae_config *c, const int64_t size[3]) {
  const int64_t scale = (int64_t)1 << (c->n_levels - 1), most = (int64_t)1 << 40;
  KR_CHECK(size[0] >= 1 && size[1] >= scale && size[2] >= scale && size[1] <= 1 << 16 && size[2] <= 1 << 16 &&
               size[0] <= most / (size[1] * size[2]),
           KRAIT_ERR_SHAPE, "a film of %lld frames of %lld x %lld: must be at least 1 frame of %lld x %lld, and fit",
           (long long)size[0], (long long)size[2], (long long)size[1], (long long)scale, (long long)scale);
  KR_CHECK((size[0] - 1) % c->more == 0, KRAIT_ERR_SHAPE, "a film of %lld frames: must be a multiple of %lld, plus one",
           (long long)size[0], (long long)c->more);
  return KRAIT_OK;
}

static int32_t plan_side(slicing *s, const int64_t film[3]) {
  const kr_vae_config *c = kr_vae_config_of(s->vae);
  int64_t size[3] = {film[0], film[1], film[2]};
  KR_TRY(check_film(c, film));
  if (s->is_decoder) kr_vae_latent_size(c, film, size);
  return plan_slices(s, size);
}

static int32_t run_side(kr_vae *vae, int is_decoder, const kr_vae_run *run, const float *from, float *to) {
  slicing s = {.vae = vae, .run = run, .is_decoder = is_decoder};
  int32_t status = kr_vae_hold(vae, is_decoder);
  if (status >= 0) status = plan_side(&s, run->size);
  if (status >= 0) status = take_memory(&s);
  if (status >= 0) status = run_all_frames(&s, from, to);
  if (status >= 0) status = print_segments(&s);
  end_slices(&s);
  return status;
}

int32_t kr_vae_encode(kr_vae *vae, const kr_vae_run *run, const float *film, float *moments) {
  return run_side(vae, KR_VAE_ENCODER, run, film, moments);
}

int32_t kr_vae_decode(kr_vae *vae, const kr_vae_run *run, const float *latents, float *film) {
  return run_side(vae, KR_VAE_DECODER, run, latents, film);
}

int32_t kr_vae_count(kr_vae *vae, int side, const kr_vae_run *run, kr_vae_needs *needs) {
  slicing s = {.vae = vae, .run = run, .is_decoder = side};
  const int32_t status = plan_side(&s, run->size);
  *needs = (kr_vae_needs){s.bytes, s.host_bytes};
  end_slices(&s);
  return status;
}

/* Into sizes of n, sorted, each once. */
static int32_t add_size(uint64_t bytes, int32_t most, uint64_t *sizes, int32_t n) {
  int32_t i = 0;
  while (i < n && sizes[i] > bytes) i++;
  if ((i < n && sizes[i] == bytes) || n == most) return n;
  memmove(sizes + i + 1, sizes + i, (size_t)(n - i) * sizeof *sizes);
  sizes[i] = bytes;
  return n + 1;
}

int32_t kr_vae_memory_sizes(kr_vae *vae, int side, const kr_vae_run *run, int32_t most, uint64_t *sizes, int32_t *n) {
  slicing s = {.vae = vae, .run = run, .is_decoder = side};
  const int32_t status = plan_side(&s, run->size);
  *n = 0;
  for (int64_t k = 0; k < s.n_segments; k++) {
    const kr_vae_graph *graph = &s.segments[k].graphs[KR_VAE_FIRST];
    for (int64_t i = 0; i < graph->n_memories; i++) *n = add_size(graph->memories[i].bytes, most, sizes, *n);
  }
  end_slices(&s);
  return status;
}
