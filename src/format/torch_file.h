/* torch_file.h: reads what torch.save wrote (a zip of one pickle and raw storages) without executing anything, and
 * writes what torch.load reads. */
#ifndef KR_TORCH_FILE_H
#define KR_TORCH_FILE_H
#include "weights.h"

int kr_torch_file_is(const unsigned char *bytes,
                     size_t n_bytes); /* also for the old, unzipped format, which read refuses */
int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights);
/* {"model": a state_dict of these}; up to 4 GiB. The file appears under its name only when complete. */
int32_t kr_torch_file_write(const char *path, const kr_weight *items, int64_t n_items);
const char *kr_torch_storage(int32_t dtype); /* "Float", or NULL where PyTorch has none */
#endif
