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
  int64_t n_steps;
  kr_vae_graph graphs[KR_VAE_PARTS];
  char *in, *out, *memory; /* of a step; the convolutions' memories */
  char *host_memory;
  uint64_t host_bytes, arena_bytes; /* arena: of its largest graph */
  uint64_t in_bytes, out_bytes, memory_bytes, frame_bytes; /* frame: of what is read */
  int64_t n_in, n_done;    /* frames: waiting, read */
  char *stored, *next;     /* all frames that it will read, after a cut; where the next one goes */
} segment;

/* The levels that run together: from first on, up to end. */
typedef struct pass {
  int64_t first, end;
} pass;

typedef struct slicing {
  kr_vae *vae;
  const kr_vae_run *run;
  int is_decoder;
  int64_t n_segments;
  segment segments[KR_VAE_MOST_LEVELS];
  char *block, *host_at; /* of a pass; the rest of the host's memory */
  float *to;             /* where the next frames of the result go */
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
                           .host_above = s->run->saving.host_above, .host_to = s->run->saving.host_to};
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
  keep_most(&seg->arena_bytes, kr_graph_bytes(graph->g));
  *T += n * graph->out_size[0], seg->n_steps += n;
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
  return KRAIT_OK;
}

/* size: of what the side reads. */
static int32_t plan_slices(slicing *s, const int64_t size[3]) {
  int64_t of[3] = {size[0], size[1], size[2]};
  s->n_segments = kr_vae_config_of(s->vae)->n_levels;
  for (int64_t k = 0; k < s->n_segments; k++) KR_TRY(plan_segment(s, k, of));
  return KRAIT_OK;
}

/* ---- what it needs ---- */

/* The one after *p, or 0: there is none. Before the first one: {0, 0}. */
static int next_pass(const slicing *s, uint32_t cuts, pass *p) {
  p->first = p->end;
  if (p->first == s->n_segments) return 0;
  do p->end++;
  while (p->end < s->n_segments && !(cuts >> (p->end - 1) & 1));
  return 1;
}

static uint64_t stored_bytes(const segment *seg) { return whole_lines((uint64_t)seg->T * seg->frame_bytes); }

/* Of the device, without what is stored. */
static uint64_t pass_bytes(const slicing *s, const pass *p, uint64_t *arena_bytes) {
  uint64_t bytes = 0;
  *arena_bytes = 0;
  for (int64_t k = p->first; k < p->end; k++) {
    const segment *seg = &s->segments[k];
    keep_most(arena_bytes, seg->arena_bytes);
    bytes += seg->in_bytes + seg->out_bytes + seg->memory_bytes;
  }
  return bytes + *arena_bytes;
}

static int is_stored(const slicing *s, int64_t k) { return k > 0 && k < s->n_segments; }

/* On the host there is room for all passes at once. */
static void count_needs(const slicing *s, const kr_vae_saving *saving, kr_vae_needs *needs) {
  *needs = (kr_vae_needs){0};
  for (pass p = {0, 0}; next_pass(s, saving->cuts, &p);) {
    uint64_t arena, bytes = pass_bytes(s, &p, &arena);
    const int64_t ends[2] = {p.first, p.end};
    for (int i = 0; i < 2; i++) {
      const uint64_t stored = is_stored(s, ends[i]) ? stored_bytes(&s->segments[ends[i]]) : 0;
      if (stored && !(saving->host_cuts >> (ends[i] - 1) & 1)) bytes += stored;
      else if (i) needs->host_bytes += stored, needs->moved_bytes += 2 * stored;
    }
    for (int64_t k = p.first; k < p.end; k++) {
      const segment *seg = &s->segments[k];
      needs->host_bytes += seg->host_bytes;
      needs->moved_bytes += 2 * seg->host_bytes * (uint64_t)seg->n_steps;
    }
    keep_most(&needs->bytes, bytes);
  }
}

/* ---- memory ---- */

