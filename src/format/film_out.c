/* film_out.c: the encoder as a child: the film that was read is its standard input, frames come through descriptor 3, a
 * socket, so that its end is an error here and no signal. */
#define _GNU_SOURCE
#include "film_out.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc.h"
#include "child.h"
#include "relay.h"
#include "status.h"

enum { MOST_WORDS = 80, ABOVE = 10 };
#define IS_LITTLE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define SIXTEEN_BITS (IS_LITTLE ? "rgb48le" : "rgb48be")

struct kr_film_out {
  kr_outfile file;
  char name[256]; /* of the result, for messages */
  int64_t width, height;
  size_t frame_bytes;
  const kr_film_times *times; /* or NULL */
  int64_t rate, per, n_sent;
  pid_t pid;
  int frames, errors; /* this side's ends */
  int to;             /* the unnamed file, or -1 */
  char text[1024];
  size_t n_text;
  kr_relay *relay; /* to the thread that hands frames to the encoder; until it ends, pid and the descriptors are its */
};

/* ---- which films ---- */

static const struct {
  const char *end, *muxer, *subtitles;
} kinds[] = {{".mp4", "mp4", "mov_text"}, {".m4v", "mp4", "mov_text"}, {".mov", "mov", "mov_text"},
             {".mkv", "matroska", "copy"}};

static int kind_of(const char *path) {
  const size_t n = strlen(path);
  for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
    if (n > 4 && strcmp(path + n - 4, kinds[i].end) == 0) return i;
  return -1;
}

int kr_film_out_is(const char *path) { return kind_of(path) >= 0; }

/* ---- the command ---- */

typedef struct command {
  const char *words[MOST_WORDS];
  int n;
  char size[48], rate[48], start[32], quality[16], filter[160];
} command;

static void add(command *c, const char *word) {
  if (c->n + 1 < MOST_WORDS) c->words[c->n++] = word;
  c->words[c->n] = NULL;
}
static void add_two(command *c, const char *first, const char *second) { add(c, first), add(c, second); }
static void add_all(command *c, int n, const char *const *words) {
  for (int i = 0; i < n; i++) add(c, words[i]);
}
#define ADD(c, ...) add_all(c, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static void add_inputs(command *c, const kr_film_look *look, const kr_film_about *about) {
  snprintf(c->size, sizeof c->size, "%lldx%lld", (long long)look->width, (long long)look->height);
  snprintf(c->rate, sizeof c->rate, "%lld/%lld", (long long)about->rate, (long long)about->per);
  snprintf(c->start, sizeof c->start, "%.6f", about->start_s);
  ADD(c, "ffmpeg", "-nostdin", "-v", "error", "-itsoffset", c->start);
  if (look->times) ADD(c, "-f", "matroska", "-probesize", "32", "-analyzeduration", "0");
  else ADD(c, "-f", "rawvideo", "-pixel_format", look->is_ten_bits ? SIXTEEN_BITS : "rgb24", "-video_size", c->size,
           "-framerate", c->rate);
  add_two(c, "-i", "pipe:3");
  ADD(c, "-protocol_whitelist", "file,pipe", "-f", about->demuxer, "-i", "file:/proc/self/fd/0");
}

/* The film's own tags; of a film without them those that its size suggests to players. */
static void add_colours(command *c, const kr_film_look *look, const kr_film_about *about) {
  const char *matrix = *about->matrix && strcmp(about->matrix, "gbr") != 0 ? about->matrix
                       : look->height >= KR_FILM_HD_LINES                   ? "bt709"
                                                                            : "smpte170m";
  snprintf(c->filter, sizeof c->filter, "scale=in_range=full:out_range=tv:out_color_matrix=%s",
           strstr(matrix, "709")    ? "bt709"
           : strstr(matrix, "2020") ? "bt2020"
                                    : "bt601");
  ADD(c, "-vf", c->filter, "-colorspace", matrix, "-color_range", "tv");
  if (*about->primaries) add_two(c, "-color_primaries", about->primaries);
  if (*about->transfer) add_two(c, "-color_trc", about->transfer);
}

