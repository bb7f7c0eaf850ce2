/* audio.c: reading audio with libsndfile; every problem becomes one sentence that names the file. */
#define _GNU_SOURCE
#include "audio.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "audio_file.h"
#include "movie.h"
#include "open_error.h"
#include "outfile.h"
#include "status.h"

/* libsndfile's error text without its prefix and newline. */
const char *kr_sndfile_text(SNDFILE *file, char *text, size_t text_bytes) {
  const char *from = sf_strerror(file);
  if (strncmp(from, "Error : ", 8) == 0) from += 8;
  if (strncmp(from, "System error : ", 15) == 0) from += 15;
  snprintf(text, text_bytes, "%s", from);
  for (size_t n = strlen(text); n > 0 && (text[n - 1] == '.' || text[n - 1] == '\n' || text[n - 1] == ' '); n--)
    text[n - 1] = 0;
  return text;
}

enum { START_BYTES = 16 << 20 };

static int32_t write_block(int to, const char *block, ssize_t n, const char *name) {
  for (ssize_t done = 0; done < n;) {
    const ssize_t step = write(to, block + done, (size_t)(n - done));
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", name);
    done += step;
  }
  return KRAIT_OK;
}

/* Up to most_bytes; *is_all: the end was reached. */
static int32_t copy_some(int from, int to, int64_t most_bytes, const char *from_name, const char *to_name,
                         int *is_all) {
  char block[1 << 14];
  for (*is_all = 0; most_bytes > 0;) {
    const ssize_t n = read(from, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", from_name);
    if (n == 0) return *is_all = 1, KRAIT_OK;
    KR_TRY(write_block(to, block, n, to_name));
    most_bytes -= n;
  }
  return KRAIT_OK;
}

int32_t kr_copy_bytes(int from, int to, const char *from_name, const char *to_name) {
  int is_all;
  return copy_some(from, to, INT64_MAX, from_name, to_name, &is_all);
}

/* Whether the data so far can be the start of a recording: an endless input that is not one must not fill the disk. */
static int32_t check_start(int fd, const char *name) {
  SF_INFO info = {0};
  const int again = dup(fd);
  if (again < 0 || lseek(fd, 0, SEEK_SET) != 0)
    return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read the copy of %s", name);
  SNDFILE *file = sf_open_fd(again, SFM_READ, &info, SF_TRUE);
  const int is_sound = file || kr_movie_is(fd);
  if (file) sf_close(file);
  lseek(fd, 0, SEEK_END);
  return is_sound
             ? KRAIT_OK
             : kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is not a readable audio file: its first %d MiB are not a recording",
                       name, START_BYTES >> 20);
}

/* An unnamed copy that can be rewound; *fd is open and at its start. */
static int32_t spool(int from, const char *name, int *fd) {
  KR_TRY(kr_private_file(name, fd));
  int is_all = 0;
  int32_t status = copy_some(from, *fd, START_BYTES, name, "the temporary copy of the input", &is_all);
  off_t size = status < 0 ? 0 : lseek(*fd, 0, SEEK_CUR);
  if (status == KRAIT_OK && size == 0) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is empty", name);
  if (status == KRAIT_OK && !is_all) status = check_start(*fd, name);
  if (status == KRAIT_OK && !is_all) status = kr_copy_bytes(from, *fd, name, "the temporary copy of the input");
  if (status == KRAIT_OK && lseek(*fd, 0, SEEK_SET) != 0)
    status = kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read the copy of %s", name);
  if (status < 0) close(*fd), *fd = -1;
  return status;
}

/* *fd: the file itself, or a copy if it cannot be rewound. */
static int32_t reach(const char *path, const char *name, struct stat *info, int *fd) {
  const int is_stdin = strcmp(path, "-") == 0;
  *fd = -1;
  int from = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (from < 0 || fstat(from, info) != 0) {
    const int failed = errno;
    if (from >= 0 && !is_stdin) close(from);
    return kr_fail_open(failed, name);
  }
  if (!is_stdin) fcntl(from, F_SETFL, 0); /* O_NONBLOCK was only for open: a pipe without a writer must not block it */
  int32_t status = KRAIT_OK;
  if (S_ISDIR(info->st_mode)) status = kr_fail(KRAIT_ERR_FILE_OPEN, "%s is a folder, not an audio file", name);
  else if (is_stdin || S_ISFIFO(info->st_mode) || S_ISSOCK(info->st_mode)) status = spool(from, name, fd);
  else if (!S_ISREG(info->st_mode)) status = kr_fail(KRAIT_ERR_FILE_OPEN, "%s is a device, not an audio file", name);
  else if (info->st_size == 0) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is empty", name);
  else *fd = from;
  if (!is_stdin && *fd != from) close(from);
  return status;
}

