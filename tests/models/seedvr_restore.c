/* seedvr_restore.c: the parts of a restoration against published code: resizing, colours, joins, schedule, guidance
 * (tests/golden/seedvr-restore); autoencoder and whole restorations if the whole golden files are beside this tree. */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "op_list.h"
#include "seedvr/seedvr_frames.h"
#include "seedvr/seedvr_memory.h"
#include "seedvr/seedvr_sampler.h"
#include "seedvr/seedvr_vae.h"
#include "weights.h"

static krait_ctx *ctx;
static kr_weights *golden;

static const kr_weight *find(const char *format, const char *name, const char *part) {
  char key[128];
  snprintf(key, sizeof key, format, name, part);
  const kr_weight *item = kr_weights_find(golden, key);
  if (!item) fail_msg("no %s", key);
  return item;
}

static void check_near(const char *what, const float *got, const float *want, int64_t n, double most) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    norm += (double)want[i] * (double)want[i];
  }
  const double relative = sqrt(error / (norm > 0 ? norm : 1));
  print_message("%s: relative error %.2g\n", what, relative);
  if (!(relative <= most)) fail_msg("%s: relative error %.2g, more than %.2g", what, relative, most);
}

/* (T,3,H,W) as (T,H,W,3). */
static float *channels_last(const kr_weight *item) {
  const int64_t T = item->shape[0], area = item->shape[2] * item->shape[3];
  float *to = malloc((size_t)(3 * T * area) * sizeof *to);
  for (int64_t i = 0; i < 3 * T * area; i++)
    to[i] = ((const float *)item->data)[(i / 3 / area * 3 + i % 3) * area + i / 3 % area];
  return to;
}

static void resizes_as_published(void **state) {
  static const char *const cases[] = {"tall", "bars"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    const kr_weight *frames = find("golden.transform.%s.%s", cases[i], "frames"),
                    *resized = find("golden.transform.%s.%s", cases[i], "resized"),
                    *cropped = find("golden.transform.%s.%s", cases[i], "cropped");
    const int32_t *res = find("golden.transform.%s.%s", cases[i], "res")->data;
    const kr_frame_rule rule = {.area_h = res[0], .area_w = res[1]};
    kr_frame_size size;
    kr_resizer *resizer = NULL;
    assert_int_equal(kr_frame_fit(&rule, frames->shape[1], frames->shape[2], &size), KRAIT_OK);
    assert_int_equal(size.scaled_h, resized->shape[2]);
    assert_int_equal(size.scaled_w, resized->shape[3]);
    assert_int_equal(size.H, cropped->shape[2]);
    assert_int_equal(size.W, cropped->shape[3]);
    assert_int_equal(kr_resizer_open(ctx, &size, &resizer), KRAIT_OK);
    const float *got = kr_resizer_run(resizer, frames->data);
    float *want = channels_last(resized), *frame = malloc((size_t)(3 * size.H * size.W) * sizeof *frame),
          *turned = malloc((size_t)(3 * size.H * size.W) * sizeof *turned);
    check_near(cases[i], got, want, 3 * size.scaled_h * size.scaled_w, 1e-6);
    kr_frame_crop(&size, got, frame);
    for (int64_t k = 0; k < 3 * size.H * size.W; k++) turned[k % 3 * size.H * size.W + k / 3] = frame[k];
    check_near("cropped", turned, cropped->data, 3 * size.H * size.W, 1e-6);
    free(want), free(frame), free(turned);
    kr_resizer_close(&resizer);
  }
}

static void corrects_colours_as_published(void **state) {
  static const struct {
    const char *file, *part;
    int32_t colour;
    double most;
  } cases[] = {{"colour", "wavelet", KR_COLOUR_WAVELET, 1e-6}, {"colour", "adain", KR_COLOUR_ADAIN, 1e-6},
               {"comfy_colour", "lab", KR_COLOUR_LAB, 5e-5}};
  (void)state;
  for (int i = 0; i < 3; i++) {
    const char *at = "golden.%s.small.%s";
    const kr_weight *item = find(at, cases[i].file, "content");
    float *content = channels_last(item), *style = channels_last(find(at, cases[i].file, "style")),
          *want = channels_last(find(at, cases[i].file, cases[i].part));
    const int64_t size[3] = {item->shape[0], item->shape[2], item->shape[3]};
    assert_int_equal(kr_colour_run(ctx, cases[i].colour, size, content, style), KRAIT_OK);
    check_near(cases[i].part, content, want, 3 * size[0] * size[1] * size[2], cases[i].most);
    free(content), free(style), free(want);
  }
}

