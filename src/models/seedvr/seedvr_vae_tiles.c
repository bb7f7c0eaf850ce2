/* seedvr_vae_tiles.c: a film in tiles that overlap, each a film of its own, whose results are blended, as ComfyUI's
 * node has it. Not the same film as without tiles: norms and attention see a tile alone. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "seedvr_vae.h"
#include "status.h"

/* Along one axis, rows or columns. */
typedef struct axis {
  int64_t n, tile, overlap, scale_in, scale_out; /* in latents; values of a latent in what is read, and in the result */
  int64_t ramp;                                  /* of the result: how far two tiles are blended */
  int64_t at, end;                               /* the tile, in latents */
} axis;

typedef struct tiling {
  kr_vae *vae;
  const kr_vae_run *run;
  int is_decoder;
  int64_t T_in, T_out, C_in, C_out;
  axis axes[2];
  float *piece_in, *piece_out, *sums; /* a tile's; sums of weights, (H,W) of the result */
} tiling;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static axis axis_of(int64_t n, int64_t tile_pixels, int64_t overlap_pixels, int64_t scale, int is_decoder) {
  const int64_t tile = tile_pixels / scale, overlap = smaller(overlap_pixels / scale, tile - 1);
  return (axis){.n = n, .tile = tile, .overlap = overlap, .scale_in = is_decoder ? 1 : scale,
                .scale_out = is_decoder ? scale : 1, .ramp = is_decoder ? overlap_pixels : overlap};
}

/* The tile at a->at is worth its place: it has more than what the one before had. */
static int is_needed(const axis *a) { return a->at == 0 || a->end - a->at > a->overlap; }

/* Of value i of the tile's result: rises from the tile before, falls to the one after. */
static double weight_of(const axis *a, int64_t i) {
  const double pi = 3.14159265358979323846;
  const int64_t extent = (a->end - a->at) * a->scale_out, k = smaller(a->ramp, extent - 1);
  const int64_t from_end = i - (extent - k);
  double weight = 1;
  if (k <= 0) return 1;
#define RAMP(j) (0.5 - 0.5 * cos(a->ramp > 1 ? pi * (double)(j) / (double)(a->ramp - 1) : 0))
  if (a->at > 0 && i < k) weight = RAMP(i);
  if (a->end < a->n && from_end >= 0) weight = 1 - RAMP(from_end);
#undef RAMP
  return weight;
}

static void cut_tile(const tiling *t, const float *from) {
  const axis *y = &t->axes[0], *x = &t->axes[1];
  const int64_t W = x->n * x->scale_in, h = (y->end - y->at) * y->scale_in, w = (x->end - x->at) * x->scale_in;
  for (int64_t i = 0; i < t->T_in * h; i++) {
    const int64_t row = i / h * y->n * y->scale_in + y->at * y->scale_in + i % h;
    memcpy(t->piece_in + i * w * t->C_in, from + (row * W + x->at * x->scale_in) * t->C_in,
           (size_t)(w * t->C_in) * sizeof *from);
  }
}

static void add_tile(const tiling *t, float *to) {
  const axis *y = &t->axes[0], *x = &t->axes[1];
  const int64_t H = y->n * y->scale_out, W = x->n * x->scale_out, h = (y->end - y->at) * y->scale_out,
                w = (x->end - x->at) * x->scale_out;
  for (int64_t i = 0; i < h * w; i++) {
    const double weight = weight_of(y, i / w) * weight_of(x, i % w);
    const int64_t at = (y->at * y->scale_out + i / w) * W + x->at * x->scale_out + i % w;
    t->sums[at] += (float)weight;
    for (int64_t f = 0; f < t->T_out; f++)
      for (int64_t c = 0; c < t->C_out; c++)
        to[(f * H * W + at) * t->C_out + c] += (float)(weight * (double)t->piece_out[(f * h * w + i) * t->C_out + c]);
  }
}

/* Called while a tile runs: tiles count alike. */
typedef struct tile_progress {
  const kr_vae_run *run;
  int64_t n_done, n;
} tile_progress;
static int32_t tell_tile(void *user, double share) {
  const tile_progress *p = user;
  return p->run->progress(p->run->user, ((double)p->n_done + share) / (double)p->n);
}

