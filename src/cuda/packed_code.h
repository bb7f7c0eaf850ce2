/* packed_code.h: the tables of device code that tools/device_code.py writes at build time. */
#ifndef KR_PACKED_CODE_H
#define KR_PACKED_CODE_H

#include <stddef.h>
#include <stdint.h>

#include "cuda.h"

typedef struct kr_packed_stream {
  const char *begin;
  size_t n_packed, n_unpacked;
} kr_packed_stream;

/* The text's range in its unpacked stream, where numbers are still separate, and its size as PTX. */
typedef struct kr_packed_text {
  const char *module, *tier;
  int stream;
  uint32_t begin, end, n_bytes;
} kr_packed_text;

extern const kr_packed_stream kr_packed_streams[];
extern const kr_packed_text kr_packed_texts[];
extern const kr_cubin kr_packed_cubins[];
extern const int kr_n_packed_texts, kr_n_packed_cubins;
extern char *kr_kept_texts[]; /* per text: its unpacked form, NULL before the first use */

/* The text of kr_cuda_embedded's number, unpacked at the first call and kept for the process's lifetime; NULL on
 * failure. */
int32_t kr_cuda_text(int index, const char **text);
/* Inverse of packed_text in tools/device_code.py: expands [p, end) to PTX text; returns 0 if malformed or not of
 * n_bytes. numbers: scratch, one for each byte of input. */
int kr_ptx_expand(const uint8_t *p, const uint8_t *end, char *text, size_t n_bytes, uint32_t *numbers);

#endif