/* The fine part of one film and the coarse part of another, by the definition, of frames narrower than the steps. */
static double coarse_value(const double *x, int64_t h, int64_t w, int64_t at, int64_t step) {
  static const double factors[3] = {0.25, 0.5, 0.25};
  const int64_t y = at / 3 / w, column = at / 3 % w;
  double sum = 0;
  for (int i = 0; i < 9; i++) {
    const int64_t to_y = y + (i / 3 - 1) * step, to_x = column + (i % 3 - 1) * step,
                  row = to_y < 0 ? 0 : to_y >= h ? h - 1 : to_y, x_in = to_x < 0 ? 0 : to_x >= w ? w - 1 : to_x;
    sum += factors[i / 3] * factors[i % 3] * x[3 * (row * w + x_in) + at % 3];
  }
  return sum;
}

static void corrects_colours_of_narrow_frames(void **state) {
  static const int64_t sizes[][2] = {{1, 1}, {3, 40}, {40, 3}, {17, 16}, {33, 35}};
  enum { MOST = 3 * 40 * 40 };
  (void)state;
  for (int i = 0; i < 5; i++) {
    const int64_t h = sizes[i][0], w = sizes[i][1], n = 3 * h * w, size[3] = {2, h, w};
    float *content = malloc((size_t)(4 * n) * sizeof *content), *style = content + 2 * n;
    double from[MOST], to[MOST], want[2 * MOST];
    kr_seedvr_noise(ctx, 3, 0, 0, 4 * n, content);
    for (int64_t frame = 0; frame < 2; frame++) {
      for (int64_t k = 0; k < n; k++) from[k] = (double)style[frame * n + k] - (double)content[frame * n + k];
      for (int64_t step = 1; step <= 16; step *= 2) {
        for (int64_t k = 0; k < n; k++) to[k] = coarse_value(from, h, w, k, step);
        memcpy(from, to, (size_t)n * sizeof *from);
      }
      for (int64_t k = 0; k < n; k++) want[frame * n + k] = (double)content[frame * n + k] + from[k];
    }
    assert_int_equal(kr_colour_run(ctx, KR_COLOUR_WAVELET, size, content, style), KRAIT_OK);
    for (int64_t k = 0; k < 2 * n; k++)
      if (!(fabs((double)content[k] - want[k]) < 1e-6))
        fail_msg("%d x %d, value %d: %g, not %g", (int)w, (int)h, (int)k, (double)content[k], want[k]);
    free(content);
  }
}

static void joins_as_published(void **state) {
  static const char *const cases[] = {"blend1", "blend2", "blend3", "blend4", "blend5", "blend8"};
  (void)state;
  for (int i = 0; i < 6; i++) {
    const kr_weight *before = find("golden.comfy_colour.%s.%s", cases[i], "prev"),
                    *after = find("golden.comfy_colour.%s.%s", cases[i], "cur");
    const int64_t k = before->shape[0], n = before->shape[1] * before->shape[2] * before->shape[3];
    float *got = malloc((size_t)(k * n) * sizeof *got);
    memcpy(got, after->data, (size_t)(k * n) * sizeof *got);
    kr_blend(k, n, before->data, got);
    check_near(cases[i], got, find("golden.comfy_colour.%s.%s", cases[i], "out")->data, k * n, 1e-6);
    free(got);
  }
}

static void schedules_as_published(void **state) {
  const kr_weight *shapes = find("golden.sampler.%s%s", "shift.", "shapes"),
                  *times = find("golden.sampler.%s%s", "shift.", "t"),
                  *out = find("golden.sampler.%s%s", "shift.", "out");
  const float *four = find("golden.sampler.%s%s", "timesteps", "4")->data;
  (void)state;
  for (int64_t i = 0; i < shapes->shape[0]; i++)
    for (int64_t k = 0; k < times->shape[0]; k++) {
      const int32_t *at = (const int32_t *)shapes->data + 3 * i;
      const double want = (double)((const float *)out->data)[i * times->shape[0] + k],
                   got = kr_seedvr_shift((double)((const float *)times->data)[k], (int64_t[]){at[0], at[1], at[2]});
      if (!(fabs(got - want) <= 1e-5 * fabs(want) + 1e-6)) fail_msg("shift %lld: %g, not %g", (long long)i, got, want);
    }
  for (int i = 0; i < 4; i++) assert_true(fabs(kr_seedvr_time(4, i) - (double)four[i]) < 1e-4);
  for (int64_t steps = 1; steps <= 200; steps++) assert_true(kr_seedvr_time(steps, steps - 1) > 0);
}

