/* primeknet_device_session.c: the forward pass on the GPU: as many windows of the batch at once as fit the memory it
 * allows itself, launched one by one the first time and as a recorded graph when a shape comes back. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "dense_block/dense_block_rows.h"
#include "primeknet_launch.h"
#include "status.h"

static const uint64_t most_bytes = (uint64_t)900 << 20; /* unless a single window needs more */
static const int64_t most_positions = 100000;           /* with more of them one decoder alone fills any device */

#define PRODUCTS(module)                                                                                 \
  {[KR_PK_A_ROWS] = {module, "kr_pk_product"},          [KR_PK_A_HELD] = {module, "kr_pk_product_held"}, \
   [KR_PK_A_PAIR] = {module, "kr_pk_product_pair"},     [KR_PK_A_NORM] = {module, "kr_pk_product_norm"}, \
   [KR_PK_A_SCALED] = {module, "kr_pk_product_scaled"}, [KR_PK_A_CONV] = {module, "kr_pk_product_conv"}, \
   [KR_PK_A_TAPS] = {module, "kr_pk_product_taps"}}
static const kr_kernel products[2][7] = {PRODUCTS("primeknet_product"), PRODUCTS("primeknet_product_halves")};
static const kr_kernel spectrum = {"primeknet_planes", "kr_pk_spectrum"};

static pk_timed *timed_of(pk_device_session *s, const char *name) {
  for (int i = 0; i < KR_PK_N_TIMED; i++) {
    if (!s->timed[i].name[0]) snprintf(s->timed[i].name, sizeof s->timed[i].name, "%s", name);
    if (strcmp(s->timed[i].name, name) == 0) return &s->timed[i];
  }
  return &s->timed[KR_PK_N_TIMED - 1];
}

static int32_t launch_timed(pk_device_session *s, const kr_kernel *kernel, const kr_grid *grid, const void *plan,
                            size_t plan_bytes) {
  const kr_cuda *cuda = s->device->cuda;
  const pk_product *p = plan_bytes == sizeof *p ? plan : NULL;
  char name[sizeof s->timed->name];
  double seconds = 0;
  if (p) snprintf(name, sizeof name, "%s %dx%d", kernel->name + 6, p->K * p->n_sources, p->Np * p->n_panels);
  else snprintf(name, sizeof name, "%s", kernel->name + 6);
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.from, s->lane->stream));
  KR_TRY(kr_cuda_launch(cuda, s->device->tier, kernel, grid, plan, plan_bytes));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.to, s->lane->stream));
  KR_TRY(kr_cuda_timer_read(cuda, &s->timer, &seconds));
  pk_timed *t = timed_of(s, name);
  t->n_launches++;
  t->seconds += seconds;
  if (!p) return KRAIT_OK;
  const double rows = (double)p->rows_per_item * p->n_items, in = (double)p->K * p->n_sources,
               out = (double)(p->epilogue == KR_PK_GATE ? p->Np / 2 : p->Np) * p->n_panels;
  t->flops += 2 * rows * in * p->Np * p->n_panels;
  t->bytes += 4 * rows * (in + out * (p->E ? 2 : 1) + (p->X ? out : 0));
  return KRAIT_OK;
}

void pk_launch(pk_device_session *s, const kr_kernel *kernel, kr_grid grid, const void *plan, size_t plan_bytes) {
  grid.stream = s->lane->stream;
  if (s->timed && s->status >= 0) s->status = launch_timed(s, kernel, &grid, plan, plan_bytes);
  else if (s->status >= 0)
    s->status = kr_cuda_launch(s->device->cuda, s->device->tier, kernel, &grid, plan, plan_bytes);
}

