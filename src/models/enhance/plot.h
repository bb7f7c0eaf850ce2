/* plot.h: a picture of two recordings: spectrograms before and after, as PNG. */
#ifndef KR_PLOT_H
#define KR_PLOT_H

#include <stdint.h>

typedef struct kr_plot kr_plot;

int32_t kr_plot_begin(const char *png_path, kr_plot **plot); /* opens the output, so that a bad path fails early */
/* The first channel of both files; title names the recording. */
int32_t kr_plot_draw(kr_plot *plot, const char *title, const char *before_path, const char *after_path);
int32_t kr_plot_commit(kr_plot **plot);
void kr_plot_abandon(kr_plot **plot); /* NULL is fine */

#endif