static void guides_as_published(void **state) {
  static const struct {
    const char *name;
    double scale, rescale;
  } cases[] = {{"1.0_rescale0.0", 1, 0}, {"2.0_rescale1.0", 2, 1}, {"6.5_rescale0.0", 6.5, 0},
               {"6.5_rescale0.7", 6.5, 0.7}};
  const kr_weight *positive = find("golden.sampler.%s%s", "cfg.", "pos"),
                  *negative = find("golden.sampler.%s%s", "cfg.", "neg");
  float v[6 * 16];
  (void)state;
  assert_int_equal(positive->bytes, sizeof v);
  for (int i = 0; i < 4; i++) {
    const kr_sampling s = {.n_rows = 6, .n_channels = 16, .scale = cases[i].scale, .rescale = cases[i].rescale};
    memcpy(v, positive->data, sizeof v);
    kr_seedvr_guide(&s, negative->data, v);
    check_near(cases[i].name, v, find("golden.sampler.%s%s", "cfg.scale", cases[i].name)->data, 6 * 16, 1e-6);
  }
}

/* Value i is the same whatever n; mean and deviation are those of a normal distribution. */
static void draws_noise(void **state) {
  enum { N = 20000 };
  float *a = malloc(N * sizeof *a), few[7];
  double sum = 0, squares = 0;
  (void)state;
  kr_seedvr_noise(ctx, 666, 0, 1, N, a), kr_seedvr_noise(ctx, 666, 0, 1, 7, few);
  assert_memory_equal(a, few, sizeof few);
  for (int i = 0; i < N; i++) sum += (double)a[i], squares += (double)a[i] * (double)a[i];
  assert_true(fabs(sum / N) < 0.03 && fabs(squares / N - 1) < 0.05);
  kr_seedvr_noise(ctx, 667, 0, 1, 7, few);
  assert_memory_not_equal(a, few, sizeof few);
  free(a);
}

static void refuses_sizes(void **state) {
  kr_frame_size size;
  (void)state;
  assert_int_equal(kr_frame_fit(&(kr_frame_rule){.area_h = 4, .area_w = 400}, 4, 400, &size), KRAIT_ERR_SHAPE);
  assert_non_null(strstr(krait_error_detail(), "400 x 4"));
  assert_int_equal(kr_frame_fit(&(kr_frame_rule){.area_h = 0, .area_w = 400}, 40, 40, &size), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_frame_fit(&(kr_frame_rule){.shorter = 10, .is_padded = 1}, 20, 40, &size), KRAIT_OK);
  assert_int_equal(size.H, 16);
  assert_int_equal(size.W, 32);
  assert_int_equal(size.out_w, 20);
  static const int64_t counts[][2] = {{1, 1}, {2, 5}, {4, 5}, {5, 5}, {6, 9}, {20, 21}, {21, 21}};
  for (int i = 0; i < 7; i++) assert_int_equal(kr_frames_padded(counts[i][0]), counts[i][1]);
}

static void gives_samples_of_each_kind(void **state) {
  const kr_frame_size size = {.H = 1, .W = 2, .out_h = 1, .out_w = 2};
  const float frame[6] = {-1.5f, -1, 0, 0.001f, 1, 7}, floats_wanted[6] = {0, 0, 0.5f, 0.5005f, 1, 1};
  const uint8_t bytes_wanted[6] = {0, 0, 128, 128, 255, 255};
  const uint16_t words_wanted[6] = {0, 0, 32768, 32800, 65535, 65535};
  uint8_t bytes[6];
  uint16_t words[6];
  float floats[6];
  (void)state;
  kr_frame_put(&size, frame, KR_SAMPLES_8, bytes), kr_frame_put(&size, frame, KR_SAMPLES_16, words);
  kr_frame_put(&size, frame, KR_SAMPLES_FLOAT, floats);
  assert_memory_equal(bytes, bytes_wanted, sizeof bytes);
  assert_memory_equal(words, words_wanted, sizeof words);
  for (int i = 0; i < 6; i++) assert_true(fabsf(floats[i] - floats_wanted[i]) < 1e-6f);
}

/* ---- the autoencoder, with random weights ---- */

static const kr_vae_config small_vae = {.n_levels = 3, .width = {8, 16, 16}, .n_layers = 1, .n_groups = 4, .latent = 4,
                                        .n_time = 2, .more = 4, .eps = 1e-6f};

static float *random_values(int64_t n) {
  float *to = malloc((size_t)n * sizeof *to);
  kr_seedvr_noise(ctx, 3, 0, 0, n, to);
  return to;
}

