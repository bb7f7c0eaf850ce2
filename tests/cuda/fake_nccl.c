/* fake_nccl.c: a collective library for tests: ranks are processes of one machine that really gather, sum and send,
 * through a shared file; a sum begins with another rank for each element, as those of a ring do for each part. A call
 * returns when all ranks have arrived (a message: when the one before it was taken), or when another thread aborts the
 * communicator. KR_FAKE_NCCL ("version=2300,off=3"): the version; a rank whose gradients are a thousandth too large.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID = 4, FLOAT32 = 7, SUM = 0, MOST_RANKS = 8, MOST_FLOATS = 1 << 20 };
enum { MOST_SENT = 1 << 18 };

typedef struct id {
  char bytes[128]; /* the file's path */
} id;

typedef struct mailbox {
  atomic_int n_sent, n_taken;
  float message[MOST_SENT];
} mailbox;

typedef struct shared {
  atomic_int arrived[2]; /* before and after the sums */
  float given[MOST_RANKS][MOST_FLOATS];
  mailbox boxes[MOST_RANKS][MOST_RANKS]; /* from, to */
} shared;

typedef struct communicator {
  shared *file;
  int n, rank, n_sums;
  atomic_int aborted;
} communicator;

EXPORT int ncclGetVersion(int *version);
EXPORT int ncclGetUniqueId(id *made);
EXPORT int ncclCommInitRank(communicator **c, int n, id from, int rank);
EXPORT int ncclCommDestroy(communicator *c);
EXPORT int ncclCommAbort(communicator *c);
EXPORT int ncclCommGetAsyncError(communicator *c, int *result);
EXPORT int ncclAllGather(const void *from, void *to, size_t n, int type, communicator *c, void *stream);
EXPORT int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation, communicator *c, void *stream);
EXPORT int ncclCommCount(const communicator *c, int *n);
EXPORT int ncclCommUserRank(const communicator *c, int *rank);
EXPORT int ncclGroupStart(void);
EXPORT int ncclGroupEnd(void);
EXPORT int ncclSend(const void *from, size_t n, int type, int to, communicator *c, void *stream);
EXPORT int ncclRecv(void *to, size_t n, int type, int from, communicator *c, void *stream);
EXPORT const char *ncclGetErrorString(int result);

static long fake_nccl_setting(const char *key, long otherwise) {
  const char *text = getenv("KR_FAKE_NCCL"), *at = text ? strstr(text, key) : NULL;
  return at ? strtol(at + strlen(key), NULL, 10) : otherwise;
}

int ncclGetVersion(int *version) { return *version = (int)fake_nccl_setting("version=", 22703), SUCCESS; }
const char *ncclGetErrorString(int result) { return result == SYSTEM_ERROR ? "as the test asked" : "unknown"; }

int ncclGetUniqueId(id *made) {
  snprintf(made->bytes, sizeof made->bytes, "%s/fake_nccl.%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
           (int)getpid());
  const int fd = open(made->bytes, O_RDWR | O_CREAT | O_EXCL, 0600);
  const int failed = fd < 0 || ftruncate(fd, (off_t)sizeof(shared)) != 0;
  if (fd >= 0) close(fd);
  return failed ? SYSTEM_ERROR : SUCCESS;
}