static int64_t count_tiles(axis a) {
  int64_t n = 0;
  for (a.at = 0; a.at < a.n; a.at += a.tile - a.overlap) a.end = smaller(a.at + a.tile, a.n), n += is_needed(&a);
  return n;
}

static int32_t run_tiles(tiling *t, const float *from, float *to) {
  axis *y = &t->axes[0], *x = &t->axes[1];
  tile_progress progress = {t->run, 0, count_tiles(*y) * count_tiles(*x)};
  for (y->at = 0; y->at < y->n; y->at += y->tile - y->overlap)
    for (x->at = 0; x->at < x->n; x->at += x->tile - x->overlap) {
      y->end = smaller(y->at + y->tile, y->n), x->end = smaller(x->at + x->tile, x->n);
      if (!is_needed(y) || !is_needed(x)) continue;
      kr_vae_run run = *t->run;
      run.tile[0] = run.tile[1] = 0, run.user = &progress, run.progress = t->run->progress ? tell_tile : NULL;
      run.line = NULL;
      run.size[1] = (y->end - y->at) * (y->scale_in * y->scale_out);
      run.size[2] = (x->end - x->at) * (x->scale_in * x->scale_out);
      cut_tile(t, from);
      KR_TRY((t->is_decoder ? kr_vae_decode : kr_vae_encode)(t->vae, &run, t->piece_in, t->piece_out));
      add_tile(t, to);
      progress.n_done++;
    }
  return KRAIT_OK;
}

static void divide_sums(const tiling *t, float *to) {
  const int64_t area = t->axes[0].n * t->axes[0].scale_out * t->axes[1].n * t->axes[1].scale_out;
  for (int64_t i = 0; i < t->T_out * area * t->C_out; i++)
    to[i] /= fmaxf(t->sums[i / t->C_out % area], 1e-6f);
}

int kr_vae_has_tiles(const kr_vae_run *run) {
  return run->tile[0] > 0 && (run->size[1] > run->tile[0] || run->size[2] > run->tile[1]);
}

int32_t kr_vae_run_tiles(kr_vae *vae, int is_decoder, const kr_vae_run *run, const float *from, float *to) {
  const kr_vae_config *c = kr_vae_config_of(vae);
  const int64_t scale = (int64_t)1 << (c->n_levels - 1);
  int64_t latent[3];
  tiling t = {.vae = vae, .run = run, .is_decoder = is_decoder, .C_in = is_decoder ? c->latent : KR_VAE_COLOURS,
              .C_out = is_decoder ? KR_VAE_COLOURS : 2 * c->latent};
  for (int i = 0; i < 2; i++)
    KR_CHECK(run->tile[i] >= scale && run->tile_overlap[i] >= 0, KRAIT_ERR_ARGUMENT,
             "tiles of %lld pixels that overlap by %lld: must be at least %lld, and 0", (long long)run->tile[i],
             (long long)run->tile_overlap[i], (long long)scale);
  kr_vae_latent_size(c, run->size, latent);
  t.T_in = is_decoder ? latent[0] : run->size[0], t.T_out = is_decoder ? run->size[0] : latent[0];
  for (int i = 0; i < 2; i++)
    t.axes[i] = axis_of(latent[i + 1], run->tile[i], run->tile_overlap[i], scale, is_decoder);
  const int64_t most = smaller(t.axes[0].tile, latent[1]) * smaller(t.axes[1].tile, latent[2]),
                area = latent[1] * latent[2], in = is_decoder ? 1 : scale * scale, out = is_decoder ? scale * scale : 1;
  t.piece_in = kr_alloc_array((size_t)(t.T_in * most * in * t.C_in), sizeof *t.piece_in);
  t.piece_out = kr_alloc_array((size_t)(t.T_out * most * out * t.C_out), sizeof *t.piece_out);
  t.sums = kr_alloc_array((size_t)(area * out), sizeof *t.sums);
  int32_t status = t.piece_in && t.piece_out && t.sums ? KRAIT_OK
                                                       : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tiles of a film");
  memset(to, 0, (size_t)(t.T_out * area * out * t.C_out) * sizeof *to);
  if (status >= 0) status = run_tiles(&t, from, to);
  if (status >= 0) divide_sums(&t, to);
  kr_free(t.piece_in), kr_free(t.piece_out), kr_free(t.sums);
  return status;
}
