/* describer.c: asks Mobile-VideoGPT about a video: converts frames to rows, and builds the prompt. */
#include "public_names.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/vision.h>

#include "alloc.h"
#include "clock.h"
#include "describer.h"
#include "frames.h"
#include "generate/lm_parts.h"
#include "sized.h"
#include "status.h"
#include "videogpt/pixels.h"
#include "videogpt/videogpt_parts.h"

struct krait_describer {
  const krait_ctx *ctx;
  krait_lm *lm;
  kr_videogpt_parts parts;
  krait_video_info film;
  char *label;          /* the video's path; NULL: none yet */
  uint8_t *sheet;       /* (16, side, side, 3): the frames as CLIP sees them */
  uint8_t *bytes;       /* of one frame */
  float *images;        /* (16, 3, side, side), CLIP's input */
  float *frames, *clip; /* (16, 3, side', side'), the video tower's input; the selected ones, (3, T, side', side') */
  char *rows;           /* in the context's memory: the prompt's rows, zero except for the video's */
  int64_t n_rows;
  kr_ids before, ids; /* the prompt up to the video; the whole prompt */
};

/* ---- open and close ---- */

static int32_t get_describer_buffers(krait_describer *d) {
  const size_t side = (size_t)kr_videogpt_side(d->parts.model),
               of_video = (size_t)kr_videomamba_config_of(d->parts.video)->grid.side,
               larger = side > of_video ? side : of_video;
  d->sheet = kr_alloc_array(side * side, 3 * KR_VIDEOGPT_IMAGES);
  d->bytes = kr_alloc_array(larger * larger, 3);
  d->images = kr_alloc_array(side * side, 3 * KR_VIDEOGPT_IMAGES * sizeof *d->images);
  d->frames = kr_alloc_array(of_video * of_video, 3 * KR_VIDEOGPT_IMAGES * sizeof *d->frames);
  d->clip = kr_alloc_array(of_video * of_video, 3 * KR_VIDEOGPT_T * sizeof *d->clip);
  KR_CHECK(d->sheet && d->bytes && d->images && d->frames && d->clip, KRAIT_ERR_NO_MEMORY, "no memory for %d frames",
           KR_VIDEOGPT_IMAGES);
  return KRAIT_OK;
}

static int32_t open_describer_all(krait_describer *d, const krait_describer_options *o) {
  static const char opening[] = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n";
  KR_TRY(krait_lm_open(
      d->ctx,
      &(krait_lm_options){.size = sizeof(krait_lm_options), .path = o->path, .tokenizer_path = o->tokenizer_path},
      &d->lm));
  const kr_tokenizer *t = kr_lm_tokenizer(d->lm);
  KR_TRY(kr_videogpt_parts_open(d->ctx, kr_lm_folder(d->lm), o->path, kr_lm_model(d->lm), &d->parts));
  KR_CHECK(kr_tokenizer_find_added(t, "<|im_start|>") >= 0 && kr_tokenizer_find_added(t, "<|im_end|>") >= 0,
           KRAIT_ERR_WEIGHTS,
           "%s: its tokenizer has no <|im_start|> and <|im_end|>, which the prompt needs", o->path);
  KR_TRY(kr_tokenizer_encode(t, opening, strlen(opening), 0, &d->before));
  return get_describer_buffers(d);
}

int32_t krait_describer_open(const krait_ctx *ctx, const krait_describer_options *given, krait_describer **out) {
  krait_describer_options o;
  KR_CHECK(ctx && given && out, KRAIT_ERR_ARGUMENT, "ctx, options and describer must not be NULL");
  *out = NULL;
  KR_TRY(kr_struct_take("krait_describer_options", given, sizeof o, &o, sizeof o));
  KR_CHECK(o.path, KRAIT_ERR_ARGUMENT, "options.path must not be NULL");
  krait_describer *d = *out = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  d->ctx = ctx;
  const int32_t status = open_describer_all(d, &o);
  if (status < 0) krait_describer_close(out);
  return status;
}

