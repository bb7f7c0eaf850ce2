/* ptx_text.c: the library's device code: PTX texts packed by tools/device_code.py, unpacked on first use, then kept. */
#include "cuda.h"

#include <pthread.h>
#include <string.h>

#include "alloc.h"
#include "ladder.h"
#include "lzma.h"
#include "packed_code.h"
#include "status.h"

/* A name that precedes numbers, such as "%rd": where its next number is read, and the numbers of the kernel so far, the
 * one used last at the end. */
typedef struct numbered {
  const char *name;
  size_t n_name;
  const uint8_t *p, *end;
  uint32_t *used, n_used;
} numbered;

enum { MOST_NAMES = 127, NEXT_KERNEL = 255, MOST_DIGITS = 10 };

/* Output position. */
typedef struct output {
  char *p, *end;
} output;

static int put(output *out, const void *bytes, size_t n) {
  if ((size_t)(out->end - out->p) < n) return 0;
  memcpy(out->p, bytes, n);
  out->p += n;
  return 1;
}

static int put_number(output *out, uint32_t number) {
  char digits[MOST_DIGITS];
  size_t n = 0;
  do digits[sizeof digits - ++n] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  return put(out, digits + sizeof digits - n, n);
}

/* Varint: seven bits a byte, lowest first. */
static int read_number(const uint8_t **p, const uint8_t *end, size_t *number) {
  *number = 0;
  for (int shift = 0; shift < 28; shift += 7) {
    if (*p == end) return 0;
    *number |= (size_t)(**p & 127) << shift;
    if (*(*p)++ < 128) return 1;
  }
  return 0;
}

/* No larger than the remaining input. */
static int read_size(const uint8_t **p, const uint8_t *end, size_t *size) {
  return read_number(p, end, size) && *size <= (size_t)(end - *p);
}

/* The number used rank-th last, or for 0 a new one, becomes the one used last. */
static int put_numbered(output *out, numbered *name) {
  size_t rank;
  if (!read_number(&name->p, name->end, &rank) || rank > name->n_used) return 0;
  if (rank == 0) rank = 1, name->used[name->n_used] = name->n_used + 1, name->n_used++;
  uint32_t *used = name->used + name->n_used - rank, number = *used;
  memmove(used, used + 1, (rank - 1) * sizeof *used);
  used[rank - 1] = number;
  return put(out, name->name, name->n_name) && put_number(out, number);
}

static void begin_kernel(numbered *names, size_t n) {
  for (size_t i = 0; i < n; i++) names[i].n_used = 0;
}

int kr_ptx_expand(const uint8_t *p, const uint8_t *end, char *text, size_t n_bytes, uint32_t *numbers) {
  numbered names[MOST_NAMES];
  size_t n_names, n_ranks[MOST_NAMES], n_bare;
  output out = {text, text + n_bytes};
  if (!read_size(&p, end, &n_names) || n_names > MOST_NAMES) return 0;
  for (size_t i = 0; i < n_names; i++) {
    if (!read_size(&p, end, &names[i].n_name)) return 0;
    names[i].name = (const char *)p;
    p += names[i].n_name;
    if (!read_size(&p, end, &n_ranks[i])) return 0;
  }
  if (!read_size(&p, end, &n_bare)) return 0;
  const uint8_t *bare = p, *bare_end = p += n_bare;
  for (size_t i = 0; i < n_names; i++) {
    if (n_ranks[i] > (size_t)(end - p)) return 0;
    names[i].p = p, names[i].end = p += n_ranks[i];
    names[i].used = numbers, numbers += n_ranks[i]; /* a new number takes a byte */
  }
  begin_kernel(names, n_names);
  while (bare < bare_end) {
    const uint8_t *run = bare;
    while (bare < bare_end && *bare < 128) bare++;
    if (!put(&out, run, (size_t)(bare - run))) return 0;
    if (bare == bare_end) break;
    const uint8_t code = *bare++;
    if (code == NEXT_KERNEL)
      begin_kernel(names, n_names);
    else if ((size_t)code - 128 >= n_names || !put_numbered(&out, &names[code - 128]))
      return 0;
  }
  return out.p == out.end;
}

