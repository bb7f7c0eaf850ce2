/* torch_file.c: reads what torch.save wrote. */
#include "torch_file.h"

#include <string.h>

#include "status.h"

int kr_torch_file_is(const unsigned char *bytes, size_t n_bytes) {
  /* A safetensors header of 640 bytes begins like a pickle; its ninth byte does not. */
  int is_pickle = n_bytes >= 9 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && bytes[8] != '{';
  return is_pickle || (n_bytes >= 4 && memcmp(bytes, "PK\3\4", 4) == 0);
}

int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  (void)bytes;
  (void)n_bytes;
  (void)weights;
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: PyTorch files are not read yet; save it as safetensors", label);
}
