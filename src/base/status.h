/* status.h: how a function says that it failed: a status, and one sentence kept for this thread. */
#ifndef KR_STATUS_H
#define KR_STATUS_H

#include <krait/krait.h>

/* Keeps the sentence (printf form, no newline, no final stop) and returns status, so that a check is one line. */
int32_t kr_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a failed system call: appends strerror(os_errno), origin "os". */
int32_t kr_fail_os(int32_t status, int os_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a driver call: origin "cuda", native holds the CUresult. */
int32_t kr_fail_cuda(int32_t status, int64_t result, const char *format, ...) __attribute__((format(printf, 3, 4)));

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
