/* event_file.h: writes a run's values for TensorBoard (events.out.tfevents...). */
#ifndef KR_EVENT_FILE_H
#define KR_EVENT_FILE_H
#include <stdint.h>

typedef struct kr_event_file kr_event_file;

/* A new file in this folder, which is created if needed; TensorBoard merges those of a run. */
int32_t kr_event_file_open(const char *folder, kr_event_file **file);
/* NaN values are skipped. */
int32_t kr_event_file_add(kr_event_file *file, int64_t step, const char *const *tags, const double *values, int n);
void kr_event_file_close(kr_event_file **file);

#endif