void krait_describer_close(krait_describer **handle) {
  krait_describer *d = handle ? *handle : NULL;
  if (!d) return;
  *handle = NULL;
  kr_videogpt_parts_close(&d->parts);
  krait_lm_close(&d->lm);
  kr_mem_free(d->ctx, d->rows);
  kr_ids_free(&d->before);
  kr_ids_free(&d->ids);
  void *const all[] = {d->label, d->sheet, d->bytes, d->images, d->frames, d->clip, d};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) kr_free(all[i]);
}

/* ---- a video ---- */

static int32_t keep_frame(void *user, int64_t k, int64_t width, int64_t height, const uint8_t *rgb) {
  krait_describer *d = user;
  const int64_t side = kr_videogpt_side(d->parts.model), area = side * side,
                of_video = kr_videomamba_config_of(d->parts.video)->grid.side, video_area = of_video * of_video;
  uint8_t *const seen = d->sheet + k * area * 3;
  KR_TRY(kr_resize_bicubic(rgb, width, height, side, seen));
  kr_pixels_of_clip(seen, area, area, d->images + k * 3 * area);
  KR_TRY(kr_resize_linear(rgb, width, height, of_video, d->bytes));
  kr_pixels_of_video(d->bytes, video_area, video_area, d->frames + k * 3 * video_area);
  return KRAIT_OK;
}

static int32_t read_film(krait_describer *d, const char *path) {
  const size_t area = (size_t)(kr_videogpt_side(d->parts.model) * kr_videogpt_side(d->parts.model)),
               video_side = (size_t)kr_videomamba_config_of(d->parts.video)->grid.side;
  kr_film facts;
  int fd;
  KR_TRY(kr_film_open(path, &fd));
  int32_t status = kr_film_measure(fd, path, &facts);
  if (status >= 0) {
    d->film.n_frames = facts.n_frames, d->film.fps = facts.fps;
    d->film.n = kr_film_positions(facts.n_frames, facts.fps, d->film.at);
    memset(d->sheet, 0, area * 3 * KR_VIDEOGPT_IMAGES); /* missing frames are zero, also after normalization */
    memset(d->images, 0, area * 3 * KR_VIDEOGPT_IMAGES * sizeof *d->images);
    memset(d->frames, 0, video_side * video_side * 3 * KR_VIDEOGPT_IMAGES * sizeof *d->frames);
    status = kr_film_frames(fd, path, d->film.at, d->film.n, keep_frame, d);
  }
  close(fd);
  return status;
}

/* Rows of the prompt, zero for text; n: of the whole prompt. Existing rows are kept. */
static int32_t get_rows(krait_describer *d, int64_t n) {
  const uint64_t row = (uint64_t)kr_videogpt_d(d->parts.model) * krait_dtype_bytes(kr_lm_dtype(kr_lm_model(d->lm))),
                 all = (uint64_t)n * row;
  const uint64_t used = (uint64_t)(d->n_rows < n ? d->n_rows : n) * row;
  char *larger = NULL;
  if (n <= d->n_rows) return KRAIT_OK;
  KR_TRY(kr_mem_get(d->ctx, "the prompt's rows", all, &larger));
  int32_t status = d->rows ? kr_mem_copy(d->ctx, larger, d->rows, used) : KRAIT_OK;
  if (status >= 0) status = kr_mem_wait(d->ctx);
  if (status < 0) return kr_mem_free(d->ctx, larger), status;
  kr_mem_free(d->ctx, d->rows);
  d->rows = larger, d->n_rows = n;
  return KRAIT_OK;
}

static char *film_rows(const krait_describer *d) {
  return d->rows +
         (uint64_t)(d->before.n * kr_videogpt_d(d->parts.model)) * krait_dtype_bytes(kr_lm_dtype(kr_lm_model(d->lm)));
}

static int32_t look_describer(krait_describer *d) {
  enum { CAPACITY = 256 }; /* for a question */
  const int64_t side = kr_videomamba_config_of(d->parts.video)->grid.side, area = side * side;
  KR_TRY(get_rows(d, d->before.n + KR_VIDEOGPT_ROWS + CAPACITY));
  KR_TRY(kr_videogpt_look(d->parts.model, d->images, film_rows(d), d->film.score, d->film.chosen));
  for (int64_t t = 0; t < KR_VIDEOGPT_T; t++)
    for (int64_t k = 0; k < 3; k++)
      memcpy(d->clip + (k * KR_VIDEOGPT_T + t) * area, d->frames + (d->film.chosen[t] * 3 + k) * area,
             (size_t)area * sizeof *d->clip);
  KR_TRY(kr_videomamba_run(d->parts.video, d->clip, NULL, NULL));
  KR_TRY(kr_videogpt_watch(d->parts.model, kr_videomamba_tokens_at(d->parts.video), film_rows(d)));
  return kr_mem_wait(d->ctx);
}

