/* movie.c: ffmpeg decodes the first audio track, which is copied as AU with float samples. It gets the file as its
 * standard input, the demuxer by name and no protocol but files, so neither the file's name nor its content can make it
 * open anything else. */
#define _GNU_SOURCE
#include "movie.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "decoder.h"
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

/* ---- the sound ---- */
static int32_t write_bytes(int to, const unsigned char *bytes, size_t n, const char *name) {
  for (size_t done = 0; done < n;) {
    const ssize_t step = write(to, bytes + done, n - done);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write the temporary copy of %s", name);
    done += (size_t)step;
  }
  return KRAIT_OK;
}

static int32_t copy_sound(kr_decoder *d, int to) {
  unsigned char block[1 << 14];
  size_t n = sizeof block;
  int64_t n_all = 0;
  while (n == sizeof block) {
    KR_TRY(kr_decoder_read(d, block, sizeof block, &n));
    KR_TRY(write_bytes(to, block, n, d->name));
    n_all += (int64_t)n;
  }
  KR_TRY(kr_decoder_end(d));
  if (d->n_text || d->status || n_all == 0) return kr_decoder_fail(d, "sound");
  return lseek(to, 0, SEEK_SET) == 0
             ? KRAIT_OK
             : kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write the temporary copy of %s", d->name);
}

int32_t kr_movie_decode(int from, int to, const char *name) {
  const int row = find_magic(from);
  KR_CHECK(row >= 0, KRAIT_ERR_FILE_FORMAT, "%s is not a readable audio file", name);
  const char *const words[] = {"ffmpeg", "-nostdin", "-v", "error", "-protocol_whitelist", "file", "-f",
                               magics[row].demuxer, "-i", "file:/proc/self/fd/0", "-map", "0:a:0", "-c:a", "pcm_f32be",
                               "-f", "au", "pipe:1", NULL};
  kr_decoder *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  int32_t status = kr_decoder_begin(d, words, from, name, magics[row].name);
  if (status >= 0) status = copy_sound(d, to);
  kr_decoder_abandon(d);
  kr_free(d);
  return status;
}
