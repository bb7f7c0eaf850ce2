/* primeknet_dense.c: dense blocks, the encoder and both decoders (MODEL.md sections 2, 4, 5). Within a frame, a tile of
 * positions at a time goes through its depthwise filters into a small matrix and through one product to the output. */
#include <math.h>
#include <string.h>

#include "primeknet_session.h"

static pk_map make_map(const kr_pk_session *s, float *base, int64_t width) {
  const int64_t Cp = s->model->Cp;
  return (pk_map){base + Cp, (width + 2) * Cp, width};
}

static float *map_row(const pk_map *map, int64_t t) { return map->data + t * map->row; }

static void clear_edges(const kr_pk_session *s, const pk_map *map, int64_t t) {
  const size_t bytes = (size_t)s->model->Cp * sizeof(float);
  memset(map_row(map, t) - s->model->Cp, 0, bytes);
  memset(map_row(map, t) + map->width * s->model->Cp, 0, bytes);
}

/* ---- instance norm: per-frame statistics, merged in frame order in double, then applied -------------------------- */

static void measure_row(const kr_pk_session *s, const pk_map *map, int64_t t) {
  const int64_t Cp = s->model->Cp;
  s->model->layers->moments(map_row(map, t), Cp, map->width, Cp, s->row_mean + t * Cp, s->row_m2 + t * Cp);
}

/* scale and shift so that scale x + shift is the normalised and weighted x. */
static void finish_norm(kr_pk_session *s, const pk_norm *norm, int64_t width) {
  const int64_t Cp = s->model->Cp;
  for (int64_t c = 0; c < Cp; c++) {
    double mean = 0, m2 = 0;
    for (int64_t t = 0; t < s->T; t++) mean += s->row_mean[t * Cp + c];
    mean /= (double)s->T;
    for (int64_t t = 0; t < s->T; t++) {
      double d = s->row_mean[t * Cp + c] - mean;
      m2 += s->row_m2[t * Cp + c] + d * d * (double)width;
    }
    double scale = norm->weight[c] / sqrt(m2 / ((double)s->T * (double)width) + 1e-5);
    s->scale[c] = (float)scale;
    s->shift[c] = (float)(norm->bias[c] - mean * scale);
  }
}

static void normalise_row(const kr_pk_session *s, const pk_norm *norm, const pk_map *map, int64_t t) {
  s->model->layers->affine_prelu(map_row(map, t), s->model->Cp, map->width, s->model->Cp, s->scale, s->shift,
                                 norm->slope);
}

typedef struct norm_job {
  const kr_pk_session *s;
  const pk_norm *norm;
  const pk_map *map;
} norm_job;

static void normalise_range(void *user, int64_t begin, int64_t end, int worker) {
  const norm_job *job = user;
  (void)worker;
  for (int64_t t = begin; t < end; t++) normalise_row(job->s, job->norm, job->map, t);
}

static void normalise(const kr_pk_session *s, const pk_norm *norm, const pk_map *map) {
  norm_job job = {s, norm, map};
  kr_parallel(s->model->ctx, s->T, 8, normalise_range, &job);
}

/* ---- dense layer ----------------------------------------------------------------------------------------------------
 * Layer i filters frames t - d, t and t + d, d = 2^i. Frames of one residue modulo d never meet those of another, so
 * that a thread walks one residue in order of time: what it computed for a frame serves the next two, and the block's
 * last output can take the place of the newest source, d frames behind the reading. */

typedef struct lift { /* x0 of the encoder, computed where it is needed: prelu(w0 mag + w1 pha + shift) */
  const float *w0, *w1, *shift, *slope;
} lift;

enum { LIFTED, FIRST }; /* sources of the encoder that are computed again rather than kept: x0 and x1 */
enum { SEGMENT = 16 };  /* frames of a residue that one thread takes */

typedef struct dense_job {
  kr_pk_session *s;
  const pk_dense *layers;
  int64_t i, dilation;
  pk_map sources[KR_PK_MAX_DEPTH]; /* newest first; the encoder's two oldest are computed */
  int64_t n_maps;
  const lift *lift; /* the encoder's; NULL in decoders */
  int keep, in_place;
  pk_map out;
} dense_job;

