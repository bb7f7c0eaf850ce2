/* log.h: lines for people, to standard error, each prefixed "krait: ". The library speaks only when KRAIT_VERBOSE asks
 * for it, or to say that it fell back. */
#ifndef KR_LOG_H
#define KR_LOG_H

void kr_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
