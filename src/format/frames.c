/* frames.c: ffmpeg filters a video and gives its frames as portable pixmaps. The file is its standard input, the
 * demuxer is named, as in movie.c. */
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "decoder.h"
#include "movie.h"
#include "open_error.h"
#include "relay.h"
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
                {0, "II*\0", 4, "tiff_pipe"},
                {0, "MM\0*", 4, "tiff_pipe"},
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

/* ---- a video as portable pixmaps ---- */
enum { MOST_EDGE = 1 << 14, CHAIN_BYTES = 1024 };
#define OTHER_SIZE "non positive size" /* says the filter of kr_film_each */

/* A video that is being read. */
typedef struct reading {
  kr_decoder decoder;
  uint8_t *rgb;
  int64_t width, height; /* of rgb */
} reading;

/* Called for each frame; returns 1 when no more are wanted. */
typedef int32_t (*each_fn)(void *user, int64_t i, const reading *r);

/* "P6\nWIDTH HEIGHT\n255\n"; *is_end: there is no further one. */
static int32_t read_header(reading *r, int *is_end) {
  char head[40] = "", byte = 0;
  size_t n = 0, n_read = 1, n_lines = 0;
  long long width = 0, height = 0;
  for (; n_lines < 3 && n + 1 < sizeof head; n++) {
    KR_TRY(kr_decoder_read(&r->decoder, &byte, 1, &n_read));
    if (n_read == 0) break;
    head[n] = byte, n_lines += byte == '\n';
  }
  if ((*is_end = n_lines < 3 && n_read == 0) != 0) return KRAIT_OK;
  const int is_good = n_lines == 3 && sscanf(head, "P6 %lld %lld 255", &width, &height) == 2;
  KR_CHECK(is_good && width >= 1 && height >= 1 && width <= MOST_EDGE && height <= MOST_EDGE, KRAIT_ERR_FILE_READ,
           "%s: a frame of %lld x %lld pixels came", r->decoder.name, width, height);
  if (r->rgb && r->width * r->height != width * height) kr_free(r->rgb), r->rgb = NULL;
  if (!r->rgb) r->rgb = kr_alloc((size_t)(width * height * 3));
  KR_CHECK(r->rgb, KRAIT_ERR_NO_MEMORY, "no memory for a frame of %lld x %lld pixels", width, height);
  r->width = width, r->height = height;
  return KRAIT_OK;
}

/* Other damage at the end counts as the end: the frames before it are valid. */
static int32_t end_film(reading *r, int64_t n) {
  char what[64];
  KR_TRY(kr_decoder_end(&r->decoder));
  KR_CHECK(!strstr(r->decoder.text, OTHER_SIZE), KRAIT_ERR_UNSUPPORTED,
           "%s: the frames' size changes after %lld frames of %lld x %lld: cut the film there", r->decoder.name,
           (long long)n, (long long)r->width, (long long)r->height);
  if (n > 0 && !kr_decoder_says_cut(&r->decoder)) return KRAIT_OK;
  snprintf(what, sizeof what, n ? "picture after the first %lld" : "picture", (long long)n);
  return kr_decoder_fail(&r->decoder, what);
}

static int32_t read_frames_all(reading *r, each_fn each, void *user) {
  for (int64_t i = 0;; i++) {
    int is_end;
    size_t n = 0;
    KR_TRY(read_header(r, &is_end));
    const size_t bytes = (size_t)(r->width * r->height * 3);
    if (!is_end) KR_TRY(kr_decoder_read(&r->decoder, r->rgb, bytes, &n));
    if (is_end || n < bytes) return end_film(r, i);
    const int32_t status = each(user, i, r);
    if (status) return status < 0 ? status : KRAIT_OK;
  }
}

static int32_t find_demuxer(int fd, const char *name, const char **demuxer) {
  *demuxer = demuxer_of(fd);
  KR_CHECK(*demuxer, KRAIT_ERR_FILE_FORMAT,
           "%s is neither a video (mp4, mov, webm, mkv, avi, flv, mpeg) nor an image (png, jpeg, webp, tiff, gif, bmp)",
           name);
  return KRAIT_OK;
}

