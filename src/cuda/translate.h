/* translate.h: device code into a module of the current context. */
#ifndef KR_TRANSLATE_H
#define KR_TRANSLATE_H

#include "cuda.h"

/* image: PTX, which the driver translates unless its cache has the result, or a cubin. name: for the message. */
int32_t kr_load_image(const kr_cuda *cuda, const void *image, const char *name, void **module);
/* One kernel of an embedded text: its cubin, if one is found (cubin_file.h), or translated by the driver; several
 * threads may translate at the same time. */
int32_t kr_load_entry(const kr_cuda *cuda, int text, const char *entry, void **module);

#endif
