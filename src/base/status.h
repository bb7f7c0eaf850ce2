/* status.h: how a function reports failure: a status, and one sentence stored for this thread. */
#ifndef KR_STATUS_H
#define KR_STATUS_H

#include <krait/krait.h>

/* Stores the sentence (printf format, no newline, no final stop) and returns status, so that a check is one line.
 * Macros, so that the compiler sees which status is returned, and that nothing after a failed KR_TRY runs. */
#define kr_fail(status, ...) (kr_graph_keep_error(__VA_ARGS__), kr_same_status(status))
/* The same for a failed system call: appends strerror(os_errno), origin "os". */
#define kr_fail_os(status, os_errno, ...) (kr_keep_os_failure(os_errno, __VA_ARGS__), kr_same_status(status))
/* The same for a driver call: origin "cuda", native holds the CUresult. */
#define kr_fail_cuda(status, result, ...) (kr_keep_cuda_failure(result, __VA_ARGS__), kr_same_status(status))

/* Callers may ignore a call's value without a warning. */
static inline int32_t kr_same_status(int32_t status) {
  return status;
}
void kr_graph_keep_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void kr_keep_os_failure(int os_errno, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kr_keep_cuda_failure(int64_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define KR_CHECK(condition, status, ...)                  \
  do {                                                    \
    if (!(condition)) return kr_fail(status, __VA_ARGS__); \
  } while (0)

#define KR_TRY(expression)                        \
  do {                                            \
    int32_t kr_try_status_ = (expression);        \
    if (kr_try_status_ < 0) return kr_try_status_; \
  } while (0)

/* For functions with an `int32_t status` and one exit label. */
#define KR_TRY_GOTO(label, expression)          \
  do {                                          \
    if ((status = (expression)) < 0) goto label; \
  } while (0)

#endif
