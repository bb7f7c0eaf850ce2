/* graph_runner.h: the contents of a runner, for the files of this folder and its tests. */
#ifndef KR_GRAPH_RUNNER_H
#define KR_GRAPH_RUNNER_H

#include "graph_parts.h"
#include "plan.h"

typedef struct kr_recording {
  size_t from, to;  /* nodes */
  int64_t n_runs;
  void *recorded;   /* the CUDA graph, from the second run on */
} kr_recording;
enum { KR_RECORDINGS = 4 };

struct kr_runner {
  const kr_graph *graph;
  char *memory,
      *extra; /* arena and states; scratch for implementations that need more than planned, because of an address */
  uint64_t extra_bytes, extra_needed;
  int32_t borrowed;       /* memory is the caller's */
  int32_t settled;        /* calls with the bound addresses */
  void **bound;           /* by storage */
  kr_plan **calls;        /* by node; NULL: it is not run */
  double *seconds;
  double *shares;         /* by node, after kr_runner_weigh: of the run's time, up to its end */
  size_t next;            /* node of a run in many parts */
  void *stream;           /* of the last run */
  void *recorder, *beside; /* streams for capturing: the second one for lane 2 */
  kr_cuda_timer meeting;  /* where lanes fork and join */
  int32_t records;        /* the current capture */
  int32_t is_rehearsed;   /* the device code of all nodes was loaded */
  kr_recording recordings[KR_RECORDINGS]; /* number of runs of all nodes, or of a part, with these addresses */
  int32_t n_recordings;
};

/* Of a runner in borrowed memory: other memory of that size, without states; another address of a storage. */
void kr_runner_move(kr_runner *r, void *memory);
void kr_runner_rebind(kr_runner *r, size_t storage, void *data);

static inline const kr_impl *kr_runner_impl(const kr_runner *r, size_t n) { return kr_plan_impl(r->calls[n]); }

#endif
