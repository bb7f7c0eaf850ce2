/* sha256.h: SHA-256 of a source: RECORD files and reports name content by it. */
#ifndef KR_SHA256_H
#define KR_SHA256_H
#include "source.h"
int32_t kr_sha256_source(kr_source *source, char hex[65]); /* lower case, NUL-terminated */
#endif