/* Header lines of libsndfile's log that announce more bytes of audio than the file has. Streams that were written to a
 * pipe announce 0 or about 2 or 4 GiB, which is accepted. */
static int promises_more(SNDFILE *file) {
  static const char *const labels[] = {"data :", "SSND :", "BODY :", "Data Size   :", "riff :"};
  char log[8192] = "";
  sf_command(file, SFC_GET_LOG_INFO, log, sizeof log);
  if (strstr(log, "truncated file") || strstr(log, "does not match value from 'ds64'")) return 1;
  for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
    const char *at = strstr(log, labels[i]);
    if (!at || (at != log && at[-1] != '\n' && at[-1] != ' ')) continue;
    char *rest = NULL;
    const unsigned long long promised = strtoull(at + strlen(labels[i]), &rest, 10);
    static const char should[] = " (should be ";
    if (!rest || strncmp(rest, should, sizeof should - 1) != 0) continue;
    if (promised < 0x7fff0000ull && promised > strtoull(rest + sizeof should - 1, NULL, 10)) return 1;
  }
  return 0;
}

static int32_t check_header(const kr_audio_in *in) {
  const kr_audio_info *info = &in->info;
  KR_CHECK(info->n_channels >= 1 && info->n_channels <= KR_AUDIO_MAX_CHANNELS, KRAIT_ERR_FILE_FORMAT,
           "%s has %d channels; up to %d can be read", in->name, info->n_channels, KR_AUDIO_MAX_CHANNELS);
  KR_CHECK(info->sample_rate_hz >= KR_AUDIO_MIN_HZ && info->sample_rate_hz <= KR_AUDIO_MAX_HZ, KRAIT_ERR_FILE_FORMAT,
           "%s has a sample rate of %d Hz; %d to %d can be read", in->name, info->sample_rate_hz, KR_AUDIO_MIN_HZ,
           KR_AUDIO_MAX_HZ);
  KR_CHECK(info->n_frames != 0, KRAIT_ERR_FILE_FORMAT, "%s contains no samples", in->name);
  KR_CHECK(info->n_frames > 0 && info->n_frames < SF_COUNT_MAX && !promises_more(in->file), KRAIT_ERR_FILE_READ,
           "%s is truncated: its header announces more audio than the file contains", in->name);
  return KRAIT_OK;
}

/* ---- the file, as libsndfile sees it ---- */
static sf_count_t audio_file_length(void *user) {
  struct stat info;
  return fstat(((kr_audio_in *)user)->fd, &info) == 0 ? (sf_count_t)info.st_size : -1;
}

static sf_count_t audio_file_seek(sf_count_t offset, int whence, void *user) {
  kr_audio_in *in = user;
  const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? in->offset : audio_file_length(in);
  if (from < 0 || from + offset < 0) return -1;
  return in->offset = from + offset;
}

static sf_count_t audio_file_read(void *bytes, sf_count_t n, void *user) {
  kr_audio_in *in = user;
  sf_count_t done = 0;
  while (done < n && !in->os_errno) {
    const ssize_t step = pread(in->fd, (char *)bytes + done, (size_t)(n - done), (off_t)in->offset);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) in->os_errno = errno;
    if (step <= 0) break;
    done += step;
    in->offset += step;
  }
  return done;
}

static sf_count_t audio_file_write(const void *bytes, sf_count_t n, void *user) {
  (void)bytes, (void)n, (void)user;
  return 0;
}

static sf_count_t audio_file_tell(void *user) { return ((kr_audio_in *)user)->offset; }

