/* staging.c: a piece is a range of device addresses: tensors that follow each other travel together. Each of the two
 * pieces has its stream, which is waited for before the piece is filled again. */
#include "staging.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"

enum {
  PIECE_BYTES = 16 << 20,
  MOST_GAP = 256,         /* between tensors */
  THREAD_BYTES = 256 << 10 /* copied by one thread at a time */
};

struct kr_staging {
  const krait_ctx *ctx;
  char *pieces[2]; /* page-locked; NULL: there is none */
  void *streams[2];
  int now;         /* the piece that is being filled */
  char *to;        /* where it goes */
  uint64_t filled;
};

int32_t kr_staging_open(const krait_ctx *ctx, kr_staging **staging) {
  kr_staging *s = *staging = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  s->ctx = ctx;
  int32_t status = KRAIT_OK;
  for (int i = 0; i < 2 && status >= 0; i++) {
    s->pieces[i] = kr_cuda_alloc_host(ctx->cuda, PIECE_BYTES);
    status = kr_cuda_stream_open(ctx->cuda, &s->streams[i]);
  }
  if (status < 0) kr_staging_close(staging);
  return status;
}

void kr_staging_close(kr_staging **staging) {
  kr_staging *s = *staging;
  if (!s) return;
  for (int i = 0; i < 2; i++) {
    if (s->streams[i]) (void)kr_cuda_wait(s->ctx->cuda, s->streams[i]); /* it may still read the piece */
    kr_cuda_stream_close(s->ctx->cuda, &s->streams[i]);
    kr_cuda_free_host(s->ctx->cuda, s->pieces[i]);
  }
  kr_free(s);
  *staging = NULL;
}

static int32_t send(kr_staging *s) {
  if (!s->filled) return KRAIT_OK;
  KR_TRY(kr_cuda_copy_in(s->ctx->cuda, s->to, s->pieces[s->now], (size_t)s->filled, s->streams[s->now]));
  s->filled = 0;
  s->now ^= 1;
  return kr_cuda_wait(s->ctx->cuda, s->streams[s->now]);
}

typedef struct copying {
  char *to;
  const char *from;
  uint64_t bytes;
} copying;

static void copy_range(void *user, int64_t begin, int64_t end, int worker) {
  const copying *c = user;
  const uint64_t from = (uint64_t)begin * THREAD_BYTES, to = (uint64_t)end * THREAD_BYTES;
  (void)worker;
  memcpy(c->to + from, c->from + from, (size_t)((to < c->bytes ? to : c->bytes) - from));
}

static void fill_piece(kr_staging *s, const char *from, uint64_t bytes) {
  copying c = {s->pieces[s->now] + s->filled, from, bytes};
  kr_parallel(s->ctx, (int64_t)((bytes + THREAD_BYTES - 1) / THREAD_BYTES), 1, copy_range, &c);
  s->filled += bytes;
}

/* Whether the piece can go on at this address; a gap between tensors travels with it. */
static int continues(kr_staging *s, const char *to) {
  const char *end = s->to + s->filled;
  if (!s->filled || to < end || to - end >= MOST_GAP || s->filled + (uint64_t)(to - end) >= PIECE_BYTES) return 0;
  memset(s->pieces[s->now] + s->filled, 0, (size_t)(to - end));
  s->filled += (uint64_t)(to - end);
  return 1;
}

int32_t kr_staging_put(kr_staging *s, void *to, const void *from, uint64_t bytes) {
  char *at = to;
  const char *data = from;
  if (!s->pieces[0] || !s->pieces[1]) {
    KR_TRY(kr_cuda_copy_in(s->ctx->cuda, to, from, (size_t)bytes, s->streams[0]));
    return kr_cuda_wait(s->ctx->cuda, s->streams[0]);
  }
  while (bytes) {
    if (!continues(s, at)) {
      KR_TRY(send(s));
      s->to = at;
    }
    const uint64_t room = PIECE_BYTES - s->filled, n = bytes < room ? bytes : room;
    fill_piece(s, data, n);
    at += n, data += n, bytes -= n;
  }
  return KRAIT_OK;
}

int32_t kr_staging_finish(kr_staging *s) {
  KR_TRY(send(s));
  for (int i = 0; i < 2; i++) KR_TRY(kr_cuda_wait(s->ctx->cuda, s->streams[i]));
  return KRAIT_OK;
}
