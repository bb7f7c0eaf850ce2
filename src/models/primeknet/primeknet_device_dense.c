/* primeknet_device_dense.c: encoder and decoders on the GPU: the operator dense_block and what stands around it. */
#include "dense_block/dense_block_rows.h"
#include "primeknet_graph.h"
#include "primeknet_launch.h"

static const kr_kernel mask_kernel = {"primeknet_planes", "kr_pk_mask"}, angle = {"primeknet_planes", "kr_pk_angle"};
static const kr_kernel moments = {"tile_norm", "kr_tile_moments"}, norm_kernel = {"tile_norm", "kr_tile_norm"};

static uint32_t blocks_of(int64_t n, int64_t per_block) { return (uint32_t)((n + per_block - 1) / per_block); }

static void merge_moments(pk_device_session *s, kr_tile_moments_plan *p, int64_t n_tiles, float *scale, float *shift) {
  p->partial = s->lane->partial;
  p->scale = scale, p->shift = shift;
  p->n_tiles = (int32_t)n_tiles;
  p->eps = (float)KR_PK_NORM_EPS;
  pk_launch(s, &moments,
            (kr_grid){.x = blocks_of(p->C, KR_TILE_MOMENTS_CHANNELS),
                      .y = (uint32_t)s->n_items,
                      .block = KR_TILE_MOMENTS_THREADS},
            p, sizeof *p);
}

static kr_tile_affine finish_norm(pk_device_session *s, const pk_norm *norm, int64_t n_tiles) {
  kr_tile_moments_plan p = {
      .weight = pk_weight(s, norm->weight), .bias = pk_weight(s, norm->bias), .C = (int32_t)s->model->Cp};
  merge_moments(s, &p, n_tiles, s->lane->scale, s->lane->shift);
  return (kr_tile_affine){s->lane->scale, s->lane->shift, pk_weight(s, norm->slope)};
}

/* A product whose rows are positions of maps of `width` frequencies, measured. */
static pk_product position_product(const pk_device_session *s, const kr_panels *w, int kind,
                                   const float *const *sources, int64_t n_sources, int64_t width, int64_t out_width,
                                   float *out) {
  const kr_primeknet *m = s->model;
  pk_product p = pk_product_of(s, w, kind, sources[0], m->Cp, m->Cp, out, m->Cp);
  p.rows_per_item = pk_rows(s, out_width);
  p.n_items = (int32_t)s->n_items;
  p.n_sources = (int32_t)n_sources;
  p.F = (int32_t)width;
  p.f_step = 1;
  for (int64_t i = 0; i < n_sources; i++) p.A[i] = sources[i];
  p.partial = s->lane->partial;
  p.partial_tiles = (int32_t)blocks_of(p.rows_per_item, KR_TILE_ROWS);
  return p;
}

/* Norm and PReLU of what the product wrote, in place. */
static void normalise(pk_device_session *s, const pk_norm *norm, const pk_product *made) {
  const int64_t per_item = made->rows_per_item * s->model->Cp, n = s->n_items * per_item;
  const kr_tile_norm_plan p = {.x = made->out,
                               .affine = finish_norm(s, norm, made->partial_tiles),
                               .n = n,
                               .per_item = per_item,
                               .C = (int32_t)s->model->Cp};
  pk_launch(s, &norm_kernel,
            (kr_grid){.x = blocks_of(n / 4, KR_TILE_NORM_THREADS), .block = KR_TILE_NORM_THREADS}, &p, sizeof p);
}

/* Returns the output: to, or without layers the input. */
static const float *dense_block(pk_device_session *s, const pk_dense_rows *rows, const float *input, int64_t width,
                                float *to, float *scratch) {
  const kr_primeknet *m = s->model;
  const int64_t Cp = m->Cp, L = m->config.depth, N = Cp * L * (L + 1) / 2;
  const int halves = s->device->halves;
  if (!L) return input;
  pk_run_op(s, &kr_op_dense_block,
            &(krait_dense_block_args){
                .call = {.size = sizeof(krait_dense_block_args),
                         .flags = (m->config.causal ? KRAIT_DENSE_ONE_SIDED : 0) | (halves ? KRAIT_DENSE_TF32 : 0),
                         .stream = s->lane->stream,
                         .scratch = scratch,
                         .scratch_bytes = kr_dense_block_bytes(s->n_items, width, s->T, Cp, L)},
                .B = s->n_items,
                .H = width,
                .W = s->T,
                .C = Cp,
                .L = L,
                .N = N,
                .K = Cp,
                .eps = (float)KR_PK_NORM_EPS,
                .x = pk_map_view(s, width, input, Cp),
                .taps = pk_view(pk_weight(s, rows->taps), 1, 3 * N, N),
                .taps_bias = pk_view(pk_weight(s, rows->taps_bias), 1, 0, 0),
                .weight = halves ? pk_half_view(s, rows->halves, N) : pk_view(pk_weight(s, rows->weight), 1, Cp, 0),
                .norm_weight = pk_view(pk_weight(s, rows->norm_weight), Cp, 1, 0),
                .norm_bias = pk_view(pk_weight(s, rows->norm_bias), Cp, 1, 0),
                .slope = pk_view(pk_weight(s, rows->slope), Cp, 1, 0),
                .out = pk_map_view(s, width, to, Cp)});
  return to;
}

static pk_planes planes_of(const pk_device_session *s) {
  const kr_pk_config *c = &s->model->config;
  return (pk_planes){.n = s->n_items * c->F * s->T,
                     .T = kr_divisor_of(s->T),
                     .F = (int32_t)c->F,
                     .F2 = (int32_t)c->F2,
                     .Cp = (int32_t)s->model->Cp,
                     .n_items = (int32_t)s->n_items};
}

