/* plot.h: plots two recordings: spectrograms before and after, as PNG. */
#ifndef KR_PLOT_H
#define KR_PLOT_H

#include <stdint.h>

typedef struct kr_plot kr_plot;

/* Opens the output, so that a bad path fails early. keep_existing: one that exists is not replaced. */
int32_t kr_plot_begin(const char *png_path, int keep_existing, kr_plot **plot);
/* The first channel of both files; title names the recording. */
int32_t kr_plot_draw(kr_plot *plot, const char *title, const char *before_path, const char *after_path);
int32_t kr_plot_commit(kr_plot **plot);
void kr_plot_abandon(kr_plot **plot); /* NULL is allowed */

#endif