int32_t krait_describer_load(krait_describer *d, const char *path, krait_video_info *film) {
  KR_CHECK(d && path, KRAIT_ERR_ARGUMENT, "krait_describer_load: %s is NULL", d ? "path" : "describer");
  const krait_video_info nothing = {.size = sizeof nothing};
  if (film)
    KR_TRY(kr_struct_give("krait_video_info", film, sizeof *film, &nothing, sizeof nothing)); /* before the work */
  const int64_t start = kr_clock_ns();
  kr_free(d->label);
  d->film = (krait_video_info){.size = sizeof d->film};
  d->label = NULL;
  KR_TRY(read_film(d, path));
  d->film.decode_s = (double)(kr_clock_ns() - start) * 1e-9;
  KR_TRY(look_describer(d));
  d->film.encode_s = (double)(kr_clock_ns() - start) * 1e-9 - d->film.decode_s;
  const size_t n_label = strlen(path) + 1;
  d->label = kr_alloc(n_label);
  KR_CHECK(d->label, KRAIT_ERR_NO_MEMORY, "no memory for a video's name");
  memcpy(d->label, path, n_label);
  return film ? kr_struct_give("krait_video_info", film, sizeof *film, &d->film, sizeof d->film) : KRAIT_OK;
}

int32_t krait_describer_contact_sheet(const krait_describer *d, const char *png_path) {
  KR_CHECK(d && png_path, KRAIT_ERR_ARGUMENT, "krait_describer_contact_sheet: %s is NULL",
           d ? "png_path" : "describer");
  KR_CHECK(d->label, KRAIT_ERR_ARGUMENT, "krait_describer_contact_sheet: there is no video yet");
  return kr_describer_draw(&d->film, d->sheet, kr_videogpt_side(d->parts.model), png_path);
}

/* ---- a question ---- */

/* The text before, the video as -1, the question and the beginning of the answer. Names of special tokens in a question
 * are plain text. */
static int32_t make_prompt(krait_describer *d, const char *question) {
  static const char closing[] = "<|im_end|>\n<|im_start|>assistant\n";
  const kr_tokenizer *t = kr_lm_tokenizer(d->lm);
  const size_t n = strlen(question);
  d->ids.n = 0;
  for (int64_t i = 0; i < d->before.n; i++) KR_TRY(kr_ids_add(&d->ids, d->before.at[i]));
  for (int64_t i = 0; i < KR_VIDEOGPT_ROWS; i++) KR_TRY(kr_ids_add(&d->ids, -1));
  char *line = kr_alloc(n + 2);
  KR_CHECK(line, KRAIT_ERR_NO_MEMORY, "no memory for a question");
  line[0] = '\n';
  memcpy(line + 1, question, n + 1);
  int32_t status = kr_tokenizer_encode(t, line, n + 1, KR_ENCODE_PLAIN, &d->ids);
  if (status >= 0) status = kr_tokenizer_encode(t, closing, strlen(closing), 0, &d->ids);
  kr_free(line);
  return status;
}

int32_t krait_describer_ask(krait_describer *d, const char *question, const krait_lm_sampling *sampling,
                            krait_lm_session **session) {
  KR_CHECK(d && question && session, KRAIT_ERR_ARGUMENT, "describer, question and session must not be NULL");
  *session = NULL;
  KR_CHECK(d->label, KRAIT_ERR_ARGUMENT, "krait_describer_ask: there is no video yet");
  KR_TRY(make_prompt(d, question));
  KR_TRY(get_rows(d, d->ids.n));
  KR_TRY(krait_lm_session_open(d->lm, sampling, session));
  const int32_t status = kr_lm_prefill_rows(*session, d->ids.at, d->rows, d->ids.n);
  if (status < 0) krait_lm_session_close(session);
  return status;
}
