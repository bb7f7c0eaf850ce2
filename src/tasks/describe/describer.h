/* describer.h: a contact sheet of a video's frames, and the graphs that compute an answer. */
#ifndef KR_DESCRIBER_H
#define KR_DESCRIBER_H

#include <krait/vision.h>

#include "graph.h"

/* frames (KRAIT_FILM_FRAMES, side, side, 3) bytes. */
int32_t kr_describer_draw(const krait_video_info *film, const uint8_t *frames, int64_t side, const char *png_path);

/* Passes the graphs, in the order in which they run, to fn, until it refuses one. */
typedef int32_t kr_describer_graph_fn(void *user, const char *title, const kr_graph *g);
int32_t kr_describer_graphs(krait_describer *describer, kr_describer_graph_fn *fn, void *user);

#endif
