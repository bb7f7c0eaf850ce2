/* bench_train.h: the part of krait bench that times a training step. */
#ifndef CLI_BENCH_TRAIN_H
#define CLI_BENCH_TRAIN_H
#include "args.h"
/* arguments: [CONFIG] [name=value]... as of krait train. by_call: also time each operator call. Returns the exit
 * status. */
int bench_train(char **arguments, int n_arguments, const cli_run *run, int64_t n_steps, int by_call, int as_json);
#endif
