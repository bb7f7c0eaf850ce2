/* film_times.c: ffprobe lists the packets' times; frames with times leave in Matroska's elements (RFC 9559): an id, a
 * size, then data or further elements, all big-endian. */
#include "film_times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "decoder.h"
#include "status.h"

/* ---- times ---- */

static int32_t append_time(kr_film_times *t, int64_t us) {
  if (t->n == t->room) {
    const int64_t room = t->room ? 2 * t->room : 1024;
    int64_t *grown = kr_realloc(t->us, (size_t)t->room * sizeof *grown, (size_t)room * sizeof *grown);
    KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for the times of %lld frames", (long long)room);
    t->us = grown, t->room = room;
  }
  t->us[t->n++] = us;
  return KRAIT_OK;
}

/* "1.234567,K__": time and flags; D: the frame is not shown. */
static int32_t take_time_line(kr_film_times *t, const char *line) {
  double s;
  char flags[16] = "";
  if (sscanf(line, "%lf,%15s", &s, flags) < 1 || strchr(flags, 'D') || !(s > -1e9 && s < 1e9)) return KRAIT_OK;
  return append_time(t, (int64_t)(s * 1e6 + (s < 0 ? -0.5 : 0.5)));
}

static int32_t take_lines(kr_decoder *d, kr_film_times *t) {
  char line[64], byte;
  size_t n = 0, n_read = 1;
  while (n_read) {
    KR_TRY(kr_decoder_read(d, &byte, 1, &n_read));
    if (n_read && byte != '\n') {
      if (n + 1 < sizeof line) line[n++] = byte;
      continue;
    }
    line[n] = 0, n = 0;
    KR_TRY(take_time_line(t, line));
  }
  return kr_decoder_end(d);
}

static int compare_times(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Packets come in the order of decoding. */
static void order_times(kr_film_times *t) {
  if (!t->n) return;
  qsort(t->us, (size_t)t->n, sizeof *t->us, compare_times);
  const int64_t first = t->us[0];
  for (int64_t i = 0; i < t->n; i++) {
    t->us[i] -= first;
    if (i && t->us[i] < t->us[i - 1] + KR_FILM_LEAST_STEP_US) t->us[i] = t->us[i - 1] + KR_FILM_LEAST_STEP_US;
  }
}

int32_t kr_film_times_read(int fd, const char *name, const char *demuxer, kr_film_times *to) {
  const char *const words[] = {"ffprobe", "-v", "error", "-protocol_whitelist", "file", "-f", demuxer,
                               "-select_streams", "v:0", "-show_entries", "packet=pts_time,flags", "-of", "csv=p=0",
                               "file:/proc/self/fd/0", NULL};
  *to = (kr_film_times){0};
  kr_decoder *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  int32_t status = kr_decoder_begin(d, words, fd, name, NULL);
  if (status >= 0) status = take_lines(d, to);
  kr_decoder_abandon(d);
  kr_free(d);
  if (status >= 0) order_times(to);
  else kr_film_times_free(to);
  return status;
}

int kr_film_times_are_uneven(const kr_film_times *times, int64_t rate, int64_t per) {
  const double rounding_us = 1100, period_us = (double)per / (double)rate * 1e6;
  for (int64_t i = 0; i < times->n; i++) {
    const double apart = (double)times->us[i] - (double)i * period_us;
    if (apart > rounding_us || apart < -rounding_us) return 1;
  }
  return 0;
}

int64_t kr_film_time_us(const kr_film_times *times, int64_t i, int64_t rate, int64_t per) {
  const int64_t last = times->n - 1;
  if (i <= last) return times->us[i];
  const double more = (double)(i - (last < 0 ? 0 : last)) * (double)per / (double)rate * 1e6;
  return (last < 0 ? 0 : times->us[last]) + (int64_t)(more + 0.5);
}

void kr_film_times_free(kr_film_times *times) {
  kr_free(times->us);
  *times = (kr_film_times){0};
}

/* ---- Matroska ---- */

typedef struct matroska {
  uint8_t *to;
  size_t n;
} matroska;

static void put_whole(matroska *m, uint64_t value, int n_bytes) {
  for (int i = n_bytes - 1; i >= 0; i--) m->to[m->n++] = (uint8_t)(value >> (8 * i));
}

/* Ids bring their length with them. */
static void put_id(matroska *m, uint32_t id) {
  put_whole(m, id, id > 0xffffff ? 4 : id > 0xffff ? 3 : id > 0xff ? 2 : 1);
}

enum { SIZE_BYTES = 8 };
/* In eight bytes, the first of which says so. */
static void put_size(matroska *m, uint64_t size) { put_whole(m, size | (uint64_t)1 << 56, SIZE_BYTES); }

static void put_number(matroska *m, uint32_t id, uint64_t value) {
  put_id(m, id), put_size(m, 8), put_whole(m, value, 8);
}
static void put_bytes(matroska *m, uint32_t id, const char *bytes, size_t n) {
  put_id(m, id), put_size(m, n);
  memcpy(m->to + m->n, bytes, n);
  m->n += n;
}

/* An element of further ones: its size is put when they are there. */
static size_t open_element(matroska *m, uint32_t id) {
  put_id(m, id);
  return m->n += SIZE_BYTES;
}
static void close_element(matroska *m, size_t first) {
  matroska size = {m->to, first - SIZE_BYTES};
  put_size(&size, m->n - first);
}

size_t kr_raw_film_head(uint8_t to[KR_RAW_FILM_MOST_HEAD], int64_t width, int64_t height, const char fourcc[4]) {
  enum { NS_OF_US = 1000 };
  static const char codec[] = "V_UNCOMPRESSED", type[] = "matroska";
  matroska m = {to, 0};
  const size_t ebml = open_element(&m, 0x1a45dfa3);
  put_bytes(&m, 0x4282, type, sizeof type - 1);
  close_element(&m, ebml);
  put_id(&m, 0x18538067), put_size(&m, ((uint64_t)1 << 56) - 1); /* a segment, of unknown size */
  const size_t info = open_element(&m, 0x1549a966);
  put_number(&m, 0x2ad7b1, NS_OF_US);
  close_element(&m, info);
  const size_t tracks = open_element(&m, 0x1654ae6b), track = open_element(&m, 0xae);
  put_number(&m, 0xd7, 1), put_number(&m, 0x73c5, 1), put_number(&m, 0x83, 1); /* number, id, a film */
  put_bytes(&m, 0x86, codec, sizeof codec - 1);
  const size_t video = open_element(&m, 0xe0);
  put_number(&m, 0xb0, (uint64_t)width), put_number(&m, 0xba, (uint64_t)height), put_bytes(&m, 0x2eb524, fourcc, 4);
  close_element(&m, video), close_element(&m, track), close_element(&m, tracks);
  return m.n;
}

/* A cluster of one block: track 1, 0 after the cluster's time, a key frame. */
size_t kr_raw_film_frame(uint8_t to[KR_RAW_FILM_MOST_HEAD], int64_t time_us, size_t frame_bytes) {
  enum { NUMBER_BYTES = 1 + SIZE_BYTES + 8, BLOCK_HEAD = 4 };
  matroska m = {to, 0};
  put_id(&m, 0x1f43b675), put_size(&m, NUMBER_BYTES + 1 + SIZE_BYTES + BLOCK_HEAD + frame_bytes);
  put_number(&m, 0xe7, (uint64_t)time_us);
  put_id(&m, 0xa3), put_size(&m, BLOCK_HEAD + frame_bytes);
  put_whole(&m, 0x81000080, BLOCK_HEAD);
  return m.n;
}
