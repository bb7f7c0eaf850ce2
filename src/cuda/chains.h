/* chains.h: rows of launches as executable graphs, kept by stream and kernels. A graph's launch takes the driver 1.2 us
 * whatever its length and new parameters 0.55 us a kernel, where a launch takes 3 us (H200, driver 580). */
#ifndef KR_CHAINS_H
#define KR_CHAINS_H

#include "cuda.h"

typedef struct kr_chains kr_chains;

/* *chains is NULL where the driver is too old for graphs to be quick: launches are then made one by one. */
int32_t kr_chains_open(const kr_driver *driver, kr_chains **chains);
void kr_chains_close(kr_chains **chains);
/* Whether the chain was enqueued; if not, nothing was. functions: of its kernels. The device's context must be
 * current. */
int kr_chains_launch(kr_chains *chains, const kr_chain *chain, void *const *functions);

#endif
