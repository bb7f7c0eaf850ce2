/* classifier.c: runs a file's frames through the model: preprocessing as in training, then probabilities. */
#include "public_names.h"

#include <math.h>
#include <unistd.h>

#include <krait/vision.h>

#include "alloc.h"
#include "frames.h"
#include "status.h"
#include "videomamba/videomamba.h"

struct krait_classifier {
  kr_weights *weights;
  kr_videomamba *model;
  uint8_t *rgb;  /* (T, read_side, read_side, 3) */
  float *frames; /* (3, T, side, side) */
  int64_t read_side; /* of rgb's frames, of which the middle is taken */
};

/* Names the file. */
static int32_t open_classifier_model(const krait_ctx *ctx, const char *path, const char *name, krait_classifier *c) {
  int32_t status = kr_weights_check_finite(c->weights);
  if (status >= 0) status = kr_videomamba_open(ctx, c->weights, name, &c->model);
  const int is_theirs = status == KRAIT_ERR_WEIGHTS || status == KRAIT_ERR_UNSUPPORTED;
  return is_theirs ? kr_fail(status, "%s: %s", path, krait_error_detail()) : status;
}

static int32_t open_classifier_all(const krait_ctx *ctx, const char *path, const char *name, krait_classifier *c) {
  KR_TRY(kr_weights_open(path, &c->weights));
  KR_TRY(kr_weights_widen(c->weights));
  KR_TRY(open_classifier_model(ctx, path, name, c));
  const kr_videomamba_config *m = kr_videomamba_config_of(c->model);
  KR_CHECK(m->n_classes, KRAIT_ERR_WEIGHTS,
           "%s has no classification head: these weights are for a video tower, not a classifier", path);
  /* Vim is trained and evaluated on the middle 7/8 of a picture. */
  c->read_side = m->is_vim ? (m->grid.side * 8 + 6) / 7 : m->grid.side;
  c->rgb = kr_alloc_array((size_t)(m->T * c->read_side * c->read_side), 3);
  c->frames = kr_alloc_array((size_t)(m->T * m->grid.side * m->grid.side), 3 * sizeof *c->frames);
  KR_CHECK(c->rgb && c->frames, KRAIT_ERR_NO_MEMORY, "no memory for %lld frames", (long long)m->T);
  return KRAIT_OK;
}

int32_t krait_classifier_open(const krait_ctx *ctx, const char *weights_path, const char *model,
                              krait_classifier **classifier) {
  KR_CHECK(classifier, KRAIT_ERR_ARGUMENT, "krait_classifier_open: classifier is NULL");
  *classifier = NULL;
  KR_CHECK(ctx && weights_path, KRAIT_ERR_ARGUMENT, "krait_classifier_open: %s is NULL", ctx ? "weights_path" : "ctx");
  krait_classifier *c = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a classifier");
  const int32_t status = open_classifier_all(ctx, weights_path, model, c);
  if (status < 0) krait_classifier_close(&c);
  *classifier = c;
  return status;
}

void krait_classifier_close(krait_classifier **classifier) {
  krait_classifier *c = classifier ? *classifier : NULL;
  if (!c) return;
  kr_videomamba_close(&c->model);
  if (c->weights) kr_weights_close(&c->weights);
  kr_free(c->rgb);
  kr_free(c->frames);
  kr_free(c);
  *classifier = NULL;
}

int64_t krait_classifier_n_classes(const krait_classifier *c) {
  return c ? kr_videomamba_config_of(c->model)->n_classes : 0;
}
int64_t krait_classifier_n_frames(const krait_classifier *c) { return c ? kr_videomamba_config_of(c->model)->T : 0; }

static void normalise_classifier(const krait_classifier *c) {
  static const float mean[] = {0.485f, 0.456f, 0.406f}, deviation[] = {0.229f, 0.224f, 0.225f};
  const kr_videomamba_config *m = kr_videomamba_config_of(c->model);
  const int64_t side = m->grid.side, read = c->read_side, before = (read - side) / 2, n = m->T * side * side;
  for (int64_t i = 0; i < n; i++) {
    const uint8_t *rgb =
        c->rgb + 3 * ((i / (side * side) * read + i / side % side + before) * read + i % side + before);
    for (int k = 0; k < 3; k++) c->frames[k * n + i] = ((float)rgb[k] / 255 - mean[k]) / deviation[k];
  }
}

static int32_t softmax(float *x, int64_t n) {
  float most = x[0];
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    KR_CHECK(isfinite(x[i]), KRAIT_ERR_WEIGHTS,
             "class %lld is not finite: the weights are damaged, or their training diverged", (long long)i);
    most = x[i] > most ? x[i] : most;
  }
  for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
  for (int64_t i = 0; i < n; i++) x[i] = (float)(exp((double)x[i] - most) / sum);
  return KRAIT_OK;
}

static int32_t read_frames(krait_classifier *c, const char *path, int64_t *frames_at) {
  const kr_videomamba_config *m = kr_videomamba_config_of(c->model);
  int fd;
  KR_TRY(kr_film_open(path, &fd));
  const int32_t status = kr_frames_spread(fd, path, c->read_side, m->T, c->rgb, frames_at);
  close(fd);
  return status;
}

int32_t krait_classifier_file(krait_classifier *c, const char *path, float *probabilities, int64_t *frames_at) {
  KR_CHECK(c && path && probabilities, KRAIT_ERR_ARGUMENT, "krait_classifier_file: %s is NULL",
           !c     ? "classifier"
           : path ? "probabilities"
                  : "path");
  KR_TRY(read_frames(c, path, frames_at));
  normalise_classifier(c);
  KR_TRY(kr_videomamba_run(c->model, c->frames, probabilities, NULL));
  return softmax(probabilities, krait_classifier_n_classes(c));
}
