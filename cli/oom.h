/* oom.h: third-party libraries that do not check for failed allocations. */
#ifndef CLI_OOM_H
#define CLI_OOM_H

/* After this call, a fault inside a library that reads, writes, resamples or draws ends the process as out of memory
 * does: unfinished outputs are removed, one line is printed, and the exit status is this one. Any other fault removes
 * unfinished outputs and then proceeds as usual. Signal handlers that were set before are kept. */
void cli_guard_foreign(const char *verb, int status);

#endif
