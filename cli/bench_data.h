/* bench_data.h: the part of krait bench that times how training items are made. */
#ifndef CLI_BENCH_DATA_H
#define CLI_BENCH_DATA_H
/* arguments: [CONFIG] [name=value]... as of krait train. step_ms: the time of a training step, or 0. Returns the exit
 * status. */
int bench_data(char **arguments, int n_arguments, double step_ms, int as_json);
#endif
