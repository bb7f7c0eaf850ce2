/* foreign.h: libraries that do not ask whether there was memory. */
#ifndef CLI_FOREIGN_H
#define CLI_FOREIGN_H

/* From here on a fault inside a library that reads, writes, resamples or draws ends the process like any lack of
 * memory: unfinished outputs are removed, one line says so, and the exit status is this one. Every other fault removes
 * unfinished outputs and stays what it is. Handlers that somebody set before stay. */
void cli_guard_foreign(const char *verb, int status);

#endif
