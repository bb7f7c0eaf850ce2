/* event_file.c: a record is its length (8 bytes), a checksum of that, a message in protocol buffers' wire format, and a
 * checksum of it. The message is an Event: wall_time = 1 (double), step = 2, file_version = 3, summary = 5; a Summary
 * is a list of value = 1: tag = 1, simple_value = 2 (float). */
#define _POSIX_C_SOURCE 200809L
#include "event_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "status.h"

enum { MOST = 4096, DOUBLE = 1, BYTES = 2, FLOAT = 5, VARINT = 0 };

struct kr_event_file {
  FILE *file;
  char *path;
};

typedef struct message {
  unsigned char at[MOST];
  size_t n;
} message;

static uint32_t checksum(const unsigned char *bytes, size_t n) { /* CRC-32C, rotated and offset as the format
                                                                    requires */
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; i++) {
    crc ^= bytes[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void add_event_file(message *m, const void *bytes, size_t n) {
  if (m->n + n <= MOST) memcpy(m->at + m->n, bytes, n);
  m->n += n; /* beyond MOST: too long, and not written */
}
static void add_varint(message *m, uint64_t value) {
  for (; value >= 128; value >>= 7) add_event_file(m, &(unsigned char){(unsigned char)(value | 128)}, 1);
  add_event_file(m, &(unsigned char){(unsigned char)value}, 1);
}
static void add_key(message *m, int field, int kind) { add_varint(m, (uint64_t)(field << 3 | kind)); }
static void add_bytes(message *m, int field, const void *bytes, size_t n) {
  add_key(m, field, BYTES), add_varint(m, n), add_event_file(m, bytes, n);
}

static void begin_event_file(message *m) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  m->n = 0, add_key(m, 1, DOUBLE), add_event_file(m, &wall, sizeof wall);
}

static int32_t write_record(kr_event_file *f, const message *m) {
  const uint64_t length = m->n;
  const uint32_t sums[] = {checksum((const unsigned char *)&length, sizeof length),
                           checksum(m->at, m->n <= MOST ? m->n : MOST)};
  errno = 0;
  const int is_written = m->n <= MOST && fwrite(&length, sizeof length, 1, f->file) == 1 &&
                         fwrite(&sums[0], 4, 1, f->file) == 1 && fwrite(m->at, 1, m->n, f->file) == m->n &&
                         fwrite(&sums[1], 4, 1, f->file) == 1 && fflush(f->file) == 0;
  if (is_written) return KRAIT_OK;
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", f->path);
}

static int32_t open_file(const char *folder, kr_event_file *f) {
  const size_t bytes = strlen(folder) + 80;
  message m;
  f->path = kr_alloc_array(bytes, 1);
  KR_CHECK(f->path, KRAIT_ERR_NO_MEMORY, "no memory for a path");
  snprintf(f->path, bytes, "%s/events.out.tfevents.%010lld.krait.%d", folder, (long long)time(NULL), (int)getpid());
  KR_CHECK(mkdir(folder, 0777) == 0 || errno == EEXIST, KRAIT_ERR_FILE_WRITE, "%s: %s", folder, strerror(errno));
  f->file = fopen(f->path, "ab");
  KR_CHECK(f->file, KRAIT_ERR_FILE_WRITE, "%s: %s", f->path, strerror(errno));
  begin_event_file(&m), add_bytes(&m, 3, "brain.Event:2", 13);
  return write_record(f, &m);
}

int32_t kr_event_file_open(const char *folder, kr_event_file **file) {
  *file = kr_zalloc(sizeof **file);
  KR_CHECK(*file, KRAIT_ERR_NO_MEMORY, "no memory for a log");
  const int32_t status = open_file(folder, *file);
  if (status < 0) kr_event_file_close(file);
  return status;
}

int32_t kr_event_file_add(kr_event_file *f, int64_t step, const char *const *tags, const double *values, int n) {
  message m, summary = {.n = 0}, one;
  for (int i = 0; i < n; i++) {
    const float value = (float)values[i];
    if (!isfinite(value)) continue;
    one.n = 0, add_bytes(&one, 1, tags[i], strlen(tags[i])), add_key(&one, 2, FLOAT),
    add_event_file(&one, &value, sizeof value);
    add_bytes(&summary, 1, one.at, one.n);
  }
  begin_event_file(&m), add_key(&m, 2, VARINT), add_varint(&m, (uint64_t)step), add_bytes(&m, 5, summary.at, summary.n);
  return write_record(f, &m);
}

void kr_event_file_close(kr_event_file **file) {
  if (!*file) return;
  if ((*file)->file) fclose((*file)->file);
  kr_free((*file)->path), kr_free(*file);
  *file = NULL;
}
