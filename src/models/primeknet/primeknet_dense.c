/* primeknet_dense.c: dense blocks, the encoder and both decoders (MODEL.md sections 2, 4, 5). Loops run over frames; within one, a
 * tile of positions at a time goes through its depthwise filters into a small matrix and through one product to the output. */
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

/* ---- instance norm: per-frame statistics, merged in frame order in double, then applied ----------------------------- */

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
  s->model->layers->affine_prelu(map_row(map, t), s->model->Cp, map->width, s->model->Cp, s->scale, s->shift, norm->slope);
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

/* ---- dense layer --------------------------------------------------------------------------------------------------- */

typedef struct lift { /* x0 of the encoder, computed where it is needed: prelu(w0 mag + w1 pha + shift) */
  const float *w0, *w1, *shift, *slope;
} lift;

typedef struct dense_job {
  kr_pk_session *s;
  const pk_dense *layer;
  int64_t i;                              /* which layer: i + 1 sources, dilation 2^i */
  pk_map sources[KR_PK_MAX_DEPTH];        /* newest first */
  const lift *lift;                       /* the oldest source, if it is not a map */
  pk_map out;
} dense_job;

/* Positions f-1 .. f+n of frame t of the lifted input, zeros outside. */
static void lift_tile(const dense_job *job, int64_t t, int64_t f, int64_t n, float *to) {
  const kr_primeknet *m = job->s->model;
  const int64_t F = m->config.F, Cp = m->Cp, first = f > 0 ? f - 1 : 0, last = f + n < F ? f + n + 1 : F;
  if (f == 0) memset(to, 0, (size_t)Cp * sizeof(float));
  if (f + n == F) memset(to + (n + 1) * Cp, 0, (size_t)Cp * sizeof(float));
  m->layers->lift_pair(job->s->mag + t * F + first, job->s->pha + t * F + first, last - first, Cp, job->lift->w0, job->lift->w1, job->lift->shift,
                       job->lift->slope, to + (first - f + 1) * Cp, Cp);
}

static void filter_source(const dense_job *job, int64_t source, int64_t t, int64_t f, int64_t n, pk_scratch *w) {
  const kr_pk_session *s = job->s;
  const int64_t Cp = s->model->Cp, dilation = (int64_t)1 << job->i, before = s->model->config.causal ? 2 : 1;
  const float *rows[3];
  for (int r = 0; r < 3; r++) {
    int64_t at = t + (r - before) * dilation;
    if (at < 0 || at >= s->T) {
      rows[r] = s->zeros + Cp;
    } else if (source == job->i && job->lift) {
      lift_tile(job, at, f, n, w->lifted[r]);
      rows[r] = w->lifted[r] + Cp;
    } else {
      rows[r] = map_row(&job->sources[source], at) + f * Cp;
    }
  }
  s->model->layers->depthwise_3x3(rows, Cp, n, Cp, job->layer->taps[source], job->layer->taps_bias[source], w->mixed + source * Cp, (job->i + 1) * Cp);
}

static void dense_range(void *user, int64_t begin, int64_t end, int worker) {
  const dense_job *job = user;
  const kr_pk_session *s = job->s;
  const int64_t Cp = s->model->Cp, width = job->out.width;
  pk_scratch *w = &s->scratch[worker];
  for (int64_t t = begin; t < end; t++) {
    for (int64_t f = 0; f < width; f += KR_PK_TILE) {
      int64_t n = width - f < KR_PK_TILE ? width - f : KR_PK_TILE;
      for (int64_t source = 0; source <= job->i; source++) filter_source(job, source, t, f, n, w);
      pk_gemm(s->model, &job->layer->mix, w->mixed, (job->i + 1) * Cp, n, map_row(&job->out, t) + f * Cp, Cp, KR_GEMM_SET);
    }
    clear_edges(s, &job->out, t);
    measure_row(s, &job->out, t);
  }
}

