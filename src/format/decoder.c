/* decoder.c: starting, reading, and stopping the child; what its messages mean. */
#define _GNU_SOURCE
#include "decoder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "clock.h"
#include "status.h"

enum { LIMIT_MS = 60000, STEP_MS = 10 };
static atomic_int limit_ms = LIMIT_MS;

void kr_decoder_use_limit(int ms) { atomic_store(&limit_ms, ms); }

/* ---- the child ---- */

/* Above the standard descriptors, which the child's replace one after the other. */
static int open_pipe(int ends[2]) {
  int low[2];
  if (pipe2(low, O_CLOEXEC) != 0) return -1;
  for (int i = 0; i < 2; i++) ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 3);
  const int os_errno = errno, failed = ends[0] < 0 || ends[1] < 0;
  close(low[0]), close(low[1]);
  for (int i = 0; i < 2 && failed; i++)
    if (ends[i] >= 0) close(ends[i]);
  errno = os_errno;
  return failed ? -1 : 0;
}

static int32_t fail_to_start(const kr_decoder *d, int error, const char *kind) {
  if (error != ENOENT)
    return kr_fail_os(error == ENOMEM ? KRAIT_ERR_NO_MEMORY : KRAIT_ERR_FILE_READ, error, "cannot start %s to read %s",
                      d->program, d->name);
  if (!kind)
    return kr_fail(KRAIT_ERR_FILE_FORMAT,
                   "%s: reading videos and images needs FFmpeg's program %s; install it (Debian: ffmpeg)", d->name,
                   d->program);
  return kr_fail(KRAIT_ERR_FILE_FORMAT,
                 "%s is %s, which needs FFmpeg's program %s; install it (Debian: ffmpeg), or convert the file "
                 "elsewhere: ffmpeg -i '%s' -vn sound.wav",
                 d->name, kind, d->program, d->name);
}

int32_t kr_decoder_begin(kr_decoder *d, const char *const *words, int from, const char *name, const char *kind) {
  int out[2], errors[2];
  d->program = words[0], d->name = name, d->pid = 0, d->out = d->errors = -1;
  d->first = d->n_bytes = d->n_text = 0, d->text[0] = 0;
  if (open_pipe(out) != 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "no pipe to read %s", name);
  if (open_pipe(errors) != 0) {
    const int os_errno = errno;
    close(out[0]), close(out[1]);
    return kr_fail_os(KRAIT_ERR_FILE_READ, os_errno, "no pipe to read %s", name);
  }
  const int again = fcntl(from, F_DUPFD_CLOEXEC, 3);
  const int error = again < 0 ? errno : kr_child_start(words, (const int[]){again, out[1], errors[1]}, 3, &d->pid);
  if (again >= 0) close(again);
  close(out[1]), close(errors[1]);
  d->out = out[0], d->errors = errors[0];
  if (!error) return KRAIT_OK;
  d->pid = 0;
  kr_decoder_abandon(d);
  return fail_to_start(d, error, kind);
}

static void close_end(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void kr_decoder_abandon(kr_decoder *d) {
  if (!d->program) return;
  if (d->pid > 0) {
    kill(-d->pid, SIGKILL);
    while (waitpid(d->pid, &d->status, 0) < 0 && errno == EINTR) {}
  }
  d->pid = 0;
  close_end(&d->out), close_end(&d->errors);
}

static int32_t fail_to_answer(kr_decoder *d) {
  kr_decoder_abandon(d);
  return kr_fail(KRAIT_ERR_FILE_READ,
                 "%s cannot be read: %s gave nothing for %g s and was stopped; the file may be damaged", d->name,
                 d->program, (double)atomic_load(&limit_ms) / 1000);
}

/* ---- what it says ---- */
static void take_decoder_text(kr_decoder *d) {
  char piece[512];
  const ssize_t n = read(d->errors, piece, sizeof piece);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) {
    close_end(&d->errors);
    return;
  }
  for (ssize_t i = 0; i < n && d->n_text + 1 < sizeof d->text; i++) d->text[d->n_text++] = piece[i] ? piece[i] : ' ';
  d->text[d->n_text] = 0;
}

