/* measure_args.h: a call of an operator that is worth timing, from sizes as text. */
#ifndef KR_MEASURE_ARGS_H
#define KR_MEASURE_ARGS_H

#include "op.h"

enum { KR_MEASURE_BLOCKS = 40 };

typedef struct kr_measured_call {
  _Alignas(16) unsigned char args[4096];
  void *blocks[KR_MEASURE_BLOCKS]; /* every tensor */
  size_t block_bytes[KR_MEASURE_BLOCKS];
  int n_blocks;
  int64_t size[26]; /* by letter */
  int32_t dtype;
  int channel_last;
  int out_of_memory;
} kr_measured_call;

/* shape: "B=1,D=1536,L=2048", over the op's own defaults; "last" puts channels innermost. Close it also after a failure. */
int32_t kr_measured_call_open(kr_measured_call *c, const kr_op *op, const char *shape, int32_t dtype);
void kr_measured_call_close(kr_measured_call *c);

#endif
