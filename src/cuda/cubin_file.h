/* cubin_file.h: machine code of kernels in a file beside the library (tools/cubins writes it), so that a driver need
 * not translate them. */
#ifndef KR_CUBIN_FILE_H
#define KR_CUBIN_FILE_H

#include <stddef.h>
#include <stdint.h>

/* The machine code of this very text of one kernel for this architecture (90: 9.0), to be freed with kr_free; NULL:
 * there is none. KRAIT_CUBINS is the folder of such files, or one of them; else it is krait-cubins beside the library.
 */
void *kr_cubin_find(int capability, const char *text);

/* A file's table, as it lies in the file: little-endian, in order of the hashes. */
typedef struct kr_cubin_row {
  uint64_t hash, at; /* of the kernel's text; the packed bytes' place in the file */
  uint32_t n_packed, n_bytes;
} kr_cubin_row;
enum { KR_CUBIN_HEAD = 16, KR_MOST_CUBINS = 1 << 16, KR_MOST_CUBIN_BYTES = 64 << 20 };
/* The number of rows in a file that begins with these bytes; -1: it is none, or of another architecture. */
int64_t kr_cubin_rows(const uint8_t head[KR_CUBIN_HEAD], int capability);
/* FNV-1a of 64 bits. */
uint64_t kr_cubin_hash(const char *text);

#endif
