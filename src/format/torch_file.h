/* torch_file.h: reads what torch.save wrote (a zip of one pickle and raw storages) without executing anything. */
#ifndef KR_TORCH_FILE_H
#define KR_TORCH_FILE_H
#include "weights.h"

int kr_torch_file_is(const unsigned char *bytes,
                     size_t n_bytes); /* also for the old, unzipped format, which read refuses */
int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights);
#endif
