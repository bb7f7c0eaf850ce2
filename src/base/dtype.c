/* dtype.c: sizes and names of the data types of krait.h. */
#include <krait/krait.h>

size_t krait_dtype_bytes(int32_t dtype) {
  static const unsigned char bytes[] = {4, 2, 2, 8, 4, 8, 8, 2, 1, 1, 1, 2, 4, 8};
  return dtype >= 0 && dtype < (int32_t)sizeof bytes ? bytes[dtype] : 0;
}

const char *krait_dtype_name(int32_t dtype) {
  static const char *const names[] = {"float32", "float16", "bfloat16", "float64", "int32", "int64", "complex64",
                                      "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64"};
  return krait_dtype_bytes(dtype) ? names[dtype] : "unknown";
}
