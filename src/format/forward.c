/* forward.c: the sliding window of forward.h: a ring buffer, the head, and recently read blocks. */
#include "forward.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

enum {
  PIECE_BYTES = 1 << 18,
  WINDOW_BYTES = KR_FORWARD_WINDOW_BYTES,
  LONG_BYTES = 12 << 20,
  HEAD_BYTES = 2 << 20,
  MAX_RESTARTS = 16,
  N_BLOCKS = 32,
  BLOCK_BYTES = 1 << 16
};

typedef struct stream {
  kr_source source; /* first: its functions get a pointer to it */
  kr_forward_feed feed;
  kr_forward_memory *spare;
  int is_begun;
  uint64_t begin, end; /* the window holds these bytes of the member: a ring of pieces */
  size_t cap;
  int n_starts;
  kr_forward_memory at; /* window; head, which stays: headers and string tables are read repeatedly; blocks of recent
                         small reads: section headers, the dynamic table */
  size_t head_bytes, head_cap;
  uint64_t block_at[N_BLOCKS];
  size_t block_bytes[N_BLOCKS];
  int next_block;
} stream;

static int32_t restart_forward(stream *s) {
  s->begin = s->end = 0;
  s->is_begun = 0;
  KR_CHECK(s->n_starts++ < MAX_RESTARTS, KRAIT_ERR_FILE_READ, "%s: cannot unpack it: it seeks backwards too often",
           s->source.name);
  KR_TRY(s->feed.begin(s->feed.user));
  s->is_begun = 1;
  return KRAIT_OK;
}

/* Unpacks one more piece, replacing the oldest when the window is full. */
static int32_t advance(stream *s) {
  uint64_t left = s->source.size - s->end;
  size_t have = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
  uint8_t *piece = s->at.window + (size_t)(s->end % s->cap);
  if (s->end - s->begin >= s->cap) s->begin += PIECE_BYTES;
  int32_t status = s->feed.read(s->feed.user, piece, have);
  if (status < 0) s->is_begun = 0;
  KR_TRY(status);
  if (s->end == s->head_bytes && s->head_bytes < s->head_cap) {
    size_t n = have < s->head_cap - s->head_bytes ? have : s->head_cap - s->head_bytes;
    memcpy(s->at.head + s->head_bytes, piece, n);
    s->head_bytes += n;
  }
  s->end += have;
  return KRAIT_OK;
}

/* Bytes that the head or a kept block has at offset; *from is where. */
static size_t find_kept(const stream *s, uint64_t offset, const uint8_t **from) {
  if (offset < s->head_bytes) {
    *from = s->at.head + offset;
    return s->head_bytes - (size_t)offset;
  }
  for (int i = 0; s->at.blocks && i < N_BLOCKS; i++) {
    if (offset < s->block_at[i] || offset - s->block_at[i] >= s->block_bytes[i]) continue;
    *from = s->at.blocks + (size_t)i * BLOCK_BYTES + (offset - s->block_at[i]);
    return s->block_bytes[i] - (size_t)(offset - s->block_at[i]);
  }
  return 0;
}

/* Keeps the block around a small read, as far as it is in the window. */
static void keep_block(stream *s, uint64_t offset) {
  const uint8_t *kept;
  if (find_kept(s, offset, &kept)) return;
  uint64_t from = offset / BLOCK_BYTES * BLOCK_BYTES, end = from + BLOCK_BYTES < s->end ? from + BLOCK_BYTES : s->end;
  if (from < s->begin) from = s->begin;
  if (!s->at.blocks && !(s->at.blocks = kr_alloc((size_t)N_BLOCKS * BLOCK_BYTES))) return;
  int i = s->next_block++ % N_BLOCKS;
  memcpy(s->at.blocks + (size_t)i * BLOCK_BYTES, s->at.window + (size_t)(from % s->cap), (size_t)(end - from));
  s->block_at[i] = from;
  s->block_bytes[i] = (size_t)(end - from);
}

static int32_t read_forward_stream(kr_source *source, uint64_t offset, void *out, size_t bytes) {
  stream *s = (stream *)source;
  int is_small = bytes <= 4096;
  for (uint8_t *to = out; bytes;) {
    const uint8_t *from;
    size_t n = offset < s->begin || offset >= s->end ? find_kept(s, offset, &from) : 0;
    if (!n) {
      if (offset < s->begin || !s->is_begun) KR_TRY(restart_forward(s));
      while (s->end <= offset) KR_TRY(advance(s));
      from = s->at.window + (size_t)(offset % s->cap);
      n = PIECE_BYTES - (size_t)(offset % PIECE_BYTES);
      if (n > s->end - offset) n = (size_t)(s->end - offset);
      if (is_small && offset >= s->head_bytes) keep_block(s, offset);
    }
    if (n > bytes) n = bytes;
    memcpy(to, from, n);
    to += n, offset += n, bytes -= n;
  }
  return KRAIT_OK;
}

void kr_forward_free_memory(kr_forward_memory *memory) {
  kr_free(memory->window);
  kr_free(memory->head);
  kr_free(memory->blocks);
  *memory = (kr_forward_memory){0};
}

/* As much as the member has, or the previous member's buffer. A member longer than any window gets three quarters of it
 * (a patched library's section table is 11 MiB before its end), and a head. */
static int take_room(kr_forward_memory *spare, uint64_t bytes, kr_forward_memory *r) {
  const size_t cap = bytes <= WINDOW_BYTES ? ((size_t)bytes / PIECE_BYTES + 1) * PIECE_BYTES : LONG_BYTES;
  *r = *spare;
  *spare = (kr_forward_memory){0};
  if (r->cap < cap) {
    kr_free(r->window);
    r->window = kr_alloc(cap);
    r->cap = r->window ? cap : 0;
  }
  if (!r->head && bytes > WINDOW_BYTES) r->head = kr_alloc(HEAD_BYTES);
  return r->window && (r->head || bytes <= WINDOW_BYTES);
}

int32_t kr_forward_open(kr_forward_memory *spare, const kr_forward_feed *feed, uint64_t bytes, const char *name,
                        kr_source **source) {
  kr_forward_memory r = {0};
  stream *s = kr_zalloc(sizeof *s);
  *source = NULL;
  if (!s || !take_room(spare, bytes, &r)) {
    kr_free(s);
    kr_forward_free_memory(&r);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", name);
  }
  *s = (stream){.source = {.read = read_forward_stream, .size = bytes, .name = name, .fd = -1, .is_forward = 1},
                .feed = *feed,
                .spare = spare,
                .cap = r.cap,
                .at = r,
                .head_cap = bytes > WINDOW_BYTES ? HEAD_BYTES : 0};
  *source = &s->source;
  return KRAIT_OK;
}

void *kr_forward_user(kr_source *source) { return ((stream *)source)->feed.user; }

void kr_forward_close(kr_source **source) {
  if (!source || !*source) return;
  stream *s = (stream *)*source;
  kr_forward_free_memory(s->spare);
  *s->spare = s->at;
  kr_free(s);
  *source = NULL;
}