/* Every frame after the filters, whatever its time: numbered times at a constant rate, so that ffmpeg neither repeats
 * nor drops one. */
/* is_turned: as ffmpeg does unless told otherwise; the word in its place is only repeated. */
static int32_t read_film_turned(int fd, const char *name, const char *filters, int is_turned, each_fn each,
                                void *user) {
  char chain[CHAIN_BYTES + 64];
  const char *demuxer;
  KR_TRY(find_demuxer(fd, name, &demuxer));
  snprintf(chain, sizeof chain, "%sformat=rgb24,settb=AVTB,setpts=N/25/TB", filters);
  const char *const words[] = {"ffmpeg", "-nostdin", "-v", "error", is_turned ? "-nostdin" : "-noautorotate",
                               "-protocol_whitelist", "file", "-f", demuxer, "-i", "file:/proc/self/fd/0", "-map",
                               "0:v:0", "-vf", chain, "-r", "25", "-c:v", "ppm", "-f", "image2pipe", "pipe:1", NULL};
  reading *r = kr_zalloc(sizeof *r);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  int32_t status = kr_decoder_begin(&r->decoder, words, fd, name, NULL);
  if (status >= 0) status = read_frames_all(r, each, user);
  kr_decoder_abandon(&r->decoder);
  kr_free(r->rgb);
  kr_free(r);
  return status;
}

static int32_t read_film(int fd, const char *name, const char *filters, each_fn each, void *user) {
  return read_film_turned(fd, name, filters, 0, each, user);
}

/* ---- frames of one size ---- */
typedef struct cutter {
  int64_t side;
  kr_frame_fn take;
  void *user;
} cutter;

static int32_t give_frame(void *user, int64_t i, const reading *r) {
  const cutter *c = user;
  KR_CHECK(r->width == c->side && r->height == c->side, KRAIT_ERR_FILE_READ,
           "%s: a frame of %lld x %lld pixels came", r->decoder.name, (long long)r->width, (long long)r->height);
  return c->take(c->user, i, r->rgb);
}

int32_t kr_frames_read(int fd, const char *name, int64_t side, kr_frame_fn take, void *user) {
  char filters[CHAIN_BYTES];
  cutter c = {side, take, user};
  snprintf(filters, sizeof filters,
           "scale=%lld:%lld:flags=bilinear:force_original_aspect_ratio=increase,crop=%lld:%lld,", (long long)side,
           (long long)side, (long long)side, (long long)side);
  return read_film(fd, name, filters, give_frame, &c);
}

/* ---- frames in the video's own size ---- */
static int32_t count_frame(void *user, int64_t i, const reading *r) {
  (void)r;
  *(int64_t *)user = i + 1;
  return KRAIT_OK;
}

/* The frames per second that the container says, as "25/1"; 0 if it says nothing of use. */
static int32_t read_rate(int fd, const char *name, double *fps) {
  const char *demuxer;
  char text[64] = "";
  size_t n = 0;
  long long count = 0, per = 0;
  KR_TRY(find_demuxer(fd, name, &demuxer));
  const char *const words[] = {"ffprobe", "-v", "error", "-protocol_whitelist", "file", "-f", demuxer,
                               "-select_streams", "v:0", "-show_entries", "stream=r_frame_rate", "-of",
                               "default=nokey=1:noprint_wrappers=1", "file:/proc/self/fd/0", NULL};
  kr_decoder *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  int32_t status = kr_decoder_begin(d, words, fd, name, NULL);
  if (status >= 0) status = kr_decoder_read(d, text, sizeof text - 1, &n);
  if (status >= 0) status = kr_decoder_end(d);
  if (status >= 0 && d->status) status = kr_decoder_fail(d, "picture");
  kr_decoder_abandon(d);
  kr_free(d);
  *fps = sscanf(text, "%lld/%lld", &count, &per) == 2 && count > 0 && per > 0 ? (double)count / (double)per : 0;
  return status;
}