void pk_run_op(pk_device_session *s, const kr_op *op, const void *args) {
  const kr_cuda *cuda = s->device->cuda;
  double seconds = 0;
  if (s->timed && s->status >= 0) s->status = kr_cuda_timer_mark(cuda, s->timer.from, s->lane->stream);
  if (s->status >= 0) s->status = kr_op_run(op, s->model->ctx, args);
  if (!s->timed || s->status < 0) return;
  s->status = kr_cuda_timer_mark(cuda, s->timer.to, s->lane->stream);
  if (s->status >= 0) s->status = kr_cuda_timer_read(cuda, &s->timer, &seconds);
  pk_timed *t = timed_of(s, op->name);
  kr_cost cost;
  op->cost(args, &cost);
  t->n_launches++;
  t->seconds += seconds, t->flops += cost.flops, t->bytes += cost.bytes;
}

pk_product pk_product_of(const pk_device_session *s, const kr_panels *w, int kind, const float *A, int64_t lda,
                         int64_t K, float *out, int64_t ldo) {
  const kr_primeknet *m = s->model;
  return (pk_product){.rows_per_item = s->n_items * pk_rows(s, m->config.F2),
                      .n_items = 1,
                      .kind = kind,
                      .T = kr_divisor_of(s->T),
                      .K = (int32_t)K,
                      .n_channels = (int32_t)m->config.C,
                      .n_sources = 1,
                      .n_panels = 1,
                      .Np = (int32_t)pk_panel_columns(w),
                      .silu_from = (int32_t)pk_panel_columns(w),
                      .A = {A},
                      .zeros = s->zeros,
                      .lda = lda,
                      .F = (int32_t)m->config.F2,
                      .w = {pk_weight(s, w->data)},
                      .bias = {pk_weight(s, w->bias)},
                      .fragments = pk_panel_fragments(w),
                      .out = out,
                      .ldo = ldo};
}

/* Rows that are made once serve all columns, unless that leaves multiprocessors without work. */
static int32_t tiles_per_block(const pk_device_session *s, const pk_product *p, int64_t row_blocks, int32_t tiles) {
  if (p->kind != KR_PK_A_NORM && p->kind != KR_PK_A_HELD) return 1;
  int32_t per_block = tiles;
  while (per_block % 2 == 0 &&
         row_blocks * (tiles / per_block) < 4 * (int64_t)kr_cuda_info(s->device->cuda)->n_multiprocessors)
    per_block /= 2;
  return per_block;
}

static uint32_t blocks_of(int64_t n, int64_t per_block) { return (uint32_t)((n + per_block - 1) / per_block); }

void pk_launch_product(pk_device_session *s, const pk_product *p) {
  const int halves = s->device->halves && p->kind != KR_PK_A_PAIR &&
                     p->kind != KR_PK_A_TAPS; /* angles before and after would lose too much */
  const int32_t tiles = (int32_t)blocks_of(p->Np, KR_TILE_COLUMNS) * p->n_panels;
  pk_product whole = *p;
  kr_grid grid = {.x = blocks_of(p->rows_per_item, KR_TILE_ROWS),
                  .z = (uint32_t)p->n_items,
                  .block = halves ? KR_TILE_THREADS_HALVES : KR_TILE_THREADS};
  whole.tiles_per_block = tiles_per_block(s, p, grid.x * p->n_items, tiles);
  grid.y = (uint32_t)(tiles / whole.tiles_per_block);
  pk_launch(s, &products[halves][p->kind], grid, &whole, sizeof whole);
}

/* ---- memory: everything that lives through a pass, then what one phase uses and the next does not ---------------- */

typedef struct layout {
  char *base;
  uint64_t used, most;
} layout;

static float *place(layout *l, int64_t n_floats) {
  float *at = l->base ? (float *)(l->base + l->used) : NULL;
  l->used += kr_scratch_round((uint64_t)n_floats * sizeof(float));
  if (l->used > l->most) l->most = l->used;
  return at;
}

