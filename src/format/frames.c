/* frames.c: a filter chain, movie -> scale -> crop -> format -> buffersink, or part of it. The file is passed as a
 * descriptor with the demuxer's name, as in movie.c. */
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "av.h"
#include "movie.h"
#include "open_error.h"
#include "status.h"

/* ---- which files ---- */
static const struct {
  int offset;
  const char *bytes;
  int n;
  const char *demuxer;
} pictures[] = {{0, "\x89PNG", 4, "png_pipe"},
                {0, "\xff\xd8\xff", 3, "jpeg_pipe"},
                {8, "WEBP", 4, "webp_pipe"},
                {0, "GIF8", 4, "gif"},
                {0, "BM", 2, "bmp_pipe"}};

static const char *demuxer_of(int fd) {
  char head[16] = "";
  if (pread(fd, head, sizeof head, 0) < (ssize_t)sizeof head) return NULL;
  for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++)
    if (memcmp(head + pictures[i].offset, pictures[i].bytes, (size_t)pictures[i].n) == 0) return pictures[i].demuxer;
  return kr_movie_demuxer(fd);
}

int32_t kr_film_open(const char *path, int *fd) {
  struct stat st;
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  KR_CHECK(*fd >= 0 || strcmp(path, "-") != 0, KRAIT_ERR_FILE_OPEN,
           "'-' is no file's name; a video is read twice, so it cannot come from standard input");
  if (*fd < 0) return kr_fail_open(errno, path);
  const int is_known = fstat(*fd, &st) == 0;
  if (is_known && S_ISREG(st.st_mode) && st.st_size > 0) return KRAIT_OK;
  close(*fd);
  return is_known && S_ISREG(st.st_mode)   ? kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is empty", path)
         : is_known && S_ISDIR(st.st_mode) ? kr_fail(KRAIT_ERR_FILE_OPEN, "%s is a folder; name a file in it", path)
                                           : kr_fail(KRAIT_ERR_FILE_OPEN,
                                                     "%s is not a regular file; copy it to one first", path);
}

/* ---- the chain ---- */
enum { JUST_COUNT = -1, OWN_SIZE = 0 }; /* if a side is given */

static int build_chain(const kr_av *av, void *graph, int fd, const char *demuxer, int64_t side, void **sink) {
  char movie[120], scale[120], crop[60];
  snprintf(movie, sizeof movie, "filename=/proc/self/fd/%d:format_name=%s", fd, demuxer);
  snprintf(scale, sizeof scale, "%lld:%lld:flags=bilinear:force_original_aspect_ratio=increase", (long long)side,
           (long long)side);
  snprintf(crop, sizeof crop, "%lld:%lld", (long long)side, (long long)side);
  const struct {
    const char *kind, *args;
    int is_in;
  } links[] = {{"movie", movie, 1},
               {"scale", scale, side > 0},
               {"crop", crop, side > 0},
               {"format", "pix_fmts=rgb24", side != JUST_COUNT},
               {"buffersink", NULL, 1}};
  void *before = NULL;
  int error = 0;
  for (size_t i = 0; i < sizeof links / sizeof *links && error >= 0; i++) {
    void *filter = NULL;
    if (!links[i].is_in) continue;
    error = av->avfilter_graph_create_filter(&filter, av->avfilter_get_by_name(links[i].kind), links[i].kind,
                                             links[i].args, NULL, graph);
    if (error >= 0 && before) error = av->avfilter_link(before, 0, filter, 0);
    before = filter;
  }
  *sink = before;
  return error < 0 ? error : av->avfilter_graph_config(graph, NULL);
}

/* A video that is being read. */
typedef struct reading {
  kr_av av;
  const char *name, *demuxer;
  char text[KR_AV_TEXT_BYTES];
  void *graph, *sink, *frame;
  int is_listening;
} reading;

