/* restore_parts.c: finished batches in a file beside the result, so that work that was ended goes on at a batch. A
 * record: two counts, the frames' bytes, the blended end's floats, a checksum; what follows the last whole record is
 * not used. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "restorer.h"
#include "status.h"

enum { HEAD_BYTES = 64 };

struct kr_parts {
  char *path;
  int fd;
  int64_t frame_bytes, tail_floats; /* of one frame */
  int64_t at;                       /* end of the last whole record */
  uint8_t *memory;
  size_t capacity;
};

typedef struct record {
  int64_t n_frames, n_tail;
  uint64_t sum; /* of the data */
} record;

static uint64_t sum_of(const uint8_t *bytes, size_t n) { /* FNV-1a, eight bytes at a time */
  uint64_t sum = 0xcbf29ce484222325u, word;
  for (size_t i = 0; i < n; i += 8) {
    word = 0;
    memcpy(&word, bytes + i, n - i < 8 ? n - i : 8);
    sum = (sum ^ word) * 0x100000001b3u;
  }
  return sum;
}

static int read_whole(int fd, void *to, size_t n, int64_t at) {
  for (size_t done = 0; done < n;) {
    const ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(at + (int64_t)done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    done += (size_t)got;
  }
  return 1;
}

static int32_t write_whole(const kr_parts *p, const void *from, size_t n, int64_t at) {
  for (size_t done = 0; done < n;) {
    const ssize_t put = pwrite(p->fd, (const char *)from + done, n - done, (off_t)(at + (int64_t)done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", p->path);
    done += (size_t)put;
  }
  return KRAIT_OK;
}

int32_t kr_parts_open(const char *out_path, const char *key, const kr_frame_size *size, int samples,
                      kr_parts **out) {
  char head[HEAD_BYTES] = "", found[HEAD_BYTES] = "", text[4200];
  kr_parts *p = *out = kr_zalloc(sizeof *p);
  KR_CHECK(p, KRAIT_ERR_NO_MEMORY, "no memory for finished batches");
  snprintf(text, sizeof text, "%s.krait-batches", out_path);
  snprintf(head, sizeof head, "krait-batches 2 %016llx",
           (unsigned long long)sum_of((const uint8_t *)key, strlen(key)));
  p->path = kr_strdup(text);
  p->frame_bytes = 3 * size->out_h * size->out_w * samples, p->tail_floats = 3 * size->H * size->W;
  p->fd = p->path ? open(text, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
  if (p->fd < 0) {
    const int32_t status = kr_fail_os(KRAIT_ERR_FILE_OPEN, errno, "cannot open %s for finished batches", text);
    kr_parts_close(out, 0);
    return status;
  }
  p->at = HEAD_BYTES;
  if (read_whole(p->fd, found, sizeof found, 0) && memcmp(found, head, sizeof head) == 0) return KRAIT_OK;
  int32_t status = ftruncate(p->fd, 0) == 0 ? write_whole(p, head, sizeof head, 0)
                                            : kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot empty %s", p->path);
  if (status < 0) kr_parts_close(out, 1);
  return status;
}

static int need_memory(kr_parts *p, size_t bytes) {
  if (bytes > p->capacity) {
    kr_free(p->memory);
    p->memory = kr_alloc(bytes), p->capacity = p->memory ? bytes : 0;
  }
  return p->memory != NULL;
}

int32_t kr_parts_next(kr_parts *p, kr_batch_part *part, int *found) {
  record head;
  const int64_t most = 1 << 20;
  *found = 0;
  if (!read_whole(p->fd, &head, sizeof head, p->at)) return KRAIT_OK;
  if (head.n_frames < 1 || head.n_frames > most || head.n_tail < 0 || head.n_tail > most) return KRAIT_OK;
  const size_t frames = (size_t)(head.n_frames * p->frame_bytes), whole_frames = (frames + 7) / 8 * 8,
               bytes = whole_frames + (size_t)(head.n_tail * p->tail_floats) * sizeof(float);
  if (p->at + (int64_t)(sizeof head + bytes) > (int64_t)lseek(p->fd, 0, SEEK_END)) return KRAIT_OK;
  KR_CHECK(need_memory(p, bytes), KRAIT_ERR_NO_MEMORY, "no memory to read %s", p->path);
  if (!read_whole(p->fd, p->memory, bytes, p->at + (int64_t)sizeof head)) return KRAIT_OK;
  if (sum_of(p->memory, bytes) != head.sum) return KRAIT_OK;
  *part = (kr_batch_part){.n_frames = head.n_frames, .n_tail = head.n_tail, .rgb = p->memory,
                          .tail = (float *)(void *)(p->memory + whole_frames)};
  p->at += (int64_t)(sizeof head + bytes);
  *found = 1;
  return KRAIT_OK;
}

int32_t kr_parts_add(kr_parts *p, const kr_batch_part *part) {
  const size_t frames = (size_t)(part->n_frames * p->frame_bytes), whole_frames = (frames + 7) / 8 * 8,
               tail = (size_t)(part->n_tail * p->tail_floats) * sizeof(float);
  record head = {.n_frames = part->n_frames, .n_tail = part->n_tail};
  KR_CHECK(need_memory(p, whole_frames + tail), KRAIT_ERR_NO_MEMORY, "no memory for finished batches");
  memset(p->memory + frames, 0, whole_frames - frames);
  memcpy(p->memory, part->rgb, frames);
  memcpy(p->memory + whole_frames, part->tail, tail);
  head.sum = sum_of(p->memory, whole_frames + tail);
  KR_TRY(write_whole(p, p->memory, whole_frames + tail, p->at + (int64_t)sizeof head));
  KR_TRY(write_whole(p, &head, sizeof head, p->at));
  p->at += (int64_t)(sizeof head + whole_frames + tail);
  KR_CHECK(ftruncate(p->fd, (off_t)p->at) == 0 && fsync(p->fd) == 0, KRAIT_ERR_FILE_WRITE, "cannot write %s", p->path);
  return KRAIT_OK;
}

void kr_parts_close(kr_parts **handle, int is_complete) {
  kr_parts *p = handle ? *handle : NULL;
  if (!p) return;
  *handle = NULL;
  if (is_complete && p->path) unlink(p->path);
  if (p->fd >= 0) close(p->fd);
  kr_free(p->path);
  kr_free(p->memory);
  kr_free(p);
}
