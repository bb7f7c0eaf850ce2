/* gpus.h: one process a GPU: the program starts itself that often. */
#ifndef CLI_GPUS_H
#define CLI_GPUS_H

/* The verb (argv[0]) and its words once for each of n GPUs, told apart as torchrun does it. Returns when all have
 * ended: 0, or the first failure's exit status. */
int cli_gpus_run(int n, int argc, char **argv);

#endif
