/* child.h: a program started beside this one, to read or write a film. */
#ifndef KR_CHILD_H
#define KR_CHILD_H

#include <sys/types.h>

/* Starts words[0], found in PATH, with its arguments up to NULL: ends[i] is its descriptor i, unless it is -1. An end
 * is either n or above, or its own number. In a process group of its own, so that Ctrl-C reaches only this process;
 * with no signal blocked or ignored. Returns 0, or an errno. */
int kr_child_start(const char *const *words, const int *ends, int n, pid_t *pid);

#endif
