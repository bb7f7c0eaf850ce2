/* saver.h: writes weights files while the training goes on, from copies of their tensors: a disk takes longer than a
 * step. */
#ifndef KR_SAVER_H
#define KR_SAVER_H

#include "weights.h"

typedef struct kr_saver kr_saver;

int32_t kr_saver_open(kr_saver **saver);
void kr_saver_close(kr_saver **saver); /* waits, like all functions but kr_saver_is_busy, for files being written */
/* A file for the next save; everything is copied. */
int32_t kr_saver_add(kr_saver *saver, const char *path, const kr_weight *items, int64_t n_items,
                     const kr_metadata *metadata, int64_t n_metadata);
/* Begins to write the files that were added, one after the other. */
int32_t kr_saver_begin(kr_saver *saver);
int kr_saver_is_busy(const kr_saver *saver);
/* The first failure since the last call. */
int32_t kr_saver_wait(kr_saver *saver);

#endif
