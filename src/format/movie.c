/* movie.c: a graph of three filters, amovie -> aformat -> abuffersink, whose frames are written to a file that
 * libsndfile reads. The library is loaded at run time; nothing links against it. amovie gets the file as a descriptor
 * and the demuxer by name, so neither the file's name nor its content can make it open anything else. */
#define _GNU_SOURCE
#include "movie.h"

#include <errno.h>
#include <sndfile.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "av.h"
#include "status.h"

/* ---- which files ---- */
static const struct {
  int offset;
  const char *bytes;
  int n;
  const char *demuxer, *name;
} magics[] = {
    {4, "ftyp", 4, "mov", "MPEG-4 (m4a, mp4, mov)"},
    {4, "moov", 4, "mov", "QuickTime"},
    {0, "\x1a\x45\xdf\xa3", 4, "matroska", "Matroska or WebM"},
    {0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11", 8, "asf", "Windows Media"},
    {8, "AVI ", 4, "avi", "AVI"},
    {0, "FLV\1", 4, "flv", "Flash video"},
    {0, "\xff\xf1", 2, "aac", "AAC"},
    {0, "\xff\xf9", 2, "aac", "AAC"},
    {0, "#!AMR", 5, "amr", "AMR"},
    {0, "wvpk", 4, "wv", "WavPack"},
    {0, "MAC ", 4, "ape", "Monkey's Audio"},
    {0, "TTA1", 4, "tta", "True Audio"},
    {0, "\0\0\1\xba", 4, "mpeg", "MPEG film"},
    {0, "\x0b\x77", 2, "ac3", "AC-3"},
};

/* The row of magics, or -1. */
static int find_magic(int fd) {
  char head[16] = "";
  if (pread(fd, head, sizeof head, 0) < (ssize_t)sizeof head) return -1;
  for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
    if (memcmp(head + magics[i].offset, magics[i].bytes, (size_t)magics[i].n) == 0) return (int)i;
  return -1;
}

int kr_movie_is(int fd) { return find_magic(fd) >= 0; }

const char *kr_movie_demuxer(int fd) {
  const int row = find_magic(fd);
  return row < 0 ? NULL : magics[row].demuxer;
}

/* ---- the graph ---- */
static int build_graph(const kr_av *av, void *graph, int from, const char *demuxer, void **sink) {
  char args[120];
  void *movie = NULL, *format = NULL;
  snprintf(args, sizeof args, "filename=/proc/self/fd/%d:format_name=%s", from, demuxer);
  int error = av->avfilter_graph_create_filter(&movie, av->avfilter_get_by_name("amovie"), "in", args, NULL, graph);
  if (error >= 0)
    error = av->avfilter_graph_create_filter(&format, av->avfilter_get_by_name("aformat"), "flt", "sample_fmts=flt",
                                             NULL, graph);
  if (error >= 0)
    error = av->avfilter_graph_create_filter(sink, av->avfilter_get_by_name("abuffersink"), "out", NULL, NULL, graph);
  if (error >= 0) error = av->avfilter_link(movie, 0, format, 0);
  if (error >= 0) error = av->avfilter_link(format, 0, *sink, 0);
  return error < 0 ? error : av->avfilter_graph_config(graph, NULL);
}

static int32_t copy_frames(const kr_av *av, void *sink, void *frame, SNDFILE *file, const char *name,
                           const char *text) {
  for (int error;;) {
    error = av->av_buffersink_get_frame(sink, frame);
    if (error == KR_AV_END && !*text) return KRAIT_OK;
    if (error < 0 || *text) return kr_av_fail(av, name, "sound", error, text);
    const kr_av_frame *f = frame;
    const sf_count_t n = f->n_samples;
    const int failed = n > 0 && sf_writef_float(file, (const float *)(const void *)f->data[0], n) != n;
    av->av_frame_unref(frame);
    KR_CHECK(!failed, KRAIT_ERR_FILE_WRITE, "cannot write the temporary copy of %s", name);
  }
}

static int32_t copy_sound(const kr_av *av, void *sink, int to, const char *name, const char *text) {
  SF_INFO info = {.format = SF_FORMAT_W64 | SF_FORMAT_FLOAT,
                  .samplerate = av->av_buffersink_get_sample_rate(sink),
                  .channels = av->av_buffersink_get_channels(sink)};
  SNDFILE *file = sf_open_fd(to, SFM_WRITE, &info, SF_FALSE);
  void *frame = av->av_frame_alloc();
  int32_t status = file && frame ? copy_frames(av, sink, frame, file, name, text)
                                 : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  if (frame) av->av_frame_free(&frame);
  const int failed = file && sf_close(file) != 0;
  if (status == KRAIT_OK && (failed || lseek(to, 0, SEEK_SET) != 0))
    status = kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write the temporary copy of %s", name);
  return status;
}

static int32_t decode(const kr_av *av, int from, int to, const char *demuxer, const char *name) {
  char text[KR_AV_TEXT_BYTES] = "";
  void *graph = av->avfilter_graph_alloc(), *sink = NULL;
  KR_CHECK(graph, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  kr_av_listen(av, text);
  const int error = build_graph(av, graph, from, demuxer, &sink);
  int32_t status = error < 0 ? kr_av_fail(av, name, "sound", error, text) : copy_sound(av, sink, to, name, text);
  av->avfilter_graph_free(&graph);
  kr_av_listen_no_more(av);
  return status;
}

int32_t kr_movie_decode(int from, int to, const char *name) {
  const int row = find_magic(from);
  kr_av av = {0};
  KR_CHECK(row >= 0, KRAIT_ERR_FILE_FORMAT, "%s is not a readable audio file", name);
  if (!kr_av_load(&av)) {
    kr_dlib_close(&av.lib);
    return kr_fail(KRAIT_ERR_FILE_FORMAT,
                   "%s is %s, which needs %s, or convert the file: ffmpeg -i '%s' -vn sound.wav", name,
                   magics[row].name, av.need, name);
  }
  return decode(&av, from, to, magics[row].demuxer,
                name); /* the library stays loaded: it has its own threads and tables */
}