static void add_codec(command *c, const kr_film_look *look) {
  const int is_even = look->width % 2 == 0 && look->height % 2 == 0;
  snprintf(c->quality, sizeof c->quality, "%d", look->quality);
  ADD(c, "-c:v", look->is_hevc ? "libx265" : "libx264", "-crf", c->quality, "-preset", "medium", "-pix_fmt",
      look->is_ten_bits ? (is_even ? "yuv420p10le" : "yuv444p10le") : is_even ? "yuv420p" : "yuv444p");
  if (look->is_hevc) ADD(c, "-x265-params", "log-level=error", "-tag:v", "hvc1");
}

static void make_command(command *c, const char *path, int kind, const kr_film_look *look,
                         const kr_film_about *about) {
  add_inputs(c, look, about);
  ADD(c, "-map", "0:v:0", "-map", "1:a?", "-map", "1:s?", "-map_metadata", "1", "-map_metadata:s:v:0", "1:s:v:0",
      "-metadata:s:v:0", "rotate=", "-c:a", "copy", "-c:s", kinds[kind].subtitles);
  add_codec(c, look);
  add_colours(c, look, about);
  if (look->times) ADD(c, "-vsync", "vfr", "-enc_time_base", "1:90000"); /* else frames are repeated, times rounded */
  if (look->times && strcmp(kinds[kind].muxer, "matroska") != 0) ADD(c, "-video_track_timescale", "90000");
  ADD(c, "-max_muxing_queue_size", "9999", "-f", kinds[kind].muxer, "-y", path);
}

/* ---- the child ---- */

/* Above the descriptors that the child's replace. */
static int lift(int fd) {
  const int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
  if (fd >= 0) close(fd);
  return high;
}

static int open_pair(int pair[2]) {
  int low[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, low) != 0) return -1;
  pair[0] = lift(low[0]), pair[1] = lift(low[1]);
  return pair[0] < 0 || pair[1] < 0 ? -1 : 0;
}

static int32_t start(kr_film_out *out, const command *c, int from) {
  int frames[2] = {-1, -1}, errors[2] = {-1, -1};
  const int again = fcntl(from, F_DUPFD_CLOEXEC, ABOVE);
  int error = again < 0 || open_pair(frames) != 0 || open_pair(errors) != 0 ? errno : 0;
  if (!error) {
    const int ends[] = {again, -1, errors[1], frames[1], out->to};
    error = kr_child_start(c->words, ends, sizeof ends / sizeof *ends, &out->pid);
  }
  if (again >= 0) close(again);
  if (frames[1] >= 0) close(frames[1]);
  if (errors[1] >= 0) close(errors[1]);
  out->frames = frames[0], out->errors = errors[0];
  if (!error) return KRAIT_OK;
  out->pid = 0;
  KR_CHECK(error != ENOENT, KRAIT_ERR_FILE_FORMAT,
           "%s: writing films needs FFmpeg's program ffmpeg; install it (Debian: ffmpeg), or write pictures: -o "
           "frames/%%05d.png",
           out->name);
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, error, "cannot start ffmpeg to write %s", out->name);
}

int32_t kr_film_out_begin(const char *path, const kr_film_look *look, int from, const kr_film_about *about,
                          kr_film_out **handle) {
  const int kind = kind_of(path);
  command c = {.n = 0};
  *handle = NULL;
  KR_CHECK(kind >= 0, KRAIT_ERR_ARGUMENT, "%s: a film is written as .mp4, .mov or .mkv", path);
  kr_film_out *out = *handle = kr_zalloc(sizeof *out);
  KR_CHECK(out, KRAIT_ERR_NO_MEMORY, "no memory to write %s", path);
  snprintf(out->name, sizeof out->name, "%s", path);
  out->frames = out->errors = out->to = -1;
  out->width = look->width, out->height = look->height;
  out->times = look->times, out->rate = about->rate, out->per = about->per;
  out->frame_bytes = (size_t)(look->width * look->height * 3 * (look->is_ten_bits ? 2 : 1));
  int32_t status = kr_outfile_begin(&out->file, path);
  if (status >= 0) {
    if (out->file.is_nameless) out->to = fcntl(out->file.fd, F_DUPFD_CLOEXEC, ABOVE);
    make_command(&c, out->file.is_nameless ? "file:/proc/self/fd/4" : out->file.temp_path, kind, look, about);
    status = start(out, &c, from);
  }
  if (status < 0) kr_film_out_close(handle);
  return status;
}

/* ---- frames: a thread's, so that those which call do not wait for the encoder ---- */

