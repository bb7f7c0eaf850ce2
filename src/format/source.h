/* source.h: bytes that can be read at any offset: a file, memory, or another implementation of read. Readers copy what
 * they use, so that a file that shrinks meanwhile is a failed read and never a crash. Little-endian field access. */
#ifndef KR_SOURCE_H
#define KR_SOURCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_source kr_source;
struct kr_source {
  /* Copies exactly bytes from offset, or fails; called only for ranges inside [0, size). */
  int32_t (*read)(kr_source *source, uint64_t offset, void *out, size_t bytes);
  uint64_t size;
  const char *name;      /* for messages; borrowed */
  const uint8_t *memory; /* kr_source_memory */
  int fd;                /* kr_source_open */
  int is_forward;        /* seeking backwards may restart the stream: read forward if possible */
};

int32_t kr_source_open(kr_source *source, const char *path); /* regular files only */
void kr_source_close(kr_source *source);
kr_source kr_source_memory(const void *bytes, size_t n, const char *name);

/* Checked read: a range outside the source is KRAIT_ERR_FILE_FORMAT. */
int32_t kr_source_read(kr_source *source, uint64_t offset, void *out, size_t bytes);
/* a + b and a * b in uint64; 0 when they wrap. */
int kr_add_u64(uint64_t a, uint64_t b, uint64_t *sum);
int kr_mul_u64(uint64_t a, uint64_t b, uint64_t *product);
/* Whether [offset, offset + bytes) lies in [0, size). */
int kr_range_fits(uint64_t offset, uint64_t bytes, uint64_t size);

static inline uint16_t kr_le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t kr_le32(const uint8_t *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t kr_le64(const uint8_t *p) { return kr_le32(p) | (uint64_t)kr_le32(p + 4) << 32; }

#endif