static void open_through_us(kr_audio_in *in, SF_INFO *info) {
  static SF_VIRTUAL_IO io = {audio_file_length, audio_file_seek, audio_file_read, audio_file_write, audio_file_tell};
  in->offset = 0;
  *info = (SF_INFO){0};
  in->file = sf_open_virtual(&io, SFM_READ, info, in);
}

/* Recordings without a header that libsndfile recognises by their names. */
static int has_telling_name(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot && (strcasecmp(dot, ".gsm") == 0 || strcasecmp(dot, ".vox") == 0 || strcasecmp(dot, ".au") == 0 ||
                 strcasecmp(dot, ".snd") == 0);
}

/* libsndfile cannot read it: uses ffmpeg if installed, as if it were a pipe with an audio file. */
static int32_t open_movie(kr_audio_in *in, SF_INFO *info) {
  char text[200];
  const int is_damaged = sf_error(NULL) == SF_ERR_MALFORMED_FILE;
  kr_sndfile_text(NULL, text, sizeof text);
  if (in->os_errno) return kr_fail_os(KRAIT_ERR_FILE_READ, in->os_errno, "cannot read %s", in->name);
  KR_CHECK(kr_movie_is(in->fd), is_damaged ? KRAIT_ERR_FILE_READ : KRAIT_ERR_FILE_FORMAT, "%s is %s (libsndfile: %s)",
           in->name, is_damaged ? "a damaged audio file" : "not a readable audio file", text);
  int copy = -1;
  KR_TRY(kr_private_file(in->name, &copy));
  const int32_t status = kr_movie_decode(in->fd, copy, in->name);
  close(in->fd);
  in->fd = copy;
  KR_TRY(status);
  in->is_copy = 1;
  in->is_converted = "read through ffmpeg";
  open_through_us(in, info);
  KR_CHECK(in->file, KRAIT_ERR_FILE_READ, "%s: the audio cannot be read again (libsndfile: %s)", in->name,
           kr_sndfile_text(NULL, text, sizeof text));
  return KRAIT_OK;
}