static int64_t first_tap(const kr_pk_session *s, int64_t t, int64_t dilation) {
  return t - dilation * (s->model->config.causal ? 2 : 1);
}

static void lift_positions(const dense_job *job, int64_t t, int64_t f, int64_t n, float *to) {
  const kr_pk_session *s = job->s;
  const int64_t at = t * s->model->config.F + f, Cp = s->model->Cp;
  s->model->layers->lift_pair(s->mag + at, s->pha + at, n, Cp, job->lift->w0, job->lift->w1, job->lift->shift,
                              job->lift->slope, to, Cp);
}

/* Positions f - 1 .. f + n of frame t of the lifted input, zeros outside. */
static void lift_tile(const dense_job *job, int64_t t, int64_t f, int64_t n, float *to) {
  const int64_t F = job->s->model->config.F, Cp = job->s->model->Cp, begin = f > 0 ? f - 1 : 0,
                end = f + n < F ? f + n + 1 : F;
  if (f == 0) memset(to, 0, (size_t)Cp * sizeof(float));
  if (f + n == F) memset(to + (n + 1) * Cp, 0, (size_t)Cp * sizeof(float));
  lift_positions(job, t, begin, end - begin, to + (begin - f + 1) * Cp);
}

/* Frame t of x1: the first layer once more, and its norm. */
static void compute_first(const dense_job *job, int64_t t, float *row, pk_scratch *w) {
  const kr_pk_session *s = job->s;
  const kr_primeknet *m = s->model;
  const pk_dense *layer = &job->layers[0];
  const int64_t Cp = m->Cp, F = m->config.F;
  for (int64_t f = 0; f < F; f += KR_PK_TILE) {
    const int64_t n = F - f < KR_PK_TILE ? F - f : KR_PK_TILE;
    const float *rows[3];
    for (int r = 0; r < 3; r++) {
      const int64_t at = first_tap(s, t, 1) + r;
      rows[r] = at < 0 || at >= s->T ? s->zeros + Cp : w->lifted[r] + Cp;
      if (at >= 0 && at < s->T) lift_tile(job, at, f, n, w->lifted[r]);
    }
    m->layers->depthwise_3x3(rows, Cp, n, Cp, layer->taps[0], layer->taps_bias[0], w->mixed_first, Cp);
    pk_gemm(m, &layer->mix, w->mixed_first, Cp, n, row + f * Cp, Cp);
  }
  m->layers->affine_prelu(row, Cp, F, Cp, s->first_scale, s->first_shift, layer->norm.slope);
}

/* Frame t of a computed source, kept for as long as this residue needs it. */
static const float *computed_row(const dense_job *job, int kind, int64_t t, pk_scratch *w) {
  const int64_t slot = t / job->dilation % 3, Cp = job->s->model->Cp;
  float *row = w->ring[kind][slot] + Cp;
  if (w->ring_frame[kind][slot] == t) return row;
  w->ring_frame[kind][slot] = t;
  if (kind == FIRST) compute_first(job, t, row, w);
  else lift_positions(job, t, 0, job->out.width, row);
  return row;
}

static void filter_source(const dense_job *job, int64_t source, int64_t t, int64_t f, int64_t n, pk_scratch *w) {
  const kr_pk_session *s = job->s;
  const pk_dense *layer = &job->layers[job->i];
  const int64_t Cp = s->model->Cp;
  const float *rows[3];
  for (int r = 0; r < 3; r++) {
    const int64_t at = first_tap(s, t, job->dilation) + r * job->dilation;
    if (at < 0 || at >= s->T) rows[r] = s->zeros + Cp;
    else if (source < job->n_maps) rows[r] = map_row(&job->sources[source], at) + f * Cp;
    else rows[r] = computed_row(job, source == job->i ? LIFTED : FIRST, at, w) + f * Cp;
  }
  s->model->layers->depthwise_3x3(rows, Cp, n, Cp, layer->taps[source], layer->taps_bias[source],
                                  w->mixed + source * Cp, (job->i + 1) * Cp);
}

