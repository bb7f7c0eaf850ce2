/* sized.h: public structs begin with their size: older callers have shorter ones (the rest is zero), newer ones longer
 * ones (a tail that this library does not know must be zero). */
#ifndef KR_SIZED_H
#define KR_SIZED_H

#include <krait/krait.h>

/* Copies the caller's struct into *known, of known_bytes. least_bytes: what the first release that had it asked for;
 * what: its name. */
int32_t kr_struct_take(const char *what, const void *given, size_t least_bytes, void *known, size_t known_bytes);
/* Copies *known into the caller's struct, as much as that holds, and leaves its size alone. A longer one's tail becomes
 * zero. */
int32_t kr_struct_give(const char *what, void *given, size_t least_bytes, const void *known, size_t known_bytes);

#endif
