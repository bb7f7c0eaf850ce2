/* ranks.c: see ranks.h. Connections form a star around rank 0. A thread of each process watches for closed connections;
 * when one is closed it aborts NCCL, in which the process would otherwise wait for ever. */
#define _GNU_SOURCE
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "clock.h"
#include "env.h"
#include "nccl.h"
#include "optimiser.h"
#include "status.h"

enum { MAGIC = 0x4b525231, MOST_VALUES = 32, COME_WITHIN_S = 120, ABORT_AFTER_MS = 2000 };
enum { HELLO, ID, VALUES, FAREWELL };

typedef struct hello {
  int32_t rank, n_ranks, process;
  char host[64];
} hello;

typedef struct head {
  uint32_t magic, kind;
  uint64_t bytes;
} head;

typedef struct peer {
  int fd; /* -1: none */
  hello who;
} peer;

struct kr_ranks {
  int rank, n;
  peer *peers;          /* by rank; a rank above 0 knows rank 0 alone */
  const krait_ctx *ctx;
  const kr_nccl *nccl;
  void *comm;
  float *gathered;      /* on the device: the arrays of all ranks that are summed */
  int64_t capacity;     /* floats of it */
  pthread_t watcher;
  int is_watched, stop[2];
  pthread_mutex_t lock;  /* of comm */
  atomic_int lost, ending; /* lost: a rank, -1 if none */
  char farewell[512];      /* the lost rank's last message; empty: it disappeared */
};

int kr_ranks_rank(const kr_ranks *r) { return r ? r->rank : 0; }
int kr_ranks_n(const kr_ranks *r) { return r ? r->n : 1; }
static int first_peer(const kr_ranks *r) { return r->rank == 0; }
static int last_peer(const kr_ranks *r) { return r->rank == 0 ? r->n : 1; }

/* ---- messages ---- */

static int32_t move(int fd, void *data, size_t bytes, int out) {
  char *at = data;
  while (bytes) {
    const ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    KR_CHECK(n > 0, KRAIT_ERR_DEVICE_LOST, "a connection was closed");
    at += n, bytes -= (size_t)n;
  }
  return KRAIT_OK;
}

static int32_t tell_ranks(int fd, uint32_t kind, void *data, size_t bytes) {
  head h = {MAGIC, kind, bytes};
  KR_TRY(move(fd, &h, sizeof h, 1));
  return move(fd, data, bytes, 1);
}

/* Receives a message of this kind and length; if a farewell comes instead, it is stored. */
static int32_t hear_ranks(kr_ranks *r, int fd, uint32_t kind, void *data, size_t bytes) {
  head h;
  KR_TRY(move(fd, &h, sizeof h, 0));
  KR_CHECK(h.magic == MAGIC, KRAIT_ERR_DEVICE_LOST, "the peer is not a krait rank");
  if (h.kind == FAREWELL && h.bytes < sizeof r->farewell) {
    KR_TRY(move(fd, r->farewell, h.bytes, 0));
    r->farewell[h.bytes] = 0;
    return kr_fail(KRAIT_ERR_CANCELLED, "another rank stopped");
  }
  KR_CHECK(h.kind == kind && h.bytes == bytes, KRAIT_ERR_DEVICE_LOST,
           "a message of kind %u and %llu bytes instead of kind %u and %zu: are all ranks of the same build?", h.kind,
           (unsigned long long)h.bytes, kind, bytes);
  return move(fd, data, bytes, 0);
}

static int32_t lose(kr_ranks *r, int k) {
  int none = -1;
  (void)atomic_compare_exchange_strong(&r->lost, &none, k);
  return kr_fail(KRAIT_ERR_DEVICE_LOST, "lost rank %d", k);
}

/* ---- meeting ---- */

static void set_up(int fd) {
  const int yes = 1, idle_s = 10, interval_s = 5, n_probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes); /* a machine that loses power does not close its
                                                                 connections */
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_probes, sizeof n_probes);
}

static hello introduce(const kr_ranks *r) {
  hello me = {.rank = r->rank, .n_ranks = r->n, .process = (int32_t)getpid()};
  if (gethostname(me.host, sizeof me.host - 1) != 0) snprintf(me.host, sizeof me.host, "?");
  return me;
}