static int64_t volume_of(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

/* Frame by frame, with memories between them, gives what all frames at once do. */
static void frames_give_the_whole(void **state) {
  static const int64_t sizes[][3] = {{1, 8, 12}, {5, 12, 8}, {9, 8, 4}, {21, 4, 20}};
  kr_vae *vae = NULL;
  (void)state;
  assert_int_equal(kr_vae_open(ctx, &small_vae, NULL, KRAIT_F32, &vae), KRAIT_OK);
  for (int i = 0; i < 4; i++)
    for (int side = 0; side < KR_VAE_SIDES; side++) {
      kr_vae_run run = {.size = {sizes[i][0], sizes[i][1], sizes[i][2]}};
      int64_t latent[3];
      kr_vae_latent_size(&small_vae, run.size, latent);
      const int64_t n_film = volume_of(run.size) * 3, n_latent = volume_of(latent) * small_vae.latent,
                    n_in = side ? n_latent : n_film, n_out = side ? n_film : 2 * n_latent;
      float *in = random_values(n_in), *parts = malloc((size_t)n_out * sizeof *parts),
            *whole = malloc((size_t)n_out * sizeof *whole);
      int32_t (*fn)(kr_vae *, const kr_vae_run *, const float *, float *) = side ? kr_vae_decode : kr_vae_encode;
      if (fn(vae, &run, in, parts) < 0) fail_msg("%s", krait_error_detail());
      run.is_whole = 1;
      if (fn(vae, &run, in, whole) < 0) fail_msg("%s", krait_error_detail());
      check_near(side ? "decoded" : "encoded", parts, whole, n_out, 2e-6);
      run.is_whole = 0;
      for (uint32_t cuts = 1; cuts < 4; cuts++) { /* level by level: the same bits */
        run.saving.cuts = cuts, run.saving.host_cuts = cuts & 2;
        if (fn(vae, &run, in, whole) < 0) fail_msg("%s", krait_error_detail());
        assert_memory_equal(parts, whole, (size_t)n_out * sizeof *parts);
      }
      free(in), free(parts), free(whole);
    }
  kr_vae_close(&vae);
}

/* Two tiles of rows of 24 pixels, 12 of them each, which share 4: pixel columns 8 to 11, and a latent of 4. */
static void tiles_are_films_of_their_own(void **state) {
  enum { T = 5, H = 8, W = 20, TILE = 12, SHARED = 4, N = T * H * W * 3 };
  static float film[N], whole[N], tiled[N], left[T * H * TILE * 3], right[T * H * TILE * 3];
  const int64_t L = small_vae.latent;
  float *latents = random_values(2 * 2 * 5 * L), *halves = malloc((size_t)(2 * 2 * 3 * L) * sizeof *halves);
  kr_vae *vae = NULL;
  (void)state;
  assert_int_equal(kr_vae_open(ctx, &small_vae, NULL, KRAIT_F32, &vae), KRAIT_OK);
  kr_vae_run run = {.size = {T, H, W}};
  assert_int_equal(kr_vae_decode(vae, &run, latents, whole), KRAIT_OK);
  run.tile[0] = 100, run.tile[1] = W, run.tile_overlap[0] = run.tile_overlap[1] = SHARED;
  assert_int_equal(kr_vae_decode(vae, &run, latents, tiled), KRAIT_OK);
  assert_memory_equal(whole, tiled, sizeof whole); /* one tile */
  run.tile[1] = TILE;
  assert_int_equal(kr_vae_decode(vae, &run, latents, tiled), KRAIT_OK);
  for (int side = 0; side < 2; side++) {
    const kr_vae_run half = {.size = {T, H, TILE}};
    for (int i = 0; i < 4; i++)
      memcpy(halves + i * 3 * L, latents + (i * 5 + 2 * side) * L, (size_t)(3 * L) * sizeof *halves);
    assert_int_equal(kr_vae_decode(vae, &half, halves, side ? right : left), KRAIT_OK);
  }
  for (int i = 0; i < N; i++) {
    const int row = i / 3 / W, x = i / 3 % W, c = i % 3;
    const double a = x < TILE ? left[(row * TILE + x) * 3 + c] : 0,
                 b = x >= 8 ? right[(row * TILE + x - 8) * 3 + c] : 0,
                 share = x < 8 ? 0 : x >= TILE ? 1 : 0.5 - 0.5 * cos(acos(-1) * (x - 8) / (SHARED - 1));
    assert_true(fabs(tiled[i] - (a * (1 - share) + b * share)) < 1e-5 * (1 + fabs(a) + fabs(b)));
  }
  run.tile[0] = 2;
  assert_int_equal(kr_vae_encode(vae, &run, film, tiled), KRAIT_ERR_ARGUMENT);
  kr_vae_close(&vae);
  free(latents), free(halves);
}

/* ---- upsampling as small convolutions, against the product, the cells and the convolution ---- */

enum { UP_C = 3, UP_T = 4, UP_H = 3, UP_W = 2, UP_MOST = 2 * UP_T * 4 * UP_H * UP_W * UP_C };
typedef struct up_case {
  kr_vae_up up;
  const float *x; /* (UP_T,UP_H,UP_W,UP_C) */
  double got[UP_MOST]; /* (r T - (r == 2), 2 H, 2 W, C) */
} up_case;

/* What set `set` gives for frame t, at its place of the cell of row y and column x. */
static double small_sum(const up_case *u, int set, int place, int64_t t, int64_t y, int64_t x, int64_t k,
                        const float *weights, const float *bias) {
  const int64_t KT = kr_vae_up_frames(set), row = place / u->up.r / 2, column = place / u->up.r % 2;
  double sum = (double)bias[k];
  if (y == row * (UP_H - 1)) sum += (double)bias[UP_C + k];
  if (x == column * (UP_W - 1)) sum += (double)bias[2 * UP_C + k];
  if (y == row * (UP_H - 1) && x == column * (UP_W - 1)) sum += (double)bias[3 * UP_C + k];
  for (int64_t tap = 0; tap < 4 * KT; tap++) {
    const int64_t f = t + tap / 4 - KT + 1, h = y + tap / 2 % 2 - (row == 0), w = x + tap % 2 - (column == 0);
    if (h < 0 || h >= UP_H || w < 0 || w >= UP_W) continue;
    for (int64_t c = 0; c < UP_C; c++)
      sum += (double)weights[(k * 4 * KT + tap) * UP_C + c] *
             (double)u->x[(((f < 0 ? 0 : f) * UP_H + h) * UP_W + w) * UP_C + c];
  }
  return sum;
}

static int32_t keep_place(void *user, int set, int place, const float *weights, const float *bias) {
  up_case *u = user;
  const int r = u->up.r, row = place / r / 2, column = place / r % 2;
  for (int64_t t = 0; t < UP_T; t++) {
    if (r == 2 && set != (t == 0 ? KR_VAE_UP_FIRST : t == 1 ? KR_VAE_UP_SECOND : KR_VAE_UP_LATER)) continue;
    const int64_t frame = r == 1 ? t : t ? 2 * t - 1 + place % r : 0;
    for (int64_t i = 0; i < UP_H * UP_W * UP_C; i++) {
      const int64_t y = i / UP_C / UP_W, x = i / UP_C % UP_W, k = i % UP_C;
      u->got[((frame * 2 * UP_H + 2 * y + row) * 2 * UP_W + 2 * x + column) * UP_C + k] =
          small_sum(u, set, place, t, y, x, k, weights, bias);
    }
  }
  return KRAIT_OK;
}

/* A value of the map of cells, whose frames begin with the first one. */
static double cell_value(const up_case *u, int64_t frame, int64_t y, int64_t x, int64_t c) {
  const int64_t r = u->up.r, f = frame < 0 ? 0 : frame, t = r == 1 ? f : (f + 1) / 2,
                e = r == 1 || f == 0 ? 0 : (f + 1) % 2, row = ((y % 2 * 2 + x % 2) * r + e) * UP_C + c;
  double sum = (double)u->up.place_bias[row];
  for (int64_t i = 0; i < UP_C; i++)
    sum += (double)u->up.places[row * UP_C + i] * (double)u->x[((t * UP_H + y / 2) * UP_W + x / 2) * UP_C + i];
  return sum;
}

static double large_sum(const up_case *u, int64_t frame, int64_t y, int64_t x, int64_t k) {
  double sum = (double)u->up.conv_bias[k];
  for (int64_t tap = 0; tap < 27; tap++) {
    const int64_t h = y + tap / 3 % 3 - 1, w = x + tap % 3 - 1;
    if (h < 0 || h >= 2 * UP_H || w < 0 || w >= 2 * UP_W) continue;
    for (int64_t c = 0; c < UP_C; c++)
      sum += (double)u->up.conv[(k * 27 + tap) * UP_C + c] * cell_value(u, frame + tap / 9 - 2, h, w, c);
  }
  return sum;
}

static void upsamples_by_small_convolutions(void **state) {
  float *values = random_values(8 * UP_C * UP_C + 8 * UP_C + 27 * UP_C * UP_C + UP_C + UP_T * UP_H * UP_W * UP_C);
  (void)state;
  for (int r = 1; r <= 2; r++) {
    const float *place_bias = values + 8 * UP_C * UP_C, *conv = place_bias + 8 * UP_C,
                *conv_bias = conv + 27 * UP_C * UP_C;
    up_case u = {.up = {ctx, UP_C, r, values, place_bias, conv, conv_bias, keep_place, NULL}, .x = conv_bias + UP_C};
    u.up.user = &u;
    assert_int_equal(kr_vae_up_make(&u.up), KRAIT_OK);
    const int64_t n = (r * UP_T - (r == 2)) * 4 * UP_H * UP_W * UP_C;
    for (int64_t i = 0; i < n; i++) {
      const int64_t k = i % UP_C, x = i / UP_C % (2 * UP_W), y = i / UP_C / (2 * UP_W) % (2 * UP_H),
                    frame = i / UP_C / (4 * UP_W * UP_H);
      const double want = large_sum(&u, frame, y, x, k);
      if (!(fabs(u.got[i] - want) < 1e-4)) fail_msg("r %d, value %d: %g, not %g", r, (int)i, u.got[i], want);
    }
  }
  free(values);
}

/* A run of any length takes the same memory; with a level's memories on the host, less. */
static void memory_does_not_grow_with_the_film(void **state) {
  kr_vae *vae = NULL;
  (void)state;
  assert_int_equal(kr_vae_open(ctx, &small_vae, NULL, KRAIT_F32, &vae), KRAIT_OK);
  for (int side = 0; side < KR_VAE_SIDES; side++) {
    kr_vae_needs few, many;
    uint64_t sizes[8];
    int32_t n;
    kr_vae_run run = {.size = {13, 16, 32}};
    assert_int_equal(kr_vae_count(vae, side, &run, &few), KRAIT_OK);
    run.size[0] = 40001;
    assert_int_equal(kr_vae_count(vae, side, &run, &many), KRAIT_OK);
    assert_true(few.bytes == many.bytes && few.host_bytes == 0);
    assert_int_equal(kr_vae_memory_sizes(vae, side, &run, 8, sizes, &n), KRAIT_OK);
    assert_true(n >= 2 && sizes[0] > sizes[1]);
    run.saving.host_to = sizes[1];
    assert_int_equal(kr_vae_count(vae, side, &run, &few), KRAIT_OK);
    assert_true(few.host_bytes >= sizes[1] && few.bytes < many.bytes);
    assert_true(few.moved_bytes >= 2 * few.host_bytes * 10000); /* with every step */
    run = (kr_vae_run){.size = {13, 16, 32}, .saving = {.cuts = 3, .host_cuts = 3}};
    assert_int_equal(kr_vae_count(vae, side, &run, &few), KRAIT_OK);
    assert_true(few.host_bytes > 0 && few.moved_bytes == 2 * few.host_bytes && few.bytes < many.bytes);
  }
  kr_vae_close(&vae);
}

/* ---- plans ---- */

/* A 3B at about 720p, in MiB. */
static void chooses_plans(void **state) {
  enum { ENCODE = 2000, SAMPLE = 800, DECODE = 7500, STREAMED = 1700 };
  static const struct {
    uint64_t most;
    int32_t weights; /* -1: none fits */
    uint64_t bytes, host;
  } cases[] = {{UINT64_MAX, KR_PLAN_RESIDENT, 7000 + DECODE, 0}, {7000 + DECODE, KR_PLAN_RESIDENT, 7000 + DECODE, 0},
               {7000 + DECODE - 1, KR_PLAN_RESIDENT, 7000 + 6900, 500}, /* moves less than the weights */
               {7000 + 6899, KR_PLAN_BY_STAGE, 300 + DECODE, 0}, {300 + DECODE, KR_PLAN_BY_STAGE, 300 + DECODE, 0},
               {300 + DECODE - 1, KR_PLAN_BY_STAGE, 6500 + SAMPLE, 500}, {7299, KR_PLAN_STREAMED, 7200, 500},
               {6000, KR_PLAN_STREAMED, 300 + 4500, 3000}, {4799, -1, 4800, 3000}};
  static const kr_plan_move moves[] = {{.work = 6950, .host = 400, .moved = 9000}, /* moves more, takes more */
                                       {.work = 4500, .host = 3000, .moved = 60000}, {.work = 5000, .moved = 70000},
                                       {.work = 7000, .host = 800, .moved = 800},
                                       {.work = 6900, .host = 500, .moved = 800}};
  kr_plan_needs needs = {.stages = {{.weights = 200, .work = ENCODE},
                                    {.weights = 6500, .work = SAMPLE, .streamed = STREAMED},
                                    {.weights = 300, .work = DECODE}}};
  (void)state;
  for (int i = 0; i < 5; i++) kr_plan_stage_add(&needs.stages[KR_PLAN_DECODE], &moves[i]);
  assert_int_equal(needs.stages[KR_PLAN_DECODE].n_moves, 2);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kr_memory_use plan;
    char text[256];
    const int fits = kr_memory_use_choose(&needs, cases[i].most, &plan);
    kr_memory_use_print(&plan, cases[i].most, text, sizeof text);
    assert_int_equal(fits, cases[i].weights >= 0);
    if (fits) assert_int_equal(plan.weights, cases[i].weights);
    if (plan.bytes != cases[i].bytes || plan.host_bytes != cases[i].host)
      fail_msg("case %d: %d and %d on the host", (int)i, (int)plan.bytes, (int)plan.host_bytes);
    assert_true(!fits || plan.bytes <= cases[i].most);
    assert_non_null(strstr(text, " GiB: encoder"));
    assert_true((strstr(text, "on the host") != NULL) == (plan.host_bytes > 0));
  }
}

