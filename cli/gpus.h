/* gpus.h: one process per GPU: the program starts itself once for each. */
#ifndef CLI_GPUS_H
#define CLI_GPUS_H

/* Runs the verb (argv[0]) with its arguments once for each of n GPUs, with torchrun's environment variables. Returns
 * when all have ended: 0, or the exit status of the first failure. */
int cli_gpus_run(int n, int argc, char **argv);

#endif