/* Through a row of its own: writing in place must not touch positions that the next tile still reads. */
static void dense_row(const dense_job *job, int64_t t, pk_scratch *w) {
  const kr_pk_session *s = job->s;
  const int64_t Cp = s->model->Cp, width = job->out.width;
  for (int64_t f = 0; f < width; f += KR_PK_TILE) {
    const int64_t n = width - f < KR_PK_TILE ? width - f : KR_PK_TILE;
    for (int64_t source = 0; source <= job->i; source++) filter_source(job, source, t, f, n, w);
    pk_gemm(s->model, &job->layers[job->i].mix, w->mixed, (job->i + 1) * Cp, n, w->row + f * Cp, Cp);
  }
  s->model->layers->moments(w->row, Cp, width, Cp, s->row_mean + t * Cp, s->row_m2 + t * Cp);
  if (!job->keep) return;
  memcpy(map_row(&job->out, t), w->row, (size_t)(width * Cp) * sizeof(float));
  clear_edges(s, &job->out, t);
}

static int64_t segment_frames(const dense_job *job) { return job->in_place ? job->s->T : SEGMENT; }

static void dense_range(void *user, int64_t begin, int64_t end, int worker) {
  const dense_job *job = user;
  pk_scratch *w = &job->s->scratch[worker];
  for (int64_t item = begin; item < end; item++) {
    const int64_t residue = item % job->dilation, start = item / job->dilation * segment_frames(job);
    memset(w->ring_frame, -1, sizeof w->ring_frame);
    for (int64_t k = 0; k < segment_frames(job); k++) {
      const int64_t t = residue + (start + k) * job->dilation;
      if (t >= job->s->T) break;
      dense_row(job, t, w);
    }
  }
}

static void run_layer(dense_job *job) {
  const int64_t per_residue = (job->s->T + job->dilation - 1) / job->dilation, segment = segment_frames(job);
  kr_parallel(job->s->model->ctx, job->dilation * ((per_residue + segment - 1) / segment), 1, dense_range, job);
  finish_norm(job->s, &job->layers[job->i].norm, job->out.width);
}

/* Runs the block on input (or on the lifted one). Output i goes to bases[i - 1]; the encoder's first is only measured
 * unless it is the last, and the last one lies over its predecessor where that is a map. Returns the last output before
 * its norm, which is left in s->scale and s->shift for whoever reads it. */
static pk_map dense_block(kr_pk_session *s, const pk_dense *layers, const pk_map *input, const lift *lifted,
                          int64_t width, float *const *bases) {
  const int64_t depth = s->model->config.depth;
  dense_job job = {.s = s, .layers = layers, .lift = lifted};
  if (input) job.sources[job.n_maps++] = *input;
  for (job.i = 0; job.i < depth; job.i++) {
    const int is_last = job.i + 1 == depth;
    job.dilation = (int64_t)1 << job.i;
    job.keep = is_last || job.i > 0 || !lifted;
    job.in_place = is_last && job.i > (lifted ? 1 : 0);
    job.out = make_map(s, bases[job.i], width);
    if (job.in_place) job.out.data = job.sources[0].data + (first_tap(s, 0, job.dilation)) * job.out.row;
    run_layer(&job);
    if (is_last) break;
    if (job.keep) {
      normalise(s, &layers[job.i].norm, &job.out);
      memmove(job.sources + 1, job.sources, (size_t)job.n_maps++ * sizeof *job.sources);
      job.sources[0] = job.out;
    } else {
      memcpy(s->first_scale, s->scale, (size_t)s->model->Cp * sizeof(float));
      memcpy(s->first_shift, s->shift, (size_t)s->model->Cp * sizeof(float));
    }
  }
  return job.out;
}

/* ---- encoder ----------------------------------------------------------------------------------------------------- */

