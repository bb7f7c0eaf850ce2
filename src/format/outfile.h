/* outfile.h: outputs that appear under their name only when complete: written to a temporary name beside it, then renamed. */
#ifndef KR_OUTFILE_H
#define KR_OUTFILE_H
#include <stddef.h>
#include <stdint.h>

typedef struct kr_outfile {
  char *path;      /* the final name */
  char *temp_path; /* write here */
} kr_outfile;

/* Picks a temporary name in the same folder (the file is created, empty). A path that exists and is not a regular file
 * (/dev/full, a pipe) is written directly: temp_path is then path itself. */
int32_t kr_outfile_begin(kr_outfile *file, const char *path);
/* Makes what was written durable and renames it; on failure the temporary file is gone and path is as before. */
int32_t kr_outfile_commit(kr_outfile *file);
/* Removes the temporary file; after commit, or twice, it does nothing. */
void kr_outfile_abandon(kr_outfile *file);
/* Removes every temporary file of this process that is still open: for signal handlers (async-signal-safe). */
void kr_outfile_abandon_all(void);
#endif
