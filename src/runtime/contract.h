/* contract.h: the checks that make up every op's contract; each returns a status and one sentence that names op and
 * argument. */
#ifndef KR_CONTRACT_H
#define KR_CONTRACT_H

#include "op_args.h"
#include "status.h"
#include "view.h"

enum {
  KR_TYPE_F32 = 1 << KRAIT_F32,
  KR_TYPE_ACTIVATION = 1 << KRAIT_F32 | 1 << KRAIT_F16 | 1 << KRAIT_BF16,
  KR_TYPE_FLOAT = KR_TYPE_ACTIVATION | 1 << KRAIT_F64,
  KR_TYPE_I32 = 1 << KRAIT_I32,
  KR_TYPE_C64 = 1 << KRAIT_C64,
  KR_OPTIONAL = 1 << 30 /* the view may be absent */
};

/* view must be given (unless KR_OPTIONAL) and of one of the types. */
int32_t kr_need(const char *op, const char *name, const kr_view *view, int types);
/* Two given views must have the same type. */
int32_t kr_need_same_type(const char *op, const char *name, const kr_view *view, const char *other_name,
                          const kr_view *other);
/* If two views start at the same address they must have the same strides: the op works in place. */
int32_t kr_need_same_place(const char *op, const char *name, const kr_view *view, const char *other_name,
                           const kr_view *other, int n_dims);
/* A size in low..high. */
int32_t kr_need_size(const char *op, const char *name, int64_t size, int64_t low, int64_t high);
/* view must be absent because of reason ("with KRAIT_SCAN_BOTH"). */
int32_t kr_need_absent(const char *op, const char *name, const kr_view *view, const char *reason);
int32_t kr_need_flags(const char *op, const kr_call *call, uint32_t known);
/* int32 offsets of n_sequences packed sequences, from 0 to total, not decreasing. Reads host memory. */
int32_t kr_need_offsets(const char *op, const char *name, const kr_view *view, int64_t n_sequences, int64_t total);
/* Likewise, to at most total: padding may follow. */
int32_t kr_need_offsets_within(const char *op, const char *name, const kr_view *view, int64_t n_sequences,
                               int64_t total);
/* If view is given, its n int32 values must be below n_rows; negative ones mean no row. Reads host memory. */
int32_t kr_need_rows(const char *op, const char *name, const kr_view *view, int64_t n, int64_t n_rows);

#endif
