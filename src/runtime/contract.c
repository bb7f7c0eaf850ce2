/* contract.c: the error sentences of contract.h. */
#include "contract.h"

#include <stdio.h>
#include <string.h>

static const char *types_text(int types, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = 0;
  for (int32_t dtype = 0; krait_dtype_bytes(dtype) && used < bytes; dtype++)
    if (types >> dtype & 1)
      used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? " or " : "", krait_dtype_name(dtype));
  return text;
}

int32_t kr_need(const char *op, const char *name, const kr_view *view, int types) {
  char text[96];
  KR_CHECK(kr_has(view) || types & KR_OPTIONAL, KRAIT_ERR_ARGUMENT, "%s: %s must be given", op, name);
  if (!kr_has(view)) return KRAIT_OK;
  int known = krait_dtype_bytes(view->dtype) != 0;
  KR_CHECK(known && types >> view->dtype & 1, KRAIT_ERR_DTYPE, "%s: %s is %s, must be %s", op, name,
           krait_dtype_name(view->dtype), types_text(types & ~KR_OPTIONAL, text, sizeof text));
  return KRAIT_OK;
}

int32_t kr_need_same_type(const char *op, const char *name, const kr_view *view, const char *other_name,
                          const kr_view *other) {
  KR_CHECK(!kr_has(view) || !kr_has(other) || view->dtype == other->dtype, KRAIT_ERR_DTYPE, "%s: %s is %s but %s is %s",
           op, name, krait_dtype_name(view->dtype), other_name, krait_dtype_name(other->dtype));
  return KRAIT_OK;
}

int32_t kr_need_same_place(const char *op, const char *name, const kr_view *view, const char *other_name,
                           const kr_view *other, int n_dims) {
  int same =
      view->data != other->data || memcmp(view->stride, other->stride, (size_t)n_dims * sizeof *view->stride) == 0;
  KR_CHECK(same, KRAIT_ERR_ARGUMENT, "%s: %s is %s in place but their strides differ", op, name, other_name);
  return KRAIT_OK;
}

int32_t kr_need_size(const char *op, const char *name, int64_t size, int64_t low, int64_t high) {
  KR_CHECK(size >= low, KRAIT_ERR_SHAPE, "%s: %s is %lld, must be at least %lld", op, name, (long long)size,
           (long long)low);
  KR_CHECK(size <= high, KRAIT_ERR_SHAPE, "%s: %s is %lld, must be at most %lld", op, name, (long long)size,
           (long long)high);
  return KRAIT_OK;
}

int32_t kr_need_absent(const char *op, const char *name, const kr_view *view, const char *reason) {
  KR_CHECK(!kr_has(view), KRAIT_ERR_ARGUMENT, "%s: %s cannot be given %s", op, name, reason);
  return KRAIT_OK;
}

int32_t kr_need_flags(const char *op, const kr_call *call, uint32_t known) {
  KR_CHECK(!(call->flags & ~known), KRAIT_ERR_ARGUMENT, "%s: unknown flags 0x%x", op, call->flags & ~known);
  return KRAIT_OK;
}

static int32_t need_rising(const char *op, const char *name, const kr_view *view, int64_t n_sequences) {
  int64_t before = kr_get_i32(view, 0);
  KR_CHECK(before == 0, KRAIT_ERR_ARGUMENT, "%s: %s begins with %lld, must begin with 0", op, name, (long long)before);
  for (int64_t i = 1; i <= n_sequences; i++) {
    int64_t offset = kr_get_i32(view, kr_at1(view, i));
    KR_CHECK(offset >= before, KRAIT_ERR_ARGUMENT, "%s: %s decreases at %lld", op, name, (long long)i);
    before = offset;
  }
  return KRAIT_OK;
}

int32_t kr_need_offsets(const char *op, const char *name, const kr_view *view, int64_t n_sequences, int64_t total) {
  KR_TRY(need_rising(op, name, view, n_sequences));
  const int64_t last = kr_get_i32(view, kr_at1(view, n_sequences));
  KR_CHECK(last == total, KRAIT_ERR_ARGUMENT, "%s: %s ends with %lld, must end with %lld", op, name, (long long)last,
           (long long)total);
  return KRAIT_OK;
}

int32_t kr_need_offsets_within(const char *op, const char *name, const kr_view *view, int64_t n_sequences,
                               int64_t total) {
  KR_TRY(need_rising(op, name, view, n_sequences));
  const int64_t last = kr_get_i32(view, kr_at1(view, n_sequences));
  KR_CHECK(last <= total, KRAIT_ERR_ARGUMENT, "%s: %s ends with %lld, must end with at most %lld", op, name,
           (long long)last, (long long)total);
  return KRAIT_OK;
}

int32_t kr_need_rows(const char *op, const char *name, const kr_view *view, int64_t n, int64_t n_rows) {
  for (int64_t i = 0; kr_has(view) && i < n; i++) {
    int64_t row = kr_get_i32(view, kr_at1(view, i));
    KR_CHECK(row < n_rows, KRAIT_ERR_ARGUMENT, "%s: %s[%lld] is %lld, must be below %lld (or negative: skipped)", op,
             name, (long long)i, (long long)row, (long long)n_rows);
  }
  return KRAIT_OK;
}
