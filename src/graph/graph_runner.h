/* graph_runner.h: what a runner holds, for the files of this room and its tests. */
#ifndef KR_GRAPH_RUNNER_H
#define KR_GRAPH_RUNNER_H

#include "graph_parts.h"

typedef struct kr_recording {
  size_t from, to;  /* nodes */
  int64_t n_runs;
  void *recorded;   /* the driver's graph, from the second run on */
} kr_recording;
enum { KR_RECORDINGS = 4 };

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
  void *stream;           /* of the last run */
  void *recorder, *beside; /* streams to record on: the second one for lane 2 */
  kr_cuda_timer meeting;  /* where lanes part and meet */
  int32_t records;        /* what runs now is recorded there */
  kr_recording recordings[KR_RECORDINGS]; /* runs of all nodes, or of a part, with these addresses */
  int32_t n_recordings;
};

#endif
