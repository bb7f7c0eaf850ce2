/* log.h: messages on standard error, each prefixed "krait: ". The library only prints if KRAIT_VERBOSE is set, or to
 * report a fallback, or what it takes a file to mean that does not say. */
#ifndef KR_LOG_H
#define KR_LOG_H

void kr_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
