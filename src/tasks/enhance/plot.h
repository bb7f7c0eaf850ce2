/* plot.h: plots recordings as PNG: spectrograms before, after, and of the clean reference. */
#ifndef KR_PLOT_H
#define KR_PLOT_H

#include <stdint.h>

typedef struct kr_plot kr_plot;

/* Opens the output, so that a bad path fails early. keep_existing: one that exists is not replaced. */
int32_t kr_plot_begin(const char *png_path, int keep_existing, kr_plot **plot);
typedef struct kr_plot_text {
  const char *title;  /* the recording's path */
  const char *scores; /* the line below it, or "" */
} kr_plot_text;

/* The first channel of each file, up to 24 kHz; without a reference (NULL) two panels. */
int32_t kr_plot_draw(kr_plot *plot, const kr_plot_text *text, const char *before_path, const char *after_path,
                     const char *reference_path);
int32_t kr_plot_commit(kr_plot **plot);
void kr_plot_abandon(kr_plot **plot); /* NULL is allowed */

#endif
