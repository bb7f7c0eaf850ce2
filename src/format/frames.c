/* frames.c: a chain of filters, movie -> scale -> crop -> format -> buffersink. The file goes in as a descriptor with the demuxer's name, as in movie.c. */
#define _GNU_SOURCE
#include "frames.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "av.h"
#include "movie.h"
#include "status.h"

/* ---- which files ---- */
static const struct {
  int offset;
  const char *bytes;
  int n;
  const char *demuxer;
} pictures[] = {{0, "\x89PNG", 4, "png_pipe"}, {0, "\xff\xd8\xff", 3, "jpeg_pipe"}, {8, "WEBP", 4, "webp_pipe"}, {0, "GIF8", 4, "gif"}, {0, "BM", 2, "bmp_pipe"}};

static const char *demuxer_of(int fd) {
  char head[16] = "";
  if (pread(fd, head, sizeof head, 0) < (ssize_t)sizeof head) return NULL;
  for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++)
    if (memcmp(head + pictures[i].offset, pictures[i].bytes, (size_t)pictures[i].n) == 0) return pictures[i].demuxer;
  return kr_movie_demuxer(fd);
}

/* ---- the chain ---- */
static int build_chain(const kr_av *av, void *graph, int fd, const char *demuxer, int64_t side, void **sink) {
  char movie[120], scale[120], crop[60];
  snprintf(movie, sizeof movie, "filename=/proc/self/fd/%d:format_name=%s", fd, demuxer);
  snprintf(scale, sizeof scale, "%lld:%lld:flags=bilinear:force_original_aspect_ratio=increase", (long long)side, (long long)side);
  snprintf(crop, sizeof crop, "%lld:%lld", (long long)side, (long long)side);
  const struct {
    const char *kind, *args;
  } links[] = {{"movie", movie}, {"scale", scale}, {"crop", crop}, {"format", "pix_fmts=rgb24"}, {"buffersink", NULL}};
  void *before = NULL;
  int error = 0;
  for (size_t i = 0; i < sizeof links / sizeof *links && error >= 0; i++) {
    void *filter = NULL;
    error = av->avfilter_graph_create_filter(&filter, av->avfilter_get_by_name(links[i].kind), links[i].kind, links[i].args, NULL, graph);
    if (error >= 0 && before) error = av->avfilter_link(before, 0, filter, 0);
    before = filter;
  }
  *sink = before;
  return error < 0 ? error : av->avfilter_graph_config(graph, NULL);
}

static int32_t give_frame(const kr_av_frame *f, int64_t i, int64_t side, uint8_t *rgb, kr_frame_fn take, void *user) {
  for (int64_t y = 0; y < side; y++) memcpy(rgb + y * side * 3, f->data[0] + y * f->line_bytes[0], (size_t)side * 3);
  return take(user, i, rgb);
}

static int32_t read_all(const kr_av *av, void *sink, void *frame, const char *name, int64_t side, uint8_t *rgb, const char *text, kr_frame_fn take, void *user) {
  for (int64_t i = 0;; i++) {
    const int error = av->av_buffersink_get_frame(sink, frame);
    const kr_av_frame *f = frame;
    if (error == KR_AV_END && i > 0) return KRAIT_OK; /* a damaged end is an end: the frames before it are right */
    if (error < 0) return kr_av_fail(av, name, "picture", error, text);
    const int32_t status = f->width == side && f->height == side ? give_frame(f, i, side, rgb, take, user) : kr_fail(KRAIT_ERR_FILE_READ, "%s: a frame of %d x %d pixels came", name, f->width, f->height);
    av->av_frame_unref(frame);
    KR_TRY(status);
  }
}

static int32_t read_chain(const kr_av *av, int fd, const char *demuxer, const char *name, int64_t side, kr_frame_fn take, void *user) {
  char text[KR_AV_TEXT_BYTES] = "";
  void *graph = av->avfilter_graph_alloc(), *sink = NULL, *frame = av->av_frame_alloc();
  uint8_t *rgb = kr_alloc((size_t)(side * side * 3));
  int32_t status = graph && frame && rgb ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  kr_av_listen(av, text);
  if (status >= 0) {
    const int error = build_chain(av, graph, fd, demuxer, side, &sink);
    status = error < 0 ? kr_av_fail(av, name, "picture", error, text) : read_all(av, sink, frame, name, side, rgb, text, take, user);
  }
  if (frame) av->av_frame_free(&frame);
  if (graph) av->avfilter_graph_free(&graph);
  kr_av_listen_no_more(av);
  kr_free(rgb);
  return status;
}

int32_t kr_frames_read(int fd, const char *name, int64_t side, kr_frame_fn take, void *user) {
  const char *demuxer = demuxer_of(fd);
  kr_av av = {0};
  KR_CHECK(demuxer, KRAIT_ERR_FILE_FORMAT, "%s is neither a film (mp4, mov, webm, mkv, avi, flv, mpeg) nor a picture (png, jpeg, webp, gif, bmp)", name);
  if (!kr_av_load(&av)) {
    kr_dlib_close(&av.lib);
    return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: films and pictures need FFmpeg's libavfilter; install it (Debian: libavfilter-extra or ffmpeg)", name);
  }
  return read_chain(&av, fd, demuxer, name, side, take, user);
}

/* ---- frames spread over the film ---- */
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
    for (int64_t j = 1; 2 * j < k->n; j++) memcpy(k->kept + (size_t)j * k->bytes, k->kept + (size_t)(2 * j) * k->bytes, k->bytes);
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
