/* shape_text.c: shapes of tensors as text. */
#include <inttypes.h>
#include <stdio.h>

#include "weights.h"

const char *kr_shape_format(int32_t n_dims, const int64_t *shape, char *text, size_t text_bytes) {
  size_t used = (size_t)snprintf(text, text_bytes, "(");
  for (int32_t i = 0; i < n_dims && used < text_bytes; i++)
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, i ? ", " : "", shape[i]);
  if (used < text_bytes) snprintf(text + used, text_bytes - used, ")");
  return text;
}
