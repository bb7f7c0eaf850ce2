/* interrupt.c: signal handlers of verbs that write files. */
#define _POSIX_C_SOURCE 200809L
#include "interrupt.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/model.h>

#include "progress.h"

static char line[96];

static void stop(int number) {
  krait_outputs_abandon();
  if (kr_progress_is_shown()) (void)!write(STDERR_FILENO, "\r\033[K", 4);
  (void)!write(STDERR_FILENO, line, strlen(line));
  _exit(128 + number);
}

void kr_catch_signals(const char *verb) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction action = {.sa_handler = stop}, previous;
  snprintf(line, sizeof line, "krait %s: stopped; no unfinished output is left\n", verb);
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) /* what nohup ignores stays ignored */
    if (sigaction(numbers[i], NULL, &previous) == 0 && previous.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
  signal(SIGPIPE, SIG_IGN);
}