/* Waits until there is more output, or its end. */
static int32_t fill(kr_decoder *d) {
  while (d->out >= 0) {
    struct pollfd wait[2] = {{.fd = d->out, .events = POLLIN}, {.fd = d->errors, .events = POLLIN}};
    const int n_ready = poll(wait, 2, atomic_load(&limit_ms)); /* a descriptor of -1 is skipped */
    if (n_ready < 0 && errno == EINTR) continue;
    if (n_ready < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", d->name);
    if (n_ready == 0) return fail_to_answer(d);
    if (wait[1].revents) take_decoder_text(d);
    if (!wait[0].revents) continue;
    const ssize_t n = read(d->out, d->bytes, sizeof d->bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", d->name);
    if (n == 0) close_end(&d->out);
    d->first = 0, d->n_bytes = (size_t)n;
    if (n > 0) break;
  }
  return KRAIT_OK;
}

int32_t kr_decoder_read(kr_decoder *d, void *to, size_t n, size_t *n_read) {
  for (*n_read = 0; *n_read < n;) {
    if (d->n_bytes == 0) KR_TRY(fill(d));
    if (d->n_bytes == 0) break;
    const size_t left = n - *n_read, part = left < d->n_bytes ? left : d->n_bytes;
    memcpy((char *)to + *n_read, d->bytes + d->first, part);
    *n_read += part, d->first += part, d->n_bytes -= part;
  }
  return KRAIT_OK;
}

int32_t kr_decoder_end(kr_decoder *d) {
  const int64_t deadline_ns = kr_clock_ns() + atomic_load(&limit_ms) * (int64_t)1000000;
  close_end(&d->out);
  while (kr_clock_ns() < deadline_ns) {
    struct pollfd wait = {.fd = d->errors, .events = POLLIN};
    const int n_ready = poll(&wait, 1, STEP_MS);
    if (n_ready > 0) take_decoder_text(d);
    const pid_t ended = d->errors < 0 || n_ready == 0 ? waitpid(d->pid, &d->status, WNOHANG) : 0;
    if (ended == 0 || (ended < 0 && errno == EINTR)) continue;
    d->pid = 0;
    close_end(&d->errors);
    if (ended < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "%s: %s cannot be waited for", d->name, d->program);
    KR_CHECK(!WIFSIGNALED(d->status), KRAIT_ERR_FILE_READ,
             "%s cannot be read: %s ended by signal %d (%s); the file may be damaged", d->name, d->program,
             WTERMSIG(d->status), strsignal(WTERMSIG(d->status)));
    return KRAIT_OK;
  }
  return fail_to_answer(d);
}

/* Frequent messages in plain words; the second is what is wrong with the file. */
static const char *meaning_of(const char *text) {
  static const struct {
    const char *text, *meaning;
  } known[] = {
      {"moov atom not found", "its index (moov) is missing, so it is cut short or was never finished"},
      {"File ended prematurely", "it is cut short"},
      {"Invalid buffer size, packet size", "it is cut short"},
      {"partial file", "it is cut short"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strstr(text, known[i].text)) return known[i].meaning;
  return NULL;
}

int kr_decoder_says_cut(const kr_decoder *d) { return meaning_of(d->text) != NULL; }

/* The first line, without "[mov,mp4 @ 0x55...] " before it. */
static void first_line(const char *text, char *line, size_t bytes) {
  const char *end = *text == '[' ? strstr(text, "] ") : NULL;
  snprintf(line, bytes, "%.*s", (int)strcspn(end ? end + 2 : text, "\n"), end ? end + 2 : text);
}

int32_t kr_decoder_fail(const kr_decoder *d, const char *what) {
  char line[200];
  if (strstr(d->text, "Cannot allocate memory")) return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to read %s", d->name);
  if (strstr(d->text, "matches no streams") || strstr(d->text, "does not contain any stream"))
    return kr_fail(KRAIT_ERR_FILE_READ, "%s contains no %s; if it should, copy or download the whole file again",
                   d->name, what);
  const char *meaning = meaning_of(d->text);
  if (meaning)
    return kr_fail(KRAIT_ERR_FILE_READ, "%s has no readable %s: %s; copy or download the whole file again", d->name,
                   what, meaning);
  first_line(d->text, line, sizeof line);
  return kr_fail(KRAIT_ERR_FILE_READ, "%s has no readable %s; FFmpeg: %s", d->name, what,
                 *line ? line : "it gave nothing, and no reason");
}