/* Called for each frame; returns 1 when no more are wanted. */
typedef int32_t (*each_fn)(void *user, int64_t i, const kr_av_frame *f);

static int32_t read_all(reading *r, each_fn each, void *user) {
  char what[64];
  for (int64_t i = 0;; i++) {
    const int error = r->av.av_buffersink_get_frame(r->sink, r->frame);
    if (error == KR_AV_END && i > 0)
      return KRAIT_OK; /* a damaged end counts as the end: the frames before it are
                        * valid */
    snprintf(what, sizeof what, i ? "picture after the first %lld" : "picture", (long long)i);
    if (error < 0) return kr_av_fail(&r->av, r->name, what, error, r->text);
    const int32_t status = each(user, i, r->frame);
    r->av.av_frame_unref(r->frame);
    if (status) return status < 0 ? status : KRAIT_OK;
  }
}

static int32_t begin(reading *r, int fd, const char *name, int64_t side) {
  r->name = name, r->demuxer = demuxer_of(fd);
  KR_CHECK(r->demuxer, KRAIT_ERR_FILE_FORMAT,
           "%s is neither a video (mp4, mov, webm, mkv, avi, flv, mpeg) nor an image (png, jpeg, webp, gif, bmp)",
           name);
  if (!kr_av_load(&r->av)) {
    kr_dlib_close(&r->av.lib);
    return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: reading videos and images needs %s", name, r->av.need);
  }
  r->graph = r->av.avfilter_graph_alloc(), r->frame = r->av.av_frame_alloc();
  kr_av_listen(&r->av, r->text);
  r->is_listening = 1;
  KR_CHECK(r->graph && r->frame, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  const int error = build_chain(&r->av, r->graph, fd, r->demuxer, side, &r->sink);
  return error < 0 ? kr_av_fail(&r->av, name, "picture", error, r->text) : KRAIT_OK;
}

static void end(reading *r) {
  if (r->frame) r->av.av_frame_free(&r->frame);
  if (r->graph) r->av.avfilter_graph_free(&r->graph);
  if (r->is_listening) kr_av_listen_no_more(&r->av);
}

/* ---- frames of one size ---- */
typedef struct cutter {
  const char *name;
  int64_t side;
  uint8_t *rgb;
  kr_frame_fn take;
  void *user;
} cutter;

static int32_t give_frame(void *user, int64_t i, const kr_av_frame *f) {
  const cutter *c = user;
  KR_CHECK(f->width == c->side && f->height == c->side, KRAIT_ERR_FILE_READ, "%s: a frame of %d x %d pixels came",
           c->name, f->width, f->height);
  for (int64_t y = 0; y < c->side; y++)
    memcpy(c->rgb + y * c->side * 3, f->data[0] + y * f->line_bytes[0], (size_t)c->side * 3);
  return c->take(c->user, i, c->rgb);
}

int32_t kr_frames_read(int fd, const char *name, int64_t side, kr_frame_fn take, void *user) {
  reading r = {0};
  cutter c = {name, side, kr_alloc((size_t)(side * side * 3)), take, user};
  int32_t status = c.rgb ? begin(&r, fd, name, side) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  if (status >= 0) status = read_all(&r, give_frame, &c);
  end(&r);
  kr_free(c.rgb);
  return status;
}

/* ---- frames in the video's own size ---- */
static int32_t count_frame(void *user, int64_t i, const kr_av_frame *f) {
  (void)f;
  *(int64_t *)user = i + 1;
  return KRAIT_OK;
}

int32_t kr_film_measure(int fd, const char *name, kr_film *film) {
  reading r = {0};
  *film = (kr_film){0};
  int32_t status = begin(&r, fd, name, JUST_COUNT);
  if (status >= 0) {
    const kr_av_rational rate = r.av.av_buffersink_get_frame_rate(r.sink);
    film->fps = rate.num > 0 && rate.den > 0 ? (double)rate.num / rate.den : 0;
    status = read_all(&r, count_frame, &film->n_frames);
  }
  end(&r);
  return status;
}

typedef struct picker {
  const char *name;
  const int64_t *at;
  int n, k; /* wanted; found */
  kr_picture_fn take;
  void *user;
} picker;

static int32_t pick_frame(void *user, int64_t i, const kr_av_frame *f) {
  enum { MOST_EDGE = 1 << 14 };
  picker *p = user;
  if (i != p->at[p->k]) return KRAIT_OK;
  KR_CHECK(f->width >= 1 && f->height >= 1 && f->width <= MOST_EDGE && f->height <= MOST_EDGE, KRAIT_ERR_FILE_READ,
           "%s: a frame of %d x %d pixels came", p->name, f->width, f->height);
  const size_t row = (size_t)f->width * 3;
  uint8_t *rgb = kr_alloc(row * (size_t)f->height);
  KR_CHECK(rgb, KRAIT_ERR_NO_MEMORY, "no memory for a frame of %d x %d pixels", f->width, f->height);
  for (int64_t y = 0; y < f->height; y++) memcpy(rgb + (size_t)y * row, f->data[0] + y * f->line_bytes[0], row);
  const int32_t status = p->take(p->user, p->k, f->width, f->height, rgb);
  kr_free(rgb);
  return status < 0 ? status : ++p->k == p->n;
}

int32_t kr_film_frames(int fd, const char *name, const int64_t *at, int n, kr_picture_fn take, void *user) {
  reading r = {0};
  picker p = {name, at, n, 0, take, user};
  int32_t status = begin(&r, fd, name, OWN_SIZE);
  if (status >= 0) status = read_all(&r, pick_frame, &p);
  end(&r);
  KR_CHECK(status < 0 || p.k == n, KRAIT_ERR_FILE_READ,
           "%s: frame %lld was there when frames were counted, but not when they were read", name,
           (long long)at[p.k < n ? p.k : n - 1]);
  return status;
}

/* ---- frames spread over the video ---- */
typedef struct keeper {
  int64_t most, stride, n, n_seen; /* kept: frame k stride for k < n */
  size_t bytes;                    /* of a frame */
  uint8_t *kept;
} keeper;

static int32_t keep(void *user, int64_t i, const uint8_t *rgb) {
  keeper *k = user;
  k->n_seen = i + 1;
  if (i % k->stride) return KRAIT_OK;
  if (k->n == k->most) {
    for (int64_t j = 1; 2 * j < k->n; j++)
      memcpy(k->kept + (size_t)j * k->bytes, k->kept + (size_t)(2 * j) * k->bytes, k->bytes);
    k->n = (k->n + 1) / 2, k->stride *= 2;
    if (i % k->stride) return KRAIT_OK;
  }
  memcpy(k->kept + (size_t)k->n++ * k->bytes, rgb, k->bytes);
  return KRAIT_OK;
}

int32_t kr_frames_spread(int fd, const char *name, int64_t side, int64_t n, uint8_t *rgb, int64_t *at) {
  keeper k = {.most = 8 * n < 128 ? 128 : 8 * n, .stride = 1, .bytes = (size_t)(side * side * 3)};
  k.kept = kr_alloc((size_t)k.most * k.bytes);
  KR_CHECK(k.kept, KRAIT_ERR_NO_MEMORY, "no memory for %lld frames of %s", (long long)k.most, name);
  const int32_t status = kr_frames_read(fd, name, side, keep, &k);
  for (int64_t i = 0; status >= 0 && i < n; i++) {
    int64_t from = (2 * i + 1) * k.n_seen / (2 * n) / k.stride;
    from = from < k.n ? from : k.n - 1;
    memcpy(rgb + (size_t)i * k.bytes, k.kept + (size_t)from * k.bytes, k.bytes);
    if (at) at[i] = from * k.stride;
  }
  kr_free(k.kept);
  return status;
}