/* ---- with the whole golden files ---- */

static void encodes_and_decodes_as_published(void **state) {
  krait_verify_result rows[64];
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  int32_t n = 0, more = 0;
  (void)state;
  if (access(SHARED_GOLDEN "/seedvr-restore", R_OK) != 0) return;
  const krait_denoiser_options options = {.size = sizeof options,
                                          .weights_path = SHARED_GOLDEN "/seedvr-restore/vae.weights.safetensors"};
  if (krait_denoiser_open(ctx, &options, &model) < 0 || krait_denoiser_session_open(model, &session) < 0 ||
      krait_verify(session, SHARED_GOLDEN "/seedvr-restore/vae.golden.safetensors", rows, 64, &n) < 0)
    fail_msg("%s", krait_error_detail());
  assert_int_equal(n, 21);
  if (krait_verify(session, SHARED_GOLDEN "/seedvr-restore/comfy_tiles.golden.safetensors", rows + n, 64 - n,
                   &more) < 0)
    fail_msg("%s", krait_error_detail());
  assert_int_equal(more, 6);
  n += more;
  for (int i = 0; i < n; i++)
    if (!(rows[i].rel_l2 < 1e-5)) fail_msg("%s: relative error %.2g", rows[i].name, rows[i].rel_l2);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
}