static int32_t find_address(const char *meet, int is_server, struct addrinfo **found) {
  char host[300];
  snprintf(host, sizeof host, "%s", meet);
  char *colon = strrchr(host, ':');
  KR_CHECK(colon, KRAIT_ERR_ARGUMENT, "'%s' is not HOST:PORT", meet);
  *colon = 0;
  const int is_local = strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = is_server && !is_local ? AI_PASSIVE : 0};
  const int result =
      getaddrinfo(is_server && !is_local ? NULL : host, colon + 1, &hints,
                  found); /* this host's name may resolve to another address than the one that others use */
  KR_CHECK(result == 0, KRAIT_ERR_ARGUMENT, "MASTER_ADDR %s: %s", host, gai_strerror(result));
  return KRAIT_OK;
}

static int32_t listen_at(const char *meet, int *listener) {
  struct addrinfo *found = NULL;
  const int yes = 1;
  KR_TRY(find_address(meet, 1, &found));
  *listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = *listener < 0;
  if (!failed) setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  failed = failed || bind(*listener, found->ai_addr, found->ai_addrlen) != 0 || listen(*listener, 128) != 0;
  const int why = errno;
  freeaddrinfo(found);
  return failed
             ? kr_fail_os(KRAIT_ERR_ARGUMENT, why, "rank 0 cannot listen at %s (another MASTER_PORT may be free)", meet)
             : KRAIT_OK;
}

/* Connections from anything that is not a rank of this run are closed. */
static void greet(kr_ranks *r, int fd) {
  hello who;
  const struct timeval patience = {.tv_sec = 5}, none = {0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const int known = hear_ranks(r, fd, HELLO, &who, sizeof who) >= 0 && who.n_ranks == r->n && who.rank > 0 &&
                    who.rank < r->n && r->peers[who.rank].fd < 0;
  if (!known) {
    close(fd);
    return;
  }
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  set_up(fd);
  who.host[sizeof who.host - 1] = 0;
  r->peers[who.rank] = (peer){fd, who};
}

static int32_t await_all(kr_ranks *r, const char *meet) {
  int listener = -1, n_here = 1;
  const int64_t until = kr_clock_ns() + COME_WITHIN_S * 1000000000ll;
  int32_t status = listen_at(meet, &listener);
  while (status >= 0 && n_here < r->n) {
    struct pollfd wait = {.fd = listener, .events = POLLIN};
    const int64_t left_ms = (until - kr_clock_ns()) / 1000000;
    if (left_ms > 0 && poll(&wait, 1, (int)left_ms) > 0) {
      const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
      if (fd >= 0) greet(r, fd);
    } else if (left_ms <= 0)
      status = kr_fail(KRAIT_ERR_CANCELLED, "only %d of %d processes connected to %s within %d seconds", n_here, r->n,
                       meet, COME_WITHIN_S);
    n_here = 1;
    for (int k = 1; k < r->n; k++) n_here += r->peers[k].fd >= 0;
  }
  if (listener >= 0) close(listener);
  hello me = introduce(r);
  for (int k = 1; k < r->n && status >= 0; k++)
    if (tell_ranks(r->peers[k].fd, HELLO, &me, sizeof me) < 0) status = lose(r, k);
  return status;
}

static int32_t go_to(kr_ranks *r, const char *meet) {
  const int64_t until = kr_clock_ns() + COME_WITHIN_S * 1000000000ll;
  struct addrinfo *found = NULL;
  int fd = -1;
  KR_TRY(find_address(meet, 0, &found));
  while (fd < 0 && kr_clock_ns() < until) {
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
      fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) close(fd), fd = -1;
    }
    if (fd < 0) nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* it is not listening yet */
  }
  freeaddrinfo(found);
  KR_CHECK(fd >= 0, KRAIT_ERR_CANCELLED, "rank %d could not connect to %s within %d seconds", r->rank, meet,
           COME_WITHIN_S);
  set_up(fd);
  r->peers[0].fd = fd;
  hello me = introduce(r);
  if (tell_ranks(fd, HELLO, &me, sizeof me) < 0 || hear_ranks(r, fd, HELLO, &r->peers[0].who, sizeof me) < 0)
    return lose(r, 0);
  return KRAIT_OK;
}

/* ---- the watch ---- */