/* The norm behind the lift, from the moments of its two inputs: the lift is linear. */
static void lift_norm(kr_pk_session *s, const pk_encoder *e) {
  const int64_t n = s->T * s->model->config.F;
  double mean_m = 0, mean_p = 0, mm = 0, pp = 0, mp = 0;
  for (int64_t i = 0; i < n; i++) mean_m += s->mag[i], mean_p += s->pha[i];
  mean_m /= (double)n, mean_p /= (double)n;
  for (int64_t i = 0; i < n; i++) {
    double a = s->mag[i] - mean_m, b = s->pha[i] - mean_p;
    mm += a * a, pp += b * b, mp += a * b;
  }
  for (int64_t c = 0; c < s->model->Cp; c++) {
    double w0 = e->lift_w0[c], w1 = e->lift_w1[c],
           variance = (w0 * w0 * mm + 2 * w0 * w1 * mp + w1 * w1 * pp) / (double)n;
    double scale = e->lift_norm.weight[c] / sqrt((variance > 0 ? variance : 0) + 1e-5);
    s->scale[c] = (float)scale;
    s->shift[c] = (float)(e->lift_norm.bias[c] - scale * (w0 * mean_m + w1 * mean_p));
  }
}

typedef struct down_job {
  kr_pk_session *s;
  const pk_map *from, *to;
  const pk_norm *norm; /* of `from`; NULL when it has none left */
  const lift *lift;    /* fills `from` first, when there is no dense block */
} down_job;

static void down_range(void *user, int64_t begin, int64_t end, int worker) {
  const down_job *job = user;
  const kr_pk_session *s = job->s;
  const int64_t Cp = s->model->Cp, F = s->model->config.F;
  (void)worker;
  for (int64_t t = begin; t < end; t++) {
    const float *row = map_row(job->from, t);
    if (job->lift)
      s->model->layers->lift_pair(s->mag + t * F, s->pha + t * F, F, Cp, job->lift->w0, job->lift->w1, job->lift->shift,
                                  job->lift->slope, map_row(job->from, t), Cp);
    if (job->norm) normalise_row(s, job->norm, job->from, t);
    pk_gemm(s->model, &s->model->encoder.down, row, 2 * Cp, job->to->width, map_row(job->to, t), Cp);
    clear_edges(s, job->to, t);
    measure_row(s, job->to, t);
  }
}

void pk_encode(kr_pk_session *s, pk_map *x) {
  const kr_primeknet *m = s->model;
  const pk_encoder *e = &m->encoder;
  const int64_t depth = m->config.depth;
  lift_norm(s, e);
  /* The lift takes its scale inside its weights; the block overwrites s->scale. */
  for (int64_t c = 0; c < m->Cp; c++) {
    s->lift[0][c] = e->lift_w0[c] * s->scale[c];
    s->lift[1][c] = e->lift_w1[c] * s->scale[c];
    s->lift[2][c] = s->shift[c];
  }
  lift first = {s->lift[0], s->lift[1], s->lift[2], e->lift_norm.slope};
  pk_map last = depth ? dense_block(s, e->dense, NULL, &first, m->config.F, s->encoder_maps)
                      : make_map(s, s->encoder_maps[0], m->config.F);
  *x = make_map(s, s->x, m->config.F2);
  down_job job = {s, &last, x, depth ? &e->dense[depth - 1].norm : NULL, depth ? NULL : &first};
  kr_parallel(m->ctx, s->T, 2, down_range, &job);
  finish_norm(s, &e->down_norm, x->width);
  normalise(s, &e->down_norm, x);
}

/* ---- decoders ---------------------------------------------------------------------------------------------------- */

typedef struct up_job {
  kr_pk_session *s;
  const pk_map *from, *to;
  const pk_norm *norm; /* of `from`, or NULL */
} up_job;

static void mask_range(void *user, int64_t begin, int64_t end, int worker) {
  const up_job *job = user;
  const kr_pk_session *s = job->s;
  const kr_layers *l = s->model->layers;
  const pk_mask *mask = &s->model->mask;
  const int64_t Cp = s->model->Cp, F = s->model->config.F, F2 = s->model->config.F2;
  (void)worker;
  for (int64_t t = begin; t < end; t++) {
    const float *row = map_row(job->from, t);
    if (job->norm) normalise_row(s, job->norm, job->from, t);
    l->dot_rows(row - Cp, Cp, F2 + 1, 2 * Cp, mask->even_w, mask->bias, s->mask + t * F, 2);
    l->dot_rows(row, Cp, F2, Cp, mask->odd_w, mask->bias, s->mask + t * F + 1, 2);
  }
}