/* ---- operators, with vae_ops.golden ---- */

typedef struct map { /* (T,H,W,C) */
  int64_t T, H, W, C;
  float *at;
} map;

static kr_view view_of(const map *m) {
  return (kr_view){.data = m->at, .stride = {m->H * m->W * m->C, m->W * m->C, m->C, 1}};
}
static map new_map(int64_t T, int64_t H, int64_t W, int64_t C) {
  return (map){T, H, W, C, calloc((size_t)(T * H * W * C), sizeof(float))};
}
/* (1,C,T,H,W) as a map. */
static map take_map(const char *op, const char *part) {
  const kr_weight *item = find("golden.%s%s", op, part);
  map m = new_map(item->shape[2], item->shape[3], item->shape[4], item->shape[1]);
  const int64_t n = m.T * m.H * m.W;
  for (int64_t i = 0; i < n * m.C; i++) m.at[i] = ((const float *)item->data)[i % m.C * n + i / m.C];
  return m;
}

static void run_op(const kr_op *op, void *args, kr_call *call) {
  uint64_t bytes = 0;
  assert_int_equal(kr_op_scratch_bytes(op, ctx, args, &bytes), KRAIT_OK);
  call->scratch = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64 + 64), call->scratch_bytes = bytes;
  if (kr_op_run(op, ctx, args) < 0) fail_msg("%s", krait_error_detail());
  free(call->scratch);
}