int32_t kr_film_measure(int fd, const char *name, kr_film *film) {
  *film = (kr_film){0};
  KR_TRY(read_rate(fd, name, &film->fps));
  return read_film(fd, name, "scale=2:2,", count_frame, &film->n_frames);
}

typedef struct picker {
  int n, k; /* wanted; found */
  kr_picture_fn take;
  void *user;
} picker;

static int32_t pick_frame(void *user, int64_t i, const reading *r) {
  picker *p = user;
  (void)i;
  KR_TRY(p->take(p->user, p->k, r->width, r->height, r->rgb));
  return ++p->k == p->n;
}

int32_t kr_film_frames(int fd, const char *name, const int64_t *at, int n, kr_picture_fn take, void *user) {
  char filters[CHAIN_BYTES];
  picker p = {n, 0, take, user};
  size_t used = (size_t)snprintf(filters, sizeof filters, "select='");
  for (int k = 0; k < n && used < sizeof filters; k++)
    used += (size_t)snprintf(filters + used, sizeof filters - used, "%seq(n,%lld)", k ? "+" : "", (long long)at[k]);
  if (used < sizeof filters) used += (size_t)snprintf(filters + used, sizeof filters - used, "',");
  KR_CHECK(used < sizeof filters, KRAIT_ERR_ARGUMENT, "%s: %d frames are too many to choose at once", name, n);
  KR_TRY(read_film(fd, name, filters, pick_frame, &p));
  KR_CHECK(p.k == n, KRAIT_ERR_FILE_READ,
           "%s: frame %lld was there when frames were counted, but not when they were read", name,
           (long long)at[p.k < n ? p.k : n - 1]);
  return KRAIT_OK;
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

/* ---- every frame, and what the film says about itself ---- */
static int32_t ask_film(int fd, const char *name, const char *demuxer, char *text, size_t bytes) {
  static const char entries[] = "stream=width,height,r_frame_rate,avg_frame_rate,start_time,nb_frames,color_primaries,"
                                "color_transfer,color_space,color_range:stream_side_data=rotation:format=start_time";
  const char *const words[] = {"ffprobe", "-v", "error", "-protocol_whitelist", "file", "-f", demuxer,
                               "-select_streams", "v:0", "-show_entries", entries, "-of", "default=noprint_wrappers=1",
                               "file:/proc/self/fd/0", NULL};
  size_t n = 0;
  kr_decoder *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  int32_t status = kr_decoder_begin(d, words, fd, name, NULL);
  if (status >= 0) status = kr_decoder_read(d, text, bytes - 1, &n);
  if (status >= 0) status = kr_decoder_end(d);
  text[n] = 0;
  if (status >= 0 && (d->status || n == 0)) status = kr_decoder_fail(d, "picture");
  kr_decoder_abandon(d);
  kr_free(d);
  return status;
}

/* The value after "key=", to the line's end; "" if there is none, or it is unknown. */
static void film_value(const char *text, const char *key, char *to, size_t bytes) {
  const size_t n = strlen(key);
  *to = 0;
  for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (strncmp(line, key, n) == 0 && line[n] == '=')
      snprintf(to, bytes, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
  if (strcmp(to, "unknown") == 0 || strcmp(to, "N/A") == 0) *to = 0;
}

static int64_t whole_of(const char *text, const char *key) {
  char value[32];
  long long n = 0;
  film_value(text, key, value, sizeof value);
  return sscanf(value, "%lld", &n) == 1 ? n : 0;
}

static void read_rates(const char *text, kr_film_about *to) {
  char real[32], mean[32];
  long long count = 0, per = 0;
  film_value(text, "r_frame_rate", real, sizeof real), film_value(text, "avg_frame_rate", mean, sizeof mean);
  if (sscanf(mean, "%lld/%lld", &count, &per) != 2 || count <= 0 || per <= 0)
    if (sscanf(real, "%lld/%lld", &count, &per) != 2 || count <= 0 || per <= 0) count = 25, per = 1;
  long long real_count = count, real_per = per;
  if (sscanf(real, "%lld/%lld", &real_count, &real_per) == 2 && real_count > 0 && real_per > 0) {
    const double ratio = (double)real_count * (double)per / ((double)real_per * (double)count);
    if (ratio >= 0.999 && ratio <= 1.001) count = real_count, per = real_per;
  }
  to->rate = count, to->per = per;
}

/* The first line is the picture's, the last the file's. */
static double read_start(const char *text) {
  static const char key[] = "start_time=";
  double of_picture = 0, of_file = 0;
  int n = 0;
  for (const char *at = strstr(text, key); at; at = strstr(at + 1, key)) {
    if (sscanf(at + strlen(key), "%lf", &of_file) != 1) of_file = 0;
    if (n++ == 0) of_picture = of_file;
  }
  return of_picture - of_file;
}

int32_t kr_film_describe(int fd, const char *name, kr_film_about *to) {
  char text[2048];
  *to = (kr_film_about){0};
  KR_TRY(find_demuxer(fd, name, &to->demuxer));
  KR_TRY(ask_film(fd, name, to->demuxer, text, sizeof text));
  const int64_t turned = whole_of(text, "rotation");
  to->width = whole_of(text, turned % 180 ? "height" : "width");
  to->height = whole_of(text, turned % 180 ? "width" : "height");
  to->is_picture = strstr(to->demuxer, "_pipe") != NULL;
  to->n_frames = whole_of(text, "nb_frames");
  read_rates(text, to);
  to->start_s = read_start(text);
  film_value(text, "color_primaries", to->primaries, sizeof to->primaries);
  film_value(text, "color_transfer", to->transfer, sizeof to->transfer);
  film_value(text, "color_space", to->matrix, sizeof to->matrix);
  film_value(text, "color_range", to->range, sizeof to->range);
  return KRAIT_OK;
}

/* A film that a thread reads. */
typedef struct reading_ahead {
  int fd;
  const char *name, *filters;
} reading_ahead;

static int32_t put_picture(void *user, int64_t i, const reading *r) {
  (void)i;
  return kr_relay_put(user, r->width, r->height, r->rgb, (size_t)(r->width * r->height * 3));
}

static int32_t read_ahead(void *user, kr_relay *relay) {
  const reading_ahead *a = user;
  return read_film_turned(a->fd, a->name, a->filters, 1, put_picture, relay);
}

static int32_t take_pictures(kr_relay *relay, kr_picture_fn take, void *user) {
  kr_relay_item *item;
  int32_t status = KRAIT_OK;
  for (int64_t i = 0; status == KRAIT_OK && (status = kr_relay_take(relay, &item)) > 0; i++) {
    status = take(user, i, item->width, item->height, item->data);
    kr_free(item);
  }
  return status < 0 ? status : KRAIT_OK;
}

/* ffmpeg would scale frames of another size to that of the first: the filter ends it. Colours without a tag are taken
 * as players do. */
int32_t kr_film_each(int fd, const char *name, const kr_film_about *about, kr_picture_fn take, void *user) {
  char filters[CHAIN_BYTES];
  const int is_untagged = !about->is_picture && !*about->matrix && about->height >= KR_FILM_HD_LINES;
  snprintf(filters, sizeof filters, "crop=w='if(eq(iw,%lld)*eq(ih,%lld),iw,-1)':exact=1,%s", (long long)about->width,
           (long long)about->height, is_untagged ? "scale=in_color_matrix=bt709," : "");
  reading_ahead ahead = {fd, name, about->width > 0 ? filters : ""};
  kr_relay *relay = kr_relay_open(KR_FILM_AHEAD_BYTES, read_ahead, &ahead);
  KR_CHECK(relay, KRAIT_ERR_NO_MEMORY, "no thread to read %s", name);
  const int32_t status = take_pictures(relay, take, user);
  kr_relay_close(&relay);
  return status;
}
