/* videogpt_parts.h: Mobile-VideoGPT beside its language model: the towers, from wherever their weights are, and what is
 * between them. */
#ifndef KR_VIDEOGPT_PARTS_H
#define KR_VIDEOGPT_PARTS_H

#include "lm/lm.h"
#include "videogpt.h"
#include "videomamba/videomamba.h"

typedef struct kr_videogpt_parts {
  kr_model_folder *clip_folder; /* NULL: CLIP is in the model's weights */
  kr_weights *video_weights;    /* NULL: the video tower is, too */
  kr_videogpt *model;
  kr_videomamba *video;
} kr_videogpt_parts;

/* path: of the folder, which must outlive them; files that it lacks are looked for beside it. Close it also after a
 * failure. */
int32_t kr_videogpt_parts_open(const krait_ctx *ctx, const kr_model_folder *folder, const char *path, const kr_lm *lm,
                               kr_videogpt_parts *parts);
/* The same without the video tower: its tokens come from elsewhere. */
int32_t kr_videogpt_parts_open_towerless(const krait_ctx *ctx, const kr_model_folder *folder, const char *path,
                                         const kr_lm *lm, kr_videogpt_parts *parts);
void kr_videogpt_parts_close(kr_videogpt_parts *parts);

#endif
