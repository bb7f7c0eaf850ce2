/* interrupt.c: signal handlers of verbs that write files. */
#define _POSIX_C_SOURCE 200809L
#include "interrupt.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "progress.h"
#include "output.h"

static char line[160];
static int err_fd = STDERR_FILENO;
static volatile sig_atomic_t is_stopped, is_asked, is_mid_line;

int cli_is_stopped(void) { return is_stopped; }
int cli_is_asked_to_stop(void) { return is_asked; }
void cli_set_mid_line(int is_mid) { is_mid_line = is_mid; }

/* Standard error may be a pipe without a reader: the process must end all the same. */
static void tell_interrupt(const char *text) {
  struct pollfd out = {.fd = err_fd, .events = POLLOUT};
  if (poll(&out, 1, 0) == 1 && out.revents & POLLOUT) (void)!write(err_fd, text, strlen(text));
}

static void stop(int number) {
  is_stopped = 1;
  krait_outputs_abandon();
  if (cli_progress_is_shown()) tell_interrupt("\r\033[K");
  if (is_mid_line) tell_interrupt("\n");
  tell_interrupt(line);
  _exit(128 + number);
}

static void ask(int number) {
  struct sigaction action = {.sa_handler = stop};
  is_asked = 1;
  sigfillset(&action.sa_mask);
  sigaction(number, &action, NULL);
}

/* A write that is blocked when the signal arrives is restarted: it is not a failure. */
void cli_let_interrupt_ask(void) {
  struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART}, previous;
  sigfillset(&action.sa_mask);
  if (sigaction(SIGINT, NULL, &previous) == 0 && previous.sa_handler == stop) sigaction(SIGINT, &action, NULL);
}

void cli_let_interrupt_ask_again(void) {
  struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART}, previous;
  sigfillset(&action.sa_mask);
  is_asked = 0;
  if (sigaction(SIGINT, NULL, &previous) == 0 && previous.sa_handler != SIG_IGN) sigaction(SIGINT, &action, NULL);
}

void cli_catch_signals(const char *verb, const char *more) {
  static const int numbers[] = {SIGINT,  SIGTERM,   SIGHUP,  SIGQUIT, SIGXCPU,
                                SIGALRM, SIGVTALRM, SIGPROF, SIGUSR1, SIGUSR2};
  struct sigaction action = {.sa_handler = stop}, previous;
  snprintf(line, sizeof line, "krait %s: stopped; no unfinished output is left%s\n", verb, more);
  err_fd = fileno(cli_err());
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) /* signals ignored by nohup stay ignored */
    if (sigaction(numbers[i], NULL, &previous) == 0 && previous.sa_handler != SIG_IGN)
      sigaction(numbers[i], &action, NULL);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}