void pk_device_encode(pk_device_session *s) {
  const kr_primeknet *m = s->model;
  const pk_encoder *e = &m->encoder;
  const int64_t F = m->config.F;
  const int64_t row = 2 * s->T;
  pk_run_op(s, &kr_op_to_polar,
            &(krait_to_polar_args){
                .call = {.size = sizeof(krait_to_polar_args), .stream = s->lane->stream},
                .I = s->n_items,
                .J = F,
                .K = s->T,
                .power = 1,
                .re_add = -0.0f, /* zeros keep their signs */
                .im_add = -0.0f,
                .re = pk_view(s->com_in, F * row, row, 2),
                .im = pk_view(s->com_in + 1, F * row, row, 2),
                .mag = pk_view(s->polar, F * row, row, 2),
                .pha = pk_view(s->polar + 1, F * row, row, 2)});
  pk_product lift = position_product(s, &e->lift, KR_PK_A_PAIR, (const float *const[]){s->polar}, 1, F, F, s->lift);
  lift.K = 16; /* two columns, padded */
  pk_launch_product(s, &lift);
  normalise(s, &e->lift_norm, &lift);
  const float *last = dense_block(s, &e->rows, s->lift, F, s->dense, s->dense_scratch);
  pk_product down =
      position_product(s, &e->down, KR_PK_A_TAPS, (const float *const[]){last, last, last}, 3, F, m->config.F2, s->x);
  down.f_step = 2;
  for (int i = 0; i < 3; i++) down.f_offset[i] = i;
  pk_launch_product(s, &down);
  normalise(s, &e->down_norm, &down);
}

static void decode_mask(pk_device_session *s) {
  const kr_primeknet *m = s->model;
  const pk_mask *k = &m->mask;
  const float *last = dense_block(s, &k->rows, s->x, m->config.F2, s->lane->dense, s->lane->dense_scratch);
  pk_planes p = planes_of(s);
  p.map = last;
  p.w0 = pk_weight(s, k->even_w), p.w1 = pk_weight(s, k->odd_w), p.b0 = k->bias;
  p.plane = s->mask, p.partial = s->lane->partial;
  const int64_t n = pk_rows(s, m->config.F);
  pk_launch(s, &mask_kernel, (kr_grid){.x = blocks_of(n, KR_PK_POSITIONS), .y = (uint32_t)s->n_items, .block = 128}, &p,
            sizeof p);
  kr_tile_moments_plan norm = {.weight_one = k->norm_weight, .bias_one = k->norm_bias, .C = 1};
  merge_moments(s, &norm, blocks_of(n, KR_PK_POSITIONS), s->mask_scale, s->mask_shift);
}

/* Even bins take positions f / 2 - 1 and f / 2, odd ones (f - 1) / 2; both leave tiles for one norm. */
static kr_tile_affine upsample(pk_device_session *s, const float *from) {
  const kr_primeknet *m = s->model;
  const int64_t F2 = m->config.F2;
  pk_product even =
      position_product(s, &m->phase.even, KR_PK_A_TAPS, (const float *const[]){from, from}, 2, F2, F2 + 1, s->wide);
  pk_product odd = position_product(s, &m->phase.odd, KR_PK_A_TAPS, &from, 1, F2, F2, s->wide);
  even.f_offset[0] = -1;
  odd.partial_first = even.partial_tiles;
  odd.out_offset = 1;
  odd.out_step = even.out_step = 2;
  odd.out_F = even.out_F = (int32_t)m->config.F;
  odd.partial_tiles = even.partial_tiles += odd.partial_tiles;
  pk_launch_product(s, &even);
  pk_launch_product(s, &odd);
  return finish_norm(s, &m->phase.norm, even.partial_tiles);
}

static void decode_phase(pk_device_session *s) {
  const kr_primeknet *m = s->model;
  const pk_phase *k = &m->phase;
  const float *last = dense_block(s, &k->rows, s->x, m->config.F2, s->lane->dense, s->lane->dense_scratch);
  pk_planes p = planes_of(s);
  p.affine = upsample(s, last);
  p.map = s->wide;
  p.w0 = pk_weight(s, k->real_w), p.b0 = k->real_b, p.w1 = pk_weight(s, k->imag_w), p.b1 = k->imag_b;
  p.plane = s->phase;
  pk_launch(
      s, &angle,
      (kr_grid){.x = blocks_of(pk_rows(s, m->config.F), KR_PK_POSITIONS), .y = (uint32_t)s->n_items, .block = 128}, &p,
      sizeof p);
}

/* What is launched on `later` from here on waits for what is on `stream`. */
static void follow(pk_device_session *s, void *point, void *stream, void *later) {
  if (s->status >= 0) s->status = kr_cuda_timer_mark(s->device->cuda, point, stream);
  if (s->status >= 0) s->status = kr_cuda_wait_for(s->device->cuda, point, later);
}

/* Both read x alone, so they need not wait for each other. */
void pk_device_decode(pk_device_session *s) {
  pk_lane *const first = &s->lanes[0], *const second = &s->lanes[1];
  const int apart = second->dense && !s->timed;
  if (apart) follow(s, s->fork.from, first->stream, second->stream), s->lane = second;
  decode_mask(s);
  s->lane = first;
  decode_phase(s);
  if (apart) follow(s, s->fork.to, second->stream, first->stream);
}
