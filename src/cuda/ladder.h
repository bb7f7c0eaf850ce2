/* ladder.h: the tiers of archs.def, and which of them a device takes. */
#ifndef KR_LADDER_H
#define KR_LADDER_H

#include "cuda.h"

typedef struct kr_tier {
  const char *name;
  uint64_t cap;
  int low, high, ptx_version; /* compute capability as 90 for 9.0; high 0: unbounded */
} kr_tier;

const kr_tier *kr_tier_at(int index); /* best first; NULL past the last */
const char *kr_tier_name(uint64_t cap);
/* Tiers of mask that the device takes; `why` gets one clause for each rejected one. */
uint64_t kr_ladder(const kr_device_info *info, int ptx_version, uint64_t mask, char *why, size_t why_bytes);

#endif