static void place_lasting(layout *l, pk_device_session *s, int64_t n) {
  const kr_primeknet *m = s->model;
  const int64_t bins = n * m->config.F * s->T, half = n * m->config.F2 * s->T,
                tiles = 2 + (m->config.F + 1) * s->T / KR_TILE_ROWS;
  float **const planes[] = {&s->mag, &s->pha, &s->mask, &s->phase};
  float **const pairs[] = {&s->com_in, &s->com, &s->polar};
  for (int i = 0; i < 4; i++) *planes[i] = place(l, bins);
  for (int i = 0; i < 3; i++) *pairs[i] = place(l, 2 * bins);
  s->zeros = place(l, 4);
  s->x = place(l, half * m->Cp);
  for (int i = 0; i < 2; i++) {
    pk_lane *lane = &s->lanes[i];
    lane->partial = place(l, n * tiles * 3 * m->Cp);
    lane->scale = place(l, n * m->Cp), lane->shift = place(l, n * m->Cp);
  }
  s->mask_scale = place(l, n), s->mask_shift = place(l, n);
}

static void place_stages(layout *l, pk_device_session *s, int64_t n) {
  const kr_primeknet *m = s->model;
  const kr_pk_config *c = &m->config;
  const int64_t half = n * c->F2 * s->T, longest = c->F2 > s->T ? c->F2 : s->T;
  s->y = place(l, half * m->Cp);
  s->g = place(l, half * m->Cp);
  s->factors = place(l, n * longest * m->Cp);
  const uint64_t shared = l->used;
  if (c->stage == KR_PK_MAMBA)
    s->xz = place(l, half * 2 * m->Ep), s->xc = place(l, half * m->Ep), s->dbl = place(l, half * m->Xp);
  else s->gates = place(l, half * 4 * m->Hp), s->steps = place(l, half * m->Hp);
  l->used = shared;
  s->pair = place(l, half * 2 * m->Cp);
  s->chunks = place(l, half * c->n_kernels * m->Cp);
}

/* A dense block's output, and what it needs besides. */
static float *place_dense(layout *l, const pk_device_session *s, int64_t n, int64_t width, float **scratch) {
  const kr_primeknet *m = s->model;
  const uint64_t bytes = m->config.depth ? kr_dense_block_bytes(n, width, s->T, m->Cp, m->config.depth) : 0;
  *scratch = place(l, (int64_t)(bytes / sizeof(float)));
  return place(l, n * width * s->T * m->Cp);
}

static void place_all(layout *l, pk_device_session *s, int64_t n) {
  const kr_primeknet *m = s->model;
  const int64_t full = n * m->config.F * s->T * m->Cp;
  pk_lane *const first = &s->lanes[0], *const second = &s->lanes[1];
  place_lasting(l, s, n);
  const uint64_t shared = l->used;
  s->lift = place(l, full);
  s->dense = place_dense(l, s, n, m->config.F, &s->dense_scratch);
  l->used = shared;
  place_stages(l, s, n);
  l->used = shared;
  first->dense = place_dense(l, s, n, m->config.F2, &first->dense_scratch);
  second->dense = NULL;
  if (n * pk_rows(s, m->config.F2) <= most_positions)
    second->dense = place_dense(l, s, n, m->config.F2, &second->dense_scratch);
  s->wide = place(l, full);
}

static uint64_t bytes_for(pk_device_session *s, int64_t n) {
  layout count = {0};
  place_all(&count, s, n);
  return count.most;
}

static void forget_graphs(pk_device_session *s) {
  for (int i = 0; i < KR_PK_N_GRAPHS; i++) kr_cuda_graph_close(s->device->cuda, &s->recorded[i].graph);
  memset(s->recorded, 0, sizeof s->recorded);
}

/* Graphs hold addresses: with new memory they are worth nothing. */
static int32_t make_room(pk_device_session *s, int64_t n) {
  const uint64_t bytes = bytes_for(s, n);
  if (bytes > s->memory_bytes) {
    forget_graphs(s);
    kr_cuda_free(s->device->cuda, s->memory);
    s->memory = NULL, s->memory_bytes = 0;
    KR_TRY(kr_cuda_alloc(s->device->cuda, bytes, (void **)&s->memory));
    s->memory_bytes = bytes;
  }
  layout real = {.base = s->memory};
  place_all(&real, s, n);
  s->n_items = n;
  return kr_cuda_fill(s->device->cuda, s->zeros, 0, 4 * sizeof(float), s->lanes[0].stream);
}

