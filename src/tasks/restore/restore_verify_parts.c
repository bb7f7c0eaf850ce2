/* restore_verify_parts.c: golden files of what stands around the models: resized frames, corrected colours, joins,
 * times, guidance. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "model_kind.h"
#include "restorer.h"
#include "seedvr/seedvr_sampler.h"
#include "status.h"

typedef struct parts {
  const kr_verify_sink *to;
  const kr_weights *golden;
  const char *name; /* of the case, of n_name bytes */
  int n_name;
} parts;

static int64_t product_of(const kr_weight *item) {
  int64_t n = 1;
  for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
  return n;
}

/* The case's tensor of this type and number of dimensions. */
static int32_t take_part(const parts *p, const char *part, int32_t dtype, int n_dims, const kr_weight **item) {
  char key[160];
  snprintf(key, sizeof key, "golden.%.*s.%s", p->n_name, p->name, part);
  *item = kr_weights_find(p->golden, key);
  KR_CHECK(*item && (*item)->dtype == dtype && (*item)->n_dims == n_dims && product_of(*item) > 0, KRAIT_ERR_WEIGHTS,
           "%s is missing, or is not %s of %d dimensions", key, krait_dtype_name(dtype), n_dims);
  return KRAIT_OK;
}

static int has_shape_of(const kr_weight *a, const kr_weight *b) {
  return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) == 0;
}

static void add_part(const parts *p, const char *part, const float *got, const kr_weight *want) {
  char name[32];
  snprintf(name, sizeof name, "%.*s%s%s", p->n_name, p->name, *part ? "." : "", part);
  kr_verify_add(name, got, want->data, product_of(want), p->to->rows, p->to->n_rows, p->to->n_filled);
}

/* Frames (T,area,3) as (T,3,area), or back. */
static void turn_frames(int64_t T, int64_t area, int is_back, const float *from, float *to) {
  for (int64_t i = 0; i < 3 * T * area; i++) {
    const int64_t at = (i / 3 / area * 3 + i % 3) * area + i / 3 % area;
    to[is_back ? i : at] = from[is_back ? at : i];
  }
}

/* ---- resizing ---- */

static int32_t resize_all(const parts *p, const kr_weight *frames, const kr_frame_size *size, int is_cropped,
                          float *to) {
  kr_resizer *resizer = NULL;
  const int64_t H = is_cropped ? size->H : size->scaled_h, W = is_cropped ? size->W : size->scaled_w;
  KR_TRY(kr_resizer_open(p->to->ctx, size, &resizer));
  for (int64_t i = 0; i < frames->shape[0]; i++) {
    const uint8_t *rgb = (const uint8_t *)frames->data + 3 * i * size->from_h * size->from_w;
    const float *scaled = kr_resizer_run(resizer, rgb);
    if (is_cropped) kr_frame_crop(size, scaled, to + 3 * i * H * W);
    else memcpy(to + 3 * i * H * W, scaled, (size_t)(3 * H * W) * sizeof *to);
  }
  kr_resizer_close(&resizer);
  return KRAIT_OK;
}

/* resized (T,3,H1,W1), cropped (3,T,H,W). */
static int32_t verify_resized(const parts *p, const char *part) {
  const kr_weight *frames, *res, *want;
  const int is_cropped = strcmp(part, "cropped") == 0;
  kr_frame_size size;
  KR_TRY(take_part(p, "frames", KRAIT_U8, 4, &frames));
  KR_TRY(take_part(p, "res", KRAIT_I32, 1, &res));
  KR_TRY(take_part(p, part, KRAIT_F32, 4, &want));
  KR_CHECK(res->shape[0] == 2 && frames->shape[3] == 3, KRAIT_ERR_WEIGHTS, "golden.%.*s has frames of another kind",
           p->n_name, p->name);
  const int32_t *area = res->data;
  KR_TRY(kr_frame_fit(&(kr_frame_rule){.area_h = area[0], .area_w = area[1]}, frames->shape[1], frames->shape[2],
                      &size));
  const int64_t T = frames->shape[0], H = is_cropped ? size.H : size.scaled_h, W = is_cropped ? size.W : size.scaled_w,
                n = 3 * T * H * W;
  KR_CHECK(product_of(want) == n, KRAIT_ERR_WEIGHTS, "golden.%.*s.%s has another size than %lld x %lld", p->n_name,
           p->name, part, (long long)W, (long long)H);
  float *got = kr_alloc_array((size_t)(2 * n), sizeof *got), *turned = got ? got + n : NULL;
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for golden.%.*s", p->n_name, p->name);
  const int32_t status = resize_all(p, frames, &size, is_cropped, got);
  /* (T,3,area); colours first is the same of one frame of T area pixels. */
  if (status >= 0) turn_frames(is_cropped ? 1 : T, is_cropped ? T * H * W : H * W, 0, got, turned);
  if (status >= 0) add_part(p, part, turned, want);
  kr_free(got);
  return status;
}

/* ---- colours and joins ---- */

static int32_t verify_colours(const parts *p, const char *part) {
  const kr_weight *content, *style, *want;
  int32_t colour;
  KR_TRY(kr_colour_of(part, &colour));
  KR_TRY(take_part(p, "content", KRAIT_F32, 4, &content));
  KR_TRY(take_part(p, "style", KRAIT_F32, 4, &style));
  KR_TRY(take_part(p, part, KRAIT_F32, 4, &want));
  KR_CHECK(content->shape[1] == 3 && has_shape_of(content, style) && has_shape_of(content, want), KRAIT_ERR_WEIGHTS,
           "golden.%.*s has frames of several shapes", p->n_name, p->name);
  const int64_t size[3] = {content->shape[0], content->shape[2], content->shape[3]}, area = size[1] * size[2],
                n = product_of(content);
  float *memory = kr_alloc_array((size_t)(3 * n), sizeof *memory);
  KR_CHECK(memory, KRAIT_ERR_NO_MEMORY, "no memory for golden.%.*s", p->n_name, p->name);
  turn_frames(size[0], area, 1, content->data, memory), turn_frames(size[0], area, 1, style->data, memory + n);
  const int32_t status = kr_colour_run(p->to->ctx, colour, size, memory, memory + n);
  turn_frames(size[0], area, 0, memory, memory + 2 * n);
  if (status >= 0) add_part(p, part, memory + 2 * n, want);
  kr_free(memory);
  return status;
}