static int32_t open_sound(kr_audio_in *in, const char *path) {
  SF_INFO info = {0};
  open_through_us(in, &info);
  if (!in->file && !in->is_copy && has_telling_name(path)) {
    info = (SF_INFO){0};
    in->file = sf_open(path, SFM_READ, &info);
  }
  if (!in->file) KR_TRY(open_movie(in, &info));
  char again[40];
  snprintf(again, sizeof again, "/proc/self/fd/%d", in->fd);
  in->path = kr_strdup(in->is_copy ? again : path);
  KR_CHECK(in->path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  in->info = (kr_audio_info){
      .sample_rate_hz = info.samplerate, .n_channels = info.channels, .format = info.format, .n_frames = info.frames};
  if (in->is_converted)
    in->info.format =
        SF_FORMAT_WAV | SF_FORMAT_PCM_16; /* the copy is in float; its source was not more precise than this */
  return check_header(in);
}

int32_t kr_audio_open(const char *path, kr_audio_in **out) {
  struct stat info = {0};
  kr_audio_in *in = kr_zalloc(sizeof *in);
  KR_CHECK(in, KRAIT_ERR_NO_MEMORY, "no memory for a file");
  in->fd = -1;
  in->name = kr_strdup(strcmp(path, "-") == 0 ? "standard input" : path);
  int32_t status =
      in->name ? reach(path, in->name, &info, &in->fd) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  in->device = info.st_dev;
  in->inode = info.st_ino;
  in->is_copy = strcmp(path, "-") == 0 || !S_ISREG(info.st_mode);
  if (status == KRAIT_OK) status = open_sound(in, path);
  if (status < 0) kr_audio_close(&in);
  else *out = in;
  return status;
}

void kr_audio_close(kr_audio_in **in) {
  if (!*in) return;
  if ((*in)->file) sf_close((*in)->file);
  if ((*in)->fd >= 0) close((*in)->fd);
  kr_free((*in)->name);
  kr_free((*in)->path);
  kr_free(*in);
  *in = NULL;
}

const kr_audio_info *kr_audio_in_info(const kr_audio_in *in) { return &in->info; }
const char *kr_audio_in_path(const kr_audio_in *in) { return in->path; }

static int32_t check_finite(const kr_audio_in *in, const float *samples, int64_t n_frames) {
  const int64_t n_channels = in->info.n_channels;
  for (int64_t i = 0; i < n_frames * n_channels; i++) {
    if (isfinite(samples[i])) continue;
    const int64_t frame = in->position + i / n_channels;
    return kr_fail(KRAIT_ERR_FILE_FORMAT,
                   "%s: sample %lld (at %.3f s) of channel %lld is %s; repair the recording first", in->name,
                   (long long)frame, (double)frame / in->info.sample_rate_hz, (long long)(i % n_channels + 1),
                   isnan(samples[i]) ? "not a number" : "infinite");
  }
  return KRAIT_OK;
}

/* Compressed MPEG headers only estimate the length. */
static int ends_early(const kr_audio_in *in) {
  const int64_t promised = in->info.n_frames;
  const int estimated = (in->info.format & SF_FORMAT_TYPEMASK) == KR_SF_FORMAT_MPEG;
  return in->position < promised - (estimated ? promised / 50 + 2304 : 0);
}

int32_t kr_audio_read(kr_audio_in *in, float *samples, int64_t n_frames, int64_t *n_read) {
  char text[200];
  *n_read = sf_readf_float(in->file, samples, n_frames);
  if (in->os_errno) return kr_fail_os(KRAIT_ERR_FILE_READ, in->os_errno, "cannot read %s", in->name);
  KR_CHECK(*n_read >= 0, KRAIT_ERR_FILE_READ, "cannot read %s", in->name);
  KR_TRY(check_finite(in, samples, *n_read));
  in->position += *n_read;
  if (*n_read == n_frames) return KRAIT_OK;
  KR_CHECK(sf_error(in->file) == SF_ERR_NO_ERROR, KRAIT_ERR_FILE_READ,
           "%s is damaged after sample %lld of %lld (libsndfile: %s)", in->name, (long long)in->position,
           (long long)in->info.n_frames, kr_sndfile_text(in->file, text, sizeof text));
  KR_CHECK(!ends_early(in), KRAIT_ERR_FILE_READ, "%s is truncated after sample %lld of %lld", in->name,
           (long long)in->position, (long long)in->info.n_frames);
  return KRAIT_OK;
}

/* Some codecs (GSM 6.10, G.72x) cannot seek, not even there: opened again. */
static int32_t open_again(kr_audio_in *in) {
  SF_INFO info = {0};
  sf_close(in->file);
  open_through_us(in, &info);
  if (!in->file) info = (SF_INFO){0}, in->file = sf_open(in->path, SFM_READ, &info);
  const int is_same = in->file && info.channels == in->info.n_channels && info.samplerate == in->info.sample_rate_hz;
  KR_CHECK(is_same && !in->os_errno, KRAIT_ERR_FILE_READ, "cannot rewind %s", in->name);
  return KRAIT_OK;
}

int32_t kr_audio_rewind(kr_audio_in *in) {
  if (in->os_errno) return kr_fail_os(KRAIT_ERR_FILE_READ, in->os_errno, "cannot read %s", in->name);
  if (sf_seek(in->file, 0, SEEK_SET) != 0) KR_TRY(open_again(in));
  in->position = 0;
  return KRAIT_OK;
}

#ifdef KR_FUZZ
#include <sys/mman.h>
/* Fuzz target, the input as a file: opened, read to the end, rewound, read again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__lsan_default_suppressions(void);
/* libsndfile, on damaged Ogg headers. */
const char *__lsan_default_suppressions(void) {
  return "leak:vorbis_info_init\n";
}

static void read_some(kr_audio_in *in) {
  static float samples[KR_AUDIO_MAX_CHANNELS * 64];
  int64_t n = 64;
  for (int i = 0; i < 512 && n == 64; i++)
    if (kr_audio_read(in, samples, 64, &n) < 0) return;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[40];
  kr_audio_in *in = NULL;
  const int fd = memfd_create("audio", 0);
  if (fd < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write(fd, data, size) == (ssize_t)size && kr_audio_open(path, &in) == KRAIT_OK) {
    read_some(in);
    if (kr_audio_rewind(in) == KRAIT_OK) read_some(in);
  }
  kr_audio_close(&in);
  close(fd);
  return 0;
}
#endif
