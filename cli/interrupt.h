/* interrupt.h: Ctrl-C leaves nothing unfinished behind. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

/* After this call, a signal that ends a process (Ctrl-C, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, timers, SIGUSR1 and 2)
 * removes unfinished outputs, prints one line and exits with 128 + the signal number. SIGPIPE and SIGXFSZ are ignored:
 * a closed pipe and the file size limit become write errors, which clean up too. more: appended to the line. */
void cli_catch_signals(const char *verb, const char *more);
/* After this call, the first Ctrl-C only requests a stop: cli_is_asked_to_stop is then 1. The next one ends the process
 * as above. */
void cli_let_interrupt_ask(void);
/* The same, and a request made before is forgotten. */
void cli_let_interrupt_ask_again(void);
int cli_is_asked_to_stop(void);
/* Whether a terminal shows the beginning of a line of text: the line of a signal then starts a new one. */
void cli_set_mid_line(int is_mid_line);
int cli_is_stopped(void); /* such a signal has arrived: other threads print nothing until the process is gone */

#endif