static void take_text(kr_film_out *out) {
  char piece[512];
  const ssize_t n = read(out->errors, piece, sizeof piece);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) {
    close(out->errors);
    out->errors = -1;
    return;
  }
  for (ssize_t i = 0; i < n && out->n_text + 1 < sizeof out->text; i++) out->text[out->n_text++] = piece[i];
  out->text[out->n_text] = 0;
}

/* Why the encoder ended; it has. */
static int32_t fail_of_encoder(kr_film_out *out) {
  int status = 0;
  while (out->errors >= 0) take_text(out);
  if (out->pid > 0)
    while (waitpid(out->pid, &status, 0) < 0 && errno == EINTR) {}
  out->pid = 0;
  KR_CHECK(!strstr(out->text, "No space left"), KRAIT_ERR_FILE_WRITE, "cannot write %s: no space left on device",
           out->name);
  return kr_fail(KRAIT_ERR_FILE_WRITE, "cannot write %s: ffmpeg ended; it says: %.*s", out->name,
                 (int)strcspn(out->text, "\n"), *out->text ? out->text : "nothing");
}

static int32_t send_bytes(kr_film_out *out, const uint8_t *bytes, size_t n_bytes) {
  for (size_t done = 0; done < n_bytes;) {
    struct pollfd wait[2] = {{.fd = out->frames, .events = POLLOUT}, {.fd = out->errors, .events = POLLIN}};
    if (poll(wait, 2, -1) < 0 && errno != EINTR)
      return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", out->name);
    if (wait[1].revents && out->errors >= 0) take_text(out);
    if (!wait[0].revents) continue;
    const ssize_t n = send(out->frames, bytes + done, n_bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return fail_of_encoder(out);
    done += (size_t)n;
  }
  return KRAIT_OK;
}

static int32_t send_frame(kr_film_out *out, const kr_relay_item *frame) {
  static const char *const fourcc[2] = {"RGB\x18", IS_LITTLE ? "RGB\x30" : "\x30" "BGR"};
  uint8_t head[KR_RAW_FILM_MOST_HEAD];
  if (out->times && out->n_sent == 0)
    KR_TRY(send_bytes(out, head, kr_raw_film_head(head, frame->width, frame->height,
                                                  fourcc[frame->bytes > (size_t)(3 * frame->width * frame->height)])));
  if (out->times) {
    const int64_t us = kr_film_time_us(out->times, out->n_sent, out->rate, out->per);
    KR_TRY(send_bytes(out, head, kr_raw_film_frame(head, us, frame->bytes)));
  }
  out->n_sent++;
  return send_bytes(out, frame->data, frame->bytes);
}

static int32_t send_frames(void *user, kr_relay *relay) {
  kr_relay_item *item;
  int32_t status;
  while ((status = kr_relay_take(relay, &item)) > 0) {
    status = send_frame(user, item);
    kr_free(item);
    KR_TRY(status);
  }
  return status;
}

int32_t kr_film_out_add(kr_film_out *out, const void *rgb) {
  if (!out->relay) out->relay = kr_relay_open(KR_FILM_AHEAD_BYTES, send_frames, out);
  KR_CHECK(out->relay, KRAIT_ERR_NO_MEMORY, "no thread to write %s", out->name);
  return kr_relay_put(out->relay, out->width, out->height, rgb, out->frame_bytes);
}

int32_t kr_film_out_commit(kr_film_out *out) {
  int status = 0;
  pid_t ended;
  if (out->relay) KR_TRY(kr_relay_finish(out->relay));
  close(out->frames);
  out->frames = -1;
  while (out->errors >= 0) take_text(out);
  while ((ended = waitpid(out->pid, &status, 0)) < 0 && errno == EINTR) {}
  out->pid = 0;
  if (ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return fail_of_encoder(out);
  return kr_outfile_commit(&out->file);
}

void kr_film_out_close(kr_film_out **handle) {
  kr_film_out *out = handle ? *handle : NULL;
  if (!out) return;
  *handle = NULL;
  kr_relay_close(&out->relay);
  if (out->frames >= 0) close(out->frames);
  if (out->pid > 0) {
    kill(-out->pid, SIGKILL);
    while (waitpid(out->pid, NULL, 0) < 0 && errno == EINTR) {}
  }
  if (out->errors >= 0) close(out->errors);
  if (out->to >= 0) close(out->to);
  kr_outfile_abandon(&out->file);
  kr_free(out);
}
