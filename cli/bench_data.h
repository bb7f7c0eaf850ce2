/* bench_data.h: the part of krait bench that times the making of training items. */
#ifndef CLI_BENCH_DATA_H
#define CLI_BENCH_DATA_H
/* arguments: [CONFIG] [name=value]... as of krait train. step_ms: what a training step takes, or 0. The exit status. */
int bench_data(char **arguments, int n_arguments, double step_ms, int as_json);
#endif