/* Frames from.. of x; the last frames of what is read stay in memory if there is any. */
static map convolve(const char *op, const char *conv, const map *x, int64_t from, int64_t n, int follows, map *memory) {
  const kr_weight *w = find("golden.%s%s.weight", op, conv), *bias = find("golden.%s%s.bias", op, conv);
  const int64_t K = w->shape[0], C = w->shape[1], KT = w->shape[2], S = *conv ? 2 : 1, ST = *conv && KT > 1 ? 2 : 1,
                taps = KT * w->shape[3] * w->shape[4], front = follows ? KT - ST : KT - 1,
                P = *conv ? 0 : w->shape[3] / 2;
  float *turned = malloc((size_t)(K * C * taps) * sizeof *turned);
  for (int64_t i = 0; i < K * C * taps; i++)
    turned[i] = ((const float *)w->data)[(i / C / taps * C + i % C) * taps + i / C % taps];
  const map part = {n, x->H, x->W, C, x->at + from * x->H * x->W * C};
  map out = new_map((n + front - KT) / ST + 1, x->H / S, x->W / S, K);
  if (!memory->at && KT > ST) *memory = new_map(KT - ST, x->H, x->W, C);
  kr_conv3d_args a = {.call.size = sizeof a, .T = n, .H = x->H, .W = x->W, .OT = out.T, .OH = out.H, .OW = out.W,
                      .C = C, .K = K, .TAPS = taps,
                      .KT = KT, .KH = w->shape[3], .KW = w->shape[4], .ST = ST, .SH = S, .SW = S,
                      .PH = P, .PW = P, .past = KT > ST ? KT - ST : 0, .x = view_of(&part), .out = view_of(&out),
                      .weight = {.data = turned, .stride = {taps * C, C, 1}},
                      .bias = {.data = (void *)bias->data, .stride = {1}}};
  if (KT > ST) a.final_states = view_of(memory);
  if (KT > ST && follows) a.initial_states = a.final_states;
  run_op(&kr_op_conv3d, &a, &a.call);
  free(turned);
  return out;
}

