/* loss_plot.h: plots a run's log: losses and learning rate over the steps, as PNG. */
#ifndef KR_LOSS_PLOT_H
#define KR_LOSS_PLOT_H

#include <stdint.h>

int32_t kr_loss_plot_write(const char *log_path, const char *png_path);

#endif
