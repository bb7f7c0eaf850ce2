/* interrupt.h: what Ctrl-C leaves behind: nothing. */
#ifndef KR_INTERRUPT_H
#define KR_INTERRUPT_H

/* From here on Ctrl-C, SIGTERM and SIGHUP remove unfinished outputs, say so in one line and end the process with 128 + the
 * signal's number. SIGPIPE is ignored: a reader that goes away is a write error, which cleans up too. */
void kr_catch_signals(const char *verb);

#endif
