/* event_file.h: numbers of a run as TensorBoard reads them (events.out.tfevents...). */
#ifndef KR_EVENT_FILE_H
#define KR_EVENT_FILE_H
#include <stdint.h>

typedef struct kr_event_file kr_event_file;

/* A new file in this folder, which is made if it is not there; TensorBoard puts those of a run together. */
int32_t kr_event_file_open(const char *folder, kr_event_file **file);
/* Values that are no numbers are left out. */
int32_t kr_event_file_add(kr_event_file *file, int64_t step, const char *const *tags, const double *values, int n);
void kr_event_file_close(kr_event_file **file);

#endif
