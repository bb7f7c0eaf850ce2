/* interrupt.h: what Ctrl-C leaves behind: nothing. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

/* From here on a signal that ends a process (Ctrl-C, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, timers, SIGUSR1 and 2) removes
 * unfinished outputs, says so in one line and ends the process with 128 + the signal's number. SIGPIPE and SIGXFSZ are
 * ignored: a reader that goes away and a file that may not grow are write errors, which clean up too. more: behind that
 * line's words. */
void cli_catch_signals(const char *verb, const char *more);
/* From here on the first Ctrl-C only asks: cli_is_asked_to_stop is then 1. The next one ends the process as above. */
void cli_let_interrupt_ask(void);
int cli_is_asked_to_stop(void);
int cli_is_stopped(void); /* such a signal has come: other threads keep silent until the process is gone */

#endif
