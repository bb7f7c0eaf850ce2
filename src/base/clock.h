/* clock.h: monotonic time. */
#ifndef KR_CLOCK_H
#define KR_CLOCK_H
#include <stdint.h>
int64_t kr_clock_ns(void);
#endif