static int32_t bind_part(segment *seg, kr_vae_graph *graph, char *arena) {
  char *at[2] = {seg->memory, seg->host_memory};
  if (!graph->g) return KRAIT_OK;
  KR_TRY(kr_runner_open_in(graph->g, arena, seg->arena_bytes, &graph->runner));
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

static int32_t take_pass_memory(slicing *s, const pass *p) {
  uint64_t arena_bytes;
  KR_TRY(kr_mem_get(kr_vae_ctx(s->vae), "a part of a film", pass_bytes(s, p, &arena_bytes), &s->block));
  char *at = s->block, *arena = cut_from(&at, arena_bytes);
  for (int64_t k = p->first; k < p->end; k++) {
    segment *seg = &s->segments[k];
    seg->in = cut_from(&at, seg->in_bytes), seg->out = cut_from(&at, seg->out_bytes);
    seg->memory = cut_from(&at, seg->memory_bytes), seg->host_memory = cut_from(&s->host_at, seg->host_bytes);
    for (int i = 0; i < KR_VAE_PARTS; i++) KR_TRY(bind_part(seg, &seg->graphs[i], arena));
  }
  return KRAIT_OK;
}

static int is_stored_on_host(const slicing *s, int64_t k) { return s->run->saving.host_cuts >> (k - 1) & 1; }

/* For all frames that segment k will read. */
static int32_t take_store(slicing *s, int64_t k) {
  segment *seg = &s->segments[k];
  if (is_stored_on_host(s, k)) seg->stored = cut_from(&s->host_at, stored_bytes(seg));
  else KR_TRY(kr_mem_get(kr_vae_ctx(s->vae), "frames between levels", stored_bytes(seg), &seg->stored));
  seg->next = seg->stored;
  return KRAIT_OK;
}

static void free_store(slicing *s, int64_t k) {
  if (is_stored(s, k) && !is_stored_on_host(s, k)) kr_mem_free(kr_vae_ctx(s->vae), s->segments[k].stored);
  if (is_stored(s, k)) s->segments[k].stored = NULL;
}

static int32_t take_host_room(slicing *s) {
  kr_vae_needs needs;
  count_needs(s, &s->run->saving, &needs);
  if (!needs.host_bytes) return KRAIT_OK;
  s->host_at = kr_vae_host_room(s->vae, needs.host_bytes);
  KR_CHECK(s->host_at, KRAIT_ERR_NO_MEMORY, "no page-locked memory of %.1f GiB on the host; give the device more",
           (double)needs.host_bytes * 0x1p-30);
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

/* Until the levels after it run. */
static int32_t store_frames(slicing *s, int64_t k, const void *from, int64_t n) {
  segment *seg = &s->segments[k];
  const uint64_t bytes = (uint64_t)n * seg->frame_bytes;
  char *to = cut_from(&seg->next, bytes);
  return is_stored_on_host(s, k) ? kr_mem_read(kr_vae_ctx(s->vae), to, from, bytes)
                                 : kr_mem_copy(kr_vae_ctx(s->vae), to, from, bytes);
}

static int32_t run_step(slicing *s, int64_t k) {
  segment *seg = &s->segments[k];
  const kr_vae_graph *graph = next_graph(seg);
  KR_TRY(kr_runner_run(graph->runner, NULL));
  seg->n_done += graph->size[0], seg->n_in = 0;
  kr_vae_add_flops(s->vae, graph->flops);
  if (k + 1 < s->n_segments)
    return (s->segments[k + 1].stored ? store_frames : give_frames)(s, k + 1, seg->out, graph->out_size[0]);
  const int64_t n = volume(graph->out_size) * kr_graph_dims(graph->g, graph->out).size[3];
  s->to += n;
  return kr_mem_read(kr_vae_ctx(s->vae), s->to - n, seg->out, (uint64_t)n * sizeof *s->to);
}

/* n frames for segment k: of host memory for the first one, or stored there; else of the one before. */
static int32_t give_frames(slicing *s, int64_t k, const void *from, int64_t n) {
  segment *seg = &s->segments[k];
  const krait_ctx *ctx = kr_vae_ctx(s->vae);
  const int from_host = k == 0 || (seg->stored && is_stored_on_host(s, k));
  for (const char *at = from; n > 0;) {
    const int64_t step = seg->n_done ? seg->more : seg->first, left = step - seg->n_in, now = n < left ? n : left;
    const uint64_t bytes = (uint64_t)now * seg->frame_bytes;
    char *to = seg->in + (uint64_t)seg->n_in * seg->frame_bytes;
    KR_TRY(from_host ? kr_mem_put(ctx, to, at, bytes) : kr_mem_copy(ctx, to, at, bytes));
    at += bytes, n -= now, seg->n_in += now;
    if (now == left) KR_TRY(run_step(s, k));
  }
  return KRAIT_OK;
}

/* from: all frames that the pass reads. */
static int32_t run_pass(slicing *s, const pass *p, const char *from) {
  const segment *seg = &s->segments[p->first];
  for (int64_t t = 0, n; t < seg->T; t += n) {
    n = t ? seg->more : seg->first;
    KR_TRY(give_frames(s, p->first, from + (uint64_t)t * seg->frame_bytes, n));
    const double levels = (double)p->first + (double)(p->end - p->first) * (double)(t + n) / (double)seg->T;
    if (s->run->progress) KR_TRY(s->run->progress(s->run->user, levels / (double)s->n_segments));
  }
  return KRAIT_OK;
}

static int32_t print_segments(const slicing *s, const pass *p) {
  for (int64_t k = p->first; s->run->line && k < p->end; k++) {
    const kr_vae_graph *graph = next_graph(&s->segments[k]);
    if (!graph->g) continue;
    KR_TRY(kr_runner_profile(graph->runner, NULL));
    KR_TRY(kr_graph_print(graph->g, graph->runner, s->run->line, s->run->user));
  }
  return KRAIT_OK;
}

static void end_pass(slicing *s, const pass *p) {
  for (int64_t k = p->first; k < p->end; k++)
    for (int i = 0; i < KR_VAE_PARTS; i++) kr_vae_graph_close(&s->segments[k].graphs[i]);
  kr_mem_free(kr_vae_ctx(s->vae), s->block);
  s->block = NULL;
  free_store(s, p->first);
}

static int32_t run_passes(slicing *s, const float *from) {
  KR_TRY(take_host_room(s));
  for (pass p = {0, 0}; next_pass(s, s->run->saving.cuts, &p);) {
    int32_t status = is_stored(s, p.end) ? take_store(s, p.end) : KRAIT_OK;
    if (status >= 0) status = take_pass_memory(s, &p);
    if (status >= 0) status = run_pass(s, &p, p.first ? s->segments[p.first].stored : (const char *)from);
    if (status >= 0) status = print_segments(s, &p);
    if (status >= 0) status = kr_mem_wait(kr_vae_ctx(s->vae));
    if (status < 0) return status;
    end_pass(s, &p);
  }
  return KRAIT_OK;
}

static void end_slices(slicing *s) {
  for (int64_t k = 0; k < s->n_segments; k++) free_store(s, k);
  end_pass(s, &(pass){0, s->n_segments});
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
  slicing s = {.vae = vae, .run = run, .is_decoder = is_decoder, .to = to};
  if (kr_vae_has_tiles(run)) return kr_vae_run_tiles(vae, is_decoder, run, from, to);
  int32_t status = kr_vae_hold(vae, is_decoder);
  if (status >= 0) status = plan_side(&s, run->size);
  if (status >= 0) status = run_passes(&s, from);
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
  if (status >= 0) count_needs(&s, &run->saving, needs);
  end_slices(&s);
  return status;
}

/* Levels in base three: no cut after it, one, one on the host. */
int32_t kr_vae_each_cut(kr_vae *vae, int side, const kr_vae_run *run, kr_vae_needs_fn fn, void *user) {
  slicing s = {.vae = vae, .run = run, .is_decoder = side};
  const int32_t status = plan_side(&s, run->size);
  int64_t n_ways = status < 0 ? 0 : 1;
  for (int64_t k = 1; k < s.n_segments; k++) n_ways *= 3;
  for (int64_t i = 0; i < n_ways; i++) {
    kr_vae_saving saving = run->saving;
    kr_vae_needs needs;
    saving.cuts = saving.host_cuts = 0;
    for (int64_t k = 0, way = i; k + 1 < s.n_segments; k++, way /= 3)
      saving.cuts |= (uint32_t)(way % 3 > 0) << k, saving.host_cuts |= (uint32_t)(way % 3 == 2) << k;
    count_needs(&s, &saving, &needs);
    fn(user, &saving, &needs);
  }
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
