/* live_pipewire.h: PipeWire's virtual microphone (pkg/pipewire): writes and removes its configuration of this user. */
#ifndef CLI_LIVE_PIPEWIRE_H
#define CLI_LIVE_PIPEWIRE_H

int live_pipewire_setup(void); /* the exit status, after lines about what was done */
int live_pipewire_remove(void);

#endif
