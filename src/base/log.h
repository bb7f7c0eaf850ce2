/* log.h: messages on standard error, each prefixed "krait: ". The library only prints if KRAIT_VERBOSE is set, or to
 * report a fallback. */
#ifndef KR_LOG_H
#define KR_LOG_H

void kr_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