#ifndef KR_FUZZ
/* A stream that was begun stays: texts of a call are of several, which threads unpack side by side. */
typedef struct opened {
  struct opened *next;
  int stream;
  pthread_mutex_t lock; /* of the rest, and of its texts */
  kr_lzma lzma;
  uint8_t bytes[];
} opened;

static int32_t begin_stream(int index, opened **o) {
  const kr_packed_stream *stream = &kr_packed_streams[index];
  *o = kr_alloc(sizeof **o + stream->n_unpacked);
  KR_CHECK(*o, KRAIT_ERR_NO_MEMORY, "no memory for %zu bytes of device code", stream->n_unpacked);
  (*o)->stream = index;
  if (!kr_lzma_begin(&(*o)->lzma, (const uint8_t *)stream->begin, stream->n_packed, (*o)->bytes, stream->n_unpacked)) {
    kr_free(*o);
    *o = NULL;
    return kr_fail(KRAIT_ERR_FILE_FORMAT, "the device code in this library is damaged: install krait again");
  }
  pthread_mutex_init(&(*o)->lock, NULL);
  return KRAIT_OK;
}

static int32_t open_stream(int index, opened **o) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static opened *first;
  int32_t status = KRAIT_OK;
  pthread_mutex_lock(&lock);
  for (*o = first; *o && (*o)->stream != index;) *o = (*o)->next;
  if (!*o) {
    status = begin_stream(index, o);
    if (*o) (*o)->next = first, first = *o;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static int32_t unpack(opened *o, const kr_packed_text *packed, char **kept) {
  const uint8_t *begin = o->bytes + packed->begin, *end = o->bytes + packed->end;
  char *text = kr_alloc((size_t)packed->n_bytes + 1);
  uint32_t *numbers = kr_alloc((size_t)(end - begin) * sizeof *numbers);
  int32_t status = KRAIT_OK;
  if (!text || !numbers)
    status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the device code of %s", packed->module);
  else if (!kr_lzma_unpack(&o->lzma, packed->end) || !kr_ptx_expand(begin, end, text, packed->n_bytes, numbers))
    status = kr_fail(KRAIT_ERR_FILE_FORMAT, "the device code of %s in this library is damaged: install krait again",
                     packed->module);
  kr_free(numbers);
  if (status < 0) return kr_free(text), status;
  text[packed->n_bytes] = 0;
  *kept = text;
  return KRAIT_OK;
}

int32_t kr_cuda_text(int index, const char **text) {
  opened *o;
  *text = NULL;
  KR_TRY(open_stream(kr_packed_texts[index].stream, &o));
  pthread_mutex_lock(&o->lock);
  const int32_t status = kr_kept_texts[index] ? KRAIT_OK : unpack(o, &kr_packed_texts[index], &kr_kept_texts[index]);
  *text = kr_kept_texts[index];
  pthread_mutex_unlock(&o->lock);
  return status;
}

int kr_cuda_embedded(int index, const char **module, const char **tier, const char **text, size_t *bytes) {
  if (index < 0 || index >= kr_n_packed_texts) return 0;
  *module = kr_packed_texts[index].module, *tier = kr_packed_texts[index].tier;
  if (text) *bytes = kr_cuda_text(index, text) < 0 ? 0 : kr_packed_texts[index].n_bytes;
  return 1;
}

const kr_cubin *kr_cuda_cubin(int index) {
  return index >= 0 && index < kr_n_packed_cubins ? &kr_packed_cubins[index] : NULL;
}

uint64_t kr_cuda_built_tiers(void) {
  uint64_t caps = 0;
  for (int i = 0; i < kr_n_packed_texts; i++)
    for (int t = 0; kr_tier_at(t); t++)
      if (strcmp(kr_tier_at(t)->name, kr_packed_texts[i].tier) == 0) caps |= kr_tier_at(t)->cap;
  return caps;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[1 << 16];
  static uint32_t numbers[1 << 16];
  if (size >= 2 && size - 2 <= 1 << 16)
    kr_ptx_expand(data + 2, data + size, text, data[0] | (size_t)data[1] << 8, numbers);
  return 0;
}
#endif