static void convolves_as_published(void **state) {
  static const char *const cases[][2] = {{"conv333", ""}, {"conv133", ""}, {"conv111", ""}, {"down_s", ".conv"},
                                         {"down_st", ".conv"}};
  kr_weights *parts = golden;
  (void)state;
  if (access(SHARED_GOLDEN "/seedvr-restore", R_OK) != 0) return;
  if (kr_weights_open(SHARED_GOLDEN "/seedvr-restore/vae_ops.golden.safetensors", &golden) < 0)
    fail_msg("%s", krait_error_detail());
  map x = take_map("x", "");
  for (int i = 0; i < 5; i++) {
    map none = {0}, memory = {0}, want = take_map(cases[i][0], ".y"), pieces = take_map(cases[i][0], ".y_sliced"),
        got = convolve(cases[i][0], cases[i][1], &x, 0, x.T, 0, &none);
    const int64_t n = want.T * want.H * want.W * want.C;
    check_near(cases[i][0], got.at, want.at, n, 1e-6);
    const int32_t *cuts = find("golden.%s%s", cases[i][0], ".cuts")->data;
    int64_t at = 0, from = 0;
    for (int k = 0; k < 3; from += cuts[k++]) {
      map slice = convolve(cases[i][0], cases[i][1], &x, from, cuts[k], k > 0, &memory);
      const int64_t m = slice.T * slice.H * slice.W * slice.C;
      memcpy(got.at + at, slice.at, (size_t)m * sizeof *slice.at);
      at += m;
      free(slice.at);
    }
    assert_int_equal(at, n);
    check_near("in slices", got.at, pieces.at, n, 1e-6);
    free(none.at), free(memory.at), free(want.at), free(pieces.at), free(got.at);
  }
  map want = take_map("group_norm", ".y"), got = new_map(x.T, x.H, x.W, x.C);
  kr_group_norm_args a = {.call.size = sizeof a, .B = x.T, .S = x.H * x.W, .C = x.C, .eps = 1e-6f,
                          .G = *(const int32_t *)find("golden.%s%s", "group_norm", ".groups")->data,
                          .x = {.data = x.at, .stride = {x.H * x.W * x.C, x.C, 1}},
                          .weight = {.data = (void *)find("golden.%s%s", "group_norm", ".weight")->data, .stride = {1}},
                          .bias = {.data = (void *)find("golden.%s%s", "group_norm", ".bias")->data, .stride = {1}},
                          .out = {.data = got.at, .stride = {x.H * x.W * x.C, x.C, 1}}};
  run_op(&kr_op_group_norm, &a, &a.call);
  check_near("group_norm", got.at, want.at, x.T * x.H * x.W * x.C, 1e-6);
  free(want.at), free(got.at), free(x.at);
  kr_weights_close(&golden);
  golden = parts;
}

int main(void) {
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx) < 0 ||
      kr_weights_open("tests/golden/seedvr-restore/parts.golden.safetensors", &golden) < 0)
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resizes_as_published),  cmocka_unit_test(corrects_colours_as_published),
      cmocka_unit_test(corrects_colours_of_narrow_frames),
      cmocka_unit_test(joins_as_published),    cmocka_unit_test(schedules_as_published),
      cmocka_unit_test(guides_as_published),   cmocka_unit_test(draws_noise),
      cmocka_unit_test(refuses_sizes),         cmocka_unit_test(gives_samples_of_each_kind),
      cmocka_unit_test(frames_give_the_whole), cmocka_unit_test(memory_does_not_grow_with_the_film),
      cmocka_unit_test(chooses_plans),         cmocka_unit_test(tiles_are_films_of_their_own),
      cmocka_unit_test(upsamples_by_small_convolutions),
      cmocka_unit_test(encodes_and_decodes_as_published), cmocka_unit_test(convolves_as_published),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  kr_weights_close(&golden);
  krait_ctx_close(&ctx);
  return failed;
}
