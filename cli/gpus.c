/* gpus.c: starts one process per GPU, waits for them, and ends the others when one is lost. */
#define _GNU_SOURCE
#include "gpus.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <krait/krait.h>

#include "args.h"

enum { MOST = 64, END_WITHIN_S = 30 };

static volatile sig_atomic_t caught, to_send, is_late;
static void catch(int number) { caught = to_send = number; }
static void be_late(int number) { (void)number, is_late = 1; }

/* A TCP port of this machine that is free now; 0: none. */
static int free_port(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof at;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int found = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
                    getsockname(fd, (struct sockaddr *)&at, &bytes) == 0;
  if (fd >= 0) close(fd);
  return found ? ntohs(at.sin_port) : 0;
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

enum { MOST_BEFORE = 16 };

/* The words of this process' command line before its last argc: the program's name, or, if the loader was started with
 * the program as an argument (as the tarball does), the loader's own words, too. */
static int words_before(int argc, char *words[MOST_BEFORE]) {
  FILE *file = fopen("/proc/self/cmdline", "r");
  char *word = NULL;
  size_t bytes = 0;
  int n = -argc, n_kept = 0;
  if (!file) return 0;
  while (getdelim(&word, &bytes, 0, file) > 0) n++;
  rewind(file);
  while (n_kept < n && n <= MOST_BEFORE && getdelim(&word, &bytes, 0, file) > 0)
    if ((words[n_kept] = strdup(word))) n_kept++;
  free(word);
  fclose(file);
  return n_kept == n ? n : 0;
}

/* In the new process; returns only on failure. */
static void become(int rank, int n, int port, pid_t parent, int argc, char **argv) {
  char **words = calloc((size_t)(argc + MOST_BEFORE + 1), sizeof *words);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!words || getppid() != parent) return;
  const int before = words_before(argc, words);
  if (before == 0) return;
  memcpy(words + before, argv, (size_t)argc * sizeof *words);
  set_number("RANK", rank), set_number("LOCAL_RANK", rank), set_number("WORLD_SIZE", n),
      set_number("LOCAL_WORLD_SIZE", n), set_number("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  unsetenv("TORCHELASTIC_RUN_ID");
  execv("/proc/self/exe", words);
}

static void send_all(const pid_t *children, int n, int number) {
  for (int i = 0; i < n; i++)
    if (children[i] > 0) kill(children[i], number);
}

/* The first failure starts a timeout for the others, which notice it by themselves. */
static int await_all(pid_t *children, int n) {
  int n_left = n, result = 0;
  while (n_left) {
    int how;
    const pid_t who = waitpid(-1, &how, 0);
    if (who < 0 && errno != EINTR) return 1;
    if (who < 0 && to_send) send_all(children, n, to_send), to_send = 0;
    if (who < 0 && is_late) send_all(children, n, SIGKILL), is_late = 0;
    for (int i = 0; i < n && who > 0; i++) {
      if (children[i] != who) continue;
      children[i] = 0, n_left--;
      const int status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
      if (status && !result) alarm(END_WITHIN_S);
      if (status && (i == 0 || !result)) result = status; /* rank 0 says what is wrong: its status is that of the run */
    }
  }
  return result;
}

int cli_gpus_run(int n, int argc, char **argv) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  const struct sigaction on_signal = {.sa_handler = catch}, on_alarm = {.sa_handler = be_late};
  pid_t children[MOST] = {0};
  const pid_t parent = getpid();
  int32_t n_gpus = 0;
  const int32_t status = krait_device_count(&n_gpus);
  if (status < 0) return cli_report(argv[0], status) + 1;
  if (n > n_gpus || n > MOST) return cli_usage_error(argv[0], "--gpus %d: this machine has %d", n, (int)n_gpus);
  const int port = free_port();
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &on_signal, NULL);
  sigaction(SIGALRM, &on_alarm, NULL);
  for (int rank = 0; rank < n; rank++) {
    children[rank] = port ? fork() : -1;
    if (children[rank] == 0) {
      become(rank, n, port, parent, argc, argv);
      _exit(1);
    }
    if (children[rank] > 0) continue;
    send_all(children, rank, SIGKILL);
    return cli_report_detail(argv[0], KRAIT_ERR_NO_MEMORY, "cannot start a process for every GPU");
  }
  const int result = await_all(children, n);
  return caught ? 128 + caught : result > 128 ? 1 : result;
}
