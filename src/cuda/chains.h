/* chains.h: launch sequences as executable graphs, cached by stream and kernels. A graph launch costs 1.2 us of driver
 * time whatever its length plus 0.55 us per kernel for new parameters, where a launch costs 3 us (H200, driver 580). */
#ifndef KR_CHAINS_H
#define KR_CHAINS_H

#include "cuda.h"

typedef struct kr_chains kr_chains;

/* *chains is NULL if the driver is too old for fast graphs: launches are then issued one by one. */
int32_t kr_chains_open(const kr_driver *driver, kr_chains **chains);
void kr_chains_close(kr_chains **chains);
/* Whether the chain was enqueued; if not, nothing was. functions: its kernels'. The device's context must be current.
 * */
int kr_chains_launch(kr_chains *chains, const kr_chain *chain, void *const *functions);

#endif
