/* translate.h: device code into a module of the current context. */
#ifndef KR_TRANSLATE_H
#define KR_TRANSLATE_H

#include "cuda.h"

typedef struct kr_code {
  void *module, *library; /* library: whose module it is, or NULL */
} kr_code;
void kr_code_unload(const kr_cuda *cuda, const kr_code *code);

/* image: PTX, which the driver translates unless its cache has the result, or a cubin. name: for the message. */
int32_t kr_load_image(const kr_cuda *cuda, const void *image, const char *name, kr_code *code);
/* One kernel of an embedded text: its cubin, if one is found (cubin_file.h), or translated by the driver; several
 * threads may translate at the same time. */
int32_t kr_load_entry(const kr_cuda *cuda, int text, const char *entry, kr_code *code);

#endif