static int meet(communicator *c, int at, int n_all) {
  atomic_fetch_add(&c->file->arrived[at], 1);
  while (atomic_load(&c->file->arrived[at]) < n_all) {
    if (atomic_load(&c->aborted)) return SYSTEM_ERROR;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
  return SUCCESS;
}

int ncclCommInitRank(communicator **made, int n, id from, int rank) {
  communicator *c = calloc(1, sizeof *c);
  const int fd = open(from.bytes, O_RDWR);
  if (!c || fd < 0 || n > MOST_RANKS) return SYSTEM_ERROR;
  c->file = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (c->file == MAP_FAILED) return SYSTEM_ERROR;
  c->n = n, c->rank = rank, *made = c;
  const int result = meet(c, 0, n);
  atomic_fetch_add(&c->file->arrived[1], 1);
  c->n_sums = 1;
  if (rank == 0) unlink(from.bytes);
  return result;
}

/* The loaded driver's: device memory may be accessed, until 0. */
__attribute__((weak)) void fake_cuda_touch(int on);
static void touch(int on) {
  if (fake_cuda_touch) fake_cuda_touch(on);
}

static void sum_up(communicator *c, size_t n, float *sum) {
  for (size_t i = 0; i < n; i++) {
    float s = c->file->given[i % (size_t)c->n][i];
    for (int k = 1; k < c->n; k++) s += c->file->given[(i + (size_t)k) % (size_t)c->n][i];
    sum[i] = s;
  }
}

/* All ranks' arrays are in the file while take runs. */
static void exchange(communicator *c, const float *from, size_t n, float *to,
                     void (*take)(communicator *c, size_t n, float *to)) {
  touch(1);
  memcpy(c->file->given[c->rank], from, n * sizeof *from);
  touch(0);
  if (n > 1 && fake_nccl_setting("off=", -1) == c->rank)
    for (size_t i = 0; i < n; i++) c->file->given[c->rank][i] *= 1.001f;
  const int all = ++c->n_sums * c->n;
  if (meet(c, 0, all)) return; /* like the real one: queued work ends without an error */
  touch(1);
  take(c, n, to);
  touch(0);
  (void)meet(c, 1, all);
}

static void gather(communicator *c, size_t n, float *to) {
  for (int k = 0; k < c->n; k++) memcpy(to + (size_t)k * n, c->file->given[k], n * sizeof *to);
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int operation, communicator *c, void *stream) {
  (void)stream;
  if (type != FLOAT32 || operation != SUM || n > MOST_FLOATS) return INVALID;
  return exchange(c, from, n, to, sum_up), SUCCESS;
}
int ncclAllGather(const void *from, void *to, size_t n, int type, communicator *c, void *stream) {
  (void)stream;
  if (type != FLOAT32 || n > MOST_FLOATS) return INVALID;
  return exchange(c, from, n, to, gather), SUCCESS;
}

/* ---- messages ---- */

int ncclCommCount(const communicator *c, int *n) { return *n = c->n, SUCCESS; }
int ncclCommUserRank(const communicator *c, int *rank) { return *rank = c->rank, SUCCESS; }
int ncclGroupStart(void) { return SUCCESS; }
int ncclGroupEnd(void) { return SUCCESS; }

/* Until so many were sent and taken; whether it has to give up. */
static int await_box(communicator *c, mailbox *box, int is_full) {
  while (atomic_load(&box->n_sent) - atomic_load(&box->n_taken) != is_full) {
    if (atomic_load(&c->aborted)) return 1;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
  return 0;
}

int ncclSend(const void *from, size_t n, int type, int to, communicator *c, void *stream) {
  (void)stream;
  if (type != FLOAT32 || n > MOST_SENT || to < 0 || to >= c->n || to == c->rank) return INVALID;
  mailbox *box = &c->file->boxes[c->rank][to];
  if (await_box(c, box, 0)) return SUCCESS;
  touch(1);
  memcpy(box->message, from, n * sizeof(float));
  touch(0);
  if (fake_nccl_setting("off=", -1) == c->rank) box->message[n / 2] *= 1.001f;
  return atomic_fetch_add(&box->n_sent, 1), SUCCESS;
}

int ncclRecv(void *to, size_t n, int type, int from, communicator *c, void *stream) {
  (void)stream;
  if (type != FLOAT32 || n > MOST_SENT || from < 0 || from >= c->n || from == c->rank) return INVALID;
  mailbox *box = &c->file->boxes[from][c->rank];
  if (await_box(c, box, 1)) return SUCCESS;
  touch(1);
  memcpy(to, box->message, n * sizeof(float));
  touch(0);
  return atomic_fetch_add(&box->n_taken, 1), SUCCESS;
}

/* Another thread may be in it: not freed. */
int ncclCommAbort(communicator *c) {
  return atomic_store(&c->aborted, 1), SUCCESS;
}
int ncclCommDestroy(communicator *c) { return munmap(c->file, sizeof(shared)), free(c), SUCCESS; }
int ncclCommGetAsyncError(communicator *c, int *result) {
  return *result = atomic_load(&c->aborted) ? SYSTEM_ERROR : SUCCESS, SUCCESS;
}
