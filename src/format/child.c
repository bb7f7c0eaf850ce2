/* child.c: posix_spawn with what a decoder and an encoder need of it. */
#define _GNU_SOURCE
#include "child.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

int kr_child_start(const char *const *words, const int *ends, int n, pid_t *pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none, all;
  sigemptyset(&none), sigfillset(&all);
  int error = posix_spawn_file_actions_init(&actions);
  if (error) return error;
  if ((error = posix_spawnattr_init(&attributes)) == 0) {
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attributes, &none), posix_spawnattr_setsigdefault(&attributes, &all);
    for (int i = 0; i < n && !error; i++)
      if (ends[i] >= 0) error = posix_spawn_file_actions_adddup2(&actions, ends[i], i);
    if (!error) error = posix_spawnp(pid, words[0], &actions, &attributes, (char *const *)words, environ);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_destroy(&actions);
  return error;
}