/* As many windows as share most_bytes, in groups of equal size. */
static int64_t group_size(pk_device_session *s, int64_t B) {
  int64_t most = 1;
  while (most < B && bytes_for(s, most + 1) <= most_bytes) most++;
  const int64_t n_groups = (B + most - 1) / most;
  return (B + n_groups - 1) / n_groups;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

static void write_spectrum(pk_device_session *s) {
  const kr_primeknet *m = s->model;
  const pk_mask *k = &m->mask;
  const int64_t n = s->n_items * m->config.F * s->T;
  const pk_planes p = {.n = n,
                       .T = kr_divisor_of(s->T),
                       .F = (int32_t)m->config.F,
                       .polar = s->polar,
                       .mask = s->mask,
                       .mask_scale = s->mask_scale,
                       .mask_shift = s->mask_shift,
                       .phase = s->phase,
                       .sigmoid_slope = pk_weight(s, k->sigmoid_slope),
                       .slope = k->slope,
                       .last_weight = k->last_weight,
                       .last_bias = k->last_bias,
                       .beta = (float)m->config.sigmoid_beta,
                       .mag = s->mag,
                       .pha = s->pha,
                       .com = s->com};
  pk_launch(s, &spectrum, (kr_grid){.x = (uint32_t)((n + 127) / 128), .block = 128}, &p, sizeof p);
}

static int32_t launch_all(pk_device_session *s) {
  const kr_primeknet *m = s->model;
  s->status = KRAIT_OK;
  s->lane = &s->lanes[0];
  pk_device_encode(s);
  for (int64_t b = 0; b < m->config.n_blocks; b++) {
    pk_device_time_stage(s, &m->blocks[b]);
    pk_device_freq_stage(s, &m->blocks[b]);
  }
  pk_device_decode(s);
  write_spectrum(s);
  return s->status;
}

static pk_recorded *recorded_of(pk_device_session *s) {
  pk_recorded *free_one = NULL;
  for (int i = 0; i < KR_PK_N_GRAPHS; i++) {
    pk_recorded *r = &s->recorded[i];
    if (r->n_runs && r->n_items == s->n_items && r->T == s->T) return r;
    if (!r->n_runs && !free_one) free_one = r;
  }
  if (free_one) *free_one = (pk_recorded){.n_items = s->n_items, .T = s->T};
  return free_one;
}

/* The first pass of a shape loads kernels, the second records. Without graphs, or with too many shapes, every pass is
 * like the first. */
static int32_t run_kernels(pk_device_session *s) {
  const kr_cuda *cuda = s->device->cuda;
  pk_recorded *r = recorded_of(s);
  if (r && r->n_runs == 1 && !s->timed && kr_cuda_graph_begin(cuda, s->lanes[0].stream) >= 0) {
    int32_t status = launch_all(s), ended = kr_cuda_graph_end(cuda, s->lanes[0].stream, &r->graph);
    KR_TRY(status);
    KR_TRY(ended);
  }
  if (r) r->n_runs++;
  return r && r->graph ? kr_cuda_graph_launch(cuda, r->graph, s->lanes[0].stream) : launch_all(s);
}

static int32_t copy_results(pk_device_session *s, int64_t first, float *mag, float *pha, float *com) {
  const kr_cuda *cuda = s->device->cuda;
  const int64_t bins = s->model->config.F * s->T;
  const size_t bytes = (size_t)(s->n_items * bins) * sizeof(float);
  if (mag) KR_TRY(kr_cuda_copy_out(cuda, mag + first * bins, s->mag, bytes, s->lanes[0].stream));
  if (pha) KR_TRY(kr_cuda_copy_out(cuda, pha + first * bins, s->pha, bytes, s->lanes[0].stream));
  if (com) KR_TRY(kr_cuda_copy_out(cuda, com + first * bins * 2, s->com, 2 * bytes, s->lanes[0].stream));
  return kr_cuda_wait(cuda, s->lanes[0].stream);
}

static int32_t forward_group(pk_device_session *s, const float *com_in, double *seconds) {
  const kr_cuda *cuda = s->device->cuda;
  const size_t bytes = (size_t)(s->n_items * s->model->config.F * s->T) * 2 * sizeof(float);
  KR_TRY(kr_cuda_copy_in(cuda, s->com_in, com_in, bytes, s->lanes[0].stream));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.from, s->lanes[0].stream));
  KR_TRY(run_kernels(s));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.to, s->lanes[0].stream));
  double one = 0;
  KR_TRY(kr_cuda_timer_read(cuda, &s->timer, &one));
  *seconds += one;
  return KRAIT_OK;
}

