/* sized.h: public structs begin with their size: those of older callers are shorter (the rest is zero), those of newer
 * callers longer (an unknown tail must be zero). */
#ifndef KR_SIZED_H
#define KR_SIZED_H

#include <krait/krait.h>

/* Copies the caller's struct into *known, of known_bytes. least_bytes: its size in its first release; what: its
 * name. */
int32_t kr_struct_take(const char *what, const void *given, size_t least_bytes, void *known, size_t known_bytes);
/* Copies *known into the caller's struct, as far as it fits, and leaves its size unchanged. The tail of a longer one
 * becomes zero. */
int32_t kr_struct_give(const char *what, void *given, size_t least_bytes, const void *known, size_t known_bytes);

#endif