/* The main thread may be blocked in a call of NCCL, which this ends; if not, it is interrupted. */
static void stop_nccl(kr_ranks *r) {
  int locked = 0;
  for (int ms = 0; ms < ABORT_AFTER_MS && !(locked = pthread_mutex_trylock(&r->lock) == 0); ms += 10)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  void *comm = r->comm;
  r->comm = NULL;
  if (comm && kr_cuda_begin(r->ctx->cuda) >= 0) {
    r->nccl->CommAbort(comm);
    kr_cuda_end(r->ctx->cuda);
  }
  if (locked) pthread_mutex_unlock(&r->lock);
}

static void *watch(void *user) {
  kr_ranks *r = user;
  struct pollfd waits[1 + 4096] = {{.fd = r->stop[0], .events = POLLIN}};
  const int from = first_peer(r), n = last_peer(r) - from;
  for (int i = 0; i < n && i < 4096; i++)
    waits[1 + i] = (struct pollfd){.fd = r->peers[from + i].fd, .events = POLLRDHUP};
  for (;;) {
    if (poll(waits, (nfds_t)(1 + n), -1) < 0) continue;
    if (waits[0].revents) return NULL;
    for (int i = 0; i < n; i++) {
      if (!(waits[1 + i].revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
      waits[1 + i].fd = -1;
      if (atomic_load(&r->ending)) continue;
      (void)lose(r, from + i);
      stop_nccl(r);
    }
  }
}

/* ---- open and close ---- */

static int32_t meet_others(kr_ranks *r, const krait_train_launcher *place) {
  KR_TRY(r->rank == 0 ? await_all(r, place->meet) : go_to(r, place->meet));
  KR_CHECK(pipe2(r->stop, O_CLOEXEC) == 0 && pthread_create(&r->watcher, NULL, watch, r) == 0, KRAIT_ERR_NO_MEMORY,
           "no thread to watch the other ranks");
  r->is_watched = 1;
  return KRAIT_OK;
}

int32_t kr_ranks_open(const krait_train_launcher *place, kr_ranks **ranks) {
  *ranks = NULL;
  if (!place || place->n_ranks <= 1) return KRAIT_OK;
  KR_CHECK(place->size == sizeof *place && place->n_ranks <= 4096 && place->rank >= 0 && place->rank < place->n_ranks,
           KRAIT_ERR_ARGUMENT, "rank %d of %d processes", place->rank, place->n_ranks);
  kr_ranks *r = kr_zalloc(sizeof *r + (size_t)place->n_ranks * sizeof(peer));
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for %d ranks", place->n_ranks);
  r->rank = place->rank, r->n = place->n_ranks, r->peers = (peer *)(r + 1), r->stop[0] = r->stop[1] = -1;
  atomic_store(&r->lost, -1);
  for (int k = 0; k < r->n; k++) r->peers[k].fd = -1;
  pthread_mutex_init(&r->lock, NULL);
  const int32_t status = meet_others(r, place);
  *ranks = r;
  if (status < 0) kr_ranks_close(ranks);
  return status;
}

void kr_ranks_close(kr_ranks **ranks) {
  kr_ranks *r = *ranks;
  if (!r) return;
  atomic_store(&r->ending, 1);
  if (r->is_watched) {
    (void)!write(r->stop[1], "", 1);
    pthread_join(r->watcher, NULL);
  }
  if (r->comm && kr_cuda_begin(r->ctx->cuda) >= 0) {
    r->nccl->CommAbort(r->comm); /* nothing is in flight: destroying would wait for ranks that may be lost */
    kr_cuda_end(r->ctx->cuda);
  }
  if (r->gathered) kr_cuda_free(r->ctx->cuda, r->gathered);
  for (int k = 0; k < r->n; k++)
    if (r->peers[k].fd >= 0) close(r->peers[k].fd);
  if (r->stop[0] >= 0) close(r->stop[0]), close(r->stop[1]);
  pthread_mutex_destroy(&r->lock);
  kr_free(r);
  *ranks = NULL;
}

static int32_t join(kr_ranks *r, kr_nccl_id id) {
  float *one = NULL, sum = 1;
  void *comm = NULL;
  KR_TRY(kr_cuda_begin(r->ctx->cuda));
  const int result = r->nccl->CommInitRank(&comm, r->n, id, r->rank);
  kr_cuda_end(r->ctx->cuda);
  if (result) return kr_nccl_fail(r->nccl, result, "joining the ranks");
  pthread_mutex_lock(&r->lock);
  r->comm = comm;
  pthread_mutex_unlock(&r->lock);
  KR_TRY(kr_cuda_alloc(r->ctx->cuda, sizeof sum, (void **)&one));
  int32_t status = kr_cuda_copy_in(r->ctx->cuda, one, &sum, sizeof sum, NULL);
  if (status >= 0) status = kr_ranks_sum(r, one, 1);
  if (status >= 0) status = kr_cuda_copy_out(r->ctx->cuda, &sum, one, sizeof sum, NULL);
  if (status >= 0) status = kr_cuda_wait(r->ctx->cuda, NULL);
  kr_cuda_free(r->ctx->cuda, one);
  KR_TRY(status);
  KR_TRY(kr_ranks_check(r));
  KR_CHECK(sum == (float)r->n, KRAIT_ERR_DRIVER, "NCCL sums %d ones to %g", r->n, (double)sum);
  return KRAIT_OK;
}

/* To one algorithm, whose order of terms does not change from run to run, unless the environment says otherwise. */
static void pin_sums(void) {
  kr_env_offer("NCCL_ALGO", "Ring"), kr_env_offer("NCCL_PROTO", "Simple");
  kr_env_offer("NCCL_NVLS_ENABLE", "0"); /* multicast would not be used, and has more requirements */
}

int32_t kr_ranks_join(kr_ranks *r, const krait_ctx *ctx) {
  kr_nccl_id id = {{0}};
  if (!r) return KRAIT_OK;
  r->ctx = ctx;
  KR_CHECK(ctx->cuda, KRAIT_ERR_ARGUMENT, "several processes can train together only on GPUs: on a CPU use --threads");
  pin_sums();
  KR_TRY(kr_nccl_load(&r->nccl));
  KR_TRY(kr_ranks_agree(r, (uint32_t)r->nccl->version, "version of NCCL")); /* and nobody has failed so far */
  if (r->rank) {
    if (hear_ranks(r, r->peers[0].fd, ID, &id, sizeof id) < 0) return lose(r, 0);
    return join(r, id);
  }
  KR_NCCL_TRY(r->nccl, GetUniqueId(&id), "making an id");
  for (int k = 1; k < r->n; k++)
    if (tell_ranks(r->peers[k].fd, ID, &id, sizeof id) < 0) return lose(r, k);
  return join(r, id);
}

/* ---- sums ---- */

int32_t kr_ranks_mean(kr_ranks *r, double *values, int n) {
  double others[MOST_VALUES];
  const size_t bytes = (size_t)n * sizeof *values;
  if (!r) return KRAIT_OK;
  KR_CHECK(n <= MOST_VALUES, KRAIT_ERR_ARGUMENT, "%d values at once", n);
  if (r->rank)
    return tell_ranks(r->peers[0].fd, VALUES, values, bytes) < 0 ||
                   hear_ranks(r, r->peers[0].fd, VALUES, values, bytes) < 0
               ? lose(r, 0)
               : KRAIT_OK;
  for (int k = 1; k < r->n; k++) {
    if (hear_ranks(r, r->peers[k].fd, VALUES, others, bytes) < 0) return lose(r, k);
    for (int i = 0; i < n; i++) values[i] += others[i];
  }
  for (int i = 0; i < n; i++) values[i] /= r->n;
  for (int k = 1; k < r->n; k++)
    if (tell_ranks(r->peers[k].fd, VALUES, values, bytes) < 0) return lose(r, k);
  return KRAIT_OK;
}

int32_t kr_ranks_agree(kr_ranks *r, uint32_t value, const char *what) {
  double both[2] = {(double)value, (double)value * (double)value}; /* no spread around the mean */
  KR_TRY(kr_ranks_mean(r, both, 2));
  KR_CHECK(!r || (both[0] == (double)value && both[1] == (double)value * (double)value), KRAIT_ERR_ARGUMENT,
           "the ranks differ in their %s", what);
  return KRAIT_OK;
}

static int32_t make_room_to_gather(kr_ranks *r, int64_t n) {
  if (n <= r->capacity) return KRAIT_OK;
  if (r->gathered) kr_cuda_free(r->ctx->cuda, r->gathered);
  r->gathered = NULL, r->capacity = 0;
  KR_TRY(kr_cuda_alloc(r->ctx->cuda, (size_t)n * sizeof(float), (void **)&r->gathered));
  r->capacity = n;
  return KRAIT_OK;
}

/* NCCL's own sum of three or more has an order of its own. Each rank receives what all have: little for the GPUs of one
 * machine; with more ranks NCCL sums. */
int32_t kr_ranks_sum(kr_ranks *r, float *at, int64_t n) {
  int result = 0;
  if (!r) return KRAIT_OK;
  const int is_ordered = r->n <= KR_ORDERED_RANKS;
  KR_TRY(kr_ranks_check(r));
  if (is_ordered) KR_TRY(make_room_to_gather(r, r->n * n));
  KR_TRY(kr_cuda_begin(r->ctx->cuda));
  pthread_mutex_lock(&r->lock);
  if (r->comm)
    result = is_ordered
                 ? r->nccl->AllGather(at, r->gathered, (size_t)n, KR_NCCL_FLOAT32, r->comm, NULL)
                 : r->nccl->AllReduce(at, at, (size_t)n, KR_NCCL_FLOAT32, KR_NCCL_SUM, r->comm, NULL);
  pthread_mutex_unlock(&r->lock);
  kr_cuda_end(r->ctx->cuda);
  KR_TRY(kr_ranks_check(r));
  if (result) return kr_nccl_fail(r->nccl, result, "summing gradients");
  return is_ordered ? kr_optimiser_sum(r->ctx, r->gathered, r->n, n, at) : KRAIT_OK;
}

int32_t kr_ranks_check(kr_ranks *r) {
  const int lost = r ? atomic_load(&r->lost) : -1;
  KR_CHECK(lost < 0, KRAIT_ERR_DEVICE_LOST, "lost rank %d", lost);
  return KRAIT_OK;
}

/* ---- the end ---- */

/* The lost rank's last message may still be in its connection, after values that were not read. */
static void read_farewell(kr_ranks *r, int fd) {
  char skipped[sizeof(double) * MOST_VALUES];
  const struct timeval patience = {.tv_sec = 1};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  for (int i = 0; i < 4 && !r->farewell[0]; i++) {
    head h;
    if (move(fd, &h, sizeof h, 0) < 0 || h.magic != MAGIC || h.bytes >= sizeof r->farewell) return;
    if (h.kind == FAREWELL) {
      if (move(fd, r->farewell, h.bytes, 0) < 0) h.bytes = 0;
      r->farewell[h.bytes] = 0;
    } else if (h.bytes > sizeof skipped || move(fd, skipped, h.bytes, 0) < 0) return;
  }
}

int kr_ranks_blame(kr_ranks *r) {
  const int lost = r ? atomic_load(&r->lost) : -1;
  if (lost < 0) return 0;
  const peer *p = &r->peers[lost];
  if (!r->farewell[0]) read_farewell(r, p->fd);
  if (r->farewell[0]) kr_graph_keep_error("rank %d: %s", lost, r->farewell);
  else
    kr_graph_keep_error("lost rank %d (process %d on %s)", lost, p->who.process, p->who.host);
  return 1;
}

/* Waits until they have closed their sides, or for two seconds: closing a connection with unread data discards data in
 * flight. */
static void let_go(int fd) {
  char rest[256];
  const struct timeval patience = {.tv_sec = 2};
  shutdown(fd, SHUT_WR);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  while (recv(fd, rest, sizeof rest, 0) > 0) {}
}

int32_t kr_ranks_end(kr_ranks *r, int32_t status) {
  double done = 0;
  char why[500];
  if (!r) return status;
  atomic_store(&r->ending, 1); /* from here on, closed connections are expected */
  if (status >= 0) return kr_ranks_mean(r, &done, 1);
  snprintf(why, sizeof why, "%s", krait_error_detail());
  const int lost = atomic_load(&r->lost);
  int heard = 0;
  if (lost >= 0 && !r->farewell[0]) read_farewell(r, r->peers[lost].fd); /* it came while this one failed by itself */
  for (int k = first_peer(r); k < last_peer(r); k++)
    if (k != lost) heard += tell_ranks(r->peers[k].fd, FAREWELL, why, strlen(why)) >= 0;
  for (int k = first_peer(r); k < last_peer(r) && r->rank == 0; k++)
    if (k != lost) let_go(r->peers[k].fd);
  const int is_said =
      r->rank > 0 && (lost < 0 ? heard > 0 : r->farewell[0] || r->rank > 1); /* by rank 0; if that is lost, by rank 1 */
  return kr_fail(is_said ? KRAIT_ERR_CANCELLED : status, "%s", why);
}
