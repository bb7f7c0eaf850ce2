/* measured_call.h: a call of an operator for timing: the usual tensors of its signature, with sizes given as text. */
#ifndef KR_MEASURED_CALL_H
#define KR_MEASURED_CALL_H

#include "op.h"

enum { KR_MEASURE_BLOCKS = 64 };

typedef struct kr_measured_call {
  _Alignas(16) unsigned char args[4096];
  void *blocks[KR_MEASURE_BLOCKS]; /* every tensor */
  size_t block_bytes[KR_MEASURE_BLOCKS];
  int n_blocks;
  int32_t dtype;
  int channel_last;
} kr_measured_call;

/* shape: "B=1,D=1536,L=2048", on top of the op's own defaults; "last" is channels-last. Close it also after a
 * failure. */
int32_t kr_measured_call_open(kr_measured_call *c, const kr_op *op, const char *shape, int32_t dtype);
void kr_measured_call_close(kr_measured_call *c);

#endif
