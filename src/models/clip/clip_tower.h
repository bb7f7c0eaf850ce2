/* clip_tower.h: CLIP's vision tower alone: its weights in the context's memory, and the graph for n images. */
#ifndef KR_CLIP_TOWER_H
#define KR_CLIP_TOWER_H

#include "clip.h"

typedef struct kr_clip_tower {
  kr_loader loader;
  kr_clip_config c;
  kr_clip_weights w;
  kr_graph *g;
  kr_tensor patches, features; /* (n edge^2, 3 patch patch); (n, edge^2, C); float32 */
} kr_clip_tower;

/* All layers of c; from: the source of the weights. Close it also after a failure. */
int32_t kr_clip_tower_open(const kr_loader *from, const kr_clip_config *c, int64_t n, kr_clip_tower *tower);
void kr_clip_tower_close(kr_clip_tower *tower);

#endif
