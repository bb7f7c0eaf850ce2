/* answer.h: what a public function returns: after a success the thread has no last error. Public functions get it from
 * tools/make_public.py, operators from kr_op_run. */
#ifndef KR_ANSWER_H
#define KR_ANSWER_H

#include <krait/krait.h>

void kr_forget_failure(void);
static inline int32_t kr_answer(int32_t status) {
  if (status >= 0) kr_forget_failure();
  return status;
}

#endif