/* The decoder's tail on (T, F) numbers: norm, PReLU, a line, and the sigmoid with a slope per bin. */
static void finish_mask(kr_pk_session *s) {
  const pk_mask *k = &s->model->mask;
  const int64_t F = s->model->config.F, n = s->T * F;
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; i++) mean += s->mask[i];
  mean /= (double)n;
  for (int64_t i = 0; i < n; i++) variance += (s->mask[i] - mean) * (s->mask[i] - mean);
  double scale = k->norm_weight / sqrt(variance / (double)n + 1e-5), shift = k->norm_bias - mean * scale;
  for (int64_t i = 0; i < n; i++) {
    float v = (float)(s->mask[i] * scale + shift);
    v = (v < 0 ? v * k->slope : v) * k->last_weight + k->last_bias;
    s->mask[i] = (float)s->model->config.sigmoid_beta / (1 + expf(-k->sigmoid_slope[i % F] * v));
  }
}

void pk_decode_mask(kr_pk_session *s, const pk_map *x) {
  const kr_primeknet *m = s->model;
  const int64_t depth = m->config.depth;
  pk_map last = depth ? dense_block(s, m->mask.dense, x, NULL, m->config.F2, s->decoder_maps) : *x;
  up_job job = {s, &last, NULL, depth ? &m->mask.dense[depth - 1].norm : NULL};
  kr_parallel(m->ctx, s->T, 4, mask_range, &job);
  finish_mask(s);
}

static void up_range(void *user, int64_t begin, int64_t end, int worker) {
  const up_job *job = user;
  const kr_pk_session *s = job->s;
  const int64_t Cp = s->model->Cp, F2 = s->model->config.F2;
  (void)worker;
  for (int64_t t = begin; t < end; t++) {
    const float *row = map_row(job->from, t);
    float *to = map_row(job->to, t);
    if (job->norm) normalise_row(s, job->norm, job->from, t);
    pk_gemm(s->model, &s->model->phase.even, row - Cp, Cp, F2 + 1, to, 2 * Cp);
    pk_gemm(s->model, &s->model->phase.odd, row, Cp, F2, to + Cp, 2 * Cp);
    measure_row(s, job->to, t);
  }
}

static void angle_range(void *user, int64_t begin, int64_t end, int worker) {
  const up_job *job = user;
  const kr_pk_session *s = job->s;
  const kr_layers *l = s->model->layers;
  const pk_phase *phase = &s->model->phase;
  const int64_t Cp = s->model->Cp, F = s->model->config.F;
  for (int64_t t = begin; t < end; t++) {
    float *row = map_row(job->to, t), *to = s->phase + t * F, *real = s->scratch[worker].real;
    normalise_row(s, &phase->norm, job->to, t);
    l->dot_rows(row, Cp, F, Cp, phase->real_w, phase->real_b, real, 1);
    l->dot_rows(row, Cp, F, Cp, phase->imag_w, phase->imag_b, to, 1);
    for (int64_t f = 0; f < F; f++) to[f] = atan2f(to[f], real[f]);
  }
}

void pk_decode_phase(kr_pk_session *s, const pk_map *x) {
  const kr_primeknet *m = s->model;
  const int64_t depth = m->config.depth;
  pk_map last = depth ? dense_block(s, m->phase.dense, x, NULL, m->config.F2, s->decoder_maps) : *x;
  pk_map wide = make_map(s, s->wide_map, m->config.F);
  up_job job = {s, &last, &wide, depth ? &m->phase.dense[depth - 1].norm : NULL};
  kr_parallel(m->ctx, s->T, 2, up_range, &job);
  finish_norm(s, &m->phase.norm, wide.width);
  kr_parallel(m->ctx, s->T, 2, angle_range, &job);
}
