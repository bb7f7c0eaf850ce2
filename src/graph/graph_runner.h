/* graph_runner.h: what a runner holds, for the files of this room and its tests. */
#ifndef KR_GRAPH_RUNNER_H
#define KR_GRAPH_RUNNER_H

#include "graph_parts.h"

struct kr_runner {
  const kr_graph *graph;
  char *memory, *extra;   /* arena and states; scratch of rows that an address asked more of than the plan */
  uint64_t extra_bytes, extra_needed;
  int32_t borrowed;       /* memory is the caller's */
  int32_t settled;        /* args hold the addresses that are bound */
  void **bound;           /* by storage */
  unsigned char **args;   /* by node; NULL: it is not run */
  const kr_row **rows;
  double *seconds;
  int64_t n_runs;         /* with these addresses */
  void *stream;           /* of the last run */
  void *recorder, *recorded; /* a stream to record on, and the driver's graph */
};

#endif