/* Runs the block on input (or on the lifted one), its outputs going to bases[0], bases[1], ...; the last output is returned
 * before its norm, which is left in s->scale and s->shift for whoever reads it. */
static pk_map dense_block(kr_pk_session *s, const pk_dense *layers, const pk_map *input, const lift *lifted, int64_t width, float *const *bases) {
  dense_job job = {.s = s, .lift = lifted};
  if (input) job.sources[0] = *input;
  for (job.i = 0; job.i < s->model->config.depth; job.i++) {
    job.layer = &layers[job.i];
    job.out = make_map(s, bases[job.i], width);
    kr_parallel(s->model->ctx, s->T, 2, dense_range, &job);
    finish_norm(s, &job.layer->norm, width);
    if (job.i + 1 == s->model->config.depth) break;
    normalise(s, &job.layer->norm, &job.out);
    memmove(job.sources + 1, job.sources, (size_t)(job.i + 1) * sizeof *job.sources);
    job.sources[0] = job.out;
  }
  return job.out;
}

/* ---- encoder ------------------------------------------------------------------------------------------------------- */

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
    double w0 = e->lift_w0[c], w1 = e->lift_w1[c], variance = (w0 * w0 * mm + 2 * w0 * w1 * mp + w1 * w1 * pp) / (double)n;
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
    if (job->lift) s->model->layers->lift_pair(s->mag + t * F, s->pha + t * F, F, Cp, job->lift->w0, job->lift->w1, job->lift->shift, job->lift->slope, map_row(job->from, t), Cp);
    if (job->norm) normalise_row(s, job->norm, job->from, t);
    pk_gemm(s->model, &s->model->encoder.down, row, 2 * Cp, job->to->width, map_row(job->to, t), Cp, KR_GEMM_SET);
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
  pk_map last = depth ? dense_block(s, e->dense, NULL, &first, m->config.F, s->encoder_maps) : make_map(s, s->encoder_maps[0], m->config.F);
  *x = make_map(s, s->maps[0], m->config.F2);
  down_job job = {s, &last, x, depth ? &e->dense[depth - 1].norm : NULL, depth ? NULL : &first};
  kr_parallel(m->ctx, s->T, 2, down_range, &job);
  finish_norm(s, &e->down_norm, x->width);
  normalise(s, &e->down_norm, x);
}

/* ---- decoders ------------------------------------------------------------------------------------------------------ */

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
  pk_map last = depth ? dense_block(s, m->mask.dense, x, NULL, m->config.F2, s->maps + 1) : *x;
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
    pk_gemm(s->model, &s->model->phase.even, row - Cp, Cp, F2 + 1, to, 2 * Cp, KR_GEMM_SET);
    pk_gemm(s->model, &s->model->phase.odd, row, Cp, F2, to + Cp, 2 * Cp, KR_GEMM_SET);
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
    float *row = map_row(job->to, t), *to = s->phase + t * F, *real = s->scratch[worker].y;
    normalise_row(s, &phase->norm, job->to, t);
    l->dot_rows(row, Cp, F, Cp, phase->real_w, phase->real_b, real, 1);
    l->dot_rows(row, Cp, F, Cp, phase->imag_w, phase->imag_b, to, 1);
    for (int64_t f = 0; f < F; f++) to[f] = atan2f(to[f], real[f]);
  }
}

void pk_decode_phase(kr_pk_session *s, const pk_map *x) {
  const kr_primeknet *m = s->model;
  const int64_t depth = m->config.depth;
  pk_map last = depth ? dense_block(s, m->phase.dense, x, NULL, m->config.F2, s->maps + 1) : *x;
  pk_map wide = make_map(s, s->wide_map, m->config.F);
  up_job job = {s, &last, &wide, depth ? &m->phase.dense[depth - 1].norm : NULL};
  kr_parallel(m->ctx, s->T, 2, up_range, &job);
  finish_norm(s, &m->phase.norm, wide.width);
  kr_parallel(m->ctx, s->T, 2, angle_range, &job);
}