int32_t pk_device_forward(pk_device_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                          float *com, double *seconds) {
  const kr_primeknet *m = s->model;
  /* Rows of a window must be countable in 31 bits. */
  KR_CHECK(T <= ((int64_t)1 << 31) / (2 * m->config.F), KRAIT_ERR_SHAPE, "T is %lld, too many frames for one window",
           (long long)T);
  s->T = T;
  *seconds = 0;
  const int64_t group = group_size(s, B), bins = m->config.F * T;
  for (int64_t b = 0; b < B; b += group) {
    KR_TRY(make_room(s, B - b < group ? B - b : group));
    KR_TRY(forward_group(s, com_in + b * bins * 2, seconds));
    KR_TRY(copy_results(s, b, mag, pha, com));
  }
  return KRAIT_OK;
}

/* Twice: the first time kernels are loaded. */
int32_t pk_device_kernels(pk_device_session *s, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report,
                          void *user) {
  double seconds;
  KR_TRY(pk_device_forward(s, B, T, com_in, NULL, NULL, NULL, &seconds));
  forget_graphs(s);
  s->timed = kr_alloc_array(KR_PK_N_TIMED, sizeof *s->timed);
  KR_CHECK(s->timed, KRAIT_ERR_NO_MEMORY, "no memory for times");
  int32_t status = pk_device_forward(s, B, T, com_in, NULL, NULL, NULL, &seconds);
  forget_graphs(s);
  for (int i = 0; status >= 0 && i < KR_PK_N_TIMED && s->timed[i].name[0]; i++)
    report(user, s->timed[i].name, s->timed[i].n_launches, s->timed[i].seconds, s->timed[i].flops, s->timed[i].bytes);
  kr_free(s->timed);
  s->timed = NULL;
  return status;
}

int32_t pk_device_session_open(const kr_primeknet *model, pk_device_session **session) {
  pk_device_session *s = *session = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->model = model;
  s->device = model->device;
  int32_t status = KRAIT_OK;
  for (int i = 0; i < 2 && status >= 0; i++) status = kr_cuda_stream_open(s->device->cuda, &s->lanes[i].stream);
  if (status >= 0) status = kr_cuda_timer_open(s->device->cuda, &s->timer);
  if (status >= 0) status = kr_cuda_timer_open(s->device->cuda, &s->fork);
  if (status < 0) pk_device_session_close(session);
  return status;
}

void pk_device_session_close(pk_device_session **session) {
  pk_device_session *s = *session;
  *session = NULL;
  if (!s) return;
  forget_graphs(s);
  kr_cuda_timer_close(s->device->cuda, &s->timer);
  kr_cuda_timer_close(s->device->cuda, &s->fork);
  for (int i = 0; i < 2; i++) kr_cuda_stream_close(s->device->cuda, &s->lanes[i].stream);
  kr_cuda_free(s->device->cuda, s->memory);
  kr_free(s);
}