static int32_t verify_join(const parts *p, const char *part) {
  const kr_weight *before, *after, *want;
  KR_TRY(take_part(p, "prev", KRAIT_F32, 4, &before));
  KR_TRY(take_part(p, "cur", KRAIT_F32, 4, &after));
  KR_TRY(take_part(p, part, KRAIT_F32, 4, &want));
  KR_CHECK(has_shape_of(before, after) && has_shape_of(before, want), KRAIT_ERR_WEIGHTS,
           "golden.%.*s has frames of several shapes", p->n_name, p->name);
  const int64_t n = product_of(after);
  float *got = kr_alloc_array((size_t)n, sizeof *got);
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for golden.%.*s", p->n_name, p->name);
  memcpy(got, after->data, (size_t)n * sizeof *got);
  kr_blend(after->shape[0], n / after->shape[0], before->data, got);
  add_part(p, part, got, want);
  kr_free(got);
  return KRAIT_OK;
}

/* ---- the sampler's times and guidance ---- */

static int32_t verify_shift(const parts *p, const char *part) {
  const kr_weight *shapes, *times, *want;
  KR_TRY(take_part(p, "shapes", KRAIT_I32, 2, &shapes));
  KR_TRY(take_part(p, "t", KRAIT_F32, 1, &times));
  KR_TRY(take_part(p, part, KRAIT_F32, 2, &want));
  const int64_t n_times = times->shape[0], n = shapes->shape[0] * n_times;
  KR_CHECK(shapes->shape[1] == 3 && product_of(want) == n, KRAIT_ERR_WEIGHTS, "golden.%.*s has several sizes",
           p->n_name, p->name);
  float *got = kr_alloc_array((size_t)n, sizeof *got);
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for golden.%.*s", p->n_name, p->name);
  for (int64_t i = 0; i < n; i++) {
    const int32_t *at = (const int32_t *)shapes->data + i / n_times * 3;
    got[i] = (float)kr_seedvr_shift((double)((const float *)times->data)[i % n_times],
                                    (int64_t[]){at[0], at[1], at[2]});
  }
  add_part(p, part, got, want);
  kr_free(got);
  return KRAIT_OK;
}

/* part: "scale6.5_rescale0.7". */
static int32_t verify_guidance(const parts *p, const char *part) {
  const kr_weight *positive, *negative, *want;
  double scale, rescale;
  if (sscanf(part, "scale%lf_rescale%lf", &scale, &rescale) != 2) return KRAIT_OK;
  KR_TRY(take_part(p, "pos", KRAIT_F32, 2, &positive));
  KR_TRY(take_part(p, "neg", KRAIT_F32, 2, &negative));
  KR_TRY(take_part(p, part, KRAIT_F32, 2, &want));
  KR_CHECK(has_shape_of(positive, negative) && has_shape_of(positive, want), KRAIT_ERR_WEIGHTS,
           "golden.%.*s has rows of several shapes", p->n_name, p->name);
  const kr_sampling s = {.n_rows = want->shape[0], .n_channels = want->shape[1], .scale = scale, .rescale = rescale};
  float *got = kr_alloc((size_t)want->bytes);
  KR_CHECK(got, KRAIT_ERR_NO_MEMORY, "no memory for golden.%.*s", p->n_name, p->name);
  memcpy(got, positive->data, (size_t)want->bytes);
  kr_seedvr_guide(&s, negative->data, got);
  add_part(p, part, got, want);
  kr_free(got);
  return KRAIT_OK;
}

/* ---- all of a file ---- */

static const struct {
  const char *begin, *part; /* of the last word of the case's name; of the tensor's, "*" any */
  int32_t (*verify)(const parts *p, const char *part);
} kinds[] = {{"", "resized", verify_resized}, {"", "cropped", verify_resized}, {"", "wavelet", verify_colours},
             {"", "adain", verify_colours},   {"", "lab", verify_colours},     {"blend", "out", verify_join},
             {"shift", "out", verify_shift},  {"cfg", "*", verify_guidance}};

static int32_t verify_tensor(const parts *p, const char *part) {
  const char *word = p->name + p->n_name;
  while (word > p->name && word[-1] != '.') word--;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    if (strncmp(word, kinds[k].begin, strlen(kinds[k].begin)) == 0 &&
        (strcmp(kinds[k].part, "*") == 0 || strcmp(kinds[k].part, part) == 0))
      KR_TRY(kinds[k].verify(p, part));
  return KRAIT_OK;
}

/* golden.CASE.TENSOR; dots in a CASE, and in the numbers of guidance. */
int32_t kr_restore_verify_parts(const kr_verify_sink *to, const kr_weights *golden) {
  for (int64_t i = 0; i < kr_weights_count(golden); i++) {
    const char *name = kr_weights_at(golden, i)->name;
    if (strncmp(name, "golden.", 7) != 0) continue;
    name += 7;
    const char *guidance = strstr(name, "cfg.scale"), *dot = guidance ? guidance + 3 : strrchr(name, '.');
    if (dot) KR_TRY(verify_tensor(&(parts){to, golden, name, (int)(dot - name)}, dot + 1));
  }
  return KRAIT_OK;
}
